//! Opens a mixture: several corpora as one training stream, of which each is a part, and their held-out text
//! as sets of their names.

use super::corpus_facts::{CorpusFacts, SourceFacts};
use super::dataset::{self, Dataset, OpenedSource};
use super::file_facts::{self, FileFacts};
use super::held_out::{HeldOut, TextBytes};
use super::opened::Opening;
use super::overlap::{self, share_in_training};
use super::packing::Packed;
use super::part::Part;
use super::{Spec, Stream, TokenCache, Tokenizer, Validation};
use crate::error::{Error, Result};
use std::sync::Arc;

/// Opens the sources of a mixture.
///
/// # Errors
/// If one of them cannot be opened, or has less than one window of `seq_len + 1` tokens to train on.
pub(super) fn open(
    spec: &Spec,
    seq_len: usize,
    tokenizer: Arc<Tokenizer>,
    cache: Option<&TokenCache>,
    opening: Opening,
) -> Result<Dataset> {
    check_sources(spec)?;
    let mut opened: Vec<(&String, Dataset)> = Vec::new();
    for (name, source) in &spec.sources {
        let held: usize = opened.iter().map(|(_, dataset)| dataset.memory_bytes()).sum();
        let memory_bytes = spec.memory_bytes.map(|limit| limit.saturating_sub(held as u64));
        let own = Spec { memory_bytes, ..spec.of_source(name, source) };
        // The passes over a source with a limit have to be known.
        let opening = if source.counted { Opening::Tokenized } else { opening };
        let dataset = dataset::open_corpus(&own, seq_len, Arc::clone(&tokenizer), cache, opening);
        let dataset = dataset.and_then(|dataset| {
            dataset::check_window(&own, dataset.train_tokens().0, usize::MAX, seq_len).map(|()| dataset)
        });
        opened.push((name, dataset.map_err(|e| in_source(name, e))?));
    }
    let mut parts = Vec::with_capacity(opened.len());
    for (name, dataset) in &opened {
        parts.extend(dataset.parts.iter().map(|part| Part { name: (*name).clone(), ..part.clone() }));
    }
    let train = Stream::join(parts.iter().filter_map(|part| part.tokens.whole()));
    let held_out: Vec<&HeldOut> = opened.iter().map(|(_, dataset)| &dataset.validation).collect();
    let is_own_corpus = matches!(spec.validation, Validation::Paths(_));
    let mut validation = match held_out.first() {
        // Every source was opened with the same held-out corpus.
        Some(first) if is_own_corpus => HeldOut::clone(first),
        _ => joined_set(&held_out, &tokenizer)?,
    };
    let mut sets = Vec::new();
    if !is_own_corpus {
        for (name, dataset) in &opened {
            sets.push(HeldOut { name: (*name).clone(), ..dataset.validation.clone() });
        }
    }
    // Text that one source holds out may be in another one.
    let mut warnings: Vec<String> = Vec::new();
    let whole = std::iter::once(&mut validation).filter(|_| is_own_corpus);
    for set in whole.chain(&mut sets) {
        set.in_training = share_in_training(&train, &set.tokens)?;
        let name = match set.name.as_str() {
            "" => overlap::HELD_OUT.to_owned(),
            name => overlap::set_name(name),
        };
        warnings.extend(set.in_training.map(|share| overlap::warning(&name, share)));
    }
    if !is_own_corpus {
        validation.in_training = sets.iter().filter_map(|set| set.in_training).reduce(f64::max);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"xrun mixture");
    for (name, dataset) in &opened {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        hasher.update(dataset.hash.as_bytes());
    }
    let descriptions: Vec<String> =
        opened.iter().map(|(name, dataset)| format!("{name} ({})", dataset.description)).collect();
    let sources = opened.iter().map(|(name, dataset)| OpenedSource {
        name: (*name).clone(),
        hash: dataset.hash.clone(),
        train_tokens: Some(dataset.train_tokens()).filter(|(_, exact)| *exact).map(|(tokens, _)| tokens),
    });
    let sources = sources.collect();
    let chat = opened
        .iter()
        .flat_map(|(name, dataset)| dataset.chat.values().map(|facts| ((*name).clone(), facts.clone())));
    let chat = chat.collect();
    let packed = Packed::merged(opened.iter().filter_map(|(_, dataset)| dataset.packed));
    let mut files = Vec::new();
    for (name, dataset) in &mut opened {
        warnings.extend(dataset.warnings.iter().map(|warning| dataset::warning_of(name, warning)));
        files.append(&mut dataset.files);
    }
    Ok(Dataset {
        parts,
        sources,
        packed,
        chat,
        validation,
        sets,
        floor: None,
        apart_in_training: None,
        absent_drops: 0,
        hash: hasher.finalize().to_hex().to_string(),
        warnings,
        description: format!("a mixture of {}", descriptions.join(", ")),
        files,
        tokenizer,
    })
}

