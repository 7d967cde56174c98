//! The state, which outlives programs: parameters, gradients, optimizer slots, the batch, counters, metrics,
//! caches.
//!
//! The state is laid out before any program. Parameters lie in flat buffers, in the order in which their
//! gradients become ready, so that buckets of gradients are contiguous ranges. Training, evaluation and
//! generation programs share the state.

use super::{
    FlatBuffer, Fp8Slot, Fp8State, FrozenParam, Init, Param, ParamRequest, Role, Shards, SlotId, SlotName,
    Spec, UpdateOverride,
};
use crate::device::cpu::buffer::ALIGNMENT;
use crate::device::{DType, Precision};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// A named range of a state buffer. Slots may overlap: a whole flat buffer is also a slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name, which prints as `params.blocks.0.qkv` or `batch.tokens`.
    pub name: SlotName,
    /// Shape and format.
    pub spec: Spec,
    /// Index into [`State::buffers`].
    pub buffer: usize,
    /// Byte offset in the buffer.
    pub offset: usize,
}

/// One allocation of the state.
#[derive(Clone, Debug)]
pub struct StateBuffer {
    /// Name, which the names of its slots begin with.
    pub name: String,
    /// Size in bytes.
    pub bytes: usize,
}

/// A tensor that an optimizer keeps for every parameter, with the parameter's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSlot {
    /// Name of the state buffer that holds it for all parameters, such as `m`.
    pub buffer: &'static str,
    /// Prefix of its tensors' names in checkpoints, such as `adam.m.`; the parameter's name follows.
    pub checkpoint_prefix: &'static str,
    /// Element format in memory. Checkpoints store fp32.
    pub dtype: DType,
    /// Value of every element before the first step.
    pub initial: f64,
}

/// Parameters that share an update rule, and the tensors that their optimizer keeps.
#[derive(Clone, Debug)]
pub struct SlotGroup {
    /// Name, which the names of the group's buffers end with; empty if the group has all parameters.
    pub name: String,
    /// Indices of the group's parameters in [`State::params`], ascending. A group without parameters has no
    /// buffers.
    pub params: Vec<usize>,
    /// The tensors that the optimizer keeps for each parameter.
    pub slots: Vec<OptimizerSlot>,
    /// Where elements of the flat buffers lie in a slot's buffer, which holds only this group's parameters.
    /// If ranks divide the optimizer, it holds what one rank owns; otherwise all of them, as the shard of a
    /// single rank 0.
    pub places: Shards,
}

impl SlotGroup {
    /// Returns the buffer that holds one of the optimizer's tensors for all parameters of the group.
    pub fn buffer(&self, slot: &OptimizerSlot) -> FlatBuffer {
        FlatBuffer::Optimizer { slot: slot.buffer, group: self.name.clone() }
    }

    /// Returns the name of the group's schedule table.
    pub fn schedule(&self) -> SlotName {
        SlotName::Schedule(self.name.clone())
    }
}

/// Request to lay out a group of parameters.
#[derive(Clone, Debug, Default)]
pub struct GroupRequest {
    /// Name; empty if the group has all parameters.
    pub name: String,
    /// Indices of the group's parameters, ascending.
    pub params: Vec<usize>,
    /// Tensors that the optimizer keeps for each parameter.
    pub slots: Vec<OptimizerSlot>,
    /// Each parameter begins and ends at a multiple of this many elements of the flat buffers, so that a rank
    /// can own it whole; 0 if that is not needed.
    pub alignment: usize,
}

/// The layout of everything that outlives a program.
#[derive(Clone, Debug)]
pub struct State {
    /// Formats of activations and masters.
    pub precision: Precision,
    /// The allocations.
    pub buffers: Vec<StateBuffer>,
    /// Named ranges of the buffers.
    pub slots: Vec<Slot>,
    /// The trained tensors, in the order their gradients become ready.
    pub params: Vec<Param>,
    /// The tensors that ops read beside them and nothing trains.
    pub frozen: Vec<FrozenParam>,
    /// Elements of each flat parameter buffer, padding included.
    pub flat_len: usize,
    /// Groups that together have all parameters, in the order in which they are updated, then, if the weights
    /// are averaged, one group of all parameters for the moving average. Empty in a state that is not for
    /// training.
    pub groups: Vec<SlotGroup>,
    /// The rank that updates each element of the flat buffers, if each rank keeps optimizer slots only for
    /// its own elements; `None` if every rank has all of them.
    pub shards: Option<Arc<Shards>>,
    /// What fp8 programs keep; `None` for other programs.
    pub fp8: Option<Fp8State>,
    by_name: HashMap<SlotName, SlotId>,
}

