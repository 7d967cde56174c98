//! The key of tokens: everything they depend on, which is the text, the tokenizer, and how documents are cut.

use super::super::corpus_files::CorpusFiles;
use super::super::drop::DropList;
use super::super::file::CorpusFile;
use super::super::parallel::collect_in_order;
use super::super::source::{self, TextFile};
use super::super::text_files::TextFiles;
use super::super::tokenizer::Tokenizer;
use super::super::{MissingField, Spec, TEXT_FIELD, Validation};
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::borrow::Cow;

/// Version of the rules that turn text into tokens: which documents a file has, what is held out, where end
/// tokens stand. Increase it whenever a rule changes, so that tokens made by older rules are no longer found.
const RULES: u32 = 2;

/// Version of the layout of an entry. Increase it whenever the layout changes.
const FORMAT: u32 = 3;

/// Texts of fewer bytes are not cached: tokenizing them takes a moment.
const MIN_BYTES: u64 = 1 << 20;

/// Bytes read and hashed at a time.
const BLOCK_BYTES: usize = 4 << 20;

/// Which tokens of a text are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Part {
    /// The whole text as one stream.
    Whole,
    /// A training and a held-out stream, split as the spec says.
    Splits,
}

/// The key of a text's tokens, and the files that it was computed from.
#[derive(Debug)]
pub(in super::super) struct Key {
    /// BLAKE3 hash of everything the tokens depend on.
    pub content: blake3::Hash,
    files: Vec<TextFile>,
}

impl Key {
    /// Computes the key of a text by reading it. Returns `None` if its held-out corpus is not text.
    ///
    /// # Errors
    /// If a file cannot be read, or is written to meanwhile.
    pub fn new(text: &TextFiles, part: Part, spec: &Spec, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let mut hasher = blake3::Hasher::new_derive_key("xrun tokens of a text");
        // Every field is preceded by its length, so that no two inputs hash the same bytes.
        let mut add = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        add(&RULES.to_le_bytes());
        add(tokenizer.hash().as_bytes());
        add(&tokenizer.end_token().to_le_bytes());
        add(&tokenizer.opening_token().to_le_bytes());
        add(spec.document_separator.as_deref().unwrap_or_default().as_bytes());
        // Only other values than the defaults, so that tokens made before these keys existed are still found.
        if spec.field != TEXT_FIELD {
            add(b"field");
            add(spec.field.as_bytes());
        }
        if spec.missing != MissingField::Error {
            add(b"missing");
            add(spec.missing.word().as_bytes());
        }
        let held = match (part, spec.held_out(), &spec.validation) {
            (Part::Whole, ..) => {
                add(b"whole");
                None
            }
            (Part::Splits, None, Validation::Fraction(fraction)) => {
                add(b"fraction");
                add(&fraction.to_bits().to_le_bytes());
                add(&spec.seed.to_le_bytes());
                None
            }
            (Part::Splits, held, _) => {
                let extensions = &spec.for_held_out().extensions;
                let held = held.map(|location| CorpusFiles::at(&location, extensions)).transpose()?;
                let Some(CorpusFiles::Text(held)) = held else {
                    return Ok(None);
                };
                add(b"path");
                if let Cow::Owned(other) = spec.for_held_out() {
                    add(b"held-out text is read as");
                    add(other.document_separator.as_deref().unwrap_or_default().as_bytes());
                    add(other.field.as_bytes());
                    add(other.missing.word().as_bytes());
                }
                Some(held)
            }
        };
        if let Some(path) = spec.drop.as_ref().filter(|_| part == Part::Splits) {
            add(b"drop");
            add(DropList::read(path)?.hash().as_bytes());
        }
        let mut files = Vec::new();
        let held = held.as_ref().map(|held| (held, spec.for_held_out()));
        for (text, spec) in std::iter::once((text, Cow::Borrowed(spec))).chain(held) {
            let opened = source::open(text.list(&spec.extensions)?.files(), &spec.rules())?;
            add(&(opened.len() as u64).to_le_bytes());
            opened.iter().for_each(|file| add(&[file.source.tag()]));
            files.extend(opened);
        }
        let hashes = collect_in_order(files.par_iter().map(|file| content(file.content.file())))?;
        hashes.iter().for_each(|hash| add(hash.as_bytes()));
        Ok(Some(Self { content: hasher.finalize(), files }))
    }

    /// Returns the name of the entry in the cache, which each version of xrun makes for itself.
    pub fn name(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("xrun cache entry");
        hasher.update(&FORMAT.to_le_bytes()).update(env!("CARGO_PKG_VERSION").as_bytes());
        hasher.update(self.content.as_bytes()).finalize().to_hex().to_string()
    }

    /// Returns true if the text is long enough to cache its tokens.
    pub fn is_cached(&self) -> bool {
        is_cached(&self.files)
    }

    /// Returns true if no file of the text was written to since its content was read.
    pub fn is_current(&self) -> bool {
        self.files.iter().all(|file| file.content.file().check().is_ok())
    }
}

/// Returns true if the tokens of some files are cached.
pub(in super::super) fn is_cached(files: &[TextFile]) -> bool {
    files.iter().map(|file| file.content.file().bytes()).sum::<u64>() >= MIN_BYTES
}

/// Hashes a file's content.
fn content(file: &CorpusFile) -> Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut block = Vec::new();
    let mut at = 0;
    while at < file.bytes() {
        block.resize((file.bytes() - at).min(BLOCK_BYTES as u64) as usize, 0);
        file.read_exact_at(at, &mut block)?;
        hasher.update_rayon(&block);
        at += block.len() as u64;
        report_progress();
    }
    Ok(hasher.finalize())
}
