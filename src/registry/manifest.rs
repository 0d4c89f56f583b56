//! Is this document what it is said to be? (OCI image-spec `manifest.md`, `image-index.md`.)

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::http::escape;
use crate::image::descriptor::media_type;

/// Enough to tell manifests and indexes apart. A field that is there twice is an error.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
    fs_layers: Option<IgnoredAny>,
}

/// The media type of a document that came as `content_type`.
///
/// # Errors
/// What is wrong with the document, to follow "sends".
pub(super) fn media_type(content_type: Option<&str>, bytes: &[u8]) -> Result<String, String> {
    let announced = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let beginning = || escape(&String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
    if announced.eq_ignore_ascii_case("text/html") {
        return Err(format!("a web page in place of a manifest: {}", beginning()));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "a manifest that is not UTF-8".to_owned())?;
    let shape: Shape =
        serde_json::from_str(text).map_err(|error| format!("no manifest ({}): {}", escape(&error.to_string()), beginning()))?;
    if shape.schema_version == Some(1) || shape.fs_layers.is_some() || announced.contains("manifest.v1+prettyjws") {
        return Err("a manifest of schema 1, which is not supported; push the image again with a current tool".to_owned());
    }
    if shape.schema_version != Some(2) {
        return Err("a manifest whose `schemaVersion` is not 2".to_owned());
    }
    let is_index = match (&shape.manifests, shape.layers.is_some() || shape.config.is_some()) {
        (Some(_), true) => return Err("a document that is manifest and index at once".to_owned()),
        (Some(_), false) => true,
        (None, true) => false,
        (None, false) => return Err("a document that is neither manifest nor index".to_owned()),
    };
    let known = |name: &str| media_type::is_manifest(name) || media_type::is_index(name);
    let name = match shape.media_type {
        Some(inside) if known(announced) && inside != announced => {
            return Err(format!("a document of type `{}` as `{announced}`", escape(&inside)));
        }
        Some(inside) if known(&inside) => inside,
        Some(inside) => return Err(format!("a document of type `{}`, which is no image", escape(&inside))),
        None if known(announced) => announced.to_owned(),
        None if is_index => media_type::OCI_INDEX.to_owned(),
        None => media_type::OCI_MANIFEST.to_owned(),
    };
    if media_type::is_index(&name) != is_index {
        let what = if is_index { "an index" } else { "a manifest" };
        return Err(format!("{what} as `{name}`"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_what_their_types_say_or_refused() {
        use crate::image::descriptor::media_type::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
        let manifest = r#"{"schemaVersion":2,"config":{},"layers":[]}"#;
        let index = r#"{"schemaVersion":2,"manifests":[]}"#;
        let typed = format!(r#"{{"schemaVersion":2,"mediaType":"{DOCKER_MANIFEST}","config":{{}},"layers":null}}"#);
        for (content_type, body, expected) in [
            (Some(OCI_MANIFEST), manifest, Ok(OCI_MANIFEST)),
            (Some(OCI_INDEX), index, Ok(OCI_INDEX)),
            (Some(DOCKER_LIST), index, Ok(DOCKER_LIST)),
            (Some("application/json; charset=utf-8"), index, Ok(OCI_INDEX)),
            (None, manifest, Ok(OCI_MANIFEST)),
            (Some("text/plain"), &typed, Ok(DOCKER_MANIFEST)),
            (Some(OCI_INDEX), manifest, Err("a manifest as")),
            (Some(OCI_MANIFEST), index, Err("an index as")),
            (Some(OCI_MANIFEST), &typed, Err("a document of type")),
            (None, r#"{"schemaVersion":2,"config":{},"layers":[],"manifests":[]}"#, Err("manifest and index at once")),
            (None, r#"{"schemaVersion":2,"layers":[],"layers":[]}"#, Err("duplicate field")),
            (None, r#"{"schemaVersion":1,"fsLayers":[]}"#, Err("schema 1")),
            (None, r#"{"layers":[],"config":{}}"#, Err("`schemaVersion` is not 2")),
            (None, r#"{"schemaVersion":2}"#, Err("neither")),
            (None, r#"{"schemaVersion":2,"mediaType":"x/y","layers":[]}"#, Err("no image")),
            (None, "\u{feff}{}", Err("no manifest")),
            (None, r#"{"schemaVersion":2,"layers":[]} x"#, Err("trailing")),
            (Some("text/html"), "<html>\u{1b}[2J", Err("a web page in place of a manifest: <html>\\u{1b}[2J")),
            (None, "[]", Err("no manifest")),
        ] {
            match (media_type(content_type, body.as_bytes()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{body}"),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, _) => panic!("{body}: {found:?}, expected {expected:?}"),
            }
        }
        assert!(media_type(None, b"{\"schemaVersion\":2,\"layers\":[],\"x\":\"\xff\"}").is_err());
        let deep = format!("{{\"schemaVersion\":2,\"layers\":{}", "[".repeat(100_000));
        assert!(media_type(None, deep.as_bytes()).is_err());
    }
}
