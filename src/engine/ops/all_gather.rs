//! Copies parts of tensors from the ranks that own them to all ranks.

use crate::device::gpu::{Collective, OwnedCopy};
use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::ops::Range;

/// A part of a gathered tensor that one rank owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The owning rank.
    pub rank: usize,
    /// Index of the gathered tensor.
    pub tensor: usize,
    /// First element in the gathered tensor.
    pub to: usize,
    /// First element in the input, from which the rank reads; `None` if the rank already has the part in
    /// place.
    pub from: Option<usize>,
    /// Number of elements.
    pub len: usize,
}

/// `y[part] ← y[part]` of the part's rank, or `x[part]` of that rank's input `x`, for every part of the
/// tensors `y`, on every rank. Elements outside all parts keep their values. The outputs have `Mode::Add`,
/// which here means that the old value is an input.
#[derive(Clone, Debug, PartialEq)]
pub struct AllGather {
    /// Specs of the gathered tensors.
    pub like: Vec<Spec>,
    /// The parts, which do not overlap.
    pub parts: Vec<Part>,
    /// True if ranks must wait for each other first where they write into each other's memory. False if they
    /// have already waited since any of them last read these tensors.
    pub wait: bool,
}

impl AllGather {
    /// Returns the parts that `rank` owns.
    fn owned_by(&self, rank: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.rank == rank)
    }

    /// Returns the bytes per element of a part.
    fn size(&self, part: &Part) -> usize {
        self.like[part.tensor].dtype.size()
    }
}

impl Op for AllGather {
    fn name(&self) -> &'static str {
        "all_gather"
    }

    fn attributes(&self) -> String {
        format!("parts={}{}", self.parts.len(), if self.wait { "" } else { " no_wait" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        if inputs.len() > 1 {
            return Err("takes at most one tensor".into());
        }
        for part in &self.parts {
            let Some(y) = self.like.get(part.tensor) else { return Err("a part names no tensor".into()) };
            if part.to + part.len > y.elements() {
                return Err("a part reaches beyond its tensor".into());
            }
            if let Some(from) = part.from {
                let fits = |x: &Spec| x.dtype == y.dtype && from + part.len <= x.elements();
                if !inputs.first().is_some_and(fits) {
                    return Err("a part reaches beyond the input, or the input has another format".into());
                }
            }
        }
        Ok(self.like.clone())
    }

    fn cost(&self, _inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        let bytes: usize = self.parts.iter().map(|part| part.len * self.size(part)).sum();
        Cost { product_flops: 0.0, bytes: 2.0 * bytes as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn input_range(&self, _input: usize, rank: usize) -> Option<Range<usize>> {
        let read = || self.owned_by(rank).filter_map(|part| Some(part.from?..part.from? + part.len));
        let start = read().map(|range| range.start).min().unwrap_or(0);
        Some(start..read().map(|range| range.end).max().unwrap_or(start))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let name = &cx.program.tensor(cx.node.outputs[0]).name;
        let read = |part: &Part| {
            let (bytes, first) = match part.from {
                Some(from) => (cx.input_bytes(0), from),
                None => (&*cx.output_bytes(part.tensor), part.to),
            };
            &bytes[first * self.size(part)..][..part.len * self.size(part)]
        };
        let own: Vec<&[u8]> = self.owned_by(cx.comm.rank()).map(read).collect();
        let all = cx.comm.gather(name, own.concat())?;
        for (rank, mut bytes) in all.parts().enumerate() {
            for part in self.owned_by(rank) {
                let size = self.size(part);
                let (first, rest) = bytes.split_at_checked(part.len * size).ok_or_else(|| {
                    Error::failed(format!("{name}: rank {rank} sent fewer elements than it owns"))
                })?;
                cx.output_bytes(part.tensor)[part.to * size..][..first.len()].copy_from_slice(first);
                bytes = rest;
            }
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let copy = |part: &Part| {
            let at = |address: u64, element: usize| address + (element * self.size(part)) as u64;
            let to = at(cx.output(part.tensor), part.to);
            let from = part.from.map_or(to, |from| at(cx.input(0), from));
            OwnedCopy { owner: part.rank, from, to, bytes: part.len * self.size(part) }
        };
        let parts: Vec<OwnedCopy> = self.parts.iter().map(copy).collect();
        cx.queue.collective(Collective::GatherFromOwners { parts: &parts, wait: self.wait })
    }

    /// A single rank copies its own parts; the rank tests cover what ranks send each other.
    fn cases(precision: Precision) -> Cases {
        let part = |to, from: Option<usize>, len| Part {
            rank: 0,
            tensor: usize::from(from.is_some()),
            to,
            from,
            len,
        };
        let parts = vec![part(8, None, 50), part(0, Some(64), 100), part(200, Some(0), 50)];
        let like = vec![Spec::new([80], precision.act_dtype), Spec::new([300], precision.master)];
        let source = (Spec::new([164], precision.master), Fill::Normal(0.0, 1.0));
        let reference = |arrays: &[Array]| {
            let mut y = arrays[2].clone();
            y.data[..100].copy_from_slice(&arrays[0].data[64..]);
            y.data[200..250].copy_from_slice(&arrays[0].data[..50]);
            vec![arrays[1].clone(), y]
        };
        let case =
            Case::new("from another tensor", AllGather { like, parts, wait: true }, vec![source], reference);
        let outputs = vec![(Mode::Add, Fill::Normal(0.0, 1.0)); 2];
        Cases::Own(vec![case.without_gradient().outputs(outputs)])
    }
}
