//! Computes the exact probability that t crosses a boundary at any of several looks, and the boundary for a
//! given probability.

use super::super::numeric::{integrate, normal_upper_quantile, root};
use super::super::student::{upper_quantile, upper_tail};
use statrs::function::erf::erfc;
use statrs::function::gamma::ln_gamma;
use std::f64::consts::{FRAC_PI_2, PI, SQRT_2};

/// The smallest one-sided level of a look. Early in a long comparison, O'Brien and Fleming's boundary asks
/// for far less, but so far out, the t of four pairs cannot be trusted to come from normal differences.
const SMALLEST_TAIL: f64 = 1e-9;

/// Returns the boundary of |t| for a look after every pair from `first` to `last`. Normal differences with
/// mean 0 cross it with probability `error`, to within 0.2 % of `error`.
///
/// For means with a known deviation, the boundary of O'Brien and Fleming ("A Multiple Testing Procedure for
/// Clinical Trials", 1979) at n of N pairs is |z| = C √(N / n). Wang and Tsiatis ("Approximately Optimal
/// One-Parameter Boundaries for Group Sequential Trials", 1987) generalize it to C (N / n)^exponent:
/// `exponent` 0.5 is O'Brien and Fleming's, 0 is Pocock's. The tail beyond z at a look becomes the tail of t
/// with n - 1 degrees of freedom (Pocock, "Group sequential methods in the design and analysis of clinical
/// trials", 1977; Jennison and Turnbull, "Group Sequential Methods with Applications to Clinical Trials",
/// 2000, chapter 3). C is chosen such that [`crossing_probability`] is `error`.
pub fn boundary(first: usize, last: usize, error: f64, exponent: f64) -> Vec<f64> {
    let with_constant = |constant: f64| -> Vec<f64> {
        let at = |n: usize| {
            let z = constant * (last as f64 / n as f64).powf(exponent);
            upper_quantile((n - 1) as f64, (0.5 * erfc(z / SQRT_2)).max(SMALLEST_TAIL))
        };
        (first..=last).map(at).collect()
    };
    // A single look at this constant would be crossed with probability `error`.
    let lowest = normal_upper_quantile(0.5 * error);
    let excess = |constant: f64| crossing_probability(first, &with_constant(constant)).ln() - error.ln();
    with_constant(root(lowest, lowest + 2.0, excess))
}

/// Returns the probability that the |t| of normal differences with mean 0 reaches the boundary at any look.
/// `boundary[k]` is for the look after `first + k` pairs. Every boundary must be above 1.
///
/// Let S be the sum and Q the sum of squares of n differences, and u = S / √Q. Then t = u √((n - 1) / (n -
/// u²)). The direction of the vector of differences is uniform and independent of its length, so the next u
/// depends only on this u. It is u cos φ + sin φ, where √n tan φ is the next difference over √(Q / n) and has
/// Student's distribution with n degrees of freedom. The probability of a later crossing, as a function of u,
/// is computed backward from the last look; Armitage, McPherson and Rowe do the same forward for z ("Repeated
/// Significance Tests on Accumulating Data", 1969).
pub fn crossing_probability(first: usize, boundary: &[f64]) -> f64 {
    let to_u = |k: usize| {
        let (n, t) = ((first + k) as f64, boundary[k]);
        t * (n / (n - 1.0 + t * t)).sqrt()
    };
    let Some(last) = boundary.len().checked_sub(1) else { return 0.0 };
    let mut later = LaterCrossing { bound: to_u(last), values: vec![0.0; NODES + 1] };
    for k in (0..last).rev() {
        let bound = to_u(k);
        let step = Step::after(first + k);
        let values =
            (0..=NODES).map(|node| step.crossing(LaterCrossing::node(bound, node), &later)).collect();
        later = LaterCrossing { bound, values };
    }
    // At the first look, t = √(n - 1) tan θ, so u = √n sin θ.
    let (n, freedom) = (first as f64, (first - 1) as f64);
    let angle = (boundary[0] / freedom.sqrt()).atan();
    let density = AngleDensity::new(freedom);
    let inside = integrate(0.0, angle, 4, |theta| density.at(theta) * later.at(n.sqrt() * theta.sin()));
    2.0 * (upper_tail(boundary[0], freedom) + inside)
}

