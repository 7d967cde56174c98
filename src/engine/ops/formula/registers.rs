//! Runs the steps of a formula over blocks of elements. Every step is one loop over a block, which
//! vectorizes.

use super::super::erfc::erfc;
use super::super::lanes::BLOCK;
use crate::device::{DType, Real};
use crate::expression::{Binary, Step, Steps, Unary};

/// Steps, and the registers that hold their numbers; a register is a block of elements. Variables are in the
/// first registers. A register is free again after the last step that reads it; registers of constants are
/// never freed.
#[derive(Debug)]
pub struct Registers {
    count: usize,
    constants: Vec<(f64, usize)>,
    /// Steps that name registers in place of steps, and the register that each one writes. A step never
    /// writes a register that it reads.
    steps: Vec<(Step, usize)>,
    /// The registers of the results.
    pub results: Vec<usize>,
}

impl Registers {
    pub fn new(steps: &Steps, variables: usize) -> Self {
        let mut last_read = vec![0; steps.list.len()];
        for (at, step) in steps.list.iter().enumerate() {
            step.reads().for_each(|read| last_read[read] = at);
        }
        steps.results.iter().for_each(|&result| last_read[result] = usize::MAX);
        let mut found =
            Self { count: variables, constants: Vec::new(), steps: Vec::new(), results: Vec::new() };
        let mut free: Vec<usize> = Vec::new();
        let mut register = vec![0; steps.list.len()];
        for (at, step) in steps.list.iter().enumerate() {
            if let Step::Variable(index) = step {
                register[at] = *index;
                continue;
            }
            let reused = if matches!(step, Step::Constant(_)) { None } else { free.pop() };
            register[at] = reused.unwrap_or_else(|| {
                found.count += 1;
                found.count - 1
            });
            match *step {
                Step::Constant(value) => found.constants.push((value, register[at])),
                Step::Variable(_) => {}
                Step::Unary(function, u) => {
                    found.steps.push((Step::Unary(function, register[u]), register[at]))
                }
                Step::Binary(function, u, v) => {
                    found.steps.push((Step::Binary(function, register[u], register[v]), register[at]));
                }
            }
            let is_constant = |read: &usize| matches!(steps.list[*read], Step::Constant(_));
            let dead = step.reads().filter(|read| last_read[*read] == at && !is_constant(read));
            free.extend(dead.map(|read| register[read]));
        }
        found.results = steps.results.iter().map(|&result| register[result]).collect();
        found
    }

    /// Returns memory for the registers, with the constants filled in.
    #[inline(always)]
    pub fn blocks<A: Real>(&self) -> Vec<[A; BLOCK]> {
        let mut blocks = vec![[A::ZERO; BLOCK]; self.count];
        for (value, register) in &self.constants {
            blocks[*register] = [A::from_f64(*value); BLOCK];
        }
        blocks
    }

    /// Runs all steps on the first `count` elements of the blocks.
    #[inline(always)]
    pub fn run<A: Real>(&self, blocks: &mut [[A; BLOCK]], count: usize) {
        const DISJOINT: &str = "a step never writes a register that it reads";
        for (step, to) in &self.steps {
            match *step {
                Step::Constant(_) | Step::Variable(_) => {}
                Step::Unary(function, u) => {
                    let [to, u] = blocks.get_disjoint_mut([*to, u]).expect(DISJOINT);
                    unary(function, &u[..count], &mut to[..count]);
                }
                Step::Binary(function, u, v) if u == v => {
                    let [to, u] = blocks.get_disjoint_mut([*to, u]).expect(DISJOINT);
                    binary(function, &u[..count], &u[..count], &mut to[..count]);
                }
                Step::Binary(function, u, v) => {
                    let [to, u, v] = blocks.get_disjoint_mut([*to, u, v]).expect(DISJOINT);
                    binary(function, &u[..count], &v[..count], &mut to[..count]);
                }
            }
        }
    }
}

