//! The gradient of the embedding, exchanged by rows.

use crate::engine::harness::{Setup, Trained, relative};
use std::sync::Arc;
use xrun::ir::FlatBuffer;
use xrun::train::Rank;

const STEPS: usize = 6;

/// Distributes a global batch of 24 sequences over a number of ranks.
fn distributed(world: usize) -> [String; 2] {
    [format!("parallelism.world_size={world}"), format!("training.local_batch_size={}", 24 / world)]
}

fn gathers(setup: &Setup) -> usize {
    let program = &setup.programs.micro_step(0, setup.plan.batch.micro_steps).program;
    program.nodes.iter().filter(|n| n.op.name() == "gather_rows").count()
}

/// Asserts that two trainings are the same up to rounding.
fn alike(a: &Trained, b: &Trained, bound: f64, what: &str) {
    for (step, (x, y)) in a.losses().into_iter().zip(b.losses()).enumerate() {
        assert!(relative(x, y) < bound, "{what}, step {}: {x} and {y}", step + 1);
    }
    assert!(a.distance(b) < 10.0 * bound, "{what}: parameters differ by {:.1e}", a.distance(b));
}

#[test]
fn rows_give_the_same_training_as_the_whole_gradient() {
    for (dtype, bound) in [("training.dtype=fp32", 1e-5), ("training.dtype=bf16", 2e-3)] {
        for dropout in ["model.dropout=0", "model.dropout=0.2"] {
            let with = |world: usize, by_rows: &str| {
                let [world, local] = distributed(world);
                Setup::new(&[&world, &local, dtype, dropout, by_rows])
            };
            let by_rows = |on: bool| format!("parallelism.embedding_exchange={on}");
            let one = with(1, &by_rows(true)).train_one(STEPS);
            for world in [2, 3] {
                let what = format!("{world} ranks, {dtype}, {dropout}");
                let setup = with(world, &by_rows(true));
                assert_eq!(gathers(&setup), 1, "{what}");
                let rows = setup.train(STEPS);
                for rank in &rows[1..] {
                    assert_eq!(rank.difference(&rows[0]), None, "{what}: ranks differ");
                }
                let reduced = with(world, &by_rows(false));
                assert_eq!(gathers(&reduced), 0, "{what}");
                alike(&rows[0], &reduced.train(STEPS)[0], bound, &what);
                alike(&rows[0], &one, bound, &what);
            }
        }
    }
}

fn distributed_setup(world: usize, dtype: &str, more: &[&str]) -> Setup {
    let [world, local] = distributed(world);
    Setup::new(&[&[&*world, &local, dtype, "model.dropout=0.2"], more].concat())
}

/// Returns every rank's gradient of the embedding after the first step.
fn first_gradient(world: usize, dtype: &str, more: &[&str]) -> Vec<Vec<u32>> {
    let setup = distributed_setup(world, dtype, more);
    let gradient = |rank: &mut Rank| {
        rank.train_step()?;
        let state = &rank.engine().state;
        Ok(state.read::<u32>(state.slot(FlatBuffer::Grads.param("embedding"))?)?.into_owned())
    };
    setup.on_ranks(|_| Arc::clone(&setup.plan), gradient).unwrap()
}

/// Rows are added in the order of the global batch, so the bits do not depend on the number of ranks.
#[test]
fn the_sum_does_not_depend_on_ranks() {
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let one = first_gradient(1, dtype, &[]).remove(0);
        assert!(one.iter().any(|&bits| bits != 0));
        for world in [2, 3, 4] {
            for rank in first_gradient(world, dtype, &[]) {
                assert!(rank == one, "{world} ranks, {dtype}");
            }
        }
    }
}

#[test]
fn buckets_and_overlap_change_no_bit() {
    let overrides = ["parallelism.world_size=2", "model.dropout=0.2", "training.dtype=bf16"];
    let trained = Setup::new(&overrides).train(STEPS);
    for bytes in [0, 8192, usize::MAX] {
        for overlap in [true, false] {
            let setup = Setup::planned(&overrides, |plan| {
                plan.execution.bucket_bytes = bytes;
                plan.execution.overlap = overlap;
            });
            assert_eq!(gathers(&setup), 1);
            for (rank, trained) in setup.train(STEPS).iter().zip(&trained) {
                assert_eq!(rank.difference(trained), None, "{bytes} bytes, overlap {overlap}");
            }
        }
    }
}

/// Ranks that shard the gradient sum only what they own, with the same bits as a rank that sums everything.
#[test]
fn each_rank_sums_what_it_owns() {
    for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
        let one = first_gradient(1, dtype, &[]).remove(0);
        for world in [2, 3, 4] {
            let sharded = ["parallelism.shard=optimizer"];
            let setup = distributed_setup(world, dtype, &sharded);
            let program = &setup.programs.micro_step(0, 1).program;
            let names: Vec<_> = program.nodes.iter().map(|node| node.op.name()).collect();
            assert_eq!(names[..2], ["gather_rows", "token_order"], "tokens come before all else");
            assert_eq!(names.iter().filter(|name| **name == "share_rows").count(), 1);
            let state = &setup.programs.state;
            let table = state.param("embedding").unwrap();
            let shards = state.shards.as_ref().unwrap();
            let ranks = first_gradient(world, dtype, &sharded);
            let mut owned = vec![0; world];
            for range in shards.within(table.flat()) {
                let elements = range.start - table.start..range.start - table.start + range.len;
                assert!(
                    ranks[range.rank][elements.clone()] == one[elements],
                    "{world} ranks, {dtype}, {range:?}"
                );
                owned[range.rank] += range.len;
            }
            assert_eq!(owned.iter().sum::<usize>(), one.len());
        }
    }
}

/// If the batch is large compared with the vocabulary, rows take more bytes than the table.
#[test]
fn a_large_batch_is_reduced() {
    let base = ["parallelism.world_size=2", "training.accumulation=1"];
    assert_eq!(gathers(&Setup::new(&[&base[..], &["training.local_batch_size=16"]].concat())), 1);
    assert_eq!(gathers(&Setup::new(&[&base[..], &["training.local_batch_size=64"]].concat())), 0);
}
