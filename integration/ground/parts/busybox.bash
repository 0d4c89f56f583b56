# The busybox base: Debian's busybox-static for seven architectures, next to nothing else.

busybox_architectures=(amd64 arm64 armel armhf i386 ppc64el s390x)

push_busybox() {
  local debian
  if pushed busybox; then
    note "in the registry"
    return
  fi
  fresh_work
  fetch_busybox
  for debian in "${busybox_architectures[@]}"; do
    busybox_root "$debian" "$work/root"
    tar_of "$work/root" "$work/$debian.tar"
    rm -rf "$work/root"
  done
  push_flavours busybox '["sh"]' "${busybox_architectures[@]}"
  note "${busybox_architectures[*]}"
}

# fetch_busybox: the packages into the cache.
fetch_busybox() {
  local debian wanted=()
  for debian in "${busybox_architectures[@]}"; do
    [ -e "$cache/busybox_$debian.deb" ] || wanted+=("busybox-static:$debian")
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  download_packages "$work/debs" "${wanted[@]}"
  for debian in "${busybox_architectures[@]}"; do
    [ -e "$cache/busybox_$debian.deb" ] || mv "$work/debs/"*"_$debian.deb" "$cache/busybox_$debian.deb"
  done
}

# busybox_root ARCHITECTURE DIRECTORY
busybox_root() {
  local root=$2 applet
  mkdir -p "$work/package" "$root"/{bin,etc,home/user,tmp}
  dpkg-deb -x "$cache/busybox_$1.deb" "$work/package"
  install -m 0755 "$work/package/bin/busybox" "$root/bin/busybox"
  rm -rf "$work/package"
  for applet in $("$root/bin/busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
  done
  cat >"$root/etc/passwd" <<'END'
root:x:0:0:root:/root:/bin/sh
user:x:1000:1001::/home/user:/bin/sh
END
  cat >"$root/etc/group" <<'END'
root:x:0:
ugrp:x:1001:
supp:x:2000:user
END
  chmod 0755 "$root" "$root"/{bin,etc,home,home/user}
  chmod 0644 "$root"/etc/{passwd,group}
  chmod 1777 "$root/tmp"
  chown -R 0:0 "$root"
  chown 1000:1001 "$root/home/user"
}