/// Computes `to[i] = function(u[i])`.
#[inline(always)]
fn unary<A: Real>(function: Unary, u: &[A], to: &mut [A]) {
    #[inline(always)]
    fn map<A: Real>(u: &[A], to: &mut [A], f: impl Fn(A) -> A) {
        to.iter_mut().zip(u).for_each(|(to, u)| *to = f(*u));
    }
    match function {
        Unary::Negate => map(u, to, |u| -u),
        Unary::Exp => map(u, to, A::exp),
        Unary::Log => map(u, to, A::ln),
        Unary::Sqrt => map(u, to, A::sqrt),
        Unary::Abs => map(u, to, absolute),
        Unary::Sign => map(u, to, |u| greater(u, A::ZERO) - greater(A::ZERO, u)),
        Unary::Sin => map(u, to, A::sin),
        Unary::Cos => map(u, to, A::cos),
        Unary::Tanh => map(u, to, A::tanh),
        Unary::Sigmoid => map(u, to, |u| A::ONE / (A::ONE + (-u).exp())),
        Unary::Erf => map(u, to, erf),
        Unary::NormalCdf => {
            map(u, to, |u| A::from_f64(0.5) * erfc(-(u * A::from_f64(std::f64::consts::FRAC_1_SQRT_2))))
        }
        Unary::Softplus => map(u, to, softplus),
    }
}

/// Computes `to[i] = function(u[i], v[i])`.
#[inline(always)]
fn binary<A: Real>(function: Binary, u: &[A], v: &[A], to: &mut [A]) {
    #[inline(always)]
    fn map<A: Real>(u: &[A], v: &[A], to: &mut [A], f: impl Fn(A, A) -> A) {
        to.iter_mut().zip(u).zip(v).for_each(|((to, u), v)| *to = f(*u, *v));
    }
    match function {
        Binary::Add => map(u, v, to, |u, v| u + v),
        Binary::Subtract => map(u, v, to, |u, v| u - v),
        Binary::Multiply => map(u, v, to, |u, v| u * v),
        Binary::Divide => map(u, v, to, |u, v| u / v),
        Binary::Power => map(u, v, to, |u, v| (v * u.ln()).exp()),
        // A NaN in u is not equal to itself, and a NaN in v fails the first comparison.
        #[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
        Binary::Min => map(u, v, to, |u, v| if u < v || u != u { u } else { v }),
        #[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
        Binary::Max => map(u, v, to, |u, v| if u > v || u != u { u } else { v }),
        Binary::Greater => map(u, v, to, greater),
        Binary::Chain => map(u, v, to, |u, v| if v == A::ZERO { A::ZERO } else { u * v }),
    }
}

#[inline(always)]
fn greater<A: Real>(u: A, v: A) -> A {
    if u > v { A::ONE } else { A::ZERO }
}

#[inline(always)]
fn absolute<A: Real>(u: A) -> A {
    if u < A::ZERO { -u } else { u }
}

/// Computes `ln(1 + e^u)` as `max(u, 0) + ln(1 + e^-|u|)`. The logarithm is corrected for the rounding of
/// `1 + e^-|u|` (Kahan, in Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1).
#[inline(always)]
fn softplus<A: Real>(u: A) -> A {
    let small = (-absolute(u)).exp();
    let sum = A::ONE + small;
    let log = if sum == A::ONE { small } else { sum.ln() * small / (sum - A::ONE) };
    let positive = if u < A::ZERO { A::ZERO } else { u };
    positive + log
}

