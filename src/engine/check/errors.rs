//! Distances between computed and expected tensors. All preserve NaN, which `f64::max` drops.

use crate::device::DType;
use crate::ir::{Array, Precision};

/// The error of an element whose sum is narrow, as a share of the sum of the magnitudes of its terms.
const NARROW_TERMS: f64 = 1.0 / 4096.0;

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

/// Returns the largest error of an element as a fraction of its bound, `of_value·|want| +
/// of_terms·magnitude`, where `magnitude` is the sum of the magnitudes of the element's terms. Infinite if
/// lengths differ; NaN if either side has a NaN.
pub(super) fn worst_element(
    have: &[Vec<f64>],
    want: &[Array],
    magnitudes: &[Array],
    [of_value, of_terms]: [f64; 2],
) -> f64 {
    let lengths = |arrays: &[Array]| arrays.iter().map(|array| array.data.len()).collect::<Vec<_>>();
    let found: Vec<usize> = have.iter().map(Vec::len).collect();
    if found != lengths(want) || found != lengths(magnitudes) {
        return f64::INFINITY;
    }
    let tensors = have.iter().zip(want).zip(magnitudes);
    let elements = tensors.flat_map(|((have, want), terms)| have.iter().zip(&want.data).zip(&terms.data));
    worst(elements.map(|((have, want), terms)| {
        let error = (have - want).abs();
        if error == 0.0 { 0.0 } else { error / (of_value * want.abs() + of_terms * terms) }
    }))
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

/// Returns the factors of an element's bound: that of its value, which is rounded once (by half of the step
/// between numbers, 2⁻⁸ of it in bf16), and that of the sum of the magnitudes of its terms, `depth` of which
/// are summed (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1).
///
/// `narrow` is for sums on GPUs of products of 8-bit floats. Hopper aligns 32 products to the largest of them
/// and keeps 13 bits after its leading bit (DeepSeek-V3 technical report, 2024, section 3.5.2), so each loses
/// at most 2⁻¹³ of the largest, with its sign: errors of both signs cancel. The bound is 2⁻¹² of the sum of
/// magnitudes; the cases reach half of that on an H200.
pub(super) fn element_bound(precision: Precision, depth: usize, narrow: bool) -> [f64; 2] {
    let roundoff = |dtype: DType| match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F32 | DType::U32 => 2f64.powi(-24),
        DType::Bf16 => 2f64.powi(-8),
        DType::E4m3 => 2f64.powi(-4),
        DType::E5m2 => 2f64.powi(-3),
    };
    let (value, sums) = (roundoff(precision.act_dtype), roundoff(precision.act_dtype.accumulator()));
    [value * (1.0 + value), if narrow { NARROW_TERMS } else { (depth + 2) as f64 * sums }]
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
    fn a_single_element_counts() {
        let array = |data: &[f64]| vec![Array { shape: vec![data.len()], data: data.to_vec() }];
        let mut have = vec![vec![1.0; 100]];
        let (want, terms) = (array(&[1.0; 100]), array(&[50.0; 100]));
        let [of_value, of_terms] = element_bound(Precision::for_act_dtype(DType::Bf16), 4096, true);
        let worst = |have: &[Vec<f64>]| worst_element(have, &want, &terms, [of_value, of_terms]);
        assert_eq!(worst(&have), 0.0);
        have[0][7] = 1.0 + 0.9 * (of_value + 50.0 * of_terms);
        assert!((worst(&have) - 0.9).abs() < 1e-9);
        have[0][7] = 1.02;
        assert!(worst(&have) > 1.0, "{}", worst(&have));
        have[0][7] = f64::NAN;
        assert!(worst(&have).is_nan());
        assert_eq!(worst(&[vec![1.0; 99]]), f64::INFINITY);
        assert_eq!(worst_element(&have, &want, &array(&[1.0]), [of_value, of_terms]), f64::INFINITY);
    }

    /// An element without terms has no error at all.
    #[test]
    fn an_error_without_a_bound_is_infinite() {
        let zero = [Array::zeros(&[1])];
        assert_eq!(worst_element(&[vec![1e-30]], &zero, &zero, [0.5, 0.5]), f64::INFINITY);
        assert_eq!(worst_element(&[vec![0.0]], &zero, &zero, [0.5, 0.5]), 0.0);
    }

    #[test]
    fn missing_tensors_count() {
        let tensors = [vec![1.0]];
        assert_eq!(worst_tensor(&tensors, &[]), f64::INFINITY);
        assert_eq!(worst_tensor(&[], &tensors), f64::INFINITY);
        assert_eq!(worst_tensor(&tensors, &tensors), 0.0);
    }
}
