//! Ranks compare their parameters, and a run whose replicas have drifted apart ends.

use crate::engine::harness::Setup;
use crate::engine::keys::runs::{scratch, start};
use std::sync::Arc;
use xrun::Result;
use xrun::ir::FlatBuffer;
use xrun::train::Rank;

/// Flips the lowest bit of one number in a parameter.
fn spoil(rank: &mut Rank, param: &str, at: usize) -> Result<()> {
    let state = &mut rank.engine_mut().state;
    let slot = state.slot(FlatBuffer::Params.param(param))?;
    state.update::<u32>(slot, |numbers| numbers[at] ^= 1)
}

/// Trains a step, spoils element `at` of a parameter on one rank, and compares.
fn with_spoilt(overrides: &[&str], number: usize, param: &str, at: usize) -> Option<String> {
    let setup = Setup::new(overrides);
    let compared = setup.on_ranks(
        |_| Arc::clone(&setup.plan),
        |rank| {
            rank.train_step()?;
            rank.check_replicas()?;
            if rank.comm().rank() == number {
                spoil(rank, param, at)?;
            }
            rank.check_replicas()
        },
    );
    compared.err().map(|e| e.message().to_owned())
}

#[test]
fn one_bit_of_one_rank_ends_the_run() {
    let two = with_spoilt(&["parallelism.world_size=2"], 1, "blocks.1.qkv", 0).unwrap();
    assert!(two.contains("blocks.1.qkv differs between rank 0 and rank 1"), "{two}");
    let three = ["parallelism.world_size=3", "training.dtype=bf16", "model.dropout=0.2"];
    let said = with_spoilt(&three, 1, "embedding", 1000).unwrap();
    assert!(said.contains("embedding differs on rank 1"), "{said}");
    let said = with_spoilt(&three, 0, "final_norm", 31).unwrap();
    assert!(said.contains("final_norm differs on rank 0"), "{said}");
}

/// Neither a single rank nor ranks that train separately compare anything, and neither has a program for it.
#[test]
fn who_has_no_replica_compares_nothing() {
    let apart = ["parallelism.world_size=2", "engine.communication=off"];
    for overrides in [&apart[..], &["parallelism.world_size=1"]] {
        assert!(Setup::new(overrides).programs.replicas.is_none(), "{overrides:?}");
        assert_eq!(with_spoilt(overrides, 0, "embedding", 0), None, "{overrides:?}");
    }
}

/// The summary says so if the replicas of a run differ by design.
#[test]
fn a_run_without_communication_is_marked() {
    let notes = |more: &[&str]| {
        let settings: Vec<String> =
            ["training.steps=3"].iter().chain(more).map(ToString::to_string).collect();
        start(&settings, scratch().path()).unwrap().1.notes
    };
    let marked = |notes: &[String]| notes.iter().any(|note| note.contains("may be exported"));
    assert!(marked(&notes(&["parallelism.world_size=2", "engine.communication=off"])));
    assert!(!marked(&notes(&["parallelism.world_size=2"])));
    assert!(!marked(&notes(&["parallelism.world_size=1", "engine.communication=off"])));
}
