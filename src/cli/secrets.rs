//! `--secret`: files and variables that RUN may ask for, spelled as docker does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::isolation::Chosen;
use super::settings::Environment;
use crate::build::Plan;
use crate::build::mount::MountStep;
use crate::build::step::Step;
use crate::dockerfile::csv_fields;
use crate::sandbox::Secret;

/// The largest secret, in bytes, as under BuildKit.
const LARGEST: u64 = 500 << 10;

const SYNTAX: &str = "expected `id=NAME[,src=FILE|,env=VARIABLE][,type=file|env]`";

/// A secret that was given.
#[derive(Debug)]
pub(super) struct GivenSecret {
    id: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Relative to the current directory.
    File(PathBuf),
    /// What a variable of the environment holds.
    Value(Secret),
}

/// What the fields of one flag say. None of them is ever printed with its value: that could be the secret.
#[derive(Default)]
struct Fields {
    id: String,
    file: String,
    variable: String,
    kind: Option<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Variable,
}

/// Reads the flags, but no files yet.
pub(super) fn parse(
    flags: &[String],
    environment: &Environment,
    warnings: &mut Vec<String>,
) -> Result<Vec<GivenSecret>, Failure> {
    let parse = |flag: &String| {
        let fields = Fields::parse(flag)?;
        fields.given(environment, warnings)
    };
    flags.iter().map(parse).collect::<Result<_, String>>().map_err(|message| {
        Failure::new(message).of_flag("--secret").hint("for instance `--secret id=token,src=token.txt`")
    })
}

impl Fields {
    fn parse(flag: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for field in csv_fields(flag.as_bytes())? {
            let field = String::from_utf8_lossy(&field).into_owned();
            let Some((key, value)) = field.split_once('=') else {
                return Err(format!("a part of it has no `=`: {SYNTAX}"));
            };
            match key.to_lowercase().as_str() {
                "id" => found.id = value.to_owned(),
                "source" | "src" => found.file = value.to_owned(),
                "env" => found.variable = value.to_owned(),
                "type" => {
                    found.kind = Some(match value {
                        "file" => Kind::File,
                        "env" => Kind::Variable,
                        _ => return Err("the type of a secret is `file` or `env`".to_owned()),
                    });
                }
                key => return Err(format!("there is no `{key}=`: {SYNTAX}")),
            }
        }
        Ok(found)
    }

    /// Where the secret is: docker's rules for what is left out.
    fn given(mut self, environment: &Environment, warnings: &mut Vec<String>) -> Result<GivenSecret, String> {
        if self.id.is_empty() {
            return Err(format!("it has no id: {SYNTAX}"));
        }
        if self.kind == Some(Kind::Variable) && self.variable.is_empty() {
            self.variable = std::mem::take(&mut self.file);
        }
        if self.variable.is_empty() && self.file.is_empty() {
            let is_set = environment.value(&self.id).is_some();
            match self.kind {
                Some(Kind::Variable) => self.variable.clone_from(&self.id),
                None if is_set => self.variable.clone_from(&self.id),
                Some(Kind::File) | None => self.file.clone_from(&self.id),
            }
        }
        let (id, name) = (self.id, self.variable);
        if name.is_empty() {
            return Ok(GivenSecret { id, source: Source::File(self.file.into()) });
        }
        if !self.file.is_empty() || self.kind == Some(Kind::File) {
            return Err(format!("the secret `{id}` cannot come from a file and from a variable"));
        }
        if environment.value(&name).is_none() {
            warnings
                .push(format!("--secret: the variable `{name}` is not set, so the secret `{id}` is empty"));
        }
        let value = environment.value(&name).unwrap_or_default().as_bytes();
        if value.len() as u64 > LARGEST {
            return Err(too_large(&id));
        }
        Ok(GivenSecret { id, source: Source::Value(Secret::new(value)) })
    }
}

fn too_large(id: &str) -> String {
    format!("the secret `{id}` is larger than {LARGEST} bytes")
}

/// The secrets by id; of two with one id the later one counts.
pub(super) fn read(given: &[GivenSecret]) -> Result<BTreeMap<String, Secret>, Failure> {
    let read = |given: &GivenSecret| {
        let value = match &given.source {
            Source::Value(value) => value.clone(),
            Source::File(path) => {
                let failed = |error: &std::io::Error| {
                    format!("cannot read the secret `{}` from `{}`: {error}", given.id, path.display())
                };
                let file = File::open(path).map_err(|error| failed(&error))?;
                let mut value = Vec::new();
                file.take(LARGEST + 1).read_to_end(&mut value).map_err(|error| failed(&error))?;
                if value.len() as u64 > LARGEST {
                    return Err(too_large(&given.id));
                }
                Secret::new(&value)
            }
        };
        Ok((given.id.clone(), value))
    };
    given
        .iter()
        .map(read)
        .collect::<Result<_, String>>()
        .map_err(|message| Failure::new(message).of_flag("--secret"))
}

