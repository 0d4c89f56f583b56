//! The HTTP of git's protocol, spoken by the one client there is.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, Read, Write};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use gix_error::ErrorExt as _;
use gix_transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use reqwest::header::{HeaderName, HeaderValue};
use url::Url;

use crate::context::git::{Exceeded, GitError, SHOWN_CHARACTERS};
use crate::http::{Client, Content, Failure, Method, RedirectProblem, Request, Response};
use crate::text::line;

/// What the address of the first question ends with.
const FIRST: &str = "/info/refs?service=git-upload-pack";

/// The longest body of a request: as many wishes as there are branches and tags in the longest list of them.
const LONGEST_REQUEST: usize = 64 << 20;

/// How much of what a server says is looked at, in bytes.
const LONGEST_TEXT: usize = 4 * (SHOWN_CHARACTERS + 2);

/// What all requests to a repository share.
pub(super) struct Shared<'a> {
    pub(super) client: Client,
    /// The `Authorization` header, for the repository's own host only.
    pub(super) authorization: Option<HeaderValue>,
    /// Fails once all is to stop.
    pub(super) stopped: &'a dyn Fn() -> Result<(), GitError>,
    /// What is being done, for messages.
    pub(super) action: String,
    /// How many bytes of answers may still come, and what is said when there are more.
    pub(super) left: Cell<(u64, Exceeded)>,
    /// The first failure. What the library makes of it has lost what it was.
    pub(super) failure: RefCell<Option<GitError>>,
}

impl Shared<'_> {
    /// Something of what the server said, or did not say.
    pub(super) fn failed(&self, said: impl Into<String>) -> GitError {
        GitError::Failed { action: self.action.clone(), said: said.into() }
    }

    /// Notes why; what is returned only makes the library stop.
    pub(super) fn fail(&self, error: GitError) -> io::Error {
        self.failure.borrow_mut().get_or_insert(error);
        io::Error::other("see the failure that was noted")
    }

    fn client_failed(&self, failure: Failure) -> GitError {
        match failure {
            Failure::Cancelled => (self.stopped)().err().unwrap_or(GitError::Cancelled),
            Failure::Redirect { host, problem: RedirectProblem::TooMany(0) } => {
                self.failed(format!("`{host}` redirects, and where that leads no secret is taken"))
            }
            other => GitError::Http { action: self.action.clone(), source: other },
        }
    }

    /// Sends a request until there is an answer of success, or none is to be had.
    fn send(&self, request: &Request<'_>) -> Result<Response, GitError> {
        let mut attempts = self.client.attempts();
        loop {
            (self.stopped)()?;
            let (error, transient, asked) = match self.client.send(request) {
                Ok(response) if response.is_success() => return Ok(response),
                Ok(response) => {
                    let status = response.status();
                    let transient = matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504);
                    (self.refused(status), transient, response.retry_after())
                }
                Err(failure) => {
                    let transient = failure.is_transient();
                    (self.client_failed(failure), transient, None::<Duration>)
                }
            };
            let again = transient
                && self
                    .client
                    .wait(&mut attempts, asked, |_| ())
                    .map_err(|failure| self.client_failed(failure))?;
            if !again {
                return Err(error);
            }
        }
    }

    fn refused(&self, status: u16) -> GitError {
        match status {
            401 => self.failed("Authentication failed: response status 401"),
            404 => self.failed("repository not found: response status 404"),
            _ => self.failed(format!("invalid response status {status}")),
        }
    }
}

/// The client, as the library takes it.
pub(super) struct Channel<'a> {
    shared: Rc<Shared<'a>>,
    /// Where the repository turned out to be.
    moved: Option<String>,
}

impl<'a> Channel<'a> {
    pub(super) fn new(shared: Rc<Shared<'a>>) -> Self {
        Self { shared, moved: None }
    }

