//! Activation recomputation: forward tensors that are not kept are computed again before the backward reads
//! them.
//!
//! A gradient reads everything that determines its forward's output. If the op supports it
//! ([`Op::emission`]), the gradient emits that output along with the gradients, and nodes that read the
//! output move after the gradient: no node has to recompute it. Otherwise the forward node, or a cheaper one
//! ([`Op::rederive`]), runs again right before the first reader. Both ways use the same inputs in the same
//! order, so results have the same bits.

use crate::error::Result;
use crate::ir::{Builder, Destination, Home, Mode, Node, Op, Phase, Program, TensorId};
use crate::policy::Recompute;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Rewrites a program's backward to read recomputed tensors.
///
/// # Errors
/// If an op emits or rederives a tensor that does not fit.
pub fn recompute(program: Program, policy: Recompute) -> Result<Program> {
    if policy == Recompute::None {
        return Ok(program);
    }
    let mut forward = DroppedTensors { dropped: dropped(&program, policy), producers: program.producers() };
    let emissions = Emissions::new(&program, &forward);
    if policy == Recompute::Emitted {
        let emitted: HashSet<TensorId> = emissions.emitted.values().flatten().copied().collect();
        forward.dropped = emitted;
    }
    let mut builder = Builder::resume(program);
    let nodes = builder.take_nodes();
    let mut pass = Rewriter { builder, nodes: &nodes, forward, emissions, replacements: HashMap::new() };
    for (at, node) in nodes.iter().enumerate() {
        if pass.emissions.waits_for.contains_key(&at) {
            continue;
        }
        pass.rewrite(at)?;
        if node.phase == Phase::Backward {
            for waiting in pass.emissions.waiting_for(at) {
                pass.rewrite(waiting)?;
            }
        }
    }
    Ok(pass.builder.finish())
}

/// The forward tensors that the backward cannot read as the forward left them.
struct DroppedTensors {
    /// Tensors that are not kept.
    dropped: HashSet<TensorId>,
    /// The node that first writes each tensor.
    producers: Vec<Option<usize>>,
}

/// A node that recomputes dropped tensors.
struct Recomputation {
    /// The forward node that wrote them.
    producer: usize,
    op: Arc<dyn Op>,
    inputs: Vec<TensorId>,
    /// The tensor that each output stands for.
    outputs: Vec<TensorId>,
}

impl DroppedTensors {
    /// Returns how to recompute a dropped tensor; `None` if no node writes it.
    fn recomputation(&self, nodes: &[Node], id: TensorId) -> Option<Recomputation> {
        let producer = self.producers[id.0]?;
        let node = &nodes[producer];
        let output = node.outputs.iter().position(|&o| o == id)?;
        let others_kept = node.outputs.iter().all(|o| *o == id || !self.dropped.contains(o));
        let cheaper = others_kept.then(|| node.op.rederive(&node.inputs, &node.outputs, output)).flatten();
        Some(match cheaper {
            Some((op, inputs)) => Recomputation { producer, op, inputs, outputs: vec![id] },
            None => {
                let (op, inputs) = (Arc::clone(&node.op), node.inputs.clone());
                Recomputation { producer, op, inputs, outputs: node.outputs.clone() }
            }
        })
    }
}

/// Ops whose results gradients can emit, each with the index of the gradient.
type Emitters = Vec<(Arc<dyn Op>, usize)>;

/// Gradients that emit dropped tensors, and nodes that wait for them.
#[derive(Default)]
struct Emissions {
    /// For each gradient that emits: the tensors that its additional output stands for.
    emitted: BTreeMap<usize, Vec<TensorId>>,
    /// For each node that waits: the gradient after which it runs.
    waits_for: BTreeMap<usize, usize>,
}

