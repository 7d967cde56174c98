//! The arithmetic of one row of logits on the CPU.

use super::objective::{IGNORED, Objective};
use crate::device::{Elem, Real};
use crate::ops::lanes::{max, replace_and_sum, sum};

/// A row of logits in scratch memory, with its objective.
pub(in crate::ops) struct Row<A> {
    /// The row without padding: stored logits, which [`Row::losses`] replaces by `e^(l - max l)`.
    pub logits: Vec<A>,
    /// `dl/dz` of every logit with a cap; empty without one.
    slopes: Vec<A>,
    scale: A,
    cap: Option<A>,
    /// The factor of tanh's argument.
    inner: A,
    z_loss: A,
    smoothing: A,
    /// Number of words in the vocabulary.
    count: A,
}

/// The losses of a row, and the sums that its gradient needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::ops) struct RowLosses<A> {
    /// Cross-entropy.
    pub plain: A,
    /// The z-loss, including its factor.
    pub z_loss: A,
    /// The smoothing loss.
    pub smoothing: A,
    /// `Σ e^(l - max l)`.
    sum: A,
    /// `ln Σ e^l`.
    log_total: A,
}

/// Upstream gradients of the losses of a row.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Upstreams<A> {
    /// The gradient of cross-entropy.
    pub plain: A,
    /// The gradient of the z-loss.
    pub z_loss: A,
    /// The gradient of the smoothing loss.
    pub smoothing: A,
}

impl<A: Real> Upstreams<A> {
    /// Returns the upstream gradients of `scale` times the sum of all losses.
    pub fn all(scale: A) -> Self {
        Self { plain: scale, z_loss: scale, smoothing: scale }
    }
}

impl<A: Real> Row<A> {
    /// Creates a row of `vocab` zeros.
    pub fn new(objective: &Objective, vocab: usize) -> Self {
        let slopes = if objective.logit_cap.is_some() { vocab } else { 0 };
        Self {
            logits: vec![A::ZERO; vocab],
            slopes: vec![A::ZERO; slopes],
            scale: A::from_f64(objective.logit_scale),
            cap: objective.logit_cap.map(A::from_f64),
            inner: A::from_f64(objective.logit_scale / objective.logit_cap.unwrap_or(1.0)),
            z_loss: A::from_f64(objective.z_loss),
            smoothing: A::from_f64(objective.label_smoothing),
            count: A::from_f64(vocab as f64),
        }
    }

    /// Replaces stored logits by the logits that the losses see.
    #[inline(always)]
    fn transform(&mut self) {
        if let Some(cap) = self.cap {
            for (logit, slope) in self.logits.iter_mut().zip(&mut self.slopes) {
                let t = (self.inner * *logit).tanh();
                *logit = cap * t;
                *slope = self.scale * (A::ONE - t * t);
            }
        } else if self.scale != A::ONE {
            self.logits.iter_mut().for_each(|logit| *logit *= self.scale);
        }
    }

    /// Returns the losses of stored logits. The row then holds `e^(l - max l)`.
    #[inline(always)]
    pub fn losses(&mut self, target: u32) -> RowLosses<A> {
        let [zero, one] = [A::ZERO, A::ONE];
        if target == IGNORED {
            return RowLosses { plain: zero, z_loss: zero, smoothing: zero, sum: one, log_total: zero };
        }
        self.transform();
        let row = &mut self.logits[..];
        let highest = max(row);
        let wanted = row[target as usize];
        let smoothing =
            if self.smoothing == zero { zero } else { self.smoothing * (wanted - sum(row) / self.count) };
        let sum = replace_and_sum(row, |x| (x - highest).exp());
        let log_total = sum.ln() + highest;
        let z_loss = if self.z_loss == zero { zero } else { self.z_loss * log_total * log_total };
        RowLosses { plain: sum.ln() + (highest - wanted), z_loss, smoothing, sum, log_total }
    }

