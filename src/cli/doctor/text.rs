//! The report as text of at most 80 columns.

use std::fmt::Write as _;

use super::report::{
    Details, How, Isolation, Platform, Proc, Report, Snapshotter, Store, Tried, UserNamespace,
};
use crate::sandbox::probe::Place;
use crate::sandbox::{Filter, Strategy};

/// The widest line, in characters.
const WIDTH: usize = 80;

/// Where what is said of something begins.
const INDENT: usize = 27;

/// Where lines with a mark begin that belong to something.
const MARKS: usize = 6;

/// The whole text.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::new();
    let place = match report.place {
        Place::Machine => "on this machine",
        Place::Pod => "in this pod",
        Place::Container => "in this container",
    };
    let _ = writeln!(text, "How a RUN can be kept apart {place}, by user {}, strongest first:", report.user);
    let shown = shown(&report.isolation);
    for (tried, worth) in &shown {
        strategy(&mut text, tried, report.isolation.selected, *worth);
    }
    paragraph(&mut text, "", 0, &verdict(&report.isolation, &report.store));
    if shown.iter().any(|(tried, worth)| *worth == Worth::Better && !tried.manifest.is_empty()) {
        let marks = "+ is a field of the pod's manifest (securityContext: the container's); a way needs all of its fields.";
        paragraph(&mut text, "", 0, marks);
    }
    text.push('\n');
    store(&mut text, &report.store);
    text.push_str("\nHow programs for other platforms run:\n");
    let nothing = |platform: &&Platform| platform.how == How::Missing && !platform.asked;
    for platform in report.platforms.iter().filter(|platform| !nothing(platform)) {
        emulation(&mut text, platform);
    }
    let others: Vec<&str> =
        report.platforms.iter().filter(nothing).map(|platform| platform.platform.as_str()).collect();
    if !others.is_empty() {
        paragraph(&mut text, &format!("  {:<25}", "not"), INDENT, &others.join(", "));
    }
    // Said once: with the next platform, no more than its name is another.
    let unknown = report.platforms.iter().find(|platform| platform.how == How::Unknown);
    if let Some(cause) = unknown.and_then(|platform| platform.cause.as_deref()) {
        paragraph(&mut text, "", 0, &format!("> unknown: {cause}; a build tries"));
    }
    let missing = report
        .platforms
        .iter()
        .find(|platform| platform.asked && platform.how == How::Missing && platform.advice.is_some());
    if let Some(advice) = missing.and_then(|platform| platform.advice.as_deref()) {
        paragraph(&mut text, "", 0, &format!("> {advice}"));
    }
    text
}

/// Whether somebody may want a way that there is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// It would be better than what a build takes.
    Better,
    /// A build takes what is better: nobody need do anything for this one.
    Worse,
}

/// The ways that are worth a line; JSON has them all. One that no version has yet is no answer to anything.
fn shown(isolation: &Isolation) -> Vec<(&Tried, Worth)> {
    let (mut shown, mut worth) = (Vec::new(), Worth::Better);
    for tried in &isolation.strategies {
        if tried.works || tried.name != Strategy::SecondContainer {
            shown.push((tried, worth));
        }
        if isolation.selected == Some(tried.name) {
            worth = Worth::Worse;
        }
    }
    shown
}

/// What a build does here.
fn verdict(isolation: &Isolation, store: &Store) -> String {
    if store.snapshotter.is_none() {
        return "Every build fails: it has no place for its store.".to_owned();
    }
    let on_request = isolation.strategies.iter().find(|tried| tried.works && !tried.automatic);
    let without = if isolation.files {
        "one without it needs nothing of this"
    } else {
        "and so does one that copies files"
    };
    match (isolation.selected, on_request) {
        (Some(name), _) => format!("A build takes `{name}`, unless --isolation says otherwise."),
        (None, Some(on_request)) => {
            format!("A build with a RUN fails without --isolation={}; {without}.", on_request.name)
        }
        (None, None) => format!("A build with a RUN fails; {without}."),
    }
}

