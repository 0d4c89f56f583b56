//! Which of many patterns may match a path at all: most are told apart by three bytes.

use std::collections::BTreeMap;

use super::glob::Glob;

/// So few patterns are tried one after the other.
const FEW: usize = 24;

/// Three bytes that are in every path which a pattern matches.
type Mark = [u8; 3];

/// Patterns by their positions, each under one of its marks.
#[derive(Debug, Clone, Default)]
pub(super) struct Candidates {
    marked: BTreeMap<Mark, Vec<usize>>,
    /// Those without a mark.
    always: Vec<usize>,
}

impl Candidates {
    /// Takes of each pattern the mark that fewest others have so far: what many patterns share tells none of them apart.
    pub(super) fn of<'g>(patterns: impl ExactSizeIterator<Item = &'g Glob>) -> Self {
        let mut candidates = Self::default();
        let few = patterns.len() <= FEW;
        for (position, pattern) in patterns.enumerate() {
            let literals = if few { Vec::new() } else { pattern.literals() };
            let marks = literals.iter().flat_map(|literal| marks(literal));
            let users = |mark: &Mark| candidates.marked.get(mark).map_or(0, Vec::len);
            match marks.min_by_key(users) {
                Some(mark) => candidates.marked.entry(mark).or_default().push(position),
                None => candidates.always.push(position),
            }
        }
        candidates
    }

    /// The patterns that may match `path`, in no order; one may come several times.
    pub(super) fn for_path<'c>(&'c self, path: &'c [u8]) -> impl Iterator<Item = usize> + 'c {
        let searched = if self.marked.is_empty() { &[][..] } else { path };
        let marked = marks(searched).filter_map(|mark| self.marked.get(&mark)).flatten();
        self.always.iter().chain(marked).copied()
    }
}

fn marks(bytes: &[u8]) -> impl Iterator<Item = Mark> + '_ {
    bytes.windows(3).filter_map(|window| Mark::try_from(window).ok())
}

#[cfg(test)]
mod tests {
    use super::super::glob::DoubleStar;
    use super::*;

    #[test]
    fn no_pattern_that_matches_is_left_out_and_nearly_all_others_are() {
        let mut texts: Vec<String> = (0..200).map(|number| format!("**/*name{number}*")).collect();
        texts.extend((0..200).map(|number| format!("d{number}/**/*.o{number}")));
        texts.extend(["*", "**/a?", "ab", "[a-c]x*", "a**", "é*", "a\\*b*", "x/**/y"].map(str::to_owned));
        let globs: Vec<Glob> =
            texts.iter().map(|text| Glob::parse(text.as_bytes(), DoubleStar::AnyDepth).unwrap()).collect();
        let candidates = Candidates::of(globs.iter());
        for path in [
            "name7",
            "x/y/my-name199-too",
            "d5/a/b.o5",
            "d5/b.o6",
            "ab",
            "ay",
            "bxx",
            "éa",
            "a*bc",
            "x/y",
            "x/z/y",
            "nothing/like/it",
            "",
        ] {
            let found: Vec<usize> = candidates.for_path(path.as_bytes()).collect();
            for (position, glob) in globs.iter().enumerate() {
                assert!(
                    !glob.matches(path.as_bytes()) || found.contains(&position),
                    "{path} {}",
                    texts[position]
                );
            }
            assert!(found.len() < 30, "{path}: {} of {}", found.len(), globs.len());
        }
        let few = Candidates::of(globs[..FEW].iter());
        assert_eq!(few.for_path(b"x").count(), FEW);
    }
}
