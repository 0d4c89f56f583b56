//! Every kind of pod builds the same images, each in the strongest way that it allows.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::ground::ground;
use crate::support::oci::LayoutImage;
use crate::support::pod::{self, Access, Pod, Profile, shared_scratch};
use crate::support::{Builder, Finished, finish};

/// How the container comes to run steps in its own root, if it does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InPlace {
    /// Nothing is said about it.
    No,
    /// `--isolation=in-place`.
    Asked,
    /// The image is builder's own.
    OwnImage,
}

/// What becomes of a build.
#[derive(Clone, Copy)]
enum Outcome {
    /// The image that the machine's root builds.
    Same,
    /// An error, with a line on stderr that has all these words.
    Refused(&'static [&'static str]),
}

use InPlace::{Asked, No, OwnImage};
use Outcome::{Refused, Same};

/// Which builds are made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Builds {
    All,
    /// None with Debian, which in place has been in a pod of the same profile.
    Small,
}

/// A pod, and what is expected in it.
struct Row {
    profile: Profile,
    in_place: InPlace,
    strategy: &'static str,
    builds: Builds,
    /// Files are given to many users, and USER is one of them.
    owners: Outcome,
    /// A file gets a capability.
    capability: Outcome,
}

const fn row(profile: Profile, in_place: InPlace, strategy: &'static str) -> Row {
    Row { profile, in_place, strategy, builds: Builds::All, owners: Same, capability: Same }
}

const ROWS: [Row; 12] = [
    // CRI-O gives no CAP_SETFCAP.
    Row { capability: NO_CAPABILITY, ..row(Profile::Crio, Asked, "in-place") },
    row(Profile::Default, No, "chroot"),
    // Devices can neither be made nor mounted, so there is nothing for a /dev.
    row(Profile::HostusersFalse, OwnImage, "in-place"),
    Row { builds: Builds::Small, ..row(Profile::HostusersFalse, Asked, "in-place") },
    Row { builds: Builds::Small, ..row(Profile::Crio, OwnImage, "in-place") },
    row(Profile::Unset, No, "user-namespace"),
    // A user who is not root has one id.
    Row { owners: Refused(&["chown", "Invalid argument"]), ..row(Profile::Rootless, No, "user-namespace") },
    row(Profile::HostusersFalseUnset, No, "user-namespace"),
    row(Profile::HostusersFalseUnmasked, No, "user-namespace"),
    row(Profile::HostusersFalseSysadmin, No, "mount-namespace"),
    row(Profile::Sysadmin, No, "mount-namespace"),
    row(Profile::Privileged, No, "mount-namespace"),
];

const NO_CAPABILITY: Outcome = Refused(&["CAP_SETFCAP", "Operation not permitted"]);

/// The time of everything that a build makes.
const EPOCH: &str = "SOURCE_DATE_EPOCH=1700000000";

/// Build contexts by name, and what their Dockerfiles consist of.
const CONTEXTS: [(&str, &[&str]); 6] = [
    ("debian", &[INSTALL, CAPABILITY, OWNERS]),
    ("capability", &[INSTALL, CAPABILITY]),
    ("owners", &[INSTALL, OWNERS]),
    ("fails", &["FROM {busybox}\nRUN touch /half && mkdir /etc/half && exit 3\n"]),
    ("copy", &[COPY]),
    ("stages", &[STAGES]),
];

/// What is in every context besides.
const FILES: [(&str, &str); 8] = [
    ("package/DEBIAN/control", CONTROL),
    ("package/DEBIAN/postinst", POSTINST),
    ("package/etc/demo.conf", "a = b\n"),
    ("files/one", "1"),
    ("files/sub/two", "2"),
    ("one", "1"),
    ("directory/two", "2"),
    ("file", "content"),
];

const CONTROL: &str = "Package: demo
Version: 1
Architecture: all
Maintainer: Nobody <nobody@example.com>
Description: a package with a script
";

const POSTINST: &str = "#!/bin/sh
set -e
update-alternatives --install /usr/bin/demo demo /bin/echo 10
ldconfig
perl -e 'open my $file, \">\", \"/var/lib/made\"; print $file \"made by perl\\n\"'
";

/// Packages are built and installed, with scripts of theirs.
const INSTALL: &str = "FROM {debian} AS package
COPY package /package
RUN chmod 755 /package/DEBIAN/postinst && dpkg-deb --root-owner-group --build /package /demo.deb
FROM {debian}
RUN --mount=type=bind,from=package,source=/demo.deb,target=/packages/demo.deb \\
    --mount=type=bind,source=libcap2-bin.deb,target=/packages/libcap2-bin.deb \\
    --mount=type=tmpfs,target=/var/cache/ldconfig \\
    dpkg --install /packages/demo.deb /packages/libcap2-bin.deb && \\
    rm /var/log/dpkg.log /var/log/alternatives.log
RUN demo it works >/worked && setcap -h 2>&1 | head -n 1 >>/worked
";

