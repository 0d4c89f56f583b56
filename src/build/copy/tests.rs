//! COPY against directories of the test machine. The numbered cases are those that BuildKit was observed on.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::rootfs::testing::{World, all_pass_in};
use crate::rootfs::{Overrides, resolve_chown, users::DATABASE_LIMIT};

pub(in crate::build) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };

/// A context, a root to copy to, and what must not be touched beside them.
pub(in crate::build) struct Ground {
    directory: tempfile::TempDir,
    pub(in crate::build) rules: Option<IgnoreRules>,
    /// The context, or the root of another stage.
    from: Rootfs,
    /// The root that is copied to.
    pub(in crate::build) onto: Rootfs,
}

impl Ground {
    /// Owners and devices that the disk does not hold are kept, so that all tests can run without privileges too.
    pub(in crate::build) fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        for name in ["context", "root"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        std::fs::write(directory.path().join("canary"), "untouched").unwrap();
        let open = |name| {
            Rootfs::open(&directory.path().join(name)).unwrap().holding(Arc::default(), Overrides::LIMIT)
        };
        Some(Self { rules: None, from: open("context"), onto: open("root"), directory })
    }

    pub(in crate::build) fn context(&self, name: &str) -> PathBuf {
        self.directory.path().join("context").join(name)
    }

    pub(in crate::build) fn root(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// `a/b=content`, `a/b:640=content`, `link->target` or `directory/`.
    pub(in crate::build) fn file(&self, description: &str) {
        make(&self.directory.path().join("context"), description);
    }

    pub(in crate::build) fn in_root(&self, description: &str) {
        make(&self.directory.path().join("root"), description);
    }

    /// `[--chown=…] [--chmod=…] [--exclude=…]… [--parents] source… destination`, words separated by blanks or a JSON list.
    pub(in crate::build) fn run(
        &self,
        instruction: &str,
        act: impl Fn(&CopyRequest<'_>, &Rootfs) -> Result<Copied, CopyError>,
    ) -> Result<Copied, CopyError> {
        let root = &self.onto;
        let mut words: Vec<String> = match instruction.find('[') {
            Some(start) if instruction.ends_with("\"]") => {
                serde_json::from_str(&instruction[start..]).unwrap()
            }
            _ => instruction.split(' ').map(str::to_owned).collect(),
        };
        let (mut chown, mut chmod, mut workdir) = (None, None, GuestPath::root());
        let (mut exclude, mut parents) = (Vec::new(), Parents::Dropped);
        words.retain(|word| {
            if let Some(text) = word.strip_prefix("--chown=") {
                chown = Some(resolve_chown(root, text, DATABASE_LIMIT).unwrap());
            } else if let Some(text) = word.strip_prefix("--chmod=") {
                chmod = Some(Mode::parse(text).unwrap());
            } else if let Some(text) = word.strip_prefix("--exclude=") {
                exclude.push(text.to_owned());
            } else if word == "--parents" {
                parents = Parents::Kept;
            } else if let Some(text) = word.strip_prefix("--workdir=") {
                workdir = GuestPath::clamp(text.as_bytes()).unwrap();
            }
            !word.starts_with("--")
        });
        let destination = words.pop().unwrap();
        let sources = words.iter().map(|word| CopySource::Path(word.as_bytes())).collect();
        let from = SourceTree { root: &self.from, ignore: self.rules.as_ref(), owner: OwnerPolicy::Root };
        let rules = IgnoreRules::of_patterns(exclude.iter().map(|pattern| pattern.as_bytes())).unwrap();
        let request = CopyRequest {
            sources,
            from,
            destination: destination.as_bytes(),
            workdir: &workdir,
            chown,
            chmod: chmod.as_ref(),
            exclude: Some(&rules),
            parents,
        };
        act(&request, root)
    }

    fn copy(&self, instruction: &str) -> Result<Copied, CopyError> {
        self.run(instruction, |request, onto| copy(request, onto, NOW))
    }

    /// `type mode uid:gid [->target] [=content]` of a path in the root.
    pub(in crate::build) fn describe(&self, name: &str) -> Option<String> {
        let path = GuestPath::clamp(name.as_bytes()).unwrap();
        let metadata = self.onto.metadata(&path, Follow::No).unwrap()?;
        let kind = match metadata.kind {
            FileKind::Directory => "d",
            FileKind::Symlink => "l",
            FileKind::File => "f",
            FileKind::Fifo => "p",
            FileKind::CharDevice => "c",
            _ => "?",
        };
        let owner = metadata.owner;
        let mut text = format!("{kind} {:o} {}:{}", metadata.mode, owner.uid, owner.gid);
        match metadata.kind {
            FileKind::Symlink => {
                let target = self.onto.read_link(&path).unwrap();
                write!(text, " ->{}", String::from_utf8_lossy(&target)).unwrap();
            }
            FileKind::File => {
                let content = std::fs::read(self.root(name)).unwrap();
                write!(text, " ={}", String::from_utf8_lossy(&content)).unwrap();
            }
            FileKind::CharDevice => write!(text, " {:x}", metadata.rdev).unwrap(),
            _ => {}
        }
        Some(text)
    }

    pub(in crate::build) fn check(&self, expected: &[(&str, &str)]) {
        for (name, description) in expected {
            let actual = self.describe(name);
            match *description {
                "-" => assert_eq!(actual, None, "{name}"),
                _ => {
                    let actual = actual.unwrap_or_else(|| panic!("{name} is not there"));
                    assert!(actual.starts_with(description), "{name}: {actual}, expected {description}");
                }
            }
        }
        assert_eq!(std::fs::read(self.directory.path().join("canary")).unwrap(), b"untouched");
        let mut beside: Vec<_> = std::fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        beside.sort();
        assert_eq!(beside, ["canary", "context", "root"]);
    }
}

fn make(top: &Path, description: &str) {
    let (name, rest) = match description.find(['=', ':']) {
        Some(end) if !description.contains("->") => description.split_at(end),
        _ => (description, ""),
    };
    let path = top.join(name.split("->").next().unwrap());
    if name.ends_with('/') {
        std::fs::create_dir_all(&path).unwrap();
        let mode = rest.strip_prefix(':').unwrap_or("755");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(u32::from_str_radix(mode, 8).unwrap()))
            .unwrap();
        return;
    }
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    if let Some((_, target)) = name.split_once("->") {
        return symlink(target, path).unwrap();
    }
    let (mode, content) = rest.split_once('=').unwrap_or((rest, ""));
    std::fs::write(&path, content).unwrap();
    let mode = u32::from_str_radix(mode.strip_prefix(':').unwrap_or("644"), 8).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
}

struct Case {
    name: &'static str,
    files: &'static [&'static str],
    root: &'static [&'static str],
    steps: &'static [&'static str],
    expected: Result<&'static [(&'static str, &'static str)], &'static str>,
}

