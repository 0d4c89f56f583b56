//! What comes out of a build: a list of outputs, which all flags about them become.

mod annotations;
mod keys;
mod output;
mod places;
mod publish;
mod reports;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use super::args::BuildArgs;
use super::failure::Failure;
use super::settings::Purpose;
use super::snapshotter::word;
use crate::build::clock::Clock;
use crate::dockerfile::parse_bool;
use crate::image::encoding::{Encoding, ForeignLayers, TypeNames};
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::layer::form::{Compression, Converted, FormError, LayerForm, Times};
use crate::rootfs::{Others, Timestamp};
use crate::store::export::Readers;

use annotations::{Annotation, Annotations};
use keys::{FLAG, Fields, Type};
use output::{Dest, ImageForm, Kind, Output, PushedAs};

pub(super) use places::{check_not_private, check_outputs, hide_outputs};
pub(super) use publish::Publishing;
pub(super) use reports::Report;

/// Everything that comes out of a build.
#[derive(Debug)]
pub(super) struct Outputs {
    /// In the order in which they were asked for.
    list: Vec<Output>,
    /// Files that say what came out.
    reports: Vec<Report>,
    /// What an image is like of which nothing was said.
    usual: ImageForm,
    /// Names that the image has.
    names: Vec<Reference>,
    /// The names that are no more than names, which somebody might have expected to be pushed to.
    unpushed: Vec<Reference>,
    /// Registries of outputs that want plain HTTP.
    pub(super) insecure: Vec<String>,
}

impl Outputs {
    /// Turns all flags about outputs into a list. The images are for `platforms`.
    pub(super) fn resolve(
        args: &BuildArgs,
        platforms: &[Platform],
        purpose: Purpose,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Failure> {
        refuse_attestations(args)?;
        if args.load {
            return Err(Failure::new("--load: there is no daemon to load the image into").hint(
                "write an archive with `-o type=docker,dest=image.tar`, and `docker load -i image.tar`",
            ));
        }
        let names = destinations(&args.destination)?;
        let shared =
            args.annotation.iter().map(|text| Annotation::of_flag(text)).collect::<Result<Vec<_>, _>>()?;
        let shared: Vec<Annotation> = shared.into_iter().flatten().collect();
        let types = type_names(args)?;
        let usual = ImageForm {
            encoding: Encoding { types, foreign: ForeignLayers::Ordinary },
            layers: layer_form(args)?,
            converted: Converted::Own,
            times: if args.reproducible { Times::Replaced } else { Times::Kept },
            epoch: None,
            annotations: Annotations::of(&shared, platforms)?,
        };
        let mut outputs = Self {
            list: Vec::new(),
            reports: Report::all(args),
            usual,
            names,
            unpushed: Vec::new(),
            insecure: Vec::new(),
        };
        for text in &args.output {
            let fields = Fields::parse(text, warnings)?;
            let annotations = Annotations::of(fields.annotations.iter().chain(&shared), platforms)?;
            outputs.add(&fields, annotations, platforms)?;
        }
        outputs.add_kanikos(args, platforms, warnings);
        outputs.add_pushes(args, purpose)?;
        outputs.check(args, purpose)?;
        if purpose == Purpose::Plan {
            warnings.extend(without_effect(args));
        }
        Ok(outputs)
    }

    /// The form in which layers are written while it is built: that of the first image. Others are made of it.
    pub(super) fn written_form(&self, clock: Clock) -> LayerForm {
        let first = self.list.iter().find_map(Output::image).unwrap_or(&self.usual);
        first.layers(clock).written_form()
    }

    /// The files and directories to write, each with its flag.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&str, &Path)> {
        let outputs = self.list.iter().flat_map(|output| {
            let paths = output.path().into_iter().chain(output.directories().iter().map(PathBuf::as_path));
            paths.map(|path| (&*output.flag, path))
        });
        outputs.chain(self.reports.iter().map(|report| (report.flag(), report.path())))
    }

    /// Where the image is pushed to.
    pub(super) fn destinations(&self) -> impl Iterator<Item = (&str, &Reference)> {
        self.list.iter().flat_map(|output| {
            let names = match &output.kind {
                Kind::Push { names, .. } => &names[..],
                _ => &[],
            };
            names.iter().map(|name| (&*output.flag, name))
        })
    }

