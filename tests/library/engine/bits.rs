//! What must not change any bit of losses, gradient norms, parameters or moments.

use crate::engine::harness::{Setup, Trained};

const STEPS: usize = 8;

/// With dropout, documents within windows, and accumulation, so that gradients are both written and added to.
const BASE: [&str; 4] = [
    "model.dropout=0.1",
    "data.cross_documents=false",
    "training.local_batch_size=4",
    "training.accumulation=2",
];

fn train(dtype: &str, overrides: &[&str]) -> Trained {
    let dtype = format!("training.dtype={dtype}");
    Setup::new(&[&BASE[..], &[&dtype], overrides].concat()).train_one(STEPS)
}

fn hold_still(variants: &[&[&str]]) {
    for dtype in ["fp32", "bf16"] {
        let base = train(dtype, &[]);
        assert!(base.bad.is_none() && base.curve.len() == STEPS);
        let (first, last) = (base.losses()[0], base.losses()[STEPS - 1]);
        assert!(last < first, "{dtype}: it trains, from {first} to {last}");
        for variant in variants {
            let difference = train(dtype, variant).difference(&base);
            assert_eq!(difference, None, "{dtype} {variant:?}");
        }
    }
}

#[test]
fn a_rerun() {
    hold_still(&[&[]]);
}

/// Under every instruction set, products are one chain of multiply-adds per element, and other sums have a
/// fixed tree.
#[test]
fn instruction_sets() {
    for dtype in ["fp32", "bf16"] {
        let base = train(dtype, &[]);
        let setup = Setup::new(&[&BASE[..], &[&format!("training.dtype={dtype}")]].concat());
        let sets = vec![pulp::Arch::Scalar];
        #[cfg(target_arch = "x86_64")]
        let sets = [sets, pulp::x86::V3::try_new().map(pulp::Arch::V3).into_iter().collect()].concat();
        for arch in sets {
            let difference = setup.train_with_instructions(STEPS, arch).difference(&base);
            assert_eq!(difference, None, "{dtype} {arch:?}");
        }
    }
}

#[test]
fn recomputation() {
    hold_still(&[
        &["activation_checkpoint.mode=none"],
        &["activation_checkpoint.mode=emitted", "engine.poison=true"],
        &["activation_checkpoint.mode=selective", "engine.poison=true"],
        &["activation_checkpoint.mode=full"],
        &["activation_checkpoint.mode=full", "engine.poison=true"],
    ]);
}

/// Unfused programs record other tensors, which recomputation computes in another order.
#[test]
fn recomputation_of_unfused_ops() {
    let unfused = ["engine.fused=false", "engine.attention=unfused"];
    for dtype in ["fp32", "bf16"] {
        let run = |mode: &str| train(dtype, &[&unfused[..], &[mode]].concat());
        let none = run("activation_checkpoint.mode=none");
        for mode in ["emitted", "selective", "full"].map(|mode| format!("activation_checkpoint.mode={mode}"))
        {
            assert_eq!(run(&mode).difference(&none), None, "{dtype} {mode}");
        }
    }
}

#[test]
fn recomputation_with_layer_norm() {
    for dtype in ["fp32", "bf16"] {
        let run = |more: &[&str]| train(dtype, &[&["model.norm=layer_norm"], more].concat());
        let none = run(&["activation_checkpoint.mode=none"]);
        for mode in ["emitted", "selective", "full"].map(|mode| format!("activation_checkpoint.mode={mode}"))
        {
            assert_eq!(run(&[mode.as_str(), "engine.poison=true"]).difference(&none), None, "{dtype} {mode}");
        }
    }
}

#[test]
fn placement_and_poison() {
    hold_still(&[
        &["engine.poison=true"],
        &["engine.placement=caching"],
        &["engine.placement=caching", "engine.poison=true"],
        &["engine.placement=naive"],
        &["engine.placement=naive", "engine.poison=true"],
    ]);
}

#[test]
fn threads() {
    hold_still(&[&["engine.threads=1"], &["engine.threads=3"], &["engine.threads=5"]]);
}

/// `training.seed` decides initial values, order and masks, and nothing else.
#[test]
fn seeds_of_parts() {
    hold_still(&[&["training.seed=4", "seeds.init=3", "seeds.order=3", "seeds.dropout=3"]]);
    let all = train("fp32", &["training.seed=4"]);
    let parts = ["seeds.init=4", "seeds.order=4", "seeds.dropout=4"];
    assert_eq!(train("fp32", &parts).difference(&all), None);
    for missing in 0..parts.len() {
        let others: Vec<&str> = (0..parts.len()).filter(|&i| i != missing).map(|i| parts[i]).collect();
        assert!(train("fp32", &others).difference(&all).is_some(), "without {}", parts[missing]);
    }
}

/// The comparison itself detects a single flipped bit.
#[test]
fn a_difference_is_seen() {
    let base = train("fp32", &[]);
    let other = train("fp32", &["training.seed=4"]);
    assert!(other.difference(&base).is_some_and(|d| d.starts_with("step 1: ")));
    let mut flipped = base.clone();
    flipped.tensors[3].1[5] ^= 1;
    assert!(flipped.difference(&base).is_some_and(|d| d.contains(&base.tensors[3].0)));
}
