//! `--add-host`, `--shm-size`, `--ulimit` and `--allow`, spelled as docker does.

use std::net::IpAddr;

use super::args::BuildArgs;
use super::failure::Failure;
use crate::build::network::HostNetwork;
use crate::build::run_settings::{ExtraHost, Insecure, RunSettings};
use crate::dockerfile::{parse_size, suggest};
use crate::sandbox::ResourceLimit;

/// What `--allow` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) host: HostNetwork,
    insecure: Insecure,
}

impl Allowed {
    /// Reads the values of `--allow`.
    pub(super) fn parse(names: &[String]) -> Result<Self, Failure> {
        let mut allowed = Self { host: HostNetwork::Refused, insecure: Insecure::Refused };
        for name in names {
            match name.as_str() {
                "network.host" => allowed.host = HostNetwork::Allowed,
                "security.insecure" => allowed.insecure = Insecure::Allowed,
                _ => {
                    let message = format!("`{name}` is nothing that can be allowed");
                    let hint = "network.host or security.insecure";
                    return Err(Failure::new(message).of_flag("--allow").hint(hint));
                }
            }
        }
        Ok(allowed)
    }
}

/// What the flags say about every RUN.
pub(super) fn parse(args: &BuildArgs, allowed: &Allowed) -> Result<RunSettings, Failure> {
    Ok(RunSettings {
        hosts: each("--add-host", &args.add_host, extra_host)?,
        shm_size: args.shm_size.as_deref().map(shm_size).transpose()?.flatten(),
        limits: each("--ulimit", &args.ulimit, limit)?,
        insecure: allowed.insecure,
    })
}

fn each<T, All: FromIterator<T>>(
    flag: &str,
    values: &[String],
    parse: fn(&str) -> Result<T, Failure>,
) -> Result<All, Failure> {
    values.iter().map(|value| parse(value).map_err(|failure| failure.of_flag(flag))).collect()
}

/// `NAME=IP`, or `NAME:IP`; the address may have brackets.
fn extra_host(text: &str) -> Result<ExtraHost, Failure> {
    let wrong =
        || Failure::new(format!("`{text}` is no host, expected `NAME:IP`")).hint("for instance db:192.0.2.7");
    let (name, address) = text.split_once('=').or_else(|| text.split_once(':')).ok_or_else(wrong)?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Err(wrong());
    }
    if address == "host-gateway" {
        let message =
            "there is no `host-gateway`: RUN has the network of this machine, so `localhost` is the host";
        return Err(Failure::new(message).hint(format!("--add-host {name}:127.0.0.1")));
    }
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    let address: IpAddr =
        bare.parse().map_err(|_| Failure::new(format!("`{address}` in `{text}` is no IP address")))?;
    Ok(ExtraHost { name: name.to_owned(), address })
}

/// As with docker, 0 is the usual size.
fn shm_size(text: &str) -> Result<Option<u64>, Failure> {
    let size = parse_size(text).ok_or_else(|| {
        let message = format!("`{text}` is no size, expected bytes, with k, m or g if you like");
        Failure::new(message).of_flag("--shm-size")
    })?;
    Ok(Some(size).filter(|size| *size > 0))
}

