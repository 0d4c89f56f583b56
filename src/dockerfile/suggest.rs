//! "Did you mean": the known word that is nearest to an unknown one.

/// The nearest of `options` that differs from `word` in fewer than three places, as BuildKit suggests it; `None` if
/// `word` is one of them (then it was not the word that was wrong) or none is near.
#[must_use]
pub fn suggest<'a>(word: &str, options: &[&'a str]) -> Option<&'a str> {
    const NEAR: usize = 3;
    // A longer word is not near any option, and the table below would grow with it.
    if word.len() > 64 {
        return None;
    }
    if options.contains(&word) {
        return None;
    }
    // Of several that are equally near, one with the same first letter is likelier.
    let first = word.chars().next();
    let rank = |option: &&str| (distance(word, option), option.chars().next() != first);
    options.iter().copied().filter(|option| distance(word, option) < NEAR).min_by_key(rank)
}

/// Levenshtein distance in characters, where two neighbours that changed places are one difference: that is how people
/// mistype.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for (row, x) in a.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, y) in b.iter().enumerate() {
            let substitute = previous[column] + usize::from(x != y);
            let mut least = substitute.min(previous[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *x == b[column - 1] && a[row - 1] == *y {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested() {
        let options = ["COPY", "CMD", "ENV", "RUN"];
        for (word, expected) in [
            ("COPPY", Some("COPY")),
            ("CPY", Some("COPY")),
            ("RNU", Some("RUN")),
            ("COPY", None),
            ("BOGUS", None),
            ("", None),
        ] {
            assert_eq!(suggest(word, &options), expected, "{word}");
        }
        assert_eq!(suggest("chwon", &["chmod", "chown"]), Some("chown"));
        assert_eq!(suggest(&"x".repeat(100_000), &options), None);
    }
}