fn strategy(text: &mut String, tried: &Tried, selected: Option<Strategy>, worth: Worth) {
    let mark = if selected == Some(tried.name) { '*' } else { ' ' };
    let verdict = if tried.works { "yes" } else { "no" };
    let head = format!("{mark} {:<18}{verdict:<7}", tried.name.name());
    match (&tried.details, &tried.cause) {
        (Some(details), _) => paragraph(text, &head, INDENT, &how(tried, details)),
        (None, cause) => paragraph(text, &head, INDENT, cause.as_deref().unwrap_or_default()),
    }
    if worth == Worth::Worse {
        return;
    }
    for field in &tried.manifest {
        // To be copied: it is not broken, however long it is.
        let _ = writeln!(text, "{:MARKS$}+ {field}", "");
    }
    if let Some(advice) = &tried.advice {
        paragraph(text, "", MARKS, &format!("> {advice}"));
    }
}

/// How a strategy works, in words.
fn how(tried: &Tried, details: &Details) -> String {
    let proc = match (details.proc, tried.name) {
        (_, Strategy::InPlace) => "the root of this container, with all that is mounted in it",
        (Proc::Own, _) => "its own /proc and process numbers",
        (Proc::Shared, _) => "the /proc and process numbers of this container",
        (Proc::None, _) => "a root of its own without /proc",
    };
    let mut words = proc.to_owned();
    // Which there are is part of why there are not more.
    if let Some(shortage) = &details.shortage {
        let _ = write!(words, "; {shortage}");
    } else if details.user_namespace != UserNamespace::None {
        let _ = write!(words, "; users {}", details.users);
        if details.groups != details.users {
            let _ = write!(words, ", groups {}", details.groups);
        }
    }
    match details.seccomp {
        Filter::Builder => {}
        Filter::Container => words.push_str("; system calls filtered as for builder"),
        Filter::None => words.push_str("; system calls not filtered"),
    }
    if !tried.automatic {
        let _ = write!(words, "; only with --isolation={}", tried.name);
    }
    words
}

fn store(text: &mut String, store: &Store) {
    let state = if store.exists { "" } else { " (there is none yet)" };
    let _ = writeln!(text, "The store: {}{state}", store.path);
    if let Some(file_system) = &store.file_system {
        let noexec = if store.noexec { ", mounted noexec" } else { "" };
        let _ = writeln!(text, "  {:<25}{file_system}{noexec}", "file system");
    }
    let head = format!("  {:<25}", "snapshotter");
    let kept = match (store.snapshotter, &store.cause) {
        (Some(Snapshotter::Overlayfs), _) => "overlayfs".to_owned(),
        (Some(Snapshotter::Native), None) => "native".to_owned(),
        (Some(Snapshotter::Native), Some(cause)) => format!("native ({cause})"),
        (None, cause) => format!("none: {}", cause.as_deref().unwrap_or_default()),
    };
    paragraph(text, &head, INDENT, &kept);
    if let Some(advice) = &store.advice {
        paragraph(text, "", MARKS, &format!("> {advice}"));
    }
}

fn emulation(text: &mut String, platform: &Platform) {
    if let (How::Own, Some(emulator)) = (platform.how, &platform.emulator) {
        let cpu = emulator.cpu.map(|cpu| format!(" as {cpu}")).unwrap_or_default();
        let how = format!("by {}{cpu}, for the step alone", emulator.path);
        return paragraph(text, &format!("  {:<25}", platform.platform), INDENT, &how);
    }
    let how = match (platform.how, &platform.handler) {
        (How::Native, _) => "natively".to_owned(),
        (How::Predecessor, _) => "natively, as the 32-bit predecessor".to_owned(),
        (How::Handler | How::Own, Some(handler)) => format!("by {} (flags {})", handler.name, handler.flags),
        (How::Handler | How::Own, None) => "by a handler".to_owned(),
        (How::Unknown, _) => "unknown".to_owned(),
        (How::Missing, _) => format!("not: {}", platform.cause.as_deref().unwrap_or_default()),
    };
    paragraph(text, &format!("  {:<25}", platform.platform), INDENT, &how);
    for line in &platform.warnings {
        paragraph(text, "", MARKS, &format!("> {line}"));
    }
}

