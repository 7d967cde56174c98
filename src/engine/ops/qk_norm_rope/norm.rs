//! The norm of query and key heads: its constants, its inputs and the outputs of its gradient.

use crate::ir::Spec;
use crate::ops::attention::Heads;
use crate::ops::lanes::rows_per_partial;

/// `(qkv [N, (H+2·KV)·dim][, wq [dim], wk [dim]]) → packed [N, (H+2·KV)·dim]`.
///
/// Each query head x becomes `x / √(mean(x²) + eps) · wq`, and each key head the same with wk; values are
/// copied. Without weights, heads are only normalized. The weights have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
    /// True if normalized heads are multiplied by weights.
    pub weighted: bool,
}

impl QkNorm {
    /// Returns the number of inputs: the rows, and the weights if there are any.
    pub(super) fn input_count(&self) -> usize {
        if self.weighted { 3 } else { 1 }
    }

    /// Returns the indices of the inputs that have a gradient, which are all of them.
    pub(super) fn differentiated(&self) -> &'static [usize] {
        if self.weighted { &[0, 1, 2] } else { &[0] }
    }

    /// Returns the parameters for printing.
    pub(super) fn attributes(&self) -> String {
        format!("{} eps={:e}{}", self.heads, self.eps, if self.weighted { "" } else { " unweighted" })
    }

    /// Checks the norm's inputs at the beginning of `specs` and returns the specs after them. `others` names
    /// those for the error.
    pub(super) fn check<'a, const OTHERS: usize>(
        &self,
        specs: &'a [Spec],
        others: &str,
    ) -> Result<&'a [Spec; OTHERS], String> {
        let takes = || format!("takes qkv{}{others}", if self.weighted { ", wq, wk" } else { "" });
        let (own, rest) = specs.split_at_checked(self.input_count()).ok_or_else(takes)?;
        let qkv = &own[0];
        self.heads.check(qkv)?;
        if !self.heads.dim.is_multiple_of(2) {
            return Err("heads must have an even width".into());
        }
        let weight = Spec::new([self.heads.dim], qkv.dtype.accumulator());
        if own[1..].iter().any(|w| *w != weight) {
            return Err(format!("wq and wk must be {}[{}]", weight.dtype, self.heads.dim));
        }
        rest.try_into().map_err(|_| takes())
    }

    /// Returns the outputs of the gradient: the gradient of the rows, and with weights also their gradients
    /// and partial sums.
    pub(super) fn gradients(&self, qkv: &Spec) -> Vec<Spec> {
        let mut outputs = vec![qkv.clone()];
        if self.weighted {
            let (rows, weight) = (qkv.shape[0], Spec::new([self.heads.dim], qkv.dtype.accumulator()));
            let tasks = rows.div_ceil(rows_per_partial(rows));
            let partials = Spec::new([tasks, 2 * self.heads.dim], weight.dtype);
            outputs.extend([weight.clone(), weight, partials]);
        }
        outputs
    }
}
