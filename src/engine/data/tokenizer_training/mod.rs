//! Trains byte-level BPE tokenizers.
//!
//! A regular expression splits the text into pre-tokens, which are counted in a table of bounded size; then
//! the most frequent pairs of neighbors are merged. Merges and ids are those of `BpeTrainer` in HuggingFace's
//! tokenizers as long as no bound drops anything, except that counts have 64 bits here and 32 there.

mod count;
mod document;
mod merges;
mod pattern;
mod record;
mod report;
mod settings;
mod table;
mod text;

pub use count::{MAX_PRETOKEN_BYTES, Totals};
pub use pattern::{DEFAULT_PATTERN, Pattern};
pub use record::{Record, SourceRecord};
pub use report::{Compression, SAMPLE_BYTES, SourceReport};
pub use settings::{MAX_VOCAB, MOST_DISTINCT, Training};
pub use text::{Reading, Source};

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use count::Counter;
use document::FirstEntries;
use merges::{Wanted, Words, learn};
use table::Table;
use text::{Piece, Share};

/// Bytes of text that are counted at a time: enough to keep every core busy.
const GROUP_BYTES: usize = 32 << 20;

/// How far a training is.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    /// This many more bytes of text were counted.
    Read(u64),
    /// All text was counted, and merges are learned until there are this many entries.
    Merging { vocab: usize },
    /// Entries that the vocabulary has.
    Entries(usize),
}

/// A trained tokenizer, and how it came about.
#[derive(Debug)]
pub struct Trained {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// What it was trained on, and how.
    pub record: Record,
}

impl Training {
    /// Trains a tokenizer on the text of sources. The result depends on the text, on its order only where
    /// something was dropped, and never on the number of threads.
    ///
    /// # Errors
    /// If [`Training::check`] fails, a source cannot be read, the pattern cannot be matched in time, or no
    /// text is taken.
    pub fn run(&self, sources: &[Source], tell: &mut dyn FnMut(Progress)) -> Result<Trained> {
        let first = self.first_entries()?;
        let mut share = Share::new(self.bytes, sources);
        let mut counter = Counter::new(&self.pattern, self.most_distinct)?;
        let mut records = Vec::new();
        let mut group = Group::default();
        for source in sources {
            let before = share.taken();
            let mut hasher = blake3::Hasher::new();
            share.read(source, &self.pattern, &mut |piece| {
                if piece.opens {
                    // No byte of UTF-8, so that documents that are cut elsewhere have another hash.
                    hasher.update(&[0xff]);
                }
                hasher.update(piece.text.as_bytes());
                let bytes = group.push(piece);
                if bytes >= GROUP_BYTES as u64 {
                    group.count(&mut counter)?;
                    tell(Progress::Read(bytes));
                }
                Ok(())
            })?;
            records.push(SourceRecord {
                path: source.path().display().to_string(),
                documents: source.documents(),
                text_bytes: share.taken() - before,
                text_hash: hasher.finalize().to_hex().to_string(),
            });
        }
        if share.taken() == 0 {
            return Err(Error::usage(
                "no text is taken: every document is longer than its part of the bytes to train on; allow \
                 more bytes",
            ));
        }
        group.count(&mut counter)?;
        let (tables, totals) = counter.finish();
        let wanted = Wanted {
            first: first.bytes(),
            vocab: self.vocab,
            least: self.least_count,
            forbidden: first.forbidden(),
        };
        tell(Progress::Merging { vocab: self.vocab });
        let words = words(tables, &first);
        let learned = learn(words, wanted, &mut |entries| tell(Progress::Entries(entries)));
        let json = first.json(&learned, &self.pattern);
        let tokenizer = Tokenizer::from_run(json, Some(0))?;
        let record = Record::new(self, records, totals, share.cut(), &learned, &tokenizer);
        Ok(Trained { tokenizer, record })
    }
}

/// Texts that are counted together.
#[derive(Default)]
struct Group {
    texts: Vec<String>,
    bytes: u64,
}

impl Group {
    /// Adds a piece and returns the bytes of all.
    fn push(&mut self, piece: Piece) -> u64 {
        self.bytes += piece.text.len() as u64;
        self.texts.push(piece.text);
        self.bytes
    }

    fn count(&mut self, counter: &mut Counter) -> Result<()> {
        let Self { texts, .. } = std::mem::take(self);
        counter.add(texts)
    }
}

/// Moves counted pre-tokens into the form for merging. A table is freed before the next one is read.
fn words(tables: Vec<Table>, first: &FirstEntries) -> Words {
    let mut words = Words::default();
    words.reserve(tables.iter().map(Table::len).sum(), tables.iter().map(Table::text_bytes).sum());
    for table in tables {
        table.iter().for_each(|(_, bytes, count)| words.push(bytes, count, &first.id_of));
    }
    words
}

#[cfg(test)]
mod tests;
