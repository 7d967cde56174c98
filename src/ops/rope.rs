//! Rotary position embedding (Su et al. 2021) in the rotate-half layout of the Hugging Face models: element
//! `i` of a head is rotated together with element `i + dim/2`, by the angle `position · theta^(−2i/dim)`.

use super::attention::Heads;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::any::Any;
use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};

/// Table of the cosines and sines of all angles up to a position.
#[derive(Debug)]
pub struct Rotation<A> {
    /// Per position: dim/2 cosines, then dim/2 sines.
    table: Vec<A>,
    dim: usize,
}

/// The key of a table: width of a head, bits of theta.
type Key = (usize, u64);

/// The tables of this process, one per key and number type. A table depends on nothing but its key and its
/// length, and every layer of a model needs the same one.
static TABLES: Mutex<Vec<(Key, Arc<dyn Any + Send + Sync>)>> = Mutex::new(Vec::new());

impl<A: Real> Rotation<A> {
    /// Returns a table that covers all of `positions`.
    pub fn covering(positions: &[u32], dim: usize, theta: f64) -> Arc<Self> {
        let count = positions.iter().max().map_or(0, |max| *max as usize + 1);
        let key = (dim, theta.to_bits());
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        let place = tables.iter().position(|(k, table)| *k == key && table.is::<Self>());
        let known = place.and_then(|at| Arc::clone(&tables[at].1).downcast::<Self>().ok());
        if let Some(known) = known.filter(|known| known.positions() >= count) {
            return known;
        }
        // Generation needs one more position at a time: doubling keeps the total work proportional.
        let made = Arc::new(Self::new(count.next_power_of_two(), dim, theta));
        let entry: (Key, Arc<dyn Any + Send + Sync>) = (key, Arc::<Self>::clone(&made));
        match place {
            Some(at) => tables[at] = entry,
            None => tables.push(entry),
        }
        made
    }

    /// Angles are computed in f64 and rounded once, after the cosine and the sine.
    fn new(positions: usize, dim: usize, theta: f64) -> Self {
        let frequencies: Vec<f64> = frequencies(dim, theta).collect();
        let mut table = Vec::with_capacity(positions * dim);
        for position in 0..positions {
            let angles = frequencies.iter().map(|f| position as f64 * f);
            table.extend(angles.clone().map(|a| A::from_f64(a.cos())));
            table.extend(angles.map(|a| A::from_f64(a.sin())));
        }
        Self { table, dim }
    }

    fn positions(&self) -> usize {
        self.table.len() / self.dim
    }

    /// Returns the cosines and sines of a position.
    #[inline(always)]
    pub fn at(&self, position: u32) -> (&[A], &[A]) {
        let start = position as usize * self.dim;
        self.table[start..start + self.dim].split_at(self.dim / 2)
    }
}

/// Returns the angle by which one position rotates each pair of elements.
fn frequencies(dim: usize, theta: f64) -> impl Iterator<Item = f64> {
    (0..dim / 2).map(move |i| theta.powf(-2.0 * i as f64 / dim as f64))
}

/// Returns [`frequencies`] as fractions of a full turn, times 2⁶⁴: multiplied by a position in wrapping
/// 64-bit arithmetic they drop whole turns exactly.
fn turns(dim: usize, theta: f64) -> impl Iterator<Item = u64> {
    frequencies(dim, theta).map(|f| ((f / TAU).fract() * 2f64.powi(64)) as u64)
}

/// The assignment of the heads of packed rows to threads of a GPU (kernels/heads.cuh).
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes {
    heads: Heads,
    dtype: DType,
    /// Elements that a thread moves at once.
    vec: usize,
    /// Threads per head.
    lanes: usize,
}

impl Lanes {
    const THREADS: usize = 256;

    /// Returns the assignment for heads of an even width.
    pub(super) fn new(heads: Heads, dtype: DType) -> Self {
        let half = heads.dim / 2;
        let vec = (1 << half.trailing_zeros()).min(16 / dtype.size());
        Self { heads, dtype, vec, lanes: (half / vec).next_power_of_two().min(32) }
    }

    /// Returns the number of rows per block if it leaves no partial sums: enough for a few heads per thread.
    pub(super) fn rows_of_block(&self) -> usize {
        (4 * Self::THREADS / self.lanes / (self.heads.query + self.heads.kv)).clamp(1, 32)
    }

    /// Returns a kernel over heads that rotates them, unless theta is `None`.
    pub(super) fn kernel(&self, file: &'static str, entry: &'static str, theta: Option<f64>) -> Kernel {
        let turns: Vec<String> =
            theta.iter().flat_map(|&t| turns(self.heads.dim, t)).map(|t| format!("{t}ull")).collect();
        Kernel::new(file, entry)
            .with_type("T", self.dtype)
            .with("HEAD_DIM", self.heads.dim)
            .with("N_HEADS", self.heads.query)
            .with("N_KV_HEADS", self.heads.kv)
            .with("VEC", self.vec)
            .with("LANES", self.lanes)
            .with("THREADS", Self::THREADS)
            .with("ROTATES", usize::from(theta.is_some()))
            .with(
                "FREQUENCIES",
                if turns.is_empty() { "{0}".into() } else { format!("{{{}}}", turns.join(",")) },
            )
    }

    /// Launches such a kernel; its blocks handle `run` rows each.
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

/// Rotates a head in place by the angles of a position.
#[inline(always)]
pub fn rotate<A: Real>(head: &mut [A], (cos, sin): (&[A], &[A])) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((x, y), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*x, *y) = (*x * *c - *y * *s, *y * *c + *x * *s);
    }
}

