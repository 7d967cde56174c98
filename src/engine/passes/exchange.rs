//! Sums the gradient of the embedding over ranks by exchanging its non-zero rows.
//!
//! The backward completes the gradient of the embedding last, so no computation is left to overlap with its
//! all-reduce. But only the rows of tokens in the batch are not zero: ranks all-gather their tokens and the
//! matching gradient rows, and each computes the same sum, in the order in which a single rank would add up
//! the whole batch. Where ranks divide the gradient, each sums what it owns: tokens are gathered and sorted
//! at the beginning, and of the rows a rank reads those that it needs.

use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{Builder, Destination, Home, Mode, Node, OwnedRange, Phase, Program, SlotId, Spec, Stream};
use crate::ops::embedding::{EmbeddingGrad, RankInterleaved};
use crate::ops::embedding_owners::{EmbeddingGradAtOwners, OwnedRows, TokenOrder};
use crate::ops::gather_rows::GatherRows;
use crate::ops::share_rows::ShareRows;
use std::sync::Arc;

/// Returns true if gathering `rows` rows and their tokens from each rank, in the format of activations, sends
/// fewer bytes per rank than an all-reduce of the gradient of `table`.
///
/// In a ring, an all-gather passes each rank's rows on `ranks − 1` times, and an all-reduce sends every part
/// of the table twice: `(ranks − 1)·rows·(dim·bytes + 4)` against `2·(ranks − 1)/ranks·table`.
pub fn pays(ranks: usize, rows: usize, act_dtype: DType, table: &Spec) -> bool {
    let row = table.width() * act_dtype.size() + DType::U32.size();
    ranks > 1 && ranks * rows * row < 2 * table.bytes()
}

/// What ranks that divide the gradient need to exchange its rows.
#[derive(Clone, Debug)]
pub struct DividedRows {
    /// The elements of the table that each rank owns.
    pub owners: Vec<OwnedRange>,
    /// The slot that the tokens of all ranks are gathered into.
    pub tokens: SlotId,
    /// The slots of their order: positions, sorted tokens, count, scratch.
    pub order: [SlotId; 4],
    /// The slot in which ranks read each other's rows; `None` where these are gathered.
    pub rows: Option<SlotId>,
    /// True if tokens are gathered and sorted on the communication stream.
    pub overlap: bool,
}

/// Replaces the node that writes the gradient at `slot` by an exchange of its rows over ranks and their sum:
/// on every rank, or where the ranks divide it, of what each owns.
///
/// # Errors
/// When anything but one embedding gradient writes the slot.
pub fn exchange_rows(
    program: Program,
    slot: SlotId,
    layout: RankInterleaved,
    divided: Option<&DividedRows>,
) -> Result<Program> {
    let mut b = Builder::resume(program);
    let nodes = b.take_nodes();
    let writes = |b: &Builder, node: &Node| {
        node.outputs.iter().any(|&out| b.program().tensor(out).home == Home::State(slot))
    };
    let writers: Vec<usize> = (0..nodes.len()).filter(|&at| writes(&b, &nodes[at])).collect();
    let sum = |node: &Node| node.op.name() == EmbeddingGrad::NAME && node.modes[0] == Mode::Write;
    let [at] = writers[..] else { return Err(not_alone(&b)) };
    if !sum(&nodes[at]) {
        return Err(not_alone(&b));
    }
    if let Some(divided) = divided {
        order_tokens(&mut b, &nodes[at], layout, divided)?;
    }
    for (position, node) in nodes.into_iter().enumerate() {
        match divided {
            _ if position != at => b.push(node),
            None => sum_all_rows(&mut b, &node, layout)?,
            Some(divided) => sum_owned_rows(&mut b, &node, layout, divided)?,
        }
    }
    Ok(b.finish())
}

