//! An OCI runtime: what it is told about a container (runtime-spec, `config.md`), and how it is called.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::profile::{Confinement, Machine, Users};
use super::seccomp::{self, Mounts};

/// The first id of a pod with ids of its own, on the machine.
pub(super) const FIRST_ID: u32 = 152 * 65_536;

/// What the kubelet has runtimes hide.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// What the kubelet has runtimes write-protect.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Character devices that may be used: null, zero, full, random, urandom, tty and ptmx. Of 136 all: terminals.
const DEVICES: [(u32, u32); 7] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)];

/// Something that a container sees in a place.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) access: Access,
}

/// What a container may do with a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// What a container is told apart from its profile.
pub(super) struct Container<'a> {
    pub(super) confinement: Confinement,
    pub(super) mounts: Mounts,
    pub(super) root: &'a Path,
    pub(super) root_access: Access,
    pub(super) volumes: &'a [Volume],
    pub(super) environment: Vec<String>,
    /// Bytes.
    pub(super) memory: Option<u64>,
    pub(super) args: &'a [&'a str],
}

impl Container<'_> {
    /// `config.json` of the bundle.
    pub(super) fn config(&self) -> Value {
        let Confinement { user, no_new_privileges, .. } = self.confinement;
        let named =
            |names: Vec<&str>| names.into_iter().map(|name| format!("CAP_{name}")).collect::<Vec<_>>();
        let effective = named(self.confinement.effective());
        let mut config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": {"uid": user, "gid": user, "additionalGids": []},
                "args": self.args,
                "env": self.environment,
                "cwd": "/",
                "capabilities": {
                    "bounding": named(self.confinement.bounding()),
                    "effective": effective, "permitted": effective, "inheritable": [], "ambient": [],
                },
                "noNewPrivileges": no_new_privileges,
            },
            "root": {"path": self.root, "readonly": self.root_access == Access::ReadOnly},
            "hostname": super::HOSTNAME,
            "mounts": self.mounts(),
            "linux": self.linux(),
        });
        let filter = self.confinement.filter;
        if let Some(filter) = seccomp::filter(filter, &self.confinement.bounding(), self.mounts) {
            config["linux"]["seccomp"] = filter;
        }
        config
    }

    fn mounts(&self) -> Vec<Value> {
        let mount = |target: &str, kind: &str, source: &str, options: &str| json!({"destination": target, "type": kind, "source": source, "options": options.split(',').collect::<Vec<_>>()});
        let mut mounts = vec![
            mount("/proc", "proc", "proc", "nosuid,noexec,nodev"),
            mount("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755,size=65536k"),
            mount("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
            mount("/dev/mqueue", "mqueue", "mqueue", "nosuid,noexec,nodev"),
            mount("/dev/shm", "tmpfs", "shm", "nosuid,noexec,nodev,mode=1777,size=65536k"),
        ];
        // A new sysfs wants the network namespace to belong to the user namespace; this one is the machine's.
        mounts.push(match (self.confinement.users, self.confinement.machine) {
            (Users::Own, _) => mount("/sys", "bind", "/sys", "rbind,nosuid,noexec,nodev,ro"),
            (Users::Host, Machine::Privileged) => mount("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,rw"),
            (Users::Host, _) => mount("/sys", "sysfs", "sysfs", "nosuid,noexec,nodev,ro"),
        });
        mounts.extend(self.volumes.iter().map(|volume| {
            let access = if volume.access == Access::ReadOnly { "ro" } else { "rw" };
            json!({"destination": volume.target, "type": "bind", "source": volume.source,
                "options": ["rbind", "rprivate", access]})
        }));
        mounts
    }

    fn linux(&self) -> Value {
        let Confinement { users, machine, .. } = self.confinement;
        let mut namespaces = vec!["pid", "ipc", "uts", "mount"];
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            namespaces.push("cgroup");
        }
        let mut devices = vec![json!({"allow": true, "access": "rwm"})];
        if machine != Machine::Privileged {
            let all = |kind: &str| json!({"allow": true, "type": kind, "access": "m"});
            let some = |major: u32| json!({"allow": true, "type": "c", "major": major, "access": "rwm"});
            devices = vec![json!({"allow": false, "access": "rwm"}), all("c"), all("b"), some(136)];
            devices.extend(DEVICES.map(|(major, minor)| {
                let mut device = some(major);
                device["minor"] = json!(minor);
                device
            }));
        }
        let mut linux = json!({"resources": {"devices": devices}});
        if machine == Machine::Masked {
            linux["maskedPaths"] = json!(masked());
            linux["readonlyPaths"] = json!(READ_ONLY);
        }
        if let Some(limit) = self.memory {
            linux["resources"]["memory"] = json!({"limit": limit});
        }
        if users == Users::Own {
            namespaces.push("user");
            let map = json!([{"containerID": 0, "hostID": FIRST_ID, "size": 65_536}]);
            linux["uidMappings"] = map.clone();
            linux["gidMappings"] = map;
        }
        if users == Users::Host && machine == Machine::Privileged {
            linux["devices"] = machine_devices();
        }
        linux["namespaces"] = namespaces.into_iter().map(|name| json!({"type": name})).collect();
        linux
    }
}

