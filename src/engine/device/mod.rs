//! Number formats, memory, threads, products and communicators: everything the engine runs on.
//!
//! Nothing here depends on programs or models.

pub mod backend;
pub mod communicator;
pub mod cpu;
pub mod cuda;
pub mod dtype;
pub mod elem;
pub mod fp8;
pub mod gpu;
pub mod host_allocator;
pub mod philox;
mod rounding;
pub mod vectors;

pub use backend::{Device, Memory};
pub use dtype::{DType, Precision, ProductPrecision};
pub use elem::{Elem, Real};
pub use fp8::{E4m3, E5m2};
