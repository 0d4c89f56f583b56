ARG a=1
ARG b
