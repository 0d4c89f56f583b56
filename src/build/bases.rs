//! Unpacked images that the plan wants more than once.

use std::cell::RefCell;
use std::collections::BTreeMap;

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
    /// The stages that want an image, in order: one element for each time.
    wanted: RefCell<BTreeMap<ChainId, Vec<usize>>>,
    kept: RefCell<BTreeMap<ChainId, Chain>>,
}

impl Bases {
    /// What `plan` wants.
    pub(super) fn of(plan: &Plan) -> Self {
        let mut wanted: BTreeMap<ChainId, Vec<usize>> = BTreeMap::new();
        let mut want = |image: Option<&Image>, position: usize| {
            if let Some(chain) = image.and_then(chain_id) {
                wanted.entry(chain).or_default().push(position);
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
                        CopyFrom::Context | CopyFrom::Scratch => {}
                    }
                }
            }
        }
        Self { wanted: RefCell::new(wanted), kept: RefCell::default() }
    }

    /// The files of `image` for a step of the stage at `position`: those that were kept, or what `unpack` gives. They are
    /// handed over for good where nothing else will want them; to look at for a key they are only lent.
    pub(super) fn get<E>(
        &self,
        image: &Image,
        position: usize,
        purpose: Purpose,
        unpack: impl FnOnce() -> Result<Chain, E>,
    ) -> Result<Chain, E> {
        let Some(id) = chain_id(image) else { return unpack() };
        let kept = self.kept.borrow_mut().remove(&id);
        let chain = match kept {
            Some(chain) => chain,
            None => unpack()?,
        };
        if purpose == Purpose::Key {
            self.kept.borrow_mut().insert(id, chain.clone());
            return Ok(chain);
        }
        let mut wanted = self.wanted.borrow_mut();
        let stages = wanted.entry(id.clone()).or_default();
        // Once for this time; stages that came to an end without it will not come back.
        let this_time = stages.partition_point(|stage| *stage < position);
        let done = this_time + usize::from(stages.get(this_time) == Some(&position));
        stages.drain(..done);
        if !stages.is_empty() {
            self.kept.borrow_mut().insert(id, chain.clone());
        }
        Ok(chain)
    }

    /// Lets go of what no stage after that at `position` wants.
    pub(super) fn leave(&self, position: usize) {
        let wanted = self.wanted.borrow();
        let is_wanted = |id: &ChainId| {
            wanted.get(id).is_some_and(|stages| stages.last().is_some_and(|last| *last > position))
        };
        self.kept.borrow_mut().retain(|id, _| is_wanted(id));
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
        StageBase::Scratch => None,
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

        fn unpack(&self, _: &Image) -> Result<Chain, ServiceError> {
            Err("nothing is unpacked while planning".into())
        }
    }

    fn plan(dockerfile: &str) -> Plan {
        let host = Platform::new("linux", "amd64", None);
        let request = PlanRequest {
            build_args: BTreeMap::new(),
            target: None,
            labels: Vec::new(),
            platform: Requested { asked: host.clone(), normalised: host.clone() },
            asked: Asked::ByDefault,
            mode: MatchMode::Compatible,
            host,
            layering: crate::build::step::Layering::EachStep,
            most_layers: 100,
            networks: crate::build::network::Networks::USUAL,
            run: crate::build::run_settings::RunSettings::usual(),
        };
        let file = crate::dockerfile::parse(dockerfile.as_bytes()).unwrap();
        build::plan(&file, &request, &IgnoreRules::default(), &ByName).unwrap()
    }

    fn image(name: &str) -> Image {
        let host = Platform::new("linux", "amd64", None);
        let wanted = Wanted { platform: host, asked: Asked::ByDefault, mode: MatchMode::Compatible };
        ByName.resolve(&name.parse().unwrap(), &wanted).unwrap().image
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
            assert_eq!(!bases.kept.borrow().is_empty(), kept, "{position} {name}");
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
            assert_eq!(bases.kept.borrow().len(), kept, "{purpose:?}");
        }
        assert_eq!(unpacked, 1);
        // Where the step need not be done after all, its stage's end is that of the files.
        bases.get(&image("base"), 0, Purpose::Key, || Ok::<_, ()>(Chain::empty())).unwrap();
        bases.leave(0);
        assert!(bases.kept.borrow().is_empty());
    }

    #[test]
    fn what_no_later_stage_wants_is_let_go() {
        let plan = plan("FROM base AS a\nRUN x\nCOPY --from=base /x /\nFROM a\nRUN y\n");
        let bases = Bases::of(&plan);
        bases.get(&image("base"), 0, Purpose::Step, || Ok::<_, ()>(Chain::empty())).unwrap();
        assert_eq!(bases.kept.borrow().len(), 1);
        bases.leave(0);
        assert!(bases.kept.borrow().is_empty());
        // A stage that did without, because its results were known.
        let again = Bases::of(&plan);
        again.get(&image("base"), 1, Purpose::Step, || Ok::<_, ()>(Chain::empty())).unwrap();
        assert!(again.kept.borrow().is_empty());
    }
}
