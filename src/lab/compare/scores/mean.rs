//! The mean over tasks of their scores above chance.

use super::finding::Judged;
use super::shared::SharedTask;
use crate::statistics::{ModelFigure, Pairing, TaskItems, crossed_difference, mean};

/// Its name in tables.
const MEAN: &str = "mean above chance";

/// Returns the difference in the mean over tasks of (figure - chance) / (1 - chance): of the set `core`,
/// CORE. The tasks are these ones; items and seeds may be others. A seed has one effect on all tasks of its
/// model, so the means of each model are compared. `None` unless there are several tasks, all with a chance
/// level below 1.
pub(super) fn mean_above_chance(tasks: &[SharedTask], pairing: Pairing) -> Option<Judged> {
    if tasks.len() < 2 {
        return None;
    }
    let scale = |task: &SharedTask| {
        let chance = task.chance.filter(|chance| *chance < 1.0 && task.metric.is_accuracy())?;
        Some((chance, 1.0 / (1.0 - chance) / tasks.len() as f64))
    };
    let scales: Vec<(f64, f64)> = tasks.iter().map(scale).collect::<Option<_>>()?;
    let sides = [0, 1].map(|side| {
        let models = 0..tasks[0].figures[side].len();
        let sum_of_tasks = |model: usize| {
            let figures = tasks.iter().map(|task| &task.figures[side][model]);
            let mut sum = ModelFigure { value: 0.0, influences: Vec::with_capacity(tasks.len()) };
            for (figure, (chance, scale)) in figures.zip(&scales) {
                sum.value += scale * (figure.value - chance);
                sum.influences
                    .extend(figure.influences.iter().map(|one| one.iter().map(|x| scale * x).collect()));
            }
            sum
        };
        models.map(sum_of_tasks).collect::<Vec<ModelFigure>>()
    });
    let items: Vec<TaskItems> = tasks
        .iter()
        .zip(&scales)
        .map(|(task, (_, scale))| TaskItems { step: scale * task.items.step, ..task.items.clone() })
        .collect();
    Some(Judged {
        name: MEAN.to_owned(),
        metric: None,
        items: items.iter().map(|task| task.clusters.len()).sum(),
        clusters: items.iter().map(TaskItems::distinct_clusters).sum(),
        counts: None,
        means: [&sides[0], &sides[1]]
            .map(|models| mean(&models.iter().map(|model| model.value).collect::<Vec<_>>())),
        difference: crossed_difference([&sides[0], &sides[1]], &items, pairing)?,
        is_within_chance: tasks.iter().all(|task| task.is_within_chance),
    })
}
