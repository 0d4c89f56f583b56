//! What is left of a build, looked for from outside: processes, mounts, temporary files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Finished;

/// How long something that goes on by itself may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything that shows `store`: processes with it as root, current directory, program, open file or in their
/// environment; mounts of any process; files in its temporary directory.
pub(crate) fn of(store: &Path) -> Vec<String> {
    let needle = store.as_os_str().as_bytes();
    let mut found = Vec::new();
    for process in processes() {
        let directory = PathBuf::from(format!("/proc/{process}"));
        let shown = || format!("process {process} ({})", name(process));
        for link in ["root", "cwd", "exe"] {
            if fs::read_link(directory.join(link)).is_ok_and(|path| path.starts_with(store)) {
                found.push(format!("{} has its {link} in the store", shown()));
            }
        }
        for entry in fs::read_dir(directory.join("fd")).into_iter().flatten().flatten() {
            if fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(store)) {
                found.push(format!("{} has a file of the store open", shown()));
            }
        }
        if holds(&directory.join("environ"), needle) {
            found.push(format!("{} was started with the store", shown()));
        }
        if holds(&directory.join("mountinfo"), needle) {
            found.push(format!("{} sees a mount of the store", shown()));
        }
    }
    found.extend(left_in(store));
    found
}

/// The temporary files in `store`.
pub(crate) fn left_in(store: &Path) -> Vec<String> {
    let entries = fs::read_dir(store.join("tmp")).into_iter().flatten().flatten();
    entries.map(|entry| format!("{} is left", entry.path().display())).collect()
}

/// Waits until nothing shows the store any more, at most two seconds.
#[track_caller]
pub(crate) fn assert_none(store: &Path) {
    assert_empty(|| of(store));
}

/// Waits until there is nothing any more, at most two seconds.
#[track_caller]
pub(crate) fn assert_empty(look: impl Fn() -> Vec<String>) {
    let began = Instant::now();
    loop {
        let found = look();
        if found.is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(2), "left after two seconds:\n{}", found.join("\n"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn processes() -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let own = i32::try_from(std::process::id()).expect("process number");
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|process| *process != own)
        .collect()
}

fn holds(path: &Path, needle: &[u8]) -> bool {
    fs::read(path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
}

fn name(process: i32) -> String {
    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim().to_owned()
}

/// Parent and time of start of a process that is alive.
fn alive(process: i32) -> Option<(i32, String)> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may hold anything, even brackets.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let [state, parent, ..] = fields[..] else { return None };
    let started = (*fields.get(19)?).to_owned();
    (state != "Z" && state != "X").then_some((parent.parse().ok()?, started))
}

/// A process with everything that descends from it, at one moment.
#[derive(Debug)]
pub(crate) struct Family(BTreeMap<i32, (String, String)>);

impl Family {
    /// The family of a process now.
    pub(crate) fn of(first: u32) -> Self {
        let first = i32::try_from(first).expect("process number");
        let all: BTreeMap<i32, (i32, String)> =
            processes().into_iter().filter_map(|process| Some((process, alive(process)?))).collect();
        let descends = |mut process: i32| {
            while let Some((parent, _)) = all.get(&process) {
                if process == first {
                    return true;
                }
                process = *parent;
            }
            false
        };
        let members = all.iter().filter(|(process, _)| descends(**process));
        Self(members.map(|(process, (_, started))| (*process, (started.clone(), name(*process)))).collect())
    }

    /// Names of those who live.
    pub(crate) fn left(&self) -> Vec<String> {
        let lives = |(process, (started, _)): &(&i32, &(String, String))| {
            alive(**process).is_some_and(|(_, now)| now == *started)
        };
        self.0
            .iter()
            .filter(lives)
            .map(|(process, (_, name))| format!("process {process} ({name})"))
            .collect()
    }

    /// The member with this name.
    pub(crate) fn named(&self, wanted: &str) -> Option<i32> {
        self.0.iter().find(|(_, (_, name))| name == wanted).map(|(process, _)| *process)
    }

    /// All of them.
    pub(crate) fn processes(&self) -> impl Iterator<Item = i32> {
        self.0.keys().copied()
    }

    /// How many there were.
    pub(crate) fn size(&self) -> usize {
        self.0.len()
    }
}

/// A program that runs while a test looks at it.
pub(crate) struct Running {
    child: Child,
    shown: String,
    stderr: Arc<Mutex<String>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts it in a process group of its own.
    pub(crate) fn start(command: &mut Command) -> Self {
        let shown = format!("{command:?}");
        let mut child = command
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
        let stderr = Arc::new(Mutex::new(String::new()));
        let mut lines = BufReader::new(child.stderr.take().expect("stderr"));
        let text = Arc::clone(&stderr);
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                text.lock().expect("stderr").push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { child, shown, stderr, reader: Some(reader) }
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a line of stderr ends with `text`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait_until(text, |stderr| stderr.lines().any(|line| line.ends_with(text)));
    }

    /// Waits until something is so.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        let began = Instant::now();
        loop {
            let stderr = self.stderr.lock().expect("stderr").clone();
            if is_so(&stderr) {
                return;
            }
            let ended = self.child.try_wait().expect("wait");
            assert!(ended.is_none(), "{}: ended before `{what}`\n{stderr}", self.shown);
            assert!(began.elapsed() < PATIENCE, "{}: no `{what}`\n{stderr}", self.shown);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// How many lines of stderr there are, until it has ended.
    pub(crate) fn lines(&mut self) -> Option<usize> {
        let ended = self.child.try_wait().expect("wait").is_some();
        (!ended).then(|| self.stderr.lock().expect("stderr").lines().count())
    }

    /// Sends a signal to the process, which may have ended.
    pub(crate) fn signal(&self, signal: Signal) {
        sent(kill_process(self.pid(), signal));
    }

    /// Sends a signal to its group, as a terminal does.
    pub(crate) fn signal_group(&self, signal: Signal) {
        sent(kill_process_group(self.pid(), signal));
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process number")).expect("process number")
    }

    /// Waits for its end, at most `limit`.
    #[track_caller]
    pub(crate) fn end(mut self, limit: Duration) -> Finished {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(
                began.elapsed() < limit,
                "{}: does not end\n{}",
                self.shown,
                self.stderr.lock().expect("stderr")
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        // It ends when nobody holds the pipe any more: a process left behind would show here.
        self.reader.take().expect("reader").join().expect("reader");
        let mut stdout = String::new();
        std::io::Read::read_to_string(&mut self.child.stdout.take().expect("stdout"), &mut stdout)
            .expect("stdout");
        let stderr = self.stderr.lock().expect("stderr").clone();
        Finished { command: self.shown.clone(), code: status.code(), stdout, stderr }
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn sent(result: rustix::io::Result<()>) {
    assert!(matches!(result, Ok(()) | Err(rustix::io::Errno::SRCH)), "kill: {result:?}");
}
