//! Users and groups by the tree's own `/etc/passwd` and `/etc/group`.

use std::collections::BTreeSet;

use super::{Escaped, GuestPath, Owner, Rootfs, RootfsError};
use crate::limit::Limit;

/// The most bytes that are read of `/etc/passwd`, and of `/etc/group`: 1 MiB.
pub const DATABASE_LIMIT: Limit = Limit::new("passwd-bytes", 1 << 20);
/// The most groups a Linux process can be in.
const MAX_GROUPS: usize = 65536;

/// Why a user or group could not be found.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No such name in `/etc/passwd`.
    #[error("unable to find user {0}: no matching entries in passwd file")]
    NoUser(Escaped),
    /// No such name in `/etc/group`.
    #[error("unable to find group {0}: no matching entries in group file")]
    NoGroup(Escaped),
    /// A number that is no id: 4294967295 means "no change" to the kernel.
    #[error("`{0}` is out of range: user and group ids go from 0 to 4294967294")]
    OutOfRange(Escaped),
    /// Something else than `user` or `user:group`.
    #[error("`{0}` is not `user` or `user:group`")]
    Malformed(Escaped),
    /// More groups than Linux knows.
    #[error("user {0} is in more than {MAX_GROUPS} groups")]
    TooManyGroups(Escaped),
    /// A file is too large.
    #[error("`{path}` is larger than {value} bytes; {limit}", value = limit.value)]
    TooLarge {
        /// Which.
        path: GuestPath,
        /// The most.
        limit: Limit,
    },
    /// The files could not be read.
    #[error("cannot read the users of the root file system")]
    Read(#[from] RootfsError),
}

/// What a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedUser {
    /// User and primary group.
    pub owner: Owner,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The home directory: `/` for a user that `/etc/passwd` lacks.
    pub home: Vec<u8>,
}

/// One line of `/etc/passwd`.
struct User<'a> {
    name: &'a [u8],
    owner: Owner,
    home: &'a [u8],
}

/// One line of `/etc/group`.
struct Group<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

/// Resolves the text of USER (`user`, `user:group`, each a name or digits; empty is root) as Docker does: digits are an id
/// and are never looked up as a name. Without a group, the primary group of `/etc/passwd` (else 0) and the supplementary
/// groups of `/etc/group` apply; with one, only that.
///
/// # Errors
/// When a name is unknown, a number is no id, or a file is unreadable or larger than `most` bytes.
pub fn resolve_user(root: &Rootfs, user: &str, most: Limit) -> Result<ResolvedUser, UserError> {
    let (user_part, group_part) = user.split_once(':').unwrap_or((user, ""));
    if group_part.contains(':') || user.contains('\0') {
        return Err(UserError::Malformed(Escaped::new(user.as_bytes())));
    }
    let wanted = if user_part.is_empty() { Some(0) } else { number(user_part)? };
    let wanted_group = number(group_part)?;
    let passwd = database(root, b"etc/passwd", most)?;
    let found = users(&passwd).find(|entry| match wanted {
        Some(uid) => entry.owner.uid == uid,
        None => entry.name == user_part.as_bytes(),
    });
    let uid = match (&found, wanted) {
        (Some(entry), _) => entry.owner.uid,
        (None, Some(uid)) => uid,
        (None, None) => return Err(UserError::NoUser(Escaped::new(user_part.as_bytes()))),
    };
    let mut resolved = ResolvedUser {
        owner: Owner { uid, gid: found.as_ref().map_or(0, |entry| entry.owner.gid) },
        groups: Vec::new(),
        home: found.as_ref().map_or(b"/".to_vec(), |entry| entry.home.to_vec()),
    };
    if resolved.home.is_empty() {
        resolved.home = b"/".to_vec();
    }
    if let Some(gid) = wanted_group {
        resolved.owner.gid = gid;
    } else if !group_part.is_empty() {
        resolved.owner.gid = group_id(root, group_part, most)?.ok_or_else(|| no_group(group_part))?;
    } else if let Some(entry) = found {
        resolved.groups = supplementary(root, entry.name, most)?;
    }
    Ok(resolved)
}

/// Resolves the text of `--chown` as BuildKit does: `7` is 7:7, `user` takes the primary group from `/etc/passwd`, a part
/// that is missing next to a colon is 0, `root` is 0 without a look-up, and so is every unknown name.
///
/// # Errors
/// When a number is no id, or a file is unreadable or larger than `most` bytes.
pub fn resolve_chown(root: &Rootfs, text: &str, most: Limit) -> Result<Owner, UserError> {
    if let Some(owner) = numeric_chown(text)? {
        return Ok(owner);
    }
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let mut owner = match chown_number(user)? {
        Some(uid) => Owner { uid, gid: uid },
        None => {
            let passwd = database(root, b"etc/passwd", most)?;
            users(&passwd)
                .find(|entry| entry.name == user.as_bytes())
                .map_or(Owner::ROOT, |entry| entry.owner)
        }
    };
    if let Some(group) = group {
        owner.gid = match chown_number(group)? {
            Some(gid) => gid,
            None => group_id(root, group, most)?.unwrap_or(0),
        };
    }
    Ok(owner)
}

