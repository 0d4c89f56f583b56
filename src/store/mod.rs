//! What is kept on disk: blobs, unpacked layers and names.

pub mod chain;
pub mod mount;
mod settle;
pub mod unpacked;
pub mod workspace;

#[cfg(test)]
pub(crate) mod testing;

#[cfg(test)]
pub(crate) mod layer_laws;
