//! Sending manifests: the last request of a push, which makes everything before it visible.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};

use super::client::{Call, Client, Direction};
use super::error::{Action, Problem, TransferError, Words};
use super::pull::{ACCEPTED, kind_of};
use super::session::{Scope, Session};
use super::statistics::Kind;
use crate::http::{Content, Method, Response, authority};
use crate::image::digest::Digest;
use crate::image::document::{Document, DocumentLimits, Payload, parse_payload};
use crate::image::json::Encoded;
use crate::image::reference::Reference;

/// How often a manifest is sent again while the registry does not see its blobs.
const UNSEEN: u32 = 3;

impl Client {
    /// Puts a manifest or an index under the tag of `to`, or, without a tag, under its digest. All that it names must
    /// have been uploaded.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn put_manifest(
        &self,
        to: &Reference,
        media_type: &str,
        manifest: &Encoded,
    ) -> Result<(), TransferError> {
        self.send_manifest(to, media_type, manifest).map_err(|problem| problem.at(Action::PutManifest, to))
    }

    fn send_manifest(&self, to: &Reference, media_type: &str, manifest: &Encoded) -> Result<(), Problem> {
        let session = self.session(to, Direction::Push);
        let scope = Scope::push(to.repository());
        let name = to.tag().map_or_else(|| manifest.digest.to_string(), str::to_owned);
        let url = session.url(self, to.repository(), &["manifests", &name])?;
        let content_type = HeaderValue::try_from(media_type).map_err(|_| Problem::Answer {
            host: session.host.clone(),
            problem: "a media type that cannot be part of a header".to_owned(),
        })?;
        let mut attempts = self.http.attempts();
        loop {
            let call = Call {
                headers: vec![(CONTENT_TYPE, content_type.clone())],
                content: Content::Bytes(&manifest.bytes),
                ..Call::new(Method::PUT, url.clone(), &scope, Kind::ManifestSent)
            };
            let mut response = self.call(&session, &call, &mut attempts)?;
            let status = response.status();
            if status == 201 || (matches!(status, 200 | 202) && !is_web_page(&response)) {
                return self.check_stored(&response, manifest);
            }
            if is_web_page(&response) {
                let words = Words::of(&mut response).text;
                let problem = format!("a web page ({status}) in place of an answer: {words}");
                return Err(Problem::Answer { host: authority(response.url()), problem });
            }
            let host = authority(response.url());
            let words = Words::of(&mut response);
            let unseen = ["MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN"].iter().any(|code| words.has(code));
            if unseen && matches!(status, 400 | 404) {
                let missing = self.missing(&session, &scope, to, media_type, manifest)?;
                let problem = Problem::BlobsUnknown { host, missing, words: words.text };
                if attempts.failed() >= UNSEEN {
                    return Err(problem);
                }
                self.again(problem, &mut attempts)?;
                continue;
            }
            return self.manifest_refused(&session, &scope, to, manifest, status, words);
        }
    }

    fn check_stored(&self, response: &Response, manifest: &Encoded) -> Result<(), Problem> {
        let stored = response.header("docker-content-digest").and_then(|text| text.parse::<Digest>().ok());
        match stored {
            Some(stored)
                if stored.algorithm() == manifest.digest.algorithm() && stored != manifest.digest =>
            {
                let problem =
                    format!("the digest {stored} for {}: it stored something else", manifest.digest);
                Err(Problem::Answer { host: authority(response.url()), problem })
            }
            _ => Ok(()),
        }
    }

    /// What of a manifest a registry does not have, in words.
    fn missing(
        &self,
        session: &Session,
        scope: &Scope,
        to: &Reference,
        media_type: &str,
        manifest: &Encoded,
    ) -> Result<String, Problem> {
        let Ok(Document::Manifest(parsed)) =
            parse_payload(&manifest.bytes, Some(media_type), &DocumentLimits::OWN, Payload::Anything)
        else {
            return Ok(format!("parts of the {}", kind_of(media_type)));
        };
        let mut missing = Vec::new();
        for blob in std::iter::once(&parsed.config).chain(&parsed.layers) {
            if !self.has_blob(session, scope, to, &blob.digest, None)? {
                missing.push(blob.digest.to_string());
            }
        }
        Ok(if missing.is_empty() { "all blobs are there".to_owned() } else { missing.join(", ") })
    }

    /// Why a manifest was refused. Registries tell immutable tags in many ways, so the tag itself is looked at.
    fn manifest_refused(
        &self,
        session: &Session,
        scope: &Scope,
        to: &Reference,
        manifest: &Encoded,
        status: u16,
        words: Words,
    ) -> Result<(), Problem> {
        let perhaps_immutable =
            matches!(status, 403 | 409 | 412) || (status == 400 && words.has("TAG_INVALID"));
        if let Some(tag) = to.tag().filter(|_| perhaps_immutable)
            && let Some(existing) = self.tag_digest(session, scope, to, tag)?
        {
            if existing == manifest.digest {
                self.notice(&format!("`{to}` cannot be changed, and is this image already ({})", words.text));
                return Ok(());
            }
            return Err(Problem::ImmutableTag { tag: tag.to_owned(), existing, words: words.text });
        }
        let host = session.host.clone();
        match status {
            403 => match session.unknown(self, scope, words.text) {
                Problem::Rejected { host, user, words } => Err(Problem::Denied { host, user, words }),
                other => Err(other),
            },
            404 => {
                Err(Problem::NotFound { what: format!("repository {}", to.repository()), words: words.text })
            }
            _ => Err(Problem::Status { host, status, words: words.text, tries: 1, retry_after: None }),
        }
    }

    /// What a tag points to; `None` when it does not exist or the registry does not say.
    fn tag_digest(
        &self,
        session: &Session,
        scope: &Scope,
        at: &Reference,
        tag: &str,
    ) -> Result<Option<Digest>, Problem> {
        let url = session.url(self, at.repository(), &["manifests", tag])?;
        let headers = vec![(ACCEPT, HeaderValue::from_static(ACCEPTED))];
        let call = Call { headers, ..Call::new(Method::HEAD, url, scope, Kind::Manifest) };
        let response = self.call(session, &call, &mut self.http.attempts())?;
        if response.status() != 200 {
            return Ok(None);
        }
        Ok(response.header("docker-content-digest").and_then(|text| text.parse().ok()))
    }
}

fn is_web_page(response: &Response) -> bool {
    response.header("content-type").is_some_and(|name| name.to_ascii_lowercase().starts_with("text/html"))
}