const OWNERS: &str = "ARG SOURCE_DATE_EPOCH
COPY --chown=1234:2345 files /srv/files
RUN useradd --system --create-home --home-dir /var/lib/demo demo
RUN chown -R demo:demo /srv/files/sub && chgrp 7 /etc/debian_version && chmod 2751 /srv/files/sub
USER demo
WORKDIR /var/lib/demo
RUN id -un >who && ! touch /etc/mine && ! cat /etc/shadow && find /srv/files -printf '%p %U:%G %m\\n' >list
";

const CAPABILITY: &str = "RUN cp /bin/true /usr/bin/tool
RUN setcap cap_net_bind_service=+ep /usr/bin/tool && getcap /usr/bin/tool >/capability
";

/// No RUN.
const COPY: &str = "FROM {busybox}
WORKDIR /work
COPY one directory/two ./
COPY --chown=1234:2345 --chmod=2750 directory /work/of
USER 4242:4343
WORKDIR /mine
";

/// Steps whose result depends on nothing but the Dockerfile, times included.
const STAGES: &str = "FROM {busybox} AS base
WORKDIR /dev
WORKDIR /proc
WORKDIR /sys
WORKDIR /
FROM base AS one
RUN mkdir /d && echo hi >/d/f && ln /d/f /d/g && ln -s f /d/l && touch -d @1700000000 /d/f /d
RUN mv /d /e && mv /e /d && rm /d/l && touch -d @1700000000 /d && chmod 4711 /bin/busybox
FROM base AS two
RUN rm -r /home /etc/group && mkdir /home && touch -d @1700000000 /home /etc /
FROM base
COPY --from=one /d /copied
COPY --from=one /d/f /bin/busybox* /once-more/
COPY --from={busybox} /bin /bin-too
COPY --from=two / /two
COPY file /new/
RUN test ! -e /d && test ! -e /new/half && echo more >/more && touch -d @1700000000 /more
RUN --mount=type=tmpfs,target=/t --mount=from=one,target=/one cp /one/d/f /t/f && cat /t/f
RUN rm -r /copied /tmp && mkdir /tmp && chmod 1777 /tmp && touch -d @1700000000 /tmp && ln /more /more-too
RUN true
";

/// Writes all contexts into a directory, with the same times whenever that is.
fn write_contexts(directory: &Path) {
    let ground = ground();
    for (name, parts) in CONTEXTS {
        let context = directory.join(name);
        fs::create_dir(&context).expect("directory");
        let dockerfile = parts.concat().replace("{debian}", &ground.name("debian:latest"));
        let dockerfile = dockerfile.replace("{busybox}", &ground.name("busybox:latest"));
        fs::write(context.join("Dockerfile"), dockerfile).expect("Dockerfile");
        fs::copy(ground.package("libcap2-bin"), context.join("libcap2-bin.deb"))
            .expect("a package of the ground");
        for (file, content) in FILES {
            let path = context.join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
            fs::write(path, content).expect("file");
        }
    }
    let touch = ["-exec", "touch", "-d", "@1600000000", "{}", "+"];
    finish(Command::new("find").arg(directory).args(touch)).success();
}

/// What the machine's root builds of each context.
fn reference(contexts: &Path, out: &Path) {
    let builder = Builder::new();
    for (name, ..) in CONTEXTS.iter().filter(|(name, ..)| *name != "fails") {
        let mut command = builder.command();
        command.args(["--no-push", "--build-arg", EPOCH, "--context"]).arg(contexts.join(name));
        finish(command.arg("--oci-layout-path").arg(out.join(name))).success();
    }
}

#[test]
fn every_pod_builds_what_the_machine_builds() {
    if !pod::available("every_pod_builds_what_the_machine_builds") {
        return;
    }
    let expected = shared_scratch();
    let contexts = expected.path().join("contexts");
    fs::create_dir(&contexts).expect("directory");
    write_contexts(&contexts);
    reference(&contexts, expected.path());
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // Removed at the end, since ext4 takes its time to find a free number for a file where many have just been removed.
    let pods = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(row) = ROWS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (pod, problems) = row.try_all(expected.path());
                    wrong.lock().expect("list").extend(problems);
                    pods.lock().expect("list").push(pod);
                }
            });
        }
    });
    let wrong = wrong.into_inner().expect("list");
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

impl Row {
    fn name(&self) -> String {
        let how = match self.in_place {
            No => "",
            Asked => ", asked for in-place",
            OwnImage => ", own image",
        };
        format!("{:?}{how}", self.profile)
    }

