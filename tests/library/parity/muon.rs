//! Steps of Muon, each from the state of PyTorch's or of NorMuon's authors, against f64:
//! `scripts/muon_parity.py`.

use crate::parity::fixture::{Fixture, relative};
use crate::parity::formula;
use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::{
    Builder, ControlSlot, Init, ParamRequest, Precision, Role, SlotName, Spec, State, StateBuilder, Sublayer,
    UpdateOverride,
};
use xrun::optim::{GroupRole, Muon, Optimizer, Rates, UpdateGroup, Values};
use xrun::policy::{Orthogonalization, Placement, RateAdjustment, WeightDecay};

const STEPS: usize = 3;
const LR: f64 = 0.02;
/// Rows in memory of what has 20 logical ones.
const PADDED: usize = 32;

fn cases() -> [(&'static str, Muon); 4] {
    let original = Muon {
        momentum: 0.95,
        nesterov: true,
        weight_decay: 0.1,
        adjust: RateAdjustment::Original,
        steps: 5,
        orthogonalization: Orthogonalization::NewtonSchulz,
        neuron_momentum: 0.0,
    };
    let adjust = RateAdjustment::MatchRmsAdamw;
    let matching = Muon { momentum: 0.9, nesterov: false, adjust, steps: 6, ..original };
    [
        ("original", original),
        ("match_rms_adamw", matching),
        ("normuon", Muon { neuron_momentum: 0.9, ..original }),
        ("polar_express", Muon { orthogonalization: Orthogonalization::PolarExpress, ..original }),
    ]
}

/// The tensors of the fixture's matrices, in its order, with their logical rows and columns.
const TENSORS: [(&str, usize, usize); 3] = [("qkv", 40, 16), ("gate_up", 2 * 20, 16), ("down", 16, 20)];

#[test]
fn a_step_is_at_most_twice_as_far_from_f64_as_its_peers() {
    for (case, optimizer) in cases() {
        for dtype in [DType::Bf16, DType::F32] {
            follow(case, optimizer, dtype, |step, ours, theirs| {
                assert!(
                    ours <= 2.0 * theirs,
                    "{case} in {dtype}, step {step}: {ours:.2e}, the peer {theirs:.2e}"
                );
            });
        }
    }
}

/// PyTorch's momentum is in fp32, and so are its parameters: f64 differs by a rounding of each.
#[test]
fn in_f64_a_step_is_the_formula() {
    for (case, optimizer) in cases() {
        follow(case, optimizer, DType::F64, |step, ours, _| {
            // The paper's coefficients end with the rounding of its own solver.
            let bound = if case == "polar_express" { 1e-11 } else { 1e-14 };
            assert!(ours <= bound, "{case}, step {step}: {ours:.2e}");
        });
    }
}

/// Runs every step from PyTorch's state, and passes the step and the relative distances from f64 of
/// parameters, ours and PyTorch's.
fn follow(case: &str, optimizer: Muon, dtype: DType, see: impl Fn(usize, f64, f64)) {
    let fixture = Fixture::open("muon.safetensors");
    let [params, momentum, truth] =
        ["params", "momentum", "truth"].map(|of| fixture.get(&format!("{case}.{of}")));
    let count: usize = TENSORS.iter().map(|(_, rows, columns)| rows * columns).sum();
    let normalizes = optimizer.neuron_momentum > 0.0;
    let averages = |of: &str| normalizes.then(|| fixture.get(&format!("{case}.{of}")));
    let (averages, averages_truth) = (averages("neurons"), averages("neurons_truth"));
    let rows: usize = TENSORS.iter().map(|(_, rows, _)| rows).sum();
    let mut averages_before = vec![0.0; rows];
    let numbers = |of: &str| formula::uniform(&format!("muon.{of}"), count).collect::<Vec<f64>>();
    let mut before = [numbers("params").iter().map(|u| u / 8.0).collect(), vec![0.0; count]];

    let state = Arc::new(state(optimizer, dtype));
    let mut b = Builder::new("muon", Arc::clone(&state));
    group(optimizer).record(&mut b, 0, &(0..state.flat_len)).unwrap();
    let section = Section::new(b.finish());
    let pool = Arc::new(Pool::new(2).unwrap());
    let mut engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Naive, 0, false).unwrap();
    set(&mut engine, "control.clip", &[1.0]);
    set(&mut engine, "control.step", &[1.0]);
    let row = optimizer.schedule_row(Rates { lr: LR, decay: LR }, 1);
    set(&mut engine, "control.schedule", &[vec![0.0; row.len()], row].concat());
    for step in 1..=STEPS {
        let now = (step - 1) * count..step * count;
        spread(&mut engine, "grads", &numbers(&format!("gradients.{step}")));
        spread(&mut engine, "params", &before[0]);
        spread(&mut engine, "momentum", &before[1]);
        if normalizes {
            spread(&mut engine, "neurons", &in_first_column(&averages_before));
        }
        engine.run(&section).unwrap();
        let (theirs, truth) = (&params[now.clone()], &truth[now.clone()]);
        let ours = gather(&engine, "params");
        see(step, relative(&ours, truth), relative(theirs, truth));
        let (ours, theirs) = (gather(&engine, "momentum"), &momentum[now.clone()]);
        let bound = if dtype == DType::F64 { 1e-7 } else { 0.0 };
        assert!(relative(&ours, theirs) <= bound, "{case} in {dtype}, step {step}: momentum");
        if dtype == DType::Bf16 {
            let (copy, params) = (gather(&engine, "compute_copy"), gather(&engine, "params"));
            assert!(copy.iter().zip(&params).all(|(c, p)| *c == half::bf16::from_f32(*p as f32).to_f64()));
        }
        if let (Some(theirs), Some(truth)) = (&averages, &averages_truth) {
            let now = (step - 1) * rows..step * rows;
            let (theirs, truth) = (&theirs[now.clone()], &in_first_column(&truth[now]));
            let distance = relative(&gather(&engine, "neurons"), truth);
            let bound =
                if dtype == DType::F64 { 1e-14 } else { 2.0 * relative(&in_first_column(theirs), truth) };
            assert!(distance <= bound, "{case} in {dtype}, step {step}: averages are off by {distance:.2e}");
            averages_before = theirs.to_vec();
        }
        for buffer in ["params", "momentum"] {
            assert_eq!(beside(&engine, buffer), 0, "padding of {buffer} after step {step}");
        }
        before = [&params, &momentum].map(|of| of[now.clone()].to_vec());
    }
}

