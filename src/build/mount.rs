//! What RUN has mounted: each `--mount` with nothing left to resolve.

use super::error::BuildErrorKind;
use super::step::CopyFrom;
use crate::cache::{CacheKey, KeyHasher};
use crate::dockerfile::{
    Access, BindMount, CacheMount, Mount, MountOption, MountOwner, Need, SecretMount, Sharing, SshMount, Text,
};
use crate::rootfs::{Escaped, GuestPath, Owner};
use crate::sandbox::MAX_MOUNTS;

/// The mode of a secret's file, as under BuildKit.
const SECRET_MODE: u32 = 0o400;

/// The mode of an agent's socket, as under BuildKit.
const SSH_MODE: u32 = 0o600;

/// The mode of a new cache, as under BuildKit.
const CACHE_MODE: u32 = 0o755;

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountStep {
    /// A file or directory of a stage, an image or the build context.
    Bind(BindStep),
    /// A directory that outlives the build.
    Cache(CacheStep),
    /// An empty directory in memory.
    Tmpfs(TmpfsStep),
    /// A secret, as a file, a variable or both.
    Secret(SecretStep),
    /// The socket of an SSH agent.
    Ssh(SshStep),
}

/// `type=bind`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindStep {
    /// Whose file or directory it is.
    pub from: CopyFrom,
    /// Its path there. Links on the way are followed inside that tree.
    pub source: GuestPath,
    /// Where it appears; never the root.
    pub target: GuestPath,
    /// Whether the process may write to it. What it writes is discarded.
    pub access: Access,
}

/// `type=cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStep {
    /// What it is called; never a path.
    pub id: String,
    /// `BUILDKIT_CACHE_MOUNT_NS`: caches of the same id in different namespaces are different.
    pub namespace: String,
    /// Whose files a new one begins with.
    pub seed: Option<CopyFrom>,
    /// Which file or directory is shown: of the seed, and without one of the cache.
    pub source: GuestPath,
    /// Where it appears; never the root.
    pub target: GuestPath,
    /// Who may use it at the same time.
    pub sharing: Sharing,
    /// Of a new one, if mode, user or group are given.
    pub made: Option<Made>,
    /// Whether the process may write to it.
    pub access: Access,
}

/// What a new directory is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub owner: Owner,
}

impl CacheStep {
    /// Which cache it is. As under BuildKit, those that begin differently are different: `seed` says with what.
    pub(super) fn identity(&self, seed: Option<&str>) -> CacheKey {
        let key = KeyHasher::new("cache mount").value("namespace", &self.namespace).value("id", &self.id);
        let key = match seed {
            None => key,
            Some(seed) => key.value("seed", seed).value("source", self.source.as_bytes()),
        };
        let made = self.made.iter().flat_map(|made| [made.mode, made.owner.uid, made.owner.gid]);
        key.list("made", made.map(u32::to_le_bytes)).finish()
    }
}

/// `type=tmpfs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TmpfsStep {
    /// Where it appears; never the root.
    pub target: GuestPath,
    /// Bytes that it may hold; the kernel's default (half of the memory) without it.
    pub size: Option<u64>,
}

/// `type=secret`. The value is not known here: it is asked for when the step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretStep {
    /// Which secret; a name, never a path.
    pub id: String,
    /// The file; none if only a variable is wanted.
    pub target: Option<GuestPath>,
    /// The variable, if one is wanted.
    pub variable: Option<String>,
    /// Whether the step fails without it.
    pub need: Need,
    /// Permission bits of the file.
    pub mode: u32,
    /// Owner of the file.
    pub owner: Owner,
}

/// `type=ssh`. Whether there is such an agent is asked when the step runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshStep {
    /// Which agent, as far as it is named; a name, never a path.
    pub id: Option<String>,
    /// The socket.
    pub target: GuestPath,
    /// Whether the step fails without it.
    pub need: Need,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Owner of the socket.
    pub owner: Owner,
}

impl SshStep {
    /// The agent of mounts that name none.
    pub const DEFAULT: &str = "default";
}

