//! Recording with overlayfs: what a step writes is in the mount's upper directory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::layer::Marks;
use crate::limit::Limit;
use crate::rootfs::{GuestPath, Overrides, Rootfs};
use crate::store::mount::{self, Upper};
use crate::store::overrides;
use crate::store::unpacked::{Chain, Likeness, UnpackedLayer};
use crate::store::workspace::{Scratch, Workspace};

use super::upper::{self, Found};
use super::{Recorded, Recording, SnapshotError, Snapshotter, View};

/// Steps on overlay mounts whose upper directories are in a workspace.
#[derive(Debug)]
pub struct OverlaySnapshotter {
    workspace: Arc<Workspace>,
    limit: Limit,
}

impl OverlaySnapshotter {
    /// Steps of the build that `workspace` belongs to. `limit` is that of the overrides of one step.
    #[must_use]
    pub fn new(workspace: Arc<Workspace>, limit: Limit) -> Self {
        Self { workspace, limit }
    }
}

impl Snapshotter for OverlaySnapshotter {
    fn begin(&self, on: Chain) -> Result<Box<dyn Recording>, SnapshotError> {
        let lower = self.view(&on)?;
        let directory = self.workspace.scratch("step")?;
        // Alone in a directory, as the store has layers: it may become one.
        let layer = self.workspace.scratch("layer")?;
        let files = layer.directory(UnpackedLayer::ROOT)?;
        let [work, scratch] = ["work", "scratch"].map(|name| directory.directory(name));
        let (work, scratch) = (work?, scratch?);
        // The mount's root is the upper directory itself, with the metadata that has.
        let inherited = Rootfs::open(&files)
            .and_then(|upper| mount::copy_metadata(lower.root(), &upper, &GuestPath::root()));
        inherited.map_err(|cause| prepare(&files, cause))?;
        let upper = Upper { files: &files, work: &work };
        let root = Rootfs::from_fd(mount::overlay(&on.root_dirs(), Some(upper), &scratch)?)
            .with_overrides(Arc::clone(on.overrides()), self.limit);
        let workspace = Arc::clone(&self.workspace);
        let own = [layer, directory];
        Ok(Box::new(OverlayRecording { root, lower, below: on, files, own, _workspace: workspace }))
    }

    fn view(&self, on: &Chain) -> Result<View, SnapshotError> {
        let scratch = self.workspace.directory("view")?;
        let root = Rootfs::from_fd(mount::overlay(&on.root_dirs(), None, &scratch)?);
        Ok(View { root: root.with_overrides(Arc::clone(on.overrides()), self.limit) })
    }
}

fn prepare(path: &Path, cause: io::Error) -> SnapshotError {
    SnapshotError::Prepare { path: path.to_owned(), cause }
}

struct OverlayRecording {
    root: Rootfs,
    lower: View,
    /// The layers of `lower`.
    below: Chain,
    files: PathBuf,
    /// The directory of what is written, and that of what the mount needs. Both go with a step that is not finished.
    own: [Scratch; 2],
    _workspace: Arc<Workspace>,
}

impl Recording for OverlayRecording {
    fn root(&self) -> &Rootfs {
        &self.root
    }

