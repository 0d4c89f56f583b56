//! Connections, TLS, proxies, redirects and time.

use super::*;

pub(super) fn authority() -> Pem {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tls/ca.pem");
    Pem { origin: path.to_owned(), bytes: std::fs::read(path).unwrap() }
}

#[test]
fn a_registry_that_is_not_there_is_said_not_to_be_running() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tester = Tester::new();
    let error = tester.client.manifest(&format!("{closed}/app:1").parse().unwrap()).unwrap_err();
    let text = error.in_one_line();
    assert!(
        text.contains(&format!("`{closed}/app:1`: connection refused by `{closed}` (tried 5 times)")),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("is the registry running?"));
    assert_eq!(tester.waits(), seconds(&[0.25, 0.5, 1.0, 2.0]));
}

#[test]
fn a_registry_on_this_machine_may_speak_https_all_the_same() {
    let registry = FakeRegistry::start_tls("server.pem");
    registry.put_manifest("app", "1", media_type::OCI_MANIFEST, &manifest().bytes);
    let tester = Tester::with(|options| options.http.certificates.push(authority()));
    tester.client.manifest(&reference(&registry, "app:1")).unwrap();
}

#[test]
fn a_registry_that_sends_everything_on_to_https_is_spoken_to_there() {
    let registry = FakeRegistry::start_tls("server.pem");
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"x\"");
    registry.put_manifest("app", "1", media_type::OCI_MANIFEST, &manifest().bytes);
    let host = registry.host();
    let plain = Server::start("127.0.0.1", move |seen| {
        Answer::new(301).with("Location", format!("https://{host}{}", seen.path))
    });
    let bytes =
        serde_json::json!({"auths": {plain.address.to_string(): {"auth": "bWU6c2VjcmV0"}}}).to_string();
    let tester = Tester::with(|options| {
        options.http.certificates.push(authority());
        options.credentials = Some(ConfigFile { path: "/c.json".to_owned(), bytes: bytes.into_bytes() });
    });
    tester.client.manifest(&format!("{}/app:1", plain.address).parse().unwrap()).unwrap();
    assert_eq!(plain.seen().len(), 1);
}

#[test]
fn certificates_that_are_wrong_are_refused_with_the_reason() {
    for (certificate, roots, reason) in [
        ("server.pem", vec![], "UnknownIssuer"),
        ("expired.pem", vec![authority()], "expired"),
        ("other.pem", vec![authority()], "not valid for name"),
    ] {
        let registry = FakeRegistry::start_tls(certificate);
        let tester = Tester::with(|options| options.http.certificates = roots);
        let error = line(tester.client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains("TLS with") && error.contains(reason), "{error}");
        assert!(registry.server.seen().is_empty());
        assert!(tester.waits().is_empty());
    }
}

