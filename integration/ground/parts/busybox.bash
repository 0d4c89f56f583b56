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

# fetch_busybox: the packages into the cache, through an apt of its own: the machine's list of architectures and
# packages stays as it is. Mirror, keys and proxy are the machine's.
fetch_busybox() {
  local apt=$work/apt debian options wanted=()
  for debian in "${busybox_architectures[@]}"; do
    [ -e "$cache/busybox_$debian.deb" ] || wanted+=("busybox-static:$debian")
  done
  [ ${#wanted[@]} -gt 0 ] || return 0
  mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,debs}
  : >"$apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) bookworm main" >"$apt/sources.list"
  options=(
    -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
    -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
    -o "APT::Architectures=$(IFS=,; echo "${busybox_architectures[*]}")"
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o APT::Sandbox::User=root
  )
  apt-get "${options[@]}" update
  (cd "$apt/debs" && apt-get "${options[@]}" download "${wanted[@]}")
  for debian in "${busybox_architectures[@]}"; do
    [ -e "$cache/busybox_$debian.deb" ] || mv "$apt/debs/"*"_$debian.deb" "$cache/busybox_$debian.deb"
  done
}

# debian_mirror: where this machine gets Debian from.
debian_mirror() {
  local uri
  uri=$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "main" && $1 ~ /\/debian\/?$/ { print $1; exit }')
  echo "${uri:-http://deb.debian.org/debian}"
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
