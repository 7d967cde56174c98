//! Number formats, memory, threads, products and communicators: everything the engine runs on.
//!
//! Nothing here depends on programs or models.

pub mod backend;
pub mod communicator;
pub mod cpu;
pub mod cuda;
pub mod dtype;
pub mod elem;
pub mod gpu;
pub mod host_allocator;
pub mod philox;
pub mod vectors;

pub use backend::{Device, Memory};
pub use dtype::{DType, Precision, ProductPrecision};
pub use elem::{Elem, Real};
