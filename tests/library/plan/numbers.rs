//! Parameters, FLOPs, tokens: against sums written out by hand.

use crate::plan::{device, forecast, plan};
use xrun::device::cuda::{Algorithms, algorithms};
use xrun::device::gpu::{Collector, Properties};
use xrun::forecast::time::predicted_step_ms;
use xrun::recipe::builtin;

/// Dimensions of a shipped recipe, as its file says.
struct Dims {
    d: usize,
    layers: usize,
    heads: usize,
    kv: usize,
    head_dim: usize,
    ffn: usize,
    seq: usize,
    vocab: usize,
}

const GPT2: usize = 50_257;

const SHIPPED: [(&str, Dims); 9] = [
    ("quickstart", Dims { d: 128, layers: 4, heads: 4, kv: 4, head_dim: 32, ffn: 384, seq: 128, vocab: 511 }),
    (
        "dim384",
        Dims { d: 384, layers: 12, heads: 12, kv: 12, head_dim: 32, ffn: 1536, seq: 256, vocab: GPT2 },
    ),
    (
        "width-transfer",
        Dims { d: 128, layers: 4, heads: 4, kv: 4, head_dim: 32, ffn: 384, seq: 128, vocab: 511 },
    ),
    (
        "dim768",
        Dims { d: 768, layers: 18, heads: 24, kv: 24, head_dim: 32, ffn: 2048, seq: 256, vocab: GPT2 },
    ),
    (
        "v8-dim1024",
        Dims { d: 1024, layers: 18, heads: 32, kv: 32, head_dim: 32, ffn: 2730, seq: 256, vocab: GPT2 },
    ),
    (
        "base-160m",
        Dims { d: 768, layers: 12, heads: 12, kv: 12, head_dim: 64, ffn: 2048, seq: 1024, vocab: GPT2 },
    ),
    (
        "qwen3-0.6b-shape",
        Dims { d: 1024, layers: 28, heads: 16, kv: 8, head_dim: 128, ffn: 3072, seq: 2048, vocab: GPT2 },
    ),
    (
        "long-context",
        Dims { d: 768, layers: 12, heads: 12, kv: 12, head_dim: 64, ffn: 2048, seq: 4096, vocab: GPT2 },
    ),
    (
        "v9-full-stack",
        Dims { d: 768, layers: 18, heads: 24, kv: 8, head_dim: 32, ffn: 2048, seq: 256, vocab: GPT2 },
    ),
];

/// Families with the vocabulary of their tokenizer and the parameters that transformers counts
/// (`num_parameters` of the class with the family's configuration; of nanochat, which has no published model
/// of this size, by its formula).
const FAMILIES: [(&str, usize, usize); 4] = [
    ("gpt2-124m", GPT2, 124_439_808),
    ("smollm2-135m", 257, 134_515_008),
    ("qwen3-0.6b", GPT2, 596_049_920),
    ("nanochat-d12", GPT2, 2 * 65_536 * 768 + 12 * (4 * 768 * 768 + 2 * 768 * 3072)),
];

#[test]
fn families_have_as_many_parameters_as_their_classes() {
    for (name, vocab, parameters) in FAMILIES {
        let found = forecast(&plan(name, &[], vocab), &[]);
        assert_eq!(found.parameters.total, parameters, "{name}");
        assert_eq!(found.needs.disk.checkpoint_bytes, 12 * parameters as u64, "{name}");
    }
}

#[test]
fn every_shipped_recipe_is_counted() {
    let is_counted = |name| {
        SHIPPED.iter().any(|(known, _)| *known == name) || FAMILIES.iter().any(|(known, ..)| *known == name)
    };
    assert!(builtin::names().all(is_counted));
    for (name, Dims { d, layers, heads, kv, head_dim, ffn, seq, vocab }) in SHIPPED {
        let found = forecast(&plan(name, &[], vocab), &[]);
        let p = found.parameters;
        let per_block_attention = d * (heads + 2 * kv) * head_dim + heads * head_dim * d;
        assert_eq!((p.embedding, p.head), (vocab * d, vocab * d), "{name}");
        assert_eq!(p.attention, layers * per_block_attention, "{name}");
        assert_eq!(p.ffn, layers * 3 * d * ffn, "{name}");
        assert_eq!(p.norms, layers * 2 * (d + head_dim) + d, "{name}");
        assert_eq!(p.core, p.attention + p.ffn + p.norms, "{name}");
        assert_eq!(p.total, p.core + 2 * vocab * d, "{name}");
        // Six per weight of a product, and causal attention: two products of T/2 pairs, thrice.
        let products = layers * (per_block_attention + 3 * d * ffn) + vocab * d;
        let attention = layers * 3 * 2 * 2 * (seq / 2) * heads * head_dim;
        assert_eq!(found.flops.value, (6 * products + attention) as f64, "{name}");
        assert_eq!(found.needs.disk.checkpoint_bytes, 12 * p.total as u64, "{name}");
    }
}

