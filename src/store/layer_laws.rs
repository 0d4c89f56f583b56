//! Laws of layers, on random stacks: unpacked side by side, they show what bottom-up application gives.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::{DiffId, Digest};
use crate::layer::test_support::apply;
use crate::layer::{Limits, Owners, Whiteouts};
use crate::rootfs::testing::inside;
use crate::rootfs::{IdMap, Overrides, Rootfs, Timestamp, set_mode_at, set_times_at};

use super::mount::overlay;
use super::testing::{can_mount, dump, links};
use super::trees::Trees;
use super::unpacked::{Chain, Layers, Unpack, UnpackError, Unpacked};
use super::workspace::Workspace;

/// An entry of a layer.
#[derive(Clone)]
pub(crate) enum Entry {
    Directory { name: String, mode: u32, mtime: u64, attribute: bool },
    File { name: String, content: u8, mtime: u64 },
    Symlink { name: String, target: String },
    Link { name: String, target: String },
    Fifo { name: String },
    Whiteout { directory: String, name: String },
    Opaque { directory: String },
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory { name, mode, mtime, attribute } => {
                write!(f, "{name}/ {mode:o} @{mtime}{}", if *attribute { " user.a" } else { "" })
            }
            Self::File { name, content, mtime } => write!(f, "{name} {content} @{mtime}"),
            Self::Symlink { name, target } => write!(f, "{name} -> {target}"),
            Self::Link { name, target } => write!(f, "{name} = {target}"),
            Self::Fifo { name } => write!(f, "{name} |"),
            Self::Whiteout { directory, name } => write!(f, "{directory}.wh.{name}"),
            Self::Opaque { directory } => write!(f, "{directory}.wh..wh..opq"),
        }
    }
}

/// The entries as a tar archive.
pub(crate) fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: tar::EntryType, mode: u32, mtime: u64, link: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(u64::from(mode % 3));
        header.set_gid(mtime % 3);
        header.set_mtime(mtime);
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, content).unwrap();
    };
    use tar::EntryType as Kind;
    for entry in entries {
        match entry {
            Entry::Directory { name, mode, mtime, attribute } => {
                if *attribute {
                    add("pax", Kind::XHeader, 0o644, 0, "", b"26 SCHILY.xattr.user.a=1\n\n");
                }
                add(&format!("{name}/"), Kind::Directory, *mode, *mtime, "", b"");
            }
            Entry::File { name, content, mtime } => add(name, Kind::Regular, 0o644, *mtime, "", &[*content]),
            Entry::Symlink { name, target } => add(name, Kind::Symlink, 0o777, 7, target, b""),
            Entry::Link { name, target } => add(name, Kind::Link, 0o644, 7, target, b""),
            Entry::Fifo { name } => add(name, Kind::Fifo, 0o600, 7, "", b""),
            Entry::Whiteout { directory, name } => {
                add(&format!("{directory}.wh.{name}"), Kind::Regular, 0, 0, "", b"");
            }
            Entry::Opaque { directory } => {
                add(&format!("{directory}.wh..wh..opq"), Kind::Regular, 0, 0, "", b"");
            }
        }
    }
    archive.into_inner().unwrap()
}

/// A layer whose blob there is.
pub(crate) type Stored = (DiffId, Descriptor);

/// Layers as uncompressed blobs, and a store to unpack them into.
pub(crate) struct Ground {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) workspace: Workspace,
    pub(crate) unpacked: Unpacked,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::create(&directory.path().join("tmp"), None).unwrap();
        let unpacked =
            Unpacked::open(&directory.path().join("unpacked"), &IdMap::of_this_process().unwrap()).unwrap();
        Self { directory, workspace, unpacked }
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.directory.path().join(digest.hex())
    }

    pub(crate) fn add(&self, archive: &[u8]) -> (DiffId, Descriptor) {
        let digest = Digest::of(archive);
        std::fs::write(self.blob(&digest), archive).unwrap();
        (DiffId(digest.clone()), Descriptor::new(media_type::OCI_LAYER, digest, archive.len() as u64))
    }

    pub(crate) fn chain(&self, layers: &[(DiffId, Descriptor)]) -> Result<Layers, UnpackError> {
        self.unpacking(|unpack| self.unpacked.chain(layers, unpack))
    }

    /// Calls `work` with what unpacking the blobs needs.
    pub(crate) fn unpacking<T>(&self, work: impl FnOnce(&Unpack<'_>) -> T) -> T {
        work(&Unpack {
            open_blob: &|digest, _| File::open(self.blob(digest)),
            workspace: &self.workspace,
            progress: &|_| (),
            cancelled: &|| false,
            jobs: 2,
            limits: &Limits::default(),
            owners: Owners::Required,
        })
    }

    /// The layers in one directory of `workspace`, as where overlayfs cannot be mounted.
    pub(crate) fn tree(
        &self,
        layers: &[(DiffId, Descriptor)],
        workspace: &Arc<Workspace>,
    ) -> Result<Chain, UnpackError> {
        let trees = Trees::new(Arc::clone(workspace));
        self.unpacking(|unpack| trees.chain(layers, &Unpack { workspace, ..*unpack }))
    }

    pub(crate) fn view(&self, chain: &Layers) -> Rootfs {
        let scratch = self.workspace.directory("view").unwrap();
        let root = Rootfs::from_fd(overlay(&chain.root_dirs(), None, &scratch).unwrap());
        root.showing(Arc::clone(chain.overrides()))
    }

    /// The layers applied to one directory, one after the other.
    pub(crate) fn plain(&self, layers: &[(DiffId, Descriptor)]) -> Result<Rootfs, String> {
        let path = self.workspace.directory("plain").unwrap();
        let root = Rootfs::open(&path).unwrap().holding(Arc::default(), Overrides::LIMIT);
        set_mode_at(root.as_fd(), b".", 0o755).unwrap();
        set_times_at(root.as_fd(), b".", Timestamp::default()).unwrap();
        for (_, blob) in layers {
            let mut file = File::open(self.blob(&blob.digest)).unwrap();
            apply(&mut file, &root, Whiteouts::Remove, &Limits::default())
                .map_err(|error| format!("{error:?}"))?;
        }
        Ok(root)
    }
}

