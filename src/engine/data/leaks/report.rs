//! What a check found: counts for people and programs, and a file of spans.

use super::duplicates::Duplicate;
use super::held_out::HeldOut;
use super::index::Part;
use super::search::Match;
use super::texts::Training;
use crate::atomic;
use crate::data::documents::DocumentPlace;
use crate::data::drop::{self, TextHash};
use crate::error::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Most spans of a leak that are listed.
const MAX_SPANS: usize = 32;

/// How a training document and a held-out one are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeakKind {
    NearDuplicate,
    Overlap,
    Copy,
}

impl LeakKind {
    fn word(self) -> &'static str {
        match self {
            Self::NearDuplicate => "near_duplicate",
            Self::Overlap => "overlap",
            Self::Copy => "copy",
        }
    }
}

/// Held-out text in a training document.
#[derive(Clone, Debug)]
pub(super) struct Leak {
    /// Number of the training document in the corpus.
    pub document: u32,
    /// Number of the held-out document among those of all sets.
    pub held_out: u32,
    /// The part of it; `None` if the whole documents are alike.
    pub part: Option<u32>,
    pub kind: LeakKind,
    /// The share of the part, or the similarity of the documents.
    pub overlap: f64,
    /// Bytes of the training document.
    pub spans: Vec<(u64, u64)>,
}

/// Returns the bytes of matches, joined where they touch, in order.
pub(super) fn spans(matches: &[Match]) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = matches.iter().map(|one| (one.start, one.end)).collect();
    all.sort_unstable();
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for (start, end) in all {
        match spans.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => spans.push((start, end)),
        }
    }
    spans.truncate(MAX_SPANS);
    spans
}

/// What was found in the training text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainingReport {
    /// Documents that were looked through.
    pub documents: usize,
    /// Their words.
    pub words: u64,
    /// Documents with held-out text.
    pub with_leaks: usize,
    /// Documents that are near duplicates of earlier ones; `None` if they were not looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near_duplicates: Option<usize>,
}

/// How much of a held-out set was found in the training text. A document counts once, by the kind that comes
/// first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SetReport {
    /// `data.validation`, `validation.sets.NAME`, or the path of a further file.
    pub set: String,
    /// Documents of the set.
    pub documents: usize,
    /// Their words.
    pub words: u64,
    /// Documents of which a part was copied.
    pub copied: usize,
    /// Documents of which a part overlaps with a training document.
    pub overlapping: usize,
    /// Documents that are near duplicates of a training document.
    pub near_duplicates: usize,
    /// Documents that are none of these, but of which a part overlaps in common passages.
    pub common: usize,
}

/// What a check found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The training text.
    pub training: TrainingReport,
    /// The held-out sets, in the order of their names.
    pub held_out: Vec<SetReport>,
    /// What the user should know.
    pub warnings: Vec<String>,
    #[serde(skip)]
    parts: Parts,
}

/// What a report is made from.
#[derive(Debug)]
pub(super) struct Parts {
    pub training: Training,
    pub held_out: Vec<HeldOut>,
    pub held_out_words: Vec<u64>,
    pub words: u64,
    pub leaks: Vec<Leak>,
    /// The parts of all held-out documents.
    pub parts: Vec<Part>,
    pub duplicates: Option<Vec<Duplicate>>,
    /// Held-out documents with common passages, in order.
    pub common: Vec<u32>,
    /// Number of training documents with leaks.
    pub marked: usize,
    /// The hashes of their texts, each once, in order.
    pub hashes: Vec<TextHash>,
    pub warnings: Vec<String>,
}

