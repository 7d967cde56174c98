//! Arguments that several commands share: a recipe with its changes, the seed, the results folder.

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::recipe::{self, Recipe, builtin};
use crate::results::find;
use crate::results::folder::recipe_in_run;
use clap::builder::{PathBufValueParser, TypedValueParser};
use std::path::{Path, PathBuf};

/// `--results`.
#[derive(clap::Args, Debug)]
pub struct Results {
    /// The folder that holds the results.
    #[arg(long = "results", value_name = "DIR", default_value = "results")]
    #[arg(value_parser = PathBufValueParser::new().try_map(utf8_path))]
    pub folder: PathBuf,
}

/// Accepts only UTF-8 paths: files of a run name its folder, and their formats are text.
fn utf8_path(path: PathBuf) -> Result<PathBuf, &'static str> {
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err("the path is not UTF-8; choose another"),
    }
}

/// `--seed`.
#[derive(clap::Args, Debug)]
pub struct Seed {
    /// Short for training.seed=SEED.
    #[arg(long, value_name = "SEED")]
    seed: Option<String>,
}

impl Seed {
    /// Returns true if a seed was given.
    pub fn is_set(&self) -> bool {
        self.seed.is_some()
    }

    /// Returns `settings` with the seed added.
    pub fn on(&self, settings: &[String]) -> Vec<String> {
        let seed = self.seed.iter().map(|seed| format!("training.seed={seed}"));
        settings.iter().cloned().chain(seed).collect()
    }
}

/// A recipe and the changes to it.
#[derive(clap::Args, Debug)]
pub struct RecipeArguments {
    /// The recipe: a file, a built-in recipe, or a run whose recipe is used again.
    #[arg(value_name = "RECIPE")]
    pub recipe: PathBuf,
    /// Keys to change, as `section.key=value` (or `--section.key=value`).
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    #[command(flatten)]
    seed: Seed,
    #[command(flatten)]
    pub results: Results,
}

impl RecipeArguments {
    /// Loads the recipe, then applies the environment and the changes.
    ///
    /// # Errors
    /// If [`recipe::load`] fails, or if several runs match the name.
    pub fn load(&self, machine: &Machine) -> Result<Recipe> {
        let path = recipe_path(&self.recipe, &self.results.folder)?;
        recipe::load(&path, &self.seed.on(&self.overrides), recipe::environment(), machine)
    }

    /// Returns the folder of the run that the recipe names.
    ///
    /// # Errors
    /// Fails with a usage error if the recipe belongs to no run, or the command line changes it.
    pub fn run(&self) -> Result<PathBuf> {
        let path = recipe_path(&self.recipe, &self.results.folder)?;
        if !self.overrides.is_empty() || self.seed.is_set() {
            return Err(Error::usage(format!(
                "the command line changes {}, but a run's folder keeps only results of its own recipe; leave \
                 the changes out",
                self.recipe.display()
            )));
        }
        path.parent().filter(|run| find::has_summary(run)).map(Path::to_owned).ok_or_else(|| {
            Error::usage(format!(
                "{} is not the recipe of a run, so no run's folder can keep the result; name a run, or `latest`",
                self.recipe.display()
            ))
        })
    }
}

/// Splits words into the name of a run, if there is one, and the `section.key=value` that follow it.
pub fn run_and_keys(words: &[String]) -> (Option<&str>, &[String]) {
    match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (Some(first), rest),
        _ => (None, words),
    }
}

/// Returns the recipe that an argument means. A file or a built-in name stands for itself. A run's folder,
/// id, prefix of its id or hash, or `latest` stands for the recipe of that run.
///
/// # Errors
/// If the prefix matches several runs.
pub fn recipe_path(argument: &Path, results: &Path) -> Result<PathBuf> {
    let itself = || argument.to_owned();
    if find::has_summary(argument) || find::has_lost_summary(argument) {
        return recipe_in_run(argument);
    }
    match argument.to_str() {
        Some(name) if !argument.exists() && builtin::find(name).is_none() => {
            find::find_by_id(results, name)?.map_or_else(|| Ok(itself()), |run| recipe_in_run(&run))
        }
        _ => Ok(itself()),
    }
}