    /// Writes the gradient of the stored logits of a row in the state in which [`Row::losses`] leaves it.
    /// Padding becomes zero.
    ///
    /// With `p = softmax(l)` it is `dl/dz` times `p·(d + 2c·ln Σ e^l·d_z) - onehot·(d - s·d_s) - s·d_s/V`.
    #[inline(always)]
    pub fn gradient<E: Elem<Acc = A>>(
        &mut self,
        of: &RowLosses<A>,
        target: u32,
        d: Upstreams<A>,
        to: &mut [E],
    ) {
        let row = &mut self.logits[..];
        let (to, padding) = to.split_at_mut(row.len());
        padding.fill(E::default());
        if target == IGNORED {
            return to.fill(E::default());
        }
        let (mut softmax_grad, mut target_grad) = (d.plain, d.plain);
        if self.z_loss != A::ZERO {
            softmax_grad += (self.z_loss + self.z_loss) * of.log_total * d.z_loss;
        }
        let factor = softmax_grad / of.sum;
        row.iter_mut().for_each(|x| *x *= factor);
        if self.smoothing != A::ZERO {
            let spread = self.smoothing * d.smoothing;
            let uniform = spread / self.count;
            row.iter_mut().for_each(|x| *x -= uniform);
            target_grad -= spread;
        }
        row[target as usize] -= target_grad;
        if self.cap.is_some() {
            row.iter_mut().zip(&self.slopes).for_each(|(x, slope)| *x *= *slope);
        } else if self.scale != A::ONE {
            row.iter_mut().for_each(|x| *x *= self.scale);
        }
        for (to, x) in to.iter_mut().zip(row) {
            *to = E::down(*x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row<A: Real>(objective: &Objective, logits: &[A]) -> Row<A> {
        let mut row = Row::new(objective, logits.len());
        row.logits.copy_from_slice(logits);
        row
    }

    const EVERYTHING: Objective =
        Objective { logit_scale: 2.0, logit_cap: Some(15.0), z_loss: 1e-4, label_smoothing: 0.1 };

    #[test]
    fn huge_logits_do_not_overflow() {
        let mut row = row(&Objective::PLAIN, &[1e30f32, -1e30, 0.0]);
        let losses = row.losses(0);
        assert_eq!((losses.sum, losses.plain, &row.logits[..]), (1.0, 0.0, &[1.0, 0.0, 0.0][..]));
        let mut d = [9.0f32; 4];
        row.gradient(&losses, 2, Upstreams::all(0.5), &mut d);
        assert_eq!(d, [0.5, 0.0, -0.5, 0.0]);
    }

    #[test]
    fn an_ignored_row_has_no_losses_and_no_gradient() {
        for objective in [Objective::PLAIN, EVERYTHING] {
            let mut row = row(&objective, &[1.0f64, 2.0]);
            let losses = row.losses(IGNORED);
            assert_eq!([losses.plain, losses.z_loss, losses.smoothing], [0.0; 3]);
            let mut d = [9.0f64; 3];
            row.gradient(&losses, IGNORED, Upstreams::all(1.0), &mut d);
            assert_eq!(d, [0.0; 3]);
        }
    }

    #[test]
    fn nan_logits_show() {
        for objective in [Objective::PLAIN, EVERYTHING] {
            assert!(row(&objective, &[0.0f32, f32::NAN]).losses(0).plain.is_nan());
        }
    }

    /// If every word has the same logit, smoothing costs nothing, and `ln Σ e^l` is `l + ln V`.
    #[test]
    fn terms_of_equal_logits() {
        let logit = 15.0 * (2.0 * 3.0 / 15.0f64).tanh();
        let losses = row(&EVERYTHING, &[3.0f64; 8]).losses(5);
        assert!((losses.plain - 8f64.ln()).abs() < 1e-14);
        assert!((losses.z_loss - 1e-4 * (logit + 8f64.ln()).powi(2)).abs() < 1e-16);
        assert!(losses.smoothing.abs() < 1e-15);
    }

    /// Far beyond the cap, logits do not move the losses: their gradient is 0, not NaN.
    #[test]
    fn logits_beyond_the_cap_have_no_gradient() {
        let mut row = row(&EVERYTHING, &[1e30f32, -1e30, 0.0]);
        let losses = row.losses(1);
        assert!((losses.plain - 30.0).abs() < 1e-4, "{losses:?}");
        let mut d = [9.0f32; 3];
        row.gradient(&losses, 1, Upstreams::all(1.0), &mut d);
        assert_eq!(d[..2], [0.0, 0.0]);
    }
}
