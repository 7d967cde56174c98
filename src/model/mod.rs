//! Plan to programs: a family records its forward once, passes do the rest.

mod decoder;
pub mod family;
mod folded_head;
pub mod formula;
mod gather;
mod generation;
pub mod hf_export;
pub mod hugging_face;
mod layout;
mod loss_scale;
mod norm;
mod programs;
mod registry;
#[cfg(test)]
mod tests;
mod weights;
mod window;

pub use family::{ActivationKind, Family, PromptShape, Purpose};
pub use folded_head::FoldedHead;
pub use formula::Formula;
pub use generation::{Generator, Prefill};
pub use layout::{prompt_rows, prompt_shape, state};
pub use programs::{Programs, schedule_tables};
pub use registry::{family, flops_per_token, parameters};
pub use weights::{CheckpointWeights, Weights, WeightsOf};
pub use window::attended_tokens;
