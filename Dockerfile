# builder's own image: the static program, certificates, and the paths that kaniko's image has.
#
#   builder --context . --destination 127.0.0.1:5000/builder:latest
#   builder --context . --destination 127.0.0.1:5000/builder:cross --target cross     # with emulators: docs/emulation.md
#
# RUST is any image of Debian's with cargo, a C compiler and ca-certificates.
ARG RUST=docker.io/library/rust:1-bookworm

FROM $RUST AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY src src
RUN cargo build --release --locked --bin builder
RUN <<END
set -eu
mkdir -p /out/kaniko/.docker /out/kaniko/ssl/certs /out/usr/local/bin /out/etc /out/root /out/tmp /out/workspace
cp "$(find target -path '*/release/builder' -type f)" /out/kaniko/executor
cp /etc/ssl/certs/ca-certificates.crt /out/kaniko/ssl/certs/
ln -s /kaniko/executor /out/usr/local/bin/builder
echo 'hosts: files dns' >/out/etc/nsswitch.conf
# Says that this is builder's own image, whose files a step may do without: only here does builder run steps in the
# container's own root unasked. An image that takes /kaniko from this one does not get it.
echo "builder's own image" >/out/.builder-image
chmod 0755 /out/kaniko/executor
chmod 0700 /out/root
chmod 1777 /out/tmp
# As in kaniko's image: whoever runs it may put credentials there.
chmod 0777 /out/kaniko /out/kaniko/.docker
END

FROM $RUST AS emulators
RUN <<END
set -eu
apt-get update
apt-get install --yes --no-install-recommends qemu-user-static
mkdir -p /out/kaniko/qemu
for cpu in aarch64 arm i386 mips64el ppc64le riscv64 s390x x86_64; do
  cp "/usr/bin/qemu-$cpu-static" /out/kaniko/qemu/
done
END

FROM scratch AS plain
COPY --from=build /out/ /
ENV HOME=/root \
    USER=root \
    PATH=/usr/local/bin:/kaniko \
    SSL_CERT_DIR=/kaniko/ssl/certs \
    DOCKER_CONFIG=/kaniko/.docker/ \
    BUILDER_STORE=/var/lib/builder
WORKDIR /workspace
# Image layers and the file systems of steps, whoever builds: overlayfs wants a disk of its own under them, not another
# overlay.
VOLUME /var/lib/builder
ENTRYPOINT ["/kaniko/executor"]

FROM plain AS cross
COPY --from=emulators /out/ /

# What is built where no target is named.
FROM plain
