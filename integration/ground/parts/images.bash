# Images without a builder: blobs, configs, manifests and indexes written by hand, pushed with skopeo.
#
# Everything goes through a directory in skopeo's `dir:` form, which carries any manifest type unchanged.

default_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# All times in the bases, so that equal packages give equal digests.
base_time=@1700000000

# How Debian's architectures are called in images: architecture, then the variant if there is one. armel is ARMv5T,
# armhf is ARMv7 (Debian's own images are labelled so).
image_platform() {
  case $1 in
    amd64) echo amd64 ;;
    arm64) echo arm64 v8 ;;
    armel) echo arm v5 ;;
    armhf) echo arm v7 ;;
    i386) echo 386 ;;
    ppc64el) echo ppc64le ;;
    s390x) echo s390x ;;
    *) return 1 ;;
  esac
}

# fresh_work: each repository starts without the others' blobs.
fresh_work() {
  rm -rf "$work"
  mkdir "$work"
}

# put_blob FILE: moves it under its digest; prints digest and size.
put_blob() {
  local hash size
  hash=$(sha256sum "$1") && hash=${hash%% *}
  size=$(stat -c %s "$1")
  mkdir -p "$work/blobs"
  mv -f "$1" "$work/blobs/$hash"
  echo "sha256:$hash $size"
}

# descriptor TYPE DIGEST SIZE [PLATFORM-JSON]
descriptor() {
  jq -cn --arg type "$1" --arg digest "$2" --argjson size "$3" --argjson platform "${4:-null}" \
    '{mediaType: $type, digest: $digest, size: $size} + (if $platform then {platform: $platform} else {} end)'
}

# platform_json ARCHITECTURE [VARIANT]
platform_json() {
  jq -cn --arg architecture "$1" --arg variant "${2:-}" \
    '{architecture: $architecture, os: "linux"} + (if $variant != "" then {variant: $variant} else {} end)'
}

# layer_of TAR: compresses it (fast: it only travels over the loopback interface); prints diff id, blob digest and blob size.
layer_of() {
  local diff_id blob
  diff_id=$(sha256sum "$1") && diff_id=sha256:${diff_id%% *}
  blob=$(gzip -n -1 <"$1" >"$work/layer.gz" && put_blob "$work/layer.gz")
  echo "$diff_id $blob"
}

# manifest_of FORM COMMAND-JSON PLATFORM-JSON LAYER…: one image; FORM is oci or docker, each LAYER is what layer_of
# printed. Prints the manifest's type, digest and size.
manifest_of() {
  local form=$1 command=$2 platform=$3 config layer layers=() diff_ids=() history=() manifest type config_type layer_type
  shift 3
  case $form in
    oci)
      type=application/vnd.oci.image.manifest.v1+json
      config_type=application/vnd.oci.image.config.v1+json
      layer_type=application/vnd.oci.image.layer.v1.tar+gzip
      ;;
    docker)
      type=application/vnd.docker.distribution.manifest.v2+json
      config_type=application/vnd.docker.container.image.v1+json
      layer_type=application/vnd.docker.image.rootfs.diff.tar.gzip
      ;;
  esac
  for layer in "$@"; do
    # shellcheck disable=SC2086
    set -- $layer
    diff_ids+=("$1")
    layers+=("$(descriptor "$layer_type" "$2" "$3")")
    history+=('{"created":"2023-11-14T22:13:20Z","created_by":"integration/ground"}')
  done
  jq -cn --argjson platform "$platform" --argjson command "$command" --arg path "PATH=$default_path" \
    --argjson history "[$(IFS=,; echo "${history[*]}")]" \
    '{created: "2023-11-14T22:13:20Z"} + $platform
     + {config: {Env: [$path], Cmd: $command}, rootfs: {type: "layers", diff_ids: $ARGS.positional}, history: $history}' \
    --args "${diff_ids[@]}" >"$work/config.json"
  config=$(put_blob "$work/config.json")
  # shellcheck disable=SC2086
  jq -cn --arg type "$type" --argjson config "$(descriptor "$config_type" $config)" \
    --argjson layers "[$(IFS=,; echo "${layers[*]}")]" \
    '{schemaVersion: 2, mediaType: $type, config: $config, layers: $layers}' >"$work/manifest.json"
  manifest=$(put_blob "$work/manifest.json")
  echo "$type $manifest"
}

