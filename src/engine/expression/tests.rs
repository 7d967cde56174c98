use super::functions::{CONSTANTS, Function};
use super::slopes::steps_of;
use super::tree::{Operator, Tree};
use super::{Formula, MAX_DEPTH, MAX_LENGTH, MAX_NODES, Scope, power};
use proptest::prelude::*;

fn activation(text: &str) -> Formula {
    Formula::parse(text, Scope::Activation).unwrap_or_else(|e| panic!("{text}: {e:?}"))
}

fn canonical(text: &str) -> String {
    activation(text).text().to_owned()
}

/// Returns value and slopes.
fn at(text: &str, variables: &[f64]) -> Vec<f64> {
    activation(text).steps_with_slopes().evaluate(variables)
}

#[test]
fn spellings_of_one_tree_have_one_text() {
    for (text, expected) in [
        ("relu( x )^ 2", "relu(x)^2"),
        ("((x))", "x"),
        ("silu(a)*b", "silu(a) * b"),
        ("(x*2)+(1)", "x * 2 + 1"),
        ("x-(1-x)", "x - (1 - x)"),
        ("x-1-x", "x - 1 - x"),
        ("x/(2*x)", "x / (2 * x)"),
        ("-x^2", "-x^2"),
        ("(-x)^2", "(-x)^2"),
        ("--x", "--x"),
        ("2^-x", "2^-x"),
        ("x^(2^3)", "x^2^3"),
        ("(x^2)^3", "(x^2)^3"),
        ("x * -2.50", "x * -2.5"),
        ("1e-2*x", "0.01 * x"),
        ("x + 1E+3", "x + 1000"),
        ("x*0.00000012", "x * 1.2e-7"),
        ("max(x,0)*tanh( softplus(x) )", "max(x, 0) * tanh(softplus(x))"),
        ("x*sin(pi*x)/e", "x * sin(pi * x) / e"),
    ] {
        assert_eq!(canonical(text), expected, "{text}");
        assert_eq!(canonical(expected), expected);
    }
    assert_ne!(activation("a * b"), activation("b * a"), "another tree, though the same function");
}

#[test]
fn values_and_slopes_match_calculus() {
    for (text, x, expected) in [
        ("x^3 - 2 * x", 2.0, [4.0, 10.0]),
        ("relu(x)^2", 3.0, [9.0, 6.0]),
        ("relu(x)^2", -3.0, [0.0, 0.0]),
        ("x^-2", 2.0, [0.25, -0.25]),
        ("x^1.5", 4.0, [8.0, 3.0]),
        ("2^x", 3.0, [8.0, 8.0 * std::f64::consts::LN_2]),
        ("x^x", 1.0, [1.0, 1.0]),
        ("min(x, 1 - x)", 0.25, [0.25, 1.0]),
        ("min(x, 1 - x)", 0.75, [0.25, -1.0]),
        ("min(relu(x), x) + 2 * x", 0.5, [1.5, 3.0]),
        ("max(x, abs(x))", 0.5, [0.5, 1.0]),
        ("x / (1 + abs(x))", 1.0, [0.5, 0.25]),
        ("log(x) + sqrt(x)", 4.0, [4f64.ln() + 2.0, 0.5]),
        ("sign(x) * x", -2.0, [2.0, -1.0]),
        ("erf(x)", 0.0, [0.0, std::f64::consts::FRAC_2_SQRT_PI]),
        ("cos(pi * x) + x", 1.0, [0.0, 1.0]),
    ] {
        for (found, expected) in at(text, &[x]).into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-14, "{text} at {x}: {found} for {expected}");
        }
    }
    assert_eq!(at("a * b^2", &[3.0, 2.0]), [12.0, 4.0, 12.0]);
}

#[test]
fn functions_of_numbers_have_the_values_of_formulas() {
    for (function, arguments) in
        [("gelu", &[0.5][..]), ("max", &[-1.0, 2.0]), ("log", &[3.0]), ("erf", &[-0.2])]
    {
        let names = &["a", "b"][..arguments.len()];
        let text = format!("{function}({}) + 0 * (a + b)", names.join(", "));
        let values = [arguments[0], arguments.get(1).copied().unwrap_or(0.0)];
        let found = Function::from_name(function).unwrap().evaluate(arguments);
        assert_eq!(found, at(&text, &values)[0], "{function}");
    }
    assert_eq!([power(3.0, 2.0), power(4.0, -0.5), power(-2.0, 3.0)], [9.0, 0.5, -8.0]);
    assert!(power(-2.0, 0.3).is_nan());
}

