//! Every kind of change, on both kinds of trees.

use crate::layer::changes::Unrecordable;
use crate::rootfs::{Follow, GuestPath, Rootfs};
use crate::store::testing::{Times, can_make_devices, can_mount, dump, dump_with};
use crate::store::unpacked::Chain;

use super::SnapshotError;
use super::testing::{Ground, KINDS, Kind, text};

/// What is in the base.
const BASE: &str = r#"
    mkdir -p d/sub d/other e/deep/er
    echo one > d/one; echo two > d/two; echo s > d/sub/s; echo t > d/sub/t; echo o > d/other/o
    echo x > e/deep/er/x
    ln -s one d/link; ln d/two d/two-too
    echo cap > d/cap; mkfifo d/pipe; mknod d/null c 1 3
    echo f > file; ln file file-too; cp file equal; chmod 1777 e
    xattr d/one user.a 1
    xattr d/sub user.b 2
    mkdir -p r/a/b r/c; echo f > r/a/f; echo x > r/a/b/x; echo g > r/c/g
    mkdir h; echo 1 > h/1; ln h/1 h/2; ln h/1 h/3; echo x > h/x; ln h/x h/y
    mkdir s; echo own > s/own; truncate -s 300K s/sparse; printf end >> s/sparse; echo su > s/su; chmod 4755 s/su
    echo can > s/can; PATH=$PATH:/usr/sbin setcap cap_net_raw+ep s/can
    echo acl > s/acl; mkdir s/lists; mknod s/disk b 7 200
    acl s/acl access 5
    acl s/lists default 5
    mkdir odd; echo n > "$(printf 'odd/new\nline')"; echo e > "$(printf 'odd/es\033c')"; echo b > "$(printf 'odd/\377')"
    echo l > odd/$(printf %0255d 0); ln -s nowhere odd/dangling; mkdir odd/empty"#;

