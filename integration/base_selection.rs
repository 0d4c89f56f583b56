//! Which image of a base is taken, against a real registry, whatever form its index has.

use crate::support::ground::{Ground, ground};
use crate::support::oci::{LayoutImage, skopeo};
use crate::support::{Builder, Context, scratch};

/// What a request for a platform must lead to.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// This image, in Debian's words.
    Takes(&'static str),
    /// This image, of a lower variant than was asked for: logged as `(asked, taken)`.
    FallsBack(&'static str, &'static str, &'static str),
    /// An error that lists what there is.
    Fails,
}

use Expected::{Fails, FallsBack, Takes};

/// Asked for; expected with variants in the descriptors (`latest`, `list`), only in the configs (`configs`), nowhere
/// (`unlabelled`); variant in the config of what is built, the same for all three but for a `v8` that only the base
/// knows of.
///
/// Without any variant `arm` means `arm/v7`, whatever is inside: the first is taken, and nothing is left for v5 and
/// v6.
const TABLE: &[Row] = &[
    ("linux/arm", Takes("armhf"), Takes("armhf"), Takes("armel"), Variant::Always("v7")),
    ("linux/arm/v5", Takes("armel"), Takes("armel"), Fails, Variant::Always("v5")),
    ("linux/arm/v6", V6, V6, Fails, Variant::Always("v6")),
    ("linux/arm/v7", Takes("armhf"), Takes("armhf"), Takes("armel"), Variant::Always("v7")),
    ("linux/arm64", Takes("arm64"), Takes("arm64"), Takes("arm64"), Variant::OfBase("v8")),
    ("linux/arm64/v8", Takes("arm64"), Takes("arm64"), Takes("arm64"), Variant::Always("v8")),
    ("linux/386", Takes("i386"), Takes("i386"), Takes("i386"), Variant::Never),
    ("linux/riscv64", Fails, Fails, Fails, Variant::Never),
];

/// ARMv5 code runs on ARMv6; the other way round it would not.
const V6: Expected = FallsBack("armel", "linux/arm/v6", "linux/arm/v5");

/// The variant in the config of what is built.
#[derive(Debug, Clone, Copy)]
enum Variant {
    /// Asked for, or implied by what was.
    Always(&'static str),
    /// Not asked for; the base has it, if it says so.
    OfBase(&'static str),
    /// There is none.
    Never,
}

#[test]
fn variants_in_the_descriptors_of_an_oci_index() {
    check("latest", |row| row.1);
}

#[test]
fn variants_in_the_descriptors_of_a_docker_manifest_list() {
    check("list", |row| row.1);
}

#[test]
fn variants_only_in_the_configs() {
    check("configs", |row| row.2);
}

#[test]
fn no_variants_at_all() {
    check("unlabelled", |row| row.3);
}

type Row = (&'static str, Expected, Expected, Expected, Variant);

/// Builds on one flavour of the base for every platform of the table.
fn check(flavour: &str, expected: impl Fn(&Row) -> Expected) {
    let ground = ground();
    let builder = Builder::new();
    for row in TABLE {
        match expected(row) {
            Takes(debian) => takes(&ground, &builder, flavour, row, debian, None),
            FallsBack(debian, asked, taken) => {
                takes(&ground, &builder, flavour, row, debian, Some((asked, taken)))
            }
            Fails => fails(&ground, &builder, flavour, row.0),
        }
    }
}

fn takes(
    ground: &Ground,
    builder: &Builder,
    flavour: &str,
    (asked, .., variant): &Row,
    debian: &str,
    fallback: Option<(&str, &str)>,
) {
    let base = ground.name(&format!("busybox:{flavour}"));
    let case = format!("{asked} from {base}");
    let context = Context::new(&format!("FROM {base}\nLABEL made=here\n"));
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = builder.run([
        "--context".as_ref(),
        context.path().as_os_str(),
        "--custom-platform".as_ref(),
        asked.as_ref(),
        "--no-push".as_ref(),
        "--oci-layout-path".as_ref(),
        layout.as_os_str(),
    ]);
    let finished = finished.success();
    let image = LayoutImage::only(&layout);

    let bases = ground.bases();
    let taken = bases
        .iter()
        .find(|one| one.repository == "busybox" && one.tag == flavour && one.debian == debian)
        .expect("base");
    assert_eq!(
        image.annotation("org.opencontainers.image.base.digest"),
        Some(taken.digest.as_str()),
        "{case}"
    );
    assert_eq!(image.annotation("org.opencontainers.image.base.name"), Some(base.as_str()), "{case}");
    let own = ground.name(&format!("busybox@{}", taken.digest));
    let own_layers = skopeo(&["inspect", "--raw", "--tls-verify=false", &format!("docker://{own}")]);
    let layer = image.manifest.layers().first().expect("layer");
    assert!(own_layers.contains(layer.digest().digest()), "{case}: the layer is not that of {debian}");

    if let Some((asked, taken)) = fallback {
        assert!(
            finished.says(&[asked, taken]),
            "{case}: nothing says that {taken} was taken\n{}",
            finished.stderr
        );
    }

    let written = match variant {
        Variant::Always(variant) => Some(*variant),
        Variant::OfBase(variant) => (flavour != "unlabelled").then_some(*variant),
        Variant::Never => None,
    };
    let architecture = asked.split('/').nth(1).expect("architecture");
    assert_eq!(image.raw_config["os"], "linux", "{case}");
    assert_eq!(image.raw_config["architecture"], architecture, "{case}");
    assert_eq!(image.raw_config["variant"].as_str(), written, "{case}");
    if architecture == "arm" {
        let platform = format!("linux/arm/{}", written.expect("variant"));
        assert_eq!(image.annotation("io.builder.platform"), Some(platform.as_str()), "{case}");
    }

    let plan = builder
        .run([
            "plan".as_ref(),
            "--context".as_ref(),
            context.path().as_os_str(),
            "--platform".as_ref(),
            asked.as_ref(),
        ])
        .success()
        .json();
    assert_eq!(plan["image"]["architecture"], architecture, "{case}: plan");
    assert_eq!(plan["image"]["variant"].as_str(), written, "{case}: plan");
    assert_eq!(plan["image"]["config"]["Labels"]["made"], "here", "{case}: plan");
}

fn fails(ground: &Ground, builder: &Builder, flavour: &str, asked: &str) {
    let base = ground.name(&format!("busybox:{flavour}"));
    let context = Context::new(&format!("# comment\nFROM {base}\n"));
    let out = scratch();
    let layout = out.path().join("layout");
    let finished = builder
        .run([
            "--context".as_ref(),
            context.path().as_os_str(),
            "--custom-platform".as_ref(),
            asked.as_ref(),
            "--no-push".as_ref(),
            "--oci-layout-path".as_ref(),
            layout.as_os_str(),
        ])
        .exited(1);
    for part in [asked, base.as_str(), "Dockerfile:2", "linux/amd64", "linux/arm", "linux/386", "linux/s390x"]
    {
        assert!(finished.stderr.contains(part), "{asked} from {base}: no `{part}` in\n{}", finished.stderr);
    }
    assert!(!layout.exists(), "{asked} from {base}: a layout was left behind");
    assert_eq!(finished.stdout, "", "{asked} from {base}");
}

#[test]
fn a_single_image_of_another_platform_is_refused_if_one_was_asked_for() {
    let ground = ground();
    let builder = Builder::new();
    let base = ground.name("busybox:single-armhf");
    let context = Context::new(&format!("FROM {base}\nLABEL made=here\n"));
    let context = context.path().to_str().expect("path");
    let out = scratch();
    let layout = out.path().join("layout").to_str().expect("path").to_owned();
    let arguments = ["--context", context, "--no-push", "--oci-layout-path", &layout];
    let refused = builder.run(arguments.iter().chain(&["--custom-platform", "linux/amd64"])).exited(1);
    assert!(
        refused.stderr.contains("linux/arm/v7") && refused.stderr.contains("linux/amd64"),
        "{}",
        refused.stderr
    );

    let kept = builder.run(arguments).success();
    let image = LayoutImage::only(&out.path().join("layout"));
    assert_eq!(image.config.architecture().to_string(), "arm");
    assert_eq!(image.raw_config["variant"], "v7");
    assert!(kept.says(&["linux/arm/v7"]), "no warning in\n{}", kept.stderr);
}
