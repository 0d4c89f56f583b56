//! What is put into a root goes again, whatever was done to it meanwhile.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::makedev;

use super::super::{Bind, Cancel, Content, KeptAt, Mount, Rights, Secret, SecretFile, Writes};
use super::dev::try_devices;
use super::*;
use crate::limit::Limit;
use crate::sandbox::provided::{DEVICES, LINKS};
use crate::sandbox::{Act, mounts};
use crate::store::testing::{can_make_devices, can_mount, run};

const NAMES: Limit = Limit::new("names", 1 << 20);

/// A root with what furnishing needs.
struct Ground {
    directory: tempfile::TempDir,
    script: Script,
}

/// A root made by a shell; none where device files cannot be made.
fn ground(script: &str) -> Option<Ground> {
    if !can_make_devices() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    for name in ["root", "aside", "host", "source"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    let script_of_step = Script { name: b"EOF".to_vec(), content: b"echo\n".to_vec() };
    let ground = Ground { directory, script: script_of_step };
    run(&ground.path(""), script);
    run(ground.directory.path(), "find root -depth -exec touch -h -d @1000.5 {} +");
    Some(ground)
}

impl Ground {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    fn begin(&self) -> Result<Furnished, SandboxError> {
        let root = Rootfs::open(&self.path("")).unwrap();
        Furnished::new(&root, &self.directory.path().join("aside"))
    }

    fn furnish(&self, mounts: &[Mount]) -> Result<Furnished, SandboxError> {
        let mut furnished = self.begin()?;
        furnished.provide_files(b"ours", b"ours")?;
        furnished.cover_kernel_directories(std::slice::from_ref(&self.script))?;
        furnished.put_mounts(mounts, NAMES, &Cancel::new().unwrap())?;
        furnished.watch();
        Ok(furnished)
    }

    /// All that is known of the files of the root, each a line.
    fn facts(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut pending = vec![self.path("")];
        while let Some(path) = pending.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            let size = if metadata.is_dir() { 0 } else { metadata.size() };
            lines.push(format!(
                "{} {} {:o} {}:{} {size} {}.{}",
                path.display(),
                metadata.ino(),
                metadata.mode(),
                metadata.uid(),
                metadata.gid(),
                metadata.mtime(),
                metadata.mtime_nsec()
            ));
        }
        lines.sort();
        lines
    }

    /// Paths below the root, sorted.
    fn paths(&self) -> Vec<String> {
        let prefix = self.path("").display().to_string();
        let paths = self.facts().into_iter().map(|line| line.split(' ').next().unwrap().to_owned());
        paths.map(|path| path[prefix.len()..].to_owned()).filter(|path| !path.is_empty()).collect()
    }

    fn nothing_is_aside(&self) -> bool {
        fs::read_dir(self.directory.path().join("aside")).unwrap().next().is_none()
    }

    fn bind(&self, target: &str, source: &str) -> Mount {
        let source = self.directory.path().join("source").join(source);
        let source = Arc::new(rustix::fs::open(source, OFlags::PATH, Mode::empty()).unwrap());
        let (writes, rights) = (Writes::Allowed, Rights::Honoured);
        mount(
            target,
            Content::Bind(Bind { tree: Arc::clone(&source), source, kept_at: None, writes, rights }),
        )
    }
}

fn mount(target: &str, content: Content) -> Mount {
    Mount { target: GuestPath::clamp(target.as_bytes()).unwrap(), content }
}

fn secret(target: &str) -> Mount {
    let value = Secret::new(b"hidden");
    mount(target, Content::Secret(SecretFile { value, mode: 0o440, owner: Owner { uid: 3, gid: 4 } }))
}

const TMPFS: Content = Content::Tmpfs { size: Some(1) };

/// What every image needs that is to be the same afterwards: the three directories stay.
const KERNELS: &str = "mkdir proc sys dev; ";