const USERS: &[&str] = &[
    "etc/passwd=root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001::/home/user:/bin/sh\n",
    "etc/group=root:x:0:\nugrp:x:1001:\nsupp:x:2000:user\n",
];

const CASES: &[Case] = &[
    Case {
        name: "187: a name, a directory, twice into a directory",
        files: &["f:640=F"],
        root: &[],
        steps: &["f /x", "f /d/", "f f /e/"],
        expected: Ok(&[
            ("x", "f 640 0:0 =F"),
            ("d/f", "f 640 0:0"),
            ("d", "d 755 0:0"),
            ("e/f", "f 640 0:0"),
        ]),
    },
    Case {
        name: "188: a directory's content, not the directory",
        files: &["d/f=F", "d/s/g=G"],
        root: &[],
        steps: &["d /x"],
        expected: Ok(&[("x/f", "f 644 0:0 =F"), ("x/s/g", "f 644 0:0 =G"), ("x/d", "-")]),
    },
    Case {
        name: "190: the whole context",
        files: &[".h=1", "Dockerfile=D"],
        root: &[],
        steps: &[". ."],
        expected: Ok(&[(".h", "f 644 0:0"), ("Dockerfile", "f 644 0:0")]),
    },
    Case {
        name: "191: missing",
        files: &[],
        root: &[],
        steps: &["nope /x"],
        expected: Err("\"/nope\": not found"),
    },
    Case {
        name: "193: a wildcard may match nothing",
        files: &["a=A"],
        root: &[],
        steps: &["a nop* /x/", "nop*/y /z/"],
        expected: Ok(&[("x/a", "f 644 0:0"), ("z", "-")]),
    },
    Case {
        name: "194: ? and classes",
        files: &["ab.txt", "a.txt", "b1", "c1", "d1"],
        root: &[],
        steps: &["a?.txt [b-c]* /x/"],
        expected: Ok(&[
            ("x/ab.txt", "f 644 0:0"),
            ("x/b1", "f"),
            ("x/c1", "f"),
            ("x/a.txt", "-"),
            ("x/d1", "-"),
        ]),
    },
    Case {
        name: "196: a bracket in a class (backslashes are gone by now)",
        files: &["[x]=1", "a*b=2", "aab=3"],
        root: &[],
        steps: &["[[]x] /y", "a*b /z/", "a\\*b* /w/"],
        expected: Ok(&[
            ("y", "f 644 0:0 =1"),
            ("z/aab", "f 644 0:0"),
            ("z/a*b", "f 644 0:0"),
            ("w/a*b", "f"),
            ("w/aab", "-"),
        ]),
    },
    Case {
        name: "197: matched directories are flattened",
        files: &["d/f=F", "d/s/g=G"],
        root: &[],
        steps: &["d/* /x/"],
        expected: Ok(&[("x/f", "f 644 0:0"), ("x/g", "f 644 0:0 =G"), ("x/s", "-")]),
    },
    Case {
        name: "199: blanks",
        files: &["a b=1"],
        root: &[],
        steps: &[r#"["a b","/x y/"]"#],
        expected: Ok(&[("x y/a b", "f 644 0:0 =1")]),
    },
    Case {
        name: "202: above the context is the context",
        files: &["f=F"],
        root: &[],
        steps: &["../../f /x", "/f /y"],
        expected: Ok(&[("x", "f 644 0:0 =F"), ("y", "f 644 0:0 =F")]),
    },
    Case {
        name: "203: from the working directory",
        files: &["f=F"],
        root: &["w/"],
        steps: &["--workdir=/w f g", "--workdir=/w f ./", "--workdir=/w f ../z/", "--workdir=/w f h/."],
        expected: Ok(&[("w/g", "f 644 0:0"), ("w/f", "f 644 0:0"), ("z/f", "f 644 0:0"), ("w/h/f", "f")]),
    },
    Case {
        name: "205: a directory onto a file",
        files: &["f=F", "d/g=G"],
        root: &[],
        steps: &["f /x", "d /x"],
        expected: Err("cannot copy to non-directory: /x"),
    },
    Case {
        name: "205 with two sources",
        files: &["f=F", "d/g=G"],
        root: &[],
        steps: &["f d /x"],
        expected: Err("cannot copy to non-directory: /x"),
    },
    Case {
        name: "a directory and then a file to one name",
        files: &["f=F", "d/g=G"],
        root: &[],
        steps: &["d f /x", "f d/g /y"],
        expected: Ok(&[("x/f", "f 644 0:0 =F"), ("x/g", "f"), ("y", "f 644 0:0 =G")]),
    },
    Case {
        name: "206: below a file",
        files: &["f=F"],
        root: &[],
        steps: &["f /x", "f /x/y"],
        expected: Err("`/x` is not a directory"),
    },
    Case {
        name: "208: named links are followed, those in directories are kept",
        files: &["f=F", "l->f", "d/m->../f"],
        root: &[],
        steps: &["l /x", "d /y/"],
        expected: Ok(&[("x", "f 644 0:0 =F"), ("y/m", "l 777 0:0 ->../f")]),
    },
    Case {
        name: "209: matched links are followed",
        files: &["f=F", "d/m->../f", "e/n->../d"],
        root: &[],
        steps: &["d/* /y/", "e/* /z/"],
        expected: Ok(&[("y/m", "f 644 0:0 =F"), ("z/m", "l 777 0:0 ->../f"), ("z/n", "-")]),
    },
    Case {
        name: "211: links on the way are followed",
        files: &["d/f=F", "ld->d", "abs->/d"],
        root: &[],
        steps: &["ld/f /x", "abs/f /y", "ld/* /z/"],
        expected: Ok(&[("x", "f 644 0:0 =F"), ("y", "f 644 0:0 =F"), ("z/f", "f")]),
    },
    Case {
        name: "212: dangling",
        files: &["l->nope"],
        root: &[],
        steps: &["l /x"],
        expected: Err("\"/l\": not found"),
    },
    Case {
        name: "215: owners by name",
        files: &["f=F"],
        root: USERS,
        steps: &["--chown=user f /x", "--chown=user:supp f /y", "--chown=7 f /z", "--chown=:9 f /w"],
        expected: Ok(&[
            ("x", "f 644 1000:1001"),
            ("y", "f 644 1000:2000"),
            ("z", "f 644 7:7"),
            ("w", "f 644 0:9"),
        ]),
    },
    Case {
        name: "218: an owner for everything that is made",
        files: &["d/s/g=G", "d/l->s"],
        root: &[],
        steps: &["--chown=5:6 d /p/q/"],
        expected: Ok(&[
            ("p", "d 755 5:6"),
            ("p/q", "d 755 5:6"),
            ("p/q/s", "d 755 5:6"),
            ("p/q/s/g", "f 644 5:6"),
            ("p/q/l", "l 777 5:6"),
        ]),
    },
    Case {
        name: "221: an octal mode for files and directories",
        files: &["d/s/g=G", "d/l->s"],
        root: &["old/"],
        steps: &["--chmod=0640 d /x/", "--chmod=4711 d/s/g /p/q/r", "--chmod=600 d /y", "--chmod=600 d /old"],
        expected: Ok(&[
            ("x", "d 640 0:0"),
            ("x/s", "d 640 0:0"),
            ("x/s/g", "f 640 0:0"),
            ("x/l", "l 777"),
            ("p", "d 711"),
            ("p/q", "d 711"),
            ("p/q/r", "f 4711"),
            ("y", "d 600"),
            ("old", "d 755"),
            ("old/s", "d 600"),
        ]),
    },
    Case {
        name: "223: changes of a mode are those of each file, and of what is made on the way none",
        files: &["d/s/:700", "d/s/g:600=G", "d/e:700=E", "d/l->e", "f:4640=F"],
        root: &["old/:711"],
        steps: &["--chmod=u=rwX,go=rX d /p/q", "--chmod=g+w f /r/", "--chmod=a-x d /old"],
        expected: Ok(&[
            ("p", "d 755 0:0"),
            ("p/q", "d 755 0:0"),
            ("p/q/s", "d 755 0:0"),
            ("p/q/s/g", "f 644 0:0 =G"),
            ("p/q/e", "f 755 0:0 =E"),
            ("p/q/l", "l 777"),
            ("r", "d 755"),
            ("r/f", "f 4660"),
            ("old", "d 711"),
            ("old/s", "d 600"),
            ("old/e", "f 600"),
        ]),
    },
    Case {
        name: "230: what is left out is named from each source directory",
        files: &["d/a.txt", "d/s/b.txt", "d/c", "e/a.txt", "e/k"],
        root: &[],
        steps: &["--exclude=*.txt d /x/", "--exclude=*.txt d e /y/", "--exclude=*.txt . /z/"],
        expected: Ok(&[
            ("x/a.txt", "-"),
            ("x/s/b.txt", "f"),
            ("x/c", "f"),
            ("y/a.txt", "-"),
            ("y/k", "f"),
            ("y/s/b.txt", "f"),
            ("z/d/a.txt", "f"),
        ]),
    },
    Case {
        name: "patterns at any depth, several, and those that take back",
        files: &["d/a.txt", "d/s/b.txt", "d/s/keep.txt", "d/m/x/y.o", "d/m/x/z.c", "d/g/h/i"],
        root: &[],
        steps: &[
            "--exclude=**/*.txt --exclude=!**/keep.txt d /x",
            "--exclude=m --exclude=!m/x/*.c d /y",
            "--exclude=!m --exclude=m d /z",
            "--exclude=/a.txt --exclude=#x --exclude=./s/ d /w",
            "--exclude=g/** d /v",
        ],
        expected: Ok(&[
            ("x/a.txt", "-"),
            ("x/s/b.txt", "-"),
            ("x/s/keep.txt", "f"),
            ("y/m", "d 755 0:0"),
            ("y/m/x/z.c", "f"),
            ("y/m/x/y.o", "-"),
            ("y/a.txt", "f"),
            ("z/m", "-"),
            ("w/a.txt", "f"),
            ("w/s", "-"),
            ("v/g", "d"),
            ("v/g/h", "-"),
        ]),
    },
    Case {
        name: "232: a source that is a file is never left out, nor is one that a wildcard matches",
        files: &["f=F", "g=G", "d/f=D", "l->d/f"],
        root: &[],
        steps: &["--exclude=f f g /x/", "--exclude=* f* d* /y/", "--exclude=l --exclude=f l /z"],
        expected: Ok(&[("x/f", "f"), ("x/g", "f"), ("y/f", "f 644 0:0 =F"), ("z", "f 644 0:0 =D")]),
    },
    Case {
        name: "where everything is left out there is an empty directory",
        files: &["d/f=F", "d/s/g"],
        root: &[],
        steps: &["--exclude=* d /x", "--exclude=** d /y"],
        expected: Ok(&[
            ("x", "d 755 0:0"),
            ("x/f", "-"),
            ("x/s", "-"),
            ("y", "d"),
            ("y/f", "-"),
            ("y/s", "-"),
        ]),
    },
    Case {
        name: "226: paths are kept, whole or from the pivot on",
        files: &["a/:711", "a/b/:750", "a/b/f=F", "c/d/g=G", "c/d/h=H", "c/e"],
        root: &[],
        steps: &[
            "--parents a/b/f c/./d/g /x/",
            "--parents ./c/d /y",
            "--parents /c/d/. /z",
            "--parents /c/./d/./g /w",
        ],
        expected: Ok(&[
            ("x", "d 755 0:0"),
            ("x/a", "d 711 0:0"),
            ("x/a/b", "d 750 0:0"),
            ("x/a/b/f", "f 644 0:0 =F"),
            ("x/d/g", "f 644 0:0 =G"),
            ("x/d/h", "-"),
            ("x/c", "-"),
            ("y/c/d/g", "f"),
            ("y/c/e", "-"),
            ("z/c/d/h", "f"),
            ("w/d/g", "f"),
        ]),
    },
    Case {
        name: "227: two stars are any number of directories",
        files: &["a.go", "p/q/b.go", "p/c.txt", "p/e/", "t/a/b/c/f", "t/a/c/f", "t/c/g", "t/x"],
        root: &[],
        steps: &[
            "--parents **/*.go /x/",
            "--parents t/**/c/f /y/",
            "--parents t/./**/c /z",
            "--parents ** /w",
        ],
        expected: Ok(&[
            ("x/a.go", "f"),
            ("x/p/q/b.go", "f"),
            ("x/p/c.txt", "-"),
            ("x/p/e", "-"),
            ("y/t/a/b/c/f", "f"),
            ("y/t/a/c/f", "f"),
            ("y/t/c", "-"),
            ("z/a/b/c/f", "f"),
            ("z/c/g", "f"),
            ("z/x", "-"),
            ("w/p/e", "d"),
            ("w/t/x", "f"),
        ]),
    },
    Case {
        name: "wildcards stay within a component, match directories as such, and may stand before the pivot",
        files: &["t/a/b/c/d", "t/a/b2/c/e", "t/a/f", "t/g/b/c/h", "t/a/b/e/"],
        root: &[],
        steps: &[
            "--parents t/*/f /x/",
            "--parents t/a/b* /y/",
            "--parents t/a/b*/./c/* /z/",
            "--parents t/a/./b?/c /w/",
            "--parents t/*/c /v/",
        ],
        expected: Ok(&[
            ("x/t/a/f", "f"),
            ("x/t/g", "-"),
            ("y/t/a/b/e", "d"),
            ("y/t/a/b2/c/e", "f"),
            ("y/t/a/f", "-"),
            ("z/c/d", "f"),
            ("z/c/e", "f"),
            ("z/t", "-"),
            ("w/b2/c/e", "f"),
            ("w/b", "-"),
            ("v", "d 755 0:0"),
            ("v/t", "-"),
        ]),
    },
    Case {
        name: "229: with whole paths no link on the way is followed",
        files: &["d/f", "l->d"],
        root: &[],
        steps: &["--parents l/f /x/"],
        expected: Err("\"/l/f\": not found"),
    },
    Case {
        name: "links before the pivot are followed, one that is named stays one",
        files: &["d/f=F", "l->d", "d/m->f"],
        root: &[],
        steps: &["--parents l/./f /x/", "--parents l d/m /y/", "--parents */f /z/"],
        expected: Ok(&[
            ("x/f", "f 644 0:0 =F"),
            ("y/l", "l 777 0:0 ->d"),
            ("y/d/m", "l 777 0:0 ->f"),
            ("z/d/f", "f"),
            ("z/l", "-"),
        ]),
    },
    Case {
        name: "what is named must be there",
        files: &["d/f"],
        root: &[],
        steps: &["--parents d/./nope /x/"],
        expected: Err("\"/d/nope\": not found"),
    },
    Case {
        name: "what is named before the pivot must be there, whatever comes behind it",
        files: &["d/f"],
        root: &[],
        steps: &["--parents nope/./* /x/"],
        expected: Err("\"/nope\": not found"),
    },
    Case {
        name: "a file is no pivot",
        files: &["d/f"],
        root: &[],
        steps: &["--parents d/f/./g /x/"],
        expected: Err("\"/d/f/g\": not found"),
    },
    Case {
        name: "a wildcard may match nothing, but before the pivot it says where to begin",
        files: &["d/f", "f"],
        root: &[],
        steps: &["--parents nop*/x d/./n* /x", "--parents nop*/./x /y", "--parents */./f /z"],
        expected: Ok(&[("x", "d 755 0:0"), ("x/d", "-"), ("y", "-"), ("z/f", "f")]),
    },
    Case {
        name: "the root and pivots at the end are all there is",
        files: &["d/f", "d/s/g"],
        root: &[],
        steps: &["--parents . /x", "--parents d/./ /y", "--parents d/./. /z", "--parents /./d/f /w"],
        expected: Ok(&[("x/d/s/g", "f"), ("y/s/g", "f"), ("z/f", "f"), ("w/d/f", "f")]),
    },
    Case {
        name: "whole paths go into a directory, wherever links in the destination lead",
        files: &["a/b/f=F"],
        root: &["real/", "ld->/real", "file=old"],
        steps: &["--parents a/b/f /ld", "--parents a/b/f /file"],
        expected: Err("cannot copy to non-directory: /file"),
    },
    Case {
        name: "directories on the way give their mode to those that are there, and owner and mode to new ones",
        files: &["a/:700", "a/b/:710", "a/b/c/:1777", "a/b/c/f"],
        root: &["x/a/:755"],
        steps: &["--chown=5:6 --parents a/b/c /x", "--chmod=o=g --parents a/b/c/f /y/"],
        expected: Ok(&[
            ("x", "d 755 0:0"),
            ("x/a", "d 700 0:0"),
            ("x/a/b", "d 710 5:6"),
            ("x/a/b/c", "d 1777 5:6"),
            ("x/a/b/c/f", "f 644 5:6"),
            ("y", "d 755 0:0"),
            ("y/a/b", "d 711 0:0"),
        ]),
    },
    Case {
        name: "242: with whole paths, what is left out is named from where they begin",
        files: &["d/s/c.txt", "d/s/d.md", "d/top.txt"],
        root: &[],
        steps: &[
            "--parents --exclude=*.txt ./d/./s /y/",
            "--parents --exclude=s/*.txt d/./s /z/",
            "--parents --exclude=d/s d /w/",
            "--parents --exclude=**/*.md **/*.md d/top.txt /v/",
        ],
        expected: Ok(&[
            ("y/s/c.txt", "f"),
            ("z/s/c.txt", "-"),
            ("z/s/d.md", "f"),
            ("w/d/top.txt", "f"),
            ("w/d/s", "-"),
            ("v/d/top.txt", "f"),
            ("v/d/s", "-"),
        ]),
    },
    Case {
        name: "236: archives are files",
        files: &["t.tar=archive"],
        root: &[],
        steps: &["t.tar /x/"],
        expected: Ok(&[("x/t.tar", "f 644 0:0 =archive")]),
    },
    Case {
        name: "241: a file over a directory further down",
        files: &["a/f=1", "b/f/g=2"],
        root: &[],
        steps: &["b /x/", "a /x/"],
        expected: Err("cannot replace to directory /x/f with file"),
    },
    Case {
        name: "a directory over a file further down",
        files: &["a/f=1", "b/f/g=2"],
        root: &[],
        steps: &["a /x/", "b /x/"],
        expected: Err("cannot copy to non-directory: /x/f"),
    },
    Case {
        name: "a directory over a link further down",
        files: &["a/lib/f=1"],
        root: &["usr/lib/", "lib->usr/lib"],
        steps: &["a /"],
        expected: Err("cannot copy to non-directory: /lib"),
    },
    Case {
        name: "a file into a directory where a directory has its name",
        files: &["f=F"],
        root: &["x/f/"],
        steps: &["f /x"],
        expected: Err("cannot replace to directory /x/f with file"),
    },
    Case {
        name: "links in the destination are followed, the last as well",
        files: &["f=F", "d/g=G"],
        root: &["real/", "old=old", "ld->/real", "lf->old", "dangling->/new/name", "up->../../../real"],
        steps: &["f /ld/", "f /lf", "f /dangling", "d /ld", "f /up/up", "d /ld/sub"],
        expected: Ok(&[
            ("ld", "l 777 0:0 ->/real"),
            ("real/f", "f 644 0:0 =F"),
            ("real/g", "f 644 0:0 =G"),
            ("real/up", "f"),
            ("real/sub/g", "f"),
            ("lf", "l 777 0:0 ->old"),
            ("old", "f 644 0:0 =F"),
            ("dangling", "l"),
            ("new", "d 755 0:0"),
            ("new/name", "f 644 0:0 =F"),
        ]),
    },
    Case {
        name: "links of the destination inside a copied tree are replaced",
        files: &["d/f=F"],
        root: &["x/f->/etc/target", "etc/target=old"],
        steps: &["d /x"],
        expected: Ok(&[("x/f", "f 644 0:0 =F"), ("etc/target", "f 644 0:0 =old")]),
    },
    Case {
        name: "the top keeps its mode, directories below get theirs",
        files: &["d/:700", "d/s/:1711", "d/s/f=F"],
        root: &["x/:750", "x/s/:777", "x/s/old=old"],
        steps: &["d /x", "d /new"],
        expected: Ok(&[
            ("x", "d 750"),
            ("x/s", "d 1711"),
            ("x/s/old", "f 644 0:0 =old"),
            ("new", "d 755"),
            ("new/s", "d 1711"),
        ]),
    },
    Case {
        name: "setuid and sticky stay",
        files: &["f:4755=F", "d/g:2755=G", "d/t/:1777"],
        root: &[],
        steps: &["f /f", "d /d"],
        expected: Ok(&[("f", "f 4755 0:0"), ("d/g", "f 2755 0:0"), ("d/t", "d 1777 0:0")]),
    },
    Case {
        name: "the root as a source and as a destination",
        files: &["f=F"],
        root: &[],
        steps: &["/ /x", "f /", r#"["", "/y"]"#, "f ../.."],
        expected: Ok(&[("x/f", "f"), ("f", "f 644 0:0 =F"), ("y/f", "f")]),
    },
    Case {
        name: "a slash behind a file changes nothing; nothing is the working directory",
        files: &["f=F"],
        root: &["w/"],
        steps: &["f/ /x", r#"--workdir=/w ["f", ""]"#],
        expected: Ok(&[("x", "f 644 0:0 =F")]),
    },
    Case {
        name: "a link loop",
        files: &["l->m", "m->l"],
        root: &[],
        steps: &["l /x"],
        expected: Err("`/l` is a loop of symbolic links, or leads through more than 40 of them"),
    },
    Case {
        name: "a link loop in the destination",
        files: &["f=F"],
        root: &["l->m", "m->l"],
        steps: &["f /l"],
        expected: Err("cannot write the destination"),
    },
    Case {
        name: "a near miss",
        files: &["main.go"],
        root: &[],
        steps: &["Main.og /x"],
        expected: Err("\"/Main.og\": not found (did you mean `main.go`?)"),
    },
    Case {
        name: "a broken pattern",
        files: &[],
        root: &[],
        steps: &["a[b /x"],
        expected: Err("`a[b` is not a valid pattern"),
    },
];

#[test]
fn every_case_gives_what_buildkit_gives() {
    for case in CASES {
        let Some(ground) = Ground::new() else { return };
        case.files.iter().for_each(|file| ground.file(file));
        case.root.iter().for_each(|file| ground.in_root(file));
        let result = case.steps.iter().try_for_each(|step| ground.copy(step).map(drop));
        match case.expected {
            Ok(expected) => {
                result.unwrap_or_else(|error| panic!("{}: {error}", case.name));
                eprintln!("{}", case.name);
                ground.check(expected);
            }
            Err(expected) => {
                let error = result.expect_err(case.name).to_string();
                assert_eq!(error, expected, "{}", case.name);
                ground.check(&[]);
            }
        }
    }
}

#[test]
fn ignored_files_do_not_exist() {
    let tree = ["a/b/x.go", "a/x.go", "a/f.txt", "x.go", "README.md", ".hid", "e/k", "x", "link->a/f.txt"];
    for (rules, step, expected) in [
        ("*.go", ". /o/", Ok(&[("o/x.go", "-"), ("o/a/x.go", "f 644 0:0")][..])),
        ("**/*.go", ". /o/", Ok(&[("o/x.go", "-"), ("o/a/b", "d"), ("o/a/b/x.go", "-"), ("o/a/f.txt", "f")])),
        ("*.md\n!README.md", ". /o/", Ok(&[("o/README.md", "f")])),
        ("!README.md\n*.md", ". /o/", Ok(&[("o/README.md", "-")])),
        ("/a/", ". /o/", Ok(&[("o/a", "-")])),
        (
            "**\n!**/*.go",
            ". /o/",
            Ok(&[("o/x.go", "f"), ("o/a", "d 755"), ("o/a/b/x.go", "f"), ("o/README.md", "-"), ("o/e", "-")]),
        ),
        ("a\n!a/b", ". /o/", Ok(&[("o/a/b/x.go", "f"), ("o/a/x.go", "-")])),
        ("a\n!a/b", "a /o/", Ok(&[("o/b/x.go", "f"), ("o/x.go", "-")])),
        ("a/b", "a/* /o/", Ok(&[("o/x.go", "f"), ("o/f.txt", "f"), ("o/b", "-")])),
        ("*", "* /o/", Ok(&[("o", "-")])),
        ("x\n", "x /o/", Err("\"/x\": not found: excluded by `.dockerignore` line 1: `x`")),
        ("y\na\n", "a/f.txt /o", Err("\"/a/f.txt\": not found: excluded by `.dockerignore` line 2: `a`")),
        ("link", "link /o", Err("\"/link\": not found: excluded by `.dockerignore` line 1: `link`")),
        ("a", "link /o", Err("\"/link\": not found: excluded by `.dockerignore` line 1: `a`")),
        ("**\n!nothing", "e /o", Err("\"/e\": not found: excluded by `.dockerignore` line 1: `**`")),
    ] {
        let Some(mut ground) = Ground::new() else { return };
        tree.iter().for_each(|file| ground.file(file));
        ground.rules = Some(IgnoreRules::parse(rules.as_bytes()).unwrap());
        match (ground.copy(step), expected) {
            (Ok(_), Ok(expected)) => ground.check(expected),
            (Err(error), Err(expected)) => {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
                assert_eq!(format!("{error}{}", source.unwrap_or_default()), expected);
            }
            (result, _) => panic!("{rules}: {step}: {result:?}"),
        }
    }
}

#[test]
fn ignored_files_do_not_exist_for_whole_paths_either() {
    let tree = ["a/b/x.go", "a/x.go", "a/f.txt", "x.go", "e/k"];
    for (rules, step, expected) in [
        (
            "a/x.go",
            "--parents **/*.go /o/",
            Ok(&[("o/x.go", "f"), ("o/a/x.go", "-"), ("o/a/b/x.go", "f")][..]),
        ),
        ("a\n!a/b", "--parents a /o/", Ok(&[("o/a/b/x.go", "f"), ("o/a/x.go", "-")])),
        (
            "a\n!a/b",
            "--parents a/./** --exclude=b/* /o/",
            Ok(&[("o/b", "d"), ("o/b/x.go", "-"), ("o/x.go", "-")]),
        ),
        ("e", "--parents e /o/", Err("\"/e\": not found: excluded by `.dockerignore` line 1: `e`")),
        (
            "x\na\n",
            "--parents a/./f.txt /o",
            Err("\"/a\": not found: excluded by `.dockerignore` line 2: `a`"),
        ),
    ] {
        let Some(mut ground) = Ground::new() else { return };
        tree.iter().for_each(|file| ground.file(file));
        ground.rules = Some(IgnoreRules::parse(rules.as_bytes()).unwrap());
        match (ground.copy(step), expected) {
            (Ok(_), Ok(expected)) => ground.check(expected),
            (Err(error), Err(expected)) => {
                let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
                assert_eq!(format!("{error}{}", source.unwrap_or_default()), expected);
            }
            (result, _) => panic!("{rules}: {step}: {result:?}"),
        }
    }
}

#[test]
fn directories_on_the_way_have_the_time_of_the_copy_and_those_that_are_named_their_own() {
    let Some(ground) = Ground::new() else { return };
    for file in ["d/s/f=F", "d/t/g"] {
        ground.file(file);
    }
    for (name, seconds) in [("d/s/f", 100), ("d/s", 200), ("d/t/g", 300), ("d/t", 400), ("d", 500)] {
        set_mtime(&ground.context(name), seconds);
    }
    ground.copy("--parents d/s/f d/t /x").unwrap();
    ground.copy("--exclude=s --exclude=!s/f d /y").unwrap();
    let now = (NOW.seconds, i64::from(NOW.nanoseconds));
    for name in ["x", "x/d", "x/d/s", "y/s"] {
        assert_eq!(mtime(&ground.root(name)), now, "{name}");
    }
    for (name, seconds) in [("x/d/s/f", 100), ("x/d/t", 400), ("x/d/t/g", 300), ("y", 500), ("y/t", 400)] {
        assert_eq!(mtime(&ground.root(name)), (seconds, 123_456_789), "{name}");
    }
}

#[test]
fn the_time_of_a_stage_s_root_is_not_taken_over() {
    let Some(ground) = Ground::new() else { return };
    ground.file("d/f=F");
    set_mtime(&ground.context("d"), 200);
    set_mtime(&ground.context(""), 100);
    for (owner, seconds) in [(OwnerPolicy::Root, 100), (OwnerPolicy::Keep, NOW.seconds)] {
        let from = SourceTree { root: &ground.from, ignore: None, owner };
        let all = |request: &CopyRequest<'_>, onto: &Rootfs| {
            copy(&CopyRequest { from, ..request.clone() }, onto, NOW)
        };
        ground.run("/ /x", all).unwrap();
        ground.run("/d /y", all).unwrap();
        assert_eq!(mtime(&ground.root("x")).0, seconds, "{owner:?}");
        assert_eq!(mtime(&ground.root("x/d")).0, 200);
        assert_eq!(mtime(&ground.root("y")).0, 200);
    }
}

fn mtime(path: &Path) -> (i64, i64) {
    let metadata = std::fs::symlink_metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

fn set_mtime(path: &Path, seconds: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 123_456_789 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn times_are_those_of_the_sources_to_the_nanosecond() {
    let Some(ground) = Ground::new() else { return };
    for file in ["d/s/f=F", "d/l->s", "g=G"] {
        ground.file(file);
    }
    for (name, seconds) in [("d/s/f", 100), ("d/s", -5), ("d/l", 1 << 32), ("g", 300), ("d", 400)] {
        set_mtime(&ground.context(name), seconds);
    }
    for directory in ["old/", "there/"] {
        ground.in_root(directory);
    }
    ground.copy("g /there/").unwrap();
    ground.copy("d /made/x").unwrap();
    ground.copy("d /old").unwrap();
    ground.copy("d g /both/").unwrap();
    let now = (NOW.seconds, i64::from(NOW.nanoseconds));
    for (name, seconds) in [("x/s/f", 100), ("x/s", -5), ("x/l", 1 << 32), ("x", 400), ("../old", 400)] {
        assert_eq!(mtime(&ground.root("made").join(name)), (seconds, 123_456_789), "{name}");
    }
    for name in ["made", "there", ""] {
        assert_eq!(mtime(&ground.root(name)), now, "{name}");
    }
    // A file was added after the directory took over its time.
    assert_eq!(mtime(&ground.root("both")), now);
}

#[test]
fn a_replaced_file_leaves_its_other_names_alone() {
    let Some(ground) = Ground::new() else { return };
    ground.file("f=new");
    ground.in_root("f=old");
    std::fs::hard_link(ground.root("f"), ground.root("g")).unwrap();
    ground.copy("f /f").unwrap();
    ground.check(&[("f", "f 644 0:0 =new"), ("g", "f 644 0:0 =old")]);
}

#[test]
fn hard_links_of_one_tree_stay_links() {
    let Some(ground) = Ground::new() else { return };
    for file in ["d/a=1", "d/s/"] {
        ground.file(file);
    }
    std::fs::hard_link(ground.context("d/a"), ground.context("d/s/b")).unwrap();
    std::fs::hard_link(ground.context("d/a"), ground.context("outside")).unwrap();
    assert_eq!(ground.copy("d /x").unwrap(), Copied { files: 2, bytes: 2 });
    ground.copy("outside /x/c").unwrap();
    let inode = |name| std::fs::metadata(ground.root(name)).unwrap().ino();
    assert_eq!(inode("x/a"), inode("x/s/b"));
    assert_ne!(inode("x/a"), inode("x/c"));
}

#[test]
fn special_files_are_made_anew_and_never_opened() {
    let Some(ground) = Ground::new() else { return };
    ground.file("d/f=F");
    let node = |name: &str, kind, device| {
        let mode = rustix::fs::Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, ground.context(name), kind, mode, device)
    };
    node("d/fifo", rustix::fs::FileType::Fifo, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(ground.context("d/socket")).unwrap();
    let (directory, _) = ground.from.parent(&GuestPath::clamp(b"d/x").unwrap()).unwrap();
    let device = ground.from.entry(&directory, b"null");
    device.make_node(FileKind::CharDevice, rustix::fs::makedev(1, 3)).unwrap();
    device.set_mode(0o640).unwrap();
    ground.copy("d /x").unwrap();
    ground.copy("d/fifo /named").unwrap();
    ground.check(&[("x/fifo", "p 640 0:0"), ("x/socket", "f 755 0:0 ="), ("named", "p 640"), ("x/f", "f")]);
    ground.check(&[("x/null", "c 640 0:0 103")]);
}

#[test]
fn attributes_travel_except_those_of_the_machine() {
    let Some(ground) = Ground::new() else { return };
    ground.file("d/f=F");
    let path = |text: &str| GuestPath::clamp(text.as_bytes()).unwrap();
    let capability = b"\x01\0\0\x02\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for (name, key, value) in [
        ("d/f", &b"user.a"[..], &b"1"[..]),
        ("d", b"user.d", b"2"),
        ("d/f", b"trusted.overlay.opaque", b"y"),
        ("d/f", b"trusted.t", b"3"),
        ("d/f", b"security.capability", capability),
    ] {
        if let Err(error) = ground.from.set_xattr(&path(name), key, value) {
            eprintln!("skipped: cannot set {}: {error}", String::from_utf8_lossy(key));
            return;
        }
    }
    let root = &ground.onto;
    let all = [(&b"security.capability"[..], &capability[..]), (b"user.a", b"1"), (b"trusted.t", b"3")];
    // What only root sees of a context is no part of it.
    for (owner, expected) in [(OwnerPolicy::Root, &all[..2]), (OwnerPolicy::Keep, &all[..])] {
        ground
            .run("--chown=3:4 / /x", |request, root| {
                let from = SourceTree { owner, ..request.from };
                copy(&CopyRequest { from, ..request.clone() }, root, NOW)
            })
            .unwrap();
        let expected: crate::rootfs::Xattrs =
            expected.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert_eq!(root.xattrs(&path("x/d/f")).unwrap(), expected, "{owner:?}");
        assert_eq!(root.xattrs(&path("x/d")).unwrap().get(&b"user.d"[..]).unwrap(), b"2");
    }
    // No test can set those of the file system.
    for key in
        ["btrfs.compression", "system.nfs4_acl", "security.selinux", "security.ima", "user.overlay.opaque"]
    {
        assert!(!entry::travels(key.as_bytes(), OwnerPolicy::Keep), "{key}");
    }
}

#[test]
fn from_another_root_owners_are_kept() {
    let Some(ground) = Ground::new() else { return };
    let give = |name: &str, uid, gid| {
        let (directory, name) = ground.from.parent(&GuestPath::clamp(name.as_bytes()).unwrap()).unwrap();
        ground.from.entry(&directory, &name).set_owner(Owner { uid, gid }).unwrap();
    };
    for file in ["w/f=1", "w/s/g=2", "w/l->s"] {
        ground.file(file);
        give(file.split(['=', '-']).next().unwrap(), 7, 8);
    }
    give("w/s", 9, 9);
    let from_root = |step| {
        let act = |request: &CopyRequest<'_>, onto: &Rootfs| {
            let from = SourceTree { owner: OwnerPolicy::Keep, ..request.from };
            copy(&CopyRequest { from, ..request.clone() }, onto, NOW)
        };
        ground.run(step, act).unwrap()
    };
    for step in ["w/f /x", "/w/f /y", "w /d", "--chown=1:2 w/f /z"] {
        from_root(step);
    }
    ground.check(&[
        ("x", "f 644 7:8 =1"),
        ("y", "f 644 7:8 =1"),
        ("d", "d 755 0:0"),
        ("d/s", "d 755 9:9"),
        ("d/s/g", "f 644 7:8"),
        ("d/l", "l 777 7:8"),
        ("z", "f 644 1:2"),
    ]);
}

#[test]
fn here_documents_are_new_files() {
    let Some(ground) = Ground::new() else { return };
    ground.in_root("dir/");
    let heredocs = |destination: &str, chown, chmod: Option<&str>| {
        let chmod = chmod.map(|text| Mode::parse(text).unwrap());
        let request = CopyRequest {
            sources: vec![
                CopySource::Inline { name: b"a", content: b"one\n" },
                CopySource::Inline { name: b"b", content: b"two\n" },
            ],
            from: SourceTree { root: &ground.from, ignore: None, owner: OwnerPolicy::Root },
            destination: destination.as_bytes(),
            workdir: &GuestPath::root(),
            chown,
            chmod: chmod.as_ref(),
            exclude: None,
            parents: Parents::Dropped,
        };
        copy(&request, &ground.onto, NOW).unwrap()
    };
    assert_eq!(heredocs("/x/", None, None), Copied { files: 2, bytes: 8 });
    heredocs("/dir", None, None);
    heredocs("/last", Some(Owner { uid: 1, gid: 2 }), Some("4700"));
    heredocs("/more/", None, Some("u+x,g=u,o="));
    ground.check(&[
        ("x/a", "f 644 0:0 =one\n"),
        ("x/b", "f 644 0:0 =two\n"),
        ("dir/b", "f 644 0:0 =two\n"),
        ("last", "f 4700 1:2 =two\n"),
        ("more", "d 755"),
        ("more/a", "f 770 0:0 =one\n"),
    ]);
    assert_eq!(mtime(&ground.root("x/a")), (NOW.seconds, i64::from(NOW.nanoseconds)));
}

#[test]
fn no_link_leads_out_of_either_tree() {
    let Some(ground) = Ground::new() else { return };
    let canary = ground.directory.path().join("canary");
    let outside = ground.directory.path().to_str().unwrap().to_owned();
    let links = [
        format!("abs->{}", canary.display()),
        "rel->../canary".to_owned(),
        format!("dir->{outside}"),
        "updir->..".to_owned(),
        "magic->/proc/self/root".to_owned(),
        "d/abs->../../canary".to_owned(),
    ];
    links.iter().for_each(|link| ground.file(link));
    ground.file("f=F");
    for source in ["abs", "rel", "dir/canary", "updir/canary", "magic/etc/passwd", "../canary", "d/*"] {
        let result = ground.copy(&format!("{source} /x"));
        assert!(matches!(result, Err(CopyError::NotFound { .. })), "{source}: {result:?}");
    }
    links.iter().for_each(|link| ground.in_root(link));
    for destination in
        ["/abs", "/rel", "/dir/", "/dir/canary", "/updir/canary", "/updir/updir/", "../../canary"]
    {
        ground.copy(&format!("f {destination}")).unwrap();
    }
    ground.copy("d /dir/tree").unwrap();
    ground.check(&[("canary", "f 644 0:0 =F")]);
    let there = ground.root("").join(outside.trim_start_matches('/'));
    assert_eq!(std::fs::read(there.join("canary")).unwrap(), b"F");
    assert!(std::fs::symlink_metadata(there.join("tree/abs")).unwrap().is_symlink());
}

#[test]
fn names_are_bytes() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let Some(ground) = Ground::new() else { return };
    let names: [&[u8]; 5] = [b"\xff\xfe", b"new\nline", b"-rf", b"trailing ", &[b'n'; 255]];
    std::fs::create_dir(ground.context("d")).unwrap();
    for name in names {
        std::fs::write(ground.context("d").join(OsStr::from_bytes(name)), "x").unwrap();
    }
    assert_eq!(ground.copy("d /x").unwrap().files, 5);
    assert_eq!(ground.copy("d/?* /y/").unwrap().files, 5);
    for name in names {
        assert!(ground.root("x").join(OsStr::from_bytes(name)).exists());
        assert!(ground.root("y").join(OsStr::from_bytes(name)).exists());
    }
    let error = ground.copy(&format!("{} /x", "n".repeat(256))).unwrap_err();
    assert!(matches!(error, CopyError::Path { .. }), "{error}");
}

/// Makes `depth` directories, each in the one before, and a file in the last.
fn nest(top: &Path, depth: usize) {
    use rustix::fs::{Mode, OFlags};
    let mut current: std::os::fd::OwnedFd = std::fs::File::open(top).unwrap().into();
    for _ in 0..depth {
        rustix::fs::mkdirat(&current, "d", Mode::from_raw_mode(0o755)).unwrap();
        current = rustix::fs::openat(&current, "d", OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&current, "f", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600)).unwrap();
}

#[test]
fn a_tree_of_two_thousand_levels_is_copied() {
    let Some(ground) = Ground::new() else { return };
    nest(&ground.context(""), 2000);
    // One descriptor a level would not do.
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = Some(1024);
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    assert_eq!(ground.copy(". /x").unwrap().files, 1);
    let deepest = GuestPath::clamp(("x/".to_owned() + &"d/".repeat(2000) + "f").as_bytes()).unwrap();
    assert_eq!(ground.onto.metadata(&deepest, Follow::No).unwrap().unwrap().mode, 0o600);
}

#[test]
fn a_tree_that_linux_cannot_name_is_an_error() {
    let Some(ground) = Ground::new() else { return };
    nest(&ground.context(""), 3000);
    let error = ground.copy(". /x").unwrap_err();
    assert!(matches!(error, CopyError::TooDeep { .. }), "{error}");
    assert!(error.to_string().len() < 2000);
}

#[test]
fn nothing_is_written_when_a_source_is_missing() {
    let Some(ground) = Ground::new() else { return };
    ground.file("f=F");
    ground.copy("f nope /made/x/").unwrap_err();
    assert_eq!(std::fs::read_dir(ground.root("")).unwrap().count(), 0);
}

#[test]
fn all_of_this_is_the_same_without_privileges() {
    for world in [World::SingleId, World::OrdinaryUser] {
        for tests in ["build::copy::tests::", "build::add::tests::"] {
            all_pass_in(world, tests);
        }
    }
}
