//! What holds for every optimizer, and for groups of several: it learns, ranks agree, and a checkpoint holds
//! all of its state.

use crate::engine::harness::Setup;
use crate::engine::update_groups::MIXED;
use std::collections::BTreeMap;
use xrun::checkpoint::{Meta, Store, newest};
use xrun::optim::OPTIMIZERS;
use xrun::train::Rank;

const STEPS: usize = 8;

fn each(mut check: impl FnMut(&str, &[&str])) {
    for entry in OPTIMIZERS {
        let name = format!("optimizer.name={}", entry.name);
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            check(entry.name, &[&name, dtype]);
        }
    }
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        check("groups", &[MIXED, &[dtype]].concat());
    }
}

#[test]
fn the_loss_falls() {
    each(|name, settings| {
        let setup = Setup::new(settings);
        let (before, after) = (setup.train_one(0).val_loss, setup.train_one(2 * STEPS).val_loss);
        assert!(after < before, "{name}: from {before} to {after}");
    });
}

#[test]
fn ranks_hold_the_same_state_and_the_optimizer_makes_a_difference() {
    let mut curves = Vec::new();
    each(|name, settings| {
        let ranks = Setup::new(&[settings, &["parallelism.world_size=2"]].concat()).train(STEPS);
        assert_eq!(ranks[0].difference(&ranks[1]), None, "{name}");
        curves.push(ranks[0].losses());
    });
    for (i, curve) in curves.iter().enumerate() {
        assert!(curves[..i].iter().all(|other| other != curve), "two of them train alike");
    }
}

#[test]
fn a_resumed_training_ends_as_one_that_went_on() {
    each(|name, settings| {
        let setup = Setup::new(settings);
        let state = |rank: &Rank| -> BTreeMap<String, Vec<u8>> {
            let snapshot = rank.snapshot();
            snapshot.tensors().map(|t| (t.name.clone(), t.bytes().unwrap().into_owned())).collect()
        };
        let folder = tempfile::tempdir().unwrap();
        let train = |from: u64| {
            let ends = setup.on_ranks(
                |_| setup.plan.clone(),
                |rank| {
                    if from > 0 {
                        rank.restore(from, newest(folder.path()).unwrap().as_ref())?;
                    }
                    for step in from..STEPS as u64 {
                        if from == 0 && step == STEPS as u64 / 2 {
                            let store = Store::open(folder.path(), 1)?;
                            store.save(&meta(step), &rank.snapshot())?;
                        }
                        rank.train_step()?;
                    }
                    Ok(state(rank))
                },
            );
            ends.unwrap().remove(0)
        };
        let (whole, resumed) = (train(0), train(STEPS as u64 / 2));
        assert!(whole == resumed, "{name} {settings:?}");
    });
}

/// Makes the manifest of a checkpoint after a step.
pub fn meta(step: u64) -> Meta {
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
