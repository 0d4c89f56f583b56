//! The numbers in a pack, and objects that are made from others.

use std::io::{self, BufRead};

use crate::context::git::GitError;

/// The fault of a server.
pub(super) fn corrupt(what: &'static str) -> GitError {
    GitError::Corrupt(what.to_owned())
}

/// What reading a pack fails with: half a pack is the server's fault, all else that of the disk.
pub(super) fn reading(error: io::Error) -> GitError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => corrupt("a pack that ends too early"),
        io::ErrorKind::InvalidData => corrupt("an object that is not compressed as it should be"),
        _ => GitError::Pack(error),
    }
}

/// Makes an object of `size` bytes from `base` and a delta (gitformat-pack(5), "Deltified representation").
pub(super) fn apply_delta(base: &[u8], delta: &mut impl BufRead, size: u64) -> Result<Vec<u8>, GitError> {
    if little(delta)? != base.len() as u64 || little(delta)? != size {
        return Err(corrupt("a delta of another object"));
    }
    let size = usize::try_from(size).map_err(|_| corrupt("an object that is too large"))?;
    let mut made = Vec::with_capacity(size);
    while let Some(order) = optional_byte(delta)? {
        let (mut from, mut count) = (0_usize, usize::from(order));
        if order & 0x80 != 0 {
            for bit in 0..4 {
                if order & (1 << bit) != 0 {
                    from |= usize::from(byte(delta)?) << (8 * bit);
                }
            }
            count = 0;
            for bit in 0..3 {
                if order & (0x10 << bit) != 0 {
                    count |= usize::from(byte(delta)?) << (8 * bit);
                }
            }
            count = if count == 0 { 0x10000 } else { count };
        }
        let begin = made.len();
        if count == 0 || begin + count > size {
            return Err(corrupt("a delta that makes more than it says"));
        }
        if order & 0x80 != 0 {
            let piece = base.get(from..from + count);
            made.extend_from_slice(piece.ok_or_else(|| corrupt("a delta that copies what is not there"))?);
        } else {
            made.resize(begin + count, 0);
            delta.read_exact(&mut made[begin..]).map_err(reading)?;
        }
    }
    if made.len() == size { Ok(made) } else { Err(corrupt("a delta that makes less than it says")) }
}

fn optional_byte(source: &mut impl BufRead) -> Result<Option<u8>, GitError> {
    let first = source.fill_buf().map_err(reading)?.first().copied();
    if first.is_some() {
        source.consume(1);
    }
    Ok(first)
}

fn byte(source: &mut impl BufRead) -> Result<u8, GitError> {
    optional_byte(source)?.ok_or_else(|| corrupt("an object that ends too early"))
}

/// A number whose lowest bits come first.
pub(super) fn little(source: &mut impl BufRead) -> Result<u64, GitError> {
    let (mut value, mut shift) = (0_u64, 0);
    loop {
        let next = byte(source)?;
        if shift > 56 {
            return Err(corrupt("a size that is too large"));
        }
        value |= u64::from(next & 0x7f) << shift;
        shift += 7;
        if next & 0x80 == 0 {
            return Ok(value);
        }
    }
}

/// The type of an entry and the size of what is stored.
pub(super) fn entry_head(source: &mut impl BufRead) -> Result<(u8, u64), GitError> {
    let first = byte(source)?;
    let size = u64::from(first & 0x0f);
    let more = if first & 0x80 == 0 { 0 } else { little(source)? };
    if more >> 58 != 0 {
        return Err(corrupt("a size that is too large"));
    }
    Ok(((first >> 4) & 7, size | (more << 4)))
}

/// How far before an entry its base is.
pub(super) fn distance(source: &mut impl BufRead) -> Result<u64, GitError> {
    let mut next = byte(source)?;
    let mut value = u64::from(next & 0x7f);
    while next & 0x80 != 0 {
        next = byte(source)?;
        if value >> 55 != 0 {
            return Err(corrupt("a delta of nothing"));
        }
        value = ((value + 1) << 7) | u64::from(next & 0x7f);
    }
    Ok(value)
}
