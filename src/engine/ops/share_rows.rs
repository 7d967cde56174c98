//! Gives every rank access to the rows of all ranks.

use super::gather_rows::GatherRows;
use crate::device::DType;
use crate::device::gpu::Gathered;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `(tokens[ranks·N], x[N, …]) → y[ranks·N, …]`: the rows of all ranks, rank after rank, as an op reads them
/// that gets their addresses from [`Queue::shared`](crate::device::gpu::Queue::shared). GPUs that read each
/// other's memory leave the rows of a rank in its own.
///
/// The tokens of the rows are not read: that ranks have gathered them since the rows were shared before is
/// what they have waited for.
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
        let [tokens, x] = inputs else { return Err("takes tokens of all ranks and rows".into()) };
        let rows = GatherRows { ranks: self.ranks }.infer(std::slice::from_ref(x))?;
        if tokens.dtype != DType::U32 || tokens.alloc[..] != rows[0].alloc[..1] {
            return Err("tokens are u32 [ranks·N]".into());
        }
        Ok(rows)
    }

    /// A rank's rows are read and written.
    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost::streaming(&inputs[1..], &inputs[1..])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let name = &cx.program.tensor(cx.node.outputs[0]).name;
        super::gather_rows::gather(cx.comm, name, cx.input_bytes(1), cx.output_bytes(0))
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        cx.queue.share(Gathered { from: cx.input(1), to: cx.output(0), bytes: cx.input_spec(1).bytes() })
    }

    /// A single rank has its own rows only; what several read is proven by the tests of ranks.
    fn cases(precision: Precision) -> Cases {
        let tokens = (Spec::new([7], DType::U32), Fill::Below(1000));
        let rows = (Spec::padded([7, 5], [7, 8], precision.act_dtype), Fill::Normal(0.0, 1.0));
        let reference = |inputs: &[Array]| vec![inputs[1].clone()];
        let case = Case::new("one rank", ShareRows { ranks: 1 }, vec![tokens, rows], reference);
        Cases::Own(vec![case.differentiable(&[]).upstream(&[])])
    }
}