    fn add(
        &mut self,
        fields: &Fields,
        annotations: Annotations,
        platforms: &[Platform],
    ) -> Result<(), Failure> {
        let kind = match fields.kind {
            Type::CacheOnly => return Ok(()),
            Type::Image | Type::Registry => self.registry(fields, annotations)?,
            Type::Docker if platforms.len() > 1 => {
                return Err(Failure::new(
                    "docker exporter does not currently support exporting manifest lists",
                )
                .of_flag(&format!("{FLAG} {}", fields.text))
                .hint("write an OCI layout or archive, type=oci, or build for one platform"));
            }
            Type::Oci | Type::Docker => {
                let (names, form) = self.image(fields, annotations)?;
                let readers = if fields.kind == Type::Oci { Readers::Oci } else { Readers::Docker };
                if fields.flag("tar")? == Some(false) {
                    Kind::Layout { dest: directory(fields)?, readers, names, form }
                } else {
                    Kind::Archive { dest: stream(fields)?, readers, names, form }
                }
            }
            Type::Local => {
                let below = below(fields, platforms)?;
                let modes = [("copy", Others::Kept), ("delete", Others::Removed)];
                let others = word(FLAG, "mode of type=local", fields.get("mode").unwrap_or("copy"), &modes)?;
                let dest = directory(fields)?;
                let trees = match below.is_empty() {
                    true => vec![dest.clone()],
                    false => below.iter().map(|name| dest.join(name)).collect(),
                };
                Kind::Directory { dest, trees, others }
            }
            Type::Tar => {
                let below = below(fields, platforms)?;
                Kind::Tar { dest: stream(fields)?, below }
            }
        };
        self.list.push(Output { flag: format!("{FLAG} {}", fields.text), kind });
        Ok(())
    }

    fn registry(&mut self, fields: &Fields, annotations: Annotations) -> Result<Kind, Failure> {
        let (names, form) = self.image(fields, annotations)?;
        let pushed = fields.flag("push")?.unwrap_or(fields.kind == Type::Registry);
        let by = if fields.flag("push-by-digest")? == Some(true) { PushedAs::Digest } else { PushedAs::Tag };
        if fields.flag("registry.insecure")? == Some(true) {
            self.insecure.extend(names.iter().map(|name| name.registry().to_owned()));
        }
        if !pushed {
            return Ok(Kind::Stored { names, form, by });
        }
        if names.is_empty() {
            return Err(Failure::new(format!("{FLAG} {}: there is no name to push to", fields.text))
                .hint("add `name=NAME` to it, or --tag NAME"));
        }
        Ok(Kind::Push { names, form, by })
    }

    /// The names of an image, and what it is to be like.
    fn image(
        &self,
        fields: &Fields,
        annotations: Annotations,
    ) -> Result<(Vec<Reference>, ImageForm), Failure> {
        let names = match fields.filled("name") {
            None => self.names.clone(),
            Some(list) => {
                let names: Vec<String> = list.split(',').map(|name| name.trim().to_owned()).collect();
                references(&names, FLAG)?
            }
        };
        let usual = &self.usual;
        let types = match fields.flag("oci-mediatypes")? {
            Some(true) => TypeNames::Oci,
            Some(false) => TypeNames::Docker,
            None => usual.encoding.types,
        };
        let foreign = match fields.flag("prefer-nondist-layers")? {
            Some(true) => ForeignLayers::Kept,
            _ => ForeignLayers::Ordinary,
        };
        let of_form = |error: &FormError| Failure::from_error(error).of_flag(FLAG);
        let compression: Compression = match fields.filled("compression") {
            Some(text) => text.parse().map_err(|error| of_form(&error))?,
            None => usual.layers.compression(),
        };
        let layers = match (fields.filled("compression"), fields.filled("compression-level")) {
            (None, None) => usual.layers,
            (_, level) => LayerForm::new(compression, level).map_err(|error| of_form(&error))?,
        };
        let converted = match fields.flag("force-compression")? {
            Some(true) => Converted::All,
            _ => usual.converted,
        };
        let times = match fields.flag("rewrite-timestamp")? {
            Some(true) => Times::Lowered,
            Some(false) => Times::Kept,
            None => usual.times,
        };
        let encoding = Encoding { types, foreign };
        let form = ImageForm { encoding, layers, converted, times, epoch: epoch(fields)?, annotations };
        Ok((names, form))
    }

