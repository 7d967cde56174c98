//! The state, which outlives programs: parameters, gradients, the optimizer's slots, the batch, counters,
//! metrics, caches.
//!
//! The state is laid out before any program. Parameters lie in flat buffers, in the order in which their
//! gradients become ready, so that buckets of gradients are contiguous ranges. Training, evaluation and
//! generation programs share it.

use super::{Role, Shards, Spec};
use crate::device::cpu::buffer::ALIGNMENT;
use crate::device::{DType, Precision};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Identifies a [`Slot`] of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub usize);

/// A named range of a state buffer. Slots may overlap: a flat buffer is also a slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The name programs use, such as `params.blocks.0.qkv` or `batch.tokens`.
    pub name: String,
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
    /// Its name: `params`, `grads`, those of the optimizer's slots, `compute_copy`, `vectors`, `batch`,
    /// `control`, `generation`.
    pub name: String,
    /// Its size in bytes.
    pub bytes: usize,
}

/// Initialization of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with this standard deviation.
    Normal(f64),
    /// All ones (norm weights).
    Ones,
    /// All zeros (biases).
    Zeros,
}

/// A tensor that an optimizer keeps for every parameter, with the parameter's shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerSlot {
    /// Name of the state buffer that holds it for all parameters, such as `m`.
    pub buffer: &'static str,
    /// Prefix of its tensors' names in checkpoints, such as `adam.m.`; the parameter's name follows.
    pub checkpoint_prefix: &'static str,
    /// Element format in memory. Checkpoints hold fp32.
    pub dtype: DType,
    /// Value of every element before the first step.
    pub initial: f64,
}

/// Parameters that one rule updates, and the tensors that its optimizer keeps for them.
#[derive(Clone, Debug)]
pub struct SlotGroup {
    /// Its name, which follows that of each of its buffers; empty where it has all parameters.
    pub name: String,
    /// Indices of its parameters in [`State::params`], ascending. A group may have none, and then has no
    /// buffers.
    pub params: Vec<usize>,
    /// The tensors for each of them.
    pub slots: Vec<OptimizerSlot>,
    /// Where elements of the flat buffers lie in the buffer of a slot, which has room for the group's
    /// parameters alone: those that a rank owns, or all of them, as those of rank 0 of one.
    pub places: Shards,
}

impl SlotGroup {
    /// Returns the name of what the group has for itself of something: `m`, or `m.matrix`.
    pub fn own(&self, of: &str) -> String {
        if self.name.is_empty() { of.to_owned() } else { format!("{of}.{}", self.name) }
    }
}

/// Request for a group of parameters to be laid out.
#[derive(Clone, Debug, Default)]
pub struct GroupRequest {
    /// Its name; empty where it has all parameters.
    pub name: String,
    /// Indices of its parameters, ascending.
    pub params: Vec<usize>,
    /// Tensors that its optimizer keeps for each.
    pub slots: Vec<OptimizerSlot>,
    /// Its parameters begin and end at multiples of so many elements of the flat buffers, so that ranks can
    /// own whole ones; 0 where they need not.
    pub alignment: usize,
}

/// A trained tensor, and where its master, gradient and compute copy lie.
#[derive(Clone, Debug)]
pub struct Param {
    /// Its name, such as `blocks.0.qkv`.
    pub name: String,
    /// Shape and padding, in the master format.
    pub spec: Spec,
    /// Its initialization.
    pub init: Init,
    /// Role in the model.
    pub role: Role,
    /// Rows of each matrix that is stacked in it, as [`ParamRequest::stacked`].
    pub stacked: Vec<usize>,
    /// Index of the block that it belongs to, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
    /// First element in each flat buffer.
    pub start: usize,
    /// The slot that ops read: the compute copy for matrices in a mixed-precision program, else the master.
    pub read: SlotId,
    /// The gradient.
    pub grad: SlotId,
}

impl Param {
    /// Returns its elements in the flat buffers, padding included.
    pub fn flat(&self) -> Range<usize> {
        self.start..self.start + self.spec.elements()
    }

    /// Returns the *logical matrices* that are stored in it, such as those of queries, keys and values, in
    /// order; none in a vector.
    pub fn matrices(&self) -> Vec<LogicalMatrix> {
        let (shape, alloc) = (&self.spec.shape, &self.spec.alloc);
        // Logical rows, and rows in memory.
        let parts: Vec<[usize; 2]> = match (shape.len(), &self.stacked[..]) {
            (0 | 1, _) => Vec::new(),
            (2, []) => vec![[shape[0], alloc[0]]],
            (2, stacked) => stacked.iter().map(|&rows| [rows, rows]).collect(),
            (dimensions, _) => {
                let rows = [shape[dimensions - 2], alloc[dimensions - 2]];
                vec![rows; alloc[..dimensions - 2].iter().product()]
            }
        };
        let (columns, width, mut start) = (shape.last().copied().unwrap_or(1), self.spec.width(), self.start);
        let matrix = |[rows, in_memory]: [usize; 2]| {
            let alloc = [in_memory, width];
            let matrix = LogicalMatrix { shape: [rows, columns], alloc, start };
            start += in_memory * width;
            matrix
        };
        parts.into_iter().map(matrix).collect()
    }
}

