//! Tests of the parser as a whole: a golden corpus, a peer, random text, hostile sizes.

use std::fmt::Write as _;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// The largest Dockerfile.
const MOST: usize = 4 << 20;

fn directory() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/dockerfile/parse"))
}

/// Name and text of every file of the corpus, sorted.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "Dockerfile") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            files.push((name, std::fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

/// A Dockerfile as text: one line an instruction, one line more for each thing that an instruction has.
fn tree(bytes: &[u8]) -> String {
    let dockerfile = match parse(bytes) {
        Ok(dockerfile) => dockerfile,
        Err(error) => return format!("error {}: {error}\n", lines(error.span)),
    };
    let mut out = String::new();
    if dockerfile.escape == Escape::Backtick {
        out.push_str("escape `\n");
    }
    if let Some(syntax) = &dockerfile.syntax {
        writeln!(out, "syntax {} {}", lines(syntax.span), syntax.value).unwrap();
    }
    for argument in &dockerfile.global_args {
        instruction(&mut out, argument);
    }
    for stage in &dockerfile.stages {
        let from = &stage.from.value;
        write!(out, "{} FROM {}", lines(stage.from.span), quoted(&from.image)).unwrap();
        field(&mut out, "platform", from.platform.as_ref());
        assert_eq!(from.name, stage.name);
        writeln!(out, "{}", stage.name.as_ref().map_or_else(String::new, |name| format!(" name={name}")))
            .unwrap();
        for located in &stage.instructions {
            out.push_str("  ");
            instruction(&mut out, located);
        }
    }
    let mut warnings = dockerfile.warnings.clone();
    warnings.sort();
    for warning in warnings {
        let kept = dockerfile.check.as_ref().is_none_or(|directive| directive.allows(warning.rule()));
        if kept {
            writeln!(out, "warning {warning}").unwrap();
        }
    }
    out
}

fn lines(span: Span) -> String {
    if span.first_line == span.last_line {
        span.first_line.to_string()
    } else {
        format!("{}-{}", span.first_line, span.last_line)
    }
}

fn quoted(text: &[u8]) -> String {
    created_by::quote(text)
}

fn list(items: &[Text]) -> String {
    created_by::quoted_list(items)
}

fn field(out: &mut String, name: &str, value: Option<&Text>) {
    if let Some(value) = value {
        write!(out, " {name}={}", quoted(value)).unwrap();
    }
}

fn command(command: &Command) -> String {
    match command {
        Command::Shell(text) => format!("shell {}", quoted(text)),
        Command::Exec(words) => format!("exec {}", list(words)),
    }
}

fn heredoc(out: &mut String, heredoc: &Heredoc) {
    write!(out, "    heredoc {}", quoted(&heredoc.name)).unwrap();
    if heredoc.expansion == Expansion::Verbatim {
        out.push_str(" verbatim");
    }
    if heredoc.tabs == Tabs::Strip {
        out.push_str(" strip");
    }
    if heredoc.descriptor != 0 {
        write!(out, " descriptor={}", heredoc.descriptor).unwrap();
    }
    writeln!(out, " {}", quoted(&heredoc.body)).unwrap();
}

fn instruction(out: &mut String, located: &Located<Instruction>) {
    write!(out, "{} {}", lines(located.span), located.value.keyword()).unwrap();
    match &located.value {
        Instruction::From(_) => unreachable!("a stage has one FROM"),
        Instruction::Run(run) => return self::run(out, run),
        Instruction::Copy(transfer) | Instruction::Add(transfer) => return self::transfer(out, transfer),
        Instruction::Env(Assignments { pairs, syntax })
        | Instruction::Label(Assignments { pairs, syntax }) => {
            if *syntax == PairSyntax::Legacy {
                out.push_str(" legacy");
            }
            for (name, value) in pairs {
                write!(out, " {}={}", quoted(name), quoted(value)).unwrap();
            }
        }
        Instruction::Arg(arguments) => {
            for (name, default) in arguments {
                write!(out, " {}", quoted(name)).unwrap();
                if let Some(default) = default {
                    write!(out, "={}", quoted(default)).unwrap();
                }
            }
        }
        Instruction::Workdir(text)
        | Instruction::User(text)
        | Instruction::StopSignal(text)
        | Instruction::Onbuild(text)
        | Instruction::Maintainer(text) => write!(out, " {}", quoted(text)).unwrap(),
        Instruction::Expose(words) | Instruction::Volume(words) | Instruction::Shell(words) => {
            write!(out, " {}", list(words)).unwrap();
        }
        Instruction::Cmd(command) | Instruction::Entrypoint(command) => {
            write!(out, " {}", self::command(command)).unwrap();
        }
        Instruction::Healthcheck(check) => {
            let text = created_by::healthcheck(check);
            write!(out, " {}", text.trim_start_matches("HEALTHCHECK ")).unwrap();
        }
    }
    out.push('\n');
}