impl State {
    /// Returns the slots whose tensors go into checkpoints: the parameters and, for training, what the
    /// optimizers of all groups keep, and the scales of 8-bit floats.
    pub fn saved_slots(&self) -> Vec<SlotId> {
        let kept = self.groups.iter().flat_map(|group| group.slots.iter().map(|slot| group.buffer(slot)));
        let buffers = std::iter::once(FlatBuffer::Params).chain(kept).map(SlotName::from);
        buffers.chain([Fp8Slot::Scales.into()]).filter_map(|name| self.slot(name)).collect()
    }

    /// Returns the slot with this name; `None` if it was not laid out.
    pub fn slot(&self, name: impl Into<SlotName>) -> Option<SlotId> {
        self.by_name.get(&name.into()).copied()
    }

    /// Returns the slot whose name prints as this text, for callers that have only the text, such as tests.
    pub fn slot_by_text(&self, text: &str) -> Option<SlotId> {
        self.slots.iter().position(|slot| slot.name.to_string() == text).map(SlotId)
    }

    /// Returns the slot with this id.
    pub fn get(&self, id: SlotId) -> &Slot {
        &self.slots[id.0]
    }

    /// Returns the parameter with this name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|p| p.name == name)
    }

    /// Returns the slot from which ops read the parameter or frozen tensor with this name.
    pub fn read_slot(&self, name: &str) -> Option<SlotId> {
        let frozen = || self.frozen.iter().find(|frozen| frozen.name == name).map(|frozen| frozen.read);
        self.param(name).map(|param| param.read).or_else(frozen)
    }

    /// Returns the elements from parameter `index` up to the next one in the flat buffers, alignment
    /// included.
    pub fn extent(&self, index: usize) -> Range<usize> {
        let end = self.params.get(index + 1).map_or(self.flat_len, |next| next.start);
        self.params[index].start..end
    }

    /// Returns true if a rank has only its own shard of the masters, and reads the other parameters from the
    /// compute copy.
    pub fn masters_are_sharded(&self) -> bool {
        self.master_shards().is_some()
    }

    /// Returns the shards of the masters, if a rank has only its own.
    pub fn master_shards(&self) -> Option<&Shards> {
        self.shards.as_deref().filter(|_| self.precision.has_compute_copy())
    }

    /// Returns the parameter that ops read through this slot.
    pub fn param_read_at(&self, slot: SlotId) -> Option<&Param> {
        self.params.iter().find(|p| p.read == slot)
    }

    /// Returns the buffers that ops read parameters from, and that of the masters if they are whole.
    pub fn weight_buffers(&self) -> BTreeSet<usize> {
        let masters = self.slot(FlatBuffer::Params).filter(|_| !self.masters_are_sharded());
        let frozen = self.frozen.iter().map(|frozen| frozen.read);
        let read = self.params.iter().map(|param| param.read).chain(frozen).chain(masters);
        read.map(|slot| self.get(slot).buffer).collect()
    }

    /// Returns the total size of all buffers in bytes.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.bytes).sum()
    }

    /// Returns the number of trained elements, padding excluded.
    pub fn trained_count(&self) -> usize {
        self.params.iter().map(|param| param.spec.logical_elements()).sum()
    }

    /// Returns the number of trained and frozen elements, padding excluded.
    pub fn parameter_count(&self) -> usize {
        self.count(|_| true)
    }

    /// Returns the number of *core parameters*: elements outside the embeddings and the head, padding
    /// excluded.
    pub fn core_parameter_count(&self) -> usize {
        self.count(Role::is_core)
    }

    fn count(&self, counts: impl Fn(Role) -> bool) -> usize {
        self.roles().filter(|(role, _)| counts(*role)).map(|(_, elements)| elements).sum()
    }

    /// Returns the role of every trained and every frozen tensor, with the number of its elements, padding
    /// excluded.
    pub fn roles(&self) -> impl Iterator<Item = (Role, usize)> {
        let trained = self.params.iter().map(|param| (param.role, &param.spec));
        let frozen = self.frozen.iter().map(|frozen| (frozen.role, &frozen.spec));
        trained.chain(frozen).map(|(role, spec)| (role, spec.logical_elements()))
    }
}

