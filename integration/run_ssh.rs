//! `RUN --mount=type=ssh` with an agent, through the whole program.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::oci::LayoutImage;
use crate::support::steps::{self, WAYS, build, output};
use crate::support::user::User;
use crate::support::{Builder, Context, finish, scratch, traces};

/// OpenSSH's agent with one key.
struct Agent {
    process: Child,
    directory: TempDir,
}

impl Agent {
    /// None where there is no OpenSSH, which is said.
    fn start() -> Option<Self> {
        let directory = tempfile::Builder::new().prefix("builder-").tempdir_in("/var/tmp").unwrap();
        let socket = directory.path().join("agent");
        let mut command = Command::new("ssh-agent");
        command.args(["-D", "-a"]).arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            eprintln!("skipped: there is no ssh-agent; as root: integration/ground/up packages");
            return None;
        };
        let agent = Self { process, directory };
        let begun = Instant::now();
        while !socket.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "ssh-agent does not listen");
            std::thread::yield_now();
        }
        let key = agent.directory.path().join("key");
        finish(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key)).success();
        finish(Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", &socket)).success();
        Some(agent)
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("agent")
    }

    /// How many keys it has.
    fn keys(&self) -> usize {
        let listed = finish(Command::new("ssh-add").arg("-l").env("SSH_AUTH_SOCK", self.socket()));
        listed.stdout.lines().filter(|line| line.contains("ED25519")).count()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A context with a program that asks agents; every image is to have it in `/ask`.
fn put_ask(context: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/run_ssh/ask.c");
    finish(Command::new("cc").args(["-static", "-O1", "-o"]).arg(context.join("ask")).arg(source)).success();
}

fn context(dockerfile: &str) -> Context {
    let context = steps::context(dockerfile);
    put_ask(context.path());
    context
}

#[test]
fn a_step_lists_the_keys_of_an_agent_and_can_take_none_away() {
    let Some(agent) = Agent::start() else { return };
    for way in WAYS {
        let (builder, out) = (Builder::new(), scratch());
        let context = context(
            "FROM BASE\nCOPY ask /\n\
             RUN --mount=type=ssh /ask $SSH_AUTH_SOCK 11; /ask $SSH_AUTH_SOCK 19; /ask $SSH_AUTH_SOCK 11; \
             echo $SSH_AUTH_SOCK; stat -c '%a %u:%g %F' $SSH_AUTH_SOCK\n\
             RUN --mount=type=ssh,id=other,target=/a --mount=type=ssh,mode=0660,uid=5,gid=6 /ask /a 11; echo $SSH_AUTH_SOCK; \
             stat -c '%a %u:%g' /run/buildkit/ssh_agent.1\n\
             USER 5\nRUN --mount=type=ssh,target=/b,uid=5 /ask /b 11; test ! -e /run\n\
             RUN --mount=type=ssh /ask $SSH_AUTH_SOCK 11 2>&1; ! test -e /b -o -e /a\n",
        );
        let layout = out.path().join("layout");
        let socket = format!("--ssh=other={}", agent.socket().display());
        let default = format!("--ssh=default={}", agent.socket().display());
        let flags = ["--no-cache", &socket, &default, &format!("--isolation={way}")];
        let finished = builder.layout(&context, &layout, &flags).success();
        let expected = [
            "12 1",
            "5 0",
            "12 1",
            "/run/buildkit/ssh_agent.0",
            "600 0:0 socket",
            "12 1",
            "/a",
            "660 5:6",
            "12 1",
            "connect: Permission denied",
        ];
        let mut found = output(&finished);
        found.sort();
        let mut expected: Vec<String> = expected.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(found, expected, "{way}\n{}", finished.stderr);
        let paths = LayoutImage::only(&layout).layer_paths(&layout).split_off(3);
        assert_eq!(paths, vec![Vec::<String>::new(); 3], "{way}");
        assert_eq!(agent.keys(), 1, "{way}");
        traces::assert_none(builder.store());
    }
}

#[test]
fn ordinary_users_forward_their_agents() {
    const DOCKERFILE: &str = "FROM scratch\nCOPY busybox /bin/busybox\nCOPY ask /ask\nSHELL [\"/bin/busybox\", \"sh\", \"-c\"]\n\
        RUN --mount=type=ssh /ask $SSH_AUTH_SOCK 11\n";
    for user in [User::with_ranges(), User::with_single_id()] {
        let context = user.context(DOCKERFILE);
        put_ask(&context);
        let socket = user.path("agent");
        // OpenSSH's own answers nobody but the user who has started it.
        let (listener, path) = (UnixListener::bind(&socket).unwrap(), socket.clone());
        std::os::unix::fs::chown(&path, Some(user.uid), Some(user.gid)).unwrap();
        let server = std::thread::spawn(move || {
            use std::io::{Read, Write};
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 5];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&[0, 0, 0, 5, 12, 0, 0, 0, 3]).unwrap();
            request
        });
        let mut command = user.command();
        command.env("SSH_AUTH_SOCK", &socket);
        command
            .args(["--no-push", "--no-cache", "--platform=linux/amd64", "--ssh=default", "-c"])
            .arg(&context);
        let finished = finish(&mut command).success();
        assert_eq!(output(&finished), ["12 3"]);
        assert_eq!(server.join().unwrap(), [0, 0, 0, 1, 11]);
        traces::assert_none(&user.store());
    }
}

