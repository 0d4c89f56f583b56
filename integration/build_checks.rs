//! Build checks: each rule against what BuildKit says (testdata/dockerfile/checks; the format is explained in
//! testdata/dockerfile/README.md), and `builder check` as docker prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use builder::build::checks::{self, Checked};
use builder::build::services::{Base, ImageSource, ServiceError, Wanted};
use builder::build::{self, PlanRequest};
use builder::context::IgnoreRules;
use builder::dockerfile::{self, Rule, SIZE_LIMIT};
use builder::image::config::ImageConfig;
use builder::image::digest::Digest;
use builder::image::manifest::Image;
use builder::image::platform::{Platform, Requested};
use builder::image::reference::Reference;
use builder::sandbox::Cancel;
use builder::store::unpacked::Chain;
use serde_json::json;

use crate::support::{Builder, Context, ground, scratch};

/// A case: its title, what it is given, its Dockerfile and what is expected.
#[derive(Debug, Default)]
struct Case {
    title: String,
    options: Vec<String>,
    dockerfile: String,
    /// `LINES RULE: DETAIL`, and what to write instead.
    expected: Vec<String>,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/dockerfile/checks")
}

fn cases(name: &str) -> Vec<Case> {
    let path = directory().join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("=== ") {
            cases.push(Case { title: title.to_owned(), ..Case::default() });
            continue;
        }
        let case = cases.last_mut().expect("a title comes first");
        if let Some(option) = line.strip_prefix("--- ") {
            case.options.push(option.to_owned());
        } else if let Some(finding) = line.strip_prefix("==> ") {
            case.expected.push(finding.to_owned());
        } else if let Some(instead) = line.strip_prefix("  > ") {
            let finding = case.expected.last_mut().expect("a finding comes first");
            write!(finding, "\n  > {instead}").unwrap();
        } else {
            case.dockerfile.push_str(line);
            case.dockerfile.push('\n');
        }
    }
    cases
}

impl Case {
    /// The values of the options called `name`.
    fn given<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.options.iter().filter_map(move |option| match option.split_once(' ') {
            Some((key, value)) => (key == name).then_some(value),
            None => (option == name).then_some(""),
        })
    }

    fn check(&self) -> Checked {
        let host = Platform::new("linux", "amd64", None);
        let platform = Requested::parse("linux/amd64", &host).expect("platform");
        let arguments = self.given("arg").filter_map(|pair| pair.split_once('='));
        let request = PlanRequest {
            build_args: arguments.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            target: self.given("target").next().map(str::to_owned),
            ..PlanRequest::usual(platform, host, 499)
        };
        let rules = self.given("ignore").collect::<Vec<_>>().join("\n");
        let ignore = IgnoreRules::parse(rules.as_bytes()).expect("rules");
        let config = self.given("base").next();
        let source = OneBase {
            config: config.map(|config| serde_json::from_str(config).expect("config")),
            foreign: self
                .given("foreign")
                .next()
                .map(|text| Requested::parse(text, &request.host).unwrap().normalised),
        };
        let offline = self.given("offline").next().is_some();
        let mut warnings = Vec::new();
        let file = match dockerfile::parse_noting(self.dockerfile.as_bytes(), SIZE_LIMIT, &mut warnings) {
            Ok(file) => file,
            Err(error) => {
                return checks::of_unparsed(self.dockerfile.as_bytes(), &request, error, warnings);
            }
        };
        if self.given("build").next().is_some() {
            let plan = build::plan_noting(&file, &request, &ignore, &source, &mut warnings);
            return match plan {
                Ok(plan) => Checked { warnings: plan.warnings, error: None, unknown: Vec::new() },
                Err(error) => Checked { warnings, error: Some(error), unknown: Vec::new() },
            };
        }
        checks::check(&file, &request, &ignore, &source, &|_| offline)
    }

    /// What was found, in the form of what is expected.
    fn findings(&self, checked: &Checked) -> Vec<String> {
        let shown = |warning: &dockerfile::Warning| {
            let span = warning.span;
            let lines = if span.first_line == span.last_line {
                span.first_line.to_string()
            } else {
                format!("{}-{}", span.first_line, span.last_line)
            };
            format!("{lines} {}: {}\n  > {}", warning.rule(), warning.detail(), warning.instead())
        };
        checked.warnings.iter().map(shown).collect()
    }

    /// What is wrong with the error, if there is or is to be one: `LINE TEXT`.
    fn fault(&self, checked: &Checked) -> Option<String> {
        let expected = self.given("error").next().map(|text| text.split_once(' ').expect("line and text"));
        match (&checked.error, expected) {
            (None, None) => None,
            (Some(error), Some((line, text))) => {
                let found = error.span.map(|span| span.first_line.to_string()).unwrap_or_default();
                let message = error.to_string();
                (found != line || !message.contains(text))
                    .then(|| format!("fails in line {found}: {message}"))
            }
            (None, Some((_, text))) => Some(format!("succeeds, expected: {text}")),
            (Some(error), None) => Some(format!("fails: {error}")),
        }
    }
}

