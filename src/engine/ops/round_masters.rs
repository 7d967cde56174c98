//! Rounds the masters into the copy that products read, where programs have put something else into its
//! memory.

use super::ema::case_segments;
use super::segments::{ELEMENTS_PER_TASK, Places, Segments};
use crate::device::Elem;
use crate::device::gpu::Kernel;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `compute_copy ← round(params)`, with the bits that an update gives it.
///
/// Input: params `[n]`. Output, updated in place: the compute copy `[n]`. If ranks own shards of the masters,
/// params is the rank's shard, and the rank writes only its own elements of the copy.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundMasters {
    /// What each rank rounds; all ranks together cover all parameters. Decay has no meaning here.
    pub segments: Segments,
    /// Formats of the master parameters and the compute copy.
    pub precision: Precision,
}

impl RoundMasters {
    /// Runs on the CPU with compute copies of type `E`.
    fn run<E: Elem>(&self, cx: &CpuNode<'_>) {
        let (params, compute_copy) = (cx.input::<E::Acc>(0), cx.output::<E>(0));
        for segment in self.segments.for_rank(cx.comm.rank()) {
            cx.pool.chunks(segment.len, ELEMENTS_PER_TASK, |start, len| {
                compute_copy.store(segment.start + start, params.slice(segment.master + start, len));
            });
        }
    }
}

impl Op for RoundMasters {
    fn name(&self) -> &'static str {
        "round_masters"
    }

    fn attributes(&self) -> String {
        format!("segments={}", self.segments)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let (masters, _) = self.segments.masters_and_slot(self.precision.master);
        match inputs {
            [params] if *params == masters => {
                Ok(vec![Spec::new([self.segments.flat_len], self.precision.act_dtype)])
            }
            _ => Err(format!("takes masters {masters}")),
        }
    }

    /// Reads the masters and writes the copy.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let bytes = self.segments.updated() * (inputs[0].dtype.size() + outputs[0].dtype.size());
        Cost { product_flops: 0.0, bytes: bytes as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(self.precision.act_dtype, E => self.run::<E>(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let kernel = Kernel::new("round_masters", "round_masters").with("T", self.precision.act_dtype);
        self.segments.launch(cx.queue, kernel, vec![cx.input(0).into(), cx.output(0).into()])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, sharded: bool| {
            let (segments, places) = case_segments(precision, sharded);
            let op = RoundMasters { segments, precision };
            let (masters, _) = op.segments.masters_and_slot(precision.master);
            let outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0))];
            Case::new(name, op, vec![(masters, Fill::Normal(0.0, 1.0))], move |i| reference(i, &places))
                .without_gradient()
                .outputs(outputs)
        };
        Cases::Own(vec![case("all parameters", false), case("what rank 0 of two owns", true)])
    }
}

/// Copies one element at a time.
fn reference(arrays: &[Array], places: &Places) -> Vec<Array> {
    let mut out = arrays[1].clone();
    for &(flat, master, _) in places {
        out.data[flat] = arrays[0].data[master];
    }
    vec![out]
}
