//! Decides which window of the corpus each sequence of the global batch reads.
//!
//! The stream is cut into windows of `seq_len + 1` tokens that start `seq_len` apart, so that each token is a
//! target once per epoch. The sequences of a run are numbered consecutively, step by step. Sequence number
//! `g` reads window `permute(epoch, g mod windows)` with `epoch = g div windows`. The order does not depend
//! on how a global batch is divided among ranks and micro-batches, and the step number is the only state.
//!
//! What remains behind the last window fills none. Where it is a noticeable part of the stream, every second
//! epoch leaves out the beginning instead: its windows end with the stream.

use super::packing::{Piece, Rows};
use super::ramp::Ramp;
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// The remainder is noticeable if it is more than one in this many tokens, so windows move only in a stream
/// of less than a hundred of them.
const NOTICEABLE: usize = 100;

/// How a stream of tokens to train on is cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Number of windows in an epoch.
    pub count: usize,
    /// Targets of an epoch: tokens that some window predicts.
    pub reached: usize,
    /// Tokens that an epoch leaves out, besides the first token, which is no target.
    pub left_over: usize,
    /// True if every second epoch leaves out the beginning of the stream, and not its end.
    pub alternates: bool,
}

impl Windows {
    /// Cuts a stream of `tokens` tokens into windows of `seq_len` targets.
    pub fn new(tokens: usize, seq_len: usize) -> Self {
        let targets = tokens.saturating_sub(1);
        let count = targets / seq_len.max(1);
        let reached = count * seq_len;
        let left_over = targets - reached;
        Self { count, reached, left_over, alternates: left_over > tokens / NOTICEABLE }
    }

    /// Returns the first token of a window in an epoch.
    fn start(&self, epoch: u64, window: u64, seq_len: usize) -> usize {
        let moved = if self.alternates && epoch % 2 == 1 { self.left_over } else { 0 };
        moved + window as usize * seq_len
    }
}

/// The seeded order of windows, or of the rows that documents are packed into. It is stateless.
#[derive(Clone, Debug)]
pub struct Sampler {
    seed: u64,
    seq_len: usize,
    windows: Windows,
    /// The rows that are read instead of windows.
    rows: Option<Arc<Rows>>,
    global_batch_size: u64,
    ramp: Ramp,
}

impl Sampler {
    /// Orders the windows of `seq_len + 1` tokens in a stream of `tokens` tokens, `global_batch_size` of them
    /// per step.
    ///
    /// # Errors
    /// If the stream is shorter than one window, or `seq_len` or the batch size is 0.
    pub fn new(seed: u64, tokens: usize, seq_len: usize, global_batch_size: usize) -> Result<Self> {
        if seq_len == 0 || global_batch_size == 0 {
            return Err(Error::usage("seq_len and the global batch size must be at least 1"));
        }
        let windows = Windows::new(tokens, seq_len);
        if windows.count == 0 {
            return Err(Error::usage(format!(
                "the training split has {tokens} tokens, and one window of seq_len {seq_len} takes {}; use a \
                 larger corpus or a smaller training.seq_len",
                seq_len.saturating_add(1)
            )));
        }
        let global_batch_size = global_batch_size as u64;
        Ok(Self { seed, seq_len, windows, rows: None, global_batch_size, ramp: Ramp::NONE })
    }

    /// Uses the ramp's batch sizes in the first steps.
    pub fn with_ramp(self, ramp: Ramp) -> Self {
        Self { ramp, ..self }
    }

    /// Reads rows of packed documents instead of windows, if there are any.
    pub(super) fn with_rows(self, rows: Option<Arc<Rows>>) -> Self {
        Self { rows: rows.filter(|rows| rows.len() > 0), ..self }
    }

