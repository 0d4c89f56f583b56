//! The variables of a build: build arguments, platform arguments, ARG and ENV, each visible where Docker shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::dockerfile::suggest;

/// Proxy variables that RUN gets without an ARG when they are given as build arguments (Dockerfile reference,
/// Predefined ARGs).
const PROXIES: [&str; 5] = ["HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY", "ALL_PROXY"];

/// ARGs that say something to the builder and are no variables: neither an expansion nor a RUN sees them.
const NOT_VARIABLES: [&str; 2] = ["BUILDKIT_SBOM_SCAN_CONTEXT", "BUILDKIT_SBOM_SCAN_STAGE"];

/// The variable among `names` that may have been meant by `name`; `warnings` are there already.
///
/// Of very many warnings and variables only the first are looked at: comparing each with each takes hours in a file of
/// the largest size.
pub(super) fn resembling<'n>(
    name: &str,
    names: impl Iterator<Item = &'n str>,
    warnings: usize,
) -> Option<&'n str> {
    if warnings > 200 { None } else { suggest(name, &names.take(1000).collect::<Vec<_>>()) }
}

/// Whether RUN gets the build argument `name` without an ARG.
#[must_use]
pub fn is_proxy(name: &str) -> bool {
    PROXIES.contains(&name.to_ascii_uppercase().as_str())
}

/// What is visible in front of the first FROM and in every FROM line.
#[derive(Debug, Clone, Default)]
pub struct Globals {
    /// As given on the command line.
    build_args: BTreeMap<String, String>,
    /// Platform arguments and what global ARGs made of them.
    values: BTreeMap<String, String>,
    /// Names in global ARGs, with a value or without.
    declared: BTreeSet<String>,
}

impl Globals {
    /// `build_args` from the command line, `automatic` the platform arguments, which a build argument replaces.
    #[must_use]
    pub fn new(build_args: BTreeMap<String, String>, automatic: BTreeMap<String, String>) -> Self {
        let mut values = automatic;
        for (name, value) in &mut values {
            if let Some(given) = build_args.get(name) {
                value.clone_from(given);
            }
        }
        Self { build_args, values, declared: BTreeSet::new() }
    }

    /// The value of `name` in a FROM line or in the default of a global ARG.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// The names that are visible, for suggestions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// Whether a global ARG names it; it may have no value all the same.
    #[must_use]
    pub fn is_declared(&self, name: &str) -> bool {
        self.declared.contains(name)
    }

    /// The value that the command line gives to `name`; with one, the default of an ARG is not even looked at.
    #[must_use]
    pub fn build_arg(&self, name: &str) -> Option<&str> {
        self.build_args.get(name).map(String::as_str)
    }

    /// ARG in front of the first FROM. An automatic value stays where there is neither a build argument nor a default.
    pub fn declare(&mut self, name: &str, default: Option<String>) {
        self.declared.insert(name.to_owned());
        let value = self.build_args.get(name).cloned().or(default);
        if let Some(value) = value {
            self.values.insert(name.to_owned(), value);
        }
    }

    /// Proxy variables in both spellings, for RUN alone: neither history nor config shows them. Of several spellings the
    /// last in the order of bytes counts, and an empty value is none.
    fn proxies(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for (name, value) in self.build_args.iter().filter(|(name, _)| is_proxy(name)) {
            for spelling in [name.to_ascii_lowercase(), name.to_ascii_uppercase()] {
                found.insert(spelling, value.clone());
            }
        }
        found.retain(|_, value| !value.is_empty());
        found
    }
}

/// What is visible within a stage. Of two statements about one name the later one counts, be it ARG or ENV.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    globals: Globals,
    /// The image's environment, in the order of the first definition.
    env: Vec<(String, String)>,
    /// What an expansion sees.
    visible: BTreeMap<String, String>,
    /// Declared ARGs in the order of their first declaration, with their newest value.
    args: Vec<(String, Option<String>)>,
    /// Where in `env` and in `args` a name is.
    places: BTreeMap<String, Places>,
    /// The environment of a RUN, made once for all that follow each other without a change.
    run_env: Option<RunEnv>,
    /// Bytes of all names and values that a RUN would get.
    size: usize,
}

/// Variables of a RUN; cheap to clone.
pub type Variables = Arc<[(String, String)]>;

/// The environment of a RUN.
#[derive(Debug, Clone)]
pub struct RunEnv {
    /// The image's variables and declared ARGs.
    pub declared: Variables,
    /// Proxies that nothing declares. They are part of the machine that builds, not of what is built.
    pub proxies: Variables,
}

/// More bytes of variables than this no process can be given: execve(2) takes a quarter of the stack, 2 MiB as a rule.
pub const LARGEST_ENVIRONMENT: usize = 4 << 20;

/// Positions of a name.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    env: Option<usize>,
    arg: Option<usize>,
}

