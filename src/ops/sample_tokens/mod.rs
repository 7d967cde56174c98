//! Generation: the next token of every sequence, drawn from its logits.
//!
//! Weights are integers (multiples of 2⁻⁴⁰ of the likeliest token's), so their sums are exact in any order: a GPU
//! and a CPU choose the same token from the same logits, up to the rounding of single exponentials.

mod cases;

use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::philox::philox;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Cases, CpuNode, GpuNode, Op, Precision, Spec};
use crate::ops::lanes::vector_width;
use std::cmp::Ordering;

/// `logits [B, V] → (tokens [B] u32, positions [B] u32, bad [B] u32)`: a token for each row; `positions` counts
/// up by one, to `last` at most; `bad` counts rows without a token, whose logits hold NaN or have no finite largest one (they get
/// token 0).
///
/// Greedy at temperature 0 (the lowest id of equals). Otherwise from the softmax of `logits / temperature`,
/// restricted to the `top_k` likeliest tokens (equals by id) and then to the fewest of those that hold `top_p` of
/// their mass (Holtzman et al., 2020). The draw is a function of the seed, of the row and of its position: the
/// present value of `positions`, or 0 where that is written instead of added to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleTokens {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f64,
    /// Number of most likely tokens considered; 0: all.
    pub top_k: usize,
    /// Probability mass considered; 1: all.
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Entries of the vocabulary that take part: the first so many.
    pub entries: usize,
    /// Position at which the count stays, so that a row that has ended does not leave the cache.
    pub last: u32,
}

/// Bits of the likeliest token's weight.
const WEIGHT_BITS: u32 = 40;

/// Most entries of a vocabulary: the weights of so many add up within 64 bits.
const MOST_ENTRIES: usize = 1 << (63 - WEIGHT_BITS);

/// Distinguishes the keys of sampling from those of dropout.
const KEY: u32 = 0x5a3b_1e00;

/// Threads of a block, which handles a row. The kernel assigns a digit of 4 bits to each warp.
const THREADS: usize = 512;

impl SampleTokens {
    /// Chooses the next token from the logits of a row, of as many entries as take part. `None` if one is NaN, or the largest is not finite.
    pub fn choose(&self, logits: &[f64], row: usize, position: u32) -> Option<u32> {
        let likeliest = likeliest(logits)?;
        if self.temperature == 0.0 {
            return Some(likeliest as u32);
        }
        let highest = logits[likeliest];
        let one = (1u64 << WEIGHT_BITS) as f64;
        // As rounded, NaN excluded above: from 0 to `one`.
        let weight = |&i: &u32| {
            (((logits[i as usize] - highest) / self.temperature).exp() * one).round_ties_even() as u64
        };
        // Likeliest first; equals by id.
        let before = |a: &u32, b: &u32| -> Ordering {
            logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
        };
        let mut kept: Vec<u32> = (0..logits.len() as u32).collect();
        if (1..kept.len()).contains(&self.top_k) {
            kept.select_nth_unstable_by(self.top_k - 1, before);
            kept.truncate(self.top_k);
        }
        if self.top_p < 1.0 {
            let all: u64 = kept.iter().map(weight).sum();
            let wanted = ((self.top_p * all as f64).ceil() as u64).clamp(1, all);
            keep_mass(&mut kept, wanted, weight, before);
        }
        kept.sort_unstable();
        let all: u64 = kept.iter().map(weight).sum();
        let mut left = ((u128::from(self.draw(row, position)) * u128::from(all)) >> 64) as u64;
        kept.into_iter().find(|token| {
            let weight = weight(token);
            let found = left < weight;
            left = left.wrapping_sub(weight);
            found
        })
    }

    /// Returns 64 random bits.
    fn draw(&self, row: usize, position: u32) -> u64 {
        let bits = philox([position, row as u32, 0, 0], self.key());
        u64::from(bits[0]) << 32 | u64::from(bits[1])
    }

    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32 ^ KEY]
    }
}

/// Returns the index of the largest logit, the first of equals; `None` if one is NaN, or it is not finite.
fn likeliest(logits: &[f64]) -> Option<usize> {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if logit.total_cmp(&logits[best]) == Ordering::Greater {
            best = i;
        }
    }
    logits.get(best).filter(|logit| logit.is_finite()).map(|_| best)
}