    /// Returns what sequence `index` of the global batch of `step` reads, one piece after another.
    pub(super) fn pieces(&self, step: u64, index: usize) -> Vec<Piece> {
        let Some(rows) = &self.rows else {
            return vec![Piece { start: self.window(step, index).start, len: self.seq_len }];
        };
        let (number, count) = (self.number(step, index), rows.len() as u64);
        rows.row(permute(self.seed, number / count, number % count, count) as usize).to_vec()
    }

    /// Returns the number of targets in the global batch of `step`: that of its inputs without padding.
    pub(super) fn targets(&self, step: u64) -> u64 {
        let sequences = self.ramp.sequences(step, self.global_batch_size);
        if self.rows.is_none() {
            return sequences * self.seq_len as u64;
        }
        let targets = |index| self.pieces(step, index).iter().map(|piece| piece.len as u64).sum::<u64>();
        (0..sequences as usize).map(targets).sum()
    }

    /// Returns the token range of sequence `index` of the global batch of `step`: the inputs, and one more
    /// token for the last target.
    fn window(&self, step: u64, index: usize) -> Range<usize> {
        let (number, count) = (self.number(step, index), self.windows.count as u64);
        let epoch = number / count;
        let window = permute(self.seed, epoch, number % count, count);
        let start = self.windows.start(epoch, window, self.seq_len);
        start..start + self.seq_len + 1
    }

    fn number(&self, step: u64, index: usize) -> u64 {
        self.ramp.before(step, self.global_batch_size).wrapping_add(index as u64)
    }
}

/// Returns the index in the global batch of sequence `j` of micro-batch `micro` on a rank.
pub fn global_index(micro: usize, local: usize, j: usize, rank: usize, world_size: usize) -> usize {
    (micro * local + j) * world_size + rank
}

const ROUNDS: usize = 8;

