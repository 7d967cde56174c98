//! SGD with momentum over all parameters in one pass.
//!
//! Sutskever et al., "On the importance of initialization and momentum in deep learning" (2013), in the form
//! and order of operations of PyTorch's `torch.optim.SGD` (torch/optim/sgd.py, `_single_tensor_sgd`) without
//! dampening, with clipping by the global norm folded in. Weight decay is coupled, as there: it is added to
//! the gradient before the momentum.

use super::segments::{RUN, Segment, covered, grid, with_switches};
use crate::device::gpu::{Arg, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// Numbers per row of the schedule table: the learning rate.
pub const SCHEDULE_WIDTH: usize = 1;

/// Elements handled at a time, from and to the stack.
const LANES: usize = 64;

/// `(params, momentum, compute copy) ← SGD(grads, …)`, in place.
///
/// Inputs: grads `[n]`, schedule `[steps + 1, 1]` (row 0 is not read), step `[1]`, clip `[1]`, bad `[1]`.
/// Outputs, all updated in place: params `[n]`, momentum `[n]` unless the factor is 0, and the compute copy
/// `[n]` where activations are narrower than masters. Nothing changes where `bad` is not zero.
#[derive(Clone, Debug)]
pub struct Sgd {
    /// Factor of the momentum; with 0 there is none, and no tensor for it.
    pub momentum: f64,
    /// Factor of the parameter that is added to its gradient, where a segment decays.
    pub weight_decay: f64,
    /// Decay settings, in order, covering the buffer.
    pub segments: Vec<Segment>,
    /// Formats of masters and compute copy.
    pub precision: Precision,
}

/// The scalars of one step.
#[derive(Clone, Copy)]
struct Step<A> {
    clip: A,
    lr: A,
    decay: A,
    momentum: A,
}

impl<A: Real> Step<A> {
    /// One element: its parameter, momentum and gradient to the new parameter and momentum.
    #[inline(always)]
    fn update(&self, p: A, m: Option<A>, g: A, decays: bool) -> (A, A) {
        let g = g * self.clip;
        // Fused where PyTorch's `add(other, alpha=…)` is.
        let g = if decays { self.decay.fma(p, g) } else { g };
        let m = m.map_or(g, |m| self.momentum * m + g);
        ((-self.lr).fma(m, p), m)
    }
}

impl Sgd {
    fn has_momentum(&self) -> bool {
        self.momentum != 0.0
    }

    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(4)[0] != 0 {
            return;
        }
        let (grads, table) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(1));
        let step = Step {
            clip: cx.input::<Acc<E>>(3).get(0),
            lr: table.get(cx.input_u32(2)[0] as usize),
            decay: Acc::<E>::from_f64(self.weight_decay),
            momentum: Acc::<E>::from_f64(self.momentum),
        };
        let params = cx.output::<Acc<E>>(0);
        let momentum = self.has_momentum().then(|| cx.output::<Acc<E>>(1));
        let copy_index = 1 + usize::from(self.has_momentum());
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(copy_index));
        for segment in &self.segments {
            cx.pool.chunks(
                segment.len,
                RUN,
                #[inline(always)]
                |start, len| {
                    for at in (segment.start + start..segment.start + start + len).step_by(LANES) {
                        let run = LANES.min(segment.start + start + len - at);
                        let (g, p) = (grads.slice(at, run), params.slice(at, run));
                        match momentum {
                            Some(momentum) => {
                                let m = momentum.slice(at, run);
                                for i in 0..run {
                                    (p[i], m[i]) = step.update(p[i], Some(m[i]), g[i], segment.decay);
                                }
                            }
                            None => {
                                for i in 0..run {
                                    (p[i], _) = step.update(p[i], None, g[i], segment.decay);
                                }
                            }
                        }
                        if let Some(compute_copy) = compute_copy {
                            compute_copy.store(at, p);
                        }
                    }
                },
            );
        }
    }
}

