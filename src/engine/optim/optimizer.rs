//! The trait of optimizers, their registry entries, and the tensors of an update.

use super::hyperparameters::{Hyperparameter, Values};
use super::role::GroupRole;
use super::width::WidthRule;
use crate::error::Result;
use crate::ir::{
    Builder, ControlSlot, Destination, FlatBuffer, Mode, OpType, OptimizerSlot, Param, Precision, SlotGroup,
    State, TensorId,
};
use crate::ops::segments::Segments;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// An optimizer as recipes choose it.
#[derive(Debug)]
pub struct Entry {
    /// Name in recipes.
    pub name: &'static str,
    /// Its keys in `[optimizer]`, besides the name and the learning rate.
    pub hyperparameters: &'static [Hyperparameter],
    /// True if weight decay multiplies parameters separately from the gradient step (Loshchilov and Hutter,
    /// 2019), so that it can be independent of the learning rate.
    pub decoupled_decay: bool,
    /// For an optimizer that updates only matrices in blocks, the name of the optimizer for all other
    /// parameters.
    pub fallback: Option<&'static str>,
    /// How updates of parameters of a role follow a model's width; `None` if no rule is known. Both sides of
    /// a matrix grow with the width, one side of every other parameter.
    pub width_rule: fn(&Values, GroupRole) -> Option<WidthRule>,
    /// Builds the optimizer from the values of all its hyperparameters.
    pub build: fn(&Values) -> Arc<dyn Optimizer>,
    /// The ops of an update, for checks.
    pub ops: &'static [OpType],
}

impl Entry {
    /// Returns true if the optimizer can update parameters of this role.
    pub fn updates(&self, role: GroupRole) -> bool {
        role == GroupRole::Matrix || self.fallback.is_none()
    }
}

/// The rates of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Learning rate.
    pub lr: f64,
    /// The factor of decoupled weight decay: the learning rate, or its share of the peak.
    pub decay: f64,
}

/// An update rule with its hyperparameters.
pub trait Optimizer: Debug + Send + Sync {
    /// Returns the tensors kept for every parameter. State buffers, the update's outputs and checkpoints use
    /// the same order.
    fn slots(&self, precision: Precision) -> Vec<OptimizerSlot>;

    /// Describes the slots in plain words, such as `two moments`; empty if there are none.
    fn slots_in_words(&self) -> &'static str;

    /// Returns the number of columns of the schedule table.
    fn schedule_width(&self) -> usize;

    /// Returns the [`Optimizer::schedule_width`] numbers in the schedule table's row for `step` (counted from
    /// 1) at these rates, computed in f64.
    fn schedule_row(&self, rates: Rates, step: u64) -> Vec<f64>;

    /// Returns true if an update needs a whole parameter, so that one rank must own all of it if ranks divide
    /// the state.
    fn owns_whole_parameters(&self) -> bool {
        false
    }

    /// Records the update of a group of parameters at the end of a step.
    ///
    /// # Errors
    /// If an op rejects the shapes or formats.
    fn record(&self, b: &mut Builder, update: &Update) -> Result<()>;
}

/// The update of a group of parameters: what it covers, and its tensors, all in the state.
#[derive(Clone, Debug)]
pub struct Update {
    /// Index in [`State::groups`] of the group to update.
    pub group: usize,
    /// Where the group's elements lie, and which of them decay.
    pub segments: Segments,
    /// Gradients of all parameters, `[n]` in the master format, before clipping.
    pub grads: TensorId,
    /// The schedule table, `[steps + 1, schedule_width]` in the master format; row 0 is not used.
    pub schedule: TensorId,
    /// The step, `[1]` u32, counted from 1: the row of the table.
    pub step: TensorId,
    /// The factor to multiply gradients by (clipping by the global norm), `[1]` in the master format.
    pub clip: TensorId,
    /// Not zero after a step with a non-finite loss or gradient norm, `[1]` u32: then nothing may change.
    pub bad: TensorId,
    /// Masters of all parameters, `[n]`.
    pub params: TensorId,
    /// The optimizer's slots, in the order of [`Optimizer::slots`]: `[n]` each, or only the group's elements.
    pub slots: Vec<TensorId>,
    /// The rounded copy of the masters that products read, `[n]`; `None` if products read the masters.
    pub compute_copy: Option<TensorId>,
}

impl Update {
    /// Looks up the tensors of a group in the state of the program being recorded, for an update of the
    /// group's elements within a range of the flat buffers. `decays` tells whether weight decay applies to a
    /// parameter.
    ///
    /// # Errors
    /// If the state was not laid out for training.
    pub(super) fn for_group(
        b: &mut Builder,
        group: usize,
        range: &Range<usize>,
        decays: impl Fn(&Param) -> bool,
    ) -> Result<Self> {
        let state = Arc::clone(&b.program.state);
        let own = &state.groups[group];
        let slots = own.slots.iter().map(|slot| b.state(own.buffer(slot))).collect::<Result<_>>()?;
        let has_copy = state.precision.has_compute_copy();
        let compute_copy = has_copy.then(|| b.state(FlatBuffer::ComputeCopy)).transpose()?;
        Ok(Self {
            group,
            segments: segments(&state, own, range, decays),
            grads: b.state(FlatBuffer::Grads)?,
            schedule: b.state(own.schedule())?,
            step: b.state(ControlSlot::Step)?,
            clip: b.state(ControlSlot::Clip)?,
            bad: b.state(ControlSlot::Bad)?,
            params: b.state(FlatBuffer::Params)?,
            slots,
            compute_copy,
        })
    }

