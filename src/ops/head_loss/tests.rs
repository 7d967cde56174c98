//! The gradients that are made in the forward, against finite differences, against the unfused form, and
//! through autodiff.

use super::*;
use crate::check::{ATOL, EPSILON, RTOL};
use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::philox::philox;
use crate::exec::{Engine, Section};
use crate::ir::Upstream;
use crate::ir::{Destination, Program, State, StateBuilder};
use crate::passes::{differentiate, unfuse};
use crate::policy::Placement;
use std::sync::Arc;

const ROWS: usize = 13;
const DIM: usize = 24;
const VOCAB: usize = 37;
const SCALE: f64 = 0.125;

/// x, W and targets, gradients of x and W, and the losses.
fn state(dtype: DType) -> Arc<State> {
    let precision = Precision::for_act_dtype(dtype);
    let (x, w) = (Spec::new([ROWS, DIM], dtype), Spec::padded([VOCAB, DIM], [64, DIM], dtype));
    let mut builder = StateBuilder::empty(precision);
    builder.group(
        "t",
        &[
            ("x", x.clone()),
            ("w", w.clone()),
            ("targets", Spec::new([ROWS], DType::U32)),
            ("dx", x),
            ("dw", w.with_dtype(precision.master)),
            ("losses", Spec::new([ROWS], precision.master)),
        ],
    );
    builder.watch("t.x", "t.dx");
    builder.watch("t.w", "t.dw");
    Arc::new(builder.finish())
}

fn record(state: &Arc<State>, gradients: bool) -> Program {
    let mut b = Builder::new("head", Arc::clone(state));
    let inputs = ["t.x", "t.w", "t.targets"].map(|name| b.state(name).unwrap());
    let mut outs = vec![Destination::Into(b.state("t.losses").unwrap(), Mode::Write)];
    if gradients {
        outs.extend([
            Destination::New,
            Destination::New,
            Destination::Into(b.state("t.dw").unwrap(), Mode::Write),
        ]);
    }
    b.emit_into(
        "head",
        Arc::new(HeadLoss { scale: SCALE, gradients, products: ProductPrecision::Native }),
        &inputs,
        &outs,
    )
    .unwrap();
    b.finish()
}

fn seeds(program: &Program, upstream: Upstream) -> Vec<(TensorId, Upstream)> {
    vec![(program.nodes.last().unwrap().outputs[0], upstream)]
}

/// A program ready to run, with inputs of fixed pseudorandom values.
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
        run.set("t.x", &(0..ROWS * DIM).map(|i| value(0, i)).collect::<Vec<_>>());
        run.set("t.w", &(0..VOCAB * DIM).map(|i| value(1, i)).collect::<Vec<_>>());
        let target = |i: usize| if i == 5 { f64::from(u32::MAX) } else { (i * 7 % VOCAB) as f64 };
        run.set("t.targets", &(0..ROWS).map(target).collect::<Vec<_>>());
        run
    }

    fn set(&mut self, name: &str, values: &[f64]) {
        let slot = self.engine.state.slot(name).unwrap();
        self.engine.state.set_values(slot, values).unwrap();
    }

    fn get(&self, name: &str) -> Vec<f64> {
        self.engine.state.values(self.engine.state.slot(name).unwrap()).unwrap()
    }

    fn objective(&mut self) -> f64 {
        self.engine.run(&self.section).unwrap();
        SCALE * self.get("t.losses").iter().sum::<f64>()
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let state = state(DType::F64);
    let program = record(&state, true);
    let ends = seeds(&program, Upstream::One);
    let mut trained = Run::new(differentiate(program, &ends, true).unwrap());
    trained.objective();
    let mut evaluated = Run::new(record(&state, false));
    for (input, gradient) in [("t.x", "t.dx"), ("t.w", "t.dw")] {
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
            assert!(error <= ATOL + RTOL * numeric.abs(), "{input}[{at}]: {} and {numeric}", gradient[at]);
        }
        evaluated.set(input, &values);
    }
}

#[test]
fn the_unfused_form_gives_the_same_bits() {
    for dtype in [DType::F64, DType::F32, DType::Bf16] {
        let state = state(dtype);
        let results = [false, true].map(|small| {
            let program = record(&state, true);
            let program = if small { unfuse(program).unwrap() } else { program };
            let ends = seeds(&program, Upstream::One);
            let program = differentiate(program, &ends, true).unwrap();
            assert_eq!(program.nodes.iter().any(|n| n.op.name() == "head_loss"), !small, "{program}");
            let mut run = Run::new(program);
            run.objective();
            ["t.losses", "t.dx", "t.dw"].map(|name| run.get(name))
        });
        assert_eq!(results[0], results[1], "{dtype}");
        assert!(results[0].iter().all(|values| values.iter().any(|v| *v != 0.0)));
    }
}

#[test]
fn other_upstreams_are_refused() {
    let state = state(DType::F32);
    let program = record(&state, true);
    let ends = seeds(&program, Upstream::Tensor(program.nodes[0].outputs[0]));
    let error = differentiate(program, &ends, true).unwrap_err();
    assert!(error.message().contains("upstream 1"), "{error}");

    let program = record(&state, false);
    let ends = seeds(&program, Upstream::One);
    let error = differentiate(program, &ends, true).unwrap_err();
    assert!(error.message().contains("without gradients"), "{error}");
}
