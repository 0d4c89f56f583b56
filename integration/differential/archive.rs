//! Archives for ADD.

use std::io::Write as _;

use super::random::Random;

const NAMES: &[&str] = &[
    "a", "./a/b", "a/b/c", "f", "./f", "d/", "d/f", "/abs/f", "l", "l/under", "../up", "d/../d/g", "x.txt",
    ".",
];

/// A tar archive, compressed or not.
pub(crate) fn bytes(random: &mut Random) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for _ in 0..random.between(1, 7) {
        let name = random.pick(NAMES);
        let content = format!("{}\n", random.below(1000));
        let (kind, link, size) = match random.below(10) {
            0 | 1 => (tar::EntryType::Directory, None, 0),
            2 => (tar::EntryType::Symlink, Some(random.pick(&["a", "../x", "/a/b", "d", "/etc"])), 0),
            3 => (tar::EntryType::Link, Some(random.pick(&["f", "./f", "d/f", "a/b/c"])), 0),
            _ => (tar::EntryType::Regular, None, content.len()),
        };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        // `tar` refuses `..` and absolute names, so that the bytes are written as they are.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if let Some(link) = link {
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_size(size as u64);
        header.set_mode(*random.pick(&[&0o644, &0o755, &0o4711, &0o700]));
        header.set_uid(*random.pick(&[&0, &30, &1000]));
        header.set_gid(*random.pick(&[&0, &40, &1001]));
        header.set_mtime(*random.pick(&[&1_000_000_000, &1, &1_500_000_000]));
        header.set_cksum();
        archive.append(&header, &content.as_bytes()[..size]).expect("memory");
    }
    let plain = archive.into_inner().expect("memory");
    match random.below(4) {
        0 => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&plain).expect("memory");
            gzip.finish().expect("memory")
        }
        1 => zstd::encode_all(&plain[..], 1).expect("memory"),
        _ => plain,
    }
}
