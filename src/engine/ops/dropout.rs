//! Dropout with a counter-based generator.
//!
//! A function of logical coordinates alone decides whether an element is dropped: the site in the model, the
//! step, the sequence in the global batch, the row and the column. So the unfused and the flash form, any
//! split over ranks, and recomputation all drop the same elements, and no mask is ever stored.
//!
//! One Philox call decides eight neighboring columns with 16 bits each. An element is dropped when its bits
//! are below `threshold = round(p·2¹⁶)`. The others are multiplied by `2¹⁶ / (2¹⁶ − threshold)`, the exact
//! inverse of the probability that they are kept.

use super::lanes::{launch_over, vector_width};
use crate::device::DType;
use crate::device::Real;
use crate::device::gpu::{Arg, Kernel};
use crate::device::philox::{philox, philox_run};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// A place in the model where elements are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// The probability that an element is dropped, in `[0, 1)`.
    pub p: f64,
    /// The seed of the run.
    pub seed: u64,
    /// The number of this site, unique in the model.
    pub site: u32,
}

/// Columns that one Philox call decides.
const COLUMNS_PER_CALL: usize = 8;

/// Columns decided together, by calls that run side by side in vector lanes. Each call yields two 64-bit
/// numbers.
const BLOCK: usize = 16 * COLUMNS_PER_CALL;

impl Site {
    /// Returns the draw, out of 2¹⁶, below which an element is dropped.
    pub fn threshold(&self) -> u32 {
        (self.p.clamp(0.0, 1.0) * 65536.0).round() as u32
    }

    /// Returns the generator of this site.
    pub fn drops(&self) -> DropoutFactors {
        let threshold = self.threshold();
        let scale = if threshold < 65536 { 65536.0 / f64::from(65536 - threshold) } else { 0.0 };
        DropoutFactors { threshold, scale, key: [fold_seed(self.seed), self.site] }
    }
}

/// Folds a 64-bit seed into a Philox key word: the finalizer of SplitMix64 (Steele, Lea, Flood 2014), halves
/// combined.
fn fold_seed(seed: u64) -> u32 {
    let mut z = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z ^ (z >> 32)) as u32
}

/// Generates the dropout factors of the elements at a site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutFactors {
    threshold: u32,
    scale: f64,
    key: [u32; 2],
}

impl DropoutFactors {
    /// Returns the kernel arguments: both words of the key, the threshold and the scale.
    pub(crate) fn args(&self) -> [Arg; 4] {
        let [key0, key1] = self.key;
        [Arg::U32(key0), Arg::U32(key1), Arg::U32(self.threshold), Arg::F32(self.scale as f32)]
    }

    /// Fills `factors` with the factors of the elements from `column` on; each is zero or the scale.
    ///
    /// `column` is a multiple of 8, `row` counts the rows of one sequence, and `sequence` is the sequence's
    /// index in the global batch.
    #[inline(always)]
    pub fn factors<A: Real>(&self, step: u32, sequence: u32, row: u32, column: usize, factors: &mut [A]) {
        debug_assert_eq!(column % COLUMNS_PER_CALL, 0);
        let mut call = (column / COLUMNS_PER_CALL) as u32;
        let mut blocks = factors.chunks_exact_mut(BLOCK);
        for block in &mut blocks {
            self.block([call, row, sequence, step], block);
            call = call.wrapping_add((BLOCK / COLUMNS_PER_CALL) as u32);
        }
        let rest = blocks.into_remainder();
        if !rest.is_empty() {
            let mut block = [A::ZERO; BLOCK];
            self.block([call, row, sequence, step], &mut block);
            rest.copy_from_slice(&block[..rest.len()]);
        }
    }

    /// Fills one block of columns. The calls that decide it differ in the first word of their counter.
    #[inline(always)]
    fn block<A: Real>(&self, counter: [u32; 4], factors: &mut [A]) {
        let scale = A::from_f64(self.scale);
        let draws = philox_run::<{ BLOCK / 4 }>(counter, self.key).map(u64::to_le);
        let draws: [u16; BLOCK] = bytemuck::cast(draws);
        for (factor, draw) in factors.iter_mut().zip(draws) {
            *factor = if u32::from(u16::from_le(draw)) < self.threshold { A::ZERO } else { scale };
        }
    }
}

/// `y = x · factor`, elementwise: `(x [B…, columns], sequences [B] u32, step [1] u32) → y`.
///
/// Rows are all dimensions of x but the last; each sequence owns `rows / B` of them. So x may be the residual
/// stream `[B·T, d]` (row = t) or attention probabilities `[B, H, T, T]` (row = head·T + t). The op is its
/// own gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout(pub Site);