/// Keeps the fewest tokens, in the order `before`, whose weights add up to at least `wanted`, which is at least 1
/// and at most the sum of all. Halves the tokens in question by selection, so it takes linear time.
fn keep_mass(
    tokens: &mut Vec<u32>,
    mut wanted: u64,
    weight: impl Fn(&u32) -> u64,
    before: impl Fn(&u32, &u32) -> Ordering + Copy,
) {
    // Those before `from` are kept, those from `to` on are not.
    let (mut from, mut to) = (0, tokens.len());
    while to - from > 1 {
        let half = (to - from) / 2;
        tokens[from..to].select_nth_unstable_by(half - 1, before);
        let mass: u64 = tokens[from..from + half].iter().map(&weight).sum();
        if mass >= wanted {
            to = from + half;
        } else {
            wanted -= mass;
            from += half;
        }
    }
    tokens.truncate(to);
}

impl Op for SampleTokens {
    fn name(&self) -> &'static str {
        "sample_tokens"
    }

    fn attributes(&self) -> String {
        let Self { temperature, top_k, top_p, seed, entries, last } = self;
        if *temperature == 0.0 {
            return format!("temperature=0 entries={entries} last={last}");
        }
        format!(
            "temperature={temperature} top_k={top_k} top_p={top_p} seed={seed} entries={entries} last={last}"
        )
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [logits] = inputs else { return Err("takes logits".into()) };
        let [rows, vocab] = logits.shape[..] else { return Err("logits are [B, V]".into()) };
        if !(1..=vocab.min(MOST_ENTRIES)).contains(&self.entries)
            || logits.alloc[0] != rows
            || logits.dtype == DType::U32
        {
            return Err(format!(
                "logits are [B, V] in a float format, of which 1 to {MOST_ENTRIES} entries take part"
            ));
        }
        Ok(vec![Spec::new([rows], DType::U32); 3])
    }

    fn accumulates(&self, output: usize) -> bool {
        output > 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (rows, vocab, width) = (spec.shape[0], self.entries, spec.width());
        let [tokens, positions, bad] = [0, 1, 2].map(|k| cx.output_u32(k));
        dispatch_float!(spec.dtype, E => {
            let logits = cx.input::<E>(0);
            cx.pool.run(rows, |row| {
                let mut loaded = vec![<E as Elem>::Acc::ZERO; vocab];
                logits.load(row * width, &mut loaded);
                let loaded: Vec<f64> = loaded.iter().map(|logit| logit.to_f64()).collect();
                let [token, position, bad] = [tokens, positions, bad].map(|to| &mut to.slice(row, 1)[0]);
                if !cx.adds(1) {
                    *position = 0;
                }
                if !cx.adds(2) {
                    *bad = 0;
                }
                let chosen = self.choose(&loaded, row, *position);
                *token = chosen.unwrap_or(0);
                *bad += u32::from(chosen.is_none());
                *position = (*position + 1).min(self.last);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (rows, vocab, width) = (spec.shape[0], self.entries, spec.width());
        if rows == 0 {
            return Ok(());
        }
        let kernel = Kernel::new("sample_tokens", "sample_tokens")
            .with_type("T", spec.dtype)
            .with("KEY_BITS", 8 * spec.dtype.size())
            .with("VEC", vector_width(width, spec.dtype))
            .with("WEIGHT_BITS", WEIGHT_BITS)
            .with("THREADS", THREADS);
        let [low, high] = self.key();
        // A temperature below the smallest inverse of an f32 is the smallest.
        let inverse =
            if self.temperature > 0.0 { (1.0 / self.temperature).min(f64::from(f32::MAX)) } else { 0.0 };
        let args = [
            cx.input(0).into(),
            cx.output(0).into(),
            cx.output(1).into(),
            cx.output(2).into(),
            vocab.into(),
            width.into(),
            Arg::U32(u32::from(self.temperature == 0.0)),
            Arg::F32(inverse as f32),
            Arg::U32(if self.top_k < vocab { self.top_k as u32 } else { 0 }),
            Arg::U64(self.top_p.to_bits()),
            Arg::U32(low),
            Arg::U32(high),
            Arg::U32(self.last),
            Arg::U32(u32::from(cx.adds(1))),
            Arg::U32(u32::from(cx.adds(2))),
        ];
        // A column of sums for every thread, of every digit of 4 bits.
        let sums = if self.temperature > 0.0 { 16 * THREADS * size_of::<u64>() } else { 0 };
        cx.queue.launch(kernel, Grid::new(rows, THREADS as u32).shared(sums), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        cases::cases(precision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f64; 4] = [0.0, 3.0, 2.0, -1.0];

    fn sampling(temperature: f64, top_k: usize, top_p: f64) -> SampleTokens {
        SampleTokens { temperature, top_k, top_p, seed: 7, entries: 4, last: u32::MAX }
    }

    fn seen(s: SampleTokens) -> Vec<usize> {
        seen_of(&LOGITS, s)
    }

    fn seen_of(logits: &[f64], s: SampleTokens) -> Vec<usize> {
        let mut counts = vec![0; logits.len()];
        for position in 0..20_000 {
            counts[s.choose(logits, 0, position).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn greedy_takes_the_likeliest() {
        assert_eq!(sampling(0.0, 0, 1.0).choose(&LOGITS, 0, 0), Some(1));
        assert_eq!(sampling(0.0, 0, 1.0).choose(&[1.0, 1.0], 0, 0), Some(0));
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let counts = seen(sampling(1.0, 0, 1.0));
        let all: f64 = LOGITS.iter().map(|l| l.exp()).sum();
        for (count, logit) in counts.iter().zip(LOGITS) {
            let expected = logit.exp() / all;
            assert!((*count as f64 / 20_000.0 - expected).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let counts = seen(sampling(1.0, 2, 1.0));
        assert!(counts[0] == 0 && counts[3] == 0 && counts[2] > 0);
        // The likeliest token alone holds 0.69 of the mass.
        let counts = seen(sampling(1.0, 0, 0.6));
        assert_eq!(counts[1], 20_000);
        let counts = seen(sampling(1.0, 0, 0.8));
        assert!(counts[2] > 0 && counts[0] == 0);
    }

    #[test]
    fn of_equals_the_first_are_kept() {
        let equal = [1.0; 5];
        let counts = seen_of(&equal, sampling(1.0, 2, 1.0));
        assert!(counts[0] > 9_000 && counts[1] > 9_000 && counts[2..] == [0, 0, 0], "{counts:?}");
        // Two of five hold 0.4 of the mass, and three are the fewest that hold more.
        assert_eq!(seen_of(&equal, sampling(1.0, 0, 0.4))[2..], [0, 0, 0]);
        let counts = seen_of(&equal, sampling(1.0, 0, 0.41));
        assert!(counts[2] > 5_000 && counts[3..] == [0, 0], "{counts:?}");
    }

    #[test]
    fn extremes() {
        assert_eq!(sampling(1.0, 0, 1.0).choose(&[-7.0], 3, 9), Some(0), "one token");
        assert_eq!(seen(sampling(1.0, 9, 1.0)), seen(sampling(1.0, 0, 1.0)), "k beyond the vocabulary");
        assert_eq!(seen(sampling(1.0, 0, 1e-300))[1], 20_000, "the likeliest is always kept");
        assert_eq!(seen(sampling(1e-300, 0, 1.0))[1], 20_000);
        let flat = seen(sampling(1e300, 0, 1.0));
        assert!(flat.iter().all(|&count| count.abs_diff(5_000) < 300), "{flat:?}");
        let never = seen_of(&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY], sampling(1.0, 0, 1.0));
        assert_eq!(never, [0, 20_000, 0]);
    }

    #[test]
    fn what_is_not_finite_has_no_token() {
        for temperature in [0.0, 1.0] {
            let s = sampling(temperature, 0, 1.0);
            for bad in [f64::NAN, f64::INFINITY] {
                assert_eq!(s.choose(&[0.0, bad, 1.0], 0, 0), None, "{bad}");
            }
            assert_eq!(s.choose(&[f64::NEG_INFINITY; 3], 0, 0), None);
        }
    }

    #[test]
    fn rows_and_positions_draw_independently() {
        let s = sampling(1.0, 0, 1.0);
        let tokens = |row| (0..64).map(|position| s.choose(&[0.0; 64], row, position)).collect::<Vec<_>>();
        assert_ne!(tokens(0), tokens(1));
        assert_eq!(tokens(1), tokens(1));
    }
}
