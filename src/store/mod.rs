//! What is kept on disk: blobs, unpacked layers and names.

pub mod mount;
pub mod unpacked;
pub mod workspace;

#[cfg(test)]
pub(crate) mod testing;
