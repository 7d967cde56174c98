//! HuggingFace's classes that xrun's models correspond to, one file each, in both directions: a model's keys
//! and `config.json`, its parameters and the tensors of files.

mod activations;
mod blocks;
mod class;
mod classes;
mod gpt2;
mod import;
mod keys;
mod lacks;
mod llama;
mod nanochat;
mod qwen3;
mod rope;
mod tensor;
#[cfg(test)]
mod tests;

pub use classes::{express, keys};
pub use import::ImportedWeights;
pub use keys::Keys;
pub use tensor::{HfFacts, HfModel, HfTensor};
