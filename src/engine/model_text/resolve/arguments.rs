//! Matches the arguments of a call with those of its function, and reads them.

use super::Resolver;
use super::value::Value;
use crate::model_text::functions::{Call, Signature};
use crate::model_text::graph::{MAX_WIDTH, Shape};
use crate::model_text::mistake::{Mistake, fail};
use crate::model_text::names::ROLES;
use crate::model_text::tree::{CallArgument, Expression, ExpressionKind};
use crate::suggest::nearest;
use std::ops::{Range, RangeInclusive};

/// The arguments of a call, in the order of the function's.
pub(super) struct Arguments<'a> {
    pub signature: &'static Signature,
    /// The call.
    pub at: Range<usize>,
    /// Those that were given, several for the repeated one.
    given: Vec<Vec<&'a Expression>>,
}

impl<'a> Arguments<'a> {
    /// Matches arguments: those without a name come first, in order.
    ///
    /// # Errors
    /// If one is unknown, given twice, or missing.
    pub fn new(
        signature: &'static Signature,
        arguments: &'a [CallArgument],
        at: Range<usize>,
    ) -> Result<Self, Mistake> {
        let write = || match signature.call {
            Call::Sum | Call::Mean => {
                format!("write {}: it runs over the width of each head only", signature.call())
            }
            _ => format!("write {}", signature.call()),
        };
        let mut given: Vec<Vec<&Expression>> = vec![Vec::new(); signature.arguments.len()];
        let (mut next, mut named) = (0, false);
        for argument in arguments {
            let place = &argument.value.at;
            let index = match &argument.name {
                Some((name, name_at)) => {
                    named = true;
                    match signature.arguments.iter().position(|known| known.name == &**name) {
                        Some(index) => index,
                        None => {
                            let names = signature.arguments.iter().map(|known| known.name);
                            let help = match nearest(name, names) {
                                Some(near) => format!("did you mean {near}?"),
                                None => write(),
                            };
                            return fail(name_at, format!("no argument of {}", signature.name), help);
                        }
                    }
                }
                None if named => return fail(place, "after a named argument", write()),
                None => {
                    let index = next;
                    next += usize::from(signature.repeated != Some(index));
                    index
                }
            };
            match given.get_mut(index) {
                None => return fail(place, "one argument too many", write()),
                Some(values) if !values.is_empty() && (named || signature.repeated != Some(index)) => {
                    return fail(place, format!("a second {}", signature.arguments[index].name), write());
                }
                Some(values) => values.push(&argument.value),
            }
        }
        let is_missing = |(index, values): &(usize, &Vec<_>)| {
            values.is_empty() && signature.arguments[*index].default.is_empty()
        };
        if let Some((index, _)) = given.iter().enumerate().find(is_missing) {
            return fail(&at, format!("no {}", signature.arguments[index].name), write());
        }
        Ok(Self { signature, at, given })
    }

    /// Returns the expressions of an argument.
    pub fn all(&self, name: &str) -> &[&'a Expression] {
        let index = self.signature.arguments.iter().position(|known| known.name == name);
        index.map_or(&[], |index| &self.given[index])
    }

    /// Returns the expression of an argument, if it was given.
    pub fn one(&self, name: &str) -> Option<&'a Expression> {
        self.all(name).first().copied()
    }
}

/// Returns the mistake of the name `word`, which has no value, as the argument `name`, with what the argument
/// takes, unless the mistake suggests a name.
fn expected(signature: &Signature, name: &str, word: &str, mistake: Mistake) -> Mistake {
    if mistake.help.starts_with("did you mean") || mistake.help.contains("targets") {
        return mistake;
    }
    let takes = match (name, signature.call) {
        ("init", _) => "a number, normal(std), \"residual\" or none".to_owned(),
        ("role", _) => ROLES.map(|role| format!("\"{role}\"")).join(", ") + " or none",
        ("name", _) => "a name in quotes".to_owned(),
        ("weight", Call::Linear) => "the name of a parameter of the part embed, in quotes".to_owned(),
        ("bias" | "weight" | "decay" | "reversed", _) => "true or false".to_owned(),
        ("stack" | "eps" | "theta" | "width" | "window" | "cap" | "scale" | "dropout" | "p" | "std", _) => {
            "a number".to_owned()
        }
        _ => return mistake,
    };
    let is_quoted = takes.contains(&format!("\"{word}\""));
    let help = match is_quoted {
        true => format!("write {name} = \"{word}\", in quotes"),
        false => format!("{name} takes {takes}"),
    };
    Mistake { help, ..mistake }
}

