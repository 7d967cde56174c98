//! Distances between computed and expected tensors. All preserve NaN, which `f64::max` drops.

use crate::device::DType;
use crate::ir::{Array, Precision};

/// Returns the largest of the errors; NaN if any of them is NaN, 0 if there are none.
pub fn worst(errors: impl IntoIterator<Item = f64>) -> f64 {
    errors.into_iter().fold(0.0, |worst, error| if worst.is_nan() || worst > error { worst } else { error })
}

/// Returns `‖have − want‖ / ‖want‖`, or `‖have‖` if `want` is zero. Infinite if lengths differ, or if an
/// infinity is missing or has the wrong sign; NaN if either side has a NaN.
pub(super) fn relative_l2(have: &[f64], want: &[f64]) -> f64 {
    if have.len() != want.len() {
        return f64::INFINITY;
    }
    // Equal infinities are no difference. Left in, they would make the norm of `want` infinite and hide the
    // rest.
    let pairs = || have.iter().zip(want).filter(|(h, w)| !(h.is_infinite() && h == w));
    let difference = pairs().map(|(h, w)| (h - w) * (h - w)).sum::<f64>().sqrt();
    let size = pairs().map(|(_, w)| w * w).sum::<f64>().sqrt();
    match (difference.is_infinite(), size > 0.0) {
        (true, _) | (_, false) => difference + size,
        (false, true) => difference / size,
    }
}

/// Returns the largest [`relative_l2`] of pairs of tensors; infinite if one side has more tensors.
pub(super) fn worst_tensor(have: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    if have.len() != want.len() {
        return f64::INFINITY;
    }
    worst(have.iter().zip(want).map(|(h, w)| relative_l2(h, w)))
}

/// Compares an op's outputs with its reference like [`worst_tensor`]. An output that the reference leaves
/// empty is scratch and not compared.
pub(super) fn worst_output(have: &[Vec<f64>], want: &[Array]) -> f64 {
    if have.len() != want.len() {
        return f64::INFINITY;
    }
    let compared = have.iter().zip(want).filter(|(_, want)| !want.data.is_empty());
    worst(compared.map(|(have, want)| relative_l2(have, &want.data)))
}

/// Returns 0 if both have the same tensors, bit for bit, and 1 otherwise.
pub(super) fn unequal_bits(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let bits = |tensors: &[Vec<f64>]| -> Vec<Vec<u64>> {
        tensors.iter().map(|tensor| tensor.iter().map(|x| x.to_bits()).collect()).collect()
    };
    f64::from(u8::from(bits(a) != bits(b)))
}

/// Returns the bound on the relative L2 error of a forward. Sums of `depth` terms with random signs lose
/// √depth roundings.
pub(super) fn forward_bound(precision: Precision, depth: usize) -> f64 {
    let sums = (depth.max(16) as f64).sqrt();
    match precision.act_dtype {
        DType::F64 => 8.0 * 2f64.powi(-53) * sums,
        DType::F32 => 4.0 * 2f64.powi(-24) * sums,
        DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::U32 => {
            2.0 * 2f64.powi(-9) + 4.0 * 2f64.powi(-24) * sums
        }
    }
}

/// Returns the bound for gradients, larger than [`forward_bound`] because intermediate tensors are rounded to
/// the narrow format too.
pub(super) fn gradient_bound(precision: Precision, depth: usize) -> f64 {
    let sums = (depth.max(16) as f64).sqrt();
    match precision.act_dtype {
        DType::F64 => 16.0 * 2f64.powi(-53) * sums,
        DType::F32 => 16.0 * 2f64.powi(-24) * sums,
        DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::U32 => {
            6.0 * 2f64.powi(-9) + 16.0 * 2f64.powi(-24) * sums
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_the_worst_wherever_it_stands() {
        for errors in [[f64::NAN, 1.0, 2.0], [1.0, f64::NAN, 2.0], [1.0, 2.0, f64::NAN]] {
            assert!(worst(errors).is_nan(), "{errors:?}");
        }
        assert_eq!(worst([1.0, f64::INFINITY, 2.0]), f64::INFINITY);
        assert_eq!(worst([0.5, 2.0, 1.0]), 2.0);
        assert_eq!(worst([]), 0.0);
    }

    #[test]
    fn infinities_and_lengths_count() {
        let infinite = f64::INFINITY;
        assert_eq!(relative_l2(&[1.0, 2.0], &[1.0]), infinite);
        assert_eq!(relative_l2(&[1.0, infinite], &[1.0, 2.0]), infinite);
        assert_eq!(relative_l2(&[1.0, 2.0], &[1.0, infinite]), infinite);
        assert_eq!(relative_l2(&[-infinite, 2.0], &[infinite, 2.0]), infinite);
        assert_eq!(relative_l2(&[infinite, 3.0], &[infinite, 2.0]), 0.5);
        assert_eq!(relative_l2(&[0.0, 0.5], &[0.0, 0.0]), 0.5);
        assert!(relative_l2(&[f64::NAN], &[0.0]).is_nan());
        assert!(relative_l2(&[0.0], &[f64::NAN]).is_nan());
        assert!(relative_l2(&[f64::NAN, infinite], &[1.0, infinite]).is_nan());
    }

    #[test]
    fn missing_tensors_count() {
        let tensors = [vec![1.0]];
        assert_eq!(worst_tensor(&tensors, &[]), f64::INFINITY);
        assert_eq!(worst_tensor(&[], &tensors), f64::INFINITY);
        assert_eq!(worst_tensor(&tensors, &tensors), 0.0);
    }
}