#[test]
fn slopes_are_zero_at_kinks() {
    for text in
        ["abs(x)", "relu(x)", "max(0.1 * x, x)", "sqrt(relu(x))", "abs(x)^0.3", "relu(x)^0.5", "sign(x)"]
    {
        assert_eq!(at(text, &[0.0]), [0.0, 0.0], "{text}");
    }
    assert_eq!(at("sqrt(relu(x))", &[-1.0]), [0.0, 0.0], "and beyond, though the root has no slope there");
}

#[test]
fn functions_are_built_of_few_steps() {
    let steps = activation("silu(x)").steps_with_slopes();
    assert_eq!(steps.list.len(), 8, "the sigmoid is computed once: {:?}", steps.list);
    assert_eq!(activation("x * 1 + 0").steps_with_slopes().list.len(), 2);
    assert_eq!(activation("x * (2 * 3)").steps().list.len(), 3, "constants are folded");
}

/// Returns the marked text, the label and the help of the error.
fn wrong(text: &str) -> (String, String, String) {
    let e = Formula::parse(text, Scope::Activation).expect_err(text);
    (text.get(e.at).expect("within the text").to_owned(), e.label, e.help)
}

#[test]
fn errors_are_marked() {
    for (text, marked, label, help) in [
        ("", "", "empty", ""),
        ("rellu(x)", "rellu", "unknown name", "did you mean relu?"),
        ("y + 1", "y", "unknown name", "the names of a formula are x, a, b, pi, e, exp, "),
        ("relu(x", "(", "never closed", "a ) is missing"),
        ("relu(x))", ")", "closes nothing", "a ( is missing"),
        ("x + relu", "relu", "a function", "write relu(u)"),
        ("max(x)", "max(x)", "1 of 2 arguments", "write max(u, v)"),
        ("x, 2", ",", "a comma", "separate the arguments"),
        ("2x", "x", "no operator before it", "written with *"),
        ("x ** 2", "**", "no operator", "a power is written with ^"),
        ("x +", "+", "ends here", "is missing"),
        ("x + * 2", "*", "nothing before it", "is missing"),
        ("x % 2", "%", "not part of a formula", "numbers, names"),
        ("x; system(a)", ";", "not part of a formula", "numbers, names"),
        ("x * é", "é", "not part of a formula", "numbers, names"),
        ("x * .5", ".", "no digit before the point", "write 0.5"),
        ("x * 5.", "5.", "no digit after the point", ""),
        ("x * a", "a", "a beside x", "of x, or of a (the gate) and b"),
        ("silu(a)", "silu(a)", "does not use b", "of x, or of a (the gate) and b"),
        ("2 * pi", "2 * pi", "has no variable", "of x, or of a (the gate) and b"),
        ("x * 1e999", "1e999", "is beyond the numbers of fp32, which end at 3.4e38", "fp32"),
        ("x * 1e-99", "1e-99", "is below the numbers of fp32, which begin at 1.2e-38", "fp32"),
        ("x + 1 / (2 - 2)", "1 / (2 - 2)", "is beyond the numbers of fp32, which end at 3.4e38", "fp32"),
        ("x + log(-1)", "log(-1)", "is not a number", "fp32"),
        ("x * (0 / 0)", "0 / 0", "is not a number", "fp32"),
        ("x + 0 * log(-1)", "log(-1)", "is not a number", "fp32"),
        ("x^1000", "1000", "an exponent of 1000", "at most 64"),
        ("(-2)^x", "(-2)", "not above 0", "above 0"),
    ] {
        let found = wrong(text);
        assert!(found.0 == marked && found.1 == label && found.2.contains(help), "{text}: {found:?}");
    }
}

