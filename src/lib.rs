//! A daemonless container image builder that takes CPU variants seriously.
//!
//! Modules, lowest first; each uses only modules above it in this list (`integration/layering.rs` fails on any other
//! edge):
//!
//! | level | module | what it is | may use |
//! |---|---|---|---|
//! | 0 | [`sys`] | raw system calls that no crate wraps; the only `unsafe` | – |
//! | 0 | [`image`] | OCI values; no input or output | – |
//! | 0 | [`dockerfile`] | Dockerfile text to values; no input or output | – |
//! | 1 | [`rootfs`] | a hostile directory tree behind one handle | `sys` |
//! | 1 | [`http`] | one HTTP client: roots, redirects, retries, limits | `sys` |
//! | 2 | [`layer`] | changesets as tar archives | `image`, `rootfs`, `sys` |
//! | 2 | [`context`] | where COPY and ADD read | `rootfs`, `http`, `sys` |
//! | 2 | [`sandbox`] | one process inside a root | `rootfs`, `image`, `sys` |
//! | 3 | [`store`] | blobs, unpacked layers and names on disk | `layer`, `image`, `rootfs`, `sys` |
//! | 3 | [`snapshot`] | what a step changed | `layer`, `rootfs`, `store`, `sys` |
//! | 4 | [`registry`] | OCI distribution client | `image`, `store`, `http` |
//! | 5 | [`build`] | the interpreter | everything above except `registry`, `http` and `sys` |
//! | 6 | [`cli`] | flags, environment, progress and errors | everything |
//!
//! The walk of data: `cli` turns arguments into a `BuildRequest`; `build::plan` turns the Dockerfile into stages;
//! bases are resolved to manifest and config by an `ImageSource`; each step runs on a `snapshot::Recording`, whose
//! changes become a layer in the `store`; `ImageSink`s get layers, config and, last, the manifest.

pub mod build;
pub mod cli;
pub mod context;
pub mod dockerfile;
pub mod http;
pub mod image;
pub mod layer;
pub mod registry;
pub mod rootfs;
pub mod sandbox;
pub mod snapshot;
pub mod store;
pub mod sys;
