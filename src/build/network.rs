//! Which network a RUN has, by what it says and what the command line says.

use std::net::IpAddr;

use super::error::BuildErrorKind;
use crate::dockerfile;
use crate::sandbox::Network;

/// What the command line says about networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Networks {
    /// That of steps that name none: `--network`.
    pub unnamed: dockerfile::Network,
    /// Whether steps may name that of the host.
    pub host: HostNetwork,
}

impl Networks {
    /// What holds where the command line says nothing.
    pub const USUAL: Self = Self { unnamed: dockerfile::Network::Default, host: HostNetwork::Refused };

    /// The network of a step that names `named`, which goes before what the command line says, as in BuildKit.
    pub(super) fn of(self, named: dockerfile::Network) -> Result<Network, BuildErrorKind> {
        let wanted = match named {
            dockerfile::Network::Default => self.unnamed,
            named => named,
        };
        match wanted {
            dockerfile::Network::None => Ok(Network::None),
            // That of this machine is the usual one. All the same, whoever builds is asked, as everywhere else.
            dockerfile::Network::Host if self.host == HostNetwork::Refused => {
                Err(BuildErrorKind::HostNetwork)
            }
            dockerfile::Network::Default | dockerfile::Network::Host => Ok(Network::Shared),
        }
    }
}

/// Whether `RUN --network=host` is allowed: BuildKit's entitlement `network.host`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostNetwork {
    /// By `--allow network.host`, or because `--network=host` asks for nothing else.
    Allowed,
    /// Nobody has allowed it.
    Refused,
}

/// Servers that BuildKit names where none is left.
const PUBLIC_SERVERS: &[u8] = b"\nnameserver 8.8.8.8\nnameserver 8.8.4.4\nnameserver 2001:4860:4860::8888\n\
                                nameserver 2001:4860:4860::8844\n";

/// The name servers of the machine as a step without its network finds them in /etc/resolv.conf: without those on the
/// machine's loopback, as under BuildKit. None of them can be reached; with one on the loopback, a step could believe that
/// it can.
pub(super) fn resolv_conf_without_network(machine: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(machine.len());
    let mut servers = 0;
    for line in machine.split_inclusive(|byte| *byte == b'\n') {
        match server(line) {
            Some(address) if address.is_loopback() => continue,
            Some(_) => servers += 1,
            None => {}
        }
        kept.extend_from_slice(line);
    }
    if servers == 0 {
        kept.extend_from_slice(PUBLIC_SERVERS);
    }
    kept
}

fn server(line: &[u8]) -> Option<IpAddr> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dockerfile::Network::{Default, Host, None};

    #[test]
    fn what_a_step_says_goes_before_what_the_command_line_says() {
        let cases = [
            (Default, Default, HostNetwork::Refused, Some(Network::Shared)),
            (Default, None, HostNetwork::Refused, Some(Network::None)),
            (Default, Host, HostNetwork::Refused, Option::None),
            (Default, Host, HostNetwork::Allowed, Some(Network::Shared)),
            (None, Default, HostNetwork::Refused, Some(Network::None)),
            (None, None, HostNetwork::Refused, Some(Network::None)),
            (None, Host, HostNetwork::Refused, Option::None),
            (None, Host, HostNetwork::Allowed, Some(Network::Shared)),
            (Host, Default, HostNetwork::Allowed, Some(Network::Shared)),
            (Host, None, HostNetwork::Allowed, Some(Network::None)),
        ];
        for (unnamed, named, host, expected) in cases {
            let found = Networks { unnamed, host }.of(named);
            if expected.is_none() {
                let message = found.as_ref().map_err(ToString::to_string);
                assert_eq!(message, Err("network.host is not allowed".to_owned()));
            }
            assert_eq!(found.ok(), expected, "{unnamed:?} {named:?} {host:?}");
        }
    }

    #[test]
    fn without_a_network_there_are_no_name_servers_on_the_loopback() {
        let public = String::from_utf8(PUBLIC_SERVERS.to_vec()).unwrap();
        let cases = [
            (
                "search x\nnameserver 127.0.0.53\nnameserver 192.0.2.1\noptions edns0",
                "search x\nnameserver 192.0.2.1\noptions edns0".to_owned(),
            ),
            ("nameserver ::1\nnameserver 2001:db8::1\n", "nameserver 2001:db8::1\n".to_owned()),
            ("nameserver\t127.1.2.3", public.clone()),
            ("", public.clone()),
            ("# nameserver 192.0.2.1\n", format!("# nameserver 192.0.2.1\n{public}")),
            ("nameserver\n", format!("nameserver\n{public}")),
        ];
        for (machine, expected) in cases {
            let found = String::from_utf8(resolv_conf_without_network(machine.as_bytes())).unwrap();
            assert_eq!(found, expected, "{machine:?}");
        }
    }
}