#[test]
fn the_large_recipe_has_226_million_core_parameters() {
    let found = forecast(&plan("v8-dim1024", &[], GPT2), &[]);
    assert_eq!(found.parameters.core, 226_494_592);
    assert_eq!(found.parameters.total, 329_420_928);
    assert!((found.vocabulary_share - 0.3125).abs() < 0.0005);
    assert_eq!(
        found.flops.numbers,
        "6·(18·(2·1,024·(32+32)·32 + 3·1,024·2,730) + 50,257·1,024) + 6·18·32·32·256"
    );
}

#[test]
fn a_small_model_on_a_large_vocabulary_is_told_so() {
    let small = forecast(&plan("dim384", &[], GPT2), &[]);
    assert!(small.remarks[0].contains("mostly embedding"));
    assert_eq!(forecast(&plan("quickstart", &[], 511), &[]).remarks, Vec::<String>::new());
    // Widths that do not fit the stream's, each with a sentence.
    let remarks = |settings: &[&str]| forecast(&plan("quickstart", settings, 511), &[]).remarks;
    assert_eq!(remarks(&["model.dim=512"]), Vec::<String>::new(), "both follow from dim");
    let narrow = remarks(&["model.dim=512", "model.ffn_dim=384", "model.n_heads=4"]);
    assert!(narrow[0].contains("narrower than the stream (512)"), "{narrow:?}");
    assert!(narrow[0].contains("model.ffn_dim") && narrow[0].ends_with("1536"), "{narrow:?}");
    assert!(narrow[1].contains("attend to 128"), "{narrow:?}");
    let tied = forecast(&plan("dim384", &["model.tie_embeddings=true"], GPT2), &[]);
    assert_eq!(tied.parameters.head, 0);
    assert_eq!(small.parameters.total - tied.parameters.total, GPT2 * 384);
}

#[test]
fn batches_and_tokens() {
    let found = forecast(&plan("v9-full-stack", &["parallelism.world_size=1"], GPT2), &[]);
    let b = &found.batch;
    assert_eq!((b.world, b.local, b.accumulation, b.global, b.scaling), (1, 8, 4, 32, "strong"));
    let weak = forecast(&plan("dim768", &["parallelism.world_size=4", "training.accumulation=2"], GPT2), &[]);
    let (b, t) = (&weak.batch, &weak.training);
    assert_eq!((b.world, b.local, b.accumulation, b.global, b.scaling), (4, 32, 2, 256, "weak"));
    assert_eq!((t.tokens_per_step, t.steps, t.tokens), (65_536, 1000, 65_536_000));
    // Of the million tokens, whole windows reach this many.
    let reached = 999_936.0;
    assert_eq!((t.passes, t.floor), (65_536_000.0 / reached, Some(1.25)));
    assert_eq!((t.left_out, t.left_out_by_turns), (Some(63), false));
}

