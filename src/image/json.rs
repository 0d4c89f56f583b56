//! The one JSON writer: equal values give equal bytes.

use serde::Serialize;

use super::digest::Digest;

/// Bytes of a document with their digest, made together so that they cannot drift apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The document.
    pub bytes: Vec<u8>,
    /// The digest of `bytes`.
    pub digest: Digest,
}

impl Encoded {
    /// Takes bytes as they came from elsewhere.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let digest = Digest::of(&bytes);
        Self { bytes, digest }
    }
}

/// Encodes `value` without white space and with the keys of every object sorted.
///
/// # Errors
/// When `value` cannot be JSON, for instance a map whose keys are no strings.
pub fn encode<T: Serialize>(value: &T) -> Result<Encoded, serde_json::Error> {
    // `Value`'s objects are sorted maps: serde_json's `preserve_order` must stay off.
    let value = serde_json::to_value(value)?;
    Ok(Encoded::from_bytes(serde_json::to_vec(&value)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_are_sorted_at_every_depth() {
        let value: serde_json::Value = serde_json::from_str(r#"{"b":{"z":1,"a":2},"a":[]}"#).unwrap();
        assert_eq!(super::encode(&value).unwrap().bytes, br#"{"a":[],"b":{"a":2,"z":1}}"#);
    }
}
