//! What an op speaks to on a GPU: a queue that takes kernels, matrix products and copies, in order.
//!
//! No vendor stands in here. A back end implements [`Queue`] ([`device::cuda`](super::cuda) does, on a CUDA
//! stream), and the [`Collector`] implements it to list what programs need without running anything.

mod collector;
mod kernel;
mod product;
mod properties;
mod queue;

pub use collector::{Collector, Requests};
pub use kernel::{Arg, DevicePtr, Grid, Kernel};
pub use product::{Operand, Product, ProductShape, fallback_kernel};
pub use properties::Properties;
pub use queue::Queue;
