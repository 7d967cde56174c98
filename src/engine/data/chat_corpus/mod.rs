//! A corpus of conversations. A chat template makes a text of each, of which the answers are trained on, and
//! whole conversations are laid into rows of a batch. What comes of it is a stream of windows like that of
//! any other corpus, with marks on its tokens ([`super::marked`]).

mod encoder;
mod examples;
mod facts;
#[cfg(test)]
mod file_tests;
mod layout;
#[cfg(test)]
mod tests;

pub use examples::DroppedExamples;
pub use facts::{ChatFacts, ShownExample};

use super::chat::{Template, TemplateSource};
use super::split::{half, sides};
use super::stream::Stream;
use super::text_files::TextFiles;
use super::tokenizer::{BUILT_IN, Tokenizer};
use super::{Packing, Spec};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::regular;
use encoder::Encoder;
use examples::{Example, Examples};
use std::path::Path;

/// What is held out.
pub(super) enum HeldOutText {
    /// The share of the conversations that the spec says.
    Share,
    /// These conversations, read by this spec.
    Conversations(TextFiles, Box<Spec>),
    /// Text that is no conversation, which the caller reads.
    Other,
}

/// Both splits of a corpus of conversations.
#[derive(Debug)]
pub(super) struct LoadedChat {
    pub train: Stream,
    /// `None` if other text is held out.
    pub held_out: Option<Stream>,
    pub warnings: Vec<String>,
    /// One line that describes the corpus.
    pub description: String,
    pub facts: ChatFacts,
}

/// Loads both splits of a corpus of conversations.
///
/// # Errors
/// If there is no chat template, a file is wrong, or nothing is left to train on.
pub(super) fn load(
    text: &TextFiles,
    held_out: &HeldOutText,
    spec: &Spec,
    tokenizer: &Tokenizer,
) -> Result<LoadedChat> {
    let encoder = encoder(spec, tokenizer)?;
    let found = examples(text, spec, &encoder)?;
    let mut warnings = text.warnings(&spec.extensions)?;
    let all = || (0..found.examples.len()).collect::<Vec<usize>>();
    let (train, held) = match held_out {
        HeldOutText::Conversations(files, own) => {
            let held = examples(files, own, &encoder)?;
            warnings.extend(files.warnings(&own.extensions)?);
            warnings.extend(facts::warnings(&held));
            let held = held.examples.into_iter().map(|example| example.words).collect();
            (words_of(&found, &all()), Some(held))
        }
        HeldOutText::Other => (words_of(&found, &all()), None),
        HeldOutText::Share => {
            let (train, held) = split(&found, spec)?;
            (words_of(&found, &train), Some(words_of(&found, &held)))
        }
    };
    warnings.extend(facts::warnings(&found));
    let pad = tokenizer.opening_token();
    let (train, packed) = layout::rows(&train, spec.row_len, spec.packing, pad)?;
    let lay = |held: Vec<Vec<u32>>| layout::rows(&held, spec.row_len, spec.packing, pad);
    let held_out = held.map(lay).transpose()?.map(|(held, _)| Stream::from_words(held));
    let facts = ChatFacts::new(&found, spec.holds_pairs(), packed, &encoder)?;
    let noun = if facts.pairs { "pair" } else { "conversation" };
    let description = format!("{}: {} {noun}{}", text.location, facts.examples, plural(facts.examples));
    Ok(LoadedChat { train: Stream::from_words(train), held_out, warnings, description, facts })
}

/// Loads all conversations of some files, as a held-out set, and returns warnings about them.
///
/// # Errors
/// If [`load`] would fail.
pub(super) fn whole(text: &TextFiles, spec: &Spec, tokenizer: &Tokenizer) -> Result<(Stream, Vec<String>)> {
    let encoder = encoder(spec, tokenizer)?;
    let found = examples(text, spec, &encoder)?;
    let mut warnings = text.warnings(&spec.extensions)?;
    warnings.extend(facts::warnings(&found));
    let words: Vec<Vec<u32>> = found.examples.into_iter().map(|example| example.words).collect();
    let (words, _) = layout::rows(&words, spec.row_len, spec.packing, tokenizer.opening_token())?;
    Ok((Stream::from_words(words), warnings))
}