/// [`MASKED`], and what makes some processors tell how others work.
fn masked() -> Vec<String> {
    let processors = std::fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let throttles = processors.map(|entry| entry.path().join("thermal_throttle"));
    let throttles = throttles.filter(|path| path.exists()).map(|path| path.display().to_string());
    MASKED.into_iter().map(str::to_owned).chain(throttles).collect()
}

/// The machine's devices, but for those that a runtime makes itself.
fn machine_devices() -> Value {
    let entries = std::fs::read_dir("/dev").expect("/dev").flatten();
    let device = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().ok()?;
        let kind = match () {
            () if metadata.file_type().is_char_device() => "c",
            () if metadata.file_type().is_block_device() => "b",
            () => return None,
        };
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let made = major == 5 || (kind == "c" && DEVICES.contains(&(major, minor)));
        (!made).then(|| {
            json!({"path": entry.path(), "type": kind, "major": major, "minor": minor,
                "fileMode": metadata.mode() & 0o777, "uid": metadata.uid(), "gid": metadata.gid()})
        })
    };
    entries.filter_map(device).collect()
}

/// The program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runtime {
    Crun,
    Runc,
}

impl Runtime {
    /// One that is installed.
    pub(super) fn find() -> Option<Self> {
        [Self::Crun, Self::Runc].into_iter().find(|runtime| {
            Command::new(runtime.name()).arg("--version").output().is_ok_and(|output| output.status.success())
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Crun => "crun",
            Self::Runc => "runc",
        }
    }

    /// Runs a container to its end. It ends when the thread ends that waits for it, however that is: a test that takes too
    /// long is killed, and a container would go on. So it lives in a pid namespace, which the kernel ends as a whole. What
    /// the runtime notes down about it, with numbers of that namespace, is for nobody else.
    ///
    /// crun 1.8 refuses to work where both versions of control groups are in use ("hybrid"). In a mount namespace without
    /// version 2 it sees a machine that has version 1 alone.
    pub(super) fn run(self, notes: &Path, bundle: &Path, container: &str) -> Command {
        let hybrid = std::fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers")
            .is_ok_and(|controllers| !controllers.trim().is_empty());
        let prepare = if self == Self::Crun && hybrid { "umount -l /sys/fs/cgroup/unified;" } else { "" };
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
        command.arg(format!("{prepare} exec \"$@\"")).args(["sh", self.name()]);
        if self == Self::Crun {
            command.arg("--cgroup-manager=cgroupfs");
        }
        command.arg("--root").arg(notes).arg("run").arg("--bundle").arg(bundle).arg(container);
        command.stdin(Stdio::null());
        command
    }
}
