//! `--ssh`: agents that RUN may be let to, spelled as docker does.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::settings::Environment;
use crate::sandbox::Agent;

/// An agent that was given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GivenAgent {
    id: String,
    /// Relative to the current directory.
    socket: PathBuf,
}

/// Reads the flags, but opens nothing yet.
pub(super) fn parse(flags: &[String], environment: &Environment) -> Result<Vec<GivenAgent>, Failure> {
    flags.iter().map(|flag| given(flag, environment).map_err(|failure| failure.of_flag("--ssh"))).collect()
}

fn given(flag: &str, environment: &Environment) -> Result<GivenAgent, Failure> {
    let (id, paths) = flag.split_once('=').unwrap_or((flag, ""));
    if id.is_empty() {
        return Err(Failure::new(format!("`{flag}` has no id, expected `default` or `ID=SOCKET`")));
    }
    let socket = match paths {
        "" => environment.value("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()).map(PathBuf::from),
        paths if paths.contains(',') => {
            return Err(Failure::new(format!("`{flag}` names several files: key files are not read"))
                .hint(of_keys(&paths.replace(',', " "), id)));
        }
        path => Some(path.into()),
    };
    let Some(socket) = socket else {
        return Err(Failure::new(format!("there is no agent for `{id}`: SSH_AUTH_SOCK is not set"))
            .hint("start one: eval \"$(ssh-agent)\" && ssh-add, or name its socket: --ssh ID=SOCKET"));
    };
    Ok(GivenAgent { id: id.to_owned(), socket })
}

/// How to give keys that are files.
fn of_keys(keys: &str, id: &str) -> String {
    format!("give them to an agent: eval \"$(ssh-agent)\" && ssh-add {keys}, and then --ssh {id}")
}

/// The socket of the agent `default`, which git has as well.
pub(super) fn default_socket(given: &[GivenAgent]) -> Option<&Path> {
    let found = given.iter().rev().find(|agent| agent.id == "default");
    found.map(|agent| agent.socket.as_path())
}

/// The agents by id; of two with one id the later one counts.
pub(super) fn open(given: &[GivenAgent]) -> Result<BTreeMap<String, Agent>, Failure> {
    let open = |GivenAgent { id, socket }: &GivenAgent| {
        let path = socket.display();
        let agent = Agent::at(socket).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput if socket.is_file() => {
                Failure::new(format!("`{path}` is no socket of an agent: key files are not read"))
                    .hint(of_keys(&path.to_string(), id))
            }
            io::ErrorKind::InvalidInput => Failure::new(format!("`{path}` is no socket of an agent")),
            _ => Failure::new(format!("cannot find the agent for `{id}` at `{path}`: {error}")),
        });
        Ok((id.clone(), agent.map_err(|failure| failure.of_flag("--ssh"))?))
    };
    given.iter().map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_one(flag: &str, environment: &Environment) -> Result<GivenAgent, (String, Option<String>)> {
        parse(&[flag.to_owned()], environment)
            .map(|mut given| given.remove(0))
            .map_err(|failure| (failure.message, failure.hint))
    }

    #[test]
    fn an_agent_is_that_of_the_environment_or_the_one_that_is_named() {
        let environment = Environment::of(&[("SSH_AUTH_SOCK", "/run/agent")]);
        for (flag, id, socket) in [
            ("default", "default", "/run/agent"),
            ("default=", "default", "/run/agent"),
            ("work", "work", "/run/agent"),
            ("work=/a=b", "work", "/a=b"),
            ("default=relative", "default", "relative"),
        ] {
            let expected = GivenAgent { id: id.to_owned(), socket: socket.into() };
            assert_eq!(parse_one(flag, &environment), Ok(expected), "{flag}");
        }
        for nothing in [Environment::of(&[]), Environment::of(&[("SSH_AUTH_SOCK", "")])] {
            let (message, hint) = parse_one("default", &nothing).unwrap_err();
            assert_eq!(message, "--ssh: there is no agent for `default`: SSH_AUTH_SOCK is not set");
            assert!(hint.unwrap().contains("ssh-agent"));
        }
        let (message, _) = parse_one("=x", &environment).unwrap_err();
        assert!(message.starts_with("--ssh: `=x` has no id"), "{message}");
    }

    #[test]
    fn keys_are_given_to_an_agent_first() {
        let environment = Environment::of(&[]);
        let (message, hint) = parse_one("work=/a,/b", &environment).unwrap_err();
        assert!(message.contains("key files are not read"), "{message}");
        let expected = "give them to an agent: eval \"$(ssh-agent)\" && ssh-add /a /b, and then --ssh work";
        assert_eq!(hint.as_deref(), Some(expected));
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("id_ed25519");
        std::fs::write(&key, "").unwrap();
        for (socket, message) in [
            (key, "key files are not read"),
            (directory.path().to_owned(), "is no socket of an agent"),
            (directory.path().join("none"), "cannot find the agent for `x`"),
        ] {
            let failure = open(&[GivenAgent { id: "x".to_owned(), socket }]).unwrap_err();
            assert!(
                failure.message.starts_with("--ssh: ") && failure.message.contains(message),
                "{}",
                failure.message
            );
        }
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let given = ["x", "y", "x"].map(|id| GivenAgent { id: id.to_owned(), socket: socket.clone() });
        assert_eq!(open(&given).unwrap().into_keys().collect::<Vec<_>>(), ["x", "y"]);
    }
}