impl Emissions {
    /// Finds the dropped tensors that a gradient can emit in time for all their readers.
    fn new(program: &Program, forward: &DroppedTensors) -> Self {
        let nodes = &program.nodes;
        let backward = |at: &usize| nodes[*at].phase == Phase::Backward;
        // What gradients can emit, keyed by the inputs of the computation.
        let mut gradients: HashMap<Vec<TensorId>, Emitters> = HashMap::new();
        for at in (0..nodes.len()).filter(backward) {
            if let Some(emission) = nodes[at].op.emission() {
                let inputs = emission.inputs.iter().map(|&i| nodes[at].inputs[i]).collect();
                gradients.entry(inputs).or_default().push((emission.of, at));
            }
        }
        let mut readers: BTreeMap<TensorId, Vec<usize>> = BTreeMap::new();
        for at in (0..nodes.len()).filter(backward) {
            for id in nodes[at].inputs.iter().filter(|id| forward.dropped.contains(id)) {
                readers.entry(*id).or_default().push(at);
            }
        }
        let mut emitted: BTreeMap<TensorId, usize> = BTreeMap::new();
        let mut recomputed: Vec<TensorId> = Vec::new();
        for (&id, readers) in &readers {
            let gradient = forward
                .recomputation(nodes, id)
                .and_then(|r| gradients.get(&r.inputs)?.iter().find(|(op, _)| op.same_as(&*r.op)))
                .map(|&(_, gradient)| gradient)
                .filter(|&g| readers.iter().all(|&at| at > g || can_wait(program, at, g)));
            match gradient {
                Some(gradient) => drop(emitted.insert(id, gradient)),
                None => recomputed.push(id),
            }
        }
        // A recomputation runs at the first reader, which may come before the gradient, so the tensors that
        // the recomputation reads cannot wait for an emission.
        let mut seen = HashSet::new();
        while let Some(id) = recomputed.pop() {
            if seen.insert(id) {
                emitted.remove(&id);
                let inputs = forward.recomputation(nodes, id).map(|r| r.inputs).unwrap_or_default();
                recomputed.extend(inputs.into_iter().filter(|id| forward.dropped.contains(id)));
            }
        }
        let mut found = Self::default();
        for (id, gradient) in emitted {
            found.emitted.entry(gradient).or_default().push(id);
            for &at in readers[&id].iter().filter(|&&at| at < gradient) {
                let last = found.waits_for.entry(at).or_insert(gradient);
                *last = gradient.max(*last);
            }
        }
        found
    }

    /// Returns the nodes that wait for a gradient, in their order.
    fn waiting_for(&self, gradient: usize) -> Vec<usize> {
        self.waits_for.iter().filter(|(_, g)| **g == gradient).map(|(at, _)| *at).collect()
    }
}

/// Returns true if the node at `at` can run right after the one at `gradient` without changing any result.
fn can_wait(program: &Program, at: usize, gradient: usize) -> bool {
    let node = &program.nodes[at];
    let touch = |a: &[TensorId], b: &[TensorId]| a.iter().any(|&a| b.iter().any(|&b| overlap(program, a, b)));
    let independent = |other: &Node| {
        !touch(&node.outputs, &other.inputs)
            && !touch(&node.outputs, &other.outputs)
            && !touch(&node.inputs, &other.outputs)
    };
    // A gradient that others may wait for stays where it is.
    at < gradient && node.op.emission().is_none() && program.nodes[at + 1..=gradient].iter().all(independent)
}

/// Returns true if two tensors share memory before memory is planned: views of one tensor, or overlapping
/// ranges of the state.
fn overlap(program: &Program, a: TensorId, b: TensorId) -> bool {
    let (a, b) = (program.base(a), program.base(b));
    let range = |id| match program.tensor(id).home {
        Home::State(slot) => {
            let slot = program.state.get(slot);
            Some((slot.buffer, slot.offset, slot.offset + slot.spec.bytes()))
        }
        _ => None,
    };
    match (range(a), range(b)) {
        (Some((buffer, start, end)), Some((other, from, to))) => buffer == other && start < to && from < end,
        _ => a == b,
    }
}

struct Rewriter<'a> {
    builder: Builder,
    nodes: &'a [Node],
    forward: DroppedTensors,
    emissions: Emissions,
    /// Dropped tensors that were computed again, with their replacements.
    replacements: HashMap<TensorId, TensorId>,
}

