//! Compares the gradients that the forward pass computes with finite differences and with the unfused form,
//! and checks them through autodiff.

use super::super::cross_entropy::cases::OBJECTIVES;
use super::*;
use crate::check::{ATOL, EPSILON, RTOL};
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::philox::philox;
use crate::exec::{Engine, Section};
use crate::ir::{Destination, Home, Program, SlotName, State, StateBuilder, Upstream};
use crate::passes::{differentiate, unfuse};
use crate::policy::Placement;
use std::sync::Arc;

const ROWS: usize = 13;
const DIM: usize = 24;
const VOCAB: usize = 37;
const SCALE: f64 = 0.125;

/// The state tensors for the losses beyond cross-entropy: z-losses and smoothing losses.
const TERMS: [&str; 2] = ["z_losses", "smoothing"];

/// Returns plain cross-entropy and every other objective of the test cases.
fn objectives() -> impl Iterator<Item = Objective> {
    [Objective::PLAIN].into_iter().chain(OBJECTIVES.map(|(_, objective)| objective))
}

/// Returns a state with x, W and targets, the gradients of x and W, and the losses.
fn state(dtype: DType) -> Arc<State> {
    let precision = Precision::for_act_dtype(dtype);
    let (x, w) = (Spec::new([ROWS, DIM], dtype), Spec::padded([VOCAB, DIM], [64, DIM], dtype));
    let mut builder = StateBuilder::empty(precision);
    let [x, w, _, dx, dw, ..] = builder.group(
        "t",
        [
            ("x", x.clone()),
            ("w", w.clone()),
            ("targets", Spec::new([ROWS], DType::U32)),
            ("dx", x),
            ("dw", w.with_dtype(precision.master)),
            ("losses", Spec::new([ROWS], precision.master)),
            ("z_losses", Spec::new([ROWS], precision.master)),
            ("smoothing", Spec::new([ROWS], precision.master)),
        ],
    );
    builder.watch(x, dx);
    builder.watch(w, dw);
    Arc::new(builder.finish())
}

fn slot(tensor: &str) -> SlotName {
    SlotName::other("t", tensor)
}

fn record(state: &Arc<State>, objective: Objective, gradients: HeadGradients) -> Program {
    let mut b = Builder::new("head", Arc::clone(state));
    let inputs = ["x", "w", "targets"].map(|name| b.state(slot(name)).unwrap());
    let mut outs = vec![Destination::Into(b.state(slot("losses")).unwrap(), Mode::Write), Destination::New];
    if gradients == HeadGradients::RowsAndWeight {
        outs.extend([Destination::New, Destination::Into(b.state(slot("dw")).unwrap(), Mode::Write)]);
    }
    for (place, name) in objective.places(0).into_iter().zip(TERMS) {
        outs.extend(place.map(|_| Destination::Into(b.state(slot(name)).unwrap(), Mode::Write)));
    }
    let factor = RowFactor::Same(Factor::Constant(SCALE));
    let op = HeadLoss { factor, gradients, objective, products: ProductPrecision::Native };
    b.emit_into("head", Arc::new(op), &inputs, &outs).unwrap();
    b.finish()
}

fn seeds(program: &Program, upstream: Upstream) -> Vec<(TensorId, Upstream)> {
    let losses = program.state.slot(slot("losses")).unwrap();
    let at = |id: &TensorId| program.tensor(*id).home == Home::State(losses);
    vec![((0..program.tensors.len()).map(TensorId).find(at).unwrap(), upstream)]
}

/// A program ready to run, with fixed pseudorandom inputs.
struct Run {
    section: Section,
    engine: Engine,
}

