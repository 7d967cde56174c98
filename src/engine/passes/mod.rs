//! Passes from program to program: everything between recording a model and running it, in one visible order.
//!
//! unfuse (ablation) → autodiff → recompute → fp8 → exchange → buckets → memory; for generation, few_rows →
//! memory. `model` calls all passes except the last, which `exec` calls. Each can be printed and tested
//! alone.

pub mod autodiff;
pub mod buckets;
pub mod exchange;
pub mod few_rows;
pub mod fp8;
pub mod fp8_fuse;
mod fp8_head;
pub mod memory;
pub mod recompute;
pub mod unfuse;

pub use autodiff::differentiate;
pub use buckets::{append_group, insert_all_reduces};
pub use exchange::{DividedRows, exchange_rows};
pub use few_rows::fuse_few_rows;
pub use fp8::{fp8_params, observe_products, quantize_products};
pub use fp8_fuse::fuse_quantize;
pub use memory::{Block, MemoryPlan};
pub use recompute::recompute;
pub use unfuse::unfuse;
