//! The table of rewrites: which operations of a graph become which step. Each is tried at every operation, in
//! the order of the table, with that operation as the last of the form.

use super::elementwise::{broadcast_function, function};
use super::readers::Readers;
use super::step::{Head, HeadNorm, PackedAttention, Rotation, Step, StepKind, UnpackedAttention};
use crate::expression::{Operator, Tree};
use crate::model_text::{Elementwise, Norm, NormKind, Operation, Reduction};
use crate::ops::attention::Heads;

/// A form that was found.
pub(super) struct Match {
    pub step: Step,
    /// What the step computes on the way; nothing else may read it.
    pub inner: Vec<usize>,
}

/// Returns the step that gives the result of an operation, if it has the form.
pub(super) type Rewrite = fn(&Readers<'_>, usize) -> Option<Match>;

/// All rewrites.
pub(super) const REWRITES: [Rewrite; 18] = [
    // x + y, and norm(x + y)
    residual_norm,
    // attention(q, k, v) of slices of one product, with rms_norm and rope of q and k
    packed_attention,
    // f(slice(x, 0, w), slice(x, w, 2 * w))
    gated,
    // number * x
    scaled,
    // f(x)
    activated,
    // f(x, y, vector, …) of rows and vectors, if it is more than a sum or a product
    pointwise,
    // x + y
    sum,
    // x * y
    product_of_rows,
    embedding,
    product,
    norm,
    dropout,
    // attention(q, k, v) of any heads
    unpacked_attention,
    // norm(heads(x, n))
    head_norm,
    // rope(heads(x, n))
    rotation,
    concat,
    // sum(x) and mean(x)
    head_sum,
    shift,
];

/// Returns the step of an operation alone.
fn alone(root: usize, kind: StepKind, inputs: Vec<usize>) -> Option<Match> {
    Some(Match { step: Step { kind, inputs, outputs: vec![root], at: root }, inner: Vec::new() })
}

fn residual_norm(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (norm, sum) = norm_of_rows(r, root)?;
    let inputs = rows_of(r, sum, Elementwise::Add)?;
    // The op keeps the sum, which takes memory where nothing else in the block reads it.
    let block = r.graph.nodes[sum].block?;
    if r.readers[sum].len() == 1 && r.graph.nodes[root].block == Some(block) {
        return None;
    }
    let step = Step { kind: StepKind::ResidualNorm(norm), inputs, outputs: vec![sum, root], at: sum };
    Some(Match { step, inner: Vec::new() })
}

fn packed_attention(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Attention { window, cap, scale, dropout } = *r.operation(root) else { return None };
    let &[query, key, value] = r.inputs(root) else { return None };
    let [query_shape, key_shape, value_shape] = [query, key, value].map(|node| r.graph.nodes[node].shape);
    let heads = Heads { query: query_shape.heads, kv: key_shape.heads, dim: query_shape.width };
    if value_shape.width != heads.dim || scale != 1.0 / (heads.dim as f64).sqrt() {
        return None;
    }
    let mut inner = Vec::new();
    let [query, key, value] = [query, key, value].map(|node| projection(r, node, &mut inner));
    let (query, key, value) = (query?, key?, value?);
    let (queries, keys) = (query_shape.elements(), key_shape.elements());
    let ends = [queries, queries + keys, queries + 2 * keys];
    let packed = query.packed;
    let whole = r.graph.nodes[packed].shape;
    let in_order = [&query, &key, &value].map(|part| (part.packed, part.from, part.to))
        == [(packed, 0, ends[0]), (packed, ends[0], ends[1]), (packed, ends[1], ends[2])];
    if !in_order || (whole.heads, whole.width) != (1, ends[2]) || !value.changes.is_empty() {
        return None;
    }
    let (norm, rotation, rotates_first) = match (&query.changes[..], &key.changes[..]) {
        ([], []) => (None, None, false),
        (&[HeadChange::Norm(eps, q)], &[HeadChange::Norm(other, k)]) => {
            (Some(norm_of_heads([eps, other], [q, k])?), None, false)
        }
        (&[HeadChange::Rotation(q)], &[HeadChange::Rotation(k)]) if q == k => (None, Some(q), false),
        (
            &[HeadChange::Norm(eps, q), HeadChange::Rotation(by)],
            &[HeadChange::Norm(other, k), HeadChange::Rotation(other_by)],
        ) if by == other_by => (Some(norm_of_heads([eps, other], [q, k])?), Some(by), false),
        (
            &[HeadChange::Rotation(by), HeadChange::Norm(eps, q)],
            &[HeadChange::Rotation(other_by), HeadChange::Norm(other, k)],
        ) if by == other_by => (Some(norm_of_heads([eps, other], [q, k])?), Some(by), true),
        _ => return None,
    };
    let dropout = (dropout > 0.0).then(|| (dropout, r.site(root)));
    let attention = PackedAttention { heads, norm, rotation, rotates_first, window, cap, dropout };
    let found = alone(root, StepKind::Attention(attention), vec![packed])?;
    Some(Match { inner, ..found })
}

/// What is done to the heads of queries or keys.
#[derive(Clone, Copy)]
enum HeadChange {
    /// Norm by root mean square, with this `eps` and weight.
    Norm(f64, Option<usize>),
    Rotation(Rotation),
}

/// Heads that are a slice of a row, changed in this order.
struct Projection {
    packed: usize,
    from: usize,
    to: usize,
    changes: Vec<HeadChange>,
}

/// Returns the projection that gives heads. Adds what lies between to `inner`.
fn projection(r: &Readers<'_>, mut node: usize, inner: &mut Vec<usize>) -> Option<Projection> {
    let mut changes = Vec::new();
    loop {
        inner.push(node);
        let input = *r.inputs(node).first()?;
        match *r.operation(node) {
            Operation::Heads => {}
            Operation::Norm(Norm { kind: NormKind::Rms, eps, weight, bias: None }) => {
                changes.push(HeadChange::Norm(eps, weight));
            }
            Operation::Rope { theta, width, reversed } => {
                changes.push(HeadChange::Rotation(Rotation { theta, width, reversed }));
            }
            Operation::Slice { from, to } => {
                changes.reverse();
                return Some(Projection { packed: input, from, to, changes });
            }
            _ => return None,
        }
        node = input;
    }
}

/// Returns the norms of queries and keys, if one op computes both.
fn norm_of_heads(eps: [f64; 2], weights: [Option<usize>; 2]) -> Option<HeadNorm> {
    let weights = match weights {
        [Some(query), Some(key)] => Some([query, key]),
        [None, None] => None,
        _ => return None,
    };
    (eps[0] == eps[1]).then_some(HeadNorm { eps: eps[0], weights })
}

fn gated(r: &Readers<'_>, root: usize) -> Option<Match> {
    let found = function(r, root)?;
    let &[first, second] = &found.variables[..] else { return None };
    let half = |node: usize| match (r.operation(node), r.inputs(node)) {
        (&Operation::Slice { from, to }, &[product]) => Some((product, from, to)),
        _ => None,
    };
    let (first_half, second_half) = (half(first)?, half(second)?);
    let product = first_half.0;
    let Operation::Linear { weight, .. } = r.operation(product) else { return None };
    let &[2, width, _] = &r.graph.parameters[*weight].shape[..] else { return None };
    if (first_half, second_half) != ((product, 0, width), (product, width, 2 * width)) {
        return None;
    }
    let inner = [found.inner, vec![first, second]].concat();
    Some(Match { inner, ..alone(root, StepKind::Gated(found.function), vec![product])? })
}

fn scaled(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (factor, rows) = times_number(r, root)?;
    // It belongs to a longer function.
    if matches!(r.operation(rows), Operation::Elementwise(_)) && r.readers[rows].len() == 1 {
        return None;
    }
    alone(root, StepKind::Scaled(factor), vec![rows])
}

fn activated(r: &Readers<'_>, root: usize) -> Option<Match> {
    let found = function(r, root)?;
    let &[rows] = &found.variables[..] else { return None };
    Some(Match { inner: found.inner, ..alone(root, StepKind::Activated(found.function), vec![rows])? })
}

fn pointwise(r: &Readers<'_>, root: usize) -> Option<Match> {
    let found = broadcast_function(r, root)?;
    // Sums are recorded as such, since a norm may follow.
    let is_small = rows_of(r, root, Elementwise::Multiply).is_some() && found.inner.is_empty()
        || rows_of(r, root, Elementwise::Add).is_some() && is_sum(found.function.tree());
    if is_small && found.variables.len() == 2 {
        return None;
    }
    let step = alone(root, StepKind::Pointwise(found.function), found.variables)?;
    Some(Match { inner: found.inner, ..step })
}

/// Returns true for a sum of variables, each times a number or as it is.
fn is_sum(tree: &Tree) -> bool {
    match tree {
        Tree::Variable(_) => true,
        Tree::Operation(Operator::Add, left, right) => is_sum(left) && is_sum(right),
        Tree::Operation(Operator::Multiply, left, right) => {
            let is_variable = |tree: &Tree| matches!(tree, Tree::Variable(_));
            let is_number = |tree: &Tree| !tree.any(&mut |part| is_variable(part));
            is_number(left) && is_variable(right) || is_variable(left) && is_number(right)
        }
        _ => false,
    }
}

fn sum(r: &Readers<'_>, root: usize) -> Option<Match> {
    alone(root, StepKind::Sum, rows_of(r, root, Elementwise::Add)?)
}

fn product_of_rows(r: &Readers<'_>, root: usize) -> Option<Match> {
    alone(root, StepKind::ProductOfRows, rows_of(r, root, Elementwise::Multiply)?)
}

fn embedding(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Embedding { table, positions } = *r.operation(root) else { return None };
    alone(root, StepKind::Embedding { table, positions }, Vec::new())
}

fn product(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Linear { weight, bias } = *r.operation(root) else { return None };
    alone(root, StepKind::Product { weight, bias }, r.inputs(root).to_vec())
}

fn norm(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (norm, rows) = norm_of_rows(r, root)?;
    alone(root, StepKind::Norm(norm), vec![rows])
}

fn dropout(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Dropout(p) = *r.operation(root) else { return None };
    alone(root, StepKind::Dropout(p, r.site(root)), r.inputs(root).to_vec())
}

fn unpacked_attention(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Attention { window, cap, scale, dropout } = *r.operation(root) else { return None };
    let &[query, key, value] = r.inputs(root) else { return None };
    let [query, key, value] = [query, key, value].map(|node| r.graph.nodes[node].shape);
    let attention = UnpackedAttention {
        heads: [query.heads, key.heads],
        widths: [query.width, value.width],
        scale,
        window,
        cap,
        dropout: (dropout > 0.0).then(|| (dropout, r.site(root))),
    };
    alone(root, StepKind::UnpackedAttention(attention), r.inputs(root).to_vec())
}

fn head_norm(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Norm(norm) = *r.operation(root) else { return None };
    let heads = r.graph.nodes[root].shape.heads;
    alone(root, StepKind::HeadNorm(norm, heads), r.inputs(root).to_vec())
}

fn rotation(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Rope { theta, width, reversed } = *r.operation(root) else { return None };
    let kind = StepKind::Rotate(Rotation { theta, width, reversed }, r.graph.nodes[root].shape.heads);
    alone(root, kind, r.inputs(root).to_vec())
}

fn concat(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Concat = r.operation(root) else { return None };
    alone(root, StepKind::Concat(r.graph.nodes[root].shape.heads), r.inputs(root).to_vec())
}

fn head_sum(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Reduce(reduction) = r.operation(root) else { return None };
    let x = r.graph.nodes[r.inputs(root)[0]].shape;
    let factor = match reduction {
        Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / x.width as f64,
    };
    alone(root, StepKind::HeadSum(x.heads, factor), r.inputs(root).to_vec())
}

fn shift(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Shift(by) = *r.operation(root) else { return None };
    alone(root, StepKind::Shift(by), r.inputs(root).to_vec())
}

/// Returns the norm of undivided rows, and the rows.
fn norm_of_rows(r: &Readers<'_>, root: usize) -> Option<(Norm, usize)> {
    let (Operation::Norm(norm), &[rows]) = (r.operation(root), r.inputs(root)) else { return None };
    (r.graph.nodes[root].shape.heads == 1).then_some((*norm, rows))
}

/// Returns the inputs of an operation on two rows of one shape.
fn rows_of(r: &Readers<'_>, root: usize, function: Elementwise) -> Option<Vec<usize>> {
    let (Operation::Elementwise(found), inputs @ [a, b]) = (r.operation(root), r.inputs(root)) else {
        return None;
    };
    let [a, b] = [a, b].map(|&input| r.graph.nodes[input].shape);
    (*found == function && a.rows && a == b).then(|| inputs.to_vec())
}

/// Returns the factor and the other value of a product with a number.
fn times_number(r: &Readers<'_>, root: usize) -> Option<(f64, usize)> {
    let (Operation::Elementwise(Elementwise::Multiply), &[a, b]) = (r.operation(root), r.inputs(root)) else {
        return None;
    };
    match (r.operation(a), r.operation(b)) {
        (&Operation::Constant(factor), _) => Some((factor, b)),
        (_, &Operation::Constant(factor)) => Some((factor, a)),
        _ => None,
    }
}

/// Returns the head of a graph, with its operations except for the numbers.
pub(super) fn head(r: &Readers<'_>) -> Option<(Head, Vec<usize>)> {
    use crate::expression::Function;
    let mut node = r.graph.logits;
    let mut found = Vec::new();
    let is_tanh =
        |node: usize| *r.operation(node) == Operation::Elementwise(Elementwise::Function(Function::Tanh));
    let mut logit_cap = None;
    // Texts have no product with 1 and no quotient by 1.
    let (cap, tanh) = times_number(r, node).filter(|(_, of)| is_tanh(*of)).unwrap_or((1.0, node));
    if is_tanh(tanh) {
        let &[capped] = r.inputs(tanh) else { return None };
        found.extend([node, tanh]);
        node = capped;
        if cap != 1.0 {
            let (Operation::Elementwise(Elementwise::Divide), &[logits, by]) =
                (r.operation(capped), r.inputs(capped))
            else {
                return None;
            };
            if *r.operation(by) != Operation::Constant(cap) {
                return None;
            }
            found.push(capped);
            node = logits;
        }
        logit_cap = Some(cap);
    }
    let mut logit_scale = 1.0;
    if let Some((factor, logits)) = times_number(r, node) {
        found.push(node);
        (logit_scale, node) = (factor, logits);
    }
    let (&Operation::Linear { weight, bias: None }, &[rows]) = (r.operation(node), r.inputs(node)) else {
        return None;
    };
    found.push(node);
    Some((Head { rows, weight, logit_scale, logit_cap }, found))
}
