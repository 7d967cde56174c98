//! The calls of functions.

use super::Resolver;
use super::arguments::Arguments;
use super::elementwise::broadcast;
use super::value::Value;
use crate::expression::Function;
use crate::model_text::dropout::rounded_dropout;
use crate::model_text::functions::{Call, Signature, unknown_function};
use crate::model_text::graph::{
    Initial, MAX_WIDTH, Norm, NormKind, Operation, ParameterKind, Reduction, Shape,
};
use crate::model_text::mistake::{Mistake, fail};
use crate::model_text::tree::CallArgument;
use crate::suggest::nearest;
use std::ops::Range;

/// Most tokens by which `shift` moves rows; generation keeps so many rows.
pub const MAX_SHIFT: usize = 64;

/// Numbers above 0.
const POSITIVE: (fn(f64) -> bool, &str) = (|value| value > 0.0, "a number above 0");

/// Probabilities below 1.
const PROBABILITY: (fn(f64) -> bool, &str) =
    (|value| (0.0..1.0).contains(&value), "a probability from 0 to below 1");

/// Refuses a rate of dropout that would be rounded to a clearly different one.
fn check_dropout(rate: f64, at: &Range<usize>) -> Result<(), Mistake> {
    match rounded_dropout(rate) {
        Some(rounded) => {
            let help = "an element is dropped by 16 random bits; take a rate farther from 0 and 1";
            fail(at, format!("the rate {rate:?} would become {rounded:?}"), help)
        }
        None => Ok(()),
    }
}

