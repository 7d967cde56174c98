//! The exponential moving average of the weights: one pass over the master weights and the average at the end
//! of each step.
//!
//! A step's weight in the average changes from step to step, so that the value before the first step has no
//! share in the average. The weights are a table with one number per step, computed once in f64
//! ([`crate::optim::WeightEma::weights`]).

use super::segments::{ELEMENTS_PER_TASK, Places, Segments, owner_case, whole_case};
use crate::device::gpu::Kernel;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `average ← average + weight·(params − average)`, in place, with the current step's weight.
///
/// Inputs: params `[n]`, weights `[steps + 1]` (row 0 is not read), step `[1]` (u32), bad `[1]` (u32; nonzero
/// after a step that was not finite, which then changes nothing). Output, updated in place: the average
/// `[n]`. If each rank averages what it owns, the average is the rank's shard, and so are params if there is
/// a compute copy.
#[derive(Clone, Debug, PartialEq)]
pub struct Ema {
    /// What each rank averages; all ranks together cover all parameters. Decay has no meaning here.
    pub segments: Segments,
    /// Formats of the master parameters and the compute copy.
    pub precision: Precision,
}

impl Ema {
    /// Runs on the CPU with compute copies of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        if cx.input_u32(3)[0] != 0 {
            return;
        }
        let (params, weights) = (cx.input::<Acc<E>>(0), cx.input::<Acc<E>>(1));
        let weight = weights.get(cx.input_u32(2)[0] as usize);
        let average = cx.output::<Acc<E>>(0);
        for segment in self.segments.for_rank(cx.comm.rank()) {
            cx.pool.chunks(
                segment.len,
                ELEMENTS_PER_TASK,
                #[inline(always)]
                |start, len| {
                    let masters = params.slice(segment.master + start, len);
                    let averages = average.slice(segment.offset + start, len);
                    for (average, &master) in averages.iter_mut().zip(masters) {
                        *average = weight.fma(master - *average, *average);
                    }
                },
            );
        }
    }
}

impl Op for Ema {
    fn name(&self) -> &'static str {
        "ema"
    }

    fn attributes(&self) -> String {
        format!("segments={}", self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [params, weights, step, bad] = inputs else {
            return Err("takes params, weights, step and bad".into());
        };
        let master = self.precision.master;
        if weights.dtype != master || step.dtype != DType::U32 || bad.dtype != DType::U32 {
            return Err("weights must have the master format, and step and bad must be u32".into());
        }
        let (masters, average) = self.segments.masters_and_slot(master);
        if *params != masters {
            return Err(format!("params must be {masters}"));
        }
        Ok(vec![average])
    }

    /// Reads the master weights and the average, and writes the average.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let bytes = inputs[0].dtype.size() + 2 * outputs[0].dtype.size();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * bytes) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let args = cx.inputs.iter().chain(cx.outputs).map(|&tensor| tensor.into()).collect();
        self.segments.launch(cx.queue, Kernel::new("ema", "ema"), args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, step: f64, bad: f64, sharded: bool| {
            let (segments, places) = case_segments(precision, sharded);
            let (masters, _) = segments.masters_and_slot(precision.master);
            let op = Ema { segments, precision };
            let inputs = vec![
                (masters, Fill::Normal(0.0, 1.0)),
                (Spec::new([4], precision.master), Fill::Values(vec![0.0, 1.0, 0.625, 0.01])),
                (Spec::new([1], DType::U32), Fill::Values(vec![step])),
                (Spec::new([1], DType::U32), Fill::Values(vec![bad])),
            ];
            Case::new(name, op, inputs, move |i| reference(i, &places))
                .without_gradient()
                .outputs(vec![(Mode::Add, Fill::Normal(0.0, 1.0))])
        };
        Cases::Own(vec![
            case("the first step takes the weights", 1.0, 0.0, false),
            case("third step", 3.0, 0.0, false),
            case("after a bad step nothing moves", 2.0, 1.0, false),
            case("what rank 0 of two owns", 3.0, 0.0, true),
        ])
    }
}

/// Returns the segments of a test case and the places that they update: all elements, or those that rank 0 of
/// two owns.
pub(super) fn case_segments(precision: Precision, sharded: bool) -> (Segments, Places) {
    let all = [(0..20_011, false)];
    if sharded { owner_case(&all, 0, precision) } else { whole_case(&all) }
}

/// Computes the weighted mean of the weights and the average in f64, one element at a time.
fn reference(i: &[Array], places: &Places) -> Vec<Array> {
    let (params, weights, step, bad) = (&i[0].data, &i[1].data, i[2].data[0] as usize, i[3].data[0]);
    let mut average = i[4].clone();
    if bad == 0.0 {
        for &(_, master, slot) in places {
            let before = average.data[slot];
            average.data[slot] = (1.0 - weights[step]) * before + weights[step] * params[master];
        }
    }
    vec![average]
}
