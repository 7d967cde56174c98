//! Derives values that a recipe leaves unset from others: the widths of a model, and the warm-up.
//!
//! A recipe's hash covers derived values, so a recipe that spells one out has the same hash.

use super::merge::Merged;
use super::schema::{LrScheduler, Model, Values};
use super::sources::CORPUS;
use crate::policy::CorpusSource;
use std::cmp::Ordering;

/// Head width if a recipe sets neither the number nor the width of heads, in elements.
const HEAD_DIM: usize = 32;
/// Hidden width of a feed-forward layer with two matrices, per element of the residual stream.
const FFN_RATIO: usize = 4;
/// The same for a gated layer: its three matrices have as many elements as two of [`FFN_RATIO`], rounded up.
const GATED_FFN_RATIO: usize = 3;
/// Derived feed-forward widths are multiples of this, the padding in memory.
const FFN_MULTIPLE: usize = 64;

/// Returns the number of query heads.
///
/// If unset, it is `dim / head_dim`, at least 1. If `head_dim` is unset too, it is the largest number of
/// heads that divides `dim` into even widths (the rotary embedding rotates pairs) of at least [`HEAD_DIM`].
pub fn n_heads(model: &Model) -> usize {
    let filling = |heads: &usize| model.dim.is_multiple_of(*heads) && (model.dim / heads).is_multiple_of(2);
    match (model.n_heads, model.head_dim) {
        (Some(heads), _) => heads,
        (None, Some(width)) => (model.dim / width).max(1),
        (None, None) => (1..=model.dim / HEAD_DIM).rev().find(filling).unwrap_or(1),
    }
}

/// Returns the width of a head; if unset, it is `dim / n_heads`.
pub fn head_dim(model: &Model) -> usize {
    model.head_dim.unwrap_or_else(|| model.dim / n_heads(model))
}

/// Returns the number of elements of a head that are rotated: `fraction` of its width, rounded down as in
/// transformers.
pub fn rotated_dim(head_dim: usize, fraction: f64) -> usize {
    (head_dim as f64 * fraction) as usize
}

/// Returns the hidden width of the feed-forward layer. If unset, it is `3 · dim` with a gated activation,
/// else `4 · dim`, rounded up to a multiple of 64.
pub fn ffn_dim(model: &Model) -> usize {
    let ratio = if model.activation.is_gated() { GATED_FFN_RATIO } else { FFN_RATIO };
    model.ffn_dim.unwrap_or_else(|| (ratio * model.dim).next_multiple_of(FFN_MULTIPLE))
}

/// Returns the length of the warm-up in steps. If unset, it is `warmup_ratio` of the steps, rounded, or 0
/// without a ratio.
pub fn warmup_steps(scheduler: &LrScheduler, steps: usize) -> usize {
    let share = || scheduler.warmup_ratio.map_or(0, |ratio| (ratio * steps as f64).round() as usize);
    scheduler.warmup_steps.unwrap_or_else(share)
}

/// Fills in the derived values that `values` leaves unset.
pub(super) fn derive(values: &mut Values) {
    derive_warmup(values);
    let model = &mut values.model;
    (model.n_heads, model.ffn_dim) = (Some(n_heads(model)), Some(ffn_dim(model)));
}

/// Turns the warm-up into steps. A share of a length that is a budget stays a share, because the hash covers
/// the budget and not the steps that follow from it.
pub(super) fn derive_warmup(values: &mut Values) {
    let scheduler = &mut values.lr_scheduler;
    if values.training.until.is_some() && scheduler.warmup_ratio.is_some() && scheduler.warmup_steps.is_none()
    {
        return;
    }
    scheduler.warmup_steps = Some(warmup_steps(scheduler, values.training.steps));
    scheduler.warmup_ratio = None;
}

/// Unsets a key that another key replaces in a higher layer: of `warmup_steps` and `warmup_ratio`, the one in
/// the lower layer. Set in the same layer, they contradict each other, and both stay. `decay_steps` is unset
/// too if `decay_ratio` is in a higher layer; in the same layer, `decay_steps` wins. Of `training.steps` and
/// `training.until`, the one in the higher layer counts; in the same layer both stay.
pub(super) fn drop_superseded(values: &mut Values, layers: &Merged) {
    let position = |key| layers.position(key);
    match position("lr_scheduler.warmup_steps").cmp(&position("lr_scheduler.warmup_ratio")) {
        Ordering::Less => values.lr_scheduler.warmup_steps = None,
        Ordering::Greater => values.lr_scheduler.warmup_ratio = None,
        Ordering::Equal => {}
    }
    if position("lr_scheduler.decay_steps") < position("lr_scheduler.decay_ratio") {
        values.lr_scheduler.decay_steps = None;
    }
    match position("training.until").cmp(&position("training.steps")) {
        Ordering::Less => values.training.until = None,
        Ordering::Greater => values.training.steps = Values::default().training.steps,
        Ordering::Equal => {}
    }
}

/// Makes the corpus a mixture if there are sources and no layer says otherwise.
pub(super) fn choose_mixture(values: &mut Values, layers: &Merged) {
    if !values.data.sources.is_empty() && layers.locate(CORPUS).is_none() {
        values.data.corpus = CorpusSource::Mixture;
    }
}
