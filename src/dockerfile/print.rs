//! A parsed Dockerfile as text again, in one plain form: an instruction a line, flags first, JSON lists where words need
//! them.
//!
//! What [`parse()`](super::parse()) makes of the printed text is what was printed, but for where it is written and how:
//! comments, continuations, the case of keywords and flags that change nothing are gone. A here-document that is
//! announced inside the value of a flag (quotes mean one thing to flags and another to the words of a shell) is not
//! announced any more.

use super::heredoc::{Expansion, Heredoc, Tabs};
use super::instruction::{
    Assignments, Command, From, Health, HealthCheck, Instruction, Network, PairSyntax, Run, Security, Source,
    Transfer, TransferKind,
};
use super::lines::MAX_LINE;
use super::mount::{Device, Need};
use super::text::{char_at, is_blank, trim};
use super::{Dockerfile, Duration, Escape, Text};

/// The text of `dockerfile`.
#[must_use]
pub fn print(dockerfile: &Dockerfile) -> Vec<u8> {
    let mut printer = Printer { out: Vec::new(), escape: dockerfile.escape };
    if let Some(syntax) = &dockerfile.syntax {
        printer.out.extend_from_slice(format!("#syntax={}\n", syntax.value).as_bytes());
    }
    if let Some(check) = &dockerfile.check {
        printer.out.extend_from_slice(format!("#check={}\n", check.text()).as_bytes());
    }
    if dockerfile.escape == Escape::Backtick {
        printer.out.extend_from_slice(b"#escape=`\n");
    }
    for argument in &dockerfile.global_args {
        printer.instruction(&argument.value);
    }
    for stage in &dockerfile.stages {
        printer.from(&stage.from.value);
        for instruction in &stage.instructions {
            printer.instruction(&instruction.value);
        }
    }
    printer.out
}

/// How a quote in a flag is written. To flags both are the same, to the words of a shell the second one is a quote that
/// begins there.
#[derive(Clone, Copy)]
enum QuoteStyle {
    Escaped,
    Opening,
}

/// An instruction on its way to text.
struct Line {
    keyword: &'static str,
    flags: Vec<(&'static str, Vec<u8>)>,
    rest: Vec<u8>,
}

impl Line {
    fn new(keyword: &'static str, rest: impl Into<Vec<u8>>) -> Self {
        Self { keyword, flags: Vec::new(), rest: rest.into() }
    }

    fn flag(&mut self, name: &'static str, value: impl Into<Vec<u8>>) {
        self.flags.push((name, value.into()));
    }

    fn optional(&mut self, name: &'static str, value: Option<&Text>) {
        if let Some(value) = value {
            self.flag(name, value.as_bytes());
        }
    }

    fn bytes(&self, style: QuoteStyle) -> Vec<u8> {
        let mut out = self.keyword.as_bytes().to_vec();
        for (name, value) in &self.flags {
            out.extend_from_slice(format!(" --{name}=").as_bytes());
            for &byte in value {
                match (byte, style) {
                    (b'\'', QuoteStyle::Opening) => out.extend_from_slice(br"'\''"),
                    _ if byte.is_ascii() && !is_plain(byte) => out.extend_from_slice(&[b'\\', byte]),
                    _ => out.push(byte),
                }
            }
        }
        if self.rest.starts_with(b"--") {
            out.extend_from_slice(b" --");
        }
        if !self.rest.is_empty() {
            out.push(b' ');
            out.extend_from_slice(&self.rest);
        }
        out
    }
}

/// Whether `byte` means nothing to a shell or to flags.
const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b'.' | b',' | b'/' | b':' | b'=' | b'+' | b'@')
}

struct Printer {
    out: Vec<u8>,
    escape: Escape,
}

