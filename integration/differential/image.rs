//! An image as facts that can be compared one by one; its layers are put on top of each other by what the OCI image
//! specification says, and by no code of the product.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;
use sha2::Digest as _;

use crate::support::oci::LayoutImage;

/// What is known about an image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// For each layer, bottom first, a line for each entry.
    pub(crate) layers: Vec<Vec<String>>,
    /// The flattened files: by path, with a leading `/`.
    pub(crate) tree: Tree,
    /// The config without times.
    pub(crate) config: Value,
    /// `created_by` of each row, `-` in front of those without a layer.
    pub(crate) history: Vec<String>,
    /// Paths that were one of several names of a file in some layer or the image below it.
    pub(crate) shared: BTreeSet<String>,
    /// What no layer may have.
    pub(crate) faults: Vec<String>,
}

/// Files by path.
pub(crate) type Tree = BTreeMap<String, File>;

/// A file in an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct File {
    /// `file`, `directory`, `symlink`, …
    pub(crate) kind: String,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Numbers of user and group.
    pub(crate) owner: (u64, u64),
    /// Seconds; `now` if it is a time since this machine was started, and nothing else that a program sets.
    pub(crate) time: String,
    /// Bytes, and their digest.
    pub(crate) content: (u64, String),
    /// Where a symbolic link points.
    pub(crate) target: String,
    /// Numbers of a device.
    pub(crate) device: (u32, u32),
    /// Extended attributes.
    pub(crate) attributes: BTreeMap<String, String>,
    /// Which file it is a name of: a number that all names of a file share.
    pub(crate) inode: usize,
}

impl File {
    /// Name and value of each field that two builders may disagree about.
    pub(crate) fn fields(&self) -> [(&'static str, String); 8] {
        [
            ("kind", self.kind.clone()),
            ("mode", format!("{:04o}", self.mode)),
            ("owner", format!("{}:{}", self.owner.0, self.owner.1)),
            ("content", format!("{} bytes {}", self.content.0, self.content.1)),
            ("target", self.target.clone()),
            ("device", format!("{}:{}", self.device.0, self.device.1)),
            ("attributes", format!("{:?}", self.attributes)),
            ("time", self.time.clone()),
        ]
    }
}

/// Reads the only image of a layout.
pub(crate) fn read(layout: &Path) -> Facts {
    let image = LayoutImage::only(layout);
    let mut facts = Facts { config: image.raw_config.clone(), ..Facts::default() };
    facts.history = history(&image.raw_config);
    if let Some(config) = facts.config.as_object_mut() {
        for key in ["created", "history", "rootfs"] {
            config.remove(key);
        }
    }
    let mut next = 0;
    for number in 0..image.manifest.layers().len() {
        let layer = image.layer_bytes(layout, number);
        let mut applied =
            Applied { tree: &mut facts.tree, new: BTreeSet::new(), lines: Vec::new(), next: &mut next };
        let faults = applied.layer(&layer);
        let lines = std::mem::take(&mut applied.lines);
        facts.layers.push(lines);
        let names = names(&facts.tree);
        let firsts: BTreeSet<&str> =
            names.iter().filter(|(path, first)| path != first).map(|(_, first)| *first).collect();
        let shared =
            names.iter().filter(|(_, first)| firsts.contains(*first)).map(|(path, _)| (*path).to_owned());
        facts.shared.extend(shared.collect::<Vec<_>>());
        facts.faults.extend(faults.into_iter().map(|fault| format!("layer {number}: {fault}")));
    }
    facts
}

fn history(config: &Value) -> Vec<String> {
    let rows = config["history"].as_array().into_iter().flatten();
    rows.map(|row| {
        let empty = if row["empty_layer"] == true { "-" } else { "" };
        format!("{empty}{}", row["created_by"].as_str().unwrap_or_default())
    })
    .collect()
}

/// A layer on its way into the tree.
struct Applied<'a> {
    tree: &'a mut Tree,
    /// What this layer has put there.
    new: BTreeSet<String>,
    lines: Vec<String>,
    next: &'a mut usize,
}

