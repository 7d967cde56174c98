//! Ranks as threads, as processes, and from an external launcher: the binary on every path.

mod deaths;
mod environment;
mod gates;
mod launched;
mod resume;
mod shards;
mod signals;
