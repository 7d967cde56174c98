//! Divides the operations of a graph into steps, which are recorded one after another.

use super::readers::Readers;
use super::rewrites::{REWRITES, head};
use super::step::{Head, Match, Step, StepKind};
use super::view::View;
use crate::error::{Error, Result};
use crate::model_text::{Graph, Operation};
use crate::ops::activation::Activation;
use crate::ops::formula::Function;

/// The steps of a graph.
#[derive(Clone, Debug)]
pub(in crate::model) struct Steps {
    /// Everything before the head, in the order in which it is recorded.
    pub trunk: Vec<Step>,
    /// The head.
    pub head: Head,
}

/// Divides a graph into steps. `activation` is the function of the recipe's activation.
///
/// # Errors
/// If no op computes a part of the graph: a usage error that names the line of the text.
pub(in crate::model) fn steps(graph: &Graph, activation: Function) -> Result<Steps> {
    let readers = Readers::new(graph, activation);
    let (head, of_head) = head(&readers).ok_or_else(|| head_not_recorded(graph))?;
    let mut taken = vec![false; graph.nodes.len()];
    let is_of_head = |node: &usize| of_head.contains(node) || *node == graph.logits;
    for &node in &of_head {
        if let Some(&other) = readers.readers[node].iter().find(|reader| !is_of_head(reader)) {
            return Err(not_recorded(graph, other));
        }
        taken[node] = true;
    }
    let mut found: Vec<Step> = Vec::new();
    // From the last operation to the first, so that a form is found before its parts.
    for root in (0..graph.nodes.len()).rev() {
        if taken[root] || is_silent(graph, root) {
            continue;
        }
        let matches = REWRITES.iter().filter_map(|rewrite| rewrite(&readers, root));
        let Some(Match { step, inner }) = { matches }.find(|found| is_closed(&readers, found, &taken)) else {
            return Err(not_recorded(graph, root));
        };
        let takes_vectors = matches!(step.kind, StepKind::Pointwise(_));
        if !takes_vectors && step.inputs.iter().any(|&input| !graph.nodes[input].shape.rows) {
            return Err(not_recorded(graph, root));
        }
        inner.iter().chain(&step.outputs).for_each(|&node| taken[node] = true);
        found.push(step);
    }
    Ok(Steps { trunk: in_order(graph, found), head })
}

/// Returns true if nothing but the step itself reads what it computes on the way.
fn is_closed(readers: &Readers<'_>, found: &Match, taken: &[bool]) -> bool {
    let own = |node: usize| found.inner.contains(&node) || found.step.outputs.contains(&node);
    let closed = |&node: &usize| !taken[node] && readers.readers[node].iter().all(|&reader| own(reader));
    found.inner.iter().all(closed) && found.step.outputs.iter().all(|&output| !taken[output])
}

/// Returns the head of a graph.
///
/// # Errors
/// If no op computes it.
pub fn head_of(graph: &Graph) -> Result<Head> {
    let readers = Readers::new(graph, Activation::Silu.into());
    head(&readers).map(|(head, _)| head).ok_or_else(|| head_not_recorded(graph))
}

/// Returns true if an operation is recorded only as a part of those that read it: it gives a part of a
/// value, or the same numbers for all rows.
fn is_silent(graph: &Graph, node: usize) -> bool {
    let node = &graph.nodes[node];
    !node.shape.rows || matches!(node.operation, Operation::Heads | Operation::Slice { .. })
}

/// Orders steps by where they are recorded. The norm of rows is recorded in the block that gives the rows,
/// alone as well as with a sum, so that a block can be computed again from the rows that it reads.
fn in_order(graph: &Graph, mut steps: Vec<Step>) -> Vec<Step> {
    steps.reverse();
    let mut recorded_at: Vec<usize> = (0..graph.nodes.len()).collect();
    for step in &mut steps {
        if let StepKind::Norm(_) = step.kind {
            step.at = recorded_at[View::new(graph, step.inputs[0]).base];
        }
        step.outputs.iter().for_each(|&output| recorded_at[output] = step.at);
    }
    // A norm that is recorded with other rows' step comes after it.
    let follows = |step: &Step| matches!(step.kind, StepKind::Norm(_));
    steps.sort_by_key(|step| (step.at, follows(step), step.outputs.last().copied()));
    steps
}

/// The logits that are computed.
const LOGITS: &str =
    "logits are linear(x, vocab_size, …) or a function of its elements, without vectors and scalars";

/// Returns the error that no op computes the logits.
fn head_not_recorded(graph: &Graph) -> Error {
    wrong(graph, graph.nodes[graph.logits].statement, &format!("no op computes this; {LOGITS}"))
}

/// Returns the error that no op computes an operation.
fn not_recorded(graph: &Graph, node: usize) -> Error {
    let node = &graph.nodes[node];
    let computed = match node.operation {
        Operation::Elementwise(_) | Operation::Activation => {
            "a function has at most 64 operations on vectors and numbers, and no vectors that are joined, summed \
             or sliced by heads"
        }
        Operation::Attention { .. } => "sinks are a trained vector, as it is",
        Operation::Concat => "rows are joined, and no trained vectors",
        _ => LOGITS,
    };
    wrong(graph, node.statement, &format!("no op computes this; {computed}"))
}

/// Returns the error about a statement that cannot be recorded yet.
fn wrong(graph: &Graph, statement: usize, what: &str) -> Error {
    let statement = &graph.statements[statement];
    let (line, name) = (statement.line, &statement.name);
    Error::usage(format!("the model text cannot be run, because of line {line}, {name} = …: {what}"))
}