impl MountStep {
    /// Where something is mounted, if anything is.
    #[must_use]
    pub fn target(&self) -> Option<&GuestPath> {
        match self {
            Self::Bind(bind) => Some(&bind.target),
            Self::Cache(cache) => Some(&cache.target),
            Self::Tmpfs(tmpfs) => Some(&tmpfs.target),
            Self::Secret(secret) => secret.target.as_ref(),
            Self::Ssh(ssh) => Some(&ssh.target),
        }
    }

    /// Bytes of its texts, which may have come from variables.
    pub(super) fn held(&self) -> usize {
        let paths = self.target().map_or(0, |target| target.as_bytes().len());
        paths
            + match self {
                Self::Bind(bind) => bind.source.as_bytes().len(),
                Self::Cache(cache) => cache.id.len() + cache.source.as_bytes().len(),
                Self::Tmpfs(_) => 0,
                Self::Secret(secret) => secret.id.len() + secret.variable.as_ref().map_or(0, String::len),
                Self::Ssh(ssh) => ssh.id.as_ref().map_or(0, String::len),
            }
    }

    /// Whose files are mounted.
    #[must_use]
    pub fn from(&self) -> Option<&CopyFrom> {
        match self {
            Self::Bind(bind) => Some(&bind.from),
            Self::Cache(cache) => cache.seed.as_ref(),
            Self::Tmpfs(_) | Self::Secret(_) | Self::Ssh(_) => None,
        }
    }
}

/// How the options of one RUN are read.
pub(super) struct Resolver<'a> {
    /// Expands a value.
    pub(super) expand: &'a mut dyn FnMut(&Text) -> Result<Text, BuildErrorKind>,
    /// What a `from` names.
    pub(super) from: &'a dyn Fn(&Text) -> Result<CopyFrom, BuildErrorKind>,
    /// What relative targets are relative to.
    pub(super) workdir: &'a GuestPath,
    /// That of caches.
    pub(super) namespace: &'a str,
}

