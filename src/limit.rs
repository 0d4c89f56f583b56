//! Limits that the user may raise: a number that knows the name of its setting.

use std::fmt;

/// A limit. Shown, it says how to raise it: `raise it with ...`, to stand behind what was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    name: &'static str,
    /// The most there may be; what it counts is a matter of the name.
    pub value: u64,
}

impl Limit {
    /// The limit `name`, which is `value` unless somebody sets another.
    #[must_use]
    pub const fn new(name: &'static str, value: u64) -> Self {
        Self { name, value }
    }

    /// The name of the setting.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The same limit with another value.
    #[must_use]
    pub const fn with(self, value: u64) -> Self {
        Self { name: self.name, value }
    }

    /// Whether `count` is more than allowed.
    #[must_use]
    pub const fn is_exceeded_by(&self, count: u64) -> bool {
        count > self.value
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raise it with `--limit {}=N`", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_how_to_raise_it() {
        let limit = Limit::new("layer-entries", 5).with(7);
        assert_eq!((limit.value, limit.is_exceeded_by(7), limit.is_exceeded_by(8)), (7, false, true));
        assert_eq!(limit.to_string(), "raise it with `--limit layer-entries=N`");
    }
}