/// What a step is about, its script, and the changes in order. `{255}` stands for a name of 255 bytes.
const STEPS: &[(&str, &str, &[&str])] = &[
    ("nothing", "true", &[]),
    ("reading", "cat d/one; ls -lR . > /dev/null", &[]),
    ("a new file", "echo new > d/new", &["+/d", "+/d/new"]),
    ("a new file in the root", "echo new > new", &["+/new"]),
    (
        "a new file deep below unchanged directories",
        "echo > e/deep/er/y",
        &["+/e", "+/e/deep", "+/e/deep/er", "+/e/deep/er/y"],
    ),
    ("new directories", "mkdir -p n/m; echo > n/m/x", &["+/n", "+/n/m", "+/n/m/x"]),
    ("other content", "echo more >> d/one", &["+/d", "+/d/one"]),
    (
        "other content of the same size and time",
        "echo eno > d/one; touch -d @1000 d/one",
        &["+/d", "+/d/one"],
    ),
    ("equal content at the same time", "cp d/one d/n; cat d/n > d/one; rm d/n; touch -d @1000 d/one d", &[]),
    ("a file moved away and back", "mv d/one x; mv x d/one; touch -d @1000 d", &[]),
    ("other mode", "chmod 600 d/one", &["+/d", "+/d/one"]),
    ("setuid", "chmod u+s d/one", &["+/d", "+/d/one"]),
    ("same mode", "chmod 644 d/one", &[]),
    ("other owner", "chown 5 d/one", &["+/d", "+/d/one"]),
    ("other group of a link", "chown -h :5 d/link", &["+/d", "+/d/link"]),
    ("other time", "touch -d @2000 d/one", &["+/d", "+/d/one"]),
    ("other time below the second", "touch -d @1000.000000001 d/one", &["+/d", "+/d/one"]),
    ("another attribute", "xattr d/one user.a 2", &["+/d", "+/d/one"]),
    ("one more attribute", "xattr d/cap user.c 2", &["+/d", "+/d/cap"]),
    ("the same attribute", "xattr d/one user.a 1", &[]),
    ("a capability", "PATH=$PATH:/usr/sbin setcap cap_net_raw+ep d/cap", &["+/d", "+/d/cap"]),
    ("overlay's attributes from inside", "xattr d/one user.overlay.opaque y", &[]),
    ("mode of a directory", "chmod 700 d/sub", &["+/d", "+/d/sub"]),
    ("time of a directory", "touch -d @2000 d/sub", &["+/d", "+/d/sub"]),
    ("attribute of a directory", "xattr d/sub user.b 3", &["+/d", "+/d/sub"]),
    ("mode of the root", "chmod 700 .", &["+/"]),
    ("deleting a file", "rm d/one", &["+/d", "-/d/one"]),
    ("deleting a directory", "rm -r d", &["-/d"]),
    ("making and deleting", "mkdir -p d/x; echo > d/x/y; rm -r d/x; touch -d @1000 d", &[]),
    ("a file instead of a directory", "rm -r d; echo > d", &["+/d"]),
    ("a link instead of a directory", "rm -r d; ln -s e d", &["+/d"]),
    ("a directory instead of a file", "rm file; mkdir file; echo > file/x", &["+/file", "+/file/x"]),
    ("another target", "ln -sfn two d/link", &["+/d", "+/d/link"]),
    (
        "a directory made anew",
        "cp -a d d2; rm -r d; mkdir d; cp -a d2/sub d2/one d/; rm d/sub/s; echo > d/sub/u; rm -r d2",
        &[
            "+/d",
            "-/d/cap",
            "-/d/link",
            "-/d/null",
            "-/d/other",
            "-/d/pipe",
            "+/d/sub",
            "-/d/sub/s",
            "+/d/sub/u",
            "-/d/two",
            "-/d/two-too",
        ],
    ),
    ("a directory renamed", "mv e e2", &["-/e", "+/e2", "+/e2/deep", "+/e2/deep/er", "+/e2/deep/er/x"]),
    ("new special files", "mkfifo d/p; mknod d/zero c 1 5", &["+/d", "+/d/p", "+/d/zero"]),
    (
        "another device number",
        "rm d/null; mknod -m 644 d/null c 1 5; touch -d @1000 d/null d",
        &["+/d", "+/d/null"],
    ),
    ("a new hard link", "echo > d/a; ln d/a e/b", &["+/d", "+/d/a", "+/e", "+/e/b"]),
    (
        "another name for a file of the base",
        "ln d/one e/b; touch -d @1000 e",
        &["+/d", "+/d/one", "+/e", "+/e/b"],
    ),
    (
        "one file stays one",
        "ln file e/x1; [ file -ef file-too ] || ln -f file file-too; rm e/x1; touch -d @1000 e",
        &[],
    ),
    ("one of two names deleted", "rm d/two-too", &["+/d", "-/d/two-too"]),
    (
        "a socket, new and in place of a file",
        "perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/s\", Listen => 1)'
         rm d/one; mv d/s d/one
         perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"e/s\", Listen => 1)'",
        &["+/d", "-/d/one", "+/e"],
    ),
    ("a file moved to another directory", "mv r/a/f r/c/f", &["+/r", "+/r/a", "-/r/a/f", "+/r/c", "+/r/c/f"]),
    (
        "a directory moved to another",
        "mv r/a/b r/c/b",
        &["+/r", "+/r/a", "-/r/a/b", "+/r/c", "+/r/c/b", "+/r/c/b/x"],
    ),
    ("a directory moved away and back", "mv r/a x; mv x r/a; touch -d @1000 r", &[]),
    (
        "a directory moved away, changed and moved back",
        "mv r/a x; rm x/f; echo y > x/b/y; mv x r/a",
        &["+/r", "+/r/a", "+/r/a/b", "+/r/a/b/y", "-/r/a/f"],
    ),
    (
        "a directory moved into itself",
        "mv r x; mkdir r; mv x r/r",
        &[
            "+/r",
            "-/r/a",
            "-/r/c",
            "+/r/r",
            "+/r/r/a",
            "+/r/r/a/b",
            "+/r/r/a/b/x",
            "+/r/r/a/f",
            "+/r/r/c",
            "+/r/r/c/g",
        ],
    ),
    ("a file moved over another", "mv d/one d/two", &["+/d", "-/d/one", "+/d/two"]),
    ("a file moved over an equal one", "cp -p d/cap x; mv x d/cap; touch -d @1000 d", &[]),
    ("two files exchanged", "exchange d/one d/cap", &["+/d", "+/d/cap", "+/d/one"]),
    ("two files exchanged by hand", "mv d/one x; mv d/cap d/one; mv x d/cap", &["+/d", "+/d/cap", "+/d/one"]),
    (
        "new directories exchanged",
        "mkdir p q; echo 1 > p/x; echo 2 > q/y
         exchange p q",
        &["+/p", "+/p/y", "+/q", "+/q/x"],
    ),
    (
        "a file and a link exchanged",
        "exchange d/one d/link
         touch -d @1000 d",
        &["+/d", "+/d/link", "+/d/one"],
    ),
    ("a directory, a link and the directory again", "cp -a d x; rm -r d; ln -s e d; rm d; mv x d", &[]),
    (
        "a directory, a file and an empty directory",
        "rm -r e; echo > e; rm e; mkdir e; chmod 1777 e; touch -d @1000 e",
        &["+/e", "-/e/deep"],
    ),
    (
        "a file, a directory and the file again",
        "cp -p d/cap x; rm d/cap; mkdir d/cap; rmdir d/cap; mv x d/cap; touch -d @1000 d",
        &[],
    ),
    (
        "an empty directory instead of a full one",
        "rm -r r/a; mkdir r/a; touch -d @1000 r r/a",
        &["+/r", "+/r/a", "-/r/a/b", "-/r/a/f"],
    ),
    (
        "an opaque directory in an opaque directory",
        "rm -r r; mkdir -p r/a/b; touch -d @1000 r/a/b r/a r",
        &["+/r", "+/r/a", "+/r/a/b", "-/r/a/b/x", "-/r/a/f", "-/r/c"],
    ),
    ("a directory emptied", "rm -r r/a/*; touch -d @1000 r/a", &["+/r", "+/r/a", "-/r/a/b", "-/r/a/f"]),
    (
        "a link to a directory instead of it",
        "mv r/a r/z; ln -s z r/a; touch -d @1000 r",
        &["+/r", "+/r/a", "+/r/z", "+/r/z/b", "+/r/z/b/x", "+/r/z/f"],
    ),
    ("one of three names deleted", "rm h/3; touch -d @1000 h", &["+/h", "-/h/3"]),
    ("all names deleted", "rm h/x h/y", &["+/h", "-/h/x", "-/h/y"]),
    ("one of three names another file, equal", "cp -p h/1 x; mv x h/3; touch -d @1000 h", &[]),
    ("one of three names another file", "echo other > h/3.new; mv h/3.new h/3", &["+/h", "+/h/3"]),
    ("a group split", "cp -p h/1 x; ln -f x h/2; ln -f x h/3; rm x; touch -d @1000 h", &[]),
    (
        "a group split and changed",
        "cp -p h/1 x; echo >> x; ln -f x h/2; ln -f x h/3; rm x",
        &["+/h", "+/h/2", "+/h/3"],
    ),
    (
        "a group made anew, equal",
        "cp -p h/1 x; ln -f x h/1; ln -f x h/2; ln -f x h/3; rm x; touch -d @1000 h",
        &[],
    ),
    (
        "a group made anew",
        "echo 2 > x; ln -f x h/1; ln -f x h/2; ln -f x h/3; rm x",
        &["+/h", "+/h/1", "+/h/2", "+/h/3"],
    ),
    (
        "two groups made one, anew",
        "echo 2 > x; for name in 1 2 3 x y; do ln -f x h/$name; done; rm x",
        &["+/h", "+/h/1", "+/h/2", "+/h/3", "+/h/x", "+/h/y"],
    ),
    (
        "two groups of new files",
        "echo > x; ln x y; echo > z; ln z e/z",
        &["+/e", "+/e/z", "+/x", "+/y", "+/z"],
    ),
    (
        "a hard link to a symbolic link",
        "ln -P d/link e/link; touch -d @1000 e",
        &["+/d", "+/d/link", "+/e", "+/e/link"],
    ),
    ("a hard link to a device", "ln d/null e/null", &["+/d", "+/d/null", "+/e", "+/e/null"]),
    (
        "other content by rename, same size and time",
        "echo eno > x; touch -d @1000 x; mv x d/one; touch -d @1000 d",
        &["+/d", "+/d/one"],
    ),
    (
        "other content in place, same size and time",
        "printf eno | dd of=d/one conv=notrunc 2>/dev/null; touch -d @1000 d/one",
        &["+/d", "+/d/one"],
    ),
    (
        "other content through a mapping, same size and time",
        "mapped d/one
         touch -d @1000 d/one",
        &["+/d", "+/d/one"],
    ),
    (
        "cut off and grown to the same size",
        "truncate -s 0 d/one; truncate -s 4 d/one; touch -d @1000 d/one",
        &["+/d", "+/d/one"],
    ),
    ("cut off and written again", "truncate -s 0 d/one; echo one > d/one; touch -d @1000 d/one", &[]),
    ("grown and cut off", "echo more >> d/one; truncate -s 4 d/one; touch -d @1000 d/one", &[]),
    ("emptied, same time", "truncate -s 0 d/one; touch -d @1000 d/one", &["+/d", "+/d/one"]),
    ("the same time again", "touch -d @2000 d/one; touch -d @1000 d/one", &[]),
    ("another mode and back", "chmod 600 d/one; chmod 644 d/one", &[]),
    ("another owner and back", "chown 5:6 d/one; chown 0:0 d/one", &[]),
    (
        "another attribute and back",
        "xattr d/one user.z 1
        unxattr d/one user.z",
        &[],
    ),
    ("setuid lost with another owner and back", "chown 5 s/su; chown 0 s/su", &["+/s", "+/s/su"]),
    ("setuid taken away", "chmod u-s s/su", &["+/s", "+/s/su"]),
    ("setgid of a directory", "chmod g+s e/deep", &["+/e", "+/e/deep"]),
    ("an attribute taken away", "unxattr d/one user.a", &["+/d", "+/d/one"]),
    ("a capability set again", "PATH=$PATH:/usr/sbin setcap cap_net_raw+ep s/can", &[]),
    ("another capability", "PATH=$PATH:/usr/sbin setcap cap_net_admin+ep s/can", &["+/s", "+/s/can"]),
    ("a capability taken away", "PATH=$PATH:/usr/sbin setcap -r s/can", &["+/s", "+/s/can"]),
    (
        "a capability lost by writing",
        "printf x | dd of=s/can conv=notrunc 2>/dev/null; printf c | dd of=s/can conv=notrunc 2>/dev/null; touch -d @1000 s/can",
        &["+/s", "+/s/can"],
    ),
    ("an access control list", "acl s/own access 5", &["+/s", "+/s/own"]),
    ("the same access control list", "acl s/acl access 5", &[]),
    ("another access control list", "acl s/acl access 6", &["+/s", "+/s/acl"]),
    (
        "an access control list taken away",
        "unxattr s/acl system.posix_acl_access
        chmod 644 s/acl",
        &["+/s", "+/s/acl"],
    ),
    ("a default access control list", "acl s default 5", &["+/s"]),
    (
        "a file that inherits",
        "echo > s/lists/new; mkdir s/lists/dir",
        &["+/s", "+/s/lists", "+/s/lists/dir", "+/s/lists/new"],
    ),
    (
        "a hole filled with zeros",
        "dd if=/dev/zero of=s/sparse bs=4096 count=2 conv=notrunc 2>/dev/null; touch -d @1000 s/sparse",
        &[],
    ),
    (
        "something in a hole",
        "printf x | dd of=s/sparse bs=1 seek=100000 conv=notrunc 2>/dev/null; touch -d @1000 s/sparse",
        &["+/s", "+/s/sparse"],
    ),
    ("a new file with holes", "truncate -s 400K s/new; printf x >> s/new", &["+/s", "+/s/new"]),
    (
        "names of any bytes, new",
        r#"echo > "$(printf 'odd/a\nb')"; echo > "$(printf 'odd/\033[2J')"; echo > "$(printf 'odd/\376\200')"; echo > "odd/a b""#,
        &["+/odd", "+/odd/\\u{1b}[2J", "+/odd/a\\nb", "+/odd/a b", "+/odd/\\xfe\\x80"],
    ),
    (
        "names of any bytes, changed",
        r#"for name in odd/*; do [ ! -f "$name" ] || echo more >> "$name"; done"#,
        &["+/odd", "+/odd/{255}", "+/odd/es\\u{1b}c", "+/odd/new\\nline", "+/odd/\\xff"],
    ),
    (
        "names of any bytes, gone",
        r#"for name in odd/*; do [ ! -f "$name" ] || rm "$name"; done"#,
        &["+/odd", "-/odd/{255}", "-/odd/es\\u{1b}c", "-/odd/new\\nline", "-/odd/\\xff"],
    ),
    (
        "a new name of 255 bytes",
        "rm odd/0*; echo > odd/$(printf %0255d 0 | tr 0 1); mv odd/1* odd/$(printf %0255d 0)",
        &["+/odd", "+/odd/{255}"],
    ),
    ("a FIFO made anew, equal", "rm d/pipe; mkfifo -m 644 d/pipe; touch -d @1000 d/pipe d", &[]),
    ("a file instead of a FIFO", "rm d/pipe; echo > d/pipe", &["+/d", "+/d/pipe"]),
    ("a FIFO instead of a file", "rm d/one; mkfifo d/one", &["+/d", "+/d/one"]),
    (
        "a character device instead of a block device",
        "rm s/disk; mknod -m 644 s/disk c 7 200; touch -d @1000 s/disk s",
        &["+/s", "+/s/disk"],
    ),
    (
        "a link made anew, equal",
        "rm d/link; ln -s one d/link; touch -h -d @1000 d/link; touch -d @1000 d",
        &[],
    ),
    (
        "another target of the same length and time",
        "rm d/link; ln -s two d/link; touch -h -d @1000 d/link; touch -d @1000 d",
        &["+/d", "+/d/link"],
    ),
    (
        "a file instead of a link, as long",
        "rm d/link; printf one > d/link; chmod 777 d/link; touch -d @1000 d/link d",
        &["+/d", "+/d/link"],
    ),
    ("a link that leads nowhere", "ln -sfn elsewhere odd/dangling", &["+/odd", "+/odd/dangling"]),
    (
        "a socket instead of a directory",
        "rm -r e/deep
         perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"e/deep\", Listen => 1)'",
        &["+/e", "-/e/deep"],
    ),
    (
        "entries made and deleted",
        "echo > e/deep/x; rm e/deep/x; mkdir e/deep/d; rmdir e/deep/d; touch -d @1000 e/deep",
        &[],
    ),
    ("owner of the root", "chown 7:8 .", &["+/"]),
    ("attribute of the root", "xattr . user.r 1", &["+/"]),
    ("time of the root", "touch -d @5 .", &[]),
    ("a time before 1970", "touch -d @-1.5 d/one", &["+/d", "+/d/one"]),
    (
        "everything gone",
        "rm -r ./*",
        &["-/d", "-/e", "-/equal", "-/file", "-/file-too", "-/h", "-/odd", "-/r", "-/s"],
    ),
];

