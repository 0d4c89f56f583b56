//! Who sees which credentials.

use std::os::unix::fs::OpenOptionsExt;

use super::*;

/// `me:secret` in base64.
const BASIC: &str = "Basic bWU6c2VjcmV0";

fn me() -> serde_json::Value {
    serde_json::json!({"username": "me", "password": "secret"})
}

fn bearer(server: &Server) -> String {
    format!(r#"Bearer realm="http://{}/token",service="the registry""#, server.address)
}

fn token(text: &str) -> Answer {
    Answer::new(200).body(format!(r#"{{"token":"{text}","expires_in":300}}"#))
}

#[test]
fn an_open_registry_is_asked_without_any_credentials() {
    let registry = registry_with_image();
    let tester = Tester::with_credentials(&registry.host(), me());
    let fetched = tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    let Fetched { media_type, digest, bytes } = fetched;
    assert_eq!(
        (media_type.as_str(), digest, bytes),
        (media_type::OCI_MANIFEST, manifest().digest, manifest().bytes)
    );
    assert!(registry.server.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

#[test]
fn basic_credentials_are_sent_once_they_are_asked_for() {
    let registry = registry_with_image();
    registry.guard(BASIC, r#"Negotiate, Basic realm="a, b""#);
    let tester = Tester::with_credentials(&registry.host(), me());
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    let requests = registry.server.seen();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert_eq!(requests[0].header("authorization"), None);
    assert_eq!(requests[1].header("authorization"), Some(BASIC));
}

#[test]
fn wrong_basic_credentials_are_tried_once_and_the_user_is_named() {
    let registry = registry_with_image();
    registry.guard("Basic other", r#"Basic realm="x""#);
    let tester = Tester::with_credentials(&registry.host(), me());
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains(&format!("authentication failed for {} as me", registry.host())), "{error}");
    assert!(error.contains("UNAUTHORIZED: authentication required"), "{error}");
    assert_eq!(registry.server.requests("GET", "manifests").len(), 1);
    assert!(tester.waits().is_empty());
}

#[test]
fn without_credentials_the_error_says_where_they_were_looked_for() {
    let registry = registry_with_image();
    registry.guard(BASIC, r#"Basic realm="x""#);
    let tester = Tester::with_credentials("other.example", me());
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains(&format!("no credentials for {} in /config.json", registry.host())), "{error}");
    let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("none was found"), "{error}");
}

#[test]
fn credentials_of_another_port_are_not_used() {
    let registry = registry_with_image();
    registry.guard(BASIC, r#"Basic realm="x""#);
    let tester = Tester::with_credentials("127.0.0.1:1", me());
    assert!(line(tester.client.manifest(&reference(&registry, "app:1"))).contains("no credentials"));
    assert!(registry.server.seen().iter().all(|seen| seen.header("authorization").is_none()));
}

#[test]
fn a_token_is_had_for_the_scope_and_only_the_token_server_sees_the_password() {
    let registry = registry_with_image();
    let tokens = Server::start("127.0.0.1", |_| token("t1"));
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), me());
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    let [asked] = &tokens.seen()[..] else { panic!("{:?}", tokens.seen()) };
    assert_eq!(asked.header("authorization"), Some(BASIC));
    assert_eq!(asked.parameters("scope"), ["repository:app:pull"]);
    assert_eq!(asked.parameters("service"), ["the registry"]);
    assert!(asked.query.contains("service=the+registry"), "{}", asked.query);
    assert!(registry.server.seen().iter().all(|seen| seen.header("authorization") != Some(BASIC)));
}

#[test]
fn an_anonymous_token_is_had_without_credentials() {
    let registry = registry_with_image();
    let tokens = Server::start("127.0.0.1", |_| token("t1"));
    registry.guard("Bearer t1", &bearer(&tokens));
    Tester::new().client.manifest(&reference(&registry, "app:1")).unwrap();
    assert_eq!(tokens.seen()[0].header("authorization"), None);
}

#[test]
fn eight_transfers_at_once_need_one_token_and_one_first_contact() {
    let registry = FakeRegistry::start();
    let tokens = Server::start("127.0.0.1", |_| {
        // Long enough for everybody to want one.
        std::thread::sleep(Duration::from_millis(100));
        token("t1")
    });
    registry.guard("Bearer t1", &bearer(&tokens));
    let blobs: Vec<Vec<u8>> = (0..8_u8).map(|byte| vec![byte; 1000]).collect();
    for blob in &blobs {
        registry.put_blob("app", blob);
    }
    let tester = Tester::new();
    let from = reference(&registry, "app");
    let got = in_parallel(&blobs, 8, |bytes| tester.blob(&from, &layer(bytes))).unwrap();
    assert_eq!(got, blobs);
    let statistics = tester.client.statistics();
    assert_eq!((statistics.pings, statistics.tokens, statistics.blobs), (1, 1, 8));
    assert_eq!(tokens.seen().len(), 1);
    assert_eq!(registry.server.seen().len(), 9);
}

#[test]
fn a_wrong_password_is_shown_to_the_token_server_once_however_many_want_a_token() {
    let registry = FakeRegistry::start();
    let tokens =
        Server::start("127.0.0.1", |_| Answer::error(401, "UNAUTHORIZED", "incorrect username or password"));
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), me());
    let from = reference(&registry, "app");
    for _ in 0..3 {
        let error = line(tester.blob(&from, &layer(b"x")));
        assert!(error.contains(&format!("authentication failed for {} as me", registry.host())), "{error}");
        assert!(error.contains("incorrect username or password"), "{error}");
    }
    assert_eq!(tokens.seen().len(), 1);
}

#[test]
fn a_revoked_token_is_replaced_once_per_request() {
    let registry = registry_with_image();
    let count = Mutex::new(0);
    let tokens = Server::start("127.0.0.1", move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        token(&format!("t{count}"))
    });
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), me());
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    registry.guard("Bearer t2", &bearer(&tokens));
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    assert_eq!(tokens.seen().len(), 2);

    registry.guard("Bearer never", &bearer(&tokens));
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains(&format!("authentication failed for {} as me", registry.host())), "{error}");
    assert_eq!(tokens.seen().len(), 3);
}