impl Run {
    fn new(program: Program) -> Self {
        let state = Arc::clone(&program.state);
        let section = Section::new(program);
        let arena = section.memory.arena_bytes;
        let pool = Arc::new(Pool::new(2).unwrap());
        let engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Arena, arena, true).unwrap();
        let mut run = Self { section, engine };
        let value = |stream: u32, at: usize| {
            f64::from(philox([at as u32, stream, 0, 0], [1, 2])[0]) / 2f64.powi(31) - 1.0
        };
        run.set("x", &(0..ROWS * DIM).map(|i| value(0, i)).collect::<Vec<_>>());
        run.set("w", &(0..VOCAB * DIM).map(|i| value(1, i)).collect::<Vec<_>>());
        let target = |i: usize| if i == 5 { f64::from(u32::MAX) } else { (i * 7 % VOCAB) as f64 };
        run.set("targets", &(0..ROWS).map(target).collect::<Vec<_>>());
        run
    }

    fn set(&mut self, name: &str, values: &[f64]) {
        let slot = self.engine.state.slot(slot(name)).unwrap();
        self.engine.state.set_values(slot, values).unwrap();
    }

    fn get(&self, name: &str) -> Vec<f64> {
        self.engine.state.values(self.engine.state.slot(slot(name)).unwrap()).unwrap()
    }

    fn objective(&mut self) -> f64 {
        self.engine.run(&self.section).unwrap();
        let all = [&["losses"][..], &TERMS].concat();
        SCALE * all.into_iter().flat_map(|name| self.get(name)).sum::<f64>()
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for objective in objectives() {
        let state = state(DType::F64);
        let program = record(&state, objective, HeadGradients::RowsAndWeight);
        let ends = seeds(&program, Upstream::One);
        let mut trained = Run::new(differentiate(program, &ends, true).unwrap());
        let all = trained.objective();
        let mut evaluated = Run::new(record(&state, objective, HeadGradients::None));
        assert_eq!(evaluated.objective(), all, "{objective:?}");
        for (input, gradient) in [("x", "dx"), ("w", "dw")] {
            let (values, gradient) = (evaluated.get(input), trained.get(gradient));
            for at in 0..values.len() {
                let mut shifted = |by: f64| {
                    let mut moved = values.clone();
                    moved[at] += by;
                    evaluated.set(input, &moved);
                    evaluated.objective()
                };
                let numeric = (shifted(EPSILON) - shifted(-EPSILON)) / (2.0 * EPSILON);
                let error = (gradient[at] - numeric).abs();
                assert!(
                    error <= ATOL + RTOL * numeric.abs(),
                    "{objective:?}: {input}[{at}]: {} and {numeric}",
                    gradient[at]
                );
            }
            evaluated.set(input, &values);
        }
    }
}

#[test]
fn the_unfused_form_gives_the_same_bits() {
    for (dtype, objective) in
        [DType::F64, DType::F32, DType::Bf16].into_iter().flat_map(|d| objectives().map(move |o| (d, o)))
    {
        let state = state(dtype);
        let results = [false, true].map(|small| {
            let program = record(&state, objective, HeadGradients::RowsAndWeight);
            let program = if small { unfuse(program).unwrap() } else { program };
            let ends = seeds(&program, Upstream::One);
            let program = differentiate(program, &ends, true).unwrap();
            assert_eq!(program.nodes.iter().any(|n| n.op.name() == "head_loss"), !small, "{program}");
            let mut run = Run::new(program);
            run.objective();
            ["losses", "dx", "dw", TERMS[0], TERMS[1]].map(|name| run.get(name))
        });
        assert_eq!(results[0], results[1], "{dtype} {objective:?}");
        let present = [Some(0), Some(0), Some(0)].into_iter().chain(objective.places(0));
        for (values, present) in results[0].iter().zip(present) {
            assert_eq!(values.iter().any(|v| *v != 0.0), present.is_some(), "{objective:?}");
        }
    }
}

#[test]
fn other_upstreams_are_refused() {
    let state = state(DType::F32);
    let program = record(&state, Objective::PLAIN, HeadGradients::RowsAndWeight);
    let ends = seeds(&program, Upstream::Tensor(program.nodes[0].outputs[0]));
    let error = differentiate(program, &ends, true).unwrap_err();
    assert!(error.message().contains("upstream 1"), "{error}");

    let program = record(&state, Objective::PLAIN, HeadGradients::None);
    let ends = seeds(&program, Upstream::One);
    let error = differentiate(program, &ends, true).unwrap_err();
    assert!(error.message().contains("without gradients"), "{error}");
}