/// Compares both ways for one stack.
pub(crate) fn check(ground: &Ground, stack: &[Vec<Entry>]) -> Result<(), String> {
    let layers: Vec<_> = stack.iter().map(|entries| ground.add(&archive(entries))).collect();
    let plain = ground.plain(&layers);
    let chain = ground.chain(&layers);
    let (plain, chain) = match (plain, chain) {
        (Ok(plain), Ok(chain)) => (plain, chain),
        (Err(_), Err(_)) => return Ok(()),
        (Ok(_), Err(error)) => return Err(format!("only the stack fails: {error:?}")),
        (Err(error), Ok(_)) => return Err(format!("only bottom-up application fails: {error}")),
    };
    let view = ground.view(&chain);
    let (expected, actual) = (dump(&plain), dump(&view));
    if expected != actual {
        return Err(format!("bottom up:\n{expected}stacked:\n{actual}"));
    }
    // A file that is linked to from a higher layer is there for a second time; its other names stay with the first.
    let one_file = links(&plain);
    match links(&view)
        .iter()
        .find(|names| !one_file.iter().any(|one| names.iter().all(|name| one.contains(name))))
    {
        Some(names) => {
            Err(format!("{names:?} are one file only in the stack, bottom up there are {one_file:?}"))
        }
        None => Ok(()),
    }
}

