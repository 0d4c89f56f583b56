//! Here-documents: `<<NAME` in RUN, COPY and ADD, and the lines that belong to it.

use super::Text;
use super::expand::{ExpandError, Quotes, name_words, shell_words};
use super::text::is_blank;

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heredoc {
    /// Its name, which is also the line that ends it; quotes and escapes are removed.
    pub name: Text,
    /// Whether variables in the body expand.
    pub expansion: Expansion,
    /// Whether tabs at the start of lines go.
    pub tabs: Tabs,
    /// The number before `<<`; 0 without one.
    pub descriptor: u32,
    /// The lines, byte for byte, with their line ends; tabs are still there.
    pub body: Text,
}

/// Whether variables in a here-document expand (in COPY and ADD; in RUN that is the shell's affair).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expansion {
    /// They do.
    Variables,
    /// They don't: some part of the name was quoted.
    Verbatim,
}

/// What happens to tabs at the start of the lines of a here-document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tabs {
    /// They stay: `<<`.
    Keep,
    /// They go: `<<-`.
    Strip,
}

impl Heredoc {
    /// The body, without leading tabs where `<<-` says so.
    #[must_use]
    pub fn content(&self) -> Text {
        match self.tabs {
            Tabs::Keep => self.body.clone(),
            Tabs::Strip => {
                let lines = self.body.split_inclusive(|&b| b == b'\n');
                lines.map(strip_tabs).collect::<Vec<_>>().concat().into()
            }
        }
    }

    /// Whether the command `text` is one here-document and nothing else.
    #[must_use]
    pub fn is_only(text: &[u8]) -> bool {
        Self::parse(text).ok().flatten().is_some()
    }

    /// Reads a word such as `<<EOF`, `3<<-"E F"`; `None` if it is something else.
    pub(super) fn parse(word: &[u8]) -> Result<Option<Self>, ExpandError> {
        let digits = word.iter().take_while(|b| b.is_ascii_digit()).count();
        let Some(rest) = word[digits..].strip_prefix(b"<<") else { return Ok(None) };
        let (tabs, rest) = match rest.strip_prefix(b"-") {
            Some(rest) => (Tabs::Strip, rest),
            None => (Tabs::Keep, rest),
        };
        if rest.is_empty() || rest.contains(&b'<') {
            return Ok(None);
        }
        let words = name_words(rest, Quotes::Remove)?;
        let [name] = &words[..] else { return Ok(None) };
        let quoted = name_words(rest, Quotes::Keep)?.concat();
        let quotes = |text: &[u8]| text.iter().filter(|b| matches!(b, b'\'' | b'"')).count();
        let expansion =
            if quotes(&quoted) == quotes(name) { Expansion::Variables } else { Expansion::Verbatim };
        let descriptor = std::str::from_utf8(&word[..digits]).ok().and_then(|text| text.parse().ok());
        Ok(Some(Self {
            name: name.clone().into(),
            expansion,
            tabs,
            descriptor: descriptor.unwrap_or(0),
            body: Text::default(),
        }))
    }

    /// The here-documents that `line` announces, without their bodies. A line that is no well-formed shell words has none.
    pub(super) fn announced(line: &[u8]) -> Result<Vec<Self>, ExpandError> {
        if !line.windows(2).any(|pair| pair == b"<<") {
            return Ok(Vec::new());
        }
        let words = shell_words(line).unwrap_or_default();
        words.iter().filter_map(|word| Self::parse(word).transpose()).collect()
    }

    /// Whether `line` (without its line end) ends this here-document.
    pub(super) fn is_end(&self, line: &[u8]) -> bool {
        let line = if self.tabs == Tabs::Strip { strip_tabs(line) } else { line };
        line == self.name.as_bytes()
    }
}

fn strip_tabs(line: &[u8]) -> &[u8] {
    let tabs = line.iter().take_while(|&&b| b == b'\t').count();
    &line[tabs..]
}

