//! The same against a registry that others wrote, and with what others read.
