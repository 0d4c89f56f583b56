//! Files from http and https URLs: streamed, checked against a limit, tried again, and not fetched twice.

use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use reqwest::header::{HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, InvalidHeaderValue};
use url::Url;

use super::url::{basic_authorization, decoded, host};
use crate::http::{Client, Failure, Method, Request, Response};
use crate::limit::Limit;
use crate::text::one_url;

/// What a file is called whose URL has no path, as under BuildKit.
const UNNAMED: &[u8] = b"__unnamed__";

/// Bytes of a file that is fetched from a URL.
pub const DOWNLOAD_LIMIT: Limit = Limit::new("download-bytes", 64 << 30);

/// As many redirects are followed, as by Go's client.
const REDIRECTS: usize = 10;

/// The longest `ETag` or `Last-Modified` that is remembered, in bytes.
const LONGEST_VALIDATOR: usize = 1024;

/// Why a file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    /// Not a URL that one can ask for.
    #[error("it is not a usable http or https URL")]
    Url,
    /// The server has no such file, or does not give it. BuildKit's words.
    #[error("invalid response status {0}")]
    Status(u16),
    /// More than is allowed, or announced to be.
    #[error("the file has more than {value} bytes; {limit}", value = .limit.value)]
    TooLarge {
        /// What is allowed.
        limit: Limit,
    },
    /// A header that cannot be sent. What is in it is not shown.
    #[error("the secret for the `Authorization` header has characters that no header can have")]
    Authorization(#[source] InvalidHeaderValue),
    /// No answer, or half of one.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// It was tried as often as that makes sense.
    #[error("{error}, {times} times{}", asked_for(*.asked))]
    GaveUp {
        /// What came of the last try.
        error: Box<DownloadError>,
        /// How often it was tried.
        times: u32,
        /// How long the server wants to be left alone.
        asked: Option<Duration>,
    },
    /// What came could not be kept.
    #[error("cannot write what comes")]
    Write(#[source] io::Error),
}

fn asked_for(wait: Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!("; it asks for a wait of {} seconds", wait.as_secs()))
}

/// An http or https URL, as somebody wrote it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UrlSource(String);

/// There may be a password in it.
impl fmt::Debug for UrlSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UrlSource").field(&self.shown()).finish()
    }
}

impl UrlSource {
    /// What `text` names, if it begins as a URL does. That it is none shows when it is fetched, as under BuildKit.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_url = text.starts_with("http://") || text.starts_with("https://");
        is_url.then(|| Self(text.to_owned()))
    }

    /// As written: with credentials.
    #[must_use]
    pub fn written(&self) -> &str {
        &self.0
    }

    /// For messages: without credentials and query.
    #[must_use]
    pub fn shown(&self) -> String {
        one_url(&self.0)
    }

    /// The name of the file: the last element of the path, whatever the server says.
    #[must_use]
    pub fn file_name(&self) -> Vec<u8> {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let path = decoded(rest.split_once('/').map_or("", |(_, path)| path));
        let name = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty()).unwrap_or_default();
        match name {
            b"" | b"." | b".." => UNNAMED.to_vec(),
            name if name.contains(&0) => UNNAMED.to_vec(),
            name => name.to_vec(),
        }
    }

    /// The host without a port: secrets are named by it.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        host(&self.0)
    }

    /// The URL to ask for, and what its user name and password are shown as.
    fn request(&self) -> Result<(Url, Option<HeaderValue>), DownloadError> {
        let mut url = Url::parse(&self.0).map_err(|_| DownloadError::Url)?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(DownloadError::Url);
        }
        let authorization = basic_authorization(&url);
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_fragment(None);
        Ok((url, authorization.map(|text| sensitive(text.as_bytes())).transpose()?))
    }
}

fn sensitive(text: &[u8]) -> Result<HeaderValue, DownloadError> {
    let mut value = HeaderValue::from_bytes(text).map_err(DownloadError::Authorization)?;
    value.set_sensitive(true);
    Ok(value)
}

/// What a server said of a file, to be asked whether it is still so.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Validators {
    /// `ETag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// `Last-Modified`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_modified: Option<String>,
}

impl Validators {
    fn of(response: &Response) -> Self {
        let header =
            |name| response.header(name).filter(|value| value.len() <= LONGEST_VALIDATOR).map(str::to_owned);
        Self { etag: header("etag"), last_modified: header("last-modified") }
    }

