//! An optimizer on 24 numbers: a matrix, which decays, and a vector, which does not.

use std::sync::Arc;
use xrun::device::DType;
use xrun::device::communicator::SingleRank;
use xrun::device::cpu::Pool;
use xrun::exec::{Engine, Section};
use xrun::ir::{
    Builder, ControlSlot, Init, ParamRequest, Precision, Role, SlotName, Spec, State, StateBuilder,
    UpdateOverride,
};
use xrun::optim::{self, GroupRole, RoleRule, UpdateGroup, Value, Values};
use xrun::policy::{Placement, WeightDecay};

/// Numbers of the matrix and of the vector.
pub const COUNTS: [usize; 2] = [16, 8];

/// All of them.
pub const COUNT: usize = COUNTS[0] + COUNTS[1];

/// The numbers with their gradients and the state of the optimizer.
pub struct Numbers {
    /// Their optimizer.
    pub group: UpdateGroup,
    /// The layout of everything.
    pub state: Arc<State>,
    engine: Engine,
    section: Section,
}

impl Numbers {
    /// Numbers with an optimizer and some of its hyperparameters, for so many steps.
    pub fn new(name: &str, settings: &[(&str, Value)], steps: usize) -> Self {
        let entry = optim::find(name).expect("a known optimizer");
        let written = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let values = Values::from_written(entry.hyperparameters, &written);
        let rule = |role: GroupRole| RoleRule {
            role,
            entry,
            values: values.clone(),
            lr: 1.0,
            decay: WeightDecay::Coupled,
            decays: role.decays(),
        };
        let group = UpdateGroup::join(&GroupRole::ALL.map(rule)).remove(0);
        let state = Arc::new(state(&group, steps));
        let mut b = Builder::new(name, Arc::clone(&state));
        group.record(&mut b, 0, &(0..state.flat_len)).unwrap();
        let section = Section::new(b.finish());
        let pool = Arc::new(Pool::new(1).unwrap());
        let engine = Engine::new(pool, &state, Arc::new(SingleRank), Placement::Naive, 0, false).unwrap();
        Self { group, state, engine, section }
    }

    /// Writes a slot of the state.
    pub fn set(&mut self, slot: &str, values: &[f64]) {
        let slot = self.engine.state.layout().slot_by_text(slot).unwrap();
        self.engine.state.set_values(slot, values).unwrap();
    }

    /// Writes the schedule of these learning rates, from step 1.
    pub fn set_rates(&mut self, rates: impl Iterator<Item = f64>) {
        let optimizer = Arc::clone(&self.group.optimizer);
        let group = self.group.clone();
        let rows = rates.zip(1..).flat_map(|(lr, t)| optimizer.schedule_row(group.rates(lr, lr), t));
        let table: Vec<f64> = std::iter::repeat_n(0.0, optimizer.schedule_width()).chain(rows).collect();
        self.set("control.schedule", &table);
    }

    /// Takes a step.
    pub fn step(&mut self) {
        self.engine.run(&self.section).unwrap();
    }

    /// Writes the numbers of the matrix and those of the vector to where they lie in a buffer.
    pub fn spread(&mut self, buffer: &str, values: &[f64]) {
        self.set(&format!("{buffer}.matrix"), &values[..COUNTS[0]]);
        self.set(&format!("{buffer}.vector"), &values[COUNTS[0]..]);
    }

    /// Reads them.
    pub fn gather(&self, buffer: &str) -> Vec<f64> {
        let slot = |name: &str| self.engine.state.layout().slot_by_text(&format!("{buffer}.{name}")).unwrap();
        let part = |name: &str| self.engine.state.values(slot(name)).unwrap();
        [part("matrix"), part("vector")].concat()
    }
}

fn state(group: &UpdateGroup, steps: usize) -> State {
    let request = |name: &str, shape: Vec<usize>, role: Role| ParamRequest {
        name: name.to_string(),
        alloc: shape.clone(),
        shape,
        init: Init::Constant(1.0),
        role,
        update: UpdateOverride::default(),
        stacked: Vec::new(),
        block: None,
    };
    let matrix = request("matrix", vec![4, COUNTS[0] / 4], Role::Head);
    let params = [matrix, request("vector", vec![COUNTS[1]], Role::Vector)];
    let precision = Precision::for_act_dtype(DType::F32);
    let groups = [group.request(precision, &params, 1)];
    let mut builder = StateBuilder::for_training(precision, &params, &groups, None);
    let schedule = Spec::new([steps + 1, group.optimizer.schedule_width()], DType::F32);
    let control = [
        (ControlSlot::Step, Spec::new([1], DType::U32)),
        (ControlSlot::Bad, Spec::new([1], DType::U32)),
        (ControlSlot::Clip, Spec::new([1], DType::F32)),
    ];
    let control = control.map(|(slot, spec)| (SlotName::Control(slot), spec));
    builder.lay_out(control.into_iter().chain([(builder.state.groups[0].schedule(), schedule)]));
    builder.finish()
}
