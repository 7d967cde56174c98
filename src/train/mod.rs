//! (see lib.rs)

pub mod checkpoint;
pub mod export;