#[test]
fn realms_elsewhere_get_neither_credentials_nor_a_request() {
    let elsewhere = Server::start("127.0.0.2", |_| token("t1"));
    let other = elsewhere.address;
    for (realm, reason) in [
        (format!("http://{other}/token"), "belongs to another domain"),
        ("http://169.254.169.254/latest/meta-data".to_owned(), "private network or on this machine"),
        ("file:///etc/passwd".to_owned(), "not a plain https URL"),
        (format!("http://user:pw@{other}/"), "not a plain https URL"),
        ("token".to_owned(), "not a plain https URL"),
    ] {
        let registry = registry_with_image();
        registry.guard("Bearer t1", &format!(r#"Bearer realm="{realm}",service="s""#));
        let tester = Tester::with_credentials(&registry.host(), me());
        let error = line(tester.client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains(reason), "{realm}: {error}");
        assert!(!error.contains("pw"), "{error}");
    }
    assert!(elsewhere.seen().is_empty());
}

#[test]
fn a_realm_that_the_user_trusts_gets_the_credentials() {
    let registry = registry_with_image();
    let elsewhere = Server::start("127.0.0.2", |_| token("t1"));
    registry.guard("Bearer t1", &bearer(&elsewhere));
    let host = registry.host();
    let bytes = serde_json::json!({"auths": {&host: me()}}).to_string().into_bytes();
    let tester = Tester::with(|options| {
        options.credentials = Some(ConfigFile { path: "/config.json".to_owned(), bytes });
        options.token_hosts.insert(host, vec!["127.0.0.2".to_owned()]);
    });
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    assert_eq!(elsewhere.seen()[0].header("authorization"), Some(BASIC));
}

#[test]
fn an_unencrypted_realm_of_an_encrypted_registry_is_refused() {
    let registry = FakeRegistry::start_tls("server.pem");
    let tokens = Server::start("127.0.0.1", |_| token("t1"));
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with(|options| options.http.certificates.push(network::authority()));
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("is not encrypted, but the registry is"), "{error}");
    assert!(tokens.seen().is_empty());
}

#[test]
fn a_token_server_that_redirects_to_another_host_is_not_followed() {
    let registry = registry_with_image();
    let elsewhere = Server::start("127.0.0.2", |_| token("t1"));
    let location = format!("http://{}/token", elsewhere.address);
    let tokens = Server::start("127.0.0.1", move |_| Answer::new(307).with("Location", &location));
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), me());
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("it leads to another host"), "{error}");
    assert!(elsewhere.seen().is_empty());
}

