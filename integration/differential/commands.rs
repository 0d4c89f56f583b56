//! Shell commands that change a root file system in the ways that are easily recorded wrongly.
//!
//! All of them come from a few names, so that they hit what earlier steps made. Those that fail do nothing: what follows
//! is run all the same.

use super::random::Random;

/// Words for a shell. Never what a shell is made of: `/bin` and what it links to.
const NAMES: &[&str] = &["a", "b", "c", "d", "f", "g", "l"];
const ODD_NAMES: &[&str] = &[
    "'n n'",
    "ü",
    ".h",
    "x.txt",
    "\"$(printf 'a\\377')\"",
    "\"$(printf 'a\\nb')\"",
    "'*'",
    "'[x]'",
    "-dash",
    "'back\\slash'",
    ".wha",
    "'\"'",
];
const TIMES: &[&str] = &["@0", "@1", "@1000000000", "@1234567890", "@2000000000", "@4000000000"];
const MODES: &[&str] =
    &["0", "400", "644", "600", "755", "700", "4755", "2755", "1777", "6711", "u+x", "a-w"];
const OWNERS: &[&str] = &["0:0", "1000:1001", "5", "7:8", "user", "user:supp", ":9", "4294967294:70000"];

/// Paths that earlier commands had: most of them are there.
#[derive(Debug, Default)]
pub(crate) struct Paths(Vec<String>);

impl Paths {
    /// A path in words of a shell: absolute, or relative to the working directory. Mostly one of those before, or below
    /// one of them.
    fn some(&mut self, random: &mut Random) -> String {
        if !self.0.is_empty() && random.percent(65) {
            let earlier = self.0[random.below(self.0.len())].clone();
            if random.percent(75) {
                return earlier;
            }
            let path = match earlier.rsplit_once('/') {
                Some((parent, _)) if parent.len() > 1 && random.percent(30) => parent.to_owned(),
                _ => format!("{earlier}/{}", random.pick(NAMES)),
            };
            return path;
        }
        let path = new_path(random);
        self.0.push(path.clone());
        path
    }
}

fn new_path(random: &mut Random) -> String {
    let mut words = Vec::new();
    for _ in 0..*random.pick(&[&1, &1, &2, &2, &3]) {
        if random.percent(8) {
            words.push(random.pick(ODD_NAMES).to_owned());
        } else {
            words.push(random.pick(NAMES).to_owned());
        }
    }
    if random.percent(1) {
        words.push("n".repeat(200));
    }
    let start = match random.below(10) {
        0..=5 => "/",
        6 => "/w/",
        7 => "/tmp/",
        8 => "/home/user/",
        _ => "./",
    };
    format!("{start}{}", words.join("/"))
}

fn target(random: &mut Random, paths: &mut Paths) -> String {
    match random.below(10) {
        0..=3 => paths.some(random),
        4 => random.pick(NAMES).to_owned(),
        5 => format!("../{}", random.pick(NAMES)),
        6 => random.pick(&["/", ".", "..", "../..", "/w", "/tmp/"]).to_owned(),
        7 => "/etc/group".to_owned(),
        8 => "nowhere/at/all".to_owned(),
        _ => format!("{0}/{0}", random.pick(NAMES)),
    }
}

/// What a path ends with.
fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

