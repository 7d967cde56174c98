//! Gradients compared with central differences.

use super::bench::{Bench, Data};
use super::errors::worst;
use super::numbers::Numbers;
use crate::error::Result;
use crate::ir::Case;

/// Step of central differences.
pub const EPSILON: f64 = 1e-6;
/// Absolute tolerance of gradient checks.
pub const ATOL: f64 = 1e-5;
/// Relative tolerance of gradient checks.
pub const RTOL: f64 = 1e-3;
/// Number of elements of each input that a gradient check perturbs one at a time.
const PROBES: usize = 24;
/// Number of elements of an input from which on [`PROBES_IF_LONG`] are enough: a few more would hardly hit a
/// wrong part by chance, and the directions, which have all elements, see small wrong parts.
const LONG: usize = 1 << 12;
/// Number of elements of a long input that a gradient check perturbs one at a time.
const PROBES_IF_LONG: usize = 4;
/// Number of directions in which a gradient check perturbs all elements of an input together.
const DIRECTIONS: usize = 2;

/// Returns the largest |analytic − numeric| / (atol + rtol·|numeric|) of derivatives by central differences:
/// along single elements of each input, and along random directions, which depend on every element.
pub(super) fn worst_difference(
    case: &Case,
    bench: &mut Bench,
    data: &Data,
    grads: &[Vec<f64>],
) -> Result<f64> {
    let mut objective = |input: usize, direction: &[(usize, f64)], step: f64| -> Result<f64> {
        let mut moved = data.clone();
        direction.iter().for_each(|&(at, d)| moved.inputs[input][at] += step * d);
        let outputs = bench.run_forward(&moved)?;
        let product = |(&out, seed): (&usize, &Vec<f64>)| {
            outputs[out].iter().zip(seed).map(|(o, s)| o * s).sum::<f64>()
        };
        Ok(case.upstream.iter().zip(&data.seeds).map(product).sum())
    };
    let mut errors = Vec::new();
    for (k, &input) in case.differentiable.iter().enumerate() {
        if grads[k].len() != data.inputs[input].len() {
            return Ok(f64::INFINITY);
        }
        for direction in directions(&case.name, k, grads[k].len()) {
            let ahead = objective(input, &direction, EPSILON)?;
            let numeric = (ahead - objective(input, &direction, -EPSILON)?) / (2.0 * EPSILON);
            let analytic = direction.iter().map(|&(at, d)| d * grads[k][at]).sum::<f64>();
            errors.push((analytic - numeric).abs() / (ATOL + RTOL * numeric.abs()));
        }
    }
    Ok(worst(errors))
}

/// Returns the directions in which an input of `len` elements is perturbed, as (element, component) pairs:
/// [`PROBES`] single elements (or all, if there are fewer; [`PROBES_IF_LONG`] of a long input), then
/// [`DIRECTIONS`] directions with a random sign at every element.
pub(super) fn directions(name: &str, input: usize, len: usize) -> Vec<Vec<(usize, f64)>> {
    let probes = if len < LONG { PROBES.min(len) } else { PROBES_IF_LONG };
    let numbers = Numbers::new(name);
    let element = |probe| match len <= PROBES {
        true => probe,
        false => numbers.bits(300 + input, probe)[0] as usize % len,
    };
    let sign = |n: usize, at| match numbers.bits(400 + DIRECTIONS * input + n, at)[0] & 1 {
        0 => 1.0,
        _ => -1.0,
    };
    let single = (0..probes).map(|probe| vec![(element(probe), 1.0)]);
    single.chain((0..DIRECTIONS).map(|n| (0..len).map(|at| (at, sign(n, at))).collect())).collect()
}
