FROM scratch
COPY --from=x a
