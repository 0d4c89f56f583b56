//! What a result depends on: the only place that says so.
//!
//! Every step has a key for its content, made from that of the step below it. Config is in none of them: it comes from
//! the Dockerfile every time. A step that copies from a stage or an image has, besides, a key for its definition, which
//! is known without looking at any file.

use super::copy::{self, Form, Parents};
use super::mount::{BindStep, CacheStep, MountStep, SecretStep, SshStep, TmpfsStep};
use super::remote::RemoteStep;
use super::step::{Archives, CopyFrom, CopyStep, PlannedStep, RunStep, Step, WorkdirStep};
use crate::cache::{CacheKey, KeyHasher};
use crate::dockerfile::{Mode, Need};
use crate::image::digest::{ChainId, DiffId, Digest};
use crate::image::manifest::{Image, Layer};
use crate::image::platform::Platform;
use crate::rootfs::GuestPath;
use crate::sandbox::{Network, Security, View};

/// To be changed whenever a step does something else than before, or a key is made in another way.
const VERSION: &str = "6";

/// The keys of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepKeys {
    /// What is known of the step without looking at files.
    pub definition: CacheKey,
    /// What the result depends on, and what the next step starts from; none where only files tell.
    pub content: Option<CacheKey>,
}

/// What is known of the files that a step reads from elsewhere.
#[derive(Debug, Clone, Copy)]
pub enum Elsewhere<'a> {
    /// It reads none.
    Nothing,
    /// The hash of those that it selects.
    Content(&'a Digest),
    /// The tree in which it selects them, which is that of a stage or an image; none is an empty one.
    Tree(Option<&'a ChainId>),
    /// What is known of those of each bind mount, in order.
    Mounts(&'a [Elsewhere<'a>]),
}

impl Elsewhere<'_> {
    /// Whether only a look at files tells what they are.
    fn is_open(&self) -> bool {
        match self {
            Self::Nothing | Self::Content(_) => false,
            Self::Tree(_) => true,
            Self::Mounts(mounts) => mounts.iter().any(Elsewhere::is_open),
        }
    }
}

/// The key that a stage on `image` begins with: its layers count, nothing else of it. `restriction` says what files cannot
/// have where it is built; builds without such a restriction share nothing with it.
#[must_use]
pub fn start(image: &Image, restriction: Option<&str>) -> CacheKey {
    let tree = tree(image.layers());
    keyed("start").optional("tree", tree.as_ref().map(hex)).optional("restriction", restriction).finish()
}

/// Which files `layers` make up: none where there are none. Layers that change nothing do not count.
#[must_use]
pub fn tree(layers: &[Layer]) -> Option<ChainId> {
    let empty = empty_layer();
    let counting = layers.iter().filter(|layer| layer.diff_id != empty);
    counting.fold(None, |below: Option<ChainId>, layer| {
        Some(match below {
            Some(below) => below.with(&layer.diff_id),
            None => ChainId::base(&layer.diff_id),
        })
    })
}

/// The layer without entries: the end of an archive and nothing else.
#[must_use]
pub fn empty_layer() -> DiffId {
    DiffId(Digest::of(&[0; 1024]))
}

/// What a RUN finds that is no file of its image.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    /// Mounts and processes.
    pub view: &'a View,
    /// The CPU that an emulator was told to play.
    pub cpu: Option<&'a str>,
}

/// The keys of `step`, in a stage for `platform`, on top of a step with the content key `parent`, where a RUN finds `around`
/// it.
#[must_use]
pub fn step_keys(
    parent: &CacheKey,
    step: &Step,
    platform: &Platform,
    around: Around<'_>,
    files: &Elsewhere<'_>,
) -> StepKeys {
    let key = match step {
        // Nothing happens to any file.
        Step::Config => return StepKeys { definition: parent.clone(), content: Some(parent.clone()) },
        Step::Workdir(workdir) => of_workdir(workdir),
        Step::Copy(copy) => of_copy(copy, files),
        Step::Run(run) => of_run(run, platform, around, files),
    };
    let definition = key.value("parent", hash(parent)).finish();
    let content = (!files.is_open()).then(|| definition.clone());
    StepKeys { definition, content }
}

/// What a step depends on that puts a layer on top of steps with the content key `parent`; the same step on nothing has the
/// key `alone`.
#[must_use]
pub fn on_top(parent: &CacheKey, alone: &CacheKey) -> CacheKey {
    keyed("on top").value("parent", hash(parent)).value("alone", hash(alone)).finish()
}

/// What several steps that make one layer depend on, the last of which has the content key `last`.
#[must_use]
pub fn together(last: &CacheKey) -> CacheKey {
    keyed("steps of one layer").value("last", hash(last)).finish()
}

/// The key of a step's `parent` as that of a step which adds files from elsewhere has it: with the `identities` of these.
#[must_use]
pub fn with_remotes(parent: &CacheKey, identities: &[Digest]) -> CacheKey {
    keyed("remote")
        .value("parent", hash(parent))
        .list("identities", identities.iter().map(Digest::hex))
        .finish()
}