/// The only image of a case, `base`: a config without layers.
struct OneBase {
    config: Option<ImageConfig>,
    foreign: Option<Platform>,
}

impl ImageSource for OneBase {
    fn resolve(&self, reference: &Reference, _: &Wanted) -> Result<Base, ServiceError> {
        let config = self.config.clone().ok_or("there is no such image")?;
        Ok(Base {
            image: Image::from_parts(config, Vec::new())?,
            reference: reference.clone(),
            digest: Digest::of(b"base"),
            notes: Vec::new(),
            foreign: self.foreign.clone(),
        })
    }

    fn unpack(&self, _: &Image, _: &Cancel) -> Result<Chain, ServiceError> {
        Err("nothing is unpacked while checking".into())
    }
}

/// With `BUILDER_BLESS=1` what to write instead is written anew; what BuildKit says is not.
#[test]
fn rules_find_what_buildkit_finds() {
    let mut faulty = Vec::new();
    let names = Rule::ALL.iter().map(|rule| rule.name()).chain(["directive"]);
    for name in names {
        let mut blessed = String::new();
        let cases = cases(name);
        for case in &cases {
            let checked = case.check();
            let mut found = case.findings(&checked);
            let without_instead = |findings: &[String]| -> Vec<String> {
                findings.iter().map(|finding| finding.lines().next().unwrap_or_default().to_owned()).collect()
            };
            let _ = writeln!(blessed, "=== {}", case.title);
            case.options.iter().for_each(|option| writeln!(blessed, "--- {option}").unwrap());
            blessed.push_str(&case.dockerfile);
            found.iter().for_each(|finding| writeln!(blessed, "==> {finding}").unwrap());
            let mut expected = case.expected.clone();
            if std::env::var_os("BUILDER_BLESS").is_some() {
                (found, expected) = (without_instead(&found), without_instead(&expected));
            }
            let fault = (found != expected)
                .then(|| format!("found\n{}\nexpected\n{}", found.join("\n"), expected.join("\n")));
            for fault in fault.into_iter().chain(case.fault(&checked)) {
                faulty.push(format!("{name}, {}: {fault}", case.title));
            }
        }
        if std::env::var_os("BUILDER_BLESS").is_some() && faulty.is_empty() {
            std::fs::write(directory().join(format!("{name}.txt")), blessed).expect("write");
        }
        if name != "directive" {
            let of_rule =
                |case: &&Case| case.expected.iter().any(|finding| finding.contains(&format!(" {name}: ")));
            assert!(cases.iter().any(|case| of_rule(&case)), "{name} is never found");
            assert!(cases.iter().any(|case| !of_rule(&case)), "{name} is always found");
        }
    }
    assert!(faulty.is_empty(), "{} faults\n\n{}", faulty.len(), faulty.join("\n\n"));
}

