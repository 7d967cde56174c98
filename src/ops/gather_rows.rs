//! Gathers the rows of all ranks on every rank.

use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};

/// `x[N, …] → y[ranks·N, …]`: the rows of all ranks, rank after rank.
#[derive(Clone, Copy, Debug)]
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
        let [x] = inputs else { return Err("takes one tensor".into()) };
        if x.shape.is_empty() || x.shape[0] != x.alloc[0] {
            return Err("rows are gathered without rows of padding".into());
        }
        let mut y = x.clone();
        (y.shape[0], y.alloc[0]) = (self.ranks * x.shape[0], self.ranks * x.alloc[0]);
        Ok(vec![y])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (mine, name) = (cx.input_bytes(0), &cx.program.tensor(cx.node.outputs[0]).name);
        let all = cx.comm.gather(name, mine.to_vec())?;
        if all.parts().count() != self.ranks || all.parts().any(|part| part.len() != mine.len()) {
            return Err(Error::failed(format!("{name} is not of {} ranks that give as much", self.ranks)));
        }
        for (to, part) in cx.output_bytes(0).chunks_exact_mut(mine.len()).zip(all.parts()) {
            to.copy_from_slice(part);
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        cx.queue.all_gather(cx.output(0), cx.input(0), cx.input_spec(0).bytes())
    }

    /// A single rank has its own rows only; the order of several is proven by the tests of ranks.
    fn cases(&self, precision: Precision) -> Cases {
        let case = |name: &str, spec: Spec, fill: Fill| {
            Case::new(name, GatherRows { ranks: 1 }, vec![(spec, fill)], |inputs| inputs.to_vec())
                .differentiable(&[])
                .upstream(&[])
        };
        Cases::Own(vec![
            case("rows", Spec::padded([7, 5], [7, 8], precision.act_dtype), Fill::Normal(0.0, 1.0)),
            case("tokens", Spec::new([33], DType::U32), Fill::Below(1000)),
        ])
    }
}
