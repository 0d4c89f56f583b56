//! Reading from registries: nothing that comes is believed before its digest was compared.

use std::io::{self, Write};

use reqwest::header::{ACCEPT, HeaderName, HeaderValue, RANGE};

use super::client::{Call, Client, Direction};
use super::error::{Action, Problem, TransferError};
use super::manifest;
use super::session::{Scope, Session};
use super::statistics::Kind;
use crate::http::{Attempts, Failure, Method, Response, authority};
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::{Digest, Digester, Mismatch, Verifier};
use crate::image::document::{Kind as Document, Payload, too_long};
use crate::image::reference::Reference;
use crate::limit::Limit;

/// A manifest or an index as a registry has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// What it is; agrees with what the document says.
    pub media_type: String,
    /// The digest of `bytes`.
    pub digest: Digest,
    /// The document, not longer than 4 MiB.
    pub bytes: Vec<u8>,
}

/// After as many further bytes an interrupted transfer counts as one that goes well.
const PROGRESS: u64 = 1024 * 1024;

impl Client {
    /// Reads the manifest or index that `reference` names: by its digest, else by its tag.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn manifest(&self, reference: &Reference) -> Result<Fetched, TransferError> {
        self.document(reference, Payload::Images)
    }

    /// [`Client::manifest`], where a manifest may have another `payload`, too.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn document(&self, reference: &Reference, payload: Payload) -> Result<Fetched, TransferError> {
        let expected = reference.digest();
        self.fetch_manifest(reference, &reference.identifier(), expected, payload)
            .map_err(|problem| problem.at(Action::Manifest, reference))
    }

    /// Reads the manifest or index that `entry`, of an index in the repository of `reference`, points to. Inline data
    /// spares the request.
    ///
    /// # Errors
    /// [`TransferError`], also when digest, size or media type differ from those of `entry`.
    pub fn manifest_of(&self, reference: &Reference, entry: &Descriptor) -> Result<Fetched, TransferError> {
        self.document_of(reference, entry, Payload::Images)
    }

    /// [`Client::manifest_of`], where a manifest may have another `payload`, too.
    ///
    /// # Errors
    /// [`TransferError`], also when digest, size or media type differ from those of `entry`.
    pub fn document_of(
        &self,
        reference: &Reference,
        entry: &Descriptor,
        payload: Payload,
    ) -> Result<Fetched, TransferError> {
        let read = || {
            if let Some(bytes) = entry.inline_data()? {
                let media_type = manifest::media_type(
                    reference.registry(),
                    Some(&entry.media_type),
                    &bytes,
                    &self.limits,
                    payload,
                )?;
                return Ok(Fetched { media_type, digest: entry.digest.clone(), bytes });
            }
            let fetched =
                self.fetch_manifest(reference, &entry.digest.to_string(), Some(&entry.digest), payload)?;
            let host = || reference.registry().to_owned();
            let (size, actual) = (entry.size, fetched.bytes.len() as u64);
            if size != actual {
                let mismatch = Mismatch::Size { expected: entry.digest.clone(), size, actual };
                return Err(Problem::Content { host: host(), mismatch });
            }
            if fetched.media_type != entry.media_type {
                let problem = format!("`{}`, but the index says `{}`", fetched.media_type, entry.media_type);
                return Err(Problem::Answer { host: host(), problem });
            }
            Ok(fetched)
        };
        read().map_err(|problem| problem.at(Action::Manifest, &reference.with_digest(entry.digest.clone())))
    }

    fn fetch_manifest(
        &self,
        from: &Reference,
        name: &str,
        expected: Option<&Digest>,
        payload: Payload,
    ) -> Result<Fetched, Problem> {
        let session = self.session(from, Direction::Pull);
        let scope = Scope::pull(from.repository());
        let url = session.url(self, from.repository(), &["manifests", name])?;
        let mut attempts = self.http.attempts();
        let (mut response, bytes) = loop {
            let headers = vec![(ACCEPT, HeaderValue::from_static(ACCEPTED))];
            let call = Call { headers, ..Call::new(Method::GET, url.clone(), &scope, Kind::Manifest) };
            let mut response = self.call(&session, &call, &mut attempts)?;
            if response.status() != 200 {
                let what =
                    if expected.is_some() { format!("manifest {name}") } else { format!("tag `{name}`") };
                return Err(self.refusal(&session, &scope, &what, &mut response));
            }
            match response.read_all(self.limits.of(Document::ManifestOrIndex).value) {
                Ok(bytes) => break (response, bytes),
                Err(Failure::TooLong { host, .. }) => {
                    let source = too_long(Document::ManifestOrIndex, &self.limits);
                    return Err(Problem::Document { host, source });
                }
                Err(failure) => self.again(failure.into(), &mut attempts)?,
            }
        };
        let host = authority(response.url());
        // Even what is thrown away must be what was asked for: the digest comes first.
        let digest = self.check_manifest(&host, &mut response, &bytes, expected)?;
        let media_type =
            manifest::media_type(&host, response.header("content-type"), &bytes, &self.limits, payload)?;
        Ok(Fetched { media_type, digest, bytes })
    }

    fn check_manifest(
        &self,
        host: &str,
        response: &mut Response,
        bytes: &[u8],
        expected: Option<&Digest>,
    ) -> Result<Digest, Problem> {
        if let Some(expected) = expected {
            let mut digester = Digester::new(expected.algorithm());
            digester.update(bytes);
            let actual = digester.finish();
            if actual != *expected {
                let mismatch = Mismatch::Digest { expected: expected.clone(), actual };
                return Err(Problem::Content { host: host.to_owned(), mismatch });
            }
            return Ok(actual);
        }
        let digest = Digest::of(bytes);
        // The header is no authority; for a tag it only tells that something is odd.
        let claimed = response.header("docker-content-digest").and_then(|text| text.parse::<Digest>().ok());
        if let Some(claimed) = claimed
            && claimed.algorithm() == digest.algorithm()
            && claimed != digest
        {
            self.notice(&format!("{host} calls {digest} {claimed}; its content counts"));
        }
        Ok(digest)
    }

    /// Reads a blob into what `open` gives, and returns that once all bytes are there and right. When they are not,
    /// what was written is dropped, and `open` is called once more. Interrupted transfers go on where they were.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn blob<W: Write>(
        &self,
        from: &Reference,
        blob: &Descriptor,
        open: impl FnMut() -> io::Result<W>,
    ) -> Result<W, TransferError> {
        self.fetch_blob(from, blob, open)
            .map_err(|problem| problem.at(Action::Blob(blob.digest.clone()), from))
    }

    /// Reads a blob of at most `limit` bytes into memory: configs.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn small_blob(
        &self,
        from: &Reference,
        blob: &Descriptor,
        limit: Limit,
    ) -> Result<Vec<u8>, TransferError> {
        let read = || {
            if let Some(bytes) = blob.inline_data()? {
                return Ok(bytes);
            }
            if limit.is_exceeded_by(blob.size) {
                return Err(Problem::TooLarge { size: blob.size, limit });
            }
            self.fetch_blob(from, blob, || Ok(Vec::new()))
        };
        read().map_err(|problem| problem.at(Action::Blob(blob.digest.clone()), from))
    }

    fn fetch_blob<W: Write>(
        &self,
        from: &Reference,
        blob: &Descriptor,
        mut open: impl FnMut() -> io::Result<W>,
    ) -> Result<W, Problem> {
        let session = self.session(from, Direction::Pull);
        let mut attempts = self.http.attempts();
        let mut second = false;
        loop {
            let mut sink = open().map_err(|source| Problem::Write { source })?;
            let mut verifier = Verifier::new(blob.digest.clone(), blob.size);
            let host = self.receive(&session, from, blob, &mut sink, &mut verifier, &mut attempts)?;
            match verifier.finish() {
                Ok(()) => return Ok(sink),
                Err(mismatch) if second => return Err(Problem::Corrupt { host, mismatch }),
                Err(mismatch) => {
                    self.notice(&format!("{host} sends other content: {mismatch}; trying again"))
                }
            }
            second = true;
        }
    }

    /// Receives all bytes of a blob, in as many pieces as it takes. Returns who sent the last one.
    fn receive(
        &self,
        session: &Session,
        from: &Reference,
        blob: &Descriptor,
        sink: &mut dyn Write,
        verifier: &mut Verifier,
        attempts: &mut Attempts,
    ) -> Result<String, Problem> {
        let scope = Scope::pull(from.repository());
        let name = blob.digest.to_string();
        let url = session.url(self, from.repository(), &["blobs", &name])?;
        let mut ranges = true;
        loop {
            let before = verifier.seen();
            let mut call = Call::new(Method::GET, url.clone(), &scope, Kind::Blob);
            if before > 0 && ranges {
                call.headers.push(range(before));
            }
            let mut response = self.call(session, &call, attempts)?;
            let host = authority(response.url());
            let start = match response.status() {
                200 => Some(0),
                206 => first_byte(&response).filter(|first| *first <= before),
                416 if before > 0 => None,
                _ => return Err(self.blob_refusal(session, &scope, blob, &mut response)),
            };
            let Some(start) = start else {
                // It does not know what a range is; then everything once more, without what is there already.
                ranges = false;
                let problem =
                    Problem::Answer { host, problem: "another range than it was asked for".to_owned() };
                self.again_anyway(problem, attempts)?;
                continue;
            };
            match copy(&mut response, before - start, blob, sink, verifier) {
                Ok(()) => return Ok(host),
                Err(Problem::Http { failure, .. }) => {
                    if verifier.seen() - before >= PROGRESS {
                        attempts.progress();
                    }
                    self.again(failure.into(), attempts)?;
                }
                Err(problem) => return Err(problem),
            }
        }
    }

    fn blob_refusal(
        &self,
        session: &Session,
        scope: &Scope,
        blob: &Descriptor,
        response: &mut Response,
    ) -> Problem {
        let elsewhere =
            blob.other.get("urls").and_then(|urls| urls.as_array()).is_some_and(|urls| !urls.is_empty());
        let mut what = format!("blob {}", blob.digest);
        if elsewhere {
            what.push_str(" (a foreign layer: the addresses that the manifest gives for it are not asked)");
        }
        self.refusal(session, scope, &what, response)
    }

    /// Counts a try that failed for a reason that needs no waiting.
    fn again_anyway(&self, problem: Problem, attempts: &mut Attempts) -> Result<(), Problem> {
        if self.http.wait(attempts, Some(std::time::Duration::ZERO), |_| ())? { Ok(()) } else { Err(problem) }
    }
}

