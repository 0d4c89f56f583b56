//! What a registry asks for in `WWW-Authenticate` (RFC 9110, 11.6.1; distribution-spec, token authentication).

use crate::http::escape;

/// How a registry wants to be spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User name and password with every request.
    Basic,
    /// A token that is to be had elsewhere.
    Bearer {
        /// Where.
        realm: String,
        /// What the token server calls the registry.
        service: Option<String>,
    },
}

/// A challenge that nothing can be done with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChallengeError {
    /// No header at all.
    #[error("it answers 401 without saying how to authenticate")]
    Missing,
    /// Only schemes like Negotiate.
    #[error("it wants the authentication scheme `{0}`, expected Basic or Bearer")]
    Scheme(String),
    /// Bearer without a realm.
    #[error("its Bearer challenge has no realm")]
    Realm,
    /// Not the grammar of RFC 9110.
    #[error("its challenge cannot be understood: `{0}`")]
    Syntax(String),
}

/// Header values longer than this are not looked at.
const LONGEST: usize = 8 * 1024;

/// The best challenge of all `WWW-Authenticate` headers: Bearer before Basic.
pub(super) fn choose<'a>(headers: impl Iterator<Item = &'a str>) -> Result<Challenge, ChallengeError> {
    let mut basic = false;
    let mut bearer = None;
    let mut problem = None;
    for header in headers {
        let challenges = match parse(header) {
            Ok(challenges) => challenges,
            Err(error) => {
                problem = Some(error);
                continue;
            }
        };
        for (scheme, parameters) in challenges {
            if scheme.eq_ignore_ascii_case("basic") {
                basic = true;
            } else if scheme.eq_ignore_ascii_case("bearer") {
                let find = |name: &str| {
                    parameters
                        .iter()
                        .find(|(key, _)| key.eq_ignore_ascii_case(name))
                        .map(|(_, value)| value.clone())
                };
                match find("realm").filter(|realm| !realm.is_empty()) {
                    Some(realm) => {
                        bearer.get_or_insert(Challenge::Bearer { realm, service: find("service") });
                    }
                    None => problem = Some(ChallengeError::Realm),
                }
            } else {
                problem.get_or_insert(ChallengeError::Scheme(escape(&scheme)));
            }
        }
    }
    match (bearer, basic, problem) {
        (Some(bearer), _, _) => Ok(bearer),
        (None, true, _) => Ok(Challenge::Basic),
        (None, false, Some(problem)) => Err(problem),
        (None, false, None) => Err(ChallengeError::Missing),
    }
}

type Parsed = Vec<(String, Vec<(String, String)>)>;

/// A list of challenges: `scheme [token68 | name=value, …], scheme …`. A comma separates parameters as well as
/// challenges; a word that no `=` follows starts a new challenge.
fn parse(header: &str) -> Result<Parsed, ChallengeError> {
    let syntax = || ChallengeError::Syntax(escape(header));
    if header.len() > LONGEST {
        return Err(syntax());
    }
    let mut rest = header.trim_start_matches([' ', '\t', ',']);
    let mut challenges: Parsed = Vec::new();
    while !rest.is_empty() {
        let (word, after) = token(rest).ok_or_else(syntax)?;
        let spaced = after.trim_start_matches([' ', '\t']);
        if let (Some(value), Some((_, parameters))) = (spaced.strip_prefix('='), challenges.last_mut()) {
            let (value, after) = parameter_value(value.trim_start_matches([' ', '\t'])).ok_or_else(syntax)?;
            parameters.push((word.to_owned(), value));
            rest = after;
        } else if after.is_empty() || after.starts_with([' ', '\t', ',']) {
            challenges.push((word.to_owned(), Vec::new()));
            rest = skip_token68(spaced);
        } else {
            return Err(syntax());
        }
        rest = rest.trim_start_matches([' ', '\t']);
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    Ok(challenges)
}

fn token(text: &str) -> Option<(&str, &str)> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let end = text.find(|c| !is_token(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Negotiate and its like send one opaque word, perhaps with padding, instead of parameters.
fn skip_token68(text: &str) -> &str {
    let is_token68 = |c: char| c.is_ascii_alphanumeric() || "-._~+/".contains(c);
    let word = text.trim_start_matches(is_token68);
    let end = word.trim_start_matches('=').trim_start_matches([' ', '\t']);
    let opaque = word.len() < text.len() && (end.is_empty() || end.starts_with(','));
    if opaque { end } else { text }
}

fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Some servers forget the quotes around URLs.
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[position + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_understood_in_all_their_spellings() {
        let bearer = |realm: &str, service: Option<&str>| {
            Ok(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
        };
        for (header, expected) in [
            (
                r#"Bearer realm="https://a/t",service="s",scope="x:y:pull,push""#,
                bearer("https://a/t", Some("s")),
            ),
            (r#"bearer  realm = "https://a/t" , SERVICE=s"#, bearer("https://a/t", Some("s"))),
            (r#"Basic realm="a, Bearer realm=\"no\"", Bearer realm="https://b""#, bearer("https://b", None)),
            (r#"Bearer realm="https://a",Basic realm="x""#, bearer("https://a", None)),
            (r#"Negotiate, Basic realm="x""#, Ok(Challenge::Basic)),
            (r#"Negotiate YWJj==, Basic realm="x""#, Ok(Challenge::Basic)),
            (r#"Basic"#, Ok(Challenge::Basic)),
            (r#"Bearer realm=https://a/t?x=y,service=s"#, bearer("https://a/t?x=y", Some("s"))),
            (r#"Bearer realm="q\"uote""#, bearer("q\"uote", None)),
            (r#"Digest realm="x", nonce="y""#, Err(ChallengeError::Scheme("Digest".to_owned()))),
            (r#"Bearer service="s""#, Err(ChallengeError::Realm)),
            (r#"Bearer realm="""#, Err(ChallengeError::Realm)),
            (r#"Bearer realm="open"#, Err(ChallengeError::Syntax(r#"Bearer realm="open"#.to_owned()))),
            (r#"="x""#, Err(ChallengeError::Syntax(r#"="x""#.to_owned()))),
            ("", Err(ChallengeError::Missing)),
        ] {
            assert_eq!(choose([header].into_iter()), expected, "{header}");
        }
    }

    #[test]
    fn a_challenge_that_makes_no_sense_does_not_hide_one_that_does() {
        let headers = ["Bearer realm=\"open", "Basic realm=\"x\""];
        assert_eq!(choose(headers.into_iter()), Ok(Challenge::Basic));
    }
}