impl Resolver<'_> {
    /// All mounts of a RUN in the order in which they are to be made: by target, those of one target as written. Besides,
    /// where the first agent is that it names.
    ///
    /// # Errors
    /// When an option is wrong, unknown or not supported.
    pub(super) fn resolve(
        &mut self,
        options: &[MountOption],
    ) -> Result<(Vec<MountStep>, Option<GuestPath>), BuildErrorKind> {
        if options.len() > MAX_MOUNTS {
            return Err(BuildErrorKind::Invalid(format!("RUN has more than {MAX_MOUNTS} mounts")));
        }
        let mut mounts = Vec::with_capacity(options.len());
        let mut agents = 0;
        let mut first_agent = None;
        for option in options {
            let mount = option.resolve(self.expand)?;
            let mount = self.one(mount, agents)?;
            if let MountStep::Ssh(ssh) = &mount {
                agents += 1;
                first_agent.get_or_insert_with(|| ssh.target.clone());
            }
            mounts.push(mount);
        }
        // A directory comes before what is in it.
        mounts.sort_by(|a, b| a.target().cmp(&b.target()));
        Ok((mounts, first_agent))
    }

    /// `agents` of those before it are agents.
    fn one(&self, mount: Mount, agents: usize) -> Result<MountStep, BuildErrorKind> {
        match mount {
            Mount::Bind(bind) => self.bind(&bind),
            Mount::Tmpfs(tmpfs) => {
                let target = self.target(&tmpfs.target)?;
                Ok(MountStep::Tmpfs(TmpfsStep { target, size: tmpfs.size }))
            }
            Mount::Secret(secret) => self.secret(&secret),
            Mount::Cache(cache) => self.cache(&cache),
            Mount::Ssh(ssh) => self.ssh(&ssh, agents),
        }
    }

    fn bind(&self, bind: &BindMount) -> Result<MountStep, BuildErrorKind> {
        let from = match &bind.from {
            None => CopyFrom::Context,
            Some(from) => (self.from)(from)?,
        };
        Ok(MountStep::Bind(BindStep {
            from,
            source: GuestPath::clamp(&bind.source)?,
            target: self.target(&bind.target)?,
            access: bind.access,
        }))
    }

    fn cache(&self, cache: &CacheMount) -> Result<MountStep, BuildErrorKind> {
        let source = GuestPath::clamp(&cache.source)?;
        let seed = cache.from.as_ref().map(|from| (self.from)(from)).transpose()?;
        let MountOwner { mode, uid, gid } = cache.owner;
        let owner = Owner { uid: id("uid", uid)?, gid: id("gid", gid)? };
        let is_given = mode.is_some() || uid.is_some() || gid.is_some();
        // What is in a cache has an owner already.
        let made = (is_given && (source.is_root() || seed.is_some()))
            .then(|| Made { mode: mode.unwrap_or(CACHE_MODE) & 0o7777, owner });
        let name = match &cache.id {
            Some(id) => id.to_string(),
            None => cleaned(&cache.target)?,
        };
        Ok(MountStep::Cache(CacheStep {
            id: name,
            namespace: self.namespace.to_owned(),
            // An empty tree is what every cache begins with.
            seed: seed.filter(|seed| *seed != CopyFrom::Scratch),
            source,
            target: self.target(&cache.target)?,
            sharing: cache.sharing,
            made,
            access: cache.access,
        }))
    }

    fn secret(&self, secret: &SecretMount) -> Result<MountStep, BuildErrorKind> {
        let target = secret.target.as_ref().map(|target| self.target(target)).transpose()?;
        let variable = secret.variable.as_ref().map(variable).transpose()?;
        let MountOwner { mode, uid, gid } = secret.owner;
        Ok(MountStep::Secret(SecretStep {
            id: secret.id.to_string(),
            target,
            variable,
            need: secret.need,
            mode: mode.unwrap_or(SECRET_MODE) & 0o7777,
            owner: Owner { uid: id("uid", uid)?, gid: id("gid", gid)? },
        }))
    }

    fn ssh(&self, ssh: &SshMount, number: usize) -> Result<MountStep, BuildErrorKind> {
        let target = match &ssh.target {
            Some(target) => self.target(target)?,
            None => GuestPath::clamp(format!("/run/buildkit/ssh_agent.{number}").as_bytes())?,
        };
        let MountOwner { mode, uid, gid } = ssh.owner;
        Ok(MountStep::Ssh(SshStep {
            id: ssh.id.as_ref().map(Text::to_string),
            target,
            need: ssh.need,
            mode: mode.unwrap_or(SSH_MODE) & 0o777,
            owner: Owner { uid: id("uid", uid)?, gid: id("gid", gid)? },
        }))
    }

    /// Where `written` is. BuildKit's own limits: neither the root nor anything of /proc can be covered. A new /dev would
    /// have no devices.
    fn target(&self, written: &Text) -> Result<GuestPath, BuildErrorKind> {
        let target = self.workdir.join(written)?;
        let refused = {
            let mut components = target.components();
            match (components.next(), components.next()) {
                (None, _) => Some(""),
                (Some(b"proc"), _) | (Some(b"dev"), None) => Some(": the kernel's files are there"),
                _ => None,
            }
        };
        let Some(problem) = refused else { return Ok(target) };
        let shown = Escaped::new(target.as_bytes());
        Err(BuildErrorKind::Invalid(format!("invalid mount target \"{shown}\"{problem}")))
    }
}

/// A target as the name of a cache: as it is written, relative or not, but for dots and slashes that change nothing.
fn cleaned(target: &Text) -> Result<String, BuildErrorKind> {
    let path = GuestPath::clamp(target)?;
    let shown = if target.starts_with(b"/") { path.as_bytes() } else { path.relative() };
    Ok(String::from_utf8_lossy(shown).into_owned())
}

fn variable(name: &Text) -> Result<String, BuildErrorKind> {
    if name.is_empty() || name.contains(&b'=') || name.contains(&0) {
        let message = format!("`{}` is no name of a variable for a secret", Escaped::new(name));
        return Err(BuildErrorKind::Invalid(message));
    }
    Ok(name.to_string())
}

