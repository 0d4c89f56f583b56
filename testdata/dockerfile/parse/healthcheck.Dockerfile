FROM scratch
HEALTHCHECK --interval=5m --timeout=3s --start-period=1s --start-interval=2s --retries=4 CMD curl x
HEALTHCHECK cmd ["a", "b c"]
HEALTHCHECK --interval=1.5s --timeout=0 \
  CMD   x  y
HEALTHCHECK NONE
HEALTHCHECK --bogus none
