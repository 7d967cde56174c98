//! The global norm of all gradients, the clip factor, and the flag of a step that was not finite.

use super::rank_tables::RankTables;
use crate::device::cpu::ViewMut;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, OwnedRange, Precision, Shards, Spec,
};
use std::ops::Range;
use std::sync::Arc;

/// Elements per partial sum on the CPU. It is fixed, so the sum is the same on any machine.
const BLOCK: usize = 4096;

/// GPU launch: threads per block, 16-byte loads in flight per thread, and rounds of such loads per thread.
const THREADS: usize = 256;
const BATCH: usize = 8;
const ROUNDS: usize = 4;
/// Elements per partial sum on a GPU.
const GPU_BLOCK: usize = THREADS * BATCH * ROUNDS * 4;

/// Returns the elements per partial sum on a GPU or the CPU.
pub fn block_len(on_gpu: bool) -> usize {
    if on_gpu { GPU_BLOCK } else { BLOCK }
}
/// Threads in the block that adds up the partial sums.
const FINAL_THREADS: usize = 1024;

/// Independent sums within a block, combined in a fixed order.
const LANES: usize = 16;

/// `norm = ‖grads‖₂`, `clip = min(1, max_norm / (norm + 1e-6))` as in PyTorch's `clip_grad_norm_`, and `bad`,
/// which becomes 1 when the norm or the loss is not finite, and then stays 1.
///
/// Inputs: grads `[n]`, loss `[1]`. Outputs: norm `[1]`, clip `[1]`, bad `[1]` (`Mode::Add`, so that it stays
/// set), and a scratch tensor with the sums of squares of blocks of 4096 elements in flat order (32,768 on a
/// GPU). With `from_partials`, the first input is these sums, from [`GradNormPartials`] of all ranks, and
/// there is no scratch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradNorm {
    /// The largest norm that passes unclipped; 0 never clips.
    pub max_norm: f64,
    /// True if the ranks have computed the partial sums.
    pub from_partials: bool,
}

/// Writes the sum of squares of each block of `size` elements within `owned`, which begins at a multiple of
/// `size`.
fn partial_sums<A: Real>(cx: &CpuNode<'_>, size: usize, owned: Range<usize>, partials: ViewMut<'_, A>) {
    let grads = cx.input::<A>(0);
    cx.pool.chunks(
        owned.len(),
        size,
        #[inline(always)]
        |start, len| {
            let mut sums = [A::ZERO; LANES];
            let block = grads.slice(owned.start + start, len);
            let (whole, rest) = block.as_chunks::<LANES>();
            for lanes in whole {
                for (sum, g) in sums.iter_mut().zip(lanes) {
                    *sum = g.fma(*g, *sum);
                }
            }
            for (sum, g) in sums.iter_mut().zip(rest) {
                *sum = g.fma(*g, *sum);
            }
            partials.store((owned.start + start) / size, &[sums.into_iter().sum()]);
        },
    );
}

/// Writes norm, clip and bad (outputs 0 to 2) from the partial sums and the loss (input 1).
fn total<A: Real>(cx: &CpuNode<'_>, max_norm: f64, partials: &[A]) {
    let (norm, clip, bad) = (cx.output::<A>(0), cx.output::<A>(1), cx.output_u32(2));
    let loss = cx.input::<A>(1).get(0);
    let total: f64 = partials.iter().map(|p| p.to_f64()).sum();
    let total_norm = total.sqrt();
    let factor = if max_norm > 0.0 { (max_norm / (total_norm + 1e-6)).min(1.0) } else { 1.0 };
    norm.store(0, &[A::from_f64(total_norm)]);
    clip.store(0, &[A::from_f64(factor)]);
    if !(total_norm.is_finite() && loss.finite()) {
        bad.slice(0, 1)[0] = 1;
    }
}

