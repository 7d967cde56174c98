//! The error of a difference between two recipes that were evaluated on the same items: over items, and over
//! the seeds that the recipes were trained with.
//!
//! The figure of seed s of recipe r on item i is μ_r + item_i + (recipe × item)_ri + seed_rs + rest_rsi. In
//! the difference of two recipes what an item does to both cancels. Its variance has three parts: recipe ×
//! item over the items, seeds over the seeds, and the rest over both (Miller, "Adding Error Bars to Evals",
//! arXiv:2411.00640, for one model a side; Clark, "The language-as-fixed-effect fallacy", 1973, for why a
//! claim about recipes needs both). They are estimated as Cameron, Gelbach and Miller do for two-way clusters
//! ("Robust Inference with Multiway Clustering", 2011): the variance over items plus that over seeds, less
//! the rest, which both contain.

use super::clusters::clustered_error;
use super::interval::Interval;
use super::numeric::{integrate, normal_cdf, root};
use super::sample::{mean, variance};
use super::student::{mean_over_deviation, upper_quantile, upper_tail};
use std::f64::consts::FRAC_PI_4;

/// The smallest tail for which the quantile of Student's distribution is computed.
const SMALLEST_TAIL: f64 = 5e-12;

/// A figure of one model, and how it follows from the items.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFigure {
    /// The figure.
    pub value: f64,
    /// For each task, what its items contribute: influences, which sum to 0, times the weight of the task in
    /// the figure.
    pub influences: Vec<Vec<f64>>,
}

/// The items of a task, which all models answered.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskItems {
    /// Number of the cluster of each item.
    pub clusters: Vec<usize>,
    /// What one item moves the figure by if it is either right or wrong; 0 for a figure of continuous
    /// results.
    pub step: f64,
}

/// Which models of two recipes belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// None: the seeds of both recipes are independent.
    Independent,
    /// Those at the same place: they were trained with the same seed.
    SameSeeds,
}

/// A variance and the degrees of freedom of its estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VariancePart {
    /// The variance, in the squared unit of the figure.
    pub variance: f64,
    /// The degrees of freedom.
    pub freedom: f64,
}

/// What the error of a figure, or of a difference, consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorParts {
    /// What another choice of items would change. Beside seeds it is without the part that seeds have too.
    pub items: VariancePart,
    /// What other seeds would change; `None` if there is one model a side.
    pub seeds: Option<VariancePart>,
}

/// A difference of two recipes, or of two models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossedDifference {
    /// The difference of the means over seeds, candidate - baseline.
    pub estimate: f64,
    /// Its error.
    pub parts: ErrorParts,
    /// The standard error over items alone, of exactly these models.
    pub items_error: f64,
}

impl TaskItems {
    /// Returns the number of clusters.
    pub fn distinct_clusters(&self) -> usize {
        let mut clusters = self.clusters.clone();
        clusters.sort_unstable();
        clusters.dedup();
        clusters.len()
    }
}

impl ErrorParts {
    /// Returns the standard error.
    pub fn error(&self) -> f64 {
        self.parts().map(|part| part.variance).sum::<f64>().sqrt()
    }

