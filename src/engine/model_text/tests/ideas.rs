//! Ideas that no key has, each as the lines that it adds to a text.

use super::*;

/// Resolves a text for 4 layers of width 32, 4 query heads and 2 key heads of 8, and 64 tokens.
fn idea(embed: &str, block: &str, head: &str) -> Graph {
    let named = [4.0, 32.0, 4.0, 2.0, 8.0, 64.0, 64.0, 1e-6, 32.0];
    let keys = Keys { named, ..keys() };
    let text = parsed(&text_with(embed, block, head));
    resolve(&text, &keys).unwrap_or_else(|mistake| panic!("{}\n{mistake:?}", text.text()))
}

/// Queries, keys and values of a block, and what follows attention.
const QKV: &str = "  n = rms_norm(x)\n  q = heads(linear(n, 32, name = \"q\"), n_heads)\n  k = heads(linear(n, 16, name = \"k\"), n_kv_heads)\n  \
                   v = heads(linear(n, 16, name = \"v\"), n_kv_heads)\n";
const OUT: &str = "  x = x + linear(attention(rope(q), rope(k), v), dim, name = \"out\")\n";

fn names(graph: &Graph, ending: &str) -> usize {
    graph.parameters.iter().filter(|p| p.name.ends_with(ending)).count()
}

/// Value embeddings with gates in every second layer, per-layer scalars that mix the stream with the
/// embedding, smear and backout, as in nanochat of July 2026.
#[test]
fn value_embeddings_smear_and_backout() {
    let embed = "  gate = sigmoid(linear(slice(x, 0, 24), 1, name = \"smear_gate\"))\n  \
                 x = rms_norm(x + scalar(0, name = \"smear\") * gate * shift(x, 1), weight = false)\n  x0 = x\n";
    let mix = "  x = scalar(1, name = \"resid_lambda\") * x + scalar(0.1, name = \"x0_lambda\") * x0\n";
    let values = "  has_values = layer % 2 == (n_layers - 1) % 2\n  \
                  extra = if has_values then heads(embedding(tokens, n_kv_heads * head_dim, name = \"values\"), n_kv_heads)\n  \
                  mixed = if has_values then heads(2 * sigmoid(linear(slice(n, 0, 32), n_kv_heads, name = \"value_gate\")), n_kv_heads)\n  \
                  v = if has_values then v + mixed * extra\n";
    let head = "  x = x - scalar(0.2, name = \"backout\") * block[floor(n_layers / 2)].x\n";
    let graph = idea(embed, &[mix, QKV, values, OUT].concat(), head);
    assert_eq!((names(&graph, ".values"), names(&graph, ".value_gate"), names(&graph, "_lambda")), (2, 2, 8));
    assert_eq!(graph.nodes.iter().filter(|node| node.operation == Operation::Shift(1)).count(), 1);
}

/// The difference of two attentions whose factor is learned by layer (Ye et al. 2024).
#[test]
fn differential_attention() {
    let block = "  n = rms_norm(x)\n  q = heads(linear(n, 32, name = \"q\"), 8)\n  k = heads(linear(n, 32, name = \"k\"), 8)\n  \
                 v = heads(linear(n, 32, name = \"v\"), 4)\n  \
                 start = 0.8 - 0.6 * exp(-0.3 * layer)\n  \
                 first = sum(vector(4, normal(0.1), name = \"lambda_q1\") * vector(4, normal(0.1), name = \"lambda_k1\"))\n  \
                 second = sum(vector(4, normal(0.1), name = \"lambda_q2\") * vector(4, normal(0.1), name = \"lambda_k2\"))\n  \
                 factor = exp(first) - exp(second) + start\n  \
                 q2 = heads(q, 4)\n  k2 = heads(k, 4)\n  \
                 a = attention(rope(slice(q2, 0, 4)), rope(slice(k2, 0, 4)), v)\n  \
                 b = attention(rope(slice(q2, 4, 8)), rope(slice(k2, 4, 8)), v)\n  \
                 d = (1 - start) * rms_norm(a - factor * b)\n  x = x + linear(d, dim, name = \"out\")\n";
    let graph = idea("", block, "");
    let factors = graph.nodes.iter().filter(|node| node.operation == Operation::Reduce(Reduction::Sum));
    assert!(factors.clone().all(|node| !node.shape.rows && node.shape.elements() == 1));
    assert_eq!(factors.count(), 8);
}

