//! Products with matrices that have adapters.

use super::Recording;
use crate::error::Result;
use crate::ir::{BatchSlot, Builder, ControlSlot, TensorId};
use crate::model::adapters::{first_matrix, second_matrix, stacked_rows};
use crate::ops::dropout::Dropout;
use crate::ops::low_rank::LowRankAdd;

impl Recording<'_> {
    /// Adds the product of a weight's adapter to the product of the weight. Returns that as it is if the
    /// weight has none. `of` is the operation that gives the product; it names the site of the dropout.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn adapted(
        &self,
        b: &mut Builder,
        rows: TensorId,
        weight: usize,
        (product, of): (TensorId, usize),
    ) -> Result<TensorId> {
        let name = &self.plan.graph.parameters[weight].name;
        let Some(adapter) = &self.plan.adapter else { return Ok(product) };
        let Some(weight) = self.adapted.get(name) else { return Ok(product) };
        let (first, second) = (b.param(&first_matrix(name))?, b.param(&second_matrix(name))?);
        // The sites of the model's own dropout are fewer than its operations.
        let site = (self.plan.graph.nodes.len() + of) as u32;
        let rows = match self.site(adapter.dropout, site).filter(|_| adapter.dropout > 0.0) {
            None => rows,
            Some(site) => {
                let inputs = [rows, b.state(BatchSlot::Sequences)?, b.state(ControlSlot::Step)?];
                b.emit1("dropped", Dropout(site), &inputs)?
            }
        };
        let shown = &self.names[of];
        let low = b.emit1("low", self.linear_op(), &[rows, first])?;
        b.rename(low, format!("{shown}:low"));
        let products = self.plan.execution.products;
        let op = LowRankAdd { stacked: stacked_rows(weight), factor: adapter.factor, products };
        let adapted = b.emit("adapted", op, &[low, second, product])?[0];
        b.rename(adapted, format!("{shown}:adapted"));
        Ok(adapted)
    }
}