const TWO_MISTAKES: &str = "FROM scratch AS Bad\nENV a=$nope \\\n  b=2\nCMD [\"x\"]\n";

const TWO_FINDINGS: &str = "\
Check complete, 2 warnings have been found!

WARNING: StageNameCasing - https://docs.docker.com/go/dockerfile/rule/stage-name-casing/
Stage name 'Bad' should be lowercase
Instead: write `AS bad`
CONTEXT/Dockerfile:1
--------------------
   1 | >>> FROM scratch AS Bad
   2 |     ENV a=$nope \\
   3 |       b=2
--------------------

WARNING: UndefinedVar - https://docs.docker.com/go/dockerfile/rule/undefined-var/
Usage of undefined variable '$nope'
Instead: define it before, in this stage: `ARG nope=VALUE`, or `ENV nope=VALUE` if containers need it too; `${nope:-}` may be empty
CONTEXT/Dockerfile:2
--------------------
   1 |     FROM scratch AS Bad
   2 | >>> ENV a=$nope \\
   3 | >>>   b=2
   4 |     CMD [\"x\"]
--------------------
";

#[test]
fn findings_are_printed_as_docker_prints_them() {
    let builder = Builder::new();
    let context = Context::new(TWO_MISTAKES);
    let path = context.path().to_str().unwrap();
    for arguments in [
        &["check", path][..],
        &["build", "--check", path],
        &["--check", path],
        &["--call=check", path],
        &["build", "--call", "check", path],
    ] {
        let finished = builder.run(arguments).exited(1);
        assert_eq!(finished.stdout.replace(path, "CONTEXT"), TWO_FINDINGS, "{arguments:?}");
        assert_eq!(finished.stderr, "", "{arguments:?}");
    }
    let finished = builder.run(["--call=check,ignorestatus=true", path]).success();
    assert_eq!(finished.stdout.replace(path, "CONTEXT"), TWO_FINDINGS);
    let finished =
        builder.run(["check", "--build-arg", "BUILDKIT_DOCKERFILE_CHECK=skip=all", path]).success();
    assert_eq!(finished.stdout, "Check complete, no warnings found.\n");
    let finished = builder.run(["check", "--push", "--build-arg=BUILDKIT_DOCKERFILE_CHECK=skip=all", path]);
    let finished = finished.success();
    assert_eq!(
        finished.stderr,
        "warning: flag: --push has no effect: nothing is built here that could be pushed or written\n"
    );
    // The command line of a build works with the command's name changed, and nothing is written.
    let out = scratch();
    let at = |name: &str| out.path().join(name).display().to_string();
    let (archive, id) = (at("t.tar"), at("id"));
    for command in ["check", "plan"] {
        let flags = ["-t", "r.example/a:1", "-o", "-", "--tar-path", &archive, "--iidfile", &id, "--push"];
        let skip = "--build-arg=BUILDKIT_DOCKERFILE_CHECK=skip=all";
        let finished = builder.run([&[command, skip, path], &flags[..]].concat()).success();
        let told = "warning: flag: --output, --destination, --push, --tar-path, --iidfile have no effect: \
                    nothing is built here that could be pushed or written\n";
        assert_eq!(finished.stderr.matches(told).count(), 1, "{}", finished.stderr);
        assert_eq!(std::fs::read_dir(out.path()).expect("directory").count(), 0);
    }
    let finished = builder.run(["check", "--call=outline", path]).exited(1);
    assert!(finished.says(&["--call", "`outline` is not supported"]), "{}", finished.stderr);
}

#[test]
fn a_check_that_an_error_has_ended_is_not_complete() {
    let builder = Builder::new();
    for (dockerfile, found, error) in [
        ("FROM scratch AS Bad\nRUN --mount=type=frob x\n", "1 warning has been found!", "frob"),
        ("FROM scratch\nCOPY --from=b:$none,x /a /\n", "no warnings found.", "variable expansion"),
        ("FROM scratch AS a\nBADCMD\n", "no warnings found.", "BADCMD"),
    ] {
        let context = Context::new(dockerfile);
        for arguments in [&["check"][..], &["--check"]] {
            let mut all = arguments.to_vec();
            all.push(context.path().to_str().unwrap());
            let finished = builder.run(all).exited(1);
            let first = finished.stdout.lines().next().unwrap_or_default();
            assert_eq!(first, format!("Check incomplete because of an error; before it, {found}"));
            assert!(finished.says(&["error: ", error]), "{}", finished.stderr);
        }
    }
}

#[test]
fn json_is_docker_s() {
    let builder = Builder::new();
    let context = Context::new(TWO_MISTAKES);
    let path = context.path().to_str().unwrap();
    for arguments in [["check", "--format=json", path], ["build", "--call=check,format=json", path]] {
        let document = builder.run(arguments).exited(1).json();
        let line = |line: u32| serde_json::json!({ "start": { "line": line }, "end": { "line": line } });
        assert_eq!(
            document["warnings"][1],
            serde_json::json!({
                "ruleName": "UndefinedVar",
                "description": "Variables should be defined before their use",
                "url": "https://docs.docker.com/go/dockerfile/rule/undefined-var/",
                "detail": "Usage of undefined variable '$nope'",
                "instead": document["warnings"][1]["instead"],
                "location": { "ranges": [line(2), line(3)] },
            })
        );
        assert_eq!(document["warnings"].as_array().map(Vec::len), Some(2));
        assert_eq!(document["sources"][0]["language"], "Dockerfile");
        assert!(document.get("buildError").is_none(), "{document}");
    }
    let context = Context::new("FROM scratch AS Bad\nBADCMD\n");
    let finished = builder.run(["check", "--format=json", context.path().to_str().unwrap()]).exited(1);
    let document = finished.json();
    assert_eq!(document["warnings"][0]["ruleName"], "StageNameCasing");
    assert_eq!(document["buildError"]["message"], "unknown instruction: BADCMD");
    assert_eq!(document["buildError"]["location"]["ranges"][0]["start"]["line"], 2);
    assert!(finished.says(&["error:", "unknown instruction: BADCMD"]), "{}", finished.stderr);
}

#[test]
fn whoever_reads_json_gets_some_whatever_happens() {
    let builder = Builder::new();
    let context = Context::new("FROM scratch\n");
    let empty = crate::support::scratch();
    let (path, empty) = (context.path().to_str().unwrap(), empty.path().to_str().unwrap());
    for (arguments, words) in [
        (vec!["--limit=dockerfile-bytes=8", path], "dockerfile-bytes"),
        (vec![empty], "Dockerfile"),
        (vec!["/does/not/exist"], "`/does/not/exist` does not exist"),
        (vec!["--platform-match=near", path], "--platform-match"),
        (vec!["--dockerfile=http://127.0.0.1:1/Dockerfile", path], "127.0.0.1:1"),
    ] {
        let finished = builder.run([&["check", "--format=json"], &arguments[..]].concat()).exited(1);
        let document = finished.json();
        let message = document["buildError"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert_eq!((&document["warnings"], &document["sources"]), (&json!([]), &json!([])));
        assert!(finished.stderr.contains("error: "), "{}", finished.stderr);
    }
}

#[test]
fn text_of_a_dockerfile_steers_no_terminal() {
    let builder = Builder::new();
    for text in ["FROM scratch\nENV a \u{202e}\u{9b}1m$nope\u{61c}\n", "FROM scratch\nBAD\u{9b}\u{202e}CMD\n"]
    {
        let context = Context::new(text);
        let path = context.path().to_str().unwrap();
        for arguments in [
            &["check", path][..],
            &["check", "--format=json", path],
            &["plan", "--no-push", path],
            &["build", "--no-push", "--progress=plain", path],
            &["build", "--no-push", "--progress=rawjson", path],
            &["build", "--no-push\u{9b}", path],
            &["build", "--no-push=\u{9b}", path],
        ] {
            let finished = builder.run(arguments);
            let shown = finished.stdout + &finished.stderr;
            assert!(!shown.contains(['\u{9b}', '\u{202e}', '\u{61c}', '\u{1b}']), "{arguments:?}: {shown}");
        }
    }
}

#[test]
fn nothing_is_run_and_what_cannot_be_asked_is_said() {
    let builder = Builder::new();
    // Nothing listens there.
    let context = Context::new(
        "FROM 127.0.0.1:1/none AS a\nENV b=$JAVA_HOME\nRUN false\nFROM 127.0.0.1:1/two\nFROM scratch\nENV b=$nope\n",
    );
    let finished = builder.run(["check", context.path().to_str().unwrap()]).exited(1);
    assert!(
        finished.stdout.starts_with("Check complete, 1 warning has been found!\n"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.contains("'$nope'"), "{}", finished.stdout);
    assert!(
        finished.says(&["warning: not checked", "`127.0.0.1:1/none:latest`", "(line 1)"]),
        "{}",
        finished.stderr
    );
    // A registry that does not answer is not asked for the next image.
    assert!(
        finished.says(&["warning: not checked", "`127.0.0.1:1/two:latest`", "(line 4)"]),
        "{}",
        finished.stderr
    );
    assert_eq!(finished.stderr.matches("trying again").count(), 4, "{}", finished.stderr);
    assert!(!finished.says(&["error"]), "{}", finished.stderr);
    let finished = builder.run(["check", "--format=json", context.path().to_str().unwrap()]).exited(1);
    assert_eq!(finished.json()["notChecked"][0]["location"]["ranges"][0]["start"]["line"], 1);
}

#[test]
fn an_image_that_is_not_there_is_an_error_and_one_for_another_cpu_a_finding() {
    let registry = &ground::ground().registry;
    let builder = Builder::new();
    let context = Context::new(&format!("FROM {registry}/no/such:image\nENV a b\n"));
    let finished = builder.run(["check", context.path().to_str().unwrap()]).exited(1);
    assert!(finished.says(&["error:", "no/such:image"]), "{}", finished.stderr);
    let context = Context::new(&format!("FROM {registry}/busybox\nENV a=$PATH b=$HOEM\n"));
    let finished = builder.run(["check", context.path().to_str().unwrap()]).exited(1);
    assert!(
        finished.stdout.contains("'$HOEM'") && !finished.stdout.contains("'$PATH'"),
        "{}",
        finished.stdout
    );
}

#[test]
fn a_check_whose_findings_are_errors_is_complete() {
    let context = Context::new("# check=error=true\nFROM scratch\nENV a b\n");
    let finished = Builder::new().run(["check", context.path().to_str().unwrap()]).exited(1);
    let first = finished.stdout.lines().next();
    assert_eq!(first, Some("Check complete, 1 warning has been found!"), "{}", finished.stdout);
    assert!(finished.says(&["error:", "lint violation found for rules: LegacyKeyValueFormat"]));
}

#[test]
fn a_build_tells_what_to_write_instead_once_and_reminds_at_the_end() {
    let builder = Builder::new();
    let context = Context::new(TWO_MISTAKES);
    let path = context.path().to_str().unwrap();
    let finished = builder.run(["--no-push", path]).success();
    for (words, times) in [
        ("warning: StageNameCasing: Stage name 'Bad' should be lowercase (line 1)", 1),
        ("instead: write `AS bad`", 1),
        ("2 warnings found by build checks", 1),
    ] {
        assert_eq!(finished.stderr.matches(words).count(), times, "{words}\n{}", finished.stderr);
    }
    assert!(
        finished.stderr.trim_end().lines().rev().nth(1).is_some_and(|line| line.contains("2 warnings found"))
    );
    // Planning prints them as JSON alone.
    let finished = builder.run(["plan", path]).success();
    assert_eq!(finished.stderr, "");
    assert_eq!(finished.json()["warnings"][0]["instead"], "write `AS bad`");
}

#[test]
fn warnings_come_before_the_error_that_ends_a_build() {
    let builder = Builder::new();
    for (dockerfile, error) in [
        (
            "# check=error=true\nFROM scratch\nENV a b\n",
            "lint violation found for rules: LegacyKeyValueFormat",
        ),
        ("FROM scratch\nENV a b\nCOPY --from=$x a b\n", "variable expansion is not supported for --from"),
        ("FROM scratch as b\nENV a b\nBADCMD\n", "unknown instruction: BADCMD"),
    ] {
        let context = Context::new(dockerfile);
        for command in ["build", "plan"] {
            let finished = builder.run([command, "--no-push", context.path().to_str().unwrap()]).exited(1);
            let (before, after) = finished.stderr.split_once("error:").expect("an error");
            assert!(after.contains(error), "{}", finished.stderr);
            // What a survey of all stages ends is found before any stage is looked at.
            if !dockerfile.contains("--from") {
                assert!(before.contains("warning: ") && before.contains("instead: "), "{}", finished.stderr);
            }
        }
    }
}

#[test]
fn very_many_findings_are_printed_soon_and_in_little_memory() {
    let builder = Builder::new();
    let context = Context::new(&format!("FROM scratch\n{}", "ENV a b\n".repeat(19_999)));
    let path = context.path().to_str().unwrap();
    let before = Instant::now();
    let limited = "ulimit -v 700000 && exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", limited, env!("CARGO_BIN_EXE_builder"), "check", path, "--store"]).arg(builder.store());
    let finished = crate::support::finish(&mut shell).exited(1);
    assert!(finished.stdout.starts_with("Check complete, 19999 warnings have been found!\n"));
    assert_eq!(finished.stdout.matches("\nWARNING: ").count(), 19_999);
    assert!(before.elapsed() < Duration::from_secs(60), "{:?}", before.elapsed());
    // One instruction of very many lines with very many findings: its lines are not printed for each of them.
    let lines: String = (0..20_000).map(|number| format!(" \\\n  a{number}=$b{number}")).collect();
    let context = Context::new(&format!("FROM scratch\nLABEL{lines}\n"));
    let finished = builder.run(["check", context.path().to_str().unwrap()]).exited(1);
    assert!(finished.stdout.starts_with("Check complete, 20000 warnings have been found!\n"));
    assert!(finished.stdout.len() < 40 << 20, "{} bytes", finished.stdout.len());
    // A log of a build is not filled with them.
    context.write("Dockerfile", format!("# check=error=true\nFROM scratch\n{}", "ENV a b\n".repeat(1_000)));
    let finished = builder.run(["plan", context.path().to_str().unwrap()]).exited(1);
    assert!(finished.says(&["950 more"]), "{}", finished.stderr);
    assert!(finished.stderr.lines().count() < 200, "{} lines", finished.stderr.lines().count());
}

/// The rows of the table in docs/build-checks.md.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../docs/build-checks.md");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(name, row)| (name.to_owned(), row.to_owned())).collect()
}

#[test]
fn the_documentation_lists_the_rules_that_there_are() {
    let documented = documented();
    let names: BTreeSet<&str> = documented.keys().map(String::as_str).collect();
    assert_eq!(names, Rule::ALL.iter().map(|rule| rule.name()).collect());
    for rule in Rule::ALL {
        let row = &documented[rule.name()];
        assert_eq!(row.contains("experimental"), rule.is_experimental(), "{rule}: {row}");
        assert_eq!(row.split(" | ").count(), 3, "{rule}: {row}");
    }
}