    /// Whether they tell anything.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.etag.is_none() && self.last_modified.is_none()
    }

    /// The time of the last change, in seconds since 1970.
    #[must_use]
    pub fn modified(&self) -> Option<i64> {
        let time = httpdate::parse_http_date(self.last_modified.as_ref()?).ok()?;
        i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
    }

    fn conditions(&self) -> Vec<(HeaderName, HeaderValue)> {
        let pair = match self {
            Self { etag: Some(etag), .. } => (IF_NONE_MATCH, etag),
            Self { last_modified: Some(date), .. } => (IF_MODIFIED_SINCE, date),
            _ => return Vec::new(),
        };
        HeaderValue::from_str(pair.1).map(|value| vec![(pair.0, value)]).unwrap_or_default()
    }

    /// Whether an answer with a body is about the same file all the same: some servers do not know conditions.
    fn same_etag(&self, other: &Self) -> bool {
        fn strong(etag: &str) -> &str {
            etag.strip_prefix("W/").unwrap_or(etag)
        }
        match (&self.etag, &other.etag) {
            (Some(one), Some(other)) => strong(one) == strong(other),
            _ => false,
        }
    }
}

/// A file to fetch.
#[derive(Debug, Clone, Copy)]
pub struct Download<'a> {
    /// Where it is.
    pub source: &'a UrlSource,
    /// The `Authorization` header to send in place of that for the user name in the URL.
    pub authorization: Option<&'a [u8]>,
    /// What is known of the file that is there already.
    pub known: Option<&'a Validators>,
    /// How large it may be.
    pub limit: Limit,
}

/// What became of it.
#[derive(Debug)]
pub enum Downloaded<W> {
    /// It is still what is known.
    Unchanged,
    /// It has been fetched as a whole.
    New {
        /// Where it was written.
        file: W,
        /// What the server said of it.
        validators: Validators,
    },
}

/// Fetches a file. `open` makes the place where it is written, once for each try. `tell` gets a line about each wait.
/// Credentials go to the host of the URL only, wherever it redirects.
///
/// # Errors
/// [`DownloadError`]; what was written by then is the caller's to throw away.
pub fn download<W: Write>(
    client: &Client,
    download: &Download<'_>,
    open: &mut dyn FnMut() -> io::Result<W>,
    tell: &dyn Fn(&str),
) -> Result<Downloaded<W>, DownloadError> {
    let (url, from_url) = download.source.request()?;
    let authorization = match download.authorization {
        Some(text) => Some(sensitive(text)?),
        None => from_url,
    };
    let headers = download.known.map(Validators::conditions).unwrap_or_default();
    let request =
        Request { headers, authorization, most_redirects: REDIRECTS, ..Request::new(Method::GET, url) };
    let mut attempts = client.attempts();
    loop {
        let failed = match try_once(client, &request, download, open) {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let Some(asked) = failed.may_work_later() else { return Err(failed.error) };
        let before = |wait: Duration| {
            tell(&format!(
                "{}: {}; trying again in {:.1} s",
                download.source.shown(),
                failed.error,
                wait.as_secs_f32()
            ));
        };
        if !client.wait(&mut attempts, asked, before)? {
            let (error, times) = (Box::new(failed.error), attempts.failed());
            return Err(DownloadError::GaveUp { error, times, asked });
        }
    }
}

/// A try that failed, and how long the server wants us to wait before the next.
struct Failed {
    error: DownloadError,
    retry_after: Option<Duration>,
}

impl<E: Into<DownloadError>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self { error: error.into(), retry_after: None }
    }
}

impl Failed {
    /// The wait that was asked for, if another try may end better.
    #[expect(clippy::option_option, reason = "the outer says whether, the inner how long")]
    fn may_work_later(&self) -> Option<Option<Duration>> {
        let transient = match &self.error {
            DownloadError::Status(status) => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            DownloadError::Failure(failure) => failure.is_transient(),
            _ => false,
        };
        transient.then_some(self.retry_after)
    }
}

