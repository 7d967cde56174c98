//! Decides which window of the corpus each sequence of the global batch reads.
//!
//! The stream of each source is cut into windows of `seq_len + 1` tokens that start `seq_len` apart, so that
//! each token is a target once per epoch. The sequences of a run are numbered consecutively, step by step,
//! and those of a mixture are divided among its sources ([`super::interleave`]). Sequence number `g` of a
//! source reads window `permute(epoch, g mod windows)` with `epoch = g div windows`. The order does not
//! depend on how a global batch is divided among ranks and micro-batches, and the step number is the only
//! state.
//!
//! With [`Shuffle::Blocks`], windows are permuted within blocks of consecutive ones, and blocks stay in
//! order. Then a sequence of the first epoch needs the tokens up to the end of its block, and no others.
//!
//! What remains behind the last window fills none. Where it is a noticeable part of the stream, every second
//! epoch leaves out the beginning instead: its windows end with the stream.

use super::Shuffle;
use super::interleave::{Interleave, MixtureStage};
use super::marked;
use super::packing::Piece;
use super::part::Part;
use super::ramp::Ramp;
use crate::error::{Error, Result};

/// The remainder is noticeable if it is more than one in this many tokens, so windows move only in a stream
/// of less than a hundred of them.
const NOTICEABLE: usize = 100;

/// Tokens of a block whose windows are shuffled with each other. Tests have several blocks of few tokens.
const BLOCK_TOKENS: usize = if cfg!(test) { 64 } else { 1 << 24 };

/// How a stream of tokens to train on is cut into windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

    /// Adds up the windows of two streams.
    pub fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            reached: self.reached + other.reached,
            left_over: self.left_over + other.left_over,
            alternates: self.alternates || other.alternates,
        }
    }

    /// Returns the first token of a window in an epoch.
    fn start(&self, epoch: u64, window: u64, seq_len: usize) -> usize {
        let moved = if self.alternates && epoch % 2 == 1 { self.left_over } else { 0 };
        moved + window as usize * seq_len
    }
}

/// The order in which the windows of a part are read, or the rows that its documents are packed into.
#[derive(Clone, Debug)]
struct Order {
    part: Part,
    /// `None` until the number of tokens is known.
    windows: Option<Windows>,
    shuffle: Shuffle,
    seed: u64,
    seq_len: usize,
}

impl Order {
    /// # Errors
    /// If the part is shorter than one window.
    fn new(seed: u64, shuffle: Shuffle, part: Part, seq_len: usize) -> Result<Self> {
        let tokens = part.tokens.expected();
        let windows = Windows::new(tokens, seq_len);
        if windows.count == 0 {
            let of = if part.name.is_empty() { String::new() } else { format!(" of source {}", part.name) };
            return Err(Error::usage(format!(
                "the training split{of} has {tokens} tokens, and one window of seq_len {seq_len} takes {}; use a \
                 larger corpus or a smaller training.seq_len",
                seq_len.saturating_add(1)
            )));
        }
        // Without documents there are no rows.
        let part = Part { rows: part.rows.filter(|rows| rows.len() > 0), ..part };
        let windows = part.tokens.whole().map(|_| windows);
        Ok(Self { part, windows, shuffle, seed, seq_len })
    }

    /// Returns what the sequence with this number in the part reads, one piece after another. Waits for the
    /// tokens of a text that is being tokenized.
    ///
    /// # Errors
    /// If the text cannot be tokenized.
    fn pieces(&self, number: u64) -> Result<Vec<Piece>> {
        let Some(rows) = &self.part.rows else {
            let windows = self.windows_for(number)?;
            let count = windows.count as u64;
            let epoch = number / count;
            let window = self.shuffled(epoch, number % count, count);
            let start = windows.start(epoch, window, self.seq_len);
            return Ok(vec![Piece { start, len: self.seq_len }]);
        };
        let count = rows.len() as u64;
        Ok(rows.row(self.shuffled(number / count, number % count, count) as usize).to_vec())
    }

    /// Returns the number of targets of the sequence with this number, of conversations.
    ///
    /// # Errors
    /// If the tokens cannot be read.
    fn trained_targets(&self, number: u64) -> Result<u64> {
        let mut targets = 0;
        for Piece { start, len } in self.pieces(number)? {
            let words = self.part.tokens.read(start + 1..start + len + 1, usize::MAX)?;
            targets += words.into_iter().filter(|&word| marked::is_trained(word)).count() as u64;
        }
        Ok(targets)
    }

