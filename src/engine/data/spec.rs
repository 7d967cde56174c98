//! What a dataset is made from: a corpus, a tokenizer and a held-out part.

use super::chat::Renderer;
use super::location::CorpusLocation;
use super::source::Rules;
use crate::error::{Error, Result};
use crate::policy::{CorpusSource, MissingField, Packing, Shuffle, TextFormat, Validation};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The end token's name in every built-in tokenizer.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Default extensions of the files read from a folder of text.
pub const TEXT_EXTENSIONS: [&str; 2] = [".txt", ".md"];

/// Default field or column that holds the text of a document.
pub const TEXT_FIELD: &str = "text";

/// The recipe's table of a corpus.
const TABLE: &str = "data";

/// Default held-out share of a corpus.
pub const HELD_OUT_SHARE: f64 = 0.05;

/// How the documents of a corpus are found and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Text that separates the documents of a text file.
    pub document_separator: Option<String>,
    /// The field of a JSON object, or the column of a table, that holds the text of a document.
    pub field: String,
    /// What happens to a document that lacks the field or has null there.
    pub missing: MissingField,
    /// What the files are.
    pub format: TextFormat,
    /// Extensions of the files read from a folder of text, dots included.
    pub extensions: Vec<String>,
}

/// A source of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureSource {
    /// Where its text comes from, or its shards.
    pub location: CorpusLocation,
    /// True if a plan counts its tokens, however many they are.
    pub counted: bool,
    /// How its documents are read; `None` if as those of any corpus of the spec.
    pub reading: Option<Reading>,
}

impl MixtureSource {
    /// Returns a source that a plan need not count, read as any corpus of the spec.
    pub fn at(location: impl Into<CorpusLocation>) -> Self {
        Self { location: location.into(), counted: false, reading: None }
    }
}

/// What a dataset is made from, with all paths resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Where the text comes from.
    pub corpus: CorpusSource,
    /// The split that is taken of the folders of the corpus; `None` for all of their files.
    pub split: Option<String>,
    /// The recipe's table that has the keys of the corpus, for messages: `data`, or that of a source.
    pub table: String,
    /// The sources of a mixture, by name; empty for another corpus.
    pub sources: BTreeMap<String, MixtureSource>,
    /// One of [`tokenizer::BUILT_IN`](super::tokenizer::BUILT_IN), or the path of a tokenizer.json.
    pub tokenizer: String,
    /// The entry that texts begin with: empty for none, and `None` for the end token.
    pub begin_token: Option<String>,
    /// Text that separates the documents of a text file.
    pub document_separator: Option<String>,
    /// The field of a JSON object, or the column of a table, that holds the text of a document.
    pub field: String,
    /// What happens to a document that lacks the field or has null there.
    pub missing: MissingField,
    /// What the files are.
    pub format: TextFormat,
    /// Extensions of the files read from a folder of text, dots included.
    pub extensions: Vec<String>,
    /// How a held-out corpus of its own is read; `None` if as the corpus.
    pub held_out_reading: Option<Reading>,
    /// What is held out. Generated corpora ignore it and hold out `validation_tokens`.
    pub validation: Validation,
    /// The split that is held out: of the folders of `validation`, or else of the corpus, or of each source
    /// of a mixture.
    pub validation_split: Option<String>,
    /// Further held-out sets: the corpus of each, by name.
    pub sets: BTreeMap<String, CorpusLocation>,
    /// A list of documents that are not trained on, as `xrun data check` writes it.
    pub drop: Option<PathBuf>,
    /// Tokens to generate for training; the last story may exceed it.
    pub train_tokens: usize,
    /// Tokens to generate for validation; the last story may exceed it.
    pub validation_tokens: usize,
    /// Seed for the generator and for the choice of held-out documents.
    pub seed: u64,
    /// How documents are laid into the rows of a training batch.
    pub packing: Packing,
    /// Which windows are shuffled with each other. With blocks, the hash of a text corpus is that of its
    /// text, which is known before its tokens are.
    pub shuffle: Shuffle,
    /// Bytes that tokens may take in memory; `None` for no limit.
    pub memory_bytes: Option<u64>,
    /// The file of the chat template of conversations; `None` for that of the tokenizer.
    pub chat_template: Option<PathBuf>,
    /// Tokens of a row, which conversations are laid into.
    pub row_len: usize,
    /// Where chat templates are rendered.
    pub renderer: Renderer,
}

impl Spec {
    /// Returns a spec with the recipe's defaults for everything but the corpus and the tokenizer.
    pub fn new(corpus: &str, tokenizer: &str) -> Self {
        Self {
            corpus: corpus.into(),
            split: None,
            table: TABLE.to_owned(),
            sources: BTreeMap::new(),
            tokenizer: tokenizer.to_owned(),
            begin_token: None,
            document_separator: None,
            field: TEXT_FIELD.to_owned(),
            missing: MissingField::Error,
            format: TextFormat::Auto,
            extensions: TEXT_EXTENSIONS.map(str::to_owned).to_vec(),
            held_out_reading: None,
            validation: Validation::Fraction(HELD_OUT_SHARE),
            validation_split: None,
            sets: BTreeMap::new(),
            drop: None,
            train_tokens: 2_000_000,
            validation_tokens: 16_384,
            seed: 0,
            packing: Packing::Stream,
            shuffle: Shuffle::All,
            memory_bytes: None,
            chat_template: None,
            row_len: 0,
            renderer: Renderer::Child,
        }
    }

