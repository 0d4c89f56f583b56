# The Debian bases, made with mmdebstrap and kept as archives in the cache.
#
#   debian            Debian's essential packages and passwd (for useradd), for this machine's architecture and
#                     debian_architectures, set up by their own scripts: those of the foreign ones run under qemu, a
#                     minute each
#   debian-cross      gcc for debian_architectures, each called by its triplet, running on this machine's architecture;
#                     only unpacked, not set up. Real C compilers for a build stage on the build platform; without LTO
#                     and sanitizers 295 MB

debian_suite=bookworm
debian_architectures=(amd64 arm64 armel armhf)

push_debian() {
  local native debian architectures
  native=$(dpkg --print-architecture)
  architectures=("$native")
  for debian in "${debian_architectures[@]}"; do
    [ "$debian" = "$native" ] || architectures+=("$debian")
  done
  if pushed debian && pushed debian-cross; then
    note "in the registry"
    return
  fi
  fresh_work
  # The foreign ones take longest and use one core each.
  local running=()
  for debian in "${architectures[@]}"; do
    cached_root "debian_$debian" "$debian" essential &
    running+=($!)
  done
  cached_root "debian-cross_$native" "$native" extract &
  running+=($!)
  for debian in "${running[@]}"; do
    wait "$debian"
  done
  for debian in "${architectures[@]}"; do
    ln -s "$(root_archive "debian_$debian" essential)" "$work/$debian.tar"
  done
  push_flavours debian '["bash"]' "${architectures[@]}"
  ln -sf "$(root_archive "debian-cross_$native" extract)" "$work/$native.tar"
  push_flavours debian-cross '["sh"]' "$native"
  note "${architectures[*]}; debian-cross: $native"
}

# cross_packages: those of the compilers' root. Nothing is a cross compiler for its own architecture.
cross_packages() {
  local native debian packages=base-files,coreutils,dash
  native=$(dpkg --print-architecture)
  for debian in "${debian_architectures[@]}"; do
    case $debian in
      "$native") packages+=,gcc,libc6-dev ;;
      amd64) packages+=,gcc-x86-64-linux-gnu,libc6-dev-amd64-cross ;;
      arm64) packages+=,gcc-aarch64-linux-gnu,libc6-dev-arm64-cross ;;
      armel) packages+=,gcc-arm-linux-gnueabi,libc6-dev-armel-cross ;;
      armhf) packages+=,gcc-arm-linux-gnueabihf,libc6-dev-armhf-cross ;;
    esac
  done
  echo "$packages"
}

# options VARIANT: how mmdebstrap is called, one option a line; proxy settings are the machine's.
options() {
  apt-config dump --format '%F "%v";%n' Acquire | sed -nE 's/^Acquire::(https?::|Check-)/--aptopt=&/p'
  printf '%s\n' --quiet --mode=root "--variant=$1" --skip=output/dev '--aptopt=Acquire::Languages "none"' \
    '--aptopt=APT::Install-Recommends "false"'
  case $1 in
    essential)
      printf -- '--dpkgopt=path-exclude=/usr/share/%s/*\n' doc info locale man
      printf '%s\n' --include=passwd "--customize-hook=$here/parts/trim"
      ;;
    extract)
      # This variant stops before the customize hooks.
      printf '%s\n' "--include=$(cross_packages)" "--extract-hook=$here/parts/trim"
      ;;
  esac
}

# root_archive NAME VARIANT: the cache's file; its name changes with the options.
root_archive() {
  local hash
  hash=$(options "$2" | sed "s|$here||" | cat - "$here/parts/trim" | sha256sum)
  echo "$cache/$1.${hash:0:12}.tar"
}

# cached_root NAME ARCHITECTURE VARIANT
cached_root() {
  local file arguments
  file=$(root_archive "$1" "$3")
  [ ! -e "$file" ] || return 0
  mapfile -t arguments < <(options "$3")
  # base_time: a whole number of seconds makes mmdebstrap's result depend on the packages only.
  SOURCE_DATE_EPOCH=${base_time#@} mmdebstrap "${arguments[@]}" "--architectures=$2" "$debian_suite" "$file.part.tar" \
    "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) $debian_suite main"
  mv "$file.part.tar" "$file"
}
