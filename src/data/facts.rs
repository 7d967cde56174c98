//! Sizes of a corpus, estimated without tokenizing all of it, for the plan of a run.

use super::corpus::Corpus;
use super::documents::{is_json_lines, text_files};
use super::stories::Split;
use super::tokenizer::Tokenizer;
use super::{Spec, Validation, generated, shard};
use crate::error::{IoContext, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

/// Opens the tokenizer, where it is needed.
type Opener<'t> = dyn Fn() -> Result<Arc<Tokenizer>> + 't;

/// Bytes tokenized at each sampled place of a text corpus.
const SAMPLE_BYTES: u64 = 32 << 10;

/// Places sampled.
const SAMPLES: u64 = 4;

/// Sizes of a corpus.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Entries of the tokenizer.
    pub vocab_size: usize,
    /// The end token.
    pub end_token: u32,
    /// Tokens to train on.
    pub train_tokens: usize,
    /// Held-out tokens.
    pub validation_tokens: usize,
    /// Whether the two counts are estimates: from sampled text, or short of the last story.
    pub estimated: bool,
    /// The floor in nats per token, where it is known.
    pub floor: Option<f64>,
    /// Tokens of further held-out sets, by their names.
    pub set_tokens: BTreeMap<String, usize>,
    /// Tokens of all these that are held in memory; those of token files stay on disk.
    pub in_memory: usize,
}

/// Sizes of the corpus that `spec` names, in well under a second: shards by their headers, text by its length
/// and a tokenized sample, generated corpora by the spec and their (small) held-out part.
///
/// # Errors
/// A missing corpus or tokenizer, a damaged shard header, an impossible share.
pub fn facts(spec: &Spec) -> Result<Facts> {
    // Shards need no tokenizer but its size, which is known of those built in without building them.
    facts_with(spec, Tokenizer::size(&spec.tokenizer)?, &|| Tokenizer::open(&spec.tokenizer).map(Arc::new))
}

/// As [`facts`], with the tokenizer that `spec` names, where a caller looks at many corpora.
///
/// # Errors
/// As [`facts`].
pub fn facts_of(spec: &Spec, tokenizer: &Arc<Tokenizer>) -> Result<Facts> {
    facts_with(spec, (tokenizer.vocab_size(), tokenizer.end_token()), &|| Ok(tokenizer.clone()))
}

fn facts_with(spec: &Spec, (vocab_size, end_token): (usize, u32), tokenizer: &Opener<'_>) -> Result<Facts> {
    let mut facts = Facts {
        vocab_size,
        end_token,
        train_tokens: 0,
        validation_tokens: 0,
        estimated: false,
        floor: None,
        set_tokens: BTreeMap::new(),
        in_memory: 0,
    };
    let found = Corpus::find(spec)?;
    let on_disk = matches!(found, Corpus::Tokens(_));
    match found {
        Corpus::Stories => {
            let tokenizer = tokenizer()?;
            let held = generated::generate(
                spec.seed,
                Split::Validation,
                spec.validation_tokens,
                &tokenizer,
                &mut |_| Ok(()),
            )?;
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = held.tokens;
            facts.floor = held.floor();
            facts.estimated = true;
        }
        Corpus::Random => {
            facts.train_tokens = spec.train_tokens;
            facts.validation_tokens = spec.validation_tokens;
            facts.floor = Some((vocab_size as f64).ln());
        }
        corpus => {
            let (tokens, estimated) = measure(&corpus, spec, tokenizer, true)?;
            let (train, held, guessed) = match (&spec.validation, &corpus) {
                (Validation::Path(path), _) => {
                    let (held, guessed) = measure(&Corpus::at(path)?, spec, tokenizer, false)?;
                    (tokens, held, guessed)
                }
                (_, Corpus::Tokens(files)) if !files.validation.is_empty() => {
                    (tokens, shard::count(&files.validation)?, false)
                }
                _ => {
                    let held = (tokens as f64 * spec.fraction()?.unwrap_or_default()) as usize;
                    (tokens - held, held, true)
                }
            };
            facts.train_tokens = train;
            facts.validation_tokens = held;
            facts.estimated = estimated || guessed;
        }
    }
    if !on_disk {
        facts.in_memory = facts.train_tokens.saturating_add(facts.validation_tokens);
    }
    for (name, path) in &spec.sets {
        let of_set = |e: crate::error::Error| e.context(format!("validation.sets.{name}"));
        let corpus = Corpus::at(path).map_err(of_set)?;
        let (tokens, guessed) = measure(&corpus, spec, tokenizer, false).map_err(of_set)?;
        facts.estimated |= guessed;
        if !matches!(corpus, Corpus::Tokens(_)) {
            facts.in_memory = facts.in_memory.saturating_add(tokens);
        }
        facts.set_tokens.insert(name.clone(), tokens);
    }
    Ok(facts)
}

