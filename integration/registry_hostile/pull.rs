//! Manifests and blobs that are not what they should be.

use super::*;

#[test]
fn what_is_not_there_is_said_to_be_unknown_or_private() {
    let registry = registry_with_image();
    let error = line(Tester::new().client.manifest(&reference(&registry, "app:2")));
    assert!(error.contains("tag `2` not found: repository or tag unknown, or it is private"), "{error}");
    assert!(error.contains("MANIFEST_UNKNOWN: manifest unknown"), "{error}");
}

#[test]
fn a_manifest_by_digest_must_have_that_digest() {
    let registry = registry_with_image();
    let digest = Digest::of(b"another");
    registry.put_manifest("app", &digest.to_string(), media_type::OCI_MANIFEST, &manifest().bytes);
    let error = line(Tester::new().client.manifest(&reference(&registry, &format!("app@{digest}"))));
    assert!(error.contains(&digest.to_string()) && error.contains(&manifest().digest.to_string()), "{error}");
}

#[test]
fn the_digest_goes_before_the_tag() {
    let registry = registry_with_image();
    registry.put_manifest("app", "1", media_type::OCI_MANIFEST, b"{}");
    let both = reference(&registry, &format!("app:1@{}", manifest().digest));
    assert_eq!(Tester::new().client.manifest(&both).unwrap().digest, manifest().digest);
}

#[test]
fn headers_about_a_tag_are_no_authority() {
    for header in [None, Some(Digest::of(b"other").to_string()), Some("rubbish".to_owned())] {
        let registry = registry_with_image();
        let answer = Answer::new(200).with("Content-Type", media_type::OCI_MANIFEST).body(manifest().bytes);
        let answer = header.iter().fold(answer, |answer, value| answer.with("Docker-Content-Digest", value));
        registry.fault("GET", "manifests", 1, answer);
        let tester = Tester::new();
        assert_eq!(tester.client.manifest(&reference(&registry, "app:1")).unwrap().digest, manifest().digest);
        let odd = header.is_some_and(|value| value.starts_with("sha256"));
        assert_eq!(tester.notices().contains("its content counts"), odd);
    }
}

#[test]
fn manifests_that_are_too_long_are_not_read() {
    let registry = registry_with_image();
    registry.fault("GET", "manifests", 1, Answer::new(200).body("[".repeat(1 << 16)).ending(Ending::Endless));
    let tester = Tester::new();
    assert!(
        line(tester.client.manifest(&reference(&registry, "app:1")))
            .contains("longer than the limit of 4194304 bytes")
    );
    registry.fault("GET", "manifests", 1, Answer::new(200).body(vec![b' '; 5 << 20]));
    assert!(
        line(tester.client.manifest(&reference(&registry, "app:1")))
            .contains("longer than the limit of 4194304 bytes")
    );
    assert!(tester.waits().is_empty());
}

#[test]
fn an_index_that_a_registry_gives_for_everything_ends_at_its_digest() {
    let registry = FakeRegistry::start();
    let child = layer(b"child");
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"{}","digest":"{}","size":{}}}]}}"#,
        media_type::OCI_INDEX,
        child.digest,
        child.size
    );
    let answer = Answer::new(200).with("Content-Type", media_type::OCI_INDEX).body(index);
    registry.fault("GET", "manifests", 9, answer);
    let tester = Tester::new();
    let top = reference(&registry, "app:1");
    assert_eq!(tester.client.manifest(&top).unwrap().media_type, media_type::OCI_INDEX);
    let entry = Descriptor { media_type: media_type::OCI_INDEX.to_owned(), ..child };
    assert!(line(tester.client.manifest_of(&top, &entry)).contains("sends other content"));
}

