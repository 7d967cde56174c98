//! Sweeps that are killed and continued, shared, retried, limited, or rejected.

mod cluster;
mod configurations;
mod cooldowns;
mod grid;
mod halving;
mod keep;
mod kills;
mod limits;
mod samples;
mod ssh;
mod status;