/// Lays out a [`State`].
#[derive(Debug)]
pub struct StateBuilder {
    /// The layout so far, for choosing ranges of flat buffers.
    pub state: State,
}

impl StateBuilder {
    /// Lays out parameters, in the given order, with their gradients and the optimizer slots of groups. The
    /// groups together have all parameters.
    ///
    /// With `shards`, there are optimizer slots only for the elements that a rank owns: each slot is one
    /// tensor, the rank's shard. If products read a compute copy, the masters are sharded too, and `vectors`
    /// holds the masters of the vectors, which ops read.
    pub fn for_training(
        precision: Precision,
        params: &[ParamRequest],
        groups: &[GroupRequest],
        shards: Option<Shards>,
    ) -> Self {
        let mut builder = Self::empty(precision);
        builder.state.shards = shards.map(Arc::new);
        builder.lay_out_params(params, &[FlatBuffer::Params, FlatBuffer::Grads], groups);
        builder
    }

    /// Lays out only parameters, in the given order, for programs that do not train them.
    pub fn for_inference(precision: Precision, params: &[ParamRequest]) -> Self {
        let mut builder = Self::empty(precision);
        builder.lay_out_params(params, &[FlatBuffer::Params], &[]);
        builder
    }

    /// Lays out the buffers of another state that ops read parameters from, and its masters if they are
    /// whole, with the same places in them. Programs over the two states can share this memory.
    pub fn for_weights_of(state: &State) -> Self {
        let mut builder = Self::empty(state.precision);
        let mut buffers = HashMap::new();
        for index in state.weight_buffers() {
            let StateBuffer { name, bytes } = state.buffers[index].clone();
            buffers.insert(index, builder.buffer(name, bytes));
        }
        for slot in &state.slots {
            if let Some(&buffer) = buffers.get(&slot.buffer) {
                builder.add_slot(buffer, slot.name.clone(), slot.spec.clone(), slot.offset);
            }
        }
        for param in &state.params {
            let read = builder.state.by_name[&state.get(param.read).name];
            builder.state.params.push(Param { read, grad: read, ..param.clone() });
        }
        for frozen in &state.frozen {
            let read = builder.state.by_name[&state.get(frozen.read).name];
            builder.state.frozen.push(FrozenParam { read, ..frozen.clone() });
        }
        builder.state.flat_len = state.flat_len;
        builder
    }

    /// Starts a state without parameters.
    pub fn empty(precision: Precision) -> Self {
        let state = State {
            precision,
            buffers: Vec::new(),
            slots: Vec::new(),
            params: Vec::new(),
            frozen: Vec::new(),
            flat_len: 0,
            groups: Vec::new(),
            shards: None,
            fp8: None,
            by_name: HashMap::new(),
        };
        Self { state }
    }

