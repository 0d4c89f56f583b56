//! Unpacked images that the plan wants more than once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::execute::locked;
use super::step::{CopyFrom, Plan, StageBase};
use crate::image::digest::ChainId;
use crate::image::manifest::Image;
use crate::store::unpacked::Chain;

/// What files are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A step of the plan reads them, or works on them.
    Step,
    /// What they are decides whether that step is done at all.
    Key,
}

/// Unpacked images, kept for as long as the plan may want them again. Where an image is one directory, unpacking it anew
/// for each COPY would be the most expensive part of a build.
#[derive(Debug, Default)]
pub(super) struct Bases {
    images: Mutex<BTreeMap<ChainId, Wanted>>,
}

/// An image that the plan wants.
#[derive(Debug, Default)]
struct Wanted {
    /// The stages that want it and have not ended, by position, and how many times more.
    by: BTreeMap<usize, usize>,
    /// Its files. Who unpacks them holds the lock: others want the same.
    kept: Arc<Mutex<Option<Chain>>>,
}

impl Bases {
    /// What `plan` wants.
    pub(super) fn of(plan: &Plan) -> Self {
        let mut images: BTreeMap<ChainId, Wanted> = BTreeMap::new();
        let mut want = |image: Option<&Image>, stage: usize| {
            if let Some(chain) = image.and_then(chain_id) {
                *images.entry(chain).or_default().by.entry(stage).or_default() += 1;
            }
        };
        let below = untouched(plan);
        for (position, stage) in plan.stages.iter().enumerate() {
            if stage.steps.iter().any(|step| step.step.changes_files()) {
                want(base(plan, &below, position), position);
            }
            for step in &stage.steps {
                for from in step.step.reads() {
                    match from {
                        CopyFrom::Image(image) => want(Some(&plan.images[*image].image), position),
                        CopyFrom::Stage(other) => want(below[*other], position),
                        CopyFrom::Context | CopyFrom::Named(_) | CopyFrom::Scratch => {}
                    }
                }
            }
        }
        Self { images: Mutex::new(images) }
    }

    /// The files of `image` for a step of `stage`, a position in the plan: those that were kept, or what `unpack` gives.
    /// They are handed over for good where nothing else will want them; to look at for a key they are only lent.
    pub(super) fn get<E>(
        &self,
        image: &Image,
        stage: usize,
        purpose: Purpose,
        unpack: impl FnOnce() -> Result<Chain, E>,
    ) -> Result<Chain, E> {
        let Some(id) = chain_id(image) else { return unpack() };
        let kept = Arc::clone(&locked(&self.images).entry(id.clone()).or_default().kept);
        let mut kept = locked(&kept);
        let chain = match kept.take() {
            Some(chain) => chain,
            None => unpack()?,
        };
        if purpose == Purpose::Key || self.is_wanted_after(&id, stage) {
            *kept = Some(chain.clone());
        }
        Ok(chain)
    }

    /// Whether anybody will want the image once more when a step of `stage` has got it.
    fn is_wanted_after(&self, id: &ChainId, stage: usize) -> bool {
        let mut images = locked(&self.images);
        let by = &mut images.entry(id.clone()).or_default().by;
        if let Some(times) = by.get_mut(&stage) {
            *times -= 1;
            if *times == 0 {
                by.remove(&stage);
            }
        }
        !by.is_empty()
    }

    /// `stage` has ended: what no other stage wants is let go.
    pub(super) fn leave(&self, stage: usize) {
        for image in locked(&self.images).values_mut() {
            image.by.remove(&stage);
            // Whoever holds the lock wants it, and decides.
            if image.by.is_empty()
                && let Ok(mut kept) = image.kept.try_lock()
            {
                *kept = None;
            }
        }
    }
}

/// The layers of `image` as one; none if it has none.
fn chain_id(image: &Image) -> Option<ChainId> {
    let mut layers = image.layers().iter();
    let first = ChainId::base(&layers.next()?.diff_id);
    Some(layers.fold(first, |below, layer| below.with(&layer.diff_id)))
}

/// For each stage the image that it is, as far as files go: its base, if nothing is put on that.
fn untouched(plan: &Plan) -> Vec<Option<&Image>> {
    let mut images: Vec<Option<&Image>> = Vec::with_capacity(plan.stages.len());
    for (position, stage) in plan.stages.iter().enumerate() {
        let makes_layers = stage.steps.iter().any(|step| step.step.changes_files());
        images.push(if makes_layers { None } else { base(plan, &images, position) });
    }
    images
}

