//! `--mount` and `--device` of RUN: comma-separated fields.
//!
//! The values of a mount may hold variables, even its type, so a mount is read twice, as BuildKit does it: when the
//! Dockerfile is parsed only the fields are split ([`MountOption`]), and the step that runs it expands the values and
//! checks them ([`MountOption::resolve`]).

use super::Text;
use super::history::quote;
use super::parse::Problem;
use super::suggest::suggest;
use super::text::excerpt;
use super::words::csv_fields;

/// A `--mount` as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOption {
    fields: Vec<Field>,
}

/// `key`, or `key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    /// Whole, as written.
    text: Text,
    /// In lower case.
    key: String,
    value: Option<Text>,
}

/// A mount with nothing left to expand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    /// Part of a stage, image or context.
    Bind(BindMount),
    /// A directory that outlives the build.
    Cache(CacheMount),
    /// An empty directory.
    Tmpfs(TmpfsMount),
    /// A secret, as file or variable.
    Secret(SecretMount),
    /// An SSH agent's socket.
    Ssh(SshMount),
}

/// Whether the process may write to a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It may not.
    ReadOnly,
    /// It may; what it writes to a bind mount is discarded.
    ReadWrite,
}

impl Access {
    /// As it is shown: `ro` or `rw`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }
}

/// Whether a secret or agent must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The step runs without it.
    Optional,
    /// The step fails without it.
    Required,
}

/// Who may use a cache at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Any number of steps.
    Shared,
    /// One step; others get a cache of their own.
    Private,
    /// One step; others wait.
    Locked,
}

impl Sharing {
    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Private => "private",
            Self::Locked => "locked",
        }
    }
}

/// Mode and owner of what is mounted, where given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountOwner {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User id.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
}

/// `type=bind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindMount {
    /// Stage, image or named context; the build context without it.
    pub from: Option<Text>,
    /// Path in there; empty is the root.
    pub source: Text,
    /// Where it appears; relative to the working directory, may be empty.
    pub target: Text,
    /// `rw` or `ro` (the default).
    pub access: Access,
}

/// `type=cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheMount {
    /// Names the cache; the target by default.
    pub id: Option<Text>,
    /// What a new cache begins with.
    pub from: Option<Text>,
    /// Path in `from`; empty is the root.
    pub source: Text,
    /// Where it appears; relative to the working directory, may be empty.
    pub target: Text,
    /// Who may use it at the same time.
    pub sharing: Sharing,
    /// Of the root of a new cache; 0755 and 0:0 by default.
    pub owner: MountOwner,
    /// `ro` or `rw` (the default).
    pub access: Access,
}

/// `type=tmpfs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TmpfsMount {
    /// Where it appears; relative to the working directory, may be empty.
    pub target: Text,
    /// Bytes it may hold.
    pub size: Option<u64>,
}

/// `type=secret`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretMount {
    /// Which secret; never empty.
    pub id: Text,
    /// The file; `None` if only a variable is wanted.
    pub target: Option<Text>,
    /// The variable, if one is wanted.
    pub variable: Option<Text>,
    /// Whether it must be there.
    pub need: Need,
    /// Of the file; 0400 and 0:0 by default.
    pub owner: MountOwner,
}

/// `type=ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshMount {
    /// Which agent; `default` by default.
    pub id: Option<Text>,
    /// The socket; `/run/buildkit/ssh_agent.N` by default.
    pub target: Option<Text>,
    /// Whether it must be there.
    pub need: Need,
    /// Of the socket; 0600 and 0:0 by default.
    pub owner: MountOwner,
}

/// A CDI device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: Text,
    /// Whether it must be there.
    pub need: Need,
}

/// Why a mount is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct MountError {
    /// What is wrong, in BuildKit's words, with the suggestion.
    pub message: String,
    /// The word that may have been meant.
    pub suggestion: Option<String>,
}

