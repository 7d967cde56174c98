//! Sums a state tensor over ranks, in place.

use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{Cases, Cost, CpuNode, CudaNode, Op, Precision, Spec};

/// `x ← Σ_ranks x`, added in rank order. Its output goes into the tensor with `Mode::Add`, which here means that the
/// old value takes part.
#[derive(Clone, Debug)]
pub struct AllReduce {
    /// The tensor's spec.
    pub like: Spec,
}

impl Op for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.is_empty() { Ok(vec![self.like.clone()]) } else { Err("takes no input".into()) }
    }

    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: 2.0 * outputs[0].bytes() as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (len, name) = (cx.output_spec(0).elements(), &cx.program.tensor(cx.node.outputs[0]).name);
        match cx.output_spec(0).dtype {
            DType::F32 => cx.comm.all_reduce_sum_f32(name, cx.output::<f32>(0).slice(0, len)),
            DType::F64 => cx.comm.all_reduce_sum_f64(name, cx.output::<f64>(0).slice(0, len)),
            other => Err(Error::failed(format!("all_reduce of {other}"))),
        }
    }

    /// A rank on a GPU is alone, and keeps its value: plans refuse several.
    fn cuda(&self, _cx: &CudaNode<'_>) -> Result<()> {
        Ok(())
    }

    /// Alone, a rank keeps its value; sums over ranks are proven by the tests of communicators and of ranks.
    fn cases(&self, precision: Precision) -> Cases {
        use crate::ir::{Case, Fill, Mode};
        let spec = Spec::new([1000], precision.master);
        let case = Case::new("one rank", AllReduce { like: spec }, vec![], |inputs| inputs.to_vec())
            .differentiable(&[])
            .upstream(&[])
            .outputs(vec![(Mode::Add, Fill::Normal(0.0, 1.0))]);
        Cases::Own(vec![case])
    }
}
