//! The polynomials by which Muon brings singular values near 1.

/// Coefficients of an odd quintic polynomial: a singular value s becomes `a·s + b·s³ + c·s⁵`.
pub type Quintic = [f64; 3];

/// The polynomial of Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
/// <https://kellerjordan.github.io/posts/muon/>, as in PyTorch's `torch.optim.Muon`: while singular values end
/// between 0.5 and 1.5, the slope at 0 is as large as possible.
const NEWTON_SCHULZ: Quintic = [3.4445, -4.7750, 2.0315];

/// The smallest singular value that Polar Express brings to 1, as a share of the largest one.
const SMALLEST: f64 = 1e-3;

/// The lower end of the range for which a polynomial is optimal, as a share of the upper end, at least. With
/// it, polynomials do not decrease anywhere, which lower ends near 0 would make them do.
const CUSHION: f64 = 0.024_073_274_242_827_61;

/// The factor between the bound of singular values that the polynomials assume and the computed one, so that
/// rounding does not lead out of their range.
pub(super) const SAFETY: f64 = 1.01;

/// Returns the polynomials of `steps` Newton–Schulz iterations: one for all.
pub(super) fn newton_schulz(steps: usize) -> Vec<Quintic> {
    vec![NEWTON_SCHULZ; steps]
}

/// Returns the polynomials of `steps` iterations of Polar Express (Amsel, Persson, Musco and Gower, "The Polar
/// Express: Optimal matrix sign methods and their application to the Muon algorithm", 2025, arXiv 2505.16932,
/// algorithms 1 to 3). Each is, among odd quintics, the one closest to 1 on the range that the polynomials
/// before it leave of `[SMALLEST, 1]`. All but the last are for arguments that are [`SAFETY`] times too large.
pub(super) fn polar_express(steps: usize) -> Vec<Quintic> {
    let (mut lower, mut upper) = (SMALLEST, 1.0);
    let mut polynomials = Vec::new();
    for step in 1..=steps {
        let mut polynomial = closest_to_one(lower.max(CUSHION * upper), upper);
        if lower < CUSHION * upper {
            // The range starts below the one that the polynomial is optimal for: center its values there on 1.
            let middle = (value(polynomial, lower) + value(polynomial, upper)) / 2.0;
            polynomial = polynomial.map(|coefficient| coefficient / middle);
        }
        lower = value(polynomial, lower);
        upper = 2.0 - lower;
        let safety = if step < steps { SAFETY } else { 1.0 };
        let [a, b, c] = polynomial;
        polynomials.push([a / safety, b / safety.powi(3), c / safety.powi(5)]);
    }
    polynomials
}

fn value([a, b, c]: Quintic, s: f64) -> f64 {
    s * (a + s * s * (b + s * s * c))
}

/// Returns the odd quintic whose largest distance from 1 on `[lower, upper]` is smallest. Its distances at the
/// two ends and at its two extrema between them have one size and alternating signs (Remez's algorithm).
fn closest_to_one(lower: f64, upper: f64) -> Quintic {
    if lower / upper >= 1.0 - 5e-6 {
        // The limit of a narrow range: slope and curvature vanish at `upper`.
        return [15.0 / 8.0 / upper, -10.0 / 8.0 / upper.powi(3), 3.0 / 8.0 / upper.powi(5)];
    }
    // The extrema of the limit of a narrow range.
    let mut extrema = [(3.0 * lower + upper) / 4.0, (lower + 3.0 * upper) / 4.0];
    let mut before = f64::INFINITY;
    loop {
        let points = [lower, extrema[0], extrema[1], upper];
        let rows = [0, 1, 2, 3].map(|i| {
            let (s, sign) = (points[i], if i % 2 == 0 { 1.0 } else { -1.0 });
            [s, s.powi(3), s.powi(5), sign, 1.0]
        });
        let [a, b, c, distance] = solve(rows);
        // The distance grows up to the largest one, but for rounding.
        if (distance - before).abs() <= 1e-15 {
            return [a, b, c];
        }
        before = distance;
        let root = (9.0 * b * b - 20.0 * a * c).sqrt();
        extrema = [-root, root].map(|root| ((root - 3.0 * b) / (10.0 * c)).sqrt());
    }
}

/// Solves four linear equations, each a row of four coefficients and the right-hand side, by elimination.
fn solve(mut rows: [[f64; 5]; 4]) -> [f64; 4] {
    for column in 0..4 {
        let pivot = (column..4).max_by(|&i, &j| rows[i][column].abs().total_cmp(&rows[j][column].abs()));
        rows.swap(column, pivot.unwrap_or(column));
        let pivot = rows[column];
        for row in &mut rows[column + 1..] {
            let factor = row[column] / pivot[column];
            for (x, p) in row.iter_mut().zip(pivot) {
                *x -= factor * p;
            }
        }
    }
    let mut solution = [0.0; 4];
    for i in (0..4).rev() {
        let rest: f64 = (i + 1..4).map(|j| rows[i][j] * solution[j]).sum();
        solution[i] = (rows[i][4] - rest) / rows[i][i];
    }
    solution
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The coefficients that the paper prints, before its factor of safety.
    const PRINTED: [Quintic; 7] = [
        [8.287_212_018_145_63, -23.595_886_519_098_837, 17.300_387_312_530_933],
        [4.107_059_111_542_203, -2.947_849_917_378_710_6, 0.544_843_108_292_660_1],
        [3.948_690_853_482_294_6, -2.908_902_115_962_949, 0.551_819_139_437_013_7],
        [3.318_419_657_370_601_5, -2.488_488_024_314_874, 0.510_048_940_123_72],
        [2.300_652_019_954_817, -1.668_903_984_574_749_3, 0.418_807_311_952_567_3],
        [1.891_301_407_787_398, -1.267_995_827_194_586_8, 0.376_804_089_485_248_35],
        [1.875_001_480_853_447_9, -1.250_001_645_399_948_7, 0.375_000_164_547_424_8],
    ];

    #[test]
    fn polar_express_has_the_papers_coefficients() {
        for (step, (ours, printed)) in polar_express(8).into_iter().zip(PRINTED).enumerate() {
            for (power, (ours, printed)) in [1, 3, 5].into_iter().zip(ours.into_iter().zip(printed)) {
                let printed = printed / SAFETY.powi(power);
                assert!((ours / printed - 1.0).abs() < 1e-9, "step {step}, s^{power}: {ours}, {printed}");
            }
        }
        assert_eq!(polar_express(99).last(), Some(&[1.875, -1.25, 0.375]));
    }

    #[test]
    fn five_steps_bring_singular_values_nearer_to_one_than_newton_schulz() {
        let farthest = |polynomials: Vec<Quintic>, safety: f64| {
            let end = |s: f64| polynomials.iter().fold(s / safety, |s, &polynomial| value(polynomial, s));
            (3..=1000).map(|s| (end(f64::from(s) / 1000.0) - 1.0).abs()).fold(0.0, f64::max)
        };
        assert!(farthest(newton_schulz(5), 1.0) > 0.3);
        assert!(farthest(polar_express(5), SAFETY) < 0.13);
    }

    #[test]
    fn solves_equations_whose_first_pivot_is_zero() {
        let rows = [
            [0.0, 1.0, 0.0, 0.0, 2.0],
            [1.0, 0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 0.0, 4.0, 16.0],
            [0.0, 0.0, 3.0, 1.0, 13.0],
        ];
        assert_eq!(solve(rows), [1.0, 2.0, 3.0, 4.0]);
    }
}
