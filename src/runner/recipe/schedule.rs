//! The learning rate over steps.

use super::{LrScheduler, derived};
use crate::policy::{Cooldown, Decay, OrFormula};

/// Warm-up, then a decay to a fraction of the peak.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Peak learning rate.
    pub lr: f64,
    /// Number of steps, warm-up included.
    pub steps: usize,
    /// Warm-up, and shape and length of the decay.
    pub shape: LrScheduler,
}

impl Schedule {
    /// Returns this schedule with another peak.
    #[must_use]
    pub fn with_peak(self, lr: f64) -> Self {
        Self { lr, ..self }
    }

    /// Returns the learning rate of step `t`, counted from 1.
    ///
    /// During the warm-up it is `lr·t/warmup`. After that, with `x` the fraction of the decay that is done,
    /// the peak is multiplied by a factor that falls from 1 to `min`:
    ///
    /// - cosine: `min + (1 − min)·(1 + cos πx)/2` (Loshchilov and Hutter, 2017);
    /// - linear: `1 − (1 − min)·x`;
    /// - one_minus_sqrt: `min + (1 − min)·(1 − √x)` (Hägele et al., "Scaling laws and compute-optimal
    ///   training beyond fixed training durations", 2024);
    /// - exponential: `min^x` (the annealing of Hu et al., MiniCPM, 2024);
    /// - `wsd` stays at the peak; its last steps, `decay_ratio` of all or `decay_steps`, decay by one of
    ///   these shapes (MiniCPM).
    ///
    /// A formula of `x` replaces `(1 + cos πx)/2` in the cosine.
    pub fn at(&self, t: usize) -> f64 {
        let warmup = derived::warmup_steps(&self.shape, self.steps);
        if t <= warmup {
            return self.lr * t as f64 / warmup.max(1) as f64;
        }
        let done = |from: f64| ((t as f64 - from) / (self.steps as f64 - from).max(1.0)).clamp(0.0, 1.0);
        let after_warmup = done(warmup as f64);
        let factor = match &self.shape.decay {
            OrFormula::Word(Decay::Cosine) => self.factor(Cooldown::Cosine, after_warmup),
            OrFormula::Word(Decay::Linear) => self.factor(Cooldown::Linear, after_warmup),
            OrFormula::Word(Decay::OneMinusSqrt) => self.factor(Cooldown::OneMinusSqrt, after_warmup),
            OrFormula::Word(Decay::Exponential) => self.factor(Cooldown::Exponential, after_warmup),
            OrFormula::Word(Decay::Wsd) => self.factor(self.shape.cooldown, done(self.decay_start())),
            OrFormula::Formula(formula) => {
                // The recipe's checks ensure that only rounding can leave 0 to 1.
                let share = formula.value(&[after_warmup]).clamp(0.0, 1.0);
                self.shape.min_lr_ratio + (1.0 - self.shape.min_lr_ratio) * share
            }
        };
        self.lr * factor
    }

    /// Returns the step after which `wsd` starts to decay.
    fn decay_start(&self) -> f64 {
        match self.shape.decay_steps {
            Some(steps) => self.steps.saturating_sub(steps) as f64,
            None => self.steps as f64 * (1.0 - self.shape.decay_ratio),
        }
    }

    /// Returns the factor of the peak at the fraction `x` of a decay.
    fn factor(&self, shape: Cooldown, x: f64) -> f64 {
        let min = self.shape.min_lr_ratio;
        match shape {
            Cooldown::Linear => 1.0 - (1.0 - min) * x,
            Cooldown::OneMinusSqrt => min + (1.0 - min) * (1.0 - x.sqrt()),
            Cooldown::Exponential => min.powf(x),
            Cooldown::Cosine => min + (1.0 - min) * 0.5 * (1.0 + (std::f64::consts::PI * x).cos()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Formula, Scope};

    fn schedule(decay: impl Into<OrFormula<Decay>>) -> Schedule {
        Schedule {
            lr: 2.0,
            steps: 110,
            shape: LrScheduler {
                warmup_steps: Some(10),
                min_lr_ratio: 0.1,
                decay: decay.into(),
                decay_ratio: 0.2,
                decay_steps: None,
                cooldown: Cooldown::Linear,
                ..LrScheduler::default()
            },
        }
    }

    fn with(schedule: Schedule, change: impl FnOnce(&mut LrScheduler)) -> Schedule {
        let mut schedule = schedule;
        change(&mut schedule.shape);
        schedule
    }

    #[test]
    fn warms_up_to_the_peak_and_ends_at_the_minimum() {
        for &decay in Decay::ALL {
            for &cooldown in Cooldown::ALL {
                let s = with(schedule(decay), |shape| shape.cooldown = cooldown);
                assert_eq!(s.at(5), 1.0);
                assert_eq!(s.at(10), 2.0);
                assert!((s.at(110) - 0.2).abs() < 1e-12, "{decay} {cooldown}: {}", s.at(110));
                assert!((10..110).all(|t| s.at(t + 1) <= s.at(t)), "{decay} {cooldown} rises");
            }
        }
    }

    #[test]
    fn halfway_points() {
        let half = |decay| schedule(decay).at(60);
        assert!((half(Decay::Cosine) - 1.1).abs() < 1e-12);
        assert!((half(Decay::Linear) - 1.1).abs() < 1e-12);
        assert!((half(Decay::OneMinusSqrt) - 2.0 * (0.1 + 0.9 * (1.0 - 0.5f64.sqrt()))).abs() < 1e-12);
        assert!((half(Decay::Exponential) - 2.0 * 0.1f64.sqrt()).abs() < 1e-12);
        assert_eq!(schedule(Decay::Wsd).at(88), 2.0);
        assert!((schedule(Decay::Wsd).at(99) - 1.1).abs() < 1e-12);
    }

    #[test]
    fn a_decay_phase_in_steps_begins_after_a_whole_step() {
        for &cooldown in Cooldown::ALL {
            let s = with(schedule(Decay::Wsd), |shape| {
                (shape.decay_steps, shape.cooldown) = (Some(30), cooldown);
            });
            assert_eq!((s.at(11), s.at(80)), (2.0, 2.0), "{cooldown}");
            assert!(s.at(81) < 2.0, "{cooldown}");
            let whole = Schedule { steps: 40, ..schedule(Decay::Linear) };
            let same = with(s, |shape| shape.cooldown = Cooldown::Linear);
            assert!((11..=40).all(|t| (same.at(t + 70) - whole.at(t)).abs() < 1e-12));
        }
    }

    #[test]
    fn a_formula_is_of_the_share_after_the_warm_up() {
        let formula = |text| OrFormula::Formula(Formula::parse(text, Scope::Schedule).unwrap());
        let (cosine, same) = (schedule(Decay::Cosine), schedule(formula("(1 + cos(pi * t)) / 2")));
        assert!((1..=110).all(|t| (cosine.at(t) - same.at(t)).abs() < 1e-15));
        let root = schedule(formula("1 - sqrt(t)"));
        assert_eq!([10, 35, 110].map(|t| root.at(t)), [2.0, 2.0 * (0.1 + 0.9 * 0.5), 0.2]);
        assert!((schedule(formula("1")).at(110) - 2.0).abs() < 1e-15, "constant");
    }

    #[test]
    fn without_warm_up_it_starts_near_the_peak() {
        let s = with(schedule(Decay::Linear), |shape| shape.warmup_steps = Some(0));
        assert!(s.at(1) < 2.0 && s.at(1) > 1.98);
    }
}
