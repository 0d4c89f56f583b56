//! Equal bytes from equal input, whatever is different around the build.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::fake_registry::Answer;
use crate::support::ground::ground;
use crate::support::oci::{LayoutImage, raw_manifest};
use crate::support::web::{MODIFIED_SECONDS, Site};
use crate::support::{Builder, Context, finish, scratch};

/// What the archive of the context says of its older file.
const OLD: u64 = 1_000_000_000;

/// Between the times of the two files of the archive.
const EPOCH: u64 = 1_500_000_000;

/// Later than everything: what was done before it is, but for the archive's newer file, older.
const LATER: u64 = 4_102_444_800;

/// A context that was written just now, so that its times are others each time: files, links, a capability, an archive.
fn context() -> Context {
    let base = ground().name("busybox:latest");
    let context = Context::new(&format!(
        "FROM {base} AS made\n\
         WORKDIR /by/workdir\n\
         RUN mkdir -p /many/deep/er && cd /many && for i in $(seq 1 200); do echo $i >$i; done && \
             ln 1 link && ln 1 deep/er/link && ln -s 1 symlink && mkfifo fifo && chown 1000:1001 2 && \
             chmod 4755 3 && chmod 777 deep\n\
         RUN mv /many/5 /many/five && rm /many/6 && ln /many/7 /many/deep/seven && rm -r /many/deep/er\n\
         FROM {base}\n\
         COPY file directory /copied/\n\
         COPY --chown=7:8 --chmod=640 file /copied/other\n\
         ADD archive.tar /added/\n\
         COPY --from=made /many /many\n\
         COPY --link directory /linked/\n\
         COPY <<EOF /here/document\n\
         text\n\
         EOF\n\
         RUN touch /now && rm /copied/file && date >/dev/null\n\
         RUN --mount=type=bind,target=/context cp -r /context/directory /taken\n\
         WORKDIR /made/by/workdir\n\
         RUN true\n\
         ENV a=b\n"
    ));
    context.write("file", "content");
    for number in 0..50 {
        context.write(&format!("directory/{}/{number}", number % 7), format!("{number}"));
    }
    fs::hard_link(context.path().join("directory/1/1"), context.path().join("directory/2/link"))
        .expect("link");
    // A capability that files may have everywhere: cap_net_bind_service.
    let capability = b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let flags = rustix::fs::XattrFlags::empty();
    let file = context.path().join("directory/3/3");
    if let Err(error) = rustix::fs::setxattr(&file, "security.capability", capability, flags) {
        eprintln!("without a capability: {error}");
    }
    context.write("archive.tar", archive());
    context
}

fn archive() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, mtime) in [("old", OLD), ("directory/new", 2_000_000_000)] {
        let mut header = tar::Header::new_ustar();
        header.set_size(4);
        header.set_mode(0o600);
        header.set_mtime(mtime);
        builder.append_data(&mut header, name, &b"text"[..]).expect("entry");
    }
    builder.into_inner().expect("archive")
}

/// How one build differs from the others.
#[derive(Default)]
struct Around<'a> {
    flags: &'a [&'a str],
    umask: &'a str,
    zone: &'a str,
    epoch: Option<u64>,
}

/// Builds; gives what was printed, and the image.
fn build(builder: &Builder, around: &Around<'_>) -> (String, LayoutImage, tempfile::TempDir) {
    let (context, out) = (context(), scratch());
    let umask = if around.umask.is_empty() { "022" } else { around.umask };
    let mut shell = Command::new("sh");
    shell.args(["-euc", &format!("umask {umask}; exec \"$@\""), "sh"]);
    let command = builder.command();
    shell.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.arg(command.get_program()).arg("--context").arg(context.path());
    shell
        .args(["--no-push", "--custom-platform=linux/amd64", "--oci-layout-path"])
        .arg(out.path().join("layout"));
    if !around.zone.is_empty() {
        shell.env("TZ", around.zone);
    }
    if let Some(epoch) = around.epoch {
        shell.env("SOURCE_DATE_EPOCH", epoch.to_string());
    }
    let finished = finish(shell.current_dir(context.path()).args(around.flags)).success();
    let image = LayoutImage::only(&out.path().join("layout"));
    (finished.stdout, image, out)
}

