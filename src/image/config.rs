//! Image configs (OCI image-spec `config.md`) with the fields that Docker adds.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::digest::DiffId;

/// The config of an image. Fields that this program does not know are kept in `other`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// CPU architecture, in Go's words.
    #[serde(default, deserialize_with = "null_is_default")]
    pub architecture: String,
    /// Operating system, in Go's words.
    #[serde(default, deserialize_with = "null_is_default")]
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
    /// Who made it (`MAINTAINER`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// When it was made, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// What a container of the image starts with.
    #[serde(default, deserialize_with = "null_is_default")]
    pub config: RunConfig,
    /// The layers, by their uncompressed bytes.
    #[serde(default, deserialize_with = "null_is_default")]
    pub rootfs: RootfsConfig,
    /// How the image came about; rows that are not `empty_layer` are as many as layers.
    #[serde(default, deserialize_with = "null_is_default")]
    pub history: Vec<History>,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The `rootfs` object of a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RootfsConfig {
    /// Always `layers`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Bottom layer first.
    #[serde(default, deserialize_with = "null_is_default")]
    pub diff_ids: Vec<DiffId>,
}

impl Default for RootfsConfig {
    fn default() -> Self {
        Self { kind: "layers".to_owned(), diff_ids: Vec::new() }
    }
}

/// The `config` object of a config.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RunConfig {
    /// `user[:group]`, names or numbers.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    pub user: String,
    /// `port/protocol`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    pub exposed_ports: BTreeMap<String, Value>,
    /// `name=value`, in the order of their first definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    /// The program and its first arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Further arguments, or the program where there is no entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// Paths whose content is not part of the image.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    pub volumes: BTreeMap<String, Value>,
    /// The directory to start in.
    #[serde(default, skip_serializing_if = "String::is_empty", deserialize_with = "null_is_default")]
    pub working_dir: String,
    /// Free text by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// The signal that ends a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Docker: the command line is one word already (set by `CMD`).
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_is_default")]
    pub args_escaped: bool,
    /// Docker: how to tell that a container works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// Docker: instructions to run in images built on this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub on_build: Vec<String>,
    /// Docker: what the shell form of instructions is run with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Docker's health check; durations are nanoseconds, 0 inherits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Healthcheck {
    /// `NONE`, `CMD` and arguments, or `CMD-SHELL` and a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub test: Vec<String>,
    /// Time between two checks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub interval: i64,
    /// Time after which a check has failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timeout: i64,
    /// Time in which failures do not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_period: i64,
    /// Time between two checks within `start_period`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_interval: i64,
    /// Failures in a row that mean "unhealthy".
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retries: i64,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One row of an image's history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// The instruction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Which program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Whether the instruction made no layer.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_is_default")]
    pub empty_layer: bool,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn is_false(value: &bool) -> bool {
    !*value
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// Docker writes `null` for what is absent.
fn null_is_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
