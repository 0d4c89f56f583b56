//! Uploads and manifests that registries make difficult.

use super::*;

#[test]
fn a_blob_is_sent_once_and_then_known_to_be_there() {
    let registry = FakeRegistry::start();
    let tester = Tester::new();
    let to = reference(&registry, "team/app:1");
    let bytes = vec![9; 3_000_000];
    assert!(!tester.client.blob_exists(&to, &layer(&bytes)).unwrap());
    assert_eq!(tester.upload(&to, &bytes).unwrap(), Uploaded::Sent);
    assert_eq!(registry.blob("team/app", &Digest::of(&bytes)).unwrap(), bytes);
    assert_eq!(tester.upload(&to, &bytes).unwrap(), Uploaded::Existed);
    assert!(tester.client.blob_exists(&to, &layer(&bytes)).unwrap());
    let [put] = &registry.server.requests("PUT", "uploads")[..] else { panic!() };
    assert_eq!(put.header("content-length"), Some("3000000"));
    assert_eq!(put.header("content-type"), Some("application/octet-stream"));
    assert!(put.query.starts_with("_state=a%2Bb%3D&digest=sha256%3A"), "{}", put.query);
}

#[test]
fn an_empty_blob_is_sent_too() {
    let registry = FakeRegistry::start();
    assert_eq!(Tester::new().upload(&reference(&registry, "app"), b"").unwrap(), Uploaded::Sent);
    assert_eq!(registry.server.requests("PUT", "uploads")[0].header("content-length"), Some("0"));
    assert_eq!(registry.server.requests("POST", "uploads")[0].header("content-length"), Some("0"));
}

#[test]
fn a_check_begins_an_upload_and_takes_it_back() {
    let registry = FakeRegistry::start();
    let tester = Tester::new();
    tester.client.check_push(&reference(&registry, "app:1")).unwrap();
    let methods: Vec<_> = registry.server.seen().iter().map(|seen| seen.method.clone()).collect();
    assert_eq!(methods, ["GET", "POST", "DELETE"]);
    registry.fault(
        "POST",
        "uploads",
        1,
        Answer::error(403, "DENIED", "requested access to the resource is denied"),
    );
    let error = line(tester.client.check_push(&reference(&registry, "app:1")));
    assert!(error.contains("does not allow it to anonymous users (no credentials in"), "{error}");
    assert!(error.contains("DENIED: requested access"), "{error}");
    registry.fault("DELETE", "uploads", 1, Answer::new(405));
    tester.client.check_push(&reference(&registry, "app:1")).unwrap();
}

#[test]
fn a_registry_that_cannot_be_asked_about_blobs_gets_them() {
    for answer in [Answer::new(405), Answer::new(200).with("Content-Length", "4"), Answer::new(400)] {
        let registry = FakeRegistry::start();
        registry.fault("HEAD", "blobs", 1, answer);
        assert_eq!(Tester::new().upload(&reference(&registry, "app"), b"layer").unwrap(), Uploaded::Sent);
    }
}

#[test]
fn locations_of_uploads_are_relative_or_absolute() {
    let registry = FakeRegistry::start();
    let absolute = format!("http://{}/elsewhere/x?_state=a%2Bb%3D#fragment", registry.host());
    for location in ["../uploads/x?_state=a%2Bb%3D", "/elsewhere/x?_state=a%2Bb%3D", &absolute] {
        registry.fault("POST", "uploads", 1, Answer::new(202).with("Location", location));
        registry.fault("PUT", "/x?_state=a%2Bb%3D&digest=sha256%3A", 1, Answer::new(201));
        let result = Tester::new().upload(&reference(&registry, "app"), location.as_bytes());
        assert_eq!(result.unwrap(), Uploaded::Sent, "{location}");
    }
}

#[test]
fn a_missing_or_unencrypted_location_is_refused() {
    let registry = FakeRegistry::start();
    registry.fault("POST", "uploads", 1, Answer::new(202));
    let error = line(Tester::new().upload(&reference(&registry, "app"), b"layer"));
    assert!(error.contains("wants the upload at a place that is not used"), "{error}");

    let registry = FakeRegistry::start_tls("server.pem");
    let plain = Server::start("127.0.0.1", |_| Answer::new(201));
    registry.fault(
        "POST",
        "uploads",
        1,
        Answer::new(202).with("Location", format!("http://{}/x", plain.address)),
    );
    let tester = Tester::with(|options| options.http.certificates.push(network::authority()));
    let error = tester.upload(&reference(&registry, "app"), b"layer").unwrap_err();
    assert!(error.in_one_line().contains("from https to http"), "{}", error.in_one_line());
    assert!(error.hint().unwrap().contains("X-Forwarded-Proto"));
    assert!(plain.seen().is_empty());
}

