//! Element-wise operations as one function of their inputs.

use super::readers::Readers;
use super::view::View;
use crate::expression::{self, Formula, MAX_VARIABLES, Operator, Tree};
use crate::model_text::{Elementwise, Node, Operation};
use crate::ops::activation::Activation;
use crate::ops::formula::Function;
use crate::policy::{self, OrFormula};

/// Most operations on rows in a function, beside the last.
const MAX_OPERATIONS: usize = 32;

/// Most operations on trained vectors and numbers in a function. They are computed again wherever they are
/// read.
const MAX_VECTOR_OPERATIONS: usize = 64;

/// A function that was found.
pub(super) struct Found<F> {
    pub function: F,
    /// Its variables, in the order of the formula's.
    pub variables: Vec<usize>,
    /// Its operations on rows, except for the last.
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
pub(super) fn function(r: &Readers<'_>, root: usize) -> Option<Found<Function>> {
    if *r.operation(root) == Operation::Activation {
        let variables = r.inputs(root).to_vec();
        return Some(Found { function: r.activation.clone(), variables, inner: Vec::new() });
    }
    let Operation::Elementwise(_) = r.operation(root) else { return None };
    let mut search = Search::new(r, root, MAX_OPERATIONS, 2);
    search.broadcasts = false;
    let mut tree = search.tree(root)?;
    // The first half of a row is a gate.
    let begins_at = |node: usize| match *r.operation(node) {
        Operation::Slice { from, .. } => from,
        _ => 0,
    };
    if let [first, second] = search.variables[..]
        && begins_at(first) > begins_at(second)
    {
        tree = tree.with_variables(&[Tree::Variable(1), Tree::Variable(0)]);
        search.variables.reverse();
    }
    let formula = OrFormula::Formula(Formula::from_tree(tree, search.variables.len()));
    let function = of_activation(&formula.built_in().map_or(formula, OrFormula::Word));
    Some(Found { function, variables: search.variables, inner: search.inner })
}

/// Returns the function of rows and vectors that an operation is the last of: as many operations as an op
/// can compute.
pub(super) fn broadcast_function(r: &Readers<'_>, root: usize) -> Option<Found<Formula>> {
    let is_of_rows = r.graph.nodes[root].shape.rows;
    if !is_of_rows || !matches!(r.operation(root), Operation::Elementwise(_) | Operation::Activation) {
        return None;
    }
    // A long function may have too many variables.
    [MAX_OPERATIONS, MAX_OPERATIONS / 4, 2, 0].into_iter().find_map(|operations| {
        let mut search = Search::new(r, root, operations, MAX_VARIABLES);
        let tree = search.tree(root)?;
        let function = Formula::from_tree(tree, search.variables.len());
        Some(Found { function, variables: search.variables, inner: search.inner })
    })
}

struct Search<'a> {
    r: &'a Readers<'a>,
    root: usize,
    /// Most operations on rows, beside the last, and most variables.
    limits: (usize, usize),
    /// Variables may have fewer heads and elements than the result.
    broadcasts: bool,
    variables: Vec<usize>,
    inner: Vec<usize>,
    vector_operations: usize,
}

impl<'a> Search<'a> {
    fn new(r: &'a Readers<'a>, root: usize, operations: usize, variables: usize) -> Self {
        Self {
            r,
            root,
            limits: (operations, variables),
            broadcasts: true,
            variables: Vec::new(),
            inner: Vec::new(),
            vector_operations: 0,
        }
    }

    /// Returns the formula of an operation; `None` if it is none, or exceeds the limits.
    fn tree(&mut self, node: usize) -> Option<Tree> {
        if let &Operation::Constant(number) = self.r.operation(node) {
            return Some(Tree::number(number));
        }
        let root = &self.r.graph.nodes[self.root];
        let Node { operation, shape, block, .. } = &self.r.graph.nodes[node];
        if !self.broadcasts && *shape != root.shape {
            return None;
        }
        let is_function = match operation {
            Operation::Elementwise(_) => true,
            Operation::Activation => self.broadcasts,
            _ => false,
        };
        if !is_function {
            return self.variable(node);
        }
        if !shape.rows {
            self.vector_operations += 1;
            return self.operation(node).filter(|_| self.vector_operations <= MAX_VECTOR_OPERATIONS);
        }
        if node != self.root {
            let is_read_here = self.r.readers[node].len() == 1 && *block == root.block;
            if !is_read_here || self.inner.len() >= self.limits.0 {
                return self.variable(node);
            }
            self.inner.push(node);
        }
        self.operation(node)
    }

    /// Returns the formula of an operation with those of its inputs.
    fn operation(&mut self, node: usize) -> Option<Tree> {
        let inputs = self.r.inputs(node).iter().map(|&input| self.tree(input));
        let mut arguments = inputs.collect::<Option<Vec<Tree>>>()?;
        let Operation::Elementwise(function) = *self.r.operation(node) else {
            return Some(activation(&self.r.activation, arguments));
        };
        let operator = match function {
            Elementwise::Add => Operator::Add,
            Elementwise::Subtract => Operator::Subtract,
            Elementwise::Multiply => Operator::Multiply,
            Elementwise::Divide => Operator::Divide,
            Elementwise::Power => Operator::Power,
            Elementwise::Negate => return Some(Tree::Negative(arguments.pop()?.into())),
            Elementwise::Function(function) => return Some(Tree::Call(function, arguments)),
        };
        let (right, left) = (arguments.pop()?, arguments.pop()?);
        Some(Tree::Operation(operator, left.into(), right.into()))
    }

    /// Returns a variable; `None` if there are too many, or if it lies in a vector with gaps.
    fn variable(&mut self, node: usize) -> Option<Tree> {
        if !self.r.graph.nodes[node].shape.rows {
            let view = View::new(self.r.graph, node);
            if !view.is_contiguous() || !matches!(self.r.operation(view.base), Operation::Vector(_)) {
                return None;
            }
        }
        let at = match self.variables.iter().position(|&variable| variable == node) {
            Some(at) => at,
            None => {
                self.variables.push(node);
                self.variables.len() - 1
            }
        };
        (at < self.limits.1).then_some(Tree::Variable(at))
    }
}

/// Returns an activation of one value, or of a gate and another.
fn activation(activation: &Function, mut arguments: Vec<Tree>) -> Tree {
    use expression::Function::{Gelu, GeluTanh, Relu, Silu};
    let other = if arguments.len() > 1 { arguments.pop() } else { None };
    let call = |function| Tree::Call(function, arguments.clone());
    let value = match activation {
        Function::BuiltIn(Activation::Silu) => call(Silu),
        Function::BuiltIn(Activation::Gelu) => call(Gelu),
        Function::BuiltIn(Activation::GeluTanh) => call(GeluTanh),
        Function::BuiltIn(Activation::Relu) => call(Relu),
        Function::BuiltIn(Activation::Relu2) => {
            Tree::Operation(Operator::Power, call(Relu).into(), Tree::Number(2.0).into())
        }
        Function::Formula(function) => {
            return function
                .formula
                .tree()
                .with_variables(&[arguments, other.into_iter().collect()].concat());
        }
    };
    match other {
        Some(other) => Tree::Operation(Operator::Multiply, value.into(), other.into()),
        None => value,
    }
}