/// One command, or several that belong together.
fn command(random: &mut Random, paths: &mut Paths) -> String {
    let (p, q) = (paths.some(random), paths.some(random));
    let number = random.below(1000);
    match random.below(36) {
        0..=2 => format!("mkdir -p {p}"),
        3 => format!("mkdir -p {p}; echo {number} >{p}/f; echo {number} >{p}/g"),
        4 | 5 => format!("rm -rf {p}"),
        // overlayfs does not rename a directory of a lower layer (EXDEV), nor does busybox's mv put its copy in the place of
        // another directory.
        6 | 7 => format!("[ -d {q}/{} ] || mv {p} {q}", base_name(&p)),
        8 | 9 => format!("ln -s {} {p}", target(random, paths)),
        10 => format!("ln -sfn {} {p}", target(random, paths)),
        11 => format!("ln {p} {q}"),
        12 => format!("echo {number} >{p}; ln {p} {q}"),
        13 => format!("chmod {} {p}", random.pick(MODES)),
        14 => format!("chown {} {p}", random.pick(OWNERS)),
        15 => format!("chown -R {} {p}", random.pick(OWNERS)),
        16 => format!("touch -d {} {p}", random.pick(TIMES)),
        17 | 18 => format!("echo {number} >{p}"),
        19 | 20 => format!("echo {number} >>{p}"),
        21 => format!("cp -a {p} {q}"),
        22 => format!("rm -rf {p}; echo {number} >{p}"),
        23 => format!("rm -rf {p}; mkdir {p}; echo {number} >{p}/n"),
        24 => format!("rm -rf {p}; ln -s {} {p}", target(random, paths)),
        // Under a name that nothing opens: who reads it or writes to it waits for ever.
        25 => format!("mkfifo {p}/pipe"),
        26 => format!("mknod {p} {}", random.pick(&["c 1 3", "b 7 0", "c 5 300"])),
        27 => format!("truncate -s {} {p}", random.pick(&["0", "70000", "1m", "4097"])),
        28 => format!(
            "dd if=/etc/passwd of={p} bs=1 count=40 seek={} conv=notrunc 2>/dev/null",
            random.pick(&["0", "8192", "100000"])
        ),
        // The same file with the same content: once in place, once as another file.
        29 => format!("cat {p} >/tmp/same && cat /tmp/same >{p}; rm -f /tmp/same"),
        30 => format!("cp -p {p} {p}.new && mv {p}.new {p}"),
        // Two change places.
        31 => format!("mv {p} /tmp/one && mv {q} {p}; mv /tmp/one {q}"),
        32 => format!("mv {p} {p}.away && mkdir {p}; mv {p}.away {p}/back"),
        // Gone and there again, with the old time.
        33 => format!("cp -a {p} /tmp/kept && rm -rf {p} && mv /tmp/kept {p}"),
        34 => format!("touch {p}; touch -h -d {} {p} {q}", random.pick(TIMES)),
        _ => format!("rmdir {p}; find {q} -type f -exec rm {{}} +"),
    }
}

/// Some commands, with the paths of the base's own files now and then.
pub(crate) fn commands(random: &mut Random, paths: &mut Paths, names: Names) -> Vec<String> {
    let mut commands: Vec<String> = (0..random.between(2, 7)).map(|_| command(random, paths)).collect();
    if paths.0.len() < 6 {
        // Something to work on.
        let (p, q) = (paths.some(random), paths.some(random));
        commands.insert(0, format!("mkdir -p {p} {q}; echo 1 >{p}/f; echo 2 >{p}/g; ln -s {p} {q}/l"));
        commands.insert(1, format!("ln {p}/f {q}/f"));
    }
    if random.percent(10) {
        let own = random.pick(&[
            "rm /etc/group",
            "rm -rf /home/user",
            "rm -rf /home; mkdir -p /home/a",
            "echo x:x:77:77::/:/bin/sh >>/etc/passwd",
            "chmod 700 /home/user /tmp",
            "[ -d /a/home ] || mv /home /a",
            "rm -rf /home; ln -s /tmp /home",
            "chown -R 5:5 /home",
            "rm -rf /tmp; mkdir -m 1777 /tmp",
            "touch -d @5 /etc/passwd",
            "rm /bin/vi; ln /bin/busybox /bin/vi",
        ]);
        commands.push(own.to_owned());
    }
    commands.retain(|command| names == Names::Several || !makes_names(command));
    commands
}

/// How many names a file may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Names {
    /// Several: hard links are made. The ways to keep files take what is written to one of them differently.
    Several,
    /// Only one.
    One,
}

/// Whether it makes a hard link.
fn makes_names(command: &str) -> bool {
    let parts = command.split(';').flat_map(|part| part.split("&&"));
    parts.map(str::trim).any(|part| part.starts_with("ln ") && !part.starts_with("ln -s"))
}