    /// A request with `headers`, each a name and a value in one line.
    fn request(
        &self,
        method: Method,
        url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Request<'static>, GitError> {
        let shared = &self.shared;
        let url = Url::parse(url).map_err(|_| shared.failed("it is not a usable URL"))?;
        let mut request = Request::new(method, url);
        for line in headers {
            let Some((name, value)) = line.as_ref().split_once(':') else { continue };
            let name = HeaderName::from_bytes(name.trim().as_bytes());
            let value = HeaderValue::from_str(value.trim());
            // The name of the client is that of all requests.
            if let (Ok(name), Ok(value)) = (name, value)
                && name != reqwest::header::USER_AGENT
            {
                request.headers.push((name, value));
            }
        }
        request.authorization.clone_from(&shared.authorization);
        if request.authorization.is_some() || request.method == Method::POST {
            // As git: what has a secret goes nowhere else, and after the first answer the repository stays where it is.
            request.most_redirects = 0;
        }
        Ok(request)
    }
}

impl<'a> Http for Channel<'a> {
    type Headers = Head<'a>;
    type ResponseBody = Body<'a>;
    type PostBody = Sending<'a>;

    fn get(
        &mut self,
        url: &str,
        _base: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix_error::Result<GetResponse<Head<'a>, Body<'a>>> {
        let fail = |error| self.shared.fail(error).raise();
        let request = self.request(Method::GET, url, headers).map_err(fail)?;
        let response = self.shared.send(&request).map_err(fail)?;
        let at = response.url().as_str();
        if at != request.url.as_str() {
            let Some(base) = at.strip_suffix(FIRST) else {
                return Err(fail(self.shared.failed("it redirects to what is no git repository")));
            };
            self.moved = Some(base.to_owned());
        }
        let exchange = Exchange::new(&self.shared, State::Answered(Box::new(response)));
        let headers = Head::of(&exchange);
        let mut body = Body::of(&exchange);
        body.mend_listing().map_err(|error| self.shared.fail(GitError::Pack(error)).raise())?;
        Ok(GetResponse { headers, body })
    }

    fn post(
        &mut self,
        url: &str,
        _base: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _kind: PostBodyDataKind,
    ) -> gix_error::Result<PostResponse<Head<'a>, Body<'a>, Sending<'a>>> {
        let request = self.request(Method::POST, url, headers);
        let request = request.map_err(|error| self.shared.fail(error).raise())?;
        let state = State::Asking { request: Box::new(request), body: Vec::new() };
        let exchange = Exchange::new(&self.shared, state);
        Ok(PostResponse {
            post_body: Sending(Rc::clone(&exchange)),
            headers: Head::of(&exchange),
            body: Body::of(&exchange),
        })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix_error::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.moved.clone()
    }
}

/// Listens to what the server says instead of an answer: a packet that begins with `ERR `, wherever it stands. The library
/// looks for it in some places, and shows it in none.
#[derive(Default)]
struct Complaints {
    /// The length of a packet, as far as it is there.
    head: Vec<u8>,
    /// How much is left of the packet, and the beginning of it.
    left: usize,
    text: Vec<u8>,
    /// What comes is no packets.
    is_over: bool,
}

impl Complaints {
    /// What is complained of in what came before and `bytes`.
    fn find(&mut self, mut bytes: &[u8]) -> Option<String> {
        const MARK: &[u8] = b"ERR ";
        while !self.is_over && !bytes.is_empty() {
            if self.left == 0 {
                let (piece, rest) = bytes.split_at(bytes.len().min(4 - self.head.len()));
                self.head.extend_from_slice(piece);
                bytes = rest;
                if self.head.len() == 4 {
                    let head = std::mem::take(&mut self.head);
                    let digits = std::str::from_utf8(&head).ok().filter(|text| !text.starts_with('+'));
                    match digits.and_then(|text| usize::from_str_radix(text, 16).ok()) {
                        // Those without content end something.
                        Some(length) => self.left = length.saturating_sub(4),
                        None => self.is_over = true,
                    }
                    self.text.clear();
                }
                continue;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(self.left));
            let most =
                if self.text.starts_with(MARK) || self.text.len() < MARK.len() { LONGEST_TEXT } else { 0 };
            let wanted = most.saturating_sub(self.text.len()).min(piece.len());
            self.text.extend_from_slice(&piece[..wanted]);
            self.left -= piece.len();
            bytes = rest;
            if self.left == 0
                && let Some(said) = self.text.strip_prefix(MARK)
            {
                return Some(line(said.trim_ascii(), SHOWN_CHARACTERS));
            }
        }
        None
    }
}

