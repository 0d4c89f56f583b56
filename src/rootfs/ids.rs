//! Which users and groups there are for this process: the map of its user namespace (user_namespaces(7)).

use std::fmt;
use std::io;

use super::Owner;

/// Ids that follow each other, and what they are outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first id as this process sees it.
    pub inside: u32,
    /// The same id as the parent namespace, and with it the disk, sees it.
    pub outside: u32,
    /// How many ids.
    pub count: u32,
}

/// The ids of a user namespace. Others cannot own a file or run a process there: chown(2) and setuid(2) refuse them with
/// `EINVAL`, and files that have them show 65534.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdMap {
    users: Vec<Extent>,
    groups: Vec<Extent>,
}

impl IdMap {
    /// The ids of the user namespace that this process is in.
    ///
    /// # Errors
    /// When /proc does not tell.
    pub fn of_this_process() -> io::Result<Self> {
        let read = |name| parse(&std::fs::read_to_string(format!("/proc/self/{name}"))?);
        Ok(Self { users: read("uid_map")?, groups: read("gid_map")? })
    }

    /// A map of these extents.
    #[must_use]
    pub fn new(users: Vec<Extent>, groups: Vec<Extent>) -> Self {
        Self { users, groups }
    }

    /// The users that there are.
    #[must_use]
    pub fn users(&self) -> Ids<'_> {
        Ids(&self.users)
    }

    /// The groups that there are.
    #[must_use]
    pub fn groups(&self) -> Ids<'_> {
        Ids(&self.groups)
    }

    /// Whether both ids of `owner` exist.
    #[must_use]
    pub fn has(&self, owner: Owner) -> bool {
        self.users().contain(owner.uid) && self.groups().contain(owner.gid)
    }

    /// Whether every id exists, and is the same outside: no namespace, or one that hides nothing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.users().are_all() && self.groups().are_all()
    }

    /// Whether there is but one user.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.users().is_one()
    }

    /// A short name that equal maps share and others do not: `all`, or for each extent `inside-outside-count`, groups
    /// after `+` where they differ. It can be part of a file's name.
    #[must_use]
    pub fn name(&self) -> String {
        if self.is_whole() {
            return "all".to_owned();
        }
        let side = |extents: &[Extent]| {
            let extents = extents.iter();
            let texts =
                extents.map(|Extent { inside, outside, count }| format!("{inside}-{outside}-{count}"));
            texts.collect::<Vec<_>>().join("_")
        };
        let (users, groups) = (side(&self.users), side(&self.groups));
        if users == groups { users } else { format!("{users}+{groups}") }
    }
}

/// The users, or the groups, of a map. Shown as ranges: `0-65536`.
#[derive(Debug, Clone, Copy)]
pub struct Ids<'a>(&'a [Extent]);

impl Ids<'_> {
    /// Whether `id` is one of them.
    #[must_use]
    pub fn contain(&self, id: u32) -> bool {
        self.0.iter().any(|extent| id.checked_sub(extent.inside).is_some_and(|offset| offset < extent.count))
    }

    /// Whether there is but one.
    #[must_use]
    pub fn is_one(&self) -> bool {
        matches!(self.0, [Extent { count: 1, .. }])
    }

    /// Whether there are none: nobody has written the map yet.
    #[must_use]
    pub fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// The map, as the kernel takes it, of a namespace inside this one with the same ids.
    #[must_use]
    pub fn identity(&self) -> String {
        let lines = self.0.iter().map(|Extent { inside, count, .. }| format!("{inside} {inside} {count}\n"));
        lines.collect()
    }

    fn are_all(self) -> bool {
        // The last number is no id.
        matches!(self.0, [Extent { inside: 0, outside: 0, count: u32::MAX }])
    }
}

impl fmt::Display for Ids<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As (first, last), those that touch taken together.
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut sorted = self.0.to_vec();
        sorted.sort_unstable();
        for Extent { inside, count, .. } in sorted {
            let (first, end) = (u64::from(inside), u64::from(inside) + u64::from(count));
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == first => *last = end - 1,
                _ => ranges.push((first, end - 1)),
            }
        }
        for (position, (first, last)) in ranges.iter().enumerate() {
            let comma = if position > 0 { ", " } else { "" };
            if first == last {
                write!(formatter, "{comma}{first}")?;
            } else {
                write!(formatter, "{comma}{first}-{last}")?;
            }
        }
        if ranges.is_empty() { formatter.write_str("none") } else { Ok(()) }
    }
}

/// Reads a map as the kernel writes it: three numbers a line.
fn parse(text: &str) -> io::Result<Vec<Extent>> {
    let line = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(inside)), Some(Ok(outside)), Some(Ok(count))) if count > 0 => {
                Some(Extent { inside, outside, count })
            }
            _ => None,
        }
    };
    let unreadable = || io::Error::new(io::ErrorKind::InvalidData, "not a map of ids");
    text.lines().map(|text| line(text).ok_or_else(unreadable)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(users: &str, groups: &str) -> IdMap {
        IdMap::new(parse(users).unwrap(), parse(groups).unwrap())
    }

    #[test]
    fn maps_are_read_as_the_kernel_writes_them() {
        let all = map("         0          0 4294967295\n", "         0          0 4294967295\n");
        assert!(all.is_whole() && !all.is_single());
        assert!(all.has(Owner { uid: 0, gid: u32::MAX - 1 }) && !all.has(Owner { uid: u32::MAX, gid: 0 }));
        for wrong in ["0 0", "0 0 x", "0 0 0", "-1 0 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(!IdMap::of_this_process().unwrap().users.is_empty());
    }

    #[test]
    fn a_map_says_which_ids_there_are_and_has_a_name_of_its_own() {
        let single = "0 1000 1\n";
        let ranges = "0 1000 1\n1 100000 65536\n";
        let gap = "5 7 2\n0 1000 1\n";
        let cases = [
            (map(single, single), "0-1000-1", "0", "0"),
            (map(ranges, ranges), "0-1000-1_1-100000-65536", "0-65536", "0-65536"),
            (map(ranges, single), "0-1000-1_1-100000-65536+0-1000-1", "0-65536", "0"),
            (map(gap, ""), "5-7-2_0-1000-1+", "0, 5-6", "none"),
            (map("0 0 65536", "0 0 65536"), "0-0-65536", "0-65535", "0-65535"),
        ];
        for (map, name, users, groups) in cases {
            assert_eq!(map.name(), name);
            assert_eq!((map.users().to_string(), map.groups().to_string()), (users.into(), groups.into()));
            assert!(!map.is_whole());
        }
        let map = map(ranges, single);
        assert!(map.has(Owner { uid: 65536, gid: 0 }));
        assert!(!map.has(Owner { uid: 65537, gid: 0 }) && !map.has(Owner { uid: 1, gid: 1 }));
        assert!(!map.is_single() && !map.users().are_none());
        assert_eq!(map.users().identity(), "0 0 1\n1 1 65536\n");
    }
}
