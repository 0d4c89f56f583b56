//! From what an instruction names to what is there: links, wildcards and `.dockerignore`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{CopyError, Excluded, Parents, SourceTree, child};
use crate::context::glob::{DoubleStar, Glob};
use crate::rootfs::walk::MAX_LINKS;
use crate::rootfs::{Escaped, FileKind, Follow, GuestPath, Metadata};

/// Something that exists and is to be copied.
pub(in crate::build) enum Selected<'a> {
    /// An entry of the source tree.
    Tree {
        /// What it was found as, before links were followed.
        name: Vec<u8>,
        /// Its real path.
        path: GuestPath,
        /// Never that of a symbolic link.
        metadata: Metadata,
        /// Of a directory, what is copied: paths in it; none is all.
        only: Option<Arc<Glob>>,
    },
    /// A here-document.
    Inline {
        /// Its name.
        name: &'a [u8],
        /// All of it.
        content: &'a [u8],
    },
}

impl Selected<'_> {
    /// The name that it gets in a directory.
    pub(super) fn name(&self) -> &[u8] {
        match self {
            Self::Tree { name, .. } => name,
            Self::Inline { name, .. } => name,
        }
    }
}

/// Appends what `written` stands for; nothing where a wildcard matches nothing.
pub(super) fn select(
    from: &SourceTree<'_>,
    written: &[u8],
    parents: Parents,
    selected: &mut Vec<Selected<'_>>,
) -> Result<(), CopyError> {
    match parents {
        Parents::Dropped => select_last(from, written, selected),
        Parents::Kept => select_whole(from, written, selected),
    }
}

/// With `--parents`: the directories that the first part of `written` stands for, which ends at the first `/./`, and what
/// the second part names in them. In the second part no links are followed, and `**` is any number of directories.
fn select_whole(
    from: &SourceTree<'_>,
    written: &[u8],
    selected: &mut Vec<Selected<'_>>,
) -> Result<(), CopyError> {
    let pivot = written.windows(3).position(|bytes| bytes == b"/./");
    let (pivot, pattern) = pivot.map_or((&b"/"[..], written), |at| (&written[..at], &written[at + 3..]));
    let path = GuestPath::clamp(pattern)
        .map_err(|source| CopyError::Path { written: Escaped::new(written), source })?;
    // What is named must be there; what is described need not.
    let is_literal = !has_wildcard(pivot) && !has_wildcard(pattern);
    let only = match path.relative() {
        [] => None,
        literal if is_literal => Some(Arc::new(Glob::literal(literal))),
        pattern => {
            let glob = Glob::parse(pattern, DoubleStar::AnyDepth);
            let glob =
                glob.map_err(|source| CopyError::Pattern { written: Escaped::new(written), source })?;
            Some(Arc::new(glob))
        }
    };
    let mut pivots = Vec::new();
    select_last(from, pivot, &mut pivots)?;
    for found in pivots {
        let Selected::Tree { path: pivot, metadata, .. } = found else { continue };
        let is_directory = metadata.kind == FileKind::Directory;
        if is_literal && !(is_directory && has(from, written, &pivot, &path)?) {
            let path = path.components().try_fold(pivot, |above, name| child(&above, name))?;
            let near = near(from, &path);
            let (written, path) = (Escaped::new(written), Escaped::new(path.as_bytes()));
            return Err(CopyError::NotFound { written, path, excluded: None, near });
        }
        if is_directory {
            let only = only.clone();
            selected.push(Selected::Tree { name: Vec::new(), path: pivot, metadata, only });
        }
    }
    Ok(())
}

/// Whether there is something visible at exactly `path` below `pivot`.
fn has(
    from: &SourceTree<'_>,
    written: &[u8],
    pivot: &GuestPath,
    path: &GuestPath,
) -> Result<bool, CopyError> {
    let path = path.components().try_fold(pivot.clone(), |above, name| child(&above, name))?;
    let Some(metadata) = from.root.exact_metadata(&path).map_err(CopyError::Source)? else {
        return Ok(false);
    };
    if is_visible(from, &path, metadata.kind)? {
        return Ok(true);
    }
    let excluded = excluded_by(from, &path);
    let (written, path) = (Escaped::new(written), Escaped::new(path.as_bytes()));
    Err(CopyError::NotFound { written, path, excluded, near: None })
}