/// Permutes 0..n pseudorandomly, keyed by seed and epoch: a balanced Feistel network over the next power of
/// four, repeated until the result is below n (cycle walking, Black and Rogaway 2002; at most four rounds on
/// average).
fn permute(seed: u64, epoch: u64, index: u64, n: u64) -> u64 {
    let bits = (64 - (n - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << bits) - 1;
    let keys = keys(seed, epoch);
    let mut x = index;
    loop {
        let (mut left, mut right) = (x >> bits, x & mask);
        for key in keys {
            (left, right) = (right, left ^ (splitmix64_finalizer(right ^ key) & mask));
        }
        x = left << bits | right;
        if x < n {
            return x;
        }
    }
}

fn keys(seed: u64, epoch: u64) -> [u64; ROUNDS] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"xrun window order").update(&seed.to_le_bytes()).update(&epoch.to_le_bytes());
    let mut bytes = [0; 8 * ROUNDS];
    hasher.finalize_xof().fill(&mut bytes);
    std::array::from_fn(|i| {
        let (key, _) = bytes[8 * i..].split_first_chunk().expect("eight bytes for each round");
        u64::from_le_bytes(*key)
    })
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's mix 13).
fn splitmix64_finalizer(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_epoch_is_a_permutation() {
        for n in (1..70).chain([255, 256, 257, 1000, 4096, 5000]) {
            for epoch in 0..3 {
                let mut seen: Vec<u64> = (0..n).map(|i| permute(7, epoch, i, n)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..n), "n {n} epoch {epoch}");
            }
        }
    }

    #[test]
    fn order_changes_with_seed_and_epoch_and_has_no_pattern() {
        let order = |seed, epoch| (0..1000).map(|i| permute(seed, epoch, i, 1000)).collect::<Vec<_>>();
        let base = order(1, 0);
        assert_eq!(base, order(1, 0));
        for other in [order(2, 0), order(1, 1)] {
            // Equal places of two random permutations are Poisson with mean 1; 10 has probability 1e-7.
            assert!(base.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
        }
        assert!(base.windows(2).filter(|w| w[0] + 1 == w[1]).count() < 10);
    }

    #[test]
    fn every_place_is_equally_likely() {
        // Chi-square of the image of 0 among 10 places over 10,000 epochs; 9 degrees of freedom, p = 1e-4.
        let mut counts = [0f64; 10];
        (0..10_000).for_each(|epoch| counts[permute(3, epoch, 0, 10) as usize] += 1.0);
        let chi: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 33.7, "{chi} {counts:?}");
    }

    #[test]
    fn an_epoch_may_end_inside_a_batch() {
        let s = Sampler::new(5, 7 * 4 + 1, 4, 3).unwrap();
        assert_eq!(s.windows.count, 7);
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        for g in 0..14 {
            let (step, index) = (g / 3, (g % 3) as usize);
            assert_eq!(s.number(step, index) / s.windows.count as u64, g / 7);
            let range = s.window(step, index);
            assert_eq!((range.len(), range.start % 4), (5, 0));
            *seen.entry(range.start).or_default() += 1;
        }
        assert!(seen.len() == 7 && seen.values().all(|&n| n == 2));
    }

    #[test]
    fn too_few_tokens_say_the_numbers() {
        let error = Sampler::new(0, 128, 128, 1).unwrap_err();
        assert!(error.message().contains("128 tokens") && error.message().contains("129"), "{error}");
        assert_eq!(Sampler::new(0, 129, 128, 1).unwrap().windows.count, 1);
        assert!(Sampler::new(0, 10, 0, 1).is_err() && Sampler::new(0, 10, 1, 0).is_err());
        assert!(Sampler::new(0, 10, usize::MAX, 1).is_err());
    }

    /// In two epochs, each token but the first is a target, and none twice in one epoch, whatever remains.
    #[test]
    fn every_token_of_a_short_stream_is_reached() {
        for tokens in 5..120usize {
            for seq_len in [1, 2, 3, 7, 16] {
                let Ok(sampler) = Sampler::new(3, tokens, seq_len, 1) else { continue };
                let Windows { count, left_over, alternates, .. } = sampler.windows;
                let targets = |epoch: usize| {
                    let steps =
                        (epoch * count..(epoch + 1) * count).map(|step| sampler.window(step as u64, 0));
                    let mut reached: Vec<usize> = steps.flat_map(|window| window.skip(1)).collect();
                    reached.sort_unstable();
                    assert!(reached.windows(2).all(|pair| pair[0] < pair[1]), "{tokens} {seq_len}");
                    assert_eq!(reached.len(), count * seq_len);
                    reached
                };
                let (first, second) = (targets(0), targets(1));
                assert_eq!(first, targets(2));
                let both: std::collections::BTreeSet<usize> = first.iter().chain(&second).copied().collect();
                assert_eq!(both.len() == tokens - 1, alternates || left_over == 0, "{tokens} {seq_len}");
            }
        }
    }

    /// A stream of a hundred windows or more keeps them in every epoch, so trainings keep their bits.
    #[test]
    fn windows_of_longer_streams_stay_where_they_are() {
        for seq_len in [1, 2, 32, 128] {
            for more in 0..seq_len {
                assert!(!Windows::new(100 * seq_len + more + 1, seq_len).alternates, "{seq_len} {more}");
            }
        }
        assert!(Windows::new(127, 64).alternates);
    }

    /// Checkpoints rely on the order, so it must never change for a given seed.
    #[test]
    fn the_order_never_changes() {
        let order: Vec<u64> = (0..10).map(|i| permute(42, 0, i, 10)).collect();
        insta::assert_snapshot!(format!("{order:?}"), @"[2, 5, 1, 4, 3, 6, 7, 8, 0, 9]");
    }

    proptest! {
        #[test]
        fn windows_stay_inside(tokens in 2usize..5000, seq in 1usize..300, step: u64, index in 0usize..64) {
            if let Ok(s) = Sampler::new(1, tokens, seq, 64) {
                prop_assert!(s.window(step, index).end <= tokens);
            }
        }
    }
}
