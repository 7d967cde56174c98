//! The norm of query and key heads with its rotation: constants and inputs.

use crate::ir::Spec;
use crate::ops::attention::Heads;
use crate::ops::rope::check;
use crate::ops::rotary::Rotary;

/// `(qkv [N, (H+2·KV)·dim][, wq [dim], wk [dim]][, positions [N] u32]) → packed [N, (H+2·KV)·dim]`.
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
}

/// Each query head x becomes `x / √(mean(x²) + eps) · wq`, and each key head the same with wk. Without
/// weights, heads are only normalized. The weights have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
    /// True if normalized heads are multiplied by weights.
    pub weighted: bool,
}

/// A rotation beside the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRotation {
    /// The rotation.
    pub rotary: Rotary,
    /// True to rotate before the norm, false to rotate after it.
    pub first: bool,
}

impl QkNorm {
    /// Returns the number of inputs: the rows, and the weights if there are any.
    pub(super) fn input_count(&self) -> usize {
        if self.weighted { 3 } else { 1 }
    }
}

impl QkNormRope {
    /// Returns the number of inputs. In the gradient, `d_packed` follows them.
    pub(super) fn input_count(&self) -> usize {
        self.norm.input_count() + usize::from(self.rotation.is_some())
    }

    /// Checks the inputs, or with `upstream` those of the gradient.
    pub(super) fn check(&self, inputs: &[Spec], upstream: bool) -> Result<(), String> {
        let mut names = vec!["qkv"];
        names.extend(["wq", "wk"].into_iter().filter(|_| self.norm.weighted));
        names.extend(self.rotation.map(|_| "positions"));
        names.extend(upstream.then_some("d_packed"));
        if inputs.len() != names.len() {
            return Err(format!("takes {}", names.join(", ")));
        }
        let (qkv, heads, own) = (&inputs[0], self.norm.heads, self.norm.input_count());
        heads.check(qkv)?;
        if !heads.dim.is_multiple_of(2) {
            return Err("heads must have an even width".into());
        }
        let weight = Spec::new([heads.dim], qkv.dtype.accumulator());
        if inputs[1..own].iter().any(|w| *w != weight) {
            return Err(format!("wq and wk must be {weight}"));
        }
        if let Some(rotation) = self.rotation {
            check(heads, rotation.rotary, qkv, &inputs[own])?;
        }
        if inputs[self.input_count()..].iter().any(|d| d.alloc != qkv.alloc || d.dtype != qkv.dtype) {
            return Err("d_packed must have the shape and format of qkv".into());
        }
        Ok(())
    }
}