impl Printer {
    fn instruction(&mut self, instruction: &Instruction) {
        let keyword = instruction.keyword();
        let line = match instruction {
            Instruction::From(from) => return self.from(from),
            Instruction::Run(run) => return self.run(run),
            Instruction::Copy(transfer) => return self.transfer(TransferKind::Copy, transfer),
            Instruction::Add(transfer) => return self.transfer(TransferKind::Add, transfer),
            Instruction::Onbuild(text) => return self.onbuild(text),
            Instruction::Env(pairs) | Instruction::Label(pairs) => {
                Line::new(keyword, self.with_end(assignments(pairs)))
            }
            Instruction::Arg(names) => Line::new(keyword, self.with_end(joined(names.iter().map(argument)))),
            Instruction::Workdir(text)
            | Instruction::User(text)
            | Instruction::StopSignal(text)
            | Instruction::Maintainer(text) => Line::new(keyword, text.as_bytes()),
            Instruction::Expose(words) => Line::new(keyword, joined(words.iter().map(|word| word.to_vec()))),
            Instruction::Volume(words) => {
                let words: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
                Line::new(keyword, if need_json(&words) { json(&words) } else { joined(words) })
            }
            Instruction::Cmd(command) | Instruction::Entrypoint(command) => {
                Line::new(keyword, self::command(command))
            }
            Instruction::Shell(words) => Line::new(keyword, json(words)),
            Instruction::Healthcheck(check) => healthcheck(check),
        };
        self.line(&line.bytes(QuoteStyle::Escaped));
    }

    fn from(&mut self, from: &From) {
        let mut rest = from.image.to_vec();
        if let Some(name) = &from.name {
            rest.extend_from_slice(b" AS ");
            rest.extend_from_slice(name.as_bytes());
        }
        let mut line = Line::new("FROM", rest);
        line.optional("platform", from.platform.as_ref());
        self.line(&line.bytes(QuoteStyle::Escaped));
    }

    fn run(&mut self, run: &Run) {
        let mut line = Line::new("RUN", command(&run.command));
        for mount in &run.mounts {
            line.flag("mount", csv(mount.fields()));
        }
        for Device { name, need } in &run.devices {
            let named = Text::new([b"name=", name.as_bytes()].concat());
            let required = Text::from("required");
            let need = (*need == Need::Required).then_some(&required);
            line.flag("device", csv([&named].into_iter().chain(need)));
        }
        match run.network {
            Network::Default => {}
            Network::None => line.flag("network", "none"),
            Network::Host => line.flag("network", "host"),
        }
        if run.security == Security::Insecure {
            line.flag("security", "insecure");
        }
        let bodies: Vec<(&Text, &Text)> =
            run.heredocs.iter().map(|heredoc| (&heredoc.name, &heredoc.body)).collect();
        if matches!(run.command, Command::Exec(_)) {
            return self.line(&line.bytes(QuoteStyle::Escaped));
        }
        // Quotes in flags decide whether a shell sees a here-document behind them.
        let announces = |line: &[u8]| {
            let names = Heredoc::announced(line).unwrap_or_default();
            names.iter().map(|heredoc| &heredoc.name).eq(bodies.iter().map(|(name, _)| *name))
        };
        let styles = [QuoteStyle::Escaped, QuoteStyle::Opening];
        let printed = styles.map(|style| line.bytes(style));
        let [escaped, opening] = &printed;
        self.line(if announces(escaped) { escaped } else { opening });
        for (name, body) in bodies {
            self.body(name, body);
        }
    }