/// Rows per task.
const ROWS: usize = 32;

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn attributes(&self) -> String {
        format!("p={} site={}", self.0.p, self.0.site)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, sequences, step] = inputs else { return Err("takes x, sequences and step".into()) };
        check_counters(sequences, step)?;
        let batch = sequences.elements();
        if x.dtype == DType::U32 || x.shape.len() < 2 || batch == 0 || !x.rows().is_multiple_of(batch) {
            return Err("x must be a float tensor whose rows divide evenly among the sequences".into());
        }
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.output_grad(0)?, v.input(1), v.input(2)];
        v.backward(*self, &inputs, &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, width) = (cx.input_spec(0).rows(), cx.input_spec(0).width());
        let (sequences, step) = (cx.input_u32(1), cx.input_u32(2)[0]);
        let rows_per_sequence = rows / sequences.len();
        let drops = self.0.drops();
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, ROWS, #[inline(always)] |start, count| {
                let mut row = vec![Default::default(); width];
                let mut factors = row.clone();
                for r in start..start + count {
                    let sequence = sequences[r / rows_per_sequence];
                    drops.factors(step, sequence, (r % rows_per_sequence) as u32, 0, &mut factors);
                    x.load(r * width, &mut row);
                    row.iter_mut().zip(&factors).for_each(|(x, f)| *x *= *f);
                    y.store(r * width, &row);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (rows, width) = (spec.rows(), spec.width());
        let calls = width.div_ceil(COLUMNS_PER_CALL);
        let rows_per_sequence = rows / cx.input_spec(1).elements();
        let kernel = Kernel::new("dropout", "dropout")
            .with("T", spec.dtype)
            .with("VEC", vector_width(width, spec.dtype));
        let tensors = [cx.input(0), cx.input(1), cx.input(2), cx.output(0)];
        let mut further = vec![Arg::from(calls), Arg::from(width), Arg::from(rows_per_sequence)];
        further.extend(self.0.drops().args());
        launch_over(cx, kernel, (rows * calls, 1), &tensors, &further)
    }

    fn cases(precision: Precision) -> Cases {
        // Batch, rows per sequence, columns, p.
        let shapes =
            [(1, 1, 32, 0.5), (2, 17, 96, 0.1), (3, 5, 33, 0.2), (1, 255, 130, 0.1), (5, 4, 128, 0.0)];
        let case = |(batch, rows, width, p): (usize, usize, usize, f64)| {
            let site = Site { p, seed: 1234, site: 7 };
            let inputs = vec![
                (Spec::new([batch * rows, width], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([batch], DType::U32), Fill::Below(1 << 20)),
                (Spec::new([1], DType::U32), Fill::Below(1000)),
            ];
            Case::new(format!("b{batch} rows{rows} d{width} p{p}"), Dropout(site), inputs, move |inputs| {
                let (x, sequences, step) = (&inputs[0], &inputs[1], &inputs[2]);
                let mut y = x.clone();
                for (i, y) in y.data.iter_mut().enumerate() {
                    let (row, column) = (i / width, i % width);
                    let sequence = sequences.data[row / rows];
                    *y *= reference_factor(
                        site,
                        [column, row % rows, sequence as usize, step.data[0] as usize],
                    );
                }
                vec![y]
            })
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

/// Checks the inputs that locate an element: `sequences [B]` and `step [1]`, both u32.
pub(crate) fn check_counters(sequences: &Spec, step: &Spec) -> Result<(), String> {
    if sequences.dtype != DType::U32 || step.dtype != DType::U32 || step.elements() != 1 {
        return Err("sequences [B] and step [1] must be u32".into());
    }
    Ok(())
}

/// Returns the factor of one element from a Philox call of its own, for the references of ops with dropout.
pub(crate) fn reference_factor(site: Site, [column, row, sequence, step]: [usize; 4]) -> f64 {
    let key = [fold_seed(site.seed), site.site];
    let words = philox([(column / 8) as u32, row as u32, sequence as u32, step as u32], key);
    let word = words[column % 8 / 2];
    let draw = if column % 2 == 0 { word % 65536 } else { word / 65536 };
    let threshold = (site.p * 65536.0).round();
    if f64::from(draw) < threshold { 0.0 } else { 65536.0 / (65536.0 - threshold) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(p: f64) -> Site {
        Site { p, seed: 99, site: 3 }
    }

    #[test]
    fn blocks_agree_with_single_draws_wherever_they_start() {
        for (column, len) in [(0, 128), (0, 5), (8, 300), (1024, 77)] {
            let mut factors = vec![f32::NAN; len];
            site(0.3).drops().factors(5, 17, 4, column, &mut factors);
            for (i, f) in factors.iter().enumerate() {
                assert_eq!(*f, reference_factor(site(0.3), [column + i, 4, 17, 5]) as f32);
            }
        }
    }

    #[test]
    fn drops_as_often_as_it_says_and_keeps_the_mean() {
        for p in [0.1, 0.5] {
            let mut factors = vec![0f64; 1 << 18];
            site(p).drops().factors(0, 0, 0, 0, &mut factors);
            let n = factors.len() as f64;
            let dropped = factors.iter().filter(|f| **f == 0.0).count() as f64 / n;
            let mean = factors.iter().sum::<f64>() / n;
            // Five standard errors of a proportion.
            let bound = 5.0 * (p * (1.0 - p) / n).sqrt();
            assert!((dropped - p).abs() < bound, "{dropped} of {p}");
            assert!((mean - 1.0).abs() < bound / (1.0 - p), "{mean}");
        }
    }

    #[test]
    fn every_coordinate_and_the_seed_change_the_mask() {
        let draw = |site: Site, [step, sequence, row]: [u32; 3]| {
            let mut factors = vec![0f32; 256];
            site.drops().factors(step, sequence, row, 0, &mut factors);
            factors
        };
        let base = draw(site(0.5), [1, 2, 3]);
        for other in [[2, 2, 3], [1, 3, 3], [1, 2, 4]] {
            assert_ne!(base, draw(site(0.5), other));
        }
        assert_ne!(base, draw(Site { seed: 100, ..site(0.5) }, [1, 2, 3]));
        assert_ne!(base, draw(Site { seed: 99 + (1 << 32), ..site(0.5) }, [1, 2, 3]));
        assert_ne!(base, draw(Site { site: 4, ..site(0.5) }, [1, 2, 3]));
    }

    #[test]
    fn zero_keeps_and_one_drops_everything() {
        let mut factors = [0f32; 40];
        site(0.0).drops().factors(1, 1, 1, 0, &mut factors);
        assert!(factors.iter().all(|f| *f == 1.0));
        site(1.0).drops().factors(1, 1, 1, 0, &mut factors);
        assert!(factors.iter().all(|f| *f == 0.0));
    }
}
