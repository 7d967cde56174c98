//! Looks through a training document for held-out text.

use super::index::{Index, Occurrence, Reach};
use super::minhash::{Signature, Signer};
use super::window::{Passage, Window};
use super::words::{Word, Words};
use std::collections::BTreeMap;

/// Passages of a held-out part that follow each other in the training document as they do in the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The first and the last passage, by their number within the part.
    pub first: u16,
    pub last: u16,
    /// The first word in the training document.
    pub word: u64,
    /// The bytes in the training document.
    pub start: u64,
    pub end: u64,
}

/// What a training document has in common with the held-out text.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub words: u64,
    /// The matches with each held-out part, in the order of the document.
    pub parts: BTreeMap<u32, Vec<Match>>,
    /// The ids of the passages, each once.
    pub passages: Vec<u32>,
    /// `None` if the document has no words.
    pub signature: Option<Signature>,
    /// Held-out documents that are near duplicates, with their similarity.
    pub near: Vec<(u32, f64)>,
}

/// The search of one document, whose text arrives in pieces.
#[derive(Debug)]
pub(super) struct Search<'i> {
    index: &'i Index,
    words: Words,
    state: State<'i>,
}

impl<'i> Search<'i> {
    pub fn new(index: &'i Index) -> Self {
        let state = State {
            index,
            window: Window::default(),
            signer: Signer::default(),
            seen: BTreeMap::new(),
            found: Found::default(),
            newest: Word { hash: 0, weight: 0, start: 0, end: 0 },
        };
        Self { index, words: Words::default(), state }
    }

    /// Reads the next piece of the text.
    pub fn push(&mut self, text: &str) {
        let state = &mut self.state;
        self.words.push(text, &mut |word| state.word(word));
    }

    /// Ends the document.
    pub fn finish(self) -> Found {
        let Self { index, words, mut state } = self;
        words.finish(&mut |word| state.word(word));
        state.find_whole();
        let State { window, signer, mut found, .. } = state;
        found.words = window.words();
        found.signature = signer.finish();
        found.near = found.signature.as_ref().map(|one| index.signatures.near(one)).unwrap_or_default();
        found
    }
}

#[derive(Debug)]
struct State<'i> {
    index: &'i Index,
    window: Window,
    signer: Signer,
    /// A bit per passage of each part that was found, set once the passage was. What a document repeats
    /// counts once, which bounds memory by the size of the held-out text.
    seen: BTreeMap<u32, Vec<u64>>,
    found: Found,
    newest: Word,
}

impl State<'_> {
    fn word(&mut self, word: Word) {
        self.window.push(&word);
        self.signer.push(word.hash);
        self.newest = word;
        if let Some(passage) = self.window.gram() {
            self.look_up(&passage, Reach::Passages);
        }
        let index = self.index;
        for &length in &index.lengths {
            if let Some(passage) = self.window.newest(length) {
                self.look_up(&passage, Reach::Within);
            }
        }
    }

    /// Looks for short held-out documents that are the whole training document.
    fn find_whole(&mut self) {
        let words = usize::try_from(self.window.words()).unwrap_or(usize::MAX);
        if let Some(passage) = self.window.newest(words) {
            self.look_up(&passage, Reach::Whole);
        }
    }

    fn look_up(&mut self, passage: &Passage, reach: Reach) {
        let index = self.index;
        let Some(id) = index.find(passage.hash) else { return };
        let occurrences = index.occurrences(id).iter();
        let reached = occurrences.filter(|one| index.parts[one.part as usize].reach == reach);
        let mut is_new = false;
        for (n, one) in reached.enumerate() {
            let is_first = self.add(one, passage);
            // All occurrences of a passage are found together, so one of them tells.
            is_new |= n == 0 && is_first;
        }
        if is_new {
            self.found.passages.push(id);
        }
    }

    /// Adds a passage to the matches with a part, unless it is there already.
    fn add(&mut self, one: &Occurrence, passage: &Passage) -> bool {
        let Occurrence { part, at } = *one;
        let passages = self.index.passages(part);
        let seen = self.seen.entry(part).or_insert_with(|| vec![0; passages.len().div_ceil(64)]);
        let (bits, bit) = (&mut seen[usize::from(at) / 64], 1 << (at % 64));
        if *bits & bit != 0 {
            return false;
        }
        *bits |= bit;
        let matches = self.found.parts.entry(part).or_default();
        if let Some(last) = matches.last_mut() {
            // Passages are numbered in the order of the part, so only a later one begins behind another.
            if last.last + 1 == at {
                let offset = passages[usize::from(at)].first - passages[usize::from(last.first)].first;
                if last.word + u64::from(offset) == passage.first {
                    (last.last, last.end) = (at, passage.end);
                    return true;
                }
            }
        }
        let Passage { first: word, start, end, .. } = *passage;
        matches.push(Match { first: at, last: at, word, start, end });
        true
    }
}
