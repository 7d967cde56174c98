//! Files in GGUF, version 3, the format of llama.cpp: metadata, a table of tensors, and their elements.
//!
//! The layout is <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Numbers are little-endian. All
//! lengths are checked before a byte is written. A file is written piece by piece, with one tensor in memory
//! at a time, and appears whole or not at all.

mod element;
mod head;
#[cfg(test)]
mod tests;
mod value;
mod write;

pub use element::Element;
pub use value::Value;
pub use write::{Tensor, write};
