//! Is this document what the registry says it is?

use super::error::Problem;
use crate::http::escape;
use crate::image::descriptor::media_type;
use crate::image::document::{Document, DocumentLimits, Payload, parse_payload};

/// The media type of a document that `host` sent as `content_type`: what it says itself, else what the registry says,
/// else what it looks like.
///
/// # Errors
/// [`Problem`] for everything that is not clearly a manifest or clearly an index.
pub(super) fn media_type(
    host: &str,
    content_type: Option<&str>,
    bytes: &[u8],
    limits: &DocumentLimits,
    payload: Payload,
) -> Result<String, Problem> {
    let announced = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if announced.eq_ignore_ascii_case("text/html") {
        let beginning = String::from_utf8_lossy(&bytes[..bytes.len().min(1000)]);
        let problem = format!("a web page in place of a manifest: {}", escape(&beginning));
        return Err(Problem::Answer { host: host.to_owned(), problem });
    }
    let refuse = |source| Problem::Document { host: host.to_owned(), source };
    let (inside, looks_like) = match parse_payload(bytes, content_type, limits, payload).map_err(refuse)? {
        Document::Manifest(manifest) => (manifest.media_type, media_type::OCI_MANIFEST),
        Document::Index(index) => (index.media_type, media_type::OCI_INDEX),
    };
    let known = media_type::is_manifest(announced) || media_type::is_index(announced);
    Ok(inside.unwrap_or_else(|| if known { announced } else { looks_like }.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::descriptor::media_type::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};

    #[test]
    fn the_type_is_found_in_the_document_in_the_header_or_by_its_look() {
        let index = r#"{"schemaVersion":2,"manifests":[]}"#;
        let docker = format!(r#"{{"schemaVersion":2,"mediaType":"{DOCKER_LIST}","manifests":[]}}"#);
        for (content_type, body, expected) in [
            (Some(OCI_INDEX), index, Some(OCI_INDEX)),
            (Some(DOCKER_LIST), index, Some(DOCKER_LIST)),
            (Some("application/json; charset=utf-8"), index, Some(OCI_INDEX)),
            (None, &docker, Some(DOCKER_LIST)),
            (Some(DOCKER_MANIFEST), index, None),
            (Some(OCI_MANIFEST), &docker, None),
        ] {
            assert_eq!(
                media_type("h", content_type, body.as_bytes(), &DocumentLimits::default(), Payload::Images)
                    .ok()
                    .as_deref(),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn a_login_page_is_shown_escaped() {
        let error = media_type(
            "h",
            Some("text/html; charset=utf-8"),
            b"<html>\x1b[2J",
            &DocumentLimits::default(),
            Payload::Images,
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "h sends a web page in place of a manifest: <html>\\u{1b}[2J");
    }
}
