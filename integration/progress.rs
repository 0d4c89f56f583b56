//! What is seen of a build: on a real terminal of 80 and of 200 columns, in quiet mode, and by programs.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::support::Builder;
use crate::support::ground::ground;
use crate::support::steps::{build, context, output};

/// Two stages at once, of which one copies from the other.
const STAGES: &str = "FROM BASE AS compile\nENV a=b\nRUN echo one; echo a line that is too long for eighty columns \
                      and for every other window that is not very wide; sleep 1\nFROM BASE\nRUN sleep 0.5; echo \
                      other\nCOPY --from=compile /etc/passwd /x\n";

/// A terminal, and a process whose standard error it is.
struct Terminal {
    process: Child,
    keyboard: File,
    bytes: Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    /// Starts `command` on a terminal of so many rows and columns.
    fn start(command: &mut Command, rows: u16, columns: u16) -> Self {
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        let name = ptsname(&control, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(Stdio::from(terminal));
        let process = command.spawn().unwrap();
        // Its copy of the terminal would keep that open.
        command.stderr(Stdio::null());
        let mut reader = File::from(control);
        let keyboard = reader.try_clone().unwrap();
        let (sender, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // At the end it cannot be read any more.
            while let Ok(read @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { process, keyboard, bytes, screen: vt100::Parser::new(rows, columns, 1000) }
    }

    /// Reads on until the screen is as `wanted`; panics with the screen after a minute, or at the end.
    fn wait_for(&mut self, wanted: impl Fn(&str) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !wanted(&self.contents()) {
            let left = end.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(bytes) => self.screen.process(&bytes),
                Err(error) => panic!("{error}\n{}", self.contents()),
            }
        }
    }

    /// Becomes as large as this.
    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
        self.screen.screen_mut().set_size(rows, columns);
    }

    fn contents(&self) -> String {
        self.screen.screen().contents()
    }

    /// Waits for its end; what is on the screen then, and in standard output.
    fn end(mut self) -> (String, String) {
        while let Ok(bytes) = self.bytes.recv() {
            self.screen.process(&bytes);
        }
        let mut out = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.process.wait().unwrap();
        (self.contents(), out)
    }
}

fn command(builder: &Builder, context: &crate::support::Context) -> Command {
    let mut command = builder.command();
    command.args(["--no-push", "--no-cache", "--jobs", "2", "-c"]).arg(context.path());
    command
}

#[test]
fn on_a_terminal_what_is_done_scrolls_up_and_what_goes_on_stands_below() {
    for (rows, columns) in [(24, 80), (40, 200)] {
        let (builder, context) = (Builder::new(), context(STAGES));
        let mut terminal = Terminal::start(&mut command(&builder, &context), rows, columns);
        let is_shown = |screen: &str| {
            let lines: Vec<&str> = screen.lines().collect();
            let step = lines.iter().position(|line| line.starts_with("[compile 3/3] RUN echo one"));
            step.is_some_and(|at| lines.get(at + 1).is_some_and(|line| line.starts_with("  | ")))
                && lines.last().is_some_and(|line| line.contains(" of 6 steps") && line.ends_with(" s"))
        };
        terminal.wait_for(is_shown);
        let (screen, out) = terminal.end();
        assert!(out.starts_with("sha256:") && out.lines().count() == 1, "{out}");
        let begins = |wanted: &str| screen.lines().filter(|line| line.starts_with(wanted)).count();
        for wanted in
            ["[compile 1/3] FROM", "[compile 2/3] ENV a=b", "[compile 3/3] RUN", "[stage-1 3/3] COPY"]
        {
            assert_eq!(begins(wanted), 1, "{wanted}\n{screen}");
        }
        // What a step wrote that ended well is of no interest, nor is the view itself any more.
        assert!(!screen.contains("  | ") && !screen.contains("steps done"), "{screen}");
        let last = screen.lines().last().unwrap_or_default();
        assert!(last.starts_with("finished 6 steps for linux/") && last.ends_with(" s"), "{screen}");
        let widest = screen.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(usize::from(columns)), "{screen}");
        assert!(
            screen.lines().any(|line| line.starts_with("[compile 3/3]") && line.ends_with(" s")),
            "{screen}"
        );
    }
}

