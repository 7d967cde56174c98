//! HuggingFace's classes that correspond to xrun's models, one file each. Each translates in both directions:
//! a model's keys and `config.json`, its parameters and the tensors in files.

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
