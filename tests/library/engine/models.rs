//! Models of many parts: what must hold for the default model must hold for each of these.

use crate::engine::gradient;
use crate::engine::harness::{Setup, Trained};

const STEPS: usize = 4;

/// A text with what no key says: a window in the first block alone, a bottleneck, products of rows, two
/// widths of the feed-forward layer, functions of halves and of rows, two norms of one sum, a skip from the
/// first block to the head, and a product before it.
const TEXT: &str = "model.definition=
embed:
  x = embedding(tokens, dim, name = \"embedding\")
  q_width = n_heads * head_dim
  kv_width = n_kv_heads * head_dim
block:
  normed = rms_norm(x, weight = layer == 0)
  qkv = linear(normed, q_width, kv_width, kv_width, bias = true)
  q = rope(heads(slice(qkv, 0, q_width), n_heads), theta = 100)
  k = rope(heads(slice(qkv, q_width, q_width + kv_width), n_kv_heads), theta = 100)
  v = heads(slice(qkv, q_width + kv_width, q_width + 2 * kv_width), n_kv_heads)
  attended = attention(q, k, v, window = if layer == 0 then 3 else none, cap = 20, dropout = model.dropout)
  gate = sigmoid(heads(linear(linear(normed, 6, name = \"narrow\"), q_width), n_heads))
  x = x + 0.7 * dropout(linear(2 * gate * attended, dim, init = \"residual\", name = \"out\"))
  width = if layer == 0 then 40 else 24
  halves = linear(layer_norm(x), width, stack = 2, init = normal(0.3))
  hidden = sin(slice(halves, 0, width)) * slice(halves, width, 2 * width)
  hidden = hidden + 0.1 * tanh(hidden) ^ 2
  mixed = linear(rms_norm(x), dim, init = normal(0.1))
  x = x + (linear(hidden, dim, init = \"residual\", name = \"down\") + mixed)
head:
  x = linear(rms_norm(x + 0.5 * block[0].x), 40)
  logits = 20 * tanh(model.logit_scale * linear(x, vocab_size) / 20)";

/// Sets of keys that together have every part of a model at least once.
pub const MODELS: [(&str, &[&str]); 9] = [
    ("text", &[TEXT, "model.logit_scale=0.8"]),
    (
        "gpt2",
        &[
            "model.norm=layer_norm",
            "model.bias=true",
            "model.activation=gelu_tanh",
            "model.position=learned",
            "model.qk_norm=false",
            "model.tie_embeddings=true",
            "model.init_std=0.02",
        ],
    ),
    (
        "nanochat",
        &[
            "model.norm_weight=false",
            "model.embedding_norm=true",
            "model.activation=relu2",
            "model.qk_norm_place=after_rope",
            "model.qk_norm_weight=false",
            "model.rope_direction=negative",
            "model.logit_cap=15",
        ],
    ),
    (
        "sandwich and windows",
        &[
            "model.norm_placement=sandwich",
            "model.activation=geglu_tanh",
            "model.window=5",
            "model.global_interval=2",
            "model.score_cap=20",
            "model.logit_cap=30",
            "model.embedding_scale=5.6",
            "model.tie_embeddings=true",
        ],
    ),
    (
        "parallel blocks",
        &[
            "model.parallel_blocks=true",
            "model.norm=layer_norm",
            "model.bias=true",
            "model.activation=gelu",
            "model.rope_fraction=0.5",
            "model.qk_norm=false",
            "training.z_loss=1e-3",
            "training.label_smoothing=0.1",
        ],
    ),
    (
        "norms after sublayers",
        &[
            "model.norm_placement=post",
            "model.norm=layer_norm",
            "model.norm_bias=false",
            "model.position=learned",
            "model.activation=reglu",
        ],
    ),
    (
        "yarn",
        &[
            "model.rope_scaling=yarn",
            "model.rope_factor=4",
            "model.rope_original_context=8",
            "model.activation=silu",
            "model.qk_norm_place=after_rope",
        ],
    ),
    (
        "llama3",
        &[
            "model.rope_scaling=llama3",
            "model.rope_factor=8",
            "model.rope_original_context=8",
            "model.qk_norm_weight=false",
            "model.activation=geglu",
            "model.logit_scale=0.5",
            "model.window=3",
        ],
    ),
    (
        "no positions",
        &[
            "model.position=none",
            "model.activation=relu(a)^2 * b + 0.1 * sin(a) * tanh(b)",
            "model.norm=layer_norm",
            "model.norm_weight=false",
            "model.norm_bias=false",
            "model.score_cap=10",
            "model.residual_init=unscaled",
            "model.vocab_size=300",
        ],
    ),
];

fn train(keys: &[&str], more: &[&str]) -> Vec<Trained> {
    Setup::new(&[keys, more].concat()).train(STEPS)
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for (_, keys) in MODELS {
        gradient::check(keys);
        gradient::check(&[keys, &["engine.fused=false", "engine.attention=unfused"]].concat());
    }
}

#[test]
fn recomputation_placement_and_poison_change_no_bit() {
    let base = ["model.dropout=0.1", "data.cross_documents=false", "training.accumulation=2"];
    for (name, keys) in MODELS {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let run = |more: &[&str]| train(&[keys, &base, &[dtype]].concat(), more).remove(0);
            let none = run(&["activation_checkpoint.mode=none"]);
            assert!(none.bad.is_none(), "{name}, {dtype}: {:?}", none.bad);
            for more in [
                &["activation_checkpoint.mode=emitted", "engine.poison=true"][..],
                &["activation_checkpoint.mode=selective", "engine.placement=caching", "engine.poison=true"],
                &["activation_checkpoint.mode=full", "engine.placement=naive", "engine.poison=true"],
                &["engine.threads=3"],
            ] {
                assert_eq!(run(more).difference(&none), None, "{name}, {dtype}, {more:?}");
            }
        }
    }
}

/// Fused ops round less often than the ops they combine.
#[test]
fn unfused_programs_have_the_same_losses_but_for_rounding() {
    for (name, keys) in MODELS {
        let fused = train(keys, &[]).remove(0).losses();
        let unfused = train(keys, &["engine.fused=false", "engine.attention=unfused"]).remove(0).losses();
        for (a, b) in fused.iter().zip(&unfused) {
            assert!((a - b).abs() <= 2e-5 * b.abs(), "{name}: {fused:?} and {unfused:?}");
        }
    }
}

#[test]
fn ranks_agree_and_a_sharded_optimizer_changes_no_bit() {
    for (name, keys) in MODELS {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let run = |more: &[&str]| train(keys, &[&["parallelism.world_size=2", dtype], more].concat());
            let [whole, sharded] = [&[][..], &["parallelism.shard=optimizer"]].map(run);
            for rank in whole.iter().chain(&sharded) {
                assert_eq!(rank.difference(&whole[0]), None, "{name}, {dtype}");
            }
        }
    }
}

#[test]
fn one_rank_and_two_have_the_same_curve() {
    for (name, keys) in MODELS {
        let batch = "training.global_batch_size=16";
        let one = train(keys, &[batch]).remove(0);
        let two = train(keys, &[batch, "parallelism.world_size=2"]).remove(0);
        assert!(one.distance(&two) < 1e-3, "{name}: parameters are {} apart", one.distance(&two));
        for (a, b) in one.losses().iter().zip(two.losses()) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{name}: {a} and {b}");
        }
    }
}