    /// Lays out the flat buffers in the master format, then the slots of groups, then the compute copy. A
    /// flat buffer has an element for each element of the parameters, or of the longest shard.
    fn lay_out_params(&mut self, requests: &[ParamRequest], flat: &[FlatBuffer], groups: &[GroupRequest]) {
        let precision = self.state.precision;
        let copied = precision.has_compute_copy().then_some(precision.act_dtype);
        // Tensors start at multiples of the alignment even in the narrowest format, so that one element
        // offset serves every buffer.
        let slots = groups.iter().flat_map(|group| &group.slots).map(|slot| slot.dtype);
        let dtypes = slots.chain([precision.master]).chain(copied);
        let step = ALIGNMENT / dtypes.map(DType::size).min().unwrap_or(1);
        let (starts, flat_len) = starts(requests, groups, step);
        self.state.flat_len = flat_len;
        let end = |i: usize| starts.get(i + 1).copied().unwrap_or(flat_len);
        for request in groups {
            let extents: Vec<_> = request.params.iter().map(|&i| starts[i]..end(i)).collect();
            let extents = joined(&extents);
            let places = match &self.state.shards {
                Some(shards) => shards.restricted(&extents),
                None => Shards::new(&[flat_len], 1, flat_len.max(1)).restricted(&extents),
            };
            let (name, params, slots) = (request.name.clone(), request.params.clone(), request.slots.clone());
            self.state.groups.push(SlotGroup { name, params, slots, places });
        }
        let shard_len = self.state.shards.as_ref().map(|shards| shards.shard_len);
        let sharded_masters = self.state.masters_are_sharded();
        let all = || starts.iter().copied().enumerate();
        for buffer in flat {
            let sharded = shard_len.filter(|_| *buffer == FlatBuffer::Params && sharded_masters);
            self.add_flat_buffer(buffer, precision.master, sharded.unwrap_or(flat_len));
            if sharded.is_none() {
                self.add_param_slots(buffer, precision.master, requests, all());
            }
        }
        for group in self.state.groups.clone() {
            for slot in group.slots.iter().filter(|_| !group.params.is_empty()) {
                let buffer = group.buffer(slot);
                self.add_flat_buffer(&buffer, slot.dtype, group.places.shard_len);
                if shard_len.is_none() {
                    let place = |i: usize| group.places.within(starts[i]..end(i)).next();
                    let places = group.params.iter().filter_map(|&i| Some((i, place(i)?.offset)));
                    self.add_param_slots(&buffer, slot.dtype, requests, places);
                }
            }
        }
        if let Some(dtype) = copied {
            self.add_flat_buffer(&FlatBuffer::ComputeCopy, dtype, flat_len);
            self.add_param_slots(&FlatBuffer::ComputeCopy, dtype, requests, all());
        }
        let mut vectors = requests.iter().filter(|r| !r.role.is_matrix()).peekable();
        if sharded_masters && vectors.peek().is_some() {
            let spec = |r: &ParamRequest| Spec::padded(r.shape.clone(), r.alloc.clone(), precision.master);
            let buffer = self.buffer(FlatBuffer::Vectors.to_string(), 0);
            for r in vectors {
                self.append(FlatBuffer::Vectors.param(&r.name), spec(r));
            }
            let len = self.state.buffers[buffer].bytes / precision.master.size();
            self.add_slot(buffer, FlatBuffer::Vectors.into(), Spec::new([len], precision.master), 0);
        }
        let masters = if sharded_masters { FlatBuffer::Vectors } else { FlatBuffer::Params };
        let grads = if flat.contains(&FlatBuffer::Grads) { FlatBuffer::Grads } else { FlatBuffer::Params };
        for (r, start) in requests.iter().zip(starts) {
            let copied = precision.has_compute_copy() && r.role.is_matrix();
            let read_from = if copied { &FlatBuffer::ComputeCopy } else { &masters };
            let [read, grad] = [read_from, &grads].map(|buffer| self.state.by_name[&buffer.param(&r.name)]);
            self.state.params.push(Param {
                name: r.name.clone(),
                spec: Spec::padded(r.shape.clone(), r.alloc.clone(), precision.master),
                init: r.init,
                role: r.role,
                update: r.update,
                stacked: r.stacked.clone(),
                block: r.block,
                start,
                read,
                grad,
            });
        }
    }

    /// Adds a buffer of `len` elements and a slot for all of it.
    fn add_flat_buffer(&mut self, name: &FlatBuffer, dtype: DType, len: usize) {
        let buffer = self.buffer(name.to_string(), len * dtype.size());
        self.add_slot(buffer, name.clone().into(), Spec::new([len], dtype), 0);
    }

    /// Adds slots for parameters to the newest buffer. `places` gives the index of each parameter and its
    /// first element in the buffer.
    fn add_param_slots(
        &mut self,
        name: &FlatBuffer,
        dtype: DType,
        requests: &[ParamRequest],
        places: impl Iterator<Item = (usize, usize)>,
    ) {
        let buffer = self.state.buffers.len() - 1;
        for (index, first) in places {
            let r = &requests[index];
            let spec = Spec::padded(r.shape.clone(), r.alloc.clone(), dtype);
            self.add_slot(buffer, name.param(&r.name), spec, first * dtype.size());
        }
    }

    /// Lays out tensors that nothing trains: matrices in the format of activations, vectors in that of
    /// masters, as ops read them.
    pub fn lay_out_frozen(&mut self, requests: &[ParamRequest]) {
        let precision = self.state.precision;
        let spec = |r: &ParamRequest| {
            let dtype = if r.role.is_matrix() { precision.act_dtype } else { precision.master };
            Spec::padded(r.shape.clone(), r.alloc.clone(), dtype)
        };
        self.lay_out(requests.iter().map(|r| (FlatBuffer::Frozen.param(&r.name), spec(r))));
        for r in requests {
            let read = self.state.by_name[&FlatBuffer::Frozen.param(&r.name)];
            let (name, role) = (r.name.clone(), r.role);
            self.state.frozen.push(FrozenParam { name, spec: spec(r), role, read });
        }
    }