impl<'a> Resolver<'a> {
    /// Calls a function.
    pub(super) fn call(
        &mut self,
        name: &str,
        name_at: &Range<usize>,
        arguments: &'a [CallArgument],
        at: &Range<usize>,
    ) -> Result<Value, Mistake> {
        if let Some(signature) = Signature::find(name) {
            let arguments = Arguments::new(signature, arguments, at.clone())?;
            let has_parameters = signature.arguments.iter().any(|argument| argument.name == "name");
            self.nesting += usize::from(has_parameters);
            let value = self.own_function(&arguments)?;
            self.nesting -= usize::from(has_parameters);
            return Ok(value);
        }
        let Some(function) = Function::from_name(name) else {
            return fail(name_at, "unknown function", unknown_function(name));
        };
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            if let Some((_, at)) = &argument.name {
                return fail(at, format!("no argument of {name}"), format!("write {}", function.call()));
            }
            values.push(self.evaluate(&argument.value)?);
        }
        self.function(function, values, at)
    }

    fn own_function(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        match call.signature.call {
            Call::Embedding => self.embedding(call),
            Call::Linear => self.linear(call),
            Call::RmsNorm => {
                let weight = self.flag(call, "weight", true)?;
                self.norm(call, NormKind::Rms, weight, false)
            }
            Call::LayerNorm => {
                let weight = self.flag(call, "weight", true)?;
                let bias = self.flag(call, "bias", weight)?;
                self.norm(call, NormKind::Layer, weight, bias)
            }
            Call::Norm => self.norm_of_keys(call),
            Call::Rope => self.rope(call),
            Call::Attention => self.attention(call),
            Call::Heads => self.heads(call),
            Call::Slice => self.slice(call),
            Call::Concat => self.concat(call),
            Call::Shift => self.shift(call),
            Call::Dropout => self.dropout(call),
            Call::Activation => self.activation(call),
            Call::Sum => self.reduce(call, Reduction::Sum),
            Call::Mean => self.reduce(call, Reduction::Mean),
            Call::Scalar => self.vector(call, 1),
            Call::Vector => {
                let width = self.width(call.all("width")[0])?;
                self.vector(call, width)
            }
            Call::Normal => match self.number(call, "std", (|std| std >= 0.0, "a number from 0 on"))? {
                Some(std) => Ok(Value::Initial(Initial::Normal(std))),
                None => fail(&call.at, "no standard deviation", "write normal(0.02)"),
            },
            Call::Floor => self.rounded(call, f64::floor),
            Call::Ceil => self.rounded(call, f64::ceil),
        }
    }

    fn embedding(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let ids = call.all("ids")[0];
        let (kind, rows) = match self.evaluate(ids)? {
            Value::Tokens => (ParameterKind::Tokens, "vocab_size"),
            Value::Positions => (ParameterKind::Positions, "seq_len"),
            other => return fail(&ids.at, self.described(&other), "write tokens or positions"),
        };
        let width = self.width(call.all("width")[0])?;
        let rows = self.keys.named(rows).unwrap_or(0.0) as usize;
        let attributes = self.attributes(call)?;
        let table = self.parameter(kind, vec![rows, width], Vec::new(), attributes)?;
        let operation = Operation::Embedding { table, positions: kind == ParameterKind::Positions };
        self.node(operation, Vec::new(), Shape { rows: true, heads: 1, width }, &call.at)
    }

    fn linear(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let (x, shape) = self.rows(call, "x")?;
        let mut widths = Vec::new();
        for expression in call.all("width") {
            widths.push(self.width(expression)?);
        }
        let stack = match self.optional(call, "stack")? {
            None => 1,
            Some((value, at)) => self.whole_value(value, &at, 1..=MAX_WIDTH)?,
        };
        if stack > 1 && widths.len() > 1 {
            let help = "give one width with stack, or several widths";
            return fail(&call.at, "several widths and a stack", help);
        }
        let width = widths.iter().sum::<usize>().saturating_mul(stack);
        if width > MAX_WIDTH {
            return fail(
                &call.at,
                format!("{width} wide"),
                format!("a row has at most {MAX_WIDTH} elements"),
            );
        }
        let inputs = shape.elements();
        let has_bias = self.flag(call, "bias", false)?;
        let outputs = if stack > 1 { vec![stack, widths[0]] } else { vec![width] };
        let stacked = if widths.len() > 1 { widths } else { Vec::new() };
        let matrix = [outputs.as_slice(), &[inputs]].concat();
        let attributes = self.attributes(call)?;
        let weight = match self.optional(call, "weight")? {
            None => self.parameter(ParameterKind::Matrix, matrix, stacked, attributes.clone())?,
            Some((value, at)) => self.shared_weight(call, value, &at, &matrix)?,
        };
        let bias = match has_bias {
            true => {
                let attributes = attributes.beside("_bias");
                Some(self.parameter(ParameterKind::Bias, outputs, Vec::new(), attributes)?)
            }
            false => None,
        };
        let operation = Operation::Linear { weight, bias };
        self.node(operation, vec![x], Shape { rows: true, heads: 1, width }, &call.at)
    }

    /// Returns the parameter of the part `embed` that a product shares.
    fn shared_weight(
        &self,
        call: &Arguments<'a>,
        value: Value,
        at: &Range<usize>,
        matrix: &[usize],
    ) -> Result<usize, Mistake> {
        for attribute in ["init", "role", "decay", "name"] {
            if let Some(expression) = call.one(attribute) {
                let help = "the parameter has the attributes that the part embed gives it";
                return fail(&expression.at, "the weight is another parameter's", help);
            }
        }
        let Value::Word(name, _) = &value else {
            return fail(at, self.described(&value), "the name of a parameter of the part embed, in quotes");
        };
        let is_wanted = |p: &crate::model_text::Parameter| p.name == **name && p.block.is_none();
        let Some(index) = self.parameters.iter().position(is_wanted) else {
            let names = self.parameters.iter().filter(|p| p.block.is_none()).map(|p| p.name.as_str());
            let help = match nearest(name, names) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => "a parameter of the part embed can be shared, such as \"embedding\"".to_owned(),
            };
            return fail(at, "no parameter of the part embed", help);
        };
        let shape = &self.parameters[index].shape;
        if shape != matrix {
            let label = format!("{name} is {shape:?}, and the product needs {matrix:?}");
            return fail(at, label, "outputs come first; take the width of its rows");
        }
        Ok(index)
    }

    fn norm_of_keys(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let flag = |resolver: &Self, key| {
            resolver.key(key, &call.at).map(|value| matches!(value, Value::Bool(true)))
        };
        let (weight, bias) = (flag(self, "norm_weight")?, flag(self, "norm_bias")?);
        let kind = match self.key("norm", &call.at)? {
            Value::Word(word, _) if &*word == "layer_norm" => NormKind::Layer,
            _ => NormKind::Rms,
        };
        self.norm(call, kind, weight, bias)
    }

    fn norm(
        &mut self,
        call: &Arguments<'a>,
        kind: NormKind,
        has_weight: bool,
        has_bias: bool,
    ) -> Result<Value, Mistake> {
        if has_bias && !has_weight {
            return fail(&call.at, "a bias without a weight", "set weight = true, or bias = false");
        }
        let (x, shape) = self.rows(call, "x")?;
        let eps = match self.number(call, "eps", POSITIVE)? {
            Some(eps) => eps,
            None => self.keys.named("norm_eps").unwrap_or(0.0),
        };
        let attributes = self.attributes(call)?;
        let mut vector = |exists: bool, attributes| match exists {
            true => {
                self.parameter(ParameterKind::Vector, vec![shape.width], Vec::new(), attributes).map(Some)
            }
            false => Ok(None),
        };
        // The gradient of the weight is complete first.
        let bias = vector(
            has_bias,
            super::parameters::Attributes { initial: Initial::Constant(0.0), ..attributes.beside("_bias") },
        )?;
        let initial = Initial::Constant(1.0);
        let weight = vector(has_weight, super::parameters::Attributes { initial, ..attributes })?;
        self.node(Operation::Norm(Norm { kind, eps, weight, bias }), vec![x], shape, &call.at)
    }

    fn rope(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let (x, shape) = self.rows(call, "x")?;
        let number_of_key = |resolver: &Self, key| match resolver.key(key, &call.at)? {
            Value::Number(number) => Ok(number),
            other => fail(&call.at, format!("model.{key} is {}", resolver.described(&other)), ""),
        };
        let theta = match self.number(call, "theta", (|theta| theta >= 1.0, "a number from 1 on"))? {
            Some(theta) => theta,
            None => number_of_key(self, "rope_theta")?,
        };
        let (width, width_at) = match self.optional(call, "width")? {
            Some((value, at)) => (self.whole_value(value, &at, 2..=shape.width)?, at),
            None => ((number_of_key(self, "rope_fraction")? * shape.width as f64) as usize, call.at.clone()),
        };
        if width == 0 || !width.is_multiple_of(2) {
            let help = format!("pairs of elements are rotated, of a head of {}", shape.width);
            return fail(&width_at, format!("rotates {width} elements"), help);
        }
        let negative =
            matches!(self.key("rope_direction", &call.at)?, Value::Word(word, _) if &*word == "negative");
        let reversed = self.flag(call, "reversed", negative)?;
        self.node(Operation::Rope { theta, width, reversed }, vec![x], shape, &call.at)
    }

    fn attention(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let ((q, q_shape), (k, k_shape), (v, v_shape)) =
            (self.rows(call, "q")?, self.rows(call, "k")?, self.rows(call, "v")?);
        if k_shape.width != q_shape.width {
            let label = format!("queries in {q_shape}, and keys in {k_shape}");
            return fail(&call.at, label, "heads of queries and keys are equally wide");
        }
        if k_shape.heads != v_shape.heads || !q_shape.heads.is_multiple_of(k_shape.heads) {
            let label = format!(
                "{} heads of queries, {} of keys, {} of values",
                q_shape.heads, k_shape.heads, v_shape.heads
            );
            let help = "there are as many heads of keys as of values, and a multiple of them of queries";
            return fail(&call.at, label, help);
        }
        let window = match self.optional(call, "window")? {
            None => None,
            Some((value, at)) => Some(self.whole_value(value, &at, 1..=1 << 20)?),
        };
        let cap = self.number(call, "cap", POSITIVE)?;
        let scale = self.number(call, "scale", POSITIVE)?;
        let scale = scale.unwrap_or_else(|| 1.0 / (q_shape.width as f64).sqrt());
        let dropout = self.number(call, "dropout", PROBABILITY)?.unwrap_or(0.0);
        check_dropout(dropout, &call.at)?;
        let mut inputs = vec![q, k, v];
        if let Some((value, at)) = self.optional(call, "sinks")? {
            match value {
                Value::Tensor(sinks)
                    if self.shape(sinks) == (Shape { rows: false, heads: 1, width: q_shape.heads }) =>
                {
                    inputs.push(sinks);
                }
                other => {
                    let help =
                        format!("a vector with a number for each of {} heads is expected", q_shape.heads);
                    return fail(&at, self.described(&other), help);
                }
            }
        }
        let shape = Shape { width: v_shape.width, ..q_shape };
        self.node(Operation::Attention { window, cap, scale, dropout }, inputs, shape, &call.at)
    }

    fn heads(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let x = self.tensor(call.all("x")[0])?;
        let (shape, n) = (self.shape(x), call.all("n")[0]);
        let heads = self.whole(n, 1..=MAX_WIDTH)?;
        if !shape.elements().is_multiple_of(heads) {
            let label = format!("{} elements in {heads} heads", shape.elements());
            return fail(&n.at, label, "the number of heads divides the number of elements");
        }
        if heads == shape.heads {
            return Ok(Value::Tensor(x));
        }
        let shape = Shape { heads, width: shape.elements() / heads, ..shape };
        self.node(Operation::Heads, vec![x], shape, &call.at)
    }

    fn slice(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let x = self.tensor(call.all("x")[0])?;
        let shape = self.shape(x);
        let from = self.whole(call.all("from")[0], 0..=shape.width - 1)?;
        let to = self.whole(call.all("to")[0], from + 1..=shape.width)?;
        if to - from == shape.width {
            return Ok(Value::Tensor(x));
        }
        self.node(Operation::Slice { from, to }, vec![x], Shape { width: to - from, ..shape }, &call.at)
    }

    fn concat(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let mut inputs = Vec::new();
        for expression in call.all("x") {
            inputs.push(self.tensor(expression)?);
        }
        let mut shape = self.shape(inputs[0]);
        for &input in &inputs[1..] {
            let other = self.shape(input);
            let width = shape.width + other.width;
            let Some(joined) = broadcast(Shape { width: 1, ..shape }, Shape { width: 1, ..other }) else {
                let help = "numbers of heads must be equal, or 1";
                return fail(&call.at, format!("{shape} beside {other}"), help);
            };
            shape = Shape { width, ..joined };
        }
        if shape.heads.saturating_mul(shape.width) > MAX_WIDTH {
            return fail(&call.at, shape.to_string(), format!("a row has at most {MAX_WIDTH} elements"));
        }
        match inputs[..] {
            [only] => Ok(Value::Tensor(only)),
            _ => self.node(Operation::Concat, inputs, shape, &call.at),
        }
    }

    fn shift(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let (x, shape) = self.rows(call, "x")?;
        match self.whole(call.all("n")[0], 0..=MAX_SHIFT)? {
            0 => Ok(Value::Tensor(x)),
            n => self.node(Operation::Shift(n), vec![x], shape, &call.at),
        }
    }

    fn dropout(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let (x, shape) = self.rows(call, "x")?;
        let p = match (self.number(call, "p", PROBABILITY)?, self.key("dropout", &call.at)?) {
            (Some(p), _) | (None, Value::Number(p)) => p,
            (None, _) => 0.0,
        };
        if p == 0.0 {
            return Ok(Value::Tensor(x));
        }
        check_dropout(p, &call.at)?;
        self.node(Operation::Dropout(p), vec![x], shape, &call.at)
    }

    fn activation(&mut self, call: &Arguments<'a>) -> Result<Value, Mistake> {
        let mut inputs = vec![self.tensor(call.all("a")[0])?];
        for expression in call.all("b") {
            inputs.push(self.tensor(expression)?);
        }
        if (inputs.len() == 2) != self.keys.gated {
            let help = match self.keys.gated {
                true => "the recipe's activation is of a gate and another value: write activation(a, b)",
                false => "the recipe's activation is of one value: write activation(a)",
            };
            return fail(&call.at, format!("{} values", inputs.len()), help);
        }
        let shape = self.shape(inputs[0]);
        if let Some(&other) = inputs.get(1).filter(|&&other| self.shape(other) != shape) {
            return fail(&call.at, format!("{shape} beside {}", self.shape(other)), "both have one shape");
        }
        self.node(Operation::Activation, inputs, shape, &call.at)
    }

    fn reduce(&mut self, call: &Arguments<'a>, reduction: Reduction) -> Result<Value, Mistake> {
        let x = self.tensor(call.all("x")[0])?;
        let shape = Shape { width: 1, ..self.shape(x) };
        self.node(Operation::Reduce(reduction), vec![x], shape, &call.at)
    }

    fn vector(&mut self, call: &Arguments<'a>, width: usize) -> Result<Value, Mistake> {
        let attributes = self.attributes(call)?;
        let parameter = self.parameter(ParameterKind::Vector, vec![width], Vec::new(), attributes)?;
        self.node(Operation::Vector(parameter), Vec::new(), Shape { rows: false, heads: 1, width }, &call.at)
    }

    fn rounded(&mut self, call: &Arguments<'a>, round: fn(f64) -> f64) -> Result<Value, Mistake> {
        match self.number(call, "x", (|_| true, "a number"))? {
            Some(number) => Ok(Value::Number(round(number))),
            None => fail(&call.at, "none", "a number is expected"),
        }
    }
}
