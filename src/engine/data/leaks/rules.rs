//! The rules that decide whether what two texts have in common is a leak.
//!
//! A training document leaks a part of a held-out document (all of it, up to 384 words) if it has
//!
//! - [`COPIED`] of the part's words in passages of 13, whatever the passages; or
//! - [`OVERLAPS`] of them in passages that are not common; or
//! - if [`OF_DOCUMENT`] of the training document's own words are in such passages.
//!
//! A passage is common if more than ten documents on either side have it.

use super::index::{COMMON, Index};
use super::search::{Found, Match};

/// Share of a held-out part from which a training document has a copy of it. From 0.8 of its tokens on, the
/// authors of Llama 2 (Touvron et al. 2023, appendix A.6) called a sample dirty.
pub(super) const COPIED: f64 = 0.8;

/// Share of a held-out part that overlaps. They called a sample clean below 0.2.
pub(super) const OVERLAPS: f64 = 0.2;

/// Share of a training document that overlaps: most of it is held-out text.
pub(super) const OF_DOCUMENT: f64 = 0.5;

/// How much of a held-out part, and of a training document, matches cover, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Covered {
    pub of_part: f64,
    pub of_document: f64,
}

impl Covered {
    /// Returns how much matches cover, with only the passages for which `counts` is true.
    pub fn new(
        index: &Index,
        part: u32,
        matches: &[Match],
        words: u64,
        counts: impl Fn(u32) -> bool,
    ) -> Self {
        let passages = index.passages(part);
        let (mut in_part, mut in_document) = (Vec::new(), Vec::new());
        for one in matches {
            let (from, to) = (usize::from(one.first), usize::from(one.last));
            for passage in passages[from..=to].iter().filter(|passage| counts(passage.id)) {
                let [first, last] = [passage.first, passage.last].map(u64::from);
                in_part.push((first, last));
                let begin = u64::from(passages[from].first);
                in_document.push((one.word + first - begin, one.word + last - begin));
            }
        }
        let part_words = u64::from(index.parts[part as usize].words);
        Self {
            of_part: covered(in_part) as f64 / part_words.max(1) as f64,
            of_document: covered(in_document) as f64 / words.max(1) as f64,
        }
    }

    fn overlaps(&self) -> bool {
        self.of_part >= OVERLAPS || self.of_document >= OF_DOCUMENT
    }
}

/// Returns how many numbers are in at least one of these ranges, whose ends belong to them.
fn covered(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut count, mut next) = (0, 0);
    for (first, last) in ranges {
        let from = first.max(next);
        if last >= from {
            count += last - from + 1;
            next = last + 1;
        }
    }
    count
}

/// Returns the share of a part that common passages cover, if it is enough to overlap but for them.
pub(super) fn common_share(index: &Index, part: u32, frequency: &Frequency) -> Option<f64> {
    let passages = index.passages(part).iter().filter(|one| frequency.is_common(index, one.id));
    let ranges = passages.map(|one| (u64::from(one.first), u64::from(one.last))).collect();
    let share = covered(ranges) as f64 / f64::from(index.parts[part as usize].words.max(1));
    (share >= OVERLAPS).then_some(share)
}

/// In how many training documents each passage of the held-out text occurs.
#[derive(Debug)]
pub(super) struct Frequency(Vec<u32>);

impl Frequency {
    pub fn new(index: &Index) -> Self {
        Self(vec![0; index.len()])
    }

    /// Counts the passages of a document.
    pub fn add(&mut self, found: &Found) {
        found.passages.iter().for_each(|id| self.0[*id as usize] = self.0[*id as usize].saturating_add(1));
    }

    /// Returns true if many of the documents that were counted have the passage, or many held-out documents
    /// and a counted one.
    pub fn is_common(&self, index: &Index, id: u32) -> bool {
        let count = self.0[id as usize];
        count > COMMON || count > 0 && index.is_common(id)
    }
}

/// What a training document has of a held-out part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// A copy. The share of the part that is copied.
    Copy(f64),
    /// An overlap. The share of the part that is in passages that are not common.
    Overlap(f64),
}

