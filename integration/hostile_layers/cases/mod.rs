//! Layers that try something bad, and odd ones that are meant well, with what is to become of each.
//!
//! Unit tests apply them in memory; integration tests have the whole program extract images that are made of them.

#![allow(
    dead_code,
    reason = "unit tests and integration tests include these files; neither uses all of them"
)]

mod headers;
mod links;
mod names;
mod sparse;
mod special;
mod whiteouts;

use super::archive::{dir, dir_mode, end, file};

/// What stands outside of the root, and must never change.
pub(crate) struct Outside {
    /// The absolute path of a directory with a file `file` and a directory `dir`, which holds a file `inner`.
    pub(crate) path: String,
}

impl Outside {
    /// The path as one that climbs out of the root.
    fn climbing(&self) -> String {
        format!("{}{}", "../".repeat(12), &self.path[1..])
    }
}

/// What is to stand at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    Nothing,
    Directory,
    Content(Vec<u8>),
    Link(Vec<u8>),
    Fifo,
    /// A character or block device.
    Device,
}

/// What is to become of a case.
pub(crate) enum Expect {
    /// An error with this text in it.
    Refused(&'static str),
    /// A tree in which these stand.
    Accepted(Vec<(Vec<u8>, What)>),
}

/// Layers on top of [`base`], bottom first.
type Layers = Box<dyn Fn(&Outside) -> Vec<Vec<u8>>>;

/// Layers and what is to become of them.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) layers: Layers,
    pub(crate) expect: Expect,
    /// Whether it takes seconds.
    pub(crate) is_slow: bool,
}

/// The layer below all others.
pub(crate) fn base() -> Vec<u8> {
    [
        dir("etc"),
        file("etc/passwd", b"root:x:0:0::/:/bin/sh\n"),
        file("etc/keep", b"keep"),
        dir_mode("tmp", 0o1777),
        dir("data"),
        file("data/a", b"a"),
        file("data/b", b"b"),
        end(),
    ]
    .concat()
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    let cases: Vec<Case> = [
        names::cases(),
        links::cases(),
        whiteouts::cases(),
        special::cases(),
        headers::cases(),
        sparse::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two cases have the same name");
    cases
}

type Checks<'a> = &'a [(&'a str, What)];

fn content(text: &str) -> What {
    What::Content(text.as_bytes().to_vec())
}

fn link(target: &str) -> What {
    What::Link(target.as_bytes().to_vec())
}

fn expected(checks: Checks<'_>) -> Expect {
    Expect::Accepted(checks.iter().map(|(path, what)| (path.as_bytes().to_vec(), what.clone())).collect())
}

/// Layers that are accepted; each is given without its end.
fn stack(
    name: &'static str,
    layers: impl Fn(&Outside) -> Vec<Vec<u8>> + 'static,
    checks: Checks<'_>,
) -> Case {
    let ended = move |outside: &Outside| {
        let layers = layers(outside).into_iter();
        layers.map(|layer| [layer, end()].concat()).collect()
    };
    Case { name, layers: Box::new(ended), expect: expected(checks), is_slow: false }
}

/// A layer that is accepted, given without its end.
fn accepted(name: &'static str, layer: impl Fn(&Outside) -> Vec<u8> + 'static, checks: Checks<'_>) -> Case {
    stack(name, move |outside| vec![layer(outside)], checks)
}

/// A layer that is accepted, complete.
fn accepted_raw(name: &'static str, layer: impl Fn() -> Vec<u8> + 'static, checks: Checks<'_>) -> Case {
    let layers = move |_: &Outside| vec![layer()];
    Case { name, layers: Box::new(layers), expect: expected(checks), is_slow: false }
}

/// A layer that is refused, given without its end.
fn refused(name: &'static str, message: &'static str, layer: impl Fn(&Outside) -> Vec<u8> + 'static) -> Case {
    let layers = move |outside: &Outside| vec![[layer(outside), end()].concat()];
    Case { name, layers: Box::new(layers), expect: Expect::Refused(message), is_slow: false }
}

/// A layer that is refused, complete or not.
fn refused_raw(name: &'static str, message: &'static str, layer: impl Fn() -> Vec<u8> + 'static) -> Case {
    let layers = move |_: &Outside| vec![layer()];
    Case { name, layers: Box::new(layers), expect: Expect::Refused(message), is_slow: false }
}

fn slow(case: Case) -> Case {
    Case { is_slow: true, ..case }
}