/// Stages of a ramp have their own tokens and times; the step of a forecast is a full one.
#[test]
fn a_ramp_is_counted_stage_by_stage() {
    let h200 = device("h200");
    let of = |ramp: &str| {
        let overrides = ["training.accumulation=4", "training.steps=10", ramp];
        forecast(&plan("dim768", &overrides, GPT2), std::slice::from_ref(&h200))
    };
    let (plain, ramped) = (of("training.batch_ramp=[]"), of("training.batch_ramp=[[2, 32], [5, 64]]"));
    assert!(plain.batch.stages.is_empty());
    let stages: Vec<_> =
        ramped.batch.stages.iter().map(|stage| (stage.steps, stage.sequences, stage.micro_steps)).collect();
    assert_eq!(stages, [(2, 32, 1), (3, 64, 2), (5, 128, 4)]);
    let per_sequence = plain.training.tokens_per_step / 128;
    assert_eq!(ramped.training.tokens, (2 * 32 + 3 * 64 + 5 * 128) * per_sequence);
    assert_eq!(ramped.training.tokens_per_step, plain.training.tokens_per_step);
    assert!((ramped.training.passes / plain.training.passes - 896.0 / 1280.0).abs() < 1e-12);
    let step = |found: &xrun::forecast::Forecast| found.on[0].step.clone().expect("a prediction");
    let (plain, ramped) = (step(&plain), step(&ramped));
    assert!((ramped.seconds / plain.seconds - 1.0).abs() < 1e-6);
    let optimizer = plain.phases.iter().find(|p| p.phase == "optimizer").expect("always there").seconds;
    let micro_step = (plain.seconds - optimizer) / 4.0;
    let expected = 10.0 * optimizer + f64::from(2 + 3 * 2 + 5 * 4) * micro_step;
    assert!((ramped.training_seconds / expected - 1.0).abs() < 1e-6, "{}", ramped.training_seconds);
}

/// The prediction of a step is a sum over its nodes, and the bound that it claims to be.
#[test]
fn step_time_is_bound_by_products_and_memory() {
    let h200 = device("h200");
    let limits = h200.hardware.and_then(|hardware| hardware.limits).expect("known");
    let step = |overrides: &[&str]| {
        let found = forecast(&plan("dim768", overrides, GPT2), std::slice::from_ref(&h200));
        found.on[0].step.clone().expect("a prediction")
    };
    let one = step(&[]);
    let flops: f64 = one.phases.iter().map(|p| p.product_flops).sum();
    let bytes: f64 = one.phases.iter().map(|p| p.bytes).sum();
    assert!(one.seconds >= flops / (limits.bf16 * 0.69) && one.seconds >= bytes / (limits.bandwidth * 0.89));
    assert!(one.seconds <= flops / (limits.bf16 * 0.69) + bytes / (limits.bandwidth * 0.89));
    assert!((one.seconds * one.tokens_per_second - 8192.0).abs() < 1e-6);
    assert!(one.mfu < 0.69, "products alone cannot be faster than what they reach");
    // Recomputing whole blocks costs about another forward, and no model FLOPs.
    let full = step(&["activation_checkpoint.mode=full"]);
    // What a run stores beside the measured time is the same figure.
    let base = plan("dim768", &[], GPT2);
    let programs = xrun::model::Programs::new(&base).expect("programs");
    assert_eq!(predicted_step_ms(&base, &programs, "NVIDIA H200"), Some(1e3 * one.seconds));
    assert_eq!(predicted_step_ms(&base, &programs, "NVIDIA H200 NVL"), None, "its limits are not known");
    assert!(full.seconds > 1.15 * one.seconds && full.mfu < one.mfu);
    // Two micro-steps take twice the time but for the optimizer; four, four times.
    let optimizer = |s: &xrun::forecast::StepTime| {
        s.phases.iter().find(|p| p.phase == "optimizer").expect("always there").seconds
    };
    for n in [2, 3, 4] {
        let many = step(&[&format!("training.accumulation={n}")]);
        let expected = f64::from(n) * (one.seconds - optimizer(&one)) + optimizer(&one);
        assert!((many.seconds / expected - 1.0).abs() < 1e-9, "{n} micro-steps");
    }
    assert_eq!(step(&["training.dtype=fp32"]).products, "fp32");
    let (tf32, fp32) = (step(&["training.dtype=tf32"]), step(&["training.dtype=fp32"]));
    assert_eq!(tf32.products, "tf32");
    assert!(tf32.seconds < fp32.seconds);
}

#[test]
fn the_state_of_the_optimizer_is_planned_as_it_is() {
    let of = |overrides: &[&str]| {
        let plan = plan("quickstart", overrides, 512);
        let forecast = forecast(&plan, &[]);
        let state: Vec<String> = forecast.memory.state.iter().map(|buffer| buffer.name.clone()).collect();
        (
            forecast.parameters.total,
            forecast.needs.disk.checkpoint_bytes as usize,
            state,
            forecast.to_string(),
        )
    };
    let (count, bytes, state, text) = of(&[]);
    assert_eq!(bytes, 12 * count);
    assert!(state.iter().any(|name| name == "v") && text.contains("× 12 B (fp32 weight and two moments)"));
    let (_, bytes, state, text) = of(&["optimizer.name=sgd"]);
    assert_eq!(bytes, 8 * count);
    assert!(state.iter().any(|name| name == "momentum") && !state.iter().any(|name| name == "v"));
    assert!(text.contains("× 8 B (fp32 weight and momentum)"), "{text}");
    let (_, bytes, state, text) = of(&["optimizer.name=sgd", "optimizer.momentum=0"]);
    assert_eq!(bytes, 4 * count);
    assert!(!state.iter().any(|name| name == "momentum") && text.contains("× 4 B (fp32 weight)"));
}

