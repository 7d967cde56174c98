//! Activation recomputation: forward nodes run again before the backward that reads their outputs, which are
//! not kept.
//!
//! The duplicates are the same ops on the same inputs, so results have the same bits.

use crate::error::Result;
use crate::ir::{Builder, Home, Node, Phase, Program, TensorId};
use crate::policy::Recompute;
use std::collections::{HashMap, HashSet};

/// Rewrites the backward of a program to read recomputed tensors.
///
/// # Errors
/// When an op's shortcut does not fit.
pub fn recompute(program: Program, policy: Recompute) -> Result<Program> {
    if policy == Recompute::None {
        return Ok(program);
    }
    let dropped = dropped(&program, policy);
    let producers = program.producers();
    let mut builder = Builder::resume(program);
    let nodes = builder.take_nodes();
    let mut pass = Rewriter { builder, nodes: &nodes, producers, dropped, fresh: HashMap::new() };
    for node in &nodes {
        let mut node = node.clone();
        if node.phase == Phase::Backward {
            for input in &mut node.inputs {
                *input = pass.available(*input)?;
            }
        }
        pass.builder.push(node);
    }
    Ok(pass.builder.finish())
}

struct Rewriter<'a> {
    builder: Builder,
    nodes: &'a [Node],
    producers: Vec<Option<usize>>,
    dropped: HashSet<TensorId>,
    /// Dropped tensors that have been recomputed, with their replacements.
    fresh: HashMap<TensorId, TensorId>,
}

impl Rewriter<'_> {
    /// Returns the tensor that holds `id` in the backward; records its recomputation if necessary.
    fn available(&mut self, id: TensorId) -> Result<TensorId> {
        if !self.dropped.contains(&id) {
            return Ok(id);
        }
        if let Some(&now) = self.fresh.get(&id) {
            return Ok(now);
        }
        let Some(producer) = self.producers[id.0] else { return Ok(id) };
        let node = self.nodes[producer].clone();
        let output = node.outputs.iter().position(|&o| o == id).unwrap_or_default();
        self.builder.set_scope(&node.scope, node.block);
        self.builder.set_phase(Phase::Recompute);
        self.builder.set_stream(node.stream);
        let others_kept = node.outputs.iter().all(|o| *o == id || !self.dropped.contains(o));
        if others_kept
            && let Some(now) = node.op.rederive(&mut self.builder, &node.inputs, &node.outputs, output)?
        {
            self.fresh.insert(id, now);
            return Ok(now);
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.available(input)?);
        }
        self.builder.set_scope(&node.scope, node.block);
        let name = self.builder.program().tensor(id).name.rsplit('.').next().unwrap_or_default().to_string();
        let outputs = self.builder.emit_into(&name, node.op, &inputs, &[])?;
        for (&old, &new) in node.outputs.iter().zip(&outputs) {
            if self.dropped.contains(&old) {
                self.fresh.insert(old, new);
            }
        }
        Ok(outputs[output])
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
                Recompute::Selective => {
                    // Only where it saves memory: its inputs are kept for the backward in any case.
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