impl From<Problem> for MountError {
    fn from(problem: Problem) -> Self {
        Self { message: problem.message, suggestion: problem.suggestion }
    }
}

const TYPES: [&str; 5] = ["bind", "cache", "secret", "ssh", "tmpfs"];
const SHARING: [&str; 3] = ["locked", "private", "shared"];
const KEYS: [&str; 19] = [
    "type",
    "from",
    "source",
    "target",
    "readonly",
    "id",
    "sharing",
    "required",
    "mode",
    "uid",
    "gid",
    "src",
    "dst",
    "destination",
    "ro",
    "rw",
    "readwrite",
    "env",
    "size",
];

impl MountOption {
    /// Splits the value of `--mount`.
    pub(super) fn parse(value: &[u8]) -> Result<Self, Problem> {
        let fields = csv_fields(value).map_err(|what| format!("failed to parse csv mounts: {what}"))?;
        let fields: Vec<Field> = fields.into_iter().map(Field::new).collect();
        for field in &fields {
            let variable = |value: &Text| value.iter().rev().skip(1).any(|&b| b == b'$');
            if field.key == "from" && field.value.as_ref().is_some_and(variable) {
                return Err("'from' doesn't support variable expansion, define alias stage instead"
                    .to_owned()
                    .into());
            }
        }
        Ok(Self { fields })
    }

    /// The fields as they are written, without the quotes that keep commas in them.
    pub(super) fn fields(&self) -> impl Iterator<Item = &Text> {
        self.fields.iter().map(|field| &field.text)
    }

    /// `from`, which needs no expansion: the stage, image or context that must be there first.
    #[must_use]
    pub fn from(&self) -> Option<&Text> {
        let last = self.fields.iter().rev().find(|field| field.key == "from")?;
        last.value.as_ref().filter(|value| !value.is_empty())
    }

    /// `target` as it is written.
    #[must_use]
    pub fn target(&self) -> Option<&Text> {
        let is_target = |field: &&Field| matches!(field.key.as_str(), "target" | "dst" | "destination");
        self.fields.iter().rev().find(is_target)?.value.as_ref()
    }

    /// Expands the values with `expand` and checks the whole.
    ///
    /// Keys are checked against the type that is known when they come, so `type` should be first.
    ///
    /// # Errors
    /// [`MountError`], or what `expand` says.
    pub fn resolve<E: From<MountError>>(
        &self,
        expand: &mut dyn FnMut(&Text) -> Result<Text, E>,
    ) -> Result<Mount, E> {
        let mut draft = Draft::default();
        for field in &self.fields {
            match &field.value {
                None => draft.word(field).map_err(MountError::from)?,
                Some(value) => {
                    let value = expand(value)?;
                    draft.assign(field, &value).map_err(MountError::from)?;
                }
            }
        }
        draft.finish().map_err(|problem| MountError::from(problem).into())
    }
}

impl Field {
    fn new(text: Vec<u8>) -> Self {
        let (key, value) = match text.iter().position(|&b| b == b'=') {
            Some(at) => (&text[..at], Some(Text::from(&text[at + 1..]))),
            None => (&text[..], None),
        };
        Self { key: String::from_utf8_lossy(key).to_lowercase(), value, text: text.into() }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Type {
    #[default]
    Bind,
    Cache,
    Tmpfs,
    Secret,
    Ssh,
}

impl Type {
    const fn name(self) -> &'static str {
        match self {
            Self::Bind => "bind",
            Self::Cache => "cache",
            Self::Tmpfs => "tmpfs",
            Self::Secret => "secret",
            Self::Ssh => "ssh",
        }
    }
}

/// What the fields said so far.
#[derive(Default)]
struct Draft {
    kind: Type,
    from: Text,
    source: Text,
    target: Text,
    id: Text,
    variable: Option<Text>,
    access: Option<Access>,
    need: Option<Need>,
    size: Option<u64>,
    sharing: Option<Sharing>,
    owner: MountOwner,
}

impl Draft {
    /// A key without value.
    fn word(&mut self, field: &Field) -> Result<(), Problem> {
        match field.key.as_str() {
            "readonly" | "ro" => self.access = Some(Access::ReadOnly),
            "readwrite" | "rw" => self.access = Some(Access::ReadWrite),
            "required" => {
                self.only_for(&field.key, &[Type::Secret, Type::Ssh])?;
                self.need = Some(Need::Required);
            }
            _ => {
                let field = excerpt(&field.text);
                return Err(format!("invalid field '{field}' must be a key=value pair").into());
            }
        }
        Ok(())
    }

