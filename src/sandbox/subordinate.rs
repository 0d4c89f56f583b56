//! The ids that `/etc/subuid` and `/etc/subgid` give to a user, and the programs that map them (subuid(5), newuidmap(1)).

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::rootfs::{Escaped, Extent, GuestPath, Owner, Rootfs, name_of_user};

/// Where the machine's own programs are. Not the caller's `PATH`: two of them gain rights.
const PROGRAMS: [&str; 6] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/run/wrappers/bin"];

/// The most that is read of `/etc/subuid` and `/etc/subgid`, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// The most extents of a map: the kernel takes one in a single write of less than a page.
const MAX_EXTENTS: usize = 120;

/// Where subordinate ids begin where nobody has any, and how many one user gets (login.defs(5)).
const FIRST: u64 = 100_000;
const COUNT: u64 = 65_536;

/// What a user may map into a namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subordinate {
    /// The map of users; the first extent is the caller as 0.
    pub(super) users: Vec<Extent>,
    /// The map of groups.
    pub(super) groups: Vec<Extent>,
    programs: [PathBuf; 2],
}

/// Why there is nothing to map but the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lacking {
    /// The caller has no name, by which newuidmap(1) must know it.
    Name(u32),
    /// Nothing in one of the two files.
    Ranges {
        /// The caller's name.
        caller: String,
        /// The file.
        file: &'static str,
        /// The first number from which on nobody has any ids.
        free: u64,
    },
    /// A program is not installed.
    Program(&'static str),
    /// A file that cannot be read.
    Unreadable {
        /// The file.
        file: &'static str,
        /// Why not.
        why: String,
    },
}

impl fmt::Display for Lacking {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(uid) => {
                write!(
                    formatter,
                    "user {uid} has no name in /etc/passwd, without which newuidmap gives it no ids"
                )
            }
            Self::Ranges { caller, file, free } => {
                let last = free + COUNT - 1;
                write!(
                    formatter,
                    "`{caller}` has no ids in {file}; as root: usermod --add-subuids {free}-{last} --add-subgids {free}-{last} {caller}"
                )
            }
            Self::Program(program) => {
                write!(formatter, "`{program}` is not installed; it is in the package uidmap or shadow-utils")
            }
            Self::Unreadable { file, why } => write!(formatter, "{file} cannot be read: {why}"),
        }
    }
}

impl Subordinate {
    /// What the user and group `caller` may map on this machine, the whole of it.
    pub(super) fn of(caller: Owner) -> Result<Self, Lacking> {
        let root = Rootfs::open(Path::new("/"))
            .map_err(|error| Lacking::Unreadable { file: "/", why: error.to_string() })?;
        let programs = [find("newuidmap")?, find("newgidmap")?];
        Self::of_machine(&root, caller, programs)
    }

    fn of_machine(root: &Rootfs, caller: Owner, programs: [PathBuf; 2]) -> Result<Self, Lacking> {
        let name = name_of_user(root, caller.uid).ok().flatten().or_else(|| name_by_service(caller.uid));
        let name = name.ok_or(Lacking::Name(caller.uid))?;
        let names = [name.clone(), caller.uid.to_string().into_bytes()];
        let files = [("/etc/subuid", caller.uid), ("/etc/subgid", caller.gid)];
        let mut maps = Vec::new();
        let mut free = FIRST;
        let mut empty = None;
        for (file, own) in files {
            let lines = read(root, file)?;
            let ranges: Vec<Range> =
                lines.iter().filter(|(owner, _)| names.contains(owner)).map(|(_, range)| *range).collect();
            free = lines.iter().map(|(_, range)| range.end()).fold(free, u64::max);
            let extents = extents(own, &ranges);
            if extents.len() < 2 {
                empty.get_or_insert(file);
            }
            maps.push(extents);
        }
        if let Some(file) = empty {
            let caller = Escaped::new(&name).to_string();
            return Err(Lacking::Ranges { caller, file, free });
        }
        let groups = maps.pop().unwrap_or_default();
        Ok(Self { users: maps.pop().unwrap_or_default(), groups, programs })
    }

    /// Gives the user namespace of `process` these maps. For a process outside of it; both programs are tried.
    ///
    /// # Errors
    /// What the programs said, one line each.
    pub(super) fn map(&self, process: i32) -> Result<(), String> {
        // Groups first: without them, the caller's own is mapped alone, which gives up setgroups(2).
        let groups = run(&self.programs[1], process, &self.groups);
        let users = run(&self.programs[0], process, &self.users);
        match (users, groups) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(one), Ok(())) | (Ok(()), Err(one)) => Err(one),
            (Err(users), Err(groups)) => Err(format!("{users}\n{groups}")),
        }
    }
}

