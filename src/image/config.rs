//! Image configs (OCI image-spec `config.md`) with the fields that Docker adds.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::digest::DiffId;
use super::document::{self, DocumentError, DocumentLimits, Kind, MOST_LAYERS};
use super::platform::PlatformFields;

/// The most variables, and the most triggers, of a config.
const MOST_ENTRIES: usize = 10_000;

/// The most rows of a history.
const MOST_ROWS: usize = 100_000;

/// What Docker's classic builder noted about the container that it had made an image from. Nothing reads it.
const LEGACY: [&str; 6] = ["container", "container_config", "docker_version", "id", "parent", "throwaway"];

/// The config of an image. Fields that this program does not know are kept in `other`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
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

impl ImageConfig {
    /// The same without `config` and `history`, which may be large.
    #[must_use]
    pub fn without_details(&self) -> Self {
        let Self {
            architecture,
            os,
            variant,
            os_version,
            os_features,
            author,
            created,
            config: _,
            rootfs,
            history: _,
            other,
        } = self;
        Self {
            architecture: architecture.clone(),
            os: os.clone(),
            variant: variant.clone(),
            os_version: os_version.clone(),
            os_features: os_features.clone(),
            author: author.clone(),
            created: created.clone(),
            config: RunConfig::default(),
            rootfs: rootfs.clone(),
            history: Vec::new(),
            other: other.clone(),
        }
    }

    /// Takes away what Docker noted about the container behind the image. Done when an image is built on.
    pub fn drop_legacy(&mut self) {
        for key in LEGACY {
            self.other.remove(key);
        }
    }

    /// Takes away variables that no process can be given: without `=`, without a name, or with a NUL. Returns them.
    pub fn drop_invalid_env(&mut self) -> Vec<String> {
        let valid = |entry: &str| entry.find('=').is_some_and(|at| at > 0) && !entry.contains('\0');
        let (valid, invalid) =
            std::mem::take(&mut self.config.env).into_iter().partition(|entry| valid(entry));
        self.config.env = valid;
        invalid
    }
}

/// Reads the config of an image.
///
/// # Errors
/// [`DocumentError`] when it is too large, no JSON, of another shape, or without usable `rootfs`.
pub fn parse_config(bytes: &[u8], limits: &DocumentLimits) -> Result<ImageConfig, DocumentError> {
    parse_config_at_cost(bytes, limits).map(|(config, _)| config)
}

/// [`parse_config`], with what the config takes of [`DocumentLimits::bases`].
///
/// # Errors
/// As [`parse_config`].
pub fn parse_config_at_cost(
    bytes: &[u8],
    limits: &DocumentLimits,
) -> Result<(ImageConfig, u64), DocumentError> {
    #[derive(Deserialize)]
    #[serde(expecting = "an object")]
    struct Probe {
        rootfs: Option<serde::de::IgnoredAny>,
    }
    document::check_size(Kind::Config, bytes.len() as u64, limits)?;
    let (config, cost): (ImageConfig, _) = document::from_json_at_cost(Kind::Config, bytes)?;
    if document::from_json::<Probe>(Kind::Config, bytes)?.rootfs.is_none() {
        return Err(DocumentError::NoRootfs);
    }
    if config.rootfs.kind != "layers" {
        return Err(DocumentError::RootfsType(super::shown(&config.rootfs.kind)));
    }
    for (what, count, limit) in [
        ("diff ids", config.rootfs.diff_ids.len(), MOST_LAYERS),
        ("history rows", config.history.len(), MOST_ROWS),
        ("environment variables", config.config.env.len(), MOST_ENTRIES),
        ("ONBUILD triggers", config.config.on_build.len(), MOST_ENTRIES),
    ] {
        document::check_count(what, count, limit)?;
    }
    Ok((config, cost))
}

/// What the config of an image says it is for; the rest may be anything.
///
/// # Errors
/// [`DocumentError`] when it is too large, no JSON, or of another shape there.
pub fn parse_platform(bytes: &[u8], limits: &DocumentLimits) -> Result<PlatformFields, DocumentError> {
    document::check_size(Kind::Config, bytes.len() as u64, limits)?;
    document::from_json(Kind::Config, bytes)
}

/// The `rootfs` object of a config.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
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
#[serde(expecting = "an object")]
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
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "nulls_are_empty")]
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
#[serde(expecting = "an object")]
pub struct Healthcheck {
    /// `NONE`, `CMD` and arguments, or `CMD-SHELL` and a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_default")]
    pub test: Vec<String>,
    /// Time between two checks.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "null_is_default")]
    pub interval: i64,
    /// Time after which a check has failed.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "null_is_default")]
    pub timeout: i64,
    /// Time in which failures do not count.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "null_is_default")]
    pub start_period: i64,
    /// Time between two checks within `start_period`.
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "null_is_default")]
    pub start_interval: i64,
    /// Failures in a row that mean "unhealthy".
    #[serde(default, skip_serializing_if = "is_zero", deserialize_with = "null_is_default")]
    pub retries: i64,
    /// Everything else, as it was read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One row of an image's history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "an object")]
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

