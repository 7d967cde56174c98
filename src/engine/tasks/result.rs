//! From the scores of requests to the figures of a task, with their errors.

use super::contribution::{Contribution, Score};
use super::metric::{Aggregate, Metric};
use super::prepared::{Prepared, PreparedItem};
use crate::error::{Error, Result};
use crate::statistics::{
    Interval, PairedDifference, clustered_error, clustered_interval, mean, p_of_difference,
};
use std::collections::HashMap;

/// The confidence of intervals, and of saying that a score is not chance.
const CONFIDENCE: f64 = 0.95;

/// What came of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    /// Name of the task.
    pub task: String,
    /// Hash of the task's definition.
    pub definition: String,
    /// Examples in front of each item.
    pub shots: usize,
    /// The figure that stands for the task.
    pub metric: Metric,
    /// All figures, in the order of [`Metric::ALL`].
    pub figures: Vec<Figure>,
    /// The items, in order.
    pub items: Vec<ItemResult>,
}

/// A figure with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Which figure it is.
    pub metric: Metric,
    /// Its value.
    pub value: f64,
    /// Standard error over items or, where items share passages, over passages. It says how much another
    /// choice of items would change the value, of this model only. `None` if there are fewer than two.
    pub error: Option<f64>,
    /// Number of items, and of clusters of items.
    pub items: usize,
    pub clusters: usize,
    /// The value of a model that knows nothing.
    pub chance: Option<f64>,
}

/// An item and its scores.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemResult {
    /// Hash of the item.
    pub hash: String,
    /// Number of the cluster that it belongs to.
    pub cluster: usize,
    /// The right choice, and the choice by the task's metric.
    pub gold: Option<usize>,
    pub chosen: Option<usize>,
    /// The score of each request.
    pub scores: Vec<Score>,
    /// What it contributes to each of the figures, in their order.
    pub contributions: Vec<Contribution>,
}

impl Figure {
    /// Returns the interval that contains the value over all items that could have been asked, with a
    /// probability of 95 %.
    pub fn interval(&self) -> Option<Interval> {
        self.error.map(|error| clustered_interval(self.value, error, self.clusters, CONFIDENCE))
    }

    /// Returns true if the score is no better than chance by more than its error: by the larger of the items'
    /// own error and that of as many guesses. `None` if there is no chance level.
    pub fn is_within_chance(&self) -> Option<bool> {
        let chance = self.chance?;
        let guessed = (chance * (1.0 - chance) / self.clusters.max(1) as f64).sqrt();
        let error = self.error.unwrap_or_default().max(guessed);
        Some(self.value <= clustered_interval(chance, error, self.clusters, CONFIDENCE).high)
    }

    /// Returns the score above chance as a part of what is possible: (value - chance) / (1 - chance).
    pub fn centred(&self) -> Option<f64> {
        self.chance.map(|chance| (self.value - chance) / (1.0 - chance))
    }
}

impl Prepared {
    /// Makes the task's figures of the scores of all requests, in order.
    ///
    /// # Errors
    /// If there is not one score for each request, or one is not a finite number: a wrong choice would look
    /// like any other.
    pub fn result(&self, scores: &[Score]) -> Result<TaskResult> {
        TaskResult::new(self, scores)
    }
}

impl TaskResult {
    fn new(prepared: &Prepared, scores: &[Score]) -> Result<Self> {
        let definition = prepared.definition();
        let name = &definition.name;
        let asked: usize = prepared.items.iter().map(|item| item.requests.len()).sum();
        if scores.len() != asked {
            return Err(Error::failed(format!("task {name}: {} scores for {asked} requests", scores.len())));
        }
        let metrics: Vec<Metric> = Metric::for_rule(&definition.request, definition.rules).collect();
        let mut clusters: HashMap<&str, usize> = HashMap::new();
        let mut rest = scores;
        let mut items = Vec::with_capacity(prepared.items.len());
        for item in &prepared.items {
            let (own, others) = rest.split_at(item.requests.len());
            rest = others;
            if let Some(wrong) = own.iter().find(|score| !score.log_prob.is_finite()) {
                let file = prepared.files.get(item.item.file).map(|file| file.path.display().to_string());
                return Err(Error::failed(format!(
                    "task {name}, {}:{}: the model gives an answer the log-likelihood {}, so the item has no choice; the \
                     model's outputs are not finite",
                    file.unwrap_or_default(),
                    item.item.line,
                    wrong.log_prob
                )));
            }
            let next = clusters.len();
            let cluster = *clusters.entry(&item.item.cluster).or_insert(next);
            items.push(ItemResult {
                hash: item.item.hash.clone(),
                cluster,
                gold: item.item.question.gold(),
                chosen: definition.scoring.metric.choice(item, own),
                scores: own.to_vec(),
                contributions: metrics.iter().map(|metric| metric.contribution(item, own)).collect(),
            });
        }
        let guess = guess(&prepared.items);
        let figures = metrics.iter().enumerate().map(|(place, &metric)| {
            let chance = match metric == definition.scoring.metric {
                true => definition.scoring.chance.or(guess),
                false => guess,
            };
            let (value, influences) = estimate(metric, &items, place);
            let numbers: Vec<usize> = items.iter().map(|item| item.cluster).collect();
            Figure {
                metric,
                value,
                error: clustered_error(&influences, &numbers),
                items: items.len(),
                clusters: clusters.len(),
                chance: chance.filter(|_| metric.is_accuracy()),
            }
        });
        Ok(Self {
            task: name.clone(),
            definition: definition.hash.clone(),
            shots: prepared.shots,
            metric: definition.scoring.metric,
            figures: figures.collect(),
            items,
        })
    }

