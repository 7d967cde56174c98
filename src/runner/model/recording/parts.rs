//! Parts of tensors that no op reads in place: copies of slices and heads, and values side by side.

use super::view::View;
use super::{Recording, Tensors, index_of};
use crate::error::Result;
use crate::ir::{Builder, Op, TensorId};
use crate::model_text::Operation;
use crate::ops::arrange::{Arrange, Piece};
use crate::ops::half::Half;
use crate::ops::reshape::Reshape;

impl Recording<'_> {
    /// Returns the result of an operation that was recorded, or a copy of the part of one that the operation
    /// stands for, as rows in one dimension.
    ///
    /// # Errors
    /// If the operation was not recorded, or the plan's numbers do not fit an op.
    pub(super) fn read(&self, b: &mut Builder, tensors: &mut Tensors, node: usize) -> Result<TensorId> {
        if let Some(rows) = tensors.rows[node] {
            return Ok(rows);
        }
        let graph = &*self.plan.graph;
        let view = View::new(graph, node);
        let is_part = matches!(graph.nodes[view.base].operation, Operation::Slice { .. });
        let base = if is_part && view.base != node {
            self.read(b, tensors, view.base)?
        } else {
            tensors.result(view.base)?
        };
        let spec = b.spec(base).clone();
        let is_whole = view.is_contiguous() && view.elements() == graph.nodes[view.base].shape.elements();
        let rows = match spec.shape[..] {
            [_, _] if is_whole => base,
            _ if is_whole => {
                let rows = b.emit1("rows", Reshape { row: vec![view.elements()] }, &[base])?;
                b.rename(rows, format!("{}:rows", self.names[node]));
                rows
            }
            // The halves of a stack may be padded.
            [_, 2, width] if view.elements() == width && view.from.is_multiple_of(width) => {
                self.part(b, node, Half { index: view.from / width }, base)?
            }
            _ => {
                let piece = Piece { stride: view.stride, ..view.piece(0) };
                self.part(b, node, Arrange { heads: view.heads, pieces: vec![piece] }, base)?
            }
        };
        tensors.rows[node] = Some(rows);
        Ok(rows)
    }

    /// Records the op that copies a part of a tensor.
    fn part(&self, b: &mut Builder, node: usize, op: impl Op, of: TensorId) -> Result<TensorId> {
        let part = b.emit1("part", op, &[of])?;
        b.rename(part, self.names[node].clone());
        Ok(part)
    }

    /// Records values side by side, head by head. Values of one head are repeated for every head.
    ///
    /// # Errors
    /// If the plan's numbers do not fit the op.
    pub(super) fn concat(
        &self,
        b: &mut Builder,
        tensors: &mut Tensors,
        (heads, parts): (usize, &[usize]),
    ) -> Result<(Arrange, Vec<TensorId>)> {
        let (mut inputs, mut pieces) = (Vec::new(), Vec::new());
        for &part in parts {
            let (tensor, view) = self.place(b, tensors, part)?;
            pieces.push(view.piece(index_of(&mut inputs, tensor)));
        }
        Ok((Arrange { heads, pieces }, inputs))
    }

    /// Returns a tensor in which a value lies, and where: that of the operation it is a part of, if nothing
    /// there is padded.
    ///
    /// # Errors
    /// If the operation was not recorded, or the plan's numbers do not fit an op.
    pub(super) fn place(
        &self,
        b: &mut Builder,
        tensors: &mut Tensors,
        node: usize,
    ) -> Result<(TensorId, View)> {
        let view = View::new(&self.plan.graph, node);
        let base = tensors.results[view.base];
        match base.filter(|&base| b.spec(base).alloc == b.spec(base).shape) {
            Some(base) => Ok((base, view)),
            None => Ok((self.read(b, tensors, node)?, View::whole(&self.plan.graph, node))),
        }
    }
}