#[test]
fn the_same_files_come_back_whatever_the_image_has() {
    let cases = [
        ("nothing", ""),
        ("all files", "mkdir etc; echo i > etc/hosts; ln etc/hosts etc/other; echo i > etc/resolv.conf"),
        ("a dangling link", "mkdir etc; ln -s ../run/systemd/resolve/stub-resolv.conf etc/resolv.conf"),
        ("a link as directory", "ln -s /usr/etc etc"),
        ("one file for both", "mkdir etc; echo i > etc/hosts; ln -s hosts etc/resolv.conf"),
        ("a pipe", "mkdir etc; mkfifo etc/hosts; ln -s ../../../../dev/x/y etc/resolv.conf"),
        ("a device", "mkdir etc; mknod etc/hosts c 1 3; mknod dev/null c 1 7; echo i > dev/file"),
        ("odd modes", "chmod 0 proc; chown 5:6 sys; chmod 1777 dev; mkdir -m 0 etc; echo i > proc/cpuinfo"),
    ];
    for (name, script) in cases {
        let Some(ground) = ground(&format!("{KERNELS}{script}")) else { return };
        let before = ground.facts();
        let furnished = ground.furnish(&[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let hosts = GuestPath::root().child(b"etc/hosts");
        let found = Rootfs::open(&ground.path("")).unwrap().read_small_file(&hosts, 9).unwrap();
        assert_eq!(found.as_deref(), Some(&b"ours"[..]), "{name}");
        assert!(fs::read_dir(ground.path("proc")).unwrap().next().is_none(), "{name}");
        assert_ne!(ground.facts(), before, "{name}");
        furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
        assert_eq!(ground.facts(), before, "{name}");
        assert!(ground.nothing_is_aside(), "{name}");
        // Dropped, the same.
        drop(ground.furnish(&[]).unwrap());
        assert_eq!(ground.facts(), before, "{name}");
    }
}

#[test]
fn the_directory_of_devices_is_as_everywhere() {
    let Some(ground) = ground("") else { return };
    let furnished = ground.furnish(&[]).unwrap();
    let dev = ground.path("dev");
    for (name, major, minor) in DEVICES {
        let metadata = fs::symlink_metadata(dev.join(name)).unwrap();
        assert!(metadata.file_type().is_char_device());
        assert_eq!((metadata.mode() & 0o7777, metadata.rdev()), (0o666, makedev(major, minor)), "{name}");
    }
    for (name, to) in LINKS {
        assert_eq!(fs::read_link(dev.join(name)).unwrap(), Path::new(to));
    }
    let mode = |name: &str| fs::metadata(ground.path(name)).unwrap().permissions().mode() & 0o7777;
    let modes = ["dev", "dev/pts", "dev/shm", "dev/mqueue", "dev/pipes", "dev/pipes/EOF", "proc", "sys"];
    assert_eq!(modes.map(mode), [0o755, 0o755, 0o1777, 0o1777, 0o755, 0o755, 0o555, 0o555]);
    assert_eq!(mode("etc/hosts"), 0o644);
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    assert_eq!(ground.paths(), ["dev", "proc", "sys"], "they stay, as under BuildKit");
    assert_eq!(["dev", "proc", "sys"].map(mode), [0o755; 3]);
}

#[test]
fn a_umask_takes_nothing_away() {
    // It is one of the whole process: in another.
    let program = std::env::current_exe().unwrap();
    let name = "sandbox::furnish::tests::the_directory_of_devices_is_as_everywhere";
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", "umask 077; exec \"$0\" --exact \"$1\""]).arg(program).arg(name);
    let output = shell.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn what_a_step_did_to_covered_places_is_undone_and_the_rest_stays() {
    let image =
        format!("{KERNELS}mkdir etc home; echo i > etc/hosts; echo r > etc/resolv.conf; echo u > home/u");
    // What it does, and what is there afterwards besides.
    let cases: [(&str, &[&str]); 12] = [
        ("echo x >> etc/hosts; chmod 0 etc/resolv.conf; chown 5 etc/hosts", &[]),
        ("rm etc/hosts etc/resolv.conf", &[]),
        ("rm etc/hosts; mkdir -p etc/hosts/a/b; echo x > etc/hosts/a/f", &[]),
        ("ln -sf ../../host/canary etc/hosts; ln -sf /nowhere etc/resolv.conf", &[]),
        ("rm -rf dev proc sys; ln -s ../host dev; echo x > proc; mkfifo sys", &[]),
        ("echo x > dev/x; echo x > proc/x; mkdir sys/x; chmod 700 dev", &[]),
        ("mv dev gone", &["gone"]),
        ("mv etc moved; ln -s ../host etc", &["etc", "moved"]),
        ("rm -rf etc; echo new > new", &["new"]),
        ("rm -rf etc; ln -s ../host etc", &[]),
        ("mv etc dev/shm; mv home/u etc-new", &["etc-new"]),
        ("rm -rf ./*", &[]),
    ];
    for (script, expected) in cases {
        let Some(ground) = ground(&image) else { return };
        let numbers = |paths: [&str; 2]| paths.map(|path| fs::metadata(ground.path(path)).unwrap().ino());
        let before = numbers(["etc/hosts", "etc/resolv.conf"]);
        let canary = ground.directory.path().join("host/canary");
        fs::write(&canary, "").unwrap();
        for name in ["hosts", "resolv.conf"] {
            fs::write(ground.directory.path().join("host").join(name), "").unwrap();
        }
        let furnished = ground.furnish(&[]).unwrap();
        run(&ground.path(""), script);
        furnished
            .remove(NAMES, &Cancel::new().unwrap())
            .unwrap_or_else(|error| panic!("{script}: {error:?}"));
        assert!(ground.nothing_is_aside(), "{script}");
        let etc = if ground.path("moved").exists() { "moved" } else { "etc" };
        let after = numbers([&format!("{etc}/hosts"), &format!("{etc}/resolv.conf")]);
        assert_eq!(after, before, "{script}");
        let tops: Vec<String> = ground.paths().into_iter().filter(|path| !path.contains('/')).collect();
        let mut all: Vec<&str> =
            ["dev", "proc", "sys", etc].into_iter().chain(expected.iter().copied()).collect();
        if !script.starts_with("rm -rf ./*") {
            all.push("home");
        }
        all.sort_unstable();
        all.dedup();
        if script.starts_with("mv dev gone") {
            assert!(ground.path("gone/null").exists(), "who moves it away has a copy");
        }
        assert_eq!(tops, all, "{script}");
        for name in ["dev", "proc", "sys"] {
            let metadata = fs::symlink_metadata(ground.path(name)).unwrap();
            assert!(metadata.is_dir() && metadata.mode() & 0o7777 == 0o755, "{script}: {name}");
            assert!(fs::read_dir(ground.path(name)).unwrap().next().is_none(), "{script}: {name}");
        }
        let host = fs::read_dir(ground.directory.path().join("host")).unwrap().count();
        assert_eq!(host, 3, "{script}: nobody else's files are touched");
    }
}

#[test]
fn a_directory_keeps_its_time_unless_the_step_changed_it() {
    let Some(ground) = ground(&format!("{KERNELS}mkdir -p etc a; echo i > etc/hosts")) else { return };
    let time = |path: &str| fs::metadata(ground.path(path)).unwrap().modified().unwrap();
    let old = time("etc");
    let furnished = ground.furnish(&[mount("/a/new", TMPFS)]).unwrap();
    assert_eq!([time("etc"), time(""), time("a")], [old; 3], "at once: one tick later is too late to tell");
    run(&ground.path(""), "echo x > etc/x; touch -d @2000 a");
    let changed = [time("etc"), time("a")];
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    assert_eq!([time("etc"), time("a")], changed);
    assert_eq!(time(""), old);
}

#[test]
fn a_directory_keeps_its_time_where_the_step_changed_nothing_of_the_image_in_it() {
    let image = format!("{KERNELS}mkdir -p etc a; echo i > etc/hosts; echo o > etc/other");
    // With mounts, each of these fails, but for what it does besides.
    let nothing = [
        "rm etc/hosts",
        "rm etc/hosts etc/resolv.conf; rm -rf dev proc a/s",
        "echo x > etc/new; mv etc/new etc/hosts; chmod 711 etc",
        "rm etc/hosts; echo x > etc/hosts",
        "mv etc/hosts a/t",
        "echo x > etc/x; rm etc/x etc/resolv.conf",
    ];
    let something = [
        "rm etc/hosts; echo x > etc/x",
        "mv etc/hosts etc/moved",
        "rm etc/hosts; cp -p etc/other etc/new; mv etc/new etc/other",
        "rm etc/hosts etc/other",
    ];
    for (scripts, is_changed) in [(&nothing[..], false), (&something[..], true)] {
        for script in scripts {
            let Some(ground) = ground(&image) else { return };
            let time = |path: &str| fs::metadata(ground.path(path)).unwrap().modified().unwrap();
            let before = ["", "etc", "a"].map(time);
            let furnished = ground.furnish(&[secret("/a/s"), mount("/a/t", TMPFS)]).unwrap();
            run(&ground.path(""), script);
            assert_ne!(["", "etc", "a"].map(time), before, "{script}");
            furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
            let after = ["", "etc", "a"].map(time);
            assert_eq!((after[0], after[2]), (before[0], before[2]), "{script}");
            assert_eq!(after[1] != before[1], is_changed, "{script}");
        }
    }
}

#[test]
fn a_secret_goes_wherever_the_step_has_put_it() {
    let Some(ground) = ground(&format!("{KERNELS}mkdir etc")) else { return };
    let furnished = ground.furnish(&[secret("/run/a"), secret("/run/b"), secret("/run/c")]).unwrap();
    run(&ground.path(""), "ln run/a etc/link; mv run/b etc/moved; cp run/c etc/copy; echo more >> run/a");
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    let content = |name: &str| fs::read_to_string(ground.path("etc").join(name)).unwrap();
    assert_eq!(["link", "moved", "copy"].map(content), ["", "", "hidden"], "a copy is the step's own");
    assert!(!ground.path("run").exists());
    // Whatever way there is out of it.
    let mut furnished = ground.begin().unwrap();
    furnished.put_mounts(&[secret("/etc/s")], NAMES, &Cancel::new().unwrap()).unwrap();
    run(&ground.path(""), "ln etc/s etc/late");
    drop(furnished);
    assert_eq!(content("late"), "");
}

#[test]
fn what_was_covered_comes_back_when_nothing_can_be_put_there() {
    let Some(ground) = ground(&format!("{KERNELS}mkdir etc; echo i > etc/hosts")) else { return };
    let before = ground.facts();
    let mut furnished = ground.begin().unwrap();
    let hosts = GuestPath::root().child(b"etc/hosts");
    furnished.cover(&hosts, "missing", Origin::Image).unwrap_err();
    assert!(!ground.path("etc/hosts").exists());
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    assert_eq!(ground.facts(), before);
}

#[test]
fn a_directory_that_the_step_removed_is_made_again_as_it_was() {
    let image =
        format!("{KERNELS}mkdir -p etc/deep/er; chmod 700 etc/deep; chown 5:6 etc/deep/er; mkdir free");
    for script in ["rm -rf etc free", "rm -rf etc free; ln -s ../host etc"] {
        let Some(ground) = ground(&image) else { return };
        let mounts = [secret("/etc/deep/er/new/secret"), mount("/free/new", TMPFS)];
        let furnished = ground.furnish(&mounts).unwrap();
        run(&ground.path(""), script);
        furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
        // Empty: in it were but things that were made to be covered.
        let expected = ["dev", "etc", "etc/deep", "etc/deep/er", "free", "proc", "sys"];
        assert_eq!(ground.paths(), expected, "{script}");
        let facts = |path: &str| {
            let metadata = fs::symlink_metadata(ground.path(path)).unwrap();
            (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
        };
        assert_eq!([facts("etc/deep"), facts("etc/deep/er")], [(0o700, 0, 0), (0o755, 5, 6)], "{script}");
    }
}

#[test]
fn mounts_stand_where_they_would_be_mounted() {
    let script = "mkdir -p proc sys dev real/old tools; ln -s /real link; echo r > real/old/file; chmod 750 real/old
                  mkdir -p ../source/d/sub; echo s > ../source/d/sub/f; ln -s sub ../source/d/l; chmod 6755 ../source/d/sub/f
                  chown 5:6 ../source/d; echo single > ../source/file; chmod 4711 ../source/file";
    let Some(ground) = ground(script) else { return };
    let before = ground.facts();
    let mounts = [
        ground.bind("/link/old", "d"),
        secret("/real/old/l/secret"),
        mount("/real/old/sub/t/t", TMPFS),
        ground.bind("/real/old/sub/t/t/f", "file"),
        ground.bind("/dev/file", "file"),
        mount("/new/t", TMPFS),
        mount("/new/t", TMPFS),
        secret("/new/t/s"),
        mount("/tools", TMPFS),
        mount("/sys/x", TMPFS),
    ];
    let furnished = ground.furnish(&mounts).unwrap();
    let facts = |path: &str| {
        let metadata = fs::symlink_metadata(ground.path(path)).unwrap();
        let content =
            if metadata.is_file() { fs::read_to_string(ground.path(path)).unwrap() } else { String::new() };
        format!("{path} {:o} {}:{} {content}", metadata.mode(), metadata.uid(), metadata.gid())
    };
    let paths = [
        "real/old",
        "real/old/sub/f",
        "real/old/sub/secret",
        "real/old/sub/t",
        "real/old/sub/t/t",
        "real/old/sub/t/t/f",
        "dev/file",
        "new",
        "new/t",
        "new/t/s",
        "tools",
        "sys/x",
    ];
    assert_eq!(
        paths.map(facts),
        [
            "real/old 40755 5:6 ",
            "real/old/sub/f 106755 0:0 s\n",
            "real/old/sub/secret 100440 3:4 hidden",
            "real/old/sub/t 40755 0:0 ",
            "real/old/sub/t/t 41777 0:0 ",
            "real/old/sub/t/t/f 104711 0:0 single\n",
            "dev/file 104711 0:0 single\n",
            "new 40755 0:0 ",
            "new/t 41777 0:0 ",
            "new/t/s 100440 3:4 hidden",
            "tools 40755 0:0 ",
            "sys/x 41777 0:0 ",
        ]
    );
    assert!(!ground.path("real/old/file").exists());
    run(
        &ground.path(""),
        "echo x > real/old/sub/f; echo x > dev/file; rm -rf new/t/*; mv real/old/sub real/sub; rm -rf sys",
    );
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    assert!(fs::read_to_string(ground.directory.path().join("source/d/sub/f")).unwrap() == "s\n");
    // Moved out of a mount it is a copy, and the step's own: but not with what was mounted in there.
    let file = |name: &str| fs::read_to_string(ground.path("real/sub").join(name)).ok();
    assert_eq!(
        [file("f").as_deref(), file("secret").as_deref(), file("t/t/f").as_deref()],
        [Some("x\n"), None, None]
    );
    run(&ground.path(""), "rm -rf real/sub; touch -d @1000.5 real .");
    assert_eq!(ground.facts(), before);
    assert!(ground.nothing_is_aside());
}

#[test]
fn a_root_is_left_as_it_was_by_every_failure() {
    let script =
        format!("{KERNELS}mkdir etc d; echo f > f; ln -s loop loop; mkdir ../source/d; echo s > ../source/f");
    let Some(ground) = ground(&script) else { return };
    let before = ground.facts();
    let cases = [
        (ground.bind("/d/x", "f"), secret("/proc/x"), "it leads to `/proc/x`, where the kernel's files are"),
        (secret("/n/x"), mount("/dev", TMPFS), "it leads to `/dev`, where the kernel's files are"),
        (ground.bind("/n", "d"), mount("/d/..", TMPFS), "it leads to the root directory"),
        (mount("/n", TMPFS), secret("/d"), "it is a directory, and what is to be mounted is none"),
        (mount("/n", TMPFS), ground.bind("/f", "d"), "it is no directory, and what is to be mounted is one"),
        (mount("/n", TMPFS), secret("/f/x"), "cannot prepare `/f/x` in the image"),
        (mount("/n", TMPFS), secret("/loop/x"), "cannot prepare `/loop/x` in the image"),
        (ground.bind("/n", "f"), secret("/n/x/y"), "cannot prepare `/n/x/y` in the image"),
    ];
    for (first, second, expected) in cases {
        let error = ground.furnish(&[first, second]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(ground.facts(), before, "{expected}");
        assert!(ground.nothing_is_aside(), "{expected}");
    }
    for (path, found) in
        [("proc", "file"), ("sys", "symbolic link"), ("dev", "named pipe"), ("etc/hosts", "directory")]
    {
        let make = match found {
            "file" => "echo x >",
            "symbolic link" => "ln -s /etc",
            "named pipe" => "mkfifo",
            _ => "mkdir",
        };
        run(&ground.path(""), &format!("rm -rf {path}; {make} {path}; touch -d @1000.5 . etc"));
        let before = ground.facts();
        let error = ground.furnish(&[]).unwrap_err();
        assert!(
            matches!(&error, SandboxError::Furnish(FurnishError::MountPoint { path: at, found: what }) if at[1..] == *path && *what == found),
            "{error}"
        );
        assert_eq!(ground.facts(), before);
        run(&ground.path(""), &format!("rm -rf {path}; case {path} in etc*) ;; *) mkdir {path} ;; esac"));
    }
    let wrong = Script { name: b"../x".to_vec(), content: Vec::new() };
    let error = ground.begin().unwrap().cover_kernel_directories(&[wrong]).unwrap_err();
    assert_eq!(error.to_string(), "cannot write `/dev/pipes/../x` for the sandbox");
}

#[test]
fn a_copy_is_stopped_and_undone() {
    let Some(ground) = ground(&format!("{KERNELS}mkdir ../source/d; echo x > ../source/d/f")) else { return };
    let before = ground.facts();
    let cancel = Cancel::new().unwrap();
    cancel.cancel("enough");
    for source in ["d", "d/f"] {
        let mut furnished = ground.begin().unwrap();
        let error = furnished.put_mounts(&[ground.bind("/n/x", source)], NAMES, &cancel).unwrap_err();
        assert!(matches!(&error, SandboxError::Cancelled { reason } if reason == "enough"), "{error}");
        drop(furnished);
        assert_eq!(ground.facts(), before);
    }
}

#[test]
fn devices_that_cannot_be_opened_are_an_error_that_says_why() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    try_devices(directory.path()).unwrap();
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    let error = try_devices(&directory.path().join("missing")).unwrap_err();
    assert!(
        matches!(&error, SandboxError::Setup { source, .. } if source.raw_os_error() == Some(2)),
        "{error}"
    );
    let volume = directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let mount = mounts::new_mount("tmpfs", &[], mounts::NODEV).unwrap();
    let place = rustix::fs::open(&volume, OFlags::PATH, Mode::empty()).unwrap();
    mounts::attach(&mount, &place).unwrap();
    let error = try_devices(&volume).unwrap_err();
    let root = rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::DETACH);
    root.unwrap();
    let SandboxError::Setup { step, source } = error else { panic!("{error}") };
    assert_eq!((step.act, source.raw_os_error()), (Act::OpenDevice, Some(libc::EACCES)));
}

/// A directory that is kept in `home`, for a mount at `target`.
fn kept(home: &Path, target: &str) -> Mount {
    let open = |path: &Path| rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
    let kept_at = KeptAt { directory: open(home), name: b"kept".to_vec() };
    let bind = Bind {
        tree: Arc::new(open(home)),
        source: Arc::new(open(&home.join("kept"))),
        kept_at: Some(Arc::new(kept_at)),
        writes: Writes::Allowed,
        rights: Rights::Honoured,
    };
    mount(target, Content::Bind(bind))
}

#[test]
fn what_is_kept_elsewhere_goes_back_from_wherever_it_is() {
    // In the file system of the root, and in another, where it is copied.
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    for step in [
        "true",
        "mv old/c moved",
        "mv old older; mkdir old",
        "rmdir old/c/d; mv old/c dev/c",
        "mv made/x/c .",
    ] {
        let Some(ground) = ground(&format!("{KERNELS} mkdir -p old/c; echo i > old/c/image")) else { return };
        let near = ground.directory.path().join("home");
        for home in [&near, elsewhere.path()] {
            run(ground.directory.path(), &format!("rm -rf {}/kept", home.display()));
            run(&ground.path(""), &format!("mkdir -p {0}/kept; echo 1 > {0}/kept/f", home.display()));
            let target = if step.contains("made") { "/made/x/c" } else { "/old/c" };
            let before = ground.facts();
            let furnished = ground.furnish(&[kept(home, target)]).unwrap();
            assert_eq!(fs::read_to_string(ground.path(&target[1..]).join("f")).unwrap(), "1\n");
            run(&ground.path(&target[1..]), "echo 2 > g; mkdir d; chown 7:8 g; rm f");
            run(&ground.path(""), step);
            furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
            let facts = |name: &str| fs::metadata(home.join("kept").join(name)).unwrap();
            assert_eq!((facts("g").uid(), facts("g").gid()), (7, 8), "{step}");
            assert!(!home.join("kept/f").exists(), "{step}");
            assert_eq!(fs::read_dir(home).unwrap().count(), 1, "{step}");
            assert!(!ground.facts().iter().any(|line| line.contains("/g ")), "{step}: {:?}", ground.paths());
            assert!(ground.nothing_is_aside(), "{step}");
            if step == "true" {
                assert_eq!(ground.facts(), before);
            }
        }
    }
}

#[test]
fn what_the_step_has_removed_is_gone_and_what_could_not_be_put_there_is_not() {
    let Some(ground) = ground(&format!("{KERNELS} mkdir -p old/c; touch file")) else { return };
    let home = ground.directory.path().join("home");
    run(&ground.path(""), &format!("mkdir -p {0}/kept; echo 1 > {0}/kept/f", home.display()));
    // A place that is a file, one that cannot be made, and the same twice.
    for targets in [&["/file"][..], &["/file/x"], &["/a", "/b"]] {
        let mounts: Vec<Mount> = targets.iter().map(|target| kept(&home, target)).collect();
        ground.furnish(&mounts).unwrap_err();
        assert_eq!(fs::read_to_string(home.join("kept/f")).unwrap(), "1\n", "{targets:?}");
    }
    let furnished = ground.furnish(&[kept(&home, "/old/c")]).unwrap();
    run(&ground.path(""), "rm -r old/c");
    furnished.remove(NAMES, &Cancel::new().unwrap()).unwrap();
    assert!(!home.join("kept").exists() && ground.path("old/c").is_dir());
}

#[test]
fn who_cancels_a_step_leaves_what_was_copied_for_it_as_it_was() {
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(ground) = ground(KERNELS) else { return };
    run(&ground.path(""), &format!("mkdir -p {0}/kept; echo 1 > {0}/kept/f", elsewhere.path().display()));
    let furnished = ground.furnish(&[kept(elsewhere.path(), "/c")]).unwrap();
    run(&ground.path(""), "echo 2 > c/f");
    let cancel = Cancel::new().unwrap();
    cancel.cancel("enough");
    furnished.remove(NAMES, &cancel).unwrap();
    assert_eq!(fs::read_to_string(elsewhere.path().join("kept/f")).unwrap(), "1\n");
    assert_eq!(ground.paths(), ["dev", "proc", "sys"]);
}
