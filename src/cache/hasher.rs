//! From named values to a key: two lists of values that differ give two keys.

use super::CacheKey;
use crate::image::digest::{Algorithm, Digester};

/// Hashes named values, each behind its name and its length: no two lists of them look alike.
pub struct KeyHasher(Digester);

impl KeyHasher {
    /// A key of this kind. Keys of two kinds are never equal.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        let mut hasher = Self(Digester::new(Algorithm::Sha256));
        hasher.bytes(kind.as_bytes());
        hasher
    }

    /// A value.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.begin(name, b'1');
        self.bytes(value.as_ref());
        self
    }

    /// A value that may be missing, which is not the same as being empty.
    #[must_use]
    pub fn optional(mut self, name: &str, value: Option<impl AsRef<[u8]>>) -> Self {
        match value {
            Some(value) => self.value(name, value),
            None => {
                self.begin(name, b'0');
                self
            }
        }
    }

    /// Values in this order.
    #[must_use]
    pub fn list<T: AsRef<[u8]>>(mut self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        self.begin(name, b'[');
        for value in values {
            self.0.update(b",");
            self.bytes(value.as_ref());
        }
        self.0.update(b"]");
        self
    }

    /// The key.
    #[must_use]
    pub fn finish(self) -> CacheKey {
        CacheKey(self.0.finish())
    }

    fn begin(&mut self, name: &str, form: u8) {
        self.bytes(name.as_bytes());
        self.0.update(&[form]);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn values_that_look_alike_when_joined_give_other_keys() {
        let new = || KeyHasher::new("k");
        let none: Option<&str> = None;
        let keys = [
            new(),
            KeyHasher::new("kk"),
            new().value("a", "b"),
            new().value("ab", ""),
            new().value("a", "").value("b", ""),
            new().value("b", "").value("a", ""),
            new().optional("a", none),
            new().optional("a", Some("")),
            new().list("a", ["b"]),
            new().list("a", ["b", ""]),
            new().list("a", ["", "b"]),
            new().list("a", ["b", "c"]),
            new().list("a", ["bc"]),
            new().list("a", ["b,c"]),
            new().list("a", ["b"]).list("a", ["c"]),
            new().list("a", [""; 0]),
        ];
        let count = keys.len();
        // A value that is given is the same whether it might have been missing or not.
        assert_eq!(new().optional("a", Some("b")).finish(), new().value("a", "b").finish());
        let distinct: BTreeSet<CacheKey> = keys.into_iter().map(KeyHasher::finish).collect();
        assert_eq!(distinct.len(), count);
    }
}
