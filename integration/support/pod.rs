//! `builder` in the confinement that a Kubernetes pod would have, by an OCI runtime on this machine.
//!
//! What is not imitated: AppArmor and SELinux of a node ([`Pod::refuse_mounts`] does what AppArmor's `deny mount` does), a
//! network of the pod's own (it is the machine's, where the ground's registry is), id-mapped volumes (files are given to the
//! ids of the pod instead), eviction.

mod profile;
mod runtime;
mod seccomp;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

pub(crate) use profile::Profile;
pub(crate) use runtime::Access;

use super::{Finished, finish};
use profile::{Confinement, Users};
use runtime::{Container, FIRST_ID, Runtime, Volume};
use seccomp::Mounts;

/// What the pod is called.
const HOSTNAME: &str = "pod";

/// Where the service account's token is.
pub(crate) const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Where the registry's credentials are.
pub(crate) const CREDENTIALS: &str = "/kaniko/.docker/config.json";

/// Where the program is.
pub(crate) const PROGRAM: &str = "/usr/local/bin/builder";

/// What files and variables hold that only the builder is to see, each with a part of its own.
pub(crate) const CANARY: &str = "canary-of-the-pod";

/// A pod with one container: busybox and `builder` on an overlay, `/data` on the disk. Removed on drop, with all that runs
/// in it.
pub(crate) struct Pod {
    confinement: Confinement,
    mounts: Mounts,
    root_access: Access,
    memory: Option<u64>,
    volumes: Vec<Volume>,
    environment: Vec<String>,
    runtime: Runtime,
    directory: TempDir,
    started: AtomicU32,
}

/// Whether there can be pods here. Says so, in the name of a test, when there can be none; `ground_state` sees to it that
/// this does not happen where the ground is up.
pub(crate) fn available(test: &str) -> bool {
    let missing = match () {
        () if !rustix::process::geteuid().is_root() => "root",
        () if Runtime::find().is_none() => "crun or runc",
        () if !Path::new(seccomp::FILE).exists() => seccomp::FILE,
        () if !Path::new("/bin/busybox").exists() => "/bin/busybox",
        () => return true,
    };
    eprintln!("skipped `{test}`: it needs {missing}; as root: integration/ground/up packages");
    false
}

/// A directory on a disk where everybody may go, the ids of pods too, removed on drop; or, if this process is killed, by
/// the next that makes one.
pub(crate) fn shared_scratch() -> TempDir {
    shared_scratch_in(Path::new("/var/tmp"))
}

