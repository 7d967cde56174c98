//! The finding on a task, or on the mean of several.

use super::wins::WinCounts;
use crate::statistics::{CrossedDifference, Direction, VISIBLE_POWER, Verdict, bonferroni, verdict};
use crate::tasks::Metric;
use serde::Serialize;

/// What a verdict is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// Two checkpoints, and other items.
    Checkpoints,
    /// Two recipes: other seeds, and other items.
    Seeds,
    /// The same, from models that were trained with the same seeds on both sides.
    PairedSeeds,
}

/// What was found of a task, or of the mean of all.
#[derive(Clone, Debug, Serialize)]
pub struct ScoreFinding {
    /// The task.
    pub task: String,
    /// The figure; `None` for the mean above chance.
    pub metric: Option<&'static str>,
    /// Number of items, and of clusters of them.
    pub items: usize,
    pub clusters: usize,
    /// Items that one model has right and the other wrong; `None` unless the figure is an accuracy of one
    /// model a side.
    pub counts: Option<WinCounts>,
    /// The mean figure of each side, the baseline's first.
    pub means: [f64; 2],
    /// Candidate - baseline.
    pub difference: f64,
    /// Its standard error.
    pub error: f64,
    /// Its standard error over items alone, which is about exactly these models.
    pub items_error: f64,
    /// The interval of the difference, which holds together with those of the other questions.
    pub interval: [f64; 2],
    /// Two-sided p of "the true difference is 0", and the same corrected for the number of questions.
    pub p: f64,
    pub corrected_p: f64,
    /// The conclusion.
    pub verdict: Verdict,
    /// The smallest true difference that the same design sees with a probability of 80 %.
    pub could_see: f64,
    /// True if no model is better than chance.
    pub within_chance: bool,
}

/// A difference before the number of questions is known.
pub(super) struct Judged {
    pub name: String,
    pub metric: Option<Metric>,
    pub items: usize,
    pub clusters: usize,
    pub counts: Option<WinCounts>,
    pub means: [f64; 2],
    pub difference: CrossedDifference,
    pub is_within_chance: bool,
}

/// How differences become verdicts.
pub(super) struct Rule {
    pub questions: usize,
    pub confidence: f64,
    pub min_effect: f64,
}

impl Judged {
    pub fn finding(self, rule: &Rule) -> ScoreFinding {
        let Self { name, metric, items, clusters, counts, means, difference, is_within_chance } = self;
        let confidence = bonferroni(rule.confidence, rule.questions);
        let interval = difference.interval(confidence);
        let direction = match metric.is_none_or(Metric::is_accuracy) {
            true => Direction::HigherIsBetter,
            false => Direction::LowerIsBetter,
        };
        let p = difference.p();
        ScoreFinding {
            task: name,
            metric: metric.map(Metric::word),
            items,
            clusters,
            counts,
            means,
            difference: difference.estimate,
            error: difference.parts.error(),
            items_error: difference.items_error,
            interval: [interval.low, interval.high],
            p,
            corrected_p: (p * rule.questions as f64).min(1.0),
            verdict: verdict(&interval, rule.min_effect, direction),
            could_see: difference.parts.smallest_seen(confidence, VISIBLE_POWER),
            within_chance: is_within_chance,
        }
    }
}
