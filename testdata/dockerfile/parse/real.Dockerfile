# syntax=docker/dockerfile:1

ARG GO_VERSION=1.25
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION}-alpine AS build
WORKDIR /src
RUN --mount=type=cache,target=/go/pkg/mod \
    --mount=type=bind,source=go.sum,target=go.sum \
    --mount=type=bind,source=go.mod,target=go.mod \
    go mod download -x
ARG TARGETOS TARGETARCH
RUN --mount=type=bind,target=. \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -o /bin/server .

FROM alpine:latest AS final
RUN apk --update add \
        ca-certificates \
        # time zones
        tzdata \
        && \
        update-ca-certificates
ARG UID=10001
RUN adduser --disabled-password --uid "${UID}" appuser
USER appuser
COPY --from=build /bin/server /bin/
EXPOSE 8080
HEALTHCHECK --interval=30s CMD ["/bin/server", "-check"]
ENTRYPOINT [ "/bin/server" ]
