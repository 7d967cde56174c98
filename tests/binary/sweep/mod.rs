//! Sweeps from outside: killed and continued, shared, retried, limited, refused.

mod configurations;
mod cooldowns;
mod grid;
mod halving;
mod keep;
mod kills;
mod limits;
mod samples;
mod status;