#[test]
fn https_that_meets_plain_http_says_which_flag_would_help() {
    // As `registry.invalid` cannot be resolved, the proxy stands for it.
    let plain = Server::start("127.0.0.1", |seen| match seen.method.as_str() {
        "CONNECT" => Answer::new(200).with("Content-Length", "0"),
        _ => Answer::new(400),
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = [0; 1024];
            let _ = io::Read::read(&mut stream, &mut head);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let _ = io::Read::read(&mut stream, &mut head);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    drop(plain);
    let tester = Tester::with(|options| {
        options.http.proxies = Proxies { https: Some(format!("http://{proxy}")), ..Proxies::default() };
    });
    let error = tester.client.manifest(&"registry.invalid:5000/app:1".parse().unwrap()).unwrap_err();
    let Problem::Http { failure: Failure::NotTls { .. }, tries: 1 } = &*error.problem else {
        panic!("{error:?}")
    };
    assert!(error.in_one_line().contains("`registry.invalid:5000` speaks plain HTTP, not HTTPS"));
    assert!(error.hint().unwrap().contains("--insecure-registry registry.invalid:5000"));
}

#[test]
fn a_name_that_does_not_exist_is_an_error_that_names_it() {
    let tester = Tester::with(|options| options.http.retries = Retries { tries: 1, ..Retries::default() });
    let error = line(tester.client.manifest(&"registry.invalid/app:1".parse().unwrap()));
    assert!(error.contains("`registry.invalid` cannot be resolved"), "{error}");
}

#[test]
fn a_proxy_is_used_for_names_but_not_for_exceptions() {
    let proxy = Server::start("127.0.0.1", |seen| match seen.method.as_str() {
        "CONNECT" => Answer::new(502),
        _ if seen.header("proxy-authorization").is_none() => Answer::new(407),
        _ => Answer::new(200).with("Content-Type", media_type::OCI_MANIFEST).body(manifest().bytes),
    });
    let ask = |proxy_url: String, none: &str| {
        let tester = Tester::with(|options| {
            options.http.proxies = Proxies {
                http: Some(proxy_url.clone()),
                https: Some(proxy_url.clone()),
                none: none.to_owned(),
            };
            options.http.retries.tries = 1;
            options.insecure.registries.insert("registry.invalid:5000".to_owned());
        });
        tester.client.manifest(&"registry.invalid:5000/app:1".parse().unwrap())
    };
    ask(format!("http://me:pw@{}", proxy.address), "").unwrap();
    assert_eq!(proxy.requests("GET", "http://registry.invalid:5000/v2/app/manifests/1").len(), 1);
    assert_eq!(proxy.requests("CONNECT", "registry.invalid:5000").len(), 1);
    assert!(line(ask(format!("http://{}", proxy.address), "")).contains("answers 407"));
    let before = proxy.seen().len();
    assert!(line(ask(format!("http://{}", proxy.address), ".invalid:5000")).contains("cannot be resolved"));
    assert_eq!(proxy.seen().len(), before);
}

#[test]
fn retry_after_is_honoured_in_both_forms_and_capped() {
    for (header, expected) in [
        (Some("2"), seconds(&[2.0])),
        (Some("Sun, 06 Nov 1994 08:49:57 GMT"), seconds(&[20.0])),
        (Some("99999"), seconds(&[60.0])),
        (Some("yesterday"), seconds(&[0.25])),
        (None, seconds(&[0.25])),
    ] {
        let registry = registry_with_image();
        let busy = Answer::error(429, "TOOMANYREQUESTS", "slow down");
        let busy = header.into_iter().fold(busy, |busy, value| busy.with("Retry-After", value));
        registry.fault("GET", "manifests", 1, busy);
        let tester = Tester::new();
        tester.client.manifest(&reference(&registry, "app:1")).unwrap();
        assert_eq!(tester.waits(), expected, "{header:?}");
        assert!(tester.notices().contains("answers 429: TOOMANYREQUESTS: slow down"), "{}", tester.notices());
    }
}

#[test]
fn waiting_ends_after_a_minute_in_all() {
    let registry = registry_with_image();
    registry.fault("GET", "manifests", 99, Answer::new(429).with("Retry-After", "50"));
    let tester = Tester::new();
    let error = line(tester.client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("answers 429 (tried 3 times)"), "{error}");
    assert_eq!(tester.waits(), seconds(&[50.0, 10.0]));
}

#[test]
fn what_may_pass_is_tried_five_times() {
    let all = [500, 502, 503, 504].map(Answer::new).into_iter().chain([Answer::hang_up()]);
    for answer in all {
        let registry = registry_with_image();
        registry.fault("GET", "manifests", 4, answer.clone());
        let tester = Tester::new();
        tester.client.manifest(&reference(&registry, "app:1")).unwrap();
        assert_eq!(tester.waits(), seconds(&[0.25, 0.5, 1.0, 2.0]), "{answer:?}");

        registry.fault("GET", "manifests", 5, answer.clone());
        let error = line(tester.client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains("(tried 5 times)"), "{error}");
    }
}

#[test]
fn what_will_not_pass_is_tried_once_and_the_registrys_words_are_shown() {
    for status in [400, 403, 404, 405, 415] {
        let registry = registry_with_image();
        registry.fault("GET", "manifests", 9, Answer::error(status, "CODE", "words\u{1b}[2J"));
        let tester = Tester::new();
        let error = line(tester.client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains("CODE: words\\u{1b}[2J"), "{error}");
        assert!(
            error.contains(&format!("cannot read the manifest of `{}/app:1`", registry.host())),
            "{error}"
        );
        assert_eq!(registry.server.requests("GET", "manifests").len(), 1);
    }
}

#[test]
fn a_long_error_page_is_shown_in_part() {
    let registry = registry_with_image();
    registry.fault(
        "GET",
        "manifests",
        1,
        Answer::new(418).body("x".repeat(64 << 10)).ending(Ending::Endless),
    );
    let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
    assert!(error.len() < 500 && error.contains("answers 418: xxxx"), "{error}");
}

#[test]
fn a_redirect_to_another_host_is_followed_without_authorization_and_with_the_range() {
    let blob = vec![7; 100_000];
    let registry = FakeRegistry::start();
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"x\"");
    let content = blob.clone();
    let storage = Server::start("127.0.0.2", move |seen| match seen.header("range") {
        None => serve_blob(seen, &content).ending(Ending::Cut(50_000)),
        Some(_) => serve_blob(seen, &content),
    });
    let location = format!("http://{}/storage?signature=s", storage.address);
    registry.fault("GET", "blobs", 0, Answer::new(500));
    registry.script("GET", "blobs", 9, move |seen| match seen.header("authorization") {
        Some("Basic bWU6c2VjcmV0") => Answer::new(307).with("Location", &location),
        _ => Answer::new(401).with("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let bytes = br#"{"auths":{"HOST":{"auth":"bWU6c2VjcmV0"}}}"#;
    let bytes = String::from_utf8(bytes.to_vec()).unwrap().replace("HOST", &registry.host()).into_bytes();
    let tester =
        Tester::with(|options| options.credentials = Some(ConfigFile { path: "/c.json".to_owned(), bytes }));
    assert_eq!(tester.blob(&reference(&registry, "app"), &layer(&blob)).unwrap(), blob);
    let seen = storage.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|seen| seen.header("authorization").is_none()), "{seen:?}");
    let first: u64 =
        seen[1].header("range").unwrap()["bytes=".len()..].trim_end_matches('-').parse().unwrap();
    assert!(first > 0 && first <= 50_000, "{first}");
}

#[test]
fn another_host_that_asks_for_credentials_after_a_redirect_gets_none() {
    let registry = FakeRegistry::start();
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"x\"");
    let storage =
        Server::start("127.0.0.2", |_| Answer::new(401).with("WWW-Authenticate", "Basic realm=\"give me\""));
    let location = format!("http://{}/", storage.address);
    registry.fault("GET", "blobs", 9, Answer::new(307).with("Location", location));
    let tester = Tester::with_credentials(&registry.host(), serde_json::json!({"auth": "bWU6c2VjcmV0"}));
    let error = line(tester.blob(&reference(&registry, "app"), &layer(b"x")));
    assert!(error.contains(&format!("{} answers 401", storage.address)), "{error}");
    assert_eq!(storage.seen().len(), 1);
    assert_eq!(storage.seen()[0].header("authorization"), None);
}

#[test]
fn a_redirect_on_the_same_host_keeps_the_authorization() {
    let registry = FakeRegistry::start();
    registry.guard("Basic bWU6c2VjcmV0", "Basic realm=\"x\"");
    registry.put_blob("other", b"layer");
    let location = format!("/v2/other/blobs/{}", Digest::of(b"layer"));
    registry.fault("GET", "app/blobs", 1, Answer::new(302).with("Location", location));
    let tester = Tester::with_credentials(&registry.host(), serde_json::json!({"auth": "bWU6c2VjcmV0"}));
    assert_eq!(tester.blob(&reference(&registry, "app"), &layer(b"layer")).unwrap(), b"layer");
}

#[test]
fn redirects_end_at_five() {
    let registry = registry_with_image();
    let location = format!("http://{}/v2/app/manifests/1", registry.host());
    registry.fault("GET", "manifests", 99, Answer::new(302).with("Location", location));
    let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("more than 5 redirects"), "{error}");
    assert_eq!(registry.server.requests("GET", "manifests").len(), 6);
}

