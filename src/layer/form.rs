//! How the layers of an image are to be stored: compression, level, which of them, and the latest time in them.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::image::descriptor::{Descriptor, FORM, media_type};
use crate::image::shown;
use crate::rootfs::Timestamp;

/// A form that layers cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormError {
    /// A word that means nothing.
    #[error("unsupported compression type {0}: choose gzip, zstd or uncompressed")]
    Unsupported(String),
    /// It means something to BuildKit, which not even keeps diff ids equal then.
    #[error("unsupported compression type estargz: choose gzip, zstd or uncompressed")]
    Estargz,
    /// A level of what has none.
    #[error("invalid compression level `{0}`: `uncompressed` has no levels, leave it out")]
    NoLevels(String),
    /// A level that is no number, or one that the compression does not have.
    #[error(
        "invalid compression level `{level}`: {compression} has the levels {} to {}",
        levels.start(), levels.end()
    )]
    Level {
        /// As it was given.
        level: String,
        /// For which compression.
        compression: Compression,
        /// Those that it has.
        levels: RangeInclusive<u32>,
    },
}

/// How the bytes of a layer are made fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Compression {
    /// What everything reads.
    #[default]
    Gzip,
    /// Smaller and faster; Docker reads it from version 23 on.
    Zstd,
    /// Not at all: the digest of the layer is its diff id.
    Uncompressed,
}

impl Compression {
    /// The word for it in flags.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Uncompressed => "uncompressed",
        }
    }

    /// Which compression a layer of this media type has, be the type OCI's or Docker's.
    #[must_use]
    pub fn of_media_type(name: &str) -> Self {
        match name {
            _ if name.ends_with("gzip") => Self::Gzip,
            _ if name.ends_with("zstd") => Self::Zstd,
            _ => Self::Uncompressed,
        }
    }

    /// The media type of such layers in OCI manifests. Docker's are those of the manifest's writer.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Gzip => media_type::OCI_LAYER_GZIP,
            Self::Zstd => media_type::OCI_LAYER_ZSTD,
            Self::Uncompressed => media_type::OCI_LAYER,
        }
    }

    /// The levels that a user may name.
    #[must_use]
    pub fn levels(self) -> RangeInclusive<u32> {
        match self {
            Self::Gzip => 0..=9,
            Self::Zstd => 0..=22,
            Self::Uncompressed => 0..=0,
        }
    }

    /// The level that is taken where none is named.
    fn usual_level(self) -> u32 {
        match self {
            Self::Gzip => 6,
            Self::Zstd => 3,
            Self::Uncompressed => 0,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Self, FormError> {
        let all = [Self::Gzip, Self::Zstd, Self::Uncompressed];
        match all.into_iter().find(|compression| compression.name() == text) {
            Some(compression) => Ok(compression),
            None if text == "estargz" => Err(FormError::Estargz),
            None => Err(FormError::Unsupported(shown(text))),
        }
    }
}

/// A compression with its level. Equal tar archives in equal forms are equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LayerForm {
    compression: Compression,
    level: u32,
}

impl Default for LayerForm {
    /// Gzip at level 6.
    fn default() -> Self {
        Self::usual(Compression::default())
    }
}

impl LayerForm {
    /// What layers are that only wait to become others: quickly written, and not large.
    pub const PASSING: Self = Self { compression: Compression::Zstd, level: 1 };

    /// `compression` at its usual level.
    #[must_use]
    pub fn usual(compression: Compression) -> Self {
        Self { compression, level: compression.usual_level() }
    }

    /// `compression` at the level that the user has named.
    ///
    /// # Errors
    /// [`FormError::Level`], and [`FormError::NoLevels`] where nothing is compressed.
    pub fn new(compression: Compression, level: Option<&str>) -> Result<Self, FormError> {
        let Some(text) = level else { return Ok(Self::usual(compression)) };
        if compression == Compression::Uncompressed {
            return Err(FormError::NoLevels(shown(text)));
        }
        let levels = compression.levels();
        match text.parse().ok().filter(|level| levels.contains(level)) {
            Some(level) => Ok(Self { compression, level }),
            None => Err(FormError::Level { level: shown(text), compression, levels }),
        }
    }

    /// The form of a layer that builder has written, as far as its descriptor tells.
    #[must_use]
    pub fn of(blob: &Descriptor) -> Option<Self> {
        if let Some(noted) = blob.annotation(FORM) {
            return noted.parse().ok();
        }
        match Compression::of_media_type(&blob.media_type) {
            // All that was written before there were others.
            Compression::Gzip => Some(Self::default()),
            Compression::Uncompressed => Some(Self::usual(Compression::Uncompressed)),
            Compression::Zstd => None,
        }
    }

    /// `blob`, the descriptor of a layer that was written in this form, with the form noted where its type does not say it.
    #[must_use]
    pub fn noted_at(self, mut blob: Descriptor) -> Descriptor {
        if Self::of(&blob) != Some(self) {
            blob.annotations.get_or_insert_default().insert(FORM.to_owned(), self.to_string());
        }
        blob
    }

    /// How it is compressed.
    #[must_use]
    pub fn compression(self) -> Compression {
        self.compression
    }

    /// With which effort.
    #[must_use]
    pub fn level(self) -> u32 {
        self.level
    }
}

impl fmt::Display for LayerForm {
    /// For instance `gzip-6`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compression {
            Compression::Uncompressed => f.write_str(self.compression.name()),
            compression => write!(f, "{compression}-{}", self.level),
        }
    }
}

