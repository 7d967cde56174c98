//! Several ranks in one process: what they exchange, and how they stop together.

use crate::engine::harness::{Setup, Trained};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use xrun::exec::NonFiniteTensor;
use xrun::ir::{Home, SlotId, SlotName, Stream, TensorId};
use xrun::passes::buckets::buckets;
use xrun::plan::Plan;

const STEPS: usize = 6;
const BASE: [&str; 3] = ["parallelism.world_size=2", "model.dropout=0.2", "training.accumulation=2"];

/// Enough for any of these runs, and a limit for one that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

fn all_reduces(setup: &Setup) -> usize {
    let last = setup.programs.micro_step(1, 2);
    last.program.nodes.iter().filter(|n| n.op.name() == "all_reduce").count()
}

#[test]
fn buckets_and_overlap_change_no_bit() {
    for tied in ["model.tie_embeddings=false", "model.tie_embeddings=true"] {
        let overrides = [&BASE[..], &[tied]].concat();
        let base = Setup::new(&overrides);
        let trained = base.train(STEPS);
        assert_eq!(trained[1].difference(&trained[0]), None);
        let params = base.programs.state.params.len();
        // The head's gradient is sent separately if the model has its own head.
        let largest = if tied.ends_with("true") { 1 } else { 2 };
        for (bytes, fewest, most) in
            [(0, params, params), (8192, 3, params - 1), (usize::MAX, largest, largest)]
        {
            for overlap in [true, false] {
                let setup = Setup::planned(&overrides, |plan| {
                    plan.execution.bucket_bytes = bytes;
                    plan.execution.overlap = overlap;
                });
                let count = all_reduces(&setup);
                assert!(
                    (fewest..=most).contains(&count),
                    "{bytes} bytes: {count} buckets, {params} parameters"
                );
                for (rank, trained) in setup.train(STEPS).iter().zip(&trained) {
                    assert_eq!(rank.difference(trained), None, "{tied}, {bytes} bytes, overlap {overlap}");
                }
            }
        }
    }
}

/// All gradients in one group after the backward: the sums are the same, whatever else runs.
#[test]
fn a_group_of_all_tensors_gives_the_same_bits() {
    let bucketed = Setup::new(&BASE).train(STEPS);
    let grouped = Setup::new(&[&BASE[..], &["parallelism.reduction=grouped"]].concat());
    let last = &grouped.programs.micro_step(1, 2).program;
    let groups: Vec<_> = last.nodes.iter().filter(|n| n.op.name() == "all_reduce").collect();
    let params = grouped.programs.state.params.len();
    assert_eq!(groups.iter().map(|n| n.outputs.len()).collect::<Vec<_>>(), [params]);
    assert_eq!(last.nodes.last().map(|n| n.op.name()), Some("all_reduce"));
    assert!(grouped.programs.state.slot(SlotName::Bucket(0)).is_none());
    for (rank, bucketed) in grouped.train(STEPS).iter().zip(&bucketed) {
        assert_eq!(rank.difference(bucketed), None);
    }
}

/// What runs beside the model touches only the state, which is complete before it and not written after it.
#[test]
fn what_runs_beside_the_model_is_left_alone() {
    let setup = Setup::new(&BASE);
    let program = &setup.programs.micro_step(1, 2).program;
    let in_state = |id: &TensorId| match program.tensor(program.base(*id)).home {
        Home::State(slot) => Some(slot),
        _ => None,
    };
    let (mut beside, layout) = (0, &program.state);
    for (at, node) in program.nodes.iter().enumerate().filter(|(_, n)| n.stream == Stream::Communication) {
        beside += 1;
        let slots: Vec<_> = node.inputs.iter().chain(&node.outputs).map(in_state).collect();
        assert!(slots.iter().all(Option::is_some), "{} touches the arena", node.op.name());
        let overlaps = |a: SlotId, b: SlotId| {
            let (a, b) = (layout.get(a), layout.get(b));
            a.buffer == b.buffer
                && a.offset < b.offset + b.spec.bytes()
                && b.offset < a.offset + a.spec.bytes()
        };
        for later in &program.nodes[at + 1..] {
            let touched = later.inputs.iter().chain(&later.outputs).filter_map(in_state);
            for slot in touched {
                let shared = slots.iter().flatten().any(|&sent| overlaps(sent, slot));
                assert!(!shared, "{} touches {}", later.op.name(), layout.get(slot).name);
            }
        }
    }
    assert!(beside > 1);
}

