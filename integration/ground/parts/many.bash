# A base with 100,000 small files, to see what a step costs on top of much that it does not touch.

push_many() {
  local root=$work/root busybox
  if pushed many; then
    note "in the registry"
    return
  fi
  fresh_work
  fetch_busybox
  busybox_root amd64 "$root"
  tar_of "$root" "$work/amd64.tar"
  busybox=$(layer_of "$work/amd64.tar")
  rm -rf "$root"
  mkdir -p "$root"
  awk -v root="$root" 'BEGIN {
    for (i = 0; i < 100; i++) for (j = 0; j < 10; j++) directories = directories " " root "/many/" i "/" j
    system("mkdir -p" directories)
    for (n = 0; n < 100000; n++) {
      file = root "/many/" int(n / 1000) "/" int(n / 100) % 10 "/" n % 100
      print n > file
      close(file)
    }
  }'
  chown -R 0:0 "$root"
  tar_of "$root" "$work/many.tar"
  read -ra manifest <<<"$(manifest_of oci '["sh"]' "$(platform_json amd64)" "$busybox" "$(layer_of "$work/many.tar")")"
  push_manifest "$work/blobs/${manifest[1]#sha256:}" many:100k
  echo "many 100k amd64 ${manifest[1]}" >>"$work/bases"
  record_bases many
}