fn run(out: &mut String, run: &Run) {
    write!(out, " {}", command(&run.command)).unwrap();
    match run.network {
        Network::Default => {}
        Network::None => out.push_str(" network=none"),
        Network::Host => out.push_str(" network=host"),
    }
    if run.security == Security::Insecure {
        out.push_str(" security=insecure");
    }
    out.push('\n');
    for mount in &run.mounts {
        let mut expand = |text: &Text| Ok::<_, MountError>(text.clone());
        match mount.resolve(&mut expand) {
            Ok(mount) => writeln!(out, "    mount {}", self::mount(&mount)).unwrap(),
            Err(error) => writeln!(out, "    mount error: {error}").unwrap(),
        }
    }
    for device in &run.devices {
        let need = if device.need == Need::Required { " required" } else { "" };
        writeln!(out, "    device {}{need}", quoted(&device.name)).unwrap();
    }
    for heredoc in &run.heredocs {
        self::heredoc(out, heredoc);
    }
    if !run.heredocs.is_empty() {
        match run.action() {
            RunAction::Shell(text) => writeln!(out, "    runs shell {}", quoted(&text)).unwrap(),
            RunAction::Exec(words) => writeln!(out, "    runs exec {}", list(&words)).unwrap(),
            RunAction::Script { name, content } => {
                writeln!(out, "    runs script {} {}", quoted(&name), quoted(&content)).unwrap();
            }
        }
    }
}

fn mount(mount: &Mount) -> String {
    let mut out = String::new();
    let owner = |out: &mut String, owner: &MountOwner| {
        for (name, value) in [("uid", owner.uid), ("gid", owner.gid)] {
            if let Some(value) = value {
                write!(out, " {name}={value}").unwrap();
            }
        }
        if let Some(mode) = owner.mode {
            write!(out, " mode={mode:o}").unwrap();
        }
    };
    let access = |access| if access == Access::ReadOnly { " ro" } else { " rw" };
    match mount {
        Mount::Bind(bind) => {
            write!(out, "bind source={} target={}", quoted(&bind.source), quoted(&bind.target)).unwrap();
            field(&mut out, "from", bind.from.as_ref());
            out.push_str(access(bind.access));
        }
        Mount::Cache(cache) => {
            write!(out, "cache target={} sharing={:?}", quoted(&cache.target), cache.sharing).unwrap();
            field(&mut out, "id", cache.id.as_ref());
            field(&mut out, "from", cache.from.as_ref());
            owner(&mut out, &cache.owner);
            out.push_str(access(cache.access));
        }
        Mount::Tmpfs(tmpfs) => {
            write!(out, "tmpfs target={}", quoted(&tmpfs.target)).unwrap();
            if let Some(size) = tmpfs.size {
                write!(out, " size={size}").unwrap();
            }
        }
        Mount::Secret(secret) => {
            write!(out, "secret id={}", quoted(&secret.id)).unwrap();
            field(&mut out, "target", secret.target.as_ref());
            field(&mut out, "env", secret.variable.as_ref());
            owner(&mut out, &secret.owner);
            if secret.need == Need::Required {
                out.push_str(" required");
            }
        }
        Mount::Ssh(ssh) => {
            out.push_str("ssh");
            field(&mut out, "id", ssh.id.as_ref());
            field(&mut out, "target", ssh.target.as_ref());
            owner(&mut out, &ssh.owner);
            if ssh.need == Need::Required {
                out.push_str(" required");
            }
        }
    }
    out
}

