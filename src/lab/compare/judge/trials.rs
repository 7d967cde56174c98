//! Judges alternating trials: the ratio of the arms, its interval, and the verdict.
//!
//! Steps of one run are autocorrelated, and runs differ from each other more than their blocks do (Kalibera
//! and Jones, "Rigorous Benchmarking in Reasonable Time", 2013). So each run counts once: its value is the
//! median of its blocks, and the interval comes from the scatter of these values.

use crate::compare::measured::SPEED;
use crate::format::significant;
use crate::results::experiment::{BASELINE, CANDIDATE, Experiment, VerdictBasis};
use crate::results::quantiles::median;
use crate::statistics::{Interval, Verdict, two_sided_quantile, variance};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Number of blocks that the steady state of a run is cut into.
pub const BLOCKS: usize = 10;

/// A run with fewer blocks than this is not judged.
const MIN_BLOCKS: usize = 5;

/// Resamples of the bootstrap; 2000 give the standard error to about 2 %.
const RESAMPLES: usize = 2000;

/// Seed of the bootstrap, fixed so that equal blocks give equal intervals.
const SEED: u64 = 2013;

/// Probability that the interval contains the true ratio.
pub const CONFIDENCE: f64 = 0.95;

/// Describes in words how the interval and the verdict follow from the trials.
pub fn rule(min_effect: f64) -> String {
    let percent = significant(100.0 * min_effect);
    format!(
        "the steady state of every run is cut into {BLOCKS} blocks of consecutive steps; a block's value is \
         its median tok/s, a run's value the median of its blocks, an arm's value the geometric mean of its \
         runs. The 95 % interval of candidate / baseline is Welch's, of the logarithms of the runs' values; \
         for an arm of one run, the variance is a bootstrap's over its blocks, and there is no verdict. \
         tok_s and step_ms of an arm are such geometric means, other figures means over its runs. Faster: \
         the interval lies above 1 and the ratio above 1 + {percent} %. Slower: the interval lies below 1 \
         and the ratio below 1 - {percent} %. No difference: the interval lies within 1 ± {percent} %. \
         Inconclusive: anything else, times that are not comparable, or an arm of one run."
    )
}

/// Returns the medians of consecutive blocks of steps, leaving out the first steps if they do not fill a
/// block. `None` if there are too few steps.
pub fn blocks(steps: &[f64]) -> Option<Vec<f64>> {
    let count = BLOCKS.min(steps.len());
    if count < MIN_BLOCKS {
        return None;
    }
    let length = steps.len() / count;
    let used = &steps[steps.len() - count * length..];
    Some(used.chunks_exact(length).map(median_or_nan).collect())
}

/// Returns the median; NaN if there are no values.
fn median_or_nan(values: &[f64]) -> f64 {
    median(values.iter().copied()).unwrap_or(f64::NAN)
}

/// Judges the speed once every trial has ended. It stays inconclusive if times are not comparable or an arm
/// has only one run.
pub fn judge(experiment: &mut Experiment) {
    let blocks = |arm: usize| experiment.runs_in(arm).map(|run| run.blocks.clone()).collect::<Vec<_>>();
    let (baseline, candidate) = (blocks(BASELINE), blocks(CANDIDATE));
    let have_ended = experiment.runs.iter().all(|run| run.status.is_some());
    let interval = ratio(&baseline, &candidate).filter(|_| have_ended);
    let is_comparable = experiment.contended.is_empty() && !experiment.has_single_run();
    let means = [experiment.baseline(), experiment.candidate()].map(|arm| arm.measured.get(SPEED).copied());
    let Some(speed) = experiment.findings.iter_mut().find(|finding| finding.measure.is_speed()) else {
        return;
    };
    speed.pairs = baseline.len().min(candidate.len());
    [speed.baseline, speed.candidate] = means;
    speed.basis = if interval.is_some() { VerdictBasis::Trials } else { VerdictBasis::Nothing };
    speed.interval = interval;
    speed.verdict = match interval {
        Some(interval) if is_comparable => verdict(&interval, speed.min_effect.unwrap_or_default()),
        _ => Verdict::Inconclusive,
    };
}

