//! Rotary position embedding over packed rows, in the rotate-half layout of the Hugging Face models.

use super::attention::Heads;
use super::rotary::{Rotary, Rotation, Scaling, rotate, rotate_back};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::f64::consts::TAU;

/// The assignment of the heads of packed rows to GPU threads (kernels/heads.cuh).
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    heads: Heads,
    rotary: Option<Rotary>,
    dtype: DType,
    /// Elements that a thread moves at once.
    vec: usize,
    /// Threads per head.
    lanes: usize,
}

impl Lanes {
    const THREADS: usize = 256;

    /// Returns the assignment for heads of an even width. Kernels rotate the heads if `rotary` is given.
    pub(super) fn new(heads: Heads, rotary: Option<Rotary>, dtype: DType) -> Self {
        let half = heads.dim / 2;
        // Every pack must lie either among the rotated elements or among the others.
        let together = rotary.map_or(half, |rotary| rotary.rotated_dim / 2);
        let vec = (1 << half.trailing_zeros().min(together.trailing_zeros())).min(16 / dtype.size());
        Self { heads, rotary, dtype, vec, lanes: (half / vec).next_power_of_two().min(32) }
    }

    /// Returns the number of rows per block for a kernel without partial sums: enough for a few heads per
    /// thread.
    pub(super) fn rows_per_block(&self) -> usize {
        (4 * Self::THREADS / self.lanes / (self.heads.query + self.heads.kv)).clamp(1, 32)
    }

    /// Returns a kernel over heads.
    pub(super) fn kernel(&self, file: &'static str, entry: &'static str) -> Kernel {
        let mut turns: Vec<String> =
            self.rotary.iter().flat_map(Rotary::turns).map(|turn| format!("{turn}ull")).collect();
        // If only some elements rotate, the other pairs get 0. Without a rotation, the table is a single 0.
        turns.resize(self.rotary.map_or(1, |_| self.heads.dim / 2), "0".to_owned());
        Kernel::new(file, entry)
            .with("T", self.dtype)
            .with("HEAD_DIM", self.heads.dim)
            .with("N_HEADS", self.heads.query)
            .with("N_KV_HEADS", self.heads.kv)
            .with("VEC", self.vec)
            .with("LANES", self.lanes)
            .with("THREADS", Self::THREADS)
            .with("ROTATES", usize::from(self.rotary.is_some()))
            .with("ROTATED_DIM", self.rotary.map_or(self.heads.dim, |rotary| rotary.rotated_dim))
            .with("FREQUENCIES", format!("{{{}}}", turns.join(",")))
            .with("COS_SIN_FACTOR", format!("{:?}f", self.rotary.map_or(1.0, |r| r.cos_sin_factor()) as f32))
    }

    /// Launches a kernel over heads; each block handles `run` rows.
    pub(super) fn launch(
        cx: &GpuNode<'_>,
        kernel: Kernel,
        (rows, run): (usize, usize),
        args: &[Arg],
    ) -> Result<()> {
        if rows == 0 {
            return Ok(());
        }
        cx.queue.launch(kernel, Grid::new(rows.div_ceil(run), Self::THREADS as u32), args)
    }
}

/// `(packed [N, (H+2·KV)·dim], positions [N] u32) → packed`: rotates query and key heads, and copies values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// The rotation of query and key heads.
    pub rotary: Rotary,
    /// True for the gradient, which rotates by the negative angles; the factor of cosines and sines is the
    /// same.
    pub inverse: bool,
}

/// Rows per task.
pub(super) const ROWS: usize = 32;

