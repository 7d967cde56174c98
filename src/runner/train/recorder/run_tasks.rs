//! The files of the scores of tasks in a run: a folder with the scores of all items for each evaluated step.

use crate::error::{IoContext, Result};
use crate::plan::column_metrics;
use crate::regular;
use crate::results::folder::TASK_SCORES;
use crate::results::scored_tasks::ScoredTask;
use crate::task_evaluation::{Folder, ScoredModel, TaskKey};
use crate::tasks::Prepared;
use crate::train::job::Job;
use crate::train::rank::ScoredWeights;
use crate::train::scored_model::{AVERAGE, Named, TRAINING, scored_model};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The tasks of a run, as its files describe them.
pub(super) struct RunTasks {
    pub tasks: Arc<Vec<Prepared>>,
    /// The model, without a step.
    model: ScoredModel,
    limit: Option<usize>,
    /// The folder of the scores.
    folder: PathBuf,
}

impl RunTasks {
    /// Describes the tasks of a job in the folder of a run; `None` without tasks. Removes the scores of steps
    /// after `step`, which are trained again.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn open(job: &Job, run: &Path, recipe: &str, step: u64) -> Result<Option<Self>> {
        let Some(scoring) = job.programs.scoring.as_ref().filter(|_| !job.tasks.is_empty()) else {
            return Ok(None);
        };
        let folder = run.join(TASK_SCORES);
        remove_after(&folder, step)?;
        let values = job.recipe.values();
        let run = run.file_name().unwrap_or_default().to_string_lossy();
        let named = Named { name: format!("{recipe}/{run}"), step: None, weights: TRAINING, hash: None };
        let plan = (&*job.plan, values.training.dtype);
        let model = scored_model(named, plan, scoring.shape, &job.machine, job.dataset.tokenizer.hash());
        Ok(Some(Self { tasks: Arc::clone(&job.tasks), model, limit: values.evaluation.limit, folder }))
    }

    /// Writes the scores of all items after a step.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, step: u64, scored: &ScoredWeights) -> Result<()> {
        let weights = if scored.is_average { AVERAGE } else { TRAINING };
        let model = ScoredModel { step: Some(step), weights: weights.to_owned(), ..self.model.clone() };
        let mut folder = Folder::anew(self.folder.join(step_folder(step, scored.is_average)), &model)?;
        for (task, scores) in self.tasks.iter().zip(&scored.tasks) {
            folder.add(&TaskKey::new(task.definition(), (task.shots, self.limit), &task.files), scores)?;
        }
        Ok(())
    }
}

/// Returns the tasks for a summary; `known` has those of an earlier process of the run.
pub(in crate::train) fn task_entries(
    job: &Job,
    known: &BTreeMap<String, ScoredTask>,
) -> BTreeMap<String, ScoredTask> {
    let entry = |task: &Prepared| {
        let definition = task.definition();
        let before = known.get(&definition.name).cloned().unwrap_or_default();
        let blank = column_metrics(task).map(|metric| (metric.word().to_owned(), Default::default()));
        let entry = ScoredTask {
            definition: definition.hash.clone(),
            files: task.files_hash(),
            shots: task.shots,
            limit: job.recipe.values().evaluation.limit,
            items: task.items.len(),
            metric: task.metric().word().to_owned(),
            figures: blank.chain(before.figures).collect(),
            ..before
        };
        (definition.name.clone(), entry)
    };
    job.tasks.iter().map(entry).collect()
}

/// Returns the name of the folder with the scores of a step.
fn step_folder(step: u64, is_average: bool) -> String {
    format!("step-{step:06}{}", if is_average { "-ema" } else { "" })
}

/// Removes the folders of steps after `step`.
fn remove_after(folder: &Path, step: u64) -> Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    // Refuses a link, behind which other folders would be removed.
    regular::create_folder(folder)?;
    for entry in std::fs::read_dir(folder).at("read", folder)? {
        let path = entry.at("read", folder)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let digits = name.strip_prefix("step-").map(|rest| rest.strip_suffix("-ema").unwrap_or(rest));
        let is_later = digits.and_then(|digits| digits.parse::<u64>().ok()).is_some_and(|found| found > step);
        if is_later {
            std::fs::remove_dir_all(&path).at("remove", &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_steps_that_are_trained_again_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let names = ["step-000010", "step-000010-ema", "step-000020", "step-1000000-ema", "notes", "step-x"];
        for name in names {
            std::fs::create_dir_all(place.path().join(name).join("inside")).unwrap();
        }
        remove_after(place.path(), 10).unwrap();
        let left: Vec<&str> = names.into_iter().filter(|name| place.path().join(name).exists()).collect();
        assert_eq!(left, ["step-000010", "step-000010-ema", "notes", "step-x"]);
        remove_after(&place.path().join("none"), 0).unwrap();
        assert_eq!(step_folder(1_000_000, true), "step-1000000-ema");
    }
}
