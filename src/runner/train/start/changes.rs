//! Finds what differs between a run and the checkpoint that it continues, and rejects what must not differ.

use crate::checkpoint::{END_TOKEN_ID, Loaded};
use crate::data::chat::own_template;
use crate::data::tokenizer::SETTINGS;
use crate::data::{Dataset, FileStamp, HeldOut};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::Programs;
use crate::model::hugging_face::MAX_COMPANION_BYTES;
use crate::plan::Plan;
use crate::recipe::{self, Class, Recipe};
use crate::regular;
use crate::results::folder::RECIPE;
use crate::results::held_out::HeldOutSet;
use crate::results::scored_tasks::ScoredTask;
use crate::results::summary::CorpusFile;
use crate::tasks::Prepared;
use crate::train::gauges::engine_name;
use crate::train::shards::checkpoint_buffers;
use std::collections::BTreeMap;
use std::path::Path;

/// The key of further held-out sets. Each set is a separate measure, so a new set does not affect other
/// losses.
const SETS: &str = "validation.sets";

/// What the keys of tasks begin with. They do not affect losses.
const TASKS: &str = "evaluation.";

/// Describes, one sentence each, the held-out sets whose tokens differ from the ones that a run was measured
/// on. Runs of earlier versions did not record this.
pub(super) fn changed_sets(before: &BTreeMap<String, HeldOutSet>, dataset: &Dataset) -> Vec<String> {
    let differs = |set: &HeldOut| {
        let hash = before.get(&set.name)?.hash.as_ref().filter(|hash| **hash != set.hash)?;
        Some(format!("the held-out set {} has hash {} (was {})", set.name, short(&set.hash), short(hash)))
    };
    dataset.sets.iter().filter_map(differs).collect()
}

/// Describes, one sentence each, the tasks that now ask something else than a run was asked.
pub(super) fn changed_tasks(before: &BTreeMap<String, ScoredTask>, tasks: &[Prepared]) -> Vec<String> {
    let differs = |task: &Prepared| {
        let (definition, files) = (task.definition(), task.files_hash());
        let known = before.get(&definition.name)?;
        if known.files != files {
            let (now, then) = (short(&files), short(&known.files));
            return Some(format!("the files of task {} have hash {now} (was {then})", definition.name));
        }
        (known.definition != definition.hash).then(|| {
            let (now, then) = (short(&definition.hash), short(&known.definition));
            format!("the definition of task {} has hash {now} (was {then})", definition.name)
        })
    };
    tasks.iter().filter_map(differs).collect()
}

/// Returns true if a run recorded all of its tasks, and they ask what they asked.
pub(super) fn same_tasks(before: &BTreeMap<String, ScoredTask>, tasks: &[Prepared]) -> bool {
    changed_tasks(before, tasks).is_empty()
        && tasks.iter().all(|task| before.contains_key(&task.definition().name))
}

/// Returns the first digits of a hash.
fn short(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}

/// Describes what a fork trains or measures differently from its parent.
pub(super) fn changed_by_fork(before: &Recipe, recipe: &Recipe) -> Vec<String> {
    let text = |change: recipe::Change| {
        let text = format!("{} = {} (was {})", change.key, change.new, change.old);
        match change.class {
            Class::Training => Some(text),
            Class::Measuring if change.key == SETS || change.key.starts_with(TASKS) => Some(text),
            Class::Measuring => Some(format!("{text}: validation losses of both runs do not compare")),
            Class::Execution | Class::Bookkeeping => None,
        }
    };
    recipe::diff(before.values(), recipe.values()).into_iter().filter_map(text).collect()
}