#[test]
fn a_redirect_from_https_to_http_is_refused() {
    let registry = FakeRegistry::start_tls("server.pem");
    let plain = Server::start("127.0.0.1", |_| Answer::new(200));
    let location = format!("http://{}/x?signature=s", plain.address);
    registry.fault("GET", "blobs", 9, Answer::new(307).with("Location", location));
    let tester = Tester::with(|options| options.http.certificates.push(authority()));
    let error = line(tester.blob(&reference(&registry, "app"), &layer(b"x")));
    assert!(error.contains("from https to http") && !error.contains("signature=s"), "{error}");
    assert!(plain.seen().is_empty());
    assert_eq!(registry.server.requests("GET", "blobs").len(), 1);
}

#[test]
fn redirects_to_other_schemes_are_refused() {
    let plain = "not a plain http or https URL";
    for (location, words) in [
        ("file:///etc/passwd", plain),
        ("ftp://host/", plain),
        ("http://", plain),
        ("http://me:pw@127.0.0.1/", "with a user name or a password of the server's own"),
    ] {
        let registry = registry_with_image();
        registry.fault("GET", "manifests", 9, Answer::new(302).with("Location", location));
        let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains(words) && !error.contains("me:pw"), "{location}: {error}");
    }
}

#[test]
fn a_server_that_stops_in_the_middle_is_given_up_after_the_stall_time() {
    let blob = vec![1; 5000];
    let registry = FakeRegistry::start();
    let content = blob.clone();
    registry.script("GET", "blobs", 9, move |seen| serve_blob(seen, &content).ending(Ending::Stall(0)));
    let tester = Tester::with(|options| {
        options.http.timeouts = Timeouts { stall: Duration::from_millis(100), ..Timeouts::default() };
        options.http.retries.tries = 2;
    });
    let error = line(tester.blob(&reference(&registry, "app"), &layer(&blob)));
    assert!(error.contains("did nothing for 0 seconds (tried 2 times)"), "{error}");
}