impl Rewriter<'_> {
    /// Records the node at `at`. In the backward, it reads the replacements of dropped tensors.
    fn rewrite(&mut self, at: usize) -> Result<()> {
        let mut node = self.nodes[at].clone();
        if node.phase == Phase::Backward {
            for input in &mut node.inputs {
                *input = self.available(*input)?;
            }
        }
        match (self.emissions.emitted.get(&at).cloned(), node.op.emission()) {
            (Some(ids), Some(emission)) => self.emit(&node, emission.gradient, &ids)?,
            _ => self.builder.push(node),
        }
        Ok(())
    }

    /// Records a gradient in its variant `by`, which also writes the tensor that replaces `ids`.
    fn emit(&mut self, node: &Node, by: Arc<dyn Op>, ids: &[TensorId]) -> Result<()> {
        self.builder.set_scope("", None);
        let original = self.builder.program.tensor(ids[0]).clone();
        let again = self.builder.buffer(&original.name, original.spec);
        let mut outs: Vec<Destination> =
            node.outputs.iter().zip(&node.modes).map(|(&id, &mode)| Destination::Into(id, mode)).collect();
        outs.push(Destination::Into(again, Mode::Write));
        self.builder.set_scope_of(node);
        self.builder.phase = node.phase;
        self.builder.stream = node.stream;
        self.builder.emit_into(by.name(), Arc::clone(&by), &node.inputs, &outs)?;
        self.replacements.extend(ids.iter().map(|&id| (id, again)));
        Ok(())
    }

    /// Returns the tensor that holds `id` in the backward. Records its recomputation if necessary.
    fn available(&mut self, id: TensorId) -> Result<TensorId> {
        if !self.forward.dropped.contains(&id) {
            return Ok(id);
        }
        if let Some(&now) = self.replacements.get(&id) {
            return Ok(now);
        }
        let Some(again) = self.forward.recomputation(self.nodes, id) else { return Ok(id) };
        let mut inputs = Vec::with_capacity(again.inputs.len());
        for &input in &again.inputs {
            inputs.push(self.available(input)?);
        }
        let node = &self.nodes[again.producer];
        self.builder.set_scope_of(node);
        self.builder.phase = Phase::Recompute;
        self.builder.stream = node.stream;
        let name = &self.builder.program.tensor(again.outputs[0]).name;
        let name = name.strip_prefix(&format!("{}.", node.scope)).unwrap_or(name).to_owned();
        let outputs = self.builder.emit_into(&name, again.op, &inputs, &[])?;
        for (&old, &new) in again.outputs.iter().zip(&outputs) {
            if self.forward.dropped.contains(&old) {
                self.replacements.insert(old, new);
            }
        }
        Ok(self.replacements.get(&id).copied().unwrap_or(id))
    }
}
/// Returns the forward tensors that are not kept for the backward.
fn dropped(program: &Program, policy: Recompute) -> HashSet<TensorId> {
    let viewed: HashSet<TensorId> = (0..program.tensors.len())
        .filter_map(|i| match program.tensors[i].home {
            Home::View { of, .. } => Some(of),
            _ => None,
        })
        .collect();
    let reads = |phase: Phase| {
        let nodes = program.nodes.iter().filter(move |n| n.phase == phase);
        nodes.flat_map(|n| n.inputs.iter().map(move |&i| (i, n.block)))
    };
    let backward: HashSet<TensorId> = reads(Phase::Backward).map(|(id, _)| id).collect();
    let mut readers: HashMap<TensorId, Vec<Option<usize>>> = HashMap::new();
    for (id, block) in reads(Phase::Forward) {
        readers.entry(id).or_default().push(block);
    }
    let mut dropped = HashSet::new();
    for node in program.nodes.iter().filter(|n| n.phase == Phase::Forward) {
        for (k, &id) in node.outputs.iter().enumerate() {
            if program.tensor(id).home != Home::Transient || viewed.contains(&id) {
                continue;
            }
            let cheap = node.op.cheap_to_recompute(k);
            let drop = match policy {
                Recompute::None => false,
                Recompute::Emitted | Recompute::Selective => {
                    // Drop it only if that saves memory: what it is recomputed from is kept for the backward
                    // anyway.
                    let kept = |i: &TensorId| {
                        program.tensor(*i).home != Home::Transient
                            || backward.contains(i)
                            || dropped.contains(i)
                    };
                    let rederivable = node.outputs.iter().any(|o| *o != id && backward.contains(o));
                    cheap && (rederivable || node.inputs.iter().all(kept))
                }
                Recompute::Full => {
                    let crosses =
                        readers.get(&id).is_some_and(|r| r.iter().any(|block| *block != node.block));
                    node.block.is_some() && (cheap || !crosses)
                }
            };
            if drop {
                dropped.insert(id);
            }
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DType;
    use crate::ir::{FlatBuffer, Init, ParamRequest, Precision, Role, Spec, StateBuilder, UpdateOverride};
    use crate::ops::copy::Copy;
    use crate::ops::rms_norm::RmsNorm;
    use crate::ops::row_norm::NormGrad;
    use crate::ops::scale::Scale;

    /// A norm whose output `n` the backward reads, and the norm's gradient.
    struct Norm {
        b: Builder,
        x: TensorId,
        w: TensorId,
        n: TensorId,
        dy: TensorId,
        to_n: TensorId,
        to_dw: TensorId,
    }

    impl Norm {
        /// Records the forward. Nodes recorded later belong to the backward.
        fn new() -> Self {
            let mut builder = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
            let (rows, row) = (Spec::new([4, 8], DType::F32), Spec::new([8], DType::F32));
            let slots = builder.group(
                "s",
                [("x", rows.clone()), ("w", row.clone()), ("dy", rows.clone()), ("n", rows), ("dw", row)],
            );
            let mut b = Builder::new("norm", Arc::new(builder.finish()));
            let [x, w, dy, to_n, to_dw] = slots.map(|slot| b.state_slot(slot));
            let x = b.emit1("x", Copy, &[x]).unwrap();
            let n = b.emit1("n", RmsNorm::new(1e-6, true), &[x, w]).unwrap();
            b.phase = Phase::Backward;
            Self { b, x, w, n, dy, to_n, to_dw }
        }

        /// Copies a tensor to the slot `to_n`, or adds it there.
        fn copy(&mut self, of: TensorId, mode: Mode) {
            self.b.emit_into("copy", Arc::new(Copy), &[of], &[Destination::Into(self.to_n, mode)]).unwrap();
        }

        fn gradient(&mut self, dy: TensorId) -> TensorId {
            self.gradient_with_eps(1e-6, dy)
        }

        fn gradient_with_eps(&mut self, eps: f64, dy: TensorId) -> TensorId {
            let dw = Destination::Into(self.to_dw, Mode::Write);
            let norm = RmsNorm::new(eps, true);
            let op = Arc::new(NormGrad { norm, residual: false, emits: false });
            self.b.emit_into("dx", op, &[self.x, self.w, dy], &[Destination::New, dw]).unwrap()[0]
        }

        /// Returns the ops of the backward by name, with `*` if they emit and `↻` if they recompute.
        fn recomputed(self) -> String {
            let program = recompute(self.b.finish(), Recompute::Selective).unwrap();
            let names = program.nodes.iter().filter(|node| node.phase != Phase::Forward).map(|node| {
                let emits = if node.op.attributes().contains("emits") { "*" } else { "" };
                let again = if node.phase == Phase::Recompute { "↻" } else { "" };
                format!("{}{emits}{again}", node.op.name())
            });
            names.collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn readers_wait_for_the_gradient_that_emits() {
        let mut norm = Norm::new();
        let dy = norm.dy;
        norm.copy(norm.n, Mode::Write);
        let dy = norm.b.emit1("dy", Scale { factor: 2.0 }, &[dy]).unwrap();
        norm.gradient(dy);
        norm.copy(norm.n, Mode::Add);
        assert_eq!(norm.recomputed(), "scale rms_norm_grad* copy copy");
    }

    #[test]
    fn what_the_gradient_depends_on_does_not_wait() {
        let mut norm = Norm::new();
        let dy = norm.b.emit1("dy", Scale { factor: 2.0 }, &[norm.n]).unwrap();
        norm.gradient(dy);
        assert_eq!(norm.recomputed(), "rms_norm↻ scale rms_norm_grad");
    }

    /// Additions to one slot keep their order, because each one rounds.
    #[test]
    fn additions_to_one_slot_keep_their_order() {
        let mut norm = Norm::new();
        let dy = norm.dy;
        norm.copy(norm.n, Mode::Write);
        norm.copy(dy, Mode::Add);
        norm.gradient(dy);
        assert_eq!(norm.recomputed(), "rms_norm↻ copy copy rms_norm_grad");
    }

    #[test]
    fn another_norm_or_no_gradient_emits_nothing() {
        let mut norm = Norm::new();
        let dy = norm.dy;
        norm.copy(norm.n, Mode::Write);
        norm.gradient_with_eps(1e-5, dy);
        assert_eq!(norm.recomputed(), "rms_norm↻ copy rms_norm_grad");
    }

    /// `twice`, a dropped tensor computed from `n`, is read before the gradient, so `n` must be available
    /// before it too.
    #[test]
    fn what_a_recomputation_reads_does_not_wait() {
        let mut norm = Norm::new();
        norm.b.phase = Phase::Forward;
        let twice = norm.b.emit1("twice", Scale { factor: 2.0 }, &[norm.n]).unwrap();
        norm.b.phase = Phase::Backward;
        let dy = norm.b.emit1("dy", Scale { factor: 3.0 }, &[twice]).unwrap();
        norm.copy(norm.n, Mode::Write);
        norm.gradient(dy);
        assert_eq!(norm.recomputed(), "rms_norm↻ scale↻ scale copy rms_norm_grad");
    }

    #[test]
    fn ranges_of_the_state_overlap_as_their_bytes_do() {
        let vector = |name: &str| ParamRequest {
            name: name.to_owned(),
            shape: vec![8],
            alloc: vec![8],
            init: Init::Constant(1.0),
            role: Role::Vector,
            update: UpdateOverride::default(),
            stacked: Vec::new(),
            block: None,
        };
        let precision = Precision::for_act_dtype(DType::F32);
        let state = StateBuilder::for_training(precision, &[vector("a"), vector("b")], &[], None).finish();
        let mut b = Builder::new("ranges", Arc::new(state));
        let (grads, params) = (FlatBuffer::Grads, FlatBuffer::Params);
        let names = [grads.clone().into(), grads.param("a"), grads.param("b"), params.param("a")];
        let [all, first, second, other] = names.map(|name| b.state(name).unwrap());
        let part = b.rows(first, 2, 1).unwrap();
        let program = b.finish();
        assert!(overlap(&program, all, second) && overlap(&program, part, all));
        assert!(!overlap(&program, first, second) && !overlap(&program, first, other));
    }
}
