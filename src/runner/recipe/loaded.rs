//! A loaded recipe: checked and unchangeable, with the origin of each value.

use super::batch::{self, BatchSizes, batch};
use super::condition::UNSET;
use super::copy::{copy, in_comment};
use super::derived::{choose_mixture, derive_warmup, drop_superseded};
use super::diagnostic::{self, Diagnostic};
use super::key::{Class, Key};
use super::length::{Fault, Length, NamedSteps, UNKNOWN_STEPS, length};
use super::merge::Merged;
use super::schema::{SECTIONS, Values};
use super::settle::settle;
use super::source::{Layer, Location};
use super::sources::CORPUS;
use super::toml_text::{both_values, hashed_text, values, without_path};
use super::until::{STEPS, UNTIL};
use crate::error::{Error, Result};
use crate::policy::{CorpusSource, Recompute, RecomputeMode, Validation};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// A complete, checked recipe. It does not change after it is loaded.
///
/// It holds its values twice: as written, and resolved for one machine. Runs use the resolved values, which
/// have absolute paths and a number for `parallelism.world_size = "auto"`. The hash covers the values as
/// written, with absolute paths, so it does not depend on the machine, and `training.until` in place of the
/// steps that follow from it. For `activation_checkpoint.mode = "auto"` it covers the mode that the plan
/// chose.
#[derive(Clone, Debug)]
pub struct Recipe {
    name: String,
    written: Values,
    settled: Values,
    world_size: usize,
    /// Local, accumulation and global batch size for `world_size`. A world size chosen for the machine may
    /// not divide the batch.
    batch: Result<BatchSizes, String>,
    /// Whether the number of steps is known.
    length: Length,
    /// The recipe files as written, base first.
    files: Vec<(PathBuf, String)>,
    pub(super) merged: Merged,
    copy: String,
}

/// What the number of steps follows from if a budget sets it.
const UNTIL_RULE: &str = "follows from training.until";

/// What the corpus follows from if no layer sets it.
const MIXTURE_RULE: &str = "follows from data.sources";

/// A recipe to be sent to another process, which must not resolve it again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredRecipe {
    pub(super) name: String,
    /// The values as written, with absolute paths, as TOML.
    pub(super) written: String,
    pub(super) world_size: usize,
    pub(super) copy: String,
}

impl Recipe {
    /// Resolves merged layers with the world size that `world_size` returns; `None` leaves it open.
    pub(super) fn new(
        name: String,
        files: Vec<(PathBuf, String)>,
        merged: Merged,
        world_size: impl FnOnce(&Values) -> Option<usize>,
    ) -> Result<Self> {
        let mut written = merged.values()?;
        drop_superseded(&mut written, &merged);
        choose_mixture(&mut written, &merged);
        let world_size = world_size(&written);
        let batch = batch(&written.training, world_size.unwrap_or(1));
        let named = match merged.position(STEPS) == merged.position(UNTIL) {
            true if merged.is_resolved(UNTIL) => NamedSteps::InResolved,
            true => NamedSteps::InRecipe,
            false => NamedSteps::No,
        };
        let (steps, length) = length(&written.training, named, batch.as_ref().ok());
        let settled = settle(&with_steps(&written, steps), &merged, world_size)?;
        let world_size = world_size.unwrap_or(1);
        let copy = copy(&written, &settled, &merged, &files);
        Ok(Self { name, written, settled, world_size, batch, length, files, merged, copy })
    }

    /// Replaces the copy by the one that another process made of this recipe.
    pub(super) fn with_copy(mut self, copy: String) -> Self {
        self.copy = copy;
        self
    }

    /// Returns everything that the layers set, each value with its origin, as one recipe file that can be run
    /// again.
    pub fn copy(&self) -> &str {
        &self.copy
    }

    /// Replaces `activation_checkpoint.mode = "auto"` by the mode it stands for on the machine that the
    /// recipe is planned for. A recipe that fixes its mode stays the same.
    #[must_use]
    pub fn with_recompute(mut self, mode: Recompute) -> Self {
        let settled = &mut self.settled.activation_checkpoint.mode;
        *settled = RecomputeMode::Fixed(settled.fixed().unwrap_or(mode));
        self
    }

    /// Returns true if the number of steps is not known or not checked, because it follows from a budget in
    /// FLOPs and from the plan. [`Recipe::values`] then has the most steps that a recipe may have.
    pub fn awaits_plan(&self) -> bool {
        self.length == Length::AwaitsPlan
    }

    /// Returns true if the number of steps is not known, because it follows from a budget of time.
    pub fn awaits_clock(&self) -> bool {
        self.length == Length::AwaitsClock
    }