impl Op for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn attributes(&self) -> String {
        format!(
            "momentum={} weight_decay={} segments={}",
            self.momentum,
            self.weight_decay,
            self.segments.len()
        )
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [grads, schedule, step, clip, bad] = inputs else {
            return Err("takes grads, schedule, step, clip, bad".into());
        };
        let master = self.precision.master;
        if grads.dtype != master || schedule.width() != SCHEDULE_WIDTH || clip.dtype != master {
            return Err("grads, schedule and clip are in the master format".into());
        }
        if step.dtype != DType::U32 || bad.dtype != DType::U32 || covered(&self.segments) != grads.elements()
        {
            return Err("step and bad are counters, and segments cover the gradients".into());
        }
        let mut outputs = vec![grads.clone(); 1 + usize::from(self.has_momentum())];
        if self.precision.has_compute_copy() {
            outputs.push(grads.with_dtype(self.precision.act_dtype));
        }
        Ok(outputs)
    }

    /// Reads gradient, master and momentum; writes master, momentum and compute copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let updated: usize = outputs.iter().map(Spec::bytes).sum();
        let masters = &outputs[..1 + usize::from(self.has_momentum())];
        let read: usize = masters.iter().map(Spec::bytes).sum::<usize>() + inputs[0].bytes();
        Cost { product_flops: 0.0, bytes: (updated + read) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let elements = cx.input_spec(0).elements();
        let kernel = Kernel::new("sgd", "sgd")
            .with_type("T", self.precision.act_dtype)
            .with("HAS_MOMENTUM", u8::from(self.has_momentum()))
            .with("HAS_COMPUTE_COPY", u8::from(self.precision.has_compute_copy()));
        let mut args: Vec<Arg> = cx.inputs.iter().map(|&tensor| tensor.into()).collect();
        let mut outputs = cx.outputs.iter().copied();
        let mut next = |exists: bool| if exists { outputs.next().unwrap_or(0) } else { 0 };
        let tensors = [true, self.has_momentum(), self.precision.has_compute_copy()].map(&mut next);
        args.extend(tensors.map(Arg::from));
        args.push(Arg::U64(elements as u64));
        args.extend([self.weight_decay, self.momentum].map(|constant| Arg::F32(constant as f32)));
        cx.queue.launch(with_switches(kernel, &self.segments), grid(elements), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |name: &str, momentum: f64, bad: f64| {
            let n = 20_011;
            let op = Sgd {
                momentum,
                weight_decay: 0.1,
                segments: vec![
                    Segment { start: 0, len: DECAYED, decay: true },
                    Segment { start: DECAYED, len: n - DECAYED, decay: false },
                ],
                precision,
            };
            let tensor = |shape: &[usize]| Spec::new(shape, precision.master);
            let inputs = vec![
                (tensor(&[n]), Fill::Normal(0.0, 1.0)),
                (tensor(&[3, SCHEDULE_WIDTH]), Fill::Values(vec![0.0, 0.02, 0.01])),
                (Spec::new([1], DType::U32), Fill::Values(vec![1.0])),
                (tensor(&[1]), Fill::Values(vec![0.5])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            outputs.extend(op.has_momentum().then_some((Mode::Add, Fill::Normal(0.0, 0.3))));
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op, inputs, move |arrays| reference(momentum, arrays))
                .differentiable(&[])
                .upstream(&[])
                .outputs(outputs)
        };
        Cases::Own(vec![
            case("momentum", 0.9, 0.0),
            case("without momentum", 0.0, 0.0),
            case("after a bad step nothing moves", 0.9, 1.0),
        ])
    }
}

/// Elements of a case that decay: the first ones.
const DECAYED: usize = 12_345;

/// Computes the textbook form, one element at a time, in f64.
fn reference(momentum: f64, i: &[Array]) -> Vec<Array> {
    let (grads, lr, clip, bad) = (&i[0].data, i[1].data[i[2].data[0] as usize], i[3].data[0], i[4].data[0]);
    let mut out: Vec<Array> = i[5..].to_vec();
    if bad != 0.0 {
        return out;
    }
    for (k, gradient) in grads.iter().enumerate() {
        let p = out[0].data[k];
        let mut step = gradient * clip + if k < DECAYED { 0.1 * p } else { 0.0 };
        if momentum != 0.0 {
            step += momentum * out[1].data[k];
            out[1].data[k] = step;
        }
        out[0].data[k] = p - lr * step;
        if out.len() > 1 + usize::from(momentum != 0.0) {
            let last = out.len() - 1;
            out[last].data[k] = out[0].data[k];
        }
    }
    out
}
