//! Plan to programs: a family records its forward once, passes do the rest.

mod decoder;
pub mod family;
pub mod formula;
mod generation;
pub mod hf_export;
mod layout;
mod norm;
mod programs;
mod registry;
#[cfg(test)]
mod tests;

pub use family::{Family, HfFacts, HfModel, HfTensor, PromptShape, Purpose};
pub use formula::Formula;
pub use generation::{Generator, Prefill};
pub use layout::{prompt_rows, prompt_shape, state};
pub use programs::{Programs, schedule_table};
pub use registry::{family, flops_per_token};
