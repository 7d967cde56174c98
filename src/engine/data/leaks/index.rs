//! The held-out text, indexed by its passages.

use super::minhash::{Signature, Signatures, Signer};
use super::window::{GRAM_WEIGHT, Window};
use super::words::{WORD, Word};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Weight of the parts that long held-out documents are divided into: 256 words. A document of up to one and
/// a half times that is one part.
const PART_WEIGHT: u32 = 256 * WORD;

/// Words of the shortest held-out document that is looked for within longer ones. The bound is that of Brown
/// et al. (2020, appendix C). Fewer words are found anywhere, so they are compared with whole documents.
pub(super) const SHORTEST: u32 = 8;

/// A passage in more held-out documents, or in more training documents, is common, as licences and quotations
/// are. The number is that of Brown et al. (2020, appendix C).
pub(super) const COMMON: u32 = 10;

/// Most words of held-out text. The index takes about 80 bytes for each.
const MAX_WORDS: u64 = 64 << 20;

/// How a part of the held-out text is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// By its passages of 13 words.
    Passages,
    /// As a whole, within training documents.
    Within,
    /// As a whole, among training documents that have no other words.
    Whole,
}

/// A part of a held-out document; short documents have one.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Index of its document.
    pub document: u32,
    pub reach: Reach,
    pub words: u32,
    /// Its bytes in the document.
    pub start: u64,
    pub end: u64,
    /// Where its passages begin in [`Index::passages`].
    first: usize,
    count: usize,
}

/// A passage of a part: words `first` to `last` of the part.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartPassage {
    /// Number of the passage among all that differ.
    pub id: u32,
    pub first: u16,
    pub last: u16,
}

/// Where a passage occurs: passage `at` of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occurrence {
    pub part: u32,
    pub at: u16,
}

/// A held-out document, ready to be added to the index.
#[derive(Debug, Default)]
pub(super) struct HeldOutText {
    parts: Vec<NewPart>,
    signature: Option<Signature>,
    pub words: u64,
}

#[derive(Debug)]
struct NewPart {
    reach: Reach,
    words: u32,
    start: u64,
    end: u64,
    /// Hash, first and last word of each passage.
    passages: Vec<(u64, u16, u16)>,
}

/// Divides the words of a held-out document into parts.
#[derive(Debug, Default)]
pub(super) struct HeldOutReader {
    text: HeldOutText,
    signer: Signer,
    words: Vec<Word>,
    weight: u32,
}

impl HeldOutReader {
    /// Adds a word.
    pub fn push(&mut self, word: Word) {
        self.signer.push(word.hash);
        self.text.words += 1;
        self.weight += word.weight;
        self.words.push(word);
        if self.weight >= 2 * PART_WEIGHT {
            self.cut(PART_WEIGHT);
        }
    }

    /// Ends the document.
    pub fn finish(mut self) -> HeldOutText {
        if self.weight > PART_WEIGHT + PART_WEIGHT / 2 {
            self.cut(self.weight / 2);
        }
        self.cut(u32::MAX);
        self.text.signature = self.signer.finish();
        self.text
    }

    /// Makes a part of the first words that weigh `most` or less.
    fn cut(&mut self, most: u32) {
        let mut weight = 0;
        let fits = self.words.iter().take_while(|word| {
            weight += word.weight;
            weight <= most
        });
        let count = fits.count();
        let rest = self.words.split_off(count);
        let words = std::mem::replace(&mut self.words, rest);
        self.weight = self.words.iter().map(|word| word.weight).sum();
        self.text.parts.extend(NewPart::new(&words));
    }
}

impl NewPart {
    fn new(words: &[Word]) -> Option<Self> {
        let (first, last) = (words.first()?, words.last()?);
        let weight: u32 = words.iter().map(|word| word.weight).sum();
        let reach = match weight {
            GRAM_WEIGHT.. => Reach::Passages,
            weight if weight >= SHORTEST * WORD => Reach::Within,
            _ => Reach::Whole,
        };
        let (mut window, mut passages) = (Window::default(), Vec::new());
        for word in words {
            window.push(word);
            passages.extend(window.gram());
        }
        if reach != Reach::Passages {
            passages.extend(window.newest(words.len()));
        }
        let mut seen = BTreeSet::new();
        // A passage that a part repeats counts once, so that a few words do not stand for many.
        let passages = passages.iter().filter(|passage| seen.insert(passage.hash));
        let passages = passages.map(|passage| (passage.hash, passage.first as u16, passage.last as u16));
        let passages = passages.collect();
        Some(Self { reach, words: words.len() as u32, start: first.start, end: last.end, passages })
    }
}