/// In Go a `null` among texts is an empty one.
fn nulls_are_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let map = Option::<BTreeMap<String, Option<String>>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(map.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect())
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    const DIFF_ID: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn error(text: &str) -> String {
        let error = parse_config(text.as_bytes(), &DocumentLimits::default()).expect_err(text);
        let source =
            std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        format!("{error}{source}")
    }

    #[test]
    fn dockers_fields_survive_a_round_trip() {
        let text = format!(
            r#"{{"architecture":"arm","variant":"v7","os":"linux","created":"2024-01-01T00:00:00Z","author":"me",
            "container":"abc","docker_version":"20.10","throwaway":true,"moby.buildkit.cache.v0":"x",
            "config":{{"Hostname":"h","AttachStdin":false,"Env":["A=b"],"Cmd":null,"Entrypoint":["/e"],"Image":"sha256:1",
            "Volumes":{{"/v":{{}}}},"ExposedPorts":{{"80/tcp":{{}}}},"Labels":{{"a":"b"}},"StopSignal":"SIGFOO","ArgsEscaped":true,
            "Healthcheck":{{"Test":["CMD","x"],"Interval":5,"New":1}},"OnBuild":["RUN x"],"Shell":["/bin/sh"],"User":"1:2",
            "WorkingDir":"/w"}},
            "history":[{{"created":"2024-01-01T00:00:00Z","created_by":"x","empty_layer":true,"extra":1}}],
            "rootfs":{{"type":"layers","diff_ids":["{DIFF_ID}"]}}}}"#
        );
        let mut config = parse_config(text.as_bytes(), &DocumentLimits::default()).unwrap();
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        expected["config"].as_object_mut().unwrap().remove("Cmd");
        assert_eq!(serde_json::to_value(&config).unwrap(), expected);
        let again = json::encode(&config).unwrap();
        assert_eq!(parse_config(&again.bytes, &DocumentLimits::default()).unwrap(), config);

        config.drop_legacy();
        let value = serde_json::to_value(&config).unwrap();
        assert!(value.get("container").is_none() && value.get("throwaway").is_none());
        assert_eq!(value["moby.buildkit.cache.v0"], "x");
        assert_eq!(value["config"]["Hostname"], "h");
    }

    #[test]
    fn null_is_absent_as_for_docker() {
        let config = parse_config(
            br#"{"architecture":null,"os":null,"variant":null,"config":{"Env":null,"Labels":{"a":null},"Healthcheck":
            {"Test":null,"Interval":null},"Volumes":null,"User":null},"history":null,"rootfs":{"type":"layers","diff_ids":null}}"#,
            &DocumentLimits::default(),
        )
        .unwrap();
        assert_eq!(config.config.labels["a"], "");
        assert!(config.rootfs.diff_ids.is_empty());
    }

    #[test]
    fn what_is_no_config_is_refused_with_the_place() {
        let rootfs = r#""rootfs":{"type":"layers","diff_ids":[]}"#;
        for (text, expected) in [
            (String::new(), "config is not valid"),
            ("null".to_owned(), "config is not valid"),
            ("[]".to_owned(), "config is an array"),
            ("{".repeat(100_000), "config is not valid"),
            (format!("{}{rootfs}}}", "{\"x\":".repeat(10)), "config is not valid"),
            (
                format!(r#"{{"x":{}{},{rootfs}}}"#, "[".repeat(100_000), "]".repeat(100_000)),
                "recursion limit",
            ),
            (format!("{{{rootfs}}} x"), "trailing characters"),
            (format!("{{{rootfs},{rootfs}}}"), "duplicate field `rootfs`"),
            (format!("\u{feff}{{{rootfs}}}"), "config is not valid"),
            ("{}".to_owned(), "config has no `rootfs`"),
            (r#"{"rootfs":null}"#.to_owned(), "config has no `rootfs`"),
            (
                r#"{"rootfs":{"type":"disk","diff_ids":[]}}"#.to_owned(),
                "`rootfs.type` of the config is `disk`",
            ),
            (
                format!(r#"{{{rootfs},"config":{{"Cmd":["a"],"Entrypoint":"/bin/sh"}}}}"#),
                "config is not valid at `config.Entrypoint`",
            ),
            (format!(r#"{{{rootfs},"config":{{"Labels":[]}}}}"#), "at `config.Labels`"),
            (format!(r#"{{{rootfs},"config":{{"Env":["a",1]}}}}"#), "at `config.Env[1]`"),
            (
                r#"{"rootfs":{"type":"layers","diff_ids":["sha256:00"]}}"#.to_owned(),
                "at `rootfs.diff_ids`: `sha256:00` is not a digest",
            ),
        ] {
            let error = error(&text);
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
    }

    #[test]
    fn limits_are_named() {
        let env = vec!["\"A=b\""; 10_001].join(",");
        let text = format!(r#"{{"rootfs":{{"type":"layers"}},"config":{{"Env":[{env}]}}}}"#);
        assert_eq!(error(&text), "has 10001 environment variables, more than the limit of 10000");
        let text = format!(r#"{{"rootfs":{{"type":"layers"}},"x":"{}"}}"#, "x".repeat(9 << 20));
        assert!(error(&text).contains("more than the limit of 8388608"), "{}", error(&text));
    }

    #[test]
    fn variables_that_cannot_be_set_are_dropped() {
        let text = r#"{"rootfs":{"type":"layers"},"config":{"Env":["A","=x","*","A=\n","B=","C=\u0000"]}}"#;
        let mut config = parse_config(text.as_bytes(), &DocumentLimits::default()).unwrap();
        assert_eq!(config.drop_invalid_env(), ["A", "=x", "*", "C=\0"]);
        assert_eq!(config.config.env, ["A=\n", "B="]);
    }
}