    fn parts(&self) -> impl Iterator<Item = VariancePart> + '_ {
        std::iter::once(self.items).chain(self.seeds)
    }

    /// Returns how far an interval reaches to each side: the error times the mean of both parts' quantiles,
    /// weighted by their variances (Cochran's approximation; Cochran and Cox, "Experimental Designs", 1950).
    ///
    /// Satterthwaite's degrees of freedom err where one part has few and the other many: if two seeds happen
    /// to lie close together, he takes the freedom of the items. Of twenty tasks that are corrected for, an
    /// interval over two seeds then misses seven times as often as it should.
    pub fn reach(&self, confidence: f64) -> f64 {
        self.reach_beyond(0.5 * (1.0 - confidence))
    }

    /// Returns the reach of an interval that misses with probability `tail` on each side.
    fn reach_beyond(&self, tail: f64) -> f64 {
        let total: f64 = self.parts().map(|part| part.variance).sum();
        if total == 0.0 {
            return 0.0;
        }
        let weighted = self
            .parts()
            .filter(|part| part.variance > 0.0)
            .map(|part| part.variance * upper_quantile(part.freedom, tail));
        weighted.sum::<f64>() / total.sqrt()
    }

    /// Returns the two-sided p of "the true value is 0", of an estimate with this error: the level at which
    /// the interval ends at 0. Below 1e-11 it is an upper bound.
    pub fn p(&self, estimate: f64) -> f64 {
        let error = self.error();
        if estimate.is_nan() || error.is_nan() {
            return f64::NAN;
        }
        match (estimate == 0.0, error == 0.0) {
            (true, _) => return 1.0,
            (false, true) => return 0.0,
            (false, false) => {}
        }
        let t = (estimate / error).abs();
        let shown = self.parts().filter(|part| part.variance > 0.0);
        let tails = shown.map(|part| upper_tail(t, part.freedom));
        let (low, high) = tails.fold((0.5_f64, 0.0_f64), |(low, high), tail| (low.min(tail), high.max(tail)));
        // The quantile is weighted, so the tail lies between those by each part's degrees of freedom.
        let low = low.max(SMALLEST_TAIL);
        if high <= low || estimate.abs() >= self.reach_beyond(low) {
            return 2.0 * high.min(low);
        }
        2.0 * root(low.ln(), high.ln(), |log| estimate.abs() - self.reach_beyond(log.exp())).exp()
    }

    /// Returns the smallest true difference whose interval excludes 0 on its side with probability `power`.
    pub fn smallest_seen(&self, confidence: f64, power: f64) -> f64 {
        let freedom = self.least_known().freedom;
        self.smallest(confidence, power, |difference| self.power(difference, confidence, freedom))
    }

    /// Returns the same before anything is run: `seeds` is of two sides that have equally many seeds and vary
    /// alike.
    ///
    /// Its degrees of freedom, 2 ν, are then those of the estimated variance. Welch's, which the interval
    /// takes, are fewer, because by chance one side shows the share u of the variance and the other 1 - u: ν
    /// / (u² + (1 - u)²). The sum of two χ² variables is independent of their shares, and u has the
    /// distribution Beta(ν/2, ν/2).
    pub fn smallest_planned(&self, confidence: f64, power: f64) -> f64 {
        let Some(seeds) = self.seeds.filter(|seeds| seeds.variance > 0.0) else {
            return self.smallest_seen(confidence, power);
        };
        let one_side = 0.5 * seeds.freedom;
        // u = sin² θ, from 0 to one half; the other half is its mirror image.
        let density = |angle: f64| (angle.sin() * angle.cos()).powf(one_side - 1.0);
        let mean = |function: &dyn Fn(f64) -> f64| {
            integrate(0.0, FRAC_PI_4, 1, |angle| density(angle) * function(angle))
        };
        let total = mean(&|_| 1.0);
        self.smallest(confidence, power, |difference| {
            let with_shares = |angle: f64| {
                let share = angle.sin().powi(2);
                let freedom = one_side / (share * share + (1.0 - share).powi(2));
                let parts = Self { seeds: Some(VariancePart { freedom, ..seeds }), ..*self };
                parts.power(difference, confidence, seeds.freedom)
            };
            mean(&with_shares) / total
        })
    }

    /// Finds the difference that is seen with probability `power`.
    fn smallest(&self, confidence: f64, power: f64, seen: impl Fn(f64) -> f64) -> f64 {
        let error = self.error();
        if error == 0.0 || !error.is_finite() {
            return error;
        }
        // At ten times the longest interval that is likely, the power is 1.
        let few = VariancePart { variance: error * error, freedom: 0.5 * self.least_known().freedom };
        let longest = Self { items: few, seeds: None }.reach(confidence).max(self.reach(confidence));
        root(0.0, 3.0 * longest + 10.0 * error, |difference| seen(difference) - power)
    }

    /// Returns the probability that an interval excludes 0 on the side of a true difference, if the variance
    /// that is least exactly known is estimated with `freedom` degrees of freedom.
    fn power(&self, difference: f64, confidence: f64, freedom: f64) -> f64 {
        let error = self.error();
        // The quantiles do not depend on the sampled variance.
        let tail = 0.5 * (1.0 - confidence);
        let quantile = |part: VariancePart| match part.variance > 0.0 {
            true => upper_quantile(part.freedom, tail),
            false => 0.0,
        };
        let (items, seeds) = (quantile(self.items), self.seeds.map_or(0.0, quantile));
        mean_over_deviation(freedom, f64::INFINITY, |s| {
            let sampled = self.as_sampled(s * s);
            let seed_variance = sampled.seeds.map_or(0.0, |part| part.variance);
            let total = sampled.items.variance + seed_variance;
            let reach = match total > 0.0 {
                true => (sampled.items.variance * items + seed_variance * seeds) / total.sqrt(),
                false => 0.0,
            };
            normal_cdf((difference - reach) / error)
        })
    }

    /// Returns the part that a sample shows least exactly: seeds, because they are few.
    fn least_known(&self) -> VariancePart {
        self.seeds.filter(|seeds| seeds.variance > 0.0).unwrap_or(self.items)
    }

    /// Returns the parts as a sample may show them, with `scale` times the variance of the part that it shows
    /// least exactly.
    fn as_sampled(&self, scale: f64) -> Self {
        let scaled = |part: VariancePart| VariancePart { variance: scale * part.variance, ..part };
        match self.seeds {
            Some(seeds) if seeds.variance > 0.0 => Self { seeds: Some(scaled(seeds)), ..*self },
            _ => Self { items: scaled(self.items), ..*self },
        }
    }
}

