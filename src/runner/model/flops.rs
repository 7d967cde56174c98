//! The floating-point operations of a model.

use super::adapters::ModelTensors;
use super::formula::Formula;
use super::window::{attended_tokens, effective_window, window};
use crate::model_text::{Graph, Node, Operation};
use crate::ops::attention::keys_in_window;
use crate::plan::Plan;

/// FLOPs per token for each weight of a matrix product: 2 forward, 2 for the gradient of its rows, and 2 for
/// the gradient of a weight that is trained.
const TRAINED: usize = 6;
const FROZEN: usize = 4;

/// Returns the model FLOPs per token, forward and backward: 6 per weight of every matrix product, plus
/// attention with its causal half counted once. With adapters, 4 per frozen weight, and 6 per weight of an
/// adapter. Recomputed work does not count.
pub fn flops_per_token(plan: &Plan) -> Formula {
    match &plan.adapter {
        None => model_flops(plan, TRAINED),
        Some(_) => {
            let trained = ModelTensors::new(plan).trained;
            let elements = trained.iter().map(|param| param.shape.iter().product::<usize>()).sum();
            model_flops(plan, FROZEN) + Formula::number(TRAINED) * Formula::symbol("A", elements)
        }
    }
}

/// Returns the model FLOPs per token without adapters, for this many per weight of a matrix product.
fn model_flops(plan: &Plan, per_weight: usize) -> Formula {
    let (m, seq_len) = (&plan.model, plan.batch.seq_len);
    if m.definition.is_some() {
        let of_node = |node: &Node| {
            let flops = node_flops(&plan.graph, node, seq_len);
            match node.operation {
                Operation::Linear { .. } => flops * per_weight as f64 / TRAINED as f64,
                _ => flops,
            }
        };
        let flops = plan.graph.nodes.iter().map(of_node);
        return Formula::symbol("the sum over the lines of the model text", flops.sum::<f64>() as usize);
    }
    let n = Formula::number;
    let [l, d, h, kv, hd, ffn, v, t] = [
        ("L", m.n_layers),
        ("d", m.dim),
        ("h", m.n_heads),
        ("kv", m.n_kv_heads),
        ("hd", m.head_dim),
        ("ffn", m.ffn_dim),
        ("V", m.vocab_size),
        ("T", seq_len),
    ]
    .map(|(symbol, value)| Formula::symbol(symbol, value));
    let matrices = if m.activation.is_gated() { 3 } else { 2 };
    let block = n(2) * d.clone() * (h.clone() + kv) * hd.clone() + n(matrices) * d.clone() * ffn;
    let products = n(per_weight) * (l.clone() * block + v * d);
    let windowed = (0..m.n_layers).filter(|i| window(&plan.graph, *i, seq_len).is_some()).collect::<Vec<_>>();
    let Some(&first) = windowed.first() else { return products + n(6) * l * h * hd * t };
    // Blocks that see all keys, and blocks with a window, which see W / 2 keys on average.
    let global = Formula::symbol("G", m.n_layers - windowed.len());
    let rest = Formula::symbol("(L-G)", windowed.len());
    let w = Formula::decimal("W", attended_tokens(&plan.graph, first, seq_len));
    products + n(6) * h * hd * (global * t + rest * w)
}

/// Returns the model FLOPs of an operation per token, forward and backward.
pub(super) fn node_flops(graph: &Graph, node: &Node, seq_len: usize) -> f64 {
    match node.operation {
        Operation::Linear { weight, .. } => (TRAINED * graph.parameters[weight].elements()) as f64,
        Operation::Attention { window, .. } => {
            let keys = match effective_window(window, seq_len) {
                Some(window) => 2.0 * keys_in_window(window, seq_len),
                None => seq_len as f64,
            };
            let [q, v] = [0, 2].map(|input| graph.nodes[node.inputs[input]].shape.width);
            (3 * node.shape.heads * (q + v)) as f64 * keys
        }
        _ => 0.0,
    }
}