/// A request and its answer. It is sent when the answer is read: by then all of its body has been written.
struct Exchange<'a> {
    shared: Rc<Shared<'a>>,
    state: State,
    complaints: Complaints,
}

impl<'a> Exchange<'a> {
    fn new(shared: &Rc<Shared<'a>>, state: State) -> Rc<RefCell<Self>> {
        let shared = Rc::clone(shared);
        Rc::new(RefCell::new(Self { shared, state, complaints: Complaints::default() }))
    }
}

enum State {
    Asking { request: Box<Request<'static>>, body: Vec<u8> },
    Answered(Box<Response>),
    Over,
}

impl Exchange<'_> {
    fn answer(&mut self) -> io::Result<&mut Response> {
        if let State::Asking { .. } = self.state
            && let State::Asking { request, body } = std::mem::replace(&mut self.state, State::Over)
        {
            let request = Request { content: Content::Bytes(&body), ..*request };
            let response = self.shared.send(&request).map_err(|error| self.shared.fail(error))?;
            self.state = State::Answered(Box::new(response));
        }
        match &mut self.state {
            State::Answered(response) => Ok(response),
            _ => Err(io::Error::other("there is no answer")),
        }
    }

    /// The next bytes of the answer; none at its end.
    fn chunk(&mut self) -> io::Result<Bytes> {
        let shared = Rc::clone(&self.shared);
        (shared.stopped)().map_err(|error| shared.fail(error))?;
        let chunk = loop {
            let chunk = self.answer()?.chunk();
            match chunk.map_err(|failure| shared.fail(shared.client_failed(failure)))? {
                Some(chunk) if chunk.is_empty() => {}
                Some(chunk) => break chunk,
                None => return Ok(Bytes::new()),
            }
        };
        let (left, exceeded) = shared.left.get();
        let left = left.checked_sub(chunk.len() as u64);
        let left = left.ok_or_else(|| shared.fail(GitError::Exceeded(exceeded)))?;
        shared.left.set((left, exceeded));
        if let Some(said) = self.complaints.find(&chunk) {
            return Err(shared.fail(shared.failed(format!("the server says: {said}"))));
        }
        Ok(chunk)
    }
}

/// What is written as the body of a request.
pub(super) struct Sending<'a>(Rc<RefCell<Exchange<'a>>>);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut exchange = self.0.borrow_mut();
        match &mut exchange.state {
            State::Asking { body, .. } if body.len() + bytes.len() <= LONGEST_REQUEST => {
                body.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            _ => Err(io::Error::other("the request is too long")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The headers of an answer that the library looks at, as lines.
pub(super) struct Head<'a> {
    exchange: Rc<RefCell<Exchange<'a>>>,
    lines: Option<io::Cursor<Vec<u8>>>,
}

impl<'a> Head<'a> {
    fn of(exchange: &Rc<RefCell<Exchange<'a>>>) -> Self {
        Self { exchange: Rc::clone(exchange), lines: None }
    }
}

impl BufRead for Head<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.lines.is_none() {
            let mut exchange = self.exchange.borrow_mut();
            let kind = exchange.answer()?.header("content-type").unwrap_or_default().to_owned();
            self.lines = Some(io::Cursor::new(format!("content-type: {kind}\n").into_bytes()));
        }
        match &mut self.lines {
            Some(lines) => lines.fill_buf(),
            None => Ok(&[]),
        }
    }

    fn consume(&mut self, count: usize) {
        if let Some(lines) = &mut self.lines {
            lines.consume(count);
        }
    }
}