impl Scope {
    /// The scope of a stage whose base has the environment `env`.
    #[must_use]
    pub fn new(globals: Globals, env: Vec<(String, String)>) -> Self {
        let mut scope = Self { globals, ..Self::default() };
        for (name, value) in &env {
            scope.set_env(name, value);
        }
        scope
    }

    /// The value of `name`.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<&str> {
        self.visible.get(name).map(String::as_str)
    }

    /// The names that are visible, for suggestions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.visible.keys().map(String::as_str)
    }

    /// Whether an ARG of the stage names it; it may have no value all the same.
    #[must_use]
    pub fn is_declared(&self, name: &str) -> bool {
        NOT_VARIABLES.contains(&name) || self.places.get(name).is_some_and(|places| places.arg.is_some())
    }

    /// Whether an ARG in front of the first FROM names it, which stages do not see.
    #[must_use]
    pub fn is_global(&self, name: &str) -> bool {
        self.globals.is_declared(name)
    }

    /// The value that the command line gives to `name`.
    #[must_use]
    pub fn build_arg(&self, name: &str) -> Option<&str> {
        self.globals.build_arg(name)
    }

    /// ENV: kept in the image.
    pub fn set_env(&mut self, name: &str, value: &str) {
        let places = self.places.entry(name.to_owned()).or_default();
        match places.env {
            Some(position) => value.clone_into(&mut self.env[position].1),
            None => {
                places.env = Some(self.env.len());
                self.env.push((name.to_owned(), value.to_owned()));
            }
        }
        self.changed(name, value);
    }

    /// ARG: build argument, else own default, else global value, else nothing new. Gives the value, which is what the
    /// history shows.
    pub fn declare(&mut self, name: &str, default: Option<String>) -> Option<String> {
        let value = self
            .globals
            .build_arg(name)
            .map(str::to_owned)
            .or(default)
            .or_else(|| self.globals.lookup(name).map(str::to_owned));
        if let Some(value) = value.as_ref().filter(|_| !NOT_VARIABLES.contains(&name)) {
            self.changed(name, value);
        }
        let places = self.places.entry(name.to_owned()).or_default();
        match places.arg {
            Some(position) => self.args[position].1.clone_from(&value),
            None => {
                places.arg = Some(self.args.len());
                self.args.push((name.to_owned(), value.clone()));
            }
        }
        value
    }

    /// The image's environment as its config holds it.
    #[must_use]
    pub fn config_env(&self) -> Vec<String> {
        self.env.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Whether all variables together are more than any process can be given.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.size > LARGEST_ENVIRONMENT
    }

    fn changed(&mut self, name: &str, value: &str) {
        self.run_env = None;
        let before = self.visible.insert(name.to_owned(), value.to_owned());
        self.size += value.len();
        self.size = match before {
            Some(before) => self.size.saturating_sub(before.len()),
            None => self.size + name.len(),
        };
    }

    /// The environment of a RUN: the image's, with ARGs and proxies.
    pub fn run_env(&mut self) -> RunEnv {
        let made = self.run_env.take().unwrap_or_else(|| self.make_run_env());
        self.run_env.insert(made).clone()
    }

    fn make_run_env(&self) -> RunEnv {
        let mut rest = BTreeMap::new();
        for (name, value) in &self.args {
            if let Some(visible) = self.visible.get(name).filter(|_| value.is_some()) {
                rest.insert(name.clone(), visible.clone());
            }
        }
        let mut proxies = self.globals.proxies();
        let mut declared = Vec::with_capacity(self.env.len() + rest.len());
        for (name, value) in &self.env {
            rest.remove(name);
            declared.push((name.clone(), self.visible.get(name).unwrap_or(value).clone()));
        }
        declared.extend(rest);
        for (name, _) in &declared {
            proxies.remove(name);
        }
        RunEnv { declared: declared.into(), proxies: proxies.into_iter().collect::<Vec<_>>().into() }
    }

    /// The ARGs that the history row of a RUN names, each with what the RUN sees: that of a later ENV, or of one before an
    /// ARG without a value. Unset ones have an empty value.
    #[must_use]
    pub fn history_args(&self) -> Vec<(String, String)> {
        let seen = |name: &String| self.visible.get(name).cloned();
        let shown = |(name, value): &(String, Option<String>)| {
            (name.clone(), seen(name).or_else(|| value.clone()).unwrap_or_default())
        };
        self.args.iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn scope(build_args: &[(&str, &str)]) -> Scope {
        Scope::new(Globals::new(pairs(build_args), pairs(&[("TARGETARCH", "arm")])), Vec::new())
    }

    #[test]
    fn the_later_of_arg_and_env_counts() {
        let mut given = scope(&[("X", "9")]);
        given.set_env("X", "2");
        given.declare("X", None);
        assert_eq!(given.lookup("X"), Some("9"));
        assert_eq!(given.config_env(), ["X=2"]);
        assert_eq!(*given.run_env().declared, [("X".to_owned(), "9".to_owned())]);

        let mut unset = scope(&[]);
        unset.set_env("X", "2");
        unset.declare("X", None);
        assert_eq!(unset.lookup("X"), Some("2"));

        let mut default = scope(&[]);
        default.set_env("X", "2");
        default.declare("X", Some("3".to_owned()));
        assert_eq!(default.lookup("X"), Some("3"));

        let mut env_last = scope(&[("X", "9")]);
        env_last.declare("X", None);
        env_last.set_env("X", "2");
        assert_eq!(*env_last.run_env().declared, [("X".to_owned(), "2".to_owned())]);
    }

    #[test]
    fn a_build_argument_replaces_a_platform_argument_in_from_too() {
        let globals =
            Globals::new(pairs(&[("TARGETARCH", "zz"), ("X", "1")]), pairs(&[("TARGETARCH", "arm")]));
        assert_eq!(globals.lookup("TARGETARCH"), Some("zz"));
        assert_eq!(globals.lookup("X"), None, "an undeclared argument is not visible");
    }

    #[test]
    fn a_platform_argument_shows_in_a_stage_only_once_declared() {
        let mut scope = scope(&[]);
        assert_eq!(scope.lookup("TARGETARCH"), None);
        scope.declare("TARGETARCH", None);
        assert_eq!(scope.lookup("TARGETARCH"), Some("arm"));
        scope.declare("TARGETARCH", Some("zz".to_owned()));
        assert_eq!(scope.lookup("TARGETARCH"), Some("zz"));
    }

    #[test]
    fn many_arguments_are_no_trouble() {
        let mut scope = scope(&[]);
        for number in 0..100_000 {
            scope.declare(&format!("A{number}"), Some(String::new()));
        }
        assert_eq!(scope.history_args().len(), 100_000);
    }

    #[test]
    fn history_counts_every_declared_arg_once() {
        let mut scope = scope(&[("B", "2")]);
        scope.declare("A", None);
        scope.declare("B", Some("1".to_owned()));
        scope.declare("A", Some("3".to_owned()));
        assert_eq!(
            scope.history_args(),
            [("A".to_owned(), "3".to_owned()), ("B".to_owned(), "2".to_owned())]
        );
    }

    #[test]
    fn history_shows_what_a_run_sees() {
        let mut scope = scope(&[]);
        scope.set_env("E", "env");
        scope.declare("E", None);
        scope.declare("A", Some("arg".to_owned()));
        scope.set_env("A", "later");
        scope.declare("U", None);
        let rows = [("E", "env"), ("A", "later"), ("U", "")];
        assert_eq!(scope.history_args(), rows.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_is_said_to_the_builder_is_no_variable() {
        let mut scope = scope(&[]);
        scope.declare("BUILDKIT_SBOM_SCAN_STAGE", Some("true".to_owned()));
        assert_eq!(scope.lookup("BUILDKIT_SBOM_SCAN_STAGE"), None);
        assert_eq!(*scope.run_env().declared, []);
        assert_eq!(scope.history_args(), [("BUILDKIT_SBOM_SCAN_STAGE".to_owned(), "true".to_owned())]);
    }

    #[test]
    fn a_proxy_reaches_run_in_both_spellings_and_nothing_else() {
        let mut scope = scope(&[("http_proxy", "p"), ("OTHER", "x")]);
        assert_eq!(
            *scope.run_env().proxies,
            [("HTTP_PROXY".to_owned(), "p".to_owned()), ("http_proxy".to_owned(), "p".to_owned())]
        );
        assert_eq!(*scope.run_env().declared, []);
        assert_eq!(scope.history_args(), []);
    }

    #[test]
    fn the_last_spelling_of_a_proxy_counts_and_an_empty_one_is_none() {
        let mut scope = scope(&[("HTTP_PROXY", "upper"), ("http_proxy", "lower"), ("NO_PROXY", "")]);
        let both = ["HTTP_PROXY", "http_proxy"].map(|name| (name.to_owned(), "lower".to_owned()));
        assert_eq!(*scope.run_env().proxies, both);
    }

    #[test]
    fn a_proxy_that_is_declared_is_a_variable_like_any_other() {
        let mut scope = scope(&[("http_proxy", "p")]);
        scope.declare("HTTP_PROXY", None);
        scope.declare("http_proxy", None);
        let RunEnv { declared, proxies } = scope.run_env();
        // Nothing gave a value to the upper-case spelling.
        assert_eq!(*declared, [("http_proxy".to_owned(), "p".to_owned())]);
        assert_eq!(*proxies, [("HTTP_PROXY".to_owned(), "p".to_owned())]);
        scope.set_env("HTTP_PROXY", "e");
        let RunEnv { declared, proxies } = scope.run_env();
        assert_eq!(
            declared.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["HTTP_PROXY", "http_proxy"]
        );
        assert_eq!(*proxies, []);
    }
}
