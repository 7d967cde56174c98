//! 100 steps of SGD against the formula of `torch.optim.SGD`, to the bit.
//!
//! The reference below is `_single_tensor_sgd` of PyTorch's torch/optim/sgd.py without dampening,
//! maximization and Nesterov's form, one number at a time: `grad.add(param, alpha=weight_decay)` and
//! `param.add_(grad, alpha=-lr)` round once, as PyTorch's vectorized kernels do; the first step makes the
//! momentum a copy of the gradient.

use crate::formula;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::ParamRequest;
use xrun::ir::{Builder, Init, Precision, Role, Spec, State, StateBuilder};
use xrun::optim::{self, Optimizer, Update, Value, Values};
use xrun::policy::Placement;

const STEPS: usize = 100;
/// Numbers of the matrix, which decays, and of the vector, which does not.
const COUNTS: [usize; 2] = [16, 8];
const LR: f32 = 0.02;
const WEIGHT_DECAY: f32 = 0.1;
const CLIP: f32 = 0.5;

/// One number with its momentum, as PyTorch keeps them.
struct Torch {
    param: f32,
    buffer: Option<f32>,
    weight_decay: f32,
}

impl Torch {
    fn step(&mut self, gradient: f32, momentum: f32) {
        let mut grad = gradient;
        if self.weight_decay != 0.0 {
            grad = self.weight_decay.mul_add(self.param, grad);
        }
        if momentum != 0.0 {
            let buffer = self.buffer.map_or(grad, |buffer| buffer * momentum + grad);
            self.buffer = Some(buffer);
            grad = buffer;
        }
        self.param = (-LR).mul_add(grad, self.param);
    }
}

#[test]
fn every_step_has_the_bits_of_the_formula() {
    for momentum in [0.9, 0.0] {
        follow(momentum);
    }
}

fn follow(momentum: f32) {
    let entry = optim::find("sgd").expect("a known optimizer");
    let written = [("momentum", momentum), ("weight_decay", WEIGHT_DECAY)];
    let written = written.map(|(name, x)| (name.to_owned(), Value::Number(f64::from(x))));
    let optimizer = (entry.build)(&Values::from_written(entry.hyperparameters, &written.into()));
    let state = Arc::new(state(&*optimizer));
    let mut b = Builder::new("sgd", Arc::clone(&state));
    let update = Update::from_state(&mut b).unwrap();
    optimizer.record(&mut b, &update).unwrap();
    let section = Section::new(b.finish());
    let pool = Arc::new(Pool::new(1).unwrap());
    let mut engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Naive, 0, false).unwrap();
    set(&mut engine, "control.clip", &[CLIP]);
    let row: Vec<f32> = optimizer.schedule_row(f64::from(LR), 1).iter().map(|&x| x as f32).collect();
    set(&mut engine, "control.schedule", &[vec![0.0; row.len()], row].concat());
    set(&mut engine, "control.step", &[1.0]);

    let count: usize = COUNTS.iter().sum();
    let gradients = formula::adamw_gradients(STEPS, count);
    let weight_decay = |i: usize| if i < COUNTS[0] { WEIGHT_DECAY } else { 0.0 };
    let start = |i: usize| (i as f32 - 11.5) / 7.0;
    let mut torch: Vec<Torch> =
        (0..count).map(|i| Torch { param: start(i), buffer: None, weight_decay: weight_decay(i) }).collect();
    spread(&mut engine, "params", &torch.iter().map(|t| t.param).collect::<Vec<_>>());
    for step in 0..STEPS {
        let grads = &gradients[step * count..][..count];
        spread(&mut engine, "grads", grads);
        engine.run(&section).unwrap();
        torch.iter_mut().zip(grads).for_each(|(t, g)| t.step(g * CLIP, momentum));
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let params: Vec<f32> = torch.iter().map(|t| t.param).collect();
        assert_eq!(bits(&gather(&engine, "params")), bits(&params), "params after step {step}");
        if momentum != 0.0 {
            let buffers: Vec<f32> = torch.iter().filter_map(|t| t.buffer).collect();
            assert_eq!(bits(&gather(&engine, "momentum")), bits(&buffers), "momentum after step {step}");
        }
    }
    assert_eq!(state.slot("momentum.flat").is_some(), momentum != 0.0);
}

fn state(optimizer: &dyn Optimizer) -> State {
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
    let mut builder = StateBuilder::for_training(precision, &params, &optimizer.slots(precision));
    builder.group(
        "control",
        &[
            ("step", Spec::new([1], DType::U32)),
            ("bad", Spec::new([1], DType::U32)),
            ("clip", Spec::new([1], DType::F32)),
            ("schedule", Spec::new([2, optimizer.schedule_width()], DType::F32)),
        ],
    );
    builder.finish()
}

fn set(engine: &mut Engine, slot: &str, values: &[f32]) {
    let slot = engine.state.slot(slot).unwrap();
    let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    engine.state.set_values(slot, &values).unwrap();
}

/// Writes the numbers of the matrix and those of the vector to where they lie in a buffer.
fn spread(engine: &mut Engine, buffer: &str, values: &[f32]) {
    set(engine, &format!("{buffer}.matrix"), &values[..COUNTS[0]]);
    set(engine, &format!("{buffer}.vector"), &values[COUNTS[0]..]);
}

fn gather(engine: &Engine, buffer: &str) -> Vec<f32> {
    let slot = |name: &str| engine.state.slot(&format!("{buffer}.{name}")).unwrap();
    let part = |name: &str| engine.state.values(slot(name)).unwrap();
    [part("matrix"), part("vector")].concat().into_iter().map(|x| x as f32).collect()
}
