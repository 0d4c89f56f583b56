# Programs from Debian. Base images are made from packages too, but those are never installed here; busybox-static is,
# for the tests that run it without an image. mmdebstrap wants arch-test for foreign architectures. crun makes the
# containers of pods, with a filter for system calls that golang-github-containers-common has.

packages=(
  arch-test busybox-static ca-certificates crun debian-archive-keyring docker-registry git golang-github-containers-common
  jq mmdebstrap qemu-user-static skopeo uidmap umoci
)

missing_packages() {
  local package
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
  done
}

install_packages() {
  install_missing "${packages[@]}"
}

# install_missing PACKAGE…: touches the network only when something is missing.
install_missing() {
  local missing policy=/usr/sbin/policy-rc.d
  mapfile -t missing < <(missing_packages "$@")
  if [ ${#missing[@]} = 0 ]; then
    note "nothing missing"
    return
  fi
  # docker-registry would start itself as a service on port 5000; nobody asked for that.
  if [ ! -e "$policy" ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 0755 "$policy"
  fi
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
  note "installed ${missing[*]}"
}