/// Refuses a corpus of shards that another tokenizer made than `tokenizer`, which `spec` names.
///
/// # Errors
/// Those, by the `tokenizer.json` beside them; a missing corpus.
pub fn refuse_other_tokenizer(spec: &Spec, tokenizer: &Tokenizer) -> Result<()> {
    Corpus::find(spec)?.refuse_other_tokenizer(spec, tokenizer)
}

/// Returns what a run on the corpus that `spec` names warns of before it begins, in well under a second.
/// `has_floor` is true if the floor of its held-out text is known.
///
/// # Errors
/// A missing corpus or tokenizer.
pub fn warnings(spec: &Spec, has_floor: bool) -> Result<Vec<String>> {
    Corpus::find(spec)?.warnings(spec, has_floor)
}

/// Tokens of a corpus of files (of its training part alone, if `train_only`), and whether that is an
/// estimate.
fn measure(corpus: &Corpus, spec: &Spec, tokenizer: &Opener<'_>, train_only: bool) -> Result<(usize, bool)> {
    match corpus {
        Corpus::Tokens(files) if train_only => Ok((shard::count(&files.train)?, false)),
        Corpus::Tokens(files) => Ok((shard::count(&files.all())?, false)),
        Corpus::Text(path) => Ok((estimate(path, &spec.extensions, &*tokenizer()?)?, true)),
        // `Corpus::find` is matched by the caller, and a path is never a generated corpus.
        Corpus::Stories | Corpus::Random => Ok((0, true)),
    }
}

/// The bytes of the files over the bytes per token of a sample.
fn estimate(path: &Path, extensions: &[String], tokenizer: &Tokenizer) -> Result<usize> {
    let files = text_files(path, extensions)?;
    let sizes: Vec<u64> =
        files.iter().map(|p| p.metadata().at("read", p).map(|m| m.len())).collect::<Result<_>>()?;
    let total: u64 = sizes.iter().sum();
    let (mut bytes, mut tokens) = (0, 0);
    for i in 0..SAMPLES {
        // Places spread evenly over all bytes; each sample stays within its file.
        let mut at = total / SAMPLES * i;
        let mut file = 0;
        while file + 1 < files.len() && at >= sizes[file] {
            at -= sizes[file];
            file += 1;
        }
        let sample = read_at(&files[file], at)?;
        bytes += sample.len();
        tokens += tokenizer.encode(&sampled_text(&files[file], &sample))?.len();
    }
    let per_byte = if bytes == 0 { 0.0 } else { tokens as f64 / bytes as f64 };
    Ok((total as f64 * per_byte) as usize)
}

fn read_at(path: &Path, at: u64) -> Result<Vec<u8>> {
    let mut file = File::open(path).at("open", path)?;
    file.seek(SeekFrom::Start(at)).at("read", path)?;
    let mut sample = Vec::new();
    file.take(SAMPLE_BYTES).read_to_end(&mut sample).at("read", path)?;
    Ok(sample)
}

/// The text within a sample: of JSON lines, the `text` of the whole lines in it.
fn sampled_text(path: &Path, sample: &[u8]) -> String {
    let raw = String::from_utf8_lossy(sample);
    if !is_json_lines(path) {
        return raw.into_owned();
    }
    let texts: String = raw
        .lines()
        .filter_map(|l| {
            serde_json::from_str::<serde_json::Value>(l).ok()?["text"].as_str().map(str::to_owned)
        })
        .collect();
    if texts.is_empty() { raw.into_owned() } else { texts }
}
