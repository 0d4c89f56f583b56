//! The same against a registry that others wrote, and with what others read.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;

const PROGRAM: &str = "/usr/bin/docker-registry";

/// Distribution's registry on a free port, with its files in a temporary directory.
struct RealRegistry {
    child: Child,
    address: String,
    directory: tempfile::TempDir,
}

impl RealRegistry {
    /// `None`, with a word about it, where the program is not installed.
    fn start() -> Option<Self> {
        if !Path::new(PROGRAM).exists() {
            eprintln!("SKIPPED: {PROGRAM} is not installed (Debian package docker-registry)");
            return None;
        }
        // Between finding the port and listening on it somebody else may take it.
        (0..5).find_map(|_| Self::try_start())
    }

    fn try_start() -> Option<Self> {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("config.yml");
        let storage = directory.path().join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage:\n  filesystem: {{rootdirectory: {}}}\n  delete: {{enabled: true}}\n\
             http:\n  addr: {address}\n  secret: test\n",
            storage.display()
        );
        std::fs::write(&config, text).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let child = Command::new(PROGRAM)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut registry = Self { child, address, directory };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end && registry.child.try_wait().unwrap().is_none() {
            if std::net::TcpStream::connect(&registry.address).is_ok() {
                return Some(registry);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("the registry did not start: {}", registry.log());
        None
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pushes an image of two layers as `name`; returns its manifest and the layers.
fn push(tester: &Tester, to: &Reference) -> (Encoded, Vec<Vec<u8>>) {
    let layers = vec![b"first layer".to_vec(), vec![5; 5_000_000]];
    let config = serde_json::json!({
        "architecture": "arm", "variant": "v7", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|l| Digest::of(l).to_string()).collect::<Vec<_>>()},
    });
    let config = Encoded::from_bytes(config.to_string().into_bytes());
    let describe = |bytes: &[u8], kind: &str| serde_json::json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len()});
    let manifest = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_MANIFEST,
        "config": describe(&config.bytes, media_type::OCI_CONFIG),
        "layers": layers.iter().map(|bytes| describe(bytes, media_type::OCI_LAYER)).collect::<Vec<_>>(),
    });
    let manifest = Encoded::from_bytes(manifest.to_string().into_bytes());
    let mut blobs = layers.clone();
    blobs.push(config.bytes);
    let sent = in_parallel(&blobs, 4, |bytes| tester.upload(to, bytes)).unwrap();
    assert!(sent.iter().all(|sent| *sent == Uploaded::Sent), "{sent:?}");
    tester.client.put_manifest(to, media_type::OCI_MANIFEST, &manifest).unwrap();
    (manifest, layers)
}

#[test]
fn an_image_goes_to_a_real_registry_and_comes_back() {
    let Some(registry) = RealRegistry::start() else { return };
    let tester = Tester::new();
    let to: Reference = format!("{}/team/app:1", registry.address).parse().unwrap();
    tester.client.check_push(&to).unwrap();
    let (manifest, layers) = push(&tester, &to);

    let fetched = tester.client.manifest(&to).unwrap();
    assert_eq!((&fetched.bytes, &fetched.digest), (&manifest.bytes, &manifest.digest));
    let by_digest = to.with_digest(manifest.digest.clone());
    assert_eq!(tester.client.manifest(&by_digest).unwrap(), fetched);
    for bytes in &layers {
        assert_eq!(&tester.blob(&to, &layer(bytes)).unwrap(), bytes);
    }

    // A second time nothing is sent, and another repository takes the layers from the first.
    assert_eq!(tester.upload(&to, &layers[1]).unwrap(), Uploaded::Existed);
    let other: Reference = format!("{}/other:1", registry.address).parse().unwrap();
    assert_eq!(tester.upload_from(&other, &layers[1], Some(&to)).unwrap(), Uploaded::Mounted);

    // A manifest whose blobs are not there is refused, with their names.
    let error = line(tester.client.put_manifest(&other, media_type::OCI_MANIFEST, &manifest));
    assert!(error.contains(&Digest::of(&layers[0]).to_string()), "{error}");
    let error = line(tester.client.manifest(&other));
    assert!(error.contains("MANIFEST_UNKNOWN"), "{error}");
    assert_eq!(tester.client.statistics().pings, 1);
}