/// Records the gather of all rows and tokens in place of the node, and the sum of all on every rank.
fn sum_all_rows(b: &mut Builder, node: &Node, layout: RankInterleaved) -> Result<()> {
    b.set_scope(&node.scope, node.block);
    b.set_phase(Phase::Communication);
    let gathered = b.emit("of_all", GatherRows { ranks: layout.ranks }, &node.inputs[..2])?;
    let [tokens, rows] = gathered[..] else { return Err(not_alone(b)) };
    b.set_phase(node.phase);
    let out = Destination::Into(node.outputs[0], Mode::Write);
    b.emit_into("sum_of_all", Arc::new(EmbeddingGrad(layout)), &[tokens, rows, node.inputs[2]], &[out])?;
    Ok(())
}

/// Records the gather of the tokens of all ranks, and their order, before all that computes the rows.
fn order_tokens(b: &mut Builder, node: &Node, layout: RankInterleaved, divided: &DividedRows) -> Result<()> {
    b.set_scope(&node.scope, node.block);
    b.set_phase(Phase::Communication);
    b.set_stream(if divided.overlap { Stream::Communication } else { Stream::Main });
    let tokens = b.state_slot(divided.tokens);
    let gather = Arc::new(GatherRows { ranks: layout.ranks });
    let into = |tensor| Destination::Into(tensor, Mode::Write);
    b.emit_into("tokens_of_all", gather, &node.inputs[..1], &[into(tokens)])?;
    let order = divided.order.map(|slot| b.state_slot(slot));
    let outs: Vec<_> = [node.outputs[0]].into_iter().chain(order).map(into).collect();
    let op = Arc::new(TokenOrder(OwnedRows { layout, owners: divided.owners.clone() }));
    b.emit_into("order_of_all", op, &[tokens, node.inputs[2]], &outs)?;
    b.set_stream(Stream::Main);
    Ok(())
}

/// Records in place of the node that ranks give each other access to their rows, and that each sums what it
/// owns.
fn sum_owned_rows(
    b: &mut Builder,
    node: &Node,
    layout: RankInterleaved,
    divided: &DividedRows,
) -> Result<()> {
    b.set_scope(&node.scope, node.block);
    b.set_phase(Phase::Communication);
    let tokens = b.state_slot(divided.tokens);
    let to = match divided.rows {
        Some(slot) => Destination::Into(b.state_slot(slot), Mode::Write),
        None => Destination::New,
    };
    let share = Arc::new(ShareRows { ranks: layout.ranks });
    let rows = b.emit_into("rows_of_all", share, &[tokens, node.inputs[1]], &[to])?;
    b.set_phase(node.phase);
    let [order, sorted, count, _] = divided.order.map(|slot| b.state_slot(slot));
    let op = Arc::new(EmbeddingGradAtOwners(OwnedRows { layout, owners: divided.owners.clone() }));
    let inputs = [&[order, sorted, count], &rows[..], &[node.inputs[2]]].concat();
    b.emit_into("sum_of_owned", op, &inputs, &[Destination::Into(node.outputs[0], Mode::Add)])?;
    Ok(())
}

fn not_alone(b: &Builder) -> Error {
    Error::failed(format!(
        "program {}: the gradient to exchange is not of an embedding alone",
        b.program().name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 64 rows of 16 numbers: 2 · 64 · 16 · 4 bytes, against 16 · 2 + 4 for each row of a rank.
    #[test]
    fn few_rows_pay() {
        let table = Spec::padded([50, 16], [64, 16], DType::F32);
        let most =
            |ranks: usize, act_dtype| (0..).take_while(|&rows| pays(ranks, rows, act_dtype, &table)).count();
        assert_eq!(most(2, DType::Bf16), 8192usize.div_ceil(2 * 36));
        assert_eq!(most(8, DType::Bf16), 8192usize.div_ceil(8 * 36));
        assert_eq!(most(2, DType::F32), 8192usize.div_ceil(2 * 68));
        assert_eq!(most(1, DType::Bf16), 0, "a rank alone");
    }
}