/// The error function, near 0 by its series (Abramowitz and Stegun, 7.1.5), elsewhere by [`erfc`].
#[inline(always)]
fn erf<A: Real>(u: A) -> A {
    /// `(-1)^n / (n!·(2n + 1))`, highest power first.
    const SERIES: [f64; 13] = [
        8.350_702_795_147_24e-11,
        -1.089_222_103_714_857_3e-9,
        1.312_253_296_380_280_5e-8,
        -1.450_385_222_315_046_8e-7,
        1.458_916_900_093_370_7e-6,
        -1.322_751_322_751_322_8e-5,
        1.068_376_068_376_068_4e-4,
        -7.575_757_575_757_576e-4,
        4.629_629_629_629_629e-3,
        -2.380_952_380_952_380_8e-2,
        0.1,
        -0.333_333_333_333_333_3,
        1.0,
    ];
    // In fp32, fewer terms reach the last bit.
    let series = if A::DTYPE == DType::F32 { &SERIES[5..] } else { &SERIES[..] };
    let square = u * u;
    let sum = series.iter().fold(A::ZERO, |sum, &c| sum.fma(square, A::from_f64(c)));
    let near = A::from_f64(std::f64::consts::FRAC_2_SQRT_PI) * u * sum;
    let far = A::ONE - erfc(absolute(u));
    let far = if u < A::ZERO { -far } else { far };
    if absolute(u) < A::from_f64(0.5) { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Formula, Function, Scope};

    fn registers(text: &str) -> Registers {
        let formula = Formula::parse(text, Scope::Activation).unwrap();
        Registers::new(&formula.steps_with_slopes(), formula.variables().len())
    }

    #[test]
    fn registers_are_used_again() {
        let long = registers("tanh(sin(exp(cos(tanh(sin(x + 1))))))");
        assert!(long.count < long.steps.len(), "{} of {}", long.count, long.steps.len());
    }

    /// Covers every function of the language, and results that are variables, constants or each other.
    #[test]
    fn blocks_hold_what_steps_compute_one_by_one() {
        let calls = Function::ALL.iter().map(|function| match function.arguments().len() {
            1 => format!("{}(x) * x", function.name()),
            _ => format!("{}(x^2, 1 + x)", function.name()),
        });
        let texts = ["x", "-x", "exp(x)", "2 * x + 1", "abs(x)^0.3", "x^3 - 1.5^x", "x / (2 + x)"];
        for text in calls.chain(texts.map(str::to_owned)) {
            let formula = Formula::parse(&text, Scope::Activation).unwrap();
            let (steps, registers) = (formula.steps_with_slopes(), registers(&text));
            let (mut wide, mut narrow) = (registers.blocks::<f64>(), registers.blocks::<f32>());
            let count = BLOCK - 3;
            for i in 0..count {
                let x = 0.013 * (i as f64 - 100.0) + 0.005;
                (wide[0][i], narrow[0][i]) = (x, x as f32);
            }
            let xs = wide[0];
            registers.run(&mut wide, count);
            registers.run(&mut narrow, count);
            for i in 0..count {
                let expected = steps.evaluate(&[xs[i]]);
                for (result, expected) in registers.results.iter().zip(expected) {
                    let (wide, narrow) = (wide[*result][i], f64::from(narrow[*result][i]));
                    let size = 1.0 + expected.abs();
                    let agrees =
                        (wide - expected).abs() <= 1e-13 * size && (narrow - expected).abs() <= 2e-5 * size;
                    assert!(
                        agrees || expected.is_nan() && wide.is_nan() && narrow.is_nan(),
                        "{text} at {}: {wide}, {narrow} for {expected}",
                        xs[i]
                    );
                }
            }
        }
    }

    #[test]
    fn a_nan_stays_one() {
        for text in
            ["relu(x)", "max(0.1 * x, x)", "min(1, x)", "x * silu(x)", "sign(x) + x", "x * gelu(x)", "sin(x)"]
        {
            let registers = registers(text);
            let mut blocks = registers.blocks::<f32>();
            blocks[0][0] = f32::NAN;
            registers.run(&mut blocks, 1);
            assert!(blocks[registers.results[0]][0].is_nan(), "{text}");
        }
    }

    #[test]
    fn erf_and_softplus_are_near_the_last_bits() {
        for i in -4000..4000 {
            let x = f64::from(i) * 2.5e-3;
            for (found, truth) in [(erf(x), Unary::Erf.value(x)), (softplus(x), Unary::Softplus.value(x))] {
                assert!((found - truth).abs() <= 1e-15 * truth.abs(), "{x}: {found} for {truth}");
            }
            let x = x as f32;
            let truths = [Unary::Erf, Unary::Softplus].map(|function| function.value(f64::from(x)));
            for (found, truth) in [erf(x), softplus(x)].into_iter().zip(truths) {
                assert!((f64::from(found) - truth).abs() <= 6e-7 * truth.abs(), "{x}: {found} for {truth}");
            }
        }
    }
}
