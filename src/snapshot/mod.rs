//! What a step changed.
