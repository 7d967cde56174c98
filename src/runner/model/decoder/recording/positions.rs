//! The steps between the qkv product and attention: norms of queries and keys, and the rotary embedding.

use super::Recording;
use crate::error::{Error, Result};
use crate::ir::{Builder, TensorId};
use crate::ops::qk_norm_rope::{HeadRotation, QkNorm, QkNormRope};
use crate::ops::rope::Rope;
use crate::ops::rotary::{Rotary, Scaling};
use crate::plan::Model;
use crate::policy::{Position, QkNormPlace, RopeDirection, RopeScaling};

impl Recording<'_> {
    /// Records the norms of block `i`'s queries and keys and their rotation, if the model has them.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn positions(&self, b: &mut Builder, i: usize, qkv: TensorId) -> Result<TensorId> {
        let (m, heads) = (&self.plan.model, self.heads);
        let [_, positions] = self.inputs();
        let rotation = match m.position {
            Position::Rope => Some((rotary(m)?, b.state(positions)?)),
            Position::Learned | Position::None => None,
        };
        let norm = m.qk_norm.map(|norm| QkNorm { heads, eps: m.norm_eps, weighted: norm.weight });
        let mut inputs = vec![qkv];
        if norm.is_some_and(|norm| norm.weighted) {
            inputs.push(b.param(&format!("blocks.{i}.q_norm"))?);
            inputs.push(b.param(&format!("blocks.{i}.k_norm"))?);
        }
        inputs.extend(rotation.map(|(_, positions)| positions));
        let first = m.qk_norm.is_some_and(|norm| norm.place == QkNormPlace::AfterRope);
        match (norm, rotation) {
            (Some(norm), rotation) => {
                let rotation = rotation.map(|(rotary, _)| HeadRotation { rotary, first });
                b.emit1("packed", QkNormRope { norm, rotation }, &inputs)
            }
            (None, Some((rotary, _))) => b.emit1("packed", Rope { heads, rotary, inverse: false }, &inputs),
            (None, None) => Ok(qkv),
        }
    }
}

/// Returns the rotation of a model's heads.
///
/// # Errors
/// If a scaling lacks a number. Recipes with that error are rejected earlier.
fn rotary(m: &Model) -> Result<Rotary> {
    let rope = &m.rope;
    let lacks = |key: &str| Error::usage(format!("model.rope_scaling = \"{}\" needs {key}", rope.scaling));
    let factor = || rope.factor.ok_or_else(|| lacks("model.rope_factor"));
    let context = || rope.original_context.ok_or_else(|| lacks("model.rope_original_context"));
    let scaling = match rope.scaling {
        RopeScaling::None => Scaling::None,
        RopeScaling::Linear => Scaling::Linear { factor: factor()? },
        RopeScaling::Yarn => Scaling::Yarn {
            factor: factor()?,
            original_context: context()?,
            beta_fast: rope.beta_fast,
            beta_slow: rope.beta_slow,
            attention_factor: match rope.attention_factor {
                Some(set) => set,
                None => Scaling::yarn_attention_factor(factor()?),
            },
        },
        RopeScaling::Llama3 => Scaling::Llama3 {
            factor: factor()?,
            original_context: context()?,
            low_freq_factor: rope.low_freq_factor,
            high_freq_factor: rope.high_freq_factor,
        },
    };
    Ok(Rotary {
        theta: rope.theta,
        rotated_dim: m.rotated_dim(),
        reversed: rope.direction == RopeDirection::Negative,
        scaling,
    })
}
