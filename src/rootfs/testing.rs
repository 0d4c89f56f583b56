//! Tests that run with less than the tests of this crate usually have: as a process of their own, in a user namespace or
//! as an ordinary user.

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

/// Whether this process is in `world`. If not, the test `name` is run there by another one, whose failure is that of this
/// one. Called by [`inside`](crate::rootfs::testing::inside).
#[expect(clippy::disallowed_methods, reason = "the environment of a test")]
pub(crate) fn is_inside(world: World, name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|value| value == format!("{world:?}").as_str()) {
        return true;
    }
    let [program, arguments @ ..] = world.command() else { return false };
    let there = |program: &str, arguments: &[&str], more: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).args(more).env(INSIDE, format!("{world:?}"));
        command.output()
    };
    match there(program, arguments, &["true"]) {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprintln!("skipped: {program}: {}", String::from_utf8_lossy(&output.stderr));
            return false;
        }
        Err(error) => {
            eprintln!("skipped: {program}: {error}");
            return false;
        }
    }
    let this = std::env::current_exe().unwrap();
    let output =
        there(program, arguments, &[this.to_str().unwrap(), name, "--exact", "--nocapture"]).unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{world:?}: {text}");
    if text.contains("skipped: ") {
        eprintln!("{text}");
    }
    false
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
