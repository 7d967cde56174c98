//! Bytes per token of a tokenizer, by source, beside GPT-2's.

use super::pattern::Pattern;
use super::text::{Share, Source};
use crate::data::parallel::collect_in_order;
use crate::data::tokenizer::Tokenizer;
use crate::error::Result;
use crate::format::{Column, Table, thousands};
use rayon::prelude::*;
use serde::Serialize;
use std::fmt;

/// Bytes of each source that are tokenized, unless another number is asked for.
pub const SAMPLE_BYTES: u64 = 4 << 20;

/// How a tokenizer splits a sample of a source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceReport {
    /// Path of the source.
    pub source: String,
    /// Documents of the source.
    pub documents: usize,
    /// Bytes of text in the sample.
    pub sample_bytes: u64,
    /// Tokens of the sample.
    pub tokens: u64,
    /// Bytes per token of the sample.
    pub bytes_per_token: f64,
    /// Bytes per token of the same sample with the built-in tokenizer `gpt2`.
    pub gpt2_bytes_per_token: f64,
}

/// How a tokenizer splits samples of sources.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compression(Vec<SourceReport>);

impl Compression {
    /// Tokenizes at most `bytes` bytes of each source, spread evenly over it. Samples are cut between words.
    ///
    /// # Errors
    /// If a source cannot be read or the tokenizer cannot encode it.
    pub fn measure(tokenizer: &Tokenizer, sources: &[Source], bytes: u64) -> Result<Self> {
        let gpt2 = Tokenizer::open("gpt2")?;
        let pattern = Pattern::parse("gpt2")?;
        let measure = |source: &Source| {
            let (mut texts, mut share) = (Vec::new(), Share::new(Some(bytes), std::slice::from_ref(source)));
            share.read(source, &pattern, &mut |piece| {
                texts.push(piece.text);
                Ok(())
            })?;
            let count = |tokenizer: &Tokenizer| -> Result<u64> {
                let counts = texts.par_iter().map(|text| Ok(tokenizer.encode(text)?.len() as u64));
                Ok(collect_in_order(counts)?.into_iter().sum())
            };
            let (tokens, gpt2_tokens) = (count(tokenizer)?, count(&gpt2)?);
            Ok(SourceReport {
                source: source.path().display().to_string(),
                documents: source.documents(),
                sample_bytes: share.taken(),
                tokens,
                bytes_per_token: share.taken() as f64 / tokens.max(1) as f64,
                gpt2_bytes_per_token: share.taken() as f64 / gpt2_tokens.max(1) as f64,
            })
        };
        sources.iter().map(measure).collect::<Result<_>>().map(Self)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new(&[Column::Right, Column::Right, Column::Right, Column::Right, Column::Left]);
        table.row(["BYTES PER TOKEN", "GPT-2'S", "SAMPLE BYTES", "DOCUMENTS", "SOURCE"]);
        for source in &self.0 {
            table.row([
                format!("{:.3}", source.bytes_per_token),
                format!("{:.3}", source.gpt2_bytes_per_token),
                thousands(source.sample_bytes as usize),
                thousands(source.documents),
                source.source.clone(),
            ]);
        }
        f.write_str(&table.render(0))
    }
}