    /// A key with its expanded value.
    fn assign(&mut self, field: &Field, value: &Text) -> Result<(), Problem> {
        let key = field.key.as_str();
        let text = value.to_string_lossy();
        let number = |radix| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let number = if digits { u32::from_str_radix(&text, radix).ok() } else { None };
            number.ok_or_else(|| format!("invalid value {} for {key}", excerpt(value)))
        };
        match key {
            "type" => self.kind = parse_type(&text)?,
            "from" => self.from = value.clone(),
            "source" | "src" => self.source = value.clone(),
            "target" | "dst" | "destination" => self.target = value.clone(),
            "readonly" | "ro" => {
                let on = parse_bool(key, &text)?;
                self.access = Some(if on { Access::ReadOnly } else { Access::ReadWrite });
            }
            "readwrite" | "rw" => {
                let on = parse_bool(key, &text)?;
                self.access = Some(if on { Access::ReadWrite } else { Access::ReadOnly });
            }
            "required" => {
                self.only_for(key, &[Type::Secret, Type::Ssh])?;
                let on = parse_bool(key, &text)?;
                self.need = Some(if on { Need::Required } else { Need::Optional });
            }
            "size" => {
                self.only_for(key, &[Type::Tmpfs])?;
                self.size = Some(parse_size(&text).ok_or_else(|| invalid(key, &text))?);
            }
            "env" => {
                self.only_for(key, &[Type::Secret])?;
                self.variable = Some(value.clone());
            }
            "id" => self.id = value.clone(),
            "sharing" => self.sharing = Some(parse_sharing(&text)?),
            "mode" => self.owner.mode = Some(number(8)?),
            "uid" => self.owner.uid = Some(number(10)?),
            "gid" => self.owner.gid = Some(number(10)?),
            _ => {
                let message =
                    format!("unexpected key '{}' in '{}'", excerpt(key.as_bytes()), excerpt(&field.text));
                return Err(Problem::suggesting(message, suggest(key, &KEYS)));
            }
        }
        Ok(())
    }

    fn only_for(&self, key: &str, kinds: &[Type]) -> Result<(), Problem> {
        if kinds.contains(&self.kind) {
            return Ok(());
        }
        Err(format!("unexpected key '{key}' for mount type '{}'", self.kind.name()).into())
    }

    fn finish(self) -> Result<Mount, Problem> {
        let kind = self.kind.name();
        if matches!(self.kind, Type::Bind | Type::Tmpfs) {
            let given = [("mode", self.owner.mode), ("uid", self.owner.uid), ("gid", self.owner.gid)];
            if let Some((key, _)) = given.iter().find(|(_, value)| value.is_some()) {
                return Err(format!("{key} not allowed for \"{kind}\" type mounts").into());
            }
        }
        if self.kind == Type::Secret {
            self.check_secret()?;
        }
        if self.sharing.is_some() && self.kind != Type::Cache {
            return Err(format!("invalid cache sharing set for {kind} mount").into());
        }
        if self.kind == Type::Ssh && !self.source.is_empty() {
            return Err("ssh mounts do not support source".to_owned().into());
        }
        let need = self.need.unwrap_or(Need::Optional);
        let given = |text: Text| (!text.is_empty()).then_some(text);
        Ok(match self.kind {
            Type::Bind => Mount::Bind(BindMount {
                from: given(self.from),
                source: self.source,
                target: self.target,
                access: self.access.unwrap_or(Access::ReadOnly),
            }),
            Type::Cache => Mount::Cache(CacheMount {
                id: given(self.id),
                from: given(self.from),
                source: self.source,
                target: self.target,
                sharing: self.sharing.unwrap_or(Sharing::Shared),
                owner: self.owner,
                access: self.access.unwrap_or(Access::ReadWrite),
            }),
            Type::Tmpfs => {
                Mount::Tmpfs(TmpfsMount { target: self.target, size: self.size.filter(|&n| n > 0) })
            }
            Type::Secret => self.into_secret(need),
            Type::Ssh => Mount::Ssh(SshMount {
                id: given(self.id),
                target: given(self.target),
                need,
                owner: self.owner,
            }),
        })
    }