#[test]
fn the_view_follows_a_terminal_that_changes_its_size() {
    let (builder, context) = (Builder::new(), context("FROM BASE\nRUN echo begun; sleep 2\nRUN echo then\n"));
    let mut terminal = Terminal::start(&mut command(&builder, &context), 24, 60);
    let width = |screen: &str| screen.lines().last().map_or(0, str::len);
    terminal.wait_for(|screen| screen.contains("  | begun") && width(screen) == 59);
    terminal.resize(30, 100);
    terminal.wait_for(|screen| width(screen) == 99);
    let (screen, _) = terminal.end();
    for wanted in ["[1/3] FROM", "[2/3] RUN", "[3/3] RUN", "finished 3 steps"] {
        assert_eq!(screen.lines().filter(|line| line.starts_with(wanted)).count(), 1, "{wanted}\n{screen}");
    }
    assert!(!screen.contains("steps done"), "{screen}");
}

#[test]
fn on_a_terminal_a_step_that_fails_shows_what_it_wrote() {
    let context = context("FROM BASE\nRUN echo fine\nRUN echo no such file; echo really >&2; exit 3\n");
    let builder = Builder::new();
    let (screen, out) = Terminal::start(&mut command(&builder, &context), 24, 100).end();
    let wanted = ["[3/3] | no such file", "[3/3] | really", "error: process"];
    assert!(wanted.iter().all(|wanted| screen.lines().any(|line| line.starts_with(wanted))), "{screen}");
    assert!(screen.contains("failed after") && !screen.contains("| fine"), "{screen}");
    assert_eq!(out, "");
}

#[test]
fn the_view_is_gone_before_a_program_behind_a_pipe_shows_something() {
    let files: String = (0..8).map(|number| format!("COPY Dockerfile /file-{number}\n")).collect();
    // Names are shown before the last bytes are written: the pipe has no room for all.
    let large = "RUN sleep 0.5; head -c 8000000 /dev/zero >/large";
    let context = context(&format!("FROM BASE\n{large}\nFROM scratch\n{files}COPY --from=0 /large /large\n"));
    let builder = Builder::new();
    let mut build = builder.command();
    build.args(["--no-cache", "-o", "-", "-c"]).arg(context.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" | tar t >&2", "sh"]).arg(build.get_program()).args(build.get_args());
    shell.env_clear().envs(build.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null());
    let mut terminal = Terminal::start(&mut shell, 40, 80);
    terminal.wait_for(|screen| screen.contains("steps done"));
    let (screen, _) = terminal.end();
    for number in 0..8 {
        let name = format!("file-{number}");
        assert_eq!(screen.lines().filter(|line| *line == name).count(), 1, "{name}\n{screen}");
    }
    assert!(screen.lines().any(|line| line == "large") && !screen.contains("steps done"), "{screen}");
}

#[test]
fn an_interrupted_build_leaves_nothing_of_the_view_behind() {
    let context = context("FROM BASE\nRUN echo it has begun; sleep 60\n");
    let builder = Builder::new();
    let mut terminal = Terminal::start(&mut command(&builder, &context), 24, 80);
    terminal.wait_for(|screen| screen.contains("  | it has begun"));
    // The terminal shows `^C` where the cursor is. It is not the process's own, so the signal is sent.
    terminal.keyboard.write_all(b"\x03").unwrap();
    terminal.wait_for(|screen| screen.contains("^C"));
    kill_process(Pid::from_child(&terminal.process), Signal::INT).unwrap();
    let (screen, _) = terminal.end();
    assert!(screen.contains("error: stopped by SIGINT"), "{screen}");
    let left = ["of 2 steps", "  | it has", "[2/2] RUN"];
    assert!(left.iter().all(|left| !screen.contains(left)), "{screen}");
}

