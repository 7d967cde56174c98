//! Finds the corpus that a name refers to, and splits it into a training and a held-out part.

use super::chat_corpus::{ChatFacts, HeldOutText, LoadedChat};
use super::corpus_files::CorpusFiles;
use super::documents::Documents;
use super::drop::DropList;
use super::location::CorpusLocation;
use super::split::TokenSink;
use super::stories::Split;
use super::stream::Stream;
use super::text_files::TextFiles;
use super::token_cache::{Header, Journal, Key, Part, TextTokens, TokenCache};
use super::token_files::TokenFiles;
use super::tokenizer::{LostBytes, Tokenizer};
use super::{Shuffle, Spec, chat_corpus, encode, generated, shard, source, split};
use crate::device::host_allocator::fallible;
use crate::error::{Error, Result};
use crate::format::plural;
use crate::policy::CorpusSource;
use std::borrow::Cow;
use std::path::PathBuf;

/// Tokens copied from shards at a time.
const COPY_TOKENS: usize = 1 << 20;

/// A corpus, by the kind its name refers to.
#[derive(Clone, Debug)]
pub(super) enum Corpus {
    Stories,
    Random,
    Files(CorpusFiles),
}

/// What is known about a corpus after its tokens were delivered.
#[derive(Clone, Debug, Default)]
pub struct CorpusSummary {
    /// The lowest possible loss in nats per token, if known.
    pub floor: Option<f64>,
    /// Notes for the user.
    pub warnings: Vec<String>,
    /// One line that describes the corpus.
    pub description: String,
    /// UTF-8 bytes of text that were tokenized; `None` if the corpus was already tokens.
    pub text_bytes: Option<u64>,
    /// Bytes of the held-out text, if known without its tokens.
    pub held_out_bytes: Option<u64>,
    /// Bytes of the text that the tokens lost; `None` if the corpus was already tokens.
    pub lost: Option<LostBytes>,
    /// Bytes of the held-out text that the tokens lost, or more; `None` if they are unknown.
    pub held_out_lost: Option<LostBytes>,
    /// Number of documents that `data.drop` lists and the corpus lacks.
    pub absent_drops: usize,
    /// What is known about conversations; `None` for another corpus.
    pub chat: Option<ChatFacts>,
}

impl CorpusSummary {
    /// Returns a warning if the tokens lost bytes of the text.
    pub fn lost_warning(&self) -> Option<String> {
        self.lost?.warning("the text", self.text_bytes?)
    }
}

/// Both splits of a corpus.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub train: Stream,
    pub validation: Stream,
    /// True if the held-out tokens are of text of their own, not cut from the corpus or generated.
    pub is_held_out_apart: bool,
    /// Hash of everything that the tokens depend on, if the spec asks for it and the corpus is text.
    pub content: Option<blake3::Hash>,
    pub summary: CorpusSummary,
}

/// A whole corpus as one stream.
#[derive(Debug)]
pub(super) struct Whole {
    pub tokens: Stream,
    /// Bytes of text that were tokenized; `None` if the corpus was already tokens.
    pub text_bytes: Option<u64>,
    /// Bytes of the text that the tokens lost; `None` if they are unknown.
    pub lost: Option<LostBytes>,
    /// Notes for the user.
    pub warnings: Vec<String>,
}

impl Corpus {
    /// Returns the corpus that `spec.corpus` refers to.
    pub fn find(spec: &Spec) -> Result<Self> {
        let location = match (&spec.corpus, spec.location()) {
            (CorpusSource::Stories, _) => return Ok(Corpus::Stories),
            (CorpusSource::Random, _) => return Ok(Corpus::Random),
            (_, None) => return Err(Error::usage("a mixture is several corpora; name one of its sources")),
            (_, Some(location)) => location,
        };
        match CorpusFiles::at(&location, &spec.extensions)? {
            CorpusFiles::Tokens(files) if files.train.is_empty() => Err(Error::usage(format!(
                "corpus {location}: its .bin files are all held-out ones; training shards are named *_train_*.bin"
            ))),
            files => Ok(Corpus::Files(files)),
        }
    }

