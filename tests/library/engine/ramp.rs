//! A ramp of the batch: whole micro-steps of one program, and the sequences of a run in one order.

use crate::engine::harness::{Setup, Trained, relative};
use std::collections::BTreeMap;
use xrun::checkpoint::{Meta, Store, newest};
use xrun::device::DType;
use xrun::ir::Precision;

const STEPS: usize = 6;

/// Three batch sizes in six steps, with 1, 2 and 4 micro-steps over all ranks, and with every term of the
/// objective.
const RAMP: [&str; 5] = [
    "training.global_batch_size=32",
    "training.batch_ramp=[[2, 8], [4, 16]]",
    "model.dropout=0.1",
    "training.z_loss=0.01",
    "training.label_smoothing=0.1",
];

/// Ways to run the ramp: formats, fused or not, ranks, sharded optimizer.
const WAYS: [&[&str]; 6] = [
    &["training.local_batch_size=8"],
    &["training.local_batch_size=8", "training.dtype=bf16"],
    &["training.local_batch_size=4", "engine.fused=false", "engine.batching=looped"],
    &["training.local_batch_size=4", "parallelism.world_size=2"],
    &[
        "training.local_batch_size=4",
        "parallelism.world_size=2",
        "parallelism.shard=optimizer",
        "training.dtype=bf16",
    ],
    &["training.local_batch_size=2", "parallelism.world_size=4", "parallelism.reduction=grouped"],
];

fn train(settings: &[&[&str]]) -> Vec<Trained> {
    let trained = Setup::new(&settings.concat()).train(STEPS);
    assert!(trained.iter().all(|rank| rank.difference(&trained[0]).is_none()), "{settings:?}");
    trained
}

#[test]
fn a_ramp_of_the_full_batch_has_the_bits_of_none() {
    for way in WAYS {
        let [plain, ramped] = ["[]", "[[1, 32], [4, 32]]"].map(|ramp| {
            let ramp = format!("training.batch_ramp={ramp}");
            train(&[&RAMP[..1], &[&ramp], &RAMP[2..], way]).remove(0)
        });
        assert_eq!(ramped.difference(&plain), None, "{way:?}");
    }
}

#[test]
fn in_f64_too() {
    let [plain, ramped] = ["[]", "[[4, 32]]"].map(|ramp| {
        let ramp = format!("training.batch_ramp={ramp}");
        let settings = [&RAMP[..1], &[&ramp], &RAMP[2..], WAYS[0]].concat();
        let in_f64 = Setup::planned(&settings, |plan| plan.precision = Precision::for_act_dtype(DType::F64));
        in_f64.train_one(STEPS)
    });
    assert_eq!(ramped.difference(&plain), None);
}

/// The first stage equals a training with its batch: the same sequences, mean loss and updates. If every step
/// is one micro-step, ranks exchange the embedding's gradient by rows, and so add in another order.
#[test]
fn a_stage_is_a_training_with_its_batch() {
    for way in [WAYS[0], WAYS[1], WAYS[3], WAYS[4]] {
        let small = ["training.global_batch_size=8"];
        let way = &[way, &["parallelism.embedding_exchange=false"]].concat()[..];
        let [small, ramped] = [&[&small[..], &RAMP[2..], way], &[&RAMP[..], way, &[]]]
            .map(|settings| Setup::new(&settings.concat()).train(2).remove(0));
        assert_eq!(ramped.curve, small.curve, "{way:?}");
        assert!(ramped.tensors == small.tensors, "{way:?}: other parameters");
    }
}

/// However a step is divided into ranks and micro-steps, it is the same step, up to the order of sums.
#[test]
fn however_it_is_divided_the_steps_are_the_same() {
    let first = train(&[&RAMP, WAYS[0]]).remove(0);
    let plain = train(&[&RAMP[..1], &RAMP[2..], WAYS[0]]).remove(0);
    assert!(relative(first.losses()[0], plain.losses()[0]) > 1e-4, "the ramp is not felt");
    for way in [WAYS[2], WAYS[3], WAYS[5]] {
        let other = train(&[&RAMP, way]).remove(0);
        for (a, b) in first.losses().into_iter().zip(other.losses()) {
            assert!(relative(b, a) < 1e-5, "{way:?}: {b}, {a}");
        }
        assert!(relative(other.val_loss, first.val_loss) < 1e-5, "{way:?}");
    }
}

/// Resumes at a step within a stage, at the end of a stage, and after the ramp.
#[test]
fn a_resumed_ramp_ends_as_one_that_went_on() {
    for way in [WAYS[0], WAYS[3], WAYS[4]] {
        let setup = Setup::new(&[&RAMP[..], way].concat());
        let folder = tempfile::tempdir().expect("a temporary folder");
        let train = |from: u64, save: Option<u64>| {
            let ends = setup.on_ranks(
                |_| setup.plan.clone(),
                |rank| {
                    let zero = rank.comm().rank() == 0;
                    if from > 0 {
                        let loaded = if zero { newest(folder.path())? } else { None };
                        rank.restore(from, loaded.as_ref())?;
                    }
                    let mut curve = Vec::new();
                    for step in from..STEPS as u64 {
                        if save == Some(step) && zero {
                            Store::open(folder.path(), 1)?.save(&meta(step), &rank.snapshot())?;
                            rank.end_snapshot()?;
                        } else if save == Some(step) {
                            rank.answer_snapshot()?;
                        }
                        let report = rank.train_step()?;
                        curve.push((report.loss.to_bits(), report.grad_norm.to_bits()));
                    }
                    Ok(curve)
                },
            );
            ends.expect("it trains").remove(0)
        };
        for save in [1, 2, 3, 5] {
            let whole = train(0, Some(save));
            assert_eq!(train(save, None), whole[save as usize..], "{way:?} from step {save}");
        }
    }
}

fn meta(step: u64) -> Meta {
    Meta {
        step,
        tokens_seen: 0,
        recipe_hash: String::new(),
        resolved_recipe_toml: String::new(),
        corpus_hash: String::new(),
        tokenizer_hash: String::new(),
        world_size: 1,
        seed: 0,
        xrun_version: String::new(),
        engine: String::new(),
        algorithms: None,
        extra: BTreeMap::new(),
        rows: BTreeMap::new(),
    }
}

/// Programs have the variants of a micro-step that the steps of all stages need, and no others.
#[test]
fn programs_have_the_variants_of_every_stage() {
    let variants = |settings: &[&str]| -> Vec<(bool, bool)> {
        let setup = Setup::new(&[&RAMP[..1], settings].concat());
        setup.programs.micro.iter().map(|(variant, _)| *variant).collect()
    };
    let [alone, two] = ["training.local_batch_size=16", "parallelism.world_size=2"];
    let ramp = "training.batch_ramp=[[2, 16]]";
    assert_eq!(variants(&[alone, ramp]), [(true, false), (false, false)]);
    assert_eq!(
        variants(&["training.local_batch_size=8", two, ramp]),
        [(true, true), (true, false), (false, true)]
    );
    assert_eq!(variants(&["training.local_batch_size=8", two]), [(true, false), (false, true)]);
    // To exchange the embedding's gradient by rows, the rows of several micro-steps would have to be kept.
    let listing = |settings: &[&str]| Setup::new(&[&RAMP[..1], settings].concat()).listing();
    assert!(listing(&["training.local_batch_size=16", two]).contains("gather_rows"));
    assert!(!listing(&["training.local_batch_size=8", two, ramp]).contains("gather_rows"));
}
