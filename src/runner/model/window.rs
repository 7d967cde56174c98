//! The sliding window of attention, as plans and forecasts count it.

use crate::ops::attention::keys_in_window;
use crate::plan::Model;

/// Returns the maximum number of keys, including its own, that a query of block `i` sees in sequences of
/// `seq_len` tokens; `None` if it sees all keys before it.
pub fn window(model: &Model, i: usize, seq_len: usize) -> Option<usize> {
    model.window.filter(|window| *window < seq_len && !model.is_global(i))
}

/// Returns the sequence length at which causal attention without a window has as many query-key pairs per
/// query as block `i`: `seq_len`, or twice the number of keys in the window.
pub fn attended_tokens(model: &Model, i: usize, seq_len: usize) -> f64 {
    window(model, i, seq_len).map_or(seq_len as f64, |window| 2.0 * keys_in_window(window, seq_len))
}
