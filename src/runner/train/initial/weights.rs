//! Initial weights from a folder in HuggingFace's form (`model.init_from`).

use super::write_parameter;
use crate::checkpoint::{INITIAL_WEIGHTS, Loaded};
use crate::data::Tokenizer;
pub(in crate::train) use crate::data::tokenizer::FILE as TOKENIZER;
use crate::data::tokenizer::{Begin, MAX_JSON_BYTES, begin_token};
use crate::device::communicator::Communicator;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::hugging_face::Folder;
use crate::ir::{FrozenParam, Param, Spec};
use crate::liveness::report_progress;
use crate::machine::Machine;
use crate::model::Weights;
use crate::model::hugging_face::peft::AdapterWeights;
use crate::model::hugging_face::{CONFIG, ImportedWeights, Keys, keys};
use crate::plan::{Model, Plan};
use crate::policy::{AdapterKind, Position};
use crate::recipe::{self, Recipe};
use std::collections::BTreeSet;
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
    /// The weights of the model.
    pub weights: ImportedWeights,
    /// The weights of its adapters, if the recipe names some (`adapter.init_from`).
    pub adapter: Option<AdapterWeights>,
    /// The hash of the folder with the model's weights.
    pub hash: String,
    /// A warning if the recipe begins texts with another token than the folder's tokenizer does.
    pub warning: Option<String>,
}

impl InitialWeights {
    /// Opens, checks and hashes the folder with the initial weights of a recipe. Returns `None` if the recipe
    /// names no folder. A run that does not begin with them, but continues, reads the weights under its
    /// adapters and has the adapters.
    ///
    /// # Errors
    /// Fails like [`check_initial_weights`], and if a file cannot be read or a weight is not finite.
    pub(in crate::train) fn open(
        recipe: &Recipe,
        plan: &Plan,
        tokenizer: &Tokenizer,
        begins: bool,
    ) -> Result<Option<Self>> {
        let Some(weights) = find(recipe, &plan.model)? else { return Ok(None) };
        check_tokenizer(recipe, &weights.folder, || Ok(tokenizer.clone()))?;
        let warning = begin_warning(&weights.folder, tokenizer)?;
        let hash = weights.folder.content_hash()?;
        let adapter = if begins { adapter_weights(recipe, plan, &weights.folder)? } else { None };
        Ok(Some(Self { weights, adapter, hash, warning }))
    }
}

impl Weights for InitialWeights {
    fn names(&self) -> Vec<String> {
        self.weights.names().into_iter().chain(self.adapter.iter().flat_map(Weights::names)).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        match &self.adapter {
            Some(adapter) if !self.weights.has(name) => adapter.read(name, shape),
            _ => self.weights.read(name, shape),
        }
    }
}

/// Opens the adapter with which a recipe's adapters begin, on the model in the folder `base`; `None` if the
/// recipe names none.
fn adapter_weights(recipe: &Recipe, plan: &Plan, base: &Folder) -> Result<Option<AdapterWeights>> {
    let (Some(adapter), Some(path)) = (&plan.adapter, &recipe.values().adapter.init_from) else {
        return Ok(None);
    };
    AdapterWeights::open(Path::new(path), adapter, &plan.model, base).map(Some)
}

/// Opens the folder with the weights that the adapters of a checkpoint were trained on; `None` if it has all
/// weights itself.
///
/// # Errors
/// A usage error if the folder is gone, or its content has changed.
pub(in crate::train) fn frozen_weights(
    recipe: &Recipe,
    model: &Model,
    loaded: &Loaded,
) -> Result<Option<ImportedWeights>> {
    if recipe.values().adapter.kind == AdapterKind::None {
        return Ok(None);
    }
    let Some(weights) = find(recipe, model)? else { return Ok(None) };
    check_same_base(&weights.folder, &weights.folder.content_hash()?, loaded)?;
    Ok(Some(weights))
}

/// Rejects a folder whose content, of this hash, is not what the adapters of a checkpoint were trained on.
pub(in crate::train) fn check_same_base(folder: &Folder, hash: &str, loaded: &Loaded) -> Result<()> {
    if loaded.meta().extra.get(INITIAL_WEIGHTS).is_some_and(|before| before == hash) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} is not the model on which the adapters of {} were trained: its content has changed. Restore the folder, or \
         name another copy of it with model.init_from=FOLDER",
        folder.path.display(),
        loaded.path().display()
    )))
}

/// Opens the folder with the initial weights of a recipe, and checks that it holds the plan's model and the
/// recipe's tokenizer. Reads only the headers of the weights. Returns `None` if the recipe names no folder.
///
/// # Errors
/// With a usage error if the folder is damaged, or if its configuration and the recipe disagree; the error
/// names every such key with both values.
pub fn check_initial_weights(recipe: &Recipe, plan: &Plan) -> Result<Option<ImportedWeights>> {
    let weights = find(recipe, &plan.model)?;
    if let Some(weights) = &weights {
        adapter_weights(recipe, plan, &weights.folder)?;
        check_tokenizer(recipe, &weights.folder, || Tokenizer::open(&recipe.values().data.tokenizer))?;
    }
    Ok(weights)
}

