//! A registry in this process that does as it is told: answers, faults and what it saw.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use builder::image::digest::Digest;

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// The path, or the whole URL for a proxy.
    pub(crate) path: String,
    pub(crate) query: String,
    /// By lower-case name.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The decoded values of a name in the query.
    pub(crate) fn parameters(&self, name: &str) -> Vec<String> {
        let pairs = url::form_urlencoded::parse(self.query.as_bytes());
        pairs.filter(|(key, _)| key == name).map(|(_, value)| value.into_owned()).collect()
    }
}

/// How an answer ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Ending {
    /// As it should.
    Whole,
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// Nothing is said at all.
    HangUp,
    /// After so many bytes of the body, nothing for a long time.
    Stall(usize),
    /// The body is repeated for ever, chunked.
    Endless,
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    ending: Ending,
}

impl Answer {
    pub(crate) fn new(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new(), ending: Ending::Whole }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) fn ending(mut self, ending: Ending) -> Self {
        self.ending = ending;
        self
    }

    /// An error as distribution-spec has them.
    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({"errors": [{"code": code, "message": message, "detail": null}]});
        Self::new(status).with("Content-Type", "application/json").body(body.to_string())
    }

    pub(crate) fn hang_up() -> Self {
        Self::new(200).ending(Ending::HangUp)
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name))
    }
}

type Handler = dyn Fn(&Seen) -> Answer + Send + Sync;

