//! From a model's answers to the figures of a task, with their errors.

use super::contribution::{Answer, Contribution, Judged, Score};
use super::generation::GeneratedAnswer;
use super::items::Question;
use super::metric::{Aggregate, Metric};
use super::prepared::{Asked, Prepared, PreparedItem};
use crate::error::{Error, Result};
use crate::statistics::{Interval, clustered_error, clustered_interval, mean};
use std::collections::{HashMap, HashSet};

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

/// An item and what the model made of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemResult {
    /// Hash of the item.
    pub hash: String,
    /// Number of the cluster that it belongs to.
    pub cluster: usize,
    /// The right choice, and the choice by the task's metric.
    pub gold: Option<usize>,
    pub chosen: Option<usize>,
    /// The score of each request; none if the model generates a text.
    pub scores: Vec<Score>,
    /// The text that the model generates.
    pub generated: Option<GeneratedAnswer>,
    /// What it contributes to each of the figures, in their order.
    pub contributions: Vec<Contribution>,
}

impl Figure {
    /// Computes a figure of what items contribute, in clusters; `None` if there are no items.
    pub fn new(
        metric: Metric,
        contributions: &[Contribution],
        clusters: &[usize],
        chance: Option<f64>,
    ) -> Option<Self> {
        let (value, influences) = estimate(metric, contributions);
        let count = clusters.iter().collect::<HashSet<_>>().len();
        (count > 0).then(|| Self {
            metric,
            value,
            error: clustered_error(&influences, clusters),
            items: contributions.len(),
            clusters: count,
            chance,
        })
    }

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
}

impl Prepared {
    /// Makes the task's figures of the model's answers to all items, in order.
    ///
    /// # Errors
    /// If there is not one score for each request, a score is not a finite number (a wrong choice would look
    /// like any other), or a generated text cannot be judged.
    pub fn result(&self, answers: &[Answer]) -> Result<TaskResult> {
        TaskResult::new(self, answers)
    }

    /// Says where an item is.
    fn place(&self, item: &PreparedItem) -> String {
        let file = self.files.get(item.item.file).map(|file| file.path.display().to_string());
        format!("task {}, {}:{}", self.definition.name, file.unwrap_or_default(), item.item.line)
    }

    /// Checks an answer to an item, and judges a generated text.
    fn judge(&self, item: &PreparedItem, answer: &Answer) -> Result<Option<GeneratedAnswer>> {
        let place = || self.place(item);
        match (&item.asked, answer, &item.item.question, self.generation()) {
            (Asked::Scores(requests), Answer::Scores(scores), ..) => {
                if scores.len() != requests.len() {
                    let (found, asked) = (scores.len(), requests.len());
                    return Err(Error::failed(format!("{}: {found} scores for {asked} requests", place())));
                }
                match scores.iter().find(|score| !score.log_prob.is_finite()) {
                    Some(wrong) => Err(Error::failed(format!(
                        "{}: the model gives an answer the log-likelihood {}, so the item has no choice; the model's outputs \
                         are not finite",
                        place(),
                        wrong.log_prob
                    ))),
                    None => Ok(None),
                }
            }
            (Asked::Text(_), Answer::Text(text), Question::Generation { answers, .. }, Some(generation)) => {
                generation.judge(text, answers).map(Some).map_err(|e| e.context(place()))
            }
            _ => Err(Error::failed(format!("{}: an answer of another kind than asked for", place()))),
        }
    }
}

impl TaskResult {
    fn new(prepared: &Prepared, answers: &[Answer]) -> Result<Self> {
        let definition = prepared.definition();
        let name = &definition.name;
        let asked = prepared.items.len();
        if answers.len() != asked {
            return Err(Error::failed(format!("task {name}: {} answers to {asked} items", answers.len())));
        }
        let metrics: Vec<Metric> = Metric::for_rule(&definition.request, definition.rules).collect();
        let mut clusters: HashMap<&str, usize> = HashMap::new();
        let mut items = Vec::with_capacity(asked);
        for (item, answer) in prepared.items.iter().zip(answers) {
            let generated = prepared.judge(item, answer)?;
            let judged = match &generated {
                Some(generated) => Judged::Text(generated),
                None => Judged::Scores(answer.scores()),
            };
            let next = clusters.len();
            let cluster = *clusters.entry(&item.item.cluster).or_insert(next);
            items.push(ItemResult {
                hash: item.item.hash.clone(),
                cluster,
                gold: item.item.question.gold(),
                chosen: definition.scoring.metric.choice(item, judged.scores()),
                scores: judged.scores().to_vec(),
                contributions: metrics.iter().map(|metric| metric.contribution(item, &judged)).collect(),
                generated,
            });
        }
        let guess = guess(&prepared.items);
        let numbers: Vec<usize> = items.iter().map(|item| item.cluster).collect();
        let figures = metrics.iter().enumerate().filter_map(|(place, &metric)| {
            let chance = match metric == definition.scoring.metric {
                true => definition.scoring.chance.or(guess),
                false => guess,
            };
            let contributions: Vec<Contribution> =
                items.iter().map(|item| item.contributions[place]).collect();
            Figure::new(metric, &contributions, &numbers, chance.filter(|_| metric.is_accuracy()))
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

    /// Returns what each item contributes to the figure that stands for the task.
    pub fn headline_contributions(&self) -> impl Iterator<Item = Option<Contribution>> + '_ {
        let place = self.figures.iter().position(|figure| figure.metric == self.metric);
        self.items.iter().map(move |item| item.contributions.get(place?).copied())
    }

    /// Returns the figure that stands for the task.
    pub fn headline(&self) -> Option<&Figure> {
        self.figure(self.metric)
    }
}

/// Returns the share of right choices of a model that guesses: the mean of 1 / choices.
fn guess(items: &[PreparedItem]) -> Option<f64> {
    let shares: Vec<f64> = items.iter().map(|item| 1.0 / item.item.question.choices() as f64).collect();
    Some(mean(&shares)).filter(|share| share.is_finite())
}

/// Returns a figure, and what each item contributes to its error: its influence, (value - ratio · weight)
/// over the mean weight, times the slope of the exponential where there is one (the delta method).
pub fn estimate(metric: Metric, contributions: &[Contribution]) -> (f64, Vec<f64>) {
    let items = contributions.iter();
    let (value, weight) =
        items.clone().fold((0.0, 0.0), |(value, weight), one| (value + one.value, weight + one.weight));
    let ratio = value / weight;
    let (estimate, slope) = match metric.aggregate() {
        Aggregate::Ratio => (ratio, 1.0),
        Aggregate::ExpRatio => (ratio.exp(), ratio.exp()),
    };
    let scale = slope * contributions.len() as f64 / weight;
    (estimate, items.map(|one| scale * (one.value - ratio * one.weight)).collect())
}