/// What differs between two images, for people.
fn difference(
    one: &(String, LayoutImage, tempfile::TempDir),
    other: &(String, LayoutImage, tempfile::TempDir),
) -> String {
    let times = |layout: &Path, image: &LayoutImage| {
        let layers = image.layer_entries(layout).into_iter();
        let lines =
            layers.map(|layer| layer.iter().map(|entry| format!("{} {}", entry.path, entry.mtime)).collect());
        lines.collect::<Vec<Vec<String>>>()
    };
    let [one, other] = [one, other].map(|(_, image, out)| {
        let layout = out.path().join("layout");
        (image.raw_config.clone(), image.layer_facts(&layout), times(&layout, image))
    });
    let mut text = format!("{}\n{}\n", one.0, other.0);
    for (number, (one, other)) in one.1.iter().chain(&one.2).zip(other.1.iter().chain(&other.2)).enumerate() {
        for line in one.iter().filter(|line| !other.contains(line)) {
            text.push_str(&format!("{number} < {line}\n"));
        }
        for line in other.iter().filter(|line| !one.contains(line)) {
            text.push_str(&format!("{number} > {line}\n"));
        }
    }
    text
}

/// The layers of busybox as its manifest has them.
fn base_layers() -> Vec<String> {
    let ground = ground();
    let index = raw_manifest(&ground.name("busybox:latest"));
    let entries = index["manifests"].as_array().expect("index").iter();
    let mut amd64 = entries.filter(|entry| entry["platform"]["architecture"] == "amd64");
    let digest = amd64.next().expect("amd64")["digest"].as_str().expect("digest").to_owned();
    let manifest = raw_manifest(&format!("{}@{digest}", ground.name("busybox")));
    let layers = manifest["layers"].as_array().expect("layers").iter();
    layers.map(|layer| layer["digest"].as_str().expect("digest").to_owned()).collect()
}

/// All ways to build give the same; returns one.
fn same_whatever_is_around(flags: &[&str], epoch: Option<u64>) -> (LayoutImage, tempfile::TempDir) {
    let builder = Builder::new();
    let usual = Around { flags, epoch, ..Around::default() };
    let first = build(&builder, &usual);
    let with = |more: &[&'static str]| [flags, more].concat();
    let check = |what: &str, builder: &Builder, around: &Around<'_>| {
        let again = build(builder, around);
        assert!(first.0 == again.0, "{what}: {}", difference(&first, &again));
    };
    check("warm store", &builder, &usual);
    check("cold store", &Builder::new(), &usual);
    check(
        "umask 000, one job",
        &Builder::new(),
        &Around { flags: &with(&["--jobs=1"]), umask: "000", ..usual },
    );
    let eight = with(&["--jobs=8", "--snapshotter=native"]);
    check(
        "umask 077, eight jobs, native, another zone",
        &Builder::new(),
        &Around { flags: &eight, umask: "077", zone: "Pacific/Auckland", ..usual },
    );
    check("overlayfs", &Builder::new(), &Around { flags: &with(&["--snapshotter=overlayfs"]), ..usual });
    check("weaker isolation", &Builder::new(), &Around { flags: &with(&["--isolation=chroot"]), ..usual });
    // What another form has left in the store makes no difference.
    let mixed = Builder::new();
    build(&mixed, &Around { flags: &["--compression=zstd", "--compression-level=1"], ..Around::default() });
    check("other form in the store", &mixed, &usual);
    (first.1, first.2)
}

#[test]
fn reproducible_images_are_the_same_bit_for_bit() {
    let (image, out) = same_whatever_is_around(&["--reproducible"], None);
    let epoch = Value::from("1970-01-01T00:00:00Z");
    assert_eq!(image.raw_config["created"], epoch);
    let rows = image.raw_config["history"].as_array().expect("history");
    let own = rows.iter().filter(|row| row["comment"] == "buildkit.dockerfile.v0");
    assert!(own.clone().count() > 8 && own.clone().all(|row| row["created"] == epoch), "{rows:?}");
    let base = base_layers();
    let layers: Vec<String> =
        image.manifest.layers().iter().map(|layer| layer.digest().to_string()).collect();
    assert_eq!(layers[..base.len()], base);
    for layer in &image.layer_entries(&out.path().join("layout"))[base.len()..] {
        assert!(layer.iter().all(|entry| entry.mtime == 0), "{layer:?}");
    }
    for layer in &image.manifest.layers()[base.len()..] {
        let annotations = layer.annotations().as_ref().expect("annotations");
        assert_eq!(annotations["buildkit/rewritten-timestamp"], "0");
        assert_eq!(annotations.len(), 1);
    }
}