#[test]
fn a_mount_that_works_sends_nothing() {
    let registry = FakeRegistry::start();
    registry.put_blob("base", b"layer");
    let (to, from) = (reference(&registry, "app"), reference(&registry, "base"));
    assert_eq!(Tester::new().upload_from(&to, b"layer", Some(&from)).unwrap(), Uploaded::Mounted);
    assert!(registry.blob("app", &Digest::of(b"layer")).is_some());
    assert!(registry.server.requests("PUT", "").is_empty());
    let [post] = &registry.server.requests("POST", "")[..] else { panic!() };
    assert_eq!(post.parameters("mount"), [Digest::of(b"layer").to_string()]);
}

#[test]
fn a_mount_that_becomes_an_upload_is_continued_there() {
    let registry = FakeRegistry::start();
    let (to, from) = (reference(&registry, "app"), reference(&registry, "base"));
    assert_eq!(Tester::new().upload_from(&to, b"layer", Some(&from)).unwrap(), Uploaded::Sent);
    assert_eq!(registry.server.requests("POST", "").len(), 1);
}

#[test]
fn a_mount_that_is_refused_is_followed_by_an_upload() {
    for status in [400, 403, 404, 405] {
        let registry = FakeRegistry::start();
        registry.fault("POST", "mount=", 1, Answer::new(status));
        let (to, from) = (reference(&registry, "app"), reference(&registry, "base"));
        assert_eq!(Tester::new().upload_from(&to, b"layer", Some(&from)).unwrap(), Uploaded::Sent);
        assert_eq!(registry.server.requests("POST", "").len(), 2);
    }
}

#[test]
fn nothing_is_mounted_from_another_registry_or_the_same_repository() {
    let (registry, other) = (FakeRegistry::start(), FakeRegistry::start());
    let to = reference(&registry, "app");
    for from in [reference(&other, "base"), to.clone()] {
        Tester::new().upload_from(&to, b"layer", Some(&from)).unwrap();
    }
    assert!(registry.server.requests("POST", "mount=").is_empty());
}

#[test]
fn an_upload_that_breaks_begins_anew() {
    for answer in [
        Answer::new(503),
        Answer::hang_up(),
        Answer::error(404, "BLOB_UPLOAD_UNKNOWN", "gone"),
        Answer::new(416),
        Answer::new(429).with("Retry-After", "3"),
    ] {
        let registry = FakeRegistry::start();
        registry.fault("PUT", "uploads", 2, answer.clone());
        let tester = Tester::new();
        assert_eq!(
            tester.upload(&reference(&registry, "app"), b"layer").unwrap(),
            Uploaded::Sent,
            "{answer:?}"
        );
        assert_eq!(registry.server.requests("POST", "uploads").len(), 3);
        assert_eq!(tester.waits().len(), 2);
        assert!(tester.notices().contains("the upload begins anew"));

        registry.fault("PUT", "uploads", 99, answer.clone());
        assert!(tester.upload(&reference(&registry, "app"), b"other").is_err());
        assert_eq!(registry.server.requests("PUT", "uploads").len(), 3 + 5);
    }
}

#[test]
fn beginning_an_upload_is_tried_again() {
    let registry = FakeRegistry::start();
    registry.fault("POST", "uploads", 2, Answer::new(500));
    assert_eq!(Tester::new().upload(&reference(&registry, "app"), b"layer").unwrap(), Uploaded::Sent);
}

#[test]
fn a_digest_that_the_registry_does_not_accept_is_not_tried_again() {
    let registry = FakeRegistry::start();
    registry.fault("PUT", "uploads", 9, Answer::error(400, "DIGEST_INVALID", "no match"));
    let error = line(Tester::new().upload(&reference(&registry, "app"), b"layer"));
    assert!(error.contains("DIGEST_INVALID") && error.contains(&Digest::of(b"layer").to_string()), "{error}");
    assert_eq!(registry.server.requests("PUT", "uploads").len(), 1);
}