/// Returns a kernel that knows the ranges of each rank, and the table row of `rank`. Without ranges, the rank
/// owns everything.
fn owner_kernel(entry: &'static str, owners: &[Vec<&OwnedRange>], rank: usize) -> (Kernel, Arg) {
    let kernel = Kernel::new("grad_norm", entry)
        .with("THREADS", THREADS)
        .with("BATCH", BATCH)
        .with("ROUNDS", ROUNDS)
        .with("FINAL_THREADS", FINAL_THREADS);
    let tables = RankTables::new(owners, rank, 2);
    (tables.define_ranges_in(kernel, |range| (range.offset, range.start)), tables.row())
}

impl Op for GradNorm {
    fn name(&self) -> &'static str {
        if self.from_partials { "grad_norm_total" } else { "grad_norm" }
    }

    fn attributes(&self) -> String {
        format!("max_norm={}", self.max_norm)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads, loss] = inputs else { return Err("takes grads and loss".into()) };
        if grads.dtype != loss.dtype || loss.elements() != 1 {
            return Err("the loss must be one number in the format of the gradients".into());
        }
        let one = Spec::new([1], grads.dtype);
        let partials = Spec::new([grads.elements().div_ceil(BLOCK)], grads.dtype);
        let mut outputs = vec![one.clone(), one, Spec::new([1], DType::U32)];
        outputs.extend((!self.from_partials).then_some(partials));
        Ok(outputs)
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 2
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            if self.from_partials {
                let partials = cx.input::<A>(0);
                total(cx, self.max_norm, partials.slice(0, partials.len()));
            } else {
                let partials = cx.output::<A>(3);
                partial_sums(cx, BLOCK, 0..cx.input_spec(0).elements(), partials);
                total(cx, self.max_norm, partials.slice(0, partials.len()));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let elements = cx.input_spec(0).elements();
        let (partials, count) = if self.from_partials {
            (cx.input(0), elements)
        } else {
            let blocks = elements.div_ceil(GPU_BLOCK);
            queue_partial_sums(cx, cx.output(3), blocks, None)?;
            (cx.output(3), blocks)
        };
        let [norm, clip, bad] = [0, 1, 2].map(|i| cx.output(i).into());
        let limit = Arg::U64(self.max_norm.to_bits());
        let args = [partials.into(), cx.input(1).into(), norm, clip, bad, count.into(), limit];
        let (kernel, _) = owner_kernel("grad_norm", &[], 0);
        cx.queue.launch(kernel, Grid::new(1, FINAL_THREADS as u32), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, op: GradNorm, n: usize, first: Fill, loss: f64| {
            let spec = |n: usize| Spec::new([n], precision.master);
            let inputs = vec![(spec(n), first), (spec(1), Fill::Values(vec![loss]))];
            let outputs = [Mode::Write, Mode::Write, Mode::Add].map(|mode| (mode, Fill::Values(vec![0.0])));
            Case::new(name, op, inputs, move |i| reference(i, op))
                .without_gradient()
                .outputs(outputs.to_vec())
                .depth(if op.from_partials { n } else { 1 })
        };
        let (whole, normal) =
            (|max_norm| GradNorm { max_norm, from_partials: false }, Fill::Normal(0.0, 1.0));
        let (total, sums) = (|max_norm| GradNorm { max_norm, from_partials: true }, Fill::Uniform(0.0, 3.0));
        Cases::Own(vec![
            case("clipped", whole(1.0), 20_003, normal.clone(), 2.0),
            case("below the limit", whole(1e3), 100, normal.clone(), 2.0),
            case("without a limit", whole(0.0), 4097, normal.clone(), 2.0),
            case("infinite loss", whole(1.0), 64, normal, f64::INFINITY),
            case("clipped", total(1.0), 1500, sums.clone(), 2.0),
            case("without a limit", total(0.0), 1500, sums.clone(), 2.0),
            case("infinite loss", total(1.0), 1500, sums, f64::INFINITY),
        ])
    }
}

