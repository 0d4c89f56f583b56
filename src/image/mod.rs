//! OCI values: what an image is made of, without any input or output.

pub mod config;
pub mod descriptor;
pub mod digest;
pub mod document;
pub mod index;
pub mod json;
pub mod manifest;
pub mod matching;
pub mod platform;
pub mod reference;
pub mod target;

/// Text from outside, fit for one line of a message: at most 100 characters, without control bytes.
#[must_use]
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 100;
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == LONGEST {
            out.push('…');
            break;
        }
        if character.is_control() { out.extend(character.escape_default()) } else { out.push(character) }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn shown_text_is_short_and_on_one_line() {
        assert_eq!(super::shown("a\n\u{1b}[31mé"), "a\\n\\u{1b}[31mé");
        assert_eq!(super::shown(&"x".repeat(500)).chars().count(), 101);
    }
}