    /// Returns the corpus's files; a generated corpus has none.
    pub fn files(&self) -> Option<&CorpusFiles> {
        match self {
            Corpus::Stories | Corpus::Random => None,
            Corpus::Files(files) => Some(files),
        }
    }

    /// Returns the files of the corpus, and of its separate held-out corpus if it has one.
    pub fn list(&self, spec: &Spec) -> Result<Vec<PathBuf>> {
        let Some(own) = self.files() else { return Ok(Vec::new()) };
        let mut files = own.list(&spec.extensions)?;
        if let Some(held) = held_out_files(spec)? {
            files.extend(held.list(&spec.for_held_out().extensions)?);
        }
        Ok(files)
    }

    /// Loads both splits as streams. Shards are read from disk, text comes from the cache if there is one,
    /// and everything else is made in memory.
    pub fn load(&self, spec: &Spec, tokenizer: &Tokenizer, cache: Option<&TokenCache>) -> Result<Loaded> {
        match self {
            Corpus::Files(CorpusFiles::Tokens(files)) => return load_tokens(files, spec, tokenizer, cache),
            Corpus::Files(CorpusFiles::Text(text)) => return Self::load_text(text, spec, tokenizer, cache),
            Corpus::Stories | Corpus::Random => {}
        }
        self.load_made(spec, tokenizer)
    }

    /// Loads `text` through the cache if there is one.
    fn load_text(
        text: &TextFiles,
        spec: &Spec,
        tokenizer: &Tokenizer,
        cache: Option<&TokenCache>,
    ) -> Result<Loaded> {
        if spec.holds_conversations() {
            return load_chat(text, spec, tokenizer, cache);
        }
        if spec.holds_out_conversations() {
            return load_beside_conversations(text, spec, tokenizer, cache);
        }
        let by_content = spec.shuffle == Shuffle::Blocks;
        // An unreadable corpus gets its error from the tokenizing path, so errors are dropped here.
        let key = || Key::new(text, Part::Splits, spec, tokenizer).ok().flatten();
        let key = (by_content || cache.is_some()).then(key).flatten();
        let content = key.as_ref().map(|key| key.content).filter(|_| by_content);
        let loaded = Self::load_by_key(text, key.as_ref(), spec, tokenizer, cache)?;
        Ok(Loaded { content, ..loaded })
    }

    /// Loads `text`, through the cache if there is one and the text has a key.
    ///
    /// # Errors
    /// If the text cannot be read or encoded.
    pub fn load_by_key(
        text: &TextFiles,
        key: Option<&Key>,
        spec: &Spec,
        tokenizer: &Tokenizer,
        cache: Option<&TokenCache>,
    ) -> Result<Loaded> {
        let corpus = Self::Files(CorpusFiles::Text(text.clone()));
        let loaded = match (cache, key.filter(|key| key.is_cached())) {
            (Some(cache), Some(key)) => corpus.load_cached(text, key, spec, tokenizer, cache)?,
            _ => None,
        };
        loaded.map_or_else(|| corpus.load_made(spec, tokenizer), Ok)
    }

    fn load_made(&self, spec: &Spec, tokenizer: &Tokenizer) -> Result<Loaded> {
        let (train, validation, summary) = self.make(spec, tokenizer)?;
        let (train, validation) = (Stream::from_tokens(train), Stream::from_tokens(validation));
        let is_held_out_apart = matches!(self, Corpus::Files(_)) && spec.held_out().is_some();
        Ok(Loaded { train, validation, is_held_out_apart, content: None, summary })
    }