impl Applied<'_> {
    /// Applies all entries; says what is wrong with them.
    fn layer(&mut self, packed: &[u8]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut plain = Vec::new();
        if packed.starts_with(&[0x1f, 0x8b]) {
            flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut plain).expect("gzip");
        } else {
            plain.extend_from_slice(packed);
        }
        let mut archive = tar::Archive::new(&plain[..]);
        let (mut records, mut long) = (Records::new(), [None, None]);
        for entry in archive.entries().expect("a tar archive").raw(true) {
            let mut entry = entry.expect("entry");
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("content");
            let kind = entry.header().entry_type();
            match kind {
                tar::EntryType::XHeader => records = read_records(&content),
                tar::EntryType::GNULongName => long[0] = content.strip_suffix(b"\0").map(<[u8]>::to_vec),
                tar::EntryType::GNULongLink => long[1] = content.strip_suffix(b"\0").map(<[u8]>::to_vec),
                _ => {
                    let records = std::mem::take(&mut records);
                    let [path, link] = std::mem::take(&mut long);
                    let path = records.get("path").cloned().or(path);
                    let path = path_of(&path.unwrap_or_else(|| entry.path_bytes().into_owned()));
                    let link = records.get("linkpath").cloned().or(link);
                    let link = link.or_else(|| entry.link_name_bytes().map(Cow::into_owned));
                    let (file, line) = described(entry.header(), &records, link.as_deref(), &content);
                    self.lines.push(format!("{path} {line}"));
                    let link = link.map(|name| path_of(&name));
                    if let Some(fault) = self.entry(&path, file, kind, link) {
                        faults.push(format!("{path}: {fault}"));
                    }
                }
            }
        }
        faults
    }

    fn entry(
        &mut self,
        path: &str,
        mut file: File,
        kind: tar::EntryType,
        link: Option<String>,
    ) -> Option<&'static str> {
        let (parent, name) = path.rsplit_once('/')?;
        if name == ".wh..wh..opq" {
            let old: Vec<String> = self.below(parent).filter(|path| !self.new.contains(path)).collect();
            old.iter().for_each(|path| drop(self.tree.remove(path)));
            return None;
        }
        if let Some(hidden) = name.strip_prefix(".wh.") {
            let hidden = format!("{parent}/{hidden}");
            let fault = (!self.tree.contains_key(&hidden)).then_some("hides what is not there");
            self.remove(&hidden);
            return fault.or_else(|| self.new.contains(&hidden).then_some("hides what the layer itself has"));
        }
        if path == "/" {
            self.tree.insert(path.to_owned(), file);
            return None;
        }
        let misplaced =
            !parent.is_empty() && self.tree.get(parent).is_none_or(|parent| parent.kind != "directory");
        let twice = self.new.contains(path);
        let mut unlinked = false;
        if kind == tar::EntryType::Link {
            match self.tree.get(&link.unwrap_or_default()) {
                Some(other) => file = other.clone(),
                None => unlinked = true,
            }
        } else {
            *self.next += 1;
            file.inode = *self.next;
        }
        if file.kind != "directory" || self.tree.get(path).is_some_and(|old| old.kind != "directory") {
            self.remove(path);
        }
        self.tree.insert(path.to_owned(), file);
        self.new.insert(path.to_owned());
        match () {
            () if misplaced => Some("is in no directory"),
            () if twice => Some("is there twice"),
            () if unlinked => Some("is another name of nothing"),
            () => None,
        }
    }

    fn below(&self, directory: &str) -> impl Iterator<Item = String> {
        let prefix = format!("{directory}/");
        let range = self.tree.range(prefix.clone()..);
        range.map(|(path, _)| path.clone()).take_while(move |path| path.starts_with(&prefix))
    }

    fn remove(&mut self, path: &str) {
        let below: Vec<String> = self.below(path).collect();
        below.iter().for_each(|path| drop(self.tree.remove(path)));
        self.tree.remove(path);
    }
}