#[test]
fn groups_of_parameters_are_planned_each_by_its_rule() {
    let groups = ["optimizer.groups.embedding.lr=0.1", "optimizer.groups.matrix.name=sgd"];
    let found = forecast(&plan("quickstart", &groups, 512), &[]);
    let of = |roles: &str| found.update_groups.iter().find(|group| group.roles == roles).expect(roles);
    let (embedding, matrix) = (of("embedding"), of("matrix"));
    let others = found.update_groups.iter().find(|group| group.roles.ends_with("vector")).unwrap();
    assert_eq!(found.update_groups.len(), 3);
    assert_eq!((embedding.lr, embedding.parameters), (0.1, found.parameters.embedding));
    assert_eq!(matrix.parameters, found.parameters.attention + found.parameters.ffn);
    assert_eq!(others.parameters, found.parameters.head + found.parameters.norms);
    // A momentum of matrices, and two moments of all others, beside the weights.
    let total = found.parameters.total;
    let bytes = 4 * (total + matrix.parameters + 2 * (total - matrix.parameters));
    assert_eq!(found.needs.disk.checkpoint_bytes, bytes as u64);
    assert_eq!(found.checkpoint_bytes_per_parameter, None);
    let kept: usize = found
        .memory
        .state
        .iter()
        .filter(|buffer| ["m.", "v.", "momentum."].iter().any(|slot| buffer.name.starts_with(slot)))
        .map(|buffer| buffer.bytes)
        .sum();
    assert_eq!(kept, found.update_groups.iter().map(|group| group.state_bytes).sum::<usize>());
    let text = found.to_string();
    for part in [
        "Updates  a rule for each group of parameters",
        "sgd momentum=0.9 weight_decay=0.1",
        "coupled, of matrix",
        "× 4 B (momentum of matrix)",
        "× 8 B (two moments of embedding)",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

/// Steps without recompute as one H200 took them, in milliseconds: `results/measured/nvidia-h200-2026-11-23`
/// and, for the last two, the runs of 2026-11-21 in docs/gpu-notes.md.
const MEASURED_STEP_MS: [(&str, f64); 6] = [
    ("base-160m", 28.65),
    ("long-context", 35.53),
    ("qwen3-0.6b-shape", 125.86),
    ("v8-dim1024", 30.75),
    ("dim768", 19.77),
    ("dim384", 7.06),
];

#[test]
fn predicted_steps_are_within_a_tenth_of_measured_ones() {
    for (name, measured) in MEASURED_STEP_MS {
        let plan = plan(name, &["activation_checkpoint.mode=none"], GPT2);
        let predicted = predicted_step_ms(&plan, &crate::plan::programs(&plan), "NVIDIA H200")
            .expect("its limits are known");
        let ratio = predicted / measured;
        assert!((0.9..=1.1).contains(&ratio), "{name}: {predicted} ms predicted, {measured} measured");
    }
}

#[test]
fn products_of_recipes_that_are_timed_have_algorithms_for_an_h200() {
    let table = include_str!("../../../data/algorithms/nvidia-h200-130100.json");
    let table = Algorithms::from_json(table).expect("a table");
    let missing = |name: &str, keys: &[&str]| -> Vec<String> {
        let collector = Collector::new(Properties::for_architecture((9, 0)));
        crate::plan::programs(&plan(name, keys, GPT2)).collect_steps(&collector).expect("ops have kernels");
        let products = collector.into_requests().products;
        products.iter().map(algorithms::key).filter(|key| !table.products.contains_key(key)).collect()
    };
    for (name, _) in MEASURED_STEP_MS {
        assert_eq!(missing(name, &[]), [""; 0], "{name}: xrun ops tune {name} --missing --write FILE");
    }
    // 8,224 rows that no recipe has: 12 products of blocks, and 3 of the head's last chunk.
    assert_eq!(missing("dim384", &["training.seq_len=257"]).len(), 15);
}
