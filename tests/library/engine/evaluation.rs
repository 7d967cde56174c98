//! What evaluations measure besides the loss.

use crate::engine::harness::Setup;
use std::sync::Arc;
use xrun::data::{Batch, IGNORED, LoaderSpec, Shuffle, ValidationBatches};
use xrun::train::Rank;

const ACCURACY: &str = "validation.tasks=[\"next_token_accuracy\"]";

/// Returns the batches of the held-out text on one rank.
fn batches(setup: &Setup) -> Vec<Batch> {
    let batch = &setup.plan.batch;
    let spec = LoaderSpec {
        seq_len: batch.seq_len,
        local_batch_size: batch.micro,
        accumulation: batch.micro_steps,
        ramp: batch.ramp.clone(),
        world_size: 1,
        rank: 0,
        cross_documents: setup.plan.cross_documents,
        shuffle: Shuffle::All,
        seed: setup.plan.seeds.order,
        mixture: Vec::new(),
        start_step: 0,
    };
    let set = setup.dataset.held_out().next().unwrap();
    ValidationBatches::new(&setup.dataset, set, spec, 0).unwrap().collect::<xrun::Result<_>>().unwrap()
}

/// Counts the targets that have the highest logit, with plain loops. Ties go to the first.
fn correct(rank: &mut Rank, batch: &Batch, vocab: usize) -> usize {
    let mut count = 0;
    let see = |_, logits: Vec<f64>| {
        for (row, &target) in logits.chunks(vocab).zip(&batch.targets) {
            let mut best = 0;
            for (token, logit) in row.iter().enumerate() {
                if *logit > row[best] {
                    best = token;
                }
            }
            count += usize::from(target != IGNORED && best == target as usize);
        }
    };
    rank.inspect_batch(batch, &["head.logits.1"], batch.targets.len(), see).unwrap();
    count
}

#[test]
fn accuracy_counts_the_targets_with_the_highest_logit() {
    for fused in ["engine.fused=true", "engine.fused=false"] {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let setup = Setup::new(&[ACCURACY, fused, dtype, "data.corpus=stories"]);
            let plan = Arc::clone(&setup.plan);
            let found = setup.on_ranks(
                |_| Arc::clone(&plan),
                |rank| {
                    for _ in 0..8 {
                        rank.train_step()?;
                    }
                    let evaluated = rank.evaluate(false, |_, _| {})?.sets.remove(0);
                    let expected: usize =
                        batches(&setup).iter().map(|batch| correct(rank, batch, plan.model.vocab_size)).sum();
                    assert!(expected > 0 && (expected as u64) < evaluated.tokens, "{expected}");
                    Ok((evaluated.figures["val_accuracy"], expected as f64 / evaluated.tokens as f64))
                },
            );
            let (accuracy, expected) = found.unwrap()[0];
            assert_eq!(accuracy.to_bits(), expected.to_bits(), "{fused} {dtype}");
        }
    }
}

#[test]
fn any_number_of_ranks_counts_the_same() {
    let evaluated = |settings: &[&str]| {
        let setup = Setup::new(&[&[ACCURACY, "data.validation_tokens=4000"], settings].concat());
        let plan = Arc::clone(&setup.plan);
        let found = setup.on_ranks(|_| Arc::clone(&plan), |rank| rank.evaluate(false, |_, _| {}));
        found.unwrap()
    };
    let alone = evaluated(&[]).remove(0);
    assert!(alone.sets[0].figures["val_accuracy"] > 0.0);
    for ranks in ["parallelism.world_size=2", "parallelism.world_size=3"] {
        for found in evaluated(&[ranks]) {
            let [alone, found] =
                [&alone, &found].map(|found| found.sets[0].figures["val_accuracy"].to_bits());
            assert_eq!(found, alone, "{ranks}");
        }
    }
}

#[test]
fn the_loss_and_the_curve_do_not_know_of_it() {
    let (plain, measured) = (Setup::new(&[]), Setup::new(&[ACCURACY]));
    let [plain, measured] = [plain, measured].map(|setup| setup.train_one(3));
    assert_eq!((plain.curve, plain.val_loss.to_bits()), (measured.curve, measured.val_loss.to_bits()));
}