/// The documents that are understood.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

fn range(first: u64) -> (HeaderName, HeaderValue) {
    // Digits are always a valid header.
    (RANGE, HeaderValue::try_from(format!("bytes={first}-")).unwrap_or(HeaderValue::from_static("bytes=0-")))
}

/// The first byte by `Content-Range: bytes FIRST-LAST/ALL`.
fn first_byte(response: &Response) -> Option<u64> {
    response.header("content-range")?.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// Copies an answer to `sink`, without the first `skip` bytes: those are there already, and the digest over all will
/// tell whether they were the same.
fn copy(
    response: &mut Response,
    mut skip: u64,
    blob: &Descriptor,
    sink: &mut dyn Write,
    verifier: &mut Verifier,
) -> Result<(), Problem> {
    let host = authority(response.url());
    let wrong = |mismatch| Problem::Content { host: host.clone(), mismatch };
    let announced = response.content_length().map(|length| (verifier.seen() + length).saturating_sub(skip));
    if let Some(actual) = announced.filter(|announced| *announced > blob.size) {
        return Err(wrong(Mismatch::Size { expected: blob.digest.clone(), size: blob.size, actual }));
    }
    while let Some(chunk) = response.chunk()? {
        let known = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
        skip -= known as u64;
        verifier.update(&chunk[known..]).map_err(wrong)?;
        sink.write_all(&chunk[known..]).map_err(|source| Problem::Write { source })?;
    }
    if verifier.seen() < blob.size {
        let reason = format!("{} of {} bytes came", verifier.seen(), blob.size);
        return Err(Failure::Closed { host, reason }.into());
    }
    Ok(())
}

/// The name of a document's kind, for messages.
pub(super) fn kind_of(name: &str) -> &'static str {
    if media_type::is_index(name) { "index" } else { "manifest" }
}