fn transfer(out: &mut String, transfer: &Transfer) {
    for source in &transfer.sources {
        match source {
            Source::Path(path) => write!(out, " {}", quoted(path)).unwrap(),
            Source::Heredoc(heredoc) => write!(out, " <<{}", quoted(&heredoc.name)).unwrap(),
        }
    }
    write!(out, " to {}", quoted(&transfer.destination)).unwrap();
    field(out, "from", transfer.from.as_ref());
    field(out, "chown", transfer.chown.as_ref());
    field(out, "chmod", transfer.chmod.as_ref());
    field(out, "checksum", transfer.checksum.as_ref());
    for pattern in &transfer.exclude {
        field(out, "exclude", Some(pattern));
    }
    for (name, value) in [("link", transfer.link), ("parents", transfer.parents)] {
        if value {
            write!(out, " {name}").unwrap();
        }
    }
    for (name, value) in [("keep-git-dir", transfer.keep_git_dir), ("unpack", transfer.unpack)] {
        if let Some(value) = value {
            write!(out, " {name}={value}").unwrap();
        }
    }
    out.push('\n');
    for heredoc in transfer.heredocs() {
        self::heredoc(out, heredoc);
    }
}

#[test]
fn files_of_the_corpus_parse_to_their_trees() {
    let mut wrong = String::new();
    let files = corpus();
    assert!(files.len() >= 25);
    for (name, bytes) in files {
        let actual = tree(&bytes);
        let expected = std::fs::read_to_string(directory().join(format!("{name}.tree"))).unwrap_or_default();
        if actual != expected {
            write!(wrong, "=== {name}\n{actual}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "these trees differ, here is what they are now:\n{wrong}=== end");
}

/// What expansion makes of a row of the table, or its error.
fn expansion(how: &str, text: &[u8], lookup: &Lookup<'_>) -> String {
    let one = |expanded: Result<Expanded, ExpandError>| expanded.map(|expanded| expanded.text.to_string());
    let result = match how {
        "word" => one(expand(text, Escape::Backslash, lookup)),
        "word`" => one(expand(text, Escape::Backtick, lookup)),
        "body" => one(expand_body(text, lookup)),
        "words" => expand_words(text, Escape::Backslash, lookup)
            .map(|expanded| expanded.words.iter().map(Text::to_string).collect::<Vec<_>>().join("|")),
        _ => panic!("{how} is no way to expand"),
    };
    result.unwrap_or_else(|error| format!("error: {}", error.kind))
}

#[test]
fn texts_of_the_table_expand_to_their_results() {
    let table = include_str!("../../testdata/dockerfile/expand.tsv");
    let mut variables = std::collections::BTreeMap::new();
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let decoded = line.replace('⏎', "\n");
        let [how, text, expected] = decoded.split('\t').collect::<Vec<_>>()[..] else {
            panic!("not three columns: {line}")
        };
        let [text, expected] = [text, expected].map(|column| column.replace('⇥', "\t"));
        if how == "env" {
            variables.insert(text, expected);
            continue;
        }
        rows += 1;
        let lookup =
            |name: &str| variables.get(name).map(|value| std::borrow::Cow::Borrowed(value.as_bytes()));
        let found = expansion(how, text.as_bytes(), &lookup);
        if found != expected {
            wrong.push(format!("{line}\n  is {found}"));
        }
    }
    assert!(rows >= 200, "only {rows} rows");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Files, and a part of the error that they give, as BuildKit words it; observed there. Some of the errors come from expansion.
#[test]
fn files_that_buildkit_refuses_are_refused_in_its_words() {
    for (file, line, message) in [
        ("", 1, "the Dockerfile cannot be empty"),
        ("# only\n\n", 1, "file with no instructions"),
        ("\n", 1, "file with no instructions"),
        ("ARG a\n", 1, "dockerfile contains no stages to build"),
        ("ENV a=1\nFROM scratch\n", 1, "no build stage in current context"),
        ("FROM scratch\nCOPPY a b\n", 2, "unknown instruction: COPPY (did you mean COPY?)"),
        ("FROM scratch\ncoppy a b\n", 2, "unknown instruction: COPPY (did you mean COPY?)"),
        ("FROM scratch\nBOGUS\n", 2, "unknown instruction: BOGUS"),
        ("# escape=`\n# escape=\\\nFROM scratch\n", 2, "only one escape parser directive can be used"),
        ("# Syntax=a\n# syntax=b\nFROM scratch\n", 2, "only one syntax parser directive can be used"),
        ("# escape=x\nFROM scratch\n", 1, "invalid escape token 'x' does not match ` or \\"),
        ("# check=foo=1\nFROM scratch\n", 1, "invalid check option \"foo\""),
        ("FROM scratch # base\n", 1, "FROM requires either one or three arguments"),
        ("FROM\n", 1, "FROM requires either one or three arguments"),
        ("FROM a b c\n", 1, "FROM requires either one or three arguments"),
        (
            "FROM a AS 1a\n",
            1,
            "invalid name for build stage: \"1a\", name can't start with a number or contain symbols",
        ),
        ("FROM scratch\nENV a=1 # c\n", 2, "can't find = in \"#\". Must be of the form: name=value"),
        ("FROM scratch\nENV a=${z:-x y}\n", 2, "can't find = in \"y}\""),
        ("FROM scratch\nENV a\n", 2, "ENV must have two arguments"),
        ("FROM scratch\nLABEL a\n", 2, "LABEL must have two arguments"),
        ("FROM scratch\nENV\n", 2, "ENV requires at least one argument"),
        ("FROM scratch\nENV =x\n", 2, "ENV names can not be blank"),
        ("FROM scratch\nARG A = 1\n", 2, "ARG names can not be blank"),
        ("FROM scratch\nARG\n", 2, "ARG requires at least one argument"),
        ("FROM scratch\nRUN --nope x\n", 2, "unknown flag: --nope"),
        ("FROM scratch\nCOPY --form=x a b\n", 2, "unknown flag: --form (did you mean from?)"),
        ("FROM scratch\nADD --from=x a b\n", 2, "unknown flag: --from"),
        ("FROM scratch\nCOPY --link=maybe a b\n", 2, "expecting boolean value for flag --link, not: maybe"),
        ("FROM scratch\nCOPY --link --link a b\n", 2, "duplicate flag specified: --link"),
        ("FROM scratch\nCOPY --from a b\n", 2, "missing a value on flag: --from"),
        ("FROM scratch\nENV --x a=1\n", 2, "unknown flag: --x"),
        (
            "FROM scratch\nRUN [\"a\", 1]\n",
            2,
            "when using JSON array syntax, arrays must be comprised of strings only",
        ),
        ("FROM scratch\nRUN echo $(( 1 << 3 ))\n", 2, "unterminated heredoc"),
        ("FROM scratch\nRUN <<EOF\nEOF \n", 2, "unterminated heredoc"),
        ("FROM scratch\nCOPY a <<EOF\nx\nEOF\n", 2, "COPY cannot accept a heredoc as a destination"),
        ("FROM scratch\nADD a <<EOF\nx\nEOF\n", 2, "ADD cannot accept a heredoc as a destination"),
        (
            "FROM scratch\nCOPY a\n",
            2,
            "COPY requires at least two arguments, but only one was provided. Destination could not be determined",
        ),
        ("FROM scratch\nADD\n", 2, "ADD requires at least two arguments"),
        ("FROM scratch\nSHELL /bin/sh -c\n", 2, "SHELL requires the arguments to be in JSON form"),
        ("FROM scratch\nSHELL []\n", 2, "SHELL requires at least one argument"),
        ("FROM scratch\nWORKDIR\n", 2, "WORKDIR requires exactly one argument"),
        ("FROM scratch\nUSER \n", 2, "USER requires exactly one argument"),
        ("FROM scratch\nSTOPSIGNAL\n", 2, "STOPSIGNAL requires exactly one argument"),
        ("FROM scratch\nMAINTAINER\n", 2, "MAINTAINER requires exactly one argument"),
        ("FROM scratch\nEXPOSE\n", 2, "EXPOSE requires at least one argument"),
        ("FROM scratch\nVOLUME [\"\"]\n", 2, "VOLUME specified can not be an empty string"),
        ("FROM scratch\nVOLUME []\n", 2, "VOLUME requires at least one argument"),
        ("FROM scratch\nHEALTHCHECK\n", 2, "HEALTHCHECK requires at least one argument"),
        (
            "FROM scratch\nHEALTHCHECK --interval=100us CMD x\n",
            2,
            "Interval \"interval\" cannot be less than 1ms",
        ),
        (
            "FROM scratch\nHEALTHCHECK --timeout=-1s CMD x\n",
            2,
            "Interval \"timeout\" cannot be less than 1ms",
        ),
        ("FROM scratch\nHEALTHCHECK --timeout=1d CMD x\n", 2, "time: unknown unit \"d\" in duration \"1d\""),
        ("FROM scratch\nHEALTHCHECK --retries=-1 CMD x\n", 2, "--retries cannot be negative (-1)"),
        (
            "FROM scratch\nHEALTHCHECK --retries=x CMD x\n",
            2,
            "strconv.ParseInt: parsing \"x\": invalid syntax",
        ),
        ("FROM scratch\nHEALTHCHECK run x\n", 2, "Unknown type \"RUN\" in HEALTHCHECK (try CMD)"),
        ("FROM scratch\nHEALTHCHECK CMD\n", 2, "Missing command after HEALTHCHECK CMD"),
        ("FROM scratch\nHEALTHCHECK NONE x\n", 2, "HEALTHCHECK NONE takes no arguments"),
        ("FROM scratch\nONBUILD\n", 2, "ONBUILD requires at least one argument"),
        ("FROM scratch\nONBUILD FROM x\n", 2, "FROM isn't allowed as an ONBUILD trigger"),
        ("FROM scratch\nONBUILD maintainer x\n", 2, "MAINTAINER isn't allowed as an ONBUILD trigger"),
        ("FROM scratch\nONBUILD ONBUILD RUN x\n", 2, "Chaining ONBUILD via `ONBUILD ONBUILD` isn't allowed"),
        ("FROM scratch\nONBUILD --x RUN x\n", 2, "unknown flag: --x"),
        ("FROM scratch\nONBUILD ENV a\n", 2, "ENV must have two arguments"),
        (
            "FROM scratch\nARG s=a\nRUN --mount=from=$s,target=/m x\n",
            3,
            "'from' doesn't support variable expansion, define alias stage instead",
        ),
        ("FROM scratch\nRUN --network=foo x\n", 2, "invalid network mode \"foo\""),
        ("FROM scratch\nRUN --security=foo x\n", 2, "security \"foo\" is not valid"),
        ("FROM a\nRUN x \\\n  y \\\n\n# c\n --z\nBAD", 7, "unknown instruction: BAD"),
        ("FROM a\n\\", 2, "unknown instruction: "),
        ("FROM a\nRUN \0", 2, "the Dockerfile has a NUL byte"),
    ] {
        let error = parse(file.as_bytes()).expect_err(file);
        assert!(error.message.contains(message), "{file}\n{error}");
        assert_eq!(error.span.first_line, line, "{file}");
    }
    let utf16: Vec<u8> = b"\xff\xfe".iter().copied().chain("FROM a".bytes().flat_map(|b| [b, 0])).collect();
    assert!(parse(&utf16).unwrap_err().message.contains("UTF-16"));
}

#[test]
fn errors_span_all_lines_of_an_instruction() {
    let error = parse(b"FROM a\nCOPY --nope \\\n# c\n <<E\\\n /x\nb\nE\nRUN x").unwrap_err();
    assert_eq!(error.span, Span::new(2, 7));
    assert_eq!(error.suggestion, None);
    let error = parse(b"FROM a\nRNU x").unwrap_err();
    assert_eq!(error.suggestion.as_deref(), Some("RUN"));
}

#[test]
fn triggers_are_one_instruction() {
    let trigger = parse_trigger(b"copy --chown=1 <<E /x\n$a\nE").unwrap();
    let Instruction::Copy(copy) = trigger.value else { panic!() };
    assert_eq!(copy.heredocs().next().unwrap().body, "$a\n");
    for (text, message) in [
        (&b""[..], "onbuild trigger should be a single expression"),
        (b"RUN a\nRUN b", "onbuild trigger should be a single expression"),
        (b"FROM x", "FROM isn't allowed as an ONBUILD trigger"),
        (b"BOGUS x", "unknown instruction: BOGUS"),
        (b"RUN <<E", "unterminated heredoc"),
        (b"RUN \0", "the Dockerfile has a NUL byte, it must be UTF-8 text (not UTF-16)"),
    ] {
        assert_eq!(parse_trigger(text).unwrap_err().message, message);
    }
}

#[test]
fn a_line_may_have_65535_bytes() {
    let file = |length: usize, end: &str| format!("FROM a\nRUN {}{end}", "x".repeat(length - 4));
    for end in ["", "\n"] {
        assert!(parse(file(65535, end).as_bytes()).is_ok());
        let error = parse(file(65536, end).as_bytes()).unwrap_err();
        assert_eq!(error.message, "dockerfile line greater than max allowed size of 65535");
        assert_eq!(error.span, Span::line(2));
    }
    // The logical line is not limited.
    assert!(parse(("FROM a\nRUN x".to_owned() + &"\\\nx".repeat(100_000)).as_bytes()).is_ok());
}

/// Each of these takes minutes, or all stack, if something is quadratic or recursive.
#[test]
fn files_of_the_largest_size_are_read() {
    let fill = |start: &str, unit: &str, size: usize| {
        let count = (size - start.len()) / unit.len();
        let file = start.to_owned() + &unit.repeat(count);
        parse(file.as_bytes()).map(|dockerfile| dockerfile.warnings.len())
    };
    for (start, unit) in [
        ("FROM a\n", "RUN x\n"),
        ("FROM a\n", "FROM a AS b\n"),
        ("FROM a\n", "COPY <<E /x\nE\n"),
        ("FROM a AS b\n", "FROM b AS b\n"),
        ("FROM a\nRUN", " --mount=type=bind\\\n"),
        ("FROM a\nCOPY", " <<E\\\n"),
        ("FROM a\n", "ENV a=1 b='2 3'\n"),
        ("FROM a\n", "# c\n"),
        ("FROM a\n", "\n"),
        ("FROM a\nRUN x", " x\\\n"),
        ("FROM a\nRUN x \\\n", "\n"),
        ("FROM a\nENV a=1", " a=1\\\n"),
        ("FROM a\nCMD [\"a\"", ",\"a\"\\\n"),
        ("FROM a\nCMD [", "[[[[\\\n"),
        ("FROM a\nRUN <<E x", " ${a:-\\\n"),
        ("FROM a\nRUN x <<", "'\\\n"),
        ("FROM a\n", "ONBUILD RUN x\n"),
        ("FROM a\nLABEL", " a=\"\\\n\""),
        ("ARG a", " b\\\n"),
        ("#", "#\n"),
    ] {
        // Accepted or not, it ends.
        let _ = fill(start, unit, MOST / 8);
    }
    let half = MOST / 8;
    let many = "FROM a\nCOPY".to_owned()
        + &" <<E\\\n".repeat(half / 10)
        + " /x\n"
        + &"E\n".repeat(half / 10 - 1)
        + &"x\n".repeat(half / 2)
        + "E\n";
    let dockerfile = parse(many.as_bytes()).unwrap();
    let Instruction::Copy(copy) = &dockerfile.stages[0].instructions[0].value else { panic!() };
    assert_eq!(copy.heredocs().map(|heredoc| heredoc.body.len()).min(), Some(half / 2 * 2));
    let error = fill("FROM a\nRUN <<E\n", "x\n", MOST).unwrap_err();
    assert_eq!(error.message, "unterminated heredoc");
    let error = fill("FROM a\nONBUILD", " ONBUILD\\\n", MOST).unwrap_err();
    assert!(error.message.starts_with("Chaining ONBUILD"));
    let error = fill("FROM a\n", "<<<<<<<<<<\\\n", MOST).unwrap_err();
    assert!(error.message.len() < 1000);
    let error = fill("FROM a\n", "RUN\n", MOST / 8).unwrap_err();
    assert_eq!(error.message, "the Dockerfile has more than 20000 instructions");
    assert_eq!(error.span, Span::line(20_001));
    assert!(parse(&vec![b'\n'; MOST + 1]).unwrap_err().message.contains("at most 4194304 are read"));
}

/// Pieces that, put together, look like Dockerfiles.
const PIECES: [&str; 60] = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "ARG",
    "LABEL",
    "CMD",
    "HEALTHCHECK",
    "ONBUILD",
    "SHELL",
    "VOLUME",
    "EXPOSE",
    "WORKDIR",
    "USER",
    "STOPSIGNAL",
    "MAINTAINER",
    "AS",
    "NONE",
    " ",
    " ",
    " ",
    "\t",
    "\n",
    "\n",
    "\r\n",
    "\\",
    "\\\n",
    "`",
    "`\n",
    "\"",
    "'",
    "$",
    "${",
    "}",
    ":-",
    "#",
    "# escape=`\n",
    "=",
    "[",
    "]",
    ",",
    "<<",
    "<<-",
    "EOF",
    "\nEOF\n",
    "--",
    "--mount=type=",
    "--from=",
    "--interval=",
    "cache",
    "secret",
    "a",
    "é",
    "1",
    "/",
    "\u{feff}",
    "\u{a0}",
    "%",
    "*",
];

fn soup() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..60)
        .prop_map(|pieces| pieces.concat().into_bytes())
}