    /// Adds a buffer that holds these slots in order, each aligned. Adds nothing if there are none.
    pub fn lay_out<N: Into<SlotName>>(&mut self, slots: impl IntoIterator<Item = (N, Spec)>) {
        let mut slots = slots.into_iter().map(|(name, spec)| (name.into(), spec)).peekable();
        if let Some((first, _)) = slots.peek() {
            self.buffer(first.buffer(), 0);
        }
        for (name, spec) in slots {
            self.append(name, spec);
        }
    }

    /// Adds a buffer laid out by hand that holds these tensors in order, each aligned. Returns their slots.
    pub fn group<const N: usize>(&mut self, name: &str, tensors: [(&str, Spec); N]) -> [SlotId; N] {
        self.buffer(name.to_owned(), 0);
        tensors.map(|(tensor, spec)| self.append(SlotName::other(name, tensor), spec))
    }

    /// Adds a buffer like [`StateBuilder::group`], for any number of tensors.
    pub fn group_from_iter<T: Into<String>>(
        &mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (T, Spec)>,
    ) -> Vec<SlotId> {
        self.buffer(name.to_owned(), 0);
        tensors.into_iter().map(|(tensor, spec)| self.append(SlotName::other(name, tensor), spec)).collect()
    }

    /// Adds a slot at the end of the newest buffer.
    fn append(&mut self, name: SlotName, spec: Spec) -> SlotId {
        let buffer = self.state.buffers.len() - 1;
        let offset = self.state.buffers[buffer].bytes;
        self.state.buffers[buffer].bytes += spec.aligned_bytes();
        self.add_slot(buffer, name, spec, offset)
    }

    /// Declares that the gradient of the slot `read` is recorded into the slot `grad`, for programs whose
    /// trained tensors are not laid out by [`StateBuilder::for_training`] (the checks of single ops).
    pub fn watch(&mut self, read: SlotId, grad: SlotId) {
        let Slot { name, spec, .. } = self.state.get(read);
        self.state.params.push(Param {
            name: name.to_string(),
            spec: spec.clone(),
            init: Init::Constant(1.0),
            role: Role::Vector,
            update: UpdateOverride::default(),
            stacked: Vec::new(),
            block: None,
            start: 0,
            read,
            grad,
        });
    }

    /// Adds a slot over elements `start..start + len` of a one-dimensional slot.
    pub fn range(&mut self, whole: impl Into<SlotName>, name: SlotName, start: usize, len: usize) {
        let Some(whole) = self.state.slot(whole).map(|slot| self.state.get(slot).clone()) else { return };
        debug_assert!(start + len <= whole.spec.elements(), "{name} within {}", whole.name);
        let dtype = whole.spec.dtype;
        self.add_slot(whole.buffer, name, Spec::new([len], dtype), whole.offset + start * dtype.size());
    }

    /// Returns the finished layout.
    pub fn finish(self) -> State {
        self.state
    }

    pub(super) fn buffer(&mut self, name: String, bytes: usize) -> usize {
        self.state.buffers.push(StateBuffer { name, bytes });
        self.state.buffers.len() - 1
    }

    pub(super) fn add_slot(&mut self, buffer: usize, name: SlotName, spec: Spec, offset: usize) -> SlotId {
        let id = SlotId(self.state.slots.len());
        self.state.by_name.insert(name.clone(), id);
        self.state.slots.push(Slot { name, spec, buffer, offset });
        id
    }
}

/// Returns the first element of each parameter in the flat buffers, and the length of a buffer. Parameters
/// begin at multiples of `step`. A parameter of a group with an alignment, and the parameter after it, begin
/// at multiples of that alignment.
fn starts(requests: &[ParamRequest], groups: &[GroupRequest], step: usize) -> (Vec<usize>, usize) {
    let mut alignments = vec![step; requests.len()];
    for group in groups {
        // A parameter may be in several groups: that of its optimizer, and that of the average.
        group.params.iter().for_each(|&i| alignments[i] = alignments[i].max(group.alignment));
    }
    let (mut starts, mut next, mut before) = (Vec::with_capacity(requests.len()), 0usize, step);
    for (r, &alignment) in requests.iter().zip(&alignments) {
        next = next.next_multiple_of(alignment.max(before));
        starts.push(next);
        next += r.alloc.iter().product::<usize>().next_multiple_of(step);
        before = alignment;
    }
    (starts, next)
}

/// Merges adjacent ranges, which ascend.
fn joined(ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range.clone()),
        }
    }
    joined
}
