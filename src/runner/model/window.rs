//! The sliding windows of attention, as plans and forecasts count them, and other reads of a number of rows.

use crate::model_text::{Graph, Operation};
use crate::ops::attention::keys_in_window;

/// Returns the window of attention in sequences of `seq_len` tokens; `None` if it sees all keys.
pub(super) fn effective_window(window: Option<usize>, seq_len: usize) -> Option<usize> {
    window.filter(|window| *window < seq_len)
}

/// Returns the maximum number of keys, including its own, that a query of block `i` sees in sequences of
/// `seq_len` tokens; `None` if it sees all keys before it.
pub(super) fn window(graph: &Graph, i: usize, seq_len: usize) -> Option<usize> {
    let mut in_block = graph.nodes.iter().filter(|node| node.block == Some(i));
    in_block.find_map(|node| match node.operation {
        Operation::Attention { window, .. } => effective_window(window, seq_len),
        _ => None,
    })
}

/// Returns true if any attention has a window in sequences of `seq_len` tokens.
pub(super) fn has_window(graph: &Graph, seq_len: usize) -> bool {
    graph.nodes.iter().any(|node| match node.operation {
        Operation::Attention { window, .. } => effective_window(window, seq_len).is_some(),
        _ => false,
    })
}

/// Returns true if any value is that of an earlier row.
pub(super) fn has_shift(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.operation, Operation::Shift(_)))
}

/// Returns the sequence length at which causal attention without a window has as many query-key pairs per
/// query as block `i`: `seq_len`, or twice the number of keys in the window.
pub fn attended_tokens(graph: &Graph, i: usize, seq_len: usize) -> f64 {
    window(graph, i, seq_len).map_or(seq_len as f64, |window| 2.0 * keys_in_window(window, seq_len))
}
