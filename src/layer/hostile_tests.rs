//! Layers that try something bad, and odd ones that are meant well: what is accepted, what is refused, and that nothing
//! outside the root changes.

use std::io::{Cursor, Read, Write};
use std::path::Path;

use super::hostile_cases::{self as cases, Case, Expect, Outside, What, base};
use super::test_support::*;
use super::*;
use crate::image::digest::{Digest, VerifyingReader};
use crate::rootfs::{FileKind, Follow, Rootfs, metadata_at};

/// Unpacked layers of one image in both styles, and something outside that must not change.
struct Ground {
    directory: tempfile::TempDir,
    canary: Vec<String>,
}

impl Ground {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        std::fs::create_dir_all(outside.join("dir")).unwrap();
        std::fs::write(outside.join("file"), "canary").unwrap();
        std::fs::write(outside.join("dir/inner"), "canary").unwrap();
        std::fs::create_dir(directory.path().join("merged")).unwrap();
        let canary = dump(&Rootfs::open(&outside).unwrap());
        Self { directory, canary }
    }

    /// The directory outside, as the layers name it.
    fn outside(&self) -> String {
        self.directory.path().join("outside").to_str().unwrap().to_owned()
    }

    fn merged(&self) -> Rootfs {
        Rootfs::open(&self.directory.path().join("merged")).unwrap()
    }

    /// Applies one layer on those before it, and alone into a directory of its own.
    fn apply_both(
        &self,
        number: usize,
        tar: &[u8],
    ) -> (Result<Applied, LayerError>, Result<Applied, LayerError>) {
        let alone = self.directory.path().join(format!("layer{number}"));
        std::fs::create_dir(&alone).unwrap();
        let alone = Rootfs::open(&alone).unwrap();
        let limits = Limits::default();
        let apart = apply(&mut Cursor::new(tar), &alone, Whiteouts::Overlay, &limits);
        (apply(&mut Cursor::new(tar), &self.merged(), Whiteouts::Remove, &limits), apart)
    }

    fn check_outside(&self, name: &str) {
        let now = dump(&Rootfs::open(Path::new(&self.outside())).unwrap());
        assert_eq!(now, self.canary, "{name}: outside changed");
    }

    /// The tree in both styles; the second is none where overlayfs cannot be mounted.
    fn views(&self, layers: usize) -> (Rootfs, Option<Rootfs>) {
        let paths: Vec<_> =
            (0..layers).map(|number| self.directory.path().join(format!("layer{number}"))).collect();
        // Overlayfs wants two layers at least.
        let empty = self.directory.path().join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        let mut all = vec![empty.as_path()];
        all.extend(paths.iter().map(std::path::PathBuf::as_path));
        let view = overlay(&all).inspect_err(|error| eprintln!("skipped: cannot mount overlayfs: {error}"));
        (self.merged(), view.ok())
    }
}

/// What stands at a path.
fn look(root: &Rootfs, path: &[u8]) -> What {
    let path = GuestPath::clamp(path).unwrap();
    let Some(metadata) = root.metadata(&path, Follow::No).unwrap() else { return What::Nothing };
    match metadata.kind {
        FileKind::File => What::Content(root.read_small_file(&path, 1 << 24).unwrap().unwrap()),
        FileKind::Directory => What::Directory,
        FileKind::Symlink => What::Link(root.read_link(&path).unwrap()),
        FileKind::Fifo => What::Fifo,
        FileKind::CharDevice | FileKind::BlockDevice => What::Device,
        FileKind::Socket => panic!("{path} is a socket"),
    }
}