/// Ids that follow each other, of a line `owner:start:count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    start: u32,
    count: u32,
}

impl Range {
    fn end(self) -> u64 {
        u64::from(self.start) + u64::from(self.count)
    }
}

/// The lines of a file, with their owners. One that is missing has none; what is no line is passed over, as newuidmap(1)
/// does.
fn read(root: &Rootfs, file: &'static str) -> Result<Vec<(Vec<u8>, Range)>, Lacking> {
    let unreadable = |why: String| Lacking::Unreadable { file, why };
    let path = GuestPath::parse(file.as_bytes()).map_err(|error| unreadable(error.to_string()))?;
    let text = root.read_small_file(&path, LARGEST_FILE).map_err(|error| unreadable(error.to_string()))?;
    let line = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.trim().split(':');
        let (owner, start, count) =
            (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((owner.as_bytes().to_vec(), Range { start, count }))
    };
    Ok(text.unwrap_or_default().split(|byte| *byte == b'\n').filter_map(line).collect())
}

/// The longest map: `own` as 0, then the ranges in order from 1 on. What overlaps is left out, as the kernel wants each
/// id once; so is what goes beyond the largest id.
fn extents(own: u32, ranges: &[Range]) -> Vec<Extent> {
    let mut extents = vec![Extent { inside: 0, outside: own, count: 1 }];
    let mut next: u32 = 1;
    for range in ranges {
        // As first and end; the last number is no id.
        let mut pieces = vec![(range.start, range.end().min(u64::from(u32::MAX)) as u32)];
        for taken in &extents {
            let (first, end) = (taken.outside, taken.outside + taken.count);
            pieces = pieces
                .into_iter()
                .flat_map(|(from, to)| [(from, to.min(first)), (from.max(end), to)])
                .filter(|(from, to)| from < to)
                .collect();
        }
        for (from, to) in pieces {
            let count = (to - from).min(u32::MAX - next);
            if count == 0 || extents.len() == MAX_EXTENTS {
                return extents;
            }
            extents.push(Extent { inside: next, outside: from, count });
            next += count;
        }
    }
    extents
}

fn find(program: &'static str) -> Result<PathBuf, Lacking> {
    let places = PROGRAMS.iter().map(|directory| Path::new(directory).join(program));
    places.into_iter().find(|path| path.is_file()).ok_or(Lacking::Program(program))
}

/// The name of a user that only the machine's name services know (a directory server, for instance): they are libraries,
/// which a static program cannot load.
fn name_by_service(uid: u32) -> Option<Vec<u8>> {
    let output = machine_program(&find("getent").ok()?).args(["passwd", &uid.to_string()]).output().ok()?;
    let name = output.stdout.split(|byte| *byte == b':').next()?.to_vec();
    (!name.is_empty()).then_some(name)
}

/// A program of the machine, with nothing of ours.
fn machine_program(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_clear().current_dir("/").stdin(Stdio::null());
    command
}