    fn transfer(&mut self, kind: TransferKind, transfer: &Transfer) {
        let mut words: Vec<Vec<u8>> = transfer.sources.iter().map(source).collect();
        words.push(transfer.destination.to_vec());
        // Only the shell form has bodies, and its words need no JSON.
        let is_json = need_json(&words) && transfer.heredocs().all(|heredoc| heredoc.body.is_empty());
        let mut line = Line::new(kind.keyword(), if is_json { json(&words) } else { joined(words) });
        line.optional("from", transfer.from.as_ref());
        line.optional("chown", transfer.chown.as_ref());
        line.optional("chmod", transfer.chmod.as_ref());
        line.optional("checksum", transfer.checksum.as_ref());
        for pattern in &transfer.exclude {
            line.flag("exclude", pattern.as_bytes());
        }
        let switches = [
            ("link", transfer.link.then_some(true)),
            ("parents", transfer.parents.then_some(true)),
            ("keep-git-dir", transfer.keep_git_dir),
            ("unpack", transfer.unpack),
        ];
        for (name, on) in switches {
            if let Some(on) = on {
                line.flag(name, on.to_string());
            }
        }
        let line = line.bytes(QuoteStyle::Escaped);
        self.line(&line);
        if is_json {
            return;
        }
        // A here-document may be announced without being a source: `COPY << E /x` takes the lines up to `E`, and copies
        // the files `<<` and `E`.
        let empty = Text::default();
        for announced in Heredoc::announced(&line).unwrap_or_default() {
            let body = transfer.heredocs().find(|heredoc| heredoc.name == announced.name);
            self.body(&announced.name, body.map_or(&empty, |heredoc| &heredoc.body));
        }
    }

    /// ONBUILD keeps its text with all blanks, and the here-documents behind it.
    fn onbuild(&mut self, text: &Text) {
        let end = text.iter().position(|&b| b == b'\n').unwrap_or(text.len());
        let (first, bodies) = text.split_at(end);
        let mut line = [b"ONBUILD ".as_slice(), first].concat();
        // Such a line can only be the last one, where a continuation continues nothing.
        if end == text.len() && (self.continues(&line) || line.ends_with(b"\r")) {
            line.push(self.escape.byte());
        }
        self.wrapped(&line);
        self.out.extend_from_slice(bodies);
        self.out.push(b'\n');
    }

    fn body(&mut self, name: &Text, body: &Text) {
        for part in [body, name] {
            self.out.extend_from_slice(part);
        }
        self.out.push(b'\n');
    }

    /// Words whose last one may end with a blank. An escape character behind it means nothing and keeps it.
    fn with_end(&self, mut words: Vec<u8>) -> Vec<u8> {
        if trim(&words).len() < words.len() {
            words.push(self.escape.byte());
        }
        words
    }

    /// Whether the next line would belong to `line`.
    fn continues(&self, line: &[u8]) -> bool {
        let end = line.iter().rposition(|b| !matches!(b, b' ' | b'\t')).map_or(0, |at| at + 1);
        let escape = self.escape.byte();
        line[..end].strip_suffix(&[escape]).is_some_and(|before| before.last() != Some(&escape))
    }

    fn line(&mut self, line: &[u8]) {
        self.wrapped(line);
        if self.continues(line) {
            // White space that no continuation may have behind it.
            self.out.push(0x0b);
        }
        self.out.push(b'\n');
    }

    /// Breaks a line that is longer than a line may be, where the break is a continuation.
    fn wrapped(&mut self, mut line: &[u8]) {
        // Two bytes are left for what may come behind.
        const MOST: usize = MAX_LINE - 2;
        let escape = self.escape.byte();
        while line.len() > MOST {
            let fits = |&at: &usize| {
                line[at - 1] != escape && line[at] != b'#' && !char_at(line, at).0.is_whitespace()
            };
            let at = (1..=MOST).rev().find(fits).unwrap_or(MOST);
            self.out.extend_from_slice(&line[..at]);
            self.out.extend_from_slice(&[escape, b'\n']);
            line = &line[at..];
        }
        self.out.extend_from_slice(line);
    }
}

/// `name=value` words, or the older form.
fn assignments(Assignments { pairs, syntax }: &Assignments) -> Vec<u8> {
    match syntax {
        PairSyntax::Equals => {
            joined(pairs.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()))
        }
        PairSyntax::Legacy => joined(pairs.iter().flat_map(|(name, value)| [name.to_vec(), value.to_vec()])),
    }
}

