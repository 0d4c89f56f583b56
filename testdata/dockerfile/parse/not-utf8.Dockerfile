FROM scratch
ENV a=ÿþ é=1
RUN echo é <<ÿ
€
ÿ
COPY ["ÿ", "/þ"]
