//! Loads a recipe: reads its layers, merges them, resolves the result for a machine, and checks it for
//! contradictions.

use super::key::Key;
use super::layers::{self, Document, Layers};
use super::loaded::{Recipe, StoredRecipe};
use super::lookup::find_path;
use super::merge::{Defaults, Merged};
use super::settle::world_size;
use super::source::{Origin, Source};
use super::stored::StoredKeys;
use super::toml_text::value_text;
use super::until::{STEPS, UNTIL};
use super::values::WorldSize;
use super::{builtin, checks, diagnostic, files, length};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model_text::built_in;
use crate::suggest::nearest;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads the recipe at `path`, or the built-in recipe of that name if there is no such file, adds `env` and
/// `overrides` (`section.key=value`) on top, and resolves it for `machine`.
///
/// In the recipe of a run's folder, keys that were added after the run keep the behavior that the run had,
/// whatever their defaults are now. So running it again, or resuming it, gives the same bits.
///
/// # Errors
/// A usage error that shows every wrong value with its file and line.
pub fn load(
    path: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    check_name(path)?;
    let builtin = path.to_str().and_then(builtin::find).filter(|_| !path.exists());
    let source = match builtin {
        Some((name, text)) => Source::new(Origin::BuiltIn(name), text),
        None => {
            let is_in_run = RunRecipe::from_path(path).is_some();
            let read = if is_in_run { files::read_in_run } else { files::read };
            let text = read(path).map_err(|reason| {
                let mut text = format!("cannot read the recipe {}: {reason}", path.display());
                if !path.exists() {
                    if let Some(name) = path.to_str().filter(|name| built_in(name).is_some()) {
                        return model_text(path, &format!("model.definition={name}"));
                    }
                    let names = builtin::names().collect::<Vec<_>>().join(", ");
                    text += &files::beside(path);
                    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
                    if let Some(name) = nearest(stem, builtin::names()) {
                        text += &format!("; did you mean the built-in recipe {name}?");
                    }
                    text += &format!("\nbuilt in are {names}; `xrun init` writes a copy of one");
                }
                Error::usage(text)
            })?;
            if is_model_text(&text) {
                return Err(model_text(path, &format!("model.definition={}", path.display())));
            }
            Source::new(Origin::File(path.to_owned()), text)
        }
    };
    resolve(stem(path), source, defaults(path), overrides, env, machine)
}

/// Returns true for a model text, whose first line besides comments begins the part `embed`.
fn is_model_text(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.next().is_some_and(|line| line.starts_with("embed:"))
}

/// Returns the error about a model text in the place of a recipe.
fn model_text(path: &Path, setting: &str) -> Error {
    Error::usage(format!(
        "{} is a model text, not a recipe; give a recipe and {setting}, which trains the text with the recipe's \
         other keys",
        path.display()
    ))
}

/// Refuses paths that a run cannot store: the path and name of a recipe appear in the run's summary, plots
/// and pages, which are text.
fn check_name(path: &Path) -> Result<()> {
    match path.to_str() {
        Some(text) if !text.contains(char::is_control) => Ok(()),
        _ => Err(Error::usage(format!(
            "the path of the recipe {} has control characters or is not UTF-8; rename it",
            path.display()
        ))),
    }
}

/// Loads the recipe `text` like [`load`], as if it were the content of a file at `path`.
///
/// # Errors
/// See [`load`].
pub fn load_str(
    path: &Path,
    text: &str,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    resolve(stem(path), text_source(path, text), Defaults::default(), overrides, env, machine)
}

/// Loads the text of a resolved recipe, as stored in a run's folder and in checkpoints. Keys that the text
/// leaves out take the value at which resolved recipes leave them out.
///
/// # Errors
/// See [`load`].
pub fn load_resolved(path: &Path, text: &str, overrides: &[String], machine: &Machine) -> Result<Recipe> {
    let source = text_source(path, text);
    resolve(stem(path), source, Defaults::from_resolved(), overrides, std::iter::empty(), machine)
}

/// Makes a source from a string, as if it were the content of a file at `path`.
fn text_source(path: &Path, text: &str) -> Arc<Source> {
    Source::new(Origin::File(path.to_owned()), text)
}

