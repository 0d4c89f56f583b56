//! The variables of a build: build arguments, platform arguments, ARG and ENV, each visible where Docker shows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::shared_map::SharedMap;
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

/// What is visible within a stage. Of two statements about one name the later one counts, be it ARG or ENV. A copy shares
/// what it has in common with the original.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    globals: Arc<Globals>,
    variables: SharedMap<Arc<str>, Variable>,
    /// The names of ARGs in the order of their first declaration, in blocks.
    args: SharedMap<usize, Vec<Arc<str>>>,
    /// How many different names ARG has declared.
    arg_count: usize,
    /// How many different names ENV has defined.
    env_count: usize,
    /// Bytes of all names and values that a RUN would get.
    size: usize,
}

/// How many names of ARGs are in a block: fewer take more memory where nothing is shared, more where all is.
const BLOCK: usize = 32;

/// What is known of a name.
#[derive(Debug, Clone, Default)]
struct Variable {
    /// What an expansion sees.
    visible: Option<Arc<str>>,
    /// What the image's environment has, and which of its variables it is, in the order of the first definition.
    env: Option<(usize, Arc<str>)>,
    /// If an ARG declares it: its newest value.
    arg: Option<Option<Arc<str>>>,
}

/// Variables of a RUN. They are listed where somebody wants them: a list for each RUN would take the square of a file's
/// size.
#[derive(Clone, Default)]
pub struct Variables {
    variables: SharedMap<Arc<str>, Variable>,
    /// What comes last, unless it is among the variables: a name and its value.
    last: Option<(&'static str, Arc<str>)>,
}

impl Variables {
    /// Those of an image with these, in this order.
    #[must_use]
    pub fn of<'p>(pairs: impl IntoIterator<Item = (&'p str, &'p str)>) -> Self {
        let mut scope = Scope::default();
        for (name, value) in pairs {
            scope.set_env(name, value);
        }
        Self { variables: scope.variables, last: None }
    }

    /// With `name`, if it is not among them.
    #[must_use]
    pub fn with(self, name: &'static str, value: &str) -> Self {
        Self { last: Some((name, value.into())), ..self }
    }

    /// Names and values, those of the image in the order of their first definition, ARGs behind them by name.
    #[must_use]
    pub fn list(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let (mut env, mut rest) = (Vec::new(), Vec::new());
        for (name, Variable { visible, env: defined, arg }) in self.variables.iter() {
            match (defined, arg, visible) {
                (Some((position, value)), _, _) => {
                    env.push((*position, (name.clone(), visible.as_ref().unwrap_or(value).clone())));
                }
                (None, Some(Some(_)), Some(visible)) => rest.push((name.clone(), visible.clone())),
                _ => {}
            }
        }
        env.sort_by_key(|(position, _)| *position);
        let mut list: Vec<_> = env.into_iter().map(|(_, variable)| variable).chain(rest).collect();
        if let Some((name, value)) = &self.last
            && !list.iter().any(|(known, _)| **known == **name)
        {
            list.push(((*name).into(), value.clone()));
        }
        list
    }

    /// Whether a RUN gets a value for `name`, that of [`Variables::with`] apart.
    fn has(&self, name: &str) -> bool {
        self.variables.get(name).is_some_and(|variable| {
            variable.env.is_some() || (matches!(variable.arg, Some(Some(_))) && variable.visible.is_some())
        })
    }
}

impl PartialEq for Variables {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.list()).finish()
    }
}

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

