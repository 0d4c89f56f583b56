//! Which CPU a variant stands for: the model that qemu plays for it, and the level that an amd64 processor has.

use std::fs::File;
use std::io::Read as _;

/// How much of `/proc/cpuinfo` is read: the first processor takes less than half of it, and the kernel writes no more than
/// it is asked for.
const FIRST_PROCESSOR: usize = 1 << 13;

/// What each level of the x86-64 psABI adds ("Micro-Architecture Levels"), in the words of `/proc/cpuinfo`.
const LEVELS: [(Level, &[&str]); 3] = [
    (Level(2), &["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]),
    (Level(3), &["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"]),
    (Level(4), &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

/// A level of amd64, 1 to 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Level(u8);

impl Level {
    /// The one that a variant stands for; none for a variant that is no level.
    fn of_variant(variant: Option<&str>) -> Option<Self> {
        match variant {
            None | Some("v1") => Some(Self(1)),
            Some("v2") => Some(Self(2)),
            Some("v3") => Some(Self(3)),
            Some("v4") => Some(Self(4)),
            Some(_) => None,
        }
    }
}

/// What an amd64 processor can do besides what all can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    flags: Vec<String>,
}

impl Features {
    /// Those of this machine; none where they cannot be read.
    pub(super) fn current() -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open("/proc/cpuinfo").ok()?;
        file.take(FIRST_PROCESSOR as u64).read_to_end(&mut text).ok()?;
        Self::parse(&String::from_utf8_lossy(&text))
    }

    /// Those of the first processor in the text of `/proc/cpuinfo`; none where it lists none.
    #[must_use]
    pub fn parse(cpuinfo: &str) -> Option<Self> {
        let line = cpuinfo.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim_end() == "flags").then_some(value)
        })?;
        Some(Self { flags: line.split_ascii_whitespace().map(str::to_owned).collect() })
    }

    /// What `variant` needs and is not there; nothing for a variant that is no level.
    pub(super) fn lacking(&self, variant: Option<&str>) -> Vec<&'static str> {
        let Some(wanted) = Level::of_variant(variant) else { return Vec::new() };
        let needed = LEVELS.iter().filter(|(level, _)| *level <= wanted).flat_map(|(_, flags)| *flags);
        needed.copied().filter(|flag| !self.flags.iter().any(|present| present == flag)).collect()
    }

    /// The highest variant of which nothing is missing.
    pub(super) fn variant(&self) -> &'static str {
        ["v4", "v3", "v2"].into_iter().find(|variant| self.lacking(Some(variant)).is_empty()).unwrap_or("v1")
    }
}

/// The CPU that qemu is to play for programs for `architecture/variant`; none where its own choice will do.
///
/// Of ARM each model is one that is known as an example of its architecture, with a floating point unit, as the ports of
/// distributions want it. Of amd64 it is the one that qemu's translator knows all of: models by the name of a processor
/// make it complain about what it lacks, at every start.
pub(super) fn cpu_model(architecture: &str, variant: Option<&str>) -> Option<&'static str> {
    match (architecture, variant) {
        ("arm", Some("v5")) => Some("arm926"),
        ("arm", Some("v6")) => Some("arm1176"),
        ("arm", None | Some("v7")) => Some("cortex-a7"),
        ("amd64", Some("v2")) => Some("Nehalem"),
        ("amd64", Some("v3")) => Some("max"),
        _ => None,
    }
}

/// Whether qemu can play a CPU that runs programs for `amd64/variant`: none has AVX-512.
pub(super) fn can_be_emulated(variant: Option<&str>) -> bool {
    Level::of_variant(variant).is_some_and(|level| level < Level(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "fpu sse2 cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3";
    const V3: &str = "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave";
    const V4: &str = "avx512f avx512bw avx512cd avx512dq avx512vl";

    fn features(flags: &str) -> Features {
        Features::parse(&format!(
            "processor\t: 0\nmodel name\t: x: y\nflags\t\t: {flags}\nbugs\t\t: avx512f\n"
        ))
        .unwrap()
    }

    #[test]
    fn a_level_has_all_that_those_below_it_have() {
        let cases = [
            ("fpu sse2".to_owned(), "v1"),
            (V2.to_owned(), "v2"),
            (format!("{V2} avx"), "v2"),
            (format!("{V2} {V3}"), "v3"),
            (V3.to_owned(), "v1"),
            (format!("{V2} {V3} {V4}"), "v4"),
            (format!("{V2} {V4}"), "v2"),
        ];
        for (flags, variant) in cases {
            assert_eq!(features(&flags).variant(), variant, "{flags}");
        }
    }

    #[test]
    fn what_is_lacking_is_named_and_nothing_of_variants_that_are_no_level() {
        let v2 = features(&format!("{V2} avx avx2 bmi1 bmi2 f16c fma movbe"));
        assert_eq!(v2.lacking(Some("v3")), ["abm", "xsave"]);
        for variant in [None, Some("v1"), Some("v2"), Some("v5"), Some("x")] {
            assert!(v2.lacking(variant).is_empty(), "{variant:?}");
        }
        assert_eq!(v2.lacking(Some("v4")).len(), 7);
    }

    #[test]
    fn flags_are_those_of_the_first_processor_and_may_be_unknown() {
        assert_eq!(Features::parse("flags : a b\n\nflags : c\n"), Features::parse("flags\t: a  b"));
        assert_eq!(Features::parse("Features : half thumb\n"), None);
        assert_eq!(Features::parse(""), None);
    }

    #[test]
    fn this_machine_has_flags_where_it_is_amd64() {
        if cfg!(target_arch = "x86_64") {
            assert!(Features::current().unwrap().flags.iter().any(|flag| flag == "sse2"));
        }
    }

    #[test]
    fn avx512_is_emulated_by_nobody() {
        assert!(["v2", "v3"].into_iter().all(|variant| can_be_emulated(Some(variant))));
        assert!(!can_be_emulated(Some("v4")) && !can_be_emulated(Some("v9")));
    }
}