/// Reads the examples of all files of a text.
fn examples(text: &TextFiles, spec: &Spec, encoder: &Encoder) -> Result<Examples> {
    let mut found = Examples::default();
    for path in text.list(&spec.extensions)?.files() {
        found.read(&path, spec, encoder)?;
    }
    if found.examples.is_empty() {
        let reasons: Vec<String> = found.dropped_in_words();
        let reasons = if reasons.is_empty() { "it has none".to_owned() } else { reasons.join("; ") };
        let noun = if spec.holds_pairs() { "pair of answers" } else { "conversation" };
        return Err(Error::usage(format!("corpus {}: no {noun} to train on: {reasons}", text.location)));
    }
    Ok(found)
}

/// Opens what turns the conversations of a spec into words.
fn encoder(spec: &Spec, tokenizer: &Tokenizer) -> Result<Encoder> {
    if spec.packing == Packing::Stream {
        return Err(Error::usage(format!(
            "data.packing = \"stream\" cuts conversations wherever a row ends; set data.packing to \"{}\", or to \"{}\" for a \
             conversation per row",
            Packing::BestFit,
            Packing::Document
        )));
    }
    if spec.holds_pairs() && spec.packing != Packing::Document {
        return Err(Error::usage(format!(
            "data.packing = \"{}\" lays several pairs of answers into a row, and a row has one; set data.packing to \"{}\"",
            spec.packing,
            Packing::Document
        )));
    }
    if spec.drop.is_some() {
        return Err(Error::usage(
            "data.drop lists documents by their text, and conversations are no such documents; remove it, or remove the \
             conversations from their file",
        ));
    }
    let is_built_in = BUILT_IN.contains(&spec.tokenizer.as_str());
    let folder = Path::new(&spec.tokenizer).parent().filter(|_| !is_built_in);
    let source = match (&spec.chat_template, folder) {
        (Some(file), folder) => TemplateSource::in_file(file, folder)?,
        (None, Some(folder)) => TemplateSource::in_folder(folder, regular::read_through_link)?
            .ok_or_else(|| no_template(&format!("no file beside {} has one", spec.tokenizer)))?,
        (None, None) => {
            return Err(no_template(&format!("the built-in tokenizer {} has none", spec.tokenizer)));
        }
    };
    let file = source.file.display().to_string();
    let template = Template::new(source, tokenizer, spec.renderer)?;
    Encoder::new(template, file, tokenizer)
}

fn no_template(why: &str) -> Error {
    Error::usage(format!("conversations need a chat template, and {why}: name one with data.chat_template"))
}

/// Splits conversations so that about the share of the spec is held out, by a hash of their texts, as
/// documents are.
fn split(found: &Examples, spec: &Spec) -> Result<(Vec<usize>, Vec<usize>)> {
    let fraction = spec.fraction()?.unwrap_or_default();
    let count = u32::try_from(found.examples.len())
        .map_err(|_| Error::usage(format!("a corpus has at most {} conversations", u32::MAX)))?;
    let hashes = (0..count).map(|i| (found.examples[i as usize].hash(spec.seed), i)).collect();
    let size = |i: usize| found.examples[i].words.len() as u64;
    let (train, held_out) = sides(hashes, size, fraction);
    if held_out.is_empty() {
        return Err(Error::usage(format!(
            "corpus {}: all of its conversations are the same, so none can be held out; name a held-out corpus as \
             data.validation",
            spec.corpus
        )));
    }
    Ok((train, held_out))
}

fn words_of(found: &Examples, which: &[usize]) -> Vec<Vec<u32>> {
    which.iter().map(|&i| found.examples[i].words.clone()).collect()
}

impl Example {
    /// Hashes the example and a seed.
    fn hash(&self, seed: u64) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes());
        self.words.iter().for_each(|word| {
            hasher.update(&word.to_le_bytes());
        });
        half(&hasher)
    }
}