    /// Returns the windows of the part, as far as they matter to the sequence with this number.
    fn windows_for(&self, number: u64) -> Result<Windows> {
        if let Some(windows) = self.windows {
            return Ok(windows);
        }
        let full = self.block_windows();
        let end = (number / full + 1).saturating_mul(full).saturating_mul(self.seq_len as u64);
        Ok(match self.part.tokens.wait_for((end as usize).saturating_add(1))? {
            Some(tokens) => Windows::new(tokens, self.seq_len),
            // In the first epoch, behind a whole block, it does not matter how many windows follow.
            None => Windows { count: usize::MAX, ..Windows::default() },
        })
    }

    /// Returns which of `count` windows, or rows, is read at place `index` of an epoch.
    fn shuffled(&self, epoch: u64, index: u64, count: u64) -> u64 {
        let keys = |block| Keys::new(self.seed, &self.part.name, epoch, block);
        match self.shuffle {
            Shuffle::All => keys(None).permute(index, count),
            Shuffle::Blocks => {
                let full = self.block_windows();
                let block = index / full;
                let first = block * full;
                first + keys(Some(block)).permute(index - first, full.min(count - first))
            }
        }
    }

    /// Returns the number of windows, or rows, of a block.
    fn block_windows(&self) -> u64 {
        (BLOCK_TOKENS / self.seq_len).max(1) as u64
    }
}

/// The seeded order of sequences. It is stateless.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    orders: Vec<Order>,
    /// Chooses among several parts.
    interleave: Option<Interleave>,
    global_batch_size: u64,
    ramp: Ramp,
}

impl Sampler {
    /// Orders the windows of `seq_len + 1` tokens, or the rows, of some parts, `global_batch_size` of them
    /// per step. `stages` are the weights of several parts.
    ///
    /// # Errors
    /// If a part is shorter than one window, `seq_len` or the batch size is 0, or the stages do not fit the
    /// parts.
    pub fn new(
        (seed, shuffle): (u64, Shuffle),
        parts: &[Part],
        stages: &[MixtureStage],
        seq_len: usize,
        global_batch_size: usize,
    ) -> Result<Self> {
        if seq_len == 0 || global_batch_size == 0 {
            return Err(Error::usage("seq_len and the global batch size must be at least 1"));
        }
        let orders = parts
            .iter()
            .map(|part| Order::new(seed, shuffle, part.clone(), seq_len))
            .collect::<Result<_>>()?;
        let interleave = match parts {
            [_] => None,
            _ => Some(Interleave::new(parts.len(), stages)?),
        };
        let global_batch_size = global_batch_size as u64;
        Ok(Self { orders, interleave, global_batch_size, ramp: Ramp::NONE })
    }

    /// Uses the ramp's batch sizes in the first steps.
    pub fn with_ramp(self, ramp: Ramp) -> Self {
        Self { ramp, ..self }
    }

    /// Returns what the sequences of the global batch of `step` read. Quick for the step after the last one.
    pub fn step(&mut self, step: u64) -> StepSequences<'_> {
        let first = self.ramp.before(step, self.global_batch_size);
        let count = self.ramp.sequences(step, self.global_batch_size);
        let drawn = match &mut self.interleave {
            None => (0..count).map(|index| (0, first.wrapping_add(index))).collect(),
            Some(interleave) => {
                interleave.go_to(first);
                (0..count).map(|_| interleave.assign()).collect()
            }
        };
        StepSequences { orders: &self.orders, drawn }
    }
}

/// The sequences of a step's global batch.
#[derive(Debug)]
pub(super) struct StepSequences<'s> {
    orders: &'s [Order],
    /// The part of each sequence, and its number in the part.
    drawn: Vec<(usize, u64)>,
}

