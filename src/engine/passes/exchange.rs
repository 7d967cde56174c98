//! Sums the embedding's gradient over ranks by exchanging its non-zero rows.
//!
//! The backward completes the embedding's gradient last, so no computation is left to overlap with its
//! all-reduce. But only the rows of tokens in the batch are not zero. Ranks all-gather their tokens and the
//! matching gradient rows, and each computes the same sum, in the order in which a single rank would add up
//! the whole batch. If ranks divide the gradient, each sums only what it owns: tokens are gathered and sorted
//! at the beginning, and a rank reads only the rows it needs.

use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{
    Builder, Destination, Home, Mode, Node, OwnedRange, Phase, Program, SlotId, Spec, Stream, TensorId,
};
use crate::ops::embedding::EmbeddingGrad;
use crate::ops::embedding_owners::{EmbeddingGradAtOwners, OwnedRows, TokenOrder};
use crate::ops::gather_rows::GatherRows;
use crate::ops::share_rows::ShareRows;
use crate::ops::sort_tokens::{RankInterleaved, SortTokens};
use std::sync::Arc;

/// Returns true if the exchange sends fewer bytes per rank than an all-reduce of the gradient of `table`. The
/// exchange gathers `rows` rows in the format of activations, and their tokens, from each rank.
///
/// In a ring, an all-gather forwards each rank's rows `ranks − 1` times, and an all-reduce sends every part
/// of the table twice: `(ranks − 1)·rows·(dim·bytes + 4)` against `2·(ranks − 1)/ranks·table`.
pub fn sends_less(ranks: usize, rows: usize, act_dtype: DType, table: &Spec) -> bool {
    let row = table.width() * act_dtype.size() + DType::U32.size();
    ranks > 1 && ranks * rows * row < 2 * table.bytes()
}

/// What ranks need to exchange gradient rows if they divide the gradient.
#[derive(Clone, Debug)]
pub struct DividedRows {
    /// The elements of the table that each rank owns.
    pub owners: Vec<OwnedRange>,
    /// The slot that receives the tokens of all ranks.
    pub tokens: SlotId,
    /// The slots for the order of the tokens: positions, sorted tokens, count, scratch.
    pub order: [SlotId; 4],
    /// The slot in which ranks read each other's rows; `None` if rows are gathered.
    pub rows: Option<SlotId>,
    /// True if tokens are gathered and sorted on the communication stream.
    pub overlap: bool,
}

/// Replaces the node that writes the gradient at `slot` by an exchange of its rows over ranks and their sum.
/// Every rank computes all of the sum, or only what it owns if ranks divide the gradient.
///
/// # Errors
/// If anything other than a single embedding gradient writes the slot.
pub fn exchange_rows(
    program: Program,
    slot: SlotId,
    layout: RankInterleaved,
    divided: Option<&DividedRows>,
) -> Result<Program> {
    let mut b = Builder::resume(program);
    let nodes = b.take_nodes();
    let writes = |b: &Builder, node: &Node| {
        node.outputs.iter().any(|&out| b.program.tensor(out).home == Home::State(slot))
    };
    let writers: Vec<usize> = (0..nodes.len()).filter(|&at| writes(&b, &nodes[at])).collect();
    let [at] = writers[..] else { return Err(not_one_embedding(&b)) };
    let Some((replaced, sort)) = Replaced::new(&nodes, at) else { return Err(not_one_embedding(&b)) };
    if let Some(divided) = divided {
        order_tokens(&mut b, replaced, layout, divided)?;
    }
    let reads = |node: &&Node| node.inputs.iter().any(|input| nodes[sort].outputs.contains(input));
    let is_shared = nodes.iter().filter(reads).count() > 1;
    for (position, node) in nodes.iter().enumerate() {
        match divided {
            _ if position == sort && !is_shared => {}
            _ if position != at => b.push(node.clone()),
            None => sum_all_rows(&mut b, replaced, layout)?,
            Some(divided) => sum_owned_rows(&mut b, replaced, layout, divided)?,
        }
    }
    Ok(b.finish())
}

/// The embedding gradient that an exchange replaces.
#[derive(Clone, Copy)]
struct Replaced<'a> {
    node: &'a Node,
    tokens: TensorId,
    rows: TensorId,
    table: TensorId,
    gradient: TensorId,
}

impl<'a> Replaced<'a> {
    /// Describes node `at` and finds the node that sorts its tokens; `None` if it is not the whole gradient
    /// of an embedding.
    fn new(nodes: &'a [Node], at: usize) -> Option<(Self, usize)> {
        let node = &nodes[at];
        let is_whole = node.op.name() == EmbeddingGrad::NAME && node.modes[0] == Mode::Write;
        let [order, _, _, rows, table] = node.inputs[..] else { return None };
        let sort = nodes[..at].iter().rposition(|node| node.outputs.contains(&order))?;
        let [tokens] = nodes[sort].inputs[..] else { return None };
        is_whole.then_some((Self { node, tokens, rows, table, gradient: node.outputs[0] }, sort))
    }
}