/// Where the time of an image is remembered that has no layers but those of its base, whose key is `start`.
#[must_use]
pub fn time<'a>(start: &CacheKey, steps: impl IntoIterator<Item = &'a PlannedStep>) -> CacheKey {
    let rows = steps.into_iter().filter_map(|step| step.created_by.as_ref());
    keyed("time").value("start", hash(start)).list("rows", rows).finish()
}

fn of_workdir(step: &WorkdirStep) -> KeyHasher {
    let WorkdirStep { path, user } = step;
    // What is made belongs to the user, whatever number that is in the files below.
    keyed("workdir").value("path", path.as_bytes()).value("user", user.as_bytes())
}

fn of_copy(step: &CopyStep, files: &Elsewhere<'_>) -> KeyHasher {
    // COPY and ADD differ in what becomes of archives.
    let CopyStep {
        kind: _,
        archives,
        from,
        sources,
        remotes,
        inline,
        destination,
        workdir,
        chown,
        chmod,
        exclude,
        parents,
        // It is what the key is put on top of: see [`on_top`].
        onto: _,
    } = step;
    let archives = match archives {
        Archives::Extract => "extract",
        Archives::Keep => "keep",
    };
    let key = match copy::destination(workdir, destination) {
        Ok((path, Form::Directory)) => keyed("copy").value("directory", path.as_bytes()),
        Ok((path, Form::Any)) => keyed("copy").value("destination", path.as_bytes()),
        // The copy will fail for the same reason.
        Err(_) => keyed("copy").list("unusable", [workdir.as_bytes(), destination.as_bytes()]),
    };
    let key = key
        .value("origin", origin(from))
        .optional("chown", chown.as_ref())
        .optional("chmod", chmod.as_ref().map(Mode::identity))
        .value("archives", archives)
        .list("inline", inline.iter().flat_map(|(name, content)| [name.as_bytes(), content.as_bytes()]));
    let key = match parents {
        Parents::Dropped => key,
        Parents::Kept => key.value("parents", "kept"),
    };
    // As the sources: where it is known what is copied, what is not copied does not count. Of what is elsewhere only the
    // whole is known.
    let is_open = matches!(files, Elsewhere::Tree(_)) || !remotes.is_empty();
    let key = match exclude.patterns.as_slice() {
        patterns if is_open && !patterns.is_empty() => {
            key.list("exclude", patterns.iter().map(|pattern| pattern.as_bytes()))
        }
        _ => key,
    };
    let key = remotes.iter().fold(key, of_remote);
    let key = match remotes.as_slice() {
        [] => key,
        // Which of the files come before them: one of the same name replaces the other.
        _ => key.list("between", sources.iter().map(|source| source.as_bytes())),
    };
    of_files(key, files, sources.iter().map(|source| source.as_bytes()))
}

/// What it is and how it is called is in its identity, which the key of the step below is made with.
fn of_remote(key: KeyHasher, step: &RemoteStep) -> KeyHasher {
    let RemoteStep { after, archives, remote: _ } = step;
    let archives = match archives {
        Archives::Extract => "extract",
        Archives::Keep => "keep",
    };
    key.value("remote after", after.to_le_bytes()).value("remote archives", archives)
}

/// Files of a context get another owner. Which context, stage or image it is does not count: its files do.
fn origin(from: &CopyFrom) -> &'static str {
    match from {
        CopyFrom::Context | CopyFrom::Named(_) => "context",
        CopyFrom::Scratch | CopyFrom::Stage(_) | CopyFrom::Image(_) => "tree",
    }
}

/// What is known of the files that `sources` select.
fn of_files<'s>(
    key: KeyHasher,
    files: &Elsewhere<'_>,
    sources: impl IntoIterator<Item = &'s [u8]>,
) -> KeyHasher {
    match files {
        Elsewhere::Nothing | Elsewhere::Mounts(_) => key.value("files", "none"),
        // What was selected, and how it is called, is in there.
        Elsewhere::Content(digest) => key.value("content", digest.hex()),
        Elsewhere::Tree(tree) => key.optional("tree", tree.map(hex)).list("sources", sources),
    }
}

fn of_run(step: &RunStep, platform: &Platform, around: Around<'_>, files: &Elsewhere<'_>) -> KeyHasher {
    // Proxies belong to the machine that builds, and `shown` says what `args` says.
    let RunStep {
        args,
        env,
        proxies: _,
        workdir,
        user,
        script,
        mounts,
        network,
        security,
        hostname,
        hosts,
        shm_size,
        limits,
        shown: _,
    } = step;
    let security = match security {
        Security::Confined => "confined",
        Security::Unconfined => "unconfined",
    };
    let network = match network {
        Network::Shared => "shared",
        Network::None => "none",
    };
    let (view, covered) = match around.view {
        View::Own => ("own", [].as_slice()),
        View::SharedProcesses => ("shared processes", [].as_slice()),
        View::WithoutMounts => ("without mounts", [].as_slice()),
        View::Container { mounts } => ("container", mounts.as_slice()),
    };
    let env = env.list();
    let key = keyed("run")
        .list("args", args)
        .list("env", env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]))
        .value("workdir", workdir.as_bytes())
        .value("user", user.as_bytes())
        .value("network", network)
        .value("security", security)
        .value("hostname", hostname)
        .list("hosts", hosts.iter().flat_map(|host| [host.name.clone(), host.address.to_string()]))
        .optional("shm size", shm_size.map(u64::to_le_bytes))
        .list("limits", limits.iter().map(ToString::to_string))
        .value("view", view)
        .list("covered", covered.iter().map(GuestPath::as_bytes))
        .list("script", script.iter().flat_map(|(name, content)| [name.as_bytes(), content.as_bytes()]))
        .value("os", &platform.os)
        .value("architecture", &platform.architecture)
        .optional("variant", platform.variant.as_ref())
        .optional("cpu", around.cpu);
    let mut known = match files {
        Elsewhere::Mounts(known) => known.iter(),
        _ => [].iter(),
    };
    mounts.iter().fold(key, |key, mount| of_mount(key, mount, &mut known))
}

