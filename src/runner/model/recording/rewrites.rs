//! The table of rewrites: which operations of a graph become which step. Each is tried at every operation, in
//! the order of the table, with that operation as the last of the form.

use super::attention_forms::{changed_attention, packed_attention, unpacked_attention};
use super::elementwise::{broadcast_function, function};
use super::readers::Readers;
use super::step::{Head, Match, Rotation, Step, StepKind, WeightedNorm, alone};
use crate::expression::{Operator, Tree};
use crate::model_text::{Elementwise, Operation, Reduction};
use crate::ops::formula::Function;

/// Returns the step that gives the result of an operation, if it has the form.
pub(super) type Rewrite = fn(&Readers<'_>, usize) -> Option<Match>;

/// All rewrites.
pub(super) const REWRITES: [Rewrite; 21] = [
    // x + y, and norm(x + y)
    residual_norm,
    // norm(x), and (1 + vector) * norm(x)
    norm,
    // the same of heads
    head_norm,
    // attention(q, k, v) of slices of one product, with rms_norm and rope of q and k
    packed_attention,
    // the same of values that are computed apart
    changed_attention,
    // f(slice(x, 0, w), slice(x, w, 2 * w))
    gated,
    // number * x
    scaled,
    // f(linear(x, width, bias = true))
    activated_product,
    // f(x)
    activated,
    // f(x, y, vector, …) of rows and vectors, if it is more than a sum or a product
    pointwise,
    // x + linear(y, width)
    sum_with_product,
    // x + y
    sum,
    // x * y
    product_of_rows,
    embedding,
    product,
    dropout,
    // attention(q, k, v) of any heads
    unpacked_attention,
    // rope(heads(x, n))
    rotation,
    concat,
    // sum(x) and mean(x)
    head_sum,
    shift,
];

fn residual_norm(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (norm, sum, inner) = norm_of_rows(r, root)?;
    let inputs = rows_of(r, sum, Elementwise::Add)?;
    // One op computes a longer function, and the norm reads its result.
    if pointwise(r, sum).is_some() {
        return None;
    }
    // The op keeps the sum, which takes memory where nothing else in the block reads it.
    let block = r.graph.nodes[sum].block?;
    if r.readers[sum].len() == 1 && r.graph.nodes[root].block == Some(block) {
        return None;
    }
    let step = Step { kind: StepKind::ResidualNorm(norm), inputs, outputs: vec![sum, root], at: sum };
    Some(Match { step, inner })
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
    let (factor, rows) = r.times_number(root)?;
    // It belongs to a longer function.
    if matches!(r.operation(rows), Operation::Elementwise(_)) && r.readers[rows].len() == 1 {
        return None;
    }
    alone(root, StepKind::Scaled(factor), vec![rows])
}

fn activated_product(r: &Readers<'_>, root: usize) -> Option<Match> {
    let found = function(r, root)?;
    let (&[product], Function::BuiltIn(function)) = (&found.variables[..], found.function) else {
        return None;
    };
    let Operation::Linear { weight, bias: Some(bias) } = *r.operation(product) else { return None };
    let kind = StepKind::ActivatedProduct { function, product, weight, bias };
    let inner = [found.inner, vec![product]].concat();
    // A block can be computed again from the rows that it reads.
    let is_here = r.graph.nodes[product].block == r.graph.nodes[root].block;
    is_here.then_some(Match { inner, ..alone(root, kind, r.inputs(product).to_vec())? })
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

fn sum_with_product(r: &Readers<'_>, root: usize) -> Option<Match> {
    let addends = rows_of(r, root, Elementwise::Add)?;
    let &[first, second] = &addends[..] else { return None };
    [(first, second), (second, first)].into_iter().find_map(|(rows, product)| {
        let &Operation::Linear { weight, bias: None } = r.operation(product) else { return None };
        let is_alone = r.readers[product].len() == 1 && rows != product;
        let inputs = vec![rows, r.inputs(product)[0]];
        let step = alone(root, StepKind::SumWithProduct { weight }, inputs)?;
        is_alone.then(|| Match { inner: vec![product], ..step })
    })
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
    let (norm, rows, inner) = norm_of_rows(r, root)?;
    Some(Match { inner, ..alone(root, StepKind::Norm(norm), vec![rows])? })
}

fn dropout(r: &Readers<'_>, root: usize) -> Option<Match> {
    let Operation::Dropout(p) = *r.operation(root) else { return None };
    alone(root, StepKind::Dropout(p, r.site(root)), r.inputs(root).to_vec())
}

fn head_norm(r: &Readers<'_>, root: usize) -> Option<Match> {
    let (norm, of, inner) = r.norm(root)?;
    let heads = r.graph.nodes[root].shape.heads;
    Some(Match { inner, ..alone(root, StepKind::HeadNorm(norm, heads), vec![of])? })
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

/// Returns the norm of undivided rows, the rows, and the operations on the way.
fn norm_of_rows(r: &Readers<'_>, root: usize) -> Option<(WeightedNorm, usize, Vec<usize>)> {
    r.norm(root).filter(|_| r.graph.nodes[root].shape.heads == 1)
}

/// Returns the inputs of an operation on two rows of one shape.
fn rows_of(r: &Readers<'_>, root: usize, function: Elementwise) -> Option<Vec<usize>> {
    let (Operation::Elementwise(found), inputs @ [a, b]) = (r.operation(root), r.inputs(root)) else {
        return None;
    };
    let [a, b] = [a, b].map(|&input| r.graph.nodes[input].shape);
    (*found == function && a.rows && a == b).then(|| inputs.to_vec())
}

/// Returns the head of a graph, with its operations except for the numbers: a product, multiplied by a number
/// and capped, or another function of a product.
pub(super) fn head(r: &Readers<'_>) -> Option<(Head, Vec<usize>)> {
    scaled_and_capped(r).or_else(|| function_of_product(r))
}

/// Returns a head that gives `cap * tanh(scale * linear(x, vocab_size) / cap)`, or lacks scale or cap.
fn scaled_and_capped(r: &Readers<'_>) -> Option<(Head, Vec<usize>)> {
    use crate::expression::Function;
    let mut node = r.graph.logits;
    let mut found = Vec::new();
    let is_tanh =
        |node: usize| *r.operation(node) == Operation::Elementwise(Elementwise::Function(Function::Tanh));
    let mut logit_cap = None;
    // Texts have no product with 1 and no quotient by 1.
    let (cap, tanh) = r.times_number(node).filter(|(_, of)| is_tanh(*of)).unwrap_or((1.0, node));
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
    if let Some((factor, logits)) = r.times_number(node) {
        found.push(node);
        (logit_scale, node) = (factor, logits);
    }
    let (&Operation::Linear { weight, bias: None }, &[rows]) = (r.operation(node), r.inputs(node)) else {
        return None;
    };
    found.push(node);
    Some((Head { rows, weight, bias: None, function: None, logit_scale, logit_cap }, found))
}

/// Returns a head that gives any function of the elements of one product, which may have a bias.
fn function_of_product(r: &Readers<'_>) -> Option<(Head, Vec<usize>)> {
    let logits = r.graph.logits;
    let (product, function, mut found) = match r.operation(logits) {
        Operation::Linear { .. } => (logits, None, Vec::new()),
        _ => {
            let found = function(r, logits)?;
            let &[product] = &found.variables[..] else { return None };
            (product, Some(found.function), [found.inner, vec![logits]].concat())
        }
    };
    let (&Operation::Linear { weight, bias }, &[rows]) = (r.operation(product), r.inputs(product)) else {
        return None;
    };
    found.push(product);
    Some((Head { rows, weight, bias, function, logit_scale: 1.0, logit_cap: None }, found))
}
