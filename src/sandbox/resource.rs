//! Limits of a process (setrlimit(2)), by the names that Docker has for them.

use std::fmt;

use rustix::process::{Resource, Rlimit};

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimit {
    /// Its position in [`NAMES`].
    number: u8,
    /// What holds; none is no limit.
    pub soft: Option<u64>,
    /// To what the process may raise it; none is no limit.
    pub hard: Option<u64>,
}

/// Docker's names.
const NAMES: [(&str, Resource); 15] = [
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("locks", Resource::Locks),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("rtprio", Resource::Rtprio),
    ("rttime", Resource::Rttime),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];

impl ResourceLimit {
    /// The limit called `name`; none if there is none of that name.
    #[must_use]
    pub fn named(name: &str, soft: Option<u64>, hard: Option<u64>) -> Option<Self> {
        let number = NAMES.iter().position(|(known, _)| *known == name)?;
        Some(Self { number: u8::try_from(number).ok()?, soft, hard })
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAMES.get(usize::from(self.number)).map_or("", |(name, _)| name)
    }

    /// Sets it for this process.
    pub(super) fn set(&self) -> rustix::io::Result<()> {
        let Some((_, resource)) = NAMES.get(usize::from(self.number)) else {
            return Err(rustix::io::Errno::INVAL);
        };
        rustix::process::setrlimit(*resource, Rlimit { current: self.soft, maximum: self.hard })
    }

    /// For the way to the supervisor.
    pub(super) fn parts(&self) -> [u64; 3] {
        // As the kernel has it.
        let value = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        [u64::from(self.number), value(self.soft), value(self.hard)]
    }

    /// The counterpart of [`ResourceLimit::parts`].
    pub(super) fn from_parts([number, soft, hard]: [u64; 3]) -> Option<Self> {
        let number = u8::try_from(number).ok().filter(|number| usize::from(*number) < NAMES.len())?;
        let value = |limit| (limit != u64::MAX).then_some(limit);
        Some(Self { number, soft: value(soft), hard: value(hard) })
    }
}

/// As `--ulimit` has it.
impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
        write!(f, "{}={}:{}", self.name(), value(self.soft), value(self.hard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_the_names_of_docker_and_come_back_as_they_were() {
        for (number, name) in ResourceLimit::names().enumerate() {
            let limit = ResourceLimit::named(name, Some(1), None).unwrap();
            assert_eq!((limit.name(), usize::from(limit.number)), (name, number));
            assert_eq!(ResourceLimit::from_parts(limit.parts()), Some(limit));
            assert_eq!(limit.to_string(), format!("{name}=1:-1"));
        }
        assert_eq!(ResourceLimit::named("as", None, None), None);
        assert_eq!(ResourceLimit::from_parts([15, 0, 0]), None);
        assert_eq!(ResourceLimit::from_parts([256, 0, 0]), None);
    }
}
