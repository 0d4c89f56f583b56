//! Control groups (cgroups(7)): limits that the kernel enforces for a process and all that it starts.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group with a limit, gone with the value.
pub(crate) struct Group(PathBuf);

impl Group {
    /// One whose members are so many processes and threads at most.
    pub(crate) fn of_processes(most: u32) -> Option<Self> {
        Self::new("pids", &["pids.max"], &most.to_string())
    }

    /// One whose members use so many bytes of memory at most, what they read and write included: the kernel takes pages of
    /// files away as it needs to, and ends a process when it can't get enough.
    pub(crate) fn of_memory(most: u64) -> Option<Self> {
        Self::new("memory", &["memory.max", "memory.limit_in_bytes"], &most.to_string())
    }

    /// None, with a word about it, where there can be none.
    fn new(controller: &str, settings: &[&str], value: &str) -> Option<Self> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("builder-test-{}-{number}", std::process::id());
        // Version 1 has a tree for each controller.
        for tree in [format!("/sys/fs/cgroup/{controller}"), "/sys/fs/cgroup".to_owned()] {
            let group = Path::new(&tree).join(&name);
            if fs::create_dir(&group).is_err() {
                continue;
            }
            let group = Self(group);
            if settings.iter().any(|setting| fs::write(group.0.join(setting), value).is_ok()) {
                return Some(group);
            }
        }
        eprintln!("skipped: no control group with a limit of {controller}");
        None
    }

    /// What a shell does to be in it.
    pub(crate) fn enter(&self) -> String {
        format!("echo $$ >{}/cgroup.procs", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Whoever was in it may still be on the way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
