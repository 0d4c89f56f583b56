//! What mounts of a context show, whichever way they are made.

use super::*;
use crate::rootfs::testing::{foreign, inside};
use crate::store::testing::{can_mount, dump, links, run, settle_times};

struct Ground {
    directory: tempfile::TempDir,
    context: Context,
    workspace: Workspace,
}

/// A context that `script` made; nothing where mounts cannot be made.
fn ground(script: &str) -> Option<Ground> {
    if !can_mount() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("context");
    std::fs::create_dir(&path).unwrap();
    run(&path, script);
    settle_times(&path);
    let mut context = Context::open_dir(&path).unwrap();
    context.read_ignore_rules(None).unwrap();
    let workspace = Workspace::create(&directory.path().join("tmp"), None).unwrap();
    Some(Ground { directory, context, workspace })
}

impl Ground {
    fn views(&self) -> ContextViews<'_> {
        ContextViews::new(&self.context, &self.workspace)
    }

    fn place(&self, source: &GuestPath) -> Place {
        Place::find(self.context.root(), source).unwrap()
    }

    fn copy(&self, source: &GuestPath) -> String {
        let copy = self.views().copied_directory(&self.place(source)).unwrap();
        dump(&Rootfs::open(&copy.path().join(FILES)).unwrap())
    }
}

fn path(text: &str) -> GuestPath {
    GuestPath::clamp(text.as_bytes()).unwrap()
}

fn tree_of(shown: &Shown) -> Rootfs {
    Rootfs::from_fd(shown.source.try_clone().unwrap())
}

fn way(known: &Known) -> &'static str {
    match known {
        Known::AsItIs(_) => "as it is",
        Known::Masked(mask) if mask.copy_up() == CopyUp::Metadata => "masked for root",
        Known::Masked(_) => "masked",
        Known::Copied(_) => "copied",
    }
}

const FILES_OF_ALL_KINDS: &str = "
    mkdir -p a/b/c d/sub e; echo one > a/one; echo two > a/b/two; echo three > a/b/c/three
    echo four > d/sub/four; echo five > d/five; ln -s one a/link; ln -s /nowhere e/dangling
    chmod 4755 d/five; chmod 1777 e; chmod 600 a/one
    xattr a/one user.a 1
    xattr a/b user.b 2
    ln a/b/two a/hard; mknod e/null c 1 3
    PATH=$PATH:/usr/sbin setcap cap_net_raw+ep d/sub/four";

/// The context's rules, its owners, the directory that is mounted, how, and what is not there.
const VIEWS: [(&str, &str, &str, &str, &[&str]); 13] = [
    ("nothing ignored", "true", "/", "as it is", &[]),
    ("rules that match nothing", "echo x/y > .dockerignore", "/", "as it is", &[]),
    ("rules for another directory", "echo d > .dockerignore", "/a", "as it is", &[]),
    ("a file", "echo a/one > .dockerignore", "/", "masked", &["/a/one"]),
    ("a file below what is mounted", "echo a/b/two > .dockerignore", "/a", "masked", &["/b/two"]),
    ("a directory", "echo a/b > .dockerignore", "/", "masked", &["/a/b"]),
    ("all but one", "printf '*\\n!a/b/two\\n' > .dockerignore", "/", "masked", &["/d", "/a/one", "/a/b/c"]),
    (
        "what an exception might bring back and does not",
        "printf 'd\\n!d/sub/nothing\\n' > .dockerignore",
        "/",
        "masked",
        &["/d"],
    ),
    ("everything", "echo '**' > .dockerignore", "/", "masked", &["/a", "/d", "/e"]),
    ("another owner", "chown 5:6 d/five a/b", "/", "masked for root", &[]),
    ("the directory's own owner", "chown 5 a", "/a", "masked for root", &[]),
    ("other owners of all", "chown -h -R 5:6 a d e; chown 5:6 .", "/", "masked for root", &[]),
    (
        "owners and rules",
        "chown -h -R 5:6 a d e; printf 'a/b\\n' > .dockerignore",
        "/",
        "masked for root",
        &["/a/b"],
    ),
];

