//! A formula as a list of steps. Each step computes one number from earlier ones, and no number is computed
//! twice.

use super::normal::{erf, erfc};
use super::number;

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `-u`.
    Negate,
    /// `e^u`.
    Exp,
    /// `ln u`.
    Log,
    /// `√u`.
    Sqrt,
    /// `|u|`.
    Abs,
    /// -1, 0 or 1.
    Sign,
    /// `sin u`.
    Sin,
    /// `cos u`.
    Cos,
    /// `tanh u`.
    Tanh,
    /// `1 / (1 + e^-u)`.
    Sigmoid,
    /// The error function.
    Erf,
    /// The standard normal distribution function Φ.
    NormalCdf,
    /// `ln(1 + e^u)`.
    Softplus,
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `u + v`.
    Add,
    /// `u - v`.
    Subtract,
    /// `u · v`.
    Multiply,
    /// `u / v`.
    Divide,
    /// `e^(v · ln u)`: NaN for u below 0.
    Power,
    /// The smaller; NaN if either is NaN.
    Min,
    /// The larger; NaN if either is NaN.
    Max,
    /// 1 where u > v, else 0.
    Greater,
    /// `u · v`, but 0 where v is 0 even if u is not finite. u is the slope of an outer function and v the
    /// slope of its argument, which is 0 at and beyond kinks such as in `sqrt(relu(x))`.
    Chain,
}

impl Unary {
    /// Computes the function in f64.
    pub fn value(self, u: f64) -> f64 {
        match self {
            Self::Negate => -u,
            Self::Exp => u.exp(),
            Self::Log => u.ln(),
            Self::Sqrt => u.sqrt(),
            Self::Abs => u.abs(),
            Self::Sign => f64::from(i8::from(u > 0.0) - i8::from(u < 0.0)),
            Self::Sin => u.sin(),
            Self::Cos => u.cos(),
            Self::Tanh => u.tanh(),
            Self::Sigmoid => 1.0 / (1.0 + (-u).exp()),
            Self::Erf => erf(u),
            Self::NormalCdf => 0.5 * erfc(-u * std::f64::consts::FRAC_1_SQRT_2),
            Self::Softplus => u.max(0.0) + (-u.abs()).exp().ln_1p(),
        }
    }
}

impl Binary {
    /// Computes the function in f64.
    pub fn value(self, u: f64, v: f64) -> f64 {
        match self {
            Self::Add => u + v,
            Self::Subtract => u - v,
            Self::Multiply => u * v,
            Self::Divide => u / v,
            Self::Power => (v * u.ln()).exp(),
            Self::Min if u < v || u.is_nan() => u,
            Self::Max if u > v || u.is_nan() => u,
            Self::Min | Self::Max => v,
            Self::Greater => f64::from(u8::from(u > v)),
            Self::Chain if v == 0.0 => 0.0,
            Self::Chain => u * v,
        }
    }

    /// Returns true if swapping the operands does not change the result.
    fn commutes(self) -> bool {
        matches!(self, Self::Add | Self::Multiply)
    }
}

/// One step: a number computed from the numbers of earlier steps, which it refers to by index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The same for all elements, and within fp32.
    Constant(f64),
    /// The variable with this index.
    Variable(usize),
    /// A function of a step.
    Unary(Unary, usize),
    /// A function of two steps.
    Binary(Binary, usize, usize),
}

/// Steps ordered so that each reads only earlier ones, without duplicates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// The steps.
    pub list: Vec<Step>,
    /// The indices of the result steps: the value, then the slopes with respect to the variables, if asked
    /// for.
    pub results: Vec<usize>,
}

impl Steps {
    /// Computes the results in f64.
    pub fn evaluate(&self, variables: &[f64]) -> Vec<f64> {
        let mut numbers: Vec<f64> = Vec::with_capacity(self.list.len());
        for step in &self.list {
            numbers.push(match *step {
                Step::Constant(value) => value,
                Step::Variable(index) => variables[index],
                Step::Unary(function, u) => function.value(numbers[u]),
                Step::Binary(function, u, v) => function.value(numbers[u], numbers[v]),
            });
        }
        self.results.iter().map(|&step| numbers[step]).collect()
    }