#[test]
fn token_answers_of_all_kinds() {
    for (body, expected) in [
        (r#"{"token":"t1"}"#.to_owned(), Ok(())),
        (r#"{"access_token":"t1","expires_in":0}"#.to_owned(), Ok(())),
        (r#"{"token":"","access_token":"t1","expires_in":-1}"#.to_owned(), Ok(())),
        (r#"{"token":"t1","expires_in":"soon","issued_at":5}"#.to_owned(), Ok(())),
        (r#"{"expires_in":300}"#.to_owned(), Err("an answer without a token")),
        (r#"{"token":"a\nb"}"#.to_owned(), Err("a token that cannot be part of a header")),
        ("<html>".to_owned(), Err("something else than JSON")),
        (format!(r#"{{"token":"{}"}}"#, "x".repeat(10 << 20)), Err("is longer than 1048576 bytes")),
    ] {
        let registry = registry_with_image();
        let tokens = Server::start("127.0.0.1", move |_| Answer::new(200).body(body.clone()));
        registry.guard("Bearer t1", &bearer(&tokens));
        let result = Tester::new().client.manifest(&reference(&registry, "app:1"));
        match expected {
            // Whatever it says, it is used for a minute.
            Ok(()) => drop(result.unwrap()),
            Err(reason) => {
                let error = line(result);
                assert!(error.contains(reason), "{error}");
            }
        }
        assert_eq!(tokens.seen().len(), 1);
    }
}

#[test]
fn challenges_that_cannot_be_met_are_named() {
    for (challenge, reason) in [
        ("Digest realm=\"x\"", "authentication scheme `Digest`"),
        ("Bearer service=\"x\"", "no realm"),
        ("Bearer realm=\"x", "cannot be understood"),
    ] {
        let registry = registry_with_image();
        registry.guard(BASIC, challenge);
        let tester = Tester::with_credentials(&registry.host(), me());
        let error = line(tester.client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn an_identity_token_is_exchanged_in_a_form_and_never_part_of_a_url() {
    let registry = registry_with_image();
    let tokens = Server::start("127.0.0.1", |_| Answer::new(200).body(r#"{"access_token":"t1"}"#));
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester =
        Tester::with_credentials(&registry.host(), serde_json::json!({"auth": "", "identitytoken": "a+b="}));
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    let [asked] = &tokens.seen()[..] else { panic!("{:?}", tokens.seen()) };
    assert_eq!((asked.method.as_str(), asked.query.as_str()), ("POST", ""));
    assert_eq!(asked.header("content-type"), Some("application/x-www-form-urlencoded"));
    let form = url::form_urlencoded::parse(&asked.body).into_owned().collect::<Vec<_>>();
    for (name, value) in [
        ("grant_type", "refresh_token"),
        ("refresh_token", "a+b="),
        ("service", "the registry"),
        ("scope", "repository:app:pull"),
    ] {
        assert!(form.contains(&(name.to_owned(), value.to_owned())), "{form:?}");
    }
}

#[test]
fn a_registry_token_is_used_as_it_is() {
    let registry = registry_with_image();
    let tokens = Server::start("127.0.0.1", |_| token("other"));
    registry.guard("Bearer mine", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), serde_json::json!({"registrytoken": "mine"}));
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
    assert!(tokens.seen().is_empty());
}

#[test]
fn credentials_come_from_the_helper_that_the_configuration_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker-credential-vault");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o755).open(path).unwrap();
    file.write_all(b"#!/bin/sh\necho '{\"Username\":\"me\",\"Secret\":\"secret\"}'\n").unwrap();
    drop(file);
    let registry = registry_with_image();
    registry.guard(BASIC, r#"Basic realm="x""#);
    for key in ["credsStore", "credHelpers"] {
        let value =
            if key == "credsStore" { "vault".into() } else { serde_json::json!({registry.host(): "vault"}) };
        let bytes = serde_json::json!({key: value}).to_string().into_bytes();
        let tester = |search: &std::path::Path| {
            Tester::with(|options| {
                options.credentials =
                    Some(ConfigFile { path: "/config.json".to_owned(), bytes: bytes.clone() });
                options.helpers.path = vec![search.to_owned()];
            })
        };
        tester(directory.path()).client.manifest(&reference(&registry, "app:1")).unwrap();
        let error = line(tester("/nowhere".as_ref()).client.manifest(&reference(&registry, "app:1")));
        assert!(
            error.contains("`docker-credential-vault`, named in `/config.json`, failed: it is not installed"),
            "{error}"
        );
    }
}

#[test]
fn an_upload_that_is_sent_to_another_host_goes_there_without_credentials() {
    let registry = FakeRegistry::start();
    registry.guard(BASIC, r#"Basic realm="x""#);
    let storage = Server::start("127.0.0.2", |_| Answer::new(201));
    let location = format!("http://{}/put?signature=s", storage.address);
    registry.fault("POST", "uploads", 1, Answer::new(202).with("Location", location));
    let tester = Tester::with_credentials(&registry.host(), me());
    assert_eq!(tester.upload(&reference(&registry, "app"), b"layer").unwrap(), Uploaded::Sent);
    let [put] = &storage.seen()[..] else { panic!("{:?}", storage.seen()) };
    assert_eq!((put.header("authorization"), put.body.as_slice()), (None, &b"layer"[..]));
    assert_eq!(put.parameters("signature"), ["s"]);
    assert_eq!(put.parameters("digest"), [Digest::of(b"layer").to_string()]);
}

#[test]
fn a_mount_asks_for_both_repositories_and_a_refusal_is_no_error() {
    let registry = FakeRegistry::start();
    registry.put_blob("base", b"layer");
    let tokens = Server::start("127.0.0.1", |seen| match seen.parameters("scope").len() {
        1 => token("t1"),
        _ => Answer::error(403, "DENIED", "not for you"),
    });
    registry.guard("Bearer t1", &bearer(&tokens));
    let tester = Tester::with_credentials(&registry.host(), me());
    let (to, from) = (reference(&registry, "app"), reference(&registry, "base"));
    assert_eq!(tester.upload_from(&to, b"layer", Some(&from)).unwrap(), Uploaded::Sent);
    let scopes: Vec<_> = tokens.seen().iter().map(|seen| seen.parameters("scope")).collect();
    assert_eq!(
        scopes,
        [
            vec!["repository:app:pull,push".to_owned()],
            vec!["repository:app:pull,push".to_owned(), "repository:base:pull".to_owned()],
        ]
    );
}

#[test]
fn no_secret_shows_in_errors_notices_or_debug_output() {
    let registry = registry_with_image();
    let tokens = Server::start("127.0.0.1", |_| token("to-ken"));
    registry.guard("Bearer to-ken", &bearer(&tokens));
    registry.fault("GET", "manifests", 99, Answer::new(503));
    let tester = Tester::with_credentials(&registry.host(), me());
    let error = tester.client.manifest(&reference(&registry, "app:1")).unwrap_err();
    let all = format!("{error:?} {} {} {:?}", error.in_one_line(), tester.notices(), tester.client);
    assert!(tester.notices().contains("trying again"));
    for secret in ["secret", "to-ken", "bWU6c2VjcmV0"] {
        assert!(!all.contains(secret), "{all}");
    }
}
