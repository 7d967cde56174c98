//! Muon on ranks that own whole matrices.

use crate::engine::harness::{Setup, get, set};
use crate::engine::update_groups::{Tensors, snapshot};
use std::sync::Arc;
use xrun::ir::{FlatBuffer, Shards};

/// Runs two steps of only the update, on gradients that every rank already has the sums of. Returns what a
/// checkpoint then holds.
fn updated(overrides: &[&str]) -> Tensors {
    let setup = Setup::new(&[overrides, &["optimizer.name=muon"]].concat());
    let ends = setup.on_ranks(
        |_| Arc::clone(&setup.plan),
        |rank| {
            for step in 1..=2 {
                let engine = rank.engine_mut();
                for param in &setup.programs.state.params {
                    let count = param.spec.logical_elements();
                    let number =
                        |i: usize| ((i + 7 * param.name.len()) as f64 * f64::from(step)).sin() / 64.0;
                    engine.state.set_values(param.grad, &(0..count).map(number).collect::<Vec<_>>())?;
                }
                set(engine, "control.loss", &[1.0]);
                engine.run(&setup.programs.step_end)?;
            }
            if let Some(gather) = &setup.programs.gather {
                rank.engine_mut().run(gather)?;
            }
            snapshot(rank)
        },
    );
    ends.unwrap().remove(0)
}

#[test]
fn the_update_for_summed_gradients_has_the_bits_of_one_rank() {
    let neurons = "optimizer.neuron_momentum=0.95";
    for (dtype, rule) in [
        ("training.dtype=fp32", "optimizer.neuron_momentum=0.0"),
        ("training.dtype=bf16", "optimizer.neuron_momentum=0.0"),
        ("training.dtype=bf16", neurons),
    ] {
        let one = updated(&[dtype, rule]);
        assert_eq!(one.contains_key("muon.neurons.blocks.0.qkv"), rule == neurons);
        assert!(one.contains_key("muon.momentum.blocks.0.qkv") && one.contains_key("adam.m.embedding"));
        for ranks in [2, 3] {
            let world = format!("parallelism.world_size={ranks}");
            for shard in ["parallelism.shard=none", "parallelism.shard=optimizer"] {
                assert!(
                    updated(&[dtype, rule, &world, shard]) == one,
                    "{ranks} ranks, {dtype}, {rule}, {shard}"
                );
            }
        }
    }
}

#[test]
fn every_rank_owns_matrices_whole() {
    let setup =
        Setup::new(&["optimizer.name=muon", "parallelism.world_size=3", "parallelism.shard=optimizer"]);
    let state = &setup.programs.state;
    let shards: &Shards = state.shards.as_ref().unwrap();
    let mut owned = [0; 3];
    for matrix in state.params.iter().filter(|p| p.block.is_some()).flat_map(|param| param.matrices()) {
        let [rows, columns] = matrix.alloc;
        let owners: Vec<_> = shards.within(matrix.start..matrix.start + rows * columns).collect();
        assert_eq!(owners.len(), 1, "{matrix:?}");
        owned[owners[0].rank] += rows * columns;
    }
    assert!(owned.iter().all(|&elements| elements > 0), "{owned:?}");
}

/// A step that is not finite leaves parameters and momentum unchanged.
#[test]
fn nothing_moves_after_a_bad_step() {
    let setup = Setup::new(&["optimizer.name=muon", "optimizer.neuron_momentum=0.95", "training.dtype=bf16"]);
    let mut engine = setup.engine();
    set(&mut engine, "control.loss", &[f64::NAN]);
    let held = |engine: &xrun::exec::Engine| {
        let slots = ["params.flat", "momentum.matrix.flat", "neurons.matrix.flat", "compute_copy.flat"];
        slots.map(|name| get(engine, name))
    };
    let before = held(&engine);
    let grads = engine.state.slot(FlatBuffer::Grads.param("blocks.0.out")).unwrap();
    let count = setup.programs.state.get(grads).spec.logical_elements();
    engine.state.set_values(grads, &vec![0.25; count]).unwrap();
    engine.run(&setup.programs.step_end).unwrap();
    assert!(held(&engine) == before);
    set(&mut engine, "control.bad", &[0.0]);
    set(&mut engine, "control.loss", &[1.0]);
    engine.run(&setup.programs.step_end).unwrap();
    assert!(held(&engine) != before);
}