#[test]
fn every_time_is_the_epoch_whatever_the_store_remembers() {
    let flags = ["--reproducible", "--compression=zstd"];
    let (image, out) = same_whatever_is_around(&flags, Some(EPOCH));
    assert_eq!(image.raw_config["created"], "2017-07-14T02:40:00Z");
    let base = base_layers().len();
    let layers = image.layer_entries(&out.path().join("layout"));
    assert!(layers[base..].iter().flatten().all(|entry| entry.mtime == EPOCH));
    let own = &image.manifest.layers()[base..];
    assert!(own.iter().all(|layer| layer.media_type().to_string().ends_with("tar+zstd")));
    // The epoch goes on, as that of the last commit does: what was built before it is found, and looks as if built now.
    let later = Around { flags: &flags, epoch: Some(LATER), ..Around::default() };
    let (used, fresh) = (Builder::new(), Builder::new());
    build(&used, &Around { flags: &flags, epoch: Some(EPOCH), ..Around::default() });
    build(&used, &Around { epoch: Some(EPOCH), ..Around::default() });
    let (found, made) = (build(&used, &later), build(&fresh, &later));
    assert!(found.0 == made.0, "{}", difference(&found, &made));
    assert_eq!(found.1.raw_config["created"], "2100-01-01T00:00:00Z");
}

#[test]
fn the_epoch_may_be_the_time_of_something_elsewhere() {
    let dated = |path: &str, answer: fn() -> Answer| (path.to_owned(), answer);
    let own = [
        dated("/archive.tar", || Answer::new(200).body(archive())),
        dated("/dated.tar", || {
            Answer::new(200).with("Last-Modified", "Thu, 01 Jan 1970 00:01:40 GMT").body(archive())
        }),
    ];
    let answers = move |path: &str| own.iter().find(|(known, _)| known == path).map(|(_, answer)| answer());
    let Some(site) = Site::start_with(move |seen| answers(&seen.path)) else { return };
    let builder = Builder::new();
    let seconds = |epoch: &str, flags: &[&str]| {
        let stages = ["hello.txt", "archive.tar", "dated.tar", "nolm", "repo.git#v1"].map(|path| {
            let name: String = path.chars().filter(char::is_ascii_alphanumeric).collect();
            format!("FROM scratch AS {name}\nARG A\nADD {} /\n", site.url(path))
        });
        let context = Context::new(&format!("{}FROM scratch\nCOPY Dockerfile /\n", stages.concat()));
        let out = scratch();
        let epoch = format!("--build-arg=SOURCE_DATE_EPOCH={epoch}");
        let flags = [&[epoch.as_str()], flags].concat();
        builder.layout(&context, &out.path().join("layout"), &flags).success();
        let created = LayoutImage::only(&out.path().join("layout")).raw_config["created"].clone();
        let time: jiff::Timestamp = created.as_str().expect("time").parse().expect("a time");
        time.as_second()
    };
    let context_flag = |name: &str| format!("--build-context=c={}", site.url(name));
    for (epoch, flags, expected) in [
        ("hellotxt", &[][..], MODIFIED_SECONDS),
        ("archivetar", &[], 2_000_000_000),
        ("datedtar", &[], 100),
        ("repogitv1", &[], 1_700_000_000),
        ("c", &[&context_flag("hello.txt")[..]], MODIFIED_SECONDS),
        ("c", &[&context_flag("archive.tar")], 2_000_000_000),
        ("c", &[&context_flag("repo.git")], 1_700_000_000),
        ("c", &["--build-context=c=target:hellotxt"], MODIFIED_SECONDS),
        ("nolm", &["--reproducible"], 0),
        ("c", &["--build-context=c=.", "--reproducible"], 0),
        ("context", &["--reproducible"], 0),
        ("", &["--reproducible"], 0),
    ] {
        assert_eq!(seconds(epoch, flags), expected, "{epoch} {flags:?}");
    }
    for (epoch, flags) in [("nolm", &[][..]), ("context", &[]), ("c", &["--build-context=c=."])] {
        assert!(seconds(epoch, flags) > 1_700_000_000, "{epoch} has no time");
    }
    let context = Context::new("FROM scratch\n");
    let flags = ["--build-arg=SOURCE_DATE_EPOCH=c", &context_flag("gone")];
    let finished = builder.layout(&context, &scratch().path().join("layout"), &flags).exited(1);
    assert!(finished.says(&["SOURCE_DATE_EPOCH: cannot tell when", "/gone"]), "{}", finished.stderr);
}
