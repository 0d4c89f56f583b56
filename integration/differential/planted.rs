//! Faults that a backend could have, put into the layers that it made.

use std::io::Read as _;
use std::path::Path;

use serde_json::{Value, json};
use sha2::Digest as _;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// What a step removed is not recorded.
    NothingRemoved,
    /// Modes have permission bits only.
    SetUserIdLost,
    /// All entries have the same time.
    TimesLost,
}

/// Spoils all layers of the only image, with digests that fit.
pub(crate) fn plant(layout: &Path, fault: Fault) {
    let mut index = document(&layout.join("index.json"));
    let (mut manifest, mut config) = {
        let manifest = document(&blob(layout, &index["manifests"][0]));
        let config = document(&blob(layout, &manifest["config"]));
        (manifest, config)
    };
    for number in 0..manifest["layers"].as_array().map_or(0, Vec::len) {
        let packed = std::fs::read(blob(layout, &manifest["layers"][number])).expect("layer");
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&packed[..]).read_to_end(&mut plain).expect("gzip");
        let spoilt = spoil(&plain, fault);
        config["rootfs"]["diff_ids"][number] = json!(digest(&spoilt));
        let mut packed = Vec::new();
        flate2::read::GzEncoder::new(&spoilt[..], flate2::Compression::fast())
            .read_to_end(&mut packed)
            .expect("memory");
        store(layout, &mut manifest["layers"][number], &packed);
    }
    store(layout, &mut manifest["config"], config.to_string().as_bytes());
    store(layout, &mut index["manifests"][0], manifest.to_string().as_bytes());
    std::fs::write(layout.join("index.json"), index.to_string()).expect("write file");
}

fn document(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("document")).expect("JSON")
}

fn digest(bytes: &[u8]) -> String {
    let hexadecimal: String = sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hexadecimal}")
}

fn blob(layout: &Path, descriptor: &Value) -> std::path::PathBuf {
    let digest = descriptor["digest"].as_str().expect("digest");
    layout.join("blobs").join(digest.replace(':', "/"))
}

fn store(layout: &Path, descriptor: &mut Value, bytes: &[u8]) {
    descriptor["digest"] = json!(digest(bytes));
    descriptor["size"] = json!(bytes.len());
    std::fs::write(blob(layout, descriptor), bytes).expect("write file");
}

fn spoil(plain: &[u8], fault: Fault) -> Vec<u8> {
    let mut archive = tar::Archive::new(plain);
    let mut spoilt = tar::Builder::new(Vec::new());
    for entry in archive.entries().expect("a tar archive") {
        let mut entry = entry.expect("entry");
        let mut header = entry.header().clone();
        let path = entry.path_bytes().into_owned();
        let removes = path.rsplit(|byte| *byte == b'/').next().is_some_and(|name| name.starts_with(b".wh."));
        let mode = header.mode().expect("mode");
        match fault {
            Fault::NothingRemoved if removes => continue,
            Fault::SetUserIdLost => header.set_mode(mode & 0o777),
            Fault::TimesLost => header.set_mtime(1_000_000_007),
            Fault::NothingRemoved => {}
        }
        // Extensions of the entry, in the order in which they stand.
        let extensions = entry.pax_extensions().expect("extensions").into_iter().flatten();
        let extensions: Vec<(String, Vec<u8>)> = extensions
            .map(|extension| {
                let extension = extension.expect("extension");
                (extension.key().expect("key").to_owned(), extension.value_bytes().to_vec())
            })
            .filter(|(key, _)| fault != Fault::TimesLost || key != "mtime")
            .collect();
        let pairs = extensions.iter().map(|(key, value)| (key.as_str(), &value[..]));
        spoilt.append_pax_extensions(pairs).expect("memory");
        header.set_cksum();
        spoilt.append(&header, &mut entry).expect("memory");
    }
    spoilt.into_inner().expect("memory")
}