/// The same in another place than `/var/tmp`.
fn shared_scratch_in(parent: &Path) -> TempDir {
    const PREFIX: &str = "builder-pod-";
    for entry in fs::read_dir(parent).expect("a directory").flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        if owner.is_some_and(|(process, _)| !Path::new("/proc").join(process).exists()) {
            unmount(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
            remove_groups(&name);
        }
    }
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(parent).expect("directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    directory
}

/// Removes the control groups of containers of the pod in the directory `pod`: a runtime that was killed did not.
fn remove_groups(pod: &OsStr) {
    let top = Path::new("/sys/fs/cgroup");
    // Version 1 has a tree for each controller.
    let trees = fs::read_dir(top).into_iter().flatten().flatten().map(|entry| entry.path());
    for group in trees.chain([top.to_owned()]).flat_map(fs::read_dir).flatten().flatten() {
        if group.file_name().as_encoded_bytes().starts_with(pod.as_encoded_bytes()) {
            let _ = fs::remove_dir(group.path());
        }
    }
}

/// Undoes [`Pod::mount_root`], if that has been.
fn unmount(pod: &Path) {
    let _ = Command::new("umount").arg("-l").arg(pod.join("root")).output();
}

impl Pod {
    /// One of this kind; see [`available`].
    pub(crate) fn new(profile: Profile) -> Self {
        Self::in_directory(shared_scratch(), profile)
    }

    /// One whose root and `/data` are somewhere below `parent`, where everybody may go.
    pub(crate) fn below(parent: &Path, profile: Profile) -> Self {
        Self::in_directory(shared_scratch_in(parent), profile)
    }

    fn in_directory(directory: TempDir, profile: Profile) -> Self {
        let mut pod = Self {
            confinement: profile.confinement(),
            mounts: Mounts::Allowed,
            root_access: Access::ReadWrite,
            memory: None,
            volumes: Vec::new(),
            environment: Vec::new(),
            runtime: Runtime::find().expect("an OCI runtime"),
            directory,
            started: AtomicU32::new(0),
        };
        pod.make_root();
        pod.make_volumes();
        pod.environment = [
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            if pod.confinement.user == 0 { "HOME=/root" } else { "HOME=/data" },
            "HOSTNAME=pod",
            "KUBERNETES_SERVICE_HOST=10.96.0.1",
            "KUBERNETES_SERVICE_PORT=443",
            "BUILDER_STORE=/data/store",
        ]
        .map(str::to_owned)
        .to_vec();
        pod.environment.push(format!("BUILD_TOKEN={CANARY}-environment"));
        pod.mount_root();
        pod
    }

    /// Shows a file or directory of the machine in the pod.
    pub(crate) fn mount(mut self, source: impl Into<PathBuf>, target: &str, access: Access) -> Self {
        self.volumes.push(Volume { source: source.into(), target: target.to_owned(), access });
        self
    }

    /// Sets a variable of the container, `NAME=value`.
    pub(crate) fn environment(mut self, variable: &str) -> Self {
        self.environment.push(variable.to_owned());
        self
    }

    /// `readOnlyRootFilesystem: true`.
    pub(crate) fn read_only_root(mut self) -> Self {
        self.root_access = Access::ReadOnly;
        self
    }

    /// A limit for the container's memory, in bytes.
    pub(crate) fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// No mounts, by anybody: EACCES, as under AppArmor's default profile for containers.
    pub(crate) fn refuse_mounts(mut self) -> Self {
        self.mounts = Mounts::Refused;
        self
    }

    /// `capabilities.drop`, of one.
    pub(crate) fn without(mut self, capability: &'static str) -> Self {
        self.confinement.dropped = Some(capability);
        self
    }

    /// The container's image is the builder's own.
    pub(crate) fn own_image(self) -> Self {
        fs::write(self.root().join(".builder-image"), "").expect("marker");
        self.give(&self.root().join(".builder-image"), 0);
        self
    }

    /// The root of the container as the machine sees it, without what is mounted there for the container.
    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    /// What is `/data` in the pod.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Writes a file into `/data`, directories as needed; everybody may read it.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.data().join(name);
        let parent = path.parent().expect("a file has a parent");
        fs::create_dir_all(parent).expect("directories");
        fs::write(&path, content).expect("file");
        for path in parent.ancestors().take_while(|path| *path != self.data()).chain([&*path]) {
            self.give(path, self.confinement.user);
        }
    }

    /// Runs a command as the only one of a new container, to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Finished {
        finish(&mut self.command(args))
    }

    /// Runs commands one after the other in one container, whatever becomes of each.
    pub(crate) fn run_all(&self, commands: &[&[&str]]) -> Vec<Finished> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let output = |command: usize, kind: &str| format!("output-{number}/{command}.{kind}");
        let mut script = String::new();
        for (command, words) in commands.iter().enumerate() {
            self.write(&output(command, "code"), "");
            let line: Vec<String> =
                words.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
            let [code, out, error] = ["code", "out", "error"].map(|kind| output(command, kind));
            script += &format!("{} >/data/{out} 2>/data/{error}; echo $? >/data/{code}\n", line.join(" "));
        }
        let session = self.run(&["/bin/sh", "-c", &script]);
        let read = |command, kind| {
            let bytes = fs::read(self.data().join(output(command, kind))).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let finished = |(command, words): (usize, &&[&str])| Finished {
            command: words.join(" "),
            // Nothing if the container ended before; what it said is worth seeing then.
            code: read(command, "code").trim().parse().ok(),
            stdout: read(command, "out"),
            stderr: read(command, "error") + &session.stderr,
        };
        commands.iter().enumerate().map(finished).collect()
    }

    /// The call that runs a command as the only one of a new container.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let bundle = self.directory.path().join(format!("container-{number}"));
        fs::create_dir(&bundle).expect("bundle");
        let container = Container {
            confinement: self.confinement,
            mounts: self.mounts,
            root: &self.root(),
            root_access: self.root_access,
            volumes: &self.volumes,
            environment: self.environment.clone(),
            memory: self.memory,
            args,
        };
        let config = serde_json::to_vec(&container.config()).expect("JSON");
        fs::write(bundle.join("config.json"), config).expect("config.json");
        self.runtime.run(&self.directory.path().join("notes"), &bundle, &self.container(number))
    }

    /// The name of a container, unique on the machine.
    fn container(&self, number: u32) -> String {
        let name = self.directory.path().file_name().expect("a name").to_str().expect("UTF-8");
        format!("{name}-{number}")
    }

    /// What the image of the container has.
    fn make_root(&self) {
        let lower = self.directory.path().join("lower");
        for directory in [
            "bin",
            "dev",
            "etc",
            "kaniko/.docker",
            "proc",
            "root",
            "run",
            "sys",
            "tmp",
            "usr/local/bin",
            "var/run",
            "var/tmp",
        ] {
            fs::create_dir_all(lower.join(directory)).expect("directory");
        }
        for directory in ["tmp", "var/tmp"] {
            fs::set_permissions(lower.join(directory), fs::Permissions::from_mode(0o1777)).expect("mode");
        }
        fs::copy("/bin/busybox", lower.join("bin/busybox")).expect("Debian's busybox-static");
        let list = finish(Command::new("/bin/busybox").arg("--list")).success().stdout;
        for applet in list.lines().filter(|applet| *applet != "busybox") {
            symlink("busybox", lower.join("bin").join(applet)).expect("link");
        }
        let users = "root:x:0:0:root:/root:/bin/sh\nbuild:x:1000:1000:build:/data:/bin/sh\n";
        fs::write(lower.join("etc/passwd"), users).expect("users");
        fs::write(lower.join("etc/group"), "root:x:0:\nbuild:x:1000:\n").expect("groups");
        fs::copy(env!("CARGO_BIN_EXE_builder"), lower.join(&PROGRAM[1..])).expect("copy of the program");
        for path in super::tree::paths(&lower) {
            self.give(&path, 0);
        }
    }

    /// What the kubelet and the runtime mount into every container, a secret, and `/data`.
    fn make_volumes(&mut self) {
        let secret = |file: &str, content: String| {
            let volume = self.directory.path().join(file);
            // As the kubelet lays out a secret: it changes all files of it at once.
            fs::create_dir_all(volume.join("..2026_11_30")).expect("directory");
            fs::write(volume.join("..2026_11_30").join(file), content).expect("secret");
            symlink("..2026_11_30", volume.join("..data")).expect("link");
            symlink(format!("..data/{file}"), volume.join(file)).expect("link");
        };
        secret("token", format!("{CANARY}-token"));
        let credentials = serde_json::json!({"auths": {"registry.example": {
            "username": "user", "password": format!("{CANARY}-credentials"),
        }}});
        secret("config.json", credentials.to_string());
        let directory = self.directory.path();
        let resolv_conf = fs::read("/etc/resolv.conf").unwrap_or_default();
        fs::write(directory.join("resolv.conf"), resolv_conf).expect("resolv.conf");
        fs::write(directory.join("hosts"), "127.0.0.1\tlocalhost\n10.0.0.1\tpod\n").expect("hosts");
        fs::write(directory.join("hostname"), "pod\n").expect("hostname");
        fs::write(directory.join("termination-log"), "").expect("termination-log");
        fs::create_dir(self.data()).expect("directory");
        fs::set_permissions(self.data(), fs::Permissions::from_mode(0o777)).expect("mode");
        let parent = |path: &str| path.rsplit_once('/').expect("a parent").0.to_owned();
        for (source, target, access) in [
            ("data", "/data".to_owned(), Access::ReadWrite),
            ("resolv.conf", "/etc/resolv.conf".to_owned(), Access::ReadWrite),
            ("hosts", "/etc/hosts".to_owned(), Access::ReadWrite),
            ("hostname", "/etc/hostname".to_owned(), Access::ReadWrite),
            ("termination-log", "/dev/termination-log".to_owned(), Access::ReadWrite),
            ("token", parent(TOKEN), Access::ReadOnly),
            ("config.json", parent(CREDENTIALS), Access::ReadOnly),
        ] {
            let source = self.directory.path().join(source);
            for path in super::tree::paths(&source) {
                self.give(&path, 0);
            }
            self.volumes.push(Volume { source, target, access });
        }
    }

    /// Gives a file to a user of the pod.
    fn give(&self, path: &Path, user: u32) {
        let first = if self.confinement.users == Users::Own { FIRST_ID } else { 0 };
        lchown(path, Some(first + user), Some(first + user)).expect("owner");
    }

    /// Mounts the container's root, as a runtime does before it makes a container.
    fn mount_root(&self) {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| self.directory.path().join(name));
        for directory in [&upper, &work, &self.root()] {
            fs::create_dir(directory).expect("directory");
            self.give(directory, 0);
        }
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let mount = ["-t", "overlay", "overlay", "-o", &options];
        finish(Command::new("mount").args(mount).arg(self.root())).success();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        unmount(self.directory.path());
    }
}
