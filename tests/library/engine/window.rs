//! Sliding windows and caps of scores in whole models.

use crate::engine::gradient;
use crate::engine::harness::Setup;
use xrun::model::flops_per_token;

const KEYS: &[&str] = &["model.window=5", "model.global_interval=2", "model.score_cap=2"];

#[test]
fn gradients_are_those_of_finite_differences() {
    let documents = "data.cross_documents=false";
    for more in [&[][..], &[documents], &["engine.fused=false", "engine.attention=unfused", documents]] {
        gradient::check(&[KEYS, more].concat());
    }
}

#[test]
fn recomputation_placement_and_poison_change_no_bit() {
    for documents in ["data.cross_documents=true", "data.cross_documents=false"] {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let base = ["model.dropout=0.1", "training.accumulation=2", documents, dtype];
            let run = |more: &[&str]| Setup::new(&[KEYS, &base, more].concat()).train_one(3);
            let none = run(&["activation_checkpoint.mode=none"]);
            assert!(none.bad.is_none(), "{documents}, {dtype}: {:?}", none.bad);
            for more in [
                &["activation_checkpoint.mode=full", "engine.placement=naive", "engine.poison=true"][..],
                &["activation_checkpoint.mode=selective", "engine.placement=caching", "engine.poison=true"],
                &["engine.threads=3"],
            ] {
                assert_eq!(run(more).difference(&none), None, "{documents}, {dtype}, {more:?}");
            }
        }
    }
}

#[test]
fn a_window_as_long_as_the_sequence_is_none() {
    let whole = Setup::new(&[]);
    for keys in
        [&["model.window=16"][..], &["model.window=17"], &["model.window=5", "model.global_interval=1"]]
    {
        let setup = Setup::new(keys);
        assert_eq!(setup.listing(), whole.listing(), "{keys:?}");
        assert_eq!(flops_per_token(&setup.plan), flops_per_token(&whole.plan), "{keys:?}");
    }
}

/// One kernel, before the first block, finds the spans for all blocks.
#[test]
fn spans_of_a_window_are_recorded_once() {
    let setup = Setup::new(&["model.window=5", "model.n_layers=3", "activation_checkpoint.mode=full"]);
    let micro = setup.programs.micro_step(0, 1);
    let count = micro.program.nodes.iter().filter(|n| n.op.name() == "window_spans").count();
    assert_eq!(count, 1);
}

/// A query sees min(t + 1, window) keys, in two products, and three times that in a step.
#[test]
fn products_inside_a_window_are_counted() {
    let flops = |keys: &[&str]| flops_per_token(&Setup::new(keys).plan).value;
    let all = flops(&[]);
    let pairs = (0..16).map(|t| 5.min(t + 1)).sum::<usize>() as f64 / 16.0;
    // 4 heads of 16, and 16 tokens; a query sees half of them.
    let (causal, windowed) = (6.0 * 4.0 * 16.0 * 16.0, 12.0 * 4.0 * 16.0 * pairs);
    assert_eq!(flops(&["model.window=5"]), all - 2.0 * (causal - windowed));
    assert_eq!(flops(&["model.window=5", "model.global_interval=2"]), all - (causal - windowed));
}
