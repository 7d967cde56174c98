//! Computes a graph value by value as its text is written, in f64 and by definition: what programs are
//! compared with. It shares no code with ops and rewrites but the frequencies of rotations.

use crate::data::Batch;
use crate::error::{Error, Result};
use crate::expression::{Formula, Operator, Scope, Tree};
use crate::model::recording::rotary_of;
use crate::model_text::{Elementwise, Graph, Node, Norm, NormKind, Operation, Reduction, Shape};
use crate::plan::Model;
use crate::policy::OrFormula;

/// The tokens of sequences of one length, and what tells their documents apart.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Tokens, positions, and the spans of keys that rows see, `[start, end)` in their sequence.
    pub batch: &'a Batch,
    /// Tokens in a sequence.
    pub seq_len: usize,
}

/// Computes all values of a graph, in its order, and calls `visit` for each with its operation's index.
/// `parameters` has the elements of every parameter, without padding.
///
/// # Errors
/// If a parameter has another number of elements, or the text has an operation that no program computes.
pub fn interpret(
    m: &Model,
    graph: &Graph,
    parameters: &[Vec<f64>],
    tokens: Tokens<'_>,
    visit: &mut dyn FnMut(usize, &[f64]),
) -> Result<()> {
    let fits = |(known, values): (&crate::model_text::Parameter, &Vec<f64>)| known.elements() == values.len();
    if !graph.parameters.iter().zip(parameters).all(fits) || graph.parameters.len() != parameters.len() {
        return Err(Error::failed("the parameters are not those of the text"));
    }
    let mut interpreter =
        Interpreter { m, graph, parameters, tokens, values: vec![Vec::new(); graph.nodes.len()] };
    for (index, node) in graph.nodes.iter().enumerate() {
        let values = interpreter.compute(node)?;
        visit(index, &values);
        interpreter.values[index] = values;
    }
    Ok(())
}

struct Interpreter<'a> {
    m: &'a Model,
    graph: &'a Graph,
    parameters: &'a [Vec<f64>],
    tokens: Tokens<'a>,
    values: Vec<Vec<f64>>,
}

/// A value with its shape.
#[derive(Clone, Copy)]
struct Value<'a> {
    shape: Shape,
    values: &'a [f64],
}

impl Value<'_> {
    /// Returns an element, which rows, heads or a whole head may share.
    fn at(self, row: usize, head: usize, element: usize) -> f64 {
        let Shape { rows, heads, width } = self.shape;
        let start = if rows { row * heads * width } else { 0 };
        let head = if heads == 1 { 0 } else { head };
        self.values[start + head * width + if width == 1 { 0 } else { element }]
    }
}

impl<'a> Interpreter<'a> {
    fn row_count(&self) -> usize {
        self.tokens.batch.tokens.len()
    }

