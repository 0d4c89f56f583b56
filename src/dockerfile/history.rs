//! What the history of an image says of an instruction, in Go's formats since BuildKit writes them so.

use super::Text;
use super::instruction::{Health, HealthCheck, Transfer, TransferKind};
use super::ports::PortRange;

/// `text` as Go's `%q` shows it: in double quotes, with control characters and bytes that are not UTF-8 escaped.
#[must_use]
pub fn quote(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    let mut at = 0;
    while at < text.len() {
        let (c, length) = super::text::char_at(text, at);
        let invalid = length == 1 && !text[at].is_ascii();
        match c {
            _ if invalid => out.push_str(&format!("\\x{:02x}", text[at])),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
        at += length;
    }
    out.push('"');
    out
}

/// Whether Go prints `c` as it is. Rust's `Debug` escapes nearly the same characters; a combining mark is the exception
/// that matters, so only what Rust writes as `\u{…}` for another reason than being a mark counts.
fn is_printable(c: char) -> bool {
    // Of white space Go prints U+0020 only.
    c == ' '
        || (!c.is_whitespace()
            && !c.is_control()
            && !matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..))
}

/// `["a" "b"]`, as in CMD and ENTRYPOINT.
#[must_use]
pub fn quoted_list<T: AsRef<[u8]>>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(|item| quote(item.as_ref())).collect();
    format!("[{}]", items.join(" "))
}

/// `[a b]`, as in SHELL and VOLUME.
#[must_use]
pub fn plain_list<T: AsRef<[u8]>>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(|item| String::from_utf8_lossy(item.as_ref())).collect();
    format!("[{}]", items.join(" "))
}

/// `EXPOSE [443/tcp 53/udp]`: the ports of one instruction, sorted as text.
///
/// An instruction can name 65536 ports a word, so a caller that takes hostile files should limit `ports` before.
#[must_use]
pub fn expose(ports: &[PortRange]) -> String {
    let mut ports: Vec<String> = ports.iter().flat_map(PortRange::names).collect();
    ports.sort();
    format!("EXPOSE [{}]", ports.join(" "))
}

/// `HEALTHCHECK {Test:[CMD-SHELL x] Interval:5m0s …}`.
#[must_use]
pub fn healthcheck(check: &HealthCheck) -> String {
    let defaults = Health::default();
    let health = match check {
        HealthCheck::Check(health) => health,
        HealthCheck::None => &defaults,
    };
    format!(
        "HEALTHCHECK {{Test:{} Interval:{} Timeout:{} StartPeriod:{} StartInterval:{} Retries:{}}}",
        plain_list(&check.test()),
        health.interval,
        health.timeout,
        health.start_period,
        health.start_interval,
        health.retries
    )
}

/// `COPY --parents --chown=1:1 --chmod=755 a b /x/ # buildkit`, or `ADD …`: `transfer` after expansion. Files come before
/// here-documents, as they are copied.
#[must_use]
pub fn transfer(kind: TransferKind, transfer: &Transfer) -> String {
    let mut words = vec![kind.keyword().to_owned()];
    if transfer.parents {
        words.push("--parents".to_owned());
    }
    let flags = [("--chown=", &transfer.chown), ("--chmod=", &transfer.chmod)];
    words.extend(
        flags.iter().filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}{value}"))),
    );
    words.extend(transfer.paths().map(Text::to_string));
    words.extend(transfer.heredocs().map(|heredoc| format!("<<{}", heredoc.name)));
    words.push(transfer.destination.to_string());
    words.push("# buildkit".to_owned());
    words.join(" ")
}

/// `RUN |2 A=1 B=2 /bin/sh -c x # buildkit`: the declared arguments in the order of their first declaration, and the
/// command with its shell.
#[must_use]
pub fn run<'a, T: AsRef<[u8]>>(
    arguments: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    command: &[T],
) -> String {
    let mut row = "RUN".to_owned();
    if arguments.len() > 0 {
        row.push_str(&format!(" |{}", arguments.len()));
        for (name, value) in arguments {
            row.extend([" ", name, "=", value]);
        }
    }
    for word in command {
        row.push(' ');
        row.push_str(&String::from_utf8_lossy(word.as_ref()));
    }
    row.push_str(" # buildkit");
    row
}

/// `ENV a=1 b=2` or `LABEL a=1 b=2`, expanded.
#[must_use]
pub fn assignments<T: AsRef<[u8]>>(keyword: &str, pairs: &[(T, T)]) -> String {
    let mut row = keyword.to_owned();
    for (name, value) in pairs {
        for (sign, text) in [(' ', name), ('=', value)] {
            row.push(sign);
            row.push_str(&String::from_utf8_lossy(text.as_ref()));
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::duration::Duration;
    use super::super::instruction::Command;
    use super::*;

    #[test]
    fn quoting_is_that_of_go() {
        for (text, expected) in [
            (&b"a b"[..], r#""a b""#),
            (b"[\"a\"]", r#""[\"a\"]""#),
            (b"\\", r#""\\""#),
            (b"\t\n\x01\x7f", r#""\t\n\x01\x7f""#),
            ("é😀".as_bytes(), "\"é😀\""),
            (b"\xff", r#""\xff""#),
            ("\u{a0}\u{200b}\u{85}".as_bytes(), r#""\u00a0\u200b\u0085""#),
            ("\u{fffd}".as_bytes(), "\"\u{fffd}\""),
        ] {
            assert_eq!(quote(text), expected);
        }
        assert_eq!(quoted_list(&["a", "b c"]), r#"["a" "b c"]"#);
        assert_eq!(quoted_list::<&str>(&[]), "[]");
        assert_eq!(plain_list(&["/bin/bash", "-c"]), "[/bin/bash -c]");
    }

    #[test]
    fn a_health_check_shows_all_its_fields() {
        let seconds = |n: i64| Duration::from_nanoseconds(n * 1_000_000_000);
        let check = HealthCheck::Check(Health {
            command: Command::Shell("curl x".into()),
            interval: seconds(300),
            timeout: seconds(3),
            start_period: seconds(1),
            start_interval: seconds(2),
            retries: 4,
        });
        assert_eq!(
            healthcheck(&check),
            "HEALTHCHECK {Test:[CMD-SHELL curl x] Interval:5m0s Timeout:3s StartPeriod:1s StartInterval:2s Retries:4}"
        );
        assert_eq!(
            healthcheck(&HealthCheck::None),
            "HEALTHCHECK {Test:[NONE] Interval:0s Timeout:0s StartPeriod:0s StartInterval:0s Retries:0}"
        );
    }

    #[test]
    fn a_run_shows_its_arguments_before_the_command() {
        let shell = ["/bin/sh", "-c", "x"];
        assert_eq!(run([].into_iter(), &shell), "RUN /bin/sh -c x # buildkit");
        let arguments = [("A", ""), ("B", "2")];
        assert_eq!(run(arguments.into_iter(), &shell), "RUN |2 A= B=2 /bin/sh -c x # buildkit");
        assert_eq!(assignments("ENV", &[("a", "1"), ("b", "two words")]), "ENV a=1 b=two words");
    }
}
