//! What the command line says about every RUN, besides its network.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use super::error::BuildErrorKind;
use crate::dockerfile;
use crate::sandbox::{HOSTNAME, ResourceLimit, Security};

/// What the command line says about every RUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSettings {
    /// `--add-host`, in order.
    pub hosts: Arc<[ExtraHost]>,
    /// `--shm-size` in bytes.
    pub shm_size: Option<u64>,
    /// `--ulimit`.
    pub limits: Arc<[ResourceLimit]>,
    /// Whether a step may ask for `--security=insecure`.
    pub insecure: Insecure,
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtraHost {
    /// The name.
    pub name: String,
    /// Where it leads.
    pub address: IpAddr,
}

/// Whether `RUN --security=insecure` is allowed: BuildKit's entitlement `security.insecure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insecure {
    /// By `--allow security.insecure`.
    Allowed,
    /// Nobody has allowed it.
    Refused,
}

impl RunSettings {
    /// What holds where the command line says nothing.
    #[must_use]
    pub fn usual() -> Self {
        Self { hosts: Arc::default(), shm_size: None, limits: Arc::default(), insecure: Insecure::Refused }
    }

    /// What a step may do that names `named`.
    pub(super) fn security(&self, named: dockerfile::Security) -> Result<Security, BuildErrorKind> {
        match (named, self.insecure) {
            (dockerfile::Security::Sandbox, _) => Ok(Security::Confined),
            (dockerfile::Security::Insecure, Insecure::Allowed) => Ok(Security::Unconfined),
            (dockerfile::Security::Insecure, Insecure::Refused) => Err(BuildErrorKind::InsecureRefused),
        }
    }
}

/// The host name of a step for which `BUILDKIT_SANDBOX_HOSTNAME` says `given`.
pub(super) fn hostname(given: Option<&str>) -> Result<String, BuildErrorKind> {
    // `__NEW_UTS_LEN` of linux/utsname.h.
    const LONGEST: usize = 64;
    let Some(name) = given.filter(|name| !name.is_empty()) else { return Ok(HOSTNAME.to_owned()) };
    if name.len() > LONGEST || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        let message = format!(
            "BUILDKIT_SANDBOX_HOSTNAME=\"{}\" is no host name: it has 1 to {LONGEST} letters, digits, dashes and dots",
            name.escape_debug()
        );
        return Err(BuildErrorKind::Invalid(message));
    }
    Ok(name.to_owned())
}

/// What a step finds in `/etc/hosts`, as under BuildKit.
pub(super) fn hosts(hostname: &str, extra: &[ExtraHost]) -> Vec<u8> {
    let mut text = format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    for ExtraHost { name, address } in extra {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{address}\t{name}");
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_buildkit_and_those_that_are_added() {
        let extra = [("a.example", "192.0.2.1"), ("b", "2001:db8::1"), ("b", "::ffff:192.0.2.2")];
        let extra = extra
            .map(|(name, address)| ExtraHost { name: name.to_owned(), address: address.parse().unwrap() });
        let found = String::from_utf8(hosts("me", &extra)).unwrap();
        assert_eq!(
            found,
            "127.0.0.1\tlocalhost me\n::1\tlocalhost ip6-localhost ip6-loopback\n192.0.2.1\ta.example\n\
             2001:db8::1\tb\n::ffff:192.0.2.2\tb\n"
        );
    }

    #[test]
    fn a_host_name_is_one_word() {
        for (given, expected) in [
            (None, Some(HOSTNAME)),
            (Some(""), Some(HOSTNAME)),
            (Some("a.b-c"), Some("a.b-c")),
            (Some("a b"), None),
            (Some("a\n192.0.2.1 registry"), None),
            (Some("#"), None),
        ] {
            assert_eq!(hostname(given).ok().as_deref(), expected, "{given:?}");
        }
        assert!(hostname(Some(&"x".repeat(64))).is_ok() && hostname(Some(&"x".repeat(65))).is_err());
    }

    #[test]
    fn insecure_steps_must_be_allowed() {
        let of = |named, insecure| RunSettings { insecure, ..RunSettings::usual() }.security(named).ok();
        use dockerfile::Security as Named;
        assert_eq!(of(Named::Sandbox, Insecure::Refused), Some(Security::Confined));
        assert_eq!(of(Named::Sandbox, Insecure::Allowed), Some(Security::Confined));
        assert_eq!(of(Named::Insecure, Insecure::Allowed), Some(Security::Unconfined));
        assert_eq!(of(Named::Insecure, Insecure::Refused), None);
    }
}