/// Judges the matches of a training document of `words` words with a part; `None` if they are no leak.
pub(super) fn judge(
    index: &Index,
    part: u32,
    matches: &[Match],
    words: u64,
    frequency: &Frequency,
) -> Option<Verdict> {
    let uncommon = |id| !frequency.is_common(index, id);
    let rare = Covered::new(index, part, matches, words, uncommon);
    let is_passages = index.parts[part as usize].reach == super::index::Reach::Passages;
    if is_passages {
        let all = Covered::new(index, part, matches, words, |_| true);
        if all.of_part >= COPIED {
            return Some(Verdict::Copy(all.of_part));
        }
    }
    match (rare.overlaps(), is_passages) {
        (true, true) => Some(Verdict::Overlap(rare.of_part)),
        (true, false) => Some(Verdict::Copy(rare.of_part)),
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::leaks::index::{HeldOutReader, IndexBuilder};
    use crate::data::leaks::search::Search;
    use crate::data::leaks::words::Words;

    /// Returns words that are the same for the same numbers.
    fn text(from: usize, count: usize) -> String {
        (from..from + count).map(|at| format!("w{at} ")).collect()
    }

    fn index(texts: &[String]) -> Index {
        let mut builder = IndexBuilder::default();
        for (document, text) in texts.iter().enumerate() {
            let (mut words, mut reader) = (Words::default(), HeldOutReader::default());
            words.push(text, &mut |word| reader.push(word));
            words.finish(&mut |word| reader.push(word));
            builder.add(document as u32, reader.finish()).unwrap();
        }
        builder.finish()
    }

    fn found(index: &Index, text: &str) -> Found {
        let mut search = Search::new(index);
        search.push(text);
        search.finish()
    }

    /// Judges a document by the first part, after `before` other documents with the same passages.
    fn judged(index: &Index, text: &str, before: usize) -> Option<Verdict> {
        let found = found(index, text);
        let mut frequency = Frequency::new(index);
        (0..=before).for_each(|_| frequency.add(&found));
        judge(index, 0, found.parts.get(&0)?, found.words, &frequency)
    }

    #[test]
    fn copies_and_overlaps_are_told_by_their_share() {
        let index = index(&[text(0, 100)]);
        let filler = text(5000, 300);
        let share = |held: String| judged(&index, &format!("{filler}{held}{filler}"), 0);
        assert_eq!(share(text(0, 100)), Some(Verdict::Copy(1.0)));
        assert_eq!(share(text(10, 80)), Some(Verdict::Copy(0.8)));
        assert_eq!(share(text(10, 79)), Some(Verdict::Overlap(0.79)));
        assert_eq!(share(text(70, 20)), Some(Verdict::Overlap(0.2)));
        assert_eq!(share(text(70, 19)), None);
        assert_eq!(share(text(70, 12)), None);
        assert_eq!(share(format!("{}{filler}{}", text(0, 20), text(50, 30))), Some(Verdict::Overlap(0.5)));
        assert_eq!(share(text(0, 20).repeat(50)), Some(Verdict::Overlap(0.2)), "repetitions count once");
        assert_eq!(judged(&index, &text(70, 15), 0), Some(Verdict::Overlap(0.15)), "all of the document");
    }

    #[test]
    fn common_passages_are_no_overlap_but_a_copy_is_one() {
        let index = index(&[text(0, 100)]);
        let half = text(0, 50) + &text(5000, 300);
        assert_eq!(judged(&index, &half, 9), Some(Verdict::Overlap(0.5)));
        assert_eq!(judged(&index, &half, 10), None);
        assert_eq!(judged(&index, &text(0, 100), 1000), Some(Verdict::Copy(1.0)));
        let mut frequency = Frequency::new(&index);
        let found = found(&index, &half);
        (0..11).for_each(|_| frequency.add(&found));
        assert_eq!(common_share(&index, 0, &frequency), Some(0.5));
        assert_eq!(common_share(&index, 0, &Frequency::new(&index)), None);
    }

    #[test]
    fn short_documents_are_found_whole() {
        let eight = index(&[text(0, 8)]);
        let filler = text(5000, 300);
        assert_eq!(judged(&eight, &(filler.clone() + &text(0, 8)), 0), Some(Verdict::Copy(1.0)));
        assert_eq!(judged(&eight, &(filler.clone() + &text(0, 8)), 10), None, "common");
        assert_eq!(judged(&eight, &(filler.clone() + &text(0, 7)), 0), None);
        let seven = index(&[text(0, 7)]);
        assert_eq!(judged(&seven, &(filler + &text(0, 7)), 0), None);
        assert_eq!(judged(&seven, &text(0, 7), 0), Some(Verdict::Copy(1.0)));
    }

    #[test]
    fn the_spans_of_a_match_are_those_in_both_texts() {
        let index = index(&[text(0, 40)]);
        let training = text(900, 30) + &text(5, 20) + &text(950, 30);
        let found = found(&index, &training);
        let [one] = found.parts[&0][..] else { panic!("{found:?}") };
        assert_eq!(&training[one.start as usize..one.end as usize], text(5, 20).trim());
        assert_eq!((one.word, one.first, one.last), (30, 5, 12));
    }
}