/// The same steps where overlayfs has another opinion, as every container engine that uses it: files of lower layers lose
/// their other names when they are written to (kernel documentation, `overlayfs.rst`, "Inode properties": `index=off`).
/// What it is about, its script, the changes with overlayfs and those without.
#[rustfmt::skip]
const DIFFERENT: &[(&str, &str, &[&str], &[&str])] = &[
    ("one of three names written to", "echo 2 > h/1",
        &["+/h", "+/h/1"], &["+/h", "+/h/1", "+/h/2", "+/h/3"]),
    ("the mode of one of three names", "chmod 600 h/2",
        &["+/h", "+/h/2"], &["+/h", "+/h/1", "+/h/2", "+/h/3"]),
    ("an attribute of one of three names", "xattr h/2 user.a 1",
        &["+/h", "+/h/2"], &["+/h", "+/h/1", "+/h/2", "+/h/3"]),
    ("a fourth name", "ln h/1 h/4; touch -d @1000 h",
        &["+/h", "+/h/1", "+/h/4"], &["+/h", "+/h/1", "+/h/2", "+/h/3", "+/h/4"]),
    ("one of three names moved", "mv h/3 h/4; touch -d @1000 h",
        &["+/h", "-/h/3", "+/h/4"], &["+/h", "+/h/1", "+/h/2", "-/h/3", "+/h/4"]),
    ("a directory with one of several names moved", "mkdir p; mv h/y p/y; mv p q",
        &["+/h", "-/h/y", "+/q", "+/q/y"], &["+/h", "+/h/x", "-/h/y", "+/q", "+/q/y"]),
    ("two groups made one", "ln -f h/1 h/x; ln -f h/1 h/y; touch -d @1000 h",
        &["+/h", "+/h/1", "+/h/x", "+/h/y"], &["+/h", "+/h/1", "+/h/2", "+/h/3", "+/h/x", "+/h/y"]),
    ("equal files made one", "ln -f file equal",
        &["+/equal", "+/file"], &["+/equal", "+/file", "+/file-too"]),
    ("equal files exchanged, of which one has another name", "exchange file equal",
        &[], &["+/equal", "+/file-too"]),
];

