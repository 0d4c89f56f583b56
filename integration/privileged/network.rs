//! A step without a network.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use builder::sandbox::{Cancel, Chroot, Exit, Network, Process, Sandbox, Stream};

use super::is_root;
use super::sandbox::{Image, shell};

fn without_network(script: &str) -> Process {
    Process { network: Network::None, ..shell(script) }
}

#[test]
fn a_step_without_network_has_a_loopback_interface_of_its_own_that_works() {
    if !is_root("a_step_without_network_has_a_loopback_interface_of_its_own_that_works") {
        return;
    }
    let image = Image::new();
    let seen = image.run(&without_network(
        "ls /sys/class/net; tail -n +3 /proc/net/dev | cut -d: -f1; ip -o addr | grep -v inet6 | sed 's/ *scope.*//'; \
         cat /sys/class/net/lo/operstate >/dev/null && ip route | wc -l",
    ));
    let expected = "lo\n    lo\n1: lo    inet 127.0.0.1/8\n0\n";
    assert_eq!(seen.out, expected, "{seen:?}");
    // It goes to the background once it listens.
    let served = "echo hello >/index.html && httpd -h / -p 127.0.0.1:80 && wget -qO- http://127.0.0.1/index.html && \
                  wget -qO- http://localhost/index.html";
    assert_eq!(image.run(&without_network(served)).out, "hello\nhello\n");
    assert_eq!(
        image
            .run(&Process {
                args: [&b"/bin/ping"[..], b"-c1", b"127.0.0.1"].map(<[u8]>::to_vec).to_vec(),
                ..without_network("")
            })
            .exit,
        Exit::Code(0)
    );
}

#[test]
fn a_step_without_network_reaches_nobody() {
    if !is_root("a_step_without_network_reaches_nobody") {
        return;
    }
    let image = Image::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The backlog takes the connection: nobody need accept it.
    let script = format!("nc 127.0.0.1 {port} </dev/null; echo $?");
    assert_eq!(image.run(&without_network(&script)).out, "1\n");
    let accepted = std::thread::spawn(move || listener.accept().map(|(mut peer, _)| peer.read(&mut [0])));
    assert_eq!(image.sh(&script).out, "0\n", "with the machine's network, it is reached");
    accepted.join().unwrap().unwrap().unwrap();
    // Sockets that have no name in the file system belong to the network, too.
    let name = format!("builder-test-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let script = format!("grep -c @{name} /proc/net/unix");
    assert_eq!(image.sh(&script).out, "1\n");
    assert_eq!(image.run(&without_network(&script)).out, "0\n");
}

#[test]
fn without_other_namespaces_a_step_still_gets_no_network() {
    if !is_root("without_other_namespaces_a_step_still_gets_no_network") {
        return;
    }
    let image = Image::new();
    let aside = tempfile::tempdir_in(image.path("..")).unwrap();
    let chroot = Chroot::new(env!("CARGO_BIN_EXE_builder"), aside.path());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let run = |process: &Process| {
        let mut out = String::new();
        let mut output = |_: Stream, bytes: &[u8]| out += &String::from_utf8_lossy(bytes);
        chroot.run(&image.root(), process, &mut output, &Cancel::new().unwrap()).unwrap();
        out
    };
    let script = format!("httpd -h / -p 127.0.0.1:{port} 2>/dev/null; echo $?");
    assert_eq!(run(&shell(&script)), "1\n", "the port is taken on the machine");
    assert_eq!(run(&without_network(&script)), "0\n");
}
