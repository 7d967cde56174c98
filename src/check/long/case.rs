//! The long sequences on which attention is checked.

use super::super::numbers::random;
use crate::ops::attention::{Attention, Heads, Mask};
use std::ops::Range;

/// Rows that are compared, besides the first and the last.
const SAMPLES: usize = 64;

/// Lengths of the documents of a sequence, in turn.
const DOCUMENTS: [usize; 5] = [700, 3000, 1, 129, 5000];

/// Every so many rows, one sees no key.
const BLIND: usize = 1013;

/// An attention over long sequences.
#[derive(Clone, Copy, Debug)]
pub struct LongCase {
    pub(super) batch: usize,
    pub(super) attention: Attention,
}

impl LongCase {
    /// A batch of causal sequences of a length, with (query heads, key heads, width of a head).
    pub fn causal(batch: usize, seq_len: usize, (query, kv, dim): (usize, usize, usize)) -> Self {
        let heads = Heads { query, kv, dim };
        Self { batch, attention: Attention { heads, seq_len, mask: Mask::Causal, dropout: None } }
    }

    /// The same with sequences of several documents, and rows that see no key.
    #[must_use]
    pub fn documents(mut self) -> Self {
        self.attention.mask = Mask::Spans;
        self
    }

    /// The cases of GPUs: every width and group around whole tiles, then long sequences, then one whose
    /// elements are more than 2³¹.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for dim in [32, 64, 96, 128] {
            all.extend([1, 2, 4, 8].map(|group| Self::causal(1, 4097, (group, 1, dim))));
            all.push(Self::causal(1, 4097, (2, 1, dim)).documents());
            all.push(Self::causal(2, 16_384, (2, 1, dim)));
            all.push(Self::causal(1, 16_384, (2, 1, dim)).documents());
        }
        all.extend([64, 128].map(|dim| Self::causal(1, 32_768, (2, 1, dim))));
        all.push(Self::causal(17, 32_768, (16, 8, 128)));
        all
    }

    pub(super) fn name(&self) -> String {
        let Attention { heads, seq_len, mask, .. } = self.attention;
        let documents = if mask == Mask::Spans { " documents" } else { "" };
        format!("b{} t{seq_len} hd{} gqa{}{documents}", self.batch, heads.dim, heads.group())
    }

    pub(super) fn rows(&self) -> usize {
        self.batch * self.attention.seq_len
    }

    /// Returns the keys that a row of a sequence sees.
    pub(super) fn visible(&self, t: usize) -> Range<usize> {
        if self.attention.mask == Mask::Causal {
            return 0..t + 1;
        }
        if t % BLIND == BLIND - 1 {
            return t..t;
        }
        let mut first = 0;
        for length in DOCUMENTS.iter().cycle() {
            if t < first + length {
                break;
            }
            first += length;
        }
        first..t + 1
    }

    /// Returns the rows that are compared: the first, the last, and some between.
    pub(super) fn sampled_rows(&self) -> Vec<usize> {
        let seq_len = self.attention.seq_len;
        let drawn = (0..SAMPLES).map(|at| random(&self.name(), 900, at)[0] as usize % seq_len);
        let mut rows: Vec<usize> = [0, seq_len - 1].into_iter().chain(drawn).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cases_of_gpus_reach_beyond_31_bits() {
        let elements = LongCase::all().into_iter().map(|c| c.rows() * c.attention.heads.width());
        assert!(elements.max().unwrap() > 1 << 31);
    }

    #[test]
    fn documents_and_rows_that_see_nothing_are_as_long_as_said() {
        let case = LongCase::causal(1, 20_000, (1, 1, 32)).documents();
        assert_eq!(
            [0, 699, 700, 3699, 3700, 3701].map(|t| case.visible(t)),
            [0..1, 0..700, 700..701, 700..3700, 3700..3701, 3701..3702]
        );
        assert!(case.visible(BLIND - 1).is_empty());
        // After all five documents the first length comes again.
        assert_eq!(case.visible(8830 + 10), 8830..8841);
    }
}