    /// Returns the inputs of an op that updates all elements at once: grads, schedule, step, clip, bad.
    pub fn inputs(&self) -> [TensorId; 5] {
        [self.grads, self.schedule, self.step, self.clip, self.bad]
    }

    /// Returns the outputs of such an op, updated in place: masters, slots, and the compute copy if there is
    /// one.
    pub fn outputs(&self) -> Vec<Destination> {
        let tensors = std::iter::once(self.params).chain(self.slots.iter().copied()).chain(self.compute_copy);
        tensors.map(|tensor| Destination::Into(tensor, Mode::Add)).collect()
    }
}

/// Returns what a group updates within a range of the flat buffers: its adjacent elements with the same
/// weight decay joined into segments. If the state is sharded, each rank updates only what it owns.
fn segments(
    state: &State,
    group: &SlotGroup,
    range: &Range<usize>,
    decays: impl Fn(&Param) -> bool,
) -> Segments {
    let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
    for &index in &group.params {
        let (extent, decay) = (state.extent(index), decays(&state.params[index]));
        match ranges.last_mut() {
            Some((last, like)) if last.end == extent.start && *like == decay => last.end = extent.end,
            _ => ranges.push((extent, decay)),
        }
    }
    Segments::new(&ranges, &group.places, state.master_shards(), state.flat_len).within(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::{GroupRequest, Init, ParamRequest, Role, Shards, StateBuilder, Sublayer, UpdateOverride};

    const ROLES: [Role; 5] =
        [Role::Head, Role::Vector, Role::Matrix(Sublayer::Attention), Role::Vector, Role::Embedding];
    const BLOCK: usize = 256;

    /// Returns a state with two alternating groups of parameters, sharded in parts that end inside blocks and
    /// inside parameters.
    fn state(ranks: usize, dtype: DType) -> State {
        let request = |(i, &role): (usize, &Role)| ParamRequest {
            name: format!("p{i}"),
            shape: vec![700 + 90 * i],
            alloc: vec![700 + 90 * i],
            init: Init::Constant(1.0),
            role,
            update: UpdateOverride::default(),
            stacked: Vec::new(),
            block: None,
        };
        let requests: Vec<_> = ROLES.iter().enumerate().map(request).collect();
        let precision = Precision::for_act_dtype(dtype);
        let slots = crate::optim::find("sgd").map(|entry| {
            let values = Values::from_written(entry.hyperparameters, &Default::default());
            (entry.build)(&values).slots(precision)
        });
        let slots = slots.expect("sgd is registered");
        let group = |name: &str, params: &[usize]| GroupRequest {
            name: name.to_owned(),
            params: params.to_vec(),
            slots: slots.clone(),
            alignment: 0,
        };
        let groups = [group("some", &[0, 2, 4]), group("others", &[1, 3])];
        let flat_len = StateBuilder::for_training(precision, &requests, &groups, None).state.flat_len;
        let shards = Shards::new(&[1000, 2900, flat_len], ranks, BLOCK);
        StateBuilder::for_training(precision, &requests, &groups, Some(shards)).finish()
    }

    /// Returns every element that an update changes: rank, positions in the flat buffers, in the masters and
    /// in the slots, and whether it decays.
    fn elements(segments: &Segments, ranks: usize) -> Vec<(usize, usize, usize, usize, bool)> {
        let with_rank = |rank| segments.for_rank(rank).iter().map(move |segment| (rank, *segment));
        let all = (0..ranks).flat_map(with_rank);
        let mut elements: Vec<_> = all
            .flat_map(|(rank, s)| {
                (0..s.len).map(move |i| (rank, s.start + i, s.master + i, s.offset + i, s.decay))
            })
            .collect();
        elements.sort_unstable();
        elements
    }

    #[test]
    fn two_partial_updates_change_what_a_whole_one_changes() {
        for (ranks, dtype) in (1..=4).flat_map(|ranks| [(ranks, DType::F32), (ranks, DType::Bf16)]) {
            let state = state(ranks, dtype);
            for first in (0..=state.flat_len).step_by(BLOCK) {
                let mut moved = vec![0; state.flat_len];
                for group in &state.groups {
                    let within = |range| {
                        elements(&segments(&state, group, &range, |param| param.role.is_matrix()), ranks)
                    };
                    let mut both = [within(first..state.flat_len), within(0..first)].concat();
                    both.iter().for_each(|(_, flat, ..)| moved[*flat] += 1);
                    both.sort_unstable();
                    assert!(both == within(0..state.flat_len), "{ranks} ranks, {dtype:?}, from {first}");
                }
                assert!(moved.iter().all(|&times| times == 1), "{ranks} ranks, {dtype:?}, from {first}");
            }
        }
    }
}