/// Names of up to three components. Few of them, so that they meet often; and files have other last components than
/// directories and links, save for some, so that not every second stack is refused for a file on the way.
fn name(last: [&'static str; 3]) -> impl Strategy<Value = String> {
    let above = prop::collection::vec(prop::sample::select(vec!["a", "b"]), 0..=2);
    let last = prop_oneof![6 => prop::sample::select(last[..2].to_vec()), 1 => Just(last[2])];
    (above, last).prop_map(|(mut parts, last)| {
        parts.push(last);
        parts.join("/")
    })
}

const INNER: [&str; 3] = ["a", "b", "x"];
const LEAF: [&str; 3] = ["x", "y", "a"];

fn directory() -> impl Strategy<Value = String> {
    prop_oneof![1 => Just(String::new()), 6 => name(INNER).prop_map(|name| format!("{name}/"))]
}

fn entry() -> impl Strategy<Value = Entry> {
    let targets = vec!["a", "b", "x", "/a", "/b/a", "../b", "a/b", "../../b/a", "/"];
    let mode = prop::sample::select(vec![0o755, 0o700, 0o1777]);
    prop_oneof![
        5 => (name(INNER), mode, 1..9u64, any::<bool>()).prop_map(|(name, mode, mtime, attribute)| {
            Entry::Directory { name, mode, mtime, attribute }
        }),
        6 => (name(LEAF), 0..3u8, 1..9u64).prop_map(|(name, content, mtime)| Entry::File { name, content, mtime }),
        2 => (name(INNER), prop::sample::select(targets)).prop_map(|(name, target)| {
            Entry::Symlink { name, target: target.to_owned() }
        }),
        2 => (name(LEAF), name(LEAF)).prop_map(|(name, target)| Entry::Link { name, target }),
        1 => name(LEAF).prop_map(|name| Entry::Fifo { name }),
        3 => (directory(), prop::sample::select(vec!["a", "b", "x", "y"])).prop_map(|(directory, name)| {
            Entry::Whiteout { directory, name: name.to_owned() }
        }),
        2 => directory().prop_map(|directory| Entry::Opaque { directory }),
    ]
}

/// Hard links get the name of an earlier file as their target.
pub(crate) fn stack() -> impl Strategy<Value = Vec<Vec<Entry>>> {
    prop::collection::vec(prop::collection::vec(entry(), 1..7), 2..=4).prop_map(|mut stack| {
        let mut files: Vec<String> = Vec::new();
        for entry in stack.iter_mut().flatten() {
            if let Entry::Link { name, target } = entry {
                let choice = target.len() + name.len();
                match files.iter().filter(|file| *file != name).cycle().nth(choice) {
                    Some(file) => target.clone_from(file),
                    None => *entry = Entry::Fifo { name: name.clone() },
                }
            }
            if let Entry::File { name, .. } | Entry::Fifo { name } | Entry::Link { name, .. } = entry {
                files.push(name.clone());
            }
        }
        stack
    })
}

#[test]
fn layers_unpacked_side_by_side_show_what_bottom_up_application_gives() {
    if can_mount() {
        check_random_stacks();
    }
}

#[test]
fn they_do_in_a_namespace_that_holds_no_owner_too() {
    if inside!(SingleId) && can_mount() {
        check_random_stacks();
    }
}

fn check_random_stacks() {
    // PROPTEST_CASES asks for more.
    let cases = ProptestConfig::default().cases / 2;
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let ground = Mutex::new((Ground::new(), 0));
    proptest!(config, |(stack in stack())| {
        let mut ground = ground.lock().unwrap();
        // Directories are removed when they have become many.
        ground.1 += 1;
        if ground.1 % 100 == 0 {
            ground.0 = Ground::new();
        }
        if let Err(problem) = check(&ground.0, &stack) {
            prop_assert!(false, "{}", problem);
        }
    });
}

fn directory_entry(name: &str) -> Entry {
    Entry::Directory { name: name.to_owned(), mode: 0o700, mtime: 5, attribute: true }
}

fn file_entry(name: &str) -> Entry {
    Entry::File { name: name.to_owned(), content: 1, mtime: 6 }
}

/// Entries in the notation of `Debug`, without modes and times, separated by blanks.
pub(crate) fn entries(text: &str) -> Vec<Entry> {
    let entry = |word: &str| {
        let owned = |text: &str| text.to_owned();
        if let Some((name, target)) = word.split_once("->") {
            Entry::Symlink { name: owned(name), target: owned(target) }
        } else if let Some((name, target)) = word.split_once('=') {
            Entry::Link { name: owned(name), target: owned(target) }
        } else if let Some(directory) = word.strip_suffix(".wh..wh..opq") {
            Entry::Opaque { directory: owned(directory) }
        } else if let Some((directory, name)) = word.split_once(".wh.") {
            Entry::Whiteout { directory: owned(directory), name: owned(name) }
        } else if let Some(name) = word.strip_suffix('/') {
            directory_entry(name)
        } else {
            file_entry(word)
        }
    };
    text.split_whitespace().map(entry).collect()
}

#[test]
fn odd_stacks_are_right() {
    if can_mount() {
        check_odd_stacks();
    }
}

#[test]
fn odd_stacks_are_right_in_a_namespace_that_holds_no_owner_too() {
    if inside!(SingleId) && can_mount() {
        check_odd_stacks();
    }
}

fn check_odd_stacks() {
    let ground = Ground::new();
    for layers in [
        // What layers often do.
        ["a/ a/x", "a/y", "a/.wh.x"],
        ["a/ a/x", "a/ a/.wh..wh..opq a/y", ".wh.a"],
        ["usr/ usr/lib/ lib->usr/lib", "lib/x", "lib/.wh.x"],
        ["a/ a/x", "b=a/x", "a/.wh.x"],
        ["a/ a/x", "a", "a/ a/y"],
        // What once went wrong.
        ["a/x", "b=a b", ""],
        ["x", "b/.wh.a .wh.b", ""],
        ["x", ".wh.b b/.wh.a", ""],
        ["x x/.wh.a", "a", ""],
        ["b/a->x", "b b/", ""],
        ["a/", "b/a/a/ b->b", ""],
        ["a/x", "a/ .wh..wh..opq", ""],
        ["a/a/", "a/a/.wh..wh..opq a a/", ""],
        ["x", "b/x b->/ b/b/", ""],
        ["x", "a/ b->a b/x b b/y", "b/z"],
        // Order matters where a link is removed later.
        ["a->b b/", "a/x .wh.a", ""],
        ["d/ d/a->/b b/", "d/a/x d/.wh..wh..opq", ""],
        ["a/ a/b/ a/b/x", ".wh..wh..opq y", "a/b/y"],
        ["a/ a/b/", "a/ a/.wh..wh..opq a/b/x", "a/b/y"],
    ] {
        let stack: Vec<_> = layers.iter().map(|text| entries(text)).collect();
        if let Err(problem) = check(&ground, &stack) {
            panic!("{layers:?}: {problem}");
        }
    }
}
