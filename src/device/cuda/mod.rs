//! The CUDA back end: an NVIDIA GPU through its driver, kernels compiled where they run, products through cuBLASLt.
//!
//! Libraries are found when a run needs them: a binary built without CUDA runs on a machine with it.

pub mod queue;
pub mod sources;

pub use queue::{Arg, Collector, DevicePtr, Grid, Kernel, Operand, Product, Properties, Queue};
