//! Gives every rank access to the rows of all ranks.

use super::gather_rows::GatherRows;
use crate::device::DType;
use crate::device::gpu::{Collective, Gathered};
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `(tokens[ranks·N], x[N, …]) → y[ranks·N, …]`: the rows of all ranks, rank after rank. Only ops that get
/// the addresses of the rows from [`Queue::shared`](crate::device::gpu::Queue::shared) may read them: GPUs
/// that can read each other's memory leave every rank's rows in its own memory.
///
/// The op does not read the tokens. They are an input for the sake of order: the ranks gathered them after
/// they last shared rows, so every rank has waited for the others since then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareRows {
    /// Number of ranks.
    pub ranks: usize,
}

impl Op for ShareRows {
    fn name(&self) -> &'static str {
        "share_rows"
    }

    fn attributes(&self) -> String {
        format!("ranks={}", self.ranks)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [tokens, x] = inputs else { return Err("takes the tokens of all ranks and rows".into()) };
        let rows = GatherRows { ranks: self.ranks }.infer(std::slice::from_ref(x))?;
        if tokens.dtype != DType::U32 || tokens.alloc[..] != rows[0].alloc[..1] {
            return Err("tokens must be u32 [ranks·N]".into());
        }
        Ok(rows)
    }

    /// Counts one read and one write of a rank's own rows.
    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[1..], &inputs[1..])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let name = &cx.program.tensor(cx.node.outputs[0]).name;
        super::gather_rows::gather(cx.comm, name, cx.input_bytes(1), cx.output_bytes(0))
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let rows = Gathered { from: cx.input(1), to: cx.output(0), bytes: cx.input_spec(1).bytes() };
        cx.queue.collective(Collective::Share(rows))
    }

    /// A single rank has only its own rows; the rank tests cover what several ranks read.
    fn cases(precision: Precision) -> Cases {
        let tokens = (Spec::new([7], DType::U32), Fill::Below(1000));
        let rows = (Spec::padded([7, 5], [7, 8], precision.act_dtype), Fill::Normal(0.0, 1.0));
        let reference = |inputs: &[Array]| vec![inputs[1].clone()];
        let case = Case::new("one rank", ShareRows { ranks: 1 }, vec![tokens, rows], reference);
        Cases::Own(vec![case.without_gradient()])
    }
}
