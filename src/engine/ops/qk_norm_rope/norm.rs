//! The norm of query and key heads with its rotation: constants and inputs.

use crate::ir::Spec;
use crate::ops::attention::Heads;
use crate::ops::rope::check;
use crate::ops::rotary::Rotary;

/// `(qkv [N, (H+2·KV)·dim][, wq [dim], wk [dim]][, positions [N] u32]) → packed [N, (H+2·KV)·dim]`, or
/// with values apart `(qk [N, (H+KV)·dim], v [N, KV·dim], …) → packed`.
///
/// Applies the [norm](QkNorm) to query and key heads, then the [rotation](Rotary) by the angles of their
/// position, as in Qwen3; or the rotation first, as in nanochat. Without weights, and if whole heads rotate
/// without a factor, both orders are the same function, rounded differently. Values are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRope {
    /// The norm.
    pub norm: QkNorm,
    /// The rotation; `None` for the norm alone, which takes no positions.
    pub rotation: Option<HeadRotation>,
    /// True if the values are a tensor of their own.
    pub values_apart: bool,
}

/// Each query head x becomes `x / √(mean(x²) + eps) · (wq + offset)`, and each key head the same with wk.
/// Without weights, heads are only normalized. The weights have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
    /// True if normalized heads are multiplied by weights.
    pub weighted: bool,
    /// Added to the weights.
    pub weight_offset: f64,
}

/// A rotation beside the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRotation {
    /// The rotation.
    pub rotary: Rotary,
    /// True to rotate before the norm, false to rotate after it.
    pub first: bool,
}

impl QkNormRope {
    /// Returns the index of the first weight, which follows the rows.
    pub(super) fn weights_at(&self) -> usize {
        1 + usize::from(self.values_apart)
    }

    /// Returns the index of the positions, which follow the weights.
    pub(super) fn positions_at(&self) -> usize {
        self.weights_at() + if self.norm.weighted { 2 } else { 0 }
    }

    /// Returns the number of inputs. In the gradient, `d_packed` follows them.
    pub(super) fn input_count(&self) -> usize {
        self.positions_at() + usize::from(self.rotation.is_some())
    }

    /// Returns the width of the rows that hold queries and keys.
    pub(super) fn row_width(&self) -> usize {
        if self.values_apart { self.norm.heads.value_at(0) } else { self.norm.heads.width() }
    }

    /// Checks the inputs, or with `upstream` those of the gradient.
    pub(super) fn check(&self, inputs: &[Spec], upstream: bool) -> Result<(), String> {
        let mut names = if self.values_apart { vec!["qk", "v"] } else { vec!["qkv"] };
        names.extend(["wq", "wk"].into_iter().filter(|_| self.norm.weighted));
        names.extend(self.rotation.map(|_| "positions"));
        names.extend(upstream.then_some("d_packed"));
        if inputs.len() != names.len() {
            return Err(format!("takes {}", names.join(", ")));
        }
        let (rows, heads) = (&inputs[0], self.norm.heads);
        let packed = self.packed(rows);
        heads.check(&packed)?;
        let widths = [self.row_width(), heads.width() - self.row_width()];
        for (rows, width) in inputs[..self.weights_at()].iter().zip(widths) {
            let expected = Spec::new([packed.shape[0], width], packed.dtype);
            if *rows != expected {
                return Err(format!("the rows must be {expected}"));
            }
        }
        if !heads.dim.is_multiple_of(2) {
            return Err("heads must have an even width".into());
        }
        let weight = Spec::new([heads.dim], rows.dtype.accumulator());
        if inputs[self.weights_at()..self.positions_at()].iter().any(|w| *w != weight) {
            return Err(format!("wq and wk must be {weight}"));
        }
        if let Some(rotation) = self.rotation {
            check(heads, rotation.rotary, &packed, &inputs[self.positions_at()])?;
        }
        if inputs[self.input_count()..].iter().any(|d| d.alloc != packed.alloc || d.dtype != packed.dtype) {
            return Err("d_packed must have the shape and format of the packed rows".into());
        }
        Ok(())
    }

    /// Returns the packed rows for these rows.
    pub(super) fn packed(&self, rows: &Spec) -> Spec {
        if self.values_apart {
            Spec::new([rows.shape[0], self.norm.heads.width()], rows.dtype)
        } else {
            rows.clone()
        }
    }
}
