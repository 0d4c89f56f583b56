//! Where the list of handlers cannot be read, what runs programs for other processors is found out by trying.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// What `builder doctor` says of each platform, started by `before`.
fn platforms(before: &[&str]) -> BTreeMap<String, String> {
    let mut words: Vec<&str> = before.to_vec();
    // Where builder finds no qemu of its own.
    words.extend([
        "/usr/bin/env",
        "PATH=/nonexistent",
        env!("CARGO_BIN_EXE_builder"),
        "doctor",
        "--output",
        "json",
    ]);
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let platforms = report["platforms"].as_array().unwrap().iter();
    platforms.map(|found| (text(&found["platform"]), text(&found["how"]))).collect()
}

#[test]
fn trying_agrees_with_the_list_of_handlers() {
    let hidden = "mount -t tmpfs none /proc/sys/fs/binfmt_misc && exec \"$@\"";
    // In a user namespace the list cannot be mounted anew.
    let before = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hidden, "sh"];
    if !Command::new(before[0]).args(&before[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: the list of handlers cannot be hidden");
        return;
    }
    let listed = platforms(&["env"]);
    assert!(listed.len() >= 9, "{listed:?}");
    assert_eq!(platforms(&before), listed);
}