/// Everything that takes text from a Dockerfile or an image.
fn all(bytes: &[u8]) {
    if let Ok(dockerfile) = parse(bytes) {
        for located in dockerfile.stages.iter().flat_map(|stage| &stage.instructions) {
            let mut out = String::new();
            instruction(&mut out, located);
            if let Instruction::Onbuild(text) = &located.value {
                let _ = parse_trigger(text);
            }
        }
    }
    let lookup = |name: &str| (name.len() == 1).then(|| std::borrow::Cow::Owned(name.as_bytes().to_vec()));
    for escape in [Escape::Backslash, Escape::Backtick] {
        let _ = expand(bytes, escape, &lookup);
        let _ = expand_words(bytes, escape, &lookup);
    }
    let _ = expand_body(bytes, &lookup);
    let _ = parse_trigger(bytes);
    let _ = detect_syntax(bytes);
    let text = String::from_utf8_lossy(bytes);
    let _ = parse_ports(&text);
    let _ = signal_number(&text);
    let _ = Mode::parse(&text).map(|mode| mode.apply(ModeTarget::Directory, 0o777));
    let _ = Duration::parse(&text);
    let _ = CheckDirective::parse(&text);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        all(&bytes);
    }

    #[test]
    fn token_soup_never_panics(bytes in soup()) {
        all(&bytes);
        all(&[b"FROM a\n", bytes.as_slice()].concat());
    }

    #[test]
    fn spans_are_inside_the_file_and_in_order(bytes in soup()) {
        let bytes = [b"FROM a\n", bytes.as_slice()].concat();
        let count = bytes.iter().filter(|&&b| b == b'\n').count() + 1;
        match parse(&bytes) {
            Ok(dockerfile) => {
                let mut line = 0;
                for stage in &dockerfile.stages {
                    let spans = stage.instructions.iter().map(|located| located.span);
                    for span in std::iter::once(stage.from.span).chain(spans) {
                        prop_assert!(line < span.first_line && span.first_line <= span.last_line);
                        line = span.last_line;
                    }
                }
                prop_assert!(line <= count);
            }
            Err(error) => prop_assert!(1 <= error.span.first_line && error.span.last_line <= count),
        }
    }

    #[test]
    fn a_text_without_special_characters_expands_to_itself(text in "[a-zA-Z0-9 ./:=é-]*") {
        let lookup = |_: &str| None;
        let expanded = expand(text.as_bytes(), Escape::Backslash, &lookup).unwrap();
        prop_assert_eq!(expanded.text, text.as_str());
    }
}