impl CrossedDifference {
    /// Returns the interval that contains the true difference with probability `confidence`.
    pub fn interval(&self, confidence: f64) -> Interval {
        Interval::symmetric(self.estimate, self.parts.reach(confidence))
    }

    /// Returns the two-sided p of "the true difference is 0".
    pub fn p(&self) -> f64 {
        self.parts.p(self.estimate)
    }
}

/// Returns the difference candidate - baseline of figures on the same items, task by task. With a single
/// model a side, the error is that over items.
///
/// Models that answer every item alike do not show how often they differ, and few differing items lie on one
/// side by chance more often than the normal distribution says. So one more differing item is counted in the
/// variance (Agresti and Min, "Simple improved confidence intervals for comparing matched proportions", 2005,
/// who add half an item to each of the four outcomes).
///
/// `None` if a side has no model or one side has seeds and the other one model, the models do not have the
/// same items, a task has fewer than two clusters, a value is not finite, or seeds are to be paired and are
/// not equally many.
pub fn crossed_difference(
    [baseline, candidate]: [&[ModelFigure]; 2],
    tasks: &[TaskItems],
    pairing: Pairing,
) -> Option<CrossedDifference> {
    let sides = [baseline, candidate];
    let has_seeds = match sides.map(<[ModelFigure]>::len) {
        [1, 1] => false,
        [a, b] if a > 1 && b > 1 => true,
        _ => return None,
    };
    let estimate = mean_value(candidate) - mean_value(baseline);
    let means = sides.map(|models| mean_figure(models, tasks));
    let [Some(base), Some(other)] = means else { return None };
    let fewest = baseline.len().min(candidate.len()) as f64;
    let one_more: f64 = tasks.iter().map(|task| task.step * task.step).sum::<f64>() / fewest;
    let items = error_over_items(&difference(&other, &base)?.influences, tasks)?;
    let with_one_more = |variance: f64| VariancePart { variance: variance + one_more, ..items };
    let items_error = (items.variance + one_more).sqrt();
    if !estimate.is_finite() {
        return None;
    }
    if !has_seeds {
        let parts = ErrorParts { items: with_one_more(items.variance), seeds: None };
        return parts.error().is_finite().then_some(CrossedDifference { estimate, parts, items_error });
    }
    let groups: Vec<Vec<ModelFigure>> = match pairing {
        Pairing::Independent => sides.map(<[ModelFigure]>::to_vec).to_vec(),
        Pairing::SameSeeds if baseline.len() == candidate.len() => {
            vec![candidate.iter().zip(baseline).map(|(b, a)| difference(b, a)).collect::<Option<_>>()?]
        }
        Pairing::SameSeeds => return None,
    };
    let seeds = groups.iter().map(|models| SeedError::new(models, tasks)).collect::<Option<Vec<_>>>()?;
    let total: f64 = seeds.iter().map(|group| group.means).sum();
    // Welch, "The generalization of Student's problem when several different population variances are
    // involved", 1947: sides may scatter differently.
    let squares: f64 = seeds.iter().map(|group| group.means * group.means / group.freedom).sum();
    let fewest = seeds.iter().map(|group| group.freedom).fold(f64::MAX, f64::min);
    let freedom = if squares > 0.0 { total * total / squares } else { fewest };
    let rest: f64 = seeds.iter().map(|group| group.rest).sum();
    let items = with_one_more((items.variance - rest).max(0.0));
    let seeds = Some(VariancePart { variance: total, freedom });
    let parts = ErrorParts { items, seeds };
    parts.error().is_finite().then_some(CrossedDifference { estimate, parts, items_error })
}

