//! Expands fused ops into smaller ones, for the ablation `engine.fused = false`.

use crate::error::{Error, Result};
use crate::ir::{Builder, Node, Program, TensorId};
use std::collections::HashMap;

/// Replaces every op that has an unfused form by that form, repeatedly. The outputs keep their tensors, so
/// nothing downstream changes.
///
/// # Errors
/// If an op's unfused form does not fit the op.
pub fn unfuse(program: Program) -> Result<Program> {
    let mut builder = Builder::resume(program);
    let mut pending: Vec<Node> = builder.take_nodes();
    pending.reverse();
    let mut done = Vec::new();
    while let Some(node) = pending.pop() {
        builder.set_scope_of(&node);
        builder.phase = node.phase;
        builder.stream = node.stream;
        match node.op.unfused(&mut builder, &node.inputs)? {
            None => done.push(node),
            Some(outputs) => {
                let smaller = retarget(builder.take_nodes(), &node, &outputs)?;
                pending.extend(smaller.into_iter().rev());
            }
        }
    }
    for node in done {
        builder.push(node);
    }
    Ok(builder.finish())
}

/// Redirects the outputs of the smaller nodes to the tensors that the fused node writes.
fn retarget(mut nodes: Vec<Node>, fused: &Node, outputs: &[TensorId]) -> Result<Vec<Node>> {
    let wrong = |why: &str| Error::failed(format!("the unfused form of {} {why}", fused.op.name()));
    if outputs.len() != fused.outputs.len() {
        return Err(wrong("has a different number of outputs"));
    }
    let to: HashMap<TensorId, usize> = outputs.iter().enumerate().map(|(k, &id)| (id, k)).collect();
    let mut found = 0;
    for node in &mut nodes {
        for input in &mut node.inputs {
            if let Some(&k) = to.get(input) {
                *input = fused.outputs[k];
            }
        }
        for slot in 0..node.outputs.len() {
            if let Some(&k) = to.get(&node.outputs[slot]) {
                found += 1;
                node.outputs[slot] = fused.outputs[k];
                node.modes[slot] = fused.modes[k];
            }
        }
    }
    if found == outputs.len() { Ok(nodes) } else { Err(wrong("passes an input through as an output")) }
}
