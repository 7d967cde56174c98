//! Collectives between the GPUs of one host by copies between their memories.
//!
//! Copy engines move the data, so collectives take no multiprocessors from the model, and sums are added in
//! the order of ranks, so their bits depend on neither the number of buckets nor the launcher.
//!
//! A collective has two handshakes: no rank writes into another's memory before that rank has come to the
//! collective, and no rank goes on before all have written. A handshake sets a flag in the memory of every
//! other rank, waits for theirs and resets these, all by memory operations of the stream, which take no
//! multiprocessors either and can be captured into a graph. Calls of the two streams have flags of their own.
//!
//! A few numbers, for which the model's stream waits, are summed by one kernel of one block instead, which
//! stores them into the memory of all ranks and has its own flags. Without numbers, ranks wait for each other
//! by it.

mod copies;
mod map;
mod memory;
mod release;
mod share;

pub(crate) use map::process_token;
pub use memory::{SharedMemory, flags};
pub(crate) use share::Sharing;
