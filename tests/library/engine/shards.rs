//! Ranks that shard the optimizer's slots compute the same as ranks that each have all of them.

use crate::engine::harness::{Setup, Trained};
use std::ops::Range;
use xrun::ir::{Home, Node, Program, Stream, TensorId};

const STEPS: usize = 4;
const SHARDED: &str = "parallelism.shard=optimizer";

/// Trains with all slots on each rank, and with slots sharded.
fn both(overrides: &[&str]) -> [Vec<Trained>; 2] {
    [&[][..], &[SHARDED]].map(|more| Setup::new(&[overrides, more].concat()).train(STEPS))
}

/// Compares the curve of every rank, and all tensors of the checkpoint.
fn assert_same_bits(whole: &[Trained], sharded: &[Trained], what: &str) {
    assert_eq!(sharded[0].difference(&whole[0]), None, "{what}");
    assert_eq!(sharded[0].tensors.len(), whole[0].tensors.len(), "{what}");
    for rank in sharded {
        assert_eq!(rank.difference(&whole[0]), None, "{what}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_the_whole_optimizer() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        let world = format!("parallelism.world_size={ranks}");
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let [whole, sharded] = both(&[&world, dtype, "model.dropout=0.1"]);
            assert_same_bits(&whole, &sharded, &format!("{ranks} ranks, {dtype}"));
        }
    }
}

#[test]
fn whatever_else_a_recipe_asks_for_the_bits_are_those_of_the_whole_optimizer() {
    for overrides in [
        &["training.accumulation=3"][..],
        &["model.tie_embeddings=true"],
        &["optimizer.name=sgd"],
        &["optimizer.name=sgd", "optimizer.momentum=0.0"],
        &["optimizer.name=muon"],
        &["model.norm=layer_norm"],
        &["model.qk_norm=false", "training.max_norm=0.0"],
        &["model.position=learned", "model.embedding_scale=4.0"],
        &["training.z_loss=0.01", "training.label_smoothing=0.1", "training.accumulation=2"],
        &["parallelism.overlap=false"],
        &["parallelism.embedding_exchange=false"],
        &["engine.fused=false", "engine.placement=naive", "engine.poison=true"],
    ] {
        for dtype in ["training.dtype=fp32", "training.dtype=bf16"] {
            let base = ["parallelism.world_size=2", dtype];
            let [whole, sharded] = both(&[&base[..], overrides].concat());
            assert_same_bits(&whole, &sharded, &format!("{overrides:?}, {dtype}"));
        }
    }
}

/// Sums are added in rank order, wherever a bucket begins and whoever owns an element.
#[test]
fn the_size_of_buckets_changes_no_bit() {
    let overrides = ["parallelism.world_size=3", "training.dtype=bf16", SHARDED];
    let base = Setup::new(&overrides).train(STEPS);
    for bytes in [0, 5000, usize::MAX] {
        let setup = Setup::planned(&overrides, |plan| plan.execution.bucket_bytes = bytes);
        let last = setup.programs.micro_step(0, 1);
        let names: Vec<_> = last.program.nodes.iter().map(|node| node.op.name()).collect();
        assert!(names.contains(&"reduce_scatter") && !names.contains(&"all_reduce"), "{bytes} bytes");
        assert_same_bits(&base, &setup.train(STEPS), &format!("buckets of {bytes} bytes"));
    }
}

/// Of each parameter, 12 bytes are divided among the ranks if products read a compute copy, and 8 if they
/// read the masters.
#[test]
fn a_rank_holds_its_part_of_the_state() {
    for (dtype, divided) in [("training.dtype=bf16", 12), ("training.dtype=fp32", 8)] {
        let sizes = ["model.dim=64", "model.n_layers=4", "parallelism.world_size=4", dtype];
        let [whole, sharded] =
            [&[][..], &[SHARDED]].map(|more| Setup::new(&[&sizes[..], more].concat()).programs.state.clone());
        let shard_len = sharded.shards.as_ref().unwrap().shard_len;
        // The buckets divide the parameters into parts; each part may add one block of the norm.
        let most = whole.flat_len / 4 + 4 * 4096;
        assert!((whole.flat_len / 4..most).contains(&shard_len), "{dtype}: {shard_len}");
        let added: usize = sharded
            .buffers
            .iter()
            .filter(|b| ["norm", "vectors", "exchange"].contains(&b.name.as_str()))
            .map(|b| b.bytes)
            .sum();
        assert_eq!(
            whole.bytes() - sharded.bytes(),
            divided * (whole.flat_len - shard_len) - added,
            "{dtype}"
        );
    }
}

/// Returns a state slot's buffer and its range of addresses, as if the buffer began at 0.
fn bytes_of(setup: &Setup, program: &Program, tensor: TensorId) -> Option<(usize, Range<usize>)> {
    let Home::State(slot) = program.tensor(tensor).home else { return None };
    let slot = setup.programs.state.get(slot);
    Some((slot.buffer, slot.offset..slot.offset + slot.spec.bytes()))
}