/// Multi-head latent attention: keys and values from few numbers, and a rotated key that all heads share.
#[test]
fn latent_attention() {
    let block = "  n = rms_norm(x)\n  q = heads(linear(n, n_heads * 12, name = \"q\"), n_heads)\n  \
                 q = concat(slice(q, 0, 8), rope(slice(q, 8, 12)))\n  latent = rms_norm(linear(n, 16, name = \"down\"))\n  \
                 kv = heads(linear(latent, n_heads * 24, name = \"kv\"), n_heads)\n  \
                 shared = rope(linear(n, 4, name = \"shared\"))\n  k = concat(slice(kv, 0, 8), shared)\n  \
                 x = x + linear(attention(q, k, slice(kv, 8, 24)), dim, name = \"out\")\n";
    let graph = idea("", block, "");
    let attention =
        graph.nodes.iter().find(|node| matches!(node.operation, Operation::Attention { .. })).unwrap();
    assert_eq!((attention.shape.heads, attention.shape.width), (4, 16));
    assert_eq!(graph.nodes[attention.inputs[1]].shape.width, 12);
}

/// Skips from the first half of the layers to the second, and a gate on what attention returns.
#[test]
fn skips_and_gated_attention() {
    let skip = "  x = if layer >= n_layers / 2 then x + scalar(1, name = \"skip\") * block[n_layers - 1 - layer].x\n";
    let out = "  gate = sigmoid(heads(linear(n, n_heads, init = 0, name = \"gate\"), n_heads))\n  \
               x = x + linear(gate * attention(rope(q), rope(k), v), dim, init = \"residual\", name = \"out\")\n";
    let graph = idea("", &[skip, QKV, out].concat(), "");
    assert_eq!((names(&graph, ".skip"), names(&graph, ".gate")), (2, 4));
}

/// A rotation of half of the pairs, whose frequencies are 1/1024^(i/(n - 1)), and a fixed scale: queries are
/// taken apart, because the engine pairs the first half of what it rotates with the second.
#[test]
fn half_truncated_rotation() {
    let block = "  half = head_dim / 2\n  quarter = head_dim / 4\n  theta = 1024^(quarter / (quarter - 1))\n  \
                 qr = rope(concat(slice(q, 0, quarter), slice(q, half, half + quarter)), theta = theta, width = half)\n  \
                 kr = rope(concat(slice(k, 0, quarter), slice(k, half, half + quarter)), theta = theta, width = half)\n  \
                 q = concat(qr, slice(q, quarter, half), slice(q, half + quarter, head_dim))\n  \
                 k = concat(kr, slice(k, quarter, half), slice(k, half + quarter, head_dim))\n  \
                 x = x + linear(attention(q, k, v, scale = 0.12), dim, name = \"out\")\n";
    let graph = idea("", &[QKV, block].concat(), "  x = 15 * x / sqrt(mean(x^2) + 225)\n");
    let rotations = graph.nodes.iter().filter_map(|node| match node.operation {
        Operation::Rope { theta, width, .. } => Some((theta, width)),
        _ => None,
    });
    assert!(rotations.clone().all(|rotation| rotation == (1024f64 * 1024.0, 4)));
    assert_eq!(rotations.count(), 8);
}

/// Parallel blocks with a window in three of four layers, and norms before and after sublayers.
#[test]
fn windows_and_sandwich_norms() {
    let block = "  window = if (layer + 1) % 4 == 0 then none else 16\n  \
                 out = linear(attention(rope(q), rope(k), v, window = window, cap = 50), dim, name = \"out\")\n  \
                 up = gelu(linear(n, ffn_dim, name = \"up\"))\n  \
                 x = x + layer_norm(out, name = \"after_out\") + layer_norm(linear(up, dim, name = \"down\"), name = \"after_down\")\n";
    let graph = idea("", &[QKV, block].concat(), "");
    let windows: Vec<Option<usize>> = graph
        .nodes
        .iter()
        .filter_map(|node| match node.operation {
            Operation::Attention { window, .. } => Some(window),
            _ => None,
        })
        .collect();
    assert_eq!(windows, [Some(16), Some(16), Some(16), None]);
}
