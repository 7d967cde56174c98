//! Muon's momentum: the directions of a batch of matrices, each divided by its norm.
//!
//! Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
//! <https://kellerjordan.github.io/posts/muon/>, in the order of operations of PyTorch's `torch.optim.Muon`
//! (torch/optim/_muon.py). The gradient is first multiplied by the factor of global-norm clipping. Both
//! averages are computed as PyTorch's `lerp`, and the direction is rounded to the format of the iterations
//! before it is divided.

use super::matrices::{Matrices, MatrixPlace};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// The smallest divisor. It keeps a matrix of zeros at zero.
const EPS: f64 = 1e-7;

/// Elements per partial sum on the CPU. It is fixed, so the sum is the same on any machine.
const BLOCK: usize = 4096;

/// Independent sums within a block, combined in a fixed order.
const LANES: usize = 16;

/// `(momentum, x) ← Muon(grads, …)` for a batch of matrices.
///
/// Inputs: grads `[n]`, clip `[1]` (the clip factor), bad `[1]` (u32; nonzero if the loss or the gradient
/// norm is not finite: then the momentum stays as it is, and x is zero). Outputs: momentum `[slots]`, updated
/// in place; x `[matrices, rows, columns]` in the activation format, the directions with a Frobenius norm of
/// `1 / safety`; and scratch, the sums of squares of parts of matrices. If ranks own matrices, the rank's own matrices
/// are the first ones in x.
#[derive(Clone, Debug, PartialEq)]
pub struct MuonMomentum {
    /// The fraction of the average of past gradients that a step keeps.
    pub momentum: f64,
    /// True if the direction averages the gradient and the new momentum; false if it is the new momentum.
    pub nesterov: bool,
    /// The factor by which singular values must stay below 1.
    pub safety: f64,
    /// The matrices.
    pub matrices: Matrices,
    /// Formats of gradients and directions.
    pub precision: Precision,
}

/// Returns `from + weight·(to − from)` as PyTorch computes it, from the nearer end.
#[inline(always)]
fn lerp<A: Real>(from: A, to: A, weight: A) -> A {
    let difference = to - from;
    if weight < A::from_f64(0.5) {
        weight.fma(difference, from)
    } else {
        (weight - A::ONE).fma(difference, to)
    }
}

impl MuonMomentum {
    /// Returns the number of elements in the scratch.
    fn partials(&self) -> usize {
        self.matrices.most() * self.matrices.size().div_ceil(BLOCK).max(self.matrices.blocks())
    }

    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        let (places, size) = (self.matrices.for_rank(cx.comm.rank()), self.matrices.size());
        let x = cx.output::<E>(1);
        if cx.input_u32(2)[0] != 0 {
            x.slice(0, places.len() * size).fill(E::default());
            return;
        }
        let (grads, clip) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(1).get(0));
        let (momentum, partials) = (cx.output::<Acc<E>>(0), cx.output::<Acc<E>>(2));
        let [keep, take] = [self.momentum, 1.0 - self.momentum].map(Acc::<E>::from_f64);
        let blocks = size.div_ceil(BLOCK);
        let part = |task: usize| {
            let (matrix, at) = (task / blocks, task % blocks * BLOCK);
            (matrix, at, BLOCK.min(size - at))
        };
        cx.pool.run(
            places.len() * blocks,
            #[inline(always)]
            |task| {
                let (matrix, at, len) = part(task);
                let MatrixPlace { flat, slot, .. } = places[matrix];
                let (g, m) = (grads.slice(flat + at, len), momentum.slice(slot + at, len));
                let mut sums = [Acc::<E>::ZERO; LANES];
                for first in (0..len).step_by(LANES) {
                    let count = LANES.min(len - first);
                    let mut direction = [Acc::<E>::ZERO; LANES];
                    for i in 0..count {
                        let gradient = g[first + i] * clip;
                        let average = lerp(m[first + i], gradient, take);
                        m[first + i] = average;
                        direction[i] = if self.nesterov { lerp(gradient, average, keep) } else { average };
                    }
                    for (sum, x) in sums.iter_mut().zip(direction) {
                        *sum = x.fma(x, *sum);
                    }
                    x.store(matrix * size + at + first, &direction[..count]);
                }
                partials.store(task, &[sums.into_iter().sum()]);
            },
        );
        let norm = |matrix: usize| {
            let squares: f64 = partials.slice(matrix * blocks, blocks).iter().map(|p| p.to_f64()).sum();
            Acc::<E>::from_f64(squares.sqrt().max(EPS) * self.safety)
        };
        let norms: Vec<Acc<E>> = (0..places.len()).map(norm).collect();
        cx.pool.run(
            places.len() * blocks,
            #[inline(always)]
            |task| {
                let (matrix, at, len) = part(task);
                for x in x.slice(matrix * size + at, len) {
                    *x = E::down(x.up() / norms[matrix]);
                }
            },
        );
    }
}