/// A matrix of a model: what maps the rows of one product's input to its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogicalMatrix {
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// The same in memory, padding included.
    pub alloc: [usize; 2],
    /// First element in each flat buffer.
    pub start: usize,
}

/// The layout of everything that outlives a program.
#[derive(Clone, Debug)]
pub struct State {
    /// Formats of activations and masters.
    pub precision: Precision,
    /// The allocations.
    pub buffers: Vec<StateBuffer>,
    /// Named ranges of them.
    pub slots: Vec<Slot>,
    /// The trained tensors, in the order their gradients become ready.
    pub params: Vec<Param>,
    /// Elements of each flat parameter buffer, padding included.
    pub flat_len: usize,
    /// Groups of parameters, which together have all of them, in the order in which they are updated, and
    /// then one of all parameters for the moving average of the weights, if there is one; empty in a state
    /// that is not for training.
    pub groups: Vec<SlotGroup>,
    /// The ranks that update the elements of the flat buffers, where each has the optimizer's slots of its
    /// own alone; `None` where every rank has all of them.
    pub shards: Option<Arc<Shards>>,
    by_name: BTreeMap<String, SlotId>,
}

impl State {
    /// Returns the slots that checkpoints hold the tensors of, one for each flat buffer: the parameters', and
    /// those of the optimizer of every group where the state is for training.
    pub fn saved_slots(&self) -> Vec<SlotId> {
        let of_groups = self.groups.iter().flat_map(|g| g.slots.iter().map(|slot| g.own(slot.buffer)));
        let buffers = std::iter::once("params".to_owned()).chain(of_groups);
        buffers.filter_map(|buffer| self.slot(&format!("{buffer}.flat"))).collect()
    }

    /// Returns the slot with this name.
    pub fn slot(&self, name: &str) -> Option<SlotId> {
        self.by_name.get(name).copied()
    }

    /// Returns the slot with this id.
    pub fn get(&self, id: SlotId) -> &Slot {
        &self.slots[id.0]
    }

    /// Returns the parameter with this name.
    pub fn param(&self, name: &str) -> Option<&Param> {
        self.params.iter().find(|p| p.name == name)
    }

    /// Returns the elements of parameter `index` in the flat buffers, and those up to the next one.
    pub fn extent(&self, index: usize) -> Range<usize> {
        let end = self.params.get(index + 1).map_or(self.flat_len, |next| next.start);
        self.params[index].start..end
    }

    /// Returns true if a rank has the masters of its own shard alone, and reads others' as the compute copy.
    pub fn masters_are_sharded(&self) -> bool {
        self.shards.is_some() && self.precision.has_compute_copy()
    }

    /// Returns the parameter that ops read through this slot.
    pub fn param_read_at(&self, slot: SlotId) -> Option<&Param> {
        self.params.iter().find(|p| p.read == slot)
    }

    /// Total size of all buffers in bytes.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.bytes).sum()
    }

    /// Number of trained elements, padding excluded.
    pub fn parameter_count(&self) -> usize {
        self.count(|_| true)
    }

    /// Number of *core parameters*: trained elements outside the embedding and the head, padding excluded.
    pub fn core_parameter_count(&self) -> usize {
        self.count(|p| p.role.is_core())
    }

    fn count(&self, counts: impl Fn(&Param) -> bool) -> usize {
        self.params.iter().filter(|p| counts(p)).map(|p| p.spec.logical_elements()).sum()
    }
}

/// Lays out a [`State`].
#[derive(Debug)]
pub struct StateBuilder {
    state: State,
}

/// Request for a parameter to be laid out.
#[derive(Clone, Debug)]
pub struct ParamRequest {
    /// Its name.
    pub name: String,
    /// Logical shape.
    pub shape: Vec<usize>,
    /// Shape in memory.
    pub alloc: Vec<usize>,
    /// Its initialization.
    pub init: Init,
    /// Role in the model. Matrices are read in the format of activations, vectors as masters.
    pub role: Role,
    /// Rows of each of the matrices that are stacked in it one below the other; empty where it is one, or has
    /// them side by side in a dimension of their own.
    pub stacked: Vec<usize>,
    /// Index of the block that it belongs to, counted from the input; `None` outside the blocks.
    pub block: Option<usize>,
}

