//! Text and tokens: tokenizers, corpora, and the seeded loader that feeds training.

pub mod stories;
pub mod tokenizer;

/// The end token's name in every built-in tokenizer. In text it is text: only the stream of a corpus has end
/// tokens, one before each document and one after the last.
pub const END_OF_TEXT: &str = "<|endoftext|>";