    fn input(&self, node: &Node, index: usize) -> Value<'_> {
        let input = node.inputs[index];
        Value { shape: self.graph.nodes[input].shape, values: &self.values[input] }
    }

    /// Computes every element of a value from its row, head and place in the head.
    fn each(&self, shape: Shape, element: impl Fn(usize, usize, usize) -> f64) -> Vec<f64> {
        let rows = if shape.rows { self.row_count() } else { 1 };
        let heads = (0..rows).flat_map(|row| (0..shape.heads).map(move |head| (row, head)));
        heads
            .flat_map(|(row, head)| (0..shape.width).map(move |i| (row, head, i)))
            .map(|(row, head, i)| element(row, head, i))
            .collect()
    }

    /// Returns the heads of an input, each as a list.
    fn heads(&self, node: &Node, index: usize) -> Vec<Vec<f64>> {
        let input = self.input(node, index);
        input.values.chunks(input.shape.width).map(<[f64]>::to_vec).collect()
    }

    fn compute(&self, node: &Node) -> Result<Vec<f64>> {
        let (shape, batch) = (node.shape, self.tokens.batch);
        Ok(match &node.operation {
            Operation::Embedding { table, positions } => {
                let ids = if *positions { &batch.positions } else { &batch.tokens };
                let table = &self.parameters[*table];
                self.each(shape, |row, _, i| table[ids[row] as usize * shape.width + i])
            }
            Operation::Linear { weight, bias } => {
                let (x, weight) = (self.input(node, 0), &self.parameters[*weight]);
                let inputs = x.shape.elements();
                let bias = bias.map(|bias| &self.parameters[bias]);
                self.each(shape, |row, head, i| {
                    let output = head * shape.width + i;
                    let row = &x.values[row * inputs..][..inputs];
                    let product = row.iter().zip(&weight[output * inputs..]).map(|(x, w)| x * w);
                    product.sum::<f64>() + bias.map_or(0.0, |bias| bias[output])
                })
            }
            Operation::Norm(norm) => self.norm(node, norm),
            Operation::Rope { theta, width, reversed } => self.rotated(node, (*theta, *width, *reversed))?,
            Operation::Attention { .. } => self.attention(node),
            Operation::Shift(by) => {
                let x = self.input(node, 0);
                self.each(shape, |row, head, i| match batch.positions[row] as usize >= *by {
                    true => x.at(row - by, head, i),
                    false => 0.0,
                })
            }
            Operation::Dropout(_) | Operation::Heads => self.input(node, 0).values.to_vec(),
            Operation::Slice { from, .. } => {
                let x = self.input(node, 0);
                self.each(shape, |row, head, i| x.at(row, head, from + i))
            }
            Operation::Concat => self.each(shape, |row, head, i| {
                let mut rest = i;
                for index in 0..node.inputs.len() {
                    let part = self.input(node, index);
                    if rest < part.shape.width {
                        return part.at(row, head, rest);
                    }
                    rest -= part.shape.width;
                }
                f64::NAN
            }),
            Operation::Reduce(reduction) => {
                let x = self.input(node, 0);
                self.each(shape, |row, head, _| {
                    let sum: f64 = (0..x.shape.width).map(|i| x.at(row, head, i)).sum();
                    match reduction {
                        Reduction::Sum => sum,
                        Reduction::Mean => sum / x.shape.width as f64,
                    }
                })
            }
            Operation::Vector(parameter) => self.parameters[*parameter].clone(),
            Operation::Constant(number) => vec![*number],
            Operation::Elementwise(function) => {
                let exponent = match (function, node.inputs.last().map(|&input| &self.graph.nodes[input])) {
                    (Elementwise::Power, Some(Node { operation: Operation::Constant(number), .. })) => {
                        Some(*number)
                    }
                    _ => None,
                };
                self.function(node, &function_of(*function, exponent))
            }
            Operation::Activation => {
                let formula = match &self.m.activation {
                    OrFormula::Formula(formula) => formula.clone(),
                    OrFormula::Word(word) => Formula::parse(word.as_formula(), Scope::Activation)
                        .map_err(|e| Error::failed(format!("{word}: {}", e.label)))?,
                };
                self.function(node, &|arguments| formula.value(arguments))
            }
        })
    }

    fn function(&self, node: &Node, function: &dyn Fn(&[f64]) -> f64) -> Vec<f64> {
        self.each(node.shape, |row, head, i| {
            let arguments = (0..node.inputs.len()).map(|index| self.input(node, index).at(row, head, i));
            function(&arguments.collect::<Vec<f64>>())
        })
    }

    fn norm(&self, node: &Node, norm: &Norm) -> Vec<f64> {
        let vector = |parameter: Option<usize>| parameter.map(|parameter| &self.parameters[parameter]);
        let (weight, bias) = (vector(norm.weight), vector(norm.bias));
        let mut heads = self.heads(node, 0);
        for head in &mut heads {
            let width = head.len() as f64;
            if norm.kind == NormKind::Layer {
                let mean = head.iter().sum::<f64>() / width;
                head.iter_mut().for_each(|x| *x -= mean);
            }
            let square = head.iter().map(|x| x * x).sum::<f64>() / width;
            for (i, x) in head.iter_mut().enumerate() {
                *x *= weight.map_or(1.0, |weight| weight[i]) / (square + norm.eps).sqrt();
                *x += bias.map_or(0.0, |bias| bias[i]);
            }
        }
        heads.concat()
    }

    fn rotated(&self, node: &Node, (theta, width, reversed): (f64, usize, bool)) -> Result<Vec<f64>> {
        let rotary = rotary_of(self.m, theta, width, reversed)?;
        let (frequencies, factor) = (rotary.frequencies(), rotary.cos_sin_factor());
        let sign = if reversed { -1.0 } else { 1.0 };
        let mut heads = self.heads(node, 0);
        for (index, head) in heads.iter_mut().enumerate() {
            let position = f64::from(self.tokens.batch.positions[index / node.shape.heads]);
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sine, cosine) = (sign * position * frequency).sin_cos();
                let (low, high) = (head[pair], head[pair + width / 2]);
                head[pair] = factor * (low * cosine - high * sine);
                head[pair + width / 2] = factor * (high * cosine + low * sine);
            }
        }
        Ok(heads.concat())
    }

    fn attention(&self, node: &Node) -> Vec<f64> {
        let Operation::Attention { window, cap, scale, .. } = node.operation else { return Vec::new() };
        let [query, key, value] = [0, 1, 2].map(|index| self.input(node, index));
        let sinks = (node.inputs.len() > 3).then(|| self.input(node, 3));
        let (seq_len, spans) = (self.tokens.seq_len, &self.tokens.batch.spans);
        let group = query.shape.heads / key.shape.heads;
        let mut out = Vec::with_capacity(self.row_count() * node.shape.elements());
        for row in 0..self.row_count() {
            let (sequence, own) = (row / seq_len * seq_len, row % seq_len);
            let seen = window.map_or(0, |window| (own + 1).saturating_sub(window));
            let keys = seen.max(spans[2 * row] as usize)..=own;
            for head in 0..node.shape.heads {
                let of_keys = head / group;
                let score = |at: usize| {
                    let product = |i| query.at(row, head, i) * key.at(sequence + at, of_keys, i);
                    let score = scale * (0..query.shape.width).map(product).sum::<f64>();
                    cap.map_or(score, |cap| cap * (score / cap).tanh())
                };
                let scores: Vec<f64> = keys.clone().map(score).collect();
                let sink = sinks.as_ref().map(|sinks| sinks.at(row, 0, head));
                let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let shares: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let of_sink = sink.map_or(0.0, |sink| (sink - most).exp());
                let total = shares.iter().sum::<f64>() + of_sink;
                out.extend((0..value.shape.width).map(|i| {
                    let parts = keys.clone().zip(&shares);
                    parts.map(|(at, share)| share / total * value.at(sequence + at, of_keys, i)).sum::<f64>()
                }));
            }
        }
        out
    }
}

