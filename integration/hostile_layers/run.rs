//! Running the program on a layout, and judging what it did.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use builder::rootfs::{FileKind, Follow, GuestPath, Rootfs, remove_tree, xattrs_at};
use std::os::fd::AsFd as _;

use super::cases::{Expect, Outside, What};

/// An ordinary user: any id that has neither a name nor subordinate ids.
pub(crate) const USER: u32 = 54_321;

/// Bytes of address space that the program gets, in units of 1024.
const MEMORY: &str = "524288";

/// Who runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    User,
    /// A process in a chroot can make no user namespace (user_namespaces(7)).
    UserInChroot,
}

/// What the program did.
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A place to extract to, and something beside it that must not change.
pub(crate) struct Ground {
    directory: tempfile::TempDir,
    who: Who,
    builder: PathBuf,
    canary: String,
}

impl Ground {
    /// One for `who`; none, visibly, where that cannot be tried.
    pub(crate) fn new(who: Who) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root, to be {who:?}");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("hostile-").tempdir_in(disk()).expect("directory");
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
        let builder = path.join("builder");
        // The checkout may be where nobody else may go.
        if fs::hard_link(env!("CARGO_BIN_EXE_builder"), &builder).is_err() {
            fs::copy(env!("CARGO_BIN_EXE_builder"), &builder).expect("copy");
        }
        for name in ["outside", "outside/dir", "place", "root"] {
            fs::create_dir(path.join(name)).expect("mkdir");
        }
        fs::set_permissions(path.join("outside/dir"), fs::Permissions::from_mode(0o750)).expect("chmod");
        for name in ["outside/file", "outside/dir/inner"] {
            fs::write(path.join(name), "canary").expect("write");
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(0o640)).expect("chmod");
        }
        if who != Who::Root {
            // An escape must not fail for want of rights.
            for name in ["outside/dir/inner", "outside/file", "outside/dir", "outside", "place"] {
                std::os::unix::fs::chown(path.join(name), Some(USER), Some(USER)).expect("chown");
            }
        }
        let mut ground = Self { directory, who, builder, canary: String::new() };
        ground.canary = dump(&ground.path().join("outside"));
        let can = match who {
            Who::Root => Outcome { code: Some(0), stdout: String::new(), stderr: String::new() },
            Who::User => ground.as_user(&["unshare", "--user", "--map-root-user", "true"]),
            Who::UserInChroot => ground.as_user(&["true"]),
        };
        if can.code != Some(0) {
            eprintln!("skipped: cannot be {who:?}: {}", can.stderr);
            return None;
        }
        Some(ground)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn outside(&self) -> Outside {
        Outside { path: self.path().join("outside").to_str().expect("text").to_owned() }
    }

    /// Where the new directory is made.
    pub(crate) fn place(&self) -> PathBuf {
        self.path().join("place")
    }

    /// The new directory.
    pub(crate) fn extracted(&self) -> PathBuf {
        self.place().join("out")
    }

    /// A path as the program sees it.
    pub(crate) fn argument(&self, path: &Path) -> String {
        path.to_str().expect("text").to_owned()
    }

    /// A command line, run by whoever it is about.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = match self.who {
            Who::Root => Command::new(words[0]),
            Who::User => {
                let mut command = Command::new(words[0]);
                command.uid(USER).gid(USER);
                command
            }
            Who::UserInChroot => {
                let mut command = Command::new("unshare");
                let root = self.path().join("root");
                let script =
                    "mount --rbind / \"$0\" && exec chroot --userspec=54321:54321 --groups= \"$0\" \"$@\"";
                command.args(["--mount", "sh", "-c", script]).arg(root).arg(words[0]);
                command
            }
        };
        command
            .args(&words[1..])
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// Runs any program as the user.
    pub(crate) fn as_user(&self, words: &[&str]) -> Outcome {
        finish(&mut self.command(words))
    }

    fn extract_command(&self, arguments: &[&str]) -> Command {
        let out = self.argument(&self.extracted());
        let builder = self.argument(&self.builder);
        // The limit must not be that of `unshare` and its like.
        let script = "ulimit -v \"$0\" && exec \"$@\"";
        let mut words = vec!["sh", "-c", script, MEMORY, "timeout", "--signal=KILL", "60", &builder];
        words.extend(["image", "extract"]);
        words.extend(arguments);
        words.push(&out);
        self.command(&words)
    }

    /// Extracts: the last of the positional `arguments` is the layout.
    pub(crate) fn extract(&self, arguments: &[&str]) -> Outcome {
        finish(&mut self.extract_command(arguments))
    }

    /// Begins to extract.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let out = self.argument(&self.extracted());
        let builder = self.argument(&self.builder);
        let words = [&[builder.as_str(), "image", "extract"], arguments, &[out.as_str()]].concat();
        self.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start")
    }

    /// Runs a script, whose `$0` is the program, in a mount namespace of its own.
    pub(crate) fn shell(&self, script: &str, layout: &Path) -> Outcome {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&self.builder)
            .env("PLACE", self.place())
            .env("LAYOUT", layout);
        finish(&mut command)
    }

    /// What was extracted, as text.
    pub(crate) fn dump(&self) -> String {
        dump(&self.extracted())
    }

    /// Removes what was extracted, whatever its modes.
    pub(crate) fn clear(&self) {
        let place = Rootfs::open(&self.place()).expect("place");
        remove_tree(place.as_fd(), b"out").expect("remove");
    }
}

