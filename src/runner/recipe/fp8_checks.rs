//! Checks what 8-bit floats cannot be combined with.

use super::diagnostic::Diagnostic;
use super::loaded::Recipe;
use crate::policy::{AdapterKind, TrainingDtype};

const DTYPE: &str = "training.dtype";

/// Reports contradictions of `training.dtype = "fp8"`.
pub(super) fn contradictions(recipe: &Recipe, found: &mut Vec<Diagnostic>) {
    let values = recipe.values();
    if values.training.dtype != TrainingDtype::Fp8 {
        return;
    }
    let mut report = |key: &str, says: &str, help: &str| {
        found.push(recipe.diagnostic(&[DTYPE, key], says, help));
    };
    if values.adapter.kind != AdapterKind::None {
        report(
            "adapter.kind",
            "8-bit floats are rounded from weights that are trained, but an adapter's model is frozen",
            "set training.dtype = \"bf16\"",
        );
    }
    if values.fp8.products.as_ref().is_some_and(Vec::is_empty) {
        report(
            "fp8.products",
            "no product would read 8-bit floats",
            "name products, or set training.dtype = \"bf16\"",
        );
    }
}
