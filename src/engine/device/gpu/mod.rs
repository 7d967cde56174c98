//! The interface of a GPU for ops: a queue of kernels, matrix products and copies, executed in order.
//!
//! Nothing here depends on a vendor. A back end implements [`Queue`]; [`device::cuda`](super::cuda) does so
//! on a CUDA stream. The [`Collector`] also implements it, to list what programs need without running
//! anything.

mod collector;
mod copy_small;
mod fill;
mod kernel;
mod product;
mod properties;
mod queue;
mod rank_sum;
mod sum_at_once;

pub use collector::{Collector, Requests};
pub use copy_small::{MAX_COPIES, SmallCopy, copy_small};
pub use fill::fill_words;
pub use kernel::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS, TensorMap};
pub use product::{Addend, Operand, Product, ProductShape, fallback_kernel};
pub use properties::Properties;
pub use queue::{Collective, Gathered, OwnedCopy, OwnedSum, Queue, consecutive_addresses};
pub use rank_sum::{STAGING_STEP, rank_sum};
pub use sum_at_once::{AREA_FLAGS, area_capacity, area_words, sum_at_once, wait_for_ranks};