/// In place of the node, records the gather of all rows and tokens, and their sum on every rank.
fn sum_all_rows(b: &mut Builder, replaced: Replaced<'_>, layout: RankInterleaved) -> Result<()> {
    b.set_scope_of(replaced.node);
    b.phase = Phase::Communication;
    let gather = GatherRows { ranks: layout.ranks };
    let gathered = b.emit("of_all", gather, &[replaced.tokens, replaced.rows])?;
    let [tokens, rows] = gathered[..] else { return Err(not_one_embedding(b)) };
    b.phase = replaced.node.phase;
    let sort = SortTokens { layout, vocabulary: b.spec(replaced.table).alloc[0] };
    let sorted = b.emit("sorted_of_all", sort, &[tokens])?;
    let inputs = [&sorted[..3], &[rows, replaced.table]].concat();
    let out = Destination::Into(replaced.gradient, Mode::Write);
    b.emit_into("sum_of_all", Arc::new(EmbeddingGrad), &inputs, &[out])?;
    Ok(())
}

/// Records the gather of the tokens of all ranks, and their sort, before everything that computes the rows.
fn order_tokens(
    b: &mut Builder,
    replaced: Replaced<'_>,
    layout: RankInterleaved,
    divided: &DividedRows,
) -> Result<()> {
    b.set_scope_of(replaced.node);
    b.phase = Phase::Communication;
    b.stream = if divided.overlap { Stream::Communication } else { Stream::Main };
    let tokens = b.state_slot(divided.tokens);
    let gather = Arc::new(GatherRows { ranks: layout.ranks });
    let into = |tensor| Destination::Into(tensor, Mode::Write);
    b.emit_into("tokens_of_all", gather, &[replaced.tokens], &[into(tokens)])?;
    let order = divided.order.map(|slot| b.state_slot(slot));
    let outs: Vec<_> = [replaced.gradient].into_iter().chain(order).map(into).collect();
    let op = Arc::new(TokenOrder(OwnedRows { layout, owners: divided.owners.clone() }));
    b.emit_into("order_of_all", op, &[tokens, replaced.table], &outs)?;
    b.stream = Stream::Main;
    Ok(())
}

/// In place of the node, records how ranks share their rows and how each sums what it owns.
fn sum_owned_rows(
    b: &mut Builder,
    replaced: Replaced<'_>,
    layout: RankInterleaved,
    divided: &DividedRows,
) -> Result<()> {
    b.set_scope_of(replaced.node);
    b.phase = Phase::Communication;
    let tokens = b.state_slot(divided.tokens);
    let to = match divided.rows {
        Some(slot) => Destination::Into(b.state_slot(slot), Mode::Write),
        None => Destination::New,
    };
    let share = Arc::new(ShareRows { ranks: layout.ranks });
    let rows = b.emit_into("rows_of_all", share, &[tokens, replaced.rows], &[to])?;
    b.phase = replaced.node.phase;
    let [order, sorted, count, _] = divided.order.map(|slot| b.state_slot(slot));
    let op = Arc::new(EmbeddingGradAtOwners(OwnedRows { layout, owners: divided.owners.clone() }));
    let inputs = [&[order, sorted, count], &rows[..], &[replaced.table]].concat();
    b.emit_into("sum_of_owned", op, &inputs, &[Destination::Into(replaced.gradient, Mode::Add)])?;
    Ok(())
}

fn not_one_embedding(b: &Builder) -> Error {
    Error::failed(format!(
        "program {}: the gradient to exchange does not come from one embedding alone",
        b.program.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table has 64 rows of 16 fp32 numbers: an all-reduce sends 2 · 64 · 16 · 4 bytes, the exchange 16 ·
    /// 2 + 4 bytes for each bf16 row of a rank.
    #[test]
    fn few_rows_pay() {
        let table = Spec::padded([50, 16], [64, 16], DType::F32);
        let most = |ranks: usize, act_dtype| {
            (0..).take_while(|&rows| sends_less(ranks, rows, act_dtype, &table)).count()
        };
        assert_eq!(most(2, DType::Bf16), 8192usize.div_ceil(2 * 36));
        assert_eq!(most(8, DType::Bf16), 8192usize.div_ceil(8 * 36));
        assert_eq!(most(2, DType::F32), 8192usize.div_ceil(2 * 68));
        assert_eq!(most(1, DType::Bf16), 0, "a rank alone");
    }
}