    /// Loads `text` through the cache; `None` if its tokens cannot be stored.
    fn load_cached(
        &self,
        text: &TextFiles,
        key: &Key,
        spec: &Spec,
        tokenizer: &Tokenizer,
        cache: &TokenCache,
    ) -> Result<Option<Loaded>> {
        let named = format!("{}: ", text.location);
        let stored = cache.tokens(key, tokenizer, |sink, journal| {
            let fed = self.feed_with(spec, tokenizer, journal, sink)?;
            Ok(Header {
                contents: fed.description.trim_start_matches(&named).to_owned(),
                warned: fed.warnings.len() > uncached_warnings(text, spec)?.len(),
                text_bytes: fed.text_bytes,
                held_out_bytes: fed.held_out_bytes,
                lost: fed.lost.unwrap_or_default(),
                held_out_lost: fed.held_out_lost.unwrap_or_default(),
                absent_drops: fed.absent_drops,
                ..header(&text.location, spec)
            })
        })?;
        let Some((TextTokens { train, held_out, header }, remark)) = stored else { return Ok(None) };
        // A warning names paths and files beside the text, which the cache does not keep.
        let mut warnings = match header.warned {
            true => all_warnings(text, spec)?,
            false => uncached_warnings(text, spec)?,
        };
        warnings.extend(remark);
        Ok(Some(Loaded {
            train,
            validation: held_out,
            is_held_out_apart: spec.held_out().is_some(),
            content: None,
            summary: CorpusSummary {
                floor: None,
                warnings,
                description: named + &header.contents,
                text_bytes: header.text_bytes,
                held_out_bytes: header.held_out_bytes,
                lost: Some(header.lost),
                held_out_lost: Some(header.held_out_lost),
                absent_drops: header.absent_drops,
                chat: None,
            },
        }))
    }

    /// Makes both splits in memory. Not for token files, which are read from disk.
    fn make(&self, spec: &Spec, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>, CorpusSummary)> {
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        if matches!(self, Corpus::Stories | Corpus::Random) {
            // The size is known in advance, so a corpus that does not fit is refused before it is made.
            for (split, count) in [(&mut train, spec.train_tokens), (&mut validation, spec.validation_tokens)]
            {
                generated::check_size(count)?;
                reserve(spec, split, count)?;
            }
            check_memory(spec, spec.train_tokens + spec.validation_tokens)?;
        }
        let fed = self.feed(spec, tokenizer, &mut |split, tokens| match split {
            Split::Train => append(spec, validation.len(), &mut train, tokens),
            Split::Validation => append(spec, train.len(), &mut validation, tokens),
        })?;
        Ok((train, validation, fed))
    }

    /// Hands every token of both splits to `sink`.
    pub fn feed(
        &self,
        spec: &Spec,
        tokenizer: &Tokenizer,
        sink: &mut TokenSink<'_>,
    ) -> Result<CorpusSummary> {
        self.feed_with(spec, tokenizer, &mut Journal::none(), sink)
    }

    /// Hands every token of both splits to `sink`, and takes those from the journal that an interrupted
    /// process made.
    pub fn feed_with(
        &self,
        spec: &Spec,
        tokenizer: &Tokenizer,
        journal: &mut Journal,
        sink: &mut TokenSink<'_>,
    ) -> Result<CorpusSummary> {
        match self {
            Corpus::Stories => stories(spec, tokenizer, sink),
            Corpus::Random => {
                let vocab = tokenizer.vocab_size();
                for (split, count) in
                    [(Split::Train, spec.train_tokens), (Split::Validation, spec.validation_tokens)]
                {
                    generated::random(spec.seed, split, count, vocab, &mut |t| sink(split, t))?;
                }
                let description = format!("random: uniform tokens below {vocab}, seed {}", spec.seed);
                Ok(CorpusSummary {
                    floor: Some((vocab as f64).ln()),
                    description,
                    ..CorpusSummary::default()
                })
            }
            Corpus::Files(CorpusFiles::Tokens(files)) => {
                let loaded = load_tokens(files, spec, tokenizer, None)?;
                copy_stream(&loaded.train, tokenizer, &mut |t| sink(Split::Train, t))?;
                copy_stream(&loaded.validation, tokenizer, &mut |t| sink(Split::Validation, t))?;
                Ok(loaded.summary)
            }
            Corpus::Files(CorpusFiles::Text(files)) => text(files, spec, tokenizer, journal, sink),
        }
    }