fn try_once<W: Write>(
    client: &Client,
    request: &Request<'_>,
    download: &Download<'_>,
    open: &mut dyn FnMut() -> io::Result<W>,
) -> Result<Downloaded<W>, Failed> {
    let mut response = client.send(request)?;
    let status = response.status();
    if status == 304 && !request.headers.is_empty() {
        return Ok(Downloaded::Unchanged);
    }
    if !(200..400).contains(&status) || status == 304 {
        let retry_after = response.retry_after();
        return Err(Failed { error: DownloadError::Status(status), retry_after });
    }
    let validators = Validators::of(&response);
    if download.known.is_some_and(|known| known.same_etag(&validators)) {
        return Ok(Downloaded::Unchanged);
    }
    let too_large = |bytes: u64| {
        let limit = download.limit;
        if limit.is_exceeded_by(bytes) { Err(DownloadError::TooLarge { limit }) } else { Ok(()) }
    };
    too_large(response.content_length().unwrap_or(0))?;
    let mut file = open().map_err(DownloadError::Write)?;
    let mut bytes = 0;
    while let Some(chunk) = response.chunk()? {
        bytes += chunk.len() as u64;
        too_large(bytes)?;
        file.write_all(&chunk).map_err(DownloadError::Write)?;
    }
    file.flush().map_err(DownloadError::Write)?;
    Ok(Downloaded::New { file, validators })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_as_the_path_ends() {
        for (url, name) in [
            ("http://h/hello.txt", "hello.txt"),
            ("http://h/hello.txt?q=1/2", "hello.txt"),
            ("http://h/a/b/#c", "b"),
            ("http://h/a%20b", "a b"),
            ("http://h/a%2Fb", "b"),
            ("http://h/%zz", "%zz"),
            ("http://h", "__unnamed__"),
            ("http://h/", "__unnamed__"),
            ("http://h?x=/y", "__unnamed__"),
            ("http://h/..", "__unnamed__"),
            ("http://h/a%00b", "__unnamed__"),
            ("http://h/*", "*"),
        ] {
            let source = UrlSource::parse(url).unwrap();
            assert_eq!(String::from_utf8_lossy(&source.file_name()), name, "{url}");
        }
        assert!(UrlSource::parse("ftp://h/x").is_none());
        assert!(UrlSource::parse("h/x").is_none());
    }

    #[test]
    fn credentials_become_a_header_and_are_not_shown() {
        let source = UrlSource::parse("https://me:p%40ss@h:8443/x?y#z").unwrap();
        let (url, authorization) = source.request().unwrap();
        assert_eq!(url.as_str(), "https://h:8443/x?y");
        let authorization = authorization.unwrap();
        assert_eq!(authorization.as_bytes(), b"Basic bWU6cEBzcw==");
        assert!(authorization.is_sensitive());
        assert_eq!(source.shown(), "https://xxxxx:xxxxx@h:8443/x?…");
        assert!(!format!("{source:?}").contains("p%40ss"));
        assert_eq!(source.host().as_deref(), Some("h"));
        assert!(matches!(UrlSource::parse("http://").unwrap().request(), Err(DownloadError::Url)));
    }

    /// Waits for nothing.
    struct Still;

    impl crate::http::Clock for Still {
        #[expect(clippy::disallowed_methods, reason = "as good as any")]
        fn now(&self) -> std::time::SystemTime {
            std::time::SystemTime::now()
        }
        fn sleep(&self, _: Duration, _: &dyn Fn() -> bool) {}
        fn jitter(&self, _: Duration) -> Duration {
            Duration::ZERO
        }
    }

    /// What is said of a file whose server always gives this answer, and how often it was asked.
    fn answered(answer: &'static str) -> (String, u64) {
        use std::io::{BufRead as _, BufReader};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let head = BufReader::new(&stream).lines().map_while(Result::ok);
                assert!(head.take_while(|line| !line.is_empty()).count() > 0);
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        let options = crate::http::Options { clock: std::sync::Arc::new(Still), ..Default::default() };
        let client = Client::new(options).unwrap();
        let source = UrlSource::parse(&format!("http://{address}/x")).unwrap();
        let wanted = Download { source: &source, authorization: None, known: None, limit: DOWNLOAD_LIMIT };
        let error = download(&client, &wanted, &mut || Ok(Vec::new()), &|_| ()).unwrap_err();
        (error.to_string(), client.requests())
    }

    #[test]
    fn the_error_says_how_often_a_server_was_asked_and_what_it_wants() {
        let busy = "HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(answered(busy), ("invalid response status 503, 5 times".to_owned(), 5));
        let later =
            "HTTP/1.1 503 x\r\nRetry-After: 99999999\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let said = "invalid response status 503, 2 times; it asks for a wait of 99999999 seconds";
        assert_eq!(answered(later), (said.to_owned(), 2));
    }

    #[test]
    fn what_is_no_http_is_not_asked_for_again() {
        for answer in [
            "HTTP/1.1 200 x\r\nContent-Length: -3\r\n\r\n",
            "HTTP/1.1 200 x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
            "HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ] {
            let (said, requests) = answered(answer);
            assert_eq!(requests, 1, "{answer:?}: {said}");
            assert!(said.contains("does not speak HTTP"), "{answer:?}: {said}");
        }
    }

    #[test]
    fn the_strongest_condition_is_asked_with() {
        let both = Validators { etag: Some("\"1\"".into()), last_modified: Some("yesterday".into()) };
        assert_eq!(both.conditions()[0].0, IF_NONE_MATCH);
        let date = Validators { etag: None, last_modified: Some("Sun, 06 Nov 1994 08:49:37 GMT".into()) };
        assert_eq!(date.conditions()[0].0, IF_MODIFIED_SINCE);
        assert_eq!(date.modified(), Some(784_111_777));
        assert_eq!(both.modified(), None);
        assert!(Validators::default().conditions().is_empty());
        let weak = Validators { etag: Some("W/\"1\"".into()), last_modified: None };
        assert!(weak.same_etag(&both) && !date.same_etag(&both));
    }
}
