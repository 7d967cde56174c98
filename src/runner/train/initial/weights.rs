//! Initial weights from a folder in HuggingFace's form (`model.init_from`).

use super::write_parameter;
use crate::data::Tokenizer;
pub(in crate::train) use crate::data::tokenizer::FILE as TOKENIZER;
use crate::data::tokenizer::{Begin, MAX_JSON_BYTES, begin_token};
use crate::device::communicator::Communicator;
use crate::device::{DType, Real};
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::hugging_face::Folder;
use crate::ir::Param;
use crate::liveness::report_progress;
use crate::machine::Machine;
use crate::model::Weights;
use crate::model::hugging_face::{CONFIG, ImportedWeights, Keys, keys};
use crate::plan::{Model, Plan};
use crate::policy::Position;
use crate::recipe::{self, Recipe};
use bytemuck::NoUninit;
use std::path::Path;
use std::sync::Arc;

const INIT_FROM: &str = "model.init_from";

/// Model keys that may differ from the folder: they set initial values or regularization, not the model
/// itself.
const MAY_DIFFER: [&str; 5] =
    ["model.dropout", "model.init_std", "model.residual_init", "model.head_init", INIT_FROM];

/// The weights with which a recipe begins.
#[derive(Debug)]
pub struct InitialWeights {
    /// The weights.
    pub weights: ImportedWeights,
    /// The hash of the weights' folder.
    pub hash: String,
    /// A warning if the recipe begins texts with another token than the folder's tokenizer does.
    pub warning: Option<String>,
}

