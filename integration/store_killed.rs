//! A store survives builds that are killed at any moment: nothing in it is wrong, nothing of them stays, and the next
//! build gives the same image.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use builder::image::digest::Digest;
use builder::image::document::DocumentLimits;
use builder::store::layout::Layout;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::ground::ground;
use crate::support::oci::{raw_manifest, skopeo};
use crate::support::traces::{self, Running};
use crate::support::{Builder, Context, scratch};

/// How many builds are killed.
const BUILDS: u32 = 50;

/// Numbers that are the same for the same seed (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Who is killed.
#[derive(Debug, Clone, Copy)]
enum Victims {
    Builder,
    Group,
    /// Who would clean up is killed before.
    JanitorAndBuilder,
}

/// When somebody is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// So long after the start.
    Time(Duration),
    /// So long after this many lines: what is done fast has its line too.
    Line(usize, Duration),
}

impl Moment {
    fn wait(self, running: &mut Running) {
        match self {
            Self::Time(time) => std::thread::sleep(time),
            Self::Line(line, time) => {
                while running.lines().is_some_and(|lines| lines < line) {
                    std::thread::sleep(Duration::from_micros(500));
                }
                std::thread::sleep(time);
            }
        }
    }
}

/// What every build builds: several stages and steps whose results depend on nothing but the variant.
struct Subject {
    context: Context,
    /// Where images are pushed to; the variant is the tag.
    repository: String,
    /// The images that come out, by variant: digest and archive.
    expected: BTreeMap<&'static str, (String, Digest)>,
}

const VARIANTS: [&str; 2] = ["one", "two"];

impl Subject {
    fn new() -> Self {
        let ground = ground();
        let repository = format!("killed-{}", std::process::id());
        let base = ground.copy("busybox:latest", &repository);
        // RUN would make /dev, /proc and /sys where they are missing, at the time of the day.
        let context = Context::new(&format!(
            "FROM {base} AS base\nWORKDIR /dev\nWORKDIR /proc\nWORKDIR /sys\nWORKDIR /\n\
             FROM base AS made\n\
             RUN mkdir /made && for n in $(seq 60); do echo $n >/made/$n; done && yes | head -c 300000 >/made/large \
             && find /made -exec touch -d @1700000000 {{}} +\n\
             RUN rm /made/1* && touch -d @1700000000 /made\n\
             FROM base\nARG VARIANT\n\
             COPY --from=made /made /copied\n\
             COPY files /files\n\
             RUN echo $VARIANT >/variant && touch -d @1700000000 /variant\n"
        ));
        for number in 0..40 {
            context.write(&format!("files/{number}"), "x".repeat(number * 10));
        }
        let settle = ["-exec", "touch", "-d", "@1600000000", "{}", "+"];
        assert!(Command::new("find").arg(context.path()).args(settle).status().expect("find").success());
        Self { context, repository: ground.name(&repository), expected: BTreeMap::new() }
    }

    fn command(&self, builder: &Builder, out: &Path, variant: &str) -> Command {
        let mut command = builder.command();
        command.arg("--context").arg(self.context.path());
        command.args(["--build-arg=SOURCE_DATE_EPOCH=1700000000", &format!("--build-arg=VARIANT={variant}")]);
        command.arg(format!("--destination={}:{variant}", self.repository));
        command.arg("--tar-path").arg(out.join(format!("{variant}.tar")));
        command.arg("--oci-layout-path").arg(out.join(variant));
        command
    }

    /// Builds a variant to the end; gives its digest and that of its archive.
    fn build(&self, builder: &Builder, out: &Path, variant: &str) -> (String, Digest) {
        let finished = Running::start(&mut self.command(builder, out, variant)).end(Duration::from_secs(60));
        let digest = finished.success().stdout.trim().to_owned();
        let archive = fs::read(out.join(format!("{variant}.tar"))).expect("archive");
        layout(&out.join(variant)).verify().expect("layout");
        (digest, Digest::of(&archive))
    }

    /// Asserts that what killed builds wrote outside the store is whole, or not there.
    #[track_caller]
    fn check_outputs(&self, out: &Path) {
        for (variant, (_, archive)) in &self.expected {
            if let Ok(bytes) = fs::read(out.join(format!("{variant}.tar"))) {
                assert_eq!(Digest::of(&bytes), *archive, "half an archive");
            }
            if out.join(variant).exists() {
                layout(&out.join(variant)).verify().expect("half a layout");
            }
        }
    }
}

/// A layout, or a store, which is one.
#[track_caller]
fn layout(path: &Path) -> Layout {
    Layout::open(path, &DocumentLimits::default()).expect("a layout")
}

/// Asserts that everything in the store is what its name says.
#[track_caller]
fn check_store(store: &Path) {
    for entry in fs::read_dir(store.join("blobs/sha256")).into_iter().flatten() {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_str().expect("name").to_owned();
        assert_eq!(Digest::of(&fs::read(&path).expect("blob")).hex(), name);
    }
    // Whoever was killed first thing has made none yet.
    if store.join("index.json").exists() {
        layout(store).verify().expect("the catalog holds");
    }
}

/// The janitors of builds in `store`.
fn janitors(store: &Path) -> Vec<Pid> {
    let found = traces::of(store).into_iter().filter_map(|line| {
        let process =
            line.strip_prefix("process ")?.strip_suffix(" (builder-janitor) was started with the store")?;
        Pid::from_raw(process.parse().ok()?)
    });
    found.collect()
}