/// What to tell whoever gives a step of `plan` one of the secrets `given` as a file where nothing can be mounted: it lies
/// beside the files of the stage then, in `directory`.
pub(super) fn warning(
    plan: &Plan,
    given: &BTreeMap<String, Secret>,
    chosen: Option<Chosen>,
    directory: &Path,
) -> Option<String> {
    let Chosen { strategy, .. } = chosen.filter(|chosen| !chosen.way.mounts())?;
    let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    let mut mounts = steps.flat_map(|step| match &step.step {
        Step::Run(run) => run.mounts.as_slice(),
        _ => &[],
    });
    let is_file = |mount: &MountStep| match mount {
        MountStep::Secret(secret) => secret.target.is_some() && given.contains_key(&secret.id),
        MountStep::Bind(_) | MountStep::Cache(_) | MountStep::Tmpfs(_) | MountStep::Ssh(_) => false,
    };
    if !mounts.any(is_file) || is_in_memory(directory) {
        return None;
    }
    Some(format!(
        "secrets are files on a disk while their steps run, since --isolation={strategy} mounts nothing; those that a step \
         takes with `env=` are in memory only"
    ))
}

fn is_in_memory(directory: &Path) -> bool {
    // Of linux/magic.h.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::statfs(directory).is_ok_and(|stat| stat.f_type as u64 == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "hunter2";

    fn values(flags: &[&str]) -> Result<BTreeMap<String, String>, String> {
        let environment = Environment::of(&[("TOKEN", "of TOKEN"), ("EMPTY", "")]);
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let given = parse(&flags, &environment, &mut Vec::new()).map_err(|failure| failure.message)?;
        let secrets = read(&given).map_err(|failure| failure.message)?;
        let text = |secret: &Secret| String::from_utf8(secret.bytes().to_vec()).unwrap();
        Ok(secrets.iter().map(|(id, secret)| (id.clone(), text(secret))).collect())
    }

    #[test]
    fn what_is_left_out_is_inferred_as_docker_does() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "of the file").unwrap();
        let file = file.display();
        for (flag, value) in [
            (format!("id=x,src={file}"), "of the file"),
            (format!("ID=x,source={file},type=file"), "of the file"),
            (format!("\"id=x\",\"src={file}\""), "of the file"),
            (format!("id={file}"), "of the file"),
            (format!("type=file,id={file}"), "of the file"),
            ("id=x,env=TOKEN".to_owned(), "of TOKEN"),
            ("id=x,env=EMPTY".to_owned(), ""),
            ("id=x,env=NOT_SET".to_owned(), ""),
            ("id=x,src=TOKEN,type=env".to_owned(), "of TOKEN"),
            ("id=TOKEN".to_owned(), "of TOKEN"),
            ("id=TOKEN,type=env".to_owned(), "of TOKEN"),
        ] {
            let found = values(&[&flag]).unwrap_or_else(|message| panic!("{flag}: {message}"));
            assert_eq!(found.values().collect::<Vec<_>>(), [value], "{flag}");
        }
        let twice = values(&["id=x,env=TOKEN", &format!("id=x,src={file}")]).unwrap();
        assert_eq!(twice["x"], "of the file");
    }

    #[test]
    fn a_wrong_flag_does_not_print_what_may_be_the_secret() {
        for flag in [
            CANARY.to_owned(),
            format!("id=x,{CANARY}"),
            format!("id=x,value={CANARY}"),
            format!("id=x,type={CANARY}"),
            format!("src={CANARY}"),
            format!("id=x,env=TOKEN,src={CANARY}"),
            format!("id=x\",src={CANARY}"),
        ] {
            let message = values(&[&flag]).expect_err(&flag);
            assert!(!message.contains(CANARY), "{flag}: {message}");
            assert!(message.starts_with("--secret: "), "{message}");
        }
    }

    #[test]
    fn a_secret_has_at_most_500_kib() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let flag = format!("id=x,src={}", file.display());
        std::fs::write(&file, vec![b'x'; 500 << 10]).unwrap();
        assert_eq!(values(&[&flag]).unwrap()["x"].len(), 500 << 10);
        std::fs::write(&file, vec![b'x'; (500 << 10) + 1]).unwrap();
        assert_eq!(values(&[&flag]).unwrap_err(), "--secret: the secret `x` is larger than 512000 bytes");
        let missing = values(&["id=x,src=/no/such/file"]).unwrap_err();
        assert!(missing.contains("cannot read the secret `x` from `/no/such/file`"), "{missing}");
    }
}