    pub(super) fn constant(&mut self, value: f64) -> usize {
        self.step(Step::Constant(value))
    }

    pub(super) fn unary(&mut self, function: Unary, u: usize) -> usize {
        if let Some(u) = self.value(u)
            && let Some(folded) = self.folded(function.value(u))
        {
            return folded;
        }
        match (function, self.list[u]) {
            (Unary::Negate, Step::Unary(Unary::Negate, inner)) => inner,
            _ => self.step(Step::Unary(function, u)),
        }
    }

    pub(super) fn binary(&mut self, function: Binary, u: usize, v: usize) -> usize {
        use Binary::{Add, Chain, Divide, Max, Min, Multiply, Subtract};
        let (left, right) = (self.value(u), self.value(v));
        if let (Some(left), Some(right)) = (left, right)
            && let Some(folded) = self.folded(function.value(left, right))
        {
            return folded;
        }
        let (zero, one, minus_one) = (Some(0.0), Some(1.0), Some(-1.0));
        match function {
            Add if left == zero => v,
            Add | Subtract if right == zero => u,
            Subtract if left == zero => self.unary(Unary::Negate, v),
            // A product with 0 and a quotient of 0 are not folded: they are NaN where the other operand is
            // not finite.
            Chain if left == zero || right == zero => self.constant(0.0),
            Multiply | Chain if left == one => v,
            Multiply | Chain | Divide if right == one => u,
            Multiply if left == minus_one => self.unary(Unary::Negate, v),
            Multiply if right == minus_one => self.unary(Unary::Negate, u),
            Min | Max if u == v => u,
            _ if function.commutes() && u > v => self.step(Step::Binary(function, v, u)),
            _ => self.step(Step::Binary(function, u, v)),
        }
    }

    /// Adds a step, or returns the index of an equal one.
    pub(super) fn step(&mut self, step: Step) -> usize {
        self.list.iter().position(|known| *known == step).unwrap_or_else(|| {
            self.list.push(step);
            self.list.len() - 1
        })
    }

    /// Returns the value of a constant step.
    pub(super) fn value(&self, step: usize) -> Option<f64> {
        match self.list[step] {
            Step::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Adds a constant, unless it is outside the range of fp32.
    pub(super) fn folded(&mut self, value: f64) -> Option<usize> {
        number::range_error(value).is_none().then(|| self.constant(value))
    }

    /// Removes the steps that no result needs.
    pub(super) fn pruned(self) -> Self {
        let mut needed = vec![false; self.list.len()];
        self.results.iter().for_each(|&result| needed[result] = true);
        for (i, step) in self.list.iter().enumerate().rev() {
            if needed[i] {
                step.reads().for_each(|read| needed[read] = true);
            }
        }
        // New index of each step: the number of kept steps before it.
        let to: Vec<usize> = needed
            .iter()
            .scan(0, |next, &needed| {
                let at = *next;
                *next += usize::from(needed);
                Some(at)
            })
            .collect();
        let moved = |step: &Step| match *step {
            Step::Constant(_) | Step::Variable(_) => *step,
            Step::Unary(function, u) => Step::Unary(function, to[u]),
            Step::Binary(function, u, v) => Step::Binary(function, to[u], to[v]),
        };
        let kept = self.list.iter().zip(&needed).filter(|(_, needed)| **needed);
        Self {
            list: kept.map(|(step, _)| moved(step)).collect(),
            results: self.results.iter().map(|&result| to[result]).collect(),
        }
    }
}

impl Step {
    /// Returns the steps that this one reads, each once.
    pub fn reads(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match *self {
            Self::Constant(_) | Self::Variable(_) => (None, None),
            Self::Unary(_, u) => (Some(u), None),
            Self::Binary(_, u, v) => (Some(u), Some(v).filter(|v| *v != u)),
        };
        first.into_iter().chain(second)
    }
}