    /// kaniko's flags for files. Where several images come out, `docker load` with its older store can read no archive of them.
    fn add_kanikos(&mut self, args: &BuildArgs, platforms: &[Platform], warnings: &mut Vec<String>) {
        if args.tar_path.is_some() && platforms.len() > 1 {
            warnings.push(
                "--tar-path: of several platforms the archive has no manifest.json: `docker load` reads it only with \
                 the containerd image store"
                    .to_owned(),
            );
        }
        let (names, form) = (&self.names, &self.usual);
        let layout = args.oci_layout_path.as_ref().map(|dest| Output {
            flag: "--oci-layout-path".to_owned(),
            kind: Kind::Layout {
                dest: dest.clone(),
                readers: Readers::Oci,
                names: names.clone(),
                form: form.clone(),
            },
        });
        // To kaniko, `-` is a file of that name.
        let archive = args.tar_path.as_ref().map(|path| Output {
            flag: "--tar-path".to_owned(),
            kind: Kind::Archive {
                dest: Dest::of(path),
                readers: if platforms.len() > 1 { Readers::Oci } else { Readers::Docker },
                names: names.clone(),
                form: form.clone(),
            },
        });
        self.list.extend(layout.into_iter().chain(archive));
    }

    /// What is pushed without an output that says so: for kaniko, all names, unless there is --no-push; for docker, only
    /// with --push. Who gives -o has docker's rules.
    fn add_pushes(&mut self, args: &BuildArgs, purpose: Purpose) -> Result<(), Failure> {
        let is_push = |output: &Output| matches!(output.kind, Kind::Push { .. });
        if args.no_push {
            if args.push {
                return Err(Failure::new("--push and --no-push cannot both be"));
            }
            if let Some(output) = self.list.iter().find(|output| is_push(output)) {
                return Err(Failure::new(format!("{}: it pushes, and --no-push forbids that", output.flag)));
            }
            return Ok(());
        }
        if !args.push && !args.output.is_empty() {
            self.unpushed = self.not_pushed();
            return Ok(());
        }
        for output in self.list.iter_mut().filter(|_| args.push) {
            if let Kind::Stored { names, form, by } = &output.kind
                && !names.is_empty()
            {
                output.kind = Kind::Push { names: names.clone(), form: form.clone(), by: *by };
            }
        }
        let names = self.not_pushed();
        if names.is_empty() && self.list.iter().any(is_push) {
            return Ok(());
        }
        if !names.is_empty() {
            let flag = if args.push { "--push" } else { "--destination" };
            let form = self.usual.clone();
            let kind = Kind::Push { names, form, by: PushedAs::Tag };
            self.list.push(Output { flag: flag.to_owned(), kind });
            return Ok(());
        }
        match (args.push, purpose) {
            (_, Purpose::Plan) => Ok(()),
            (true, Purpose::Build) => {
                Err(Failure::new("--push: there is no name to push to").hint("add --tag NAME"))
            }
            (false, Purpose::Build) => Err(Failure::new("there is no destination to push to")
                .hint("add --destination NAME, --no-push, or -o DIR for the files")),
        }
    }

    /// The image's names that no output pushes.
    fn not_pushed(&self) -> Vec<Reference> {
        let pushed: Vec<&Reference> = self.destinations().map(|(_, name)| name).collect();
        self.names.iter().filter(|name| !pushed.contains(name)).cloned().collect()
    }