/// With one `/` in front, none at the end, and what is not printable escaped.
fn path_of(name: &[u8]) -> String {
    let name = name.strip_prefix(b"./").unwrap_or(name).escape_ascii().to_string();
    format!("/{}", name.trim_matches('/'))
}

/// A time of RUN's own.
const NOW: &str = "now";

/// Programs set no times between these two.
pub(super) fn time(seconds: u64) -> String {
    if (1_790_000_000..1_999_999_999).contains(&seconds) { NOW.to_owned() } else { seconds.to_string() }
}

/// The records of an extended header, by their keys.
type Records = BTreeMap<String, Vec<u8>>;

/// By their lengths: the library parts them at line breaks, which are in values, too.
fn read_records(mut bytes: &[u8]) -> Records {
    let mut records = Records::new();
    while !bytes.is_empty() {
        let blank = bytes.iter().position(|byte| *byte == b' ').expect("a length");
        let length = std::str::from_utf8(&bytes[..blank]).expect("digits").parse().expect("a number");
        let (record, rest) = bytes.split_at(length);
        let record = record[blank + 1..].strip_suffix(b"\n").expect("the end of a record");
        let equals = record.iter().position(|byte| *byte == b'=').expect("a key");
        let key = String::from_utf8(record[..equals].to_vec()).expect("a key of text");
        assert!(records.insert(key, record[equals + 1..].to_vec()).is_none(), "a key is there twice");
        bytes = rest;
    }
    records
}

fn described(header: &tar::Header, records: &Records, link: Option<&[u8]>, content: &[u8]) -> (File, String) {
    let attributes = records.iter().filter_map(|(key, value)| {
        Some((key.strip_prefix("SCHILY.xattr.")?.to_owned(), value.escape_ascii().to_string()))
    });
    let attributes: BTreeMap<String, String> = attributes.collect();
    // What is too large for a field of the header is in a record.
    let number = |key: &str, field: std::io::Result<u64>| match records.get(key) {
        Some(value) => String::from_utf8_lossy(value).parse().expect("a number"),
        None => field.expect("a number"),
    };
    let mtime = records.get("mtime").map(|value| value.escape_ascii().to_string());
    let seconds = header.mtime().expect("time");
    let whole = mtime.as_deref().and_then(|text| text.split('.').next()?.parse().ok()).unwrap_or(seconds);
    let kind = match header.entry_type() {
        tar::EntryType::Directory => "directory",
        tar::EntryType::Symlink => "symlink",
        tar::EntryType::Link => "link",
        tar::EntryType::Fifo => "fifo",
        tar::EntryType::Char => "char",
        tar::EntryType::Block => "block",
        tar::EntryType::Regular | tar::EntryType::Continuous => "file",
        _ => "?",
    };
    let target = link.map(|name| name.escape_ascii().to_string()).unwrap_or_default();
    let digest: String =
        sha2::Sha256::digest(content).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let file = File {
        kind: kind.to_owned(),
        mode: header.mode().expect("mode") & 0o7777,
        owner: (number("uid", header.uid()), number("gid", header.gid())),
        time: time(whole),
        content: (content.len() as u64, digest),
        target,
        device: if matches!(kind, "char" | "block") {
            let number = |number: std::io::Result<Option<u32>>| number.expect("device").unwrap_or(0);
            (number(header.device_major()), number(header.device_minor()))
        } else {
            (0, 0)
        },
        attributes,
        inode: 0,
    };
    let exact = match mtime {
        Some(exact) if file.time != NOW => exact,
        _ => file.time.clone(),
    };
    let fields: Vec<String> = file.fields()[..7].iter().map(|(_, value)| value.clone()).collect();
    (file.clone(), format!("{} {exact}", fields.join(" ")))
}

/// Groups of names that are one file: from each path, the others' first.
pub(crate) fn names(tree: &Tree) -> BTreeMap<&str, &str> {
    let mut first: BTreeMap<usize, &str> = BTreeMap::new();
    let files = tree.iter().filter(|(_, file)| file.kind != "directory");
    files.map(|(path, file)| (path.as_str(), *first.entry(file.inode).or_insert(path))).collect()
}
