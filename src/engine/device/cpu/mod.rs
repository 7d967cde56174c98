//! The CPU back end: aligned memory, a thread pool with SIMD dispatch, views of tensors, matrix products.

pub mod buffer;
pub mod matmul;
pub mod pool;
pub mod view;

pub use buffer::Buffer;
pub use matmul::Matrix;
pub use pool::Pool;
pub use view::{Address, ROWS_AHEAD, View, ViewMut};
