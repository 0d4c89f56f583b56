//! The rules of a `.dockerignore` file, as moby's `ignorefile` reads and its `patternmatcher` applies them.

use super::candidates::Candidates;
use super::glob::{DoubleStar, Glob};
use crate::limit::Limit;

/// The largest file of rules, in bytes: 1 MiB.
pub const BYTES_LIMIT: Limit = Limit::new("dockerignore-bytes", 1 << 20);
/// The most patterns a file may have: 10,000.
pub const PATTERNS_LIMIT: Limit = Limit::new("dockerignore-patterns", 10_000);

/// Rules that cannot be followed. Lines count from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IgnoreError {
    /// Too many bytes.
    #[error("the file is longer than {value} bytes; {0}", value = .0.value)]
    TooLarge(Limit),
    /// Too many patterns.
    #[error("line {line}: more than {value} patterns; {limit}", value = limit.value)]
    TooManyPatterns {
        /// The first pattern too many.
        line: usize,
        /// The most.
        limit: Limit,
    },
    /// `!` with nothing to include.
    #[error("line {line}: illegal exclusion pattern: \"!\"")]
    IllegalExclusion {
        /// Where it is.
        line: usize,
    },
    /// A class that does not end, for instance.
    #[error("line {line}: syntax error in pattern: `{pattern}`")]
    Syntax {
        /// Where it is.
        line: usize,
        /// The line, shortened.
        pattern: String,
    },
    /// `--exclude=!`.
    #[error("illegal exclusion pattern: \"!\"; `!` is followed by what is not to be excluded, as in `!*.md`")]
    IllegalException,
    /// A flag with a class that does not end, for instance.
    #[error("syntax error in pattern: `{pattern}`; a `[` that stands for itself is written `[[]`")]
    Pattern {
        /// The pattern, shortened.
        pattern: String,
    },
    /// Too many flags.
    #[error("more than {value} patterns; {0}", value = .0.value)]
    TooManyFlags(Limit),
}

/// Which paths do not exist for COPY and ADD: of a build context, or of a source with `--exclude`.
///
/// Paths are relative to the context, or source, and clean: `a/b`.
#[derive(Debug, Clone, Default)]
pub struct IgnoreRules {
    /// The name of the file, where it is not the usual one.
    file: Option<String>,
    rules: Vec<Rule>,
    /// Which of the rules may match a path.
    candidates: Candidates,
    /// Paths that no rule brings back.
    hidden: Vec<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Rule {
    glob: Glob,
    /// As it is compared, without `!`.
    pattern: Vec<u8>,
    effect: Effect,
    line: usize,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Exclude,
    /// A pattern behind `!`.
    Include,
}

/// What rules say of a directory, so that it need not be found out again for each of its entries: the last rule that
/// matches it or a directory above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict(Option<usize>);

impl IgnoreRules {
    /// Reads the content of a file of usual size.
    ///
    /// # Errors
    /// As [`IgnoreRules::parse_within`].
    pub fn parse(content: &[u8]) -> Result<Self, IgnoreError> {
        Self::parse_within(content, BYTES_LIMIT, PATTERNS_LIMIT)
    }

    /// Reads the content of a file.
    ///
    /// # Errors
    /// When the file has more bytes or patterns than allowed, or a pattern is not valid.
    pub fn parse_within(content: &[u8], bytes: Limit, patterns: Limit) -> Result<Self, IgnoreError> {
        if bytes.is_exceeded_by(content.len() as u64) {
            return Err(IgnoreError::TooLarge(bytes));
        }
        let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
        let mut rules = Vec::new();
        for (index, text) in content.split(|byte| *byte == b'\n').enumerate() {
            let line = index + 1;
            let Some((effect, pattern)) = pattern_of(text, line)? else { continue };
            if patterns.is_exceeded_by(rules.len() as u64 + 1) {
                return Err(IgnoreError::TooManyPatterns { line, limit: patterns });
            }
            let text = shown(text);
            let glob = Glob::parse(&pattern, DoubleStar::AnyDepth)
                .map_err(|_| IgnoreError::Syntax { line, pattern: text.clone() })?;
            rules.push(Rule { glob, pattern, effect, line, text });
        }
        Ok(Self::of_rules(rules))
    }

