//! Sweeps from outside: killed and continued, shared, retried, limited, refused.
#![cfg(unix)]

mod grid;
mod keep;
mod kills;
mod limits;
mod status;

#[path = "../run/place.rs"]
#[allow(dead_code)]
mod place;