    fn check_secret(&self) -> Result<(), Problem> {
        let message = if !self.from.is_empty() {
            "secret mount should not have a from"
        } else if self.sharing.is_some() {
            "secret mount should not define sharing"
        } else if self.source.is_empty() && self.target.is_empty() && self.id.is_empty() {
            "invalid secret mount. one of source, target required"
        } else if !self.source.is_empty() && !self.id.is_empty() {
            "both source and id can't be set"
        } else {
            return Ok(());
        };
        Err(message.to_owned().into())
    }

    fn into_secret(self, need: Need) -> Mount {
        let id = [&self.id, &self.source].into_iter().find(|text| !text.is_empty()).cloned();
        let id = id.unwrap_or_else(|| base_name(&self.target).into());
        let target = match (self.target.is_empty(), &self.variable) {
            (false, _) => Some(self.target),
            (true, Some(_)) => None,
            (true, None) => Some([b"/run/secrets/", base_name(&id)].concat().into()),
        };
        Mount::Secret(SecretMount { id, target, variable: self.variable, need, owner: self.owner })
    }
}

/// What follows the last slash, trailing slashes left out.
fn base_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    &path[start..end]
}

fn parse_type(text: &str) -> Result<Type, Problem> {
    match text.to_lowercase().as_str() {
        "bind" => Ok(Type::Bind),
        "cache" => Ok(Type::Cache),
        "tmpfs" => Ok(Type::Tmpfs),
        "secret" => Ok(Type::Secret),
        "ssh" => Ok(Type::Ssh),
        _ => {
            let message = format!("unsupported mount type {}", quote(excerpt(text.as_bytes()).as_bytes()));
            Err(Problem::suggesting(message, suggest(text, &TYPES)))
        }
    }
}

fn parse_sharing(text: &str) -> Result<Sharing, Problem> {
    match text.to_lowercase().as_str() {
        "shared" => Ok(Sharing::Shared),
        "private" => Ok(Sharing::Private),
        "locked" => Ok(Sharing::Locked),
        _ => {
            let quoted = quote(excerpt(text.as_bytes()).as_bytes());
            let message = format!("unsupported sharing value {quoted} (there are {})", SHARING.join(", "));
            Err(Problem::suggesting(message, suggest(text, &SHARING)))
        }
    }
}

fn invalid(key: &str, value: &str) -> Problem {
    format!("invalid value for {key}: {}", excerpt(value.as_bytes())).into()
}

/// As Go's `strconv.ParseBool`.
fn parse_bool(key: &str, value: &str) -> Result<bool, Problem> {
    super::words::parse_bool(value).ok_or_else(|| invalid(key, value))
}

/// Bytes as Docker's flags have them: a number with an optional fraction and an optional unit (`k`, `m`, `g`, `t`, `p`, each with `b` or `ib`).
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let end = lower.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(lower.len());
    let (number, unit) = (&lower[..end], lower[end..].trim_start());
    let unit = unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let mut bytes = whole.checked_mul(1 << shift)?;
    let mut part: u128 = 0;
    for digit in fraction.bytes().take(15).collect::<Vec<_>>().into_iter().rev() {
        part = (part + u128::from(digit - b'0') * 1_000_000_000_000_000) / 10;
    }
    let part = u64::try_from(part * (1 << shift) / 1_000_000_000_000_000).ok()?;
    bytes = bytes.checked_add(part)?;
    i64::try_from(bytes).is_ok().then_some(bytes)
}

