//! Samples the next token of every sequence from its logits, for generation.
//!
//! Weights are integers (multiples of 2⁻⁴⁰ of the weight of the likeliest token), so their sums are exact in
//! any order. A GPU and a CPU choose the same token from the same logits, up to the rounding of single
//! exponentials.

use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::philox::philox;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use crate::ops::lanes::vector_width;
use std::cmp::Ordering;

/// `logits [B, V] → (tokens [B] u32, positions [B] u32, bad [B] u32)`: chooses a token for each row.
/// `positions` counts up by one, at most to `last`. `bad` counts the rows without a token: those with a NaN,
/// or without a finite largest logit. Such rows get token 0.
///
/// Temperature 0 is greedy; ties go to the lowest id. Otherwise the token is drawn from the softmax of
/// `logits / temperature`, restricted to the `top_k` likeliest tokens (ties again by id) and then to the
/// fewest of these that hold `top_p` of their mass (Holtzman et al., 2020). The draw is a function of the
/// seed, the row and its position: the current value of `positions`, or 0 if `positions` has `Mode::Write`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleTokens {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f64,
    /// Number of likeliest tokens considered; 0 means all.
    pub top_k: usize,
    /// Probability mass considered; 1 means all.
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// Number of vocabulary entries that take part: the first ones.
    pub entries: usize,
    /// The largest position. The count stays there, so that a row that has ended does not leave the cache.
    pub last: u32,
}

/// Bits of the likeliest token's weight.
const WEIGHT_BITS: u32 = 40;

/// The most vocabulary entries: so many weights still add up within 64 bits.
const MAX_ENTRIES: usize = 1 << (63 - WEIGHT_BITS);

/// Separates the keys of sampling from the keys of dropout.
const SAMPLING_KEY: u32 = 0x5a3b_1e00;

/// Threads per block; a block handles one row. The kernel assigns one value of a 4-bit digit to each warp.
const THREADS: usize = 512;

impl SampleTokens {
    /// Chooses the next token from the logits of a row's first `entries` entries. Returns `None` if a logit
    /// is NaN or the largest is not finite.
    pub fn choose(&self, logits: &[f64], row: usize, position: u32) -> Option<u32> {
        let likeliest = likeliest(logits)?;
        if self.temperature == 0.0 {
            return Some(likeliest as u32);
        }
        let highest = logits[likeliest];
        let one = (1u64 << WEIGHT_BITS) as f64;
        // From 0 to `one`: no logit exceeds `highest`, and NaN was excluded above.
        let weight = |&i: &u32| {
            (((logits[i as usize] - highest) / self.temperature).exp() * one).round_ties_even() as u64
        };
        // Likeliest first; ties by id.
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
        [self.seed as u32, (self.seed >> 32) as u32 ^ SAMPLING_KEY]
    }
}

/// Returns the index of the largest logit, the first among ties. Returns `None` if a logit is NaN or the
/// largest is not finite.
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

