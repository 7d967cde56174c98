//! Sums state tensors over ranks, in place.

use crate::device::DType;
use crate::device::gpu::Collective;
use crate::error::{Error, Result};
use crate::ir::{Cases, Cost, CpuNode, GpuNode, Op, Precision, Spec};

/// `x ← Σ_ranks x` for every output, all in one group. The CPU adds in rank order; GPUs add in an order that
/// the back end fixes. The outputs have `Mode::Add`, which here means that the old value is an input.
#[derive(Clone, Debug, PartialEq)]
pub struct AllReduce {
    /// Specs of the summed tensors.
    pub like: Vec<Spec>,
}

impl Op for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.is_empty() { Ok(self.like.clone()) } else { Err("takes no inputs".into()) }
    }

    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: outputs.iter().map(|s| 2.0 * s.bytes() as f64).sum() }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        (0..self.like.len()).try_for_each(|k| {
            let (len, name) = (cx.output_spec(k).elements(), &cx.program.tensor(cx.node.outputs[k]).name);
            match cx.output_spec(k).dtype {
                DType::F32 => cx.comm.all_reduce_sum_f32(name, cx.output::<f32>(k).slice(0, len)),
                DType::F64 => cx.comm.all_reduce_sum_f64(name, cx.output::<f64>(k).slice(0, len)),
                other => Err(Error::failed(format!("all_reduce cannot sum {other} on the CPU"))),
            }
        })
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        if let Some(other) = self.like.iter().map(|spec| spec.dtype).find(|dtype| *dtype != DType::F32) {
            return Err(Error::failed(format!("all_reduce cannot sum {other} on a GPU")));
        }
        let tensor = |k| (cx.output(k), cx.output_spec(k).elements());
        let tensors: Vec<_> = (0..self.like.len()).map(tensor).collect();
        cx.queue.collective(Collective::AllReduceSum(&tensors))
    }

    /// A single rank keeps its value; the tests of communicators and ranks cover sums over ranks.
    fn cases(precision: Precision) -> Cases {
        use crate::ir::{Case, Fill, Mode};
        let case = |name, lengths: &[usize]| {
            let like: Vec<Spec> = lengths.iter().map(|&len| Spec::new([len], precision.master)).collect();
            let outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0)); like.len()];
            Case::new(name, AllReduce { like }, vec![], |inputs| inputs.to_vec())
                .without_gradient()
                .outputs(outputs)
        };
        Cases::Own(vec![case("one rank", &[1000]), case("one rank, a group", &[64, 1, 1000])])
    }
}