# push_manifest FILE REPOSITORY:TAG: the manifest or index in FILE with everything it names, from the blobs made so far.
push_manifest() {
  local out=$work/push hash
  rm -rf "$out"
  mkdir -p "$out"
  printf 'Directory Transport Version: 1.1\n' >"$out/version"
  cp "$1" "$out/manifest.json"
  for hash in "$work"/blobs/*; do
    ln "$hash" "$out/${hash##*/}"
    # Which blobs are manifests does not matter: skopeo asks for what the index names.
    [ "$(stat -c %s "$hash")" -gt 100000 ] || ln "$hash" "$out/${hash##*/}.manifest.json"
  done
  skopeo --insecure-policy copy --quiet --all --preserve-digests --dest-tls-verify=false \
    "dir:$out" "docker://$(cat "$ground/registry")/$2"
}

# push_flavours REPOSITORY COMMAND-JSON ARCHITECTURE…: the layer of each Debian architecture is $work/ARCHITECTURE.tar.
# Tags, all with the architectures in the given order:
#   latest      OCI index, variants in descriptors and configs
#   unlabelled  OCI index without any variant
#   configs     OCI index, variants only in the configs
#   list        Docker manifest list, variants in descriptors and configs
#   single-A    the manifest of architecture A alone
push_flavours() {
  local repository=$1 command=$2 tag form index_type debian labels label layers manifest entries
  shift 2
  declare -A layers
  for debian in "$@"; do
    layers[$debian]=$(layer_of "$work/$debian.tar")
  done
  for tag in latest unlabelled configs list; do
    form=oci index_type=application/vnd.oci.image.index.v1+json
    [ "$tag" != list ] || form=docker index_type=application/vnd.docker.distribution.manifest.list.v2+json
    entries=()
    for debian in "$@"; do
      read -ra label <<<"$(image_platform "$debian")"
      labels=("${label[@]}")
      [ "$tag" != unlabelled ] || labels=("${label[0]}")
      manifest=$(manifest_of "$form" "$command" "$(platform_json "${labels[@]}")" "${layers[$debian]}")
      [ "$tag" != configs ] || labels=("${label[0]}")
      # shellcheck disable=SC2086
      entries+=("$(descriptor $manifest "$(platform_json "${labels[@]}")")")
      read -ra manifest <<<"$manifest"
      echo "$repository $tag $debian ${manifest[1]}" >>"$work/bases"
      if [ "$tag" = latest ]; then
        push_manifest "$work/blobs/${manifest[1]#sha256:}" "$repository:single-$debian"
      fi
    done
    jq -cn --arg type "$index_type" --argjson entries "[$(IFS=,; echo "${entries[*]}")]" \
      '{schemaVersion: 2, mediaType: $type, manifests: $entries}' >"$work/index.json"
    push_manifest "$work/index.json" "$repository:$tag"
  done
  record_bases "$repository"
}

# record_bases REPOSITORY: what was pushed, for the tests; together with the recipe, so that it is done once.
record_bases() {
  touch "$ground/bases"
  { grep -v "^$1 " "$ground/bases" || true; cat "$work/bases"; } >"$ground/bases.new"
  mv "$ground/bases.new" "$ground/bases"
  rm -f "$work/bases"
  recipe >"$ground/registry-data/$1.recipe"
}

# recipe: changes when the scripts that make images do.
recipe() {
  cat "$here"/parts/{images,busybox,debian,many}.bash "$here/parts/trim" | sha256sum
}

# pushed REPOSITORY: whether this very recipe's images are in the registry.
pushed() {
  recipe | cmp -s - "$ground/registry-data/$1.recipe" && grep -q "^$1 " "$ground/bases"
}

# tar_of DIRECTORY FILE: an archive that depends on the files only.
tar_of() {
  tar -C "$1" --sort=name --numeric-owner --mtime="$base_time" --format=pax \
    --pax-option=delete=atime,delete=ctime,exthdr.name=%d/PaxHeaders/%f -cf "$2" .
}