fn argument((name, default): &(Text, Option<Text>)) -> Vec<u8> {
    match default {
        Some(default) => [name.as_bytes(), b"=", default.as_bytes()].concat(),
        None => name.to_vec(),
    }
}

fn command(command: &Command) -> Vec<u8> {
    match command {
        Command::Shell(text) => text.to_vec(),
        Command::Exec(words) => json(words),
    }
}

fn healthcheck(check: &HealthCheck) -> Line {
    let HealthCheck::Check(Health { command, interval, timeout, start_period, start_interval, retries }) =
        check
    else {
        return Line::new("HEALTHCHECK", "NONE");
    };
    let mut line = Line::new("HEALTHCHECK", [b"CMD ".as_slice(), &self::command(command)].concat());
    let durations = [
        ("interval", interval),
        ("timeout", timeout),
        ("start-period", start_period),
        ("start-interval", start_interval),
    ];
    for (name, duration) in durations {
        if *duration != Duration::default() {
            line.flag(name, duration.to_string());
        }
    }
    if *retries != 0 {
        line.flag("retries", retries.to_string());
    }
    line
}

/// Words with a blank between them; two where one would be escaped.
fn joined(words: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for (number, word) in words.into_iter().enumerate() {
        if matches!(out.last(), Some(b'\\' | b'`')) {
            out.push(b' ');
        }
        if number > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(&word);
    }
    out
}

/// Whether words separated by blanks would be other words.
fn need_json(words: &[Vec<u8>]) -> bool {
    words.first().is_some_and(|first| first.starts_with(b"["))
        || words.iter().any(|word| word.is_empty() || word.iter().any(|&b| is_blank(b) || b < b' '))
}

fn json<T: AsRef<[u8]>>(words: &[T]) -> Vec<u8> {
    let mut out = vec![b'['];
    for (number, word) in words.iter().enumerate() {
        if number > 0 {
            out.extend_from_slice(b", ");
        }
        out.push(b'"');
        for &byte in word.as_ref() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => out.push(byte),
            }
        }
        out.push(b'"');
    }
    out.push(b']');
    out
}

/// Comma-separated fields, quoted where they must be.
fn csv<'t>(fields: impl IntoIterator<Item = &'t Text>) -> Vec<u8> {
    let quoted = |field: &Text| {
        if !field.iter().any(|b| matches!(b, b'"' | b',')) {
            return field.to_vec();
        }
        let inner = field.split(|&b| b == b'"').collect::<Vec<_>>().join(&b"\"\""[..]);
        [b"\"", inner.as_slice(), b"\""].concat()
    };
    fields.into_iter().map(quoted).collect::<Vec<_>>().join(&b","[..])
}

fn source(source: &Source) -> Vec<u8> {
    let heredoc = match source {
        Source::Path(path) => return path.to_vec(),
        Source::Heredoc(heredoc) => heredoc,
    };
    let mut word = Vec::new();
    if heredoc.descriptor != 0 {
        word.extend_from_slice(heredoc.descriptor.to_string().as_bytes());
    }
    word.extend_from_slice(if heredoc.tabs == Tabs::Strip { b"<<-" } else { b"<<" });
    let name = heredoc.name.as_bytes();
    let mut at = 0;
    if heredoc.expansion == Expansion::Verbatim {
        word.push(b'"');
        for &byte in name {
            if matches!(byte, b'"' | b'$' | b'\\') {
                word.push(b'\\');
            }
            word.push(byte);
        }
        word.push(b'"');
        return word;
    }
    while at < name.len() {
        let (c, length) = char_at(name, at);
        if c.is_whitespace() || (c.is_ascii() && !c.is_ascii_alphanumeric() && c != '_') {
            word.push(b'\\');
        }
        word.extend_from_slice(&name[at..at + length]);
        at += length;
    }
    word
}