const MIB: usize = 1 << 20;

#[test]
fn a_registry_that_refuses_the_whole_gets_pieces_of_the_length_it_wants() {
    for status in [405, 411, 413, 501] {
        let registry = FakeRegistry::start();
        let begun = Answer::new(202).with("Location", "/v2/app/blobs/uploads/upload-2?_state=a%2Bb%3D");
        registry.script("PUT", "uploads", 1, move |_| Answer::new(status));
        registry.fault("POST", "uploads", 0, begun);
        let bytes = vec![3; 20 * MIB];
        let tester = Tester::new();
        assert_eq!(tester.upload(&reference(&registry, "app"), &bytes).unwrap(), Uploaded::Sent, "{status}");
        assert_eq!(registry.blob("app", &Digest::of(&bytes)).unwrap(), bytes);
        let ranges: Vec<_> = registry
            .server
            .requests("PATCH", "")
            .iter()
            .map(|seen| seen.header("content-range").unwrap().to_owned())
            .collect();
        assert_eq!(ranges, [format!("0-{}", 16 * MIB - 1), format!("{}-{}", 16 * MIB, 20 * MIB - 1)]);
    }
}

#[test]
fn the_least_length_of_pieces_is_honoured() {
    let registry = FakeRegistry::start();
    registry.script("PUT", "uploads", 1, |_| Answer::new(413));
    registry.script("POST", "uploads", 2, |_| {
        Answer::new(202).with("OCI-Chunk-Min-Length", 18 * MIB).with("Location", "/patch")
    });
    registry.script("PATCH", "/patch", 2, |_| Answer::new(202).with("Location", "/patch"));
    registry.script("PUT", "/patch", 2, |seen| Answer::new(if seen.body.is_empty() { 201 } else { 413 }));
    let bytes = vec![3; 20 * MIB];
    assert_eq!(Tester::new().upload(&reference(&registry, "app"), &bytes).unwrap(), Uploaded::Sent);
    let lengths: Vec<_> = registry.server.requests("PATCH", "").iter().map(|seen| seen.body.len()).collect();
    assert_eq!(lengths, [18 * MIB, 2 * MIB]);
}

#[test]
fn a_piece_that_is_out_of_place_is_sent_from_where_the_registry_is() {
    let registry = FakeRegistry::start();
    registry.fault("PUT", "uploads", 1, Answer::new(413));
    // The registry keeps only the first half of the first piece.
    let half = Answer::new(202)
        .with("Location", "/v2/app/blobs/uploads/upload-2?_state=a%2Bb%3D")
        .with("Range", format!("0-{}", 8 * MIB - 1));
    registry.fault("PATCH", "uploads", 1, Answer::new(416));
    registry.fault("GET", "uploads", 1, half);
    let bytes: Vec<u8> = (0..20 * MIB).map(|position| (position / 4096) as u8).collect();
    registry.script("PUT", "uploads", 1, |_| Answer::new(201));
    assert_eq!(Tester::new().upload(&reference(&registry, "app"), &bytes).unwrap(), Uploaded::Sent);
    let pieces = registry.server.requests("PATCH", "");
    assert_eq!(pieces[1].body, bytes[8 * MIB..]);
    assert_eq!(pieces[1].header("content-range"), Some(format!("{}-{}", 8 * MIB, 20 * MIB - 1).as_str()));
}

#[test]
fn a_manifest_is_put_under_its_tag_or_its_digest() {
    let registry = FakeRegistry::start();
    let tester = Tester::new();
    let image = manifest();
    tester.client.put_manifest(&reference(&registry, "app:1"), media_type::OCI_MANIFEST, &image).unwrap();
    assert_eq!(
        registry.manifest("app", "1").unwrap(),
        (media_type::OCI_MANIFEST.to_owned(), image.bytes.clone())
    );
    let by_digest = reference(&registry, &format!("child@{}", image.digest));
    tester.client.put_manifest(&by_digest, media_type::OCI_MANIFEST, &image).unwrap();
    assert!(registry.manifest("child", &image.digest.to_string()).is_some());
    assert!(registry.manifest("child", "latest").is_none());
}