/// A function of numbers.
type NumberFn = Box<dyn Fn(&[f64]) -> f64>;

/// Returns a function of numbers. An exponent that is the same for all elements is given.
fn function_of(function: Elementwise, exponent: Option<f64>) -> NumberFn {
    let of_tree = |tree: Tree, count: usize| -> NumberFn {
        let formula = Formula::from_tree(tree, count);
        Box::new(move |u| formula.value(&u[..count]))
    };
    let power = |exponent: Tree| Tree::Operation(Operator::Power, Tree::Variable(0).into(), exponent.into());
    match function {
        Elementwise::Negate => Box::new(|u| -u[0]),
        Elementwise::Add => Box::new(|u| u[0] + u[1]),
        Elementwise::Subtract => Box::new(|u| u[0] - u[1]),
        Elementwise::Multiply => Box::new(|u| u[0] * u[1]),
        Elementwise::Divide => Box::new(|u| u[0] / u[1]),
        Elementwise::Power => match exponent {
            Some(exponent) => of_tree(power(Tree::number(exponent)), 1),
            None => of_tree(power(Tree::Variable(1)), 2),
        },
        Elementwise::Function(function) => {
            let count = function.arguments().len();
            of_tree(Tree::Call(function, (0..count).map(Tree::Variable).collect()), count)
        }
    }
}
