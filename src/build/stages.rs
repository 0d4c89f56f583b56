//! Which stages are built, being built and still to come, for the threads that build them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::error::{BuildError, BuildErrorKind};
use super::execute::{Done, Files, locked};
use super::step::{CopyFrom, Plan, StageBase, StagePlan};
use crate::image::manifest::Image;
use crate::store::unpacked::Chain;

/// The stages of one plan, by position in it.
pub(super) struct Stages {
    needs: Vec<Needs>,
    /// For each, those that need it.
    needed_by: Vec<Vec<usize>>,
    /// How many are built at once. Those that wait for others do not count.
    most: usize,
    state: Mutex<State>,
    /// Some stage has ended.
    ended: Condvar,
    /// Whoever unpacks a stage's files holds its lock: others want the same.
    unpacking: Vec<Mutex<()>>,
}

/// What a stage needs.
struct Needs {
    /// The stage it stands on.
    base: Option<usize>,
    /// All stages it needs: that one, and those whose files it reads.
    all: BTreeSet<usize>,
    /// Whether it reads files of the stage it stands on besides.
    reads_base: bool,
}

struct State {
    /// How many have begun, have not ended, and do not wait for others.
    working: usize,
    /// How many nobody has begun.
    open: usize,
    /// Those of them that have all they need.
    complete: BTreeSet<usize>,
    /// The others that can begin, but will wait.
    can_begin: BTreeSet<usize>,
    /// For each, how many of those it needs are not built.
    missing: Vec<usize>,
    /// Those that are built.
    built: BTreeSet<usize>,
    /// Those of them that somebody may still want.
    done: BTreeMap<usize, Done>,
    /// For each, how many stages will still need it; the build itself needs the results.
    users: Vec<usize>,
    /// The first failure, with the stage that it is of.
    failure: Option<(usize, BuildError)>,
}

/// How a stage has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It is built.
    Well,
    /// It has failed, and no other had.
    FirstToFail,
    /// It has failed, or was stopped, when another one had failed.
    AfterAnother,
}

/// A stage that somebody builds. If that one panics, the stage has failed: others wait for it.
pub(super) struct Begun<'s> {
    stages: &'s Stages,
    position: usize,
    has_ended: bool,
}

impl Begun<'_> {
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// It has ended with `result`.
    pub(super) fn end(mut self, result: Result<Done, BuildError>) -> Ended {
        self.has_ended = true;
        self.stages.end(self.position, result)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.stages.end(self.position, Err(BuildError::at(None, BuildErrorKind::Cancelled)));
        }
    }
}

impl Needs {
    fn of(stage: &StagePlan) -> Self {
        let base = match stage.base {
            StageBase::Stage(below) => Some(below),
            StageBase::Scratch | StageBase::Image(_) | StageBase::Files(_) => None,
        };
        let reads: BTreeSet<usize> =
            stage.steps.iter().flat_map(|step| stages_read(step.step.reads())).collect();
        let reads_base = base.is_some_and(|base| reads.contains(&base));
        Self { base, all: base.into_iter().chain(reads).collect(), reads_base }
    }

    /// The stages that must be there until this one has ended; the one it stands on alone only until it has begun.
    fn to_the_end(&self) -> impl Iterator<Item = usize> {
        let only_begins = self.base.filter(|_| !self.reads_base);
        self.all.iter().copied().filter(move |needed| Some(*needed) != only_begins)
    }
}

/// The stages among what is read.
pub(super) fn stages_read<'a>(from: impl Iterator<Item = &'a CopyFrom>) -> impl Iterator<Item = usize> {
    from.filter_map(|from| match from {
        CopyFrom::Stage(position) => Some(*position),
        CopyFrom::Context | CopyFrom::Named(_) | CopyFrom::Scratch | CopyFrom::Image(_) => None,
    })
}

impl Stages {
    /// Those of `plan`, none of which has begun; at `most` so many are to be built at once.
    pub(super) fn of(plan: &Plan, most: usize) -> Self {
        let results = plan.targets.iter().map(|target| target.stage);
        Self::with(plan.stages.iter().map(Needs::of).collect(), results, most)
    }

