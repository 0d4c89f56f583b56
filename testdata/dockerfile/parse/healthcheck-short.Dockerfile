FROM scratch
HEALTHCHECK --interval=100us CMD x
