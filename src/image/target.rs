//! What a build for a platform says of it: in the image, and to the Dockerfile.

use super::platform::{Platform, Requested};

/// What the config and the descriptor of a built image say. Operating system and architecture are the wanted ones;
/// the variant is the one that was asked for, else the base's. A base of another machine leaves nothing behind.
///
/// Plain `arm` is written `arm/v7`, as BuildKit does, even where a base of a lower variant had to do: steps may have
/// made code for it. `amd64/v1` is never written: containers/image cannot select it.
#[must_use]
pub fn output_label(requested: &Requested, base: Option<&Platform>) -> Platform {
    let wanted = &requested.normalised;
    let base = base.filter(|base| base.normalise().same_machine(wanted));
    let variant = if wanted.architecture == "arm" {
        wanted.variant.clone()
    } else if requested.names_variant() {
        requested.asked.variant.clone()
    } else {
        base.and_then(base_variant)
    };
    let os_version = base.and_then(|b| b.os_version.clone()).or_else(|| requested.asked.os_version.clone());
    let features = base.map(|b| b.os_features.clone()).filter(|f| !f.is_empty());
    Platform {
        os: wanted.os.clone(),
        architecture: wanted.architecture.clone(),
        variant,
        os_version,
        os_features: features.unwrap_or_else(|| wanted.os_features.clone()),
    }
}

/// The base's variant in its usual spelling; `v8` is kept where the base says so.
fn base_variant(base: &Platform) -> Option<String> {
    base.variant.as_deref()?;
    let normal = base.normalise();
    if normal.architecture == "arm64" {
        normal.variant.or_else(|| Some("v8".to_owned()))
    } else {
        normal.variant
    }
}

/// The predefined build arguments of platforms, as BuildKit sets them, from normalised platforms.
#[must_use]
pub fn build_args(build: &Platform, target: &Platform) -> Vec<(&'static str, String)> {
    let values = |platform: &Platform| {
        let platform = platform.normalise();
        (
            platform.to_string(),
            platform.os,
            platform.os_version.unwrap_or_default(),
            platform.architecture,
            platform.variant.unwrap_or_default(),
        )
    };
    let (platform, os, version, architecture, variant) = values(build);
    let mut args = vec![
        ("BUILDPLATFORM", platform),
        ("BUILDOS", os),
        ("BUILDOSVERSION", version),
        ("BUILDARCH", architecture),
        ("BUILDVARIANT", variant),
    ];
    let (platform, os, version, architecture, variant) = values(target);
    args.extend([
        ("TARGETPLATFORM", platform),
        ("TARGETOS", os),
        ("TARGETOSVERSION", version),
        ("TARGETARCH", architecture),
        ("TARGETVARIANT", variant),
    ]);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Platform {
        Platform::new("linux", "amd64", None)
    }

    fn parsed(text: &str) -> Requested {
        Requested::parse(text, &host()).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn labels_follow_the_request_and_then_the_base() {
        for (asked, base, expected) in [
            ("linux/arm", None, "linux/arm/v7"),
            ("linux/arm", Some("linux/arm/v5"), "linux/arm/v7"),
            ("linux/arm/v5", Some("linux/arm"), "linux/arm/v5"),
            ("linux/arm/v7", Some("linux/arm/v6"), "linux/arm/v7"),
            ("linux/arm64", None, "linux/arm64"),
            ("linux/arm64", Some("linux/arm64"), "linux/arm64"),
            ("linux/arm64", Some("linux/arm64/v8"), "linux/arm64/v8"),
            ("linux/arm64/v8", Some("linux/arm64"), "linux/arm64/v8"),
            ("linux/amd64/v1", None, "linux/amd64"),
            ("linux/amd64", Some("linux/amd64/v3"), "linux/amd64/v3"),
            ("linux/amd64/v3", Some("linux/amd64"), "linux/amd64/v3"),
            ("linux/amd64", Some("linux/arm/v7"), "linux/amd64"),
            ("linux/amd64", Some("windows(10.0.1)/amd64"), "linux/amd64"),
            ("windows/amd64", Some("windows(10.0.20348.1)/amd64"), "windows(10.0.20348.1)/amd64"),
            ("windows(10.0.20348)/amd64", None, "windows(10.0.20348)/amd64"),
            ("linux/i686", Some("linux/amd64"), "linux/386"),
        ] {
            let base = base.map(|text| parsed(text).asked);
            assert_eq!(
                output_label(&parsed(asked), base.as_ref()).to_string(),
                expected,
                "{asked} on {base:?}"
            );
        }
        let v1 = Platform::new("linux", "amd64", Some("v1"));
        assert_eq!(output_label(&parsed("linux/amd64"), Some(&v1)).to_string(), "linux/amd64");
    }

    #[test]
    fn build_arguments_are_normalised() {
        let args = build_args(&host(), &parsed("linux/arm").asked);
        let value = |name| &args.iter().find(|(n, _)| *n == name).unwrap().1;
        assert_eq!(value("TARGETPLATFORM"), "linux/arm/v7");
        assert_eq!(value("TARGETVARIANT"), "v7");
        assert_eq!(value("BUILDPLATFORM"), "linux/amd64");
        assert_eq!(value("BUILDVARIANT"), "");
        let args = build_args(&host(), &parsed("linux/arm64/v8").asked);
        assert!(args.contains(&("TARGETPLATFORM", "linux/arm64".to_owned())));
        assert!(args.contains(&("TARGETVARIANT", String::new())));
    }
}
