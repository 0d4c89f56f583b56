//! What registries, token servers and networks do wrong, and what the client makes of it.

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use builder::http::{Clock, Failure, Pem, Proxies, Retries, Timeouts};
use builder::image::descriptor::{Descriptor, media_type};
use builder::image::digest::Digest;
use builder::image::json::Encoded;
use builder::image::reference::Reference;
use builder::registry::{
    Client, ClientOptions, ConfigFile, Fetched, Problem, TransferError, Uploaded, in_parallel,
};

use crate::support::fake_registry::{Answer, Ending, FakeRegistry, Server, serve_blob};

mod authentication;
mod network;
mod pull;
mod push;
mod real;

/// A clock that does not wait but remembers for how long it should have.
#[derive(Default)]
struct Waits(Mutex<Vec<Duration>>);

impl Clock for Waits {
    fn now(&self) -> SystemTime {
        // Sun, 06 Nov 1994 08:49:37 GMT
        SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)
    }

    fn sleep(&self, duration: Duration, _: &dyn Fn() -> bool) {
        self.0.lock().unwrap().push(duration);
    }

    fn jitter(&self, _: Duration) -> Duration {
        Duration::ZERO
    }
}

/// A client with what it said and how long it waited.
struct Tester {
    client: Client,
    waits: Arc<Waits>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Tester {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut ClientOptions)) -> Self {
        let (waits, notices) = (Arc::<Waits>::default(), Arc::<Mutex<Vec<String>>>::default());
        let listener = notices.clone();
        let mut options = ClientOptions {
            notice: Some(Arc::new(move |text: &str| listener.lock().unwrap().push(text.to_owned()))),
            ..ClientOptions::default()
        };
        options.http.clock = waits.clone();
        change(&mut options);
        Self { client: Client::new(options).unwrap(), waits, notices }
    }

    fn with_credentials(host: &str, entry: serde_json::Value) -> Self {
        let bytes = serde_json::json!({"auths": {host: entry}}).to_string().into_bytes();
        Self::with(|options| {
            options.credentials = Some(ConfigFile { path: "/config.json".to_owned(), bytes })
        })
    }

    fn waits(&self) -> Vec<Duration> {
        self.waits.0.lock().unwrap().clone()
    }

    fn notices(&self) -> String {
        self.notices.lock().unwrap().join("\n")
    }

    fn blob(&self, from: &Reference, blob: &Descriptor) -> Result<Vec<u8>, TransferError> {
        self.client.blob(from, blob, || Ok(Vec::new()))
    }

    fn upload(&self, to: &Reference, bytes: &[u8]) -> Result<Uploaded, TransferError> {
        self.upload_from(to, bytes, None)
    }

    fn upload_from(
        &self,
        to: &Reference,
        bytes: &[u8],
        from: Option<&Reference>,
    ) -> Result<Uploaded, TransferError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blob");
        std::fs::write(&path, bytes).unwrap();
        self.client.upload(to, &layer(bytes), &|| Ok(Box::new(File::open(&path)?)), from)
    }
}

fn reference(registry: &FakeRegistry, rest: &str) -> Reference {
    format!("{}/{rest}", registry.host()).parse().unwrap()
}

fn layer(bytes: &[u8]) -> Descriptor {
    Descriptor::new(media_type::OCI_LAYER, Digest::of(bytes), bytes.len() as u64)
}

/// A manifest of an image without layers.
fn manifest() -> Encoded {
    let config = Digest::of(b"{}");
    let text = format!(
        r#"{{"schemaVersion":2,"mediaType":"{}","config":{{"mediaType":"{}","digest":"{config}","size":2}},"layers":[]}}"#,
        media_type::OCI_MANIFEST,
        media_type::OCI_CONFIG
    );
    Encoded::from_bytes(text.into_bytes())
}

/// A registry that has [`manifest`] as `app:1`.
fn registry_with_image() -> FakeRegistry {
    let registry = FakeRegistry::start();
    registry.put_manifest("app", "1", media_type::OCI_MANIFEST, &manifest().bytes);
    registry.put_blob("app", b"{}");
    registry
}

/// The error in one line.
fn line<T: std::fmt::Debug>(result: Result<T, TransferError>) -> String {
    result.unwrap_err().in_one_line()
}

fn seconds(values: &[f64]) -> Vec<Duration> {
    values.iter().map(|value| Duration::from_secs_f64(*value)).collect()
}