/// Every element of the flat gradient is in exactly one bucket, in order. The first may be a bucket by
/// itself.
#[test]
fn buckets_cover_the_gradient() {
    let state = &Setup::new(&BASE).programs.state;
    let starts: Vec<(usize, usize)> = state.params.iter().map(|p| (p.start, p.spec.elements())).collect();
    for bytes in [0, 1, 4096, 50_000, usize::MAX] {
        for first_alone in [false, true] {
            let mut end = 0;
            let buckets = buckets(&starts, state.flat_len, 4, bytes, first_alone);
            for bucket in &buckets {
                assert_eq!(bucket.start, end);
                end += bucket.len;
            }
            assert_eq!(end, state.flat_len, "{bytes} bytes");
            assert!(!first_alone || buckets[0].len == starts[1].0, "{bytes} bytes");
        }
    }
}

#[test]
fn without_communication_every_rank_is_alone() {
    let together = Setup::new(&BASE).train(STEPS);
    let apart = Setup::new(&[&BASE[..], &["engine.communication=off"]].concat()).train(STEPS);
    // The loss covers all ranks either way, so it is the same before the first update.
    assert_eq!(apart[0].curve[0].0.to_bits(), together[0].curve[0].0.to_bits());
    assert!(apart[0].distance(&together[0]) > 1e-3);
    assert!(apart[0].distance(&apart[1]) > 1e-3);
}

/// Trains with another learning rate on rank 1, and fails if that hangs.
fn with_rate_of_rank_1(overrides: &[&str], lr: f64) -> Vec<Trained> {
    let setup = Setup::new(&[&BASE[..], overrides].concat());
    let mut other = Plan::clone(&setup.plan);
    other.update_groups.iter_mut().for_each(|group| group.lr = lr);
    let other = Arc::new(other);
    let (done, wait) = channel();
    std::thread::spawn(move || {
        let trained =
            setup.train_with(STEPS, |rank| Arc::clone(if rank == 1 { &other } else { &setup.plan }));
        // If the wait was too long, nobody is listening any more.
        let _ = done.send(trained);
    });
    wait.recv_timeout(PATIENCE).expect("no rank waits for another for ever")
}

/// Rank 1 spoils its parameters in step 1. In step 2, all ranks stop before the update and name the same
/// tensor.
#[test]
fn a_rank_that_is_not_finite_stops_all_at_once() {
    let trained = with_rate_of_rank_1(&[], f64::NAN);
    let bad = NonFiniteTensor { tensor: "embedding.x".into(), op: "embedding", value: "NaN".into() };
    for rank in &trained {
        assert_eq!(rank.bad, Some((2, bad.clone())));
    }
    let healthy = Setup::new(&BASE).train(1);
    assert_eq!(trained[0].tensors, healthy[0].tensors, "nothing is updated in step 2");
}

/// Without communication, one rank alone may see a gradient that is not finite although the loss is.
#[test]
fn ranks_that_see_different_gradients_stop_together() {
    let trained = with_rate_of_rank_1(&["engine.communication=off"], 1e25);
    let stopped: Vec<_> = trained.iter().map(|rank| rank.bad.clone()).collect();
    assert!(stopped[0].is_some(), "rank 1 overflows: {:?}", trained[1].curve);
    assert_eq!(stopped[0], stopped[1]);
    assert!(trained.iter().all(|rank| rank.curve.last().is_some_and(|(loss, _)| loss.is_finite())));
}
