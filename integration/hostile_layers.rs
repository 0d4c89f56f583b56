//! `builder image extract` on images that try something bad, and on odd ones that are meant well: both ways to extract,
//! as root and as an ordinary user, with little memory; and what stands outside must never change.

pub(crate) mod archive;
pub(crate) mod cases;
mod documents;
mod layout;
mod run;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use archive::{Header, device, dir, dir_mode, end, file, hard_link, header, pax};
use cases::{Case, Outside, base};
use layout::{Image, Stored};
use run::{Ground, Outcome, Who, judge};

/// Writes the image of a case.
fn write(case: &Case, outside: &Outside, layout: &Path) {
    let layers = std::iter::once(base()).chain((case.layers)(outside));
    Image::of(layers.map(|tar| Stored::gzipped(&tar)).collect()).write(layout);
}

/// Which cases are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cases {
    Quick,
    /// Those that take seconds.
    Slow,
}

/// Extracts every case in each of the `ways`, and compares the trees that come out.
fn every_case(cases: Cases, who: Who, ways: &[&str]) {
    let Some(ground) = Ground::new(who) else { return };
    let mut wrong = Vec::new();
    for case in cases::all().into_iter().filter(|case| case.is_slow == (cases == Cases::Slow)) {
        let layout = ground.path().join("layout");
        write(&case, &ground.outside(), &layout);
        let mut first: Option<String> = None;
        for way in ways {
            let snapshotter = format!("--snapshotter={way}");
            let outcome = ground.extract(&[&snapshotter, &ground.argument(&layout)]);
            let name = format!("{} {way}", case.name);
            wrong.extend(judge(&ground, &name, &case.expect, &outcome));
            if outcome.code == Some(0) && !case.is_slow {
                let tree = ground.dump();
                match &first {
                    Some(other) if *other != tree => {
                        wrong.push(format!("{name}: another tree\n{other}\n{tree}"))
                    }
                    _ => first = Some(tree),
                }
            }
            ground.clear();
        }
        fs::remove_dir_all(layout).expect("remove");
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn hostile_layers_as_root() {
    every_case(Cases::Quick, Who::Root, &["native", "overlayfs"]);
}

#[test]
fn hostile_layers_as_an_ordinary_user() {
    every_case(Cases::Quick, Who::User, &["native", "overlayfs"]);
}

#[test]
fn hostile_layers_as_an_ordinary_user_without_a_user_namespace() {
    every_case(Cases::Quick, Who::UserInChroot, &["native"]);
}

#[test]
fn large_hostile_layers_as_root() {
    every_case(Cases::Slow, Who::Root, &["native"]);
}

#[test]
fn large_hostile_layers_as_root_with_overlayfs() {
    every_case(Cases::Slow, Who::Root, &["overlayfs"]);
}

#[test]
fn large_hostile_layers_as_an_ordinary_user() {
    every_case(Cases::Slow, Who::User, &["native"]);
}

#[test]
fn large_hostile_layers_as_an_ordinary_user_with_overlayfs() {
    every_case(Cases::Slow, Who::User, &["overlayfs"]);
}

#[test]
fn large_hostile_layers_as_an_ordinary_user_without_a_user_namespace() {
    every_case(Cases::Slow, Who::UserInChroot, &["native"]);
}

fn every_document(who: Who, way: &str) {
    let Some(ground) = Ground::new(who) else { return };
    let mut wrong = Vec::new();
    for case in documents::all() {
        let layout = ground.path().join("layout");
        case.image.write(&layout);
        let (snapshotter, layout_argument) = (format!("--snapshotter={way}"), ground.argument(&layout));
        let mut arguments: Vec<&str> = vec![&snapshotter, &layout_argument];
        arguments.extend(case.arguments.iter().map(String::as_str));
        let outcome = ground.extract(&arguments);
        wrong.extend(judge(&ground, case.name, &case.expect, &outcome));
        ground.clear();
        if layout.exists() {
            fs::remove_dir_all(layout).expect("remove");
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn hostile_documents_as_root_with_overlayfs() {
    every_document(Who::Root, "overlayfs");
}

#[test]
fn hostile_documents_as_an_ordinary_user() {
    every_document(Who::User, "native");
}

/// Extracts one layer on top of the base.
#[track_caller]
fn extracted(ground: &Ground, layer: &[u8], arguments: &[&str]) -> Outcome {
    let layout = ground.path().join("layout");
    Image::of(vec![Stored::gzipped(&base()), Stored::gzipped(&[layer, &end()].concat())]).write(&layout);
    let layout_argument = ground.argument(&layout);
    let outcome = ground.extract(&[&[layout_argument.as_str()], arguments].concat());
    fs::remove_dir_all(layout).expect("remove");
    outcome
}

/// A layer with everything that an ordinary user cannot have.
fn privileged_layer() -> Vec<u8> {
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    [
        Header { mode: 0o6755, uid: 1234, ..header("su", b'0') }.bytes(),
        Header { mode: 0o4755, ..header("root-su", b'0') }.bytes(),
        pax(&[("SCHILY.xattr.security.capability", &capability)]),
        Header { mode: 0o755, ..header("ping", b'0') }.bytes(),
        device("null", b'3', (1, 3)),
        device("zero", b'3', (1, 5)),
        pax(&[("SCHILY.xattr.trusted.a", b"v")]),
        file("trusted", b""),
        dir_mode("closed", 0o555),
        file("closed/x", b"x"),
        dir_mode("locked", 0),
        Header { uid: 77, ..header("locked/y", b'0') }.bytes(),
    ]
    .concat()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("metadata").mode() & 0o7777
}

#[test]
fn root_gets_everything() {
    let Some(ground) = Ground::new(Who::Root) else { return };
    for way in ["--snapshotter=native", "--snapshotter=overlayfs"] {
        let outcome = extracted(&ground, &privileged_layer(), &[way]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("could not"), "{}", outcome.stderr);
        let root = ground.extracted();
        let su = fs::metadata(root.join("su")).expect("su");
        assert_eq!((su.mode() & 0o7777, su.uid(), su.gid()), (0o6755, 1234, 0), "{way}");
        assert_eq!(mode(&root.join("root-su")), 0o4755);
        assert_eq!((mode(&root.join("closed")), mode(&root.join("locked"))), (0o555, 0));
        assert_eq!(fs::metadata(root.join("null")).expect("null").rdev(), rustix::fs::makedev(1, 3));
        let value = |name: &str, key: &str| rustix::fs::lgetxattr(root.join(name), key, &mut [0; 64][..]);
        assert_eq!(value("ping", "security.capability"), Ok(20));
        assert_eq!(value("trusted", "trusted.a"), Ok(1));
        ground.clear();
    }
}

#[test]
fn what_an_ordinary_user_cannot_have_is_told() {
    for who in [Who::User, Who::UserInChroot] {
        let Some(ground) = Ground::new(who) else { continue };
        let outcome = extracted(&ground, &privileged_layer(), &[]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let line = |words: &str| outcome.stderr.lines().filter(|line| line.contains(words)).count();
        for words in [
            "could not make 2 devices: the first was `/null`, character device 1:3",
            "left out the set-ID bits of 2 files: the first was `/su`, mode 6755",
            "could not set the owner of ",
            "extended attribute",
        ] {
            assert_eq!(line(words), 1, "{words:?} in {}", outcome.stderr);
        }
        let root = ground.extracted();
        // Nobody else may run a program as this user only because an image says so.
        assert_eq!((mode(&root.join("su")), mode(&root.join("root-su"))), (0o755, 0o755));
        assert_eq!((mode(&root.join("closed")), mode(&root.join("locked"))), (0o555, 0));
        assert!(!root.join("null").exists());
        let owner = fs::metadata(root.join("closed/x")).expect("x");
        assert_eq!((owner.uid(), owner.gid()), (run::USER, run::USER));
        ground.clear();
    }
}

#[test]
fn the_result_can_be_removed_by_whoever_made_it() {
    for who in [Who::User, Who::UserInChroot] {
        let Some(ground) = Ground::new(who) else { continue };
        let outcome = extracted(&ground, &[dir_mode("closed", 0o755), file("closed/x", b"x")].concat(), &[]);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert_eq!(ground.as_user(&["rm", "-rf", &ground.argument(&ground.extracted())]).code, Some(0));
        assert!(!ground.extracted().exists());
    }
}

#[test]
fn a_place_that_is_taken_is_left_as_it_is() {
    let Some(ground) = Ground::new(Who::Root) else { return };
    let layer = file("f", b"x");
    let out = ground.extracted();
    fs::create_dir(&out).expect("mkdir");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o700)).expect("chmod");
    let outcome = extracted(&ground, &layer, &[]);
    assert_eq!(outcome.code, Some(0), "an empty directory is replaced: {}", outcome.stderr);
    assert_eq!((mode(&out), fs::read(out.join("f")).expect("f")), (0o755, b"x".to_vec()));
    let before = ground.dump();
    let outcome = extracted(&ground, &layer, &[]);
    assert_eq!(outcome.code, Some(1));
    assert!(
        outcome.stderr.contains("is not empty: expected a name that is free, or an empty directory"),
        "{}",
        outcome.stderr
    );
    assert_eq!(ground.dump(), before);
    fs::remove_dir_all(&out).expect("remove");
    fs::write(&out, "mine").expect("write");
    let outcome = extracted(&ground, &layer, &[]);
    assert!(outcome.stderr.contains("exists and is not a directory"), "{}", outcome.stderr);
    assert_eq!(fs::read(&out).expect("read"), b"mine");
    fs::remove_file(&out).expect("remove");
    std::os::unix::fs::symlink(ground.path(), &out).expect("symlink");
    let outcome = extracted(&ground, &layer, &[]);
    assert!(outcome.stderr.contains("exists and is not a directory"), "{}", outcome.stderr);
    assert!(out.is_symlink());
    ground.clear();
}

#[test]
fn limits_are_settings_of_which_errors_tell() {
    let Some(ground) = Ground::new(Who::Root) else { return };
    let layer = [
        dir("d"),
        file("d/deep/er/x", &[b'x'; 3000]),
        pax(&[("path", &[b'n'; 200])]),
        file("short", b""),
        hard_link("keep2", "etc/keep"),
    ]
    .concat();
    for (limit, too_few, enough) in [
        // An entry for each file and directory of the layer, and two without: seven of the base are another layer.
        ("layer-entries", "5", "7"),
        ("layer-bytes", "6KiB", "9KiB"),
        ("tar-extension", "100", "1KiB"),
        ("manifest-bytes", "100", "1KiB"),
        ("config-bytes", "100", "1KiB"),
        ("index-bytes", "100", "1KiB"),
    ] {
        let outcome = extracted(&ground, &layer, &["--limit", &format!("{limit}={too_few}")]);
        assert_eq!(outcome.code, Some(1), "{limit}");
        let hint = format!("raise it with `--limit {limit}=N`");
        assert!(outcome.stderr.contains(&hint), "{limit}: {}", outcome.stderr);
        assert!(!ground.extracted().exists(), "{limit}");
        let outcome = extracted(&ground, &layer, &["--limit", &format!("{limit}={enough}")]);
        assert_eq!(outcome.code, Some(0), "{limit}: {}", outcome.stderr);
        ground.clear();
    }
    // Of a directory that its owner may not write to, the name is remembered.
    let outcome = extracted(&ground, &dir_mode("closed", 0o555), &["--limit=layer-names=50"]);
    assert!(outcome.stderr.contains("raise it with `--limit layer-names=N`"), "{}", outcome.stderr);
}

/// Everything in the directory where extraction takes place.
fn left(ground: &Ground) -> Vec<String> {
    let entries = fs::read_dir(ground.place()).expect("directory");
    entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn nothing_is_left_of_an_extraction_that_is_stopped() {
    use rustix::process::Signal;
    for (who, way) in
        [(Who::Root, "native"), (Who::Root, "overlayfs"), (Who::User, "native"), (Who::User, "overlayfs")]
    {
        let Some(ground) = Ground::new(who) else { continue };
        let layout = ground.path().join("layout");
        let many: Vec<u8> = (0..60_000).flat_map(|n| file(format!("many/{n:06}"), b"")).collect();
        Image::of(vec![Stored::gzipped(&base()), Stored::gzipped(&many)]).write(&layout);
        for (signal, code) in [(Signal::TERM, Some(143)), (Signal::INT, Some(130)), (Signal::KILL, None)] {
            let snapshotter = format!("--snapshotter={way}");
            let mut child = ground.start(&[&snapshotter, &ground.argument(&layout)]);
            run::wait_until("nothing is being extracted", || {
                left(&ground).iter().any(|name| {
                    let tree = ground.place().join(name);
                    name.starts_with(".builder-extract-") && has_files(&tree)
                })
            });
            assert!(!ground.extracted().exists());
            let id =
                i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("process");
            rustix::process::kill_process(id, signal).expect("kill");
            let output = child.wait().expect("wait");
            assert_eq!(output.code(), code, "{way} {signal:?}");
            run::wait_until("something is left", || left(&ground).is_empty());
        }
        fs::remove_dir_all(layout).expect("remove");
    }
}

/// Whether layers are being applied below `tree`.
fn has_files(tree: &Path) -> bool {
    tree.join("many").exists() || tree.join("layer-1/root/many").exists()
}

#[test]
fn a_full_disk_is_an_error_that_leaves_nothing() {
    let Some(ground) = Ground::new(Who::Root) else { return };
    let layout = ground.path().join("layout");
    let layers = ["a", "b", "c"].map(|name| Stored::gzipped(&[file(name, &[b'x'; 700_000]), end()].concat()));
    Image::of(layers.to_vec()).write(&layout);
    let script = "mount -t tmpfs -o size=1500k none \"$PLACE\" && \"$0\" image extract \"$LAYOUT\" \"$PLACE/out\"; \
                  code=$?; ls -A \"$PLACE\"; exit $code";
    let outcome = ground.shell(script, &layout);
    if outcome.stderr.contains("mount:") || outcome.stderr.contains("unshare:") {
        eprintln!("skipped: cannot mount a small disk: {}", outcome.stderr);
        return;
    }
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("No space left on device"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn a_file_of_more_than_four_gigabytes_comes_out_whole() {
    let Some(ground) = Ground::new(Who::Root) else { return };
    let size: u64 = (4 << 30) + 1;
    let layout = ground.path().join("layout");
    layout::write_large(&layout, size);
    let outcome = ground.extract(&[&ground.argument(&layout)]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let metadata = fs::metadata(ground.extracted().join("large")).expect("large");
    assert_eq!(metadata.len(), size);
    assert!(metadata.blocks() * 512 < 1 << 20, "zeros take {} blocks", metadata.blocks());
    ground.clear();
}
