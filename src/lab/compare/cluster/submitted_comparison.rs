//! What a submission of a comparison says beside its tasks.

use crate::compare::arms::RecipeCopy;
use crate::compare::question::SeedChoice;
use crate::compare::{Arms, ArmsRequest, Options, Question, Setting, confirm};
use crate::error::{IoContext, Result};
use crate::executor::batch_system::BatchSystem;
use crate::machine::Machine;
use crate::recipe;
use crate::results::atomic;
use crate::results::experiment::ARM_NAMES;
use crate::results::names::file_part;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A comparison, as it was submitted.
#[derive(Debug, Serialize, Deserialize)]
pub struct SubmittedComparison {
    /// The arms, as the user asked for them.
    pub arms: ArmsRequest,
    /// What is judged.
    pub options: Options,
    /// The stored comparison that is repeated; then the arms are its arms.
    pub confirmed: Option<String>,
    /// The longest time of a run, in seconds.
    pub timeout_s: Option<f64>,
    /// Copies of the recipes, as paths in the folder of the submission.
    pub copies: Vec<RecipeCopy>,
    /// The record of the question, as `NAME/ID`; `None` if the last task asks it, as it does with trials.
    pub comparison: Option<String>,
    /// The seeds of the pairs.
    pub seeds: Vec<[u64; 2]>,
    /// The cells of the runs, pair by pair; empty if the last task has all of them.
    pub keys: Vec<String>,
}

impl SubmittedComparison {
    /// Copies the recipes that the arms name into the folder of the submission, all layers in one, so that
    /// they may be edited while tasks wait.
    ///
    /// # Errors
    /// If a recipe cannot be read or its copy cannot be written.
    pub fn copy_recipes(arms: &ArmsRequest, folder: &Path) -> Result<Vec<RecipeCopy>> {
        let second = arms.candidate.first().filter(|first| !first.contains('=')).map(PathBuf::from);
        let recipes = arms.recipe.iter().cloned().chain(second);
        let copy = |(path, arm): (PathBuf, &str)| {
            let recipe = recipe::load(&path, &[], recipe::environment(), &Machine::none())?;
            // The name of the file is the recipe's, and both recipes may have the same.
            let copy = Path::new(arm).join(format!("{}.toml", file_part(recipe.name())));
            let to = folder.join(arm);
            std::fs::create_dir_all(&to).at("create", &to)?;
            atomic::write(&folder.join(&copy), recipe.copy().as_bytes())?;
            Ok(RecipeCopy { recipe: path, copy })
        };
        recipes.zip(ARM_NAMES).map(copy).collect()
    }

    /// Makes the question again, from the copies of its recipes in `folder`.
    ///
    /// # Errors
    /// The same as when it was submitted, if a file that it names is gone.
    pub fn question(&self, results: &Path, folder: &Path) -> Result<Question> {
        let mut question = match &self.confirmed {
            Some(confirmed) => confirm(results, confirmed, &self.options)?,
            None => Question::new(self.arms_from_copies(results, folder)?, &self.options)?,
        };
        if !self.seeds.is_empty() {
            // They were chosen when the question was asked.
            question.seeds.clone_from(&self.seeds);
            question.choice = SeedChoice::Named;
        }
        Ok(question)
    }

    fn arms_from_copies(&self, results: &Path, folder: &Path) -> Result<Arms> {
        let within =
            |one: &RecipeCopy| RecipeCopy { recipe: one.recipe.clone(), copy: folder.join(&one.copy) };
        let copies: Vec<RecipeCopy> = self.copies.iter().map(within).collect();
        let mut request = self.arms.clone();
        if let Some(first) = copies.first() {
            request.recipe = Some(first.copy.clone());
        }
        if let (Some(second), Some(candidate)) = (copies.get(1), request.candidate.first_mut()) {
            *candidate = second.copy.to_string_lossy().into_owned();
        }
        let mut arms = Arms::new(&request, results)?;
        arms.copies = copies;
        Ok(arms)
    }

    /// Returns how the question is answered with tasks of a batch system, which run on such a machine.
    pub fn setting<'a>(
        &self,
        results: &'a Path,
        machine: Machine,
        system: &'a dyn BatchSystem,
    ) -> Setting<'a> {
        Setting {
            results,
            machine,
            jobs: 1,
            timeout: self.timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            pilot: 0,
            batch: Some(system),
            algorithms_from: None,
        }
    }
}