/// Rotates a head back: the inverse of [`rotate`], and its gradient.
#[inline(always)]
pub fn rotate_back<A: Real>(head: &mut [A], (cos, sin): (&[A], &[A])) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((x, y), c), s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*x, *y) = (*x * *c + *y * *s, *y * *c - *x * *s);
    }
}

/// `(packed [N, (H+2·KV)·dim], positions [N] u32) → packed`: query and key heads rotated, values copied.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// The base of the frequencies.
    pub theta: f64,
    /// True to rotate back: the gradient of the rotation.
    pub inverse: bool,
}

/// Rows of one task.
pub(super) const ROWS: usize = 32;

/// Checks `positions [N]` against packed rows whose heads have an even width.
pub(super) fn check(heads: Heads, packed: &Spec, positions: &Spec) -> Result<(), String> {
    heads.check(packed)?;
    if positions.dtype != DType::U32
        || positions.elements() != packed.shape[0]
        || !heads.dim.is_multiple_of(2)
    {
        return Err("positions are u32, one per row, and heads of even width".into());
    }
    Ok(())
}

impl Op for Rope {
    fn name(&self) -> &'static str {
        if self.inverse { "rope_inverse" } else { "rope" }
    }

    fn attributes(&self) -> String {
        format!("{} theta={}", self.heads, self.theta)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, positions] = inputs else { return Err("takes packed rows and positions".into()) };
        check(self.heads, packed, positions)?;
        Ok(vec![packed.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.output_grad(0)?, v.input(1)];
        v.backward(Rope { inverse: !self.inverse, ..*self }, &inputs, &[0])?;
        Ok(())
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
            let rotation = Rotation::<<E as Elem>::Acc>::covering(positions, heads.dim, self.theta);
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
        let (lanes, rows) = (Lanes::new(self.heads, cx.input_spec(0).dtype), cx.input_spec(0).rows());
        let run = lanes.rows_of_block();
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
        Lanes::launch(cx, lanes.kernel("rope", "rope", Some(self.theta)), (rows, run), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        if self.inverse {
            return Cases::GradientOf("rope");
        }
        let shapes =
            [(1, (1, 1, 32)), (17, (4, 2, 64)), (33, (8, 1, 96)), (255, (1, 1, 128)), (5, (1, 1, 6))];
        let case = |(n, (query, kv, dim)): (usize, (usize, usize, usize))| {
            let heads = Heads { query, kv, dim };
            let inputs = vec![
                (Spec::new([n, heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([n], DType::U32), Fill::Below(1000)),
            ];
            let op = Rope { heads, theta: 10_000.0, inverse: false };
            Case::new(format!("n{n} hd{dim} gqa{}", heads.group()), op, inputs, move |inputs| {
                vec![reference(heads, 10_000.0, &inputs[0], &inputs[1])]
            })
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

/// Pairs of elements as complex numbers, multiplied by e^(i·angle).
pub(super) fn reference(heads: Heads, theta: f64, x: &Array, positions: &Array) -> Array {
    let mut y = x.clone();
    let width = x.width();
    for (row, position) in positions.data.iter().enumerate() {
        for head in 0..heads.query + heads.kv {
            for i in 0..heads.dim / 2 {
                let angle = position * theta.powf(-2.0 * i as f64 / heads.dim as f64);
                let low = row * width + head * heads.dim + i;
                let high = low + heads.dim / 2;
                y.data[low] = x.data[low] * angle.cos() - x.data[high] * angle.sin();
                y.data[high] = x.data[low] * angle.sin() + x.data[high] * angle.cos();
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turning_back_undoes_turning() {
        let rotation = Rotation::<f64>::covering(&[977], 64, 10_000.0);
        let head: Vec<f64> = (0..64).map(|i| f64::from(i) - 31.5).collect();
        let mut turned = head.clone();
        rotate(&mut turned, rotation.at(977));
        assert!((0..64).any(|i| (turned[i] - head[i]).abs() > 1.0));
        rotate_back(&mut turned, rotation.at(977));
        assert!((0..64).all(|i| (turned[i] - head[i]).abs() < 1e-12));
    }

    #[test]
    fn turns_in_integers_are_the_angles_of_the_table() {
        let (dim, theta) = (64, 10_000.0);
        for position in [0u64, 1, 1000, 99_999, 1 << 20] {
            for (frequency, turn) in frequencies(dim, theta).zip(turns(dim, theta)) {
                let exact = position as f64 * frequency;
                let turned = position.wrapping_mul(turn) as f64 / 2f64.powi(64) * TAU;
                assert!((exact.sin() - turned.sin()).abs() < 1e-9, "{position} {frequency}");
                assert!((exact.cos() - turned.cos()).abs() < 1e-9, "{position} {frequency}");
            }
        }
    }

    #[test]
    fn lanes_hold_whole_heads() {
        for dim in [2, 6, 32, 64, 80, 96, 128, 256, 1024] {
            for dtype in [DType::F32, DType::Bf16] {
                let lanes = Lanes::new(Heads { query: 3, kv: 1, dim }, dtype);
                assert!((dim / 2).is_multiple_of(lanes.vec) && 32 % lanes.lanes == 0);
                assert!(lanes.lanes == 32 || lanes.lanes * lanes.vec >= dim / 2);
                assert!(lanes.rows_of_block() >= 1);
            }
        }
    }

    #[test]
    fn a_grown_table_keeps_its_entries() {
        let small = Rotation::<f32>::covering(&[3], 8, 500.0);
        let large = Rotation::<f32>::covering(&[0, 100], 8, 500.0);
        assert_eq!(small.at(3), large.at(3));
        assert!(large.positions() > 100);
        let kept = Rotation::<f32>::covering(&[3], 8, 500.0);
        assert!(Arc::ptr_eq(&kept, &large));
    }
}
