//! The one JSON writer: equal values give equal bytes.

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

/// Encodes `value` without white space and with the keys of every object sorted. What it takes beside the bytes is little:
/// the history of an image may have very many rows.
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

/// Sorts the members of each object once all of them are written.
struct Sorted {
    text: Text,
    /// Of each object that has not ended: where its members begin, and where their values do.
    objects: Vec<Vec<(usize, usize)>>,
}

impl Formatter for Sorted {
    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.objects.push(Vec::new());
        writer.write_all(b"{")
    }

    fn begin_object_key<W: io::Write + ?Sized>(&mut self, _: &mut W, _: bool) -> io::Result<()> {
        let at = self.text.0.borrow().len();
        self.objects.last_mut().into_iter().for_each(|members| members.push((at, at)));
        Ok(())
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        let at = self.text.0.borrow().len();
        self.objects
            .last_mut()
            .and_then(|members| members.last_mut())
            .into_iter()
            .for_each(|member| member.1 = at);
        writer.write_all(b":")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        let members = self.objects.pop().unwrap_or_default();
        let mut text = self.text.0.borrow_mut();
        if let Some((first, _)) = members.first() {
            let ends = members.iter().skip(1).map(|(begin, _)| *begin).chain([text.len()]);
            let mut ranges: Vec<_> =
                members.iter().zip(ends).map(|((begin, value), end)| (*begin..*value, *begin..end)).collect();
            let is_sorted =
                ranges.is_sorted_by(|(one, _), (other, _)| text[one.clone()] <= text[other.clone()]);
            if !is_sorted {
                ranges.sort_by(|(one, _), (other, _)| text[one.clone()].cmp(&text[other.clone()]));
            }
            let mut sorted = Vec::with_capacity(text.len() - first + members.len());
            for (_, member) in ranges {
                if !sorted.is_empty() {
                    sorted.push(b',');
                }
                sorted.extend_from_slice(&text[member]);
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
        let other =
            || serde_json::from_str(r#"{"aa": {"z": "\\", "A": true}, "": -1, "k,\\": [[], {}]}"#).unwrap();
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
