//! What was built before, by what it depends on.
//!
//! Two kinds of things are remembered: which content a definition stood for when somebody looked, and which result a
//! content led to. What goes into a key is not known here.

mod hasher;
mod local;

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::image::digest::Digest;
use crate::image::manifest::Layer;
use crate::store::StoreError;

pub use hasher::KeyHasher;
pub use local::Local;

/// What something depends on, as one hash: 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheKey(Digest);

impl CacheKey {
    /// The hash.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        &self.0
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.hex())
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for CacheKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CacheKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::from_str(&format!("sha256:{text}")).map(Self).map_err(serde::de::Error::custom)
    }
}

/// What became of something that was built.
#[derive(Debug, Clone, PartialEq)]
pub struct Remembered {
    /// What the steps on top of it depend on.
    pub content: CacheKey,
    /// When it was made, RFC 3339.
    pub created: String,
    /// The layers from the base image up to what this is about, bottom first. With them the result is complete: it fits no
    /// others, even if those come from the same steps. None where only the time matters.
    pub layers: Vec<RememberedLayer>,
}

/// A layer that a step has made.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberedLayer {
    /// The key of the step.
    pub key: CacheKey,
    /// Its layer.
    pub layer: Layer,
    /// When it was made, RFC 3339.
    pub created: String,
}

/// Why something that may be remembered is not to be had, or could not be remembered. Never a reason to fail: it can be
/// built.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The layer of a result that is remembered.
    #[error("the layer {0} of a remembered result is not in the store any more")]
    LostLayer(Digest),
    /// Waiting for another build.
    #[error("cannot tell whether another build runs the same step")]
    Turn(#[source] std::io::Error),
}

/// Where results are remembered. Asked from several threads and processes.
pub trait LayerCache: Sync {
    /// The content that `definition` stood for.
    ///
    /// # Errors
    /// [`CacheError`]; that nothing is known is none.
    fn content(&self, definition: &CacheKey) -> Result<Option<CacheKey>, CacheError>;

    /// Remembers the content that `definition` stands for.
    ///
    /// # Errors
    /// [`CacheError`].
    fn set_content(&self, definition: &CacheKey, content: &CacheKey) -> Result<(), CacheError>;

    /// The result for `key`. Its layers can be had from where their origins say.
    ///
    /// # Errors
    /// [`CacheError`]; that nothing is known is none.
    fn lookup(&self, key: &CacheKey) -> Result<Option<Remembered>, CacheError>;

    /// Remembers a result. Everybody finds it from now on.
    ///
    /// # Errors
    /// [`CacheError`].
    fn insert(&self, key: &CacheKey, result: &Remembered) -> Result<(), CacheError>;

    /// Waits until nobody else works on the result for `key`, calling `wait` again and again, which may end the waiting:
    /// then there is no turn. Others wait until the turn is dropped.
    ///
    /// # Errors
    /// [`CacheError::Turn`] when the turn of others cannot be respected.
    fn turn(
        &self,
        key: &CacheKey,
        wait: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Turn>, CacheError>;
}

/// The right to work on a result. It ends with the value, or with the process.
#[derive(Debug)]
pub struct Turn {
    _lock: std::fs::File,
}