fn select_last(
    from: &SourceTree<'_>,
    written: &[u8],
    selected: &mut Vec<Selected<'_>>,
) -> Result<(), CopyError> {
    let path = GuestPath::clamp(written)
        .map_err(|source| CopyError::Path { written: Escaped::new(written), source })?;
    let components: Vec<&[u8]> = path.components().collect();
    let Some(first) = components.iter().position(|component| has_wildcard(component)) else {
        selected.push(named(from, written, &path)?);
        return Ok(());
    };
    let base = components[..first].iter().fold(GuestPath::root(), |base, component| base.child(component));
    let Lookup::Found { path: base, metadata } = look_up(from, &base)? else { return Ok(()) };
    if metadata.kind != FileKind::Directory {
        return Ok(());
    }
    for matched in expand(from, written, base, &components[first..])? {
        if !is_visible(from, &matched, from_kind(from, &matched)?)? {
            continue;
        }
        selected.push(named(from, written, &matched)?);
    }
    Ok(())
}

/// What is at `path`, which is no pattern, with links followed inside the tree: its real path.
///
/// # Errors
/// [`CopyError::NotFound`], also when it is ignored.
pub(in crate::build) fn find(
    from: &SourceTree<'_>,
    path: &GuestPath,
) -> Result<(GuestPath, Metadata), CopyError> {
    found(from, path.as_bytes(), path)
}

/// What is at `path`, which is no pattern.
pub(super) fn exact<'a>(from: &SourceTree<'_>, path: &GuestPath) -> Result<Selected<'a>, CopyError> {
    named(from, path.as_bytes(), path)
}

/// What is at `written`, which is no pattern; its name does not count.
pub(super) fn literal<'a>(from: &SourceTree<'_>, written: &[u8]) -> Result<Selected<'a>, CopyError> {
    let path = GuestPath::clamp(written)
        .map_err(|source| CopyError::Path { written: Escaped::new(written), source })?;
    let (path, metadata) = find(from, &path)?;
    Ok(Selected::Tree { name: Vec::new(), path, metadata, only: None })
}

/// Whether a component is a pattern. A backslash alone makes none.
fn has_wildcard(component: &[u8]) -> bool {
    let mut escaped = false;
    component.iter().any(|byte| {
        let special = !escaped && matches!(byte, b'*' | b'?' | b'[');
        escaped = !escaped && *byte == b'\\';
        special
    })
}

/// The entries that match, in lexical order. Links below `base` are not followed on the way.
fn expand(
    from: &SourceTree<'_>,
    written: &[u8],
    base: GuestPath,
    components: &[&[u8]],
) -> Result<Vec<GuestPath>, CopyError> {
    let mut level = vec![(base, FileKind::Directory)];
    for component in components {
        let glob = Glob::parse(component, DoubleStar::OneComponent)
            .map_err(|source| CopyError::Pattern { written: Escaped::new(written), source })?;
        let mut next = Vec::new();
        for (directory, _) in level.iter().filter(|(_, kind)| *kind == FileKind::Directory) {
            for (name, kind) in from.root.read_dir(directory).map_err(CopyError::Source)? {
                if glob.matches(&name) {
                    next.push((child(directory, &name)?, kind));
                }
            }
        }
        level = next;
    }
    Ok(level.into_iter().map(|(path, _)| path).collect())
}

fn from_kind(from: &SourceTree<'_>, path: &GuestPath) -> Result<FileKind, CopyError> {
    let metadata = from.root.metadata(path, Follow::No).map_err(CopyError::Source)?;
    Ok(metadata.map_or(FileKind::File, |metadata| metadata.kind))
}

/// The entry at `path`, links followed.
fn named<'a>(from: &SourceTree<'_>, written: &[u8], path: &GuestPath) -> Result<Selected<'a>, CopyError> {
    let (real, metadata) = found(from, written, path)?;
    let name = path.file_name().unwrap_or_default().to_vec();
    Ok(Selected::Tree { name, path: real, metadata, only: None })
}

fn found(
    from: &SourceTree<'_>,
    written: &[u8],
    path: &GuestPath,
) -> Result<(GuestPath, Metadata), CopyError> {
    let (excluded, near) = match look_up(from, path)? {
        Lookup::Found { path, metadata } => return Ok((path, metadata)),
        Lookup::Excluded(excluded) => (excluded, None),
        Lookup::Missing => (None, near(from, path)),
    };
    let path = Escaped::new(path.as_bytes());
    Err(CopyError::NotFound { written: Escaped::new(written), path, excluded, near })
}

enum Lookup {
    Found { path: GuestPath, metadata: Metadata },
    Excluded(Option<Box<Excluded>>),
    Missing,
}