    /// Returns a figure, if the task has it.
    pub fn figure(&self, metric: Metric) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.metric == metric)
    }

    /// Returns the figure that stands for the task.
    pub fn headline(&self) -> Option<&Figure> {
        self.figure(self.metric)
    }

    /// Compares two models on the same items: the difference `self` - `other` of a figure, paired over items
    /// or their clusters. It speaks of these two models only, not of the recipes that they came from.
    ///
    /// # Errors
    /// If the results are not of the same items with the same prompts.
    pub fn difference(&self, other: &Self, metric: Metric) -> Result<PairedDifference> {
        let same = |a: &ItemResult, b: &ItemResult| a.hash == b.hash;
        let of_same_items = self.items.len() == other.items.len()
            && self.items.iter().zip(&other.items).all(|(a, b)| same(a, b));
        if !of_same_items || self.definition != other.definition || self.shots != other.shots {
            return Err(Error::usage(format!(
                "task {}: the two results have other items, prompts or examples, so they cannot be compared item by item; \
                 evaluate both models with the same files and options",
                self.task
            )));
        }
        let place = self.figures.iter().position(|figure| figure.metric == metric);
        let Some(place) = place else {
            return Err(Error::usage(format!("task {} has no figure {}", self.task, metric.word())));
        };
        let (ours, our_influences) = estimate(metric, &self.items, place);
        let (theirs, their_influences) = estimate(metric, &other.items, place);
        let influences: Vec<f64> =
            our_influences.iter().zip(&their_influences).map(|(ours, theirs)| ours - theirs).collect();
        let clusters: Vec<usize> = self.items.iter().map(|item| item.cluster).collect();
        let count = clusters.iter().max().map_or(0, |last| last + 1);
        let Some(error) = clustered_error(&influences, &clusters) else {
            return Err(Error::usage(format!(
                "task {}: a difference needs two items that share no passage; evaluate more items",
                self.task
            )));
        };
        Ok(PairedDifference {
            pairs: count,
            mean: ours - theirs,
            deviation: error * (count as f64).sqrt(),
            interval: clustered_interval(ours - theirs, error, count, CONFIDENCE),
            p: p_of_difference(ours - theirs, error, count),
        })
    }
}

/// Returns the share of right choices of a model that guesses: the mean of 1 / choices.
fn guess(items: &[PreparedItem]) -> Option<f64> {
    let shares: Vec<f64> = items.iter().map(|item| 1.0 / item.item.question.choices() as f64).collect();
    Some(mean(&shares)).filter(|share| share.is_finite())
}

/// Returns a figure, and what each item contributes to its error: its influence, (value - ratio · weight)
/// over the mean weight, times the slope of the exponential where there is one (the delta method).
fn estimate(metric: Metric, items: &[ItemResult], place: usize) -> (f64, Vec<f64>) {
    let contributions = || items.iter().map(|item| item.contributions[place]);
    let (value, weight) =
        contributions().fold((0.0, 0.0), |(value, weight), one| (value + one.value, weight + one.weight));
    let ratio = value / weight;
    let (estimate, slope) = match metric.aggregate() {
        Aggregate::Ratio => (ratio, 1.0),
        Aggregate::ExpRatio => (ratio.exp(), ratio.exp()),
    };
    let scale = slope * items.len() as f64 / weight;
    (estimate, contributions().map(|one| scale * (one.value - ratio * one.weight)).collect())
}

/// Returns CORE's figure of several tasks: the mean of their scores above chance. `None` if a task has none.
pub fn mean_centred(results: &[TaskResult]) -> Option<f64> {
    let centred: Vec<f64> =
        results.iter().map(|result| result.headline()?.centred()).collect::<Option<_>>()?;
    Some(mean(&centred)).filter(|mean| mean.is_finite())
}