/// What a sequence of steps is about, and for each its script and changes.
type Sequence = (&'static str, &'static [(&'static str, &'static [&'static str])]);

const SEQUENCES: &[Sequence] = &[
    (
        "steps see what earlier steps did and record only their own",
        &[
            ("rm -r d/sub; echo 1 > d/new", &["+/d", "+/d/new", "-/d/sub"]),
            ("mkdir d/sub; echo 2 > d/sub/x; rm d/new", &["+/d", "-/d/new", "+/d/sub", "+/d/sub/x"]),
            ("true", &[]),
            ("rm d/sub/x", &["+/d", "+/d/sub", "-/d/sub/x"]),
            (
                "rm -r d e; mkdir d",
                &[
                    "+/d", "-/d/cap", "-/d/link", "-/d/null", "-/d/one", "-/d/other", "-/d/pipe", "-/d/sub", "-/d/two",
                    "-/d/two-too", "-/e",
                ],
            ),
        ],
    ),
    (
        "a directory becomes a link and a directory again",
        &[
            ("mv r/a r/z; ln -s z r/a", &["+/r", "+/r/a", "+/r/z", "+/r/z/b", "+/r/z/b/x", "+/r/z/f"]),
            ("echo > r/a/n", &["+/r", "+/r/z", "+/r/z/n"]),
            ("rm r/a; mv r/z r/a", &["+/r", "+/r/a", "+/r/a/b", "+/r/a/b/x", "+/r/a/f", "+/r/a/n", "-/r/z"]),
            ("rm r/a/n; touch -d @1000 r/a", &["+/r", "+/r/a", "-/r/a/n"]),
            ("ln -s / r/c/l; rm -r r/a; ln -s c r/a", &["+/r", "+/r/a", "+/r/c", "+/r/c/l"]),
        ],
    ),
    (
        "a file becomes a directory and a file again",
        &[
            ("rm file; mkdir file; echo > file/x", &["+/file", "+/file/x"]),
            ("rm -r file; echo > file", &["+/file"]),
            ("rm file; mkdir file", &["+/file"]),
            ("echo > file/y", &["+/file", "+/file/y"]),
            ("rm -r file", &["-/file"]),
        ],
    ),
    (
        "what a replaced directory held comes back",
        &[
            ("rm r/a/f", &["+/r", "+/r/a", "-/r/a/f"]),
            ("rm -r r/a; mkdir r/a; echo 2 > r/a/f", &["+/r", "+/r/a", "-/r/a/b", "+/r/a/f"]),
            ("rm r/a/f; touch -d @1000 r/a", &["+/r", "+/r/a", "-/r/a/f"]),
            ("rmdir r/a", &["+/r", "-/r/a"]),
            ("mkdir -p r/a/b; echo x > r/a/b/x", &["+/r", "+/r/a", "+/r/a/b", "+/r/a/b/x"]),
        ],
    ),
    (
        "sockets are nothing, before and after",
        &[
            (
                "rm d/one; perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/one\", Listen => 1)'",
                &["+/d", "-/d/one"],
            ),
            ("chmod 600 d/one; touch -d @5 d/one", &[]),
            ("rm d/one; touch -d @1000 d", &["+/d"]),
            ("perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/one\", Listen => 1)'", &["+/d"]),
            ("rm d/one; echo > d/one", &["+/d", "+/d/one"]),
            (
                "rm d/one; perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/one\", Listen => 1)'
                 rm d/one; mkdir d/one; echo > d/one/x",
                &["+/d", "+/d/one", "+/d/one/x"],
            ),
            (
                "rm -r d; mkdir d; perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/s\", Listen => 1)'",
                &[
                    "+/d", "-/d/cap", "-/d/link", "-/d/null", "-/d/one", "-/d/other", "-/d/pipe", "-/d/sub", "-/d/two",
                    "-/d/two-too",
                ],
            ),
            ("rm -r d; mkdir d", &["+/d"]),
        ],
    ),
    (
        "the same size and time with other contents, step by step",
        &[
            ("printf AAAA > f; touch -d @1 f", &["+/f"]),
            ("printf BBBB > f; touch -d @1 f", &["+/f"]),
            ("printf BBBB > f; touch -d @1 f", &[]),
            (
                "mapped f
                 touch -d @1 f",
                &["+/f"],
            ),
            ("printf CBBB > f; touch -d @1 f", &[]),
            ("chmod 600 f; chmod 644 f", &[]),
            ("printf DBBB > x; touch -d @1 x; mv x f", &["+/f"]),
        ],
    ),
    (
        "hard links that steps make",
        &[
            ("echo 1 > x; ln x y", &["+/x", "+/y"]),
            ("cp -p x n; ln -f n x; ln -f n y; rm n", &[]),
            ("rm y; cp -p x y", &[]),
            ("rm y; ln x y; echo 2 > x", &["+/x", "+/y"]),
            ("rm x", &["-/x"]),
            ("ln y x; rm y", &["+/x", "-/y"]),
        ],
    ),
];

/// Compares what a step changed on each kind of tree with what is expected, and the trees with each other.
fn check(what: &str, grounds: &[(Ground, Chain)], script: &str, expected: impl Fn(Kind) -> Vec<String>) {
    // Of two devices one differs from the other; of what stands for them, none.
    if script.contains("mknod -m") && !can_make_devices() {
        return;
    }
    let mut trees: Vec<String> = Vec::new();
    for (ground, base) in grounds {
        let recorded = ground.step(base.clone(), script).unwrap();
        assert_eq!(text(&recorded.changes), expected(ground.kind), "{:?}: {what}", ground.kind);
        let view = ground.snapshotter.view(&recorded.chain).unwrap();
        trees.push(dump_with(view.root(), Times::Hidden));
    }
    for tree in &trees[1..] {
        assert_eq!(trees[0], *tree, "{what}");
    }
}

fn texts(expected: &[&str]) -> Vec<String> {
    let long = "0".repeat(255);
    expected.iter().map(|line| line.replace("{255}", &long)).collect()
}

fn grounds(kinds: &[Kind]) -> Vec<(Ground, Chain)> {
    let with_base = |kind| {
        let ground = Ground::new(kind);
        let base = ground.base(BASE);
        (ground, base)
    };
    kinds.iter().copied().map(with_base).collect()
}

#[test]
fn every_kind_of_change_is_found_and_nothing_else() {
    if !can_mount() {
        return;
    }
    let grounds = grounds(&[Kind::Overlay, Kind::Native]);
    assert!(STEPS.len() + DIFFERENT.len() >= 100, "{}", STEPS.len());
    for (what, script, expected) in STEPS {
        check(what, &grounds, script, |_| texts(expected));
    }
}

#[test]
fn where_the_kernel_keeps_hard_links_together_all_names_change() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base(BASE);
        for (what, script, overlay, native) in DIFFERENT {
            let expected = if kind == Kind::Overlay { overlay } else { native };
            let recorded = ground.step(base.clone(), script).unwrap();
            assert_eq!(text(&recorded.changes), texts(expected), "{kind:?}: {what}");
        }
    }
}

/// The second and all later steps of a sequence work in the very files that the one before left.
#[test]
fn sequences_of_steps_are_recorded_step_by_step() {
    if !can_mount() {
        return;
    }
    for (what, steps) in SEQUENCES {
        let mut grounds = grounds(&KINDS);
        for (script, expected) in *steps {
            let mut trees: Vec<String> = Vec::new();
            for (ground, chain) in &mut grounds {
                let before = std::mem::replace(chain, Chain::empty());
                let recorded = ground.step(before, script).unwrap();
                let kind = ground.kind;
                assert_eq!(text(&recorded.changes), texts(expected), "{kind:?}: {what}: {script}");
                *chain = recorded.chain;
                trees.push(dump_with(ground.snapshotter.view(chain).unwrap().root(), Times::Hidden));
            }
            assert!(trees.iter().all(|tree| *tree == trees[0]), "{what}: {script}: {trees:#?}");
        }
    }
}

#[test]
fn one_changed_file_over_a_hundred_thousand_costs_a_few_looks() {
    if !can_mount() {
        return;
    }
    for kind in [Kind::Overlay, Kind::Native] {
        let ground = Ground::new(kind);
        let base = ground.filled(|root| {
            for directory in 0..100 {
                let directory = root.join(format!("d{directory}"));
                std::fs::create_dir(&directory).unwrap();
                for file in 0..1000 {
                    std::fs::write(directory.join(format!("f{file}")), "x").unwrap();
                }
            }
        });
        if let Chain::Tree(tree) = &base {
            let (bytes, entries) = tree.index().memory();
            assert_eq!(entries, 100_100);
            // Names have five bytes at most.
            assert!(bytes < entries * (140 + 5), "{}", bytes / entries);
        }
        let recorded = ground.step_unseen(base, "echo x >> d42/f42").unwrap();
        assert_eq!(text(&recorded.changes), ["+/d42", "+/d42/f42"]);
        assert!(recorded.opened <= 1, "{kind:?}: {}", recorded.opened);
        let visits = if kind == Kind::Overlay { 0..100 } else { 100_100..100_101 };
        assert!(visits.contains(&recorded.visited), "{kind:?}: {}", recorded.visited);
    }
}

#[test]
fn content_is_compared_whatever_the_metadata_say_if_that_is_asked_for() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(Kind::NativeFull);
    let base = ground.base("echo a > a; echo b > b; : > empty; mkdir d");
    let recorded = ground.step_unseen(base, "true").unwrap();
    assert_eq!((text(&recorded.changes).len(), recorded.visited, recorded.opened), (0, 4, 2));
}

#[test]
fn without_layers_everything_is_new_and_the_root_is_what_a_runtime_expects() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let script = "mkdir a; echo > a/b; stat -c %a,%u . > c; grep -qx 755,0 c";
        let recorded = ground.step(Chain::empty(), script).unwrap();
        assert_eq!(text(&recorded.changes), ["+/a", "+/a/b", "+/c"], "{kind:?}");
        let view = ground.snapshotter.view(&Chain::empty()).unwrap();
        assert_eq!(dump(view.root()), "/ Directory 0755 0:0 0.000000000\n", "{kind:?}");
    }
}

