//! Objectives of the head against PyTorch: `scripts/objective_parity.py` makes the fixture.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::subject::Subject;
use std::sync::Arc;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::device::{DType, ProductPrecision};
use xrun::exec::{Engine, Section};
use xrun::ir::{Builder, Destination, Mode, Precision, SlotName, Spec, StateBuilder};
use xrun::ops::cross_entropy::{IGNORED, Objective, RowFactor};
use xrun::ops::head_loss::{HeadGradients, HeadLoss};
use xrun::ops::sum::Factor;
use xrun::policy::Placement;

const ROWS: usize = 9;
const DIM: usize = 12;
const VOCAB: usize = 19;

/// As in the script.
const OBJECTIVES: [(&str, Objective); 5] = [
    ("plain", Objective::PLAIN),
    ("nanochat", Objective { logit_cap: Some(15.0), ..Objective::PLAIN }),
    ("palm", Objective { logit_scale: 0.25, z_loss: 1e-4, ..Objective::PLAIN }),
    ("smoothed", Objective { label_smoothing: 0.1, ..Objective::PLAIN }),
    ("everything", Objective { logit_scale: 0.5, logit_cap: Some(5.0), z_loss: 0.01, label_smoothing: 0.25 }),
];

fn slot(tensor: &str) -> SlotName {
    SlotName::other("t", tensor)
}

/// What the head computes of an objective in a format, under the fixture's names.
fn run(fixture: &Fixture, objective: Objective, dtype: DType) -> Vec<(&'static str, Vec<f64>)> {
    let precision = Precision::for_act_dtype(dtype);
    let rows = Spec::new([ROWS], precision.master);
    let (x, w) = (Spec::new([ROWS, DIM], dtype), Spec::padded([VOCAB, DIM], [64, DIM], dtype));
    let mut state = StateBuilder::empty(precision);
    state.group(
        "t",
        [
            ("x", x.clone()),
            ("w", w.clone()),
            ("targets", Spec::new([ROWS], DType::U32)),
            ("losses", rows.clone()),
            ("dx", x),
            ("dw", w.with_dtype(precision.master)),
            ("z_losses", rows.clone()),
            ("smoothing", rows),
        ],
    );
    let state = Arc::new(state.finish());
    let [z_losses, smoothing] = objective.places(0);
    let mut names = vec!["losses", "dx", "dw"];
    names.extend(z_losses.map(|_| "z_losses"));
    names.extend(smoothing.map(|_| "smoothing"));

    let mut b = Builder::new("head", Arc::clone(&state));
    let inputs = ["x", "w", "targets"].map(|name| b.state(slot(name)).unwrap());
    let mut outs: Vec<Destination> =
        names.iter().map(|name| Destination::Into(b.state(slot(name)).unwrap(), Mode::Write)).collect();
    // The logits.
    outs.insert(1, Destination::New);
    let scale = Factor::Constant(1.0 / ROWS as f64);
    let op = HeadLoss {
        factor: RowFactor::Same(scale),
        gradients: HeadGradients::RowsAndWeight,
        objective,
        products: ProductPrecision::Native,
    };
    b.emit_into("head", Arc::new(op), &inputs, &outs).unwrap();
    let section = Section::new(b.finish());

    let pool = Arc::new(Pool::new(2).unwrap());
    let arena = section.memory.arena_bytes;
    let mut engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Arena, arena, true).unwrap();
    let target = |target: f64| if target < 0.0 { f64::from(IGNORED) } else { target };
    for (name, values) in [
        ("x", fixture.get("x")),
        ("w", fixture.get("w")),
        ("targets", fixture.get("targets").into_iter().map(target).collect()),
    ] {
        let slot = engine.state.slot(slot(name)).unwrap();
        engine.state.set_values(slot, &values).unwrap();
    }
    engine.run(&section).unwrap();
    let values = |name: &str| engine.state.values(engine.state.slot(slot(name)).unwrap()).unwrap();
    names.into_iter().map(|name| (name, values(name))).collect()
}

#[test]
fn losses_and_gradients_of_every_objective() {
    let fixture = Fixture::open("objective.safetensors");
    for (objective, keys) in OBJECTIVES {
        for (dtype, losses, gradients) in [(DType::F64, 1e-13, 1e-13), (DType::F32, 1e-6, 1e-5)] {
            for (name, found) in run(&fixture, keys, dtype) {
                let apart = relative(&found, &fixture.get(&format!("{objective}.{name}")));
                eprintln!("{objective:<12} {dtype} {name:<10} {apart:.1e} from PyTorch in f64");
                let bound = if name.starts_with('d') { gradients } else { losses };
                assert!(apart <= bound, "{objective}, {dtype}: {name} is {apart:.1e} from PyTorch's");
            }
        }
    }
}

/// Token by token with the cache, generation sees the logits that losses are of.
#[test]
fn generation_has_the_logits_of_the_losses() {
    let head = ["model.logit_scale=4.0", "model.logit_cap=1.5"];
    for embedding in [
        &["model.position=learned", "model.embedding_scale=8.0"][..],
        &["model.position=none", "model.qk_norm=false"],
        &["model.position=none", "engine.fused=false"],
    ] {
        let mut subject = Subject::new(&[&head[..], embedding].concat());
        let (logits, _) = subject.evaluate();
        let largest = logits.iter().fold(0.0, |largest: f64, logit| largest.max(logit.abs()));
        assert!((1.0..=1.5).contains(&largest), "the cap shows in logits of up to {largest}");
        let apart = relative(&subject.generate(), &logits);
        eprintln!("{embedding:?}: generation is {apart:.1e} from evaluation");
        assert!(apart <= 1e-5, "{embedding:?}: {apart:.1e}");
    }
}