#[test]
fn a_mount_shows_what_a_copy_would_have_and_copies_nothing() {
    for (name, script, source, expected, absent) in VIEWS {
        let Some(ground) = ground(&format!("{FILES_OF_ALL_KINDS}\n{script}")) else { return };
        let before = dump(ground.context.root());
        let source = path(source);
        let views = ground.views();
        let shown = views.show(&source, Access::ReadOnly).unwrap();
        assert_eq!(way(&views.known(&ground.place(&source)).unwrap()), expected, "{name}");
        let tree = tree_of(&shown);
        assert_eq!(dump(&tree), ground.copy(&source), "{name}");
        for absent in absent {
            assert!(tree.metadata(&path(absent), Follow::No).unwrap().is_none(), "{name}: {absent}");
        }
        // Twice, and while it is mounted.
        let again = views.show(&source, Access::ReadOnly).unwrap();
        assert_eq!(dump(&tree_of(&again)), dump(&tree), "{name}");
        assert_eq!(dump(ground.context.root()), before, "{name}: the context itself");
    }
}

/// overlayfs lets nobody make whiteouts in it, and takes no upper directory that is on another overlay.
#[test]
fn a_copy_is_shown_where_the_workspace_is_on_an_overlay() {
    for (name, script, source, expected, _) in VIEWS {
        let Some(mut ground) = ground(&format!("{FILES_OF_ALL_KINDS}\n{script}")) else { return };
        run(
            ground.directory.path(),
            "mkdir lower upper work merged
            mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged",
        );
        ground.workspace = Workspace::create(&ground.directory.path().join("merged"), None).unwrap();
        let source = path(source);
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let views = ground.views();
            let shown = views.show(&source, access).unwrap_or_else(|error| panic!("{name}: {error:?}"));
            assert_eq!(dump(&tree_of(&shown)), ground.copy(&source), "{name}");
            let known = views.known(&ground.place(&source)).unwrap();
            assert_eq!(way(&known), if expected == "as it is" { expected } else { "copied" }, "{name}");
        }
        run(ground.directory.path(), "umount -l merged");
    }
}

/// Where a process has one user, it can name no other as the owner of anything.
#[test]
fn a_context_of_a_user_that_cannot_be_named_is_shown() {
    if !inside!(SingleId) || !can_mount() {
        return;
    }
    let Some(foreign) = foreign() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let mut context = Context::open_dir(&foreign).unwrap();
    context.read_ignore_rules(None).unwrap();
    let workspace = Workspace::create(&temporary.path().join("tmp"), None).unwrap();
    for (source, expected) in [("/", 3), ("/sub", 1)] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let views = ContextViews::new(&context, &workspace);
            let shown =
                views.show(&path(source), access).unwrap_or_else(|error| panic!("{source}: {error:?}"));
            let tree = tree_of(&shown);
            for owned in ["/", "/kept"] {
                let metadata = tree.metadata(&path(owned), Follow::No).unwrap().unwrap();
                assert_eq!(metadata.owner, Owner::ROOT, "{owned} of {source}");
            }
            assert_eq!(tree.read_dir(&path("/")).unwrap().len(), expected, "{source}");
        }
    }
}

#[test]
fn the_content_of_files_stays_where_it_is() {
    let Some(ground) =
        ground("head -c 30000000 /dev/urandom > large; chown 5 large; echo x > y; echo y > .dockerignore")
    else {
        return;
    };
    let shown = ground.views().show(&path("/"), Access::ReadOnly).unwrap();
    let tree = tree_of(&shown);
    assert_eq!(tree.metadata(&path("/large"), Follow::No).unwrap().unwrap().owner, Owner::ROOT);
    let (mut one, mut other) = (Vec::new(), Vec::new());
    let large =
        |tree: &Rootfs| std::fs::File::from(tree.open_file(&path("/large"), OFlags::RDONLY, 0).unwrap());
    io::Read::read_to_end(&mut large(&tree), &mut one).unwrap();
    io::Read::read_to_end(&mut large(ground.context.root()), &mut other).unwrap();
    assert!(one == other);
    let used = std::process::Command::new("du").arg("-sk").arg(ground.workspace.path()).output().unwrap();
    let used: u64 = String::from_utf8(used.stdout).unwrap().split('\t').next().unwrap().parse().unwrap();
    assert!(used < 1000, "{used} KiB are used");
}