    /// Reads a whole corpus as one stream, for a separate held-out corpus. Text goes through the
    /// cache if there is one. `held` is the number of tokens already in memory.
    pub fn whole(
        location: &CorpusLocation,
        spec: &Spec,
        tokenizer: &Tokenizer,
        held: usize,
        cache: Option<&TokenCache>,
    ) -> Result<Whole> {
        let text = match CorpusFiles::at(location, &spec.extensions)? {
            CorpusFiles::Text(text) => text,
            CorpusFiles::Tokens(files) => {
                let warnings = files.passed_over();
                let lost = TokenFiles::lost(&files.all(), |manifest| manifest.lost)?;
                return Ok(Whole { tokens: shard::open(&files.all())?, text_bytes: None, lost, warnings });
            }
        };
        if spec.holds_conversations() {
            let (tokens, warnings) = chat_corpus::whole(&text, spec, tokenizer)?;
            return Ok(Whole { tokens, text_bytes: None, lost: Some(LostBytes::default()), warnings });
        }
        let make = |sink: &mut TokenSink<'_>, journal: &mut Journal| {
            let documents = Documents::open(&text, spec)?;
            journal.begin(Some(Split::Train));
            let bytes =
                encode::tokenize(&documents, 0..documents.len(), tokenizer, journal, &mut |tokens| {
                    sink(Split::Train, tokens)
                })?;
            let warned = !documents.content_warnings()?.is_empty();
            Ok(Header { text_bytes: Some(bytes.all), lost: bytes.lost, warned, ..header(location, spec) })
        };
        let key = || Key::new(&text, Part::Whole, spec, tokenizer).ok().flatten().filter(Key::is_cached);
        let stored = match cache.and_then(|cache| Some((cache, key()?))) {
            Some((cache, key)) => cache.tokens(&key, tokenizer, make)?,
            None => None,
        };
        let (tokens, header, remark) = match stored {
            Some((tokens, remark)) => (tokens.train, tokens.header, remark),
            None => {
                let mut tokens = Vec::new();
                let header =
                    make(&mut |_, more| append(spec, held, &mut tokens, more), &mut Journal::none())?;
                (Stream::from_tokens(tokens), header, None)
            }
        };
        let mut warnings = match header.warned {
            true => Documents::open(&text, spec)?.warnings()?,
            false => text.warnings(&spec.extensions)?,
        };
        warnings.extend(remark);
        Ok(Whole { tokens, text_bytes: header.text_bytes, lost: Some(header.lost), warnings })
    }
}

/// Refuses training or held-out shards made by another tokenizer than the one that `spec` names: new shards
/// written from their tokens would carry the wrong tokenizer for good.
///
/// # Errors
/// If the corpus is missing, or the manifest or the `tokenizer.json` beside the shards differs. The message
/// names both tokenizers and the right option.
pub fn refuse_other_tokenizer(spec: &Spec, tokenizer: &Tokenizer) -> Result<()> {
    let corpus = Corpus::find(spec)?;
    let held_out = held_out_files(spec)?;
    let mut both = corpus.files().into_iter().chain(&held_out);
    let Some(beside) = both.clone().find_map(|files| files.other_tokenizer(tokenizer)) else {
        return both.try_for_each(|files| files.check_tokenizer(tokenizer).map(drop));
    };
    let beside = beside.display();
    Err(Error::usage(format!(
        "{beside} is not the tokenizer in use, which is {}; pass --tokenizer {beside}, or remove that file if it did \
         not make these shards",
        spec.tokenizer
    )))
}

/// Returns a header for a text's tokens, filled with what the location and the spec say.
fn header(location: &CorpusLocation, spec: &Spec) -> Header {
    let (text, tokenizer) = (location.to_string(), spec.tokenizer.clone());
    Header { text, tokenizer, ..Header::default() }
}

