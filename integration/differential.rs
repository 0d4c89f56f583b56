//! Random Dockerfiles, built in several ways: the images must be the same.
//!
//! `BUILDER_SEEDS=1000..2000 cargo nextest run differential` takes other seeds than the usual ones; `BUILDER_OTHER` is the
//! command of another builder than buildah. What is found is made as small as it gets and kept, with its context, in the
//! directory that the message names.

mod archive;
mod commands;
mod compare;
mod context;
mod copies;
mod generate;
mod image;
mod known;
mod makers;
mod planted;
mod program;
mod random;
mod view;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use generate::Language;
use known::Met;
use makers::{Made, Maker};
use planted::Fault;
use program::Program;

/// Seeds to run: those that were asked for, else the usual ones.
fn seeds(usual: Range<u64>) -> Range<u64> {
    let Ok(asked) = std::env::var("BUILDER_SEEDS") else { return usual };
    let (first, end) = asked.split_once("..").expect("BUILDER_SEEDS is FIRST..END");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Calls `check` with each seed, as many at once as there are processors; each has something of its own that `own` makes,
/// anew now and then.
fn for_each_seed<T>(seeds: Range<u64>, own: impl Fn() -> T + Sync, check: impl Fn(&T, u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut has = own();
                for done in 1.. {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    check(&has, seed);
                    if (seed - seeds.start) % 50 == 49 {
                        eprintln!("seed {seed} done");
                    }
                    if done % 100 == 0 {
                        has = own();
                    }
                }
            });
        }
    });
}

/// A program that can be built: steps that fail are left out, one after the other.
fn valid(seed: u64, language: Language, maker: &Maker) -> (Program, Made) {
    let mut program = view::with_look(&generate::program(seed, language));
    loop {
        // What was built before a step failed need not be built again.
        let made = maker.make(&program, &["--snapshotter=overlayfs"]);
        if made.facts.is_some() {
            return (program, made);
        }
        program = without_failure(&program, &made).unwrap_or_else(|| {
            let kept = keep(&program, "cannot be built");
            panic!("seed {seed} cannot be built: {}\n{}", kept.display(), made.finished.stderr)
        });
    }
}

/// The program without the step that failed.
fn without_failure(program: &Program, made: &Made) -> Option<Program> {
    let (_, after) = made.finished.stderr.split_once("--> ")?;
    let place = after.lines().next()?;
    let line = place.rsplit(':').find_map(|word| word.split('-').next()?.parse().ok())?;
    let part = program.step_of_line(line).or_else(|| program.last_trigger())?;
    Some(program.without(part))
}

/// Writes a program to where it can be looked at.
fn keep(program: &Program, what: &str) -> PathBuf {
    let directory =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("differential/seed-{}", program.seed));
    drop(std::fs::remove_dir_all(&directory));
    program.write(&directory.join("context"));
    std::fs::write(directory.join("flags"), program.flags.join("\n")).expect("write file");
    std::fs::write(directory.join("difference"), what).expect("write file");
    directory
}

/// Leaves out what the fault does not need.
fn smallest(program: &Program, fault: impl Fn(&Program) -> Option<String>) -> (Program, String) {
    let mut least = program.clone();
    let mut found = fault(program).unwrap_or_else(|| "not found again".to_owned());
    let tries = std::env::var("BUILDER_TRIES").ok();
    let mut left = tries.map_or(150, |tries| tries.parse().expect("BUILDER_TRIES is a number"));
    let mut changed = true;
    while changed && left > 0 {
        changed = false;
        for part in least.parts() {
            // Parts after one that was left out have other numbers: they are met again in the next round.
            let exists = least.parts().contains(&part);
            if !exists || left == 0 {
                continue;
            }
            left -= 1;
            let less = least.without(part);
            if let Some(fault) = fault(&less) {
                (least, found, changed) = (less, fault, true);
            }
        }
    }
    (least, found)
}

/// The ways of `native`, and of keeping steps apart, in turns. What is mounted cannot be removed, and without a namespace of
/// its own a step makes no devices: such programs are told apart by how they are kept apart.
fn native_flags(program: &Program) -> [&'static str; 4] {
    let mode = ["--snapshot-mode=redo", "--snapshot-mode=full", "--snapshot-mode=time"];
    let text = program.dockerfile();
    let alike = !text.contains("--mount") && !text.contains("mknod");
    let chroot = alike && program.seed / 3 % 2 == 1;
    let isolation = if chroot { "--isolation=chroot" } else { "--isolation=auto" };
    ["--no-cache", "--snapshotter=native", mode[(program.seed % 3) as usize], isolation]
}

/// What is wrong with what both backends make of a program that can be built.
fn fault_of_backends(program: &Program, [overlay, native]: &[Maker; 2]) -> Option<String> {
    let made = overlay.make(program, &["--no-cache", "--snapshotter=overlayfs"]);
    fault_beside(program, &made, [overlay, native])
}

fn fault_beside(program: &Program, overlay: &Made, [with_overlay, native]: [&Maker; 2]) -> Option<String> {
    let flags = native_flags(program);
    let facts = overlay.facts.as_ref()?;
    let made = native.make(program, &flags);
    let Some(other) = made.facts else {
        return Some(format!("native fails ({flags:?}):\n{}", made.finished.stderr));
    };
    let differences: Vec<String> =
        compare::exactly(program, facts, &other).iter().map(ToString::to_string).collect();
    if !differences.is_empty() {
        return Some(format!("overlayfs and native ({flags:?}) differ:\n{}", differences.join("\n")));
    }
    if !facts.faults.is_empty() {
        return Some(format!("layers have faults:\n{}", facts.faults.join("\n")));
    }
    let unlike = view::faults(facts, &overlay.finished);
    if !unlike.is_empty() {
        return Some(format!("the last step saw something else:\n{}", unlike.join("\n")));
    }
    if program.seed.is_multiple_of(3) {
        let again = with_overlay.make(program, &["--snapshotter=native"]);
        let the_same = match &again.facts {
            // The second of two equal ones makes nothing, and has the time of the first when both are remembered.
            Some(again) if repeats_workdir(program) => compare::exactly(program, facts, again).is_empty(),
            _ => again.finished.stdout == overlay.finished.stdout,
        };
        if !the_same {
            return Some(format!(
                "from the cache it is another image: {} and {}\n{}",
                overlay.finished.stdout.trim(),
                again.finished.stdout.trim(),
                again.finished.stderr
            ));
        }
    }
    None
}