/// Describes the training keys that a fork inherits, although a run from step 0 would derive other values.
/// For example, a warm-up that is a share of the steps keeps the parent's value.
pub(super) fn kept_by_fork(run: &Path, before: &Recipe, recipe: &Recipe) -> Vec<String> {
    let changed = recipe::diff(before.values(), recipe.values()).into_iter();
    let settings: Vec<String> = changed
        .filter(|change| change.class == Class::Training && change.new != recipe::UNSET)
        .map(|change| format!("{}={}", change.key, change.new))
        .collect();
    // The parent's copy of its recipe holds only the keys that were set, so all derived values are derived
    // again. Copies of earlier versions do not load, so nothing can be said about them.
    let copy = recipe::load(&run.join(RECIPE), &settings, std::iter::empty(), &Machine::none());
    let Ok(anew) = copy else { return Vec::new() };
    let differing = recipe::diff(anew.values(), recipe.values()).into_iter();
    let follows =
        |change: &recipe::Change| change.class == Class::Training && anew.locate(change.key).is_none();
    differing
        .filter(follows)
        .map(|change| {
            format!(
                "{} = {} is kept from the parent run; a run of this recipe from step 0 has {}",
                change.key, change.new, change.old
            )
        })
        .collect()
}

/// Maximum number of corpus files that a summary lists, and that a message names.
const MAX_FILES: usize = 100;
const NAMED_FILES: usize = 3;

/// Returns the files of a corpus for a summary; none if there are too many.
pub(in crate::train) fn corpus_files(dataset: &Dataset) -> Vec<CorpusFile> {
    let file = |file: &FileStamp| CorpusFile {
        path: file.path.display().to_string(),
        bytes: file.bytes,
        modified: file.modified,
    };
    let few = dataset.files.len() <= MAX_FILES;
    dataset.files.iter().filter(|_| few).map(file).collect()
}

/// Describes how the corpus differs from the one with the hash `before`, and which files changed. `None` if
/// it is the same.
pub(super) fn other_corpus(before: &str, files: &[CorpusFile], dataset: &Dataset) -> Option<String> {
    if before == dataset.hash {
        return None;
    }
    let mut text = format!("the corpus has hash {} (was {})", short(&dataset.hash), short(before));
    let now = corpus_files(dataset);
    let mut differing = Vec::new();
    for file in &now {
        match files.iter().find(|before| before.path == file.path) {
            Some(before) if before == file => {}
            Some(before) => differing.push(format!("{} has {file}; it had {before}", file.path)),
            None => differing.push(format!("{} was not part of it", file.path)),
        }
    }
    let gone = files.iter().filter(|before| now.iter().all(|file| file.path != before.path));
    differing.extend(gone.map(|file| format!("{} is no longer part of it", file.path)));
    // Runs of earlier versions, and runs with many files, did not record their files.
    if !files.is_empty() && !now.is_empty() {
        let more = differing.len().saturating_sub(NAMED_FILES);
        differing.truncate(NAMED_FILES);
        differing.extend((more > 0).then(|| format!("and {more} more files differ")));
        text.extend(differing.iter().map(|file| format!("\n    {file}")));
    }
    Some(text)
}

/// The data of a resumed run compared with the data that the run had.
pub(super) struct DataBefore {
    /// Differences in content, one sentence each.
    pub differences: Vec<String>,
    /// True if the hashes of the corpus, the held-out text and the tokenizer were recorded and are the same.
    pub same_corpus: bool,
    /// True if the hash of every further held-out set was recorded and is the same.
    pub same_sets: bool,
    /// True if the definition and the files of every task were recorded and are the same.
    pub same_tasks: bool,
    /// True if the run kept the text of the chat template that the recipe names.
    pub same_template: bool,
    /// True if the run needs the weights under its adapters, so that their content is compared as they are
    /// read.
    pub compares_weights: bool,
}

impl DataBefore {
    /// Returns true if a key names the same content at another path.
    fn is_moved(&self, change: &recipe::Change) -> bool {
        let same = match change.key {
            "data.corpus" | "data.drop" | "data.tokenizer" | "data.validation" => self.same_corpus,
            // Tokens do not show all of a template: it may treat other conversations otherwise.
            "data.chat_template" => self.same_corpus && self.same_template,
            "model.init_from" => self.compares_weights,
            SETS => self.same_sets,
            "evaluation.data" => self.same_tasks,
            key if recipe::is_source_path(key) => self.same_corpus,
            _ => false,
        };
        same && change.is_of_paths()
    }
}