#[test]
fn hostile_formulas_are_refused_at_once() {
    let long = format!("x{}", " + x".repeat(1_000_000));
    assert_eq!(wrong(&long).1, "too long");
    let deep = |n: usize| format!("{}x{}", "(".repeat(n), ")".repeat(n));
    assert_eq!(canonical(&deep(MAX_DEPTH)), "x");
    for (before, after) in [("(", ")"), ("-", ""), ("2^", ""), ("exp(", ")")] {
        let text = format!("{}x{}", before.repeat(MAX_DEPTH + 1), after.repeat(MAX_DEPTH + 1));
        assert_eq!(wrong(&text).1, "too deep", "{text}");
    }
    let wide = |n: usize| format!("x{}", "+x".repeat(n / 2));
    assert!(Formula::parse(&wide(MAX_NODES - 1), Scope::Activation).is_ok());
    assert_eq!(wrong(&wide(MAX_NODES + 1)).1, "too long");
    assert_eq!(wrong(&"(".repeat(MAX_LENGTH)).1, "too deep");
    // The largest slopes that fit the limits: a chain of products.
    let steps = activation(&format!("x{}", "*tanh(x)".repeat(21))).steps_with_slopes();
    assert!(steps.list.len() < 200, "{}", steps.list.len());
}

#[test]
fn a_schedule_is_of_t_and_may_be_constant() {
    let schedule = |text: &str| Formula::parse(text, Scope::Schedule);
    assert_eq!(schedule("1").unwrap().steps().evaluate(&[0.5]), [1.0]);
    assert_eq!(schedule("1-t").unwrap().steps().evaluate(&[0.25]), [0.75]);
    assert_eq!(schedule("1 - x").unwrap_err().label, "unknown name");
}

/// Trees of every form, with one variable and any numbers.
fn trees() -> impl Strategy<Value = Tree> {
    let extremes = prop_oneof![Just(1e-30), Just(3e37)];
    trees_with(prop_oneof![3 => moderate(), 2 => extremes])
}

/// Numbers small enough that a difference of two values keeps its digits: in `sin(x + 3e37)` it keeps none.
fn moderate() -> impl Strategy<Value = f64> + Clone {
    prop_oneof![(0u32..100).prop_map(f64::from), (0.0..10.0f64), Just(0.1)]
}

/// Trees of every form, with one variable and the given numbers.
fn trees_with(number: impl Strategy<Value = f64> + 'static) -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        3 => Just(Tree::Variable(0)),
        2 => number.prop_map(Tree::Number),
        1 => (0..CONSTANTS.len()).prop_map(Tree::Constant),
    ];
    leaf.prop_recursive(5, 24, 2, |inner| {
        let operator = prop::sample::select(vec![
            Operator::Add,
            Operator::Subtract,
            Operator::Multiply,
            Operator::Divide,
            Operator::Power,
        ]);
        let function = prop::sample::select(Function::ALL);
        prop_oneof![
            1 => inner.clone().prop_map(|u| Tree::Negative(Box::new(u))),
            3 => (operator, inner.clone(), inner.clone())
                .prop_map(|(operator, u, v)| Tree::Operation(operator, Box::new(u), Box::new(v))),
            3 => (function, inner.clone(), inner).prop_map(|(function, u, v)| {
                let arguments = [u, v].into_iter().take(function.arguments().len()).collect();
                Tree::Call(function, arguments)
            }),
        ]
    })
}

/// Largest value of a part at which slopes are compared with differences. Numbers of this size are rounded by
/// 1.5e-11, which is 3e-7 of the smallest width of a difference, 5e-5; slopes are compared to 1e-5.
const LARGEST_PART: f64 = 1e5;

/// Returns true if differences of a tree at x approximate its slope: every part must have a finite value,
/// small enough that x is not rounded away beside it. A part without a finite value, such as `x / 0`, has no
/// finite slope either, even where the whole is smooth again (docs/formulas.md).
fn parts_are_moderate(tree: &Tree, x: f64) -> bool {
    let parts: Vec<&Tree> = match tree {
        Tree::Number(_) | Tree::Constant(_) | Tree::Variable(_) => Vec::new(),
        Tree::Negative(part) => vec![part],
        Tree::Operation(_, left, right) => vec![left, right],
        Tree::Call(_, arguments) => arguments.iter().collect(),
    };
    steps_of(tree, None).evaluate(&[x])[0].abs() <= LARGEST_PART
        && parts.into_iter().all(|part| parts_are_moderate(part, x))
}

#[test]
fn a_part_without_a_finite_value_is_seen() {
    let infinite = activation("x + (x / (x - x))^-x");
    assert!(infinite.steps_with_slopes().evaluate(&[1.5])[1].is_nan());
    let part = |inner: Tree| Tree::Operation(Operator::Power, Box::new(inner), Box::new(Tree::Number(-0.3)));
    let quotient = |below: f64| {
        Tree::Operation(Operator::Divide, Box::new(Tree::Variable(0)), Box::new(Tree::Number(below)))
    };
    assert!(parts_are_moderate(&part(quotient(2.0)), 1.5) && !parts_are_moderate(&part(quotient(0.0)), 1.5));
}

