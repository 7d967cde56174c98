//! The library from the outside, and the project itself: its imports, its words, the licences of what it
//! uses.
//!
//! One binary, since each links the whole library: `cargo test --test library engine::` runs the tests of one
//! folder.

mod checkpoint;
mod corpora;
mod data;
mod engine;
mod export;
mod layers;
mod metric_tables;
mod parity;
mod plan;
mod recipe;
mod results;
mod supply_chain;