/// Returns true if a run recorded the hash of each held-out set, and all are what they were.
pub(super) fn same_sets(before: &BTreeMap<String, HeldOutSet>, dataset: &Dataset) -> bool {
    let same = |set: &HeldOut| before.get(&set.name).and_then(|set| set.hash.as_ref()) == Some(&set.hash);
    dataset.sets.iter().all(same)
}

/// Returns true if the file of the chat template that a recipe names has the text that a run kept. A file
/// that cannot be read has not: the corpus says what is wrong with it.
pub(super) fn same_template(run: &Path, recipe: &Recipe) -> bool {
    let named = recipe.values().data.chat_template.as_deref();
    let named = named.and_then(|path| regular::read_through_link(Path::new(path), MAX_COMPANION_BYTES).ok());
    let kept = own_template(run).ok().flatten();
    kept.zip(named).is_some_and(|(kept, named)| kept.as_bytes() == named)
}

/// What a resume changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Keys that change the recipe's hash.
    pub changed: Vec<String>,
    /// Paths under which the same content lies now.
    pub moved: Vec<String>,
}

/// Compares the original recipe with the current one. Training keys and the content of the data must be the
/// same; execution keys and the paths of the data may change, and the changes are returned.
pub(super) fn changes(
    before: &Recipe,
    data: DataBefore,
    recipe: &Recipe,
    run: &Path,
    place: &Path,
) -> Result<Changes> {
    let mut changes = Changes::default();
    let mut refused = Vec::new();
    let mut fork = format!("xrun resume {} --fork", run.display());
    for change in recipe::diff(before.values(), recipe.values()) {
        let text = format!("{} = {} (was {})", change.key, change.new, change.old);
        match change.class {
            Class::Training | Class::Measuring if data.is_moved(&change) => {
                let list = if change.keeps_hash() { &mut changes.moved } else { &mut changes.changed };
                list.push(format!("{text}, with the same content"));
            }
            Class::Training | Class::Measuring => {
                if change.new != recipe::UNSET {
                    fork += &format!(" {}={}", change.key, change.new);
                }
                refused.push(text);
            }
            Class::Execution => changes.changed.push(text),
            Class::Bookkeeping => {}
        }
    }
    refused.extend(data.differences);
    if refused.is_empty() {
        return Ok(changes);
    }
    Err(Error::usage(format!(
        "{} belongs to a run that trains or measures something else:\n  {}\nundo the change; or `{fork}` starts a \
         new run from it",
        place.display(),
        refused.join("\n  ")
    )))
}

/// The tokenizer that a run was trained with.
pub(super) struct TokenizerBefore<'a> {
    /// Its hash, in hexadecimal.
    pub hash: &'a str,
    /// The id of its end token, if that is recorded.
    pub end: Option<&'a str>,
}

impl<'a> TokenizerBefore<'a> {
    /// Returns what a checkpoint records.
    pub(super) fn from_checkpoint(loaded: &'a Loaded) -> Self {
        let meta = loaded.meta();
        Self { hash: &meta.tokenizer_hash, end: meta.extra.get(END_TOKEN_ID).map(String::as_str) }
    }

    /// Describes how the tokenizer in use differs; `None` if it is the same.
    fn difference(&self, dataset: &Dataset) -> Option<String> {
        let tokenizer = &dataset.tokenizer;
        let now = tokenizer.hash();
        if self.hash == now {
            return None;
        }
        let other_end = self.end.filter(|id| **id != tokenizer.end_token().to_string());
        Some(match other_end {
            Some(end) => format!(
                "the end token is {} (was {end}); {SETTINGS} beside the tokenizer.json names it",
                tokenizer.end_in_words()
            ),
            None => format!("the tokenizer has hash {now} (was {})", self.hash),
        })
    }
}

