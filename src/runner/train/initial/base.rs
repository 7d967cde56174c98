//! The model that a recipe names with `model.init_from`: a folder in HuggingFace's form, or a checkpoint of a
//! run.

use super::same_model::{Described, check_keys};
use crate::checkpoint::{self, Loaded};
use crate::data::Tokenizer;
use crate::data::tokenizer::{FILE as TOKENIZER, MAX_JSON_BYTES, begin_token};
use crate::error::{Error, Result};
use crate::hugging_face::Folder;
use crate::model::hugging_face::{CONFIG, ImportedWeights, keys};
use crate::model::{Weights, parameters_of_model};
use crate::plan::Model;
use crate::policy::AdapterKind;
use crate::recipe::Recipe;
use crate::results::names::CHECKPOINT;
use crate::train::of_checkpoint::{recipe_of, run_of, tokenizer_of};
use std::path::{Path, PathBuf};

/// A model that a run begins with. Of a folder, only headers were read.
#[derive(Debug)]
pub enum BaseModel {
    /// A folder in HuggingFace's form.
    Folder(Box<ImportedWeights>),
    /// A checkpoint of a run, with the weights that were trained, not their moving average.
    Checkpoint(Box<BaseCheckpoint>),
}

/// A checkpoint with all weights of a model.
#[derive(Debug)]
pub struct BaseCheckpoint {
    /// The checkpoint.
    pub loaded: Loaded,
    /// The folder of its run.
    run: PathBuf,
    recipe: Recipe,
    tokenizer: Tokenizer,
}

/// A tokenizer beside a model.
pub(super) struct TheirTokenizer {
    /// Its `tokenizer.json`.
    pub path: PathBuf,
    /// The content of the file.
    pub json: String,
    /// The token that it puts before a text, if it is not the end token.
    pub begin: Option<String>,
}

impl BaseModel {
    /// Opens what a recipe names, and checks that it holds the recipe's model, without a look at tokenizers.
    /// Returns `None` if the recipe names nothing.
    ///
    /// # Errors
    /// A usage error if it is gone or damaged, or if its model and the recipe's disagree; the error names
    /// every such key with both values.
    pub fn open(recipe: &Recipe, model: &Model) -> Result<Option<Self>> {
        let Some(path) = recipe.values().model.init_from.as_deref().map(Path::new) else { return Ok(None) };
        let Some(loaded) = open_checkpoint(path)? else {
            let folder = Folder::open(path)?;
            let keys = keys(&folder.config)?;
            let place = path.join(CONFIG);
            check_keys(recipe, model, &Described::by_config(&keys, &place)?)?;
            return Ok(Some(Self::Folder(Box::new(ImportedWeights::new(folder, model)?))));
        };
        let base = BaseCheckpoint::new(loaded)?;
        check_keys(
            recipe,
            model,
            &Described::by_recipe(&base.run, &base.recipe, base.tokenizer.vocab_size())?,
        )?;
        base.check_shapes(model)?;
        Ok(Some(Self::Checkpoint(Box::new(base))))
    }

    /// Returns the path of the folder or of the checkpoint.
    pub fn path(&self) -> &Path {
        match self {
            Self::Folder(weights) => &weights.folder.path,
            Self::Checkpoint(base) => base.loaded.path(),
        }
    }

    /// Returns what it is, in one word.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Folder(_) => "folder",
            Self::Checkpoint(_) => "run",
        }
    }

    /// Returns the folder in HuggingFace's form, if it is one.
    pub fn folder(&self) -> Option<&Folder> {
        match self {
            Self::Folder(weights) => Some(&weights.folder),
            Self::Checkpoint(_) => None,
        }
    }

    /// Returns the folder of the run, if it is a checkpoint of one.
    pub fn run(&self) -> Option<&Path> {
        match self {
            Self::Folder(_) => None,
            Self::Checkpoint(base) => Some(&base.run),
        }
    }

    /// Returns the checkpoint, if it is one.
    pub fn checkpoint(&self) -> Option<&Loaded> {
        match self {
            Self::Folder(_) => None,
            Self::Checkpoint(base) => Some(&base.loaded),
        }
    }

    /// Returns true if a parameter is part of the model.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(weights) => weights.has(name),
            Self::Checkpoint(base) => base.loaded.parameter_names().any(|known| known == name),
        }
    }

    /// Returns the hash of the content, in hexadecimal.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn content_hash(&self) -> Result<String> {
        match self {
            Self::Folder(weights) => weights.folder.content_hash(),
            Self::Checkpoint(base) => Ok(base.loaded.state_hash().to_owned()),
        }
    }

    /// Returns the model's tokenizer; `None` for a folder without one.
    ///
    /// # Errors
    /// If its file cannot be read.
    pub(super) fn tokenizer(&self) -> Result<Option<TheirTokenizer>> {
        match self {
            Self::Folder(weights) => {
                let Some(json) = weights.folder.text(TOKENIZER, MAX_JSON_BYTES)? else { return Ok(None) };
                let (path, begin) = (weights.folder.path.join(TOKENIZER), begin_token(&json));
                Ok(Some(TheirTokenizer { path, json, begin }))
            }
            Self::Checkpoint(base) => Ok(Some(TheirTokenizer {
                path: base.run.join(TOKENIZER),
                json: base.tokenizer.to_json().to_owned(),
                begin: base.recipe.values().data.begin_token.clone().filter(|token| !token.is_empty()),
            })),
        }
    }

    /// Checks that all weights are finite. Weights of folders are checked as they are read.
    ///
    /// # Errors
    /// If one is not; the message names the tensor.
    pub(super) fn check_finite(&self) -> Result<()> {
        self.checkpoint().map_or(Ok(()), |loaded| loaded.check_finite(""))
    }
}