/// Keeps the fewest tokens, in the order `before`, whose weights add up to at least `wanted`. `wanted` is at
/// least 1 and at most the sum of all weights. Each selection halves the undecided tokens, so it takes linear
/// time.
fn keep_mass(
    tokens: &mut Vec<u32>,
    mut wanted: u64,
    weight: impl Fn(&u32) -> u64,
    before: impl Fn(&u32, &u32) -> Ordering + Copy,
) {
    // Tokens before `from` are kept; tokens from `to` on are not.
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
        let [rows, vocab] = logits.shape[..] else { return Err("logits must be [B, V]".into()) };
        if !(1..=vocab.min(MAX_ENTRIES)).contains(&self.entries)
            || logits.alloc[0] != rows
            || logits.dtype == DType::U32
        {
            return Err(format!(
                "logits must be [B, V] in a float format; 1 to min(V, {MAX_ENTRIES}) entries take part"
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
            .with("T", spec.dtype)
            .with("KEY_BITS", 8 * spec.dtype.size())
            .with("VEC", vector_width(width, spec.dtype))
            .with("WEIGHT_BITS", WEIGHT_BITS)
            .with("THREADS", THREADS);
        let [low, high] = self.key();
        // The inverse must fit in f32: smaller temperatures count as the smallest whose inverse does.
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
        // A column of sums for every thread, one per value of a 4-bit digit.
        let sums = if self.temperature > 0.0 { 16 * THREADS * size_of::<u64>() } else { 0 };
        cx.queue.launch(kernel, Grid::new(rows, THREADS as u32).shared(sums), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let normal = || Fill::Normal(0.0, 3.0);
        let greedy = (0.0, 0, 1.0);
        let mut cases = Vec::new();
        let mut case = |name: &str, (rows, vocab, alloc): (usize, usize, usize), fill: Fill, sampling| {
            // The last entries of the large vocabulary take no part.
            let entries = if vocab == 5000 { 4321 } else { vocab };
            let (temperature, top_k, top_p) = sampling;
            let op = SampleTokens { temperature, top_k, top_p, seed: 0x1234_5678_9abc, entries, last: 50 };
            let logits = (Spec::padded([rows, vocab], [rows, alloc], precision.act_dtype), fill);
            // Every row has its own position; one row was bad before.
            let positions = Fill::Values((0..rows).map(|row| (7 * row) as f64).collect());
            let bad = Fill::Values((0..rows).map(|row| f64::from(u8::from(row == 0))).collect());
            let outputs = vec![(Mode::Write, Fill::Below(1)), (Mode::Add, positions), (Mode::Add, bad)];
            cases.push(
                Case::new(name, op, vec![logits], move |inputs| reference(op, inputs))
                    .without_gradient()
                    .outputs(outputs),
            );
        };
        case("greedy", (5, 1000, 1024), normal(), greedy);
        case("greedy of equals", (3, 70, 128), Fill::Values(vec![1.0; 210]), greedy);
        case("greedy below zero", (2, 33, 33), Fill::Uniform(-9.0, -1.0), greedy);
        case("all", (9, 5000, 5056), normal(), (0.8, 0, 1.0));
        case("odd width", (4, 777, 777), normal(), (1.0, 0, 1.0));
        case("one token", (2, 1, 64), normal(), (1.0, 3, 0.5));
        case("top 40", (9, 3000, 3008), normal(), (1.0, 40, 1.0));
        case("k beyond the vocabulary", (3, 60, 64), normal(), (1.0, 100, 1.0));
        case("nucleus", (9, 3000, 3008), normal(), (1.0, 0, 0.9));
        case("tiny nucleus", (4, 3000, 3008), normal(), (1.0, 0, 1e-9));
        case("top 40 and nucleus", (9, 3000, 3008), normal(), (1.3, 40, 0.7));
        case("equals cut by k", (6, 700, 704), Fill::Values(vec![-2.5; 4200]), (1.0, 300, 1.0));
        case("equals cut by k and nucleus", (6, 700, 704), Fill::Values(vec![0.0; 4200]), (1.0, 300, 0.31));
        let steps = (0..9 * 400).map(|i| f64::from(i * 7 % 5)).collect();
        case("many equals", (9, 400, 448), Fill::Values(steps), (2.0, 150, 0.8));
        case("cold", (4, 300, 320), normal(), (1e-6, 0, 1.0));
        case("hot", (4, 300, 320), normal(), (100.0, 0, 0.5));
        let mut holes = vec![f64::NEG_INFINITY; 3 * 100];
        (holes[17], holes[103], holes[299]) = (1.0, -4.0, 0.5);
        case("minus infinity", (3, 100, 128), Fill::Values(holes), (1.0, 0, 1.0));
        let mut broken = vec![0.5; 4 * 100];
        (broken[50], broken[199], broken[200]) = (f64::NAN, f64::INFINITY, f64::NAN);
        case("not finite", (4, 100, 128), Fill::Values(broken.clone()), (1.0, 10, 0.9));
        case("greedy, not finite", (4, 100, 128), Fill::Values(broken), greedy);
        Cases::Own(cases)
    }
}

/// Sorts every row, sums in that order, and draws by id.
fn reference(op: SampleTokens, inputs: &[Array]) -> Vec<Array> {
    let [logits, positions, bad] = inputs else { return Vec::new() };
    let (rows, vocab) = (logits.shape[0], logits.shape[1]);
    let mut out = vec![Array::zeros(&[rows]); 3];
    for row in 0..rows {
        let position = positions.data[row];
        out[1].data[row] = (position + 1.0).min(f64::from(op.last));
        let values = &logits.data[row * vocab..][..op.entries];
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_bad = values.iter().any(|x| x.is_nan()) || !highest.is_finite();
        out[2].data[row] = bad.data[row] + f64::from(u8::from(is_bad));
        if is_bad {
            continue;
        }
        let mut order: Vec<usize> = (0..op.entries).collect();
        order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        if op.temperature == 0.0 {
            out[0].data[row] = order[0] as f64;
            continue;
        }
        let scale = 2f64.powi(WEIGHT_BITS as i32);
        let weight = |i: usize| (((values[i] - highest) / op.temperature).exp() * scale).round();
        if op.top_k > 0 {
            order.truncate(op.top_k);
        }
        let mass: f64 = order.iter().map(|&i| weight(i)).sum();
        let (mut kept, mut sum) = (0, 0.0);
        while kept < order.len() && (op.top_p == 1.0 || sum < (op.top_p * mass).ceil()) {
            sum += weight(order[kept]);
            kept += 1;
        }
        order.truncate(kept);
        order.sort_unstable();
        let bits = philox([position as u32, row as u32, 0, 0], op.key());
        let unit = (f64::from(bits[0]) + f64::from(bits[1]) / 2f64.powi(32)) / 2f64.powi(32);
        let mut left = unit * order.iter().map(|&i| weight(i)).sum::<f64>();
        for &token in &order {
            left -= weight(token);
            if left < 0.0 {
                out[0].data[row] = token as f64;
                break;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f64; 4] = [0.0, 3.0, 2.0, -1.0];

    fn sampling(temperature: f64, top_k: usize, top_p: f64) -> SampleTokens {
        SampleTokens { temperature, top_k, top_p, seed: 7, entries: 4, last: u32::MAX }
    }

    fn seen(s: SampleTokens) -> Vec<usize> {
        sample_counts_from(&LOGITS, s)
    }

    fn sample_counts_from(logits: &[f64], s: SampleTokens) -> Vec<usize> {
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
    fn ties_keep_the_lowest_ids() {
        let equal = [1.0; 5];
        let counts = sample_counts_from(&equal, sampling(1.0, 2, 1.0));
        assert!(counts[0] > 9_000 && counts[1] > 9_000 && counts[2..] == [0, 0, 0], "{counts:?}");
        // Two of five hold 0.4 of the mass, and three are the fewest that hold more.
        assert_eq!(sample_counts_from(&equal, sampling(1.0, 0, 0.4))[2..], [0, 0, 0]);
        let counts = sample_counts_from(&equal, sampling(1.0, 0, 0.41));
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
        let never = sample_counts_from(&[f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY], sampling(1.0, 0, 1.0));
        assert_eq!(never, [0, 20_000, 0]);
    }

    #[test]
    fn rows_that_are_not_finite_have_no_token() {
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