fn repeats_workdir(program: &Program) -> bool {
    let text = program.dockerfile();
    let mut seen = std::collections::BTreeSet::new();
    text.lines().filter(|line| line.starts_with("WORKDIR ")).any(|line| !seen.insert(line))
}

#[test]
fn both_backends_make_the_same_images() {
    let found = Mutex::new(Vec::new());
    let seeds = seeds(0..500);
    let thin = AtomicU64::new(0);
    for_each_seed(
        seeds.clone(),
        || [Maker::ours(), Maker::ours()],
        |makers, seed| {
            let (program, made) = valid(seed, Language::Whole, &makers[0]);
            if program.kinds().len() < 3 {
                thin.fetch_add(1, Ordering::Relaxed);
            }
            if fault_beside(&program, &made, [&makers[0], &makers[1]]).is_some() {
                let (least, fault) = smallest(&program, |program| fault_of_backends(program, makers));
                let kept = keep(&least, &fault);
                let text = format!("seed {seed}: {}\n{}\n{fault}", kept.display(), least.dockerfile());
                eprintln!("{text}");
                found.lock().expect("lock").push(text);
            }
        },
    );
    let found = found.into_inner().expect("lock");
    let thin = thin.into_inner();
    assert!(thin * 10 <= seeds.end - seeds.start, "{thin} of {seeds:?} have less than three kinds of step");
    assert!(found.is_empty(), "{} of {seeds:?} have faults\n{}", found.len(), found.join("\n\n"));
}

/// What the other builder makes of it that none of the known differences explains. Steps that it is known to refuse are
/// left out.
fn fault_of_other(program: &Program, [ours, other]: &[Maker; 2], met: &Met) -> Option<String> {
    let ours_of = |program: &Program| ours.make(program, &["--snapshotter=overlayfs"]).facts;
    // What nobody can build is no fault of the other.
    ours_of(program)?;
    let mut program = program.clone();
    let theirs = loop {
        let made = other.make(&program, &[]);
        if let Some(facts) = made.facts {
            break facts;
        }
        let said = &made.finished.stderr;
        let Some(step) = met.refusal(said, known::REFUSED).and_then(|text| program.step_of_text(text)) else {
            return Some(format!("the other builder fails:\n{said}"));
        };
        program = program.without(step);
    };
    // What was left out may be what another step needs.
    let facts = ours_of(&program)?;
    let differences = compare::by_meaning(&facts, &theirs);
    let left = met.unexplained(&program, differences, known::BUILDAH);
    let shown = || left.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    (!left.is_empty()).then(|| format!("{}\n{}", program.dockerfile(), shown()))
}

#[test]
fn another_builder_makes_the_same_images_but_for_known_differences() {
    let Some(maker) = Maker::other() else {
        eprintln!("skipped: neither buildah nor BUILDER_OTHER to compare with");
        return;
    };
    drop(maker);
    let found = Mutex::new(Vec::new());
    let met = Met::default();
    let seeds = seeds(0..16);
    for_each_seed(
        seeds.clone(),
        || [Maker::ours(), Maker::other().expect("it was there")],
        |makers, seed| {
            let (program, _) = valid(seed, Language::Older, &makers[0]);
            if fault_of_other(&program, makers, &met).is_some() {
                let none = Met::default();
                let (least, fault) = smallest(&program, |program| fault_of_other(program, makers, &none));
                let kept = keep(&least, &fault);
                let text = format!("seed {seed}: {}\n{}\n{fault}", kept.display(), least.dockerfile());
                eprintln!("{text}");
                found.lock().expect("lock").push(text);
            }
        },
    );
    let counts = met.counts();
    for (name, count) in &counts {
        eprintln!("{count:6} {name}");
    }
    // Of fewer seeds some say nothing.
    let gone: Vec<_> = counts.iter().filter(|(_, count)| *count == 0).collect();
    assert!(seeds.end - seeds.start < 500 || gone.is_empty(), "known differences that are none: {gone:?}");
    let found = found.into_inner().expect("lock");
    assert!(found.is_empty(), "{} of {seeds:?} have faults\n{}", found.len(), found.join("\n\n"));
}

/// The comparison could be blind: a backend that loses something must be found, whichever of both it is.
#[test]
fn a_fault_planted_in_either_backend_is_found() {
    for fault in [Fault::NothingRemoved, Fault::SetUserIdLost, Fault::TimesLost] {
        for faulty in 0..2 {
            let mut makers = [Maker::ours(), Maker::ours()];
            makers[faulty] = Maker::with_fault(fault);
            let found = (0..40).find_map(|seed| {
                let (program, made) = valid(seed, Language::Whole, &makers[0]);
                fault_beside(&program, &made, [&makers[0], &makers[1]])
            });
            let found = found.unwrap_or_else(|| panic!("{fault:?} in {faulty} is not found in 40 programs"));
            assert!(found.contains("differ"), "{fault:?} in {faulty}: {found}");
        }
    }
}
