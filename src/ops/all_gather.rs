//! Copies parts of a tensor from the ranks that own them to all ranks.

use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// A part of a tensor that one rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The rank.
    pub rank: usize,
    /// First element in what the rank reads.
    pub from: usize,
    /// First element in the gathered tensor.
    pub to: usize,
    /// Number of elements.
    pub len: usize,
}

/// `y[part] ← x[part]` of the part's rank, for every part, on every rank; without an input `x` is `y`. Elements
/// of no part are left as they are. Its output has `Mode::Add`, which here means that the old value is an
/// input.
#[derive(Clone, Debug)]
pub struct AllGather {
    /// Spec of the gathered tensor.
    pub like: Spec,
    /// The parts, which do not overlap.
    pub parts: Vec<Part>,
}

impl AllGather {
    /// Returns the parts of a rank.
    fn of_rank(&self, rank: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.rank == rank)
    }
}

impl Op for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn attributes(&self) -> String {
        format!("parts={}", self.parts.len())
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [] => {}
            [x] if x.dtype == self.like.dtype => {}
            _ => return Err("takes at most one tensor, of the format of its output".into()),
        }
        let source = inputs.first().unwrap_or(&self.like).elements();
        let fits = |part: &Part| part.from + part.len <= source && part.to + part.len <= self.like.elements();
        if !self.parts.iter().all(fits) {
            return Err("parts lie within the tensors".into());
        }
        Ok(vec![self.like.clone()])
    }

    fn cost(&self, _inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        let elements: usize = self.parts.iter().map(|part| part.len).sum();
        Cost { product_flops: 0.0, bytes: 2.0 * (elements * self.like.dtype.size()) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (size, name) = (self.like.dtype.size(), &cx.program.tensor(cx.node.outputs[0]).name);
        let y = cx.output_bytes(0);
        let x = if cx.inputs.is_empty() { &*y } else { cx.input_bytes(0) };
        let own = self.of_rank(cx.comm.rank()).flat_map(|part| &x[part.from * size..][..part.len * size]);
        let all = cx.comm.gather(name, own.copied().collect())?;
        for (rank, mut bytes) in all.parts().enumerate() {
            for part in self.of_rank(rank) {
                let (first, rest) = bytes.split_at_checked(part.len * size).ok_or_else(|| {
                    Error::failed(format!("{name}: rank {rank} gives fewer elements than it owns"))
                })?;
                y[part.to * size..][..first.len()].copy_from_slice(first);
                bytes = rest;
            }
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        if self.parts.iter().any(|part| part.rank > 0) {
            return Err(Error::failed("all_gather is not implemented between GPUs"));
        }
        // A rank alone has its own parts where they belong, or copies them there.
        let size = self.like.dtype.size();
        let copies = if cx.inputs.is_empty() { &[] } else { &self.parts[..] };
        copies.iter().try_for_each(|part| {
            let at = |address: u64, element: usize| address + (element * size) as u64;
            cx.queue.copy(at(cx.output(0), part.to), at(cx.input(0), part.from), part.len * size)
        })
    }

    /// Copies of a single rank; what ranks send each other is proven by the tests of ranks.
    fn cases(&self, precision: Precision) -> Cases {
        let parts =
            vec![Part { rank: 0, from: 64, to: 0, len: 100 }, Part { rank: 0, from: 0, to: 200, len: 50 }];
        let op = AllGather { like: Spec::new([300], precision.master), parts };
        let source = (Spec::new([164], precision.master), Fill::Normal(0.0, 1.0));
        let reference = |arrays: &[Array]| {
            let mut y = arrays[1].clone();
            y.data[..100].copy_from_slice(&arrays[0].data[64..]);
            y.data[200..250].copy_from_slice(&arrays[0].data[..50]);
            vec![y]
        };
        let case = Case::new("from another tensor", op, vec![source], reference);
        Cases::Own(vec![
            case.differentiable(&[]).upstream(&[]).outputs(vec![(Mode::Add, Fill::Normal(0.0, 1.0))]),
        ])
    }
}
