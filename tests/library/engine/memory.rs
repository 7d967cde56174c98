//! The memory in use matches the plan, and poison exposes reads of memory that was not written.

use crate::engine::harness::Setup;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::{Builder, Destination, Mode, Precision, SlotName, Spec, State, StateBuilder};
use xrun::ops::copy::Copy;
use xrun::ops::scale::Scale;
use xrun::passes::MemoryPlan;
use xrun::policy::Placement;

#[test]
fn planned_is_allocated_to_the_byte() {
    for overrides in [
        &["training.dtype=bf16", "generation.samples=3"][..],
        &["activation_checkpoint.mode=full", "training.accumulation=2"],
        &["engine.fused=false", "engine.attention=unfused", "model.dropout=0.1"],
        &["parallelism.world_size=2", "model.tie_embeddings=true"],
        &["parallelism.world_size=3", "training.dtype=bf16"],
        &["parallelism.world_size=3", "training.dtype=bf16", "parallelism.shard=optimizer"],
        &["parallelism.world_size=4", "parallelism.shard=optimizer"],
    ] {
        let setup = Setup::new(overrides);
        for rank in setup.train(2) {
            assert_eq!(rank.state_bytes, setup.programs.state.bytes(), "{overrides:?}");
            assert_eq!(rank.transient, (setup.programs.arena_bytes(), 1), "{overrides:?}");
        }
    }
}

/// The less is kept, the smaller the arena.
#[test]
fn recomputation_saves_what_it_promises() {
    let sizes = ["model.dim=64", "model.n_layers=4", "training.seq_len=64", "model.dropout=0.1"];
    let arena = |mode: &str| {
        let mode = format!("activation_checkpoint.mode={mode}");
        let setup = Setup::new(&[&sizes[..], &[mode.as_str()]].concat());
        let trained = setup.train_one(1);
        assert_eq!(trained.transient.0, setup.programs.arena_bytes());
        trained.transient.0
    };
    let sizes = ["none", "emitted", "selective", "full"].map(arena);
    assert!(sizes.is_sorted_by(|more, less| more > less));
    assert_eq!(sizes, [7_374_848, 5_801_984, 4_753_408, 2_498_560]);
}

/// A step in which all is well has no bad tensor, although scratch, which an op need not write, is full of
/// NaN here.
#[test]
fn scratch_is_no_bad_tensor() {
    let setup = Setup::new(&["engine.poison=true"]);
    let found = setup.on_ranks(
        |_| Arc::clone(&setup.plan),
        |rank| {
            rank.train_step()?;
            let (_, micro) = &setup.programs.micro[0];
            assert!(micro.program.scratch().contains(&true), "attention's backward has scratch");
            rank.engine_mut().find_non_finite(micro)
        },
    );
    assert_eq!(found.unwrap(), [None]);
}

/// Blocks that live at the same time do not overlap, and the arena ends where the last block does.
#[test]
fn living_blocks_are_disjoint() {
    for overrides in [
        &["model.dropout=0.1"][..],
        &["activation_checkpoint.mode=full"],
        &["engine.fused=false", "engine.attention=unfused", "model.dropout=0.1", "training.accumulation=3"],
    ] {
        for section in Setup::new(overrides).programs.sections() {
            let MemoryPlan { blocks, arena_bytes, peak, .. } = &section.memory;
            for (i, a) in blocks.iter().enumerate() {
                for b in &blocks[..i] {
                    let together = a.birth <= b.death && b.birth <= a.death;
                    let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                    assert!(!together || apart, "{overrides:?} {}: {a:?} {b:?}", section.program.name);
                }
            }
            assert_eq!(blocks.iter().map(|b| b.offset + b.bytes).max(), Some(*arena_bytes));
            assert!(peak.1 <= *arena_bytes);
        }
    }
}

const WIDTH: usize = 8;

fn state() -> Arc<State> {
    let mut builder = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
    let one = || Spec::new([WIDTH], DType::F32);
    builder.group("io", [("x", one()), ("y", one())]);
    Arc::new(builder.finish())
}

/// Runs a section on x = 1, 2, … and returns y.
fn run(section: &Section, placement: Placement, poison: bool) -> Vec<f64> {
    let pool = Arc::new(Pool::new(1).unwrap());
    let state = &section.program.state;
    let arena = section.memory.arena_bytes;
    let mut engine = Engine::new(pool, state, Arc::new(SingleRank), placement, arena, poison).unwrap();
    let [x, y] = ["x", "y"].map(|name| engine.state.slot(SlotName::other("io", name)).unwrap());
    engine.state.set_values(x, &(1..=WIDTH).map(|v| v as f64).collect::<Vec<_>>()).unwrap();
    engine.run(section).unwrap();
    engine.state.values(y).unwrap()
}

/// A tensor that is only written in its first half.
#[test]
fn poison_shows_a_read_of_what_was_never_written() {
    let mut b = Builder::new("half", state());
    let [x, y] = ["x", "y"].map(|name| b.state(SlotName::other("io", name)).unwrap());
    let buffer = b.buffer("buffer", Spec::new([WIDTH], DType::F32));
    let (from, to) = (b.rows(x, 0, WIDTH / 2).unwrap(), b.rows(buffer, 0, WIDTH / 2).unwrap());
    b.emit_into("half", Arc::new(Copy), &[from], &[Destination::Into(to, Mode::Write)]).unwrap();
    b.emit_into("y", Arc::new(Copy), &[buffer], &[Destination::Into(y, Mode::Write)]).unwrap();
    let section = Section::new(b.finish());
    for placement in [Placement::Arena, Placement::Caching, Placement::Naive] {
        assert_eq!(run(&section, placement, false), [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0]);
        let poisoned = run(&section, placement, true);
        assert_eq!(poisoned[..WIDTH / 2], [1.0, 2.0, 3.0, 4.0]);
        assert!(poisoned[WIDTH / 2..].iter().all(|v| v.is_nan()), "{placement:?}: {poisoned:?}");
    }
}

/// A memory plan that gives a living tensor's place to another one. Without poison, the wrong number goes
/// unnoticed.
#[test]
fn poison_shows_a_wrong_memory_plan() {
    let mut b = Builder::new("overlap", state());
    let [x, y] = ["x", "y"].map(|name| b.state(SlotName::other("io", name)).unwrap());
    let twice = b.emit1("twice", Scale { factor: 2.0 }, &[x]).unwrap();
    let ten = b.emit1("ten", Scale { factor: 10.0 }, &[x]).unwrap();
    b.emit_into("ten", Arc::new(Copy), &[ten], &[Destination::Into(y, Mode::Write)]).unwrap();
    b.emit_into("y", Arc::new(Copy), &[twice], &[Destination::Into(y, Mode::Write)]).unwrap();
    let mut section = Section::new(b.finish());
    let doubled: Vec<f64> = (1..=WIDTH).map(|v| 2.0 * v as f64).collect();
    assert_eq!(run(&section, Placement::Arena, true), doubled, "a right plan is not disturbed");

    let offset = section.memory.blocks[0].offset;
    section.memory.blocks[1].offset = offset;
    let quietly_wrong: Vec<f64> = (1..=WIDTH).map(|v| 10.0 * v as f64).collect();
    assert_eq!(run(&section, Placement::Arena, false), quietly_wrong);
    assert!(run(&section, Placement::Arena, true).iter().all(|v| v.is_nan()));
}