/// Loads both splits of conversations. What is held out may be a text of another format.
fn load_chat(
    text: &TextFiles,
    spec: &Spec,
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
) -> Result<Loaded> {
    let files = held_out_files(spec)?;
    let (held_out, other) = match (files, spec.held_out(), spec.holds_out_conversations()) {
        (Some(CorpusFiles::Text(held)), _, true) => {
            (HeldOutText::Conversations(held, Box::new(spec.for_held_out().into_owned())), None)
        }
        (Some(CorpusFiles::Tokens(_)), _, true) => {
            return Err(Error::usage(
                "data.validation names token files, which do not say what is trained on of a conversation; name files of \
                 conversations",
            ));
        }
        (_, Some(location), false) => {
            let other = Corpus::whole(&location, &spec.for_held_out(), tokenizer, 0, cache)?;
            (HeldOutText::Other, Some(other))
        }
        _ => (HeldOutText::Share, None),
    };
    let is_held_out_apart = !matches!(held_out, HeldOutText::Share);
    let LoadedChat { train, held_out, mut warnings, description, facts } =
        chat_corpus::load(text, &held_out, spec, tokenizer)?;
    let (validation, held_out_bytes, held_out_lost) = match (held_out, other) {
        (_, Some(Whole { tokens, text_bytes, lost, warnings: found })) => {
            warnings.extend(found);
            (tokens, text_bytes, lost)
        }
        (held_out, None) => (held_out.unwrap_or_default(), None, Some(LostBytes::default())),
    };
    Ok(Loaded {
        train,
        validation,
        is_held_out_apart,
        content: None,
        summary: CorpusSummary {
            warnings,
            description,
            lost: Some(LostBytes::default()),
            held_out_bytes,
            held_out_lost,
            chat: Some(facts),
            ..CorpusSummary::default()
        },
    })
}

/// Loads a text of which conversations of their own are held out.
fn load_beside_conversations(
    text: &TextFiles,
    spec: &Spec,
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
) -> Result<Loaded> {
    let Some(location) = spec.held_out() else {
        return Err(Error::failed(format!("corpus {}: it holds out no text of its own", spec.corpus)));
    };
    let train = Corpus::whole(&text.location, spec, tokenizer, 0, cache)?;
    let held_out = Corpus::whole(&location, &spec.for_held_out(), tokenizer, train.tokens.len(), cache)?;
    let warnings = [train.warnings, held_out.warnings].concat();
    Ok(Loaded {
        train: train.tokens,
        validation: held_out.tokens,
        is_held_out_apart: true,
        content: None,
        summary: CorpusSummary {
            warnings: warnings.into_iter().chain(stories_tokenizer_warning(spec)).collect(),
            description: text.location.to_string(),
            text_bytes: train.text_bytes,
            lost: train.lost,
            held_out_lost: held_out.lost,
            ..CorpusSummary::default()
        },
    })
}

/// Opens both splits of token files.
fn load_tokens(
    files: &TokenFiles,
    spec: &Spec,
    tokenizer: &Tokenizer,
    cache: Option<&TokenCache>,
) -> Result<Loaded> {
    let train = shard::open(&files.train)?;
    let mut held_out_bytes = None;
    let mut warnings = files.passed_over();
    warnings.extend(unused_by_shards(files, spec));
    let lost = TokenFiles::lost(&files.train, |manifest| manifest.lost)?;
    let (train, validation, held_out_lost) = match spec.held_out() {
        Some(location) => {
            let held = Corpus::whole(&location, &spec.for_held_out(), tokenizer, 0, cache)?;
            held_out_bytes = held.text_bytes;
            warnings.extend(held.warnings);
            (train, held.tokens, held.lost)
        }
        None if !files.validation.is_empty() => {
            let lost = TokenFiles::lost(&files.validation, |manifest| manifest.held_out_lost)?;
            (train, shard::open(&files.validation)?, lost)
        }
        None => {
            let fraction = spec.fraction()?.unwrap_or_default();
            let (a, b) = split::tail_at_document(&train, fraction, tokenizer.opening_token())?;
            (train.slice(a), train.slice(b), lost)
        }
    };
    let count = files.all().len();
    let description = format!("{}: {count} token file{}", spec.corpus, plural(count));
    if let Some(lost) = lost.filter(|lost| lost.total() > 0) {
        warnings.push(format!(
            "the shards lack {} bytes of their text, which the tokenizer has no entry for",
            lost.total()
        ));
    }
    let summary = CorpusSummary {
        warnings,
        description,
        held_out_bytes,
        lost,
        held_out_lost,
        ..CorpusSummary::default()
    };
    let is_held_out_apart = !files.validation.is_empty() || spec.held_out().is_some();
    Ok(Loaded { train, validation, is_held_out_apart, content: None, summary })
}

