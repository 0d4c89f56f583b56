//! What `git ls-remote` says.

use super::Commit;
use crate::context::git_source::is_commit;

/// The commit that a repository gives to whoever names none.
pub(super) fn default_branch(said: &[u8]) -> Option<Commit> {
    let said = String::from_utf8_lossy(said);
    let mut reference = None;
    let mut commit = None;
    for (value, name) in said.lines().filter_map(|line| line.split_once('\t')) {
        match value.strip_prefix("ref: ") {
            Some(branch) if name == "HEAD" && branch.starts_with("refs/heads/") => {
                reference = Some(branch.to_owned());
            }
            None if name == "HEAD" && is_commit(value) => commit = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(Commit { id: commit?, tag: None, reference })
}

/// The names that `reference` may be short for, the likeliest first.
pub(super) fn names(reference: &str) -> [String; 3] {
    let without = |prefix| reference.strip_prefix(prefix).unwrap_or(reference);
    [
        format!("refs/{}", without("refs/")),
        format!("refs/heads/{}", without("refs/heads/")),
        format!("refs/tags/{}", without("refs/tags/")),
    ]
}

/// What `reference` stands for: a whole name, else a branch, else a tag, as git-checkout has it.
pub(super) fn find(said: &[u8], reference: &str) -> Option<Commit> {
    let said = String::from_utf8_lossy(said);
    let lines: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once('\t')).collect();
    let of = |wanted: &str| {
        let found = lines.iter().find(|(id, name)| *name == wanted && is_commit(id));
        found.map(|(id, _)| (*id).to_owned())
    };
    names(reference).into_iter().find_map(|name| {
        let object = of(&name)?;
        let peeled = of(&format!("{name}^{{}}"));
        Some(match peeled {
            Some(commit) => Commit { id: commit, tag: Some(object), reference: Some(name) },
            None => Commit { id: object, tag: None, reference: Some(name) },
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(40)
    }

    #[test]
    fn the_default_branch_is_where_head_points() {
        let said = format!("ref: refs/heads/main\tHEAD\n{}\tHEAD\n", id('1'));
        let found = default_branch(said.as_bytes()).unwrap();
        assert_eq!((found.id, found.reference.as_deref()), (id('1'), Some("refs/heads/main")));
        let detached = default_branch(format!("{}\tHEAD\n", id('1')).as_bytes()).unwrap();
        assert_eq!(detached.reference, None);
        for said in ["", "ref: refs/heads/main\tHEAD\n", "nonsense\tHEAD\n", "1234\tHEAD\n"] {
            assert_eq!(default_branch(said.as_bytes()), None, "{said}");
        }
    }

    #[test]
    fn a_branch_comes_before_a_tag_and_a_tag_leads_to_its_commit() {
        let said = format!(
            "{}\trefs/heads/x\n{}\trefs/tags/x\n{}\trefs/tags/x^{{}}\n{}\trefs/heads/a/x\n{}\trefs/pull/1/head\n",
            id('1'),
            id('2'),
            id('3'),
            id('4'),
            id('5')
        );
        let found = |reference: &str| {
            let found = find(said.as_bytes(), reference)?;
            Some((found.id, found.tag, found.reference?))
        };
        assert_eq!(found("x"), Some((id('1'), None, "refs/heads/x".into())));
        assert_eq!(found("refs/tags/x"), Some((id('3'), Some(id('2')), "refs/tags/x".into())));
        assert_eq!(found("tags/x"), Some((id('3'), Some(id('2')), "refs/tags/x".into())));
        assert_eq!(found("a/x"), Some((id('4'), None, "refs/heads/a/x".into())));
        assert_eq!(found("pull/1/head"), Some((id('5'), None, "refs/pull/1/head".into())));
        // What only ends like it is another one.
        assert_eq!(found("head"), None);
        assert_eq!(found("y"), None);
    }
}