/// Checks `positions [N]` against checked packed rows, and the heads against the rotation.
pub(super) fn check(heads: Heads, rotary: Rotary, packed: &Spec, positions: &Spec) -> Result<(), String> {
    if positions.dtype != DType::U32 || positions.elements() != packed.shape[0] {
        return Err("positions must be u32, one per row".into());
    }
    rotary.check(heads.dim)
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        if self.inverse { "rope_inverse" } else { "rope" }
    }

    fn attributes(&self) -> String {
        format!("{} {}", self.heads, self.rotary.attributes(self.heads.dim))
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, positions] = inputs else { return Err("takes packed rows and positions".into()) };
        // Heads that are not attended to may have no keys and values beside them.
        if self.heads.kv == 0 {
            self.heads.check_width(packed)?
        } else {
            self.heads.check(packed)?
        }
        check(self.heads, self.rotary, packed, positions)?;
        Ok(vec![packed.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.output_grad(0)?, v.input(1)];
        v.backward(Rope { inverse: !self.inverse, ..*self }, &inputs, &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (heads, inverse, width) = (self.heads, self.inverse, self.heads.width());
        let positions = cx.input_u32(1);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let rotation = Rotation::<<E as Elem>::Acc>::covering(positions, self.rotary);
            cx.pool.chunks(positions.len(), ROWS, #[inline(always)] |start, count| {
                let mut row = vec![<E as Elem>::Acc::ZERO; width];
                for (r, position) in (start..).zip(&positions[start..start + count]) {
                    x.load(r * width, &mut row);
                    let angles = rotation.at(*position);
                    for head in row[..heads.value_at(0)].chunks_exact_mut(heads.dim) {
                        if inverse { rotate_back(head, angles) } else { rotate(head, angles) }
                    }
                    y.store(r * width, &row);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let lanes = Lanes::new(self.heads, Some(self.rotary), cx.input_spec(0).dtype);
        let rows = cx.input_spec(0).rows();
        let run = lanes.rows_per_block();
        let direction = if self.inverse { -1.0f32 } else { 1.0 };
        let args = [
            cx.input(0).into(),
            cx.input(1).into(),
            cx.output(0).into(),
            rows.into(),
            run.into(),
            direction.into(),
            Arg::U32(u32::from(cx.output(0) != cx.input(0))),
        ];
        Lanes::launch(cx, lanes.kernel("rope", "rope"), (rows, run), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, heads, rotary): (usize, Heads, Rotary)| {
            let inputs = vec![
                (Spec::new([n, heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                positions(n, rotary),
            ];
            let op = Rope { heads, rotary, inverse: false };
            let (groups, rotary_text) = (heads.query / heads.kv.max(1), rotary.attributes(heads.dim));
            let name = format!("n{n} hd{} gqa{groups} {rotary_text}", heads.dim);
            Case::new(name, op, inputs, move |inputs| vec![reference(heads, rotary, &inputs[0], &inputs[1])])
        };
        Cases::Own(whole_heads().chain(variants()).map(case).collect())
    }
}

/// Returns rows, heads and rotations of test cases that rotate whole heads.
fn whole_heads() -> impl Iterator<Item = (usize, Heads, Rotary)> {
    [(1, (1, 1, 32)), (17, (4, 2, 64)), (9, (3, 0, 16)), (33, (8, 1, 96)), (255, (1, 1, 128)), (5, (1, 1, 6))]
        .into_iter()
        .map(|(n, (query, kv, dim))| (n, Heads { query, kv, dim }, Rotary::with_whole_heads(dim, 10_000.0)))
}

/// Returns test cases that rotate a part of a head, rotate in the other direction, or use a scaling. Their
/// heads are small, with packs from eight elements down to one.
pub(super) fn variants() -> impl Iterator<Item = (usize, Heads, Rotary)> {
    let yarn = Scaling::Yarn {
        factor: 4.0,
        original_context: 256,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Scaling::yarn_attention_factor(4.0),
    };
    let llama3 =
        Scaling::Llama3 { factor: 8.0, original_context: 256, low_freq_factor: 1.0, high_freq_factor: 4.0 };
    [
        (17, (4, 2, 64), 16, false, Scaling::None),
        (9, (2, 1, 80), 32, false, Scaling::None),
        (9, (2, 1, 96), 40, false, Scaling::None),
        (5, (1, 1, 10), 6, false, Scaling::None),
        (17, (2, 1, 64), 64, true, Scaling::None),
        (17, (2, 1, 64), 64, false, Scaling::Linear { factor: 4.0 }),
        (17, (2, 1, 64), 64, false, yarn),
        (17, (2, 1, 64), 64, false, llama3),
        (9, (2, 2, 64), 32, true, yarn),
    ]
    .into_iter()
    .map(|(n, (query, kv, dim), rotated_dim, reversed, scaling)| {
        (n, Heads { query, kv, dim }, Rotary { theta: 10_000.0, rotated_dim, reversed, scaling })
    })
}

/// Returns the positions of a test case. With a scaling they are smaller: the reference rounds the
/// frequencies in another order, which makes the angle at position p wrong by p times an ulp of the
/// frequency.
pub(super) fn positions(n: usize, rotary: Rotary) -> (Spec, Fill) {
    let below = if rotary.scaling == Scaling::None { 1000 } else { 100 };
    (Spec::new([n], DType::U32), Fill::Below(below))
}

/// Computes the rotation with pairs of elements as complex numbers, multiplied by factor·e^(±i·angle).
pub(super) fn reference(heads: Heads, rotary: Rotary, x: &Array, positions: &Array) -> Array {
    let mut y = x.clone();
    let width = x.width();
    let factor = match rotary.scaling {
        Scaling::Yarn { attention_factor, .. } => attention_factor,
        Scaling::None | Scaling::Linear { .. } | Scaling::Llama3 { .. } => 1.0,
    };
    let sign = if rotary.reversed { -1.0 } else { 1.0 };
    for (row, position) in positions.data.iter().enumerate() {
        for head in 0..heads.query + heads.kv {
            for i in 0..rotary.rotated_dim / 2 {
                let angle = sign * position * reference_frequency(rotary, i);
                let low = row * width + head * heads.dim + i;
                let high = low + rotary.rotated_dim / 2;
                y.data[low] = factor * (x.data[low] * angle.cos() - x.data[high] * angle.sin());
                y.data[high] = factor * (x.data[low] * angle.sin() + x.data[high] * angle.cos());
            }
        }
    }
    y
}

/// Computes the frequency of a pair by the definitions in the papers, from wavelengths and the pairs that
/// have them.
fn reference_frequency(rotary: Rotary, i: usize) -> f64 {
    let dim = rotary.rotated_dim as f64;
    let plain = rotary.theta.powf(-2.0 * i as f64 / dim);
    let wavelength = TAU / plain;
    match rotary.scaling {
        Scaling::None => plain,
        Scaling::Linear { factor } => plain / factor,
        Scaling::Llama3 { factor, original_context, low_freq_factor, high_freq_factor } => {
            let context = original_context as f64;
            if wavelength < context / high_freq_factor {
                plain
            } else if wavelength > context / low_freq_factor {
                plain / factor
            } else {
                let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * plain / factor + smooth * plain
            }
        }
        Scaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
            // θ^(2j/dim) = wavelength / 2π, solved for the pair j that makes `turns` turns over the original
            // context.
            let pair = |turns: f64| dim / 2.0 * (original_context as f64 / turns / TAU).log(rotary.theta);
            let (first, last) = (pair(beta_fast).floor().max(0.0), pair(beta_slow).ceil().min(dim - 1.0));
            let slowed = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            plain * (1.0 - slowed) + plain / factor * slowed
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_whole_heads() {
        for dim in [2, 6, 32, 64, 80, 96, 128, 256, 1024] {
            for (dtype, turned) in
                [(DType::F32, dim), (DType::Bf16, dim), (DType::Bf16, (dim / 4).max(1) * 2)]
            {
                let rotary = Rotary { rotated_dim: turned, ..Rotary::with_whole_heads(dim, 10_000.0) };
                let lanes = Lanes::new(Heads { query: 3, kv: 1, dim }, Some(rotary), dtype);
                assert!((dim / 2).is_multiple_of(lanes.vec) && 32 % lanes.lanes == 0);
                assert!((turned / 2).is_multiple_of(lanes.vec));
                assert!(lanes.lanes == 32 || lanes.lanes * lanes.vec >= dim / 2);
                assert!(lanes.rows_per_block() >= 1);
            }
        }
    }
}
