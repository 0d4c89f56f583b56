//! What of a source directory is copied: what neither the rules of the context nor `--exclude` hide and, with `--parents`,
//! what the source names.

use super::SourceTree;
use crate::context::glob::Glob;
use crate::context::{IgnoreRules, Verdict};
use crate::rootfs::{FileKind, GuestPath};

/// What is copied of the content of one directory.
pub(super) struct Filter<'a> {
    /// Rules about paths from the root of the tree.
    ignore: Option<&'a IgnoreRules>,
    /// Rules about paths from the directory.
    exclude: Option<&'a IgnoreRules>,
    /// Of paths from the directory, those that are copied with all below them; none is all.
    only: Option<&'a Glob>,
    /// How many bytes of a path come before what is relative to the directory.
    top: usize,
}

/// What is known of a directory, so that it need not be found out for each of its entries again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    ignore: Verdict,
    exclude: Verdict,
    /// Whether it is named, or is in a directory that is.
    named: bool,
}

/// What becomes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is copied.
    Copied,
    /// It is a directory that is copied when something in it is.
    OnTheWay(Cause),
    /// Neither it nor anything in it is copied.
    Absent,
}

/// Why a directory is copied only for what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It does not exist but for that.
    Ignored,
    /// The instruction does not ask for it.
    NotAsked,
}

impl<'a> Filter<'a> {
    /// For the content of `top`, a real path.
    pub(super) fn new(
        from: &SourceTree<'a>,
        top: &GuestPath,
        exclude: Option<&'a IgnoreRules>,
        only: Option<&'a Glob>,
    ) -> Self {
        // Of the root nothing but the slash comes before, of all others one follows.
        let top = if top.is_root() { 1 } else { top.as_bytes().len() + 1 };
        Self { ignore: from.ignore, exclude, only, top }
    }

    /// What is known of the directory itself.
    pub(super) fn top(&self, path: &GuestPath) -> Standing {
        let ignore = self.ignore.map_or_else(Verdict::default, |rules| rules.verdict(path.relative()));
        Standing { ignore, exclude: Verdict::default(), named: self.only.is_none() }
    }

    /// What becomes of `path`, an entry of a directory of which `above` is known, and what is known of it then.
    pub(super) fn look(&self, path: &GuestPath, kind: FileKind, above: Standing) -> (Presence, Standing) {
        let (whole, part) = (path.relative(), self.part(path));
        let said = |rules: Option<&IgnoreRules>, above, path: &[u8]| match rules {
            None => (Verdict::default(), true),
            Some(rules) => {
                let verdict = rules.verdict_below(above, path);
                (verdict, !rules.excludes_by(verdict, path))
            }
        };
        let (ignore, visible) = said(self.ignore, above.ignore, whole);
        let (exclude, kept) = said(self.exclude, above.exclude, part);
        let named = above.named || self.only.is_none_or(|only| only.matches(part));
        let standing = Standing { ignore, exclude, named };
        if visible && kept && named {
            return (Presence::Copied, standing);
        }
        let may_hold = || {
            let below = |rules: Option<&IgnoreRules>, verdict, path: &[u8]| {
                rules.is_none_or(|rules| rules.may_include_below_by(verdict, path))
            };
            below(self.ignore, ignore, whole)
                && below(self.exclude, exclude, part)
                && (named || self.only.is_none_or(|only| only.may_match_below(part)))
        };
        let presence = if kind != FileKind::Directory || !may_hold() {
            Presence::Absent
        } else if kept && named {
            Presence::OnTheWay(Cause::Ignored)
        } else {
            Presence::OnTheWay(Cause::NotAsked)
        };
        (presence, standing)
    }

    /// The only entry of `directory`, of which `standing` is known, that is worth looking at; none where there may be
    /// several. A directory with a hundred thousand entries need not be listed for one of them.
    pub(super) fn only_entry(&self, directory: &GuestPath, standing: Standing) -> Option<&'a [u8]> {
        let only = self.only.filter(|_| !standing.named)?;
        only.only_entry(self.part(directory))
    }

    fn part<'p>(&self, path: &'p GuestPath) -> &'p [u8] {
        path.as_bytes().get(self.top..).unwrap_or_default()
    }
}
