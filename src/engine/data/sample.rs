//! A tokenized sample of a text corpus, for plans.

use super::documents::Documents;
use super::source::TextFile;
use super::tokenizer::{LostBytes, Tokenizer, timed};
use crate::error::Result;

/// Bytes of a text corpus tokenized at each sampled place.
const SAMPLE_BYTES: usize = 32 << 10;

/// Places of a text corpus that are sampled.
const SAMPLES: u64 = 4;

/// A sample of text files.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Bytes of all files.
    pub all_bytes: u64,
    /// Bytes of the files that the sample was read from.
    pub file_bytes: u64,
    /// Number of its tokens.
    pub tokens: usize,
    /// Bytes of its text.
    pub text_bytes: u64,
    /// Bytes of its text that the tokens lost.
    pub lost: LostBytes,
}

impl Sampled {
    /// Estimates the tokens of all files: their bytes times the tokens per byte of the sample.
    pub fn estimate(&self) -> usize {
        let per_byte = if self.file_bytes == 0 { 0.0 } else { self.tokens as f64 / self.file_bytes as f64 };
        (self.all_bytes as f64 * per_byte) as usize
    }
}

/// Tokenizes a sample of the files of documents: a few places, spread evenly over all bytes. Each stays
/// within its file.
///
/// # Errors
/// If a file cannot be read, or its text cannot be encoded.
pub(super) fn sample(documents: &Documents, tokenizer: &Tokenizer) -> Result<Sampled> {
    let files = documents.files();
    let all_bytes: u64 = files.iter().map(|file| file.content.file().bytes()).sum();
    let mut sampled = Sampled { all_bytes, ..Sampled::default() };
    for i in 0..SAMPLES {
        let mut at = all_bytes / SAMPLES * i;
        let mut file = 0;
        while file + 1 < files.len() && at >= files[file].content.file().bytes() {
            at -= files[file].content.file().bytes();
            file += 1;
        }
        let TextFile { content, source } = &files[file];
        let part = source.sample(content.as_ref(), at, SAMPLE_BYTES, documents.rules())?;
        // A sample may begin and end within a character.
        let piece = part.text.trim_matches(char::REPLACEMENT_CHARACTER).to_owned();
        sampled.file_bytes += part.file_bytes;
        sampled.text_bytes += piece.len() as u64;
        let worker = tokenizer.clone();
        let (tokens, lost) = timed(piece.len(), move || worker.encode_counting(&piece))??;
        sampled.tokens += tokens.len();
        sampled.lost += lost;
    }
    Ok(sampled)
}
