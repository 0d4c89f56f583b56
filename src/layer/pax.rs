//! PAX extended header records (POSIX.1-2017, pax, "pax Extended Header").

use super::sparse::{self, ImpossibleMap, PaxSparse, SparseRecords};
use crate::rootfs::{Timestamp, Xattrs};

/// The key prefix under which archives carry extended attributes.
pub const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

/// A record that cannot be believed. One of them spoils the archive: whatever comes after may be anything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PaxError {
    /// Not `LENGTH KEY=VALUE\n`.
    #[error("a PAX record is malformed")]
    Malformed,
    /// A value that its key does not allow.
    #[error("the PAX record `{0}` has an impossible value")]
    Value(&'static str),
    /// Records of a sparse file from which readers would make different files.
    #[error("the `GNU.sparse` records are incomplete, repeated, unknown or of two versions")]
    Sparse,
    /// A sparse map in records.
    #[error(transparent)]
    Map(#[from] ImpossibleMap),
    /// A global header that would rename or resize every entry after it.
    #[error("a global PAX header sets `{0}` of all entries")]
    Global(&'static str),
}

/// What the records of one extended header say about the next file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pax {
    /// Name of the entry.
    pub path: Option<Vec<u8>>,
    /// Target of a link.
    pub linkpath: Option<Vec<u8>>,
    /// Bytes of content.
    pub size: Option<u64>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Modification time.
    pub mtime: Option<Timestamp>,
    /// Extended attributes of the `SCHILY.xattr.` kind; those of libarchive repeat them encoded and are left out.
    pub xattrs: Xattrs,
    /// What makes it a sparse file.
    pub sparse: Option<PaxSparse>,
}

impl Pax {
    /// Reads the body of an extended header. As in Go, an empty value takes a record back, and the last one of a key
    /// counts; not so those of sparse files, of which each counts.
    ///
    /// # Errors
    /// On the first record that is malformed or has an impossible value.
    pub fn parse(body: &[u8]) -> Result<Self, PaxError> {
        let mut pax = Self::default();
        let mut sparse_records = SparseRecords::default();
        for record in Records(body) {
            let (key, value) = record?;
            if let Some(rest) = key.strip_prefix(sparse::PREFIX) {
                sparse_records.take(rest, value)?;
                continue;
            }
            if let Some(name) = key.strip_prefix(XATTR_PREFIX) {
                if name.is_empty() {
                    return Err(PaxError::Malformed);
                }
                pax.xattrs.insert(name.to_vec(), value.to_vec());
                continue;
            }
            let given = !value.is_empty();
            match key {
                b"path" => pax.path = given.then(|| text("path", value)).transpose()?,
                b"linkpath" => pax.linkpath = given.then(|| text("linkpath", value)).transpose()?,
                b"size" => pax.size = given.then(|| size("size", value)).transpose()?,
                b"uid" => pax.uid = given.then(|| id("uid", value)).transpose()?,
                b"gid" => pax.gid = given.then(|| id("gid", value)).transpose()?,
                b"mtime" => pax.mtime = given.then(|| time(value)).transpose()?,
                _ => {}
            }
        }
        pax.sparse = sparse_records.finish()?;
        Ok(pax)
    }

    /// Checks the body of a global header. Such headers are skipped, as in containerd; git writes a comment there.
    ///
    /// # Errors
    /// On malformed records, and on those that GNU tar would apply to every entry: the two would read another archive.
    pub fn check_global(body: &[u8]) -> Result<(), PaxError> {
        for record in Records(body) {
            let (key, _) = record?;
            for forbidden in ["path", "linkpath", "size"] {
                if key == forbidden.as_bytes() {
                    return Err(PaxError::Global(forbidden));
                }
            }
            if key.starts_with(sparse::PREFIX) {
                return Err(PaxError::Global("GNU.sparse"));
            }
        }
        Ok(())
    }
}

/// The records of a body, until the first malformed one.
struct Records<'a>(&'a [u8]);

impl<'a> Iterator for Records<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), PaxError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let record = split(self.0);
        self.0 = record.map_or(&[], |(_, _, rest)| rest);
        Some(record.map(|(key, value, _)| (key, value)).ok_or(PaxError::Malformed))
    }
}

fn split(body: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = body.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&body[..space])?).ok()?;
    let (record, rest) = body.split_at_checked(length)?;
    let (key_value, newline) = record.get(space + 1..)?.split_at_checked(length.checked_sub(space + 2)?)?;
    let equals = key_value.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&key_value[..equals], &key_value[equals + 1..]);
    (newline == b"\n" && !key.is_empty() && !key.contains(&0)).then_some((key, value, rest))
}

/// Digits only: no sign, no blank.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A value without NUL.
pub(super) fn text(key: &'static str, value: &[u8]) -> Result<Vec<u8>, PaxError> {
    if value.contains(&0) { Err(PaxError::Value(key)) } else { Ok(value.to_vec()) }
}

/// Bytes of a file, of which no file system has more than 63 bits.
pub(super) fn size(key: &'static str, value: &[u8]) -> Result<u64, PaxError> {
    decimal(value).filter(|size| *size <= i64::MAX as u64).ok_or(PaxError::Value(key))
}

fn id(key: &'static str, value: &[u8]) -> Result<u32, PaxError> {
    decimal(value)
        .and_then(|id| u32::try_from(id).ok())
        .filter(|id| *id != u32::MAX)
        .ok_or(PaxError::Value(key))
}