    /// The rules that `patterns` are, each the value of a flag: as moby's `patternmatcher` takes them. Unlike in a file, `#`
    /// begins no comment, and a pattern that begins with a slash matches nothing.
    ///
    /// # Errors
    /// When a pattern is not valid, or there are too many.
    pub fn of_patterns<'p>(patterns: impl IntoIterator<Item = &'p [u8]>) -> Result<Self, IgnoreError> {
        let mut rules = Vec::new();
        for (index, text) in patterns.into_iter().enumerate() {
            if PATTERNS_LIMIT.is_exceeded_by(index as u64 + 1) {
                return Err(IgnoreError::TooManyFlags(PATTERNS_LIMIT));
            }
            let trimmed = trim(text);
            if trimmed.is_empty() {
                continue;
            }
            let cleaned = clean(trimmed);
            let (effect, pattern) = match cleaned.strip_prefix(b"!") {
                Some(b"") => return Err(IgnoreError::IllegalException),
                Some(included) => (Effect::Include, included),
                None => (Effect::Exclude, cleaned.as_slice()),
            };
            let text = shown(text);
            let glob = Glob::parse(pattern, DoubleStar::AnyDepth)
                .map_err(|_| IgnoreError::Pattern { pattern: text.clone() })?;
            rules.push(Rule { glob, pattern: pattern.to_vec(), effect, line: index + 1, text });
        }
        Ok(Self::of_rules(rules))
    }

    fn of_rules(rules: Vec<Rule>) -> Self {
        let candidates = Candidates::of(rules.iter().map(|rule| &rule.glob));
        Self { file: None, rules, candidates, hidden: Vec::new() }
    }

    /// Excludes `path` and all below it, whatever the rules say; the empty path is not one.
    pub fn hide(&mut self, path: &[u8]) {
        if !path.is_empty() {
            self.hidden.push(path.to_vec());
        }
    }

    /// These rules as those of the file `name`, with what `other` hides.
    #[must_use]
    pub(super) fn of_file(mut self, name: String, other: &Self) -> Self {
        self.file = Some(name);
        self.hidden.extend_from_slice(&other.hidden);
        self
    }

    /// The name of the file that [`IgnoreRules::deciding_line`] counts in.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.file.as_deref().unwrap_or(".dockerignore")
    }

    /// Whether `path` is excluded: the last rule decides that matches it or a directory above it. The context itself
    /// never is.
    #[must_use]
    pub fn excludes(&self, path: &[u8]) -> bool {
        !path.is_empty()
            && (self.is_hidden(path)
                || self.decide(path).is_some_and(|(_, rule)| rule.effect == Effect::Exclude))
    }

    /// Whether everything that a source `path` of COPY may mean is excluded, as BuildKit's check of it sees it: a pattern is
    /// compared as it is written, and where a rule might bring back something below, nothing is said. The empty path, the
    /// context itself, is excluded where a rule excludes all.
    #[must_use]
    pub fn surely_excludes(&self, path: &[u8]) -> bool {
        let brought_back = |rule: &Rule| rule.effect == Effect::Include && rule.may_concern(path);
        if self.rules.iter().any(brought_back) {
            return false;
        }
        if path.is_empty() {
            let is_all = |rule: &Rule| matches!(rule.pattern.as_slice(), b"*" | b"**" | b"**/*");
            return self.rules.iter().any(|rule| rule.effect == Effect::Exclude && is_all(rule));
        }
        self.excludes(path)
    }

    /// The line that excludes `path` and its text; none where a path is not excluded, or not by a rule.
    #[must_use]
    pub fn deciding_line(&self, path: &[u8]) -> Option<(usize, &str)> {
        let (_, rule) = self.decide(path)?;
        (rule.effect == Effect::Exclude).then_some((rule.line, rule.text.as_str()))
    }

    /// What is said of `path`.
    #[must_use]
    pub fn verdict(&self, path: &[u8]) -> Verdict {
        Verdict(self.decide(path).map(|(index, _)| index))
    }

    /// What is said of `path`, an entry of a directory of which `above` is said.
    #[must_use]
    pub fn verdict_below(&self, above: Verdict, path: &[u8]) -> Verdict {
        let mut last = above.0;
        for index in self.candidates.for_path(path) {
            let matches = || self.rules.get(index).is_some_and(|rule| rule.glob.matches(path));
            if last.is_none_or(|last| index > last) && matches() {
                last = Some(index);
            }
        }
        Verdict(last)
    }

    /// Whether `path` is excluded, of which `verdict` is said.
    #[must_use]
    pub fn excludes_by(&self, verdict: Verdict, path: &[u8]) -> bool {
        let rule = verdict.0.and_then(|index| self.rules.get(index));
        !path.is_empty() && (self.is_hidden(path) || rule.is_some_and(|rule| rule.effect == Effect::Exclude))
    }

    /// Whether something below `directory` may not be excluded; may say yes where nothing is. Where it says no, the
    /// directory need not be looked at.
    #[must_use]
    pub fn may_include_below(&self, directory: &[u8]) -> bool {
        self.may_include_below_by(self.verdict(directory), directory)
    }

    /// The same of a directory of which `verdict` is said.
    #[must_use]
    pub fn may_include_below_by(&self, verdict: Verdict, directory: &[u8]) -> bool {
        if directory.is_empty() {
            return true;
        }
        if self.is_hidden(directory) {
            return false;
        }
        match verdict.0.and_then(|index| Some((index, self.rules.get(index)?))) {
            Some((index, Rule { effect: Effect::Exclude, .. })) => {
                let later = &self.rules[index + 1..];
                later
                    .iter()
                    .any(|rule| rule.effect == Effect::Include && rule.glob.may_match_below(directory))
            }
            _ => true,
        }
    }

    fn is_hidden(&self, path: &[u8]) -> bool {
        let holds = |hidden: &Vec<u8>| {
            path.strip_prefix(hidden.as_slice()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        };
        self.hidden.iter().any(holds)
    }

    /// The last rule that matches `path` or a directory above it.
    fn decide(&self, path: &[u8]) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().rev().find(|(_, rule)| rule.glob.matches_or_parent(path))
    }
}

