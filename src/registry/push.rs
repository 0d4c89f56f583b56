//! Writing to registries: blobs first, and the manifest that names them last.

use std::io::{self, Read, Seek, SeekFrom};
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue};
use url::Url;

use super::client::{Call, Client, Direction};
use super::error::{Action, Problem, TransferError};
use super::session::{Scope, Session};
use super::statistics::Kind;
use crate::http::{Attempts, Content, Failure, Method, Response};
use crate::image::descriptor::Descriptor;
use crate::image::digest::Digest;
use crate::image::reference::Reference;

/// How a blob came to be in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uploaded {
    /// It was there before.
    Existed,
    /// The registry took it from another repository.
    Mounted,
    /// It was sent.
    Sent,
}

/// The bytes of a blob, from any place on.
pub trait BlobSource: Read + Seek {}

impl<T: Read + Seek> BlobSource for T {}

/// Opens the bytes of a blob.
pub type OpenBlob<'a> = &'a (dyn Fn() -> io::Result<Box<dyn BlobSource + 'a>> + Sync + 'a);

/// Pieces of a chunked upload are this long, unless the registry wants longer ones.
const PIECE: u64 = 16 * 1024 * 1024;
/// Longer pieces than this are not sent, whatever the registry wants.
const LONGEST_PIECE: u64 = 1024 * 1024 * 1024;

/// One upload: where to, and what.
struct Upload<'a, 'o> {
    session: &'a Session,
    scope: Scope,
    to: &'a Reference,
    blob: &'a Descriptor,
    open: OpenBlob<'o>,
}

/// An upload that the registry is ready for.
struct Place {
    url: Url,
    /// The least length of a piece (distribution-spec, Pushing a blob in chunks).
    piece: u64,
}

/// How sending went.
enum Sending {
    Done,
    /// The registry does not know the upload any more, or the connection broke: from the beginning.
    Restart(Problem),
    /// The registry does not take the whole at once.
    InPieces,
}

