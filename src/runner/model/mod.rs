//! Turns a plan into programs: the model records its forward once, and passes do the rest.

mod decoder;
pub mod formula;
mod gather;
mod generation;
pub mod hf_export;
pub mod hugging_face;
mod initial;
mod layout;
mod loss_scale;
mod norm;
mod programs;
pub mod purpose;
mod scoring;
#[cfg(test)]
mod tests;
pub mod text;
mod weights;
mod window;

pub use decoder::{activations, flops_per_token, parameters};
pub use formula::Formula;
pub use generation::{Generator, Prefill};
pub use layout::{prompt_rows, prompt_shape, prompt_shapes, state};
pub use programs::{Programs, schedule_tables};
pub use purpose::{ActivationKind, PromptShape, Purpose};
pub use scoring::{ScoringPrograms, ScoringShape};
pub use weights::{CheckpointWeights, FoldedHead, Weights, WeightsKind};
pub use window::attended_tokens;
