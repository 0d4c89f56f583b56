ARG a
RUN x
FROM scratch