/// With overlayfs it is whoever keeps the layer that sees to it.
#[test]
fn the_time_of_the_root_is_as_in_the_layers_which_leave_it_out() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(Kind::Native);
    let base = ground.base("mkdir d");
    let root = |chain: &Chain| {
        let view = ground.snapshotter.view(chain).unwrap();
        view.root().exact_metadata(&GuestPath::root()).unwrap().unwrap()
    };
    let before = root(&base).mtime;
    let recorded = ground.step(base, "echo new > new").unwrap();
    assert_eq!(text(&recorded.changes), ["+/new"]);
    assert_eq!(root(&recorded.chain).mtime, before);
    let recorded = ground.step(recorded.chain, "echo > newer; chmod 700 .").unwrap();
    assert_eq!(text(&recorded.changes), ["+/", "+/newer"]);
    assert_ne!(root(&recorded.chain).mtime, before);
}

#[test]
fn the_root_keeps_what_the_base_says() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let chain = ground.base("chmod 1711 .; chown 3:4 .\nxattr . user.x y");
        let root = |tree: &Rootfs| dump(tree).lines().next().unwrap().to_owned();
        let base = root(ground.snapshotter.view(&chain).unwrap().root());
        assert_eq!(base, "/ Directory 1711 3:4 1000.000000000 user.x=y");
        assert_eq!(root(ground.snapshotter.begin(chain.clone()).unwrap().root()), base);
        let recorded = ground.step(chain, "true").unwrap();
        assert_eq!(text(&recorded.changes), [""; 0]);
    }
}

