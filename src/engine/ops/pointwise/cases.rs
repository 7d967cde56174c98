//! Test cases of functions of rows and vectors.

use super::operand::Operand;
use crate::expression::{Formula, Function, Operator, Tree};
use crate::ir::{Array, Case, Fill, Op, Precision, Spec};

const WHOLE: Operand = Operand { input: 0, from: 0, per_head: true, per_element: true };

/// Returns a variable of input `input`.
fn variable(input: usize, from: usize, per_head: bool, per_element: bool) -> Operand {
    Operand { input, from, per_head, per_element }
}

/// Returns `v0 · σ(v1) + v2 · v3 …` of this many variables: every slope depends on other variables.
fn mixed(variables: usize) -> Tree {
    let v = |index: usize| Box::new(Tree::Variable(index));
    let gated = |index: usize| Tree::Call(Function::Sigmoid, vec![Tree::Variable(index)]);
    let mut sum = Tree::Variable(0);
    for index in 1..variables {
        let product = match index % 2 {
            1 => Tree::Operation(Operator::Multiply, v(index - 1), gated(index).into()),
            _ => Tree::Operation(Operator::Multiply, v(index - 1), v(index)),
        };
        sum = Tree::Operation(Operator::Add, sum.into(), product.into());
    }
    sum
}

/// The width of an input's rows, or the length of a vector.
#[derive(Clone, Copy)]
enum Input {
    Rows(usize),
    Vector(usize),
}

/// Returns the cases of the op that `new` makes of a function, its operands, heads and their width.
pub(super) fn cases<O: Op>(
    precision: Precision,
    new: impl Fn(&Formula, Vec<Operand>, usize, usize) -> O,
) -> Vec<Case> {
    use Input::{Rows, Vector};
    let case =
        |name: &str, rows: usize, inputs: &[Input], operands: &[Operand], (heads, width): (usize, usize)| {
            let formula = Formula::from_tree(mixed(operands.len()), operands.len());
            let op = new(&formula, operands.to_vec(), heads, width);
            let specs = inputs.iter().map(|input| match *input {
                Rows(width) => Spec::new([rows, width], precision.act_dtype),
                Vector(length) => Spec::new([length], precision.master),
            });
            let inputs_of_case = specs.map(|spec| (spec, Fill::Normal(0.2, 0.8))).collect();
            let vectors: Vec<usize> = (0..inputs.len()).filter(|&i| matches!(inputs[i], Vector(_))).collect();
            let operands = operands.to_vec();
            let is_vector: Vec<bool> = inputs.iter().map(|input| matches!(input, Vector(_))).collect();
            Case::new(
                format!("n{rows} h{heads} w{width} {name}"),
                op,
                inputs_of_case,
                move |inputs: &[Array]| {
                    let mut y = Array::zeros(&[rows, heads * width]);
                    for (at, y) in y.data.iter_mut().enumerate() {
                        let (row, head, column) = (at / (heads * width), at / width % heads, at % width);
                        let values = operands.iter().map(|o| {
                            let own = if o.per_element { width } else { 1 };
                            let within = if o.per_head { head * own } else { 0 }
                                + if o.per_element { column } else { 0 };
                            let of = &inputs[o.input];
                            let start = if is_vector[o.input] { 0 } else { row * of.width() };
                            of.data[start + o.from + within]
                        });
                        *y = formula.value(&values.collect::<Vec<f64>>());
                    }
                    vec![y]
                },
            )
            .weights(&vectors)
            .depth(if vectors.is_empty() { width } else { rows * heads * width })
        };
    vec![
        case("two rows", 17, &[Rows(96), Rows(96)], &[WHOLE, variable(1, 0, true, true)], (1, 96)),
        case("a vector", 255, &[Rows(64), Vector(64)], &[WHOLE, variable(1, 0, true, true)], (1, 64)),
        case("an odd vector", 33, &[Rows(13), Vector(13)], &[WHOLE, variable(1, 0, false, true)], (1, 13)),
        case(
            "two scalars",
            65,
            &[Rows(40), Vector(1), Rows(40), Vector(1)],
            &[WHOLE, variable(1, 0, false, false), variable(2, 0, true, true), variable(3, 0, false, false)],
            (1, 40),
        ),
        case("a gate per head", 17, &[Rows(6 * 32), Rows(6)], &[WHOLE, variable(1, 0, true, false)], (6, 32)),
        case(
            "a gate per row, and a wide row",
            3,
            &[Rows(4608), Rows(1), Vector(4608)],
            &[WHOLE, variable(1, 0, true, false), variable(2, 0, true, true)],
            (1, 4608),
        ),
        case(
            "vectors of heads",
            29,
            &[Rows(4 * 24), Vector(4), Vector(24)],
            &[WHOLE, variable(1, 0, true, false), variable(2, 0, false, true)],
            (4, 24),
        ),
        case(
            "parts of one row, and of one vector",
            20,
            &[Rows(3 * 16), Vector(40)],
            &[
                variable(0, 16, true, true),
                variable(0, 0, true, true),
                variable(1, 8, true, true),
                variable(0, 32, true, true),
                variable(1, 24, true, true),
            ],
            (1, 16),
        ),
        case(
            "gates beside their rows",
            9,
            &[Rows(2 * 8 + 2)],
            &[WHOLE, variable(0, 16, true, false)],
            (2, 8),
        ),
    ]
}
