//! Collectives between the GPUs of one host by copies between their memories.
//!
//! Copy engines move the data, so collectives take no multiprocessors from the model, and sums are added in
//! the order of ranks, so their bits depend on neither the number of buckets nor the launcher.
//!
//! In a collective ranks wait for each other twice: no rank writes into another's memory before that rank has
//! come to the collective, and no rank goes on before all have written. Once is enough where an earlier
//! collective has done the first: in gathers that follow each other, and where memory is only read. They wait
//! by a kernel of one warp that sets a flag in the memory of every other rank and waits for theirs. Memory
//! operations of the stream (`cuStreamBatchMemOp`), which take not even that warp, made a step 1.3 % longer
//! at dim384 on two H100s. Calls of the two streams have flags of their own.
//!
//! A few numbers, for which the model's stream waits, are summed by one kernel of one block, which stores
//! them into the memory of all ranks beside its flags.

mod copies;
mod map;
mod memory;
mod release;
mod share;

pub use map::process_token;
pub use memory::SharedMemory;
pub use share::Sharing;