/// Applies a case in both styles and judges what came out. A layer that was unpacked alone is looked at only where it
/// does not depend on those below it: the store settles the others.
fn judge(case: &Case) {
    let name = case.name;
    let ground = Ground::new();
    let mut layers = (case.layers)(&Outside { path: ground.outside() });
    layers.insert(0, base());
    let mut settled = true;
    let mut refusal = None;
    for (number, tar) in layers.iter().enumerate() {
        let (merged, apart) = ground.apply_both(number, tar);
        match &apart {
            Ok(applied) => {
                let alone = applied.missing_links.is_empty() && !applied.opaque_root;
                settled &=
                    number == 0 || (alone && applied.with_whiteouts.is_empty() && applied.implied.is_empty());
            }
            Err(error) if merged.is_ok() => {
                assert!(error.depends_on_lower_layers(), "{name}, apart: {}", whole(error));
                settled = false;
            }
            Err(_) => {}
        }
        if let Err(error) = merged {
            let open =
                apart.is_ok_and(|applied| applied.missing_links.is_empty() && applied.implied.is_empty());
            assert!(!open, "{name} is refused, but not apart");
            refusal = Some(whole(&error));
            break;
        }
    }
    ground.check_outside(name);
    match (&case.expect, refusal) {
        (Expect::Refused(message), Some(text)) => {
            assert!(text.contains(message), "{name}: {text}");
            assert!(!text.chars().any(char::is_control), "{name}: {text:?}");
        }
        (Expect::Refused(_), None) => panic!("{name} is accepted"),
        (Expect::Accepted(_), Some(text)) => panic!("{name}: {text}"),
        (Expect::Accepted(checks), None) => {
            let (merged, apart) = ground.views(layers.len());
            for (path, expected) in checks {
                let shown = path[..path.len().min(80)].escape_ascii();
                assert_eq!(look(&merged, path), *expected, "{name}, merged: {shown}");
                if let Some(apart) = apart.as_ref().filter(|_| settled) {
                    assert_eq!(look(apart, path), *expected, "{name}, apart: {shown}");
                }
            }
        }
    }
}