fn of_mount<'f>(
    key: KeyHasher,
    mount: &MountStep,
    known: &mut impl Iterator<Item = &'f Elsewhere<'f>>,
) -> KeyHasher {
    match mount {
        MountStep::Bind(BindStep { from, source, target, access }) => {
            let key = key
                .value("bind", target.as_bytes())
                .value("origin", origin(from))
                .value("access", access.word());
            of_files(key, known.next().unwrap_or(&Elsewhere::Nothing), [source.as_bytes()])
        }
        // What is in the cache is nobody's business either: only what a new one begins with counts.
        MountStep::Cache(CacheStep { id, namespace, seed, source, target, sharing, made, access }) => {
            let made = made.iter().flat_map(|made| [made.mode, made.owner.uid, made.owner.gid]);
            let key = key
                .value("cache", target.as_bytes())
                .value("namespace", namespace)
                .value("id", id)
                .value("sharing", sharing.word())
                .list("made", made.map(u32::to_le_bytes))
                .value("access", access.word());
            match seed {
                None => key.value("source", source.as_bytes()),
                Some(from) => {
                    let key = key.value("origin", origin(from));
                    of_files(key, known.next().unwrap_or(&Elsewhere::Nothing), [source.as_bytes()])
                }
            }
        }
        MountStep::Tmpfs(TmpfsStep { target, size }) => {
            key.value("tmpfs", target.as_bytes()).optional("size", size.map(u64::to_le_bytes))
        }
        // The value is nobody's business: another token gives the same result. Whether there is one counts as little.
        MountStep::Secret(SecretStep { id, target, variable, need, mode, owner }) => key
            .value("secret", id)
            .optional("target", target.as_ref().map(GuestPath::as_bytes))
            .optional("variable", variable.as_ref())
            .value("need", necessity(*need))
            .list("file", [mode, &owner.uid, &owner.gid].map(|number| number.to_le_bytes())),
        // Nor are the keys that the agent has.
        MountStep::Ssh(SshStep { id, target, need, mode, owner }) => key
            .value("agent", target.as_bytes())
            .optional("id", id.as_ref())
            .value("need", necessity(*need))
            .list("file", [mode, &owner.uid, &owner.gid].map(|number| number.to_le_bytes())),
    }
}

fn necessity(need: Need) -> &'static str {
    match need {
        Need::Optional => "optional",
        Need::Required => "required",
    }
}

fn keyed(kind: &str) -> KeyHasher {
    KeyHasher::new(kind).value("version", VERSION)
}

fn hash(key: &CacheKey) -> &str {
    key.digest().hex()
}

