//! Platforms: parsing, normalising and choosing from an index.

use serde::{Deserialize, Serialize};

/// The `platform` object of a descriptor, as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlatformFields {
    /// CPU architecture, in Go's words.
    #[serde(default)]
    pub architecture: String,
    /// Operating system, in Go's words.
    #[serde(default)]
    pub os: String,
    /// CPU variant, for instance `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Version of the operating system (Windows).
    #[serde(rename = "os.version", default, skip_serializing_if = "Option::is_none")]
    pub os_version: Option<String>,
    /// Features of the operating system (Windows).
    #[serde(rename = "os.features", default, skip_serializing_if = "Option::is_none")]
    pub os_features: Option<Vec<String>>,
}
