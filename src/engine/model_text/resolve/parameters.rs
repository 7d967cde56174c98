//! Creates parameters, with the attributes that a call gives them.

use super::Resolver;
use super::arguments::Arguments;
use super::value::Value;
use crate::model_text::graph::{Initial, MAX_PARAMETER_ELEMENTS, Parameter, ParameterKind};
use crate::model_text::mistake::{Mistake, fail};
use crate::model_text::names::ROLES;
use crate::suggest::nearest;
use std::ops::Range;

/// The attributes of a parameter.
#[derive(Clone, Debug)]
pub(super) struct Attributes {
    pub name: String,
    pub initial: Initial,
    pub role: Option<String>,
    pub decay: Option<bool>,
    /// Where the parameter is created.
    pub at: Range<usize>,
}

impl Attributes {
    /// Returns the attributes of the parameter with this name behind its own, which is set by rules alone.
    pub fn beside(&self, suffix: &str) -> Self {
        Self {
            name: format!("{}{suffix}", self.name),
            initial: Initial::ByKeys,
            role: None,
            decay: None,
            at: self.at.clone(),
        }
    }
}

impl<'a> Resolver<'a> {
    /// Reads the attributes of a call's parameter.
    pub(super) fn attributes(&mut self, arguments: &Arguments<'a>) -> Result<Attributes, Mistake> {
        let name = match self.optional(arguments, "name")? {
            None => {
                let name = &self.text.statements[self.statement].name;
                // The outermost call has the statement's name.
                if self.nesting > 1 {
                    format!("{name}_{}", arguments.signature.name)
                } else {
                    name.to_string()
                }
            }
            Some((Value::Word(word, _), at)) => {
                if !is_name(&word) {
                    let help = "a name has letters, digits and _, and begins with a letter or _";
                    return fail(&at, "not a name", help);
                }
                word.to_string()
            }
            Some((other, at)) => return fail(&at, self.described(&other), "a name in quotes is expected"),
        };
        let initial = match self.optional(arguments, "init")? {
            None => Initial::ByKeys,
            Some((Value::Number(value), _)) => Initial::Constant(value),
            Some((Value::Initial(initial), _)) => initial,
            Some((Value::Word(word, _), _)) if &*word == "residual" => Initial::Residual,
            Some((other, at)) => {
                let help = "a number, normal(std), \"residual\" or none is expected";
                return fail(&at, self.described(&other), help);
            }
        };
        let role = match self.optional(arguments, "role")? {
            None => None,
            Some((Value::Word(word, _), _)) if ROLES.contains(&&*word) => Some(word.to_string()),
            Some((other, at)) => {
                let near = match &other {
                    Value::Word(word, _) => nearest(word, ROLES),
                    _ => None,
                };
                let help = match near {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("the roles are {}", ROLES.map(|role| format!("\"{role}\"")).join(", ")),
                };
                return fail(&at, self.described(&other), help);
            }
        };
        let decay = match self.optional(arguments, "decay")? {
            None => None,
            Some((Value::Bool(decay), _)) => Some(decay),
            Some((other, at)) => return fail(&at, self.described(&other), "true or false is expected"),
        };
        Ok(Attributes { name, initial, role, decay, at: arguments.at.clone() })
    }

    /// Creates a parameter and returns its index.
    pub(super) fn parameter(
        &mut self,
        kind: ParameterKind,
        shape: Vec<usize>,
        stacked: Vec<usize>,
        attributes: Attributes,
    ) -> Result<usize, Mistake> {
        let Attributes { name, initial, role, decay, at } = attributes;
        let is_vector = matches!(kind, ParameterKind::Bias | ParameterKind::Vector);
        if is_vector && role.as_deref() == Some("matrix") {
            let help = "\"matrix\" is for matrices and tables, whose updates some optimizers orthogonalize";
            return fail(&at, format!("{name} is a vector"), help);
        }
        let elements = shape.iter().try_fold(1_usize, |all, &dimension| all.checked_mul(dimension));
        if elements.is_none_or(|elements| elements > MAX_PARAMETER_ELEMENTS) {
            let help = format!("a parameter has at most {MAX_PARAMETER_ELEMENTS} elements");
            return fail(&at, format!("{name} is too large"), help);
        }
        let full = match self.layer {
            Some(layer) => format!("blocks.{layer}.{name}"),
            None => name.clone(),
        };
        if !self.parameter_names.insert(full.clone()) {
            let help = format!("give one of them another name, such as name = \"{name}_2\"");
            return fail(&at, format!("a second parameter called {name}"), help);
        }
        let (block, statement) = (self.layer, self.statement);
        self.parameters.push(Parameter {
            name: full,
            shape,
            kind,
            stacked,
            initial,
            role,
            decay,
            block,
            statement,
        });
        self.created_at.push(at);
        Ok(self.parameters.len() - 1)
    }
}

fn is_name(word: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    word.bytes().all(inner) && word.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}
