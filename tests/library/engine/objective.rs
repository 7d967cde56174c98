//! The terms of an objective besides cross-entropy: they are sums over the whole batch, however it is split,
//! and are not part of the losses that runs are compared by.

use crate::engine::harness::{Setup, relative};
use xrun::ir::ControlSlot;

const TERMS: [&str; 2] = ["training.z_loss=0.01", "training.label_smoothing=0.1"];

/// Returns loss, z-loss and smoothing loss of two steps, which must be the same on every rank.
fn steps(overrides: &[&str]) -> [[f32; 3]; 2] {
    let setup = Setup::new(&[&["training.global_batch_size=32"], &TERMS[..], overrides].concat());
    let steps = setup.on_ranks(
        |_| std::sync::Arc::clone(&setup.plan),
        |rank| {
            let mut step = || {
                let report = rank.train_step()?;
                let term = |term: Option<f32>| term.expect("the objective has the term");
                Ok([report.loss, term(report.z_loss), term(report.smoothing_loss)])
            };
            Ok([step()?, step()?])
        },
    );
    let steps = steps.unwrap();
    assert!(steps.iter().all(|rank| *rank == steps[0]), "{overrides:?}: ranks differ: {steps:?}");
    steps[0]
}

#[test]
fn terms_are_of_the_whole_batch_however_it_is_split() {
    let whole = steps(&["training.local_batch_size=32"]);
    assert!(whole.iter().flatten().all(|loss| *loss != 0.0), "{whole:?}");
    for split in [
        &["training.local_batch_size=8", "training.accumulation=4"][..],
        &["training.local_batch_size=16", "parallelism.world_size=2"],
        &["training.local_batch_size=8", "parallelism.world_size=2", "parallelism.shard=optimizer"],
        &["training.local_batch_size=8", "parallelism.world_size=4", "parallelism.reduction=grouped"],
        &["training.local_batch_size=32", "engine.fused=false"],
    ] {
        for (found, whole) in steps(split).into_iter().zip(whole) {
            for (found, whole) in found.into_iter().zip(whole) {
                let apart = relative(found.into(), whole.into());
                assert!(apart <= 1e-5, "{split:?}: {found} and {whole}");
            }
        }
    }
}

/// Before anything is learned, training and held-out losses equal plain cross-entropy to the bit.
#[test]
fn losses_are_those_of_plain_cross_entropy() {
    let plain = Setup::new(&[]).train_one(1);
    let more = Setup::new(&TERMS).train_one(1);
    assert_eq!(plain.curve[0].0.to_bits(), more.curve[0].0.to_bits());
    assert_ne!(plain.curve[0].1, more.curve[0].1, "gradients are of the whole objective");
    let [plain, more] = [&[][..], &TERMS].map(|terms| Setup::new(terms).train_one(0).val_loss);
    assert_eq!(plain.to_bits(), more.to_bits());
}

/// A term is measured only if the objective has it; otherwise the state has no number for it.
#[test]
fn terms_that_are_not_trained_for_are_not_measured() {
    for (set, expected) in [(&[][..], [false; 2]), (&TERMS[..1], [true, false]), (&TERMS[1..], [false, true])]
    {
        let setup = Setup::new(set);
        let slots = [ControlSlot::ZLoss, ControlSlot::SmoothingLoss];
        assert_eq!(slots.map(|slot| setup.programs.state.slot(slot).is_some()), expected, "{set:?}");
        let reports = setup.on_ranks(|_| std::sync::Arc::clone(&setup.plan), |rank| rank.train_step());
        let report = reports.unwrap().remove(0);
        assert_eq!([report.z_loss.is_some(), report.smoothing_loss.is_some()], expected, "{set:?}");
    }
}