/// How figures of one recipe vary over its seeds.
struct SeedError {
    /// Variance of the mean over seeds, by how much the figures of the seeds differ.
    means: f64,
    /// The part of it that is the rest, of seeds and items.
    rest: f64,
    freedom: f64,
}

impl SeedError {
    fn new(models: &[ModelFigure], tasks: &[TaskItems]) -> Option<Self> {
        let count = models.len() as f64;
        let values: Vec<f64> = models.iter().map(|model| model.value).collect();
        let middle = mean_figure(models, tasks)?;
        let mut rest = 0.0;
        for model in models {
            rest += error_over_items(&difference(model, &middle)?.influences, tasks)?.variance;
        }
        // The deviations of S models from their mean have (S - 1) / S of the rest's variance each.
        let rest = rest / (count * (count - 1.0));
        let means = variance(&values) / count;
        (means.is_finite() && rest.is_finite()).then_some(Self { means, rest, freedom: count - 1.0 })
    }
}

/// Returns the variance of a figure over items from what they contribute, task by task.
fn error_over_items(influences: &[Vec<f64>], tasks: &[TaskItems]) -> Option<VariancePart> {
    if influences.is_empty() || influences.len() != tasks.len() {
        return None;
    }
    let (mut total, mut squares, mut fewest) = (0.0, 0.0, f64::MAX);
    for (influences, task) in influences.iter().zip(tasks) {
        let variance = clustered_error(influences, &task.clusters)?.powi(2);
        let freedom = task.distinct_clusters() as f64 - 1.0;
        total += variance;
        squares += variance * variance / freedom;
        fewest = fewest.min(freedom);
    }
    // Satterthwaite, "An Approximate Distribution of Estimates of Variance Components", 1946. Every task has
    // many items.
    let freedom = if squares > 0.0 { total * total / squares } else { fewest };
    total.is_finite().then_some(VariancePart { variance: total, freedom })
}

fn mean_value(models: &[ModelFigure]) -> f64 {
    mean(&models.iter().map(|model| model.value).collect::<Vec<f64>>())
}

/// Returns the mean of figures; `None` if they do not have the same items.
fn mean_figure(models: &[ModelFigure], tasks: &[TaskItems]) -> Option<ModelFigure> {
    let mut influences: Vec<Vec<f64>> = tasks.iter().map(|task| vec![0.0; task.clusters.len()]).collect();
    for model in models {
        if model.influences.len() != influences.len() {
            return None;
        }
        for (sums, own) in influences.iter_mut().zip(&model.influences) {
            if sums.len() != own.len() {
                return None;
            }
            sums.iter_mut().zip(own).for_each(|(sum, influence)| *sum += influence / models.len() as f64);
        }
    }
    Some(ModelFigure { value: mean_value(models), influences })
}

/// Returns one figure minus another; `None` if they do not have the same items.
fn difference(one: &ModelFigure, other: &ModelFigure) -> Option<ModelFigure> {
    if one.influences.len() != other.influences.len() {
        return None;
    }
    let tasks = one.influences.iter().zip(&other.influences);
    let influences = tasks.map(|(one, other)| {
        let items = one.iter().zip(other).map(|(one, other)| one - other);
        (one.len() == other.len()).then(|| items.collect())
    });
    Some(ModelFigure { value: one.value - other.value, influences: influences.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests;