/// `TYPE=SOFT[:HARD]`; -1 is no limit.
fn limit(text: &str) -> Result<ResourceLimit, Failure> {
    let wrong = || Failure::new(format!("`{text}` is no limit, expected `TYPE=SOFT[:HARD]`"));
    let (name, values) = text.split_once('=').ok_or_else(wrong)?;
    let value = |text: &str| match text {
        "-1" => Ok(None),
        text => text.parse().map(Some).map_err(|_| wrong()),
    };
    let (soft, hard) = match values.split_once(':') {
        Some((soft, hard)) => (value(soft)?, value(hard)?),
        None => (value(values)?, value(values)?),
    };
    // No limit is more than any.
    if hard.is_some_and(|hard| soft.is_none_or(|soft| soft > hard)) {
        return Err(Failure::new(format!("`{text}`: the soft limit must not be more than the hard one")));
    }
    ResourceLimit::named(name, soft, hard).ok_or_else(|| {
        let names: Vec<&str> = ResourceLimit::names().collect();
        let near = suggest(name, &names).map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        Failure::new(format!("there is no limit `{name}`{near}"))
            .hint(format!("the limits are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_written_as_docker_has_them() {
        for (text, name, address) in [
            ("a:192.0.2.1", "a", "192.0.2.1"),
            ("a=192.0.2.1", "a", "192.0.2.1"),
            ("a:2001:db8::1", "a", "2001:db8::1"),
            ("a=2001:db8::1", "a", "2001:db8::1"),
            ("a:[2001:db8::1]", "a", "2001:db8::1"),
            ("a=[::1]", "a", "::1"),
            ("a.b-c_d:[192.0.2.1]", "a.b-c_d", "192.0.2.1"),
        ] {
            let host = extra_host(text).unwrap();
            assert_eq!((host.name.as_str(), host.address.to_string().as_str()), (name, address), "{text}");
        }
        for (text, message) in [
            ("a", "`a` is no host, expected `NAME:IP`"),
            (":192.0.2.1", "is no host"),
            ("a b:192.0.2.1", "is no host"),
            ("a\n::1", "is no host"),
            ("#:::1", "is no host"),
            ("a:", "`` in `a:` is no IP address"),
            ("a:[::1", "`[::1` in `a:[::1` is no IP address"),
            ("a:192.0.2", "`192.0.2` in `a:192.0.2` is no IP address"),
            ("a:host-gateway", "there is no `host-gateway`"),
        ] {
            let failure = extra_host(text).unwrap_err();
            assert!(failure.message.contains(message), "{text}: {}", failure.message);
        }
    }

    #[test]
    fn sizes_and_limits_are_written_as_docker_has_them() {
        for (text, size) in [("0", None), ("1", Some(1)), ("128m", Some(128 << 20)), ("1.5g", Some(3 << 29))]
        {
            assert_eq!(shm_size(text).unwrap(), size, "{text}");
        }
        assert!(shm_size("x").unwrap_err().message.starts_with("--shm-size: `x` is no size"));
        for (text, shown) in [
            ("nofile=5", "nofile=5:5"),
            ("nofile=5:6", "nofile=5:6"),
            ("core=0:-1", "core=0:-1"),
            ("stack=-1", "stack=-1:-1"),
        ] {
            assert_eq!(limit(text).unwrap().to_string(), shown, "{text}");
        }
        for (text, message) in [
            ("nofile", "`nofile` is no limit, expected `TYPE=SOFT[:HARD]`"),
            ("nofile=", "is no limit"),
            ("nofile=-2", "is no limit"),
            ("nofile=1:", "is no limit"),
            ("nofile=1:2:3", "is no limit"),
            ("nofile=6:5", "must not be more"),
            ("nofile=-1:5", "must not be more"),
            ("nofiles=5", "there is no limit `nofiles` (did you mean `nofile`?)"),
            ("as=5", "there is no limit `as`"),
        ] {
            let failure = limit(text).unwrap_err();
            assert!(failure.message.contains(message), "{text}: {}", failure.message);
        }
    }

    #[test]
    fn what_cannot_be_allowed_is_an_error() {
        let parse =
            |names: &[&str]| Allowed::parse(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let (refused, allowed) = (parse(&[]).unwrap(), parse(&["security.insecure"]).unwrap());
        assert_eq!((refused.host, refused.insecure), (HostNetwork::Refused, Insecure::Refused));
        assert_eq!((allowed.host, allowed.insecure), (HostNetwork::Refused, Insecure::Allowed));
        let failure = parse(&["device"]).unwrap_err();
        assert_eq!(failure.message, "--allow: `device` is nothing that can be allowed");
    }
}
