//! Turns a plan into programs: the model records its forward once, and passes do the rest.

mod adapters;
mod flops;
pub mod formula;
mod fp8;
mod fp8_weights;
mod gather;
mod generation;
pub mod gguf_export;
pub mod hf_export;
pub mod hugging_face;
mod initial;
mod layout;
mod loss_scale;
mod merge;
mod padding;
mod parameters;
mod programs;
pub mod purpose;
mod recording;
mod scoring;
#[cfg(test)]
mod tests;
pub mod text;
mod weights;
mod window;

pub use adapters::{ModelTensors, first_matrix, second_matrix, stacked_rows};
pub use flops::flops_per_token;
pub use formula::Formula;
pub use fp8::{SCALES_PREFIX, ScaleSearch, counted_elements, is_of_scales};
pub use generation::{Generator, Prefill};
pub use layout::{prompt_rows, prompt_shape, prompt_shapes, state};
pub use merge::MergedWeights;
pub use parameters::{parameters, parameters_of_model};
pub use programs::{Programs, schedule_tables};
pub use purpose::{ActivationKind, PromptShape, Purpose};
pub use recording::{Head, activations, check_recording, head_of};
pub use scoring::{ScoringPrograms, ScoringShape};
pub use weights::{CheckpointWeights, FoldedHead, Weights, WeightsKind, is_of_average};
pub use window::attended_tokens;