/// Returns what the nodes named `all_gather` write, first those at the end of a step.
fn gathered(setup: &Setup) -> Vec<(usize, Range<usize>)> {
    let sections = [Some(&setup.programs.step_end), setup.programs.gather.as_ref()];
    let programs = sections.into_iter().flatten().map(|section| &section.program);
    let written = |program: &Program| -> Vec<_> {
        let nodes = program.nodes.iter().filter(|node| node.op.name() == "all_gather");
        nodes.flat_map(|node| &node.outputs).map(|&out| bytes_of(setup, program, out).unwrap()).collect()
    };
    programs.flat_map(written).collect()
}

/// Whatever ops read of a parameter is gathered exactly once.
#[test]
fn the_gathers_write_what_ops_read_of_every_parameter() {
    for dtype in ["training.dtype=bf16", "training.dtype=fp32"] {
        for bytes in [0, 5000, usize::MAX] {
            let overrides = ["parallelism.world_size=2", dtype, SHARDED];
            let setup = Setup::planned(&overrides, |plan| plan.execution.bucket_bytes = bytes);
            let (layout, gathered) = (&setup.programs.state, gathered(&setup));
            for param in &layout.params {
                let read = layout.get(param.read);
                let covers = |(buffer, range): &&(usize, Range<usize>)| {
                    *buffer == read.buffer
                        && range.start <= read.offset
                        && read.offset + read.spec.bytes() <= range.end
                };
                let times = gathered.iter().filter(covers).count();
                assert_eq!(times, 1, "{dtype}, buckets of {bytes} bytes, {}", param.name);
            }
        }
    }
}

/// A graph has a branch for each gather that the forward waits for. The first gathers are small, so that the
/// forward can begin early, and each later one is twice as large.
#[test]
fn gathers_grow_and_ranks_wait_for_each_other_before_the_first() {
    let sizes = ["model.n_layers=4", "parallelism.world_size=2", "training.dtype=fp32", SHARDED];
    let setup = Setup::planned(&sizes, |plan| plan.execution.bucket_bytes = 0);
    let layout = &setup.programs.state;
    let params_in = |(buffer, written): &(usize, Range<usize>)| {
        let read = layout.params.iter().map(|param| layout.get(param.read));
        read.filter(|slot| slot.buffer == *buffer && written.contains(&slot.offset)).count()
    };
    let counts: Vec<usize> = gathered(&setup).iter().map(params_in).collect();
    let (last, whole) = counts.split_last().unwrap();
    let grown: Vec<usize> = [1, 1].into_iter().chain((0..).map(|k| 1 << k)).take(whole.len()).collect();
    assert_eq!(whole, grown);
    assert!(*last <= 1 << (whole.len() - 2) && counts.iter().sum::<usize>() == layout.params.len());
    for section in [&setup.programs.step_end, setup.programs.gather.as_ref().unwrap()] {
        let gathers = section.program.nodes.iter().filter(|node| node.op.name() == "all_gather");
        let waits: Vec<bool> = gathers.map(|node| !node.op.attributes().ends_with("no_wait")).collect();
        assert!(waits[0] && !waits[1..].contains(&true), "{waits:?}");
    }
}

/// Returns the names of a program's nodes from the first update on; equal neighbors appear once.
fn from_the_update(program: &Program) -> Vec<&'static str> {
    let mut names: Vec<_> = program.nodes.iter().map(|node| node.op.name()).collect();
    names.dedup();
    names.split_off(names.iter().position(|name| *name == "grad_norm_total").unwrap() + 1)
}

#[test]
fn what_the_forward_reads_first_is_gathered_before_the_rest_is_updated() {
    let muon = ["muon_momentum", "newton_schulz", "muon_update"];
    for (overrides, update) in [
        (&[][..], &["adamw"][..]),
        (&["parallelism.overlap=false"], &["adamw"]),
        (&["optimizer.name=lion", "ema.decay=0.9"], &["lion"]),
        (&["optimizer.name=muon"], &muon),
    ] {
        let base = ["parallelism.world_size=2", "training.dtype=bf16", SHARDED];
        let setup = Setup::new(&[&base[..], overrides].concat());
        let program = &setup.programs.step_end.program;
        let names = from_the_update(program);
        let first = if update == muon { "adamw" } else { update[0] };
        assert_eq!(names[..3], [first, "all_gather", first], "{overrides:?}");
        assert!(names.ends_with(&["advance"]) && update.iter().all(|name| names.contains(name)), "{names:?}");
        assert_eq!(names.contains(&"ema"), names[names.len() - 2] == "ema", "{names:?}");
        let overlaps = !overrides.contains(&"parallelism.overlap=false");
        for node in &program.nodes {
            let on_communication = node.stream == Stream::Communication;
            assert_eq!(on_communication, overlaps && node.op.name() == "all_gather", "{overrides:?}");
        }
        let layout = &setup.programs.state;
        let embedding = layout.get(layout.param("embedding").unwrap().read);
        assert_eq!(gathered(&setup)[0].0, embedding.buffer, "{overrides:?}");
    }
}

