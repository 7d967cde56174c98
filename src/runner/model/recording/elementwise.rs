//! Element-wise operations as one function of their inputs.

use super::readers::Readers;
use crate::expression::{Formula, Scope};
use crate::model_text::{Elementwise, Node, Operation};
use crate::ops::activation::Activation;
use crate::ops::formula::Function;
use crate::policy::{self, OrFormula};

/// Most operations in a function. Longer ones would exceed the length of formulas.
const MAX_OPERATIONS: usize = 32;

/// A function that was found.
pub(super) struct Found {
    pub function: Function,
    /// Its variables, at most two, in the order of the formula's.
    pub variables: Vec<usize>,
    /// Its operations, except for the last and for numbers.
    pub inner: Vec<usize>,
}

/// Returns the function of a layer's activation.
pub(in crate::model) fn of_activation(activation: &OrFormula<policy::Activation>) -> Function {
    use policy::Activation::{Geglu, GegluTanh, Gelu, GeluTanh, Reglu, Relu2, Silu, Swiglu};
    match activation {
        OrFormula::Word(Swiglu | Silu) => Activation::Silu.into(),
        OrFormula::Word(Geglu | Gelu) => Activation::Gelu.into(),
        OrFormula::Word(GegluTanh | GeluTanh) => Activation::GeluTanh.into(),
        OrFormula::Word(Reglu) => Activation::Relu.into(),
        OrFormula::Word(Relu2) => Activation::Relu2.into(),
        OrFormula::Formula(formula) => formula.into(),
    }
}

/// Returns the function of one or two values of equal shape that an operation is the last of.
pub(super) fn function(r: &Readers<'_>, root: usize) -> Option<Found> {
    if *r.operation(root) == Operation::Activation {
        let variables = r.inputs(root).to_vec();
        return Some(Found { function: r.activation.clone(), variables, inner: Vec::new() });
    }
    let Operation::Elementwise(_) = r.operation(root) else { return None };
    let mut search = Search { r, root, variables: Vec::new(), inner: Vec::new() };
    // The variables have names only when their number is known. The first half of a row is a gate.
    let text = search.text(root)?;
    let begins_at = |node: usize| match *r.operation(node) {
        Operation::Slice { from, .. } => from,
        _ => 0,
    };
    let names = match search.variables[..] {
        [_] => ["x", ""],
        [first, second] if begins_at(first) <= begins_at(second) => ["a", "b"],
        [_, _] => ["b", "a"],
        _ => return None,
    };
    let text = names.iter().enumerate().fold(text, |text, (at, name)| text.replace(&placeholder(at), name));
    if names[0] == "b" {
        search.variables.reverse();
    }
    let formula = Formula::parse(&text, Scope::Activation).ok()?;
    let formula = OrFormula::Formula(formula);
    let function = of_activation(&formula.built_in().map_or(formula, OrFormula::Word));
    Some(Found { function, variables: search.variables, inner: search.inner })
}

/// Returns the text that stands for a variable until it has a name.
fn placeholder(variable: usize) -> String {
    format!("${variable}$")
}

struct Search<'a> {
    r: &'a Readers<'a>,
    root: usize,
    variables: Vec<usize>,
    inner: Vec<usize>,
}

impl Search<'_> {
    /// Returns the formula of an operation; `None` if it is none, or has more than two variables.
    fn text(&mut self, node: usize) -> Option<String> {
        if let &Operation::Constant(number) = self.r.operation(node) {
            return Some(format!("({number:?})"));
        }
        let shape = self.r.graph.nodes[self.root].shape;
        let Node { operation, inputs, shape: own, block, .. } = &self.r.graph.nodes[node];
        if *own != shape || !shape.rows {
            return None;
        }
        let is_part = node == self.root
            || (self.r.readers[node].len() == 1
                && *block == self.r.graph.nodes[self.root].block
                && self.inner.len() < MAX_OPERATIONS);
        let &Operation::Elementwise(function) = operation else { return self.variable(node) };
        if !is_part {
            return self.variable(node);
        }
        if node != self.root {
            self.inner.push(node);
        }
        let arguments = inputs.iter().map(|&input| self.text(input));
        let arguments = arguments.collect::<Option<Vec<String>>>()?;
        Some(match (function, &arguments[..]) {
            (Elementwise::Negate, [u]) => format!("(-{u})"),
            (Elementwise::Add, [u, v]) => format!("({u} + {v})"),
            (Elementwise::Subtract, [u, v]) => format!("({u} - {v})"),
            (Elementwise::Multiply, [u, v]) => format!("({u} * {v})"),
            (Elementwise::Divide, [u, v]) => format!("({u} / {v})"),
            (Elementwise::Power, [u, v]) => format!("({u} ^ {v})"),
            (Elementwise::Function(function), arguments) => {
                format!("{}({})", function.name(), arguments.join(", "))
            }
            _ => return None,
        })
    }

    /// Returns the text of a variable; `None` if it is a third.
    fn variable(&mut self, node: usize) -> Option<String> {
        let at = match self.variables.iter().position(|&variable| variable == node) {
            Some(at) => at,
            None => {
                self.variables.push(node);
                self.variables.len() - 1
            }
        };
        (at < 2).then(|| placeholder(at))
    }
}
