//! Finds held-out text in training text.
//!
//! The held-out documents are indexed by their passages of 13 words ([`index`]); the training documents are
//! streamed past the index ([`search`]), and what both have in common is judged ([`rules`]). Documents that
//! differ too often for 13 words to be intact are found if they are near duplicates as wholes ([`minhash`]),
//! as are near duplicates within the training text ([`duplicates`]).
//!
//! Results do not depend on threads or on the order of files: documents are merged in the order of the
//! corpus, and held-out sets in the order of their names.

mod duplicates;
mod held_out;
mod index;
mod minhash;
mod report;
mod rules;
mod search;
mod sides;
mod texts;
mod window;
mod words;

use super::Spec;
use super::drop::text_hash;
use crate::error::{Error, Result};
use duplicates::Duplicates;
use held_out::{HeldOut, ReadText};
pub use held_out::{ListedText, TextList};
use index::{HeldOutReader, Index, IndexBuilder};
use report::{Leak, LeakKind};
pub use report::{Report, SetReport, TrainingReport};
use rules::{Frequency, Verdict};
use search::{Match, Search};
pub use sides::Options;
use sides::Sides;
use words::Words;

/// Most leaks that are listed, at about 100 bytes each. The documents of further ones are still marked.
const MAX_LISTED: usize = 1 << 22;

/// Looks for the held-out text of a spec, and for further files, in its training text. `progress` is told how
/// many bytes of text were read.
///
/// # Errors
/// If the corpus, a held-out set or a further file is missing, wrong, or no text; if there is more held-out
/// text than an index may hold; or if a file changes meanwhile.
pub fn check(spec: &Spec, options: &Options<'_>, progress: &dyn Fn(u64)) -> Result<Report> {
    let Sides { training, held_out, mut warnings } = Sides::open(spec, options)?;
    let (index, held_out_words) = indexed(&held_out)?;
    let mut merged = Merged::new(&index);
    for (first, texts) in training.parts() {
        let search = |document| {
            let mut search = Search::new(&index);
            texts.read(document, &mut |text| search.push(text))?;
            Ok(search.finish())
        };
        texts.each(search, |document, found| {
            progress(texts.documents.bytes(document));
            let number = u32::try_from(first + document).map_err(|_| too_many())?;
            if let Some(signature) = found.signature.filter(|_| options.duplicates) {
                merged.duplicates.add(number, signature)?;
            }
            merged.add(number, &found)
        })?;
    }
    warnings.extend(merged.warnings());
    let duplicates = options.duplicates.then(|| merged.duplicates.find());
    let leaks = merged.finish();
    let mut marked: Vec<u32> = leaks.leaks.iter().map(|leak| leak.document).chain(leaks.unlisted).collect();
    marked.sort_unstable();
    marked.dedup();
    let mut hashes = Vec::with_capacity(marked.len());
    for document in &marked {
        let (documents, number) = training.find(*document);
        hashes.push(text_hash(documents, number)?);
    }
    hashes.sort_unstable();
    hashes.dedup();
    Ok(Report::new(report::Parts {
        training,
        held_out,
        held_out_words,
        words: leaks.words,
        common: leaks.common,
        leaks: leaks.leaks,
        parts: index.parts,
        duplicates,
        marked: marked.len(),
        hashes,
        warnings,
    }))
}

fn too_many() -> Error {
    Error::does_not_fit(format!("the corpus has more than {} documents", u32::MAX))
}

/// Indexes the held-out sets, and returns the words of each.
fn indexed(held_out: &[HeldOut]) -> Result<(Index, Vec<u64>)> {
    let (mut builder, mut counts, mut number) = (IndexBuilder::default(), Vec::new(), 0u32);
    for set in held_out {
        let mut count = 0;
        let divide = |read: &ReadText<'_>| {
            let (mut words, mut reader) = (Words::default(), HeldOutReader::default());
            read(&mut |text| words.push(text, &mut |word| reader.push(word)))?;
            words.finish(&mut |word| reader.push(word));
            Ok(reader.finish())
        };
        set.each(divide, |text| {
            count += text.words;
            builder.add(number, text)?;
            number = number.checked_add(1).ok_or_else(too_many)?;
            Ok(())
        })?;
        counts.push(count);
    }
    Ok((builder.finish(), counts))
}

