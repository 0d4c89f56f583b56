# Packages that are not installed on this machine but in images.

# What tests install in a Debian base, by dpkg: a program that needs no other package than the base has.
in_images=(libcap2-bin)

# fetch_packages: into $ground/packages, under their names alone.
fetch_packages() {
  local package wanted=()
  mkdir -p "$ground/packages"
  for package in "${in_images[@]}"; do
    [ -e "$ground/packages/$package.deb" ] || wanted+=("$package")
  done
  if [ ${#wanted[@]} = 0 ]; then
    note "nothing missing"
    return
  fi
  download_packages "$work/packages" "${wanted[@]/%/:$(dpkg --print-architecture)}"
  for package in "${wanted[@]}"; do
    mv "$work/packages/${package}_"*.deb "$ground/packages/$package.deb"
  done
  note "${wanted[*]}"
}

# download_packages DIRECTORY PACKAGE:ARCHITECTURE…: through an apt of its own: the machine's list of architectures and
# packages stays as it is. Mirror, keys and proxy are the machine's.
download_packages() {
  local apt=$work/apt directory=$1 options architectures
  shift
  architectures=$(printf '%s\n' "${@##*:}" | sort -u | paste -sd ,)
  mkdir -p "$directory" "$apt"/{state/lists/partial,cache/archives/partial}
  : >"$apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) bookworm main" >"$apt/sources.list"
  options=(
    -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt/cache"
    -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null
    -o "APT::Architectures=$architectures"
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o APT::Sandbox::User=root
  )
  apt-get "${options[@]}" update
  (cd "$directory" && apt-get "${options[@]}" download "$@")
}

# debian_mirror: where this machine gets Debian from.
debian_mirror() {
  local uri
  uri=$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
    awk '$2 == "main" && $1 ~ /\/debian\/?$/ { print $1; exit }')
  echo "${uri:-http://deb.debian.org/debian}"
}
