//! Turns a tree into steps, and derives the slopes of steps.

use super::functions::{CONSTANTS, Function};
use super::steps::{Binary, Step, Steps, Unary};
use super::tree::{Operator, Tree};
use Binary::{Add, Chain, Divide, Greater, Max, Min, Multiply, Power, Subtract};
use Unary::{Abs, Cos, Erf, Exp, Log, Negate, NormalCdf, Sigmoid, Sign, Sin, Softplus, Sqrt, Tanh};

/// Largest whole or half-whole power that is computed by multiplications.
const MAX_MULTIPLIED: f64 = 64.0;

/// `2·√(2/π)`, and 0.044715 times that. Because `(1 + tanh(u/2))/2 = σ(u)`, `gelu_tanh(x)` is `x·σ(x·(LINEAR
/// + CUBIC·x²))`.
const LINEAR: f64 = 1.595_769_121_605_730_7;
const CUBIC: f64 = 0.044_715 * LINEAR;

/// Returns the steps that compute a tree's value and, if `variables` is given, its slopes with respect to
/// that many variables.
pub(super) fn steps_of(tree: &Tree, variables: Option<usize>) -> Steps {
    let mut steps = Steps::default();
    let value = steps.lower(tree);
    steps.results = vec![value];
    for variable in 0..variables.unwrap_or(0) {
        let slope = steps.slope(value, variable);
        steps.results.push(slope);
    }
    steps.pruned()
}

impl Steps {
    fn lower(&mut self, tree: &Tree) -> usize {
        match tree {
            Tree::Number(value) => self.constant(*value),
            Tree::Constant(index) => self.constant(CONSTANTS[*index].1),
            Tree::Variable(index) => self.step(Step::Variable(*index)),
            Tree::Negative(operand) => {
                let u = self.lower(operand);
                self.unary(Negate, u)
            }
            Tree::Operation(operator, left, right) => {
                let (u, v) = (self.lower(left), self.lower(right));
                match operator {
                    Operator::Add => self.binary(Add, u, v),
                    Operator::Subtract => self.binary(Subtract, u, v),
                    Operator::Multiply => self.binary(Multiply, u, v),
                    Operator::Divide => self.binary(Divide, u, v),
                    Operator::Power => self.power(u, v),
                }
            }
            Tree::Call(function, arguments) => {
                let arguments: Vec<usize> = arguments.iter().map(|argument| self.lower(argument)).collect();
                self.call(*function, &arguments)
            }
        }
    }

    fn call(&mut self, function: Function, arguments: &[usize]) -> usize {
        let u = arguments[0];
        match function {
            Function::Exp => self.unary(Exp, u),
            Function::Log => self.unary(Log, u),
            Function::Sqrt => self.unary(Sqrt, u),
            Function::Abs => self.unary(Abs, u),
            Function::Sign => self.unary(Sign, u),
            Function::Min => self.binary(Min, u, arguments[1]),
            Function::Max => self.binary(Max, u, arguments[1]),
            Function::Sin => self.unary(Sin, u),
            Function::Cos => self.unary(Cos, u),
            Function::Tanh => self.unary(Tanh, u),
            Function::Sigmoid => self.unary(Sigmoid, u),
            Function::Erf => self.unary(Erf, u),
            Function::Softplus => self.unary(Softplus, u),
            Function::Relu => {
                let zero = self.constant(0.0);
                self.binary(Max, u, zero)
            }
            Function::Silu => {
                let share = self.unary(Sigmoid, u);
                self.binary(Multiply, u, share)
            }
            Function::Gelu => {
                let share = self.unary(NormalCdf, u);
                self.binary(Multiply, u, share)
            }
            Function::GeluTanh => {
                let square = self.binary(Multiply, u, u);
                let cubic = self.scaled(CUBIC, square);
                let linear = self.constant(LINEAR);
                let sum = self.binary(Add, cubic, linear);
                let inner = self.binary(Multiply, u, sum);
                let share = self.unary(Sigmoid, inner);
                self.binary(Multiply, u, share)
            }
        }
    }

    /// Computes 1 where two steps are both 0, else 0. Each step must be 0 or 1, and never both 1.
    fn neither(&mut self, u: usize, v: usize) -> usize {
        let one = self.constant(1.0);
        let rest = self.binary(Subtract, one, u);
        self.binary(Subtract, rest, v)
    }

    fn scaled(&mut self, factor: f64, u: usize) -> usize {
        let factor = self.constant(factor);
        self.binary(Multiply, factor, u)
    }

    /// Computes `u^v`: by multiplications and a root if v is a whole or half-whole number, else as `e^(v · ln
    /// u)`.
    fn power(&mut self, u: usize, v: usize) -> usize {
        let Some(exponent) = self.value(v).filter(|v| v.abs() <= MAX_MULTIPLIED && (2.0 * v).fract() == 0.0)
        else {
            return self.binary(Power, u, v);
        };
        if let Some(base) = self.value(u)
            && let Some(power) = self.folded(base.powf(exponent))
        {
            return power;
        }
        let mut power = self.whole_power(u, exponent.abs().floor() as u32);
        if exponent.fract() != 0.0 {
            let root = self.unary(Sqrt, u);
            power = self.binary(Multiply, power, root);
        }
        if exponent < 0.0 {
            let one = self.constant(1.0);
            power = self.binary(Divide, one, power);
        }
        power
    }

