//! Values that a recipe leaves unset and that follow from others: the widths of a model, and the warm-up.
//!
//! A hash takes what is derived, so a recipe that spells it out is the same recipe.

use super::merge::Merged;
use super::schema::{LrScheduler, Model, Values};
use std::cmp::Ordering;

/// Width of a head where a recipe sets neither the number nor the width of heads, in elements.
const HEAD_DIM: usize = 32;
/// Hidden width of a feed-forward layer of two matrices per element of the stream.
const FFN_RATIO: usize = 4;
/// That of a gated one: three matrices of this size have as many numbers as two of [`FFN_RATIO`], rounded up.
const GATED_FFN_RATIO: usize = 3;
/// Derived feed-forward widths are multiples of this, as they are padded in memory.
const FFN_MULTIPLE: usize = 64;

/// Returns the number of query heads.
///
/// Unset, it is `dim / head_dim`, and at least 1. With both unset, it is as many heads as divide the stream
/// into even widths (the rotary embedding turns pairs) of at least [`HEAD_DIM`].
pub fn n_heads(model: &Model) -> usize {
    let filling = |heads: &usize| model.dim.is_multiple_of(*heads) && (model.dim / heads).is_multiple_of(2);
    match (model.n_heads, model.head_dim) {
        (Some(heads), _) => heads,
        (None, Some(width)) => (model.dim / width).max(1),
        (None, None) => (1..=model.dim / HEAD_DIM).rev().find(filling).unwrap_or(1),
    }
}

/// Returns the width of a head; unset, it is `dim / n_heads`.
pub fn head_dim(model: &Model) -> usize {
    model.head_dim.unwrap_or_else(|| model.dim / n_heads(model))
}

/// Returns the number of elements of a head that are rotated: a share of it, rounded down, as transformers
/// does.
pub fn rotated_dim(head_dim: usize, fraction: f64) -> usize {
    (head_dim as f64 * fraction) as usize
}

/// Returns the hidden width of the feed-forward layer; unset, it is `3 · dim` with a gated activation, else
/// `4 · dim`, rounded up to a multiple of 64.
pub fn ffn_dim(model: &Model) -> usize {
    let ratio = if model.activation.is_gated() { GATED_FFN_RATIO } else { FFN_RATIO };
    model.ffn_dim.unwrap_or_else(|| (ratio * model.dim).next_multiple_of(FFN_MULTIPLE))
}

/// Returns the length of the warm-up in steps; unset, it is `warmup_ratio` of the steps, rounded, and 0
/// without a ratio.
pub fn warmup_steps(scheduler: &LrScheduler, steps: usize) -> usize {
    let share = || scheduler.warmup_ratio.map_or(0, |ratio| (ratio * steps as f64).round() as usize);
    scheduler.warmup_steps.unwrap_or_else(share)
}

/// Fills in what `values` leave unset.
pub(super) fn derive(values: &mut Values) {
    let scheduler = &mut values.lr_scheduler;
    scheduler.warmup_steps = Some(warmup_steps(scheduler, values.training.steps));
    scheduler.warmup_ratio = None;
    let model = &mut values.model;
    (model.n_heads, model.ffn_dim) = (Some(n_heads(model)), Some(ffn_dim(model)));
}

/// Unsets what a higher layer replaces by another key: of a warm-up in steps and one as a ratio the lower
/// one. In one layer they contradict each other, and both stay. So of a decay phase in steps, which holds in
/// one layer.
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
}
