//! Ranks that divide the optimizer's slots compute what ranks compute of which each has all of them.

use crate::harness::{Setup, Trained};
use xrun::ir::Home;

const STEPS: usize = 4;
const SHARDED: &str = "parallelism.shard=optimizer";

/// What ranks compute with all slots on each, and divided.
fn both(overrides: &[&str]) -> [Vec<Trained>; 2] {
    [&[][..], &[SHARDED]].map(|more| Setup::new(&[overrides, more].concat()).train(STEPS))
}

/// The curve of every rank, and all tensors of the checkpoint.
fn assert_same_bits(whole: &[Trained], sharded: &[Trained], what: &str) {
    assert_eq!(sharded[0].difference(&whole[0]), None, "{what}");
    assert_eq!(sharded[0].tensors.len(), whole[0].tensors.len(), "{what}");
    for rank in sharded {
        assert_eq!(rank.difference(&whole[0]), None, "{what}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_bits_of_the_whole_optimizer() {
    for ranks in [1, 2, 3, 4, 8] {
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

/// 12 bytes of a parameter where products read a compute copy, 8 where they read masters, divided by the
/// ranks.
#[test]
fn a_rank_holds_its_part_of_the_state() {
    for (dtype, divided) in [("training.dtype=bf16", 12), ("training.dtype=fp32", 8)] {
        let sizes = ["model.dim=64", "model.n_layers=4", "parallelism.world_size=4", dtype];
        let [whole, sharded] =
            [&[][..], &[SHARDED]].map(|more| Setup::new(&[&sizes[..], more].concat()).programs.state.clone());
        let shard_len = sharded.shards.as_ref().unwrap().shard_len();
        // A block of the norm for each of the parts into which the buckets divide the parameters.
        let most = whole.flat_len / 4 + 4 * 4096;
        assert!((whole.flat_len / 4..most).contains(&shard_len), "{dtype}: {shard_len}");
        let added: usize = sharded
            .buffers
            .iter()
            .filter(|b| ["norm", "vectors"].contains(&b.name.as_str()))
            .map(|b| b.bytes)
            .sum();
        assert_eq!(
            whole.bytes() - sharded.bytes(),
            divided * (whole.flat_len - shard_len) - added,
            "{dtype}"
        );
    }
}

/// Every buffer from which ops read a parameter is gathered.
#[test]
fn the_gather_writes_what_ops_read_of_every_parameter() {
    for dtype in ["training.dtype=bf16", "training.dtype=fp32"] {
        let setup = Setup::new(&["parallelism.world_size=2", dtype, SHARDED]);
        let program = &setup.programs.gather.as_ref().unwrap().program;
        let layout = &setup.programs.state;
        for param in &layout.params {
            let read = layout.get(param.read);
            let written = program.nodes.iter().flat_map(|node| &node.outputs).any(|&out| {
                matches!(program.tensor(out).home, Home::State(slot) if layout.get(slot).buffer == read.buffer)
            });
            assert!(written, "{dtype} {}", param.name);
        }
    }
}

/// A copy that is not what its owner has as master, and one that differs from that of other ranks.
#[test]
fn a_wrong_copy_is_found_before_it_is_saved() {
    let setup = Setup::new(&["parallelism.world_size=2", "training.dtype=bf16", SHARDED]);
    let layout = &setup.programs.state;
    let last = layout.shards.as_ref().unwrap().ranges().last().copied().unwrap();
    let param = layout.params.iter().find(|param| param.flat().contains(&last.start)).unwrap();
    let element = last.start - param.start;
    for (spoiled, says) in [(last.rank, "is not the rounded master after step 2"), (1 - last.rank, "differs")]
    {
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
