//! File modes as `--chmod` takes them: octal, or symbolic as in chmod(1).

/// A mode to set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// These permission bits, 0 to 07777.
    Octal(u32),
    /// Changes to the bits that are there.
    Symbolic(Symbolic),
}

/// A list of changes such as `u=rwX,go-w`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbolic(Vec<Change>);

/// What a mode is for; `X` gives directories the execute bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeTarget {
    /// A file, or anything else but a directory.
    File,
    /// A directory.
    Directory,
}

/// A text that is not a mode, in BuildKit's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// It looks like a number.
    #[error("invalid chmod parameter: '{0}'. it should be octal string and between 0 and 07777")]
    Number(String),
    /// It looks like changes.
    #[error(
        "invalid chmod parameter: '{0}': invalid syntax, expected an octal number or changes like `u=rwX,go-w`"
    )]
    Changes(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    /// The bits that may change.
    who: u32,
    operation: Operation,
    bits: Bits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    /// These; `execute_if` adds execute for directories and what is executable already.
    Given { bits: u32, execute_if: u32 },
    /// Those of the class that begins at this bit: 6 user, 3 group, 0 others.
    CopyOf(u32),
}

const USER: u32 = 0o4700;
const GROUP: u32 = 0o2070;
const OTHER: u32 = 0o0007;
const STICKY: u32 = 0o1000;
/// What clauses without a class leave alone: the umask of a build.
const UMASK: u32 = 0o022;

impl Mode {
    /// Reads `755`, `0640`, `u=rwX,go=rX`, `+x`, `g=u`.
    ///
    /// # Errors
    /// If `text` is neither.
    pub fn parse(text: &str) -> Result<Self, ModeError> {
        let error = || {
            let is_number = text.bytes().next().is_some_and(|first| first.is_ascii_digit());
            let kind = if is_number { ModeError::Number } else { ModeError::Changes };
            kind(super::text::excerpt(text.as_bytes()))
        };
        if !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'7')) {
            let mode = u32::from_str_radix(text, 8).map_err(|_| error())?;
            return if mode <= 0o7777 { Ok(Self::Octal(mode)) } else { Err(error()) };
        }
        let mut changes = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause.as_bytes(), &mut changes).ok_or_else(error)?;
        }
        Ok(Self::Symbolic(Symbolic(changes)))
    }

    /// What tells it apart from all modes that do something else.
    #[must_use]
    pub fn identity(&self) -> Vec<u8> {
        match self {
            Self::Octal(bits) => bits.to_le_bytes().to_vec(),
            Self::Symbolic(Symbolic(changes)) => changes.iter().flat_map(Change::identity).collect(),
        }
    }

    /// The new permission bits of something whose bits are `mode`; other bits of `mode` are dropped.
    #[must_use]
    pub fn apply(&self, target: ModeTarget, mode: u32) -> u32 {
        match self {
            Self::Octal(bits) => *bits,
            Self::Symbolic(symbolic) => symbolic.apply(target, mode & 0o7777),
        }
    }
}