impl Read for Head<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, into)
    }
}

/// The body of an answer.
pub(super) struct Body<'a> {
    exchange: Rc<RefCell<Exchange<'a>>>,
    chunk: Bytes,
}

impl<'a> Body<'a> {
    fn of(exchange: &Rc<RefCell<Exchange<'a>>>) -> Self {
        Self { exchange: Rc::clone(exchange), chunk: Bytes::new() }
    }

    /// Reads the beginning of a listing and mends it; see [`mended`].
    fn mend_listing(&mut self) -> io::Result<()> {
        let mut beginning = Vec::new();
        self.chunk = loop {
            if let Some(mended) = mended(&beginning) {
                break mended.into();
            }
            let chunk = self.exchange.borrow_mut().chunk()?;
            if chunk.is_empty() {
                break beginning.into();
            }
            beginning.extend_from_slice(&chunk);
        };
        Ok(())
    }
}

/// The beginning of a list of branches and tags (protocols 0 and 1), in which no `symref` is about a name that is not there:
/// the library panics at one. What says where HEAD points to stays if HEAD is the first name, as it is if it is there at all.
/// None where more must be read to tell.
fn mended(beginning: &[u8]) -> Option<Vec<u8>> {
    /// The name of the service, its end, the version, and the first name come in as many packets.
    const PACKETS: usize = 5;
    let mut at = 0;
    for _ in 0..PACKETS {
        let length = beginning.get(at..at + 4)?;
        let length = std::str::from_utf8(length).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        match length {
            Some(0..4) => {
                at += 4;
                continue;
            }
            Some(length) => {
                let payload = beginning.get(at + 4..at + length)?;
                if let Some(end) = payload.iter().position(|byte| *byte == 0) {
                    let (first, features) = (&payload[..end], &payload[end + 1..]);
                    let mut is_open = first.ends_with(b" HEAD");
                    let stays = |feature: &&[u8]| {
                        !feature.starts_with(b"symref=")
                            || (feature.starts_with(b"symref=HEAD:") && std::mem::take(&mut is_open))
                    };
                    let features: Vec<&[u8]> = features.split(|byte| *byte == b' ').filter(stays).collect();
                    let packet = [first, b"\0", &features.join(&b' ')].concat();
                    let head = format!("{:04x}", packet.len() + 4).into_bytes();
                    let (before, after) = (&beginning[..at], &beginning[at + length..]);
                    return Some([before, &head, &packet, after].concat());
                }
                at += length;
            }
            // The library will say what is wrong with it.
            None => break,
        }
    }
    Some(beginning.to_vec())
}

impl BufRead for Body<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.chunk.is_empty() {
            self.chunk = self.exchange.borrow_mut().chunk()?;
        }
        Ok(&self.chunk)
    }

    fn consume(&mut self, count: usize) {
        let _ = self.chunk.split_to(count.min(self.chunk.len()));
    }
}

impl Read for Body<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, into)
    }
}