    fn with(needs: Vec<Needs>, results: impl Iterator<Item = usize>, most: usize) -> Self {
        let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
        for (position, needs) in needs.iter().enumerate() {
            for needed in &needs.all {
                needed_by[*needed].push(position);
            }
        }
        let mut users: Vec<usize> = needed_by.iter().map(Vec::len).collect();
        for result in results {
            users[result] += 1;
        }
        let state = State {
            working: 0,
            open: needs.len(),
            complete: (0..needs.len()).filter(|position| needs[*position].all.is_empty()).collect(),
            can_begin: (0..needs.len())
                .filter(|position| needs[*position].base.is_none() && !needs[*position].all.is_empty())
                .collect(),
            missing: needs.iter().map(|needs| needs.all.len()).collect(),
            built: BTreeSet::new(),
            done: BTreeMap::new(),
            users,
            failure: None,
        };
        let unpacking = needs.iter().map(|_| Mutex::default()).collect();
        Self { needs, needed_by, most, state: Mutex::new(state), ended: Condvar::new(), unpacking }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.ended.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The stage to begin next; waits for one that can begin. None when there is nothing left to begin.
    ///
    /// The first one that has all it needs goes first. If none has, one that can begin does, and waits for the rest when a
    /// step wants it. The first stage that is not built always has all it needs, so whoever builds it never waits, and
    /// somebody always does: stages need earlier ones only, and who has built one looks for the first.
    pub(super) fn next(&self) -> Option<Begun<'_>> {
        let mut state = self.state();
        loop {
            if state.failure.is_some() || state.open == 0 {
                return None;
            }
            let next = if state.working < self.most {
                state.complete.pop_first().or_else(|| state.can_begin.pop_first())
            } else {
                None
            };
            if let Some(next) = next {
                state.open -= 1;
                state.working += 1;
                return Some(Begun { stages: self, position: next, has_ended: false });
            }
            state = self.wait(state);
        }
    }

    /// The stage at `position` has ended. What nobody needs any more is let go.
    fn end(&self, position: usize, result: Result<Done, BuildError>) -> Ended {
        let mut let_go = Vec::new();
        let mut state = self.state();
        let ended = match (&result, &state.failure) {
            (Ok(_), _) => Ended::Well,
            (Err(_), None) => Ended::FirstToFail,
            (Err(_), Some(_)) => Ended::AfterAnother,
        };
        state.working = state.working.saturating_sub(1);
        match result {
            Ok(done) => {
                state.built.insert(position);
                self.make_ready(&mut state, position);
                if state.users[position] > 0 {
                    state.done.insert(position, done);
                }
                for needed in self.needs[position].to_the_end() {
                    state.users[needed] -= 1;
                    if state.users[needed] == 0 {
                        let_go.extend(state.done.remove(&needed));
                    }
                }
            }
            Err(error) => {
                state.failure.get_or_insert((position, error));
            }
        }
        drop(state);
        self.ended.notify_all();
        ended
    }

    /// The stage at `built` is there for those that need it.
    fn make_ready(&self, state: &mut State, built: usize) {
        for &other in &self.needed_by[built] {
            state.missing[other] -= 1;
            let base = self.needs[other].base;
            // Who does not wait for what it stands on may have been begun.
            let is_open = base == Some(built) || state.can_begin.remove(&other);
            if !is_open {
                continue;
            }
            if state.missing[other] == 0 {
                state.complete.insert(other);
            } else {
                state.can_begin.insert(other);
            }
        }
    }

    /// Waits until the stages `needed` are built. Another stage may begin meanwhile, in the place of the one that waits.
    ///
    /// # Errors
    /// [`BuildErrorKind::Cancelled`] when another stage has failed.
    pub(super) fn wait_for(&self, needed: impl Iterator<Item = usize>) -> Result<(), BuildErrorKind> {
        let needed: Vec<usize> = needed.collect();
        let mut state = self.state();
        if needed.iter().all(|needed| state.built.contains(needed)) {
            return Ok(());
        }
        state.working = state.working.saturating_sub(1);
        self.ended.notify_all();
        let is_over = |state: &State| {
            state.failure.is_some()
                || (state.working < self.most && needed.iter().all(|needed| state.built.contains(needed)))
        };
        while !is_over(&state) {
            state = self.wait(state);
        }
        state.working += 1;
        if state.failure.is_some() { Err(BuildErrorKind::Cancelled) } else { Ok(()) }
    }

