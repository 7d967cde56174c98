//! Keys of the model that no program acts on yet: they are refused.

use crate::error::Result;
use crate::policy::{Activation, Position, QkNormPlace, RopeDirection, RopeScaling};
use crate::recipe::Recipe;

/// Refuses a key that has another value than the one that programs are made for.
pub(super) fn check(recipe: &Recipe) -> Result<()> {
    let (m, t) = (&recipe.values().model, &recipe.values().training);
    let unwired = [
        ("model.norm_weight", !m.norm_weight),
        ("model.norm_bias", m.norm_bias.is_some()),
        ("model.activation", m.activation != Activation::Swiglu),
        ("model.bias", m.bias),
        ("model.position", m.position != Position::Rope),
        ("model.qk_norm_place", m.qk_norm_place != QkNormPlace::BeforeRope),
        ("model.qk_norm_weight", !m.qk_norm_weight),
        ("model.rope_fraction", m.rope_fraction != 1.0),
        ("model.rope_direction", m.rope_direction != RopeDirection::Positive),
        ("model.rope_scaling", m.rope_scaling != RopeScaling::None),
        ("model.logit_cap", m.logit_cap.is_some()),
        ("model.logit_scale", m.logit_scale != 1.0),
        ("model.embedding_scale", m.embedding_scale != 1.0),
        ("training.z_loss", t.z_loss != 0.0),
        ("training.label_smoothing", t.label_smoothing != 0.0),
    ];
    match unwired.iter().find(|(_, set)| *set) {
        Some((key, _)) => Err(recipe.error(&[key], "this key has no effect yet", "leave it unset")),
        None => Ok(()),
    }
}