/// Runs newuidmap or newgidmap.
fn run(program: &Path, process: i32, map: &[Extent]) -> Result<(), String> {
    let name = program.file_name().map(|name| Escaped::new(name.as_bytes()).to_string()).unwrap_or_default();
    let numbers = map.iter().flat_map(|extent| [extent.inside, extent.outside, extent.count]);
    let output = machine_program(program)
        .arg(process.to_string())
        .args(numbers.map(|number| number.to_string()))
        .output()
        .map_err(|error: io::Error| format!("{name} cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = output.stderr.split(|byte| *byte == b'\n').find(|line| !line.is_empty());
    let said = said.map(|line| Escaped::new(&line[..line.len().min(300)]).to_string());
    // They begin their messages with their name.
    Err(said.filter(|text| !text.is_empty()).unwrap_or_else(|| format!("{name}: {}", output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &[(u32, u32)]) -> Vec<Range> {
        ranges.iter().map(|(start, count)| Range { start: *start, count: *count }).collect()
    }

    #[test]
    fn maps_are_as_long_as_can_be_and_hold_no_id_twice() {
        type Numbers<'a> = &'a [(u32, u32)];
        let cases: [(Numbers<'_>, Numbers<'_>); 8] = [
            (&[], &[]),
            (&[(100_000, 65_536)], &[(100_000, 65_536)]),
            (&[(200_000, 10), (100_000, 5)], &[(200_000, 10), (100_000, 5)]),
            (&[(100, 10), (105, 10)], &[(100, 10), (110, 5)]),
            (&[(100, 10), (100, 10), (102, 3)], &[(100, 10)]),
            // The caller's own id, 1000, is mapped already.
            (&[(990, 20)], &[(990, 10), (1001, 9)]),
            (&[(4_294_967_290, 100)], &[(4_294_967_290, 5)]),
            (&[(5, 0), (0, 4_294_967_295)], &[(0, 1000), (1001, 4_294_966_294)]),
        ];
        for (given, expected) in cases {
            let map = extents(1000, &ranges(given));
            assert_eq!(map[0], Extent { inside: 0, outside: 1000, count: 1 });
            let rest: Vec<(u32, u32)> =
                map[1..].iter().map(|extent| (extent.outside, extent.count)).collect();
            assert_eq!(rest, expected, "{given:?}");
            let mut next = 0;
            for extent in map {
                assert_eq!(extent.inside, next, "{given:?}");
                next += extent.count;
            }
        }
        let many: Vec<(u32, u32)> = (0..500).map(|number| (10_000 + 2 * number, 1)).collect();
        assert_eq!(extents(1000, &ranges(&many)).len(), MAX_EXTENTS);
    }

    fn machine(passwd: &str, subuid: Option<&str>, subgid: Option<&str>) -> (tempfile::TempDir, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        let etc = directory.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        std::fs::write(etc.join("passwd"), passwd).unwrap();
        for (name, text) in [("subuid", subuid), ("subgid", subgid)] {
            if let Some(text) = text {
                std::fs::write(etc.join(name), text).unwrap();
            }
        }
        let root = Rootfs::open(directory.path()).unwrap();
        (directory, root)
    }

    fn of(root: &Rootfs, uid: u32) -> Result<Subordinate, Lacking> {
        Subordinate::of_machine(root, Owner { uid, gid: 50 }, ["/u".into(), "/g".into()])
    }

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nbob:x:1234567:50::/:/bin/sh\n";

    #[test]
    fn lines_count_by_name_and_by_number() {
        let subuid = "# ids\nalice:100000:65536\nbob:300000:10\nwrong\nbob:x:1\n1234567:500000:5\n";
        let (_directory, root) = machine(PASSWD, Some(subuid), Some("1234567:700000:3"));
        let found = of(&root, 1_234_567).unwrap();
        let outside =
            |map: &[Extent]| map.iter().map(|extent| (extent.outside, extent.count)).collect::<Vec<_>>();
        assert_eq!(outside(&found.users), [(1_234_567, 1), (300_000, 10), (500_000, 5)]);
        assert_eq!(outside(&found.groups), [(50, 1), (700_000, 3)]);
        // Nobody's name, whom the machine's services do not know either.
        assert_eq!(of(&root, 1_234_568), Err(Lacking::Name(1_234_568)));
    }

    #[test]
    fn without_lines_it_is_said_who_lacks_what_and_how_to_get_it() {
        let (_directory, root) = machine(PASSWD, Some("alice:100000:65536\nbob:165536:65536\n"), None);
        assert_eq!(
            of(&root, 1_234_567).unwrap_err().to_string(),
            "`bob` has no ids in /etc/subgid; as root: usermod --add-subuids 231072-296607 --add-subgids 231072-296607 bob"
        );
        let (_directory, root) = machine(PASSWD, None, None);
        assert_eq!(
            of(&root, 1_234_567).unwrap_err().to_string(),
            "`bob` has no ids in /etc/subuid; as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 bob"
        );
    }

    #[test]
    fn what_the_programs_say_is_told() {
        let own = [Extent { inside: 0, outside: 0, count: 1 }];
        assert_eq!(run(Path::new("/bin/true"), 1, &own), Ok(()));
        assert_eq!(run(Path::new("/bin/false"), 1, &own), Err("false: exit status: 1".to_owned()));
        let said = run(Path::new("/bin/ls"), 1, &own).unwrap_err();
        assert!(said.starts_with("/bin/ls: cannot access") && !said.contains('\n'), "{said}");
        let missing = run(Path::new("/none"), 1, &own).unwrap_err();
        assert!(missing.starts_with("none cannot be started: "), "{missing}");
    }
}
