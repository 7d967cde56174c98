//! Recipes: files as written, put in layers, checked, with every value's place kept for messages.
//!
//! ```text
//! defaults ─▶ files along `extends` ─▶ XRUN__SECTION__KEY ─▶ section.key=value      (later wins)
//!                 layers, typed                  ─▶ Resolved { Recipe, places } ─▶ checks
//! ```
//!
//! [`KEYS`] says which keys there are; [`Recipe`] holds their values.

mod batch;
pub mod builtin;
mod checks;
mod diagnostic;
mod json_schema;
mod key;
mod layers;
mod prediction;
mod reference;
mod resolved;
mod schema;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod typed;
mod values;

pub use batch::{Batch, DEFAULT_LOCAL_BATCH_SIZE, KEYS as BATCH_KEYS, batch};
pub use json_schema::json_schema;
pub use key::{Class, Interval, Key, Type, find, find_path, keys_of};
pub use prediction::{Predicted, Prediction};
pub use reference::reference_markdown;
pub use resolved::{Change, Resolved, diff, value_text};
pub use schema::{
    ActivationCheckpoint, Checkpoint, Compare, Data, Engine, Generation, Job, LrScheduler, Metrics, Model,
    Optimizer, Parallelism, Recipe, Sweep, Training, ValidationRuns,
};
pub use source::{Layer, Location, Source};
pub use table::{KEYS, MAX_RANKS, SECTIONS};
pub use values::{Validation, WorldSize};

use crate::error::{Error, Result};
use layers::Layers;
use source::Origin;
use std::path::Path;
use std::sync::Arc;

/// Reads the recipe at `path`, or the built-in one of that name where there is no such file, and puts `env` and
/// `overrides` (`section.key=value`) on top.
///
/// # Errors
/// A usage error that shows every wrong value with its file and line.
pub fn load(
    path: &Path,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Resolved> {
    let builtin = path.to_str().and_then(builtin::find).filter(|_| !path.exists());
    let source = match builtin {
        Some((name, text)) => Source::new(Origin::BuiltIn(name), text),
        None => {
            let text = layers::read(path).map_err(|reason| {
                let mut text = format!("cannot read the recipe {}: {reason}", path.display());
                if !path.exists() {
                    let names = builtin::names().collect::<Vec<_>>().join(", ");
                    text += &layers::beside(path);
                    text += &format!("\nbuilt in are {names}; `xrun init` writes a copy of one");
                }
                Error::usage(text)
            })?;
            Source::new(Origin::File(path.to_owned()), text)
        }
    };
    resolve(resolved::stem(path), source, overrides, env)
}

/// [`load`] for a recipe that is `text`, as if it stood in a file at `path`.
///
/// # Errors
/// As [`load`].
pub fn load_str(
    path: &Path,
    text: &str,
    overrides: &[String],
    env: impl Iterator<Item = (String, String)>,
) -> Result<Resolved> {
    resolve(resolved::stem(path), Source::new(Origin::File(path.to_owned()), text), overrides, env)
}

/// The key and the value, as TOML text, of one `section.key=value`, checked as [`load`] checks it.
///
/// # Errors
/// A usage error that points at what is wrong.
pub fn setting(text: &str) -> Result<(&'static Key, String)> {
    let mut layers = Layers::default();
    layers.command_line(&[text.to_owned()]);
    match layers.set.pop_first() {
        Some((path, assignment)) if layers.problems.is_empty() => {
            let key = find_path(path).expect("layers set keys of the table alone");
            Ok((key, value_text(&assignment.value)))
        }
        _ => Err(diagnostic::error(&layers.problems)),
    }
}

/// The process's variables that set keys of a recipe (`XRUN__SECTION__KEY`), for [`load`].
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
) -> Result<Resolved> {
    let base_dir = source.folder().to_owned();
    let mut layers = Layers::default();
    layers.files(source);
    layers.environment(env);
    layers.command_line(overrides);
    if !layers.problems.is_empty() {
        return Err(diagnostic::error(&layers.problems));
    }
    let resolved = Resolved::new(name, base_dir, layers)?;
    let problems = checks::contradictions(&resolved);
    if problems.is_empty() { Ok(resolved) } else { Err(diagnostic::error(&problems)) }
}
