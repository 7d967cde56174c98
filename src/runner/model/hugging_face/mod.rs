//! HuggingFace's classes that correspond to xrun's models, one file each. Each translates in both directions:
//! a model's keys and `config.json`, its parameters and the tensors in files.

mod activations;
mod blocks;
mod class;
mod classes;
mod companions;
mod fields;
mod gpt2;
mod import;
#[cfg(test)]
mod key_tests;
mod keys;
mod lacks;
mod llama;
#[cfg(test)]
mod name_tests;
mod names;
mod nanochat;
pub mod peft;
mod qwen3;
mod resolve;
mod rope;
mod tensor;
#[cfg(test)]
mod tests;

pub use classes::{express, ignore, keys};
pub use companions::{
    CHAT_TEMPLATE, CONFIG, Companions, GENERATION, MAX_COMPANION_BYTES, OF_MODEL, OF_TOKENIZER, SETTINGS,
    TOKEN_MAP,
};
pub use import::ImportedWeights;
pub use keys::{Keys, Setting};
pub use tensor::{HfFacts, HfModel, HfTensor};