impl StateBuilder {
    /// Lays out parameters (in the given order) with their gradients, and with the optimizer's slots of
    /// groups that together have all parameters.
    pub fn for_training(precision: Precision, params: &[ParamRequest], groups: &[GroupRequest]) -> Self {
        Self::training(precision, params, groups, None)
    }

    /// As [`StateBuilder::for_training`], with the optimizer's slots of the elements that a rank owns alone:
    /// each is one tensor, the rank's shard. Where products read a compute copy, so are the masters, and
    /// `vectors` holds those of the vectors, which ops read.
    pub fn for_sharded_training(
        precision: Precision,
        params: &[ParamRequest],
        groups: &[GroupRequest],
        shards: Shards,
    ) -> Self {
        Self::training(precision, params, groups, Some(Arc::new(shards)))
    }

    fn training(
        precision: Precision,
        params: &[ParamRequest],
        groups: &[GroupRequest],
        shards: Option<Arc<Shards>>,
    ) -> Self {
        let mut builder = Self::empty(precision);
        builder.state.shards = shards;
        builder.lay_out_params(params, &["params", "grads"], groups);
        builder
    }

    /// Lays out parameters (in the given order) alone, for programs that do not train them.
    pub fn for_inference(precision: Precision, params: &[ParamRequest]) -> Self {
        let mut builder = Self::empty(precision);
        builder.lay_out_params(params, &["params"], &[]);
        builder
    }

    /// Starts a state without parameters.
    pub fn empty(precision: Precision) -> Self {
        let state = State {
            precision,
            buffers: Vec::new(),
            slots: Vec::new(),
            params: Vec::new(),
            flat_len: 0,
            groups: Vec::new(),
            shards: None,
            by_name: BTreeMap::new(),
        };
        Self { state }
    }

    /// Lays out flat buffers in the master format, each with an element per element of the parameters or of
    /// the longest shard, the slots of groups after them, and then the compute copy.
    fn lay_out_params(&mut self, requests: &[ParamRequest], flat: &[&str], groups: &[GroupRequest]) {
        let precision = self.state.precision;
        let copied = precision.has_compute_copy().then_some(("compute_copy", precision.act_dtype));
        // Tensors start at the alignment in the narrowest format, so that one element offset serves every
        // buffer.
        let slots = groups.iter().flat_map(|group| &group.slots).map(|slot| slot.dtype);
        let dtypes = slots.chain([precision.master]).chain(copied.map(|(_, dtype)| dtype));
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
        let shard_len = self.state.shards.as_ref().map(|shards| shards.shard_len());
        let sharded_masters = self.state.masters_are_sharded();
        let all = || starts.iter().copied().enumerate();
        for name in flat {
            let sharded = shard_len.filter(|_| *name == "params" && sharded_masters);
            self.flat_buffer(name, precision.master, sharded.unwrap_or(flat_len));
            if sharded.is_none() {
                self.parts_of_buffer(name, precision.master, requests, all());
            }
        }
        for group in self.state.groups.clone() {
            for slot in group.slots.iter().filter(|_| !group.params.is_empty()) {
                let buffer = group.own(slot.buffer);
                self.flat_buffer(&buffer, slot.dtype, group.places.shard_len());
                if shard_len.is_none() {
                    let place = |i: usize| group.places.within(starts[i]..end(i)).next();
                    let places = group.params.iter().filter_map(|&i| Some((i, place(i)?.offset)));
                    self.parts_of_buffer(&buffer, slot.dtype, requests, places);
                }
            }
        }
        if let Some((name, dtype)) = copied {
            self.flat_buffer(name, dtype, flat_len);
            self.parts_of_buffer(name, dtype, requests, all());
        }
        let masters = if self.state.masters_are_sharded() { "vectors" } else { "params" };
        if masters == "vectors" {
            let vectors = requests.iter().filter(|r| !r.role.is_matrix());
            let spec = |r: &ParamRequest| Spec::padded(r.shape.clone(), r.alloc.clone(), precision.master);
            let tensors: Vec<_> = vectors.map(|r| (r.name.as_str(), spec(r))).collect();
            self.group(masters, &tensors);
            let buffer = self.state.buffers.len() - 1;
            let len = self.state.buffers[buffer].bytes / precision.master.size();
            self.slot_in(buffer, format!("{masters}.flat"), Spec::new([len], precision.master), 0);
        }
        let training = flat.contains(&"grads");
        for (r, start) in requests.iter().zip(starts) {
            let read_from =
                if precision.has_compute_copy() && r.role.is_matrix() { "compute_copy" } else { masters };
            let slot = |buffer: &str| self.state.by_name[&format!("{buffer}.{}", r.name)];
            let (read, grad) = (slot(read_from), slot(if training { "grads" } else { "params" }));
            self.state.params.push(Param {
                name: r.name.clone(),
                spec: Spec::padded(r.shape.clone(), r.alloc.clone(), precision.master),
                init: r.init,
                role: r.role,
                stacked: r.stacked.clone(),
                block: r.block,
                start,
                read,
                grad,
            });
        }
    }

