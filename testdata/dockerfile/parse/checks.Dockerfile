# Version of it
ARG VERSION=1
FROM a AS Scratch
Cmd a
CMD b
ENV API_TOKEN=x
WORKDIR rel
from --platform=linux/amd64 b as scratch
EXPOSE 80/TCP