impl Device {
    /// Reads the value of `--device`.
    pub(super) fn parse(value: &[u8]) -> Result<Self, Problem> {
        let fields = csv_fields(value).map_err(|what| format!("failed to parse csv devices: {what}"))?;
        let (mut name, mut need) = (None, Need::Optional);
        for field in fields.into_iter().map(Field::new) {
            match (field.key.as_str(), field.value) {
                ("required", None) => need = Need::Required,
                ("required", Some(value)) => {
                    let on = parse_bool("required", &value.to_string_lossy())?;
                    need = if on { Need::Required } else { Need::Optional };
                }
                ("name", Some(value)) => match &name {
                    None => name = Some(value),
                    Some(name) => return Err(format!("device name already set to {}", excerpt(name)).into()),
                },
                // The name of a CDI device may itself have a `=`.
                (_, _) if name.is_none() => name = Some(field.text),
                (_, None) => {
                    let field = excerpt(&field.text);
                    return Err(format!("invalid field '{field}' must be a key=value pair").into());
                }
                (key, Some(_)) => {
                    let key_shown = excerpt(key.as_bytes());
                    let message = format!("unexpected key '{key_shown}' in '{}'", excerpt(&field.text));
                    return Err(Problem::suggesting(message, suggest(key, &["name", "required"])));
                }
            }
        }
        Ok(Self { name: name.unwrap_or_default(), need })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str) -> Result<Mount, String> {
        let option = MountOption::parse(text.as_bytes()).map_err(|problem| problem.message)?;
        let mut expand = |value: &Text| Ok::<_, MountError>(value.clone());
        option.resolve(&mut expand).map_err(|error| error.to_string())
    }

    #[test]
    fn mounts_have_defaults() {
        assert_eq!(
            resolve("target=/m"),
            Ok(Mount::Bind(BindMount {
                from: None,
                source: Text::default(),
                target: "/m".into(),
                access: Access::ReadOnly
            }))
        );
        assert_eq!(
            resolve("type=cache,target=/c,id=x,mode=0700,uid=5,gid=6,sharing=LOCKED,ro"),
            Ok(Mount::Cache(CacheMount {
                id: Some("x".into()),
                from: None,
                source: Text::default(),
                target: "/c".into(),
                sharing: Sharing::Locked,
                owner: MountOwner { mode: Some(0o700), uid: Some(5), gid: Some(6) },
                access: Access::ReadOnly,
            }))
        );
        assert_eq!(
            resolve("type=tmpfs,dst=/t,size=1.5m"),
            Ok(Mount::Tmpfs(TmpfsMount { target: "/t".into(), size: Some(1_572_864) }))
        );
        assert_eq!(
            resolve("type=ssh,required"),
            Ok(Mount::Ssh(SshMount {
                id: None,
                target: None,
                need: Need::Required,
                owner: MountOwner::default()
            }))
        );
    }

    #[test]
    fn a_secret_has_an_id_and_a_place() {
        for (text, id, target, variable) in [
            ("type=secret,id=s", "s", Some("/run/secrets/s"), None),
            ("type=secret,id=a/b", "a/b", Some("/run/secrets/b"), None),
            ("type=secret,source=s", "s", Some("/run/secrets/s"), None),
            ("type=secret,target=/root/.npmrc", ".npmrc", Some("/root/.npmrc"), None),
            ("type=secret,id=s,env=T", "s", None, Some("T")),
            ("type=secret,id=s,env=T,target=/f", "s", Some("/f"), Some("T")),
        ] {
            let Ok(Mount::Secret(secret)) = resolve(text) else { panic!("{text}") };
            assert_eq!(secret.id, id, "{text}");
            assert_eq!(secret.target, target.map(Text::from), "{text}");
            assert_eq!(secret.variable, variable.map(Text::from), "{text}");
        }
    }

