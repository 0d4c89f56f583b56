//! The interpreter: what each instruction does.

pub mod add;
pub mod copy;