    /// Whether all of the stages `needed` are built.
    pub(super) fn are_built(&self, mut needed: impl Iterator<Item = usize>) -> bool {
        let state = self.state();
        needed.all(|needed| state.built.contains(&needed))
    }

    /// What the stage at `position`, which stands on another one, begins with: that one, handed over for good where nobody
    /// else will use it. Asked once for each stage.
    pub(super) fn below(&self, position: usize) -> Option<Done> {
        let Needs { base, reads_base, .. } = &self.needs[position];
        let base = (*base)?;
        let mut state = self.state();
        if !reads_base {
            state.users[base] -= 1;
        }
        if state.users[base] == 0 { state.done.remove(&base) } else { state.done.get(&base).cloned() }
    }

    /// What `look` finds in the stage at `position`, which is built and needed; none if it is not.
    pub(super) fn look<T>(&self, position: usize, look: impl FnOnce(&Done) -> T) -> Option<T> {
        self.state().done.get(&position).map(look)
    }

    /// The unpacked layers of the stage at `position`, which is built: those that are known, or what `unpack` makes of it.
    pub(super) fn chain(
        &self,
        position: usize,
        unpack: impl FnOnce(&Image) -> Result<Chain, BuildErrorKind>,
    ) -> Result<Chain, BuildErrorKind> {
        let _unpacking = locked(&self.unpacking[position]);
        let found = self.look(position, |done| match &done.files {
            Files::Chain(chain) => Ok(chain.clone()),
            Files::OfImage => Err(Box::new(done.image.clone())),
        });
        let chain = match found {
            Some(Ok(chain)) => return Ok(chain),
            Some(Err(image)) => unpack(&image)?,
            // A stage that somebody reads is there until that one has ended.
            None => return Err(BuildErrorKind::Cancelled),
        };
        if let Some(done) = self.state().done.get_mut(&position) {
            done.files = Files::Chain(chain.clone());
        }
        Ok(chain)
    }

    /// The first failure, with the position of the stage that it is of.
    pub(super) fn take_failure(&self) -> Option<(usize, BuildError)> {
        self.state().failure.take()
    }

