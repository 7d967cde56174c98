//! Plan to program: the transformer, recorded once, one function per block.
//!
//! Qwen3's architecture: RMSNorm before each half, per-head norms of queries and keys, rotary embedding, grouped-query
//! causal attention, SwiGLU, no biases.

mod layout;
mod programs;
#[cfg(test)]
mod tests;
mod transformer;

pub use layout::state;
pub use programs::{Programs, generator, schedule_table};
pub use transformer::Purpose;