impl<'a> Resolver<'a> {
    /// Returns the value of an argument, if it was given and is not `none`.
    pub(super) fn optional(
        &mut self,
        arguments: &Arguments<'a>,
        name: &str,
    ) -> Result<Option<(Value, Range<usize>)>, Mistake> {
        let Some(expression) = arguments.one(name) else { return Ok(None) };
        let value = self.evaluate(expression).map_err(|mistake| match &expression.kind {
            ExpressionKind::Name(word) => expected(arguments.signature, name, word, mistake),
            _ => mistake,
        });
        match value? {
            Value::None => Ok(None),
            value => Ok(Some((value, expression.at.clone()))),
        }
    }

    /// Returns a tensor.
    pub(super) fn tensor(&mut self, expression: &'a Expression) -> Result<usize, Mistake> {
        match self.evaluate(expression)? {
            Value::Tensor(tensor) => Ok(tensor),
            value => fail(&expression.at, self.described(&value), "rows are expected"),
        }
    }

    /// Returns the tensor of an argument with its shape; it has a row for each token.
    pub(super) fn rows(&mut self, arguments: &Arguments<'a>, name: &str) -> Result<(usize, Shape), Mistake> {
        let Some(expression) = arguments.one(name) else {
            return fail(&arguments.at, format!("no {name}"), "");
        };
        let tensor = self.tensor(expression)?;
        let shape = self.shape(tensor);
        if !shape.rows {
            return fail(&expression.at, shape.to_string(), "rows, one for each token, are expected");
        }
        Ok((tensor, shape))
    }

    /// Returns a whole number within bounds.
    pub(super) fn whole(
        &mut self,
        expression: &'a Expression,
        bounds: RangeInclusive<usize>,
    ) -> Result<usize, Mistake> {
        let value = self.evaluate(expression)?;
        self.whole_value(value, &expression.at, bounds)
    }

    pub(super) fn whole_value(
        &self,
        value: Value,
        at: &Range<usize>,
        bounds: RangeInclusive<usize>,
    ) -> Result<usize, Mistake> {
        let help = format!("a whole number from {} to {} is expected", bounds.start(), bounds.end());
        match value {
            Value::Number(number) if number.fract() == 0.0 && number >= 0.0 => {
                // Numbers beyond the range of integers become its end, which is out of bounds.
                let whole = number as usize;
                if bounds.contains(&whole) { Ok(whole) } else { fail(at, format!("{number}"), help) }
            }
            other => fail(at, self.described(&other), help),
        }
    }

    /// Returns a width.
    pub(super) fn width(&mut self, expression: &'a Expression) -> Result<usize, Mistake> {
        self.whole(expression, 1..=MAX_WIDTH)
    }

    /// Returns true or false.
    pub(super) fn flag(
        &mut self,
        arguments: &Arguments<'a>,
        name: &str,
        default: bool,
    ) -> Result<bool, Mistake> {
        match self.optional(arguments, name)? {
            None => Ok(default),
            Some((Value::Bool(value), _)) => Ok(value),
            Some((other, at)) => fail(&at, self.described(&other), "true or false is expected"),
        }
    }

    /// Returns a number for which `fits` holds; `expected` describes it.
    pub(super) fn number(
        &mut self,
        arguments: &Arguments<'a>,
        name: &str,
        (fits, expected): (fn(f64) -> bool, &str),
    ) -> Result<Option<f64>, Mistake> {
        match self.optional(arguments, name)? {
            None => Ok(None),
            Some((Value::Number(value), _)) if fits(value) => Ok(Some(value)),
            Some((other, at)) => fail(&at, self.described(&other), format!("{expected} is expected")),
        }
    }
}