/// An error with all its causes.
fn whole(error: &LayerError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[test]
fn every_case_ends_as_it_should() {
    if !is_root() {
        return;
    }
    let mut failed = Vec::new();
    for case in cases::all().iter().filter(|case| !case.is_slow) {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| judge(case))).is_err() {
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_hard_link_into_a_lower_layer_is_made_or_reported() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.apply_both(0, &base()).0.unwrap();
    let (merged, apart) = ground.apply_both(1, &[hard_link("keep2", "etc/keep"), end()].concat());
    assert_eq!(merged.unwrap().missing_links, []);
    assert_eq!(what(&ground.merged(), "keep2").as_deref(), Some("keep"));
    assert_eq!(apart.unwrap().missing_links, [(path("/keep2"), path("/etc/keep"))]);
    let (merged, _) = ground.apply_both(2, &hard_link("x", "no/such"));
    assert!(merged.is_err());
}

#[test]
fn setuid_bits_and_capabilities_survive_the_change_of_owner() {
    if !is_root() {
        return;
    }
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let record = ("SCHILY.xattr.security.capability", &capability[..]);
    let layer = [
        Header { mode: 0o4755, uid: 1234, ..header("su", b'0') }.bytes(),
        pax(&[record]),
        Header { mode: 0o755, uid: 7, ..header("ping", b'0') }.bytes(),
    ]
    .concat();
    let ground = Ground::new();
    let (merged, apart) = ground.apply_both(0, &layer);
    assert_eq!((merged.unwrap().losses, apart.unwrap().losses), Default::default());
    for root in [ground.merged(), Rootfs::open(&ground.directory.path().join("layer0")).unwrap()] {
        use std::os::fd::AsFd;
        let metadata = metadata_at(root.as_fd(), b"su").unwrap();
        assert_eq!((metadata.mode, metadata.owner.uid), (0o4755, 1234));
        assert!(root.xattrs(&path("ping")).unwrap().contains_key(&b"security.capability"[..]));
    }
}

#[test]
fn what_the_tree_cannot_hold_is_reported() {
    if !is_root() {
        return;
    }
    let layer = [
        device("data/dev00", b'3', (0, 0)),
        pax(&[("SCHILY.xattr.nonsense.key", b"x")]),
        file("f", b"x"),
        pax(&[("SCHILY.xattr.user.on.a.link", b"x")]),
        symlink("s", "f"),
    ]
    .concat();
    let (merged, apart) = Ground::new().apply_both(0, &layer);
    let counts =
        |applied: Applied| applied.losses.iter().map(|(kind, loss)| (kind, loss.count)).collect::<Vec<_>>();
    for applied in [merged, apart] {
        assert_eq!(counts(applied.unwrap()), [(LossKind::Device, 1), (LossKind::Attribute, 2)]);
    }
}

#[test]
fn many_entries_take_neither_memory_nor_time() {
    if !is_root() {
        return;
    }
    // In memory, where there is such a place: a disk's journal takes a minute.
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = Rootfs::open(directory.path()).unwrap();
    let tar: Vec<u8> = (0..100_000).flat_map(|number| file(format!("many/{number:06}"), b"")).collect();
    let applied = apply(&mut Cursor::new(&tar), &root, Whiteouts::Overlay, &Limits::default()).unwrap();
    assert_eq!(applied.entries, 100_000);
    assert_eq!(applied.implied, [path("/many")]);
    let limits = Limits { entries: Limits::ENTRIES.with(99), ..Limits::default() };
    let error = apply(&mut Cursor::new(&tar), &root, Whiteouts::Overlay, &limits).unwrap_err();
    assert!(matches!(error, LayerError::Entry { problem: EntryError::Entries(_), .. }), "{error:?}");
    // Directories without an entry are entries too.
    let few: Vec<u8> = (0..20).flat_map(|number| file(format!("{number}/b/c/d"), b"")).collect();
    for (most, fits) in [(79, false), (80, true)] {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let limits = Limits { entries: Limits::ENTRIES.with(most), ..Limits::default() };
        let result = apply(&mut Cursor::new(&few), &root, Whiteouts::Overlay, &limits);
        assert_eq!(result.is_ok(), fits, "{result:?}");
    }
    let limits = Limits { names: Limits::NAMES.with(10_000), ..Limits::default() };
    let deep: Vec<u8> = (0..100).flat_map(|number| file(format!("{number}/b/c/d"), b"")).collect();
    let error = apply(&mut Cursor::new(&deep), &root, Whiteouts::Overlay, &limits).unwrap_err();
    assert!(matches!(error, LayerError::Entry { problem: EntryError::Names(_), .. }), "{error:?}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn compression() {
    if !is_root() {
        return;
    }
    let unpack = |blob: Vec<u8>, limits: &Limits| {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let mut tar =
            decompress(Cursor::new(blob), Formats::Layer, &Limits::default()).map_err(LayerError::Output)?;
        apply(&mut tar, &root, Whiteouts::Remove, limits)
    };
    let layer = [file("f", b"x"), end()].concat();
    let good = gzip(&layer);
    let mut wrong_sum = good.clone();
    let at = good.len() - 8;
    wrong_sum[at..at + 4].fill(0);
    let split = [gzip(&layer[..600]), gzip(&layer[600..])].concat();
    let limits = Limits::default();
    assert!(unpack(good.clone(), &limits).is_ok());
    assert!(unpack(layer.clone(), &limits).is_ok());
    assert!(unpack(split, &limits).is_ok());
    assert!(unpack([&good[..], &[0; 512]].concat(), &limits).is_ok());
    assert!(unpack([&good[..], b"JUNKJUNK"].concat(), &limits).is_err());
    assert!(unpack(wrong_sum, &limits).is_err());
    assert!(unpack(good[..good.len() - 3].to_vec(), &limits).is_err());
    let bomb =
        gzip(&[Header { size: 64 << 20, ..header("zeros", b'0') }.bytes(), vec![0; 64 << 20]].concat());
    assert!(bomb.len() < 1 << 20);
    assert!(unpack(bomb.clone(), &limits).is_ok());
    let small = Limits { bytes: Limits::BYTES.with(1 << 20), ..limits };
    assert!(matches!(unpack(bomb, &small), Err(LayerError::Entry { problem: EntryError::Bytes(_), .. })));
    let tail = gzip(&[file("f", b"x"), end(), vec![0; 2 << 20]].concat());
    assert!(matches!(unpack(tail, &small), Err(LayerError::Tar(TarError::TooLarge(_)))));
}

#[test]
fn other_bytes_than_announced_are_noticed_before_the_end() {
    if !is_root() {
        return;
    }
    let layer = [file("f", b"x"), end(), vec![0; 5000]].concat();
    let blob = gzip(&layer);
    let unpack = |blob: &[u8], digest: &Digest, size: usize, diff_id: &Digest| {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let stored = VerifyingReader::new(Cursor::new(blob.to_vec()), digest.clone(), size as u64);
        let tar = decompress(stored, Formats::Layer, &Limits::default()).map_err(LayerError::Output)?;
        let mut tar = VerifyingReader::new(tar, diff_id.clone(), layer.len() as u64);
        apply(&mut tar as &mut dyn Read, &root, Whiteouts::Remove, &Limits::default())
    };
    let (digest, diff_id) = (Digest::of(&blob), Digest::of(&layer));
    let mut flipped = blob.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(unpack(&blob, &digest, blob.len(), &diff_id).is_ok());
    assert!(unpack(&flipped, &digest, blob.len(), &diff_id).is_err(), "digest-wrong");
    assert!(unpack(&blob, &digest, blob.len() - 10, &diff_id).is_err(), "size-wrong-short");
    assert!(unpack(&blob, &digest, blob.len() + 1, &diff_id).is_err(), "size-wrong-long");
    assert!(unpack(&blob, &digest, blob.len(), &Digest::of(b"")).is_err(), "diffid-wrong");
}
