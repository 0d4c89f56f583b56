//! Content digests (OCI image-spec `descriptor.md`, Digests).

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// A digest that was written wrongly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a digest: expected `sha256:` and 64, or `sha512:` and 128, lower-case hexadecimal digits"
)]
pub struct DigestError {
    text: String,
}

/// The hash functions that OCI registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// The one everybody writes.
    Sha256,
    /// Accepted on reading; never written.
    Sha512,
}

impl Algorithm {
    /// The name in front of the colon.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }
}

/// The digest of stored bytes: syntactically valid by construction, so it may be part of a path or URL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

impl Digest {
    /// The SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut digester = Digester::new(Algorithm::Sha256);
        digester.update(bytes);
        digester.finish()
    }

    /// The hash function.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The lower-case hexadecimal digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Twelve digits, enough to recognise it in a log.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.hex[..12]
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError { text: text.chars().take(100).collect() };
        let (name, hex) = text.split_once(':').ok_or_else(error)?;
        let (algorithm, digits) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(error()),
        };
        let valid = hex.len() == digits && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if valid { Ok(Self { algorithm, hex: hex.to_owned() }) } else { Err(error()) }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The digest of a layer's uncompressed tar: another type on purpose, the two are never exchanged.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiffId(pub Digest);

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The identity of a stack of layers (OCI image-spec `config.md`, Layer ChainID).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ChainId(Digest);

impl ChainId {
    /// The chain that holds one layer.
    #[must_use]
    pub fn base(layer: &DiffId) -> Self {
        Self(layer.0.clone())
    }

    /// This chain with one more layer on top.
    #[must_use]
    pub fn with(&self, layer: &DiffId) -> Self {
        Self(Digest::of(format!("{} {}", self.0, layer.0).as_bytes()))
    }

    /// The digest that names the chain.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.0
    }
}

/// A running hash; also a [`Write`] that swallows what it hashes.
#[derive(Clone)]
pub struct Digester(State);

#[derive(Clone)]
enum State {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Digester {
    /// An empty hash.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => State::Sha512(sha2::Sha512::new()),
        })
    }

    /// Takes in more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// The digest of all bytes taken in.
    #[must_use]
    pub fn finish(self) -> Digest {
        let (algorithm, bytes) = match self.0 {
            State::Sha256(state) => (Algorithm::Sha256, state.finalize().to_vec()),
            State::Sha512(state) => (Algorithm::Sha512, state.finalize().to_vec()),
        };
        let mut hex = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            hex.push(char::from_digit(u32::from(byte >> 4), 16).unwrap_or('0'));
            hex.push(char::from_digit(u32::from(byte & 15), 16).unwrap_or('0'));
        }
        Digest { algorithm, hex }
    }
}

impl Write for Digester {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader or writer that knows the digest of what has passed by.
pub struct Hashing<I> {
    inner: I,
    digester: Digester,
}

impl<I> Hashing<I> {
    /// Of what passes from or to `inner` from now on.
    #[must_use]
    pub fn new(inner: I, algorithm: Algorithm) -> Self {
        Self { inner, digester: Digester::new(algorithm) }
    }

    /// The digest, and what the bytes came from or went to.
    #[must_use]
    pub fn finish(self) -> (Digest, I) {
        (self.digester.finish(), self.inner)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digester.update(&buffer[..count]);
        Ok(count)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.digester.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Bytes that are not those that were announced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Other content.
    #[error("digest is {actual}, expected {expected}")]
    Digest {
        /// What was announced.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// More or fewer bytes.
    #[error("{expected} is {actual} bytes long, expected {size}")]
    Size {
        /// Which blob.
        expected: Digest,
        /// The announced size.
        size: u64,
        /// The size that came, as far as it was read.
        actual: u64,
    },
}

/// Checks bytes against an announced digest and size as they pass by.
pub struct Verifier {
    expected: Digest,
    size: u64,
    seen: u64,
    digester: Digester,
}

impl Verifier {
    /// Expects `size` bytes whose digest is `expected`.
    #[must_use]
    pub fn new(expected: Digest, size: u64) -> Self {
        let digester = Digester::new(expected.algorithm());
        Self { expected, size, seen: 0, digester }
    }

    /// How many bytes came so far.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Takes in more bytes.
    ///
    /// # Errors
    /// [`Mismatch::Size`] as soon as there are more bytes than announced.
    pub fn update(&mut self, bytes: &[u8]) -> Result<(), Mismatch> {
        self.seen += bytes.len() as u64;
        if self.seen > self.size {
            return Err(self.wrong_size());
        }
        self.digester.update(bytes);
        Ok(())
    }

    /// Judges what came.
    ///
    /// # Errors
    /// [`Mismatch`] when bytes are missing or the digest is another.
    pub fn finish(self) -> Result<(), Mismatch> {
        if self.seen != self.size {
            return Err(self.wrong_size());
        }
        let actual = self.digester.finish();
        if actual == self.expected {
            Ok(())
        } else {
            Err(Mismatch::Digest { expected: self.expected, actual })
        }
    }

    fn wrong_size(&self) -> Mismatch {
        Mismatch::Size { expected: self.expected.clone(), size: self.size, actual: self.seen }
    }
}

/// A reader that ends with an error instead of an end of file when its bytes are not the announced ones.
pub struct VerifyingReader<R> {
    inner: R,
    verifier: Option<Verifier>,
}

impl<R: Read> VerifyingReader<R> {
    /// Reads `inner`, expecting `size` bytes whose digest is `expected`.
    #[must_use]
    pub fn new(inner: R, expected: Digest, size: u64) -> Self {
        Self { inner, verifier: Some(Verifier::new(expected, size)) }
    }
}

impl<R: Read> Read for VerifyingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let invalid = |mismatch: Mismatch| io::Error::new(io::ErrorKind::InvalidData, mismatch);
        if count == 0 && !buffer.is_empty() {
            if let Some(verifier) = self.verifier.take() {
                verifier.finish().map_err(invalid)?;
            }
        } else if let Some(verifier) = &mut self.verifier {
            verifier.update(&buffer[..count]).map_err(invalid)?;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn only_registered_algorithms_with_all_their_digits_are_digests() {
        let long = format!("sha512:{}", "a".repeat(128));
        for good in [EMPTY, long.as_str()] {
            assert_eq!(good.parse::<Digest>().unwrap().to_string(), good);
        }
        let upper = EMPTY.to_uppercase().replace("SHA256", "sha256");
        for bad in [
            "",
            "sha256:",
            "sha256:ab",
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            &upper,
            "sha256:../../etc/passwd",
            &EMPTY[..70],
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_verifying_reader_fails_instead_of_ending_when_bytes_differ() {
        let digest = Digest::of(b"hello");
        let read = |bytes: &[u8], size| {
            let mut out = Vec::new();
            VerifyingReader::new(bytes, digest.clone(), size).read_to_end(&mut out).map(|_| out)
        };
        assert_eq!(read(b"hello", 5).unwrap(), b"hello");
        for (bytes, size) in [(&b"hellO"[..], 5), (b"hell", 5), (b"hello!", 5), (b"hello", 6)] {
            assert!(read(bytes, size).is_err(), "{bytes:?} {size}");
        }
    }

    #[test]
    fn chain_ids_are_those_of_the_specification() {
        let a = DiffId(Digest::of(b"a"));
        let b = DiffId(Digest::of(b"b"));
        let expected = Digest::of(format!("{a} {b}").as_bytes());
        assert_eq!(ChainId::base(&a).with(&b).digest(), &expected);
    }
}