/// The image that the stage at `position` begins with, if that is an image's alone.
fn base<'a>(plan: &'a Plan, untouched: &[Option<&'a Image>], position: usize) -> Option<&'a Image> {
    match &plan.stages[position].base {
        StageBase::Scratch | StageBase::Files(_) => None,
        StageBase::Stage(below) => untouched[*below],
        StageBase::Image(base) => Some(&base.image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::services::{Base, ImageSource, ServiceError, Wanted};
    use crate::build::{self, PlanRequest};
    use crate::context::IgnoreRules;
    use crate::image::config::ImageConfig;
    use crate::image::descriptor::{Descriptor, media_type};
    use crate::image::digest::{DiffId, Digest};
    use crate::image::manifest::{Layer, Origin};
    use crate::image::matching::{Asked, MatchMode};
    use crate::image::platform::{Platform, Requested};
    use crate::image::reference::Reference;
    use crate::sandbox::Cancel;

    /// Every name is an image of two layers, both called after it.
    struct ByName;

    impl ImageSource for ByName {
        fn resolve(&self, reference: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
            let layer = |number: u32| {
                let digest = Digest::of(format!("{reference} {number}").as_bytes());
                Layer {
                    blob: Descriptor::new(media_type::OCI_LAYER, digest.clone(), 1),
                    diff_id: DiffId(digest),
                    origin: Origin::Stored,
                }
            };
            let layers = vec![layer(1), layer(2)];
            let mut config = ImageConfig::default();
            config.rootfs.kind = "layers".to_owned();
            config.rootfs.diff_ids = layers.iter().map(|layer| layer.diff_id.clone()).collect();
            config.architecture = "amd64".to_owned();
            config.os = "linux".to_owned();
            Ok(Base {
                image: Image::from_parts(config, layers)?,
                reference: reference.clone(),
                digest: Digest::of(b"manifest"),
                notes: Vec::new(),
                foreign: None,
            })
        }

        fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
            Err("nothing is unpacked while planning".into())
        }
    }

    fn plan(dockerfile: &str) -> Plan {
        let host = Platform::new("linux", "amd64", None);
        let platform = Requested { asked: host.clone(), normalised: host.clone() };
        let request = PlanRequest::usual(platform, host, 100);
        let file = crate::dockerfile::parse(dockerfile.as_bytes()).unwrap();
        build::plan(&file, &request, &IgnoreRules::default(), &ByName).unwrap()
    }

    fn image(name: &str) -> Image {
        let host = Platform::new("linux", "amd64", None);
        let wanted = Wanted { platform: host, asked: Asked::ByDefault, mode: MatchMode::Compatible };
        ByName.resolve(&name.parse().unwrap(), &wanted).unwrap().image
    }

    fn kept_by(bases: &Bases) -> usize {
        locked(&bases.images).values().filter(|image| locked(&image.kept).is_some()).count()
    }

    #[test]
    fn an_image_is_unpacked_once_and_handed_over_in_the_end() {
        let plan = plan(
            "FROM base AS a\nRUN x\n\
             FROM base AS config\nENV a=b\n\
             FROM other\nCOPY --from=base /x /\nCOPY --from=config /x /\nCOPY --from=a /x /\nRUN y\n",
        );
        let bases = Bases::of(&plan);
        let mut unpacked = Vec::new();
        // Stage, image, and whether it is kept afterwards.
        for (position, name, kept) in
            [(0, "base", true), (2, "other", true), (2, "base", true), (2, "base", false)]
        {
            let unpack = || {
                unpacked.push(name);
                Ok::<_, ()>(Chain::empty())
            };
            bases.get(&image(name), position, Purpose::Step, unpack).unwrap();
            assert_eq!(kept_by(&bases) > 0, kept, "{position} {name}");
        }
        assert_eq!(unpacked, ["base", "other"]);
    }

    #[test]
    fn who_looked_at_an_image_for_a_key_leaves_it_to_the_step() {
        let plan = plan("FROM other\nCOPY --from=base /x /\n");
        let bases = Bases::of(&plan);
        let mut unpacked = 0;
        for (purpose, kept) in [(Purpose::Key, 1), (Purpose::Key, 1), (Purpose::Step, 0)] {
            let unpack = || {
                unpacked += 1;
                Ok::<_, ()>(Chain::empty())
            };
            bases.get(&image("base"), 0, purpose, unpack).unwrap();
            assert_eq!(kept_by(&bases), kept, "{purpose:?}");
        }
        assert_eq!(unpacked, 1);
        // Where the step need not be done after all, its stage's end is that of the files.
        bases.get(&image("base"), 0, Purpose::Key, || Ok::<_, ()>(Chain::empty())).unwrap();
        bases.leave(0);
        assert_eq!(kept_by(&bases), 0);
    }

    #[test]
    fn what_no_later_stage_wants_is_let_go() {
        let plan = plan("FROM base AS a\nRUN x\nCOPY --from=base /x /\nFROM a\nRUN y\n");
        let bases = Bases::of(&plan);
        bases.get(&image("base"), 0, Purpose::Step, || Ok::<_, ()>(Chain::empty())).unwrap();
        assert_eq!(kept_by(&bases), 1);
        bases.leave(0);
        assert_eq!(kept_by(&bases), 0);
        // A stage that did without, because its results were known.
        let again = Bases::of(&plan);
        again.leave(0);
        again.get(&image("base"), 1, Purpose::Step, || Ok::<_, ()>(Chain::empty())).unwrap();
        assert_eq!(kept_by(&again), 0);
    }
}