/// Returns the key and the value (as TOML) of one `section.key=value`, with the same checks as [`load`].
///
/// # Errors
/// A usage error that points at the mistake.
pub fn setting(text: &str) -> Result<(&'static Key, String)> {
    let mut layers = Layers::default();
    layers.command_line(&[text.to_owned()]);
    match layers.documents.pop().and_then(|mut document| document.set.pop_first()) {
        Some((path, assignment)) if layers.problems.is_empty() => {
            let key = find_path(path).expect("layers set only keys of the table");
            Ok((key, value_text(&assignment.value)))
        }
        _ => Err(diagnostic::error(&layers.problems)),
    }
}

/// Returns the process's environment variables that set recipe keys (`XRUN__SECTION__KEY`), for [`load`].
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(layers::ENV_PREFIX))
}

fn resolve(
    name: String,
    source: Arc<Source>,
    defaults: Defaults,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    let mut layers = Layers::default();
    layers.files(source);
    layers.environment(env);
    layers.command_line(overrides);
    let files = layers.files.iter().map(|f| (PathBuf::from(f.name()), f.text.clone())).collect();
    let merged = Merged::new(defaults, checked(layers)?);
    let recipe = Recipe::new(name, files, merged, |values| world_size(values, machine))?;
    without_contradictions(recipe)
}

/// Returns the texts of the layers, if there are no errors.
fn checked(layers: Layers) -> Result<Vec<Document>> {
    if layers.problems.is_empty() { Ok(layers.documents) } else { Err(diagnostic::error(&layers.problems)) }
}

fn without_contradictions(recipe: Recipe) -> Result<Recipe> {
    let open = recipe.values().parallelism.world_size == WorldSize::Auto;
    let problems = checks::contradictions(&recipe, open);
    if problems.is_empty() { Ok(recipe) } else { Err(diagnostic::error(&problems)) }
}

impl Recipe {
    /// Returns this recipe with `section.key=value` arguments on top, resolved for `machine`.
    ///
    /// # Errors
    /// See [`load`].
    pub fn with_overrides(&self, overrides: &[String], machine: &Machine) -> Result<Self> {
        without_contradictions(self.merged_with(overrides, machine)?)
    }

    /// Returns this recipe with the steps that its budget gives if a token takes `per_token` FLOPs or
    /// seconds. A recipe whose steps are known stays the same.
    ///
    /// # Errors
    /// A usage error if the budget is less than a step or more steps than a recipe may have, or if the recipe
    /// names another number of steps. See also [`load`].
    pub fn with_cost_per_token(&self, per_token: f64) -> Result<Self> {
        let written = &self.written().training;
        let is_open = self.awaits_plan() || self.awaits_clock();
        let Some(until) = written.until.as_ref().filter(|_| is_open) else { return Ok(self.clone()) };
        let named = self.values().training.steps;
        let steps = length::steps(until, per_token, written, &self.batch()?);
        let steps = steps.map_err(|reason| self.error(&[UNTIL], reason, length::HELP))?;
        if named != length::UNKNOWN_STEPS && named != steps {
            let reason = length::disagreement(until, steps, named);
            return Err(self.error(&[STEPS, UNTIL], reason, length::DISAGREEMENT_HELP));
        }
        without_contradictions(self.with_known_steps(steps))
    }

    /// Returns the hash that this recipe has with `section.key=value` arguments on top. A recompute mode that
    /// was already chosen for it is kept.
    ///
    /// # Errors
    /// If an argument is invalid on its own.
    pub fn hash_with(&self, overrides: &[String]) -> Result<String> {
        let merged = self.merged_with(overrides, &Machine::none())?;
        let chosen = self.values().activation_checkpoint.mode.fixed();
        Ok(chosen.map_or_else(|| merged.hash(), |mode| merged.clone().with_recompute(mode).hash()))
    }

    fn merged_with(&self, overrides: &[String], machine: &Machine) -> Result<Self> {
        let mut layers = Layers::default();
        layers.command_line(overrides);
        let merged = self.merged.with(checked(layers)?);
        Self::new(self.name().to_owned(), self.files().to_vec(), merged, |values| world_size(values, machine))
    }
}

