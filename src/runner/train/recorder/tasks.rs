//! Records the scores of tasks: their files, and columns of `metrics.csv`.

use super::Recorder;
use crate::error::Result;
use crate::metrics::ScoreColumn;
use crate::plan::column_metrics;
use crate::results::{MetricsRow, Phase};
use crate::task_evaluation::TaskScores;
use crate::train::rank::ScoredWeights;

impl Recorder {
    /// Shows how many requests of tasks are scored.
    pub(in crate::train) fn scoring(&mut self, done: usize, of: usize) {
        self.progress.pause(Phase::Tasks, done as u64, of as u64);
    }

    /// Writes the scores of all items after a step.
    ///
    /// # Errors
    /// If they cannot be written, and there is nothing to save first.
    pub(in crate::train) fn scored(&mut self, step: u64, scored: &[ScoredWeights]) -> Result<()> {
        let written = match &self.tasks {
            Some(tasks) => scored.iter().try_for_each(|weights| tasks.write(step, weights)),
            None => Ok(()),
        };
        self.stop_on_error(written)
    }

    /// Adds the figures of tasks to the row of a step, and their errors to the summary.
    pub(super) fn add_scores(&mut self, row: &mut MetricsRow, scored: &[ScoredWeights]) {
        let Some(tasks) = &self.tasks else { return };
        for ScoredWeights { is_average, tasks: scores } in scored {
            for (task, TaskScores { result, .. }) in tasks.tasks.iter().zip(scores) {
                let figures = column_metrics(task).filter_map(|metric| result.figure(metric));
                for figure in figures {
                    let (task, figure_name) = (result.task.as_str(), figure.metric.word());
                    let column = ScoreColumn { task, figure: figure_name, is_average: *is_average };
                    row.further.insert(column.to_string(), figure.value as f32);
                }
                let entry = self.summary.tasks.get_mut(&result.task).filter(|_| !is_average);
                if let (Some(entry), Some(headline)) = (entry, result.headline()) {
                    (entry.error, entry.chance) = (headline.error, headline.chance);
                }
            }
        }
    }
}