/// Where everybody may go and overlayfs works: in memory, where that has the attributes that overlays of ordinary users
/// need (since Linux 6.6), as a disk's journal takes minutes for so many files.
fn disk() -> &'static Path {
    let memory = Path::new("/dev/shm");
    let has_attributes = tempfile::tempfile_in(memory).is_ok_and(|file| {
        rustix::fs::fsetxattr(&file, "user.overlay.test", b"y", rustix::fs::XattrFlags::empty()).is_ok()
    });
    if has_attributes { memory } else { Path::new("/var/tmp") }
}

fn finish(command: &mut Command) -> Outcome {
    let output = command.output().expect("start");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits for something that is to happen soon.
#[track_caller]
pub(crate) fn wait_until(otherwise: &str, mut is_so: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so() {
        assert!(began.elapsed().as_secs() < 60, "{otherwise}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// What is wrong with the outcome of a case.
pub(crate) fn judge(ground: &Ground, name: &str, expect: &Expect, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let Outcome { code, stderr, .. } = outcome;
    let mut say = |text: String| wrong.push(format!("{name}: {text}"));
    if dump(&ground.path().join("outside")) != ground.canary {
        say("OUTSIDE CHANGED".to_owned());
    }
    if stderr.contains("panic") {
        say(format!("panic: {stderr}"));
    }
    if stderr.chars().any(|character| character.is_control() && character != '\n') {
        say(format!("control characters: {stderr:?}"));
    }
    let mut left: Vec<String> = fs::read_dir(ground.place())
        .expect("place")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    left.retain(|entry| entry != "out");
    if !left.is_empty() {
        say(format!("left behind: {left:?}"));
    }
    let exists = fs::symlink_metadata(ground.extracted()).is_ok();
    match (expect, code) {
        (Expect::Refused(message), Some(1)) => {
            let errors = stderr.lines().filter(|line| line.starts_with("error: ")).count();
            if errors != 1 || !stderr.contains(message) {
                say(format!("expected one error with {message:?}: {stderr}"));
            }
            if exists {
                say("something is there all the same".to_owned());
            }
        }
        (Expect::Accepted(checks), Some(0)) => {
            let root = Rootfs::open(&ground.extracted()).expect("root");
            for (path, expected) in checks {
                let found = look(&root, path);
                let nobody_may = *expected == What::Device && ground.who != Who::Root;
                let expected = if nobody_may { &What::Nothing } else { expected };
                if found != *expected {
                    let path = path[..path.len().min(80)].escape_ascii();
                    say(format!("`{path}` is {found:?}, expected {expected:?}"));
                }
            }
        }
        (_, code) => say(format!("exit code {code:?}: {stderr}")),
    }
    wrong
}

/// What stands at a path.
fn look(root: &Rootfs, path: &[u8]) -> What {
    let path = GuestPath::clamp(path).expect("path");
    let Some(metadata) = root.metadata(&path, Follow::No).expect("metadata") else { return What::Nothing };
    match metadata.kind {
        FileKind::File => {
            What::Content(root.read_small_file(&path, 1 << 24).expect("read").unwrap_or_default())
        }
        FileKind::Directory => What::Directory,
        FileKind::Symlink => What::Link(root.read_link(&path).expect("link")),
        FileKind::Fifo => What::Fifo,
        FileKind::CharDevice | FileKind::BlockDevice => What::Device,
        FileKind::Socket => panic!("{path} is a socket"),
    }
}

/// A tree as text, one line a path; of a thousand levels too.
fn dump(top: &Path) -> String {
    use std::fmt::Write as _;
    let root = Rootfs::open(top).expect("tree");
    let mut names = std::collections::BTreeMap::new();
    let mut text = String::new();
    let mut pending = vec![GuestPath::root()];
    while let Some(path) = pending.pop() {
        let metadata = root.metadata(&path, Follow::No).expect("metadata").expect("entry");
        let (time, owner) = (metadata.mtime, metadata.owner);
        let kind = metadata.kind;
        write!(text, "{path} {kind:?} {:04o} {}:{}", metadata.mode, owner.uid, owner.gid).expect("text");
        write!(text, " {}.{:09} {}", time.seconds, time.nanoseconds, metadata.rdev).expect("text");
        match kind {
            FileKind::File => {
                write!(text, " {} bytes", metadata.size).expect("text");
                if metadata.size < 1 << 16 {
                    let content = root.read_small_file(&path, 1 << 16).expect("read").unwrap_or_default();
                    write!(text, " {}", content.escape_ascii()).expect("text");
                }
            }
            FileKind::Symlink => {
                write!(text, " -> {}", root.read_link(&path).expect("link").escape_ascii()).expect("text");
            }
            FileKind::Directory => {
                let children = root.read_dir(&path).expect("list");
                pending.extend(children.iter().rev().map(|(name, _)| path.child(name)));
            }
            _ => {}
        }
        if kind != FileKind::Directory && metadata.links > 1 {
            let first = names.entry((metadata.device, metadata.inode)).or_insert_with(|| path.clone());
            write!(text, " ={first}").expect("text");
        }
        let (parent, name) = root.parent(&path).expect("parent");
        for (key, value) in xattrs_at(parent.as_fd(), &name).expect("attributes") {
            if key != b"security.selinux" {
                write!(text, " {}={}", key.escape_ascii(), value.escape_ascii()).expect("text");
            }
        }
        text.push('\n');
    }
    text
}
