//! Flags of docker and kaniko that builder does not have, and what to do without them.

/// What is said of them.
const INSTEAD: [(&[&str], &str); 9] = [
    (
        &[
            "cache",
            "cache-dir",
            "cache-repo",
            "cache-ttl",
            "cache-copy-layers",
            "cache-run-layers",
            "no-push-cache",
        ],
        "leave it out: steps are always remembered in the store, which a volume at `--store DIR` keeps for later builds; \
         a registry cannot keep them yet",
    ),
    (
        &["cache-from", "cache-to"],
        "leave it out: steps are remembered in the store, which a volume at `--store DIR` keeps for later builds; nothing \
         else can keep them yet",
    ),
    (
        &[
            "use-new-run",
            "force",
            "cleanup",
            "pre-cleanup",
            "preserve-context",
            "skip-unused-stages",
            "compressed-caching",
            "ignore-var-run",
            "whitelist-var-run",
            "force-build-metadata",
            "materialize",
        ],
        "leave it out: there is nothing that it would have to change here",
    ),
    (
        &["push-retry", "image-download-retry", "image-fs-extract-retry"],
        "leave it out: what fails on the way is tried again by itself",
    ),
    (
        &[
            "skip-tls-verify",
            "skip-tls-verify-pull",
            "skip-tls-verify-registry",
            "registry-certificate",
            "registry-client-cert",
        ],
        "certificates are always verified; `SSL_CERT_FILE` or `SSL_CERT_DIR` name those of a private authority",
    ),
    (
        &["registry-mirror", "registry-map", "skip-default-registry-fallback"],
        "there are no mirrors yet: name the registry in FROM, for instance by a build argument",
    ),
    (
        &["git", "context-sub-path"],
        "the context is a directory: clone the repository, and name the directory in it",
    ),
    (&["log-format", "log-timestamp"], "`--progress=rawjson` gives programs what they need, with times"),
    (&["squash"], "`--single-snapshot` makes one layer of a stage"),
];

/// What to do without `flag`, with its dashes and perhaps a value.
pub(super) fn instead(flag: &str) -> Option<&'static str> {
    let name = flag.strip_prefix("--")?.split('=').next()?;
    INSTEAD.iter().find(|(names, _)| names.contains(&name)).map(|(_, sentence)| *sentence)
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;
    use crate::cli::args::BuildArgs;

    #[test]
    fn flags_of_others_have_an_answer_until_builder_has_them() {
        assert!(instead("--cache=true").is_some_and(|sentence| sentence.contains("--store")));
        assert_eq!(instead("--cachee"), None);
        let command = BuildArgs::augment_args(clap::Command::new("build"));
        let own: Vec<&str> = command
            .get_arguments()
            .flat_map(|argument| argument.get_long_and_visible_aliases().unwrap_or_default())
            .collect();
        for (names, _) in INSTEAD {
            for name in names {
                assert!(!own.contains(name), "--{name} is there now");
            }
        }
    }
}