#[test]
fn a_registry_that_stores_something_else_is_found_out() {
    let registry = FakeRegistry::start();
    let other = Digest::of(b"other");
    registry.fault("PUT", "manifests", 1, Answer::new(201).with("Docker-Content-Digest", &other));
    let error = line(Tester::new().client.put_manifest(
        &reference(&registry, "app:1"),
        media_type::OCI_MANIFEST,
        &manifest(),
    ));
    assert!(error.contains("it stored something else") && error.contains(&other.to_string()), "{error}");
}

#[test]
fn a_login_page_is_no_success() {
    let registry = FakeRegistry::start();
    registry.fault(
        "PUT",
        "manifests",
        1,
        Answer::new(200).with("Content-Type", "text/html").body("<html>log in"),
    );
    let error = line(Tester::new().client.put_manifest(
        &reference(&registry, "app:1"),
        media_type::OCI_MANIFEST,
        &manifest(),
    ));
    assert!(error.contains("a web page (200) in place of an answer: <html>log in"), "{error}");
}

#[test]
fn immutable_tags_are_told_by_what_they_point_to() {
    for refusal in [
        Answer::error(400, "TAG_INVALID", "The image tag '1' already exists in the 'app' repository"),
        Answer::error(409, "CONFLICT", "immutable"),
        Answer::new(412),
        Answer::error(403, "DENIED", "tag is immutable"),
    ] {
        let registry = FakeRegistry::start();
        let old = registry.put_manifest("app", "1", media_type::OCI_MANIFEST, b"old");
        registry.fault("PUT", "manifests", 2, refusal);
        let tester = Tester::new();
        let to = reference(&registry, "app:1");
        let error = tester.client.put_manifest(&to, media_type::OCI_MANIFEST, &manifest()).unwrap_err();
        let Problem::ImmutableTag { existing, .. } = &*error.problem else { panic!("{error:?}") };
        assert_eq!(*existing, old);

        registry.put_manifest("app", "1", media_type::OCI_MANIFEST, &manifest().bytes);
        tester.client.put_manifest(&to, media_type::OCI_MANIFEST, &manifest()).unwrap();
        assert!(tester.notices().contains("is this image already"));
    }
    let registry = FakeRegistry::start();
    registry.fault("PUT", "manifests", 1, Answer::error(403, "DENIED", "no"));
    let tester = Tester::with_credentials(&registry.host(), serde_json::json!({"auth": "bWU6c2VjcmV0"}));
    let error = line(tester.client.put_manifest(
        &reference(&registry, "app:1"),
        media_type::OCI_MANIFEST,
        &manifest(),
    ));
    assert!(error.contains("does not allow it to me: DENIED: no"), "{error}");
}

#[test]
fn a_registry_that_does_not_see_the_blobs_yet_is_given_time() {
    let registry = FakeRegistry::start();
    registry.fault(
        "PUT",
        "manifests",
        2,
        Answer::error(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry"),
    );
    let tester = Tester::new();
    let to = reference(&registry, "app:1");
    tester.client.put_manifest(&to, media_type::OCI_MANIFEST, &manifest()).unwrap();
    assert_eq!(tester.waits().len(), 2);

    registry.fault("PUT", "manifests", 99, Answer::error(404, "BLOB_UNKNOWN", "blob unknown to registry"));
    let error = line(tester.client.put_manifest(&to, media_type::OCI_MANIFEST, &manifest()));
    assert!(error.contains(&Digest::of(b"{}").to_string()), "{error}");
    assert_eq!(registry.server.requests("PUT", "manifests").len(), 3 + 4);
}

#[test]
fn a_source_that_is_too_short_is_an_error_of_ours() {
    let registry = FakeRegistry::start();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("blob");
    std::fs::write(&path, b"lay").unwrap();
    let result = Tester::new().client.upload(
        &reference(&registry, "app"),
        &layer(b"layer"),
        &|| Ok(Box::new(File::open(&path)?)),
        None,
    );
    assert!(line(result).contains("the data to send cannot be read"));
    let missing = directory.path().join("missing");
    let result = Tester::new().client.upload(
        &reference(&registry, "app"),
        &layer(b"layer"),
        &|| Ok(Box::new(File::open(&missing)?)),
        None,
    );
    assert!(line(result).contains("the data to send cannot be read"));
}
