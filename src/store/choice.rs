//! The image of a layout that is meant: by its name and, where there are several of that name, by its platform.

use super::layout::{Layout, LayoutError};
use crate::image::config::ImageConfig;
use crate::image::descriptor::{Descriptor, media_type};
use crate::image::digest::{DiffId, Digest};
use crate::image::index::{FlattenError, flatten};
use crate::image::manifest::Manifest;
use crate::image::matching::{self, Asked, MatchMode, Single, Unfit};
use crate::image::platform::Platform;
use crate::image::shown;

/// Why no image of a layout can be chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChoiceError {
    /// The layout, or a document in it.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// It is empty.
    #[error("the layout has no image")]
    Empty,
    /// There are several, and nobody said which.
    #[error("the layout has images of several names: {0}")]
    Names(String),
    /// The indexes of the layout.
    #[error(transparent)]
    Index(#[from] Box<FlattenError<LayoutError>>),
    /// None for the platform.
    #[error("there is no image for `{wanted}`: the layout has {available}")]
    NoPlatform {
        /// What was looked for.
        wanted: Platform,
        /// What there is.
        available: String,
    },
    /// The only image there is will not do.
    #[error("the image {0}")]
    Unfit(Unfit),
    /// Something that layouts may hold besides images.
    #[error("{digest} is `{media_type}`, which is not the type of an image")]
    MediaType {
        /// What.
        digest: Digest,
        /// Its type.
        media_type: String,
    },
}

/// Which image is meant.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Its name in the layout.
    pub name: Option<&'a str>,
    /// Its platform.
    pub platform: &'a Platform,
    /// Who wanted that platform.
    pub asked: Asked,
    /// How near the image's platform must be.
    pub mode: MatchMode,
}

/// An image of a layout: documents that have been verified, and layers that have not.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutImage {
    /// The manifest.
    pub manifest: Manifest,
    /// Its digest.
    pub digest: Digest,
    /// The config. It has as many diff ids as there are layers.
    pub config: ImageConfig,
    /// What the config takes of [`DocumentLimits::bases`](crate::image::document::DocumentLimits::bases).
    pub cost: u64,
    /// What the user should know of the choice.
    pub notes: Vec<String>,
}

impl LayoutImage {
    /// The layers, bottom first.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = (&DiffId, &Descriptor)> {
        self.config.rootfs.diff_ids.iter().zip(&self.manifest.layers)
    }
}

impl Layout {
    /// Chooses an image. An image that is the only one of its name is taken whatever it is for, unless a platform was
    /// asked for; among several, and in an index, the platform decides.
    ///
    /// # Errors
    /// [`ChoiceError`].
    pub fn choose(&self, choice: &Choice<'_>) -> Result<LayoutImage, ChoiceError> {
        let candidates = self.candidates(choice.name)?;
        match candidates.as_slice() {
            [entry] if media_type::is_manifest(&entry.media_type) => {
                let mut image = self.image(entry)?;
                image.notes.extend(judge_single(choice, &image.config)?);
                Ok(image)
            }
            [entry] if !media_type::is_index(&entry.media_type) => Err(ChoiceError::MediaType {
                digest: entry.digest.clone(),
                media_type: shown(&entry.media_type),
            }),
            _ => self.choose_among(choice, candidates),
        }
    }