/// Returns the files of the held-out corpus; `None` if there is none of its own.
///
/// # Errors
/// If [`CorpusFiles::at`] fails.
pub(super) fn held_out_files(spec: &Spec) -> Result<Option<CorpusFiles>> {
    let extensions = &spec.for_held_out().extensions;
    spec.held_out().map(|location| CorpusFiles::at(&location, extensions)).transpose()
}

/// The warning for a run on stories whose floor is unknown.
pub(super) const NO_FLOOR: &str =
    "the tokenizer does not keep the stories' text, so their floor is not known";

fn stories(spec: &Spec, tokenizer: &Tokenizer, sink: &mut TokenSink<'_>) -> Result<CorpusSummary> {
    let mut make =
        |split, tokens| generated::generate(spec.seed, split, tokens, tokenizer, &mut |t| sink(split, t));
    let train = make(Split::Train, spec.train_tokens)?;
    let held = make(Split::Validation, spec.validation_tokens)?;
    let floor = held.floor();
    let warnings = floor.is_none().then(|| NO_FLOOR.to_owned()).into_iter().collect();
    let description =
        format!("stories: {} to train on and {} held out, seed {}", train.count, held.count, spec.seed);
    Ok(CorpusSummary {
        floor,
        warnings,
        description,
        text_bytes: Some(train.text_bytes + held.text_bytes),
        held_out_bytes: Some(held.text_bytes),
        lost: None,
        // Every held-out story decodes to its text if there is a floor.
        held_out_lost: floor.map(|_| LostBytes::default()),
        absent_drops: 0,
        chat: None,
    })
}

/// Returns the text of a corpus and of its separate held-out corpus, each with the spec that it is read by.
fn texts<'s>(text: &TextFiles, spec: &'s Spec) -> Result<Vec<(TextFiles, Cow<'s, Spec>)>> {
    let held = held_out_files(spec)?;
    let held = held.and_then(|files| match files {
        CorpusFiles::Text(text) => Some((text, spec.for_held_out())),
        CorpusFiles::Tokens(_) => None,
    });
    Ok(std::iter::once((text.clone(), Cow::Borrowed(spec))).chain(held).collect())
}

/// Says that `data.field` or `data.missing` has no effect if no file of the spec has several fields. Without
/// files there is nothing to say: the recipe's remarks say it of generated corpora.
pub(super) fn unused_fields(spec: &Spec) -> Result<Option<String>> {
    let own = Spec::new("", "");
    let key = match () {
        () if spec.field != own.field => "data.field",
        () if spec.missing != own.missing => "data.missing",
        () => return Ok(None),
    };
    let corpora = spec.corpora();
    let held_out = spec.held_out().filter(|_| !corpora.is_empty());
    let own = corpora.iter().filter_map(|own| Some((own.location()?, own.as_ref())));
    let others = held_out.into_iter().chain(spec.sets.values().cloned()).map(|location| (location, spec));
    let mut has_files = false;
    for (location, spec) in own.chain(others) {
        has_files = true;
        if spec.holds_conversations() {
            continue;
        }
        if let CorpusFiles::Text(text) = CorpusFiles::at(&location, &spec.extensions)? {
            let files = source::open(text.list(&spec.extensions)?.files(), &spec.rules())?;
            if files.iter().any(|file| file.source.has_fields()) {
                return Ok(None);
            }
        }
    }
    Ok(has_files.then(|| {
        format!("{key} has no effect on plain text and token shards, whose documents have no fields")
    }))
}