#[test]
fn a_view_cannot_be_written_to() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base(BASE);
        let view = ground.snapshotter.view(&base).unwrap();
        let file = GuestPath::clamp(b"/file").unwrap();
        assert!(view.root().remove(&file).is_err(), "{kind:?}");
        assert!(view.root().metadata(&file, Follow::No).unwrap().is_some());
        // What is looked at stays.
        drop(base);
        assert!(view.root().metadata(&file, Follow::No).unwrap().is_some());
    }
}

#[test]
fn a_step_leaves_alone_what_somebody_else_holds() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base(BASE);
        let before = dump(ground.snapshotter.view(&base).unwrap().root());
        let script = "echo more >> d/one; echo more >> h/1; rm -r e";
        ground.step_unseen(base.clone(), script).unwrap();
        assert_eq!(dump(ground.snapshotter.view(&base).unwrap().root()), before, "{kind:?}");
    }
}

#[test]
fn files_of_the_other_kind_are_refused() {
    if !can_mount() {
        return;
    }
    let (overlay, native) = (Ground::new(Kind::Overlay), Ground::new(Kind::Native));
    for (ground, other) in [(&overlay, &native), (&native, &overlay)] {
        let chain = other.base("echo > a");
        assert!(matches!(ground.snapshotter.begin(chain.clone()), Err(SnapshotError::Foreign)));
        assert!(matches!(ground.snapshotter.view(&chain), Err(SnapshotError::Foreign)));
    }
}

