//! (see lib.rs)

pub mod checkpoint;
