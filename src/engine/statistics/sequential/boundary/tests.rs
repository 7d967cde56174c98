//! Tests the exact error of boundaries against known values; simulated paths are in
//! `tests/campaign/verdicts`.

use super::*;

#[test]
fn one_look_errs_as_students_t_does() {
    for (pairs, error) in [(4, 0.05), (13, 0.01), (200, 0.1)] {
        let bound = upper_quantile((pairs - 1) as f64, 0.5 * error);
        assert!((crossing_probability(pairs, &[bound]) - error).abs() < 1e-10, "{pairs}");
        let calibrated = boundary(pairs, pairs, error, 0.5);
        assert!((calibrated[0] / bound - 1.0).abs() < 1e-6, "{pairs}: {calibrated:?} {bound}");
    }
    assert_eq!(crossing_probability(4, &[]), 0.0);
}

/// A second look that never stops adds nothing, and one that always stops adds the rest.
#[test]
fn looks_that_are_certain_add_what_is_certain() {
    let bound = upper_quantile(3.0, 0.025);
    for boundary in [[bound, 1e6, 1e6], [1e6, 1e6, upper_quantile(5.0, 0.025)]] {
        let found = crossing_probability(4, &boundary);
        assert!((found - 0.05).abs() < 1e-4, "{boundary:?}: {found}");
    }
}

#[test]
fn a_boundary_has_its_error() {
    for (last, exponent) in [(6, 0.5), (13, 0.5), (13, 0.0), (44, 0.25)] {
        let bounds = boundary(4, last, 0.05, exponent);
        assert!((crossing_probability(4, &bounds) - 0.05).abs() < 2e-6, "{last} {exponent}");
    }
}

/// For many pairs, the constants approach those for a known deviation. The tables of O'Brien and Fleming and
/// of Pocock, for looks at equal distances, converge to the values for a look after every pair from above and
/// below.
#[test]
fn boundaries_have_their_shape() {
    let bounds = boundary(4, 200, 0.05, 0.5);
    assert!(bounds.windows(2).all(|pair| pair[1] < pair[0]), "ever lower");
    // For Brownian motion, the constant is the quantile of a fourth of the error, 2.2414. Looking only every
    // 200th of the way misses crossings in between, so it is lower by about 0.583 / √200 (Siegmund 1985).
    let last = *bounds.last().unwrap();
    assert!((2.17..2.24).contains(&last), "{last}");
    let (strict, loose) = (boundary(4, 44, 0.01, 0.5), boundary(4, 44, 0.05, 0.5));
    assert!(strict.iter().zip(&loose).all(|(strict, loose)| strict >= loose));
    assert!(strict[40] > 1.2 * loose[40], "{} {}", strict[40], loose[40]);
}