/// Says which choices have no effect on token shards, if they are not the defaults.
pub(super) fn unused_by_shards(files: &TokenFiles, spec: &Spec) -> Vec<String> {
    let own = Spec::new("", "");
    let named =
        files.validation.first().filter(|_| spec.validation != own.validation && spec.held_out().is_none());
    let held_out = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().display().to_string();
        ("data.validation", format!("{name} is held out, because its name says so"))
    };
    let because = |key, is_set: bool, why: &str| is_set.then(|| (key, why.to_owned()));
    let separator = spec.document_separator.is_some();
    let unused = [
        named.map(held_out),
        because("data.document_separator", separator, "the tokens say where documents end"),
        because("data.drop", spec.drop.is_some(), "it lists documents by their text"),
        because(
            "data.extensions",
            files.are_of_folder() && spec.extensions != own.extensions,
            "the folder has .bin files",
        ),
        because("data.seed", spec.seed != own.seed, "what is held out follows from the order of the tokens"),
    ];
    let said = unused.into_iter().flatten();
    said.map(|(key, why)| format!("{key} has no effect on token shards: {why}")).collect()
}

/// Warns that a seed has no effect, because there are no documents to choose from.
pub(super) fn unused_seed(documents: &Documents, spec: &Spec) -> Option<String> {
    let is_unused = documents.len() == 1 && spec.seed != 0 && spec.held_out().is_none();
    is_unused.then(|| {
        "data.seed has no effect on a single document: its end is held out (data.document_separator or JSON lines make \
         several of a file)"
            .to_owned()
    })
}

/// Returns every warning about a text corpus.
fn all_warnings(text: &TextFiles, spec: &Spec) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (i, (text, spec)) in texts(text, spec)?.iter().enumerate() {
        let documents = Documents::open(text, spec)?;
        warnings.extend(documents.warnings()?);
        warnings.extend(unused_seed(&documents, spec).filter(|_| i == 0));
    }
    warnings.extend(stories_tokenizer_warning(spec));
    Ok(warnings)
}

/// Returns the warnings about a text corpus that do not follow from the content of its files.
pub(super) fn uncached_warnings(text: &TextFiles, spec: &Spec) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (text, spec) in texts(text, spec)? {
        warnings.extend(text.warnings(&spec.extensions)?);
    }
    warnings.extend(stories_tokenizer_warning(spec));
    Ok(warnings)
}

/// Warns if the stories tokenizer is used on other text.
pub(super) fn stories_tokenizer_warning(spec: &Spec) -> Option<String> {
    (spec.tokenizer == "stories").then(|| {
        "the stories tokenizer knows only the words of the generated stories and splits other text mostly into \
         bytes; for your own text, set data.tokenizer to gpt2 or byte"
            .to_owned()
    })
}