fn read_buffered(from: &mut impl BufRead, into: &mut [u8]) -> io::Result<usize> {
    let count = from.fill_buf()?.read(into)?;
    from.consume(count);
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::context::git::GitLimits;
    use crate::http::{Options, Retries};

    #[test]
    fn where_names_that_are_not_listed_point_to_is_left_out() {
        let packet = |text: &str| format!("{:04x}{text}", text.len() + 4);
        let service = format!("{}0000", packet("# service=git-upload-pack\n"));
        let id = "0".repeat(40);
        let listing = |name: &str, features: &str| {
            let rest = packet(&format!("{id} refs/heads/main\n"));
            format!("{service}{}{rest}0000", packet(&format!("{id} {name}\0{features}\n")))
        };
        for (name, features, left) in [
            ("HEAD", "a symref=HEAD:refs/heads/main b", "a symref=HEAD:refs/heads/main b"),
            ("HEAD", "symref=HEAD:x symref=HEAD:y symref=z:x a", "symref=HEAD:x a"),
            ("refs/heads/main", "a symref=HEAD:refs/heads/main b", "a b"),
            ("capabilities^{}", "symref=HEAD:refs/heads/main a", "a"),
        ] {
            let text = listing(name, features);
            assert_eq!(mended(text.as_bytes()).unwrap(), listing(name, left).as_bytes(), "{features}");
            // Less than its beginning does not do.
            assert_eq!(mended(&text.as_bytes()[..service.len() + 10]), None);
        }
        for other in [format!("{service}{}", packet("version 2\n")).repeat(3), "no packets".to_owned()] {
            assert_eq!(mended(other.as_bytes()).unwrap(), other.as_bytes());
        }
    }

    #[test]
    fn what_a_server_complains_of_is_found_wherever_it_stands() {
        let packet = |text: &str| format!("{:04x}{text}", text.len() + 4);
        let service = format!("{}0000", packet("# service=git-upload-pack\n"));
        let long = "x".repeat(5000);
        let cut = format!("{}…", "x".repeat(SHOWN_CHARACTERS));
        for (text, said) in [
            (packet("ERR no such repository\n"), Some("no such repository")),
            (format!("{service}{}", packet("ERR go away")), Some("go away")),
            (
                format!("{}0001{}", packet("acknowledgments\n"), packet("ERR not our ref")),
                Some("not our ref"),
            ),
            (packet("ERR \u{1b}[2J\u{202e}a\nb"), Some("\\u{1b}[2J\\u{202e}a\\nb")),
            (packet(&format!("ERR {long}")), Some(&*cut)),
            (packet("ERR "), Some("")),
            (format!("{}{}", packet(&long), packet("x ERR no")), None),
            (packet("\u{2}ERR no"), None),
            (format!("{}PACK{}", packet("NAK\n"), packet("ERR no")), None),
            (format!("<html>{}", packet("ERR no")), None),
            (format!("+00f{}", packet("ERR no")), None),
        ] {
            for step in [1, 3, 7, 100_000] {
                let mut complaints = Complaints::default();
                let found = text.as_bytes().chunks(step).find_map(|chunk| complaints.find(chunk));
                assert_eq!(found.as_deref(), said, "{text} by {step}");
            }
        }
    }

    /// Answers one connection after the other with these, and keeps what was asked.
    fn serve(answers: Vec<String>) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                head += &String::from_utf8(body).unwrap();
                seen.lock().unwrap().push(head);
                let mut stream = stream;
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        (base, asked)
    }

    fn answer(status: &str, body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
    }

    fn shared<'a>(
        client: &'a Client,
        left: u64,
        stopped: &'a dyn Fn() -> Result<(), GitError>,
    ) -> Rc<Shared<'a>> {
        Rc::new(Shared {
            client: client.clone(),
            authorization: None,
            stopped,
            action: "fetch it".to_owned(),
            left: Cell::new((left, Exceeded::Bytes(GitLimits::BYTES))),
            failure: RefCell::default(),
        })
    }

    fn client() -> Client {
        let retries = Retries { base: Duration::from_millis(1), ..Retries::default() };
        Client::new(Options { retries, ..Options::default() }).unwrap()
    }

    const NONE: [&str; 0] = [];
    const GO_ON: &dyn Fn() -> Result<(), GitError> = &|| Ok(());

    #[test]
    fn a_request_is_sent_once_it_is_whole_and_again_when_the_server_is_busy() {
        let (base, asked) = serve(vec![answer("503 Busy", ""), answer("200 OK", "the answer")]);
        let client = client();
        let mut channel = Channel::new(shared(&client, 100, GO_ON));
        let headers = ["Git-Protocol: version=2", "User-Agent: other"];
        let sent = channel.post(&format!("{base}/x"), &base, headers, PostBodyDataKind::Unbounded).unwrap();
        let PostResponse { mut post_body, mut headers, mut body } = sent;
        post_body.write_all(b"one ").unwrap();
        post_body.write_all(b"two").unwrap();
        assert!(asked.lock().unwrap().is_empty());
        let (mut kind, mut text) = (String::new(), String::new());
        headers.read_to_string(&mut kind).unwrap();
        body.read_to_string(&mut text).unwrap();
        assert_eq!((kind.as_str(), text.as_str()), ("content-type: \n", "the answer"));
        for asked in &*asked.lock().unwrap() {
            assert!(asked.ends_with("one two") && asked.contains("git-protocol: version=2"), "{asked}");
            assert!(asked.contains("user-agent: builder/"), "{asked}");
        }
        assert_eq!(asked.lock().unwrap().len(), 2);
        assert!(post_body.write_all(b"late").is_err());
    }

    #[test]
    fn what_fails_is_noted_before_the_library_makes_something_else_of_it() {
        let stop = Cell::new(false);
        let stopped = || if stop.get() { Err(GitError::Cancelled) } else { Ok(()) };
        let (base, _) = serve(vec![answer("200 OK", "000fERR go\u{9b} on")]);
        let client_that_asks = client();
        let asking = shared(&client_that_asks, 100, GO_ON);
        assert!(Channel::new(Rc::clone(&asking)).get(&format!("{base}{FIRST}"), &base, NONE).is_err());
        let noted = asking.failure.borrow_mut().take().expect("a failure").to_string();
        assert_eq!(noted, "cannot fetch it: the server says: go\\u{9b} on");
        for (status, length, left, words) in [
            ("200 OK", 10, 9, "--limit git-bytes=N"),
            ("401 No", 0, 9, "Authentication failed"),
            ("404 No", 0, 9, "repository not found"),
            ("418 No", 0, 9, "status 418"),
            ("302 Go\r\nLocation: /elsewhere", 0, 9, "redirects"),
        ] {
            let body = "x".repeat(length);
            let (base, _) = serve(vec![answer(status, &body), answer("200 OK", "")]);
            let client = client();
            let shared = shared(&client, left, &stopped);
            let mut channel = Channel::new(Rc::clone(&shared));
            if let Ok(mut got) = channel.get(&format!("{base}{FIRST}"), &base, NONE) {
                assert!(got.body.read_to_end(&mut Vec::new()).is_err(), "{status}");
            }
            let noted = shared.failure.borrow_mut().take().expect("a failure").to_string();
            assert!(noted.contains(words), "{status}: {noted}");
        }
        stop.set(true);
        let client = client();
        let shared = shared(&client, 9, &stopped);
        assert!(Channel::new(Rc::clone(&shared)).get("http://127.0.0.1:1/", "", NONE).is_err());
        assert!(matches!(*shared.failure.borrow(), Some(GitError::Cancelled)));
    }

    #[test]
    fn a_first_answer_from_elsewhere_moves_the_repository_and_no_later_one() {
        let (there, _) = serve(vec![answer("200 OK", "x"), answer("200 OK", "x")]);
        let to = format!("302 Go\r\nLocation: {there}/new.git{FIRST}");
        let (here, _) = serve(vec![answer(&to, ""), answer(&to, "")]);
        let client = client();
        let shared = shared(&client, 100, GO_ON);
        let mut channel = Channel::new(Rc::clone(&shared));
        channel.get(&format!("{here}/old.git{FIRST}"), &here, NONE).unwrap();
        assert_eq!(channel.redirected_base_url(), Some(format!("{there}/new.git")));
        let sent = channel.post(&format!("{here}/old.git/x"), &here, NONE, PostBodyDataKind::Unbounded);
        let mut text = Vec::new();
        // 302 is no redirect for POST, and no success either.
        assert!(sent.unwrap().body.read_to_end(&mut text).is_err() && text.is_empty());
    }
}
