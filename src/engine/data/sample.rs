//! A tokenized sample of a text corpus, for plans.

use super::documents::Documents;
use super::tokenizer::{LostBytes, Tokenizer, timed};
use crate::error::Result;

/// Bytes of a text corpus tokenized at each sampled place.
const SAMPLE_BYTES: usize = 8 << 10;

/// Places of a text corpus that are sampled.
const SAMPLES: u64 = 16;

/// A sample of the documents of a corpus.
#[derive(Debug, Default)]
pub(super) struct Sampled {
    /// Number of all documents.
    documents: usize,
    /// Bytes of content that all documents take.
    all_bytes: u64,
    /// Bytes of content that the sample takes.
    bytes: u64,
    /// Number of its tokens.
    tokens: usize,
    /// Bytes of its text.
    pub text_bytes: u64,
    /// Bytes of its text that the tokens lost.
    pub lost: LostBytes,
}

impl Sampled {
    /// Estimates the tokens of all documents: their bytes times the tokens per byte of the sample, and the
    /// tokens between documents.
    pub fn estimate(&self) -> usize {
        let per_byte = self.tokens as f64 / self.bytes.max(1) as f64;
        (self.all_bytes as f64 * per_byte) as usize + self.documents + 1
    }
}

/// Tokenizes a sample of documents: places spread evenly over the bytes of all.
///
/// # Errors
/// If a document cannot be read or encoded.
pub(super) fn sample(documents: &Documents, tokenizer: &Tokenizer) -> Result<Sampled> {
    let all_bytes = documents.total_bytes();
    let mut sampled = Sampled { documents: documents.len(), all_bytes, ..Sampled::default() };
    // In the order of their places, because packed files are read forwards.
    for place in 0..SAMPLES {
        let mut next = documents.at_byte(all_bytes / (2 * SAMPLES) * (2 * place + 1));
        let (mut left, mut texts) = (SAMPLE_BYTES, Vec::new());
        while let Some((i, offset)) = next.filter(|(i, _)| left > 0 && *i < documents.len()) {
            let part = documents.sample(i, offset, left)?;
            left = left.saturating_sub(part.text.len().max(1));
            next = Some((i + 1, 0));
            sampled.bytes += part.bytes;
            sampled.text_bytes += part.text.len() as u64;
            texts.push(part.text);
        }
        let worker = tokenizer.clone();
        let encode =
            move || texts.iter().map(|text| worker.encode_counting(text)).collect::<Result<Vec<_>>>();
        for (tokens, lost) in timed(SAMPLE_BYTES, encode)?? {
            sampled.tokens += tokens.len();
            sampled.lost += lost;
        }
    }
    Ok(sampled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Spec;
    use crate::data::corpus_files::CorpusFiles;
    use crate::data::token_cache::Journal;

    /// The text at the beginning is unlike the rest, and documents are short or long.
    #[test]
    fn an_estimate_is_near_the_number_of_tokens() {
        let tokenizer = Tokenizer::open("gpt2").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let spaces = " ".repeat(70);
        let document = |i: usize| match i {
            0..3000 => format!("{spaces}{i}"),
            _ => format!("The {i}th paragraph \"tells\" what happened, and so on.").repeat(1 + i % 40),
        };
        let texts: Vec<String> = (0..5000).map(document).collect();
        let line = |text: &String| serde_json::json!({"id": 3, "text": text}).to_string();
        let files = [
            ("one.txt", texts.join("\n")),
            ("several.txt", texts.join("<end>")),
            ("lines.jsonl", texts.iter().map(line).collect::<Vec<_>>().join("\n")),
        ];
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            let spec = Spec { document_separator: Some("<end>".to_owned()), ..Spec::new("", "gpt2") };
            let CorpusFiles::Text(text) = CorpusFiles::at(&path.as_path().into(), &spec.extensions).unwrap()
            else {
                panic!("{name} is text")
            };
            let documents = Documents::open(&text, &spec).unwrap();
            let mut tokens = 0;
            let mut count = |more: &[u32]| {
                tokens += more.len();
                Ok(())
            };
            super::super::encode::tokenize(
                &documents,
                0..documents.len(),
                &tokenizer,
                &mut Journal::none(),
                &mut count,
            )
            .unwrap();
            let estimate = sample(&documents, &tokenizer).unwrap().estimate();
            assert!(estimate.abs_diff(tokens) < tokens / 10, "{name}: {estimate} of {tokens}");
        }
    }
}
