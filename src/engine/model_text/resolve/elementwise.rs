//! Operators and element-wise functions, of numbers and of tensors.

use super::Resolver;
use super::value::Value;
use crate::expression::{Function, number, power};
use crate::model_text::graph::{Elementwise, MAX_WIDTH, Operation, Shape};
use crate::model_text::mistake::{Mistake, fail};
use crate::model_text::tree::Operator;
use crate::suggest::nearest;
use std::ops::Range;

impl Resolver<'_> {
    pub(super) fn negative(&mut self, value: Value, at: &Range<usize>) -> Result<Value, Mistake> {
        match value {
            Value::Number(number) => Ok(Value::Number(-number)),
            value => self.elementwise(Elementwise::Negate, vec![value], at),
        }
    }

    /// Applies an operator other than `and` and `or`.
    pub(super) fn operation(
        &mut self,
        operator: Operator,
        values: [Value; 2],
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        if let Operator::Equal | Operator::NotEqual = operator {
            return Ok(Value::Bool(self.equal(&values, at)? == (operator == Operator::Equal)));
        }
        if let [Value::Number(u), Value::Number(v)] = values {
            return apply_to_numbers(operator, u, v, at);
        }
        let function = match operator {
            Operator::Add => Elementwise::Add,
            Operator::Subtract => Elementwise::Subtract,
            Operator::Multiply => Elementwise::Multiply,
            Operator::Divide => Elementwise::Divide,
            Operator::Power => Elementwise::Power,
            _ => {
                let other = values.iter().find(|value| !matches!(value, Value::Number(_)));
                let described = other.map_or_else(String::new, |other| self.described(other));
                return fail(at, format!("{} of {described}", operator.word()), "compares numbers only");
            }
        };
        // A factor of 1 changes no bit.
        match (function, values) {
            (Elementwise::Multiply, [Value::Number(1.0), value @ Value::Tensor(_)])
            | (Elementwise::Multiply | Elementwise::Divide, [value @ Value::Tensor(_), Value::Number(1.0)]) => {
                Ok(value)
            }
            (function, values) => self.elementwise(function, values.into(), at),
        }
    }

    fn equal(&self, values: &[Value; 2], at: &Range<usize>) -> Result<bool, Mistake> {
        match values {
            [Value::Number(u), Value::Number(v)] => Ok(u == v),
            [Value::Bool(u), Value::Bool(v)] => Ok(u == v),
            [Value::Word(u, of), Value::Word(v, or_of)] => {
                for (word, words) in [(v, of), (u, or_of)] {
                    if !words.is_empty() && !words.contains(&&**word) {
                        let help = match nearest(word, words.iter().copied()) {
                            Some(near) => format!("did you mean \"{near}\"?"),
                            None => format!("the key is one of {}", words.join(", ")),
                        };
                        return fail(at, format!("the key is never \"{word}\""), help);
                    }
                }
                Ok(u == v)
            }
            [Value::None, Value::None] => Ok(true),
            [Value::None, Value::Number(_) | Value::Word(..) | Value::Bool(_)]
            | [Value::Number(_) | Value::Word(..) | Value::Bool(_), Value::None] => Ok(false),
            [left, right] => {
                let label = format!("{} beside {}", self.described(left), self.described(right));
                fail(at, label, "numbers, words, true, false and none can be compared")
            }
        }
    }

    /// Calls a function of formulas.
    pub(super) fn function(
        &mut self,
        function: Function,
        values: Vec<Value>,
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        if values.len() != function.arguments().len() {
            let label = format!("{} of {} arguments", values.len(), function.arguments().len());
            return fail(at, label, format!("write {}", function.call()));
        }
        let number = |value: &Value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        };
        match values.iter().map(number).collect::<Option<Vec<f64>>>() {
            Some(numbers) => in_range(function.evaluate(&numbers), at),
            None => self.elementwise(Elementwise::Function(function), values, at),
        }
    }

    /// Adds an operation on the elements of values, at least one of them a tensor.
    fn elementwise(
        &mut self,
        function: Elementwise,
        values: Vec<Value>,
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        let mut inputs = Vec::with_capacity(values.len());
        for value in values {
            inputs.push(self.tensor_or_number(value, at)?);
        }
        let shapes: Vec<Shape> = inputs.iter().map(|&input| self.shape(input)).collect();
        let mut shape = shapes[0];
        for &other in &shapes[1..] {
            let Some(joined) = broadcast(shape, other) else {
                let help = "widths and numbers of heads must be equal, or 1; heads(x, n) divides a row";
                return fail(at, format!("{shape} beside {other}"), help);
            };
            shape = joined;
        }
        if shape.heads.saturating_mul(shape.width) > MAX_WIDTH {
            return fail(at, shape.to_string(), format!("a row has at most {MAX_WIDTH} elements"));
        }
        self.node(Operation::Elementwise(function), inputs, shape, at)
    }

    /// Returns the tensor that a value is, or one with a number in it.
    fn tensor_or_number(&mut self, value: Value, at: &Range<usize>) -> Result<usize, Mistake> {
        let shape = Shape { rows: false, heads: 1, width: 1 };
        let value = match value {
            Value::Number(number) => self.node(Operation::Constant(number), Vec::new(), shape, at)?,
            value => value,
        };
        match value {
            Value::Tensor(tensor) => Ok(tensor),
            Value::Tokens | Value::Positions => {
                let help = "embedding(tokens, dim) gives a row for each token";
                fail(at, format!("computes with {}", self.described(&value)), help)
            }
            other => {
                let help = "rows, trained vectors and numbers can be computed with";
                fail(at, format!("computes with {}", self.described(&other)), help)
            }
        }
    }
}

/// Returns the shape of an operation on two values, if they fit.
pub(super) fn broadcast(a: Shape, b: Shape) -> Option<Shape> {
    let common = |a: usize, b: usize| match (a, b) {
        (a, b) if a == b => Some(a),
        (1, other) | (other, 1) => Some(other),
        _ => None,
    };
    Some(Shape { rows: a.rows || b.rows, heads: common(a.heads, b.heads)?, width: common(a.width, b.width)? })
}

fn apply_to_numbers(operator: Operator, u: f64, v: f64, at: &Range<usize>) -> Result<Value, Mistake> {
    let value = match operator {
        Operator::Less => return Ok(Value::Bool(u < v)),
        Operator::LessEqual => return Ok(Value::Bool(u <= v)),
        Operator::Greater => return Ok(Value::Bool(u > v)),
        Operator::GreaterEqual => return Ok(Value::Bool(u >= v)),
        Operator::Add => u + v,
        Operator::Subtract => u - v,
        Operator::Multiply => u * v,
        Operator::Divide => u / v,
        // With the sign of the divisor, as in mathematics and Python.
        Operator::Remainder => u - v * (u / v).floor(),
        Operator::Power => power(u, v),
        Operator::Or | Operator::And | Operator::Equal | Operator::NotEqual => {
            return fail(at, "not of numbers", "write a comparison");
        }
    };
    in_range(value, at)
}

fn in_range(value: f64, at: &Range<usize>) -> Result<Value, Mistake> {
    match number::range_error(value) {
        Some(fault) => fail(at, fault, "kernels compute in fp32"),
        None => Ok(Value::Number(value)),
    }
}