/// Adds `words` behind `head`, broken between words so that no line is longer than [`WIDTH`] unless a word is, further
/// lines `indent` from the left.
fn paragraph(text: &mut String, head: &str, indent: usize, words: &str) {
    let mut line = if head.is_empty() { " ".repeat(indent) } else { head.to_owned() };
    let mut fresh = true;
    for word in words.split(' ') {
        if !fresh && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            // What follows a mark (`> `, `+ `) stands under what the mark is for.
            line = " ".repeat(if indent == INDENT { indent } else { indent + 2 });
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::Explanation;

    fn some_store(snapshotter: Option<Snapshotter>) -> Store {
        Store {
            path: "/s".to_owned(),
            exists: false,
            file_system: None,
            snapshotter,
            noexec: false,
            cause: None,
            advice: None,
        }
    }

    fn wrapped(head: &str, indent: usize, words: &str) -> String {
        let mut text = String::new();
        paragraph(&mut text, head, indent, words);
        text
    }

    #[test]
    fn a_field_of_the_manifest_is_one_line_however_long_it_is() {
        let field = format!("securityContext.capabilities.add: [{}]", ["SYS_ADMIN"; 12].join(", "));
        let explanation =
            Explanation { cause: "none".to_owned(), manifest: vec![field.clone()], advice: None };
        let mut text = String::new();
        strategy(&mut text, &Tried::new(Strategy::Chroot, Err(explanation)), None, Worth::Better);
        assert_eq!(text.lines().nth(1), Some(format!("      + {field}").as_str()), "{text}");
    }

    #[test]
    fn nobody_is_advised_about_what_is_worse_than_what_a_build_takes() {
        let tried = |strategy, works| {
            let (manifest, advice) =
                (vec!["privileged: true".to_owned()], Some("run it elsewhere".to_owned()));
            let explanation = Explanation { cause: "no".to_owned(), manifest, advice };
            Tried { works, ..Tried::new(strategy, Err(explanation)) }
        };
        let strategies = vec![
            tried(Strategy::MountNamespace, false),
            tried(Strategy::UserNamespace, true),
            tried(Strategy::SecondContainer, false),
            tried(Strategy::InPlace, false),
        ];
        let isolation = Isolation { selected: Some(Strategy::UserNamespace), files: true, strategies };
        let mut text = String::new();
        for (tried, worth) in shown(&isolation) {
            strategy(&mut text, tried, isolation.selected, worth);
        }
        let lines: Vec<&str> = text.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
        assert_eq!(text.matches("> run it elsewhere").count(), 2, "{text}");
        assert!(!text.contains("second-container"), "{text}");
        assert!(text.trim_end().ends_with("no"), "{lines:?}");
    }

    #[test]
    fn what_a_build_does_by_itself_or_when_it_is_told_is_said_in_one_line() {
        let tried = |strategy, automatic| {
            let explanation = Explanation { cause: String::new(), manifest: Vec::new(), advice: None };
            Tried { works: true, automatic, ..Tried::new(strategy, Err(explanation)) }
        };
        let nothing = || Vec::new();
        let in_place = || vec![tried(Strategy::InPlace, false)];
        for (selected, files, strategies, words) in [
            (Some(Strategy::Chroot), true, in_place(), "takes `chroot`, unless --isolation says"),
            (None, true, in_place(), "fails without --isolation=in-place; one without it needs nothing"),
            (None, true, nothing(), "A build with a RUN fails; one without it needs nothing of this."),
            (None, false, nothing(), "A build with a RUN fails; and so does one that copies files."),
        ] {
            let isolation = Isolation { selected, files, strategies };
            let found = verdict(&isolation, &some_store(Some(Snapshotter::Native)));
            assert!(found.contains(words), "{found}");
            assert!(verdict(&isolation, &some_store(None)).starts_with("Every build fails"));
        }
    }

    #[test]
    fn the_users_are_named_once() {
        let details = |shortage: Option<&str>| Details {
            proc: Proc::Own,
            seccomp: Filter::Builder,
            user_namespace: UserNamespace::Single,
            users: "0-9".to_owned(),
            groups: "0-9".to_owned(),
            shortage: shortage.map(str::to_owned),
        };
        let explanation = Explanation { cause: String::new(), manifest: Vec::new(), advice: None };
        let tried = Tried::new(Strategy::UserNamespace, Err(explanation));
        for shortage in [None, Some("only users 0-9 can be used here")] {
            let words = how(&tried, &details(shortage));
            assert_eq!(words.matches("0-9").count(), 1, "{words}");
        }
    }

    #[test]
    fn lines_are_broken_between_words_and_hang_behind_their_head() {
        let words = ["word"; 30].join(" ");
        let text = wrapped(&format!("  {:<25}", "head"), INDENT, &words);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.starts_with("  head                     word word "), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(&" ".repeat(INDENT))), "{text}");
        assert_eq!(text.matches("word").count(), 30);
        let long = "x".repeat(100);
        assert_eq!(wrapped("", 2, &format!("> {long} y")), format!("  >\n    {long}\n    y\n"));
    }
}