/// Decimal seconds; digits after the ninth of the fraction are dropped.
fn time(value: &[u8]) -> Result<Timestamp, PaxError> {
    let error = PaxError::Value("mtime");
    let (negative, digits) = value.strip_prefix(b"-").map_or((false, value), |rest| (true, rest));
    let dot = digits.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = dot.map_or((digits, &b""[..]), |dot| (&digits[..dot], &digits[dot + 1..]));
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(error);
    }
    let seconds = decimal(whole).and_then(|seconds| i64::try_from(seconds).ok()).ok_or(error)?;
    let nanoseconds = (0..9)
        .fold(0, |sum, index| sum * 10 + u32::from(fraction.get(index).map_or(0, |digit| digit - b'0')));
    Ok(match (negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// Writes `time` as PAX does: decimal seconds, with a fraction when there is one.
#[must_use]
pub fn format_time(time: Timestamp) -> Vec<u8> {
    let (sign, seconds, nanoseconds) = match (time.seconds, time.nanoseconds) {
        (seconds @ 0.., nanoseconds) => ("", i128::from(seconds), nanoseconds),
        (seconds, 0) => ("-", -i128::from(seconds), 0),
        (seconds, nanoseconds) => ("-", -i128::from(seconds) - 1, 1_000_000_000 - nanoseconds),
    };
    let text = if nanoseconds == 0 {
        format!("{sign}{seconds}")
    } else {
        format!("{sign}{seconds}.{nanoseconds:09}").trim_end_matches('0').to_owned()
    };
    text.into_bytes()
}

/// Appends one record. `key` must be neither empty nor hold `=` or NUL.
pub fn push_record(body: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The length counts itself.
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    body.extend_from_slice(length.to_string().as_bytes());
    body.push(b' ');
    body.extend_from_slice(key);
    body.push(b'=');
    body.extend_from_slice(value);
    body.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (key, value) in records {
            push_record(&mut body, key.as_bytes(), value);
        }
        body
    }

    #[test]
    fn records_count_their_own_length() {
        for length in 0..2000 {
            let value = vec![b'v'; length];
            let pax = Pax::parse(&body(&[("path", &value), ("uid", b"7")])).unwrap();
            assert_eq!(pax.path.unwrap_or_default(), value);
            assert_eq!(pax.uid, Some(7));
        }
    }

    #[test]
    fn known_keys_are_read_and_others_ignored() {
        let records: [(&str, &[u8]); 10] = [
            ("path", b"first"),
            ("path", b"a\n=b"),
            ("linkpath", b"gone"),
            ("linkpath", b""),
            ("size", b"9223372036854775807"),
            ("gid", b"4294967294"),
            ("SCHILY.xattr.user.x", b"\0\xff"),
            ("SCHILY.xattr.user.empty", b""),
            ("LIBARCHIVE.xattr.user.x", b"AP8"),
            ("comment", b"\xff"),
        ];
        let pax = Pax::parse(&body(&records)).unwrap();
        let xattrs =
            Xattrs::from([(b"user.x".to_vec(), b"\0\xff".to_vec()), (b"user.empty".to_vec(), Vec::new())]);
        let expected = Pax {
            path: Some(b"a\n=b".to_vec()),
            size: Some(i64::MAX as u64),
            gid: Some(u32::MAX - 1),
            xattrs,
            ..Pax::default()
        };
        assert_eq!(pax, expected);
    }

    #[test]
    fn one_bad_record_spoils_the_header() {
        let bad: [&[u8]; 13] = [
            b"99 path=evil\n",
            b"12 path=evil",
            b"13 path=evil\0",
            b"12 path=evil\n",
            b"path=evil\n",
            b"0 a=b\n",
            b"4 a\n",
            b"5 =b\n",
            b" 6 a=b\n",
            b"+6 a=b\n",
            b"-6 a=b\n",
            b"99999999999999999999999 a=b\n",
            b"6 a=b\n\0",
        ];
        for body in bad {
            assert_eq!(Pax::parse(body), Err(PaxError::Malformed), "{:?}", body.escape_ascii().to_string());
        }
        let values: [(&str, &[u8]); 11] = [
            ("path", b"a\0b"),
            ("linkpath", b"\0"),
            ("size", b"-1"),
            ("size", b"9223372036854775808"),
            ("size", b"1e3"),
            ("size", b" 1"),
            ("uid", b"4294967295"),
            ("gid", b"-1"),
            ("mtime", b"x"),
            ("mtime", b"1.-2"),
            ("mtime", b"."),
        ];
        for (key, value) in values {
            assert!(matches!(Pax::parse(&body(&[(key, value)])), Err(PaxError::Value(_))), "{key}");
        }
    }

    #[test]
    fn times_go_both_ways() {
        for (text, seconds, nanoseconds) in [
            ("0", 0, 0),
            ("1700000000.123456789", 1_700_000_000, 123_456_789),
            ("5.5", 5, 500_000_000),
            ("-1", -1, 0),
            ("-1.25", -2, 750_000_000),
            ("-0.5", -1, 500_000_000),
        ] {
            let expected = Timestamp { seconds, nanoseconds };
            assert_eq!(time(text.as_bytes()), Ok(expected), "{text}");
            assert_eq!(format_time(expected), text.as_bytes());
        }
        assert_eq!(time(b"1.0000000019").unwrap().nanoseconds, 1);
    }

    #[test]
    fn global_headers_may_comment_but_not_rename() {
        assert_eq!(Pax::check_global(&body(&[("comment", b"0123"), ("mtime", b"1")])), Ok(()));
        assert_eq!(Pax::check_global(&body(&[("size", b"1")])), Err(PaxError::Global("size")));
        assert_eq!(
            Pax::check_global(&body(&[("GNU.sparse.major", b"1")])),
            Err(PaxError::Global("GNU.sparse"))
        );
        assert_eq!(Pax::check_global(b"x"), Err(PaxError::Malformed));
    }
}
