//! What of a layer the tree does not hold: how often, and one example of each kind.

use std::collections::BTreeMap;
use std::fmt;

use crate::rootfs::GuestPath;

/// What kind of thing is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// A file that the storage driver aufs left in old layers.
    Leftover,
    /// A device, or a FIFO where even that is not allowed.
    Device,
    /// An owner or group.
    Owner,
    /// Set-user-ID and set-group-ID bits.
    SetId,
    /// An extended attribute.
    Attribute,
}

impl LossKind {
    /// What became of `count` of them.
    fn outcome(self, count: u64) -> String {
        let s = if count == 1 { "" } else { "s" };
        match self {
            Self::Leftover => format!("left out {count} file{s} of aufs"),
            Self::Device => format!("could not make {count} device{s}"),
            Self::Owner => format!("could not set the owner of {count} file{s}"),
            Self::SetId => format!("left out the set-ID bits of {count} file{s}"),
            Self::Attribute => format!("could not set {count} extended attribute{s}"),
        }
    }
}

/// What is lost of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// How many.
    pub count: u64,
    /// Where the first of them was to be.
    pub first: GuestPath,
    /// What it was, and why it could not be had, for a person.
    pub what: String,
}

/// What of one or more layers the tree does not hold. Takes no more room for many than for one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Losses(BTreeMap<LossKind, Loss>);

impl Losses {
    /// Notes one more.
    pub fn add(&mut self, kind: LossKind, path: &GuestPath, what: impl FnOnce() -> String) {
        let new = || Loss { count: 0, first: path.clone(), what: what() };
        self.0.entry(kind).or_insert_with(new).count += 1;
    }

    /// Adds those of a later layer.
    pub fn append(&mut self, later: Self) {
        for (kind, loss) in later.0 {
            match self.0.get_mut(&kind) {
                Some(known) => known.count += loss.count,
                None => drop(self.0.insert(kind, loss)),
            }
        }
    }

    /// All kinds that occur.
    pub fn iter(&self) -> impl Iterator<Item = (LossKind, &Loss)> {
        self.0.iter().map(|(kind, loss)| (*kind, loss))
    }

    /// One sentence a kind.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.iter().map(|(kind, loss)| Sentence(kind, loss).to_string())
    }
}

struct Sentence<'a>(LossKind, &'a Loss);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(kind, Loss { count, first, what }) = self;
        let which = if *count == 1 { "" } else { "the first was " };
        write!(f, "{}: {which}`{first}`, {what}", kind.outcome(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_counted_by_kind_and_the_first_is_told() {
        let path = |name: &[u8]| GuestPath::root().child(name);
        let mut losses = Losses::default();
        losses.add(LossKind::Owner, &path(b"a"), || "1:2".to_owned());
        losses.add(LossKind::Owner, &path(b"b"), || "3:4".to_owned());
        let mut later = Losses::default();
        later.add(LossKind::Owner, &path(b"c"), || "5:6".to_owned());
        later.add(LossKind::Device, &path(b"null\n"), || "character device 1:3".to_owned());
        losses.append(later);
        let sentences: Vec<String> = losses.sentences().collect();
        assert_eq!(
            sentences,
            [
                "could not make 1 device: `/null\\n`, character device 1:3",
                "could not set the owner of 3 files: the first was `/a`, 1:2"
            ]
        );
    }
}