impl Weights for BaseModel {
    fn names(&self) -> Vec<String> {
        match self {
            Self::Folder(weights) => weights.names(),
            Self::Checkpoint(base) => Weights::names(&base.loaded),
        }
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        match self {
            Self::Folder(weights) => weights.read(name, shape),
            Self::Checkpoint(base) => base.loaded.read(name, shape),
        }
    }
}

impl BaseCheckpoint {
    fn new(loaded: Loaded) -> Result<Self> {
        let run = run_of(&loaded).unwrap_or(loaded.path()).to_owned();
        let recipe = recipe_of(&loaded)?;
        if recipe.values().adapter.kind != AdapterKind::None {
            return Err(Error::usage(format!(
                "{} has adapters and not the weights under them, so no run can begin with it: `xrun export {} --merge --to DIR` \
                 and model.init_from=DIR begin with both",
                loaded.path().display(),
                run.display()
            )));
        }
        let tokenizer = tokenizer_of(&run, &loaded)?;
        Ok(Self { loaded, run, recipe, tokenizer })
    }

    /// Rejects a checkpoint without the tensors of a model, such as one of another version.
    fn check_shapes(&self, model: &Model) -> Result<()> {
        for param in parameters_of_model(model)? {
            if self.loaded.shape(&param.name) != Some(&param.shape[..]) {
                return Err(Error::usage(format!(
                    "{} holds a different model: {} is {:?} in this recipe, and {} there",
                    self.loaded.path().display(),
                    param.name,
                    param.shape,
                    self.loaded
                        .shape(&param.name)
                        .map_or_else(|| "missing".to_owned(), |shape| format!("{shape:?}"))
                )));
            }
        }
        Ok(())
    }
}

/// Returns the hash of the content of a folder or a checkpoint, in hexadecimal.
///
/// # Errors
/// If it is gone or damaged.
pub(in crate::train) fn content_hash_at(path: &Path) -> Result<String> {
    match open_checkpoint(path)? {
        Some(loaded) => Ok(loaded.state_hash().to_owned()),
        None => Folder::open(path)?.content_hash(),
    }
}

/// Returns true if a path is, or was, a checkpoint of a run.
pub(in crate::train) fn is_checkpoint(path: &Path) -> bool {
    !path.join(CONFIG).exists() && step_at(path).is_some()
}

/// Returns true if a path is of a folder in HuggingFace's form, a run with checkpoints, or a checkpoint.
pub(in crate::train) fn is_model(path: &Path) -> bool {
    path.join(CONFIG).exists() || step_at(path).is_some() || path.join(CHECKPOINT).is_dir()
}

/// Returns the folder of checkpoints and the step of a path that is, or was, a checkpoint of a run.
fn step_at(path: &Path) -> Option<(&Path, u64)> {
    let step = path.file_name()?.to_str().and_then(checkpoint::step_of)?;
    path.parent().filter(|folder| folder.ends_with(CHECKPOINT)).map(|folder| (folder, step))
}

/// Opens the checkpoint at a path, or the newest one of the run there; `None` if the path is of neither. A
/// folder with a model's `config.json` is no run, whatever else it holds.
///
/// # Errors
/// A usage error if the checkpoint is gone. Fails if it is damaged.
pub(in crate::train) fn open_checkpoint(path: &Path) -> Result<Option<Loaded>> {
    if path.join(CONFIG).exists() {
        return Ok(None);
    }
    if let Some((folder, step)) = step_at(path) {
        if !path.exists() {
            return Err(Error::usage(format!(
                "{}: the checkpoint that model.init_from names is gone; restore it, or name a copy of it with \
                 model.init_from=PATH",
                path.display()
            )));
        }
        return checkpoint::at_step(folder, step).map(Some);
    }
    let checkpoints = path.join(CHECKPOINT);
    if checkpoints.is_dir() { checkpoint::newest(&checkpoints) } else { Ok(None) }
}
