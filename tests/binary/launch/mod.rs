//! Ranks as threads, as processes, and by an external launcher: the binary on every path.
#![cfg(target_os = "linux")]

mod deaths;
mod environment;
mod gates;
mod party;
#[path = "../run/place.rs"]
#[allow(dead_code)]
mod place;
mod resume;
mod signals;
