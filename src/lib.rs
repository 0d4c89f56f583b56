//! A daemonless container image builder that takes CPU variants seriously.
//!
//! Modules, lowest first; each uses only modules above it in this list (`integration/layering.rs` fails on any other
//! edge):
//!
//! | level | module | what it is | may use |
//! |---|---|---|---|
//! | 0 | [`sys`] | raw system calls that no crate wraps, and what is known only before Rust's own start; the only `unsafe` | – |
//! | 0 | [`limit`] | a limit that the user may raise | – |
//! | 0 | [`text`] | text from outside, fit for a message; what is shown of URLs | – |
//! | 1 | [`children`] | who waits for which child of this process; orphans, which nobody does; forked children that have one thing to say; programs that are run to their end | `sys` |
//! | 1 | [`image`] | OCI values; no input or output | `limit`, `text` |
//! | 1 | [`spec`] | what an index is to be made of: YAML or arguments to values; no input or output | `image`, `limit`, `text` |
//! | 1 | [`dockerfile`] | Dockerfile text to values; no input or output | `limit` |
//! | 1 | [`rootfs`] | a hostile directory tree behind one handle, several that are to be one, and what is written of them for the user; which users and groups there are | `limit`, `text` |
//! | 1 | [`http`] | one HTTP client: roots, redirects, retries, limits | `text` |
//! | 2 | [`layer`] | changesets as tar archives: read, applied, written, converted to another form | `image`, `limit`, `rootfs` |
//! | 2 | [`context`] | where COPY and ADD read: the build context, files of URLs, git repositories | `children`, `http`, `limit`, `rootfs`, `text` |
//! | 2 | [`sandbox`] | one process inside a root: the ways to keep it apart, which of them work here (`probe`) and why the others do not, handlers for other processors, and the namespaces that the builder itself enters for that; also, for what it refuses, what to do about it in the words of a pod, a container or a machine, flags by their names; what is chosen and how it is shown is `cli::{isolation, doctor}` | `children`, `limit`, `rootfs`, `sys`, `text` |
//! | 3 | [`store`] | what is on disk: blobs, names, unpacked layers and overlay mounts of them, temporary directories; OCI layouts and archives; root file systems as directories of the user | `layer`, `image`, `limit`, `rootfs`, `sys` |
//! | 3 | [`registry`] | OCI distribution client | `children`, `image`, `http`, `limit`, `text` |
//! | 4 | [`snapshot`] | what a step changed | `layer`, `limit`, `rootfs`, `store` |
//! | 4 | [`cache`] | what was built before, by what it depends on | `image`, `store`, `sys` |
//! | 5 | [`build`] | the interpreter: Dockerfile to plan, plan to image | `cache`, `context`, `dockerfile`, `image`, `layer`, `limit`, `rootfs`, `sandbox`, `snapshot`, `store`, `text` |
//! | 6 | [`transfer`] | images between registries and the store; what ADD takes from elsewhere | `build`, `context`, `http`, `registry`, `rootfs`, `store`, `layer`, `limit`, `sandbox`, `image`, `text` |
//! | 7 | [`cli`] | flags, environment, progress and errors | everything |
//!
//! The walk of data: `cli` turns arguments and environment into `Settings`, with a [`build::PlanRequest`] in them;
//! [`build::plan()`] turns the Dockerfile into stages and steps, asking an [`build::services::ImageSource`] for the manifest
//! and config of each base; [`build::execute()`] runs the steps, each on a [`snapshot::Recording`], whose changes become a
//! layer in the [`store`]; [`transfer`] gives layers the form that an output asks for, and brings them, config and, last, the
//! manifest to registries; [`store`] writes layouts, archives and directories. Which outputs there are, and what flag becomes
//! which, is in `cli::outputs`; what is shown meanwhile, in `cli::progress`.

pub mod build;
pub mod cache;
pub mod children;
pub mod cli;
pub mod context;
pub mod dockerfile;
pub mod http;
pub mod image;
pub mod layer;
pub mod limit;
pub mod registry;
pub mod rootfs;
pub mod sandbox;
pub mod snapshot;
pub mod spec;
pub mod store;
pub mod sys;
pub mod text;
pub mod transfer;