/// Returns the facts about the sources of a mixture. `tokenizer` is the one that `spec` names.
///
/// # Errors
/// If [`open`] would refuse one of them.
pub(super) fn facts(
    spec: &Spec,
    seq_len: usize,
    tokenizer: &Arc<Tokenizer>,
    cache: Option<&TokenCache>,
) -> Result<(CorpusFacts, Option<Stream>)> {
    check_sources(spec)?;
    let is_own_corpus = matches!(spec.validation, Validation::Paths(_));
    let mut all = CorpusFacts { vocab_size: tokenizer.vocab_size(), exact: true, ..CorpusFacts::default() };
    let (mut streams, mut held_out) = (Vec::new(), Vec::new());
    for (name, source) in &spec.sources {
        let own = spec.of_source(name, source);
        let found = file_facts::of_files(&own, seq_len, tokenizer, cache, source.counted).and_then(|found| {
            if found.facts.exact {
                dataset::check_window(&own, found.facts.train_tokens, usize::MAX, seq_len)?;
            }
            Ok(found)
        });
        let FileFacts { facts, train, held_out: held, .. } = found.map_err(|e| in_source(name, e))?;
        all.exact &= facts.exact;
        all.train_tokens = all.train_tokens.saturating_add(facts.train_tokens);
        all.memory_bytes = all.memory_bytes.saturating_add(facts.memory_bytes);
        if is_own_corpus {
            all.validation_tokens = facts.validation_tokens;
        } else {
            all.validation_tokens = all.validation_tokens.saturating_add(facts.validation_tokens);
            all.set_tokens.insert(name.clone(), facts.validation_tokens);
        }
        all.chat.extend(facts.chat.values().map(|chat| (name.clone(), chat.clone())));
        all.warnings.extend(facts.warnings.iter().map(|warning| dataset::warning_of(name, warning)));
        all.sources.push(SourceFacts {
            name: name.clone(),
            train_tokens: facts.train_tokens,
            packed: facts.packed,
            // Of text that was counted and not read as tokens, the rows are estimates.
            exact: facts.exact && (facts.packed.is_none() || train.is_some()),
        });
        streams.push(train);
        held_out.push(held);
    }
    let own_corpus = held_out.first().cloned().flatten().filter(|_| is_own_corpus);
    let held_out: Option<Vec<Stream>> = held_out.into_iter().collect();
    if let Some(held_out) = held_out.filter(|_| !is_own_corpus) {
        all.validation_tokens = joined(&held_out.iter().collect::<Vec<_>>(), tokenizer)?.len();
    }
    all.packed = Packed::merged(all.sources.iter().filter_map(|source| source.packed));
    let streams: Option<Vec<Stream>> = streams.into_iter().collect();
    let train = streams.map(|streams| Stream::join(&streams));
    let share = file_facts::trained_on(train.as_ref(), own_corpus.as_ref())?;
    all.warnings.extend(share.map(|share| overlap::warning(overlap::HELD_OUT, share)));
    Ok((all, train))
}

/// Refuses a mixture without sources. That sources and sets have different names is checked in recipes.
fn check_sources(spec: &Spec) -> Result<()> {
    match spec.sources.is_empty() {
        true => Err(Error::usage("a mixture has no sources: name them as [data.sources.NAME]")),
        false => Ok(()),
    }
}

fn in_source(name: &str, error: Error) -> Error {
    error.context(format!("data.sources.{name}"))
}

/// Joins held-out text of sources. The end token that closes the text of one also opens the next, so it
/// stands there once. Conversations come first: they are laid into rows, which windows are cut at.
fn joined(streams: &[&Stream], tokenizer: &Tokenizer) -> Result<Stream> {
    let end = tokenizer.end_token();
    let mut parts: Vec<Stream> = Vec::with_capacity(streams.len());
    let (conversations, text): (Vec<&Stream>, Vec<&Stream>) =
        streams.iter().partition(|stream| stream.is_marked());
    for tokens in conversations {
        // The word behind the last row stands for the first one of what follows.
        if let Some(before) = parts.pop() {
            parts.push(before.slice(0..before.len().saturating_sub(1)));
        }
        parts.push(tokens.clone());
    }
    // That word is padding: the token that opens a text, which is not predicted.
    let mut shared = (!parts.is_empty()).then(|| tokenizer.opening_token());
    for tokens in text {
        let token = |at: usize| Ok(tokens.tokens(at..tokens.len().min(at + 1))?.first().copied());
        let opens_twice = shared.is_some() && token(0)? == shared;
        parts.push(tokens.slice(usize::from(opens_twice)..tokens.len()));
        shared = token(tokens.len().saturating_sub(1))?.filter(|last| *last == end);
    }
    Ok(Stream::join(&parts))
}