/// Computes `u^n` by squaring.
fn multiplied(u: f64, n: u32) -> f64 {
    match n {
        0 => 1.0,
        1 => u,
        _ => {
            let half = multiplied(u, n / 2);
            if n.is_multiple_of(2) { half * half } else { half * half * u }
        }
    }
}

/// Returns true if a tree is the same for every x: it has no variable, except in a power of 0, which is 1.
fn is_constant(tree: &Tree) -> bool {
    match tree {
        Tree::Number(_) | Tree::Constant(_) => true,
        Tree::Variable(_) => false,
        Tree::Negative(part) => is_constant(part),
        Tree::Operation(Operator::Power, base, exponent) if is_constant(exponent) => {
            as_written(exponent, 0.0) == 0.0 || is_constant(base)
        }
        Tree::Operation(_, left, right) => is_constant(left) && is_constant(right),
        Tree::Call(_, arguments) => arguments.iter().all(is_constant),
    }
}

/// Computes a tree as it is written, part by part, without folding anything.
fn as_written(tree: &Tree, x: f64) -> f64 {
    use super::Unary::{Abs, Cos, Erf, Exp, Log, NormalCdf, Sigmoid, Sign, Sin, Softplus, Sqrt, Tanh};
    match tree {
        Tree::Number(value) => *value,
        Tree::Constant(index) => CONSTANTS[*index].1,
        Tree::Variable(_) => x,
        Tree::Negative(part) => -as_written(part, x),
        Tree::Operation(operator, left, right) => {
            let (u, v) = (as_written(left, x), as_written(right, x));
            match operator {
                Operator::Add => u + v,
                Operator::Subtract => u - v,
                Operator::Multiply => u * v,
                Operator::Divide => u / v,
                Operator::Power if !is_constant(right) || (2.0 * v).fract() != 0.0 => (v * u.ln()).exp(),
                Operator::Power if is_constant(left) => u.powf(v),
                Operator::Power => {
                    let whole = multiplied(u, v.abs().floor() as u32);
                    let power = if v.fract() == 0.0 { whole } else { whole * u.sqrt() };
                    if v < 0.0 { 1.0 / power } else { power }
                }
            }
        }
        Tree::Call(function, arguments) => {
            let u = as_written(&arguments[0], x);
            let second = || as_written(&arguments[1], x);
            let unary = match function {
                Function::Exp => Exp,
                Function::Log => Log,
                Function::Sqrt => Sqrt,
                Function::Abs => Abs,
                Function::Sign => Sign,
                Function::Sin => Sin,
                Function::Cos => Cos,
                Function::Tanh => Tanh,
                Function::Sigmoid => Sigmoid,
                Function::Erf => Erf,
                Function::Softplus => Softplus,
                Function::Min => return super::Binary::Min.value(u, second()),
                Function::Max => return super::Binary::Max.value(u, second()),
                Function::Relu => return super::Binary::Max.value(u, 0.0),
                Function::Silu => return u * Sigmoid.value(u),
                Function::Gelu => return u * NormalCdf.value(u),
                Function::GeluTanh => {
                    let cubic = 0.044_715 * 1.595_769_121_605_730_7 * (u * u);
                    return u * Sigmoid.value(u * (cubic + 1.595_769_121_605_730_7));
                }
            };
            unary.value(u)
        }
    }
}

#[test]
fn folding_keeps_what_is_not_finite() {
    for (text, x) in [
        ("0 / x", 0.0),
        ("0 / (x - x)", 1.0),
        ("0 * log(x)", -1.0),
        ("x + 0 * log(x - 2)", 1.0),
        ("log(x) * 0", 0.0),
        ("0 * (x / (x - x))", 1.0),
        ("x + -0 * exp(x * x * x)", 100.0),
    ] {
        assert!(activation(text).value(&[x]).is_nan(), "{text} at {x}");
    }
}

/// Returns true if a tree divides something else than 0 by 0 at x. The result is infinite, and its sign
/// depends on the sign of the 0, which folding `0 + u` may change.
fn divides_by_zero(tree: &Tree, x: f64) -> bool {
    tree.any(&mut |part| match part {
        Tree::Operation(Operator::Divide, left, right) => {
            as_written(right, x) == 0.0 && as_written(left, x) != 0.0
        }
        Tree::Operation(Operator::Power, left, right) => {
            as_written(left, x) == 0.0 && as_written(right, x) < 0.0
        }
        _ => false,
    })
}