#[test]
fn what_is_written_is_discarded() {
    for (name, script) in [
        ("nothing ignored", "true"),
        ("something ignored", "echo d/five > .dockerignore"),
        ("another owner", "chown 5 a/one d"),
    ] {
        let Some(ground) = ground(&format!("{FILES_OF_ALL_KINDS}\n{script}")) else { return };
        let before = dump(ground.context.root());
        let views = ground.views();
        let visible = dump(&tree_of(&views.show(&path("/"), Access::ReadOnly).unwrap()));
        let shown = views.show(&path("/"), Access::ReadWrite).unwrap();
        let tree = tree_of(&shown);
        assert_eq!(dump(&tree), visible, "{name}");
        tree.open_file(&path("/new"), OFlags::CREATE | OFlags::WRONLY, 0o644).unwrap();
        tree.open_file(&path("/a/one"), OFlags::TRUNC | OFlags::WRONLY, 0).unwrap();
        tree.remove(&path("/a/b")).unwrap();
        drop((tree, shown));
        for access in [Access::ReadOnly, Access::ReadWrite] {
            assert_eq!(dump(&tree_of(&views.show(&path("/"), access).unwrap())), visible, "{name}");
        }
        assert_eq!(dump(ground.context.root()), before, "{name}");
    }
}

#[test]
fn files_are_mounted_as_well() {
    let Some(ground) = ground("echo root > a; echo other > b; chown 5 b; chmod 640 b") else { return };
    let views = ground.views();
    for (name, content) in [("/a", "root\n"), ("/b", "other\n")] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let shown = views.show(&path(name), access).unwrap();
            let found = crate::rootfs::metadata_of(&shown.source).unwrap();
            assert_eq!((found.kind, found.owner), (FileKind::File, Owner::ROOT), "{name}");
            let place = format!("/proc/self/fd/{}", shown.source.as_raw_fd());
            assert_eq!(std::fs::read_to_string(&place).unwrap(), content);
            if access == Access::ReadWrite {
                std::fs::write(&place, "written").unwrap();
            }
        }
        let kept = ground.context.root().read_small_file(&path(name), 99).unwrap().unwrap();
        assert_eq!(kept, content.as_bytes(), "{name}");
    }
}

#[test]
fn neither_sockets_nor_pipes_lead_to_the_machine() {
    let Some(ground) = ground("mkdir s; mkfifo s/pipe; echo x > s/file") else { return };
    let _socket =
        std::os::unix::net::UnixListener::bind(ground.directory.path().join("context/s/socket")).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let shown = ground.views().show(&path("/s"), access).unwrap();
        let tree = tree_of(&shown);
        assert!(tree.metadata(&path("/socket"), Follow::No).unwrap().is_none());
        // Nobody reads from the machine's pipe here, else this would not fail.
        let machine = ground.context.root().open_file(&path("/s/pipe"), OFlags::RDONLY, 0).unwrap();
        tree.open_file(&path("/pipe"), OFlags::WRONLY, 0).expect_err("a reader");
        drop(machine);
    }
}