/// Joins the held-out sets of sources to one.
fn joined_set(sets: &[&HeldOut], tokenizer: &Tokenizer) -> Result<HeldOut> {
    let tokens = joined(&sets.iter().map(|set| &set.tokens).collect::<Vec<_>>(), tokenizer)?;
    let hash = tokens.digest(tokenizer.vocab_size())?.to_hex().to_string();
    let text = sets.iter().map(|set| set.text.clone()).reduce(TextBytes::joined);
    let text = text.unwrap_or(TextBytes::Unknown);
    Ok(HeldOut { name: String::new(), tokens, hash, text, in_training: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{self, MixtureSource, Packing};

    /// What a plan says of a mixture is what its run has.
    #[test]
    fn facts_are_those_of_the_opened_mixture() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let lines: String =
            (0..90).map(|i| format!("{{\"text\": \"line {i} {}\"}}\n", "x ".repeat(i))).collect();
        std::fs::write(path("lines.jsonl"), &lines).unwrap();
        std::fs::write(path("whole.txt"), "One document, which is divided. ".repeat(80)).unwrap();
        // More than a plan counts, but for a source with a limit of epochs.
        std::fs::write(path("long.jsonl"), lines.repeat(300)).unwrap();
        std::fs::write(path("held.txt"), "Text of its own that is held out.").unwrap();
        let mut spec = Spec::new("mixture", "byte");
        for (name, file, counted) in
            [("a", "lines.jsonl", false), ("b", "whole.txt", false), ("c", "long.jsonl", true)]
        {
            spec.sources.insert(name.to_owned(), MixtureSource { counted, ..MixtureSource::at(path(file)) });
        }
        let apart = Spec { validation: Validation::at(path("held.txt")), ..spec.clone() };
        for spec in [spec.clone(), apart, Spec { packing: Packing::BestFit, ..spec.clone() }] {
            let planned = data::facts(&spec, 16, None, None).unwrap();
            let opened = CorpusFacts::from_dataset(&data::open(&spec, 16, None, None).unwrap());
            assert!(planned.exact);
            let tokens = |facts: &CorpusFacts| (facts.train_tokens, facts.set_tokens.clone());
            assert_eq!(tokens(&planned), tokens(&opened));
            let sources = |facts: &CorpusFacts| {
                facts
                    .sources
                    .iter()
                    .map(|source| (source.name.clone(), source.train_tokens))
                    .collect::<Vec<_>>()
            };
            assert_eq!(sources(&planned), sources(&opened));
            // Of the long source, the held-out tokens are counted, but not read.
            assert!(planned.validation_tokens.abs_diff(opened.validation_tokens) <= 1);
            let packs = spec.packing == Packing::BestFit;
            let exact: Vec<bool> = planned.sources.iter().map(|source| source.exact).collect();
            assert_eq!(exact, [true, true, !packs]);
        }
        // Without the long source, every number is that of the run.
        spec.sources.remove("c");
        for packing in [Packing::Stream, Packing::BestFit] {
            let spec = Spec { packing, ..spec.clone() };
            let opened = CorpusFacts::from_dataset(&data::open(&spec, 16, None, None).unwrap());
            let planned = data::facts(&spec, 16, None, None).unwrap();
            assert_eq!(planned.validation_tokens, opened.validation_tokens);
            assert_eq!((planned.sources, planned.packed), (opened.sources, opened.packed));
        }
    }

    /// A source may have a field of its own; the corpus that is held out for all sources has that of the
    /// spec.
    #[test]
    fn a_source_is_read_as_it_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, number: usize, length: usize| {
            let line = |i: usize| {
                let other = "no".repeat(length);
                format!("{{\"text\": \"{name} {i}\", \"content\": \"{other} {i}\"}}\n")
            };
            std::fs::write(path(name), (0..number).map(line).collect::<String>()).unwrap();
        };
        // Long enough to be cached.
        write("code", 4000, 150);
        write("web", 60, 1);
        write("held", 60, 2);
        let cache = TokenCache::new(path("cache"), 1 << 30);
        let mut spec = Spec::new("mixture", "byte");
        spec.validation = Validation::at(path("held").with_extension("jsonl").as_path());
        for name in ["code", "web", "held"] {
            std::fs::rename(path(name), path(name).with_extension("jsonl")).unwrap();
        }
        for name in ["code", "web"] {
            let source = MixtureSource::at(path(name).with_extension("jsonl").as_path());
            spec.sources.insert(name.to_owned(), source);
        }
        let content = Spec { field: "content".to_owned(), ..spec.clone() };
        let code = spec.sources.get_mut("code").unwrap();
        code.reading = Some(content.reading());
        let text = |data: &Dataset, stream: &Stream| {
            data.tokenizer.decode(&stream.tokens(0..stream.len().min(40)).unwrap()).unwrap()
        };
        for (spec, [first, held_out]) in [(&spec, ["nono", "held 0"]), (&content, ["nono", "nono 0"])] {
            let opened = data::open(spec, 16, None, Some(&cache)).unwrap();
            assert!(text(&opened, &opened.train()).contains(first));
            assert!(text(&opened, &opened.validation.tokens).contains(held_out));
            let planned = data::facts(spec, 16, None, None).unwrap();
            assert_eq!(planned.sources[1].train_tokens, opened.parts[1].tokens.expected());
        }
        assert_eq!(cache.entries().unwrap().len(), 2);
    }
}