    /// The stage at `position`, whose image is wanted, when all are built.
    pub(super) fn result(&self, position: usize) -> Option<Done> {
        self.state().done.get(&position).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::manifest::Image;

    /// Stages that need these earlier ones, the first as what they stand on.
    fn stages(needs: &[Vec<usize>]) -> Stages {
        let needs: Vec<Needs> = needs
            .iter()
            .map(|all| Needs {
                base: all.first().copied(),
                all: all.iter().copied().collect(),
                reads_base: all.iter().skip(1).any(|read| Some(read) == all.first()),
            })
            .collect();
        let last = needs.len() - 1;
        Stages::with(needs, std::iter::once(last), usize::MAX)
    }

    fn built() -> Done {
        Done { image: Image::scratch(), files: Files::OfImage, first_row: 0, key: None, made: Vec::new() }
    }

    /// Numbers that look random, the same each time.
    fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).unwrap() % below
        }
    }

    /// Builds all stages on several threads, at `most` so many at once.
    fn build(needs: &[Vec<usize>], threads: usize, most: usize) {
        let stages = Stages { most, ..stages(needs) };
        let working = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            use std::sync::atomic::Ordering::SeqCst;
            assert!(working.fetch_add(1, SeqCst) < most);
            std::thread::yield_now();
            working.fetch_sub(1, SeqCst);
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(begun) = stages.next() {
                        let position = begun.position();
                        assert_eq!(stages.below(position).is_some(), !needs[position].is_empty());
                        work();
                        stages.wait_for(needs[position].iter().copied()).unwrap();
                        for other in needs[position].iter().skip(1) {
                            assert!(stages.look(*other, |_| ()).is_some(), "{other} for {position}");
                        }
                        work();
                        begun.end(Ok(built()));
                    }
                });
            }
        });
        assert!(stages.take_failure().is_none());
        let left: Vec<usize> = stages.state().done.keys().copied().collect();
        assert_eq!(left, [needs.len() - 1], "the others were let go");
    }

    #[test]
    fn whatever_needs_what_all_stages_are_built_by_any_number_of_threads() {
        for seed in 0..200 {
            let mut number = numbers(seed);
            let count = 2 + number(30);
            let mut needs: Vec<Vec<usize>> = vec![Vec::new()];
            for position in 1..count {
                let all = (0..number(4)).map(|_| number(position)).collect();
                needs.push(all);
            }
            // The last one is the result, and whatever nobody needs would not be in a plan.
            let needed: BTreeSet<usize> = needs.iter().flatten().copied().collect();
            let mut last: Vec<usize> = (0..count).filter(|position| !needed.contains(position)).collect();
            last.rotate_left(1);
            needs.push(last);
            for threads in 1..5 {
                (1..=threads).for_each(|most| build(&needs, threads, most));
            }
        }
    }

    #[test]
    fn a_stage_that_has_all_goes_before_one_that_would_wait() {
        // 1 stands on 0; 2 reads 1; 3 needs nothing.
        let stages = stages(&[vec![], vec![0], vec![0, 1], vec![], vec![2, 3]]);
        let next = |expected: usize| {
            let begun = stages.next().unwrap();
            assert_eq!(begun.position(), expected);
            begun
        };
        let first = next(0);
        let _independent = next(3);
        first.end(Ok(built()));
        let read = next(1);
        // It can do what it does before it reads.
        let _reader = next(2);
        assert!(!stages.are_built([1].into_iter()));
        read.end(Ok(built()));
        stages.wait_for([1].into_iter()).unwrap();
    }

    #[test]
    fn a_stage_that_waits_leaves_its_place_to_another() {
        // 2 reads 0 and stands on nothing that is built here: it begins and waits.
        let needs = vec![
            Needs { base: None, all: BTreeSet::new(), reads_base: false },
            Needs { base: None, all: BTreeSet::new(), reads_base: false },
            Needs { base: None, all: BTreeSet::from([0, 1]), reads_base: false },
        ];
        let last = needs.len() - 1;
        let stages = Stages::with(needs, std::iter::once(last), 2);
        let zero = stages.next().unwrap();
        let one = stages.next().unwrap();
        one.end(Ok(built()));
        let reader = stages.next().unwrap();
        assert_eq!(reader.position(), 2);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stages.wait_for([0, 1].into_iter()));
            while stages.state().working == 2 {
                std::thread::yield_now();
            }
            assert_eq!(stages.state().working, 1);
            zero.end(Ok(built()));
            assert!(waits.join().unwrap().is_ok());
        });
        assert_eq!(stages.state().working, 1);
        reader.end(Ok(built()));
    }

    #[test]
    fn who_waits_for_a_stage_that_failed_is_told_and_one_alone_is_the_first() {
        let stages = stages(&[vec![], vec![], vec![0, 1]]);
        let (zero, one) = (stages.next().unwrap(), stages.next().unwrap());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| stages.wait_for([0].into_iter()));
            let failure = BuildError::at(None, BuildErrorKind::NoSandbox);
            assert_eq!(one.end(Err(failure)), Ended::FirstToFail);
            assert!(matches!(waits.join().unwrap(), Err(BuildErrorKind::Cancelled)));
        });
        let stopped = BuildError::at(None, BuildErrorKind::Cancelled);
        assert_eq!(zero.end(Err(stopped)), Ended::AfterAnother);
        assert!(stages.next().is_none());
        assert!(matches!(
            stages.take_failure(),
            Some((1, BuildError { kind: BuildErrorKind::NoSandbox, .. }))
        ));
    }

    #[test]
    fn nobody_waits_for_a_thread_that_panicked() {
        let stages = stages(&[vec![], vec![0]]);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _begun = stages.next();
                panic!("while building");
            });
            assert!(panics.join().is_err());
        });
        assert!(stages.wait_for([0].into_iter()).is_err());
        assert!(stages.next().is_none());
    }
}
