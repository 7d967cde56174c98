//! Divides the operations of a graph into steps, which are recorded one after another.

use super::rewrites::{Match, REWRITES, head};
use crate::error::{Error, Result};
use crate::model_text::{Graph, Norm, Operation};
use crate::ops::attention::Heads;
use crate::ops::formula::Function;

/// Operations that are recorded together, as one op or as few.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) struct Step {
    /// What it computes.
    pub kind: StepKind,
    /// The operations whose results it reads.
    pub inputs: Vec<usize>,
    /// The operations whose results it gives.
    pub outputs: Vec<usize>,
    /// The operation in whose block it is recorded.
    pub at: usize,
}

/// What a step computes. Parameters are indices of [`Graph::parameters`].
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) enum StepKind {
    /// Rows of a table, of tokens or of positions.
    Embedding {
        /// The table.
        table: usize,
        /// Look up positions in place of tokens.
        positions: bool,
    },
    /// The product with a matrix, and its bias.
    Product {
        /// The matrix.
        weight: usize,
        /// Added to the product.
        bias: Option<usize>,
    },
    /// The norm of whole rows.
    Norm(Norm),
    /// A sum of rows (output 0), and the norm of the sum (output 1).
    ResidualNorm(Norm),
    /// Attention, from packed queries, keys and values.
    Attention(PackedAttention),
    /// Dropout with this probability; the index of its site.
    Dropout(f64, u32),
    /// A function of two halves of a row.
    Gated(Function),
    /// A function of every element.
    Activated(Function),
    /// Rows times a number.
    Scaled(f64),
    /// The sum of two rows.
    Sum,
    /// The product of two rows, element by element.
    ProductOfRows,
}

/// Attention of queries, keys and values that are parts of one row, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct PackedAttention {
    /// The heads.
    pub heads: Heads,
    /// Norms of the heads of queries and keys, by root mean square.
    pub norm: Option<HeadNorm>,
    /// Rotation of the heads of queries and keys.
    pub rotation: Option<Rotation>,
    /// Normalize after the rotation.
    pub rotates_first: bool,
    /// Most keys that a query sees, its own included.
    pub window: Option<usize>,
    /// Soft cap of the scores.
    pub cap: Option<f64>,
    /// Dropout of the probabilities, and the index of its site.
    pub dropout: Option<(f64, u32)>,
}

/// Norms of the heads of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct HeadNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// Weights of the queries' norm and of the keys'.
    pub weights: Option<[usize; 2]>,
}

/// The rotation of a head by position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Rotation {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements that are rotated, the first of each head.
    pub width: usize,
    /// Rotate in the negative direction.
    pub reversed: bool,
}

/// The head: the product that gives the logits, and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Head {
    /// The operation that gives the rows that it reads.
    pub rows: usize,
    /// The matrix.
    pub weight: usize,
    /// The factor of the products.
    pub logit_scale: f64,
    /// Soft cap of the logits.
    pub logit_cap: Option<f64>,
}

/// The steps of a graph.
#[derive(Clone, Debug)]
pub(in crate::model) struct Steps {
    /// Everything before the head, in the order in which it is recorded.
    pub trunk: Vec<Step>,
    /// The head.
    pub head: Head,
}

/// A graph with the readers of every operation.
pub(super) struct Readers<'a> {
    pub graph: &'a Graph,
    /// The function of [`Operation::Activation`].
    pub activation: Function,
    /// For every operation, those that read it.
    pub readers: Vec<Vec<usize>>,
    /// For every operation that drops elements, the index of its site.
    sites: Vec<u32>,
}

