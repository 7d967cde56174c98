//! Exchanges the weights and their moving average, to evaluate the average and to return to the weights.

use super::ema::case_segments;
use super::segments::{ELEMENTS_PER_TASK, Places, Segments};
use crate::device::Elem;
use crate::device::gpu::Kernel;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `(params, average) ← (average, params)`; the compute copy becomes the rounded new params.
///
/// There is no arithmetic, so two exchanges leave params and average as they were, to the bit. The same holds
/// for the compute copy, which is always the rounded params when a program reads it. Outputs, all updated in
/// place: params `[n]`, average `[n]`, and the compute copy `[n]` if activations have a narrower format than
/// the master parameters. If each rank averages what it owns, the average is the rank's shard, and so are
/// params if there is a compute copy; the other elements are left as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct SwapEma {
    /// What each rank exchanges; all ranks together cover all parameters. Decay has no meaning here.
    pub segments: Segments,
    /// Formats of the master parameters and the compute copy.
    pub precision: Precision,
}

impl SwapEma {
    /// Runs on the CPU with compute copies of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        type Acc<E> = <E as Elem>::Acc;
        let (params, average) = (cx.output::<Acc<E>>(0), cx.output::<Acc<E>>(1));
        let compute_copy = self.precision.has_compute_copy().then(|| cx.output::<E>(2));
        for segment in self.segments.for_rank(cx.comm.rank()) {
            cx.pool.chunks(
                segment.len,
                ELEMENTS_PER_TASK,
                #[inline(always)]
                |start, len| {
                    let masters = params.slice(segment.master + start, len);
                    masters.swap_with_slice(average.slice(segment.offset + start, len));
                    if let Some(compute_copy) = compute_copy {
                        compute_copy.store(segment.start + start, masters);
                    }
                },
            );
        }
    }
}

impl Op for SwapEma {
    fn name(&self) -> &'static str {
        "swap_ema"
    }

    fn attributes(&self) -> String {
        format!("segments={}", self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if !inputs.is_empty() {
            return Err("takes no inputs".into());
        }
        let Precision { act_dtype, master } = self.precision;
        let (masters, average) = self.segments.masters_and_slot(master);
        let mut outputs = vec![masters, average];
        if self.precision.has_compute_copy() {
            outputs.push(Spec::new([self.segments.flat_len], act_dtype));
        }
        Ok(outputs)
    }

    /// Reads and writes masters and average, and writes the compute copy.
    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let written: usize = outputs.iter().map(|output| output.dtype.size()).sum();
        let read: usize = outputs[..2].iter().map(|output| output.dtype.size()).sum();
        Cost { product_flops: 0.0, bytes: (self.segments.updated() * (written + read)) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernel = Kernel::new("swap_ema", "swap_ema")
            .with("T", self.precision.act_dtype)
            .with("HAS_COMPUTE_COPY", u8::from(self.precision.has_compute_copy()));
        let compute_copy = if self.precision.has_compute_copy() { cx.output(2) } else { 0 };
        let args = vec![cx.output(0).into(), cx.output(1).into(), compute_copy.into()];
        self.segments.launch(cx.queue, kernel, args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, sharded: bool| {
            let (segments, places) = case_segments(precision, sharded);
            let op = SwapEma { segments, precision };
            let mut outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0)), (Mode::Add, Fill::Normal(0.0, 0.5))];
            outputs.extend(precision.has_compute_copy().then_some((Mode::Add, Fill::Normal(0.0, 1.0))));
            Case::new(name, op, vec![], move |i| reference(i, &places)).without_gradient().outputs(outputs)
        };
        Cases::Own(vec![case("all parameters", false), case("what rank 0 of two owns", true)])
    }
}

/// Exchanges one element at a time.
fn reference(before: &[Array], places: &Places) -> Vec<Array> {
    let mut out = before.to_vec();
    for &(flat, master, slot) in places {
        out[0].data[master] = before[1].data[slot];
        out[1].data[slot] = before[0].data[master];
        if let Some(compute_copy) = out.get_mut(2) {
            compute_copy.data[flat] = before[1].data[slot];
        }
    }
    out
}
