//! Builds at the same time, steps that end badly, and files that change meanwhile.

use std::net::TcpListener;

use super::*;

#[test]
fn a_step_that_fails_or_is_interrupted_is_not_remembered() {
    let project = Project::new("FROM BASE\nRUN echo 1 >/f\nRUN echo started; test -e /never\n");
    for _ in 0..2 {
        let failed = finish(&mut project.command(&[])).exited(1);
        assert!(failed.says(&["| started"]), "{}", failed.stderr);
    }
    assert_eq!(project.results().len(), 1, "the step before it");
    project.dockerfile("FROM BASE\nRUN echo 1 >/f\nRUN echo started; sleep 1000\n");
    let mut running = Running::start(&mut project.command(&[]));
    running.wait_for("| started");
    running.signal(Signal::TERM);
    running.end(Duration::from_secs(10)).exited(143);
    assert_eq!(project.results().len(), 1);
}

/// What a step waits for: RUN has the machine's network.
struct Gate(TcpListener);

impl Gate {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").expect("port"))
    }

    /// The command line of a step that says when it has begun and goes on when the gate opens.
    fn step(&self) -> String {
        format!("echo started; nc 127.0.0.1 {} </dev/null", self.0.local_addr().expect("address").port())
    }

    /// Lets one step through, in the order in which they began.
    fn open(&self) {
        drop(self.0.accept().expect("a step"));
    }
}

#[test]
fn a_step_that_two_builds_want_is_done_once() {
    let gate = Gate::new();
    let step = format!("cat /proc/sys/kernel/random/uuid >/t; {}", gate.step());
    let project = Project::new(&format!("FROM BASE\nRUN {step}\nRUN cat /t >/u\n"));
    let mut first = Running::start(&mut project.command(&[]));
    first.wait_for("| started");
    let mut second = Running::start(&mut project.command(&[]));
    second.wait_for("[2/3] waiting for another stage or build that runs this step");
    gate.open();
    let second = second.end(Duration::from_secs(60)).success();
    let first = first.end(Duration::from_secs(60)).success();
    assert_eq!(first.stdout, second.stdout);
    // Whoever gets to the last step first does it.
    let done: usize = [&first, &second].iter().map(|build| Steps::of(build).done.len()).sum();
    assert_eq!(done, 2, "{}\n{}", first.stderr, second.stderr);
    assert!(Steps::of(&second).found[0].contains("uuid"), "{}", second.stderr);
}

#[test]
fn when_the_build_that_is_waited_for_ends_badly_the_next_one_does_the_step() {
    for signal in [Some(Signal::KILL), Some(Signal::TERM), None] {
        let gate = Gate::new();
        // Without a signal it fails by itself, and so does the other.
        let end = if signal.is_none() { "; false" } else { "" };
        let project = Project::new(&format!("FROM BASE\nRUN {}{end}\n", gate.step()));
        let mut first = Running::start(&mut project.command(&[]));
        first.wait_for("| started");
        let mut second = Running::start(&mut project.command(&[]));
        second.wait_for("waiting for another stage or build that runs this step");
        match signal {
            Some(signal) => first.signal(signal),
            None => gate.open(),
        }
        first.end(Duration::from_secs(30));
        second.wait_for("| started");
        if signal.is_some() {
            // The one that is no more.
            gate.open();
        }
        gate.open();
        let second = second.end(Duration::from_secs(60));
        assert_eq!(second.code, Some(i32::from(signal.is_none())), "{}", second.stderr);
        traces::assert_none(project.builder.store());
    }
}

#[test]
fn who_waits_for_another_build_can_be_stopped() {
    let project = Project::new("FROM BASE\nRUN echo started; sleep 1000\n");
    let mut first = Running::start(&mut project.command(&[]));
    first.wait_for("| started");
    let mut second = Running::start(&mut project.command(&[]));
    second.wait_for("waiting for another stage or build that runs this step");
    second.signal(Signal::TERM);
    second.end(Duration::from_secs(3)).exited(143);
    // Who uses no cache does not wait either.
    let mut third = Running::start(&mut project.command(&["--no-cache"]));
    third.wait_for("| started");
    third.signal(Signal::TERM);
    third.end(Duration::from_secs(10)).exited(143);
    first.signal(Signal::TERM);
    first.end(Duration::from_secs(10)).exited(143);
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_never_taken_for_what_it_was() {
    let project = Project::new("FROM scratch\nCOPY f /f\n");
    let path = project.context.path().join("f");
    let contents = [b"A", b"B"].map(|letter| letter.repeat(2_000_000));
    fs::write(&path, &contents[0]).expect("write");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = project.out.path().join("other");
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for content in &contents {
                    // As editors do it: whoever has the old one open does not notice.
                    fs::write(&other, content).expect("write");
                    fs::rename(&other, &path).expect("rename");
                }
            }
        });
        let builds = (0..30).map(|_| finish(&mut project.command(&["--no-cache"])).success());
        let noticed = |build: Finished| build.says(&["the build context was changed while"]);
        let seen = builds.map(noticed).filter(|noticed| *noticed).count();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        seen
    });
    assert!(seen > 0, "it never happened");
    for (name, content) in ["a", "b"].iter().zip(&contents) {
        fs::write(&path, content).expect("write");
        let (_, layout) = project.layout(name, &[]);
        assert!(
            file_in(&layout, "f").as_bytes() == content.as_slice(),
            "{name}: another content was remembered"
        );
    }
}
