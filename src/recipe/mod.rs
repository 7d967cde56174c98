//! Recipes: files as written, merged in layers, checked, with every value's place kept for messages.
//!
//! ```text
//! defaults ─▶ files along `extends` ─▶ XRUN__SECTION__KEY ─▶ section.key=value      (later wins)
//!        layers, checked key by key ─▶ figment merges ─▶ settled for a Machine ─▶ checks ─▶ Recipe, frozen
//! ```
//!
//! [`KEYS`] lists the keys, [`Values`] holds a value for each, and a [`Recipe`] has them as written and as settled.

mod batch;
pub mod builtin;
mod checks;
mod define;
mod diagnostic;
mod diff;
mod files;
mod json_schema;
mod key;
mod layers;
mod loaded;
mod lookup;
mod merge;
mod prediction;
mod reference;
mod schema;
mod settle;
mod source;
#[cfg(test)]
mod tests;
mod toml_text;
mod typed;
mod values;

pub use batch::{Batch, DEFAULT_LOCAL_BATCH_SIZE, KEYS as BATCH_KEYS};
pub use diff::{Change, diff};
pub use json_schema::json_schema;
pub use key::{Class, Interval, Key, Type};
pub use lookup::{find, find_path, keys_of};
pub use prediction::{PREDICTABLE, Predicted, Prediction};
pub use loaded::{Recipe, StoredRecipe};
pub use reference::reference_markdown;
pub use schema::{
    ActivationCheckpoint, Checkpoint, Compare, Data, Engine, Generation, Job, KEYS, LrScheduler, MAX_RANKS, Metrics,
    Model, Optimizer, Parallelism, SECTIONS, Sweep, Training, ValidationRuns, Values,
};
pub use source::{Layer, Location, Source};
pub use toml_text::value_text;
pub use values::{Validation, WorldSize};

use crate::error::{Error, Result};
use crate::machine::Machine;
use layers::Layers;
use source::Origin;
use std::path::Path;
use std::sync::Arc;

/// Reads the recipe at `path`, or the built-in one of that name where there is no such file, puts `env` and `overrides`
/// (`section.key=value`) on top, and settles it for `machine`.
///
/// # Errors
/// A usage error that shows every wrong value with its file and line.
pub fn load(
    path: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    let builtin = path.to_str().and_then(builtin::find).filter(|_| !path.exists());
    let source = match builtin {
        Some((name, text)) => Source::new(Origin::BuiltIn(name), text),
        None => {
            let text = files::read(path).map_err(|reason| {
                let mut text = format!("cannot read the recipe {}: {reason}", path.display());
                if !path.exists() {
                    let names = builtin::names().collect::<Vec<_>>().join(", ");
                    text += &files::beside(path);
                    text += &format!("\nbuilt in are {names}; `xrun init` writes a copy of one");
                }
                Error::usage(text)
            })?;
            Source::new(Origin::File(path.to_owned()), text)
        }
    };
    resolve(loaded::stem(path), source, overrides, env, machine)
}

/// [`load`] for the recipe `text`, as if it stood in a file at `path`.
///
/// # Errors
/// As [`load`].
pub fn load_str(
    path: &Path,
    text: &str,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    resolve(loaded::stem(path), text_source(path, text), overrides, env, machine)
}

/// A text as if it stood in a file at `path`.
fn text_source(path: &Path, text: &str) -> Arc<Source> {
    Source::new(Origin::File(path.to_owned()), text)
}

/// Returns the key and the value, as TOML text, of one `section.key=value`, checked as [`load`] checks it.
///
/// # Errors
/// A usage error that points at what is wrong.
pub fn setting(text: &str) -> Result<(&'static Key, String)> {
    let mut layers = Layers::default();
    layers.command_line(&[text.to_owned()]);
    match layers.documents.pop().and_then(|mut document| document.set.pop_first()) {
        Some((path, assignment)) if layers.problems.is_empty() => {
            let key = find_path(path).expect("layers set keys of the table alone");
            Ok((key, value_text(&assignment.value)))
        }
        _ => Err(diagnostic::error(&layers.problems)),
    }
}

/// Returns the process's environment variables that set keys of a recipe (`XRUN__SECTION__KEY`), for [`load`].
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(layers::ENV_PREFIX))
}

fn resolve(
    name: String,
    source: Arc<Source>,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
    machine: &Machine,
) -> Result<Recipe> {
    let mut layers = Layers::default();
    layers.files(source);
    layers.environment(env);
    layers.command_line(overrides);
    if !layers.problems.is_empty() {
        return Err(diagnostic::error(&layers.problems));
    }
    Recipe::new(name, layers, machine)
}