    /// Does all builds in one container; gives the pod, and what is not as expected.
    fn try_all(&self, expected: &Path) -> (Pod, Vec<String>) {
        let mut pod = Pod::new(self.profile).mount(expected.join("contexts"), "/contexts", Access::ReadOnly);
        if self.in_place == OwnImage {
            pod = pod.own_image();
        }
        let builds = self.builds();
        let lines: Vec<_> = builds.iter().map(|(context, output, _)| self.command(context, output)).collect();
        let mut commands = vec![vec!["builder", "doctor"], vec!["builder", "doctor", "--output=json"]];
        commands.extend(lines.iter().map(|line| line.iter().map(String::as_str).collect()));
        let commands: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
        let mut finished = pod.run_all(&commands).into_iter();
        let mut wrong = Vec::new();
        let doctor = [(); 2].map(|()| finished.next().expect("doctor"));
        wrong.extend(self.judge_doctor(&doctor).map(|problem| format!("{}: {problem}", self.name())));
        for ((context, output, outcome), finished) in builds.into_iter().zip(finished) {
            let layout = pod.data().join("out").join(output);
            let problems = self.judge(&finished, outcome, &layout, &expected.join(context));
            if !problems.is_empty() {
                wrong.push(format!(
                    "{}: {output}: {}\n{}",
                    self.name(),
                    problems.join("; "),
                    finished.stderr
                ));
            }
        }
        (pod, wrong)
    }

    /// The contexts in order, where the image goes, and what becomes of it.
    fn builds(&self) -> Vec<(&'static str, &'static str, Outcome)> {
        let mut builds = match (self.builds, self.owners, self.capability) {
            (Builds::Small, ..) => Vec::new(),
            (Builds::All, Same, Same) => vec![("debian", "debian", Same)],
            (Builds::All, owners, capability) => {
                vec![("owners", "owners", owners), ("capability", "capability", capability)]
            }
        };
        builds.extend([
            ("fails", "fails", Refused(&["Dockerfile:2"])),
            ("copy", "copy", Same),
            ("stages", "stages", Same),
            ("stages", "once-more", Same),
        ]);
        builds
    }

    fn command(&self, context: &str, output: &str) -> Vec<String> {
        let mut words =
            ["builder", "--verbosity=debug", "--no-push", "--build-arg", EPOCH].map(str::to_owned).to_vec();
        words.push(format!("--context=/contexts/{context}"));
        words.push(format!("--oci-layout-path=/data/out/{output}"));
        if self.in_place == Asked {
            words.push("--isolation=in-place".to_owned());
        }
        if output == "once-more" {
            words.push("--no-cache".to_owned());
        }
        words
    }

    /// What is wrong with what doctor says, as text or as JSON: nothing is selected where in-place had to be asked for.
    fn judge_doctor(&self, doctor: &[Finished; 2]) -> Option<String> {
        let [text, json] = doctor;
        let selected = (self.in_place != Asked).then_some(self.strategy);
        let marked = text.stdout.lines().find_map(|line| line.strip_prefix("* ")?.split(' ').next());
        let reported = serde_json::from_str::<Value>(&json.stdout)
            .map(|report| report["isolation"]["selected"].as_str().map(str::to_owned));
        // Its code says whether a RUN works without a word from the user.
        let code = Some(i32::from(selected.is_none()));
        let right = marked == selected
            && reported.is_ok_and(|reported| reported.as_deref() == selected)
            && doctor.iter().all(|doctor| doctor.code == code);
        (!right).then(|| format!("doctor: {doctor:#?}"))
    }

    /// What is wrong with a build.
    fn judge(&self, finished: &Finished, outcome: Outcome, layout: &Path, expected: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        if !finished.says(&["isolation: ", self.strategy]) {
            wrong.push(format!("it does not say `{}`", self.strategy));
        }
        match outcome {
            Refused(words) if finished.code == Some(0) => wrong.push(format!("no {words:?}")),
            Refused(words) if !finished.says(words) => wrong.push(format!("nothing says {words:?}")),
            Refused(_) => {}
            Same if finished.code != Some(0) => wrong.push(format!("exit code {:?}", finished.code)),
            Same => wrong.extend(same(expected, layout).err()),
        }
        wrong
    }
}

/// Whether two images have the same files and the same config. Times of files that a RUN writes are those of the day; where
/// none are, everything is the same.
fn same(expected: &Path, found: &Path) -> Result<(), String> {
    let images = [expected, found].map(LayoutImage::only);
    let without_layers = |image: &LayoutImage| -> Value {
        let mut config = image.raw_config.clone();
        config["rootfs"].take();
        config
    };
    let [one, other] = images.each_ref().map(without_layers);
    if one != other {
        return Err(format!("config {one:#} expected, not {other:#}"));
    }
    let [one, other] = images.each_ref().map(|image| image.config.rootfs().diff_ids());
    if one.len() != other.len() {
        return Err(format!("{} layers expected, not {}", one.len(), other.len()));
    }
    let timeless = expected.ends_with("copy") || expected.ends_with("stages");
    for layer in (0..one.len()).filter(|layer| one[*layer] != other[*layer]) {
        let [one, other] = [(&images[0], expected), (&images[1], found)]
            .map(|(image, layout)| image.facts_of_layer(layout, layer));
        if one != other {
            let only = |these: &[String], those: &[String]| -> String {
                these.iter().filter(|line| !those.contains(line)).map(|line| format!("  {line}\n")).collect()
            };
            let (missing, added) = (only(&one, &other), only(&other, &one));
            return Err(format!("layer {layer}: expected\n{missing}but found\n{added}"));
        }
        if timeless {
            return Err(format!("layer {layer}: other times"));
        }
    }
    Ok(())
}