    /// Computes `u^n` by squaring.
    fn whole_power(&mut self, u: usize, n: u32) -> usize {
        match n {
            0 => self.constant(1.0),
            1 => u,
            _ => {
                let half = self.whole_power(u, n / 2);
                let square = self.binary(Multiply, half, half);
                if n.is_multiple_of(2) { square } else { self.binary(Multiply, square, u) }
            }
        }
    }

    /// Returns the slope of a step with respect to a variable, by the chain rule from the first step on.
    fn slope(&mut self, of: usize, variable: usize) -> usize {
        let mut slopes: Vec<usize> = Vec::with_capacity(of + 1);
        for at in 0..=of {
            let slope = match self.list[at] {
                Step::Constant(_) => self.constant(0.0),
                Step::Variable(index) => self.constant(f64::from(u8::from(index == variable))),
                Step::Unary(function, u) => self.unary_slope(function, (at, u), slopes[u]),
                Step::Binary(function, u, v) => {
                    self.binary_slope(function, at, (u, v), (slopes[u], slopes[v]))
                }
            };
            slopes.push(slope);
        }
        slopes[of]
    }

    /// Returns the slope of the step `at`, a function of u, given the slope `du` of u.
    fn unary_slope(&mut self, function: Unary, (at, u): (usize, usize), du: usize) -> usize {
        if self.value(du) == Some(0.0) {
            return du;
        }
        let one = self.constant(1.0);
        let slope = match function {
            Negate => return self.unary(Negate, du),
            Sign => return self.constant(0.0),
            Exp => at,
            Log => self.binary(Divide, one, u),
            Sqrt => {
                let half = self.constant(0.5);
                self.binary(Divide, half, at)
            }
            Abs => self.unary(Sign, u),
            Sin => self.unary(Cos, u),
            Cos => {
                let sine = self.unary(Sin, u);
                self.unary(Negate, sine)
            }
            Tanh => {
                let square = self.binary(Multiply, at, at);
                self.binary(Subtract, one, square)
            }
            Sigmoid => {
                let rest = self.binary(Subtract, one, at);
                self.binary(Multiply, at, rest)
            }
            Erf => self.gauss(u, 1.0, std::f64::consts::FRAC_2_SQRT_PI),
            NormalCdf => {
                let factor = 0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
                self.gauss(u, 0.5, factor)
            }
            Softplus => self.unary(Sigmoid, u),
        };
        // The slopes of a logarithm and a root are not finite at 0.
        let join = if matches!(function, Log | Sqrt) { Chain } else { Multiply };
        self.binary(join, slope, du)
    }

    /// Computes `factor · e^(-share · u²)`.
    fn gauss(&mut self, u: usize, share: f64, factor: f64) -> usize {
        let square = self.binary(Multiply, u, u);
        let exponent = self.scaled(-share, square);
        let bell = self.unary(Exp, exponent);
        self.scaled(factor, bell)
    }

    /// Computes `u` times the slope `du`. A slope that is 0 everywhere adds nothing, whatever u is.
    fn times_slope(&mut self, u: usize, du: usize) -> usize {
        if self.value(du) == Some(0.0) { du } else { self.binary(Multiply, du, u) }
    }

    /// Returns the slope of the step `at`, a function of u and v, given their slopes.
    fn binary_slope(
        &mut self,
        function: Binary,
        at: usize,
        (u, v): (usize, usize),
        (du, dv): (usize, usize),
    ) -> usize {
        if [du, dv].into_iter().all(|slope| self.value(slope) == Some(0.0)) {
            return du;
        }
        match function {
            Add | Subtract => self.binary(function, du, dv),
            Multiply => {
                let left = self.times_slope(v, du);
                let right = self.times_slope(u, dv);
                self.binary(Add, left, right)
            }
            Divide => {
                let right = self.times_slope(at, dv);
                let change = self.binary(Subtract, du, right);
                self.binary(Divide, change, v)
            }
            Min | Max => {
                let (low, high) = if function == Min { (u, v) } else { (v, u) };
                let first = self.binary(Greater, high, low);
                let second = self.binary(Greater, low, high);
                let left = self.times_slope(first, du);
                let right = self.times_slope(second, dv);
                let apart = self.binary(Add, left, right);
                // Equal operands have no kink if their slopes are equal too, as in `min(relu(x), x)` for x >
                // 0. If one slope is 0 everywhere, the term below adds nothing.
                if [du, dv].into_iter().any(|slope| self.value(slope) == Some(0.0)) {
                    return apart;
                }
                let tie = self.neither(first, second);
                let [less, more] = [self.binary(Greater, du, dv), self.binary(Greater, dv, du)];
                let smooth = self.neither(less, more);
                let both = self.binary(Multiply, tie, smooth);
                let together = self.binary(Chain, du, both);
                self.binary(Add, apart, together)
            }
            Power => {
                // v·u^(v-1)·du + u^v·ln u·dv
                let one = self.constant(1.0);
                let less = self.binary(Subtract, v, one);
                let power = self.power(u, less);
                let outer = self.binary(Multiply, v, power);
                let left = self.binary(Chain, outer, du);
                // Where u is 0, its logarithm is not finite, but the power is 0.
                let log = self.unary(Log, u);
                let outer = self.binary(Chain, log, at);
                let right = self.binary(Chain, outer, dv);
                self.binary(Add, left, right)
            }
            // Only slopes contain these, and slopes of slopes are never computed.
            Greater | Chain => self.constant(0.0),
        }
    }
}