    /// What can be found wrong with the list as a whole.
    fn check(&self, args: &BuildArgs, purpose: Purpose) -> Result<(), Failure> {
        let mut tags: Vec<(&str, &Reference)> = Vec::new();
        for output in &self.list {
            let Kind::Push { names, by: PushedAs::Tag, .. } = &output.kind else { continue };
            for name in names {
                if let Some((other, _)) =
                    tags.iter().find(|(flag, known)| *known == name && *flag != output.flag)
                {
                    return Err(Failure::new(format!(
                        "{}: `{}` also pushes {}, and a name has one image",
                        output.flag,
                        other,
                        name.familiar()
                    ))
                    .hint("give one of them another `name`"));
                }
                tags.push((&output.flag, name));
            }
        }
        let mut streamed = self.list.iter().filter(|output| output.is_streamed());
        if let Some(first) = streamed.next() {
            if let Some(second) = streamed.next() {
                return Err(Failure::new(format!(
                    "{}: standard output already has that of `{}`",
                    second.flag, first.flag
                )));
            }
            if purpose == Purpose::Build && std::io::stdout().is_terminal() {
                return Err(Failure::new(format!(
                    "{}: a file is required, refusing to write to the terminal",
                    first.flag
                ))
                .hint(
                    "name one (`dest=FILE`, `--tar-path FILE`), or send standard output to a file or program",
                ));
            }
        }
        for (flag, list) in [
            ("--image-name-with-digest-file", &args.image_name_with_digest_file),
            ("--image-name-tag-with-digest-file", &args.image_name_tag_with_digest_file),
        ] {
            if list.is_some() && self.named().next().is_none() {
                return Err(Failure::new("there is no name of an image")
                    .of_flag(flag)
                    .hint("add --destination NAME"));
            }
        }
        Ok(())
    }

    /// All names of images.
    fn named(&self) -> impl Iterator<Item = &Reference> {
        self.names.iter().chain(self.destinations().map(|(_, name)| name))
    }
}

/// What is said of flags about what comes out where nothing does: the command line may be that of a build.
fn without_effect(args: &BuildArgs) -> Option<String> {
    let flags = [
        (FLAG, !args.output.is_empty()),
        ("--destination", !args.destination.is_empty()),
        ("--push", args.push),
        ("--oci-layout-path", args.oci_layout_path.is_some()),
        ("--tar-path", args.tar_path.is_some()),
        ("--digest-file", args.digest_file.is_some()),
        ("--iidfile", args.iidfile.is_some()),
        ("--metadata-file", args.metadata_file.is_some()),
        ("--image-name-with-digest-file", args.image_name_with_digest_file.is_some()),
        ("--image-name-tag-with-digest-file", args.image_name_tag_with_digest_file.is_some()),
    ];
    let given: Vec<&str> = flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag).collect();
    let verb = match given.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    Some(format!(
        "{} {verb} no effect: nothing is built here that could be pushed or written",
        given.join(", ")
    ))
}

/// What comes in a later version is refused by its name; that it is not wanted is fine.
fn refuse_attestations(args: &BuildArgs) -> Result<(), Failure> {
    let given = [("--provenance", &args.provenance), ("--sbom", &args.sbom)];
    for (flag, value) in given {
        let is_off = |text: &String| parse_bool(text) == Some(false) || text == "disabled=true";
        if value.as_ref().is_some_and(|text| !is_off(text)) {
            return Err(Failure::new("attestations are not supported yet")
                .of_flag(flag)
                .hint(format!("leave it out, or say {flag}=false")));
        }
    }
    if args.attest.iter().any(|text| !text.split(',').any(|field| field == "disabled=true")) {
        return Err(Failure::new("attestations are not supported yet")
            .of_flag("--attest")
            .hint("leave it out"));
    }
    Ok(())
}

fn type_names(args: &BuildArgs) -> Result<TypeNames, Failure> {
    let Some(text) = &args.image_format else { return Ok(TypeNames::Oci) };
    let formats = [("oci", TypeNames::Oci), ("docker", TypeNames::Docker)];
    word("--image-format", "image format", text, &formats)
}

/// As kaniko has it, the level -1 is the usual one.
fn layer_form(args: &BuildArgs) -> Result<LayerForm, Failure> {
    let named = args.compression.as_deref().filter(|name| !name.is_empty());
    let compression: Result<Compression, _> =
        named.map(str::parse).transpose().map(Option::unwrap_or_default);
    let compression = compression.map_err(|error| Failure::from_error(&error).of_flag("--compression"))?;
    let level = args.compression_level.as_deref().filter(|level| *level != "-1");
    LayerForm::new(compression, level)
        .map_err(|error| Failure::from_error(&error).of_flag("--compression-level"))
}