    /// Returns true if nothing says yet how many steps there are.
    fn is_open(&self) -> bool {
        (self.awaits_plan() || self.awaits_clock()) && self.settled.training.steps == UNKNOWN_STEPS
    }

    /// Returns this recipe with the number of steps that its budget gives.
    pub(super) fn with_known_steps(&self, steps: usize) -> Self {
        let mut recipe = self.clone();
        recipe.length = Length::Known;
        recipe.settled.training.steps = steps;
        recipe.settled.lr_scheduler = self.written.lr_scheduler.clone();
        derive_warmup(&mut recipe.settled);
        recipe
    }

    /// Returns this recipe with another number of steps, whatever sets its length.
    #[must_use]
    pub fn with_number_of_steps(&self, steps: usize) -> Self {
        let mut recipe = self.clone();
        recipe.written.training.until = None;
        recipe.settled.training.until = None;
        recipe.written.training.steps = steps;
        recipe.with_known_steps(steps)
    }

    /// Returns the reason why the length contradicts itself, if it does.
    pub(super) fn length_fault(&self) -> Option<&Fault> {
        match &self.length {
            Length::Faulty(fault) => Some(fault),
            Length::Known | Length::AwaitsPlan | Length::AwaitsClock => None,
        }
    }

    /// Returns this recipe under another name.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Returns the name, which is the file name without its extension; run folders are named after it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the values that a run uses, with absolute paths and a fixed world size.
    pub fn values(&self) -> &Values {
        &self.settled
    }

    /// Returns the values as written in the layers.
    pub fn written(&self) -> &Values {
        &self.written
    }

    /// Returns the recipe files as they were written, base first.
    pub fn files(&self) -> &[(PathBuf, String)] {
        &self.files
    }

    /// Returns the number of ranks; 1 if the recipe leaves it to an unknown machine.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Returns the local batch size, the accumulation and the global batch size, with derived values filled
    /// in.
    ///
    /// # Errors
    /// A usage error if a world size that was `"auto"` does not divide the batch.
    pub fn batch(&self) -> Result<BatchSizes> {
        self.batch.clone().map_err(|reason| {
            self.error(&batch::KEYS, reason, "global = local · accumulation · world; leave one of them unset")
        })
    }

    /// Returns the batch sizes, or the reason why they contradict each other.
    pub(super) fn batch_or_reason(&self) -> Result<BatchSizes, &str> {
        self.batch.as_ref().map(|batch| *batch).map_err(String::as_str)
    }

    /// Returns the location that sets `key`; `None` if it has its default.
    pub fn locate(&self, key: &str) -> Option<&Location> {
        self.merged.locate(key)
    }

    /// Returns the layer that the value of `key` comes from.
    pub fn layer(&self, key: &str) -> Layer {
        self.merged.layer(key)
    }

    /// Returns every key with its value as TOML, as written or derived from others (`None` if unset), and its
    /// layer, in table order.
    pub fn explain(&self) -> Vec<(&'static Key, Option<String>, Layer)> {
        let both = both_values(&self.written, &self.settled);
        let explained = both.map(|(key, written, settled)| match (written, settled) {
            (None, Some(value)) => (key, Some(value), Layer::Derived { rule: key.unset }),
            (_, value) if key.path == STEPS && self.settled.training.until.is_some() => {
                let value = value.filter(|_| !self.is_open());
                let value = value.unwrap_or_else(|| "known when a run begins".to_owned());
                (key, Some(value), Layer::Derived { rule: UNTIL_RULE })
            }
            (written, _) if key.path == CORPUS && self.written.data.corpus == CorpusSource::Mixture => {
                let layer =
                    self.locate(CORPUS).map_or(Layer::Derived { rule: MIXTURE_RULE }, Location::layer);
                (key, written, layer)
            }
            (written, _) => (key, written, self.layer(key.path)),
        });
        explained.collect()
    }

    /// Returns the names of the further held-out sets: those of `validation.sets`, and the sources of a
    /// mixture of which a fraction is held out.
    pub fn held_out_sets(&self) -> BTreeSet<&str> {
        let Values { data, validation, .. } = self.values();
        let divided = matches!(data.validation, Validation::Fraction(_));
        let sources = data.sources.keys().filter(|_| divided);
        validation.sets.keys().chain(sources).map(String::as_str).collect()
    }

    /// Returns the values of the measuring keys as TOML.
    pub fn measuring(&self) -> BTreeMap<String, String> {
        let measuring = values(&self.settled).into_iter().filter(|(key, _)| key.class == Class::Measuring);
        measuring.filter_map(|(key, value)| Some((key.path.to_owned(), value?))).collect()
    }

