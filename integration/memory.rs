//! How much memory a build needs, whatever the size of files and layers.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::ground::ground;
use crate::support::{Context, scratch};

/// The most that all processes of a build may need together, in kB.
const MOST: u64 = 100_000;

/// Bytes of each large file.
const LARGE: u64 = 300_000_000;

/// The largest sum of the peaks (`VmHWM` in proc_pid_status(5)) of the processes that execute `program` at one moment,
/// from now to the end of `child`, in kB.
fn peak(child: &mut Child, program: &Path) -> u64 {
    let mut most = 0;
    while child.try_wait().expect("wait").is_none() {
        let processes = fs::read_dir("/proc").expect("/proc");
        let peaks = processes.filter_map(|process| peak_of(&process.ok()?.path(), program));
        most = most.max(peaks.sum());
        std::thread::sleep(Duration::from_millis(5));
    }
    most
}

fn peak_of(process: &Path, program: &Path) -> Option<u64> {
    if fs::read_link(process.join("exe")).ok()? != program {
        return None;
    }
    let status = fs::read_to_string(process.join("status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

/// Builds, in an empty store, and pushes; gives the peak.
fn build(context: &Context, destination: &str) -> u64 {
    let (store, home) = (scratch(), scratch());
    // A name of its own: other builds are running.
    let program = store.path().with_extension("builder");
    fs::hard_link(env!("CARGO_BIN_EXE_builder"), &program).expect("link");
    let mut child = Command::new(&program)
        .env_clear()
        .env("HOME", home.path())
        .args([
            "--store".as_ref(),
            store.path().as_os_str(),
            "--context".as_ref(),
            context.path().as_os_str(),
        ])
        .args(["--custom-platform=linux/amd64", "--destination", destination])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    let most = peak(&mut child, &program);
    fs::remove_file(&program).expect("remove");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    most
}

#[test]
fn large_files_and_layers_are_never_in_memory() {
    let ground = ground();
    let made = ground.name("memory:large");
    let context = Context::new(&format!(
        "FROM {}\nCOPY large /copied\nRUN dd if=/dev/urandom of=/made bs=1000000 count={} 2>/dev/null\n",
        ground.name("busybox:latest"),
        LARGE / 1_000_000,
    ));
    let mut large = fs::File::create(context.path().join("large")).expect("make");
    let random = fs::File::open("/dev/urandom").expect("open");
    io::copy(&mut random.take(LARGE), &mut large).expect("write");
    let making = build(&context, &made);
    // And the other way: both layers are fetched, unpacked, and linked to another repository.
    let context = Context::new(&format!("FROM {made}\nRUN test -s /copied && echo one more >>/made\n"));
    let unpacking = build(&context, &ground.name("memory-more:large"));
    eprintln!("making {making} kB, unpacking {unpacking} kB");
    assert!(making > 0 && unpacking > 0, "no process was seen");
    assert!(making < MOST, "copying, running and pushing took {making} kB");
    assert!(unpacking < MOST, "fetching and unpacking took {unpacking} kB");
}
