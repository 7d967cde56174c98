//! A formula as a tree, and its canonical text.

use super::functions::{CONSTANTS, Function};
use super::number;

/// An operator between two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Power,
}

/// A formula as written, without spaces and unnecessary parentheses.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    /// A number, not negative.
    Number(f64),
    /// The index of one of [`CONSTANTS`].
    Constant(usize),
    /// The index of a variable.
    Variable(usize),
    Negative(Box<Tree>),
    Operation(Operator, Box<Tree>, Box<Tree>),
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

    pub(super) fn any(&self, holds: &mut dyn FnMut(&Self) -> bool) -> bool {
        holds(self)
            || match self {
                Self::Number(_) | Self::Constant(_) | Self::Variable(_) => false,
                Self::Negative(operand) => operand.any(holds),
                Self::Operation(_, left, right) => left.any(holds) || right.any(holds),
                Self::Call(_, arguments) => arguments.iter().any(|argument| argument.any(holds)),
            }
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
