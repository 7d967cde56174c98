//! The sliding window of attention, as plans and forecasts count it.

use crate::ops::attention::keys_in_window;
use crate::plan::Model;

/// Returns the most keys that queries of block `i` see in sequences of `seq_len` tokens, their own included;
/// `None` where they see all before them.
pub fn window(model: &Model, i: usize, seq_len: usize) -> Option<usize> {
    model.window.filter(|window| *window < seq_len && !model.is_global(i))
}

/// Returns the length of sequences without a window whose causal half has as many pairs per query as queries
/// of block `i` see keys: `seq_len`, or twice the keys inside the window.
pub fn attended_tokens(model: &Model, i: usize, seq_len: usize) -> f64 {
    window(model, i, seq_len).map_or(seq_len as f64, |window| 2.0 * keys_in_window(window, seq_len))
}
