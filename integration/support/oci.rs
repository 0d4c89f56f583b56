//! Images as independent readers see them: skopeo, umoci and the crate `oci-spec`.

use std::fs;
use std::path::Path;
use std::process::Command;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde_json::Value;

use super::{finish, scratch};

/// Runs skopeo and returns its stdout; it must succeed.
#[track_caller]
pub(crate) fn skopeo(arguments: &[&str]) -> String {
    finish(Command::new("skopeo").arg("--insecure-policy").args(arguments)).success().stdout
}

/// The manifest or index that a registry has under a name, as it is.
pub(crate) fn raw_manifest(name: &str) -> Value {
    let text = skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{name}")]);
    serde_json::from_str(&text).expect("a manifest is JSON")
}

/// The config of an image in a registry.
pub(crate) fn raw_config(name: &str) -> Value {
    let text = skopeo(&["inspect", "--config", "--raw", "--tls-verify=false", &format!("docker://{name}")]);
    serde_json::from_str(&text).expect("a config is JSON")
}

/// Copies an image of a registry into a new OCI layout, under the tag `image`.
pub(crate) fn pull(name: &str, layout: &Path) {
    let to = format!("oci:{}:image", layout.display());
    skopeo(&["copy", "--quiet", "--src-tls-verify=false", &format!("docker://{name}"), &to]);
}

/// An image in an OCI layout, read with `oci-spec`; every blob on the way is checked against its digest and size.
pub(crate) struct LayoutImage {
    /// Its descriptor in the layout's index.
    pub(crate) descriptor: Descriptor,
    /// Its manifest.
    pub(crate) manifest: ImageManifest,
    /// Its config, as typed by `oci-spec`.
    pub(crate) config: ImageConfiguration,
    /// Its config with all fields.
    pub(crate) raw_config: Value,
}

impl LayoutImage {
    /// The only image of a layout.
    pub(crate) fn only(layout: &Path) -> Self {
        let index = ImageIndex::from_file(layout.join("index.json")).expect("index of the layout");
        let [descriptor] = &index.manifests()[..] else {
            panic!("{}: one image expected, not {}", layout.display(), index.manifests().len())
        };
        let manifest = ImageManifest::from_reader(&blob(layout, descriptor)[..]).expect("manifest");
        for layer in manifest.layers() {
            blob(layout, layer);
        }
        let raw_config: Value = serde_json::from_slice(&blob(layout, manifest.config())).expect("config");
        // Buildah writes `null` for the history of an image without layers.
        let mut config = raw_config.clone();
        config.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        Self {
            descriptor: descriptor.clone(),
            config: serde_json::from_value(config).expect("config"),
            raw_config,
            manifest,
        }
    }

    /// The paths in each layer, as they are written there, bottom layer first.
    pub(crate) fn layer_paths(&self, layout: &Path) -> Vec<Vec<String>> {
        let entries = self.layer_entries(layout).into_iter();
        entries.map(|layer| layer.into_iter().map(|entry| entry.path).collect()).collect()
    }

    /// What each layer has, bottom layer first.
    pub(crate) fn layer_entries(&self, layout: &Path) -> Vec<Vec<Entry>> {
        let layers = self.manifest.layers().iter();
        layers.map(|layer| entries(&blob(layout, layer))).collect()
    }

    /// Everything about the entries of each layer but their times, one line each, bottom layer first. The line begins with
    /// the path.
    pub(crate) fn layer_facts(&self, layout: &Path) -> Vec<Vec<String>> {
        (0..self.manifest.layers().len()).map(|layer| self.facts_of_layer(layout, layer)).collect()
    }

    /// The same of one layer, counted from the bottom.
    pub(crate) fn facts_of_layer(&self, layout: &Path, layer: usize) -> Vec<String> {
        facts(&blob(layout, &self.manifest.layers()[layer]))
    }

    /// A layer as it is stored, counted from the bottom.
    pub(crate) fn layer_bytes(&self, layout: &Path, layer: usize) -> Vec<u8> {
        blob(layout, &self.manifest.layers()[layer])
    }

    /// One of the manifest's annotations.
    pub(crate) fn annotation(&self, key: &str) -> Option<&str> {
        self.manifest.annotations().as_ref()?.get(key).map(String::as_str)
    }
}

/// An entry of a layer, as the crate `tar` reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) mode: u32,
    pub(crate) size: u64,
    pub(crate) mtime: u64,
    /// Names of user and group.
    pub(crate) names: [String; 2],
}

fn entries(layer: &[u8]) -> Vec<Entry> {
    let layer = uncompressed(layer);
    let mut archive = tar::Archive::new(layer.as_slice());
    let entries = archive.entries().expect("a tar archive");
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let entry = entry.expect("entry");
        let header = entry.header();
        let name = |name: Option<&[u8]>| String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
        Entry {
            path: String::from_utf8_lossy(&entry.path_bytes()).into_owned(),
            mode: header.mode().expect("mode"),
            size: entry.size(),
            mtime: header.mtime().expect("time"),
            names: [name(header.username_bytes()), name(header.groupname_bytes())],
        }
    };
    entries.map(read).collect()
}

fn facts(layer: &[u8]) -> Vec<String> {
    let layer = uncompressed(layer);
    let mut archive = tar::Archive::new(layer.as_slice());
    let entries = archive.entries().expect("a tar archive");
    let line = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("entry");
        let mut attributes = Vec::new();
        for extension in entry.pax_extensions().expect("extensions").into_iter().flatten() {
            let extension = extension.expect("extension");
            let key = extension.key().expect("key").to_owned();
            if key.starts_with("SCHILY.xattr.") {
                attributes.push(format!("{key}={}", extension.value_bytes().escape_ascii()));
            }
        }
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("content");
        let header = entry.header();
        format!(
            "{} {:?} {:o} {}:{} {:?} {:?} {:?} {attributes:?} {}",
            entry.path_bytes().escape_ascii(),
            header.entry_type(),
            header.mode().expect("mode"),
            header.uid().expect("uid"),
            header.gid().expect("gid"),
            header.device_major().expect("device"),
            header.device_minor().expect("device"),
            entry.link_name_bytes().map(|name| name.escape_ascii().to_string()),
            sha256(&content),
        )
    };
    entries.map(line).collect()
}

/// The archive in a layer, whichever way it is compressed.
pub(crate) fn uncompressed(layer: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let read = match layer {
        [0x1f, 0x8b, ..] => {
            std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(layer), &mut archive)
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => zstd::stream::copy_decode(layer, &mut archive).map(|()| 0),
        _ => std::io::Read::read_to_end(&mut &layer[..], &mut archive),
    };
    read.expect("a whole layer");
    archive
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that a descriptor names, checked.
fn blob(layout: &Path, descriptor: &Descriptor) -> Vec<u8> {
    let path = layout.join("blobs/sha256").join(descriptor.digest().digest());
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len() as u64, descriptor.size(), "size of {}", path.display());
    assert_eq!(sha256(&bytes), descriptor.digest().digest(), "digest of {}", path.display());
    bytes
}

/// Calls `look` with the root file system of a layout's image, as umoci unpacks it.
pub(crate) fn with_unpacked<T>(layout: &Path, tag: &str, look: impl FnOnce(&Path) -> T) -> T {
    let scratch = scratch();
    let root = scratch.path().join("rootfs");
    let image = format!("{}:{tag}", layout.display());
    // Not a bundle: umoci would want the image's USER to exist.
    finish(Command::new("umoci").args(["raw", "unpack", "--image", &image]).arg(&root)).success();
    look(&root)
}