impl InitialWeights {
    /// Opens, checks and hashes the folder with the initial weights of a recipe. Returns `None` if the recipe
    /// names no folder.
    ///
    /// # Errors
    /// Fails like [`check_initial_weights`], and if a file cannot be read or a weight is not finite.
    pub(in crate::train) fn open(
        recipe: &Recipe,
        plan: &Plan,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>> {
        let Some(weights) = find(recipe, plan)? else { return Ok(None) };
        check_tokenizer(recipe, &weights.folder, || Ok(tokenizer.clone()))?;
        let warning = begin_warning(&weights.folder, tokenizer)?;
        let hash = weights.folder.content_hash()?;
        Ok(Some(Self { weights, hash, warning }))
    }
}

/// Opens the folder with the initial weights of a recipe, and checks that it holds the plan's model and the
/// recipe's tokenizer. Reads only the headers of the weights. Returns `None` if the recipe names no folder.
///
/// # Errors
/// With a usage error if the folder is damaged, or if its configuration and the recipe disagree; the error
/// names every such key with both values.
pub fn check_initial_weights(recipe: &Recipe, plan: &Plan) -> Result<Option<ImportedWeights>> {
    let weights = find(recipe, plan)?;
    if let Some(weights) = &weights {
        check_tokenizer(recipe, &weights.folder, || Tokenizer::open(&recipe.values().data.tokenizer))?;
    }
    Ok(weights)
}

/// Finds the initial weights of a recipe, without a look at tokenizers.
fn find(recipe: &Recipe, plan: &Plan) -> Result<Option<ImportedWeights>> {
    let Some(path) = &recipe.values().model.init_from else { return Ok(None) };
    let folder = Folder::open(Path::new(path))?;
    let keys = keys(&folder.config)?;
    check_keys(recipe, plan, &keys)?;
    ImportedWeights::new(folder, &plan.model).map(Some)
}

/// Rejects a recipe that describes a different model than the configuration. Two ways to write one model,
/// such as an unset key and its default, are the same.
fn check_keys(recipe: &Recipe, plan: &Plan, keys: &Keys) -> Result<()> {
    let name = Path::new("config.json");
    let load = |toml: &str, changes: &[String]| {
        recipe::load_str(name, toml, changes, std::iter::empty(), &Machine::none())
    };
    let place = Path::new(recipe.values().model.init_from.as_deref().unwrap_or_default()).join(CONFIG);
    let theirs = load(&keys.to_toml(), &[]).map_err(|e| keys.explain(&e, &place.display().to_string()))?;
    let model = |recipe: &Recipe| Model::from_keys(&recipe.values().model, keys.vocab_size).canonical();
    let in_folder = model(&theirs);
    let learned_positions = plan.model.learned_positions;
    let in_recipe = Model { learned_positions: 0, ..plan.model.canonical() };
    let mut differing = Vec::new();
    if with_initial_values_of(&in_folder, in_recipe.clone()) != in_folder {
        let changes = recipe::diff(recipe.values(), theirs.values()).into_iter();
        let changes = changes.filter(|c| c.key.starts_with("model.") && !MAY_DIFFER.contains(&c.key));
        // The folder's model with the recipe's value of a key.
        let with_value = |key: &str, value: &str| match value {
            recipe::UNSET => load(&keys.without(key.trim_start_matches("model.")).to_toml(), &[]),
            value => load(&keys.to_toml(), &[format!("{key}={value}")]),
        };
        let changes_model = |key: &str, value: &str| {
            with_value(key, value)
                .map_or(true, |changed| with_initial_values_of(&in_folder, model(&changed)) != in_folder)
        };
        differing = changes
            .filter(|change| change.key != "model.vocab_size" || in_recipe.vocab_size != in_folder.vocab_size)
            .filter(|change| change.key == "model.vocab_size" || changes_model(change.key, &change.old))
            .map(|change| (change.key, change.old, change.new))
            .collect();
    }
    if in_folder.position == Position::Learned && keys.context != learned_positions {
        differing.push(("training.seq_len", learned_positions.to_string(), keys.context.to_string()));
    }
    if differing.is_empty() {
        return Ok(());
    }
    let mut marked = vec![INIT_FROM];
    marked.extend(differing.iter().map(|(key, ..)| *key).filter(|key| recipe.locate(key).is_some()));
    let listed =
        differing.iter().map(|(key, mine, theirs)| format!("{key} is {mine}, but {theirs} in the folder"));
    Err(recipe.error(
        &marked,
        format!(
            "the recipe describes a different model than the folder: {}",
            listed.collect::<Vec<_>>().join("; ")
        ),
        "use the values of the folder; `xrun import FOLDER` writes a recipe with them",
    ))
}

/// Returns a model with the initial values and the dropout of another, which are not part of a folder.
fn with_initial_values_of(other: &Model, model: Model) -> Model {
    let Model { dropout, init_std, residual_init, head_init, .. } = *other;
    Model { dropout, init_std, residual_init, head_init, ..model }
}

/// Warns if a folder's tokenizer puts a token before a text that the recipe, without `data.begin_token`, does
/// not.
fn begin_warning(folder: &Folder, tokenizer: &Tokenizer) -> Result<Option<String>> {
    let Some(json) = folder.text(TOKENIZER, MAX_JSON_BYTES)? else { return Ok(None) };
    let theirs = begin_token(&json).filter(|_| tokenizer.begins() == Begin::End);
    let other = theirs.filter(|name| tokenizer.token_to_id(name) != Some(tokenizer.end_token()));
    Ok(other.map(|name| {
        format!(
            "the model of {} begins texts with {name:?}, but here they begin with the end token {}; set \
             data.begin_token = {name:?} to begin them alike",
            folder.path.display(),
            tokenizer.end_in_words()
        )
    }))
}

/// Rejects a tokenizer whose vocabulary differs from the folder's. `open` is called only if the folder has
/// one.
fn check_tokenizer(recipe: &Recipe, folder: &Folder, open: impl FnOnce() -> Result<Tokenizer>) -> Result<()> {
    let Some(json) = folder.text(TOKENIZER, MAX_JSON_BYTES)? else { return Ok(()) };
    let same = open()?.has_same_vocabulary(&json);
    if same.map_err(|e| e.context(folder.path.join(TOKENIZER).display()))? {
        return Ok(());
    }
    let path = folder.path.join(TOKENIZER);
    Err(recipe.error(
        &["data.tokenizer", INIT_FROM],
        "the tokenizer has a different vocabulary than the folder's, so embeddings would belong to the wrong tokens",
        format!("set data.tokenizer = {:?}", path.display().to_string()),
    ))
}

/// Sets the parameters to weights that rank 0 reads. Every rank must call it.
///
/// # Errors
/// If a weight cannot be read or has a different shape, or a rank is lost.
pub(in crate::train) fn write_all_weights(
    engine: &mut Engine,
    comm: &dyn Communicator,
    weights: Option<&dyn Weights>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for param in &layout.params {
        report_progress();
        let mine = match weights {
            Some(weights) => weights.read(&param.name, &param.spec.shape)?,
            None => Vec::new(),
        };
        let bytes = if comm.world_size() == 1 { mine } else { comm.broadcast(&param.name, mine)? };
        write_weights(engine, param, &bytes)?;
    }
    Ok(())
}

/// Writes fp32 bytes without padding as the values of a parameter.
///
/// # Errors
/// If the number of bytes is wrong, or a copy to the device fails.
pub(in crate::train) fn write_weights(engine: &mut Engine, param: &Param, bytes: &[u8]) -> Result<()> {
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    if bytes.len() != 4 * param.spec.logical_elements() {
        return Err(Error::failed(format!(
            "{} has {} bytes, which does not match its shape in the model",
            param.name,
            bytes.len()
        )));
    }
    match engine.state.layout().precision.master {
        DType::F64 => write_parameter(engine, param, padded::<f64>(param, &values)),
        _ => write_parameter(engine, param, padded::<f32>(param, &values)),
    }
}

/// Returns the values of a parameter in its memory layout, with zeros as padding.
fn padded<A: Real + NoUninit>(param: &Param, values: &[f32]) -> Vec<A> {
    let mut padded = vec![A::ZERO; param.spec.elements()];
    for (from, at, len) in param.spec.runs() {
        for (to, value) in padded[at..at + len].iter_mut().zip(&values[from..from + len]) {
            *to = A::from_f64(f64::from(*value));
        }
    }
    padded
}