impl Client {
    /// Whether the repository of `reference` has a blob of this digest and size.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn blob_exists(&self, reference: &Reference, blob: &Descriptor) -> Result<bool, TransferError> {
        let session = self.session(reference, Direction::Push);
        let scope = Scope::push(reference.repository());
        self.has_blob(&session, &scope, reference, &blob.digest, Some(blob.size))
            .map_err(|problem| problem.at(Action::BlobCheck(blob.digest.clone()), reference))
    }

    /// Asks whether we may push to the repository of `reference`, by beginning an upload and taking it back.
    ///
    /// # Errors
    /// [`TransferError`], above all when we may not.
    pub fn check_push(&self, reference: &Reference) -> Result<(), TransferError> {
        let check = || {
            let session = self.session(reference, Direction::Push);
            let scope = Scope::push(reference.repository());
            let mut attempts = self.http.attempts();
            let place = self.begin(&session, &scope, reference, &mut attempts)?;
            let call = Call::new(Method::DELETE, place.url, &scope, Kind::Upload);
            // Registries end what nobody goes on with: that one does not take it back is no reason to fail.
            match self.call(&session, &call, &mut self.http.attempts()) {
                Err(problem @ Problem::Http { failure: Failure::Cancelled, .. }) => Err(problem),
                _ => Ok(()),
            }
        };
        check().map_err(|problem| problem.at(Action::PushCheck, reference))
    }

    /// Brings a blob into the repository of `to`: it may be there, the registry may have it in the repository of
    /// `mount_from`, or it is sent from what `open` gives (once for each try).
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn upload(
        &self,
        to: &Reference,
        blob: &Descriptor,
        open: OpenBlob<'_>,
        mount_from: Option<&Reference>,
    ) -> Result<Uploaded, TransferError> {
        let session = self.session(to, Direction::Push);
        let upload = Upload { session: &session, scope: Scope::push(to.repository()), to, blob, open };
        self.send_blob(upload, mount_from)
            .map_err(|problem| problem.at(Action::Upload(blob.digest.clone()), to))
    }

    fn send_blob(&self, upload: Upload<'_, '_>, mount_from: Option<&Reference>) -> Result<Uploaded, Problem> {
        let Upload { session, scope, to, blob, .. } = &upload;
        if self.has_blob(session, scope, to, &blob.digest, Some(blob.size))? {
            return Ok(Uploaded::Existed);
        }
        let mut attempts = self.http.attempts();
        let mut place = None;
        let source = mount_from
            .filter(|from| from.registry() == to.registry() && from.repository() != to.repository());
        if let Some(from) = source {
            match self.mount(&upload, from, &mut attempts)? {
                Some(Mount::Done) => return Ok(Uploaded::Mounted),
                Some(Mount::Continue(there)) => place = Some(there),
                None => {}
            }
        }
        let mut in_pieces = false;
        loop {
            let there = match place.take() {
                Some(place) => place,
                None => self.begin(session, scope, to, &mut attempts)?,
            };
            let sending =
                if in_pieces { self.send_pieces(&upload, there)? } else { self.send_whole(&upload, there)? };
            match sending {
                Sending::Done => return Ok(Uploaded::Sent),
                Sending::InPieces => in_pieces = true,
                Sending::Restart(problem) => self.again_from_start(problem, &mut attempts)?,
            }
        }
    }

    pub(super) fn has_blob(
        &self,
        session: &Session,
        scope: &Scope,
        at: &Reference,
        digest: &Digest,
        size: Option<u64>,
    ) -> Result<bool, Problem> {
        let url = session.url(self, at.repository(), &["blobs", &digest.to_string()])?;
        let call = Call::new(Method::HEAD, url, scope, Kind::Blob);
        let mut response = self.call(session, &call, &mut self.http.attempts())?;
        match response.status() {
            // A blob of another size is another blob.
            200 => Ok(size.is_none() || response.content_length().is_none_or(|length| Some(length) == size)),
            403 => Err(self.refusal(session, scope, "", &mut response)),
            // 404 means no; other refusals (405) mean that we shall not know.
            _ => Ok(false),
        }
    }

    /// Begins an upload.
    fn begin(
        &self,
        session: &Session,
        scope: &Scope,
        to: &Reference,
        attempts: &mut Attempts,
    ) -> Result<Place, Problem> {
        let mut url = session.url(self, to.repository(), &["blobs", "uploads"])?;
        url.set_path(&format!("{}/", url.path()));
        let call = Call::new(Method::POST, url, scope, Kind::Upload);
        let mut response = self.call(session, &call, attempts)?;
        match response.status() {
            202 => place(session, &response),
            _ => Err(self.refusal(session, scope, &format!("repository {}", to.repository()), &mut response)),
        }
    }

    /// Asks the registry to take the blob from another of its repositories. All refusals mean: send it.
    fn mount(
        &self,
        upload: &Upload<'_, '_>,
        from: &Reference,
        attempts: &mut Attempts,
    ) -> Result<Option<Mount>, Problem> {
        let mut url = upload.session.url(self, upload.to.repository(), &["blobs", "uploads"])?;
        url.set_path(&format!("{}/", url.path()));
        url.query_pairs_mut()
            .append_pair("mount", &upload.blob.digest.to_string())
            .append_pair("from", from.repository());
        let scope = Scope::mount(upload.to.repository(), from.repository());
        let call = Call::new(Method::POST, url, &scope, Kind::Upload);
        let response = match self.call(upload.session, &call, attempts) {
            Ok(response) => response,
            // We may not read there, or nobody told the token server about it.
            Err(Problem::Rejected { .. } | Problem::NoCredentials { .. }) => return Ok(None),
            Err(problem) => return Err(problem),
        };
        match response.status() {
            201 => Ok(Some(Mount::Done)),
            202 => place(upload.session, &response).map(|place| Some(Mount::Continue(place))),
            _ => Ok(None),
        }
    }

    fn send_whole(&self, upload: &Upload<'_, '_>, place: Place) -> Result<Sending, Problem> {
        let open = || Ok((upload.open)()? as Box<dyn Read + '_>);
        let content = Content::Stream { size: upload.blob.size, open: &open };
        let call = Call {
            headers: vec![octets()],
            content,
            ..Call::new(Method::PUT, with_digest(place.url, &upload.blob.digest), &upload.scope, Kind::Upload)
        };
        self.commit(upload, &call)
    }

    /// The PUT that ends an upload.
    fn commit(&self, upload: &Upload<'_, '_>, call: &Call<'_>) -> Result<Sending, Problem> {
        // An upload is not repeated at the same place: what the registry has of it is not known.
        let mut response = match self.call(upload.session, call, &mut Attempts::once()) {
            Ok(response) => response,
            Err(problem @ (Problem::Http { .. } | Problem::Status { .. })) => {
                return Ok(Sending::Restart(problem));
            }
            Err(problem) => return Err(problem),
        };
        let in_pieces = matches!(call.content, Content::Stream { .. });
        match response.status() {
            201 => self.check_committed(upload, &response),
            // Some registries accept and check later.
            200 | 202 | 204 if response.header("location").is_some() => {
                self.check_committed(upload, &response)
            }
            405 | 411 | 413 | 415 | 501 if in_pieces => Ok(Sending::InPieces),
            404 | 416 => {
                let problem = self.refusal(upload.session, &upload.scope, "the upload", &mut response);
                Ok(Sending::Restart(problem))
            }
            _ => Err(self.refusal(upload.session, &upload.scope, "the upload", &mut response)),
        }
    }

    fn check_committed(&self, upload: &Upload<'_, '_>, response: &Response) -> Result<Sending, Problem> {
        let stored = response.header("docker-content-digest").and_then(|text| text.parse::<Digest>().ok());
        match stored {
            Some(stored)
                if stored.algorithm() == upload.blob.digest.algorithm() && stored != upload.blob.digest =>
            {
                let problem = format!("the digest {stored} for what was sent as {}", upload.blob.digest);
                Err(Problem::Answer { host: upload.session.host.clone(), problem })
            }
            _ => Ok(Sending::Done),
        }
    }

    fn send_pieces(&self, upload: &Upload<'_, '_>, mut place: Place) -> Result<Sending, Problem> {
        let size = upload.blob.size;
        let piece = place.piece.clamp(PIECE, LONGEST_PIECE);
        let mut sent = 0;
        while sent < size {
            let length = piece.min(size - sent);
            let open = || {
                let mut file = (upload.open)()?;
                file.seek(SeekFrom::Start(sent))?;
                Ok(Box::new(file.take(length)) as Box<dyn Read + '_>)
            };
            let call = Call {
                headers: vec![octets(), content_range(sent, length)],
                content: Content::Stream { size: length, open: &open },
                ..Call::new(Method::PATCH, place.url.clone(), &upload.scope, Kind::Upload)
            };
            let response = match self.call(upload.session, &call, &mut Attempts::once()) {
                Ok(response) => response,
                Err(problem @ (Problem::Http { .. } | Problem::Status { .. })) => {
                    return Ok(Sending::Restart(problem));
                }
                Err(problem) => return Err(problem),
            };
            let next = match self.after_piece(upload, response, &mut place, sent + length)? {
                Ok(next) => next,
                Err(restart) => return Ok(restart),
            };
            if next <= sent || next > size {
                let problem = format!("{next} as the place to go on after {} of {size} bytes", sent + length);
                return Err(Problem::Answer { host: upload.session.host.clone(), problem });
            }
            sent = next;
        }
        let url = with_digest(place.url, &upload.blob.digest);
        let call =
            Call { headers: vec![octets()], ..Call::new(Method::PUT, url, &upload.scope, Kind::Upload) };
        self.commit(upload, &call)
    }

    /// From where an upload goes on after a piece; `sent` is where it should.
    fn after_piece(
        &self,
        upload: &Upload<'_, '_>,
        mut response: Response,
        place: &mut Place,
        sent: u64,
    ) -> Result<Result<u64, Sending>, Problem> {
        match response.status() {
            200..=204 => {
                if response.header("location").is_some() {
                    place.url = self::place(upload.session, &response)?.url;
                }
                Ok(Ok(received(&response).unwrap_or(sent)))
            }
            416 => {
                let call = Call::new(Method::GET, place.url.clone(), &upload.scope, Kind::Upload);
                let state = self.call(upload.session, &call, &mut self.http.attempts())?;
                if state.header("location").is_some() {
                    place.url = self::place(upload.session, &state)?.url;
                }
                match received(&state).filter(|_| state.is_success()) {
                    Some(next) => Ok(Ok(next)),
                    None => Ok(Err(Sending::Restart(self.status(&mut response)))),
                }
            }
            404 => {
                let problem = self.refusal(upload.session, &upload.scope, "the upload", &mut response);
                Ok(Err(Sending::Restart(problem)))
            }
            _ => Err(self.refusal(upload.session, &upload.scope, "the upload", &mut response)),
        }
    }

    /// Waits before an upload begins anew. Whatever ended it may be gone then, even a 404.
    fn again_from_start(&self, problem: Problem, attempts: &mut Attempts) -> Result<(), Problem> {
        let forgotten = matches!(problem, Problem::NotFound { .. } | Problem::Status { status: 416, .. });
        if !forgotten && !problem.is_transient() {
            return Err(problem);
        }
        let tell = |wait: Duration| {
            self.notice(&format!("{problem}; the upload begins anew in {:.1} s", wait.as_secs_f64()));
        };
        let again = self.http.wait(attempts, problem.retry_after(), tell)?;
        if again { Ok(()) } else { Err(problem.tried(attempts.failed())) }
    }
}

enum Mount {
    Done,
    Continue(Place),
}

/// Where an upload goes on. Another host is fine, as it will not see the authorization; less encryption is not.
fn place(session: &Session, response: &Response) -> Result<Place, Problem> {
    let refuse = |problem| Problem::Location { host: session.host.clone(), problem };
    let piece =
        response.header("oci-chunk-min-length").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Ok(Place { url: response.location().map_err(refuse)?, piece })
}

/// A query that is there is part of the upload's name and stays as it is.
fn with_digest(mut url: Url, digest: &Digest) -> Url {
    url.query_pairs_mut().append_pair("digest", &digest.to_string());
    url
}

fn octets() -> (HeaderName, HeaderValue) {
    (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))
}

fn content_range(first: u64, length: u64) -> (HeaderName, HeaderValue) {
    let value = format!("{first}-{}", first + length - 1);
    // Digits are always a valid header.
    (CONTENT_RANGE, HeaderValue::try_from(value).unwrap_or(HeaderValue::from_static("0-0")))
}

/// How much of an upload a registry has, by `Range: 0-LAST`.
fn received(response: &Response) -> Option<u64> {
    let value = response.header("range")?.trim();
    let last = value.strip_prefix("bytes=").unwrap_or(value).strip_prefix("0-")?;
    last.parse::<u64>().ok()?.checked_add(1)
}