#[test]
fn without_an_agent_a_step_fails_only_if_it_must_have_one() {
    let builder = Builder::new();
    let of = |options: &str| {
        context(&format!(
            "FROM BASE\nRUN --mount=type=ssh{options} echo $SSH_AUTH_SOCK; ls /run /a 2>/dev/null; true\n"
        ))
    };
    for (options, socket) in [("", "/run/buildkit/ssh_agent.0"), (",target=/a,required=false", "/a")] {
        let finished = build(&builder, &of(options), &[]).success();
        assert_eq!(output(&finished), [socket], "{options}");
    }
    let env = context("FROM BASE\nENV SSH_AUTH_SOCK=/mine\nRUN --mount=type=ssh echo $SSH_AUTH_SOCK\n");
    assert_eq!(output(&build(&builder, &env, &[]).success()), ["/mine"]);
    for (options, id) in [(",required", ""), (",id=x,required=true", "x")] {
        let failed = build(&builder, &of(options), &[]).exited(1);
        assert!(
            failed.says(&[&format!("no SSH key \"{id}\" forwarded from the client")]),
            "{}",
            failed.stderr
        );
        assert!(failed.stderr.contains("Dockerfile:2"), "{}", failed.stderr);
    }
}

#[test]
fn another_agent_is_no_reason_to_do_a_step_again() {
    let Some(agent) = Agent::start() else { return };
    let builder = Builder::new();
    let context = context("FROM BASE\nRUN --mount=type=ssh echo done\n");
    let socket = format!("--ssh=default={}", agent.socket().display());
    let done = |flags: &[&str]| {
        let all = [&["--no-push", "-c", context.path().to_str().unwrap()], flags].concat();
        output(&builder.run(all).success())
    };
    assert_eq!(done(&[&socket]), ["done"]);
    assert_eq!(done(&[]), [""; 0]);
    assert_eq!(done(&[&socket]), [""; 0]);
}

#[test]
fn what_is_no_agent_is_refused_before_anything_is_built() {
    let builder = Builder::new();
    let context = context("FROM BASE\nRUN true\n");
    let key = scratch();
    let file = key.path().join("id");
    fs::write(&file, "").unwrap();
    for (flag, words) in [
        ("--ssh=default".to_owned(), "SSH_AUTH_SOCK is not set"),
        (format!("--ssh=default={}", file.display()), "key files are not read"),
        ("--ssh=default=/no/such/socket".to_owned(), "cannot find the agent for `default`"),
    ] {
        let failed = build(&builder, &context, &[&flag]).exited(1);
        assert!(failed.says(&["--ssh: ", words]), "{}", failed.stderr);
        assert!(!failed.stderr.contains("[1/2]"), "{}", failed.stderr);
    }
}