/// Files of the corpus on which the crate `parse-dockerfile` 0.1.9 disagrees with BuildKit, and in what.
const PEER_GAPS: [(&str, &str); 13] = [
    ("directives-twice", "takes an escape directive twice"),
    ("flags", "refuses `--` before a source"),
    ("forms", "refuses RUN without a command"),
    ("healthcheck-short", "does not read durations"),
    ("heredoc-blank", "does not see a here-document behind other words"),
    ("heredoc-names", "does not see a second here-document"),
    ("heredoc-not", "refuses a quote without end"),
    ("heredoc-run", "does not see a here-document behind other words"),
    ("onbuild", "parses what ONBUILD keeps as text"),
    ("onbuild-from", "takes ONBUILD FROM"),
    ("pairs-no-equals", "does not split ENV into words"),
    ("run-unknown-flag", "takes any flag"),
    ("transfer-flags", "refuses `--` before a source"),
];

#[test]
fn the_peer_accepts_and_refuses_the_same_files() {
    let mut wrong = Vec::new();
    for (name, bytes) in corpus() {
        let Ok(text) = std::str::from_utf8(&bytes) else { continue };
        let ours = parse(&bytes).map(|_| ());
        let peer = parse_dockerfile::parse(text).map(|_| ());
        let gap = PEER_GAPS.iter().any(|(file, _)| *file == name);
        if (ours.is_ok() == peer.is_ok()) == gap {
            wrong.push(format!("{name}: ours {ours:?}, peer {:?}", peer.map_err(|error| error.to_string())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