/// To the kernel the largest number means "no change".
fn id(key: &str, given: Option<u32>) -> Result<u32, BuildErrorKind> {
    match given {
        Some(u32::MAX) => Err(BuildErrorKind::Invalid(format!("invalid value {} for {key}", u32::MAX))),
        given => Ok(given.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dockerfile::{Instruction, parse};

    /// The mounts of `RUN OPTIONS true` in `/w`; every name is an image.
    fn mounts(options: &str) -> Result<Vec<MountStep>, String> {
        let file = parse(format!("FROM scratch\nRUN {options} true\n").as_bytes()).unwrap();
        let Instruction::Run(run) = &file.stages[0].instructions[0].value else { panic!() };
        let mut expand = |text: &Text| Ok(if *text == "$t" { "/expanded".into() } else { text.clone() });
        let from = |name: &Text| match name.as_bytes() {
            b"scratch" => Ok(CopyFrom::Scratch),
            _ => Ok(CopyFrom::Image(0)),
        };
        let workdir = GuestPath::clamp(b"/w").unwrap();
        let namespace = "ns";
        let mut resolver = Resolver { expand: &mut expand, from: &from, workdir: &workdir, namespace };
        resolver.resolve(&run.mounts).map(|(mounts, _)| mounts).map_err(|error| error.to_string())
    }

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    #[test]
    fn nothing_is_left_to_resolve() {
        let bind = |from, source, target, access| {
            MountStep::Bind(BindStep { from, source: path(source), target: path(target), access })
        };
        let cache = |id: &str, target| {
            MountStep::Cache(CacheStep {
                id: id.to_owned(),
                namespace: "ns".to_owned(),
                seed: None,
                source: path("/"),
                target: path(target),
                sharing: Sharing::Shared,
                made: None,
                access: Access::ReadWrite,
            })
        };
        let secret = |id: &str, target: Option<&str>, variable: Option<&str>| SecretStep {
            id: id.to_owned(),
            target: target.map(path),
            variable: variable.map(str::to_owned),
            need: Need::Optional,
            mode: 0o400,
            owner: Owner::ROOT,
        };
        for (options, expected) in [
            ("--mount=target=m", bind(CopyFrom::Context, "/", "/w/m", Access::ReadOnly)),
            (
                "--mount=target=$t,src=../a/./b,rw",
                bind(CopyFrom::Context, "/a/b", "/expanded", Access::ReadWrite),
            ),
            ("--mount=from=scratch,target=/m", bind(CopyFrom::Scratch, "/", "/m", Access::ReadOnly)),
            ("--mount=from=3,target=/m/", bind(CopyFrom::Image(0), "/", "/m", Access::ReadOnly)),
            ("--mount=target=", bind(CopyFrom::Context, "/", "/w", Access::ReadOnly)),
            (
                "--mount=type=tmpfs,target=/t,size=1k",
                MountStep::Tmpfs(TmpfsStep { target: path("/t"), size: Some(1024) }),
            ),
            ("--mount=type=cache,target=./c/../d/", cache("d", "/w/d")),
            ("--mount=type=cache,target=//c/,id=../x", cache("../x", "/c")),
            ("--mount=type=secret,id=s", MountStep::Secret(secret("s", Some("/run/secrets/s"), None))),
            ("--mount=type=secret,target=s", MountStep::Secret(secret("s", Some("/w/s"), None))),
            ("--mount=type=secret,id=../x,env=X", MountStep::Secret(secret("../x", None, Some("X")))),
            (
                "--mount=type=secret,id=s,mode=07777,uid=1,gid=2,required",
                MountStep::Secret(SecretStep {
                    need: Need::Required,
                    mode: 0o7777,
                    owner: Owner { uid: 1, gid: 2 },
                    ..secret("s", Some("/run/secrets/s"), None)
                }),
            ),
        ] {
            assert_eq!(mounts(options).as_deref(), Ok(&[expected][..]), "{options}");
        }
    }

    #[test]
    fn agents_are_numbered_as_written_and_the_first_one_counts() {
        let options = "--mount=type=ssh,required --mount=type=tmpfs,target=/t --mount=type=ssh,id=x,target=/a,mode=07666,uid=5,gid=6 \
             --mount=type=ssh";
        let found = mounts(options).unwrap();
        let agent = |id: Option<&str>, target, need, mode, owner| {
            MountStep::Ssh(SshStep { id: id.map(str::to_owned), target: path(target), need, mode, owner })
        };
        let usual = |target, need| agent(None, target, need, 0o600, Owner::ROOT);
        assert_eq!(found[0], agent(Some("x"), "/a", Need::Optional, 0o666, Owner { uid: 5, gid: 6 }));
        assert_eq!(found[1], usual("/run/buildkit/ssh_agent.0", Need::Required));
        assert_eq!(found[2], usual("/run/buildkit/ssh_agent.2", Need::Optional));
    }

    #[test]
    fn caches_that_begin_differently_are_different() {
        let cache = |options: &str| match mounts(&format!("--mount=type=cache,target=/c,{options}"))
            .unwrap()
            .remove(0)
        {
            MountStep::Cache(cache) => cache,
            other => panic!("{other:?}"),
        };
        let same = [
            "id=x",
            "id=x,from=scratch",
            "id=x,ro,sharing=locked",
            "id=x,source=/sub",
            "id=x,source=/sub,uid=1",
        ];
        let different = ["id=y", "id=x,mode=0700", "id=x,mode=0755", "id=x,uid=1", "id=x,gid=1"];
        let usual = cache("id=x").identity(None);
        for options in same {
            assert_eq!(cache(options).identity(None), usual, "{options}");
        }
        let mut seen = std::collections::BTreeSet::from([usual]);
        for options in different {
            assert!(seen.insert(cache(options).identity(None)), "{options}");
        }
        for (options, seed) in [("ro", "1"), ("ro", "2"), ("source=/a", "1"), ("source=/b", "1")] {
            assert!(
                seen.insert(cache(&format!("id=x,from=3,{options}")).identity(Some(seed))),
                "{options} {seed}"
            );
        }
        let elsewhere = CacheStep { namespace: "other".to_owned(), ..cache("id=x") };
        assert!(seen.insert(elsewhere.identity(None)));
        assert_eq!(cache("mode=07777").made, Some(Made { mode: 0o7777, owner: Owner::ROOT }));
        assert_eq!(cache("source=a,mode=0700").made, None, "what is in a cache has a mode");
    }

    #[test]
    fn directories_are_mounted_before_what_is_in_them() {
        let found = mounts(
            "--mount=type=tmpfs,target=/a-b --mount=type=tmpfs,target=/a/b --mount=target=/a --mount=type=tmpfs,target=/a \
             --mount=type=secret,id=x,env=X",
        )
        .unwrap();
        let targets: Vec<Option<String>> =
            found.iter().map(|mount| mount.target().map(ToString::to_string)).collect();
        assert_eq!(
            targets.iter().map(Option::as_deref).collect::<Vec<_>>(),
            [None, Some("/a"), Some("/a"), Some("/a/b"), Some("/a-b")]
        );
        assert!(matches!(found[2], MountStep::Tmpfs(_)), "of one target the later one lies on top");
    }

    #[test]
    fn what_no_process_can_be_given_is_refused() {
        for (options, message) in [
            ("--mount=type=secret,id=s,uid=4294967295", "invalid value 4294967295 for uid"),
            ("--mount=type=secret,id=s,env=", "`` is no name of a variable for a secret"),
            ("--mount=type=secret,id=s,env=A=B", "`A=B` is no name of a variable for a secret"),
            (
                "--mount=type=tmpfs,target=/proc",
                "invalid mount target \"/proc\": the kernel's files are there",
            ),
            (
                "--mount=type=tmpfs,target=/x/../dev",
                "invalid mount target \"/dev\": the kernel's files are there",
            ),
            ("--mount=type=cache,target=/c,gid=4294967295", "invalid value 4294967295 for gid"),
            ("--mount=type=cache,target=/.", "invalid mount target \"/\""),
            (
                "--mount=type=ssh,target=/proc/a",
                "invalid mount target \"/proc/a\": the kernel's files are there",
            ),
            ("--mount=type=ssh,uid=4294967295", "invalid value 4294967295 for uid"),
        ] {
            assert_eq!(mounts(options), Err(message.to_owned()), "{options}");
        }
        assert!(mounts("--mount=type=tmpfs,target=/dev/x").is_ok());
    }
}
