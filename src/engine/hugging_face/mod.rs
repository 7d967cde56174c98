//! Folders in HuggingFace format, made by third parties: `config.json`, weights in safetensors, a tokenizer.
//!
//! Nothing in a folder is trusted. Every length is checked against the size of its file before memory is
//! allocated for it, no code from a folder runs, and an error names the file, the tensor or key, the value
//! and the next step. `model::hugging_face` interprets the configuration.

mod config;
mod element;
mod files;
mod folder;
mod header;
mod index;
mod json;
mod reference;

pub use config::Config;
pub use folder::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Folder, Tensor};
pub use reference::{REFERENCE, Reference};