/// A hash table's hash of what is a hash already.
#[derive(Debug, Default)]
struct Unchanged(u64);

impl Hasher for Unchanged {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// All held-out text.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub parts: Vec<Part>,
    /// The passages of all parts, part by part.
    passages: Vec<PartPassage>,
    /// The id of every passage by its hash.
    ids: HashMap<u64, u32, BuildHasherDefault<Unchanged>>,
    /// A bit by the first bits of each hash. Most passages of a training text are decided by it.
    filter: Vec<u64>,
    /// Where the occurrences of each passage begin in `occurrences`, by id, and at last their number.
    starts: Vec<u32>,
    occurrences: Vec<Occurrence>,
    /// True for passages of more than [`COMMON`] held-out documents, by id.
    is_common: Vec<bool>,
    /// Numbers of words of the documents to look for as wholes within others.
    pub lengths: BTreeSet<usize>,
    pub signatures: Signatures,
}

/// Collects held-out documents for an index.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    index: Index,
    /// Hash, part and number within the part of every passage.
    found: Vec<(u64, u32, u16)>,
    words: u64,
}

impl IndexBuilder {
    /// Adds a document. `document` is its number, which increases from call to call.
    ///
    /// # Errors
    /// If the held-out text is longer than an index may be.
    pub fn add(&mut self, document: u32, text: HeldOutText) -> Result<()> {
        self.words += text.words;
        if self.words > MAX_WORDS {
            return Err(Error::does_not_fit(format!(
                "the held-out text has more than {MAX_WORDS} words, and more are not indexed at once: check its sets \
                 one after another, or hold out less"
            )));
        }
        for new in text.parts {
            let part = self.index.parts.len() as u32;
            let first = self.index.passages.len();
            if new.reach == Reach::Within {
                self.index.lengths.insert(new.words as usize);
            }
            for (at, (hash, first, last)) in new.passages.iter().enumerate() {
                self.index.passages.push(PartPassage { id: 0, first: *first, last: *last });
                self.found.push((*hash, part, at as u16));
            }
            let NewPart { reach, words, start, end, passages } = new;
            self.index.parts.push(Part { document, reach, words, start, end, first, count: passages.len() });
        }
        if let Some(signature) = text.signature {
            self.index.signatures.add(document, signature);
        }
        Ok(())
    }

    /// Ends the index.
    pub fn finish(self) -> Index {
        let Self { mut index, mut found, .. } = self;
        found.par_sort_unstable();
        let bits = (16 * found.len().max(64)).next_power_of_two();
        index.filter = vec![0; bits / 64];
        for group in found.chunk_by(|one, other| one.0 == other.0) {
            let (hash, id) = (group[0].0, index.starts.len() as u32);
            index.ids.insert(hash, id);
            let bit = filter_bit(hash, index.filter.len());
            index.filter[bit / 64] |= 1 << (bit % 64);
            index.starts.push(index.occurrences.len() as u32);
            for (_, part, at) in group {
                let passage = index.parts[*part as usize].first + usize::from(*at);
                index.passages[passage].id = id;
            }
            // A part has a passage once, so these are as many parts.
            let kept = group.iter().take(COMMON as usize);
            index.occurrences.extend(kept.map(|(_, part, at)| Occurrence { part: *part, at: *at }));
            index.is_common.push(
                group.len() > COMMON as usize && {
                    let documents = group.iter().map(|(_, part, _)| index.parts[*part as usize].document);
                    documents.collect::<BTreeSet<u32>>().len() > COMMON as usize
                },
            );
        }
        index.starts.push(index.occurrences.len() as u32);
        index
    }
}