    /// Makes a usage error that points at the first of `keys`, and at the others as context. `message` names
    /// the value and what is wrong with it; `help` is the next step.
    pub fn error(&self, keys: &[&str], message: impl Into<String>, help: impl Into<String>) -> Error {
        diagnostic::error(&[self.diagnostic(keys, message, help)])
    }

    pub(super) fn diagnostic(
        &self,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        let values = values(&self.written);
        let mut diagnostic = Diagnostic::new(message, help);
        // Where a budget in a higher layer is the length, it is what the reader set.
        let by_budget = self.settled.training.until.is_some()
            && self.merged.position(STEPS) < self.merged.position(UNTIL);
        for path in keys {
            let path = if by_budget && *path == STEPS { &UNTIL } else { path };
            diagnostic = diagnostic.key(*path);
            let value =
                values.iter().find(|(key, _)| key.path == *path).and_then(|(_, value)| value.as_ref());
            let fact = value.map_or(format!("{path} is unset"), |value| format!("{path} = {value}"));
            diagnostic = match self.locate(path) {
                Some(at) => {
                    let label = if keys.len() > 1 { fact } else { String::new() };
                    diagnostic.mark(&at.source, at.value.clone(), label)
                }
                None if value.is_some() => diagnostic.note(format!("{fact} by default")),
                None => diagnostic.note(fact),
            };
        }
        diagnostic
    }

    /// Returns the values that the hash covers: as written, with the chosen recompute mode.
    fn hashed(&self) -> Values {
        let mut hashed = self.settled.clone();
        hashed.parallelism.world_size = self.written.parallelism.world_size;
        hashed
    }

    /// Returns the BLAKE3 hash, in hexadecimal, of every training and execution key with its value as
    /// written; of a path only the last part counts, so a recipe keeps its hash when its files move.
    ///
    /// Measuring and bookkeeping keys, the layers, the spelling and the machine do not matter. Two recipes
    /// with the same hash compute the same if the files that they name are the same and `"auto"` means the
    /// same devices.
    pub fn hash(&self) -> String {
        hash_values(&self.hashed(), hashed_text)
    }

    /// Returns the hash with the resolved world size and without any path: it is the same for `"auto"` and
    /// for the number of ranks that `"auto"` stands for on this machine, and for files that were moved or
    /// renamed. It identifies a training only together with hashes of the files' content.
    pub fn settled_hash(&self) -> String {
        hash_values(&self.settled, without_path)
    }

    /// Returns the recipe for another process of the same run, with the resolved world size.
    pub fn to_stored(&self) -> StoredRecipe {
        StoredRecipe {
            name: self.name.clone(),
            // The other process plans too, and finds the steps of a budget by the same arithmetic.
            written: to_toml(&self.hashed(), |key| key.path == STEPS && self.is_open(), |_| None),
            world_size: self.world_size,
            copy: self.copy.clone(),
        }
    }
}

/// Returns values with another number of steps.
fn with_steps(values: &Values, steps: usize) -> Values {
    let mut values = values.clone();
    values.training.steps = steps;
    values
}

/// Writes values as TOML, section by section, with unset keys as comments, without the keys that `leaves_out`
/// names, and with what `note` says of a key as a comment behind its value.
pub(super) fn to_toml(
    recipe: &Values,
    leaves_out: impl Fn(&Key) -> bool,
    note: impl Fn(&Key) -> Option<String>,
) -> String {
    let mut text = String::new();
    let values = values(recipe);
    for (section, _) in SECTIONS {
        let gap = if text.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{section}]");
        let written = |(key, value): &&(&Key, Option<String>)| {
            key.section() == *section && !key.is_implied(value.as_deref()) && !leaves_out(key)
        };
        for (key, value) in values.iter().filter(written) {
            let _ = match value {
                Some(value) => {
                    let note = note(key).map_or(String::new(), |note| format!("  # {note}"));
                    writeln!(text, "{} = {value}{}", key.name(), in_comment(&note))
                }
                None => writeln!(text, "# {} is unset: {}", key.name(), key.unset),
            };
        }
    }
    text
}

/// Returns the BLAKE3 hash, in hexadecimal, of every training and execution key with its value in the form
/// that `form` gives it.
fn hash_values(recipe: &Values, form: impl for<'v> Fn(&Key, &'v str) -> Cow<'v, str>) -> String {
    let mut hasher = blake3::Hasher::new();
    let follows = |key: &Key| key.path == STEPS && recipe.training.until.is_some();
    for (key, value) in values(recipe).into_iter().filter(|(key, _)| !follows(key)) {
        if key.class.is_hashed() && !key.is_implied(value.as_deref()) {
            let value = value.as_deref().map_or(Cow::Borrowed(UNSET), |value| form(key, value));
            hasher.update(format!("{} = {value}\n", key.path).as_bytes());
        }
    }
    hasher.finalize().to_hex().to_string()
}
