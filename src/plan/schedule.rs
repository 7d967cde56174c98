//! The learning rate over steps.

use crate::policy::Decay;

/// Warm-up, then a decay to a fraction of the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// Peak learning rate.
    pub lr: f64,
    /// Number of linear warm-up steps.
    pub warmup: usize,
    /// Number of steps, warm-up included.
    pub steps: usize,
    /// Ratio of the last learning rate to the peak.
    pub min_ratio: f64,
    /// Shape of the decay.
    pub decay: Decay,
    /// Fraction of all steps in the decay phase of `wsd`.
    pub decay_ratio: f64,
}

impl Schedule {
    /// Returns this schedule with another peak.
    #[must_use]
    pub fn with_peak(self, lr: f64) -> Self {
        Self { lr, ..self }
    }

    /// Returns the learning rate of step `t`, from 1.
    ///
    /// Warm-up: `lr·t/warmup`. Then, with `x` the fraction of the decay that is done, the peak is multiplied
    /// by `min + (1 − min)·(1 + cos πx)/2` (cosine; Loshchilov and Hutter, 2017), or by `1 − (1 − min)·x`
    /// (linear); `wsd` stays at the peak and decays linearly over its last `decay_ratio` (Hu et al., MiniCPM,
    /// 2024).
    pub fn at(&self, t: usize) -> f64 {
        if t <= self.warmup {
            return self.lr * t as f64 / self.warmup.max(1) as f64;
        }
        let linear = |x: f64| 1.0 - (1.0 - self.min_ratio) * x;
        let done = |from: f64| ((t as f64 - from) / (self.steps as f64 - from).max(1.0)).clamp(0.0, 1.0);
        let after_warmup = done(self.warmup as f64);
        let factor = match self.decay {
            Decay::Cosine => {
                self.min_ratio
                    + (1.0 - self.min_ratio) * 0.5 * (1.0 + (std::f64::consts::PI * after_warmup).cos())
            }
            Decay::Linear => linear(after_warmup),
            Decay::Wsd => linear(done(self.steps as f64 * (1.0 - self.decay_ratio))),
        };
        self.lr * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(decay: Decay) -> Schedule {
        Schedule { lr: 2.0, warmup: 10, steps: 110, min_ratio: 0.1, decay, decay_ratio: 0.2 }
    }

    #[test]
    fn warms_up_to_the_peak_and_ends_at_the_minimum() {
        for decay in [Decay::Cosine, Decay::Linear, Decay::Wsd] {
            let s = schedule(decay);
            assert_eq!(s.at(5), 1.0);
            assert_eq!(s.at(10), 2.0);
            assert!((s.at(110) - 0.2).abs() < 1e-12, "{decay}: {}", s.at(110));
        }
    }

    #[test]
    fn halfway_points() {
        assert!((schedule(Decay::Cosine).at(60) - 1.1).abs() < 1e-12);
        assert!((schedule(Decay::Linear).at(60) - 1.1).abs() < 1e-12);
        assert_eq!(schedule(Decay::Wsd).at(88), 2.0);
        assert!((schedule(Decay::Wsd).at(99) - 1.1).abs() < 1e-12);
    }

    #[test]
    fn without_warm_up_it_starts_near_the_peak() {
        let s = Schedule { warmup: 0, ..schedule(Decay::Linear) };
        assert!(s.at(1) < 2.0 && s.at(1) > 1.98);
    }
}
