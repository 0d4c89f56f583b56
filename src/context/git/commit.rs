//! What is read of a commit, as git reads it: whoever wrote it, git takes it as it is.

/// The latest time that has a name: the end of the year 9999.
const LATEST: i64 = 253_402_300_799;

/// The id of its tree, with which every commit begins; none if it is none.
pub(super) fn tree(commit: &[u8]) -> Option<&[u8]> {
    let rest = commit.strip_prefix(b"tree ")?;
    Some(&rest[..rest.iter().position(|byte| *byte == b'\n')?])
}

/// When it was made, in the words that `git log --format=%ct` has for it: digits, or nothing.
pub(super) fn time(commit: &[u8]) -> &[u8] {
    let head = commit.split(|byte| *byte == b'\n').take_while(|line| !line.is_empty());
    let committer = head.filter_map(|line| line.strip_prefix(b"committer ")).last();
    committer.and_then(time_of).unwrap_or_default()
}

/// `NAME <ADDRESS> SECONDS ZONE`: what stands behind the last `>`.
fn time_of(person: &[u8]) -> Option<&[u8]> {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let digits = |text: &[u8]| text.iter().take_while(|byte| is_digit(byte)).count();
    let begin = person.iter().position(|byte| *byte == b'<')?;
    person[begin..].iter().position(|byte| *byte == b'>')?;
    let end = person.iter().rposition(|byte| *byte == b'>')?;
    let rest = person[end + 1..].trim_ascii_start();
    let (time, zone) = rest.split_at(digits(rest));
    let zone = zone.trim_ascii_start();
    let has_zone = matches!(zone.first(), Some(b'+' | b'-')) && zone.get(1).is_some_and(is_digit);
    (!time.is_empty() && has_zone).then_some(time)
}

/// The seconds since 1970 that `said` means; none if no file should have that time.
pub(super) fn seconds(said: &[u8]) -> Option<i64> {
    let seconds: i64 = std::str::from_utf8(said).ok()?.parse().ok()?;
    (0..=LATEST).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;

    const TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

    /// What stands behind `committer`, what git takes for the time, and what becomes of that.
    const CASES: [(&str, &str, Option<i64>); 26] = [
        ("A <a@b> 1 +0000", "1", Some(1)),
        ("A <a@b> 0 -0000", "0", Some(0)),
        ("A <a@b> -5 +0000", "", None),
        ("A <a@b> +5 +0000", "", None),
        ("A <a@b> 2147483648 +0000", "2147483648", Some(1 << 31)),
        ("A <a@b> 253402300799 +0000", "253402300799", Some(LATEST)),
        ("A <a@b> 253402300800 +0000", "253402300800", None),
        ("A <a@b> 9223372036854775808 +0000", "9223372036854775808", None),
        ("A <a@b> 99999999999999999999999 +0000", "99999999999999999999999", None),
        ("A <a@b> 5 +9999", "5", Some(5)),
        ("A <a@b> 5 -1", "5", Some(5)),
        ("A <a@b> 5 0000", "", None),
        ("A <a@b> 5 +-06", "", None),
        ("A <a@b> 5", "", None),
        ("A <a@b>", "", None),
        ("A <a@b> word", "", None),
        ("A <a@b> 5x +0000", "", None),
        ("A <a@b> 7.5 +0000", "", None),
        ("A <a@b> 5 +0000 more", "5", Some(5)),
        ("A <a@b> 007 +0000", "007", Some(7)),
        ("A <a@b>\t7+0000", "7", Some(7)),
        ("A <a <b>> 7 +0000", "7", Some(7)),
        ("<> 7 +0000", "7", Some(7)),
        ("> 7 +0000", "", None),
        ("A a@b 5 +0000", "", None),
        ("A <a@b> 1 +0000\ncommitter B <b@b> 2 +0000", "2", Some(2)),
    ];

    fn commit(committer: &str) -> String {
        format!("tree {TREE}\nauthor A <a@b> 9 +0000\ncommitter {committer}\n\ncommitter C <c@d> 8 +0000\n")
    }

    #[test]
    fn the_time_of_a_commit_is_that_which_git_says() {
        for (committer, said, time) in CASES {
            let commit = commit(committer);
            assert_eq!(String::from_utf8_lossy(super::time(commit.as_bytes())), said, "{committer}");
            assert_eq!(seconds(said.as_bytes()), time, "{committer}");
        }
        assert_eq!(super::time(b"tree x\n\ncommitter A <a@b> 8 +0000\n"), b"");
        assert_eq!(tree(commit("x").as_bytes()), Some(TREE.as_bytes()));
        for none in ["", "tree", "tree x", "author x\ntree x\n"] {
            assert_eq!(tree(none.as_bytes()), None);
        }
    }

    #[test]
    fn git_says_it_too() {
        let place = tempfile::tempdir().unwrap();
        let git = |arguments: &[&str], input: &str| {
            let mut command = Command::new("git");
            command.args(arguments).current_dir(place.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().ok()?;
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{arguments:?}");
            Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
        };
        if git(&["init", "-q"], "").is_none() {
            eprintln!("skipped: no git");
            return;
        }
        assert_eq!(git(&["hash-object", "-t", "tree", "-w", "/dev/null"], "").unwrap(), TREE);
        for (committer, said, _) in CASES {
            let arguments = ["hash-object", "-t", "commit", "-w", "--literally", "--stdin"];
            let id = git(&arguments, &commit(committer)).unwrap();
            assert_eq!(git(&["log", "-1", "--format=%ct", &id], "").unwrap(), said, "{committer}");
        }
    }
}