    /// The entries with the name, or all; each only once.
    fn candidates(&self, name: Option<&str>) -> Result<Vec<Descriptor>, ChoiceError> {
        let mut candidates: Vec<&Descriptor> = self.named(name)?;
        if name.is_none() {
            let mut names: Vec<&str> = candidates.iter().filter_map(|entry| Self::name_of(entry)).collect();
            names.sort_unstable();
            names.dedup();
            let is_one_image = candidates.iter().all(|entry| entry.digest == candidates[0].digest);
            if names.len() > 1 && !is_one_image {
                return Err(ChoiceError::Names(self.listed_names()));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        candidates.retain(|entry| seen.insert(&entry.digest));
        if candidates.is_empty() {
            return Err(ChoiceError::Empty);
        }
        Ok(candidates.into_iter().cloned().collect())
    }

    fn choose_among(
        &self,
        choice: &Choice<'_>,
        candidates: Vec<Descriptor>,
    ) -> Result<LayoutImage, ChoiceError> {
        let mut fetch = |entry: &Descriptor| self.index(entry);
        let entries =
            flatten(self.index_of(candidates), self.limits().nesting, &mut fetch).map_err(Box::new)?;
        let mut config_of = |entry: &Descriptor| -> Result<Platform, ChoiceError> {
            Ok(Platform::from(&self.image(entry)?.config))
        };
        let chosen = matching::choose(choice.platform, &entries, choice.mode, &mut config_of)?;
        let Some(chosen) = chosen else {
            let available = matching::available(&entries);
            return Err(ChoiceError::NoPlatform { wanted: choice.platform.clone(), available });
        };
        let mut image = self.image(&entries[chosen.position])?;
        if !chosen.exact {
            let note =
                format!("there is no image for {}, using that for {}", choice.platform, chosen.platform);
            image.notes.push(note);
        }
        let says = Platform::from(&image.config).normalise();
        let known = !says.os.is_empty() && !says.architecture.is_empty();
        if known && !says.same_machine(&chosen.platform) {
            let note = format!("the index has the image for {}, its config says {says}", chosen.platform);
            image.notes.push(note);
        }
        Ok(image)
    }
}

fn judge_single(choice: &Choice<'_>, config: &ImageConfig) -> Result<Option<String>, ChoiceError> {
    let found = Platform::from(config);
    let judged = matching::accept_single(choice.platform, &found, choice.asked, choice.mode)
        .map_err(ChoiceError::Unfit)?;
    Ok(match judged {
        Single::Fits => None,
        Single::WillDo(found) | Single::Keep(found) | Single::Unchecked(found) => {
            Some(format!("the image is for {found}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::super::export::tests::{image, index};
    use super::super::export::{Content, Export, Readers};
    use super::super::layout;
    use super::*;
    use crate::image::document::DocumentLimits;
    use crate::image::reference::Reference;

    fn platform(architecture: &str, variant: Option<&str>) -> Platform {
        Platform::new("linux", architecture, variant)
    }

    #[test]
    fn an_image_is_chosen_by_name_and_platform() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let path = dir.path().join("layout");
        let images = [image(&store, "v5", &["a"]), image(&store, "v7", &["b"])];
        let both = index(&images);
        let names: [[Reference; 1]; 2] = [["x:multi".parse().unwrap()], ["x:single".parse().unwrap()]];
        let exports = [
            Export::new(Content::Index { index: &both, images: &images }, &names[0]),
            Export::new(Content::Image(&images[0]), &names[1]),
        ];
        layout::write(&path, Readers::Oci, &exports, store.blobs(), "2024-01-01T00:00:00Z", &|| false)
            .unwrap();
        let layout = Layout::open(&path, &DocumentLimits::default()).unwrap();
        let mode = MatchMode::Compatible;
        let choose =
            |name, platform: &Platform, asked| layout.choose(&Choice { name, platform, asked, mode });
        let (v5, v7, amd64) =
            (platform("arm", Some("v5")), platform("arm", Some("v7")), platform("amd64", None));
        let digest = |position: usize| &images[position].manifest.digest;
        for (name, platform, asked, expected, notes) in [
            ("multi", &v5, Asked::Explicitly, digest(0), 0),
            ("multi", &v7, Asked::ByDefault, digest(1), 0),
            ("multi", &platform("arm", Some("v6")), Asked::ByDefault, digest(0), 1),
            ("single", &v7, Asked::ByDefault, digest(0), 1),
            ("single", &amd64, Asked::ByDefault, digest(0), 1),
        ] {
            let chosen = choose(Some(name), platform, asked).unwrap();
            assert_eq!((&chosen.digest, chosen.notes.len()), (expected, notes), "{name} {platform}");
            assert_eq!(chosen.layers().len(), 1);
        }
        let error = |name, platform, asked| choose(name, platform, asked).unwrap_err().to_string();
        assert_eq!(
            error(Some("multi"), &amd64, Asked::ByDefault),
            "there is no image for `linux/amd64`: the layout has `linux/arm/v5`, `linux/arm/v7`"
        );
        assert_eq!(
            error(Some("single"), &amd64, Asked::Explicitly),
            "the image is `linux/arm/v5`, not `linux/amd64`"
        );
        assert_eq!(
            error(None, &v7, Asked::ByDefault),
            "the layout has images of several names: `multi`, `single`"
        );
        assert_eq!(
            error(Some("none"), &v7, Asked::ByDefault),
            "no image of the layout is named `none`: it has `multi`, `single`"
        );
    }
}