/// Numbers that folding treats specially, and few others, so that trees have many of them.
fn special() -> impl Strategy<Value = f64> + Clone {
    prop::sample::select(vec![0.0, 0.0, 1.0, 1.0, 2.0, 0.5, 3.0])
}

proptest! {
    /// Wherever a formula is computed, folded steps give what its text says: the same number, the same
    /// infinity, or NaN.
    #[test]
    fn folded_formulas_have_the_values_of_their_text(
        tree in trees_with(special()),
        x in prop_oneof![Just(0.0), Just(1.0), Just(-1.0), -3.0..3.0f64],
    ) {
        if Formula::parse(&tree.text(&["x"]), Scope::Activation).is_ok() && !divides_by_zero(&tree, x) {
            for steps in [steps_of(&tree, None), steps_of(&tree, Some(1))] {
                let (folded, written) = (steps.evaluate(&[x])[0], as_written(&tree, x));
                let same = folded.is_nan() && written.is_nan() || folded == written;
                prop_assert!(same, "{} at {x}: {folded}, {written}", tree.text(&["x"]));
            }
        }
    }

    #[test]
    fn no_text_breaks_the_parser(text in "[-+*/^(), .0-9a-zé]{0,60}") {
        for scope in [Scope::Activation, Scope::Schedule] {
            match Formula::parse(&text, scope) {
                Ok(formula) => {
                    let again = Formula::parse(formula.text(), scope);
                    prop_assert_eq!(again.as_ref(), Ok(&formula), "{}", formula);
                    prop_assert!(again.unwrap().text() == formula.text());
                }
                Err(e) => prop_assert!(text.get(e.at.clone()).is_some(), "{text:?}: {e:?}"),
            }
        }
    }

    #[test]
    fn the_text_of_a_tree_is_parsed_to_the_same_tree(tree in trees()) {
        let text = tree.text(&["x"]);
        if let Ok(formula) = Formula::parse(&text, Scope::Activation) {
            prop_assert_eq!(formula.text(), &text);
            let steps = steps_of(&tree, Some(1));
            prop_assert_eq!(formula.steps_with_slopes(), steps);
        }
    }

    /// Where three differences of different widths agree and all parts are moderate, the function is smooth
    /// and the limit of the differences is its slope.
    #[test]
    fn slopes_are_the_limits_of_differences(tree in trees_with(moderate()), x in -3.0..3.0f64) {
        let steps = steps_of(&tree, Some(1));
        let value = |x: f64| steps.evaluate(&[x])[0];
        let difference = |h: f64| (value(x + h) - value(x - h)) / (2.0 * h);
        let (wide, middle, narrow) = (difference(2e-4), difference(1e-4), difference(5e-5));
        // Richardson's extrapolation, and the error that rounding of the values may cause.
        let limit = (4.0 * narrow - middle) / 3.0;
        let wider = (4.0 * middle - wide) / 3.0;
        let rounding = 1e-10 * value(x).abs() + 1e-7 * limit.abs() + 1e-9;
        if parts_are_moderate(&tree, x) && limit.is_finite() && (limit - wider).abs() <= rounding && (wide - narrow).abs() <= 1e-3 * limit.abs() + 1e-9 {
            let slope = steps.evaluate(&[x])[1];
            prop_assert!((slope - limit).abs() <= 100.0 * rounding, "{} at {x}: {slope} for {limit}", tree.text(&["x"]));
        }
    }
}

#[test]
fn formulas_are_made_of_trees_with_other_trees_in_them() {
    let tree = |text: &str| activation(text).tree().clone();
    let product = tree("a * silu(b)");
    let values = [tree("x + 1"), Tree::number(-0.5)];
    assert_eq!(Formula::from_tree(product.with_variables(&values), 1).text(), "(x + 1) * silu(-0.5)");
    assert_eq!(Formula::from_tree(product.clone(), 2).text(), "a * silu(b)");
    assert_eq!(Formula::from_tree(product.clone(), 3).text(), "x0 * silu(x1)");
    assert_eq!((product.operations(), product.operands().len(), Tree::number(2.0).operations()), (2, 2, 0));
    assert_eq!(Tree::Variable(1).with_variables(&values), values[1]);
}
