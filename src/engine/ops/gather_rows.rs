//! Gathers the rows of all ranks on every rank.

use crate::device::DType;
use crate::device::communicator::Communicator;
use crate::device::gpu::{Collective, Gathered};
use crate::error::{Error, Result};
use crate::ir::{Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `x[N, …] → y[ranks·N, …]` for every input: the rows of all ranks, rank after rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherRows {
    /// Number of ranks.
    pub ranks: usize,
}

impl Op for GatherRows {
    fn name(&self) -> &'static str {
        "gather_rows"
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.ranks)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let gathered = |x: &Spec| {
            if x.shape.is_empty() || x.shape[0] != x.alloc[0] {
                return Err("inputs must not have rows of padding".to_owned());
            }
            let mut y = x.clone();
            (y.shape[0], y.alloc[0]) = (self.ranks * x.shape[0], self.ranks * x.alloc[0]);
            Ok(y)
        };
        inputs.iter().map(gathered).collect()
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        for (k, output) in cx.node.outputs.iter().enumerate() {
            let name = &cx.program.tensor(*output).name;
            gather(cx.comm, name, cx.input_bytes(k), cx.output_bytes(k))?;
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensor = |k| Gathered { from: cx.input(k), to: cx.output(k), bytes: cx.input_spec(k).bytes() };
        let tensors: Vec<Gathered> = (0..cx.inputs.len()).map(tensor).collect();
        cx.queue.collective(Collective::AllGather(&tensors))
    }

    /// A single rank has only its own rows; the rank tests cover the order of several.
    fn cases(precision: Precision) -> Cases {
        let rows = (Spec::padded([7, 5], [7, 8], precision.act_dtype), Fill::Normal(0.0, 1.0));
        let tokens = (Spec::new([33], DType::U32), Fill::Below(1000));
        let case = Case::new("tokens and rows", GatherRows { ranks: 1 }, vec![tokens, rows], <[_]>::to_vec);
        Cases::Own(vec![case.without_gradient()])
    }
}

/// Gathers the bytes of all ranks through the host. Every rank gives as many bytes as `mine` has.
pub(super) fn gather(comm: &dyn Communicator, name: &str, mine: &[u8], all: &mut [u8]) -> Result<()> {
    let gathered = comm.gather(name, mine.to_vec())?;
    let ranks = all.len() / mine.len().max(1);
    if gathered.parts().count() != ranks || gathered.parts().any(|part| part.len() != mine.len()) {
        return Err(Error::failed(format!("{name}: expected equal parts of {ranks} ranks")));
    }
    for (to, part) in all.chunks_exact_mut(mine.len()).zip(gathered.parts()) {
        to.copy_from_slice(part);
    }
    Ok(())
}