fn hex(chain: &ChainId) -> &str {
    chain.digest().hex()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use std::net::{IpAddr, Ipv4Addr};

    use super::super::mount::Made;
    use super::super::remote::Remote;
    use super::super::run_settings::ExtraHost;
    use super::*;
    use crate::build::scope::Variables;
    use crate::build::step::{Exclude, Onto};
    use crate::context::IgnoreRules;
    use crate::context::UrlSource;
    use crate::dockerfile::{Access, Sharing, Span, Text, TransferKind};
    use crate::image::descriptor::{Descriptor, media_type};
    use crate::image::manifest::Origin;
    use crate::rootfs::Owner;
    use crate::sandbox::ResourceLimit;

    fn path(text: &str) -> GuestPath {
        GuestPath::clamp(text.as_bytes()).unwrap()
    }

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        Variables::of(pairs.iter().copied())
    }

    fn run() -> RunStep {
        RunStep {
            args: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), b"make".to_vec()],
            env: variables(&[("PATH", "/bin"), ("A", "1")]),
            proxies: variables(&[("http_proxy", "p")]),
            workdir: path("/w").into(),
            user: "user".into(),
            script: None,
            mounts: vec![bind(), tmpfs(), secret()],
            network: Network::Shared,
            security: Security::Confined,
            hostname: "buildkitsandbox".to_owned(),
            hosts: Arc::default(),
            shm_size: None,
            limits: Arc::default(),
            shown: "/bin/sh -c make".to_owned(),
        }
    }

    fn limit(name: &str, soft: Option<u64>) -> ResourceLimit {
        ResourceLimit::named(name, soft, None).unwrap()
    }

    fn bind() -> MountStep {
        MountStep::Bind(bind_step())
    }

    fn bind_step() -> BindStep {
        let (source, target) = (path("/src"), path("/m"));
        BindStep { from: CopyFrom::Stage(0), source, target, access: Access::ReadOnly }
    }

    fn cache_step() -> CacheStep {
        CacheStep {
            id: "id".to_owned(),
            namespace: String::new(),
            seed: Some(CopyFrom::Stage(0)),
            source: path("/src"),
            target: path("/c"),
            sharing: Sharing::Shared,
            made: None,
            access: Access::ReadWrite,
        }
    }

    fn ssh_step() -> SshStep {
        SshStep { id: None, target: path("/a"), need: Need::Optional, mode: 0o600, owner: Owner::ROOT }
    }

    fn tmpfs_step() -> TmpfsStep {
        TmpfsStep { target: path("/t"), size: None }
    }

    fn tmpfs() -> MountStep {
        MountStep::Tmpfs(tmpfs_step())
    }

    fn secret_step() -> SecretStep {
        SecretStep {
            id: "id".to_owned(),
            target: Some(path("/run/secrets/id")),
            variable: None,
            need: Need::Optional,
            mode: 0o400,
            owner: Owner::ROOT,
        }
    }

    fn secret() -> MountStep {
        MountStep::Secret(secret_step())
    }

    fn copy() -> CopyStep {
        CopyStep {
            kind: TransferKind::Copy,
            archives: Archives::Keep,
            from: CopyFrom::Stage(0),
            sources: vec![Text::from("a"), Text::from("b")],
            remotes: Vec::new(),
            inline: vec![(Text::from("EOF"), Text::from("body"))],
            destination: Text::from("d/"),
            workdir: path("/w").into(),
            chown: None,
            chmod: None,
            exclude: exclude(&["*.o"]),
            parents: Parents::Dropped,
            onto: Onto::Stage,
        }
    }

    fn remote(after: usize, archives: Archives) -> RemoteStep {
        let url = UrlSource::parse("http://h/x").unwrap();
        RemoteStep { after, archives, remote: Remote::File { url, checksum: None } }
    }

    fn workdir() -> WorkdirStep {
        WorkdirStep { path: path("/w"), user: "user".into() }
    }

    fn platform(text: &str) -> Platform {
        let mut words = text.split('/');
        let (os, architecture) = (words.next().unwrap(), words.next().unwrap());
        Platform::new(os, architecture, words.next())
    }

    const ALONE: Around<'_> = Around { view: &View::Own, cpu: None };

    fn parent() -> CacheKey {
        keyed("parent").finish()
    }

    fn key(step: &Step, files: &Elsewhere<'_>) -> CacheKey {
        step_keys(&parent(), step, &platform("linux/arm/v7"), ALONE, files).definition
    }

    /// A change of one field, and whether it changes the key.
    type Change<T> = (&'static str, bool, fn(&mut T));

    /// Every field must be in `fields`, and every one of them among the changes.
    fn check<T>(fields: &[&str], changes: &[Change<T>], make: fn() -> T, key: impl Fn(T) -> CacheKey) {
        let mut seen: BTreeMap<CacheKey, &str> = BTreeMap::from([(key(make()), "nothing")]);
        for (what, counts, change) in changes {
            let mut changed = make();
            change(&mut changed);
            let before = seen.insert(key(changed), what);
            assert_eq!(before.is_none(), *counts, "{what}, compared with {before:?}");
        }
        for field in fields {
            let prefix = format!("{field}:");
            assert!(changes.iter().any(|(what, _, _)| what.starts_with(&prefix)), "`{field}` is not changed");
        }
    }

    #[test]
    fn every_field_of_run_counts_or_is_left_out_on_purpose() {
        // A new field must be named here, and changed below.
        let RunStep {
            args: _,
            env: _,
            proxies: _,
            workdir: _,
            user: _,
            script: _,
            mounts: _,
            network: _,
            security: _,
            hostname: _,
            hosts: _,
            shm_size: _,
            limits: _,
            shown: _,
        } = run();
        let fields = [
            "args", "env", "proxies", "workdir", "user", "script", "mounts", "network", "security",
            "hostname", "hosts", "shm_size", "limits", "shown",
        ];
        const HOST: ExtraHost =
            ExtraHost { name: String::new(), address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)) };
        let changes: &[Change<RunStep>] = &[
            ("args: text", true, |run| run.args[2] = b"make ".to_vec()),
            ("args: shell", true, |run| run.args[0] = b"/bin/bash".to_vec()),
            ("args: split elsewhere", true, |run| {
                run.args = vec![b"/bin/sh".to_vec(), b"-cmake".to_vec()];
            }),
            ("env: value", true, |run| run.env = variables(&[("PATH", "/bin"), ("A", "2")])),
            ("env: name", true, |run| run.env = variables(&[("PATH", "/bin"), ("B", "1")])),
            ("env: one more", true, |run| run.env = variables(&[("PATH", "/bin"), ("A", "1"), ("B", "")])),
            ("env: moved", true, |run| run.env = variables(&[("PATH", "/binA"), ("", "1")])),
            ("proxies: none", false, |run| run.proxies = variables(&[])),
            ("workdir: another", true, |run| run.workdir = path("/w/w").into()),
            ("user: the same by number", true, |run| run.user = "1000".into()),
            ("user: none", true, |run| run.user = "".into()),
            ("script: one", true, |run| run.script = Some((Text::from("EOF"), Text::from("#!x")))),
            ("script: another", true, |run| run.script = Some((Text::from("EOF"), Text::from("#!y")))),
            ("script: another name", true, |run| run.script = Some((Text::from("E"), Text::from("OF#!x")))),
            ("mounts: none", true, |run| run.mounts.clear()),
            ("mounts: one less", true, |run| drop(run.mounts.pop())),
            ("mounts: order", true, |run| run.mounts.reverse()),
            ("network: none", true, |run| run.network = Network::None),
            ("security: all", true, |run| run.security = Security::Unconfined),
            ("hostname: another", true, |run| run.hostname = "other".to_owned()),
            ("hosts: one", true, |run| run.hosts = [HOST].into()),
            ("hosts: another name", true, |run| {
                run.hosts = [ExtraHost { name: "a".to_owned(), ..HOST }].into()
            }),
            ("hosts: another address", true, |run| {
                run.hosts = [ExtraHost { address: IpAddr::V4(Ipv4Addr::LOCALHOST), ..HOST }].into();
            }),
            ("shm_size: one", true, |run| run.shm_size = Some(1)),
            ("limits: one", true, |run| run.limits = [limit("nofile", Some(1))].into()),
            ("limits: another", true, |run| run.limits = [limit("nproc", Some(1))].into()),
            ("limits: none", true, |run| run.limits = [limit("nofile", None)].into()),
            ("shown: other", false, |run| run.shown = "make".to_owned()),
        ];
        check(&fields, changes, run, |run| key(&Step::Run(Box::new(run)), &Elsewhere::Nothing));
    }

    #[test]
    fn every_field_of_mounts_counts_or_is_left_out_on_purpose() {
        // A new field must be named here, and changed below.
        let BindStep { from: _, source: _, target: _, access: _ } = bind_step();
        let bind_fields = ["from", "source", "target", "access"];
        let bind_changes = |source: bool| -> Vec<Change<BindStep>> {
            vec![
                ("from: another stage", false, |bind| bind.from = CopyFrom::Stage(7)),
                ("from: the context", true, |bind| bind.from = CopyFrom::Context),
                ("from: a named context", false, |bind| bind.from = CopyFrom::Named(3)),
                ("source: another", source, |bind| bind.source = path("/other")),
                ("target: another", true, |bind| bind.target = path("/n")),
                ("access: rw", true, |bind| bind.access = Access::ReadWrite),
            ]
        };
        let of = |mount: MountStep, files: &Elsewhere<'_>| {
            key(&Step::Run(Box::new(RunStep { mounts: vec![mount], ..run() })), &Elsewhere::Mounts(&[*files]))
        };
        let content = Digest::of(b"1");
        check(&bind_fields, &bind_changes(false), bind_step, |bind| {
            of(MountStep::Bind(bind), &Elsewhere::Content(&content))
        });
        let chain = ChainId::base(&DiffId(content.clone()));
        check(&bind_fields, &bind_changes(true), bind_step, |bind| {
            of(MountStep::Bind(bind), &Elsewhere::Tree(Some(&chain)))
        });
        let TmpfsStep { target: _, size: _ } = tmpfs_step();
        let changes: &[Change<TmpfsStep>] = &[
            ("target: another", true, |tmpfs| tmpfs.target = path("/u")),
            ("size: zero", true, |tmpfs| tmpfs.size = Some(0)),
            ("size: one", true, |tmpfs| tmpfs.size = Some(1)),
        ];
        let alone =
            |mount| key(&Step::Run(Box::new(RunStep { mounts: vec![mount], ..run() })), &Elsewhere::Nothing);
        check(&["target", "size"], changes, tmpfs_step, |tmpfs| alone(MountStep::Tmpfs(tmpfs)));
        let CacheStep { id: _, namespace: _, seed: _, source: _, target: _, sharing: _, made: _, access: _ } =
            cache_step();
        let cache_fields = ["id", "namespace", "seed", "source", "target", "sharing", "made", "access"];
        let cache_changes = |source: bool| -> Vec<Change<CacheStep>> {
            vec![
                ("id: another", true, |cache| cache.id = "other".to_owned()),
                ("namespace: one", true, |cache| cache.namespace = "n".to_owned()),
                ("seed: another stage", false, |cache| cache.seed = Some(CopyFrom::Stage(7))),
                ("seed: none", true, |cache| cache.seed = None),
                ("source: another", source, |cache| cache.source = path("/other")),
                ("target: another", true, |cache| cache.target = path("/n")),
                ("sharing: locked", true, |cache| cache.sharing = Sharing::Locked),
                ("sharing: private", true, |cache| cache.sharing = Sharing::Private),
                ("made: mode", true, |cache| cache.made = Some(Made { mode: 0, owner: Owner::ROOT })),
                ("made: another mode", true, |cache| cache.made = Some(Made { mode: 1, owner: Owner::ROOT })),
                ("access: ro", true, |cache| cache.access = Access::ReadOnly),
            ]
        };
        check(&cache_fields, &cache_changes(false), cache_step, |cache| {
            of(MountStep::Cache(cache), &Elsewhere::Content(&content))
        });
        check(&cache_fields, &cache_changes(true), cache_step, |cache| {
            of(MountStep::Cache(cache), &Elsewhere::Tree(Some(&chain)))
        });
        let SecretStep { id: _, target: _, variable: _, need: _, mode: _, owner: _ } = secret_step();
        let changes: &[Change<SecretStep>] = &[
            ("id: another", true, |secret| secret.id = "other".to_owned()),
            ("target: none", true, |secret| secret.target = None),
            ("target: another", true, |secret| secret.target = Some(path("/x"))),
            ("variable: one", true, |secret| secret.variable = Some("TOKEN".to_owned())),
            ("need: required", true, |secret| secret.need = Need::Required),
            ("mode: another", true, |secret| secret.mode = 0o440),
            ("owner: user", true, |secret| secret.owner.uid = 1),
            ("owner: group", true, |secret| secret.owner.gid = 1),
        ];
        check(&["id", "target", "variable", "need", "mode", "owner"], changes, secret_step, |secret| {
            alone(MountStep::Secret(secret))
        });
        let SshStep { id: _, target: _, need: _, mode: _, owner: _ } = ssh_step();
        let changes: &[Change<SshStep>] = &[
            ("id: one", true, |ssh| ssh.id = Some("default".to_owned())),
            ("target: another", true, |ssh| ssh.target = path("/x")),
            ("need: required", true, |ssh| ssh.need = Need::Required),
            ("mode: another", true, |ssh| ssh.mode = 0o660),
            ("owner: user", true, |ssh| ssh.owner.uid = 1),
            ("owner: group", true, |ssh| ssh.owner.gid = 1),
        ];
        check(&["id", "target", "need", "mode", "owner"], changes, ssh_step, |ssh| {
            alone(MountStep::Ssh(ssh))
        });
    }

    #[test]
    fn what_one_mount_shows_is_not_taken_for_what_another_does() {
        let [one, two] = [Digest::of(b"1"), Digest::of(b"2")];
        let chain = ChainId::base(&DiffId(one.clone()));
        let step = Step::Run(Box::new(RunStep { mounts: vec![bind(), secret(), bind()], ..run() }));
        let (one, two, tree) =
            (Elsewhere::Content(&one), Elsewhere::Content(&two), Elsewhere::Tree(Some(&chain)));
        let all = [[one, two], [two, one], [one, one], [tree, one], [one, tree], [tree, tree]];
        let of = |known: &[Elsewhere<'_>]| {
            step_keys(&parent(), &step, &platform("linux/amd64"), ALONE, &Elsewhere::Mounts(known))
        };
        let keys: std::collections::BTreeSet<_> = all.iter().map(|known| of(known).definition).collect();
        assert_eq!(keys.len(), all.len());
        let known: Vec<bool> = all.iter().map(|known| of(known).content.is_some()).collect();
        assert_eq!(known, [true, true, true, false, false, false]);
    }

    #[test]
    fn a_run_is_for_one_platform_and_a_copy_for_all() {
        let keys = |step: &Step| {
            let platforms = ["linux/arm/v5", "linux/arm/v7", "linux/arm64", "linux/amd64", "linux/amd64/v3"];
            let keys: std::collections::BTreeSet<CacheKey> = platforms
                .iter()
                .map(|text| {
                    step_keys(&parent(), step, &platform(text), ALONE, &Elsewhere::Nothing).definition
                })
                .collect();
            keys.len()
        };
        assert_eq!(keys(&Step::Run(Box::new(run()))), 5);
        assert_eq!(keys(&Step::Copy(Box::new(copy()))), 1);
        assert_eq!(keys(&Step::Workdir(Box::new(workdir()))), 1);
    }

    #[test]
    fn a_run_is_for_those_who_find_the_same_around_it_and_a_copy_for_all() {
        let container =
            |mounts: &[&str]| View::Container { mounts: mounts.iter().map(|at| path(at)).collect() };
        let views = [
            View::Own,
            View::SharedProcesses,
            View::WithoutMounts,
            container(&[]),
            container(&["/data"]),
            container(&["/data", "/etc/ssl/certs"]),
        ];
        let keys = |step: &Step| {
            let of =
                |around| step_keys(&parent(), step, &platform("linux/amd64"), around, &Elsewhere::Nothing);
            let around = views.iter().map(|view| Around { view, cpu: None });
            let cpus = ["max", "Nehalem"].map(|cpu| Around { cpu: Some(cpu), ..ALONE });
            let keys: std::collections::BTreeSet<CacheKey> =
                around.chain(cpus).map(|around| of(around).definition).collect();
            keys.len()
        };
        assert_eq!(keys(&Step::Run(Box::new(run()))), views.len() + 2);
        assert_eq!(keys(&Step::Copy(Box::new(copy()))), 1);
        assert_eq!(keys(&Step::Workdir(Box::new(workdir()))), 1);
    }

    fn exclude(patterns: &[&str]) -> Exclude {
        let rules = IgnoreRules::of_patterns(patterns.iter().map(|pattern| pattern.as_bytes())).unwrap();
        Exclude { patterns: patterns.iter().map(|pattern| Text::from(*pattern)).collect(), rules }
    }

    const COPY_FIELDS: [&str; 13] = [
        "kind",
        "archives",
        "from",
        "sources",
        "remotes",
        "inline",
        "destination",
        "workdir",
        "chown",
        "chmod",
        "exclude",
        "parents",
        "onto",
    ];

    /// What counts of COPY; the sources only where it is not known yet what they stand for.
    fn copy_changes(sources: bool) -> Vec<Change<CopyStep>> {
        vec![
            ("kind: ADD", false, |copy| copy.kind = TransferKind::Add),
            ("archives: extracted", true, |copy| copy.archives = Archives::Extract),
            ("from: another stage", false, |copy| copy.from = CopyFrom::Stage(7)),
            ("from: an image", false, |copy| copy.from = CopyFrom::Image(0)),
            ("from: the context", true, |copy| copy.from = CopyFrom::Context),
            ("from: a named context", false, |copy| copy.from = CopyFrom::Named(3)),
            ("sources: another", sources, |copy| copy.sources[0] = Text::from("c")),
            ("sources: order", sources, |copy| copy.sources.reverse()),
            ("inline: body", true, |copy| copy.inline[0].1 = Text::from("other")),
            ("inline: name", true, |copy| copy.inline[0].0 = Text::from("EO")),
            ("inline: none", true, |copy| copy.inline.clear()),
            ("destination: another", true, |copy| copy.destination = Text::from("e/")),
            ("destination: not a directory", true, |copy| copy.destination = Text::from("d")),
            ("destination: the same", false, |copy| copy.destination = Text::from("/w/d/")),
            ("workdir: another", true, |copy| copy.workdir = path("/v").into()),
            ("workdir: the same place", false, |copy| {
                copy.workdir = path("/elsewhere").into();
                copy.destination = Text::from("/w/./d/");
            }),
            ("chown: empty", true, |copy| copy.chown = Some(String::new())),
            ("chown: someone", true, |copy| copy.chown = Some("1:2".to_owned())),
            ("chmod: zero", true, |copy| copy.chmod = Some(Mode::Octal(0))),
            ("chmod: other", true, |copy| copy.chmod = Mode::parse("755").ok()),
            ("chmod: changes", true, |copy| copy.chmod = Mode::parse("u=rwx,go=rx").ok()),
            ("chmod: other changes", true, |copy| copy.chmod = Mode::parse("u=rwX,go=rx").ok()),
            ("chmod: changes in another order", true, |copy| copy.chmod = Mode::parse("go=rx,u=rwX").ok()),
            ("chmod: the same changes", false, |copy| copy.chmod = Mode::parse("og=xr,u=Xwr").ok()),
            ("exclude: none", sources, |copy| copy.exclude = Exclude::default()),
            ("exclude: another", sources, |copy| copy.exclude = exclude(&["*.a"])),
            ("exclude: one more", sources, |copy| copy.exclude = exclude(&["*.o", "!x.o"])),
            ("parents: kept", true, |copy| copy.parents = Parents::Kept),
            ("onto: nothing", false, |copy| copy.onto = Onto::Nothing),
            ("remotes: one", true, |copy| copy.remotes = vec![remote(0, Archives::Keep)]),
            ("remotes: later", true, |copy| copy.remotes = vec![remote(1, Archives::Keep)]),
            ("remotes: extracted", true, |copy| copy.remotes = vec![remote(0, Archives::Extract)]),
            ("remotes: two", true, |copy| copy.remotes = vec![remote(0, Archives::Keep); 2]),
        ]
    }

    #[test]
    fn every_field_of_copy_counts_or_is_left_out_on_purpose() {
        // A new field must be named here, and changed below.
        let CopyStep {
            kind: _,
            archives: _,
            from: _,
            sources: _,
            remotes: _,
            inline: _,
            destination: _,
            workdir: _,
            chown: _,
            chmod: _,
            exclude: _,
            parents: _,
            onto: _,
        } = copy();
        let [one, two] = [Digest::of(b"1"), Digest::of(b"2")];
        let by_content = |copy| key(&Step::Copy(Box::new(copy)), &Elsewhere::Content(&one));
        check(&COPY_FIELDS, &copy_changes(false), copy, by_content);
        let chain = ChainId::base(&DiffId(one.clone()));
        let by_definition = |copy| key(&Step::Copy(Box::new(copy)), &Elsewhere::Tree(Some(&chain)));
        check(&COPY_FIELDS, &copy_changes(true), copy, by_definition);

        let remote_too = || CopyStep { remotes: vec![remote(1, Archives::Keep)], ..copy() };
        let changes: Vec<Change<CopyStep>> =
            copy_changes(true).into_iter().filter(|(what, _, _)| *what != "remotes: later").collect();
        let by_content = |copy| key(&Step::Copy(Box::new(copy)), &Elsewhere::Content(&one));
        check(&COPY_FIELDS, &changes, remote_too, by_content);

        let step = Step::Copy(Box::new(copy()));
        let files = [
            Elsewhere::Nothing,
            Elsewhere::Content(&one),
            Elsewhere::Content(&two),
            Elsewhere::Tree(None),
            Elsewhere::Tree(Some(&chain)),
        ];
        let keys: std::collections::BTreeSet<_> = files.iter().map(|files| key(&step, files)).collect();
        assert_eq!(keys.len(), files.len());
    }

    #[test]
    fn what_is_elsewhere_counts_by_what_it_is() {
        let of = |identities: Vec<&Digest>| {
            with_remotes(&parent(), &identities.into_iter().cloned().collect::<Vec<_>>())
        };
        let [one, two] = [Digest::of(b"1"), Digest::of(b"2")];
        let keys = [vec![], vec![&one], vec![&two], vec![&one, &two], vec![&two, &one]].map(of);
        assert_eq!(std::collections::BTreeSet::from(keys.clone()).len(), keys.len());
        assert!(!keys.contains(&parent()));
    }

    #[test]
    fn every_field_of_workdir_counts() {
        // A new field must be named here, and changed below.
        let WorkdirStep { path: _, user: _ } = workdir();
        let changes: &[Change<WorkdirStep>] = &[
            ("path: another", true, |workdir| workdir.path = path("/w/w")),
            ("user: another", true, |workdir| workdir.user = "0".into()),
        ];
        check(&["path", "user"], changes, workdir, |step| {
            key(&Step::Workdir(Box::new(step)), &Elsewhere::Nothing)
        });
    }

    #[test]
    fn only_what_selects_in_a_tree_leaves_its_content_open_and_config_changes_nothing() {
        let of = |step: &Step, files: &Elsewhere<'_>| {
            step_keys(&parent(), step, &platform("linux/amd64"), ALONE, files).content.is_some()
        };
        let step = Step::Copy(Box::new(copy()));
        assert!(of(&step, &Elsewhere::Content(&Digest::of(b"1"))) && of(&step, &Elsewhere::Nothing));
        assert!(!of(&step, &Elsewhere::Tree(None)));
        assert_eq!(key(&Step::Config, &Elsewhere::Nothing), parent());
        // What is below counts for every step.
        for step in [Step::Run(Box::new(run())), step, Step::Workdir(Box::new(workdir()))] {
            let other =
                step_keys(&keyed("x").finish(), &step, &platform("linux/arm/v7"), ALONE, &Elsewhere::Nothing);
            assert_ne!(key(&step, &Elsewhere::Nothing), other.definition, "{step:?}");
        }
    }

    fn image(diff_ids: &[&DiffId]) -> Image {
        let mut image = Image::scratch();
        for diff_id in diff_ids {
            let blob = Descriptor::new(media_type::OCI_LAYER, Digest::of(b"blob"), 4);
            let layer = Layer { blob, diff_id: (*diff_id).clone(), origin: Origin::Stored };
            image.append(crate::image::config::History::default(), Some(layer));
        }
        image
    }

    #[test]
    fn trees_are_told_apart_by_the_layers_that_change_something() {
        let [a, b] = [DiffId(Digest::of(b"a")), DiffId(Digest::of(b"b"))];
        let empty = empty_layer();
        assert_eq!(
            empty.to_string(),
            "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef",
            "what Docker calls the empty layer"
        );
        let of = |ids: &[&DiffId]| tree(image(ids).layers());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[&empty]), None);
        assert_eq!(of(&[&a, &b]), Some(ChainId::base(&a).with(&b)));
        assert_eq!(of(&[&empty, &a, &empty, &b]), of(&[&a, &b]));
        assert_ne!(of(&[&b, &a]), of(&[&a, &b]));
        assert_ne!(start(&image(&[]), None), start(&image(&[&a]), None));
        assert_ne!(start(&image(&[&a]), Some("0 user")), start(&image(&[&a]), None));
        assert_ne!(together(&parent()), parent());
        let [one, other] = [keyed("one").finish(), keyed("other").finish()];
        let keys =
            [on_top(&one, &other), on_top(&other, &one), on_top(&one, &one), one.clone(), other.clone()];
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn the_time_of_an_image_without_layers_depends_on_its_rows() {
        let step = |row: Option<&str>| PlannedStep {
            span: Span::line(1),
            instruction: String::new(),
            created_by: row.map(str::to_owned),
            row: super::super::step::Row::Instruction,
            step: Step::Config,
        };
        let of = |rows: &[Option<&str>]| {
            let steps: Vec<_> = rows.iter().map(|row| step(*row)).collect();
            time(&parent(), &steps)
        };
        assert_eq!(of(&[Some("ENV a=b"), None]), of(&[Some("ENV a=b")]));
        assert_ne!(of(&[Some("ENV a=b")]), of(&[Some("ENV a=c")]));
        assert_ne!(of(&[]), of(&[Some("")]));
    }
}