/// Queues the sums of squares of `blocks` blocks of the gradients (input 0): the first ones, or those that a
/// rank owns.
fn queue_partial_sums(
    cx: &GpuNode<'_>,
    partials: DevicePtr,
    blocks: usize,
    owned: Option<(&Shards, usize)>,
) -> Result<()> {
    if blocks == 0 {
        return Ok(());
    }
    let elements = cx.input_spec(0).elements();
    let (owners, rank) = owned.map_or((Vec::new(), 0), |(shards, rank)| {
        ((0..shards.ranks).map(|rank| shards.for_rank(rank).collect()).collect(), rank)
    });
    let (kernel, row) = owner_kernel("grad_norm_partials", &owners, rank);
    let args = [cx.input(0).into(), partials.into(), Arg::U64(elements as u64), row];
    cx.queue.launch(kernel, Grid::new(blocks, THREADS as u32), &args)
}

/// The partial sums of [`GradNorm`], each computed by the rank that owns its block. Input: grads `[n]`.
/// Output: `[n / block, rounded up]`, with the block size of the owners' table; zeros where other ranks own
/// the block.
#[derive(Clone, Debug, PartialEq)]
pub struct GradNormPartials {
    /// The owners of the gradients.
    pub shards: Arc<Shards>,
}

impl Op for GradNormPartials {
    fn name(&self) -> &'static str {
        "grad_norm_partials"
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.shards.ranks)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads] = inputs else { return Err("takes grads".into()) };
        Ok(vec![Spec::new([grads.elements().div_ceil(self.shards.block)], grads.dtype)])
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: inputs[0].bytes() as f64 / self.shards.ranks as f64 }
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        cx.output_bytes(0).fill(0);
        for owned in self.shards.for_rank(cx.comm.rank()) {
            dispatch_float!(cx.input_spec(0).dtype, E => {
                let partials = cx.output::<<E as Elem>::Acc>(0);
                partial_sums(cx, self.shards.block, owned.flat(), partials);
            });
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        if self.shards.block != GPU_BLOCK {
            return Err(Error::failed(format!(
                "grad_norm_partials on a GPU needs blocks of {GPU_BLOCK} elements, not {}",
                self.shards.block
            )));
        }
        cx.queue.fill(cx.output(0), 0, cx.output_spec(0).bytes())?;
        let rank = cx.queue.rank();
        let blocks = self.shards.for_rank(rank).map(|range| range.len.div_ceil(GPU_BLOCK)).sum();
        queue_partial_sums(cx, cx.output(0), blocks, Some((&self.shards, rank)))
    }

    /// One block of one rank; the rank tests cover several.
    fn cases(precision: Precision) -> Cases {
        let op = Self { shards: Arc::new(Shards::new(&[4000], 1, GPU_BLOCK)) };
        let grads = (Spec::new([4000], precision.master), Fill::Normal(0.0, 1.0));
        let reference = |i: &[Array]| {
            vec![Array { shape: vec![1], data: vec![i[0].data.iter().map(|g| g * g).sum::<f64>()] }]
        };
        let case = Case::new("one block", op, vec![grads], reference).depth(4000);
        Cases::Own(vec![case.without_gradient()])
    }
}

fn reference(i: &[Array], op: GradNorm) -> Vec<Array> {
    let square = |x: &f64| if op.from_partials { *x } else { x * x };
    let (norm, max_norm) = (i[0].data.iter().map(square).sum::<f64>().sqrt(), op.max_norm);
    let clip = if max_norm > 0.0 && norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 };
    let bad = if norm.is_finite() && i[1].data[0].is_finite() { 0.0 } else { 1.0 };
    let one = |v: f64| Array { shape: vec![1], data: vec![v] };
    let mut found = vec![one(norm), one(clip), one(bad)];
    found.extend((!op.from_partials).then(|| Array::zeros(&[0])));
    found
}