impl Report {
    pub(super) fn new(mut parts: Parts) -> Self {
        let mut strongest: BTreeMap<u32, LeakKind> = BTreeMap::new();
        for leak in &parts.leaks {
            let kind = strongest.entry(leak.held_out).or_insert(leak.kind);
            *kind = leak.kind.max(*kind);
        }
        let mut first = 0;
        let mut held_out = Vec::new();
        for (set, words) in parts.held_out.iter().zip(&parts.held_out_words) {
            let own = first..first + set.len() as u32;
            first = own.end;
            let count = |kind| strongest.range(own.clone()).filter(|(_, own)| **own == kind).count();
            let is_common = |one: &&u32| own.contains(one) && !strongest.contains_key(one);
            held_out.push(SetReport {
                set: set.name().to_owned(),
                documents: set.len(),
                words: *words,
                copied: count(LeakKind::Copy),
                overlapping: count(LeakKind::Overlap),
                near_duplicates: count(LeakKind::NearDuplicate),
                common: parts.common.iter().filter(is_common).count(),
            });
        }
        let training = TrainingReport {
            documents: parts.training.count(),
            words: parts.words,
            with_leaks: parts.marked,
            near_duplicates: parts.duplicates.as_ref().map(Vec::len),
        };
        Self { training, held_out, warnings: std::mem::take(&mut parts.warnings), parts }
    }

    /// Writes every leak and every near duplicate as a line of JSON.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_spans(&self, path: &Path) -> Result<()> {
        atomic::write_with(path, |file| {
            for leak in &self.parts.leaks {
                writeln!(file, "{}", self.leak(leak))?;
            }
            for one in self.parts.duplicates.iter().flatten() {
                writeln!(file, "{}", self.duplicate(one))?;
            }
            Ok(())
        })
    }

    /// Writes the list of training documents with leaks, for `data.drop`, and returns their number. Documents
    /// with the same text count once.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_drop_list(&self, path: &Path) -> Result<usize> {
        drop::write(path, &self.parts.hashes)?;
        Ok(self.parts.hashes.len())
    }

    fn leak(&self, leak: &Leak) -> Value {
        let mut row = begun(leak.kind.word(), leak.overlap);
        let (documents, number) = self.parts.training.find(leak.document);
        add_place(&mut row, "", documents.place(number));
        if !leak.spans.is_empty() {
            row.insert("spans".to_owned(), json!(leak.spans));
        }
        let (set, document) = self.held_out_document(leak.held_out);
        row.insert("held_out".to_owned(), json!(set.name()));
        add_place(&mut row, "held_out_", set.place(document));
        if let Some(part) = leak.part.map(|part| &self.parts.parts[part as usize]) {
            let span = [part.start, part.end].map(|byte| byte + set.begin());
            row.insert("held_out_span".to_owned(), json!(span));
        }
        Value::Object(row)
    }

    fn duplicate(&self, one: &Duplicate) -> Value {
        let mut row = begun("training_duplicate", one.similarity);
        for (prefix, document) in [("", one.document), ("earlier_", one.earlier)] {
            let (documents, number) = self.parts.training.find(document);
            add_place(&mut row, prefix, documents.place(number));
        }
        Value::Object(row)
    }

    /// Returns the documents of a held-out set that the training text has, copied, overlapping or nearly, by
    /// their places in the set; `None` if there is no such set.
    pub fn found(&self, set: &str) -> Option<BTreeSet<usize>> {
        let place = self.parts.held_out.iter().position(|one| one.name() == set)?;
        let first: usize = self.parts.held_out[..place].iter().map(HeldOut::len).sum();
        let own = first..first + self.parts.held_out[place].len();
        let found = self.parts.leaks.iter().map(|leak| leak.held_out as usize);
        Some(found.filter(|document| own.contains(document)).map(|document| document - first).collect())
    }

    /// Returns the set of a held-out document, and its place in the set.
    fn held_out_document(&self, number: u32) -> (&HeldOut, usize) {
        let mut number = number as usize;
        for set in &self.parts.held_out {
            if number < set.len() {
                return (set, number);
            }
            number -= set.len();
        }
        unreachable!("every held-out document is one of a set")
    }
}

fn begun(kind: &str, overlap: f64) -> Map<String, Value> {
    let rounded = (1000.0 * overlap).round() / 1000.0;
    Map::from_iter([("kind".to_owned(), json!(kind)), ("overlap".to_owned(), json!(rounded))])
}

fn add_place(row: &mut Map<String, Value>, prefix: &str, place: DocumentPlace<'_>) {
    row.insert(format!("{prefix}file"), json!(place.file.to_string_lossy()));
    if let Some(line) = place.line {
        row.insert(format!("{prefix}line"), json!(line));
    }
    row.insert(format!("{prefix}document"), json!(place.number));
}
