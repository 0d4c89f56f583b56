//! The ground's ordinary users, and builds as one of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// An ordinary user with a home directory of its own, which is removed on drop, whoever owns what is in it.
pub(crate) struct User {
    /// User id.
    pub(crate) uid: u32,
    /// Group id.
    pub(crate) gid: u32,
    home: TempDir,
    program: PathBuf,
}

impl User {
    /// The one with ids in `/etc/subuid` and `/etc/subgid`.
    pub(crate) fn with_ranges() -> Self {
        Self::named("ground-ranges")
    }

    /// The one without.
    pub(crate) fn with_single_id() -> Self {
        Self::named("ground-single")
    }

    fn named(name: &str) -> Self {
        let passwd = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("no user `{name}`; as root: integration/ground/up users"));
        let field =
            |position: usize| line.split(':').nth(position).and_then(|id| id.parse().ok()).expect("an id");
        let (uid, gid) = (field(2), field(3));
        // Neither in the checkout, where this user may have no business, nor in /tmp, which may be in memory.
        let home =
            tempfile::Builder::new().prefix("builder-").tempdir_in("/var/tmp").expect("home directory");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        std::os::unix::fs::chown(home.path(), Some(uid), Some(gid)).expect("owner");
        let mut user = Self { uid, gid, home, program: PathBuf::from(env!("CARGO_BIN_EXE_builder")) };
        if user.command().arg("version").output().is_err() {
            let copy = user.path("builder-program");
            fs::copy(&user.program, &copy).expect("copy of the program");
            user.program = copy;
        }
        user
    }

    /// The user's home directory.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// A path in the user's home directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Where the user's builds keep their store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path(".local/share/builder")
    }

    /// The program as this user starts it, without the environment of whoever runs the tests.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.become_user(&mut command);
        command
    }

    /// Another program, started by this user.
    pub(crate) fn other(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        self.become_user(&mut command);
        command
    }

    /// The path of the program, which this user can execute.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    fn become_user(&self, command: &mut Command) {
        command
            .uid(self.uid)
            .gid(self.gid)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("HOME", self.home.path())
            .current_dir(self.home.path())
            .stdin(Stdio::null());
    }

    /// A build context of this Dockerfile and a static busybox, which everybody may read.
    pub(crate) fn context(&self, dockerfile: &str) -> PathBuf {
        let context = self.path("context");
        fs::create_dir_all(&context).expect("directory");
        fs::write(context.join("Dockerfile"), dockerfile).expect("Dockerfile");
        fs::copy("/bin/busybox", context.join("busybox")).expect("Debian's busybox-static");
        context
    }
}