/// Rejects a tokenizer that differs from the one of the checkpoint or run at `place`. The corpus hash cannot
/// show this, because both tokenizers may give the same ids.
pub(super) fn check_tokenizer(place: &Path, before: &TokenizerBefore<'_>, dataset: &Dataset) -> Result<()> {
    let Some(what) = before.difference(dataset) else { return Ok(()) };
    Err(Error::usage(format!(
        "this is not the run that {} belongs to: {what}\nundo the change of data.tokenizer or of the files beside it, or \
         start a new run from the checkpoint with `xrun resume RUN --fork data.tokenizer=PATH`",
        place.display()
    )))
}

/// Rejects a fork whose tokenizer changed without its recipe: the files at the path are no longer the ones
/// that the parent was trained with. Returns what differs if the recipe names another tokenizer.
pub(super) fn check_fork_tokenizer(
    loaded: &Loaded,
    dataset: &Dataset,
    before: &Recipe,
    recipe: &Recipe,
) -> Result<Option<String>> {
    let Some(what) = TokenizerBefore::from_checkpoint(loaded).difference(dataset) else { return Ok(None) };
    if before.values().data.tokenizer != recipe.values().data.tokenizer {
        return Ok(Some(what));
    }
    Err(Error::usage(format!(
        "{} was trained with another tokenizer: {what}\nundo the change of the files at data.tokenizer, or name another \
         tokenizer with data.tokenizer=PATH",
        loaded.path().display()
    )))
}

/// Rejects a fork with no steps left to train, or whose model or optimizer differs from the checkpoint's.
pub(super) fn check_fork(loaded: &Loaded, plan: &Plan, programs: &Programs) -> Result<()> {
    let at = loaded.path().display();
    let step = loaded.meta().step;
    if step >= plan.steps as u64 {
        return Err(Error::usage(format!(
            "{at} is at step {step}, so training.steps = {} leaves nothing to train; set it above {step}",
            plan.steps
        )));
    }
    for param in &programs.state.params {
        let (name, shape) = (&param.name, &param.spec.shape);
        let found = match loaded.shape(name) {
            Some(found) if found == shape => continue,
            Some(found) => format!("is {found:?} there"),
            None => "is not there".to_owned(),
        };
        return Err(Error::usage(format!(
            "{at} holds a different model: {name}, {shape:?} in this recipe, {found}; a fork keeps [model] and the \
             vocabulary size"
        )));
    }
    let average = plan.ema.map(|ema| ema.slot(plan.precision).checkpoint_prefix);
    for buffer in checkpoint_buffers(&programs.state).iter().filter(|_| !loaded.is_weights_only()) {
        let mut names =
            buffer.params(&programs.state).map(|param| format!("{}{}", buffer.prefix, param.name));
        if let Some(missing) = names.find(|name| loaded.shape(name).is_none()) {
            return Err(Error::usage(match average == Some(buffer.prefix) {
                true => format!(
                    "{at} holds no moving average of the weights: there is no {missing}; a fork can use ema.decay \
                     only if its parent did"
                ),
                false => format!(
                    "{at} holds the state of a different optimizer: there is no {missing}; a fork keeps optimizer.name \
                     and the optimizers of [optimizer.groups]"
                ),
            }));
        }
    }
    Ok(())
}

/// Returns a warning if a resumed run may not match an uninterrupted one to the bit.
pub(super) fn engine_warning(loaded: &Loaded, plan: &Plan) -> Option<String> {
    let (before, now) = (&loaded.meta().engine, engine_name(plan));
    (*before != now).then(|| {
        format!(
            "{} was computed on {before}, but this is {now}: the run continues, but may not match an uninterrupted \
             run to the bit",
            loaded.path().display()
        )
    })
}
