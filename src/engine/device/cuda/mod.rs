//! The CUDA back end: an NVIDIA GPU through its driver, kernels compiled on the machine that runs them,
//! products through cuBLASLt.
//!
//! Libraries are loaded when a run needs them, so a binary built without CUDA runs on a machine that has it.

pub mod algorithms;
mod availability;
pub mod cache;
mod collectives;
pub mod compiler;
mod context;
mod cublaslt;
pub mod doctor;
pub mod download;
pub mod driver;
pub mod gpu;
mod graph;
pub mod held;
mod kernels;
pub mod libraries;
pub mod limits;
mod mapping;
pub mod memory;
pub mod monitor;
pub mod nccl;
pub mod peers;
pub mod products;
mod ranks;
mod selection;
pub mod sources;
mod stream;
mod transport;

pub use algorithms::{Algorithm, Algorithms};
pub use availability::{describe, usable};
pub use cache::{TOKENS, cache_folder, tokens_folder};
pub use context::OpenedContext;
pub use cublaslt::{WORKSPACE, library_version};
pub use gpu::Gpu;
pub use graph::Graph;
pub use monitor::{MemoryCause, PowerMeter, SETTLING};
pub use nccl::Nccl;
pub use peers::{SharedMemory, Sharing, process_token};
pub use ranks::CollectiveQueue;
pub(crate) use transport::Lane;
