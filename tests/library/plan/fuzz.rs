//! Whatever a recipe says, a plan is a plan or an error: no panic, no long wait.

use crate::plan::{corpus, device};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use xrun::forecast::{Forecast, RunNeeds, listing};
use xrun::machine::{Machine, hardware};
use xrun::model::Programs;
use xrun::plan::Plan;
use xrun::recipe;

/// Returns how long this thread has had a processor. Other work on the machine does not add to it.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux's times of a thread");
    let nanoseconds = times.split(' ').next().and_then(|time| time.parse().ok());
    Duration::from_nanos(nanoseconds.expect("nanoseconds"))
}

/// One of each size: small enough to be usual, or at the end of what a key takes.
fn size(usual: std::ops::Range<u64>, largest: u64) -> impl Strategy<Value = u64> {
    prop_oneof![8 => usual, 1 => Just(largest), 1 => Just(1)]
}

/// Parts of models, whatever contradicts itself included.
const PARTS: [&str; 42] = [
    "model.norm=layer_norm",
    "model.norm_weight=false",
    "model.norm_bias=true",
    "model.norm_bias=false",
    "model.norm_placement=post",
    "model.norm_placement=sandwich",
    "model.embedding_norm=true",
    "model.parallel_blocks=true",
    "model.activation=geglu",
    "model.activation=reglu",
    "model.activation=gelu",
    "model.activation=gelu_tanh",
    "model.activation=relu2",
    "model.activation=silu",
    "model.activation=x * tanh(softplus(x))",
    "model.activation=cos(a) * b + 1",
    "lr_scheduler.decay=(1 - t)^2",
    "lr_scheduler.decay=2 * t",
    "model.bias=true",
    "model.position=learned",
    "model.position=none",
    "model.rope_fraction=0.25",
    "model.rope_fraction=0.01",
    "model.rope_direction=negative",
    "model.rope_scaling=linear",
    "model.rope_scaling=yarn",
    "model.rope_scaling=llama3",
    "model.rope_factor=8",
    "model.rope_original_context=4096",
    "model.qk_norm_place=after_rope",
    "model.qk_norm_weight=false",
    "model.window=1",
    "model.window=64",
    "model.window=1048576",
    "model.global_interval=2",
    "model.score_cap=50",
    "model.logit_cap=30",
    "model.logit_scale=0.5",
    "model.embedding_scale=8",
    "model.vocab_size=16777216",
    "training.z_loss=1e-4",
    "training.label_smoothing=0.1",
];

fn overrides() -> impl Strategy<Value = Vec<String>> {
    let model = (
        size(1..2048, 65_536),
        1u64..6,
        size(1..8, 16),
        size(1..8, 256),
        size(2..128, 1024),
        size(1..4096, 1 << 20),
    );
    let batch = (
        size(1..512, 1 << 20),
        size(1..64, 1 << 20),
        size(1..8, 1 << 20),
        size(1..1000, 1_000_000_000),
        size(1..9, 65_536),
    );
    let words = (
        prop::sample::select(vec!["bf16", "fp32", "tf32"]),
        prop::sample::select(vec!["none", "emitted", "selective", "full"]),
        prop::sample::select(vec!["arena", "caching", "naive"]),
        prop::sample::select(vec!["flash", "unfused"]),
        prop::sample::select(vec!["batched", "looped"]),
        prop::sample::select(vec!["none", "optimizer"]),
    );
    let flags = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0.0), Just(0.1)],
        size(0..3, 4096),
    );
    let parts = prop::collection::vec(prop::sample::select(PARTS.to_vec()), 0..6);
    (model, batch, words, flags, parts).prop_map(|(m, b, w, f, parts)| {
        let mut overrides: Vec<String> = vec![
            format!("model.dim={}", m.0),
            format!("model.n_layers={}", m.1),
            format!("model.n_heads={}", m.2 * m.3),
            format!("model.n_kv_heads={}", m.3),
            format!("model.head_dim={}", m.4 & !1),
            format!("model.ffn_dim={}", m.5),
            format!("training.seq_len={}", b.0),
            format!("training.local_batch_size={}", b.1),
            format!("training.accumulation={}", b.2),
            format!("training.steps={}", b.3),
            format!("parallelism.world_size={}", b.4),
            format!("training.dtype={}", w.0),
            format!("activation_checkpoint.mode={}", w.1),
            format!("engine.placement={}", w.2),
            format!("engine.attention={}", w.3),
            format!("engine.batching={}", w.4),
            format!("parallelism.shard={}", w.5),
            format!("engine.fused={}", f.0),
            format!("model.qk_norm={}", f.1),
            format!("model.tie_embeddings={}", f.2),
            format!("data.cross_documents={}", f.3),
            format!("model.dropout={}", f.4),
            format!("generation.samples={}", f.5),
            "lr_scheduler.warmup_steps=0".to_owned(),
        ];
        // One value of a key, the last one.
        let mut seen = BTreeSet::new();
        let mut key_is_new = |part: &&str| seen.insert(part.split('=').next().map(str::to_owned));
        overrides.extend(parts.into_iter().filter(|part| key_is_new(part)).map(str::to_owned));
        overrides
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_recipe_is_planned_or_refused(
        overrides in overrides(),
        vocab in prop_oneof![Just(2usize), Just(257), Just(50_257), Just(1 << 22)],
        on in 0..hardware::DEVICES.len(),
    ) {
        let start = processor_time();
        let name = "quickstart".as_ref();
        let Ok(recipe) = recipe::load(name, &overrides, std::iter::empty(), &Machine::none()) else {
            return Ok(());
        };
        let Ok(plan) = Plan::new(&recipe, &corpus(vocab), &Machine::none()) else { return Ok(()) };
        let programs = Programs::new(&plan).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let on = [device(hardware::DEVICES[on].name)];
        let needs = RunNeeds::new(&plan, &programs, &Machine::none(), true);
        let found = Forecast::new(&plan, &programs, needs, &on);
        let found = found.map_err(|e| TestCaseError::fail(e.to_string()))?;
        let json = serde_json::to_value(&found).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(json["memory"]["peak_bytes"].as_u64(), Some(found.memory.peak_bytes as u64));
        prop_assert!(found.to_string().contains("Memory of a rank"));
        prop_assert!(listing::listing(&programs, None, None).is_ok());
        for p in found.on.iter().filter_map(|v| v.step.as_ref()) {
            prop_assert!(p.seconds.is_finite() && p.seconds > 0.0 && p.mfu < 1.0);
        }
        let took = processor_time() - start;
        prop_assert!(took < Duration::from_secs(20), "took {took:?}");
    }
}