fn filter_bit(hash: u64, words: usize) -> usize {
    // The table uses the last and the first bits, so mixing keeps the filter independent of them.
    (super::words::mixed(hash) as usize) & (64 * words - 1)
}

impl Index {
    /// Returns the number of passages that differ.
    pub fn len(&self) -> usize {
        self.is_common.len()
    }

    /// Returns the id of the passage with a hash, if the held-out text has it.
    pub fn find(&self, hash: u64) -> Option<u32> {
        let bit = filter_bit(hash, self.filter.len().max(1));
        let is_possible = self.filter.get(bit / 64).is_some_and(|bits| bits >> (bit % 64) & 1 == 1);
        if is_possible { self.ids.get(&hash).copied() } else { None }
    }

    /// Returns where a passage occurs: the first [`COMMON`] parts.
    pub fn occurrences(&self, id: u32) -> &[Occurrence] {
        let id = id as usize;
        &self.occurrences[self.starts[id] as usize..self.starts[id + 1] as usize]
    }

    /// Returns the passages of a part, in order.
    pub fn passages(&self, part: u32) -> &[PartPassage] {
        let part = &self.parts[part as usize];
        &self.passages[part.first..part.first + part.count]
    }

    /// Returns true if more than [`COMMON`] held-out documents have the passage.
    pub fn is_common(&self, id: u32) -> bool {
        self.is_common[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::leaks::words::mixed;

    fn reader(words: std::ops::Range<u64>) -> HeldOutText {
        let mut reader = HeldOutReader::default();
        words.for_each(|at| {
            reader.push(Word { hash: mixed(at), weight: WORD, start: 6 * at, end: 6 * at + 5 });
        });
        reader.finish()
    }

    #[test]
    fn long_documents_have_several_parts_of_similar_length() {
        for (words, parts) in [
            (0, &[][..]),
            (5, &[5]),
            (384, &[384]),
            (385, &[192, 193]),
            (512, &[256, 256]),
            (700, &[256, 222, 222]),
            (1300, &[256, 256, 256, 256, 276]),
        ] {
            let text = reader(0..words);
            assert_eq!(text.parts.iter().map(|part| part.words).collect::<Vec<_>>(), parts);
            assert_eq!(text.words, words);
        }
    }

    #[test]
    fn how_a_document_is_looked_for_follows_from_its_length() {
        let mut builder = IndexBuilder::default();
        let lengths = [7, 8, 12, 13, 20];
        for (document, words) in lengths.into_iter().enumerate() {
            let from = 100 * document as u64;
            builder.add(document as u32, reader(from..from + words)).unwrap();
        }
        let index = builder.finish();
        let reach: Vec<Reach> = index.parts.iter().map(|part| part.reach).collect();
        assert_eq!(reach, [Reach::Whole, Reach::Within, Reach::Within, Reach::Passages, Reach::Passages]);
        assert_eq!(index.lengths, [8, 12].into());
        let counts: Vec<usize> = (0..5).map(|part| index.passages(part).len()).collect();
        assert_eq!(counts, [1, 1, 1, 1, 8]);
        assert_eq!(index.len(), 12);
    }

    #[test]
    fn passages_of_many_documents_are_common() {
        let mut builder = IndexBuilder::default();
        (0..=COMMON).for_each(|document| builder.add(document, reader(0..20)).unwrap());
        (1..=COMMON).for_each(|more| builder.add(COMMON + more, reader(100..120)).unwrap());
        let index = builder.finish();
        let ids = |part| index.passages(part).iter().map(|passage| passage.id).collect::<Vec<_>>();
        assert_eq!(ids(0), ids(COMMON));
        assert!(ids(0).iter().all(|id| index.is_common(*id)));
        assert!(ids(COMMON + 1).iter().all(|id| !index.is_common(*id)));
        assert_eq!(index.occurrences(ids(0)[0]).len(), COMMON as usize);
        let hash = super::super::window::hash((0..13).map(mixed));
        assert_eq!(index.find(hash), Some(ids(0)[0]));
        assert_eq!(index.find(hash + 1), None);
        assert_eq!(Index::default().find(hash), None);
    }
}