/// Names that a build can give.
fn references(names: &[String], flag: &str) -> Result<Vec<Reference>, Failure> {
    let mut references = Vec::with_capacity(names.len());
    for name in names {
        let reference: Reference = name.parse().map_err(|error| Failure::from_error(&error).of_flag(flag))?;
        if reference.digest().is_some() {
            return Err(Failure::new(format!(
                "`{name}` is no destination: it has a digest, which only the build can tell"
            ))
            .hint("give the name with a tag or without anything"));
        }
        references.push(reference);
    }
    Ok(references)
}

/// `--destination`.
fn destinations(names: &[String]) -> Result<Vec<Reference>, Failure> {
    references(names, "--destination")
}

/// `dest` of what is a directory.
fn directory(fields: &Fields) -> Result<PathBuf, Failure> {
    let kind = fields.kind.name();
    match fields.filled("dest") {
        None => Err(Failure::new(format!("dest is required for type={kind}: the name of a directory"))
            .of_flag(FLAG)
            .hint("for instance `dest=out`")),
        Some("-") => {
            Err(Failure::new(format!("type={kind} is a directory, which standard output cannot be"))
                .of_flag(FLAG)
                .hint("`-o -` writes a tar archive to standard output"))
        }
        Some(path) => Ok(PathBuf::from(path)),
    }
}

/// `dest` of what is one stream.
fn stream(fields: &Fields) -> Result<Dest, Failure> {
    match (fields.filled("dest"), fields.kind) {
        (Some(dest), _) => Ok(Dest::of(Path::new(dest))),
        (None, Type::Docker) => {
            Err(Failure::new("type=docker without dest: there is no daemon to load the image into")
                .of_flag(FLAG)
                .hint("write an archive with `dest=image.tar`, and `docker load -i image.tar`"))
        }
        (None, _) => Ok(Dest::StandardOutput),
    }
}

/// The names of the directories for the files of platforms, in their order; none where there is one platform, or where
/// `platform-split=false` wants all files in one directory.
fn below(fields: &Fields, platforms: &[Platform]) -> Result<Vec<String>, Failure> {
    let failed = |message: String| Failure::new(message).of_flag(FLAG);
    if let Some(platform) = platforms.iter().find(|platform| platform.os == "windows") {
        return Err(failed(format!("the layers of {platform} are no root file system"))
            .hint("write an image, for instance with type=oci"));
    }
    match (fields.flag("platform-split")?, platforms.len() > 1) {
        (Some(false), _) | (None, false) => return Ok(Vec::new()),
        (Some(true), _) | (None, true) => {}
    }
    // As BuildKit calls them.
    let names: Vec<String> =
        platforms.iter().map(|platform| platform.to_string().replace('/', "_")).collect();
    let twice = names.iter().enumerate().find(|(position, name)| names[..*position].contains(name));
    match twice {
        Some((_, name)) => Err(failed(format!("two platforms would have the directory `{name}`"))),
        None => Ok(names),
    }
}

/// `source-date-epoch`, in seconds since 1970.
fn epoch(fields: &Fields) -> Result<Option<i64>, Failure> {
    let Some(text) = fields.filled("source-date-epoch") else { return Ok(None) };
    let seconds = text.parse().ok().filter(|seconds| Clock::fixed(*seconds).is_some());
    match seconds {
        Some(seconds) => Ok(Some(seconds)),
        None => {
            Err(Failure::new(format!("invalid source-date-epoch: `{text}`, expected seconds since 1970"))
                .of_flag(FLAG))
        }
    }
}