    /// Adds a buffer of `len` elements, and the slot of all of them.
    fn flat_buffer(&mut self, name: &str, dtype: DType, len: usize) {
        let buffer = self.buffer(name, len * dtype.size());
        self.slot_in(buffer, format!("{name}.flat"), Spec::new([len], dtype), 0);
    }

    /// Adds the slots of parameters in the newest buffer, each given by its index and its first element
    /// there.
    fn parts_of_buffer(
        &mut self,
        name: &str,
        dtype: DType,
        requests: &[ParamRequest],
        places: impl Iterator<Item = (usize, usize)>,
    ) {
        let buffer = self.state.buffers.len() - 1;
        for (index, first) in places {
            let r = &requests[index];
            let spec = Spec::padded(r.shape.clone(), r.alloc.clone(), dtype);
            self.slot_in(buffer, format!("{name}.{}", r.name), spec, first * dtype.size());
        }
    }

    /// Adds a buffer that holds the named tensors in order, each aligned.
    pub fn group(&mut self, name: &str, tensors: &[(&str, Spec)]) {
        let mut bytes = 0;
        let buffer = self.buffer(name, 0);
        for (tensor, spec) in tensors {
            self.slot_in(buffer, format!("{name}.{tensor}"), spec.clone(), bytes);
            bytes += spec.aligned_bytes();
        }
        self.state.buffers[buffer].bytes = bytes;
    }

    /// Declares that the gradient of the slot `read` is recorded into the slot `grad`, for programs whose
    /// trained tensors are not laid out by [`StateBuilder::for_training`] (the checks of single ops).
    pub fn watch(&mut self, read: &str, grad: &str) {
        let (Some(&read_slot), Some(&grad_slot)) =
            (self.state.by_name.get(read), self.state.by_name.get(grad))
        else {
            return;
        };
        self.state.params.push(Param {
            name: read.to_string(),
            spec: self.state.get(read_slot).spec.clone(),
            init: Init::Ones,
            role: Role::Vector,
            stacked: Vec::new(),
            block: None,
            start: 0,
            read: read_slot,
            grad: grad_slot,
        });
    }

    /// Adds a named slot for elements `start..start + len` of a flat parameter buffer such as `grads`.
    pub fn flat_range(&mut self, kind: &str, name: &str, start: usize, len: usize) {
        let Some(flat) = self.state.slot(&format!("{kind}.flat")) else { return };
        let (buffer, dtype) = (self.state.get(flat).buffer, self.state.get(flat).spec.dtype);
        self.slot_in(buffer, format!("{kind}.{name}"), Spec::new([len], dtype), start * dtype.size());
    }

    /// Adds a slot over the first `len` elements of a one-dimensional slot.
    pub fn beginning(&mut self, of: &str, name: String, len: usize) {
        let Some(whole) = self.state.slot(of).map(|slot| self.state.get(slot).clone()) else { return };
        debug_assert!(len <= whole.spec.elements(), "{name} within {of}");
        self.slot_in(whole.buffer, name, Spec::new([len], whole.spec.dtype), whole.offset);
    }

    /// The layout built so far, for choosing flat ranges.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the finished layout.
    pub fn finish(self) -> State {
        self.state
    }

    fn buffer(&mut self, name: &str, bytes: usize) -> usize {
        self.state.buffers.push(StateBuffer { name: name.to_string(), bytes });
        self.state.buffers.len() - 1
    }

    fn slot_in(&mut self, buffer: usize, name: String, spec: Spec, offset: usize) {
        let id = SlotId(self.state.slots.len());
        self.state.by_name.insert(name.clone(), id);
        self.state.slots.push(Slot { name, spec, buffer, offset });
    }
}

/// Returns the first element of each parameter in the flat buffers, and the elements of a buffer. Tensors
/// begin at multiples of `step`; those of a group with an alignment, and what follows them, at multiples of
/// that.
fn starts(requests: &[ParamRequest], groups: &[GroupRequest], step: usize) -> (Vec<usize>, usize) {
    let mut alignments = vec![step; requests.len()];
    for group in groups {
        group.params.iter().for_each(|&i| alignments[i] = group.alignment.max(step));
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

/// Returns ascending ranges with neighbours joined.
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
