//! Opens a model to score with: a run's checkpoint, or a folder in HuggingFace's form.

use super::import::{MAX_CONTEXT, ModelFolder, OpenedFolder, open};
use super::run_weights::RunWeights;
use super::scored_model::{AVERAGE, Named, TRAINING, scored_model};
use super::trained::{OpenedRun, TrainedRun, engine_with_weights};
use crate::checkpoint::Loaded;
use crate::data::Tokenizer;
use crate::error::{Error, IoContext, Result};
use crate::forecast::check_scoring_fits;
use crate::machine::Machine;
use crate::model::hugging_face::{CONFIG, ImportedWeights};
use crate::model::{ScoringPrograms, Weights, WeightsKind};
use crate::plan::{CorpusFacts, Plan};
use crate::policy::Shard;
use crate::recipe::{self, Class, Recipe};
use crate::results::progress::eprint_line;
use crate::scoring::Scorer;
use crate::task_evaluation::ScoredModel;
use std::ffi::OsStr;
use std::path::Path;

/// A model to score with.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A run's checkpoint.
    Run(TrainedRun),
    /// A folder in HuggingFace's form.
    Folder {
        /// The folder.
        model: ModelFolder,
        /// Keys to change, as `section.key=value`: execution keys and `training.dtype`.
        overrides: Vec<String>,
    },
}

/// A model that is ready to score: planned and checked, with nothing allocated yet.
#[derive(Debug)]
pub struct ScoringModel {
    /// What scores depend on.
    pub model: ScoredModel,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    plan: Plan,
    programs: ScoringPrograms,
    recipe: Recipe,
    weights: OpenedWeights,
}

/// What a model is opened for.
#[derive(Clone, Copy, Debug)]
struct ModelUse {
    /// The most tokens that it reads at once; `None` for its context.
    max_len: Option<usize>,
    /// True if it generates texts.
    generates: bool,
}

#[derive(Debug)]
enum OpenedWeights {
    Checkpoint(Box<Loaded>, WeightsKind),
    Folder(Box<ImportedWeights>),
}

impl ScoringModel {
    /// Opens a model. It reads at most `max_len` tokens at once, or as many as its context has. If
    /// `generates`, its scorer generates texts too.
    ///
    /// # Errors
    /// If the run or the folder cannot be read, a key would change the model, `max_len` is more than the
    /// context, or the model does not fit this machine.
    pub fn open(source: &ModelSource, max_len: Option<usize>, generates: bool) -> Result<Self> {
        match source {
            ModelSource::Run(run) => {
                let OpenedRun { loaded, recipe, machine, tokenizer } = OpenedRun::open(run)?;
                let weights = match run.weights {
                    WeightsKind::Training => TRAINING,
                    WeightsKind::Ema => AVERAGE,
                };
                // RECIPE/RUN, as in the results folder; the recipe in a checkpoint has no name.
                let folder = run.folder.canonicalize().at("find", &run.folder)?;
                let names =
                    [folder.parent().and_then(Path::file_name), folder.file_name()].into_iter().flatten();
                let name = names.map(OsStr::to_string_lossy).collect::<Vec<_>>().join("/");
                let named = Named {
                    name,
                    step: Some(loaded.meta().step),
                    weights,
                    hash: Some(loaded.state_hash().to_owned()),
                };
                let weights = OpenedWeights::Checkpoint(Box::new(loaded), run.weights);
                let asked = ModelUse { max_len, generates };
                Self::plan(&recipe, (&machine, asked), named, tokenizer, weights)
            }
            ModelSource::Folder { model, overrides } => {
                // A model with a longer context is opened with 4096 tokens of it, unless more are asked for.
                let longer = max_len.filter(|max_len| *max_len > MAX_CONTEXT);
                let model = ModelFolder { seq_len: longer.or(model.seq_len), ..model.clone() };
                let OpenedFolder { recipe, weights, tokenizer, notes, .. } = open(&model)?;
                notes.iter().for_each(|note| eprint_line(note));
                let machine = Machine { single_device: true, ..Machine::here() };
                let changed = recipe.with_overrides(overrides, &machine)?;
                check_keys(&recipe, &changed)?;
                let named = Named {
                    name: recipe.name().to_owned(),
                    step: None,
                    weights: "published",
                    hash: Some(weights.folder.content_hash()?),
                };
                let weights = OpenedWeights::Folder(Box::new(weights));
                let asked = ModelUse { max_len, generates };
                Self::plan(&changed, (&machine, asked), named, tokenizer, weights)
            }
        }
    }

    fn plan(
        recipe: &Recipe,
        (machine, ModelUse { max_len, generates }): (&Machine, ModelUse),
        named: Named,
        tokenizer: Tokenizer,
        weights: OpenedWeights,
    ) -> Result<Self> {
        let corpus = CorpusFacts { vocab_size: tokenizer.vocab_size(), ..CorpusFacts::default() };
        let mut plan = Plan::new(recipe, &corpus, machine)?;
        // One rank scores, which has all weights.
        plan.execution.shard = Shard::None;
        let context = plan.batch.seq_len;
        if let Some(max_len) = max_len {
            if !(1..=context).contains(&max_len) {
                return Err(Error::usage(format!(
                    "--max-len {max_len}: the model reads 1 to {context} tokens at once"
                )));
            }
            plan.batch.seq_len = max_len;
        }
        let programs = ScoringPrograms::new(&plan, generates)?;
        check_scoring_fits(&plan, &programs, machine)?;
        let dtype = recipe.values().training.dtype;
        let model = scored_model(named, (&plan, dtype), programs.shape, machine, tokenizer.hash());
        Ok(Self { model, tokenizer, plan, programs, recipe: recipe.clone(), weights })
    }

    /// Returns the bytes of device memory that a scorer takes.
    pub fn bytes(&self) -> usize {
        self.programs.bytes()
    }

    /// Allocates memory on the device, and reads the weights into it.
    ///
    /// # Errors
    /// If the device reports an error, or a weight cannot be read.
    pub fn scorer(&self) -> Result<Scorer> {
        let Self { plan, programs, weights, .. } = self;
        let from_checkpoint;
        let weights: &dyn Weights = match weights {
            OpenedWeights::Checkpoint(loaded, kind) => {
                from_checkpoint = RunWeights::open(loaded, *kind, &self.recipe, &plan.model)?;
                &from_checkpoint
            }
            OpenedWeights::Folder(weights) => &**weights,
        };
        let sections: Vec<_> = programs.sections().collect();
        let engine = engine_with_weights(plan, &programs.state, &sections, weights)?;
        Ok(Scorer::new(engine, programs.clone(), plan.model.vocab_size))
    }
}

/// Rejects changes of the model of a folder.
fn check_keys(recipe: &Recipe, changed: &Recipe) -> Result<()> {
    let changes = recipe::diff(recipe.values(), changed.values());
    let is_other =
        |change: &&recipe::Change| change.class == Class::Training && change.key != "training.dtype";
    match changes.iter().find(is_other) {
        Some(change) => Err(Error::usage(format!(
            "{} is part of the model ({}); only execution keys and training.dtype can be set",
            change.key, change.old
        ))),
        None => Ok(()),
    }
}

/// Returns true if a path is a folder in HuggingFace's form.
pub fn is_model_folder(path: &Path) -> bool {
    path.join(CONFIG).exists()
}
