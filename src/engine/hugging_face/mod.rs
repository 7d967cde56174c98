//! Folders in HuggingFace's form, as others made them: `config.json`, weights in safetensors, a tokenizer.
//!
//! Nothing in a folder is trusted. Every length is checked against the size of its file before memory is
//! allocated for it, no code of a folder runs, and an error names the file, the tensor or key, the value and
//! the next step. What a configuration means for a model is known to `model::hugging_face`.

mod config;
mod element;
mod files;
mod folder;
mod header;
mod index;
mod json;
mod reference;

pub use config::Config;
pub use folder::{Folder, Tensor};
pub use reference::{REFERENCE, Reference};