#[test]
fn a_server_that_trickles_is_given_up_too() {
    let registry = FakeRegistry::start();
    registry.fault("GET", "blobs", 9, Answer::new(200).body("x").ending(Ending::Endless));
    let tester = Tester::with(|options| {
        let window = Duration::from_millis(50);
        options.http.timeouts = Timeouts { window, floor: 1 << 40, ..Timeouts::default() };
        options.http.retries.tries = 1;
    });
    let blob = Descriptor::new(media_type::OCI_LAYER, Digest::of(b""), 1 << 50);
    let error = line(tester.client.blob(&reference(&registry, "app"), &blob, || Ok(io::sink())));
    assert!(error.contains("sends less than"), "{error}");
}

#[test]
fn a_head_without_end_is_an_error() {
    let registry = registry_with_image();
    registry.fault("GET", "manifests", 9, Answer::new(200).with("X-Long", "x".repeat(1 << 20)));
    let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
    assert!(error.contains("does not speak HTTP"), "{error}");
}

#[test]
fn what_is_not_http_is_an_error() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"220 mail.example ESMTP\r\n");
        }
    });
    let error = Tester::new().client.manifest(&format!("{address}/app:1").parse().unwrap()).unwrap_err();
    assert!(error.in_one_line().contains(&format!("`{address}`")), "{}", error.in_one_line());
}

#[test]
fn a_cancelled_client_ends_what_waits() {
    let registry = registry_with_image();
    registry.fault("GET", "manifests", 9, manifest_that_stalls());
    let tester = Tester::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| line(tester.client.manifest(&reference(&registry, "app:1"))));
        while registry.server.requests("GET", "manifests").is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        tester.client.cancel();
        assert!(waiting.join().unwrap().contains("cancelled"));
    });
}

fn manifest_that_stalls() -> Answer {
    Answer::new(200)
        .with("Content-Type", media_type::OCI_MANIFEST)
        .body(manifest().bytes)
        .ending(Ending::Stall(10))
}