/// An HTTP server on a free port of a loopback address.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Serves plain HTTP on `ip`.
    pub(crate) fn start(ip: &str, handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::serve(ip, None, Arc::new(handler))
    }

    /// Serves HTTPS with one of the certificates in `testdata/tls`.
    pub(crate) fn start_tls(
        ip: &str,
        certificate: &str,
        handler: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::serve(ip, Some(Arc::new(tls(certificate))), Arc::new(handler))
    }

    fn serve(ip: &str, tls: Option<Arc<rustls::ServerConfig>>, handler: Arc<Handler>) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let server = Self { address, seen: seen.clone(), stop: stop.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), tls, handler) = (stream, tls.clone(), handler.clone()) else { continue };
                let (seen, stop) = (seen.clone(), stop.clone());
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    stream.set_nodelay(true).unwrap();
                    match tls {
                        None => converse(stream, &seen, &stop, &*handler),
                        Some(config) => {
                            let connection = rustls::ServerConnection::new(config).unwrap();
                            converse(rustls::StreamOwned::new(connection, stream), &seen, &stop, &*handler);
                        }
                    }
                });
            }
        });
        server
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The requests of a method whose path or query holds `part`.
    pub(crate) fn requests(&self, method: &str, part: &str) -> Vec<Seen> {
        let fits = |seen: &Seen| {
            (method.is_empty() || seen.method == method)
                && format!("{}?{}", seen.path, seen.query).contains(part)
        };
        self.seen().into_iter().filter(fits).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn tls(certificate: &str) -> rustls::ServerConfig {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tls");
    let chain = vec![CertificateDer::from_pem_file(format!("{directory}/{certificate}")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(format!("{directory}/server.key")).unwrap();
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap()
}

/// Answers requests until the other side, or an answer, ends the connection.
fn converse(stream: impl Read + Write, seen: &Mutex<Vec<Seen>>, stop: &AtomicBool, handler: &Handler) {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream) {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let head_only = request.method == "HEAD";
        // What was asked counts before it is answered: whoever has the answer sees it in the list.
        seen.lock().unwrap().push(request.clone());
        let answer = handler(&request);
        if !send(stream.get_mut(), &answer, head_only, stop) {
            return;
        }
    }
}

fn read_request(stream: &mut impl BufRead) -> Option<Seen> {
    let line = read_line(stream)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut seen = Seen { method, path: path.to_owned(), query: query.to_owned(), ..Seen::default() };
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        seen.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    if let Some(length) = seen.header("content-length") {
        let mut body = vec![0; length.parse().ok()?];
        stream.read_exact(&mut body).ok()?;
        seen.body = body;
    } else if seen.header("transfer-encoding").is_some() {
        loop {
            let length = usize::from_str_radix(&read_line(stream)?, 16).ok()?;
            let mut piece = vec![0; length + 2];
            stream.read_exact(&mut piece).ok()?;
            seen.body.extend_from_slice(&piece[..length]);
            if length == 0 {
                break;
            }
        }
    }
    Some(seen)
}

fn read_line(stream: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    stream.read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    line.ends_with('\n').then(|| line.trim_end().to_owned())
}

/// Sends an answer; says whether the connection may go on.
fn send(stream: &mut impl Write, answer: &Answer, head_only: bool, stop: &AtomicBool) -> bool {
    if answer.ending == Ending::HangUp {
        return false;
    }
    let mut head = format!("HTTP/1.1 {} Status\r\n", answer.status);
    for (name, value) in &answer.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let endless = answer.ending == Ending::Endless;
    if endless {
        head.push_str("Transfer-Encoding: chunked\r\n");
    } else if !answer.has("content-length") && answer.status != 204 {
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
    }
    head.push_str("\r\n");
    if stream.write_all(head.as_bytes()).is_err() {
        return false;
    }
    let sent = match answer.ending {
        _ if head_only => Ok(()),
        Ending::Cut(bytes) | Ending::Stall(bytes) => stream.write_all(&answer.body[..bytes]),
        Ending::Endless => {
            let chunk = [format!("{:x}\r\n", answer.body.len()).as_bytes(), &answer.body, b"\r\n"].concat();
            while stream.write_all(&chunk).is_ok() {}
            return false;
        }
        _ => stream.write_all(&answer.body),
    };
    if sent.is_err() || stream.flush().is_err() {
        return false;
    }
    if let Ending::Stall(_) = answer.ending {
        // Until the test is over; the client has given up long before.
        while !stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let honest = !answer.has("content-length") || head_only;
    matches!(answer.ending, Ending::Whole) && honest && !answer.has("connection")
}

/// What a registry asks for.
#[derive(Debug, Clone, Default)]
pub(crate) enum Guard {
    /// Nothing.
    #[default]
    Nothing,
    /// This header, else it answers 401 with that challenge.
    Header { expected: String, challenge: String },
}

struct Fault {
    method: &'static str,
    part: String,
    left: usize,
    answer: Arc<Handler>,
}

#[derive(Default)]
struct State {
    /// By repository and digest.
    blobs: BTreeMap<(String, String), Vec<u8>>,
    /// By repository and tag or digest: media type and bytes.
    manifests: BTreeMap<(String, String), (String, Vec<u8>)>,
    uploads: BTreeMap<String, Vec<u8>>,
    faults: Vec<Fault>,
    guard: Guard,
    begun: usize,
}

/// A registry that works, but for the faults it was told to have.
pub(crate) struct FakeRegistry {
    pub(crate) server: Server,
    state: Arc<Mutex<State>>,
}

impl FakeRegistry {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    pub(crate) fn start_at(ip: &str) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let inside = state.clone();
        Self { server: Server::start(ip, move |seen| handle(&inside, seen)), state }
    }

    pub(crate) fn start_tls(certificate: &str) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let inside = state.clone();
        Self { server: Server::start_tls("127.0.0.1", certificate, move |seen| handle(&inside, seen)), state }
    }

    /// `host:port`, as in references.
    pub(crate) fn host(&self) -> String {
        self.server.address.to_string()
    }

    /// Answers the next `times` requests of `method` (or any) whose path or query holds `part` with `answer`.
    pub(crate) fn fault(&self, method: &'static str, part: &str, times: usize, answer: Answer) {
        self.script(method, part, times, move |_| answer.clone());
    }

    /// As [`FakeRegistry::fault`], with an answer that depends on the request.
    pub(crate) fn script(
        &self,
        method: &'static str,
        part: &str,
        times: usize,
        answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) {
        let fault = Fault { method, part: part.to_owned(), left: times, answer: Arc::new(answer) };
        self.state.lock().unwrap().faults.push(fault);
    }

    pub(crate) fn guard(&self, expected: &str, challenge: &str) {
        let guard = Guard::Header { expected: expected.to_owned(), challenge: challenge.to_owned() };
        self.state.lock().unwrap().guard = guard;
    }

    pub(crate) fn put_blob(&self, repository: &str, bytes: &[u8]) -> Digest {
        let digest = Digest::of(bytes);
        self.state.lock().unwrap().blobs.insert((repository.to_owned(), digest.to_string()), bytes.to_vec());
        digest
    }

    pub(crate) fn blob(&self, repository: &str, digest: &Digest) -> Option<Vec<u8>> {
        self.state.lock().unwrap().blobs.get(&(repository.to_owned(), digest.to_string())).cloned()
    }

    pub(crate) fn put_manifest(
        &self,
        repository: &str,
        name: &str,
        media_type: &str,
        bytes: &[u8],
    ) -> Digest {
        let digest = Digest::of(bytes);
        let mut state = self.state.lock().unwrap();
        for name in [name.to_owned(), digest.to_string()] {
            state.manifests.insert((repository.to_owned(), name), (media_type.to_owned(), bytes.to_vec()));
        }
        digest
    }

    pub(crate) fn manifest(&self, repository: &str, name: &str) -> Option<(String, Vec<u8>)> {
        self.state.lock().unwrap().manifests.get(&(repository.to_owned(), name.to_owned())).cloned()
    }
}

fn handle(state: &Mutex<State>, seen: &Seen) -> Answer {
    let mut state = state.lock().unwrap();
    let target = format!("{}?{}", seen.path, seen.query);
    let fault = state.faults.iter_mut().find(|fault| {
        fault.left > 0
            && (fault.method.is_empty() || fault.method == seen.method)
            && target.contains(&fault.part)
    });
    if let Some(fault) = fault {
        fault.left -= 1;
        let answer = fault.answer.clone();
        drop(state);
        return answer(seen);
    }
    if let Guard::Header { expected, challenge } = &state.guard
        && seen.header("authorization") != Some(expected)
    {
        let denied = Answer::error(401, "UNAUTHORIZED", "authentication required");
        return denied.with("WWW-Authenticate", challenge);
    }
    state.answer(seen)
}

impl State {
    fn answer(&mut self, seen: &Seen) -> Answer {
        let Some(path) = seen.path.strip_prefix("/v2/") else { return Answer::new(404) };
        if path.is_empty() {
            return Answer::new(200).body("{}");
        }
        if let Some((repository, rest)) = path.split_once("/blobs/uploads/") {
            return self.upload(seen, repository, rest);
        }
        if let Some((repository, digest)) = path.split_once("/blobs/") {
            return match self.blobs.get(&(repository.to_owned(), digest.to_owned())) {
                Some(bytes) => serve_blob(seen, bytes),
                None => Answer::error(404, "BLOB_UNKNOWN", "blob unknown to registry"),
            };
        }
        match path.split_once("/manifests/") {
            Some((repository, name)) => self.manifest(seen, repository, name),
            None => Answer::new(404),
        }
    }

    fn manifest(&mut self, seen: &Seen, repository: &str, name: &str) -> Answer {
        let key = (repository.to_owned(), name.to_owned());
        if seen.method == "PUT" {
            let digest = Digest::of(&seen.body).to_string();
            let stored = (seen.header("content-type").unwrap_or_default().to_owned(), seen.body.clone());
            self.manifests.insert((repository.to_owned(), digest.clone()), stored.clone());
            self.manifests.insert(key, stored);
            return Answer::new(201).with("Docker-Content-Digest", digest);
        }
        match self.manifests.get(&key) {
            Some((media_type, bytes)) => Answer::new(200)
                .with("Content-Type", media_type)
                .with("Docker-Content-Digest", Digest::of(bytes))
                .body(bytes.clone()),
            None => Answer::error(404, "MANIFEST_UNKNOWN", "manifest unknown"),
        }
    }

    fn upload(&mut self, seen: &Seen, repository: &str, id: &str) -> Answer {
        let place = |id: &str| format!("/v2/{repository}/blobs/uploads/{id}?_state=a%2Bb%3D");
        match seen.method.as_str() {
            "POST" => {
                if let ([digest], [from]) = (&seen.parameters("mount")[..], &seen.parameters("from")[..])
                    && let Some(bytes) = self.blobs.get(&(from.clone(), digest.clone())).cloned()
                {
                    self.blobs.insert((repository.to_owned(), digest.clone()), bytes);
                    return Answer::new(201).with("Docker-Content-Digest", digest);
                }
                self.begun += 1;
                let id = format!("upload-{}", self.begun);
                self.uploads.insert(id.clone(), Vec::new());
                Answer::new(202).with("Location", place(&id))
            }
            "PATCH" => match self.uploads.get_mut(id) {
                Some(upload) => {
                    upload.extend_from_slice(&seen.body);
                    let last = upload.len().saturating_sub(1);
                    Answer::new(202).with("Location", place(id)).with("Range", format!("0-{last}"))
                }
                None => Answer::error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry"),
            },
            "GET" => match self.uploads.get(id) {
                Some(upload) => Answer::new(204)
                    .with("Location", place(id))
                    .with("Range", format!("0-{}", upload.len().saturating_sub(1))),
                None => Answer::error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry"),
            },
            "DELETE" => Answer::new(if self.uploads.remove(id).is_some() { 204 } else { 404 }),
            "PUT" => {
                let Some(mut bytes) = self.uploads.remove(id) else {
                    return Answer::error(404, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry");
                };
                bytes.extend_from_slice(&seen.body);
                let digest = Digest::of(&bytes).to_string();
                if seen.parameters("digest") != [digest.clone()] || seen.parameters("_state") != ["a+b="] {
                    return Answer::error(
                        400,
                        "DIGEST_INVALID",
                        "provided digest did not match uploaded content",
                    );
                }
                self.blobs.insert((repository.to_owned(), digest.clone()), bytes);
                Answer::new(201).with("Location", "/somewhere").with("Docker-Content-Digest", digest)
            }
            _ => Answer::new(405),
        }
    }
}

/// A blob, or the part of it that `Range` asks for.
pub(crate) fn serve_blob(seen: &Seen, bytes: &[u8]) -> Answer {
    let range =
        seen.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match range {
        Some(first) if first < bytes.len() => Answer::new(206)
            .with("Content-Range", format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len()))
            .body(&bytes[first..]),
        Some(_) => Answer::new(416),
        None => Answer::new(200).body(bytes),
    }
}