/// If the bucket before the embedding has its own blocks, the embedding does not wait for that bucket's
/// update.
#[test]
fn the_embedding_is_gathered_while_the_bucket_before_it_is_updated() {
    let sizes =
        ["model.dim=128", "model.n_layers=4", "parallelism.world_size=2", "training.dtype=bf16", SHARDED];
    let setup = Setup::planned(&sizes, |plan| plan.execution.bucket_bytes = 250_000);
    let program = &setup.programs.step_end.program;
    assert_eq!(from_the_update(program)[..5], ["adamw", "all_gather", "adamw", "all_gather", "adamw"]);
    let layout = &setup.programs.state;
    let embedding = layout.get(layout.param("embedding").unwrap().read);
    let gathered = gathered(&setup);
    let covers = |range: &Range<usize>| {
        range.start <= embedding.offset && embedding.offset + embedding.spec.bytes() <= range.end
    };
    assert!(gathered[0].0 == embedding.buffer && covers(&gathered[0].1), "the embedding comes first");
}

/// Returns the ranges of the state that a node touches on a rank, with their buffers.
fn touched(setup: &Setup, program: &Program, node: &Node, rank: usize) -> Vec<(usize, Range<usize>)> {
    let (op, mut all) = (&node.op, Vec::new());
    let mut add = |tensor: TensorId, elements: Option<Range<usize>>| {
        let Some((buffer, range)) = bytes_of(setup, program, tensor) else { return };
        let size = program.spec(tensor).dtype.size();
        let elements = elements.map(|e| range.start + e.start * size..range.start + e.end * size);
        all.push((buffer, elements.unwrap_or(range)));
    };
    node.inputs.iter().enumerate().for_each(|(i, &input)| add(input, op.input_range(i, rank)));
    node.outputs.iter().enumerate().for_each(|(i, &output)| add(output, op.output_range(i, rank)));
    all
}

#[test]
fn the_update_of_the_rest_touches_nothing_that_is_gathered_meanwhile() {
    for name in ["adamw", "sgd", "lion", "muon"] {
        let dtypes = |ranks| [(ranks, "training.dtype=bf16"), (ranks, "training.dtype=fp32")];
        for (ranks, dtype) in (2..=4).flat_map(dtypes) {
            let (world, optimizer) =
                (format!("parallelism.world_size={ranks}"), format!("optimizer.name={name}"));
            let overrides = [&*world, &optimizer, dtype, SHARDED];
            let setup = Setup::planned(&overrides, |plan| plan.execution.bucket_bytes = 5000);
            let program = &setup.programs.step_end.program;
            let is_gather = |node: &Node| node.op.name() == "all_gather";
            let last = program.nodes.iter().rposition(is_gather).expect("something is gathered");
            for rank in 0..ranks {
                let gathers = program.nodes.iter().filter(|node| is_gather(node));
                let gathered: Vec<_> =
                    gathers.flat_map(|node| touched(&setup, program, node, rank)).collect();
                for node in &program.nodes[last + 1..] {
                    for (buffer, range) in touched(&setup, program, node, rank) {
                        let meets = gathered.iter().any(|(other, gathered)| {
                            *other == buffer && range.start < gathered.end && gathered.start < range.end
                        });
                        assert!(!meets, "{overrides:?}, rank {rank}, {}", node.op.name());
                    }
                }
            }
        }
    }
}

/// A copy that differs from its owner's master, and one that differs from the copies of other ranks.
#[test]
fn a_wrong_copy_is_found_before_it_is_saved() {
    let setup = Setup::new(&["parallelism.world_size=2", "training.dtype=bf16", SHARDED]);
    let layout = &setup.programs.state;
    let last = layout.shards.as_ref().unwrap().ranges.last().copied().unwrap();
    let param = layout.params.iter().find(|param| param.flat().contains(&last.start)).unwrap();
    let element = last.start - param.start;
    for (spoiled, says) in [(last.rank, "not the rounded master"), (1 - last.rank, "differs")] {
        let failed = setup.on_ranks(
            |_| setup.plan.clone(),
            |rank| {
                rank.train_step()?;
                rank.train_step()?;
                rank.gather_parameters()?;
                if rank.engine().comm.rank() == spoiled {
                    let state = &mut rank.engine_mut().state;
                    state.update::<u16>(param.read, |copy| copy[element] ^= 1)?;
                }
                rank.check_replicas()
            },
        );
        let error = failed.expect_err("a wrong copy");
        assert!(error.message().contains(says), "rank {spoiled}: {error}");
        assert!(error.message().contains(&param.name), "rank {spoiled}: {error}");
    }
}