impl Rule {
    /// Whether it may match `source` or something below. What comes behind the first wildcard is not looked at.
    fn may_concern(&self, source: &[u8]) -> bool {
        let has_wildcard = |element: &&[u8]| element.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['));
        let elements: Vec<&[u8]> = self.pattern.split(|byte| *byte == b'/').collect();
        let literal = elements.iter().take_while(|element| !has_wildcard(element)).count();
        let prefix = elements[..literal].join(&b'/');
        is_at_or_below(&prefix, source) || (literal < elements.len() && is_at_or_below(source, &prefix))
    }
}

/// Whether `path` is `base` or is contained in it; the empty one is the context.
fn is_at_or_below(path: &[u8], base: &[u8]) -> bool {
    base.is_empty() || path.strip_prefix(base).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// What a line says; nothing where it is blank or a comment.
fn pattern_of(text: &[u8], line: usize) -> Result<Option<(Effect, Vec<u8>)>, IgnoreError> {
    if text.starts_with(b"#") {
        return Ok(None);
    }
    let text = trim(text);
    if text.is_empty() {
        return Ok(None);
    }
    let (effect, text) = match text.strip_prefix(b"!") {
        Some(included) => (Effect::Include, trim(included)),
        None => (Effect::Exclude, text),
    };
    let cleaned = if text.is_empty() { Vec::new() } else { clean(text) };
    let pattern = match cleaned.as_slice() {
        [b'/', rest @ ..] if !rest.is_empty() => rest.to_vec(),
        _ => cleaned,
    };
    // moby cleans once more with the `!` in front, which leaves nothing of `!/`.
    if effect == Effect::Include && (pattern.is_empty() || pattern == b"/") {
        return Err(IgnoreError::IllegalExclusion { line });
    }
    Ok(Some((effect, pattern)))
}

/// Takes away blanks at both ends, those of Unicode as well where the line is UTF-8.
fn trim(text: &[u8]) -> &[u8] {
    match std::str::from_utf8(text) {
        Ok(text) => text.trim().as_bytes(),
        Err(_) => text.trim_ascii(),
    }
}

/// Go's `path.Clean`.
fn clean(path: &[u8]) -> Vec<u8> {
    let absolute = path.starts_with(b"/");
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => match components.last() {
                Some(last) if *last != b".." => drop(components.pop()),
                _ if absolute => {}
                _ => components.push(component),
            },
            _ => components.push(component),
        }
    }
    let joined = components.join(&b'/');
    match (absolute, joined.is_empty()) {
        (true, _) => [b"/".as_slice(), &joined].concat(),
        (false, true) => b".".to_vec(),
        (false, false) => joined,
    }
}

