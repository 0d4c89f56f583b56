//! What the last step of a program sees of its files, against what the layers say.

use std::collections::BTreeMap;

use super::image::{Facts, File};
use super::program::{Program, Step};
use crate::support::Finished;
use crate::support::steps::output;

/// Mode, owner, size, time and names of a file, as the last step sees them.
type Seen = BTreeMap<String, String>;

// What was printed before the first end is from other steps.
const LOOK: &str = "RUN [\"/bin/busybox\", \"sh\", \"-c\", \"echo //END; find / -xdev \\\\( -path /proc -o -path /sys -o -path /dev \
    -o -path /bin -o -path /etc/hosts -o -path /etc/resolv.conf \\\\) -prune -o -print0 | \
    xargs -0 stat -c '%f %u:%g %s %Y %t:%T %N//END'\"]";

/// The program with a last step that tells what it sees.
pub(crate) fn with_look(program: &Program) -> Program {
    let mut more = program.clone();
    if let Some(stage) = more.stages.last_mut() {
        // Others may not see everything.
        stage.steps.extend([Step::Whole("USER 0:0".to_owned()), Step::Whole(LOOK.to_owned())]);
    }
    more
}

/// What the last step saw otherwise than the layers have it.
pub(crate) fn faults(facts: &Facts, finished: &Finished) -> Vec<String> {
    // Where there is nothing to look with, the look was left out.
    let Some(seen) = seen(finished) else { return Vec::new() };
    let said = said(facts);
    let paths: std::collections::BTreeSet<&String> = seen.keys().chain(said.keys()).collect();
    let differing = paths.into_iter().filter(|path| seen.get(*path) != said.get(*path));
    differing
        .map(|path| format!("{path} was {:?}, and is {:?} in the layers", seen.get(path), said.get(path)))
        .collect()
}

fn seen(finished: &Finished) -> Option<Seen> {
    let text = output(finished).join("\n");
    let (_, files) = text.split_once("//END")?;
    let files =
        files.split("//END").map(|file| file.trim_start_matches('\n')).filter(|file| !file.is_empty());
    let mut seen = Seen::new();
    for file in files {
        let mut words = file.splitn(6, ' ');
        let mut word = || words.next().unwrap_or_default();
        let (mode, owner, size, time, device) = (word(), word(), word(), word(), word());
        let (path, target) = match word() {
            linked if mode.starts_with('a') => {
                linked.trim_matches('\'').split_once("' -> '").unwrap_or((linked, ""))
            }
            path => (path, ""),
        };
        // Text from a step has passed through what keeps a terminal safe.
        let odd = |text: &str| !text.is_ascii() || text.contains(['\n', '\\', '\'', '"', '?']);
        if odd(path) || odd(target) {
            continue;
        }
        let mode = u32::from_str_radix(mode, 16).unwrap_or_default();
        let size = if mode & 0o170_000 == 0o100_000 { size } else { "-" };
        let time = super::image::time(time.parse().unwrap_or_default());
        let device = if matches!(mode & 0o170_000, 0o20_000 | 0o60_000) { device } else { "0:0" };
        if path != "/" && !path.starts_with("/bin/") {
            seen.insert(path.to_owned(), format!("{mode:o} {owner} {size} {time} {device} {target}"));
        }
    }
    Some(seen)
}

fn said(facts: &Facts) -> Seen {
    let hidden = |path: &str| {
        path == "/"
            || ["/proc", "/sys", "/dev", "/bin"].iter().any(|top| path.split('/').nth(1) == Some(&top[1..]))
    };
    let plain = |path: &str| !path.contains(['\\', '?', '\'']);
    let shown = |path: &str, file: &File| !hidden(path) && plain(path) && plain(&file.target);
    let files = facts.tree.iter().filter(|(path, file)| shown(path, file));
    files
        .map(|(path, file)| {
            let kind = match file.kind.as_str() {
                "directory" => 0o40_000,
                "symlink" => 0o120_000,
                "fifo" => 0o10_000,
                "char" => 0o20_000,
                "block" => 0o60_000,
                _ => 0o100_000,
            };
            let mode = if kind == 0o120_000 { 0o777 } else { file.mode };
            let size = if kind == 0o100_000 { file.content.0.to_string() } else { "-".to_owned() };
            let (owner, time, device) = (file.owner, &file.time, file.device);
            let line = format!(
                "{:o} {}:{} {size} {time} {:x}:{:x} {}",
                kind | mode,
                owner.0,
                owner.1,
                device.0,
                device.1,
                file.target
            );
            (path.clone(), line)
        })
        .collect()
}