/// Follows `path` inside the tree as if what is ignored were not there: neither links nor what they point to may be.
fn look_up(from: &SourceTree<'_>, path: &GuestPath) -> Result<Lookup, CopyError> {
    let mut pending: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
    let mut current = GuestPath::root();
    let mut links = 0;
    while let Some(component) = pending.pop_front() {
        if component == b".." {
            current = current.parent().unwrap_or_else(GuestPath::root);
            continue;
        }
        let next = child(&current, &component)?;
        let Some(metadata) = from.root.metadata(&next, Follow::No).map_err(CopyError::Source)? else {
            return Ok(Lookup::Missing);
        };
        if metadata.kind != FileKind::Symlink {
            current = next;
            continue;
        }
        if !is_visible(from, &next, metadata.kind)? {
            return Ok(Lookup::Excluded(excluded_by(from, &next)));
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(CopyError::LinkLoop { path: path.clone() });
        }
        let target = from.root.read_link(&next).map_err(CopyError::Source)?;
        if target.starts_with(b"/") {
            current = GuestPath::root();
        }
        let components =
            target.rsplit(|byte| *byte == b'/').filter(|component| !matches!(*component, [] | b"."));
        components.for_each(|component| pending.push_front(component.to_vec()));
    }
    let Some(metadata) = from.root.metadata(&current, Follow::No).map_err(CopyError::Source)? else {
        return Ok(Lookup::Missing);
    };
    if metadata.kind == FileKind::Symlink {
        // It was something else a moment ago.
        return Err(CopyError::Changed { path: current });
    }
    if is_visible(from, &current, metadata.kind)? {
        Ok(Lookup::Found { path: current, metadata })
    } else {
        Ok(Lookup::Excluded(excluded_by(from, &current)))
    }
}

fn excluded_by(from: &SourceTree<'_>, path: &GuestPath) -> Option<Box<Excluded>> {
    let rules = from.ignore?;
    let (line, pattern) = rules.deciding_line(path.relative())?;
    Some(Box::new(Excluded { file: rules.file_name().to_owned(), line, pattern: pattern.to_owned() }))
}

/// Whether something is not ignored. A directory is there as well when something in it is.
fn is_visible(from: &SourceTree<'_>, path: &GuestPath, kind: FileKind) -> Result<bool, CopyError> {
    let Some(rules) = from.ignore else { return Ok(true) };
    if !rules.excludes(path.relative()) {
        return Ok(true);
    }
    let may_hold =
        |path: &GuestPath, kind| kind == FileKind::Directory && rules.may_include_below(path.relative());
    let mut pending = Vec::new();
    if may_hold(path, kind) {
        pending.push(path.clone());
    }
    while let Some(directory) = pending.pop() {
        for (name, kind) in from.root.read_dir(&directory).map_err(CopyError::Source)? {
            let entry = child(&directory, &name)?;
            if !rules.excludes(entry.relative()) {
                return Ok(true);
            }
            if may_hold(&entry, kind) {
                pending.push(entry);
            }
        }
    }
    Ok(false)
}

/// A visible name beside `path` that differs from it by two letters at most. Only a hint: errors make none.
fn near(from: &SourceTree<'_>, path: &GuestPath) -> Option<Escaped> {
    let wanted = path.file_name()?;
    let Lookup::Found { path: directory, .. } = look_up(from, &path.parent()?).ok()? else { return None };
    let names = from.root.read_dir(&directory).ok()?;
    let visible =
        |name: &[u8]| from.ignore.is_none_or(|rules| !rules.excludes(directory.child(name).relative()));
    let close = names.iter().map(|(name, _)| (distance(wanted, name), name));
    let limit = (wanted.len() / 3).min(2);
    let close =
        close.filter(|(distance, name)| *distance <= limit && name.as_slice() != wanted && visible(name));
    close.min().map(|(_, name)| Escaped::new(name))
}

/// How many bytes must be changed, added or taken away; upper and lower case are equal.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unescaped_wildcards_make_a_pattern() {
        for (component, expected) in [
            (&b"a*"[..], true),
            (b"a?", true),
            (b"[", true),
            (b"]", false),
            (b"a\\*", false),
            (b"\\\\*", true),
            (b"\\[x", false),
            (b"plain", false),
        ] {
            assert_eq!(has_wildcard(component), expected, "{}", Escaped::new(component));
        }
    }

    #[test]
    fn distances_count_edits() {
        for (a, b, expected) in
            [("abc", "abc", 0), ("abc", "ABD", 1), ("", "ab", 2), ("main.go", "man.go", 1)]
        {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), expected);
        }
    }
}