/// Kills, and waits for the end of it.
fn kill(running: Running, victims: Victims, store: &Path) {
    match victims {
        Victims::Builder => running.signal(Signal::KILL),
        Victims::Group => running.signal_group(Signal::KILL),
        Victims::JanitorAndBuilder => {
            for janitor in janitors(store) {
                let _ = kill_process(janitor, Signal::KILL);
            }
            running.signal(Signal::KILL);
        }
    }
    running.end(Duration::from_secs(10));
}

/// Forgets what was fetched, built and unpacked, as anybody may do while no build runs.
fn empty(store: &Path) {
    for directory in ["blobs", "unpacked", "cache"] {
        match fs::remove_dir_all(store.join(directory)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{directory}: {error}"),
            _ => {}
        }
    }
}

fn seed() -> u64 {
    let given =
        std::env::var("BUILDER_SEED").ok().map(|text| text.parse().expect("BUILDER_SEED is a number"));
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("clock").as_nanos() as u64;
    given.unwrap_or_else(now) | 1
}

#[derive(Debug, Clone, Copy)]
struct Length {
    time: Duration,
    lines: usize,
}

/// The builds that are killed.
struct Rounds {
    subject: Subject,
    builder: Builder,
    out: TempDir,
    random: Random,
    /// How long a build takes that does every step, and one that does none, and how many lines they print.
    lengths: [Length; 2],
    no_cache: bool,
}

impl Rounds {
    fn start(&self, variant: &str, no_cache: bool) -> Running {
        let mut command = self.subject.command(&self.builder, self.out.path(), variant);
        if no_cache {
            command.arg("--no-cache");
        }
        Running::start(&mut command)
    }

    fn moment(&mut self, length: Length) -> Moment {
        if self.random.below(2) == 0 {
            return Moment::Time(Duration::from_micros(
                self.random.below(length.time.as_micros() as u64 * 11 / 10),
            ));
        }
        let line = usize::try_from(self.random.below(length.lines as u64)).expect("small") + 1;
        Moment::Line(line, Duration::from_micros(self.random.below(10_000)))
    }

    fn round(&mut self, number: u32) {
        let store = self.builder.store().to_owned();
        let cold = number.is_multiple_of(2);
        if cold {
            empty(&store);
        }
        let victims = [Victims::Builder, Victims::Group, Victims::JanitorAndBuilder]
            [usize::try_from(self.random.below(3)).expect("small")];
        let no_cache = self.no_cache && self.random.below(2) == 0;
        let moment = self.moment(self.lengths[usize::from(!cold && !no_cache)]);
        let beside = self.random.below(4) == 0;
        eprintln!("{number}: {victims:?} after {moment:?}, cold {cold}, beside another {beside}");
        // What earlier ones left whose janitors died: the builds that remove it may be killed over that.
        let before = traces::left_in(&store);
        let mut first = self.start("one", no_cache);
        let second = beside.then(|| self.start(VARIANTS[usize::from(number % 4 < 2)], no_cache));
        moment.wait(&mut first);
        kill(first, victims, &store);
        if let Some(second) = second {
            // Its janitor may be dead too: it must not matter.
            let finished = second.end(Duration::from_secs(60)).success();
            let known = self.subject.expected.values().any(|(digest, _)| *digest == finished.stdout.trim());
            assert!(known, "{finished:?}");
        }
        let janitor_lived = !matches!(victims, Victims::JanitorAndBuilder);
        let is_wrong =
            |line: &String| !line.ends_with("is left") || (janitor_lived && !before.contains(line));
        traces::assert_empty(|| traces::of(&store).into_iter().filter(is_wrong).collect());
        check_store(&store);
        self.subject.check_outputs(self.out.path());
    }
}

#[test]
fn a_store_survives_builds_that_are_killed_at_any_moment() {
    let seed = seed();
    eprintln!("BUILDER_SEED={seed}");
    let mut subject = Subject::new();
    let builder = Builder::new();
    let out = scratch();
    let lengths = [(); 2].map(|()| {
        let began = Instant::now();
        let build = Running::start(&mut subject.command(&builder, out.path(), "one"));
        let lines = build.end(Duration::from_secs(60)).success().stderr.lines().count();
        Length { time: began.elapsed(), lines }
    });
    eprintln!("builds take {lengths:?}");
    for variant in VARIANTS {
        subject.expected.insert(variant, subject.build(&Builder::new(), scratch().path(), variant));
    }
    let no_cache = builder.run(["build", "--help"]).success().stdout.contains("--no-cache");
    let mut rounds = Rounds { subject, builder, out, random: Random(seed), lengths, no_cache };
    for number in 0..BUILDS {
        rounds.round(number);
    }
    let Rounds { subject, builder, out, .. } = rounds;
    for (variant, expected) in &subject.expected {
        assert_eq!(
            subject.build(&builder, out.path(), variant),
            *expected,
            "in the store of the killed ones"
        );
        traces::assert_none(builder.store());
        assert_eq!(subject.build(&Builder::new(), scratch().path(), variant), *expected, "in an empty store");
        let name = format!("{}:{variant}", subject.repository);
        assert_eq!(raw_manifest(&name)["config"]["mediaType"], "application/vnd.oci.image.config.v1+json");
        let layout = format!("oci:{}", out.path().join(variant).display());
        skopeo(&["inspect", "--raw", &layout]);
    }
    let left: Vec<PathBuf> =
        fs::read_dir(out.path()).expect("outputs").map(|entry| entry.expect("entry").path()).collect();
    assert_eq!(left.len(), 4, "two archives and two layouts: {left:?}");
    check_store(builder.store());
}
