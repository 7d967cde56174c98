//! What the engine runs on: number formats, memory, threads, products and communicators.
//!
//! Nothing here knows of programs or models; `unsafe` lives here and, later, in kernel launches.

pub mod communicator;
pub mod cpu;
pub mod cuda;
pub mod dtype;
pub mod elem;
pub mod gpu;
pub(crate) mod lock;
pub mod machine;
pub mod philox;

pub use dtype::{DType, Precision, ProductPrecision};
pub use elem::{Elem, Real};
pub use machine::{Device, Memory};
