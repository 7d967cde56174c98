//! Sums a range of the flat gradient over ranks, each element on the rank that owns it.

use crate::device::DType;
use crate::device::gpu::{Collective, OwnedSum};
use crate::error::{Error, Result};
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, OwnedRange, Precision, Shards, Spec,
};
use std::ops::Range;
use std::sync::Arc;

/// `x[owned] ← Σ_ranks x[owned]` for a range `x` of the flat gradient, added in rank order. Elements that
/// other ranks own keep their values, this rank's part of their sums. The output has `Mode::Add`, which here
/// means that the old value is an input.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceScatter {
    /// Spec of the range.
    pub like: Spec,
    /// The range's first element in the flat gradient.
    pub start: usize,
    /// The owners of the flat gradient.
    pub shards: Arc<Shards>,
}

impl ReduceScatter {
    /// Returns the ranges of `x` that `rank` owns.
    fn owned(&self, rank: usize) -> Vec<Range<usize>> {
        let flat = self.start..self.start + self.like.elements();
        let owned = self.shards.within(flat).filter(|range| range.rank == rank);
        owned.map(|range| range.start - self.start..range.start + range.len - self.start).collect()
    }
}

impl Op for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce_scatter"
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.shards.ranks)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.is_empty() { Ok(vec![self.like.clone()]) } else { Err("takes no inputs".into()) }
    }

    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: outputs.iter().map(|s| 2.0 * s.bytes() as f64).sum() }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (len, name) = (self.like.elements(), &cx.program.tensor(cx.node.outputs[0]).name);
        let owned = self.owned(cx.comm.rank());
        match self.like.dtype {
            DType::F32 => cx.comm.reduce_scatter_sum_f32(name, cx.output::<f32>(0).slice(0, len), &owned),
            DType::F64 => cx.comm.reduce_scatter_sum_f64(name, cx.output::<f64>(0).slice(0, len), &owned),
            other => Err(Error::failed(format!("reduce_scatter cannot sum {other} on the CPU"))),
        }
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        if self.like.dtype != DType::F32 {
            return Err(Error::failed(format!("reduce_scatter cannot sum {} on a GPU", self.like.dtype)));
        }
        let flat = self.start..self.start + self.like.elements();
        let part = |range: OwnedRange| {
            let at = cx.output(0) + ((range.start - self.start) * self.like.dtype.size()) as u64;
            OwnedSum { owner: range.rank, at, elements: range.len }
        };
        let parts: Vec<OwnedSum> = self.shards.within(flat).map(part).collect();
        cx.queue.collective(Collective::ReduceToOwners(&parts))
    }

    /// A single rank keeps its values; the rank tests cover sums over ranks.
    fn cases(precision: Precision) -> Cases {
        let like = Spec::new([1000], precision.master);
        let shards = Arc::new(Shards::new(&[2000], 1, 128));
        let op = ReduceScatter { like, start: 500, shards };
        let case = Case::new("one rank", op, vec![], <[Array]>::to_vec);
        Cases::Own(vec![case.without_gradient().outputs(vec![(Mode::Add, Fill::Normal(0.0, 1.0))])])
    }
}
