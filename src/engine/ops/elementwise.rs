//! What elementwise ops share: the specs of their operands, and their test cases.

use crate::ir::{Array, Case, Fill, Op, Precision, Spec};

/// Returns the spec of the result of an op on one operand.
pub(super) fn one_spec(inputs: &[Spec]) -> Result<Vec<Spec>, String> {
    match inputs {
        [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
        _ => Err("takes one float tensor".into()),
    }
}

/// Returns the spec that two operands share.
pub(super) fn same_spec(inputs: &[Spec]) -> Result<Vec<Spec>, String> {
    match inputs {
        [a, b] if a == b && a.dtype.is_float() => Ok(vec![a.clone()]),
        _ => Err("takes two float tensors of the same shape and format".into()),
    }
}

/// Returns shapes on both sides of the borders of blocks, tasks and padding.
pub(super) fn case_shapes(precision: Precision) -> Vec<Spec> {
    let plain = [vec![1], vec![17, 3], vec![255], vec![256, 2], vec![40, 1000]];
    let mut specs: Vec<Spec> = plain.into_iter().map(|shape| Spec::new(shape, precision.act_dtype)).collect();
    specs.push(Spec::padded([5, 30], [5, 64], precision.act_dtype));
    specs
}

/// Returns the test case of an op that computes `f` of every element, on normal numbers with this deviation.
pub(super) fn unary_case(
    name: String,
    op: impl Op,
    spec: &Spec,
    deviation: f64,
    f: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Case {
    Case::new(name, op, vec![(spec.clone(), Fill::Normal(0.0, deviation))], move |inputs: &[Array]| {
        let mut y = inputs[0].clone();
        y.data.iter_mut().for_each(|x| *x = f(*x));
        vec![y]
    })
}

/// Returns the test cases of an op that computes `f` of two operands.
pub(super) fn binary_cases(precision: Precision, op: impl Op + Copy, f: fn(f64, f64) -> f64) -> Vec<Case> {
    let case = |spec: Spec| {
        let name = format!("{:?}", spec.shape);
        let inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0)), (spec, Fill::Normal(0.5, 2.0))];
        Case::new(name, op, inputs, move |inputs: &[Array]| {
            let mut y = inputs[0].clone();
            y.data.iter_mut().zip(&inputs[1].data).for_each(|(a, b)| *a = f(*a, *b));
            vec![y]
        })
    };
    case_shapes(precision).into_iter().map(case).collect()
}