/// A line as it is shown in a message.
fn shown(text: &[u8]) -> String {
    crate::text::line(trim(text), 200)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    /// Directories end in a slash.
    static TREE: LazyLock<Vec<&str>> =
        LazyLock::new(|| include_str!("../../testdata/ignore/tree.txt").lines().collect());

    fn parse(text: &str) -> IgnoreRules {
        IgnoreRules::parse(text.as_bytes()).unwrap()
    }

    fn present(rules: &IgnoreRules) -> Vec<&'static str> {
        let included = |entry: &str| !rules.excludes(entry.trim_end_matches('/').as_bytes());
        let holds = |directory: &str| {
            directory.ends_with('/')
                && TREE.iter().any(|entry| entry.starts_with(directory) && included(entry))
        };
        TREE.iter().copied().filter(|entry| included(entry) || holds(entry)).collect()
    }

    /// `a/...` is the directory and all below it.
    fn named(list: &str) -> Vec<&'static str> {
        let words: Vec<_> = list.split(' ').filter(|word| !word.is_empty()).collect();
        let is_named = |entry: &str| {
            let matches =
                |word: &&str| word.strip_suffix("...").map_or(*word == entry, |top| entry.starts_with(top));
            words.iter().any(matches)
        };
        let named: Vec<_> = TREE.iter().copied().filter(|entry| is_named(entry)).collect();
        assert!(named.len() >= words.len(), "{list} names something that is not in the tree");
        named
    }

    #[test]
    fn every_row_of_the_table_holds() {
        let table = include_str!("../../testdata/ignore/table.tsv");
        let mut rows = 0;
        for row in table.lines().filter(|line| !line.starts_with("##")) {
            let (rules, expected) = row.split_once('\t').unwrap();
            rows += 1;
            let rules = rules.replace('⏎', "\n").replace('␠', " ").replace('␉', "\t").replace('␍', "\r");
            let (verb, list) = expected.split_once(':').unwrap();
            match verb {
                "keeps" => assert_eq!(present(&parse(&rules)), named(list), "{row}"),
                "removes" => {
                    let removed = named(list);
                    let kept: Vec<_> =
                        TREE.iter().copied().filter(|entry| !removed.contains(entry)).collect();
                    assert_eq!(present(&parse(&rules)), kept, "{row}");
                }
                "error" => {
                    let error = IgnoreRules::parse(rules.as_bytes()).unwrap_err().to_string();
                    assert!(error.contains(list.trim()), "{row}: {error}");
                }
                _ => panic!("{row}"),
            }
        }
        assert!(rows > 50);
    }

    #[test]
    fn no_directory_is_left_out_that_holds_something_included() {
        let table = include_str!("../../testdata/ignore/table.tsv");
        for row in table.lines().filter(|line| !line.starts_with("##") && !line.contains("\terror:")) {
            let rules = row.split('\t').next().unwrap().replace('⏎', "\n");
            let rules = parse(&rules);
            for directory in TREE.iter().filter(|entry| entry.ends_with('/')) {
                let included = TREE.iter().any(|entry| {
                    entry.len() > directory.len()
                        && entry.starts_with(directory)
                        && present(&rules).contains(entry)
                });
                let name = directory.trim_end_matches('/').as_bytes();
                assert!(!included || rules.may_include_below(name), "{row}: {directory}");
            }
        }
        let rules = parse("node_modules\n!src/keep\n!node_modules/a/b");
        assert!(rules.may_include_below(b"node_modules"));
        assert!(rules.may_include_below(b"node_modules/a"));
        assert!(!rules.may_include_below(b"node_modules/c"));
        assert!(!parse("a\n!b").may_include_below(b"a"));
        assert!(!parse("!a/b\na").may_include_below(b"a"));
    }

    #[test]
    fn going_down_gives_what_asking_for_whole_paths_gives() {
        let table = include_str!("../../testdata/ignore/table.tsv");
        for row in table.lines().filter(|line| !line.starts_with("##") && !line.contains("\terror:")) {
            let rules = parse(&row.split('\t').next().unwrap().replace('⏎', "\n"));
            for entry in TREE.iter() {
                let path = entry.trim_end_matches('/');
                let mut above = Verdict::default();
                for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
                    above = rules.verdict_below(above, &path.as_bytes()[..end]);
                }
                let path = path.as_bytes();
                assert_eq!(above, rules.verdict(path), "{row}: {entry}");
                assert_eq!(rules.excludes_by(above, path), rules.excludes(path), "{row}: {entry}");
                let below = rules.may_include_below_by(above, path);
                assert_eq!(below, rules.may_include_below(path), "{row}: {entry}");
            }
        }
    }

    #[test]
    fn flags_are_patterns_as_they_are() {
        let of =
            |patterns: &[&str]| IgnoreRules::of_patterns(patterns.iter().map(|pattern| pattern.as_bytes()));
        for (patterns, path, excluded) in [
            (&["*.txt"][..], "a.txt", true),
            (&["*.txt"], "d/a.txt", false),
            (&["**/*.txt", "!b.txt"], "b.txt", false),
            (&["!b.txt", "**/*.txt"], "b.txt", true),
            (&["#a"], "#a", true),
            (&["/a"], "a", false),
            (&["./a/"], "a/b", true),
            (&[" a "], "a", true),
            (&["", " "], "a", false),
            (&["$e"], "$e", true),
            (&["a\nb"], "a", false),
        ] {
            assert_eq!(of(patterns).unwrap().excludes(path.as_bytes()), excluded, "{patterns:?} {path}");
        }
        for (patterns, expected) in [
            (&["a", "!"][..], "illegal exclusion pattern: \"!\""),
            (&["!/"], "illegal exclusion pattern"),
            (&["a", "[a-"], "syntax error in pattern: `[a-`"),
        ] {
            let error = of(patterns).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{patterns:?}: {error}");
        }
        assert!(of(&vec!["a"; 10_000]).is_ok());
        assert_eq!(of(&vec!["a"; 10_001]).unwrap_err(), IgnoreError::TooManyFlags(PATTERNS_LIMIT));
    }

    #[test]
    fn the_deciding_line_is_the_last_that_matches() {
        let rules = parse("# comment\n*.md\n\n  *.txt \n!keep.txt\n");
        assert_eq!(rules.deciding_line(b"a.txt"), Some((4, "*.txt")));
        assert_eq!(rules.deciding_line(b"a.md"), Some((2, "*.md")));
        assert_eq!(rules.deciding_line(b"keep.txt"), None);
        assert_eq!(rules.deciding_line(b"other"), None);
        assert_eq!(parse("a").deciding_line(b"a/b/c"), Some((1, "a")));
        assert_eq!(parse("a\x1bb*").deciding_line(b"a\x1bb1"), Some((1, "a\\u{1b}b*")));
    }

    #[test]
    fn hidden_paths_stay_hidden() {
        let mut rules = parse("!out\n!out/x");
        rules.hide(b"out");
        assert!(rules.excludes(b"out") && rules.excludes(b"out/x") && !rules.excludes(b"outer"));
        assert!(!rules.may_include_below(b"out"));
        assert_eq!(rules.deciding_line(b"out"), None);
        assert!(!rules.excludes(b""));
    }

    #[test]
    fn names_that_are_not_utf8_can_be_ignored() {
        let rules = IgnoreRules::parse(b"a\xff\n\xfe*  \n").unwrap();
        assert!(rules.excludes(b"a\xff") && rules.excludes(b"\xfeb") && !rules.excludes(b"a"));
    }

    #[test]
    fn files_beyond_the_limits_are_errors() {
        let error = IgnoreRules::parse(&vec![b'#'; (1 << 20) + 1]).unwrap_err();
        assert_eq!(error, IgnoreError::TooLarge(BYTES_LIMIT));
        let many = "a\n".repeat(10_000);
        assert!(IgnoreRules::parse(many.as_bytes()).is_ok());
        let error = IgnoreRules::parse((many + "# fine\na").as_bytes()).unwrap_err();
        assert_eq!(error, IgnoreError::TooManyPatterns { line: 10_002, limit: PATTERNS_LIMIT });
        assert_eq!(
            IgnoreRules::parse(b"a\n[a-\n").unwrap_err().to_string(),
            "line 2: syntax error in pattern: `[a-`"
        );
    }
}
