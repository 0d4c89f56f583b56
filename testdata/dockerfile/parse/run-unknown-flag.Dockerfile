FROM scratch
RUN --nope x
