//! The long sequences that attention is checked on.

use super::super::numbers::Numbers;
use crate::ops::attention::{Attention, Heads, Mask};
use std::ops::Range;

/// Number of rows compared, besides the first and the last.
const SAMPLES: usize = 64;

/// Lengths of the documents in a sequence; they repeat.
const DOCUMENTS: [usize; 5] = [700, 3000, 1, 129, 5000];

/// One in this many rows sees no key.
const BLIND_INTERVAL: usize = 1013;

/// An attention over long sequences.
#[derive(Clone, Copy, Debug)]
pub struct LongCase {
    pub(super) batch: usize,
    pub(super) attention: Attention,
    documents: bool,
}

impl LongCase {
    /// Creates a batch of causal sequences with (query heads, key heads, width of a head).
    pub fn causal(batch: usize, seq_len: usize, (query, kv, dim): (usize, usize, usize)) -> Self {
        let heads = Heads { query, kv, dim };
        Self { batch, attention: Attention::causal(heads, seq_len), documents: false }
    }

    /// Divides the sequences into several documents, with some rows that see no key.
    #[must_use]
    pub fn documents(mut self) -> Self {
        self.attention.mask = Mask::Spans;
        self.documents = true;
        self
    }

    /// Limits attention to a window.
    #[must_use]
    pub fn windowed(mut self, window: usize) -> Self {
        self.attention.mask = Mask::Spans;
        self.attention.window = Some(window);
        self
    }

    /// Caps the scores.
    #[must_use]
    pub fn capped(mut self, cap: f64) -> Self {
        self.attention.score_cap = Some(cap);
        self
    }

    /// Sets the elements of values that are read.
    #[must_use]
    pub fn valued(mut self, value_dim: usize) -> Self {
        self.attention.value_dim = value_dim;
        self
    }

    /// Returns the cases for GPUs: every head width and group size with lengths around whole tiles, then long
    /// sequences, then one with more than 2³¹ elements.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let widths = [(32, 32), (64, 64), (96, 96), (128, 128), (192, 192), (192, 128)];
        for (dim, value_dim) in widths {
            let case =
                |batch, seq_len, query| Self::causal(batch, seq_len, (query, 1, dim)).valued(value_dim);
            all.extend([1, 2, 4, 8].map(|group| case(1, 4097, group)));
            all.push(case(1, 4097, 2).documents());
            all.push(case(2, 16_384, 2));
            all.push(case(1, 16_384, 2).documents());
            all.push(case(1, 4097, 2).capped(2.0));
            all.push(case(1, 16_384, 2).windowed(1000));
            all.push(case(1, 16_384, 2).documents().windowed(256).capped(2.0));
        }
        all.extend([64, 128].map(|dim| Self::causal(1, 32_768, (2, 1, dim))));
        all.push(Self::causal(17, 32_768, (16, 8, 128)));
        all
    }

    pub(super) fn name(&self) -> String {
        let Attention { heads, seq_len, score_cap, window, .. } = self.attention;
        let documents = if self.documents { " documents" } else { "" };
        let values = self.attention.value_dim;
        let values = if values == heads.dim { String::new() } else { format!(" values{values}") };
        let window = window.map_or(String::new(), |window| format!(" window{window}"));
        let cap = score_cap.map_or(String::new(), |cap| format!(" cap{cap}"));
        let shape = format!("b{} t{seq_len} hd{}{values} gqa{}", self.batch, heads.dim, heads.group());
        format!("{shape}{documents}{window}{cap}")
    }

    pub(super) fn rows(&self) -> usize {
        self.batch * self.attention.seq_len
    }

    /// Returns the keys that row `t` of a sequence sees.
    pub(super) fn visible(&self, t: usize) -> Range<usize> {
        let in_window = self.attention.window.map_or(0, |window| (t + 1).saturating_sub(window));
        if !self.documents {
            return in_window..t + 1;
        }
        if t % BLIND_INTERVAL == BLIND_INTERVAL - 1 {
            return t..t;
        }
        let mut first = 0;
        for length in DOCUMENTS.iter().cycle() {
            if t < first + length {
                break;
            }
            first += length;
        }
        first.max(in_window)..t + 1
    }

    /// Returns the rows to compare: the first, the last, and random ones in between.
    pub(super) fn sampled_rows(&self) -> Vec<usize> {
        let seq_len = self.attention.seq_len;
        let numbers = Numbers::new(&self.name());
        let drawn = (0..SAMPLES).map(|at| numbers.bits(900, at)[0] as usize % seq_len);
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
    fn documents_have_their_lengths_and_blind_rows_see_nothing() {
        let case = LongCase::causal(1, 20_000, (1, 1, 32)).documents();
        assert_eq!(
            [0, 699, 700, 3699, 3700, 3701].map(|t| case.visible(t)),
            [0..1, 0..700, 700..701, 700..3700, 3700..3701, 3701..3702]
        );
        assert!(case.visible(BLIND_INTERVAL - 1).is_empty());
        // After all five documents, the first length repeats.
        assert_eq!(case.visible(8830 + 10), 8830..8841);
        assert_eq!([720, 3000].map(|t| case.windowed(100).visible(t)), [700..721, 2901..3001]);
    }
}