/// The time that all files of an exported root file system get.
fn time_of(clock: Clock) -> Option<Timestamp> {
    match clock {
        Clock::Fixed(_) => Some(clock.now()),
        Clock::Machine => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::tests::args_of_build;
    use crate::layer::form::Rewrite;

    fn resolve(flags: &[&str]) -> Result<Outputs, String> {
        let platform = Platform::new("linux", "amd64", None);
        Outputs::resolve(&args_of_build(flags), &[platform], Purpose::Build, &mut Vec::new())
            .map_err(|failure| failure.message)
    }

    /// Each output in a few words.
    fn told(flags: &[&str]) -> Vec<String> {
        let outputs = resolve(flags).unwrap();
        let tell = |output: &Output| {
            let names: Vec<String> =
                output.names().unwrap_or_default().iter().map(Reference::familiar).collect();
            let kind = match &output.kind {
                Kind::Push { by, .. } => format!("push {by:?}"),
                Kind::Stored { .. } => "store".to_owned(),
                Kind::Layout { readers, .. } => format!("layout {readers:?}"),
                Kind::Archive { readers, .. } => format!("archive {readers:?}"),
                Kind::Directory { others, .. } => format!("directory {others:?}"),
                Kind::Tar { .. } => "tar".to_owned(),
            };
            let place = output.path().map(|path| path.display().to_string());
            [kind, place.unwrap_or_default(), names.join("+")].join(" ").trim().to_owned()
        };
        let unpushed = !outputs.unpushed.is_empty();
        outputs.list.iter().map(tell).chain(unpushed.then(|| "not pushed".to_owned())).collect()
    }

    #[test]
    fn flags_of_docker_and_kaniko_become_one_list() {
        for (flags, expected) in [
            (&["-d", "a", "-t", "b:2"][..], &["push Tag  a:latest+b:2"][..]),
            (&["--no-push", "-t", "a:1"], &[]),
            (
                &["-d", "a:1", "--tar-path=t", "--oci-layout-path=l"],
                &["layout Oci l a:1", "archive Docker t a:1", "push Tag  a:1"],
            ),
            (&["-o", "out"], &["directory Kept out"]),
            (&["-o", "out", "-t", "a:1"], &["directory Kept out", "not pushed"]),
            (&["-o", "out", "-t", "a:1", "--no-push"], &["directory Kept out"]),
            (&["-o", "out", "-t", "a:1", "--push"], &["directory Kept out", "push Tag  a:1"]),
            (&["-o=type=local,dest=o,mode=delete"], &["directory Removed o"]),
            (
                &["-o=type=oci,dest=o", "-o=type=docker,tar=false,dest=d"],
                &["archive Oci o", "layout Docker d"],
            ),
            (&["-o=type=oci,dest=o,name=a:1", "-t=b:1"], &["archive Oci o a:1", "not pushed"]),
            (&["-o=type=registry", "-t=b:1"], &["push Tag  b:1"]),
            (&["-o=type=registry,name=a:1", "-t=b:1"], &["push Tag  a:1", "not pushed"]),
            (&["-o=type=registry,name=a:1", "-t=b:1", "--push"], &["push Tag  a:1", "push Tag  b:1"]),
            (&["-o=type=registry,push-by-digest=true,name=a"], &["push Digest  a:latest"]),
            (&["-o=type=image,push-by-digest=true,name=a", "--push"], &["push Digest  a:latest"]),
            (&["-o=type=image,name=a:1"], &["store  a:1"]),
            (&["-o=type=image,name=a:1", "--push"], &["push Tag  a:1"]),
            (&["-o=type=image,name=a:1,push=true"], &["push Tag  a:1"]),
            (&["-o=type=registry,name=a:1,push=false"], &["store  a:1"]),
            (&["-o=type=cacheonly"], &[]),
            (&["--no-push", "--tar-path=-"], &["archive Docker"]),
            (&["--no-push", "--tar-path=./-"], &["archive Docker ./-"]),
            (&["--push", "-t=a:1"], &["push Tag  a:1"]),
            (&["--provenance=false", "--sbom=false", "-o=-"], &["tar"]),
        ] {
            assert_eq!(told(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (flags, message) in [
            (&[][..], "there is no destination to push to"),
            (&["--push"], "--push: there is no name to push to"),
            (&["--push", "--no-push", "-t=a"], "--push and --no-push cannot both be"),
            (
                &["--no-push", "-o=type=registry,name=a"],
                "--output type=registry,name=a: it pushes, and --no-push forbids that",
            ),
            (&["-o=type=registry"], "--output type=registry: there is no name to push to"),
            (
                &["-o=-", "--tar-path=-", "--no-push"],
                "--tar-path: standard output already has that of `--output -`",
            ),
            (&["-o=-", "-o=type=oci"], "--output type=oci: standard output already has that of `--output -`"),
            (
                &["--iidfile=x", "--image-name-with-digest-file=y", "-o=out"],
                "--image-name-with-digest-file: there is no name of an image",
            ),
            (
                &["-o=type=local,dest=-"],
                "--output: type=local is a directory, which standard output cannot be",
            ),
            (
                &["-o=type=oci,source-date-epoch=x"],
                "--output: invalid source-date-epoch: `x`, expected seconds since 1970",
            ),
            (
                &["-o=type=registry,name=a:1", "-o=type=registry,name=a:1,compression=zstd"],
                "--output type=registry,name=a:1,compression=zstd: `--output type=registry,name=a:1` also pushes a:1",
            ),
            (&["-o=type=oci,tar=maybe"], "--output: `tar=maybe`: expected `true` or `false`"),
            (&["-o=type=oci,name=A"], "--output: "),
            (
                &["--compression=uncompressed", "--compression-level=3", "--no-push"],
                "--compression-level: invalid compression level `3`: `uncompressed` has no levels",
            ),
            (
                &["-o=type=oci,compression=uncompressed,compression-level=3"],
                "--output: invalid compression level `3`: `uncompressed` has no levels",
            ),
            (
                &["--compression=uncompressed", "-o=type=oci,compression-level=3"],
                "--output: invalid compression level `3`: `uncompressed` has no levels",
            ),
        ] {
            let error = resolve(flags).unwrap_err();
            assert!(error.starts_with(message), "{flags:?}: {error}");
        }
        let pinned = format!("-t=r.example/a@sha256:{}", "0".repeat(64));
        assert!(resolve(&[&pinned]).unwrap_err().contains("is no destination: it has a digest"));
    }

    #[test]
    fn that_docker_cannot_load_an_archive_of_several_platforms_is_told() {
        let told = |architectures: &[&str], flags: &[&str]| {
            let args = args_of_build(&[&["--no-push"], flags].concat());
            let platforms: Vec<Platform> =
                architectures.iter().map(|name| Platform::new("linux", name, None)).collect();
            let mut warnings = Vec::new();
            Outputs::resolve(&args, &platforms, Purpose::Build, &mut warnings).unwrap();
            warnings.concat()
        };
        assert!(told(&["amd64", "arm64"], &["--tar-path=x"]).contains("no manifest.json"));
        assert_eq!(told(&["amd64"], &["--tar-path=x"]), "");
        assert_eq!(told(&["amd64", "arm64"], &["--oci-layout-path=x"]), "");
    }

    #[test]
    fn the_form_of_an_image_comes_from_its_keys_and_else_from_flags() {
        let form = |flags: &[&str]| resolve(flags).unwrap().list[0].image().unwrap().clone();
        let zstd = form(&["--compression=zstd", "--image-format=docker", "-o=type=oci"]);
        assert_eq!((zstd.layers.to_string(), zstd.encoding.types), ("zstd-3".to_owned(), TypeNames::Docker));
        let own = form(&[
            "--compression=zstd",
            "--image-format=docker",
            "-o=type=oci,oci-mediatypes=true,compression=gzip",
        ]);
        assert_eq!((own.layers.to_string(), own.encoding.types), ("gzip-6".to_owned(), TypeNames::Oci));
        let own = form(&["--compression-level=9", "-o=type=oci,compression=uncompressed"]);
        assert_eq!(own.layers.to_string(), "uncompressed", "the level is that of the other outputs");
        let usual = form(&["--compression=uncompressed", "--compression-level=-1", "-o=type=oci"]);
        assert_eq!(usual.layers.to_string(), "uncompressed");
        let level = form(&["--compression=zstd", "-o=type=oci,compression-level=9"]);
        assert_eq!(level.layers.to_string(), "zstd-9");
        let rewrite =
            form(&["-o=type=oci,rewrite-timestamp=true,source-date-epoch=5,force-compression=true"]);
        let layers = rewrite.layers(Clock::Fixed(9));
        assert_eq!((layers.rewrite, layers.converted), (Some(Rewrite::Later(5)), Converted::All));
        assert_eq!(form(&["-o=type=oci"]).layers(Clock::Fixed(9)).rewrite, None);
    }
}