/// Number of nodes of the function [`LaterCrossing`], in addition to the node at 0.
const NODES: usize = 64;

/// The probability of a crossing at a later look, as an even function of u within ± `bound`.
///
/// With u = bound · sin ψ, the function of ψ is even about both ends of [0, π/2] and changes slowly near the
/// bound. Between nodes, it is interpolated by the cubic through the nearest four.
struct LaterCrossing {
    bound: f64,
    values: Vec<f64>,
}

impl LaterCrossing {
    fn node(bound: f64, node: usize) -> f64 {
        bound * (FRAC_PI_2 * node as f64 / NODES as f64).sin()
    }

    fn at(&self, u: f64) -> f64 {
        let x = (u.abs() / self.bound).min(1.0).asin() * NODES as f64 / FRAC_PI_2;
        let below = (x.floor() as usize).min(NODES - 1);
        let f = x - below as f64;
        let value = |offset: isize| {
            let node = (below as isize + offset).unsigned_abs();
            self.values[if node > NODES { 2 * NODES - node } else { node }]
        };
        let (a, b, c, d) = (value(-1), value(0), value(1), value(2));
        let (back, on) = (f + 1.0, 1.0 - f);
        // Lagrange's polynomial through -1, 0, 1, 2.
        -a * f * on * (2.0 - f) / 6.0 + b * back * on * (2.0 - f) / 2.0 + c * back * f * (2.0 - f) / 2.0
            - d * back * f * on / 6.0
    }
}

/// Density of the angle whose tangent is t / √ν, for t with ν degrees of freedom. It is proportional to
/// cos^(ν - 1).
struct AngleDensity {
    scale: f64,
    power: f64,
}

impl AngleDensity {
    fn new(freedom: f64) -> Self {
        let scale = ln_gamma(0.5 * (freedom + 1.0)) - ln_gamma(0.5 * freedom) - 0.5 * PI.ln();
        Self { scale: scale.exp(), power: freedom - 1.0 }
    }

    fn at(&self, angle: f64) -> f64 {
        self.scale * angle.cos().powf(self.power)
    }
}

/// The step from u after n differences to u after n + 1.
struct Step {
    n: f64,
    density: AngleDensity,
    /// Beyond this angle from 0, the density is below e^-25 of its maximum.
    reach: f64,
}

impl Step {
    fn after(n: usize) -> Self {
        let density = AngleDensity::new(n as f64);
        let reach = (-25.0 / density.power).exp().acos();
        Self { n: n as f64, density, reach }
    }

    /// Returns the probability of a crossing at the next look or later, for a `u` of at least 0.
    fn crossing(&self, u: f64, later: &LaterCrossing) -> f64 {
        // u cos φ + sin φ = √(1 + u²) sin(φ + δ).
        let (radius, delta) = (u.hypot(1.0), u.atan());
        let inside = |low: f64, high: f64, pieces: usize| {
            let next = |phi: f64| later.at(radius * (phi + delta).sin());
            integrate(low, high, pieces, |phi| self.density.at(phi) * next(phi))
        };
        if radius <= later.bound {
            return inside(-self.reach, self.reach, 2);
        }
        // A bound above 1 is crossed between two angles, and only on the side of u: at φ = ±π/2 the next u is
        // ±1. Above the second angle, the next difference is so large that it increases Q more than S.
        let at_bound = (later.bound / radius).asin();
        let (from, to) = (at_bound - delta, PI - at_bound - delta);
        let tail = |angle: f64| upper_tail(self.n.sqrt() * angle.tan(), self.n);
        tail(from) - tail(to)
            + inside(-self.reach, from.min(self.reach), 2)
            + inside(to.max(-self.reach), self.reach, 1)
    }
}

#[cfg(test)]
mod tests;