impl Op for MuonMomentum {
    fn name(&self) -> &'static str {
        "muon_momentum"
    }

    fn attributes(&self) -> String {
        let nesterov = if self.nesterov { " nesterov" } else { "" };
        format!("momentum={}{nesterov} safety={} matrices={}", self.momentum, self.safety, self.matrices)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads, clip, bad] = inputs else { return Err("takes grads, clip and bad".into()) };
        let Precision { act_dtype, master } = self.precision;
        if grads.dtype != master || clip.dtype != master || bad.dtype != DType::U32 {
            return Err("grads and clip must have the master format, and bad must be u32".into());
        }
        if !self.matrices.lies_within(grads) {
            return Err("the matrices must lie within the gradients, the masters and the slots".into());
        }
        Ok(vec![
            Spec::new([self.matrices.slot_len], master),
            Spec::new(self.matrices.batch(), act_dtype),
            Spec::new([self.partials()], master),
        ])
    }

    /// Reads gradient and momentum, writes momentum and direction, then reads and writes the direction to
    /// divide it.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let [gradient, momentum, direction] =
            [&inputs[0], &outputs[0], &outputs[1]].map(|tensor| tensor.dtype.size());
        let bytes = gradient + 2 * momentum + 3 * direction;
        Cost { product_flops: 0.0, bytes: (outputs[1].elements() * bytes) as f64 }
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rank = cx.queue.rank();
        let (count, size) = (self.matrices.for_rank(rank).len(), Arg::U64(self.matrices.size() as u64));
        if count == 0 {
            return Ok(());
        }
        let kernel = |entry| {
            let kernel = Kernel::new("muon_momentum", entry).with("T", self.precision.act_dtype);
            self.matrices.define_in(kernel, rank)
        };
        let [grads, clip, bad] = [0, 1, 2].map(|i| cx.input(i).into());
        let [momentum, x, partials] = [0, 1, 2].map(|i| cx.output(i).into());
        let [keep, take] = [self.momentum, 1.0 - self.momentum].map(|weight| Arg::F32(weight as f32));
        let nesterov = Arg::U32(u32::from(self.nesterov));
        let (momentum_kernel, row) = kernel("muon_momentum");
        let args = [grads, clip, bad, momentum, x, partials, size, keep, take, nesterov, row];
        cx.queue.launch(momentum_kernel, self.matrices.grid(count), &args)?;
        let args = [x, partials, size, Arg::F32(EPS as f32), Arg::F32(self.safety as f32)];
        cx.queue.launch(kernel("muon_normalize").0, self.matrices.grid(count), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, nesterov: bool, safety: f64, bad: f64| {
            let matrices = case_matrices();
            let op = MuonMomentum { momentum: 0.95, nesterov, safety, matrices, precision };
            let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
            let inputs = vec![
                (tensor(&[CASE_FLAT_LEN]), Fill::Normal(0.0, 1.0)),
                (tensor(&[1]), Fill::Values(vec![0.5])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            Case::new(name, op.clone(), inputs, move |i| reference(i, &op))
                .without_gradient()
                .outputs(vec![(Mode::Add, Fill::Normal(0.0, 0.3))])
                .depth(64 * 96)
        };
        Cases::Own(vec![
            case("three matrices", true, 1.0, 0.0),
            case("the momentum itself", false, 1.0, 0.0),
            case("a smaller norm", true, 1.01, 0.0),
            case("after a bad step nothing moves", true, 1.0, 1.0),
        ])
    }
}

/// Elements of the flat buffers in test cases.
pub(super) const CASE_FLAT_LEN: usize = 24_000;

/// Returns the matrices of test cases: unordered and with gaps; masters and slots are shorter than the flat
/// buffers.
pub(super) fn case_matrices() -> Matrices {
    let place = |flat, master, slot| MatrixPlace { flat, master, slot };
    let places = vec![place(17_000, 12_300, 0), place(4, 0, 12_304), place(8_000, 6_152, 6_148)];
    Matrices { rows: 64, columns: 96, masters_len: 18_448, slot_len: 18_448, by_rank: vec![places] }
}

/// Computes the formula in f64, one element at a time.
fn reference(i: &[Array], op: &MuonMomentum) -> Vec<Array> {
    let (grads, clip, bad) = (&i[0].data, i[1].data[0], i[2].data[0]);
    let size = op.matrices.size();
    let mut momentum = i[3].clone();
    let mut x = Array::zeros(&op.matrices.batch());
    let all = op.matrices.for_rank(0).iter().zip(x.data.chunks_exact_mut(size));
    for (place, x) in all.filter(|_| bad == 0.0) {
        for (k, x) in x.iter_mut().enumerate() {
            let (g, m) = (grads[place.flat + k] * clip, &mut momentum.data[place.slot + k]);
            *m = op.momentum * *m + (1.0 - op.momentum) * g;
            *x = if op.nesterov { op.momentum * *m + (1.0 - op.momentum) * g } else { *m };
        }
        let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        x.iter_mut().for_each(|x| *x /= norm * op.safety);
    }
    vec![momentum, x, Array::zeros(&[0])]
}