fn text(
    text: &TextFiles,
    spec: &Spec,
    tokenizer: &Tokenizer,
    journal: &mut Journal,
    sink: &mut TokenSink<'_>,
) -> Result<CorpusSummary> {
    let documents = Documents::open(text, spec)?;
    let found = documents.warnings()?;
    let found = found.into_iter().chain(unused_seed(&documents, spec));
    let warnings: Vec<String> = found.chain(stories_tokenizer_warning(spec)).collect();
    let count = documents.len();
    let mut description = format!("{}: {}", text.location, documents.counted());
    let mut absent_drops = 0;
    // What is held out does not depend on what is dropped, so that runs with and without are comparable.
    let mut kept = |which: Vec<usize>| {
        let Some(path) = &spec.drop else { return Ok(which) };
        let (before, (kept, absent)) = (which.len(), DropList::read(path)?.kept(&documents, which)?);
        let dropped = before - kept.len();
        description += &format!(", {dropped} document{} of data.drop left out", plural(dropped));
        absent_drops = absent;
        Ok::<_, Error>(kept)
    };
    if let Some(held) = spec.held_out() {
        let train = kept((0..count).collect())?;
        let held = Corpus::whole(&held, &spec.for_held_out(), tokenizer, 0, None)?;
        let warnings = [warnings, held.warnings].concat();
        journal.begin(Some(Split::Train));
        let bytes = encode::tokenize(&documents, train, tokenizer, journal, &mut |t| sink(Split::Train, t))?;
        copy_stream(&held.tokens, tokenizer, &mut |t| sink(Split::Validation, t))?;
        return Ok(CorpusSummary {
            floor: None,
            warnings,
            description,
            text_bytes: held.text_bytes.map(|held| held + bytes.all),
            held_out_bytes: held.text_bytes,
            lost: Some(bytes.lost),
            held_out_lost: held.lost,
            absent_drops,
            chat: None,
        });
    }
    let fraction = spec.fraction()?.unwrap_or_default();
    let (bytes, held_out_bytes, held_out_lost) = if count == 1 {
        kept(vec![0])?;
        let mut tail = split::TailSplitter::new(fraction);
        journal.begin(None);
        let bytes = encode::tokenize(&documents, 0..1, tokenizer, journal, &mut |tokens| {
            check_memory(spec, tail.held() + tokens.len())?;
            tail.push(tokens, &mut |tokens| sink(Split::Train, tokens))
        })?;
        tail.finish(sink)?;
        // The tail may begin within a document, so the bytes of its text are unknown.
        (bytes, None, bytes.lost)
    } else {
        let (train, held) = split::documents(&documents, fraction, spec.seed)?;
        let train = kept(train)?;
        // What is held out comes first: a run that begins while its text is tokenized evaluates it.
        journal.begin(Some(Split::Validation));
        let held =
            encode::tokenize(&documents, held, tokenizer, journal, &mut |t| sink(Split::Validation, t))?;
        journal.begin(Some(Split::Train));
        let train = encode::tokenize(&documents, train, tokenizer, journal, &mut |t| sink(Split::Train, t))?;
        let mut both = held;
        both += train;
        (both, Some(held.all), held.lost)
    };
    Ok(CorpusSummary {
        floor: None,
        warnings,
        description,
        text_bytes: Some(bytes.all),
        held_out_bytes,
        lost: Some(bytes.lost),
        held_out_lost: Some(held_out_lost),
        absent_drops,
        chat: None,
    })
}

/// Refuses to hold more tokens in memory than the spec allows.
fn check_memory(spec: &Spec, tokens: usize) -> Result<()> {
    match spec.memory_bytes {
        Some(limit) if tokens.saturating_mul(size_of::<u32>()) as u64 > limit => {
            Err(too_large(spec, tokens, &format!("the {limit} bytes that this process may use")))
        }
        _ => Ok(()),
    }
}

/// Appends tokens, with `held` other tokens already in memory.
fn append(spec: &Spec, held: usize, tokens: &mut Vec<u32>, more: &[u32]) -> Result<()> {
    check_memory(spec, held + tokens.len() + more.len())?;
    reserve(spec, tokens, more.len())?;
    tokens.extend_from_slice(more);
    Ok(())
}

fn reserve(spec: &Spec, tokens: &mut Vec<u32>, more: usize) -> Result<()> {
    fallible(|| tokens.try_reserve(more))
        .map_err(|_| too_large(spec, tokens.len() + more, "the system gives"))
}

fn too_large(spec: &Spec, tokens: usize, limit: &str) -> Error {
    Error::does_not_fit(format!(
        "corpus {}: {tokens} tokens or more, at {} bytes each, take more memory than {limit}. Write it as token files \
         with `xrun data` and name their folder: those are read from disk",
        spec.corpus,
        size_of::<u32>()
    ))
}

fn copy_stream(
    stream: &Stream,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    for start in (0..stream.len()).step_by(COPY_TOKENS) {
        let range = start..stream.len().min(start + COPY_TOKENS);
        sink(&stream.tokens_in_vocab(range, tokenizer.vocab_size())?)?;
    }
    Ok(())
}