    fn mount(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn finish(self: Box<Self>) -> Result<Recorded, SnapshotError> {
        // Nothing is written out to disk: the upper directory has it all in memory, for this process too.
        let learned = self.root.take_learned();
        drop(self.root);
        let (lower, marks) = (self.lower.root(), Marks::usual());
        let files = Rootfs::open(&self.files).map_err(|cause| prepare(&self.files, cause))?;
        let written = overrides::written(self.below.overrides(), learned, &files, lower, marks)?;
        let files = files.with_overrides(Arc::clone(&written.all), Overrides::LIMIT);
        let Found { changes, visited, likeness } = upper::changes(&files, lower, marks)?;
        // Where the root is not what the layers say, its copy in this layer is not either.
        let mut below = self.below.layers().iter().map(UnpackedLayer::likeness);
        let likeness = if below.all(|one| one == Likeness::Equal) { likeness } else { Likeness::Other };
        let layer = UnpackedLayer::temporary(&self.files, likeness, written.own());
        let chain = self.below.with_overrides(layer, written.all);
        let [layer, _] = self.own;
        layer.keep();
        Ok(Recorded { changes, files, chain, visited })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;
    use rustix::fs::{FileType, Mode};
    use rustix::mount::MoveMountFlags;

    use crate::layer::{Change, Formats, Limits, Whiteouts, apply, decompress, write};
    use crate::rootfs::Follow;
    use crate::store::layer_laws;
    use crate::store::testing::{can_mount, dump, links, run, settle_times};

    use super::*;

    /// A tree that must be the same before and after the end of a step. Which names are one file is part of it, except in
    /// a user namespace: there overlayfs does not find out again which lower file a copy was made from, so a copy shows
    /// the number of that file or its own, depending on whether it was looked up before or after.
    fn seen(root: &Rootfs) -> (String, Vec<Vec<String>>) {
        (dump(root), if Marks::usual() == Marks::Trusted { links(root) } else { Vec::new() })
    }

    struct Ground {
        directory: tempfile::TempDir,
        base: Chain,
        snapshotter: OverlaySnapshotter,
    }

    /// A base of one layer that `script` made.
    fn ground(script: &str) -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("base");
        std::fs::create_dir(&base).unwrap();
        run(&base, script);
        settle_times(&base);
        let workspace = Workspace::create(&directory.path().join("tmp"), None).unwrap();
        let snapshotter = OverlaySnapshotter::new(Arc::new(workspace), Overrides::LIMIT);
        let layer = UnpackedLayer::temporary(&base, Likeness::Equal, Overrides::default());
        Ground { base: Chain::empty().with(layer).unwrap(), directory, snapshotter }
    }

    impl Ground {
        /// Runs a step on `chain` the way a sandbox does: in the mount, moved to where it has a path. Also compares the
        /// tree the step saw with the one that its layer gives.
        fn step(&self, chain: &Chain, script: &str) -> Result<Recorded, SnapshotError> {
            let recording = self.snapshotter.begin(chain.clone())?;
            self.run_in(recording.mount(), script);
            let tree = seen(recording.root());
            let recorded = recording.finish()?;
            let view = self.snapshotter.view(&recorded.chain)?;
            assert_eq!(seen(view.root()), tree, "{script}");
            self.check_layer(chain, &recorded, view.root());
            Ok(recorded)
        }

        /// `apply(write(diff(a, b)), a) == b`, save for what layers leave out: sockets and the root itself.
        fn check_layer(&self, chain: &Chain, recorded: &Recorded, after: &Rootfs) {
            let mut blob = Vec::new();
            write(&recorded.changes, after, &mut blob).unwrap();
            let copy = self.snapshotter.begin(chain.clone()).unwrap();
            let mut archive = decompress(&blob[..], Formats::Layer, &Limits::default()).unwrap();
            let limits = Limits::default();
            apply(&mut archive, copy.root(), Whiteouts::Remove, &limits).unwrap();
            let kept = |tree: &Rootfs| {
                let text = dump(tree);
                let kept = text.lines().skip(1).filter(|line| !line.contains(" Socket "));
                kept.map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(kept(copy.root()), kept(after));
            // A file that was copied up loses its other names, but that alone is no change.
            let copied = links(copy.root());
            for names in links(after) {
                assert!(
                    copied.iter().any(|one| names.iter().all(|name| one.contains(name))),
                    "{names:?}: {copied:?}"
                );
            }
        }

        /// Runs a step without a look at the trees, which may be large.
        fn step_unseen(&self, chain: &Chain, script: &str) -> Result<Recorded, SnapshotError> {
            let recording = self.snapshotter.begin(chain.clone())?;
            self.run_in(recording.mount(), script);
            recording.finish()
        }

        /// Moves the mount to a place and runs the script there.
        fn run_in(&self, mount: BorrowedFd<'_>, script: &str) {
            let place = self.directory.path().join("place");
            std::fs::create_dir_all(&place).unwrap();
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(mount, "", rustix::fs::CWD, &place, flags).unwrap();
            run(&place, script);
            rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }

    fn text(changes: &crate::layer::Changeset) -> Vec<String> {
        let line = |change: &Change| match change {
            Change::Put(path) => format!("+{path}"),
            Change::Remove(path) => format!("-{path}"),
        };
        changes.0.iter().map(line).collect()
    }

    /// What is in the base of [`every_kind_of_change_is_found_and_nothing_else`].
    const BASE: &str = "
        mkdir -p d/sub d/other e/deep/er
        echo one > d/one; echo two > d/two; echo s > d/sub/s; echo t > d/sub/t; echo o > d/other/o
        echo x > e/deep/er/x
        ln -s one d/link; ln d/two d/two-too
        echo cap > d/cap; mkfifo d/pipe; mknod d/null c 1 3 || mkfifo d/null
        echo f > file; ln file file-too; cp file equal; chmod 1777 e
        xattr d/one user.a 1
        xattr d/sub user.b 2";

    /// What the step is about, its script, and the changes in order.
    const STEPS: [(&str, &str, &[&str]); 43] = [
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
        (
            "equal content at the same time",
            "cp d/one d/n; cat d/n > d/one; rm d/n; touch -d @1000 d/one d",
            &[],
        ),
        ("a file moved away and back", "mv d/one x; mv x d/one; touch -d @1000 d", &[]),
        ("other mode", "chmod 600 d/one", &["+/d", "+/d/one"]),
        ("setuid", "chmod u+s d/one", &["+/d", "+/d/one"]),
        ("same mode", "chmod 644 d/one", &[]),
        ("other owner", "chown 5 d/one", &["+/d", "+/d/one"]),
        ("other group of a link", "chown -h :5 d/link", &["+/d", "+/d/link"]),
        ("other time", "touch -d @2000 d/one", &["+/d", "+/d/one"]),
        ("other time below the second", "touch -d @1000.000000001 d/one", &["+/d", "+/d/one"]),
        ("another attribute", "xattr d/one user.a 2", &["+/d", "+/d/one"]),
        ("one more attribute", "xattr d/two user.c 2", &["+/d", "+/d/two"]),
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
        (
            "new special files",
            "mkfifo d/p; mknod d/zero c 1 5 || mkfifo d/zero",
            &["+/d", "+/d/p", "+/d/zero"],
        ),
        (
            "another device number",
            "rm d/null; mknod -m 644 d/null c 1 5 || mkfifo -m 600 d/null; touch -d @1000 d/null d",
            &["+/d", "+/d/null"],
        ),
        ("a new hard link", "echo > d/a; ln d/a e/b", &["+/d", "+/d/a", "+/e", "+/e/b"]),
        (
            "another name for a file of the base",
            "ln d/one e/b; touch -d @1000 e",
            &["+/d", "+/d/one", "+/e", "+/e/b"],
        ),
        ("equal files made one", "ln -f file equal", &["+/equal", "+/file"]),
        ("one file stays one", "ln file e/x1; ln -f file file-too; rm e/x1; touch -d @1000 e", &[]),
        ("one of two names deleted", "rm d/two-too", &["+/d", "-/d/two-too"]),
        (
            "a socket, new and in place of a file",
            "perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"d/s\", Listen => 1)'
             rm d/one; mv d/s d/one
             perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Local => \"e/s\", Listen => 1)'",
            &["+/d", "-/d/one", "+/e"],
        ),
    ];

    #[test]
    fn every_kind_of_change_is_found_and_nothing_else() {
        if !can_mount() {
            return;
        }
        let ground = ground(BASE);
        for (what, script, expected) in STEPS {
            let recorded = ground.step(&ground.base, script).unwrap();
            assert_eq!(text(&recorded.changes), expected, "{what}");
            // What no layer holds: sockets, and what the root is like.
            let other = what.contains("socket") || what.contains("of the root");
            let expected = if other { Likeness::Other } else { Likeness::Equal };
            assert_eq!(recorded.chain.layers()[1].likeness(), expected, "{what}");
        }
    }
    #[test]
    fn a_step_sees_what_earlier_steps_did_and_records_only_its_own() {
        if !can_mount() {
            return;
        }
        let ground = ground(BASE);
        let steps: [(&str, &[&str]); 5] = [
            ("rm -r d/sub; echo 1 > d/new", &["+/d", "+/d/new", "-/d/sub"]),
            ("mkdir d/sub; echo 2 > d/sub/x; rm d/new", &["+/d", "-/d/new", "+/d/sub", "+/d/sub/x"]),
            ("true", &[]),
            ("rm d/sub/x", &["+/d", "+/d/sub", "-/d/sub/x"]),
            (
                "rm -r d e; mkdir d",
                &[
                    "+/d",
                    "-/d/cap",
                    "-/d/link",
                    "-/d/null",
                    "-/d/one",
                    "-/d/other",
                    "-/d/pipe",
                    "-/d/sub",
                    "-/d/two",
                    "-/d/two-too",
                    "-/e",
                ],
            ),
        ];
        let mut chain = ground.base.clone();
        for (script, expected) in steps {
            let recorded = ground.step(&chain, script).unwrap();
            assert_eq!(text(&recorded.changes), expected, "{script}");
            chain = recorded.chain;
        }
        // What is not in the layer of one step is below the next.
        let likeness = |chain: &Chain, script: &str| {
            let chain = ground.step(chain, script).unwrap().chain;
            (chain.layers().last().unwrap().likeness(), chain)
        };
        let (first, chain) = likeness(&chain, "echo > a");
        let (second, chain) = likeness(&chain, "chmod 700 .");
        let (third, _) = likeness(&chain, "echo > b");
        assert_eq!([first, second, third], [Likeness::Equal, Likeness::Other, Likeness::Other]);
    }

    #[test]
    fn random_steps_are_recorded_completely() {
        if !can_mount() {
            return;
        }
        // PROPTEST_CASES asks for more.
        let cases = ProptestConfig::default().cases / 4;
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        let ground = Mutex::new((ground("true"), 0));
        proptest!(config, |(stack in layer_laws::stack())| {
            let mut guard = ground.lock().unwrap();
            guard.1 += 1;
            let (ground, number) = &*guard;
            // The lower layers are the base, the last is what the step does; stacks with refused layers show nothing.
            let mut chain = ground.base.clone();
            for (position, entries) in stack.iter().enumerate() {
                let recording = ground.snapshotter.begin(chain.clone()).unwrap();
                let archive = layer_laws::archive(entries);
                let limits = Limits::default();
                if apply(&mut &archive[..], recording.root(), Whiteouts::Remove, &limits).is_err() {
                    break;
                }
                let tree = seen(recording.root());
                let recorded = recording.finish().unwrap();
                let next = recorded.chain.clone();
                let view = ground.snapshotter.view(&next).unwrap();
                prop_assert_eq!(seen(view.root()), tree, "case {} layer {}", number, position);
                ground.check_layer(&chain, &recorded, view.root());
                chain = next;
            }
        });
    }

    #[test]
    fn one_changed_file_over_a_hundred_thousand_costs_a_few_looks() {
        if !can_mount() {
            return;
        }
        let ground = ground("true");
        let base = ground.base.layers()[0].root_dir();
        for directory in 0..100 {
            let directory = base.join(format!("d{directory}"));
            std::fs::create_dir(&directory).unwrap();
            for file in 0..1000 {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    directory.join(format!("f{file}")),
                    FileType::RegularFile,
                    Mode::RUSR,
                    0,
                )
                .unwrap();
            }
        }
        let recorded = ground.step_unseen(&ground.base, "echo x >> d42/f42").unwrap();
        assert_eq!(text(&recorded.changes), ["+/d42", "+/d42/f42"]);
        assert!(recorded.visited < 100, "{}", recorded.visited);
    }

    #[test]
    fn without_layers_everything_is_new_and_the_root_is_what_a_runtime_expects() {
        if !can_mount() {
            return;
        }
        let ground = ground("true");
        let recorded = ground
            .step(&Chain::empty(), "mkdir a; echo > a/b; stat -c %a,%u . > c; grep -qx 755,0 c")
            .unwrap();
        assert_eq!(text(&recorded.changes), ["+/a", "+/a/b", "+/c"]);
    }

    #[test]
    fn the_root_keeps_what_the_base_says() {
        if !can_mount() {
            return;
        }
        let ground = ground("chmod 1711 .; chown 3:4 .\nxattr . user.x y");
        let root = |tree: &Rootfs| dump(tree).lines().next().unwrap().to_owned();
        let base = root(ground.snapshotter.view(&ground.base).unwrap().root());
        assert_eq!(base, "/ Directory 1711 3:4 1000.000000000 user.x=y");
        assert_eq!(root(ground.snapshotter.begin(ground.base.clone()).unwrap().root()), base);
    }

    #[test]
    fn a_view_cannot_be_written_to() {
        if !can_mount() {
            return;
        }
        let ground = ground(BASE);
        let view = ground.snapshotter.view(&ground.base).unwrap();
        let file = GuestPath::clamp(b"/file").unwrap();
        assert!(view.root().remove(&file).is_err());
        assert!(view.root().metadata(&file, Follow::No).unwrap().is_some());
    }

    #[test]
    fn what_no_layer_can_hold_is_refused_with_its_path() {
        if !can_mount() {
            return;
        }
        let ground = ground(BASE);
        let error = ground.step(&ground.base, "echo > d/.wh.one").unwrap_err();
        assert!(
            matches!(&error, SnapshotError::WhiteoutName { path } if path.to_string() == "/d/.wh.one"),
            "{error}"
        );
        let deep = "import os
             for i in range(30): os.mkdir('x' * 200); os.chdir('x' * 200)";
        std::fs::write(ground.directory.path().join("deep.py"), deep.replace("\n             ", "\n"))
            .unwrap();
        let script = format!("python3 {}", ground.directory.path().join("deep.py").display());
        let error = ground.step_unseen(&ground.base, &script).unwrap_err();
        assert!(matches!(&error, SnapshotError::PathTooLong { .. }), "{error}");
    }

    #[test]
    fn a_step_that_is_not_finished_leaves_nothing() {
        if !can_mount() {
            return;
        }
        let ground = ground("echo a > a");
        let steps = || {
            let names = std::fs::read_dir(ground.snapshotter.workspace.path()).unwrap();
            names
                .filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().starts_with("step"))
                .count()
        };
        let recording = ground.snapshotter.begin(ground.base.clone()).unwrap();
        ground.run_in(recording.mount(), "echo b > b");
        assert_eq!(steps(), 1);
        drop(recording);
        assert_eq!(steps(), 0);
        let kept = ground.step(&ground.base, "echo c > c").unwrap();
        assert_eq!(steps(), 1);
        let view = ground.snapshotter.view(&kept.chain).unwrap();
        assert!(dump(view.root()).contains("\n/c File "), "what a finished step wrote stays");
    }
}
