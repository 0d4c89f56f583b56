//! Annotations of images: those of `--annotation`, spelled as by docker, and those of `--output`, spelled as by BuildKit.

use std::collections::BTreeMap;

use super::keys::FLAG;
use crate::cli::failure::Failure;
use crate::image::platform::{Platform, Requested};
use crate::image::shown;

/// The flag, as messages call it.
const ANNOTATION: &str = "--annotation";

/// Where an annotation goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Into the manifest.
    Manifest,
    /// Into the descriptor that points to the manifest.
    ManifestDescriptor,
    /// Into the index.
    Index,
    /// Into the descriptor that points to the index.
    IndexDescriptor,
}

/// The places by the words for them. Longer ones come first: others are their beginnings.
const PLACES: [(&str, Place); 4] = [
    ("manifest-descriptor", Place::ManifestDescriptor),
    ("manifest", Place::Manifest),
    ("index-descriptor", Place::IndexDescriptor),
    ("index", Place::Index),
];

/// One annotation, as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Annotation {
    flag: &'static str,
    place: Place,
    /// The only platform whose image has it.
    platform: Option<String>,
    key: String,
    value: String,
}

/// Whether a key of `--output` is about an annotation.
pub(super) fn is_key(name: &str) -> bool {
    name.strip_prefix("annotation").is_some_and(|rest| rest.starts_with(['.', '-', '[']))
}

impl Annotation {
    /// `annotation[-PLACE][\[PLATFORM\]].KEY`, a key of `--output`, with its value.
    pub(super) fn of_key(name: &str, value: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::new(format!("`{name}` is no key of an annotation")).of_flag(FLAG).hint(
                "expected `annotation.KEY=VALUE` or `annotation-manifest-descriptor[linux/amd64].KEY=VALUE`",
            )
        };
        let rest = name.strip_prefix("annotation").ok_or_else(wrong)?;
        let (place, rest) = match rest.strip_prefix('-') {
            None => (Place::Manifest, rest),
            Some(rest) => PLACES
                .into_iter()
                .find_map(|(word, place)| Some((place, rest.strip_prefix(word)?)))
                .ok_or_else(wrong)?,
        };
        let (platform, rest) = match rest.strip_prefix('[') {
            None => (None, rest),
            Some(rest) => {
                rest.split_once(']').map(|(platform, rest)| (Some(platform), rest)).ok_or_else(wrong)?
            }
        };
        let key = rest.strip_prefix('.').filter(|key| !key.is_empty()).ok_or_else(wrong)?;
        let platform = platform.map(str::to_owned);
        Ok(Self { flag: FLAG, place, platform, key: key.to_owned(), value: value.to_owned() })
    }

    /// `[PLACE[\[PLATFORM\]][,PLACE…]:]KEY=VALUE`, the value of `--annotation`; one for each place.
    pub(super) fn of_flag(text: &str) -> Result<Vec<Self>, Failure> {
        let failed = |message: String| Failure::new(message).of_flag(ANNOTATION);
        let (name, value) = text
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| failed(format!("invalid annotation `{text}`, expected key=value")))?;
        let (places, key) = match name.split_once(':') {
            None => (vec![(Place::Manifest, None)], name),
            Some((places, key)) => {
                (places.split(',').map(place_of_flag).collect::<Result<_, _>>().map_err(failed)?, key)
            }
        };
        if key.is_empty() {
            return Err(failed(format!("invalid annotation `{text}`, expected key=value")));
        }
        let annotation = |(place, platform)| Self {
            flag: ANNOTATION,
            place,
            platform,
            key: key.to_owned(),
            value: value.to_owned(),
        };
        Ok(places.into_iter().map(annotation).collect())
    }
}

fn place_of_flag(text: &str) -> Result<(Place, Option<String>), String> {
    let (word, platform) = match text.split_once('[') {
        None => (text, None),
        Some((word, rest)) => {
            let platform = rest.strip_suffix(']').ok_or_else(|| {
                format!(
                    "invalid annotation type `{text}`, expected type and optional platform in square brackets"
                )
            })?;
            (word, Some(platform.to_owned()))
        }
    };
    match PLACES.into_iter().find(|(known, _)| *known == word) {
        Some((_, place)) => Ok((place, platform)),
        None => Err(format!(
            "unknown annotation type `{word}`: there are manifest, manifest-descriptor, index and index-descriptor"
        )),
    }
}

