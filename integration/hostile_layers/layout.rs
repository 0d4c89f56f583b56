//! A writer of OCI image layouts in which every part can be made wrong.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::Digest as _;

/// Media types.
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// `sha256:` and the digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&sha2::Sha256::digest(bytes)))
}

/// `sha512:` and the digits.
pub(crate) fn sha512(bytes: &[u8]) -> String {
    format!("sha512:{}", hex(&sha2::Sha512::digest(bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("gzip");
    encoder.finish().expect("gzip")
}

/// Writes a blob under its digest.
pub(crate) fn put(layout: &Path, digest: &str, bytes: &[u8]) {
    let (algorithm, digits) = digest.split_once(':').expect("a digest");
    let directory = layout.join("blobs").join(algorithm);
    fs::create_dir_all(&directory).expect("blobs");
    fs::write(directory.join(digits), bytes).expect("blob");
}

pub(crate) fn descriptor(media_type: &str, digest: &str, size: usize) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": size})
}

/// One layer as it is stored and described.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) media_type: String,
    pub(crate) diff_id: String,
}

impl Stored {
    /// A layer as everybody stores it.
    pub(crate) fn gzipped(tar: &[u8]) -> Self {
        Self::of(tar, gzip(tar))
    }

    /// A layer that is stored as `bytes`, said to be gzip.
    pub(crate) fn of(tar: &[u8], bytes: Vec<u8>) -> Self {
        Self { bytes, media_type: LAYER_GZIP.to_owned(), diff_id: sha256(tar) }
    }

    /// The same under another media type.
    pub(crate) fn said_to_be(self, media_type: &str) -> Self {
        Self { media_type: media_type.to_owned(), ..self }
    }
}

type Edit = Box<dyn Fn(&mut Value)>;
type Rewrite = Box<dyn Fn(Vec<u8>) -> Vec<u8>>;
/// What is done to the layout when it is written.
type Afterwards = Box<dyn Fn(&Path)>;

/// An image; what is done to its documents is done before their digests are taken.
#[derive(Default)]
pub(crate) struct Image {
    layers: Vec<Stored>,
    config: Vec<Edit>,
    manifest: Vec<Edit>,
    index: Vec<Edit>,
    config_bytes: Option<Rewrite>,
    manifest_bytes: Option<Rewrite>,
    index_bytes: Option<Rewrite>,
    after: Vec<Afterwards>,
}

impl Image {
    pub(crate) fn of(layers: Vec<Stored>) -> Self {
        Self { layers, ..Self::default() }
    }

    /// Changes the config.
    pub(crate) fn config(mut self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.config.push(Box::new(edit));
        self
    }

    /// Changes the manifest.
    pub(crate) fn manifest(mut self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.manifest.push(Box::new(edit));
        self
    }

    /// Changes `index.json`.
    pub(crate) fn index(mut self, edit: impl Fn(&mut Value) + 'static) -> Self {
        self.index.push(Box::new(edit));
        self
    }

    /// Changes the text of the config.
    pub(crate) fn config_text(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8> + 'static) -> Self {
        self.config_bytes = Some(Box::new(edit));
        self
    }

    /// Changes the text of the manifest.
    pub(crate) fn manifest_text(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8> + 'static) -> Self {
        self.manifest_bytes = Some(Box::new(edit));
        self
    }

    /// Changes the text of `index.json`.
    pub(crate) fn index_text(mut self, edit: impl Fn(Vec<u8>) -> Vec<u8> + 'static) -> Self {
        self.index_bytes = Some(Box::new(edit));
        self
    }

    /// Changes the layout when it is complete.
    pub(crate) fn then(mut self, change: impl Fn(&Path) + 'static) -> Self {
        self.after.push(Box::new(change));
        self
    }

    /// Writes a layout that holds the image.
    pub(crate) fn write(&self, layout: &Path) {
        fs::create_dir_all(layout.join("blobs/sha256")).expect("layout");
        fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("oci-layout");
        let (digest, size) = self.write_manifest(layout);
        let mut entry = descriptor(MANIFEST, &digest, size);
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": "t"});
        entry["platform"] = json!({"architecture": architecture(), "os": "linux"});
        let index = json!({"schemaVersion": 2, "manifests": [entry]});
        let bytes = finished(index, &self.index, &self.index_bytes);
        fs::write(layout.join("index.json"), bytes).expect("index.json");
        self.after.iter().for_each(|change| change(layout));
    }

    /// Writes everything but the index; gives the manifest's digest and size.
    pub(crate) fn write_manifest(&self, layout: &Path) -> (String, usize) {
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| {
                let digest = sha256(&layer.bytes);
                put(layout, &digest, &layer.bytes);
                descriptor(&layer.media_type, &digest, layer.bytes.len())
            })
            .collect();
        let diff_ids: Vec<&str> = self.layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let history: Vec<Value> = self.layers.iter().map(|_| json!({"created_by": "hostile"})).collect();
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": {"Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": history,
        });
        let config = finished(config, &self.config, &self.config_bytes);
        put(layout, &sha256(&config), &config);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &sha256(&config), config.len()), "layers": layers,
        });
        let manifest = finished(manifest, &self.manifest, &self.manifest_bytes);
        put(layout, &sha256(&manifest), &manifest);
        (sha256(&manifest), manifest.len())
    }
}

fn finished(mut document: Value, edits: &[Edit], rewrite: &Option<Rewrite>) -> Vec<u8> {
    edits.iter().for_each(|edit| edit(&mut document));
    let bytes = serde_json::to_vec(&document).expect("JSON");
    match rewrite {
        Some(rewrite) => rewrite(bytes),
        None => bytes,
    }
}

/// This machine's, in Go's words.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes an image whose only file, `large`, is of `size` zeros, without ever having them in memory.
pub(crate) fn write_large(layout: &Path, size: u64) {
    use super::archive::{end, header, patched};
    let mut field = [0; 12];
    field[0] = 0x80;
    field[4..].copy_from_slice(&size.to_be_bytes());
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut hash = sha2::Sha256::new();
    let mut write = |bytes: &[u8]| {
        encoder.write_all(bytes).expect("gzip");
        hash.update(bytes);
    };
    write(&patched(header("large", b'0').bytes(), 124, &field));
    let zeros = vec![0; 1 << 20];
    let padded = size.next_multiple_of(512);
    for _ in 0..padded >> 20 {
        write(&zeros);
    }
    write(&zeros[..(padded & ((1 << 20) - 1)) as usize]);
    write(&end());
    let diff_id = format!("sha256:{}", hex(&hash.finalize()));
    let bytes = encoder.finish().expect("gzip");
    Image::of(vec![Stored { bytes, media_type: LAYER_GZIP.to_owned(), diff_id }]).write(layout);
}
