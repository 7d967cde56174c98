//! Estimates how similar two documents are from short signatures (MinHash, Broder 1997).
//!
//! The similarity is Jaccard's index of their sets of five consecutive words: how many both have, by how many
//! either has. A signature has 112 components. Each is the least value that a hash function of its own takes
//! on the document's set, so two documents agree in a component with a probability equal to their
//! similarity. Components form 14 bands of 8. Documents that agree in a whole band are candidates: those of
//! similarity s are with probability 1 - (1 - s⁸)¹⁴, which is 0.57 at 0.7, 0.92 at 0.8 and above 0.999 at
//! 0.9. These numbers are those of datatrove, with which FineWeb was deduplicated (Penedo et al. 2024);
//! Lee et al. (2022) chose similar ones. Of each component 8 bits are kept (Li and König, 2010), so a
//! signature takes 112 bytes, and a band is a number of 64 bits.

use super::words::mixed;
use std::collections::HashMap;

/// Words of a set's elements.
const SHINGLE_WORDS: usize = 5;

/// Number of bands, and components in each.
pub(super) const BANDS: usize = 14;
const ROWS: usize = 8;

const COMPONENTS: usize = BANDS * ROWS;

/// Similarity from which documents are near duplicates: below it, bands find less than half of them.
pub(super) const NEAR: f64 = 0.7;

/// Most documents per band and value that a document is compared with. There are more only if the documents
/// are near duplicates of each other.
const MAX_COMPARED: usize = 16;

/// Factors and summands of the hash functions x ↦ a·x + b modulo 2³².
const FUNCTIONS: ([u32; COMPONENTS], [u32; COMPONENTS]) = {
    let (mut factors, mut summands) = ([0; COMPONENTS], [0; COMPONENTS]);
    let mut i = 0;
    while i < COMPONENTS {
        let random = mixed(i as u64 + 1);
        // With an odd factor, no two values have the same hash.
        factors[i] = random as u32 | 1;
        summands[i] = (random >> 32) as u32;
        i += 1;
    }
    (factors, summands)
};

/// The signature of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature([[u8; ROWS]; BANDS]);

impl Signature {
    /// Returns a band as a number.
    pub fn band(&self, band: usize) -> u64 {
        u64::from_le_bytes(self.0[band])
    }

    /// Estimates the similarity of two documents, from 0 to 1. The standard error is at most 0.05. Unequal
    /// components have equal bits by chance in one of 256 cases, which the estimate takes into account.
    pub fn similarity(&self, other: &Self) -> f64 {
        let pairs = self.0.as_flattened().iter().zip(other.0.as_flattened());
        let equal = pairs.filter(|(one, other)| one == other).count() as f64 / COMPONENTS as f64;
        ((equal - 1.0 / 256.0) / (1.0 - 1.0 / 256.0)).max(0.0)
    }
}

/// Computes the signature of a document word by word.
#[derive(Debug)]
pub(super) struct Signer {
    /// The newest words.
    newest: [u64; SHINGLE_WORDS],
    words: u64,
    least: [u32; COMPONENTS],
}

impl Default for Signer {
    fn default() -> Self {
        Self { newest: [0; SHINGLE_WORDS], words: 0, least: [u32::MAX; COMPONENTS] }
    }
}

impl Signer {
    /// Adds a word by its hash.
    pub fn push(&mut self, word: u64) {
        self.newest.rotate_left(1);
        self.newest[SHINGLE_WORDS - 1] = word;
        self.words += 1;
        if self.words >= SHINGLE_WORDS as u64 {
            self.add();
        }
    }

    fn add(&mut self) {
        let shingle = (mixed(super::window::hash(self.newest)) >> 32) as u32;
        let (factors, summands) = &FUNCTIONS;
        for (least, (factor, summand)) in self.least.iter_mut().zip(factors.iter().zip(summands)) {
            *least = (*least).min(shingle.wrapping_mul(*factor).wrapping_add(*summand));
        }
    }

    /// Returns the signature; `None` for a document without words. One with fewer than five words is only
    /// similar to one with the same words.
    pub fn finish(mut self) -> Option<Signature> {
        if (1..SHINGLE_WORDS as u64).contains(&self.words) {
            self.add();
        }
        let byte = |at: usize| (mixed(u64::from(self.least[at])) >> 56) as u8;
        let bands = std::array::from_fn(|band| std::array::from_fn(|row| byte(band * ROWS + row)));
        (self.words > 0).then_some(Signature(bands))
    }
}

/// Documents that others are looked up among.
#[derive(Debug, Default)]
pub(super) struct Signatures {
    /// Documents by band and value, in order.
    buckets: HashMap<(usize, u64), Vec<u32>>,
    signatures: HashMap<u32, Signature>,
}

impl Signatures {
    /// Adds a document. Of documents that agree in a band, only the first few are found by it.
    pub fn add(&mut self, document: u32, signature: Signature) {
        for band in 0..BANDS {
            let bucket = self.buckets.entry((band, signature.band(band))).or_default();
            if bucket.len() < MAX_COMPARED {
                bucket.push(document);
            }
        }
        self.signatures.insert(document, signature);
    }

    /// Returns the documents that are near duplicates, in order, with their similarity.
    pub fn near(&self, signature: &Signature) -> Vec<(u32, f64)> {
        let buckets = (0..BANDS).filter_map(|band| self.buckets.get(&(band, signature.band(band))));
        let mut candidates: Vec<u32> = buckets.flatten().copied().collect();
        candidates.sort_unstable();
        candidates.dedup();
        let similar =
            |document: &u32| Some((*document, self.signatures.get(document)?.similarity(signature)));
        candidates.iter().filter_map(similar).filter(|(_, similarity)| *similarity >= NEAR).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(words: impl Iterator<Item = u64>) -> Signature {
        let mut signer = Signer::default();
        words.for_each(|word| signer.push(mixed(word)));
        signer.finish().unwrap()
    }

    /// 400 words, of which the first `shared` are those of `signature(from..from + 400)`.
    fn sharing(shared: u64, from: u64) -> Signature {
        signature((from..from + 400).map(|at| if at < from + shared { at } else { at + (1 << 40) }))
    }

    #[test]
    fn the_estimate_is_the_share_of_five_word_sets_in_common() {
        for shared in [0u64, 100, 200, 300, 360, 400] {
            let common = shared.saturating_sub(4) as f64;
            let expected = common / (2.0 * 396.0 - common);
            let estimate = |from| sharing(shared, from).similarity(&signature(from..from + 400));
            let estimates = (0..40).map(|n| estimate(1000 * n));
            let mean = estimates.sum::<f64>() / 40.0;
            // 40 estimates, each with a standard error of at most 0.05.
            assert!((mean - expected).abs() < 0.025, "{shared}: {mean} for {expected}");
        }
    }

    #[test]
    fn near_duplicates_are_found_and_others_are_not() {
        let mut known = Signatures::default();
        (0..50).for_each(|n| known.add(n, signature(u64::from(n) * 10_000..u64::from(n) * 10_000 + 400)));
        let found = known.near(&sharing(390, 0));
        assert!(matches!(found[..], [(0, similarity)] if similarity > 0.85), "{found:?}");
        assert_eq!(known.near(&signature(30_000..30_400)), [(3, 1.0)]);
        assert_eq!(known.near(&sharing(100, 0)), []);
    }

    #[test]
    fn short_documents_are_similar_only_to_themselves() {
        assert_eq!(signature(0..3).similarity(&signature(0..3)), 1.0);
        assert!(signature(0..3).similarity(&signature(0..4)) < 0.1);
        assert_eq!(Signer::default().finish(), None);
    }
}
