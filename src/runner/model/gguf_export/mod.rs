//! Exports a trained model as one file in GGUF, for llama.cpp.
//!
//! The file depends only on its own name, the tensors, the dimensions, the tokenizer and what is said of the
//! training text. What llama.cpp would compute or tokenize differently is refused. Names and conventions are
//! those of llama.cpp's `convert_hf_to_gguf.py` and `gguf-py`.

mod architecture;
mod ends;
mod facts;
mod metadata;
mod pre_tokenizer;
mod rope;
mod tensors;
#[cfg(test)]
mod tests;
mod tokenizer;
#[cfg(test)]
mod tokenizer_tests;

use super::hf_export::{self, Export};
use super::weights::Weights;
use crate::error::Result;
use crate::gguf;
use architecture::Architecture;
pub use facts::Facts;
use std::path::Path;

/// Writes the file `path`, and returns a sentence about each difference that remains.
///
/// # Errors
/// With exit code 2 if llama.cpp cannot express the model or its tokenizer exactly, a weight does not fit the
/// element type, or something other than a file in GGUF is at `path`. With exit code 1 if a weight is
/// missing, unknown or has a different shape, or writing fails. After an error what was at `path` is still
/// there.
pub fn write(
    path: &Path,
    export: &Export,
    facts: &Facts,
    weights: &dyn Weights,
    tokenizer_json: &str,
) -> Result<Vec<String>> {
    let hf = hf_export::expressed(export, weights)?;
    let architecture = Architecture::new(&hf, &export.model)?;
    let tokenizer = tokenizer::Tokenizer::new(export, tokenizer_json)?;
    let ends = ends::Ends::new(export, facts, tokenizer_json)?;
    let element = export.dtype.element();
    let metadata = metadata::metadata(export, facts, architecture, &hf, &tokenizer, &ends)?;
    let tensors = tensors::tensors(&export.model, architecture, &hf, element, weights)?;
    gguf::write(path, &metadata, &tensors)?;
    Ok(tokenizer.remarks.into_iter().chain(ends.remarks).collect())
}