/// Removes the keyword ONBUILD and the blanks around it.
pub(super) fn without_onbuild(line: &[u8]) -> &[u8] {
    const KEYWORD: &[u8] = b"ONBUILD";
    let start = line.iter().position(|&b| !is_blank(b)).unwrap_or(line.len());
    let rest = &line[start..];
    let Some(head) = rest.get(..KEYWORD.len()) else { return line };
    if !head.eq_ignore_ascii_case(KEYWORD) {
        return line;
    }
    let rest = &rest[KEYWORD.len()..];
    let start = rest.iter().position(|&b| !is_blank(b)).unwrap_or(rest.len());
    &rest[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_announce_here_documents() {
        use Expansion::{Variables, Verbatim};
        for (word, name, expansion, tabs, descriptor) in [
            ("<<EOF", "EOF", Variables, Tabs::Keep, 0),
            ("<<-EOF", "EOF", Variables, Tabs::Strip, 0),
            ("3<<EOF", "EOF", Variables, Tabs::Keep, 3),
            ("<< EOF", "EOF", Variables, Tabs::Keep, 0),
            ("<<'EOF'", "EOF", Verbatim, Tabs::Keep, 0),
            ("<<\"a b\"", "a b", Verbatim, Tabs::Keep, 0),
            ("<<E'O'F", "EOF", Verbatim, Tabs::Keep, 0),
            ("<<\\EOF", "EOF", Variables, Tabs::Keep, 0),
            ("<<$EOF", "$EOF", Variables, Tabs::Keep, 0),
            ("<<${EOF}", "${EOF}", Variables, Tabs::Keep, 0),
            ("<<E\\'F", "E'F", Variables, Tabs::Keep, 0),
            ("99999999999<<E", "E", Variables, Tabs::Keep, 0),
        ] {
            let heredoc = Heredoc::parse(word.as_bytes()).unwrap().unwrap_or_else(|| panic!("{word}"));
            let body = Text::default();
            assert_eq!(heredoc, Heredoc { name: name.into(), expansion, tabs, descriptor, body }, "{word}");
        }
        for word in ["", "EOF", "<<", "<<-", "<EOF", "<<<EOF", "<<EOF sh", "x<<EOF", "<<a<b"] {
            assert_eq!(Heredoc::parse(word.as_bytes()), Ok(None), "{word}");
        }
        for word in ["<<'EOF", "<<\"EOF", "<<EOF'", "<<EOF\""] {
            assert!(Heredoc::parse(word.as_bytes()).is_err(), "{word}");
        }
    }

    #[test]
    fn lines_announce_several() {
        for (line, names) in [
            ("RUN <<EOF", "EOF"),
            ("RUN cat <<A >x && cat <<-B", "A B"),
            ("RUN << EOF cat", "EOF"),
            ("RUN <<- EOF", ""),
            ("RUN << -EOF", "-EOF"),
            ("RUN '<<EOF'", ""),
            ("RUN \"<<EOF\"", ""),
            ("RUN echo $(( 1 << 3 ))", "3"),
            ("RUN echo $((1<<3))", ""),
            ("RUN cat <<<EOF", ""),
            ("RUN cat <<'EOF", ""),
            ("RUN echo don't <<EOF", ""),
            ("RUN cat <<\"a b\" > /f", "a b"),
            ("RUN cat <<A|cat", "A|cat"),
            ("RUN echo ${x:-y} <<A", "A"),
            ("RUN echo ${x,,} <<A", ""),
        ] {
            let heredocs = Heredoc::announced(line.as_bytes()).unwrap();
            let found: Vec<String> = heredocs.iter().map(|h| h.name.to_string()).collect();
            assert_eq!(found.join(" "), names, "{line}");
        }
    }

    #[test]
    fn tabs_are_stripped_from_lines_and_end() {
        let mut heredoc = Heredoc::parse(b"<<-EOF").unwrap().unwrap();
        heredoc.body = "\t\ta\n b\tc\n\td".into();
        assert_eq!(heredoc.content(), "a\n b\tc\nd");
        assert!(heredoc.is_end(b"\tEOF"));
        assert!(!heredoc.is_end(b" EOF"));
        assert!(!heredoc.is_end(b"EOF "));
    }
}