impl StepSequences<'_> {
    /// Returns the number of sequences.
    pub fn len(&self) -> usize {
        self.drawn.len()
    }

    /// Reads the tokens of sequence `index`, one piece after another: the inputs of each, and one more token
    /// for its last target. Each is checked against a vocabulary of `vocab` entries.
    ///
    /// # Errors
    /// If the tokens cannot be read, or one is outside the vocabulary.
    pub fn read(&self, index: usize, vocab: usize) -> Result<Vec<Vec<u32>>> {
        let (part, number) = self.drawn[index];
        let order = &self.orders[part];
        let tokens = |piece: Piece| order.part.tokens.read(piece.start..piece.start + piece.len + 1, vocab);
        order.pieces(number)?.into_iter().map(tokens).collect()
    }

    /// Returns the row that sequence `index` reads, of conversations that are laid into rows.
    ///
    /// # Errors
    /// If a text is tokenized and fails.
    pub fn row(&self, index: usize) -> Result<usize> {
        let (part, number) = self.drawn[index];
        let order = &self.orders[part];
        Ok(order.pieces(number)?.first().map_or(0, |piece| piece.start / order.seq_len))
    }

    /// Returns the number of targets from each part: that of the inputs without padding, and of conversations
    /// that of the tokens that are trained on.
    ///
    /// # Errors
    /// If the tokens cannot be read.
    pub fn targets(&self) -> Result<Vec<u64>> {
        let mut targets = vec![0; self.orders.len()];
        for &(part, number) in &self.drawn {
            let order = &self.orders[part];
            targets[part] += match order.part.rows {
                None if order.part.tokens.is_marked() => order.trained_targets(number)?,
                None => order.seq_len as u64,
                Some(_) => order.pieces(number)?.iter().map(|piece| piece.len as u64).sum(),
            };
        }
        Ok(targets)
    }

    /// Returns the part that sequence `index` is taken from.
    pub fn part(&self, index: usize) -> usize {
        self.drawn[index].0
    }

    /// Returns the name of the source of sequence `index`; empty if the whole corpus is one source.
    pub fn source(&self, index: usize) -> &str {
        &self.orders[self.drawn[index].0].part.name
    }
}

/// Returns the index in the global batch of sequence `j` of micro-batch `micro` on a rank.
pub fn global_index(micro: usize, local: usize, j: usize, rank: usize, world_size: usize) -> usize {
    (micro * local + j) * world_size + rank
}

const ROUNDS: usize = 8;

/// The keys of a pseudorandom permutation.
struct Keys([u64; ROUNDS]);