impl<'a> Readers<'a> {
    fn new(graph: &'a Graph, activation: Function) -> Self {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        let mut sites = Vec::with_capacity(graph.nodes.len());
        let mut next = 0;
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|&input| readers[input].push(index));
            sites.push(next);
            next += match node.operation {
                Operation::Dropout(p) | Operation::Attention { dropout: p, .. } => u32::from(p > 0.0),
                _ => 0,
            };
        }
        Self { graph, activation, readers, sites }
    }

    /// Returns the operation.
    pub fn operation(&self, node: usize) -> &'a Operation {
        &self.graph.nodes[node].operation
    }

    /// Returns the inputs of an operation.
    pub fn inputs(&self, node: usize) -> &'a [usize] {
        &self.graph.nodes[node].inputs
    }

    /// Returns the operation that gives the elements of a result, which may be divided into heads.
    pub fn undivided(&self, mut node: usize) -> usize {
        while let (Operation::Heads, [input]) = (self.operation(node), self.inputs(node)) {
            node = *input;
        }
        node
    }

    /// Returns the index of the site of an operation that drops elements.
    pub fn site(&self, node: usize) -> u32 {
        self.sites[node]
    }

    /// Returns true if nothing but the step itself reads what it computes on the way.
    fn is_closed(&self, found: &Match, taken: &[bool]) -> bool {
        let own = |node: usize| found.inner.contains(&node) || found.step.outputs.contains(&node);
        let closed = |&node: &usize| !taken[node] && self.readers[node].iter().all(|&reader| own(reader));
        found.inner.iter().all(closed) && found.step.outputs.iter().all(|&output| !taken[output])
    }
}

/// Divides a graph into steps. `activation` is the function of the recipe's activation.
///
/// # Errors
/// If no op computes a part of the graph: a usage error that names the line of the text.
pub(in crate::model) fn steps(graph: &Graph, activation: Function) -> Result<Steps> {
    let readers = Readers::new(graph, activation);
    let (head, of_head) = head(&readers).ok_or_else(|| not_recorded(graph, graph.logits))?;
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
        if taken[root] || is_silent(readers.operation(root)) {
            continue;
        }
        let matches = REWRITES.iter().filter_map(|rewrite| rewrite(&readers, root));
        let Some(Match { mut step, inner }) = { matches }.find(|found| readers.is_closed(found, &taken))
        else {
            return Err(not_recorded(graph, root));
        };
        inner.iter().chain(&step.outputs).for_each(|&node| taken[node] = true);
        step.inputs.iter_mut().for_each(|input| *input = readers.undivided(*input));
        found.push(step);
    }
    let head = Head { rows: readers.undivided(head.rows), ..head };
    Ok(Steps { trunk: in_order(graph, found), head })
}

/// Returns true if an operation is recorded only as a part of others.
fn is_silent(operation: &Operation) -> bool {
    matches!(operation, Operation::Heads | Operation::Constant(_))
}

/// Orders steps by where they are recorded. The norm of rows is recorded in the block that gives the rows,
/// alone as well as with a sum, so that a block can be computed again from the rows that it reads.
fn in_order(graph: &Graph, mut steps: Vec<Step>) -> Vec<Step> {
    steps.reverse();
    let mut recorded_at: Vec<usize> = (0..graph.nodes.len()).collect();
    for step in &mut steps {
        if let StepKind::Norm(_) = step.kind {
            step.at = recorded_at[step.inputs[0]];
        }
        step.outputs.iter().for_each(|&output| recorded_at[output] = step.at);
    }
    steps.sort_by_key(|step| (step.at, step.outputs.last().copied()));
    steps
}

/// Returns the error that no op computes an operation.
fn not_recorded(graph: &Graph, node: usize) -> Error {
    let node = &graph.nodes[node];
    let computed = match node.operation {
        Operation::Attention { .. } => {
            "attention of heads that are slices of one product (queries, keys, values, equally wide, the \
             former two with rms_norm or rope or both) is computed, without sinks, and with the default scale"
        }
        Operation::Norm(_) => {
            "norms of whole rows are computed, and rms_norm of the heads of queries and keys"
        }
        Operation::Rope { .. } => "the heads of queries and keys are rotated, nothing else",
        Operation::Elementwise(_) | Operation::Activation => {
            "functions of one row, sums and products of two equally wide ones, and functions of both halves of \
             linear(x, width, stack = 2) are computed"
        }
        _ if node.block.is_none() => {
            "logits are computed as linear(x, vocab_size), times a number, and then cap * tanh(logits / cap)"
        }
        Operation::Slice { .. } => {
            "queries, keys and values, and the halves of a stack, are sliced, nothing else"
        }
        _ => "xrun model check shows what it costs",
    };
    let statement = &graph.statements[node.statement];
    Error::usage(format!(
        "line {} of the model text: no op computes this part of {} yet; {computed}",
        statement.line, statement.name
    ))
}
