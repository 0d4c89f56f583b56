//! Tests of the whole program against a real registry, real base images and independent readers.
//!
//! They need the test ground: `integration/ground/up`, as root.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test says what is wrong by panicking, and why it was skipped on stderr"
)]
#![allow(clippy::disallowed_methods, reason = "tests prepare and look at the machine's own files")]

mod add_git;
mod add_urls;
mod base_selection;
mod build_cache;
mod build_checks;
mod build_cleanup;
mod build_failures;
mod build_outputs;
mod build_reuse;
mod build_run;
mod build_stages;
mod differential;
mod dockerfile_cases;
mod dockerfile_sources;
mod doctor;
mod emulation;
mod emulation_trial;
mod examples;
mod fuzz_replay;
mod git_without_command;
mod ground_state;
mod hostile_layers;
mod indexed_job;
mod layer_forms;
mod layering;
mod manifests;
mod memory;
mod named_contexts;
mod ordinary_user;
mod output_cases;
mod outputs;
mod own_image;
mod pods;
mod privileged;
mod process_one;
mod progress;
mod pull;
mod read_only_root;
mod registry_hostile;
mod remote_contexts;
mod reproducible;
mod run_caches;
mod run_flags;
mod run_mounts;
mod run_network;
mod run_safety;
mod run_secrets;
mod run_ssh;
mod several_platforms;
mod snapshotters;
mod store_killed;
mod store_layout;
mod support;
mod surroundings;
mod variant_matrix;
