//! The one JSON writer: equal values give equal bytes.

use std::borrow::Cow;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

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

/// Encodes `value` without white space and with the keys of every object sorted. Beside the bytes it takes as much again at
/// most, and not the tree of all values: the history of an image may have very many rows.
///
/// # Errors
/// When `value` cannot be JSON, for instance a map whose keys are no strings.
pub fn encode<T: Serialize>(value: &T) -> Result<Encoded, serde_json::Error> {
    let text = Text::default();
    value.serialize(&mut Serializer::with_formatter(
        text.clone(),
        Sorted { text: text.clone(), objects: Vec::new() },
    ))?;
    Ok(Encoded::from_bytes(text.0.take()))
}

/// What has been written so far; its writer and its formatter both have it.
#[derive(Clone, Default)]
struct Text(Rc<RefCell<Vec<u8>>>);

impl io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sorts the members of each object once all of them are written. In order they stay where they are; else they are copied.
struct Sorted {
    text: Text,
    /// Of each object that has not ended: where its members begin, and where their keys end.
    objects: Vec<Vec<(usize, usize)>>,
}

impl Sorted {
    /// The last member of the object that has not ended.
    fn member(&mut self) -> Option<&mut (usize, usize)> {
        self.objects.last_mut()?.last_mut()
    }
}

/// A key without its quotes, as it was before it was encoded.
fn key(encoded: &[u8]) -> Cow<'_, [u8]> {
    let plain = encoded.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\""));
    match plain {
        Some(plain) if !plain.contains(&b'\\') => Cow::Borrowed(plain),
        _ => serde_json::from_slice::<String>(encoded)
            .map_or(Cow::Borrowed(encoded), |key| Cow::Owned(key.into_bytes())),
    }
}

impl Formatter for Sorted {
    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.objects.push(Vec::new());
        writer.write_all(b"{")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(b",")?;
        }
        let at = self.text.0.borrow().len();
        self.objects.last_mut().into_iter().for_each(|members| members.push((at, at)));
        Ok(())
    }

    fn end_object_key<W: io::Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        let at = self.text.0.borrow().len();
        self.member().into_iter().for_each(|member| member.1 = at);
        Ok(())
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        let members = self.objects.pop().unwrap_or_default();
        let mut text = self.text.0.borrow_mut();
        let in_order = |(one, end): &(usize, usize), (other, other_end): &(usize, usize)| {
            key(&text[*one..*end]).cmp(&key(&text[*other..*other_end]))
        };
        if let Some((first, _)) = members.first()
            && !members.is_sorted_by(|one, other| in_order(one, other).is_le())
        {
            // A member ends where the comma before the next one is.
            let ends = members.iter().skip(1).map(|(begin, _)| begin - 1).chain([text.len()]);
            let mut members_to: Vec<_> = members.iter().zip(ends).collect();
            members_to.sort_by(|(one, _), (other, _)| in_order(one, other));
            let mut sorted = Vec::with_capacity(text.len() - first);
            for ((begin, _), end) in members_to {
                if !sorted.is_empty() {
                    sorted.push(b',');
                }
                sorted.extend_from_slice(&text[*begin..end]);
            }
            text.truncate(*first);
            text.append(&mut sorted);
        }
        drop(text);
        writer.write_all(b"}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth() {
        /// Not sorted as it is.
        #[derive(serde::Serialize)]
        struct Outer<'a> {
            b: Option<Box<Outer<'a>>>,
            list: &'a [u8],
            a: &'a str,
            #[serde(flatten)]
            other: std::collections::BTreeMap<String, serde_json::Value>,
        }
        let none = serde_json::json!({"c": {}, "ab": [{"y": null, "x": 1.5}]});
        let other = || {
            serde_json::from_str(r#"{"aa": {"z": "\\", "A": true}, "": -1, "k,\\": [[], {}], "aa!": 1, "aa b": 2, "aa\n": 3, "aa\"": 4, "aaa": 5, "ä": 6}"#).unwrap()
        };
        let inner = Outer { b: None, list: &[], a: "}{,\"\n", other: other() };
        let outer = Outer { b: Some(Box::new(inner)), list: &[1, 2], a: "ä", other: other() };
        for value in [serde_json::to_value(&outer).unwrap(), none] {
            assert_eq!(String::from_utf8(encode(&value).unwrap().bytes).unwrap(), value.to_string());
        }
        let sorted = serde_json::to_value(&outer).unwrap().to_string();
        assert_eq!(String::from_utf8(encode(&outer).unwrap().bytes).unwrap(), sorted);
    }

    #[test]
    fn what_is_no_object_is_encoded_as_it_is() {
        for text in ["null", "[]", "{}", "[1,[2,{\"a\":{}}]]", "\"x\""] {
            let value: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(String::from_utf8(encode(&value).unwrap().bytes).unwrap(), text);
        }
        let keys = std::collections::BTreeMap::from([((1, 2), 3)]);
        assert!(encode(&keys).is_err());
    }
}
