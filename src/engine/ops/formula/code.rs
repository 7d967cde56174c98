//! Writes a formula's code for kernels from its steps. None of the formula's text gets into the code.

use crate::expression::{Binary, Formula, Step, Unary};
use std::fmt::Write;

/// Returns the body of a C++ function of the formula's variables that returns its value and its slopes. It
/// has one definition per step, which calls the functions of kernels/formula.cuh. Sums and products are
/// rounded one by one, so that a value has the same bits with and without slopes.
pub(super) fn body(formula: &Formula) -> String {
    let steps = formula.steps_with_slopes();
    let variables = formula.variables();
    let mut code = String::new();
    for (at, step) in steps.list.iter().enumerate() {
        let _ = write!(code, "const float v{at} = ");
        let _ = match *step {
            Step::Constant(value) => write!(code, "{:?}f", value as f32),
            Step::Variable(index) => write!(code, "{}", variables[index]),
            Step::Unary(function, u) => write!(code, "{}(v{u})", unary(function)),
            Step::Binary(function, u, v) => write!(code, "{}(v{u}, v{v})", binary(function)),
        };
        code.push_str("; ");
    }
    let results: Vec<String> = steps.results.iter().map(|result| format!("v{result}")).collect();
    let _ = write!(code, "return {{{}}};", results.join(", "));
    code
}

fn unary(function: Unary) -> &'static str {
    match function {
        Unary::Negate => "-",
        Unary::Exp => "exponential<E>",
        Unary::Log => "logf",
        Unary::Sqrt => "sqrtf",
        Unary::Abs => "fabsf",
        Unary::Sign => "sign",
        Unary::Sin => "sine<E>",
        Unary::Cos => "cosine<E>",
        Unary::Tanh => "tanhf",
        Unary::Sigmoid => "sigmoid<E>",
        Unary::Erf => "erff",
        Unary::NormalCdf => "normcdff",
        Unary::Softplus => "softplus<E>",
    }
}

fn binary(function: Binary) -> &'static str {
    match function {
        Binary::Add => "__fadd_rn",
        Binary::Subtract => "__fsub_rn",
        Binary::Multiply => "__fmul_rn",
        Binary::Divide => "quotient<E>",
        Binary::Power => "power<E>",
        Binary::Min => "smaller",
        Binary::Max => "larger",
        Binary::Greater => "greater",
        Binary::Chain => "chain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Scope;

    fn code(text: &str) -> String {
        body(&Formula::parse(text, Scope::Activation).unwrap())
    }

    #[test]
    fn code_is_one_definition_per_step() {
        assert_eq!(
            code("relu(x)^2"),
            "const float v0 = x; const float v1 = 0.0f; const float v2 = larger(v0, v1); \
             const float v3 = __fmul_rn(v2, v2); const float v4 = greater(v0, v1); \
             const float v5 = __fmul_rn(v2, v4); const float v6 = __fadd_rn(v5, v5); return {v3, v6};"
        );
        assert!(code("a * b").ends_with("return {v2, v1, v0};"));
        assert!(code("x * 1e-30 + 2").contains("= 1e-30f;") && code("x + 3e38").contains("= 3e38f;"));
    }

    #[test]
    fn spellings_of_one_tree_have_one_code() {
        assert_eq!(code("x*( x+1.50 )"), code("x * (x + 1.5)"));
    }
}