impl Keys {
    /// Derives the keys of an epoch of a source, or of one block in it.
    fn new(seed: u64, source: &str, epoch: u64, block: Option<u64>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"xrun window order").update(&seed.to_le_bytes()).update(&epoch.to_le_bytes());
        // A corpus of one source has no name, and the order that it had before there were mixtures.
        hasher.update(source.as_bytes());
        if let Some(block) = block {
            // No name ends with a zero byte and a number.
            hasher.update(&[0]).update(&block.to_le_bytes());
        }
        let mut bytes = [0; 8 * ROUNDS];
        hasher.finalize_xof().fill(&mut bytes);
        Self(std::array::from_fn(|i| {
            let (key, _) = bytes[8 * i..].split_first_chunk().expect("eight bytes for each round");
            u64::from_le_bytes(*key)
        }))
    }

    /// Returns the place of `index` in a permutation of 0..n: a balanced Feistel network over the next power
    /// of four, repeated until the result is below n (cycle walking, Black and Rogaway 2002; at most four
    /// rounds on average).
    fn permute(&self, index: u64, n: u64) -> u64 {
        let bits = (64 - (n - 1).leading_zeros()).div_ceil(2).max(1);
        let mask = (1u64 << bits) - 1;
        let mut x = index;
        loop {
            let (mut left, mut right) = (x >> bits, x & mask);
            for key in self.0 {
                (left, right) = (right, left ^ (splitmix64_finalizer(right ^ key) & mask));
            }
            x = left << bits | right;
            if x < n {
                return x;
            }
        }
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's mix 13).
fn splitmix64_finalizer(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::super::packing::Rows;
    use super::super::part::PartTokens;
    use super::super::stream::Stream;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn sampler(seed: u64, tokens: usize, seq_len: usize, global: usize) -> Result<Sampler> {
        let tokens = PartTokens::Whole(Stream::from_tokens((0..tokens as u32).collect()));
        let part = Part { name: String::new(), tokens, rows: None };
        Sampler::new((seed, Shuffle::All), &[part], &[], seq_len, global)
    }

    /// Returns the tokens that a sequence reads, which are their own positions.
    fn window(sampler: &mut Sampler, step: u64, index: usize) -> Vec<usize> {
        let [window] = &sampler.step(step).read(index, usize::MAX).unwrap()[..] else { panic!("one window") };
        window.iter().map(|token| *token as usize).collect()
    }

    fn permute(seed: u64, source: &str, epoch: u64, index: u64, n: u64) -> u64 {
        Keys::new(seed, source, epoch, None).permute(index, n)
    }

    #[test]
    fn each_epoch_is_a_permutation() {
        for n in (1..70).chain([255, 256, 257, 1000, 4096, 5000]) {
            for epoch in 0..3 {
                let mut seen: Vec<u64> = (0..n).map(|i| permute(7, "", epoch, i, n)).collect();
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..n), "n {n} epoch {epoch}");
            }
        }
    }

    #[test]
    fn order_changes_with_seed_and_epoch_and_has_no_pattern() {
        let order = |seed, epoch| (0..1000).map(|i| permute(seed, "", epoch, i, 1000)).collect::<Vec<_>>();
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
        (0..10_000).for_each(|epoch| counts[permute(3, "", epoch, 0, 10) as usize] += 1.0);
        let chi: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi < 33.7, "{chi} {counts:?}");
    }

    #[test]
    fn an_epoch_may_end_inside_a_batch() {
        let mut s = sampler(5, 7 * 4 + 1, 4, 3).unwrap();
        assert_eq!(s.orders[0].windows.unwrap().count, 7);
        let mut seen: BTreeMap<usize, usize> = BTreeMap::new();
        for g in 0..14 {
            let (step, index) = (g / 3, (g % 3) as usize);
            assert_eq!(s.step(step).drawn[index], (0, g));
            let window = window(&mut s, step, index);
            assert_eq!((window.len(), window[0] % 4), (5, 0));
            *seen.entry(window[0]).or_default() += 1;
        }
        assert!(seen.len() == 7 && seen.values().all(|&n| n == 2));
    }

    #[test]
    fn too_few_tokens_say_the_numbers() {
        let error = sampler(0, 128, 128, 1).unwrap_err();
        assert!(error.message().contains("128 tokens") && error.message().contains("129"), "{error}");
        assert_eq!(sampler(0, 129, 128, 1).unwrap().orders[0].windows.unwrap().count, 1);
        assert!(sampler(0, 10, 0, 1).is_err() && sampler(0, 10, 1, 0).is_err());
        assert!(sampler(0, 10, usize::MAX, 1).is_err());
    }

    /// In two epochs, each token but the first is a target, and none twice in one epoch, whatever remains.
    #[test]
    fn every_token_of_a_short_stream_is_reached() {
        for tokens in 5..120usize {
            for seq_len in [1, 2, 3, 7, 16] {
                let Ok(mut sampler) = sampler(3, tokens, seq_len, 1) else { continue };
                let Windows { count, left_over, alternates, .. } = sampler.orders[0].windows.unwrap();
                let mut targets = |epoch: usize| {
                    let steps =
                        (epoch * count..(epoch + 1) * count).map(|step| window(&mut sampler, step as u64, 0));
                    let mut reached: Vec<usize> =
                        steps.flat_map(|window| window.into_iter().skip(1)).collect();
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

    /// In every epoch of every source of a mixture, each of its windows or rows is read once, whatever the
    /// weights, their changes and the batch sizes; and a sampler that begins at any step agrees.
    fn check_mixture(
        shuffle: Shuffle,
        counts: &[usize],
        packs: &[bool],
        stages: &[MixtureStage],
        ramp: &Ramp,
        global: usize,
    ) {
        const SEQ_LEN: usize = 4;
        let mut parts = Vec::new();
        for (i, (&count, &packs)) in counts.iter().zip(packs).enumerate() {
            let tokens = Stream::from_tokens((0..count as u32 * SEQ_LEN as u32 + 1).collect());
            let tokens = PartTokens::Whole(tokens);
            // Documents that fill a row each, so that rows and windows are known.
            let documents: Vec<Piece> =
                (0..count).map(|row| Piece { start: row * SEQ_LEN, len: SEQ_LEN }).collect();
            let rows = packs.then(|| Arc::new(Rows::pack(&documents, SEQ_LEN)));
            parts.push(Part { name: format!("s{i}"), tokens, rows });
        }
        let sampler =
            Sampler::new((3, shuffle), &parts, stages, SEQ_LEN, global).unwrap().with_ramp(ramp.clone());
        let mut walk = sampler.clone();
        let mut seen: Vec<Vec<usize>> = vec![Vec::new(); parts.len()];
        for step in 0..40 {
            let sequences = walk.step(step);
            let size = ramp.sequences(step, global as u64) as usize;
            let targets = (0..parts.len()).map(|part| {
                let own = (0..size).filter(|&index| sequences.part(index) == part);
                (own.count() * SEQ_LEN) as u64
            });
            assert_eq!(sequences.targets().unwrap(), targets.collect::<Vec<_>>());
            let resumed = (step % 13 == 5).then(|| sampler.clone());
            for index in 0..size {
                let pieces = sequences.read(index, usize::MAX).unwrap();
                let source: usize = sequences.source(index)[1..].parse().unwrap();
                let first = pieces[0][0] as usize;
                assert_eq!((pieces.len(), pieces[0].len(), first % SEQ_LEN), (1, SEQ_LEN + 1, 0));
                seen[source].push(first / SEQ_LEN);
                if let Some(mut resumed) = resumed.clone() {
                    assert_eq!(resumed.step(step).read(index, usize::MAX).unwrap(), pieces);
                }
            }
        }
        for (seen, &count) in seen.iter().zip(counts) {
            for epoch in seen.chunks(count) {
                let mut sorted = epoch.to_vec();
                sorted.sort_unstable();
                sorted.dedup();
                assert!(sorted.len() == epoch.len() && sorted.iter().all(|window| *window < count));
                let blocks = epoch.chunks(BLOCK_TOKENS / SEQ_LEN).enumerate();
                let in_order = blocks.into_iter().all(|(block, windows)| {
                    windows.iter().all(|window| window / (BLOCK_TOKENS / SEQ_LEN) == block)
                });
                assert!(shuffle == Shuffle::All || in_order, "{epoch:?}");
            }
        }
    }

    /// Sources have orders of their own, which do not depend on the others.
    #[test]
    fn sources_are_shuffled_apart() {
        let orders =
            ["", "web", "code"].map(|name| (0..50).map(|i| permute(1, name, 0, i, 50)).collect::<Vec<_>>());
        assert!(orders[0] != orders[1] && orders[1] != orders[2] && orders[0] != orders[2]);
    }

    /// Checkpoints rely on the order, so it must never change for a given seed.
    #[test]
    fn the_order_never_changes() {
        let order: Vec<u64> = (0..10).map(|i| permute(42, "", 0, i, 10)).collect();
        insta::assert_snapshot!(format!("{order:?}"), @"[2, 5, 1, 4, 3, 6, 7, 8, 0, 9]");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn mixtures_lose_and_repeat_nothing(
            counts in proptest::collection::vec(1usize..60, 2..13),
            packs in proptest::collection::vec(proptest::bool::ANY, 12),
            weights in proptest::collection::vec(proptest::collection::vec(0.001f64..0.9, 12), 1..4),
            phases in proptest::collection::vec(1u64..200, 3),
            stages in proptest::collection::vec((1u64..20, 1u64..9), 0..3),
            global in 1usize..17,
            blocks: bool,
        ) {
            let shuffle = if blocks { Shuffle::Blocks } else { Shuffle::All };
            let from = phases.iter().scan(0, |at, length| Some(std::mem::replace(at, *at + length)));
            let weights = weights.iter().map(|weights| weights[..counts.len()].to_vec());
            let mixture: Vec<_> = from.zip(weights).map(|(from, weights)| MixtureStage { from, weights }).collect();
            let mut end = 0;
            let ramp = Ramp::new(stages.iter().map(|(steps, size)| { end += steps; (end, *size) }));
            check_mixture(shuffle, &counts, &packs[..counts.len()], &mixture, &ramp, global);
        }

        #[test]
        fn windows_stay_inside(tokens in 2usize..5000, seq in 1usize..300, step: u64, index in 0usize..64) {
            if let Ok(mut s) = sampler(1, tokens, seq, 64) {
                prop_assert_eq!(window(&mut s, step, index).len(), seq + 1);
            }
        }
    }
}
