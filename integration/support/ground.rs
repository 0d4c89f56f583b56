//! The test ground that `integration/ground/up` brought up: its registry, its bases, its registry's log.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::oci::skopeo;

/// The running ground.
pub(crate) struct Ground {
    directory: PathBuf,
    /// The registry's address, for instance `127.0.0.1:40123`. It speaks plain HTTP and wants no credentials.
    pub(crate) registry: String,
}

/// The ground, if it is up.
pub(crate) fn ground() -> Ground {
    const HINT: &str = "bring it up, as root: integration/ground/up";
    let directory = std::env::var_os("BUILDER_GROUND")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".ground"), PathBuf::from);
    let address = directory.join("registry");
    let registry = fs::read_to_string(&address)
        .unwrap_or_else(|error| panic!("no test ground: {}: {error}; {HINT}", address.display()));
    let registry = registry.trim().to_owned();
    if let Err(error) = TcpStream::connect(&registry) {
        panic!("the test ground's registry at {registry} does not answer: {error}; {HINT}");
    }
    Ground { directory, registry }
}

/// One image of a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    /// Repository, for instance `busybox`.
    pub(crate) repository: String,
    /// Tag of the index that has it, for instance `unlabelled`.
    pub(crate) tag: String,
    /// What it was made from, in Debian's words, for instance `armel`.
    pub(crate) debian: String,
    /// Digest of its manifest.
    pub(crate) digest: String,
}

impl Ground {
    /// The full name of an image in the registry.
    pub(crate) fn name(&self, repository_and_tag: &str) -> String {
        format!("{}/{repository_and_tag}", self.registry)
    }

    /// A Debian package for this machine's processor.
    pub(crate) fn package(&self, name: &str) -> PathBuf {
        self.directory.join("packages").join(format!("{name}.deb"))
    }

    /// All images of all bases.
    pub(crate) fn bases(&self) -> Vec<Base> {
        let text = fs::read_to_string(self.directory.join("bases")).expect("list of bases");
        text.lines()
            .map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let [repository, tag, debian, digest] = words[..] else { panic!("bases: `{line}`") };
                Base {
                    repository: repository.to_owned(),
                    tag: tag.to_owned(),
                    debian: debian.to_owned(),
                    digest: digest.to_owned(),
                }
            })
            .collect()
    }

    /// Copies a base to `repository`, so that requests for it can be told from those of other tests.
    pub(crate) fn copy(&self, repository_and_tag: &str, repository: &str) -> String {
        let to = self.name(&format!("{repository}:{}", repository_and_tag.rsplit(':').next().expect("tag")));
        let from = self.name(repository_and_tag);
        skopeo(&[
            "copy",
            "--quiet",
            "--all",
            "--preserve-digests",
            "--src-tls-verify=false",
            "--dest-tls-verify=false",
            &format!("docker://{from}"),
            &format!("docker://{to}"),
        ]);
        to
    }

    /// From here on requests are counted.
    pub(crate) fn mark(&self) -> Mark {
        self.settle();
        Mark(self.log().len())
    }

    /// What `builder` asked the registry since then about one repository. Those who prepared it are left out: lines come
    /// into the log after the answer, and not always in order.
    pub(crate) fn requests(&self, since: &Mark, repository: &str) -> Vec<Request> {
        self.requests_by("builder/", since, repository)
    }

    /// What a program whose name begins with `agent` asked the registry since then about one repository.
    pub(crate) fn requests_by(&self, agent: &str, since: &Mark, repository: &str) -> Vec<Request> {
        self.settle();
        let log = self.log();
        let new = log.get(since.0..).expect("the log only grows");
        let prefix = format!("/v2/{repository}/");
        let ours = |request: &Request| request.agent.starts_with(agent) && request.path.starts_with(&prefix);
        new.lines().filter_map(Request::parse).filter(ours).collect()
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.directory.join("registry.log")).expect("registry log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns when everything that was asked before is in the log: the registry writes a request's line after it has
    /// answered, so one more is sent and waited for.
    fn settle(&self) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = format!("/v2/settle/{}-{number}", std::process::id());
        let mut connection = TcpStream::connect(&self.registry).expect("registry");
        write!(connection, "GET {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.registry)
            .expect("ask the registry");
        connection.read_to_end(&mut Vec::new()).expect("the registry's answer");
        let began = Instant::now();
        while !self.log().contains(&format!("\"GET {path} ")) {
            assert!(began.elapsed() < Duration::from_secs(10), "the registry does not log its requests");
            std::thread::yield_now();
        }
    }
}

/// A place in the registry's log.
pub(crate) struct Mark(usize);

/// One line of the registry's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// For instance `HEAD`.
    pub(crate) method: String,
    /// With the query, for instance `/v2/busybox/manifests/latest`.
    pub(crate) path: String,
    /// What was answered, for instance 404.
    pub(crate) status: u16,
    /// Who asked, for instance `skopeo/1.9.3`.
    pub(crate) agent: String,
}

impl Request {
    /// Reads a line in Apache's combined format; the log has lines of other forms too.
    fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("] \"")?;
        let (request, rest) = rest.split_once("\" ")?;
        let mut words = request.split(' ');
        Some(Self {
            method: words.next()?.to_owned(),
            path: words.next()?.to_owned(),
            status: rest.split(' ').next()?.parse().ok()?,
            agent: rest.trim_end_matches('"').rsplit('"').next().unwrap_or_default().to_owned(),
        })
    }

    /// Whether it asked for a blob's bytes.
    pub(crate) fn fetches_blob(&self) -> bool {
        self.method == "GET" && self.path.contains("/blobs/sha256:")
    }
}

#[test]
fn a_request_is_read_from_an_access_line() {
    let line =
        r#"127.0.0.1 - - [29/Nov/2026:18:30:20 +0000] "GET /v2/a/b/blobs/sha256:00 HTTP/1.1" 200 2 "" "x/1""#;
    let request = Request::parse(line).expect("an access line");
    assert!(request.fetches_blob());
    assert_eq!(
        (request.path.as_str(), request.status, request.agent.as_str()),
        ("/v2/a/b/blobs/sha256:00", 200, "x/1")
    );
    assert_eq!(
        Request::parse("time=\"2026-11-29T18:30:20Z\" level=info msg=\"listening on 127.0.0.1:1\""),
        None
    );
}
