ARG V=1 W
FROM --platform=$BUILDPLATFORM golang:${V} AS Build
FROM build as two
FROM scratch AS a-1_b.c
FROM scratch
FROM --platform= x