/// The owner that `--chown` names by numbers alone (or `root`), for which no root file system is needed; none if there is
/// a name in it.
///
/// # Errors
/// When a number is no id.
pub fn numeric_chown(text: &str) -> Result<Option<Owner>, UserError> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let Some(uid) = chown_number(user)? else { return Ok(None) };
    let gid = match group {
        Some(group) => chown_number(group)?,
        None => Some(uid),
    };
    Ok(gid.map(|gid| Owner { uid, gid }))
}

/// The first name that `/etc/passwd` has for a user. The file may be of any size: this is for the machine's own.
///
/// # Errors
/// When the file is unreadable.
pub fn name_of_user(root: &Rootfs, uid: u32) -> Result<Option<Vec<u8>>, UserError> {
    let passwd = database(root, b"etc/passwd", DATABASE_LIMIT.with(u64::MAX))?;
    Ok(users(&passwd).find(|entry| entry.owner.uid == uid).map(|entry| entry.name.to_vec()))
}

fn chown_number(text: &str) -> Result<Option<u32>, UserError> {
    if text.is_empty() || text == "root" { Ok(Some(0)) } else { number(text) }
}

/// The id that `text` is; none if it is a name.
fn number(text: &str) -> Result<Option<u32>, UserError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    match text.parse::<u32>() {
        Ok(id) if id < u32::MAX => Ok(Some(id)),
        _ => Err(UserError::OutOfRange(Escaped::new(text.as_bytes()))),
    }
}

fn no_group(name: &str) -> UserError {
    UserError::NoGroup(Escaped::new(name.as_bytes()))
}

fn database(root: &Rootfs, name: &[u8], most: Limit) -> Result<Vec<u8>, UserError> {
    let path = GuestPath::root().join(name).unwrap_or_else(|_| GuestPath::root());
    match root.read_small_file(&path, most.value) {
        Err(RootfsError::TooLarge { path, .. }) => Err(UserError::TooLarge { path, limit: most }),
        result => Ok(result?.unwrap_or_default()),
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && line[0] != b'#')
}

/// The users of a passwd(5) file. Lines whose ids are no ids are skipped: Docker's library reads them as 0, which would
/// make root of a typing error.
fn users(bytes: &[u8]) -> impl Iterator<Item = User<'_>> {
    lines(bytes).filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let &[name, _, uid, gid, ..] = fields.as_slice() else { return None };
        let home = fields.get(5).copied().unwrap_or_default();
        Some(User { name, owner: Owner { uid: id(uid)?, gid: id(gid)? }, home })
    })
}

/// The groups of a group(5) file.
fn groups(bytes: &[u8]) -> impl Iterator<Item = Group<'_>> {
    lines(bytes).filter_map(|line| {
        let mut fields = line.splitn(4, |byte| *byte == b':');
        let (name, _, gid) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Group { name, gid: id(gid)?, members: fields.next().unwrap_or_default() })
    })
}

fn id(field: &[u8]) -> Option<u32> {
    number(std::str::from_utf8(field).ok()?).ok()?
}

fn group_id(root: &Rootfs, name: &str, most: Limit) -> Result<Option<u32>, UserError> {
    let group = database(root, b"etc/group", most)?;
    Ok(groups(&group).find(|entry| entry.name == name.as_bytes()).map(|entry| entry.gid))
}