#[test]
fn a_blob_of_a_real_registry_is_resumed() {
    let Some(registry) = RealRegistry::start() else { return };
    let tester = Tester::new();
    let to: Reference = format!("{}/app:1", registry.address).parse().unwrap();
    let blob: Vec<u8> = (0..3_000_000_u32).map(|position| (position / 1000) as u8).collect();
    tester.upload(&to, &blob).unwrap();

    // In front of it a server that breaks each answer off, and hands the range on.
    let behind = registry.address.clone();
    let front = Server::start("127.0.0.1", move |seen| {
        let mut stream = std::net::TcpStream::connect(&behind).unwrap();
        let range = seen.header("range").map(|range| format!("Range: {range}\r\n")).unwrap_or_default();
        write!(stream, "GET {} HTTP/1.0\r\nHost: x\r\n{range}\r\n", seen.path).unwrap();
        let mut answer = Vec::new();
        io::Read::read_to_end(&mut stream, &mut answer).unwrap();
        let split = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..split]).into_owned();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let range = head.lines().find_map(|line| line.strip_prefix("Content-Range: "));
        let body = answer[split + 4..].to_vec();
        let answer =
            range.into_iter().fold(Answer::new(status), |answer, range| answer.with("Content-Range", range));
        let cut = body.len().min(1_200_000);
        answer.with("Content-Length", body.len()).body(body).ending(Ending::Cut(cut))
    });
    let from: Reference = format!("{}/app:1", front.address).parse().unwrap();
    assert_eq!(tester.blob(&from, &layer(&blob)).unwrap(), blob);
    assert!(front.requests("GET", "blobs").len() >= 3);
}

#[test]
fn what_was_pushed_is_read_by_other_programs() {
    let Some(registry) = RealRegistry::start() else { return };
    let tester = Tester::new();
    let to: Reference = format!("{}/team/app:1", registry.address).parse().unwrap();
    let (manifest, layers) = push(&tester, &to);

    // oci-client takes the process's TLS provider even where no TLS is spoken.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = oci_client::client::ClientConfig {
        protocol: oci_client::client::ClientProtocol::Http,
        ..oci_client::client::ClientConfig::default()
    };
    let client = oci_client::Client::new(config);
    let reference: oci_client::Reference = to.to_string().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let image = runtime
        .block_on(client.pull(
            &reference,
            &oci_client::secrets::RegistryAuth::Anonymous,
            vec![media_type::OCI_LAYER],
        ))
        .unwrap();
    assert_eq!(image.digest, Some(manifest.digest.to_string()));
    let read: Vec<Vec<u8>> = image.layers.iter().map(|layer| layer.data.to_vec()).collect();
    assert_eq!(read, layers);

    let parsed = oci_spec::image::ImageManifest::from_reader(&manifest.bytes[..]).unwrap();
    assert_eq!(parsed.layers().len(), 2);
    let config = oci_spec::image::ImageConfiguration::from_reader(&image.config.data[..]).unwrap();
    assert_eq!(
        (config.architecture().to_string().as_str(), config.variant().as_deref()),
        ("arm", Some("v7"))
    );

    if !Path::new("/usr/bin/skopeo").exists() {
        eprintln!("SKIPPED: skopeo is not installed");
        return;
    }
    let output = Command::new("/usr/bin/skopeo")
        .args(["inspect", "--raw", "--tls-verify=false", &format!("docker://{to}")])
        .output()
        .unwrap();
    assert_eq!(output.stdout, manifest.bytes, "{}", String::from_utf8_lossy(&output.stderr));
}
