//! A formula as a tree, and its canonical text.

use super::functions::{CONSTANTS, Function};
use super::number;
use std::convert::Infallible;

/// An operator between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `u + v`.
    Add,
    /// `u - v`.
    Subtract,
    /// `u * v`.
    Multiply,
    /// `u / v`.
    Divide,
    /// `u^v`.
    Power,
}

/// A formula as written, without spaces and unnecessary parentheses.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// A number, not negative.
    Number(f64),
    /// The index of one of [`CONSTANTS`].
    Constant(usize),
    /// The index of a variable.
    Variable(usize),
    /// A sign before an operand.
    Negative(Box<Tree>),
    /// An operator with its operands.
    Operation(Operator, Box<Tree>, Box<Tree>),
    /// A function with its arguments.
    Call(Function, Vec<Tree>),
}

/// How tightly an expression binds. An expression in a position that requires tighter binding gets
/// parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Sum,
    Product,
    Sign,
    Power,
    Atom,
}

impl Tree {
    /// Returns a number, which may be negative.
    pub fn number(value: f64) -> Self {
        if value.is_sign_negative() {
            Self::Negative(Self::Number(-value).into())
        } else {
            Self::Number(value)
        }
    }

    /// Writes the formula with one space around `+`, `-`, `*` and `/`, the fewest parentheses, and numbers in
    /// their shortest form. Equal trees give the same text, and parsing it gives the tree again.
    pub(super) fn text(&self, variables: &[&str]) -> String {
        let mut text = String::new();
        self.write(variables, Binding::Sum, &mut text);
        text
    }

    /// Returns true if the tree contains the variable with this index.
    pub(super) fn uses(&self, variable: usize) -> bool {
        self.any(&mut |tree| *tree == Self::Variable(variable))
    }

    /// Returns true if the tree contains any variable.
    pub(super) fn has_variables(&self) -> bool {
        self.any(&mut |tree| matches!(tree, Self::Variable(_)))
    }

    /// Returns true if something holds for the tree or a part of it.
    pub fn any(&self, holds: &mut dyn FnMut(&Self) -> bool) -> bool {
        holds(self) || self.operands().into_iter().any(|operand| operand.any(holds))
    }

    /// Returns the number of operators, signs and calls.
    pub fn operations(&self) -> usize {
        let operands = self.operands();
        usize::from(!operands.is_empty()) + operands.into_iter().map(Self::operations).sum::<usize>()
    }

    /// Returns the operands of the last operation.
    pub fn operands(&self) -> Vec<&Self> {
        match self {
            Self::Number(_) | Self::Constant(_) | Self::Variable(_) => Vec::new(),
            Self::Negative(operand) => vec![operand],
            Self::Operation(_, left, right) => vec![left, right],
            Self::Call(_, arguments) => arguments.iter().collect(),
        }
    }

    /// Replaces parts from the root's operands downwards: those for which `replaced` returns a tree.
    ///
    /// # Errors
    /// If `replaced` fails.
    pub fn with_operands<E>(
        &self,
        replaced: &mut dyn FnMut(&Self) -> Result<Option<Self>, E>,
    ) -> Result<Self, E> {
        let mut operand = |part: &Self| match replaced(part)? {
            Some(part) => Ok(part),
            None => part.with_operands(replaced),
        };
        Ok(match self {
            Self::Number(_) | Self::Constant(_) | Self::Variable(_) => self.clone(),
            Self::Negative(part) => Self::Negative(operand(part)?.into()),
            Self::Operation(operator, left, right) => {
                Self::Operation(*operator, operand(left)?.into(), operand(right)?.into())
            }
            Self::Call(function, parts) => {
                Self::Call(*function, parts.iter().map(operand).collect::<Result<_, E>>()?)
            }
        })
    }

    /// Returns the tree with other trees in place of its variables.
    pub fn with_variables(&self, values: &[Self]) -> Self {
        let value = |part: &Self| match part {
            Self::Variable(index) => Some(values[*index].clone()),
            _ => None,
        };
        let Ok(tree) = self.with_operands::<Infallible>(&mut |part| Ok(value(part)));
        value(self).unwrap_or(tree)
    }

    fn binding(&self) -> Binding {
        match self {
            Self::Number(_) | Self::Constant(_) | Self::Variable(_) | Self::Call(..) => Binding::Atom,
            Self::Negative(_) => Binding::Sign,
            Self::Operation(Operator::Add | Operator::Subtract, ..) => Binding::Sum,
            Self::Operation(Operator::Multiply | Operator::Divide, ..) => Binding::Product,
            Self::Operation(Operator::Power, ..) => Binding::Power,
        }
    }

    /// Writes the tree in a position that requires at least the binding `place`.
    fn write(&self, variables: &[&str], place: Binding, to: &mut String) {
        let parentheses = self.binding() < place;
        if parentheses {
            to.push('(');
        }
        match self {
            Self::Number(value) => to.push_str(&number::text(*value)),
            Self::Constant(index) => to.push_str(CONSTANTS[*index].0),
            Self::Variable(index) => to.push_str(variables[*index]),
            Self::Negative(operand) => {
                to.push('-');
                operand.write(variables, Binding::Sign, to);
            }
            Self::Operation(operator, left, right) => {
                // Sums and products associate to the left, powers to the right.
                let (from, between, until) = match operator {
                    Operator::Add => (Binding::Sum, " + ", Binding::Product),
                    Operator::Subtract => (Binding::Sum, " - ", Binding::Product),
                    Operator::Multiply => (Binding::Product, " * ", Binding::Sign),
                    Operator::Divide => (Binding::Product, " / ", Binding::Sign),
                    Operator::Power => (Binding::Atom, "^", Binding::Sign),
                };
                left.write(variables, from, to);
                to.push_str(between);
                right.write(variables, until, to);
            }
            Self::Call(function, arguments) => {
                to.push_str(function.name());
                for (i, argument) in arguments.iter().enumerate() {
                    to.push_str(if i == 0 { "(" } else { ", " });
                    argument.write(variables, Binding::Sum, to);
                }
                to.push(')');
            }
        }
        if parentheses {
            to.push(')');
        }
    }
}