#[test]
fn directories_are_gone_with_their_last_holder() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new(Kind::Native);
    let trees = || {
        let entries = std::fs::read_dir(ground.workspace.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("tree")).count()
    };
    let base = ground.base("echo > a");
    let recorded = ground.step_unseen(base.clone(), "echo > b; chattr +i b || true").unwrap();
    assert_eq!(trees(), 2);
    drop(base);
    assert_eq!(trees(), 1);
    let recorded = ground.step_unseen(recorded.chain, "echo > c").unwrap();
    assert_eq!(trees(), 1);
    let view = ground.snapshotter.view(&recorded.chain).unwrap();
    drop(recorded);
    assert_eq!(trees(), 1);
    drop(view);
    assert_eq!(trees(), 0);
    assert!(ground.step_unseen(ground.base("true"), "echo > .wh.x").is_err());
    assert_eq!(trees(), 0);
}

#[test]
fn a_step_that_is_discarded_leaves_nothing() {
    if !can_mount() {
        return;
    }
    for (ground, base) in &grounds(&KINDS) {
        let names = || -> Vec<String> {
            let entries = std::fs::read_dir(ground.workspace.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            // Those of views are empty, and the clock is looked at once.
            let stay = |name: &String| name.starts_with("view") || name.starts_with("ticks");
            let mut names: Vec<String> = names.filter(|name| !stay(name)).collect();
            names.sort();
            names
        };
        let before = names();
        let recording = ground.snapshotter.begin(ground.second(base)).unwrap();
        ground.run_in(recording.mount(), "echo b > b");
        assert!(names().len() > before.len(), "{:?}", ground.kind);
        recording.discard();
        assert_eq!(names(), before, "{:?}", ground.kind);
    }
}

#[test]
fn a_deep_tree_is_found_and_removed() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base("mkdir top");
        let deep =
            "cd top; perl -e 'for (1..300) { mkdir \"d\" or die; chdir \"d\" or die } open my $f, \">f\"'";
        let recorded = ground.step_unseen(base, deep).unwrap();
        assert_eq!(recorded.changes.iter().count(), 302, "{kind:?}");
        let recorded = ground.step_unseen(recorded.chain, "rm -r top/d; touch -d @1000 top").unwrap();
        assert_eq!(text(&recorded.changes), ["+/top", "-/top/d"], "{kind:?}");
    }
}