impl Change {
    /// Seventeen bytes, so that a list of them is never as long as the bits alone.
    fn identity(&self) -> [u8; 17] {
        let operation = match self.operation {
            Operation::Add => b'+',
            Operation::Remove => b'-',
            Operation::Set => b'=',
        };
        let (kind, bits, more) = match self.bits {
            Bits::Given { bits, execute_if } => (0, bits, execute_if),
            Bits::CopyOf(shift) => (1, shift, 0),
        };
        let mut bytes = [operation; 17];
        let numbers = [self.who, kind, bits, more];
        for (place, number) in bytes[1..].chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

impl Symbolic {
    fn apply(&self, target: ModeTarget, original: u32) -> u32 {
        self.0.iter().fold(original, |mode, change| {
            let bits = match change.bits {
                Bits::CopyOf(shift) => {
                    let bits = mode >> shift & 7;
                    bits << 6 | bits << 3 | bits
                }
                Bits::Given { bits, execute_if } => {
                    let executable = target == ModeTarget::Directory || original & 0o111 != 0;
                    bits | if executable { execute_if } else { 0 }
                }
            };
            match change.operation {
                Operation::Add => mode | bits & change.who,
                Operation::Remove => mode & !(bits & change.who),
                Operation::Set => mode & !(change.who & !STICKY) | bits & change.who,
            }
        })
    }
}

/// Reads one clause: classes, then operations with permissions, at least one.
fn parse_clause(clause: &[u8], changes: &mut Vec<Change>) -> Option<()> {
    let classes = clause.iter().take_while(|b| matches!(b, b'u' | b'g' | b'o' | b'a')).count();
    let named = clause[..classes].iter().fold(0, |who, class| {
        who | match class {
            b'u' => USER,
            b'g' => GROUP,
            b'o' => OTHER,
            _ => USER | GROUP | OTHER | STICKY,
        }
    });
    // The sticky bit belongs to no class: everyone who names more than others may set it.
    let who = match named {
        0 => 0o7777 & !UMASK,
        OTHER => OTHER,
        named => named | STICKY,
    };
    let mut rest = &clause[classes..];
    if rest.is_empty() {
        return None;
    }
    while let Some((&operator, after)) = rest.split_first() {
        let operation = match operator {
            b'+' => Operation::Add,
            b'-' => Operation::Remove,
            b'=' => Operation::Set,
            _ => return None,
        };
        let length = after.iter().take_while(|b| !matches!(b, b'+' | b'-' | b'=')).count();
        let bits = parse_permissions(&after[..length])?;
        changes.push(Change { who, operation, bits });
        rest = &after[length..];
    }
    Some(())
}

fn parse_permissions(text: &[u8]) -> Option<Bits> {
    match text {
        b"u" => return Some(Bits::CopyOf(6)),
        b"g" => return Some(Bits::CopyOf(3)),
        b"o" => return Some(Bits::CopyOf(0)),
        _ => {}
    }
    let (mut bits, mut execute_if) = (0, 0);
    for permission in text {
        match permission {
            b'r' => bits |= 0o444,
            b'w' => bits |= 0o222,
            b'x' => bits |= 0o111,
            b'X' => execute_if = 0o111,
            b's' => bits |= 0o6000,
            b't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some(Bits::Given { bits, execute_if })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_bits_as_chmod_does() {
        use ModeTarget::{Directory, File};
        for (text, target, before, after) in [
            ("755", File, 0o644, 0o755),
            ("0640", Directory, 0o4755, 0o640),
            ("07777", File, 0, 0o7777),
            ("0", File, 0o777, 0),
            ("00000644", File, 0o777, 0o644),
            ("u=rwX,go=rX", File, 0o600, 0o644),
            ("u=rwX,go=rX", File, 0o700, 0o755),
            ("u=rwX,go=rX", Directory, 0o600, 0o755),
            ("+x", File, 0o644, 0o755),
            ("+w", File, 0o444, 0o644),
            ("a+w", File, 0o444, 0o666),
            ("go-rwx", File, 0o777, 0o700),
            ("g=u", File, 0o640, 0o660),
            ("o=g-w", File, 0o660, 0o664),
            ("u+s,g+s", File, 0o755, 0o6755),
            ("u-s", File, 0o4755, 0o755),
            ("+t", Directory, 0o755, 0o1755),
            ("o+t", Directory, 0o755, 0o755),
            ("u=", File, 0o4755, 0o055),
            ("a=rx", File, 0o777, 0o555),
            ("u+r-w+x", File, 0o200, 0o500),
            ("ug+X", File, 0o644, 0o644),
        ] {
            let mode = Mode::parse(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(mode.apply(target, before), after, "{text} on {before:o}");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for text in [
            "",
            "9x",
            "64a",
            "10000",
            "77777777777777",
            "u",
            "u=rz",
            "z+x",
            "u+x,",
            ",u+x",
            "u+ug",
            "-1x",
            "0o7",
        ] {
            assert!(Mode::parse(text).is_err(), "{text}");
        }
        for text in ["64a", "10000", "9x"] {
            assert_eq!(
                Mode::parse(text).unwrap_err().to_string(),
                format!(
                    "invalid chmod parameter: '{text}'. it should be octal string and between 0 and 07777"
                )
            );
        }
        let error = Mode::parse("u=rz").unwrap_err().to_string();
        assert!(error.contains("'u=rz': invalid syntax"), "{error}");
    }
}