/// Finds the initial weights of a recipe, without a look at tokenizers.
fn find(recipe: &Recipe, model: &Model) -> Result<Option<ImportedWeights>> {
    let Some(path) = &recipe.values().model.init_from else { return Ok(None) };
    let folder = Folder::open(Path::new(path))?;
    let keys = keys(&folder.config)?;
    check_keys(recipe, model, &keys)?;
    ImportedWeights::new(folder, model).map(Some)
}

/// Rejects a recipe that describes a different model than the configuration. Two ways to write one model,
/// such as an unset key and its default, are the same.
fn check_keys(recipe: &Recipe, planned: &Model, keys: &Keys) -> Result<()> {
    let name = Path::new("config.json");
    let load = |toml: &str, changes: &[String]| {
        recipe::load_str(name, toml, changes, std::iter::empty(), &Machine::none())
    };
    let place = Path::new(recipe.values().model.init_from.as_deref().unwrap_or_default()).join(CONFIG);
    let theirs = load(&keys.to_toml(), &[]).map_err(|e| keys.explain(&e, &place.display().to_string()))?;
    let model = |recipe: &Recipe| Model::from_keys(&recipe.values().model, keys.vocab_size).canonical();
    let in_folder = model(&theirs);
    let learned_positions = planned.learned_positions;
    let in_recipe = Model { learned_positions: 0, ..planned.canonical() };
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

/// Sets the parameters and the frozen tensors to weights that rank 0 reads. Adapters of which it has no
/// weights keep their values. Every rank must call it.
///
/// # Errors
/// If a weight cannot be read or has a different shape, or a rank is lost.
pub(in crate::train) fn write_all_weights(
    engine: &mut Engine,
    comm: &dyn Communicator,
    weights: Option<&dyn Weights>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    let known: BTreeSet<String> = weights.map(Weights::names).unwrap_or_default().into_iter().collect();
    for param in &layout.params {
        let has_own = !layout.frozen.is_empty() && !known.contains(&param.name);
        let weights = weights.filter(|_| !has_own);
        let bytes = read_on_rank_0(comm, weights, &param.name, &param.spec.shape)?;
        if layout.frozen.is_empty() || !bytes.is_empty() {
            write_weights(engine, param, &bytes)?;
        }
    }
    write_all_frozen(engine, comm, weights)
}

/// Sets the frozen tensors to weights that rank 0 reads. Every rank must call it.
///
/// # Errors
/// If a weight cannot be read or has a different shape, or a rank is lost.
pub(in crate::train) fn write_all_frozen(
    engine: &mut Engine,
    comm: &dyn Communicator,
    weights: Option<&dyn Weights>,
) -> Result<()> {
    let layout = Arc::clone(engine.state.layout());
    for frozen in &layout.frozen {
        let bytes = read_on_rank_0(comm, weights, &frozen.name, &frozen.spec.shape)?;
        write_frozen(engine, frozen, &bytes)?;
    }
    Ok(())
}

/// Returns the bytes of a weight, which rank 0 reads; none if it has none.
fn read_on_rank_0(
    comm: &dyn Communicator,
    weights: Option<&dyn Weights>,
    name: &str,
    shape: &[usize],
) -> Result<Vec<u8>> {
    report_progress();
    let mine = match weights {
        Some(weights) => weights.read(name, shape)?,
        None => Vec::new(),
    };
    if comm.world_size() == 1 { Ok(mine) } else { comm.broadcast(name, mine) }
}

/// Writes fp32 bytes without padding as the values of a frozen tensor, rounded to its format.
///
/// # Errors
/// If the number of bytes is wrong, or a copy to the device fails.
pub(in crate::train) fn write_frozen(engine: &mut Engine, frozen: &FrozenParam, bytes: &[u8]) -> Result<()> {
    let values = floats(&frozen.name, &frozen.spec, bytes)?;
    dispatch_float!(frozen.spec.dtype, E => engine.state.write(frozen.read, &padded::<E>(&frozen.spec, &values)))
}

/// Returns the fp32 values of a tensor without padding.
///
/// # Errors
/// If there are fewer or more than its shape has.
fn floats(name: &str, spec: &Spec, bytes: &[u8]) -> Result<Vec<f32>> {
    if bytes.len() != 4 * spec.logical_elements() {
        return Err(Error::failed(format!(
            "{name} has {} bytes, which does not match its shape in the model",
            bytes.len()
        )));
    }
    Ok(bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect())
}

/// Writes fp32 bytes without padding as the values of a parameter.
///
/// # Errors
/// If the number of bytes is wrong, or a copy to the device fails.
pub(in crate::train) fn write_weights(engine: &mut Engine, param: &Param, bytes: &[u8]) -> Result<()> {
    let values = floats(&param.name, &param.spec, bytes)?;
    match engine.state.layout().precision.master {
        DType::F64 => write_parameter(engine, param, padded::<f64>(&param.spec, &values)),
        _ => write_parameter(engine, param, padded::<f32>(&param.spec, &values)),
    }
}

/// Returns the values of a tensor in its memory layout, with zeros as padding.
fn padded<E: Elem>(spec: &Spec, values: &[f32]) -> Vec<E> {
    let mut padded = vec![E::default(); spec.elements()];
    for (from, at, len) in spec.runs() {
        for (to, value) in padded[at..at + len].iter_mut().zip(&values[from..from + len]) {
            *to = E::down(E::Acc::from_f64(f64::from(*value)));
        }
    }
    padded
}