fn supplementary(root: &Rootfs, name: &[u8], most: Limit) -> Result<Vec<u32>, UserError> {
    let group = database(root, b"etc/group", most)?;
    let mut seen = BTreeSet::new();
    let gids: Vec<u32> = groups(&group)
        .filter(|entry| entry.members.split(|byte| *byte == b',').any(|member| member == name))
        .map(|entry| entry.gid)
        .filter(|gid| seen.insert(*gid))
        .collect();
    if gids.len() > MAX_GROUPS {
        return Err(UserError::TooManyGroups(Escaped::new(name)));
    }
    Ok(gids)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n# a comment\n\nbroken:x:zero:0::/:\napp:x:1000:1001:App:/home/app:/bin/sh\n1000:x:5:5::/wrong:\nbare:x:7:8\n";
    const GROUP: &str =
        "root:x:0:\napp:x:1001:\nstaff:x:50:other,app\nmore:x:51:app\nagain:x:50:app\n1000:x:99:\n";

    fn tree() -> (tempfile::TempDir, Rootfs) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("etc")).unwrap();
        std::fs::write(directory.path().join("etc/passwd"), PASSWD).unwrap();
        std::fs::write(directory.path().join("etc/group"), GROUP).unwrap();
        let rootfs = Rootfs::open(directory.path()).unwrap();
        (directory, rootfs)
    }

    #[test]
    fn users_are_names_or_digits_and_groups_follow() {
        let (_directory, root) = tree();
        let cases: [(&str, u32, u32, &[u32], &str); 11] = [
            ("", 0, 0, &[], "/root"),
            ("root", 0, 0, &[], "/root"),
            ("app", 1000, 1001, &[50, 51], "/home/app"),
            ("1000", 1000, 1001, &[50, 51], "/home/app"),
            ("001000", 1000, 1001, &[50, 51], "/home/app"),
            ("app:staff", 1000, 50, &[], "/home/app"),
            ("app:1000", 1000, 1000, &[], "/home/app"),
            ("12345", 12345, 0, &[], "/"),
            ("12345:6", 12345, 6, &[], "/"),
            (":staff", 0, 50, &[], "/root"),
            ("bare", 7, 8, &[], "/"),
        ];
        for (text, uid, gid, groups, home) in cases {
            let expected = ResolvedUser {
                owner: Owner { uid, gid },
                groups: groups.to_vec(),
                home: home.as_bytes().to_vec(),
            };
            assert_eq!(resolve_user(&root, text, DATABASE_LIMIT).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_user_is_refused() {
        let (_directory, root) = tree();
        for (text, message) in [
            ("nosuch", "unable to find user nosuch: no matching entries in passwd file"),
            ("broken", "unable to find user broken: no matching entries in passwd file"),
            ("app:nosuch", "unable to find group nosuch: no matching entries in group file"),
            ("-1", "unable to find user -1: no matching entries in passwd file"),
            ("a b\n", "unable to find user a b\\n: no matching entries in passwd file"),
            ("4294967295", "`4294967295` is out of range: user and group ids go from 0 to 4294967294"),
            ("0:4294967296", "`4294967296` is out of range: user and group ids go from 0 to 4294967294"),
            (
                "99999999999999999999",
                "`99999999999999999999` is out of range: user and group ids go from 0 to 4294967294",
            ),
            ("a:b:c", "`a:b:c` is not `user` or `user:group`"),
            ("root\0", "`root\\u{0}` is not `user` or `user:group`"),
        ] {
            assert_eq!(resolve_user(&root, text, DATABASE_LIMIT).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn chown_reads_unknown_and_missing_parts_as_root() {
        let (_directory, root) = tree();
        for (text, uid, gid) in [
            ("", 0, 0),
            ("7", 7, 7),
            ("1000", 1000, 1000),
            ("app", 1000, 1001),
            ("app:staff", 1000, 50),
            (":9", 0, 9),
            ("5:", 5, 0),
            ("app:", 1000, 0),
            ("nosuch", 0, 0),
            ("nosuch:staff", 0, 50),
            ("app:nosuch", 1000, 0),
            ("root", 0, 0),
            ("root:staff", 0, 50),
            ("4294967294", 4_294_967_294, 4_294_967_294),
        ] {
            assert_eq!(resolve_chown(&root, text, DATABASE_LIMIT).unwrap(), Owner { uid, gid }, "{text}");
        }
        assert!(resolve_chown(&root, "4294967295", DATABASE_LIMIT).is_err());
        assert_eq!(numeric_chown("5:").unwrap(), Some(Owner { uid: 5, gid: 0 }));
        assert_eq!(numeric_chown("app").unwrap(), None);
        assert_eq!(numeric_chown("5:app").unwrap(), None);
    }

    #[test]
    fn a_user_has_its_first_name() {
        let (_directory, root) = tree();
        assert_eq!(name_of_user(&root, 1000).unwrap().as_deref(), Some(&b"app"[..]));
        assert_eq!(name_of_user(&root, 12345).unwrap(), None);
    }

    #[test]
    fn without_files_there_are_only_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let root = Rootfs::open(directory.path()).unwrap();
        let resolved = resolve_user(&root, "", DATABASE_LIMIT).unwrap();
        assert_eq!(resolved, ResolvedUser { owner: Owner::ROOT, groups: Vec::new(), home: b"/".to_vec() });
        assert!(matches!(resolve_user(&root, "app", DATABASE_LIMIT), Err(UserError::NoUser(_))));
        // Docker runs `USER root` only if passwd has it; so does this.
        assert!(matches!(resolve_user(&root, "root", DATABASE_LIMIT), Err(UserError::NoUser(_))));
    }

    #[test]
    fn hostile_databases_neither_block_nor_fill_memory() {
        let (directory, root) = tree();
        let passwd = directory.path().join("etc/passwd");
        std::fs::remove_file(&passwd).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &passwd,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )
        .unwrap();
        assert!(matches!(
            resolve_user(&root, "app", DATABASE_LIMIT),
            Err(UserError::Read(RootfsError::NotAFile { .. }))
        ));
        std::fs::remove_file(&passwd).unwrap();
        std::fs::write(&passwd, vec![b'\n'; (1 << 20) + 1]).unwrap();
        assert!(matches!(resolve_user(&root, "app", DATABASE_LIMIT), Err(UserError::TooLarge { .. })));
    }
}