/// What an image or index gets, by place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Annotated {
    /// In its document.
    pub(super) document: BTreeMap<String, String>,
    /// In the descriptor of that.
    pub(super) descriptor: BTreeMap<String, String>,
}

/// All annotations of what comes out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Annotations {
    /// Those of the images, in the order of the platforms.
    pub(super) images: Vec<Annotated>,
    /// Those of the index, where there are several images.
    pub(super) index: Annotated,
}

impl Annotations {
    /// Sorts what is `given` for images for `platforms`; of two with one key the later one counts.
    pub(super) fn of<'a>(
        given: impl IntoIterator<Item = &'a Annotation>,
        platforms: &[Platform],
    ) -> Result<Self, Failure> {
        let mut found =
            Self { images: vec![Annotated::default(); platforms.len()], index: Annotated::default() };
        for annotation in given {
            let pair = || (annotation.key.clone(), annotation.value.clone());
            let for_image: fn(&mut Annotated) -> &mut BTreeMap<String, String> = match annotation.place {
                Place::Manifest => |image| &mut image.document,
                Place::ManifestDescriptor => |image| &mut image.descriptor,
                Place::Index | Place::IndexDescriptor if platforms.len() == 1 => {
                    return Err(Failure::new("index annotations not supported for single platform export")
                        .of_flag(annotation.flag)
                        .hint("there is no index: annotate the manifest"));
                }
                Place::Index | Place::IndexDescriptor if annotation.platform.is_some() => {
                    return Err(Failure::new(
                        "the index is for all platforms, and no annotation of it for one",
                    )
                    .of_flag(annotation.flag)
                    .hint("leave `[PLATFORM]` out"));
                }
                Place::Index => {
                    found.index.document.extend([pair()]);
                    continue;
                }
                Place::IndexDescriptor => {
                    found.index.descriptor.extend([pair()]);
                    continue;
                }
            };
            let mut is_used = false;
            for (platform, image) in platforms.iter().zip(&mut found.images) {
                if let Some(text) = &annotation.platform {
                    let requested = Requested::parse(text, platform)
                        .map_err(|error| Failure::from_error(&error).of_flag(annotation.flag))?;
                    if requested.normalised != *platform {
                        continue;
                    }
                }
                for_image(image).extend([pair()]);
                is_used = true;
            }
            if let Some(text) = annotation.platform.as_deref().filter(|_| !is_used) {
                let built: Vec<String> = platforms.iter().map(Platform::to_string).collect();
                let (key, text) = (shown(&annotation.key), shown(text));
                let message = format!("annotation `{key}` is for {text}, and no image is built for that");
                return Err(Failure::new(message)
                    .of_flag(annotation.flag)
                    .hint(format!("images are built for {}", built.join(", "))));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[Annotation]) -> Result<Annotated, String> {
        let platform = Platform::new("linux", "arm64", None);
        let found = Annotations::of(given, &[platform]).map_err(|failure| failure.message)?;
        Ok(found.images.into_iter().next().unwrap())
    }

    fn pairs(annotations: &BTreeMap<String, String>) -> Vec<String> {
        annotations.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn keys_of_outputs_say_where_and_for_which_platform() {
        for (name, manifest, descriptor) in [
            ("annotation.a.b", &["a.b=v"][..], &[][..]),
            ("annotation-manifest.k", &["k=v"], &[]),
            ("annotation-manifest-descriptor.k", &[], &["k=v"]),
            ("annotation[linux/arm64].k", &["k=v"], &[]),
            ("annotation-manifest[linux/arm64/v8].k", &["k=v"], &[]),
            ("annotation-manifest-descriptor[linux/arm64].K", &[], &["K=v"]),
        ] {
            assert!(is_key(name), "{name}");
            let found = of(&[Annotation::of_key(name, "v").unwrap()]).unwrap();
            assert_eq!(
                (pairs(&found.document), pairs(&found.descriptor)),
                (
                    manifest.iter().map(|text| (*text).to_owned()).collect(),
                    descriptor.iter().map(|text| (*text).to_owned()).collect()
                )
            );
        }
        for name in ["annotation", "annotations.k", "annotationx"] {
            assert!(!is_key(name), "{name}");
        }
        for name in [
            "annotation.",
            "annotation-x.k",
            "annotation-manifestk",
            "annotation[linux/arm64.k",
            "annotation[x]k",
        ] {
            assert!(Annotation::of_key(name, "v").is_err(), "{name}");
        }
        for (name, platform) in [
            ("annotation[linux/amd64].k", "linux/amd64"),
            ("annotation-manifest-descriptor[linux/arm].k", "linux/arm"),
            ("annotation-manifest[linux/arm64/v9].k", "linux/arm64/v9"),
        ] {
            let error = of(&[Annotation::of_key(name, "v").unwrap()]).unwrap_err();
            assert_eq!(
                error,
                format!("--output: annotation `k` is for {platform}, and no image is built for that")
            );
        }
        for name in ["annotation-index.k", "annotation-index-descriptor.k", "annotation-index[linux/arm64].k"]
        {
            let error = of(&[Annotation::of_key(name, "v").unwrap()]).unwrap_err();
            assert_eq!(error, "--output: index annotations not supported for single platform export");
        }
    }

    #[test]
    fn of_several_platforms_each_has_its_own_and_there_is_an_index() {
        let platforms = [Platform::new("linux", "amd64", None), Platform::new("linux", "arm", Some("v7"))];
        let of = |names: &[&str]| {
            let given: Vec<Annotation> =
                names.iter().map(|name| Annotation::of_key(name, "v").unwrap()).collect();
            Annotations::of(&given, &platforms).map_err(|failure| failure.message)
        };
        let found = of(&[
            "annotation.all",
            "annotation[linux/arm].arm",
            "annotation-manifest-descriptor[linux/amd64].amd",
            "annotation-index.index",
            "annotation-index-descriptor.descriptor",
        ])
        .unwrap();
        let told: Vec<_> = [&found.images[0], &found.images[1], &found.index]
            .map(|annotated| [pairs(&annotated.document), pairs(&annotated.descriptor)].concat())
            .into();
        assert_eq!(told, [vec!["all=v", "amd=v"], vec!["all=v", "arm=v"], vec!["index=v", "descriptor=v"]]);
        let error = of(&["annotation.all", "annotation[linux/arm/v6].arm"]).unwrap_err();
        assert_eq!(error, "--output: annotation `arm` is for linux/arm/v6, and no image is built for that");
        let error = of(&["annotation-index[linux/arm].k"]).unwrap_err();
        assert!(error.contains("the index is for all platforms"), "{error}");
    }

    #[test]
    fn the_flag_names_places_before_a_colon() {
        let read = |text: &str| -> Result<(Vec<String>, Vec<String>), String> {
            let given = Annotation::of_flag(text).map_err(|failure| failure.message)?;
            let found = of(&given)?;
            Ok((pairs(&found.document), pairs(&found.descriptor)))
        };
        assert_eq!(read("k=v=w").unwrap(), (vec!["k=v=w".to_owned()], vec![]));
        assert_eq!(
            read("manifest,manifest-descriptor[linux/arm64]:k=").unwrap(),
            (vec!["k=".to_owned()], vec!["k=".to_owned()])
        );
        for (text, message) in [
            ("k", "--annotation: invalid annotation `k`, expected key=value"),
            ("=v", "--annotation: invalid annotation `=v`, expected key=value"),
            ("manifest:=v", "--annotation: invalid annotation `manifest:=v`, expected key=value"),
            (
                "manifest[linux/386]:k=v",
                "--annotation: annotation `k` is for linux/386, and no image is built for that",
            ),
            ("index:k=v", "--annotation: index annotations not supported for single platform export"),
            (
                "foo:k=v",
                "--annotation: unknown annotation type `foo`: there are manifest, manifest-descriptor, index and \
                 index-descriptor",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message);
        }
    }
}