#[test]
fn documents_and_their_types_must_agree() {
    let both = r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#;
    let docker = format!(r#"{{"schemaVersion":2,"mediaType":"{}","manifests":[]}}"#, media_type::DOCKER_LIST);
    let manifest = String::from_utf8(manifest().bytes).unwrap();
    for (content_type, body, reason) in [
        (media_type::OCI_INDEX, manifest.as_str(), "media type"),
        (media_type::OCI_MANIFEST, &docker, "media type"),
        (media_type::OCI_INDEX, both, "both"),
        (
            "application/vnd.docker.distribution.manifest.v1+prettyjws",
            r#"{"schemaVersion":1,"fsLayers":[]}"#,
            "schema 1",
        ),
        ("text/html", "<html>log in</html>", "a web page in place of a manifest: <html>log in"),
        ("application/json", "\u{feff}{}", "not valid"),
    ] {
        let registry = registry_with_image();
        registry.fault("GET", "manifests", 1, Answer::new(200).with("Content-Type", content_type).body(body));
        let error = line(Tester::new().client.manifest(&reference(&registry, "app:1")));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn an_entry_of_an_index_must_fit_what_it_points_to() {
    let registry = registry_with_image();
    let right = Descriptor::new(media_type::OCI_MANIFEST, manifest().digest, manifest().bytes.len() as u64);
    let top = reference(&registry, "app:1");
    let tester = Tester::new();
    assert_eq!(tester.client.manifest_of(&top, &right).unwrap().bytes, manifest().bytes);
    let short = Descriptor { size: right.size - 1, ..right.clone() };
    assert!(line(tester.client.manifest_of(&top, &short)).contains("bytes long, expected"));
    let docker = Descriptor { media_type: media_type::DOCKER_MANIFEST.to_owned(), ..right.clone() };
    assert!(line(tester.client.manifest_of(&top, &docker)).contains("but the index says"));
}

#[test]
fn inline_data_spares_the_request_when_it_is_right() {
    let registry = FakeRegistry::start();
    let tester = Tester::new();
    let top = reference(&registry, "app:1");
    let mut entry = Descriptor::new(media_type::OCI_CONFIG, Digest::of(b"{}"), 2);
    entry.other.insert("data".to_owned(), "e30=".into());
    let limit = builder::image::document::DocumentLimits::CONFIG.with(100);
    assert_eq!(tester.client.small_blob(&top, &entry, limit).unwrap(), b"{}");
    for (data, size) in [("W10=", 2), ("e30=", 3), ("!", 2)] {
        entry.other.insert("data".to_owned(), data.into());
        let entry = Descriptor { size, ..entry.clone() };
        assert!(line(tester.client.small_blob(&top, &entry, limit)).contains("descriptor is not accepted"));
    }
    assert!(registry.server.seen().is_empty());
}

#[test]
fn a_foreign_layer_comes_from_the_registry_or_not_at_all() {
    let registry = FakeRegistry::start();
    let elsewhere = Server::start("127.0.0.1", |_| Answer::new(200).body("layer"));
    let mut blob = layer(b"layer");
    blob.other.insert("urls".to_owned(), serde_json::json!([format!("http://{}/layer", elsewhere.address)]));
    let tester = Tester::new();
    let error = line(tester.blob(&reference(&registry, "app"), &blob));
    assert!(error.contains("foreign layer"), "{error}");
    registry.put_blob("app", b"layer");
    assert_eq!(tester.blob(&reference(&registry, "app"), &blob).unwrap(), b"layer");
    assert!(elsewhere.seen().is_empty());
}

/// Bytes that differ from place to place.
fn content(length: usize) -> Vec<u8> {
    (0..length).map(|position| (position * 7 + position / 251) as u8).collect()
}

#[test]
fn an_interrupted_blob_goes_on_where_it_was() {
    let blob = content(300_000);
    let registry = FakeRegistry::start();
    let bytes = blob.clone();
    registry.script("GET", "blobs", 2, move |seen| serve_blob(seen, &bytes).ending(Ending::Cut(100_000)));
    registry.put_blob("app", &blob);
    let tester = Tester::new();
    assert_eq!(tester.blob(&reference(&registry, "app"), &layer(&blob)).unwrap(), blob);
    let ranges: Vec<_> = registry
        .server
        .requests("GET", "blobs")
        .iter()
        .map(|seen| seen.header("range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, [None, Some("bytes=100000-".to_owned()), Some("bytes=200000-".to_owned())]);
    assert_eq!(tester.waits().len(), 2);
}

#[test]
fn a_server_that_ignores_or_mistakes_ranges_is_read_from_the_start() {
    let blob = content(50_000);
    let wrong = |range: &str| Answer::new(206).with("Content-Range", range).body("junk");
    for second in [
        Answer::new(200).body(blob.clone()),
        wrong("bytes 40000-49999/50000"),
        wrong("rubbish"),
        Answer::new(416),
        // Earlier than asked for is as good.
        Answer::new(206).with("Content-Range", "bytes 10000-49999/50000").body(&blob[10_000..]),
    ] {
        let registry = FakeRegistry::start();
        registry.fault("GET", "blobs", 1, Answer::new(200).body(blob.clone()).ending(Ending::Cut(30_000)));
        registry.fault("GET", "blobs", 1, second.clone());
        registry.put_blob("app", &blob);
        let result = Tester::new().blob(&reference(&registry, "app"), &layer(&blob));
        assert_eq!(result.unwrap(), blob);
        let last = registry.server.requests("GET", "blobs").pop().unwrap();
        let expected = registry.server.requests("GET", "blobs").len() == 2;
        assert_eq!(last.header("range").is_some(), expected);
    }
}

#[test]
fn a_blob_that_is_too_short_is_retried_and_one_that_is_too_long_is_refused() {
    let registry = FakeRegistry::start();
    registry.put_blob("app", b"hello");
    registry.fault("GET", "blobs", 1, Answer::new(200).body("hel"));
    let from = reference(&registry, "app");
    let tester = Tester::new();
    assert_eq!(tester.blob(&from, &layer(b"hello")).unwrap(), b"hello");
    for long in
        [Answer::new(200).body("hello world"), Answer::new(200).body("hello world").ending(Ending::Endless)]
    {
        registry.fault("GET", "blobs", 1, long);
        assert!(line(tester.blob(&from, &layer(b"hello"))).contains("bytes long, expected 5"));
    }
    assert_eq!(tester.waits().len(), 1);
}

#[test]
fn content_that_is_wrong_once_is_fetched_again_into_a_fresh_place() {
    let registry = FakeRegistry::start();
    registry.put_blob("app", b"hello");
    registry.fault("GET", "blobs", 1, Answer::new(200).body("jello"));
    let opened = Mutex::new(0);
    let tester = Tester::new();
    let open = || {
        *opened.lock().unwrap() += 1;
        Ok(Vec::new())
    };
    assert_eq!(tester.client.blob(&reference(&registry, "app"), &layer(b"hello"), open).unwrap(), b"hello");
    assert_eq!(*opened.lock().unwrap(), 2);
    assert!(tester.notices().contains("sends other content"));
}

#[test]
fn content_that_is_wrong_twice_is_refused_with_both_digests() {
    let registry = FakeRegistry::start();
    registry.fault("GET", "blobs", 9, Answer::new(200).body("jello"));
    let error = line(Tester::new().blob(&reference(&registry, "app"), &layer(b"hello")));
    for digest in [Digest::of(b"hello"), Digest::of(b"jello")] {
        assert!(error.contains(&digest.to_string()), "{error}");
    }
    assert_eq!(registry.server.requests("GET", "blobs").len(), 2);
}

#[test]
fn a_full_disk_is_an_error_at_once() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let registry = FakeRegistry::start();
    registry.put_blob("app", b"hello");
    let result = Tester::new().client.blob(&reference(&registry, "app"), &layer(b"hello"), || Ok(Full));
    let Err(error) = result else { panic!("written to a full disk") };
    assert!(error.in_one_line().contains("cannot write what was received"), "{}", error.in_one_line());
    assert_eq!(registry.server.requests("GET", "blobs").len(), 1);
}

#[test]
fn blobs_of_sha512_are_read() {
    let mut digester = builder::image::digest::Digester::new(builder::image::digest::Algorithm::Sha512);
    digester.update(b"hello");
    let registry = FakeRegistry::start();
    registry.fault("GET", "blobs/sha512:", 1, Answer::new(200).body("hello"));
    let blob = Descriptor::new(media_type::OCI_LAYER, digester.finish(), 5);
    assert_eq!(Tester::new().blob(&reference(&registry, "app"), &blob).unwrap(), b"hello");
}
