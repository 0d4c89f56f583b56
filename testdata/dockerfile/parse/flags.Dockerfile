FROM --platform="linux/arm" a AS b
RUN --network=none --mount=type=bind,target="/a b" -- --x
RUN --network= --security=sandbox x
RUN -- -- x
RUN --mount='type=tmpfs,target=/x' --mount=type=tmpfs,target=/y\
\ z w
COPY --link --parents=FALSE --exclude=a --exclude="b c" --from= --chmod= --chown=\1\:2 a b
COPY --link=true -- --a --b
ADD --unpack=False --keep-git-dir a b
ARG --a b --c
STOPSIGNAL --x 9
HEALTHCHECK --x NONE
HEALTHCHECK --interval=0 --retries= --timeout=1h CMD --x
USER -- --x
LABEL -- --a=b
ENV -- --a b
ONBUILD RUN --no-such-flag x
