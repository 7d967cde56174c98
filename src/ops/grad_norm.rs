//! The global norm of all gradients, the clip factor, and the flag of a step that was not finite.

use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// Elements per partial sum. Fixed, so that the sum is the same on any machine.
const BLOCK: usize = 4096;

/// On a GPU: threads per block, loads of 16 bytes in flight per thread, and rounds of such loads per thread.
const THREADS: usize = 256;
const BATCH: usize = 8;
const ROUNDS: usize = 4;
/// Elements per partial sum on a GPU.
const GPU_BLOCK: usize = THREADS * BATCH * ROUNDS * 4;
/// Threads of the block that adds the partial sums up.
const FINAL_THREADS: usize = 1024;

/// Independent sums inside a block, combined in a fixed order.
const LANES: usize = 16;

/// `norm = ‖grads‖₂`, `clip = min(1, max_norm / (norm + 1e-6))` as in PyTorch's `clip_grad_norm_`, and `bad`,
/// which becomes 1 when the norm or the loss is not finite and stays.
///
/// Inputs: grads `[n]`, loss `[1]`. Outputs: norm `[1]`, clip `[1]`, bad `[1]` (`Mode::Add`: sticky), and
/// scratch: the sums of squares of blocks of 4096 elements in flat order (on a GPU, of 32,768).
#[derive(Clone, Copy, Debug)]
pub struct GradNorm {
    /// The largest norm that passes unclipped; 0 never clips.
    pub max_norm: f64,
}

impl GradNorm {
    fn run<A: Real>(&self, cx: &CpuNode<'_>) {
        let (grads, loss) = (cx.input::<A>(0), cx.input::<A>(1).get(0));
        let (norm, clip, bad, partials) =
            (cx.output::<A>(0), cx.output::<A>(1), cx.output_u32(2), cx.output::<A>(3));
        cx.pool.chunks(
            grads.len(),
            BLOCK,
            #[inline(always)]
            |start, len| {
                let mut sums = [A::ZERO; LANES];
                let block = grads.slice(start, len);
                let (whole, rest) = block.as_chunks::<LANES>();
                for lanes in whole {
                    for (sum, g) in sums.iter_mut().zip(lanes) {
                        *sum = g.fma(*g, *sum);
                    }
                }
                for (sum, g) in sums.iter_mut().zip(rest) {
                    *sum = g.fma(*g, *sum);
                }
                partials.store(start / BLOCK, &[sums.into_iter().sum()]);
            },
        );
        let total: f64 = partials.slice(0, partials.len()).iter().map(|p| p.to_f64()).sum();
        let total_norm = total.sqrt();
        let factor = if self.max_norm > 0.0 { (self.max_norm / (total_norm + 1e-6)).min(1.0) } else { 1.0 };
        norm.store(0, &[A::from_f64(total_norm)]);
        clip.store(0, &[A::from_f64(factor)]);
        if !(total_norm.is_finite() && loss.finite()) {
            bad.slice(0, 1)[0] = 1;
        }
    }
}

fn kernel(entry: &'static str) -> Kernel {
    Kernel::new("grad_norm", entry)
        .with("THREADS", THREADS)
        .with("BATCH", BATCH)
        .with("ROUNDS", ROUNDS)
        .with("FINAL_THREADS", FINAL_THREADS)
}

impl Op for GradNorm {
    fn name(&self) -> &'static str {
        "grad_norm"
    }

    fn attributes(&self) -> String {
        format!("max_norm={}", self.max_norm)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads, loss] = inputs else { return Err("takes grads and loss".into()) };
        if grads.dtype != loss.dtype || loss.elements() != 1 {
            return Err("the loss is one number in the format of the gradients".into());
        }
        let one = Spec::new([1], grads.dtype);
        let partials = Spec::new([grads.elements().div_ceil(BLOCK)], grads.dtype);
        Ok(vec![one.clone(), one, Spec::new([1], DType::U32), partials])
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 2
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => self.run::<<E as Elem>::Acc>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let elements = cx.input_spec(0).elements();
        let blocks = elements.div_ceil(GPU_BLOCK);
        let [grads, loss] = [0, 1].map(|i| cx.input(i).into());
        let [norm, clip, bad, partials] = [0, 1, 2, 3].map(|i| cx.output(i).into());
        let sums = [grads, partials, Arg::U64(elements as u64)];
        cx.queue.launch(kernel("grad_norm_partials"), Grid::new(blocks, THREADS as u32), &sums)?;
        let args = [partials, loss, norm, clip, bad, blocks.into(), Arg::U64(self.max_norm.to_bits())];
        cx.queue.launch(kernel("grad_norm"), Grid::new(1, FINAL_THREADS as u32), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |name: &str, n: usize, max_norm: f64, grads: Fill, loss: f64| {
            let spec = |n: usize| Spec::new([n], precision.master);
            let inputs = vec![(spec(n), grads), (spec(1), Fill::Values(vec![loss]))];
            let initial = Fill::Values(vec![0.0]);
            let outputs =
                vec![(Mode::Write, initial.clone()), (Mode::Write, initial.clone()), (Mode::Add, initial)];
            Case::new(name, GradNorm { max_norm }, inputs, move |i| reference(i, max_norm))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs)
        };
        let normal = Fill::Normal(0.0, 1.0);
        Cases::Own(vec![
            case("clipped", 20_003, 1.0, normal.clone(), 2.0),
            case("below the limit", 100, 1e3, normal.clone(), 2.0),
            case("without a limit", 4097, 0.0, normal.clone(), 2.0),
            case("infinite loss", 64, 1.0, normal, f64::INFINITY),
        ])
    }
}

fn reference(i: &[Array], max_norm: f64) -> Vec<Array> {
    let norm = i[0].data.iter().map(|g| g * g).sum::<f64>().sqrt();
    let clip = if max_norm > 0.0 && norm > max_norm { max_norm / (norm + 1e-6) } else { 1.0 };
    let bad = if norm.is_finite() && i[1].data[0].is_finite() { 0.0 } else { 1.0 };
    let one = |v: f64| Array { shape: vec![1], data: vec![v] };
    vec![one(norm), one(clip), one(bad), Array::zeros(&[0])]
}
