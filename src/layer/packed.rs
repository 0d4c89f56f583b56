//! Paths in little memory: sorted runs, in which each path is written as what differs from the one before.
//!
//! A step may change a million files, each with a path of up to 4096 bytes, most of which is the directory that it shares
//! with its neighbours. In a run, a path takes its own name and some bytes more.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::rootfs::GuestPath;

/// About so many bytes are collected before they become a run. Several threads collect at once.
const OPEN: usize = 1 << 19;

/// What a collected path takes beside its bytes.
const PER_PATH: usize = 64;

/// What is noted of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// It is new or other.
    Put,
    /// It is gone.
    Remove,
    /// It is one of several names of the file with this number.
    Linked(u64),
}

/// Paths with their marks, added in any order, read in that of the paths.
#[derive(Debug, Clone, Default)]
pub(super) struct Packed {
    runs: Vec<Box<[u8]>>,
    open: Vec<(GuestPath, Mark)>,
    open_bytes: usize,
}

impl Packed {
    /// Adds a path.
    pub(super) fn push(&mut self, path: GuestPath, mark: Mark) {
        self.open_bytes += path.as_bytes().len() + PER_PATH;
        self.open.push((path, mark));
        if self.open_bytes >= OPEN {
            self.close();
        }
    }

    /// Adds what another one has.
    pub(super) fn absorb(&mut self, mut other: Self) {
        other.close();
        self.runs.append(&mut other.runs);
    }

    /// Makes a run of what was collected last; to be called before reading.
    pub(super) fn close(&mut self) {
        if self.open.is_empty() {
            return;
        }
        self.open_bytes = 0;
        self.open.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut run = Vec::new();
        let mut before = GuestPath::root();
        for (path, mark) in self.open.drain(..) {
            encode(&mut run, &before, &path, mark);
            before = path;
        }
        self.runs.push(run.into_boxed_slice());
    }

    /// Everything in order; what is there twice, once.
    pub(super) fn iter(&self) -> Merge<'_> {
        let heads = self.runs.iter().enumerate().filter_map(|(number, run)| {
            let mut head = Head { path: GuestPath::root(), mark: Mark::Put, number, rest: run };
            head.advance().then_some(head)
        });
        Merge { heads: heads.collect() }
    }
}

/// The length of what is shared, the length of what follows, the mark, what follows. Paths have 4096 bytes at most.
fn encode(run: &mut Vec<u8>, before: &GuestPath, path: &GuestPath, mark: Mark) {
    let (before, path) = (before.as_bytes(), path.as_bytes());
    let shared = before.iter().zip(path).take_while(|(a, b)| a == b).count();
    let rest = &path[shared..];
    run.extend_from_slice(&(shared as u16).to_le_bytes());
    run.extend_from_slice(&(rest.len() as u16).to_le_bytes());
    match mark {
        Mark::Put => run.push(b'+'),
        Mark::Remove => run.push(b'-'),
        Mark::Linked(inode) => {
            run.push(b'=');
            run.extend_from_slice(&inode.to_le_bytes());
        }
    }
    run.extend_from_slice(rest);
}

/// The next path of a run.
struct Head<'a> {
    path: GuestPath,
    mark: Mark,
    number: usize,
    rest: &'a [u8],
}

impl Head<'_> {
    /// Goes to the next path; false at the end.
    fn advance(&mut self) -> bool {
        let [a, b, c, d, kind, rest @ ..] = self.rest else { return false };
        let (shared, length) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
        let mut rest = rest;
        self.mark = match kind {
            b'+' => Mark::Put,
            b'-' => Mark::Remove,
            _ => {
                let Some((inode, after)) = rest.split_first_chunk() else { return false };
                rest = after;
                Mark::Linked(u64::from_le_bytes(*inode))
            }
        };
        let Some((end, after)) = rest.split_at_checked(usize::from(length)) else { return false };
        self.path.replace_end(usize::from(shared), end);
        self.rest = after;
        true
    }
}

// The heap gives the greatest, and shall give the first.
impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        (&other.path, other.number).cmp(&(&self.path, self.number))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// See [`Packed::iter`].
pub(super) struct Merge<'a> {
    heads: BinaryHeap<Head<'a>>,
}

impl Iterator for Merge<'_> {
    type Item = (GuestPath, Mark);

    fn next(&mut self) -> Option<Self::Item> {
        let mut head = self.heads.peek_mut()?;
        let item = (head.path.clone(), head.mark);
        if !head.advance() {
            std::collections::binary_heap::PeekMut::pop(head);
        } else {
            drop(head);
        }
        while let Some(mut twice) = self.heads.peek_mut().filter(|head| head.path == item.0) {
            if !twice.advance() {
                std::collections::binary_heap::PeekMut::pop(twice);
            }
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn marked() -> impl Strategy<Value = (Vec<u8>, Mark)> {
        let component = prop_oneof!["[a-c]", "[a-c][-./]?", "[a-z]{1,9}", Just("L".repeat(255))];
        let path = prop::collection::vec(component, 0..5).prop_map(|parts| parts.join("/").into_bytes());
        let mark = prop_oneof![Just(Mark::Put), Just(Mark::Remove), any::<u64>().prop_map(Mark::Linked)];
        (path, mark)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn what_was_added_comes_out_once_and_in_order(parts in prop::collection::vec(prop::collection::vec(marked(), 0..20), 0..5)) {
            let (mut packed, mut expected) = (Packed::default(), BTreeMap::new());
            for part in parts {
                let (mut other, mut run) = (Packed::default(), BTreeSet::new());
                for (path, mark) in part {
                    let path = GuestPath::clamp(&path).unwrap();
                    // Of equals in one run it is not said which is first; of those in several, the first run's counts.
                    if run.insert(path.clone()) {
                        expected.entry(path.clone()).or_insert(mark);
                        other.push(path, mark);
                    }
                }
                packed.absorb(other);
            }
            prop_assert_eq!(packed.iter().collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn neighbours_share_their_directory() {
        let directory = GuestPath::clamp(&b"a-long-directory-name/".repeat(180)).unwrap();
        let mut packed = Packed::default();
        for number in 0..20_000 {
            packed.push(directory.child(format!("{number:08}").as_bytes()), Mark::Put);
        }
        packed.close();
        let bytes: usize = packed.runs.iter().map(|run| run.len()).sum();
        assert!(packed.runs.len() > 1 && bytes < 20_000 * 16 + packed.runs.len() * 4096, "{bytes}");
        let names = packed.iter().map(|(path, _)| path.file_name().unwrap().to_vec());
        assert!(names.eq((0..20_000).map(|number| format!("{number:08}").into_bytes())));
    }
}