/// Muon for all parameters of the test, which are matrices of a block.
fn group(optimizer: Muon) -> UpdateGroup {
    UpdateGroup {
        roles: GroupRole::ALL.to_vec(),
        decaying: GroupRole::ALL.to_vec(),
        name: "muon",
        values: Values::default(),
        optimizer: Arc::new(optimizer),
        lr: LR,
        decay: WeightDecay::Coupled,
    }
}

fn state(optimizer: Muon, dtype: DType) -> State {
    let request = |name: &str, shape: &[usize], alloc: &[usize], stacked: &[usize]| ParamRequest {
        name: name.to_string(),
        shape: shape.to_vec(),
        alloc: alloc.to_vec(),
        init: Init::Constant(1.0),
        role: Role::Matrix(Sublayer::FeedForward),
        update: UpdateOverride::default(),
        stacked: stacked.to_vec(),
        block: Some(0),
    };
    let params = [
        request("qkv", &[40, 16], &[40, 16], &[24, 8, 8]),
        request("gate_up", &[2, 20, 16], &[2, PADDED, 16], &[]),
        request("down", &[16, 20], &[16, PADDED], &[]),
    ];
    let precision = Precision::for_act_dtype(dtype);
    let groups = [group(optimizer).request(precision, &params, 4096)];
    let mut builder = StateBuilder::for_training(precision, &params, &groups, None);
    let control = [
        (ControlSlot::Step, Spec::new([1], DType::U32)),
        (ControlSlot::Bad, Spec::new([1], DType::U32)),
        (ControlSlot::Clip, Spec::new([1], precision.master)),
    ];
    let control = control.map(|(slot, spec)| (SlotName::Control(slot), spec));
    let schedule = Spec::new([2, optimizer.schedule_width()], precision.master);
    builder.lay_out(control.into_iter().chain([(builder.state.groups[0].schedule(), schedule)]));
    builder.finish()
}

fn set(engine: &mut Engine, slot: &str, values: &[f64]) {
    let slot = engine.state.layout().slot_by_text(slot).unwrap();
    engine.state.set_values(slot, values).unwrap();
}

/// Writes the numbers of each tensor to where they lie in a buffer.
fn spread(engine: &mut Engine, buffer: &str, values: &[f64]) {
    let mut rest = values;
    for (tensor, rows, columns) in TENSORS {
        let (own, others) = rest.split_at(rows * columns);
        set(engine, &format!("{buffer}.{tensor}"), own);
        rest = others;
    }
}

/// Returns a number for each row of the fixture's matrices as matrices with zeros behind their first columns.
fn in_first_column(numbers: &[f64]) -> Vec<f64> {
    let widths = TENSORS.iter().flat_map(|&(_, rows, columns)| std::iter::repeat_n(columns, rows));
    let row = |(&number, columns)| [vec![number], vec![0.0; columns - 1]].concat();
    numbers.iter().zip(widths).flat_map(row).collect()
}

fn gather(engine: &Engine, buffer: &str) -> Vec<f64> {
    let part = |tensor: &str| {
        let slot = engine.state.layout().slot_by_text(&format!("{buffer}.{tensor}")).unwrap();
        engine.state.values(slot).unwrap()
    };
    TENSORS.iter().flat_map(|(tensor, ..)| part(tensor)).collect()
}

/// Counts the numbers of a buffer that are not zero and belong to no logical element.
fn beside(engine: &Engine, buffer: &str) -> usize {
    let flat = engine.state.layout().slot_by_text(&format!("{buffer}.flat")).unwrap();
    let nonzero = |values: Vec<f64>| values.into_iter().filter(|x| *x != 0.0).count();
    nonzero(engine.state.values(flat).unwrap()) - nonzero(gather(engine, buffer))
}