    #[test]
    fn wrong_fields_are_errors_in_the_words_of_buildkit() {
        for (text, message) in [
            ("typ=tmpfs", "unexpected key 'typ' in 'typ=tmpfs' (did you mean type?)"),
            ("bogus=1", "unexpected key 'bogus' in 'bogus=1'"),
            ("type=x", "unsupported mount type \"x\""),
            ("type=bnd", "unsupported mount type \"bnd\" (did you mean bind?)"),
            ("x", "invalid field 'x' must be a key=value pair"),
            ("", "invalid field '' must be a key=value pair"),
            ("size=1,type=tmpfs", "unexpected key 'size' for mount type 'bind'"),
            ("type=bind,required", "unexpected key 'required' for mount type 'bind'"),
            ("target=/a,mode=1", "mode not allowed for \"bind\" type mounts"),
            ("type=tmpfs,uid=1", "uid not allowed for \"tmpfs\" type mounts"),
            (
                "type=cache,sharing=foo",
                "unsupported sharing value \"foo\" (there are locked, private, shared)",
            ),
            ("type=bind,sharing=shared", "invalid cache sharing set for bind mount"),
            ("type=cache,mode=9", "invalid value 9 for mode"),
            ("type=cache,uid=-1", "invalid value -1 for uid"),
            ("type=cache,uid=99999999999", "invalid value 99999999999 for uid"),
            ("ro=maybe", "invalid value for ro: maybe"),
            ("type=tmpfs,size=1x", "invalid value for size: 1x"),
            ("type=secret", "invalid secret mount. one of source, target required"),
            ("type=secret,env=X", "invalid secret mount. one of source, target required"),
            ("type=secret,id=a,source=b", "both source and id can't be set"),
            ("type=secret,id=a,from=b", "secret mount should not have a from"),
            ("type=ssh,source=b", "ssh mounts do not support source"),
            ("from=$x", "'from' doesn't support variable expansion, define alias stage instead"),
            ("a\"b=c", "failed to parse csv mounts: bare \" in non-quoted field"),
            ("\"a=b", "failed to parse csv mounts: extraneous or missing \" in quoted-field"),
        ] {
            assert_eq!(resolve(text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn fields_may_be_quoted_and_values_expand() {
        let option = MountOption::parse(b"type=$t,\"target=/a,b\",from=x$").unwrap();
        assert_eq!(option.from(), Some(&"x$".into()));
        let mut expand =
            |value: &Text| Ok::<_, MountError>(if *value == "$t" { "cache".into() } else { value.clone() });
        let Ok(Mount::Cache(cache)) = option.resolve(&mut expand) else { panic!() };
        assert_eq!(cache.target, "/a,b");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1k", Some(1024)),
            ("1KiB", Some(1024)),
            ("1.5 mb", Some(1_572_864)),
            ("2g", Some(2 << 30)),
            ("1b", Some(1)),
            ("", None),
            (".5k", None),
            ("1.2.3", None),
            ("9999999999p", None),
            ("-1", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }

    #[test]
    fn devices_have_names() {
        let device = Device::parse(b"vendor.com/class=gpu0,required").unwrap();
        assert_eq!(device, Device { name: "vendor.com/class=gpu0".into(), need: Need::Required });
        let device = Device::parse(b"name=x,required=false").unwrap();
        assert_eq!(device, Device { name: "x".into(), need: Need::Optional });
        assert_eq!(Device::parse(b"a,b").unwrap_err().message, "invalid field 'b' must be a key=value pair");
        assert_eq!(
            Device::parse(b"a,nam=b").unwrap_err().message,
            "unexpected key 'nam' in 'nam=b' (did you mean name?)"
        );
    }
}
