//! Programs as process 1 of a pid namespace, as in a container.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use super::traces::{Family, Running};

/// The same program with the same arguments, environment and directory, as process 1 of a pid namespace with a `/proc` of
/// its own. It dies with who started it.
pub(crate) fn as_process_one(plain: &Command) -> Command {
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--fork", "--kill-child", "--pid", "--mount-proc"]);
    command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(plain.get_current_dir().expect("directory"));
    command.arg(plain.get_program()).args(plain.get_args());
    command
}

/// Process 1, seen from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessOne(Pid);

impl ProcessOne {
    /// The builder that `running` has started by [`as_process_one`]; none before it is one.
    pub(crate) fn of(running: u32) -> Option<Self> {
        Family::of(running).named("builder").and_then(Pid::from_raw).map(Self)
    }

    /// The same, for one that has said something.
    #[track_caller]
    pub(crate) fn of_running(running: &Running) -> Self {
        Self::of(running.id()).expect("no process 1")
    }

    /// Its number outside.
    pub(crate) fn id(self) -> Pid {
        self.0
    }

    /// Sends it a signal, as a kubelet does; it may have ended.
    pub(crate) fn signal(self, signal: Signal) {
        let sent = kill_process(self.0, signal);
        assert!(matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)), "kill: {sent:?}");
    }
}