#[test]
fn a_file_may_change_in_a_directory_that_no_layer_can_have_an_entry_for() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base("mkdir -p a/.wh.d; echo 1 > a/.wh.d/f");
        let recorded = ground.step_unseen(base.clone(), "echo 22 > a/.wh.d/f").unwrap();
        assert_eq!(text(&recorded.changes), ["+/a", "+/a/.wh.d/f"], "{kind:?}");
        // A new one changes the directory.
        let error = ground.step_unseen(base, "echo > a/.wh.d/g").unwrap_err().to_string();
        assert!(error.contains("`/a/.wh.d`"), "{kind:?}: {error}");
    }
}

#[test]
fn what_no_layer_can_hold_is_refused_with_its_path() {
    if !can_mount() {
        return;
    }
    for kind in KINDS {
        let ground = Ground::new(kind);
        let base = ground.base(BASE);
        let refused = |script| match ground.step_unseen(base.clone(), script) {
            Err(SnapshotError::Unrecordable(change)) => change,
            other => panic!("{kind:?}: {script}: {other:?}"),
        };
        for (script, expected) in
            [("echo > d/.wh.one", "/d/.wh.one"), ("mkdir -p r/.wh..wh..opq/x", "/r/.wh..wh..opq")]
        {
            let change = refused(script);
            assert!(
                matches!(&change, Unrecordable::WhiteoutName { path } if path.to_string() == expected),
                "{kind:?}: {change}"
            );
        }
        let deep = "perl -e 'for (1..30) { mkdir \"x\" x 200 or die; chdir \"x\" x 200 or die }'";
        let change = refused(deep);
        assert!(matches!(change, Unrecordable::PathTooLong { .. }), "{kind:?}: {change}");
    }
}
