//! The file or the arguments that say what to push.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::cli::args::{FromArgsArgs, FromSpecArgs};
use crate::cli::failure::{Excerpt, Failure};
use crate::dockerfile::Span;
use crate::image::platform::Platform;
use crate::image::reference::Reference;
use crate::limit::Limit;
use crate::spec::{
    MOST_ENTRIES, Member, Place, Spec, SpecErrorKind, Template, TemplateError, is_annotation_key, platforms,
};
use crate::text::chained;

/// What to push, and what to show where something about it is wrong.
pub(super) struct Source {
    /// What to push.
    pub(super) spec: Spec,
    /// The specification's name and text; none of arguments.
    file: Option<(String, Vec<u8>)>,
    /// What to warn about.
    pub(super) warnings: Vec<String>,
}

impl Source {
    /// Reads a specification.
    pub(super) fn of_file(args: &FromSpecArgs, limit: Limit) -> Result<Self, Failure> {
        let name = if args.file == Path::new("-") {
            "standard input".to_owned()
        } else {
            args.file.display().to_string()
        };
        let failed = |error: std::io::Error| Failure::new(format!("cannot read `{name}`: {error}"));
        let file: Box<dyn Read> = if args.file == Path::new("-") {
            Box::new(std::io::stdin())
        } else {
            Box::new(std::fs::File::open(&args.file).map_err(failed)?)
        };
        let mut text = Vec::new();
        // One more, by which it is seen that there is more.
        file.take(limit.value.saturating_add(1)).read_to_end(&mut text).map_err(failed)?;
        match Spec::parse(&text, limit) {
            Ok(spec) => Ok(Self { spec, file: Some((name, text)), warnings: Vec::new() }),
            Err(error) => {
                // Its first line says nothing, and need be no text.
                if matches!(*error.kind, SpecErrorKind::TooLong(_)) {
                    return Err(Failure::new(format!("`{name}`: {error}")));
                }
                let failure = Failure::new(error.kind.to_string());
                Err(located(failure, &name, &text, error.place))
            }
        }
    }

    /// Makes of arguments what a specification would say.
    pub(super) fn of_arguments(args: &FromArgsArgs) -> Result<Self, Failure> {
        let of_platforms = |error: &TemplateError| {
            let is_name = matches!(error, TemplateError::Name { .. } | TemplateError::Same { .. });
            let failure =
                Failure::new(chained(error)).of_flag(if is_name { "--template" } else { "--platforms" });
            match error {
                TemplateError::Same { .. } => {
                    failure.hint("write ARCH, OS or VARIANT where the names of the images differ")
                }
                _ => failure,
            }
        };
        let platforms = platforms(&args.platforms).map_err(|error| of_platforms(&error))?;
        let template = Template::new(&args.template);
        let mut warnings = Vec::new();
        for platform in platforms.iter().filter(|platform| template.leaves_separator(platform)) {
            warnings.push(format!(
                "--template: {} has no variant, so it asks for `{}`: write `ARCHVARIANT` to have no separator left",
                Platform::from(platform),
                crate::image::shown(&template.fill(platform))
            ));
        }
        let members: Vec<Member> = template.members(platforms).map_err(|error| of_platforms(&error))?;
        let target: Reference =
            args.target.parse().map_err(|error| Failure::from_error(&error).of_flag("--target"))?;
        if target.digest().is_some() {
            let message = format!("`{}` has a digest, which only the result can tell", args.target);
            return Err(Failure::new(message).of_flag("--target").hint("give it a tag, or nothing"));
        }
        if args.tags.len() > MOST_ENTRIES {
            return Err(too_many("tags", "--tags"));
        }
        let mut names = vec![target.clone()];
        for tag in args.tags.iter().filter(|tag| !tag.is_empty()) {
            let name = target.with_tag(tag).map_err(|error| Failure::from_error(&error).of_flag("--tags"))?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let annotation = |text: &String| match text.split_once('=') {
            Some((key, value)) if is_annotation_key(key) => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Failure::new(format!("`{}` is no `KEY=VALUE`", crate::image::shown(text)))
                .of_flag("--annotations")
                .hint("commas separate annotations: a value that has one needs a YAML file and from-spec")),
        };
        let mut annotations = BTreeMap::new();
        for (key, value) in args.annotations.iter().map(annotation).collect::<Result<Vec<_>, _>>()? {
            let message = format!("`{}` is there twice", crate::image::shown(&key));
            if annotations.insert(key, value).is_some() {
                return Err(Failure::new(message).of_flag("--annotations"));
            }
        }
        if annotations.len() > MOST_ENTRIES {
            return Err(too_many("annotations", "--annotations"));
        }
        let spec = Spec { names, annotations, annotations_at: None, members };
        Ok(Self { spec, file: None, warnings })
    }

    /// Adds to a failure which line it is about.
    pub(super) fn at(&self, place: Option<Place>, failure: Failure) -> Failure {
        match (&self.file, place) {
            (Some((name, text)), Some(place)) => located(failure, name, text, place),
            _ => failure,
        }
    }
}

fn too_many(what: &str, flag: &'static str) -> Failure {
    Failure::new(format!("there are more than {MOST_ENTRIES} {what}")).of_flag(flag)
}

fn located(failure: Failure, name: &str, text: &[u8], Place { line, column }: Place) -> Failure {
    let excerpt = Excerpt::of(name, text, Span { first_line: line, last_line: line });
    Failure { excerpt: Some(Excerpt { column: Some(column), ..excerpt }), ..failure }
}
