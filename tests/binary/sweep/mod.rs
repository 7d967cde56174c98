//! Sweeps from outside: killed and continued, shared, retried, limited, refused.

mod grid;
mod keep;
mod kills;
mod limits;
mod status;