#[test]
fn a_quiet_build_says_its_digest_and_why_it_failed() {
    let builder = Builder::new();
    let context_of = |run: &str| context(&format!("FROM BASE\nRUN {run}\n"));
    let fine = build(&builder, &context_of("echo fine"), &["-q"]).success();
    assert_eq!(fine.stderr, "");
    assert!(fine.stdout.starts_with("sha256:"), "{}", fine.stdout);
    let failed = build(&builder, &context_of("echo why; exit 7"), &["--progress=quiet"]);
    assert!(failed.stderr.starts_with("[2/2] | why\nerror: process"), "{}", failed.stderr);
    assert_eq!(failed.code, Some(7));
}

#[test]
fn programs_read_a_json_object_a_line() {
    let finished = build(&Builder::new(), &context(STAGES), &["--progress", "rawjson"]).success();
    let lines: Vec<Value> =
        finished.stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let all = |key: &str| -> Vec<&Value> {
        lines.iter().filter_map(|line| line[key].as_array()).flatten().collect()
    };
    let vertexes = all("vertexes");
    let names: Vec<&str> = vertexes.iter().filter_map(|vertex| vertex["name"].as_str()).collect();
    assert!(names.contains(&"[stage-1 3/3] COPY --from=compile /etc/passwd /x"), "{names:#?}");
    // Whatever began ended.
    let ended = |digest: &Value| {
        vertexes.iter().any(|vertex| vertex["digest"] == *digest && vertex["completed"].is_string())
    };
    assert!(vertexes.iter().all(|vertex| ended(&vertex["digest"])), "{vertexes:#?}");
    let logs = all("logs");
    assert!(logs.iter().any(|log| log["data"] == "b3RoZXIK" && log["stream"] == 1), "{logs:#?}");
    let statuses = all("statuses");
    assert!(statuses.iter().any(|status| status["completed"].is_string()), "{statuses:#?}");
}

/// That every layer of the base is unpacked, and converted for an output that wants that.
#[test]
fn what_takes_long_beside_the_steps_is_shown_with_its_bytes() {
    let out = crate::support::scratch();
    let build = |progress: &str| {
        let dest = out.path().join(progress);
        let output = format!("type=oci,dest={},compression=zstd,force-compression=true", dest.display());
        let arguments = ["--progress", progress, "-o", output.as_str()];
        build(&Builder::new(), &context("FROM BASE\nRUN true\n"), &arguments).success().stderr
    };
    let lines = build("plain");
    let has = |begin: &str, end: &str| {
        lines.lines().any(|line| line.starts_with(begin) && line.contains("B) ") && line.ends_with(end))
    };
    assert!(has("unpacking sha256:", &format!(" of {}", ground().name("busybox:latest"))), "{lines}");
    assert!(has("converting sha256:", " to zstd-3"), "{lines}");
    let lines = build("rawjson");
    let statuses: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line))
        .filter_map(|line| line["statuses"].get(0).cloned())
        .collect();
    for begin in ["unpacking ", "converting zstd-3 "] {
        let is_complete = |status: &&Value| {
            status["id"].as_str().is_some_and(|id| id.starts_with(begin)) && status["completed"].is_string()
        };
        let done = statuses.iter().find(is_complete).unwrap_or_else(|| panic!("{begin}: {lines}"));
        assert!(done["total"].as_u64() > Some(0) && done["current"] == done["total"], "{done}");
    }
}

#[test]
fn a_live_view_needs_a_terminal_and_a_mode_a_name_that_there_is() {
    let builder = Builder::new();
    let context = context("FROM BASE\n");
    let tty = build(&builder, &context, &["--progress=tty"]);
    assert!(
        tty.stderr.starts_with("error: --progress tty: standard error is not a terminal\n"),
        "{}",
        tty.stderr
    );
    let unknown = build(&builder, &context, &["--progress=fancy"]);
    assert!(unknown.stderr.contains("expected auto, plain, tty, quiet or rawjson"), "{}", unknown.stderr);
    let plain = build(&builder, &context, &["--progress=plain"]).success();
    assert!(plain.stderr.starts_with("[1/1] FROM "), "{}", plain.stderr);
    assert_eq!(output(&plain), [""; 0]);
}