/// Matches that may be a leak, which depends on how many documents have their passages.
#[derive(Debug)]
struct Candidate {
    document: u32,
    words: u64,
    part: u32,
    matches: Vec<Match>,
}

/// What the training documents so far have in common with the held-out text.
#[derive(Debug)]
struct Merged<'i> {
    index: &'i Index,
    frequency: Frequency,
    candidates: Vec<Candidate>,
    near: Vec<Leak>,
    /// Documents with leaks that are not listed.
    unlisted: Vec<u32>,
    duplicates: Duplicates,
    words: u64,
}

/// The leaks of a training text.
struct Leaks {
    leaks: Vec<Leak>,
    unlisted: Vec<u32>,
    /// The held-out documents that overlap but for common passages.
    common: Vec<u32>,
    words: u64,
}

impl<'i> Merged<'i> {
    fn new(index: &'i Index) -> Self {
        Self {
            index,
            frequency: Frequency::new(index),
            candidates: Vec::new(),
            near: Vec::new(),
            unlisted: Vec::new(),
            duplicates: Duplicates::default(),
            words: 0,
        }
    }

    /// Adds a document with a higher number than all before.
    fn add(&mut self, document: u32, found: &search::Found) -> Result<()> {
        self.words += found.words;
        self.frequency.add(found);
        for (&part, matches) in &found.parts {
            // Passages only become common, so what is no leak now is none in the end.
            if rules::judge(self.index, part, matches, found.words, &self.frequency).is_none() {
                continue;
            }
            if self.candidates.len() < MAX_LISTED {
                let matches = matches.clone();
                self.candidates.push(Candidate { document, words: found.words, part, matches });
            } else if self.unlisted.last() != Some(&document) {
                self.unlisted.push(document);
            }
        }
        for &(held_out, similarity) in &found.near {
            if self.near.len() < MAX_LISTED {
                let kind = LeakKind::NearDuplicate;
                let spans = Vec::new();
                self.near.push(Leak { document, held_out, part: None, kind, overlap: similarity, spans });
            } else if self.unlisted.last() != Some(&document) {
                self.unlisted.push(document);
            }
        }
        Ok(())
    }

    /// Says what was left out.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !self.unlisted.is_empty() {
            warnings.push(format!(
                "more than {MAX_LISTED} leaks: {} further documents are not listed, but counted and dropped",
                self.unlisted.len()
            ));
        }
        if self.duplicates.left_out > 0 {
            warnings.push(format!(
                "near duplicates within the training text were looked for in its first {} documents; {} further ones were \
                 only compared with the held-out text",
                duplicates::MAX_DOCUMENTS,
                self.duplicates.left_out
            ));
        }
        warnings
    }

    /// Judges the candidates now that all passages are counted.
    fn finish(self) -> Leaks {
        let Self { index, frequency, candidates, near, unlisted, words, .. } = self;
        let judged = candidates.into_iter().filter_map(|one| {
            let Candidate { document, words, part, matches } = one;
            let (kind, overlap) = match rules::judge(index, part, &matches, words, &frequency)? {
                Verdict::Copy(overlap) => (LeakKind::Copy, overlap),
                Verdict::Overlap(overlap) => (LeakKind::Overlap, overlap),
            };
            let held_out = index.parts[part as usize].document;
            let spans = report::spans(&matches);
            Some(Leak { document, held_out, part: Some(part), kind, overlap, spans })
        });
        let mut leaks: Vec<Leak> = judged.collect();
        let known: std::collections::HashSet<(u32, u32)> =
            leaks.iter().map(|leak| (leak.document, leak.held_out)).collect();
        leaks.extend(near.into_iter().filter(|one| !known.contains(&(one.document, one.held_out))));
        leaks.sort_by_key(|leak| (leak.document, leak.held_out, leak.part));
        let parts = 0..index.parts.len() as u32;
        let common = parts.filter(|part| rules::common_share(index, *part, &frequency).is_some());
        let mut common: Vec<u32> = common.map(|part| index.parts[part as usize].document).collect();
        common.dedup();
        Leaks { leaks, unlisted, common, words }
    }
}

#[cfg(test)]
mod tests;
