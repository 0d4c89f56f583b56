//! What a server of repositories is asked: which branches and tags there are, and a pack of objects.

use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::rc::Rc;

use gix_hash::{Kind, ObjectId};
use gix_protocol::fetch::{Arguments, Response};
use gix_protocol::handshake::Ref;
use gix_protocol::ls_refs::RefPrefixes;
use gix_protocol::{Command, Handshake, LsRefsCommand};
use gix_transport::client::blocking_io::ExtendedBufRead as _;
use gix_transport::client::blocking_io::http::Transport;
use gix_transport::{Protocol, Service};
use gix_utils::progress::Discard;

use super::transport::{Channel, Shared};
use crate::context::git::{Exceeded, GitError, GitLimits, SHOWN_CHARACTERS};
use crate::text::{chained, line};

/// How much of `git-memory` a list of branches and tags may take as it comes; read, it takes two or three times as much.
const LISTING_SHARE: u64 = 16;

/// How much history comes with a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum History {
    /// None, if the server can do that.
    None,
    /// All.
    Whole,
}

/// A server that has been greeted.
pub(super) struct Remote<'a> {
    shared: Rc<Shared<'a>>,
    transport: Transport<Channel<'a>>,
    handshake: Handshake,
    limits: GitLimits,
}

impl<'a> Remote<'a> {
    /// Greets the server of the repository at `url`, which has no credentials in it.
    pub(super) fn open(shared: Rc<Shared<'a>>, url: &str, limits: GitLimits) -> Result<Self, GitError> {
        let address = url.try_into().map_err(|_| shared.failed("it is not a usable URL"))?;
        let mut transport =
            Transport::new_http(Channel::new(Rc::clone(&shared)), address, Protocol::V2, false);
        expect_listing(&shared, &limits);
        let greeted = gix_protocol::handshake(
            &mut transport,
            Service::UploadPack,
            // There is nobody to ask.
            |_| Ok(None),
            Vec::new(),
            &mut Discard,
        );
        let handshake = greeted.map_err(|error| explain(&shared, &error))?;
        Ok(Self { shared, transport, handshake, limits })
    }

    /// How the repository names its objects.
    pub(super) fn hash(&self) -> Result<Kind, GitError> {
        let named = self.handshake.capabilities.capability("object-format");
        match named.and_then(|capability| capability.value().map(|value| value.to_vec())).as_deref() {
            None | Some(b"sha1") => Ok(Kind::Sha1),
            Some(b"sha256") => Ok(Kind::Sha256),
            Some(other) => Err(self.shared.failed(format!(
                "the repository names its objects by `{}`, which is not known here",
                line(other, SHOWN_CHARACTERS)
            ))),
        }
    }

    /// The branches, tags and other names that begin with one of `prefixes`, and perhaps others.
    pub(super) fn names(&mut self, prefixes: &[&str]) -> Result<Vec<Ref>, GitError> {
        if let Some(names) = self.handshake.refs.take() {
            return Ok(names);
        }
        expect_listing(&self.shared, &self.limits);
        let mut wanted = RefPrefixes::new();
        wanted.extend(prefixes.iter().map(|prefix| (*prefix).into()));
        let command = LsRefsCommand::new(Some(wanted), &self.handshake.capabilities, agent());
        let names = command.invoke_blocking(&mut self.transport, &mut Discard, false);
        names.map_err(|error| explain(&self.shared, &error))
    }