#[test]
fn what_is_mounted_in_the_context_is_shown_too() {
    let Some(ground) = ground("mkdir -p here there; echo a > here/a; echo b > there/b; echo x > ignored")
    else {
        return;
    };
    let context = ground.directory.path().join("context");
    run(&context, "mount --bind there here");
    let all = |views: &ContextViews<'_>, access| {
        let shown = views.show(&path("/"), access).unwrap();
        // As the sandbox does it: with everything below.
        let mut flags =
            rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE | rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC;
        flags |= rustix::mount::OpenTreeFlags::AT_EMPTY_PATH | rustix::mount::OpenTreeFlags::AT_RECURSIVE;
        let tree = Rootfs::from_fd(rustix::mount::open_tree(&*shown.source, "", flags).unwrap());
        let names = tree.read_dir(&path("/here")).unwrap().into_iter().map(|(name, _)| name);
        names.collect::<Vec<_>>()
    };
    let views = ground.views();
    assert_eq!(all(&views, Access::ReadOnly), [b"b"]);
    assert_eq!(all(&views, Access::ReadWrite), [b"b"]);
    run(&context, "echo ignored > .dockerignore");
    let mut ruled = Context::open_dir(&context).unwrap();
    ruled.read_ignore_rules(None).unwrap();
    let views = ContextViews::new(&ruled, &ground.workspace);
    assert_eq!(all(&views, Access::ReadOnly), [b"b"]);
    assert_eq!(all(&views, Access::ReadWrite), [b"b"]);
    assert_eq!(way(&views.known(&ground.place(&path("/"))).unwrap()), "copied");
    run(&context, "umount here");
}

#[test]
fn hard_links_of_a_copy_stay_together() {
    let Some(ground) = ground(FILES_OF_ALL_KINDS) else { return };
    let copy = ground.views().copied_directory(&ground.place(&path("/"))).unwrap();
    let files = Rootfs::open(&copy.path().join(FILES)).unwrap();
    assert_eq!(links(&files), [["/a/b/two", "/a/hard"]]);
}

#[test]
fn nothing_is_left_in_the_workspace_but_masks() {
    let Some(ground) = ground("echo x > a; echo y > b; echo a > .dockerignore") else { return };
    let views = ground.views();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        drop(views.show(&path("/"), access).unwrap());
    }
    assert_eq!(std::fs::read_dir(ground.workspace.path()).unwrap().count(), 1);
    drop(views);
    assert_eq!(std::fs::read_dir(ground.workspace.path()).unwrap().count(), 0);
}

#[test]
fn a_link_that_was_put_where_something_was_found_is_not_shown() {
    let Some(ground) = ground("ln -s /etc directory; ln -s /etc/passwd file") else { return };
    for name in ["/directory", "/file"] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = ground.views().show(&path(name), access).err().expect("no mount");
            assert!(matches!(error, ViewError::Copy(CopyError::Changed { .. })), "{error}");
        }
    }
}

/// CVE-2024-11218, CVE-2024-23651: the source was looked at, changed, and mounted.
#[test]
fn a_source_that_is_changed_meanwhile_never_leads_out() {
    let Some(ground) = ground("mkdir sub other; echo safe > sub/f") else { return };
    let context = ground.directory.path().join("context");
    let outside = ground.directory.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), "canary").unwrap();
    std::os::unix::fs::symlink(&outside, context.join("link")).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let (mut safe, mut gone, mut others) = (0, 0, Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let directory = open(&context).unwrap();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&directory, "sub", &directory, "link", flags).unwrap();
            }
        });
        let from = SourceTree {
            root: ground.context.root(),
            ignore: Some(ground.context.ignore()),
            owner: OwnerPolicy::Root,
        };
        let read = |source: &str, access| {
            let (real, _) = super::super::copy::find(&from, &path(source)).ok()?;
            let shown = ground.views().show(&real, access).ok()?;
            let (place, name) = (&shown.source, if source == "/sub" { "/f" } else { "" });
            std::fs::read_to_string(format!("/proc/self/fd/{}{name}", place.as_raw_fd())).ok()
        };
        for round in 0..3000 {
            let source = ["/sub", "/sub/f"][round % 2];
            let access = [Access::ReadOnly, Access::ReadWrite][(round / 2) % 2];
            match read(source, access).as_deref() {
                Some("safe\n") => safe += 1,
                None => gone += 1,
                other => others.push(format!("{source} {access:?}: {other:?}")),
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(others, [""; 0]);
    assert!(safe > 0 && gone > 0, "{safe} {gone}: nothing was tried");
}
