//! Collectives between the GPUs of one host by copies between their memories.
//!
//! Copy engines move the data, so collectives take no multiprocessors from the model. Sums are added in rank
//! order, so their bits depend neither on the number of buckets nor on the launcher.
//!
//! In a collective, ranks wait for each other twice: no rank writes into another's memory before that rank
//! has reached the collective, and no rank continues before all have written. One wait is enough if an
//! earlier collective has already done the first: in gathers that follow each other, and if memory is only
//! read. To wait, a kernel of one warp sets a flag in the memory of every other rank and waits for their
//! flags. Stream memory operations (`cuStreamBatchMemOp`), which do not even need that warp, made a step 1.3
//! % longer at dim384 on two H100s. The two streams have separate flags.
//!
//! A few numbers that the model's stream waits for are summed by a kernel of one block, which stores them
//! next to its flags in the memory of all ranks.

mod copies;
mod map;
mod memory;
mod release;
mod share;

pub use map::process_token;
pub use memory::SharedMemory;
pub use share::Sharing;