impl StoredRecipe {
    /// Reads the recipe back: the same values, hash and copy.
    ///
    /// # Errors
    /// If [`Recipe::to_stored`] did not write the data.
    pub fn load(self) -> Result<Recipe> {
        let mut layers = Layers::default();
        layers.files(text_source(Path::new(&self.name), &self.written));
        let merged = Merged::new(Defaults::from_resolved(), checked(layers)?);
        let recipe = Recipe::new(self.name, Vec::new(), merged, |_| Some(self.world_size))?;
        Ok(recipe.with_copy(self.copy))
    }
}

/// A recipe in a run's folder.
struct RunRecipe {
    /// The folder of the run.
    run: PathBuf,
    /// The name of the recipe that was run.
    name: String,
    /// True for `resolved.toml`, false for `recipe.toml`.
    is_resolved: bool,
}

impl RunRecipe {
    /// Recognizes `NAME/RUN/recipe.toml` and `NAME/RUN/resolved.toml`; `None` for another path. If someone
    /// copied or renamed the folder, the name comes from the run's summary.
    fn from_path(path: &Path) -> Option<Self> {
        let is_resolved = match path.file_stem()?.to_str()? {
            "recipe" => false,
            "resolved" => true,
            _ => return None,
        };
        let path = std::path::absolute(path).ok()?;
        let run = path.parent()?;
        let name = match is_run(run.file_name()?.to_str()?) {
            true => run.parent()?.file_name()?.to_str()?.to_owned(),
            false => recorded_name(run)?,
        };
        Some(Self { run: run.to_owned(), name, is_resolved })
    }
}

/// Returns the name of the recipe in a run's summary; `None` for a folder without one.
fn recorded_name(folder: &Path) -> Option<String> {
    /// The fields read from a summary.
    #[derive(serde::Deserialize)]
    struct Names {
        recipe: String,
        run: String,
    }
    let path = folder.join("summary.json");
    let names: Names = serde_json::from_str(&files::read_in_run(&path).ok()?).ok()?;
    let is_name = !names.recipe.is_empty() && !names.recipe.contains(char::is_control);
    (is_run(&names.run) && is_name).then_some(names.recipe)
}

/// Returns the name of a recipe: its file name without the extension `.toml` only, because the name of a
/// built-in recipe may contain a dot. Recipes in a run's folder have the name of what was run.
pub(super) fn stem(path: &Path) -> String {
    let stem = || {
        let file = path.file_name().map_or_else(|| "recipe".into(), |name| name.to_string_lossy());
        file.strip_suffix(".toml").unwrap_or(&file).to_owned()
    };
    RunRecipe::from_path(path).map_or_else(stem, |recipe| recipe.name)
}

/// Returns the bottom layer of the recipe at a path. The recipe of a run knows the keys in the run's resolved
/// recipe; if that cannot be read, it is taken to know today's keys.
fn defaults(path: &Path) -> Defaults {
    let Some(recipe) = RunRecipe::from_path(path) else { return Defaults::default() };
    if recipe.is_resolved {
        return Defaults::from_resolved();
    }
    let resolved = files::read_in_run(&recipe.run.join("resolved.toml")).ok();
    let keys = resolved.and_then(|text| StoredKeys::parse(&text).ok());
    keys.map_or_else(Defaults::default, |keys| Defaults::from_run_copy(&keys))
}

/// Returns true if a folder is named like a run: `20261122T110113Z-ce4b8923`, optionally with a suffix such
/// as `-2`.
fn is_run(folder: &str) -> bool {
    let mut parts = folder.splitn(3, '-');
    let (time, hash, number) =
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next());
    time.len() == 16
        && time.char_indices().all(|(at, c)| match at {
            8 => c == 'T',
            15 => c == 'Z',
            _ => c.is_ascii_digit(),
        })
        && hash.len() == 8
        && hash.chars().all(|c| c.is_ascii_hexdigit())
        && number.is_none_or(|number| number.chars().all(|c| c.is_ascii_digit()))
}
