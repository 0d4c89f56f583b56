//! The interpreter: what each instruction does.

pub mod copy;