impl FromStr for LayerForm {
    type Err = FormError;

    /// Reads what [`LayerForm`] is shown as.
    fn from_str(text: &str) -> Result<Self, FormError> {
        let (compression, level) = match text.split_once('-') {
            Some((compression, level)) => (compression, Some(level)),
            None => (text, None),
        };
        Self::new(compression.parse()?, level)
    }
}

/// Which layers of an image get the form that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Converted {
    /// Those that the build has made, or has found made: those of the base stay as they are.
    #[default]
    Own,
    /// Those of the base as well, as far as they are compressed in another way (BuildKit's `force-compression`).
    All,
}

/// What becomes of the modification times in the layers of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Times {
    /// They stay as they are.
    #[default]
    Kept,
    /// Those after `SOURCE_DATE_EPOCH` become that (BuildKit's `rewrite-timestamp`).
    Lowered,
    /// All become `SOURCE_DATE_EPOCH`: nothing is left of when files were checked out, or a step was done whose result is
    /// found.
    Replaced,
}

/// Which modification times give way to which, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rewrite {
    /// Later ones become this one.
    Later(i64),
    /// All become this one.
    All(i64),
}

impl Rewrite {
    /// The time that others give way to.
    #[must_use]
    pub fn epoch(self) -> i64 {
        match self {
            Self::Later(epoch) | Self::All(epoch) => epoch,
        }
    }

    /// What becomes of `time`.
    #[must_use]
    pub fn of(self, time: Timestamp) -> Timestamp {
        let epoch = Timestamp { seconds: self.epoch(), nanoseconds: 0 };
        match self {
            Self::Later(_) => time.min(epoch),
            Self::All(_) => epoch,
        }
    }
}

impl fmt::Display for Rewrite {
    /// For instance `times up to 5`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Later(epoch) => write!(f, "times up to {epoch}"),
            Self::All(epoch) => write!(f, "times of {epoch}"),
        }
    }
}

/// What the layers of an image are to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LayerRequest {
    /// How they are stored.
    pub form: LayerForm,
    /// Which of them that is about.
    pub converted: Converted,
    /// What becomes of the times in the layers of the build; those of the base stay. It changes diff ids.
    pub rewrite: Option<Rewrite>,
}

impl LayerRequest {
    /// The layers of the build in `form`, with their times as `times` says where the build's time is `epoch`.
    #[must_use]
    pub fn own(form: LayerForm, times: Times, epoch: Option<i64>) -> Self {
        let rewrite = epoch.and_then(|epoch| match times {
            Times::Kept => None,
            Times::Lowered => Some(Rewrite::Later(epoch)),
            Times::Replaced => Some(Rewrite::All(epoch)),
        });
        Self { form, converted: Converted::Own, rewrite }
    }

    /// The form in which a build writes layers of which all outputs are asked for like this: that form, unless they will
    /// have to be written once more.
    #[must_use]
    pub fn written_form(&self) -> LayerForm {
        match self.rewrite {
            Some(_) => LayerForm::PASSING,
            None => self.form,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_levels_are_buildkits() {
        for (word, level, expected) in [
            ("gzip", None, "gzip-6"),
            ("gzip", Some("0"), "gzip-0"),
            ("gzip", Some("9"), "gzip-9"),
            ("zstd", None, "zstd-3"),
            ("zstd", Some("22"), "zstd-22"),
            ("uncompressed", None, "uncompressed"),
        ] {
            let form = LayerForm::new(word.parse().unwrap(), level).unwrap();
            assert_eq!(form.to_string(), expected);
            assert_eq!(expected.parse(), Ok(form));
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        for (word, level, message) in [
            ("foo", None, "unsupported compression type foo: choose gzip, zstd or uncompressed"),
            ("GZIP", None, "unsupported compression type GZIP: choose gzip, zstd or uncompressed"),
            ("", None, "unsupported compression type : choose gzip, zstd or uncompressed"),
            ("estargz", None, "unsupported compression type estargz: choose gzip, zstd or uncompressed"),
            ("gzip", Some("10"), "invalid compression level `10`: gzip has the levels 0 to 9"),
            ("gzip", Some("-1"), "invalid compression level `-1`: gzip has the levels 0 to 9"),
            ("gzip", Some(""), "invalid compression level ``: gzip has the levels 0 to 9"),
            ("zstd", Some("23"), "invalid compression level `23`: zstd has the levels 0 to 22"),
            ("zstd", Some("max"), "invalid compression level `max`: zstd has the levels 0 to 22"),
            (
                "uncompressed",
                Some("0"),
                "invalid compression level `0`: `uncompressed` has no levels, leave it out",
            ),
        ] {
            let form = word.parse().and_then(|compression| LayerForm::new(compression, level));
            assert_eq!(form.unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_media_type_tells_the_compression() {
        for (name, compression) in [
            (media_type::OCI_LAYER, Compression::Uncompressed),
            (media_type::DOCKER_LAYER, Compression::Uncompressed),
            (media_type::DOCKER_LAYER_GZIP, Compression::Gzip),
            (media_type::DOCKER_FOREIGN_LAYER_GZIP, Compression::Gzip),
            (media_type::DOCKER_LAYER_ZSTD, Compression::Zstd),
        ] {
            assert_eq!(Compression::of_media_type(name), compression, "{name}");
        }
        for compression in [Compression::Gzip, Compression::Zstd, Compression::Uncompressed] {
            assert_eq!(Compression::of_media_type(compression.media_type()), compression);
        }
    }
}
