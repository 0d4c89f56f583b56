//! What each way to keep a RUN apart costs, next to the strongest: a measurement, not a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::ground::ground;
use crate::support::pod::{self, Access, PROGRAM, Pod, Profile, shared_scratch};
use crate::support::{Finished, finish};

/// Builds are repeated in turns, and the least of each number counts.
const ROUNDS: usize = 2;

/// A pod and what is asked for in it. The first is what the others are compared with.
const WAYS: [(&str, Profile, &str); 5] = [
    ("mount-namespace", Profile::Privileged, "mount-namespace"),
    ("user-namespace", Profile::Privileged, "user-namespace"),
    ("user-namespace, /proc shared", Profile::Unset, "user-namespace"),
    ("chroot", Profile::Privileged, "chroot"),
    ("in-place", Profile::Privileged, "in-place"),
];

/// Builds by name.
const BUILDS: [(&str, &str); 6] = [
    ("one-run", "FROM {debian}\nRUN true\n"),
    ("twenty-runs", "FROM {busybox}\n{runs}"),
    // 4,400 files, packed and unpacked.
    (
        "tar",
        "FROM {debian}\nRUN mkdir /copy && for i in 1 2 3 4 5; do tar -cf - /usr /etc /var 2>/dev/null | tar -xf - -C /copy; done\n",
    ),
    (
        "gcc",
        "FROM {debian-cross}\nCOPY hello.c /\nRUN for i in 1 2 3 4 5 6 7 8 9 10; do arm-linux-gnueabihf-gcc -O2 -c -o /hello.o /hello.c; done\n",
    ),
    (
        "dpkg",
        "FROM {debian}\nCOPY libcap2-bin.deb /\nRUN for i in 1 2 3 4 5; do dpkg --install /libcap2-bin.deb; done\n",
    ),
    ("on-100k-files", "FROM {many}\nRUN echo one >/one\n"),
];

/// What is in the store: nothing, as in a new pod, or the base as it was unpacked by a build before, where that is kept.
const STORES: [&str; 2] = ["cold", "warm"];

/// Wall seconds and CPU seconds.
type Cost = [f64; 2];

#[test]
#[ignore = "a measurement: `make bench-isolation` calls it with an optimised program"]
fn what_each_way_costs() {
    if !pod::available("what_each_way_costs") {
        return;
    }
    let memory = Memory::mount();
    let pods = WAYS.map(|(_, profile, _)| prepare(profile, memory.0.path()));
    println!("| build | store | unit | {} |", WAYS.map(|(name, ..)| name).join(" | "));
    println!("|---|---|---|{}", "---:|".repeat(WAYS.len()));
    for (build, store) in BUILDS.iter().flat_map(|(build, _)| STORES.map(|store| (build, store))) {
        let mut least = [[f64::INFINITY; 2]; WAYS.len()];
        for _ in 0..ROUNDS {
            for ((_, _, isolation), (pod, least)) in WAYS.iter().zip(pods.iter().zip(&mut least)) {
                let cost = cost_of(&pod.run(&command(build, store, isolation)).success());
                *least = [least[0].min(cost[0]), least[1].min(cost[1])];
            }
        }
        for (number, unit) in ["wall", "CPU"].into_iter().enumerate() {
            // The clock of time(1) has no finer ticks.
            let first = least[0][number].max(0.01);
            let ratios = least[1..].iter().map(|cost| format!("{:.1}", cost[number] / first));
            let columns: Vec<String> = std::iter::once(format!("{first:.2} s")).chain(ratios).collect();
            println!("| {build} | {store} | {unit} | {} |", columns.join(" | "));
        }
    }
}

/// A file system in memory, so that what is measured are the programs, and not what ext4 does when many files are made
/// where many were just removed.
struct Memory(tempfile::TempDir);

impl Memory {
    fn mount() -> Self {
        let place = shared_scratch();
        let options = ["-t", "tmpfs", "-o", "size=8g,mode=755", "builder-cost"];
        finish(Command::new("mount").args(options).arg(place.path())).success();
        Self(place)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn prepare(profile: Profile, place: &Path) -> Pod {
    let mut pod = Pod::below(place, profile);
    if let Some(program) = std::env::var_os("BUILDER_BENCH_PROGRAM") {
        pod = pod.mount(PathBuf::from(program), PROGRAM, Access::ReadOnly);
    }
    let ground = ground();
    let runs: String = (0..20).map(|number| format!("RUN echo {number} >/{number}\n")).collect();
    for (build, dockerfile) in BUILDS {
        let mut dockerfile = dockerfile.replace("{runs}", &runs);
        for (name, base) in [
            ("{busybox}", "busybox:latest"),
            ("{debian}", "debian:latest"),
            ("{debian-cross}", "debian-cross:latest"),
            ("{many}", "many:100k"),
        ] {
            dockerfile = dockerfile.replace(name, &ground.name(base));
        }
        pod.write(&format!("{build}/Dockerfile"), dockerfile);
        pod.write(&format!("{build}/hello.c"), include_str!("../../examples/arm/hello.c"));
        let package = fs::read(ground.package("libcap2-bin")).expect("a package of the ground");
        pod.write(&format!("{build}/libcap2-bin.deb"), package);
    }
    pod
}

/// A build whose image goes nowhere and whose steps are not remembered, with its cost at the end of stderr.
fn command<'a>(build: &'a str, store: &'a str, isolation: &'a str) -> [&'a str; 6] {
    const SCRIPT: &str = "\
        build() { \"$@\" builder --no-push --no-cache --context=/data/$0 --isolation=$isolation; }; isolation=$2; \
        case $1 in cold) rm -rf /data/store ;; warm) build ;; esac && build time -f '%e %U %S'";
    ["/bin/sh", "-c", SCRIPT, build, store, isolation]
}

fn cost_of(finished: &Finished) -> Cost {
    let line = finished.stderr.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
    let [wall, user, system] = numbers[..] else { panic!("{finished:#?}") };
    [wall, user + system]
}
