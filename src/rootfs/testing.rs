//! Tests that run with less than the tests of this crate usually have: as a process of their own, in a user namespace or
//! as an ordinary user.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a test runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum World {
    /// A user namespace that has one user and one group, 0, and a mount namespace of its own.
    SingleId,
    /// A process of user and group 1234 in no further groups, without capabilities.
    OrdinaryUser,
}

impl World {
    /// The command line that starts what is appended to it there.
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::SingleId => &["unshare", "--map-root-user", "--mount"],
            Self::OrdinaryUser => &[
                "setpriv",
                "--reuid=1234",
                "--regid=1234",
                "--clear-groups",
                "--inh-caps=-all",
                "--bounding-set=-all",
            ],
        }
    }
}

/// Says in the environment of a test that it is where it wants to be.
const INSIDE: &str = "BUILDER_TEST_WORLD";

/// Whether this process is in some world.
#[expect(clippy::disallowed_methods, reason = "the environment of a test")]
fn world_here() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// Whether this process is in `world`. If not, the test `name` is run there by another one, whose failure is that of this
/// one. Called by [`inside`](crate::rootfs::testing::inside).
pub(crate) fn is_inside(world: World, name: &str) -> bool {
    let here = world_here();
    if here.is_none() {
        run_in(world, &[name, "--exact"]);
    }
    here.is_some_and(|here| here == format!("{world:?}"))
}

/// Runs all tests whose names have `part` in them in `world`, unless that is where this process is.
pub(crate) fn all_pass_in(world: World, part: &str) {
    if world_here().is_none() {
        run_in(world, &[part]);
    }
}

/// Names a directory of a user who is in no world.
const FOREIGN: &str = "BUILDER_TEST_FOREIGN";

/// In a [`World`]: a context that anybody may read, with the files `kept`, `sub/kept` and `ignored`, which it ignores. All
/// of it belongs to user 5 and group 6, with access control lists that name user 7. None where the test itself may not
/// make that.
#[expect(clippy::disallowed_methods, reason = "the environment of a test")]
pub(crate) fn foreign() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var(FOREIGN).ok()?);
    let made = path.join("ignored").exists();
    if !made {
        eprintln!("skipped: files of others cannot be made here");
    }
    made.then_some(path)
}

#[expect(clippy::disallowed_methods, reason = "a test prepares a directory of its own on the host")]
fn make_foreign(path: &Path) {
    use std::os::unix::fs::{PermissionsExt, chown};
    let anybody = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(path.parent().unwrap(), anybody).unwrap();
    std::fs::create_dir(path).unwrap();
    if chown(path, Some(5), Some(6)).is_err() {
        return;
    }
    std::fs::create_dir(path.join("sub")).unwrap();
    for name in ["kept", "sub/kept", ".dockerignore", "ignored"] {
        std::fs::write(path.join(name), "ignored\n").unwrap();
    }
    let list = crate::store::testing::access_list(7);
    for name in ["", "sub", "kept", "sub/kept", ".dockerignore", "ignored"] {
        let path = path.join(name);
        // Where there are no such lists, the owner alone will do.
        let _ =
            rustix::fs::setxattr(&path, "system.posix_acl_access", &list, rustix::fs::XattrFlags::empty());
        chown(&path, Some(5), Some(6)).unwrap();
    }
}

fn run_in(world: World, filter: &[&str]) {
    let [program, arguments @ ..] = world.command() else { return };
    let place = tempfile::tempdir().unwrap();
    let foreign = place.path().join("foreign");
    make_foreign(&foreign);
    let there = |more: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).args(more).env(INSIDE, format!("{world:?}")).env(FOREIGN, &foreign);
        // That of the tests may be closed to others.
        command.env("TMPDIR", place.path());
        command.output()
    };
    match there(&["true"]) {
        Ok(output) if output.status.success() => {}
        Ok(output) => return eprintln!("skipped: {program}: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return eprintln!("skipped: {program}: {error}"),
    }
    let this = std::env::current_exe().unwrap();
    // One after the other, as each has a process of its own elsewhere: some change the limits of theirs.
    let options = [this.to_str().unwrap(), "--nocapture", "--test-threads=1"];
    let output = there(&[&options, filter].concat()).unwrap();
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success() && !text.contains(" 0 passed"), "{world:?}: {text}");
    text.lines().filter(|line| line.contains("skipped: ")).for_each(|line| eprintln!("{world:?}: {line}"));
}

/// Whether the test that asks is in a [`World`]; see [`is_inside`].
macro_rules! inside {
    ($world:ident) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.strip_suffix("::here").and_then(|name| name.split_once("::"));
        $crate::rootfs::testing::is_inside($crate::rootfs::testing::World::$world, name.unwrap().1)
    }};
}

pub(crate) use inside;

#[test]
fn worlds_are_what_they_say() {
    use crate::rootfs::Caller;
    let caller = format!("{:?}", Caller::current());
    if inside!(SingleId) {
        assert!(caller.contains("uid: 0") && caller.contains("ignores_permissions: true"), "{caller}");
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap();
        assert_eq!(map.split_whitespace().last(), Some("1"), "{map}");
    }
    if inside!(OrdinaryUser) {
        assert!(caller.contains("uid: 1234") && caller.contains("ignores_permissions: false"), "{caller}");
    }
}

/// By how many bytes the memory of this process grows at most while `action` runs; none where the kernel does not tell.
/// Other tests in the same process would count.
pub(crate) fn most_memory_of(action: impl FnOnce()) -> Option<u64> {
    let most = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        value.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    // Sets the peak to what is in use now, as proc_pid_clear_refs(5) says.
    let before = std::fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| most());
    action();
    let grown = before.and_then(|before| Some(most()?.saturating_sub(before) << 10));
    if grown.is_none() {
        eprintln!("skipped: this kernel does not tell the peak of a process's memory");
    }
    grown
}