impl Scope {
    /// The scope of a stage whose base has the environment `env`.
    #[must_use]
    pub fn new<'p>(globals: Arc<Globals>, env: impl IntoIterator<Item = (&'p str, &'p str)>) -> Self {
        let mut scope = Self { globals, ..Self::default() };
        for (name, value) in env {
            scope.set_env(name, value);
        }
        scope
    }

    /// The value of `name`.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<&str> {
        self.variables.get(name)?.visible.as_deref()
    }

    /// The names that are visible, for suggestions.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().filter(|(_, variable)| variable.visible.is_some()).map(|(name, _)| &**name)
    }

    /// Whether an ARG of the stage names it; it may have no value all the same.
    #[must_use]
    pub fn is_declared(&self, name: &str) -> bool {
        NOT_VARIABLES.contains(&name)
            || self.variables.get(name).is_some_and(|variable| variable.arg.is_some())
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
        let (name, value): (Arc<str>, Arc<str>) = (name.into(), value.into());
        let (length, next) = (name.len(), self.env_count);
        let (before, is_new) = self.variables.change(name, |variable| {
            let position = variable.env.as_ref().map(|(position, _)| *position);
            variable.env = Some((position.unwrap_or(next), value.clone()));
            (variable.visible.replace(value.clone()), position.is_none())
        });
        self.env_count += usize::from(is_new);
        self.measure(length, before.as_deref(), &value);
    }

    /// ARG: build argument, else own default, else global value, else nothing new. Gives the value, which is what the
    /// history shows.
    pub fn declare(&mut self, name: &str, default: Option<String>) -> Option<Arc<str>> {
        let given = self.globals.build_arg(name).map(Arc::from);
        let value = given
            .or_else(|| default.map(Arc::from))
            .or_else(|| self.globals.lookup(name).map(Arc::<str>::from));
        let seen = value.as_ref().filter(|_| !NOT_VARIABLES.contains(&name));
        let name: Arc<str> = name.into();
        let (before, is_new) = self.variables.change(name.clone(), |variable| {
            let before = seen.and_then(|value| variable.visible.replace(value.clone()));
            (before, variable.arg.replace(value.clone()).is_none())
        });
        if let Some(value) = seen {
            self.measure(name.len(), before.as_deref(), value);
        }
        if is_new {
            self.args.change(self.arg_count / BLOCK, |block| block.push(name));
            self.arg_count += 1;
        }
        value
    }

    /// The image's environment as its config holds it.
    #[must_use]
    pub fn config_env(&self) -> Vec<String> {
        let env = |(name, variable): (&Arc<str>, &Variable)| {
            variable.env.as_ref().map(|(position, value)| (*position, format!("{name}={value}")))
        };
        let mut env: Vec<(usize, String)> = self.variables.iter().filter_map(env).collect();
        env.sort_by_key(|(position, _)| *position);
        env.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Whether all variables together are more than any process can be given.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.size > LARGEST_ENVIRONMENT
    }

    /// A name of `length` bytes had the value `before`, and has `value` now.
    fn measure(&mut self, length: usize, before: Option<&str>, value: &str) {
        self.size += value.len();
        self.size = match before {
            Some(before) => self.size.saturating_sub(before.len()),
            None => self.size + length,
        };
    }

    /// The environment of a RUN: the image's, with ARGs and proxies.
    #[must_use]
    pub fn run_env(&self) -> RunEnv {
        let declared = Variables { variables: self.variables.clone(), last: None };
        let mut proxies = self.globals.proxies();
        proxies.retain(|name, _| !declared.has(name));
        let proxies = Variables::of(proxies.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        RunEnv { declared, proxies }
    }

    /// The ARGs that the history row of a RUN names, each with what the RUN sees: that of a later ENV, or of one before an
    /// ARG without a value. Unset ones have an empty value.
    pub fn history_args(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let shown = |position: usize| {
            let block = self.args.get(&(position / BLOCK));
            let Some(name) = block.and_then(|block| block.get(position % BLOCK)) else { return ("", "") };
            let variable = self.variables.get(name);
            let seen =
                variable.and_then(|variable| variable.visible.as_ref().or(variable.arg.as_ref()?.as_ref()));
            (&**name, seen.map_or("", |value| &**value))
        };
        (0..self.arg_count).map(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a RUN gets.
    fn list(variables: &Variables) -> Vec<(String, String)> {
        variables.list().iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn owned(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn scope(build_args: &[(&str, &str)]) -> Scope {
        Scope::new(Globals::new(pairs(build_args), pairs(&[("TARGETARCH", "arm")])).into(), [])
    }

    #[test]
    fn the_later_of_arg_and_env_counts() {
        let mut given = scope(&[("X", "9")]);
        given.set_env("X", "2");
        given.declare("X", None);
        assert_eq!(given.lookup("X"), Some("9"));
        assert_eq!(given.config_env(), ["X=2"]);
        assert_eq!(list(&given.run_env().declared), owned(&[("X", "9")]));

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
        assert_eq!(list(&env_last.run_env().declared), owned(&[("X", "2")]));
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
        assert_eq!(scope.history_args().collect::<Vec<_>>(), [("A", "3"), ("B", "2")]);
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
        assert_eq!(scope.history_args().collect::<Vec<_>>(), rows);
    }

    #[test]
    fn what_is_said_to_the_builder_is_no_variable() {
        let mut scope = scope(&[]);
        scope.declare("BUILDKIT_SBOM_SCAN_STAGE", Some("true".to_owned()));
        assert_eq!(scope.lookup("BUILDKIT_SBOM_SCAN_STAGE"), None);
        assert_eq!(list(&scope.run_env().declared), []);
        assert_eq!(scope.history_args().collect::<Vec<_>>(), [("BUILDKIT_SBOM_SCAN_STAGE", "true")]);
    }

    #[test]
    fn a_proxy_reaches_run_in_both_spellings_and_nothing_else() {
        let scope = scope(&[("http_proxy", "p"), ("OTHER", "x")]);
        let RunEnv { declared, proxies } = scope.run_env();
        assert_eq!(list(&proxies), owned(&[("HTTP_PROXY", "p"), ("http_proxy", "p")]));
        assert_eq!(list(&declared), []);
        assert_eq!(scope.history_args().len(), 0);
    }

    #[test]
    fn the_last_spelling_of_a_proxy_counts_and_an_empty_one_is_none() {
        let scope = scope(&[("HTTP_PROXY", "upper"), ("http_proxy", "lower"), ("NO_PROXY", "")]);
        let both = owned(&[("HTTP_PROXY", "lower"), ("http_proxy", "lower")]);
        assert_eq!(list(&scope.run_env().proxies), both);
    }

    #[test]
    fn a_proxy_that_is_declared_is_a_variable_like_any_other() {
        let mut scope = scope(&[("http_proxy", "p")]);
        scope.declare("HTTP_PROXY", None);
        scope.declare("http_proxy", None);
        let RunEnv { declared, proxies } = scope.run_env();
        // Nothing gave a value to the upper-case spelling.
        assert_eq!(list(&declared), owned(&[("http_proxy", "p")]));
        assert_eq!(list(&proxies), owned(&[("HTTP_PROXY", "p")]));
        scope.set_env("HTTP_PROXY", "e");
        let RunEnv { declared, proxies } = scope.run_env();
        assert_eq!(list(&declared), owned(&[("HTTP_PROXY", "e"), ("http_proxy", "p")]));
        assert_eq!(list(&proxies), []);
    }

    #[test]
    fn what_comes_last_comes_only_where_nothing_else_has_its_name() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            list(&Variables::of(pairs.iter().copied()).with("SOCKET", "/s"))
        };
        assert_eq!(with(&[("Z", "1")]), owned(&[("Z", "1"), ("SOCKET", "/s")]));
        assert_eq!(with(&[("SOCKET", ""), ("Z", "1")]), owned(&[("SOCKET", ""), ("Z", "1")]));
    }

    #[test]
    fn a_copy_of_a_scope_and_the_variables_of_a_run_do_not_change_with_it() {
        let mut scope = scope(&[]);
        scope.set_env("B", "1");
        scope.declare("A", Some("2".to_owned()));
        let (before, run) = (scope.clone(), scope.run_env());
        scope.set_env("A", "3");
        scope.set_env("B", "4");
        assert_eq!(list(&scope.run_env().declared), owned(&[("B", "4"), ("A", "3")]));
        for variables in [run.declared, before.run_env().declared] {
            assert_eq!(list(&variables), owned(&[("B", "1"), ("A", "2")]));
        }
        assert_eq!(
            (before.config_env(), scope.config_env()),
            (vec!["B=1".to_owned()], vec!["B=4".to_owned(), "A=3".to_owned()])
        );
    }
}