    /// Writes a pack with the objects that `wanted` lead to; gives the commits whose parents are not in it.
    pub(super) fn fetch(
        &mut self,
        wanted: &[ObjectId],
        history: History,
        into: &mut dyn Write,
    ) -> Result<Vec<ObjectId>, GitError> {
        let shared = Rc::clone(&self.shared);
        let explained = |error: &(dyn std::error::Error + 'static)| explain(&shared, error);
        let version = self.handshake.server_protocol_version;
        let mut features = Command::Fetch.default_features(version, &self.handshake.capabilities);
        features.push(agent());
        Response::check_required_features(version, &features).map_err(|error| explained(&error))?;
        let everything_by_bands = features.iter().any(|(name, _)| *name == "sideband-all");
        let mut arguments = Arguments::new(version, features, false);
        if history == History::None && arguments.can_use_shallow() {
            arguments.deepen(1);
        }
        for id in wanted {
            arguments.want(id);
        }
        expect_listing(&shared, &self.limits);
        let complaint = std::cell::RefCell::new(None);
        let mut reader = arguments.send(&mut self.transport, true).map_err(|error| explained(&error))?;
        let listen = || -> gix_transport::client::blocking_io::HandleProgress<'_> {
            Box::new(|is_error, said: &[u8]| {
                if !is_error {
                    return ControlFlow::Continue(());
                }
                *complaint.borrow_mut() = Some(line(said.trim_ascii(), SHOWN_CHARACTERS));
                ControlFlow::Break(())
            })
        };
        if everything_by_bands {
            reader.set_progress_handler(Some(listen()));
        }
        let complained = || {
            let said = complaint.borrow_mut().take()?;
            Some(shared.failed(format!("the server says: {said}")))
        };
        let response = Response::from_line_reader(version, &mut reader, true, false)
            .map_err(|error| complained().unwrap_or_else(|| explained(&error)))?;
        if !response.has_pack() {
            return Err(shared.failed("the server sent no objects"));
        }
        if !everything_by_bands {
            reader.set_progress_handler(Some(listen()));
        }
        shared.left.set((self.limits.bytes.value, Exceeded::Bytes(self.limits.bytes)));
        let mut copied = 0;
        copy(&shared, &mut reader, into, &mut copied).map_err(|error| {
            let is_noted = shared.failure.borrow().is_some();
            match complained() {
                Some(complaint) => complaint,
                // In the first version of the protocol, a refusal stands where the pack should, and is taken for a broken one.
                None if version != Protocol::V2 && copied == 0 && !is_noted => {
                    shared.failed("not our ref, or none that the server gives by its id")
                }
                None => explained(&error),
            }
        })?;
        drop(reader);
        let mut shallow = Vec::new();
        let updates = self.handshake.v1_shallow_updates.take().unwrap_or_default();
        for update in updates.into_iter().chain(response.shallow_updates().iter().copied()) {
            if let gix_protocol::fetch::response::ShallowUpdate::Shallow(id) = update {
                shallow.push(id);
            }
        }
        Ok(shallow)
    }
}

/// What writing failed with is told apart from what reading did. Counts the bytes in `copied`.
fn copy(
    shared: &Shared<'_>,
    reader: &mut impl BufRead,
    into: &mut dyn Write,
    copied: &mut u64,
) -> io::Result<()> {
    loop {
        let bytes = reader.fill_buf()?;
        if bytes.is_empty() {
            return into.flush();
        }
        let count = bytes.len();
        into.write_all(bytes).map_err(|error| shared.fail(GitError::Pack(error)))?;
        reader.consume(count);
        *copied += count as u64;
    }
}

fn expect_listing(shared: &Shared<'_>, limits: &GitLimits) {
    let most = limits.memory.value / LISTING_SHARE;
    shared.left.set((most, Exceeded::Memory(limits.memory)));
}

fn agent() -> (&'static str, Option<String>) {
    ("agent", Some(concat!("builder/", env!("CARGO_PKG_VERSION")).to_owned()))
}

/// What really was the matter: what was noted, or what the library or the server says.
fn explain(shared: &Shared<'_>, error: &(dyn std::error::Error + 'static)) -> GitError {
    let noted = shared.failure.borrow_mut().take();
    noted.unwrap_or_else(|| shared.failed(line(chained(error).as_bytes(), SHOWN_CHARACTERS)))
}
