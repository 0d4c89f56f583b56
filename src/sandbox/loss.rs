//! Who has killed the process that holds a sandbox, as far as that can be told.

use std::fmt;
use std::path::Path;

use super::wire::Left;

/// Why the supervisor of a step has ended without saying how the step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The kernel has killed processes of this container meanwhile, for want of memory.
    Memory,
    /// The step could have signalled it.
    Step,
    /// The step could not reach it.
    Outside,
}

impl Loss {
    /// Of a step that may have `left` something, when `killed` is how many were killed for want of memory before and since.
    pub(super) fn of(left: Left, killed: [Option<u64>; 2]) -> Self {
        match (left, killed) {
            (_, [before, Some(since)]) if since > before.unwrap_or(since) => Self::Memory,
            (Left::Descendants, _) => Self::Step,
            (Left::Nothing, _) => Self::Outside,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Memory => {
                "give the container more memory (in a pod: resources.limits.memory), or have the step use less"
            }
            Self::Step => {
                "see whether the step signals processes that it has not started; if not, the kernel may have done it for want of memory: its log (dmesg) says so"
            }
            Self::Outside => {
                "somebody else did that, or the kernel for want of memory: its log (dmesg) says so"
            }
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => " when memory ran out",
            Self::Step => ", perhaps by the step, which can reach it",
            Self::Outside => "",
        })
    }
}

/// How many processes of this control group, and of those in it, were killed for want of memory since it was made; none
/// where the kernel does not say.
pub(super) fn killed_for_memory() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    count(Path::new("/sys/fs/cgroup"), &own)
}

/// The same by `own`, the text of /proc/self/cgroup (cgroups(7)), where the groups are mounted at `top`.
fn count(top: &Path, own: &str) -> Option<u64> {
    let own = own.lines().find_map(|line| {
        let [_, controllers, path] = line.splitn(3, ':').collect::<Vec<&str>>()[..] else { return None };
        let (tree, file) = match controllers {
            "" => (top.to_owned(), "memory.events"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (top.join("memory"), "memory.oom_control")
            }
            _ => return None,
        };
        // In a container the path may be that of the machine, where its own group is all that is mounted.
        let group = tree.join(path.trim_start_matches('/'));
        [group, tree].iter().find_map(|group| std::fs::read_to_string(group.join(file)).ok())
    })?;
    own.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_killed_for_memory_are_counted_in_either_version_of_control_groups() {
        let top = tempfile::tempdir().unwrap();
        for (file, content) in [
            ("memory.events", "low 0\noom 1\noom_kill 1\noom_group_kill 0\n"),
            ("a/b/memory.events", "oom 9\noom_kill 5\n"),
            ("memory/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
            ("memory/d/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n"),
        ] {
            let file = top.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, content).unwrap();
        }
        for (own, expected) in [
            ("0::/a/b\n", Some(5)),
            ("0::/\n", Some(1)),
            ("0::/kubepods/pod1\n", Some(1)),
            ("5:cpu,cpuacct:/x\n4:hugetlb,memory:/c\n0::/a/b\n", Some(7)),
            ("4:memory:/d\n", None),
            ("", None),
            ("nonsense\n", None),
        ] {
            assert_eq!(count(top.path(), own), expected, "{own}");
        }
    }

    #[test]
    fn who_killed_it_is_said_as_far_as_it_is_known() {
        for (left, killed, loss) in [
            (Left::Descendants, [Some(3), Some(4)], Loss::Memory),
            (Left::Nothing, [Some(0), Some(1)], Loss::Memory),
            (Left::Descendants, [Some(3), Some(3)], Loss::Step),
            (Left::Descendants, [None, None], Loss::Step),
            (Left::Nothing, [None, Some(1)], Loss::Outside),
        ] {
            assert_eq!(Loss::of(left, killed), loss, "{left:?} {killed:?}");
        }
    }
}
