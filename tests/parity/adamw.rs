//! 1,000 steps of AdamW, each from PyTorch's state.

use crate::fixture::Fixture;
use crate::formula;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::ParamRequest;
use xrun::ir::{Builder, Init, Precision, Role, Spec, State, StateBuilder};
use xrun::optim::{AdamW, Optimizer, Update};
use xrun::plan::Schedule;
use xrun::policy::{Decay, Placement};

const STEPS: usize = 1000;
/// Numbers that decay, and numbers that do not.
const COUNTS: [usize; 2] = [16, 8];
const OPTIMIZER: AdamW = AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 };

#[test]
fn every_step_within_two_ulp() {
    let fixture = Fixture::open("adamw.safetensors");
    let count: usize = COUNTS.iter().sum();
    let gradients = formula::adamw_gradients(STEPS, count);
    let after = ["params", "m", "v"].map(|buffer| (buffer, fixture.get(buffer)));
    let mut before = [start(), vec![0.0; count], vec![0.0; count]];

    let state = Arc::new(state());
    let section = section(&state);
    let mut engine = Engine::new(
        Arc::new(Pool::new(1).unwrap()),
        &state,
        Arc::new(SingleRank),
        Placement::Naive,
        0,
        false,
    )
    .unwrap();
    set(&mut engine, "control.clip", &[1.0]);
    set(&mut engine, "control.schedule", &table());

    let mut worst = [0; 3];
    let mut different = [0; 3];
    for t in 1..=STEPS {
        let now = (t - 1) * count..t * count;
        let g: Vec<f64> = gradients[now.clone()].iter().map(|&g| f64::from(g)).collect();
        spread(&mut engine, "grads", &g);
        for ((buffer, _), values) in after.iter().zip(&before) {
            spread(&mut engine, buffer, values);
        }
        set(&mut engine, "control.step", &[t as f64]);
        engine.run(&section).unwrap();
        for (i, (buffer, theirs)) in after.iter().enumerate() {
            let ours = gather(&engine, buffer);
            for (k, (&a, &b)) in ours.iter().zip(&theirs[now.clone()]).enumerate() {
                let apart = ulps(a as f32, b as f32);
                assert!(apart <= 2, "step {t}: {buffer}[{k}] is {a:e}, PyTorch's {b:e}: {apart} ulp");
                worst[i] = worst[i].max(apart);
                different[i] += usize::from(apart > 0);
            }
            before[i] = theirs[now.clone()].to_vec();
        }
    }
    for (i, (buffer, theirs)) in after.iter().enumerate() {
        eprintln!(
            "{buffer:<6} at most {} ulp apart, {} of {} not equal",
            worst[i],
            different[i],
            theirs.len()
        );
    }
}

/// Floats between two floats, plus one when they differ.
fn ulps(a: f32, b: f32) -> u64 {
    let order = |x: f32| {
        let magnitude = i64::from(x.to_bits() & 0x7fff_ffff);
        if x.is_sign_negative() { -magnitude } else { magnitude }
    };
    order(a).abs_diff(order(b))
}

fn start() -> Vec<f64> {
    let undecayed = formula::uniform("adamw.vector", COUNTS[1]).map(|u| 1.0 + u / 4.0);
    formula::uniform("adamw.matrix", COUNTS[0]).chain(undecayed).collect()
}

/// The learning rates of the fixture, as a plan would upload them.
fn table() -> Vec<f64> {
    let schedule = Schedule {
        lr: 3e-2,
        warmup: 100,
        steps: STEPS,
        min_ratio: 0.1,
        decay: Decay::Cosine,
        decay_ratio: 0.2,
    };
    let rows = (1..=STEPS).flat_map(|t| OPTIMIZER.schedule_row(schedule.at(t), t as u64));
    std::iter::repeat_n(0.0, OPTIMIZER.schedule_width()).chain(rows).collect()
}

fn state() -> State {
    let request = |name: &str, shape: Vec<usize>, role: Role| ParamRequest {
        name: name.to_string(),
        alloc: shape.clone(),
        shape,
        init: Init::Ones,
        role,
        stacked: Vec::new(),
        block: None,
    };
    let matrix = request("matrix", vec![4, COUNTS[0] / 4], Role::Head);
    let params = [matrix, request("vector", vec![COUNTS[1]], Role::Vector)];
    let precision = Precision::for_act_dtype(DType::F32);
    let mut builder = StateBuilder::for_training(precision, &params, &OPTIMIZER.slots(precision));
    builder.group(
        "control",
        &[
            ("step", Spec::new([1], DType::U32)),
            ("bad", Spec::new([1], DType::U32)),
            ("clip", Spec::new([1], DType::F32)),
            ("schedule", Spec::new([STEPS + 1, OPTIMIZER.schedule_width()], DType::F32)),
        ],
    );
    builder.finish()
}

fn section(state: &Arc<State>) -> Section {
    let mut b = Builder::new("adamw", Arc::clone(state));
    let update = Update::from_state(&mut b).unwrap();
    OPTIMIZER.record(&mut b, &update).unwrap();
    Section::new(b.finish())
}

fn set(engine: &mut Engine, slot: &str, values: &[f64]) {
    let slot = engine.state.slot(slot).unwrap();
    engine.state.set_values(slot, values).unwrap();
}

/// Writes the numbers that decay and those that do not to where they lie in a buffer.
fn spread(engine: &mut Engine, buffer: &str, values: &[f64]) {
    set(engine, &format!("{buffer}.matrix"), &values[..COUNTS[0]]);
    set(engine, &format!("{buffer}.vector"), &values[COUNTS[0]..]);
}

fn gather(engine: &Engine, buffer: &str) -> Vec<f64> {
    let part =
        |name: &str| engine.state.values(engine.state.slot(&format!("{buffer}.{name}")).unwrap()).unwrap();
    [part("matrix"), part("vector")].concat()
}