    /// Returns the spec of the source of a mixture called `name`. Its sets are those of the mixture and not
    /// its own.
    pub(super) fn of_source(&self, name: &str, source: &MixtureSource) -> Self {
        let (sources, sets) = (BTreeMap::new(), BTreeMap::new());
        let CorpusLocation { paths, split } = source.location.clone();
        let (corpus, table) = (CorpusSource::Paths(paths), format!("{TABLE}.sources.{name}"));
        let own = Self { corpus, split, table, sources, sets, ..self.clone() };
        match source.reading.clone() {
            Some(reading) => Self { held_out_reading: Some(self.reading()), ..own }.read_as(reading),
            None => own,
        }
    }

    /// Returns how documents are found and read.
    pub fn reading(&self) -> Reading {
        Reading {
            document_separator: self.document_separator.clone(),
            field: self.field.clone(),
            missing: self.missing,
            format: self.format,
            extensions: self.extensions.clone(),
        }
    }

    fn read_as(self, reading: Reading) -> Self {
        let Reading { document_separator, field, missing, format, extensions } = reading;
        Self { document_separator, field, missing, format, extensions, ..self }
    }

    /// Returns the spec for reading what is held out: a corpus of its own may be read otherwise than the
    /// source of a mixture that it is held out of.
    pub(super) fn for_held_out(&self) -> Cow<'_, Self> {
        match (&self.held_out_reading, &self.validation) {
            (Some(reading), Validation::Paths(_)) => {
                let own = Self { table: TABLE.to_owned(), ..self.clone() };
                Cow::Owned(own.read_as(reading.clone()))
            }
            _ => Cow::Borrowed(self),
        }
    }

    /// Returns true if the files are read as conversations, or as pairs of them.
    pub(super) fn holds_conversations(&self) -> bool {
        matches!(self.format, TextFormat::Chat | TextFormat::Preference)
    }

    /// Returns true if the files are read as pairs of answers.
    pub(super) fn holds_pairs(&self) -> bool {
        self.format == TextFormat::Preference
    }

    /// Returns true if the files of what is held out are read as conversations.
    pub(super) fn holds_out_conversations(&self) -> bool {
        self.for_held_out().holds_conversations()
    }

    /// Returns where the training text lies; `None` for a generated corpus and for a mixture.
    pub(super) fn location(&self) -> Option<CorpusLocation> {
        match &self.corpus {
            CorpusSource::Stories | CorpusSource::Random | CorpusSource::Mixture => None,
            CorpusSource::Paths(paths) => {
                Some(CorpusLocation { paths: paths.clone(), split: self.split.clone() })
            }
        }
    }

    /// Returns a spec for each corpus that is trained on: this one, or those of the sources of a mixture, or
    /// none if it is generated.
    pub(super) fn corpora(&self) -> Vec<Cow<'_, Self>> {
        match self.corpus {
            CorpusSource::Stories | CorpusSource::Random => Vec::new(),
            CorpusSource::Paths(_) => vec![Cow::Borrowed(self)],
            CorpusSource::Mixture => {
                self.sources.iter().map(|(name, source)| Cow::Owned(self.of_source(name, source))).collect()
            }
        }
    }

    /// Returns the held-out corpus; `None` if a share is held out, and for a mixture whose sources hold out a
    /// split each.
    pub(super) fn held_out(&self) -> Option<CorpusLocation> {
        let split = self.validation_split.clone();
        match (&self.validation, &self.corpus) {
            (Validation::Paths(paths), _) => Some(CorpusLocation { paths: paths.clone(), split }),
            (Validation::Fraction(_), CorpusSource::Paths(paths)) if split.is_some() => {
                Some(CorpusLocation { paths: paths.clone(), split })
            }
            (Validation::Fraction(_), _) => None,
        }
    }

    /// Returns how the documents of a file are found.
    pub(super) fn rules(&self) -> Rules {
        Rules {
            table: self.table.clone(),
            separator: self.document_separator.clone(),
            field: self.field.clone(),
            missing: self.missing,
            format: self.format,
        }
    }

    /// Returns the held-out share, or `None` if the held-out corpus is separate.
    ///
    /// # Errors
    /// If the share is not a number between 0 and 1.
    pub(super) fn fraction(&self) -> Result<Option<f64>> {
        match self.validation {
            Validation::Fraction(_) if self.held_out().is_some() => Ok(None),
            Validation::Fraction(f) if f > 0.0 && f < 1.0 => Ok(Some(f)),
            Validation::Fraction(f) => Err(Error::usage(format!(
                "data.validation = {f}: give a share between 0 and 1, or the path of a held-out corpus"
            ))),
            Validation::Paths(_) => Ok(None),
        }
    }
}