/// Returns candidate / baseline - 1 with its 95 % interval. An arm is a list of runs, a run a list of blocks.
/// `None` if an arm has no run, or a run has no usable blocks.
///
/// Over y, the logarithm of a run's value, the interval is Welch's for the difference of two means ("The
/// generalization of Student's problem when several different population variances are involved", 1947). A
/// single run does not show how runs differ. Its variance is a bootstrap over its n blocks, times n / (n -
/// 1); the blocks are long enough to be uncorrelated (Davison and Hinkley, "Bootstrap Methods and their
/// Application", 1997, section 8.2.3).
pub fn ratio(baseline: &[Vec<f64>], candidate: &[Vec<f64>]) -> Option<Interval> {
    let (baseline, candidate) = (Estimate::from_runs(baseline)?, Estimate::from_runs(candidate)?);
    let difference = candidate.mean - baseline.mean;
    let variance = baseline.variance + candidate.variance;
    let reach = if variance > 0.0 {
        two_sided_quantile(welch_freedom(&baseline, &candidate), CONFIDENCE) * variance.sqrt()
    } else {
        0.0
    };
    Some(Interval {
        estimate: difference.exp_m1(),
        low: (difference - reach).exp_m1(),
        high: (difference + reach).exp_m1(),
    })
}

/// Returns the verdict for an interval of candidate / baseline - 1, over comparable speeds.
///
/// With m the smallest difference that counts: no difference if the interval lies within ± m; better if it
/// lies above 0 and the estimate above m; worse if it lies below 0 and the estimate below -m; else
/// inconclusive.
pub fn verdict(ratio: &Interval, min_effect: f64) -> Verdict {
    if ratio.is_within(min_effect) {
        Verdict::NoDifference
    } else if ratio.low > 0.0 && ratio.estimate > min_effect {
        Verdict::Better
    } else if ratio.high < 0.0 && ratio.estimate < -min_effect {
        Verdict::Worse
    } else {
        Verdict::Inconclusive
    }
}

/// The mean of an arm's values, each as a logarithm.
struct Estimate {
    mean: f64,
    /// Variance of the mean.
    variance: f64,
    /// Degrees of freedom of the variance.
    freedom: f64,
}

impl Estimate {
    fn from_runs(runs: &[Vec<f64>]) -> Option<Self> {
        let usable = |run: &Vec<f64>| run.len() >= 2 && run.iter().all(|x| x.is_finite() && *x > 0.0);
        if runs.is_empty() || !runs.iter().all(usable) {
            return None;
        }
        let values: Vec<f64> = runs.iter().map(|run| median_or_nan(run).ln()).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        match runs {
            [only] => {
                let blocks = only.len() as f64;
                let variance = bootstrap_variance(only) * blocks / (blocks - 1.0);
                Some(Self { mean, variance, freedom: blocks - 1.0 })
            }
            _ => Some(Self { mean, variance: variance(&values) / n, freedom: n - 1.0 }),
        }
    }
}

/// Returns the variance of the logarithm of a run's median block, by resampling the blocks.
fn bootstrap_variance(blocks: &[f64]) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut resample = || blocks.iter().map(|_| blocks[below(&mut rng, blocks.len())]).collect::<Vec<_>>();
    let medians: Vec<f64> = (0..RESAMPLES).map(|_| median_or_nan(&resample()).ln()).collect();
    variance(&medians)
}

/// Returns a uniformly distributed whole number below `n`.
///
/// Source: Lemire, "Fast Random Integer Generation in an Interval", 2019, without the rejection step. For as
/// few as the `n` blocks or runs here, the bias is below 2⁻²⁰.
fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

/// Returns the degrees of freedom of the difference of two means with unequal variances (Welch, 1947;
/// Satterthwaite, 1946).
fn welch_freedom(a: &Estimate, b: &Estimate) -> f64 {
    let sum = (a.variance + b.variance).powi(2);
    sum / (a.variance.powi(2) / a.freedom + b.variance.powi(2) / b.freedom)
}

#[cfg(test)]
mod tests;
