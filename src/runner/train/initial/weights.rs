//! Initial weights from a folder in HuggingFace's form or from a run (`model.init_from`).

use super::base::BaseModel;
use super::same_model::INIT_FROM;
use super::write_parameter;
use crate::checkpoint::{INITIAL_WEIGHTS, Loaded};
use crate::data::Tokenizer;
use crate::data::tokenizer::Begin;
use crate::device::communicator::Communicator;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::ir::{FrozenParam, Param, Spec};
use crate::liveness::report_progress;
use crate::model::Weights;
use crate::model::hugging_face::peft::AdapterWeights;
use crate::plan::{Model, Plan};
use crate::policy::AdapterKind;
use crate::recipe::Recipe;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// The weights with which a recipe begins.
#[derive(Debug)]
pub struct InitialWeights {
    /// The model with the weights.
    pub base: BaseModel,
    /// The weights of its adapters, if the recipe names some (`adapter.init_from`).
    pub adapter: Option<AdapterWeights>,
    /// The hash of the content of the folder, or of the checkpoint's state.
    pub hash: String,
    /// The hash of the folder with the adapters' weights.
    pub adapter_hash: Option<String>,
    /// True if the optimizer's state is taken from the checkpoint, too.
    has_optimizer: bool,
    /// A warning if the recipe begins texts with another token than the model's tokenizer does.
    pub warning: Option<String>,
}

impl InitialWeights {
    /// Opens, checks and hashes the initial weights of a recipe. Returns `None` if the recipe names none. A
    /// run that does not begin with them, but continues, reads the weights under its adapters and has the
    /// adapters.
    ///
    /// # Errors
    /// Fails like [`check_initial_weights`], and if a file cannot be read or a weight is not finite.
    pub(in crate::train) fn open(
        recipe: &Recipe,
        plan: &Plan,
        tokenizer: &Tokenizer,
        begins: bool,
    ) -> Result<Option<Self>> {
        let Some(base) = BaseModel::open(recipe, &plan.model)? else { return Ok(None) };
        base.check_finite()?;
        check_tokenizer(recipe, &base, || Ok(tokenizer.clone()))?;
        let warning = begin_warning(&base, tokenizer)?;
        let hash = base.content_hash()?;
        let adapter = if begins { adapter_weights(recipe, plan, &base)? } else { None };
        let adapter_hash = adapter.as_ref().map(|adapter| adapter.folder.content_hash()).transpose()?;
        let has_optimizer = recipe.values().model.init_optimizer;
        Ok(Some(Self { base, adapter, hash, adapter_hash, has_optimizer, warning }))
    }

    /// Returns the checkpoint with the optimizer's state to begin with; `None` if it begins at zero.
    pub(in crate::train) fn optimizer(&self) -> Option<&Loaded> {
        self.base.checkpoint().filter(|_| self.has_optimizer)
    }

    /// Closes the files of a checkpoint once the state is set.
    pub(in crate::train) fn close(&self) {
        self.base.checkpoint().iter().for_each(|loaded| loaded.close());
    }
}

impl Weights for InitialWeights {
    fn names(&self) -> Vec<String> {
        self.base.names().into_iter().chain(self.adapter.iter().flat_map(Weights::names)).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        match &self.adapter {
            Some(adapter) if !self.base.has(name) => adapter.read(name, shape),
            _ => self.base.read(name, shape),
        }
    }
}

/// Opens the adapter with which a recipe's adapters begin, on the model `base`; `None` if the recipe names
/// none.
fn adapter_weights(recipe: &Recipe, plan: &Plan, base: &BaseModel) -> Result<Option<AdapterWeights>> {
    let (Some(adapter), Some(path)) = (&plan.adapter, &recipe.values().adapter.init_from) else {
        return Ok(None);
    };
    AdapterWeights::open(Path::new(path), adapter, &plan.model, base.folder()).map(Some)
}

/// Opens the weights that the adapters of a checkpoint were trained on; `None` if it has all weights itself.
///
/// # Errors
/// A usage error if they are gone or have changed.
pub(in crate::train) fn frozen_weights(
    recipe: &Recipe,
    model: &Model,
    loaded: &Loaded,
) -> Result<Option<BaseModel>> {
    if recipe.values().adapter.kind == AdapterKind::None {
        return Ok(None);
    }
    let Some(base) = BaseModel::open(recipe, model)? else { return Ok(None) };
    check_same_base(&base, &base.content_hash()?, loaded)?;
    Ok(Some(base))
}

/// Rejects a model whose content, of this hash, is not what the adapters of a checkpoint were trained on.
pub(in crate::train) fn check_same_base(base: &BaseModel, hash: &str, loaded: &Loaded) -> Result<()> {
    if loaded.meta().extra.get(INITIAL_WEIGHTS).is_some_and(|before| before == hash) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{} is not the model on which the adapters of {} were trained: its content has changed. Restore the folder, or \
         name another copy of it with model.init_from=FOLDER",
        base.path().display(),
        loaded.path().display()
    )))
}

/// Opens the initial weights of a recipe, and checks that they belong to the plan's model and the recipe's
/// tokenizer. Of a folder, reads only the headers. Returns `None` if the recipe names none.
///
/// # Errors
/// With a usage error if they are damaged, or if their model and the recipe's disagree; the error names every
/// such key with both values.
pub fn check_initial_weights(recipe: &Recipe, plan: &Plan) -> Result<Option<BaseModel>> {
    let base = BaseModel::open(recipe, &plan.model)?;
    if let Some(base) = &base {
        adapter_weights(recipe, plan, base)?;
        check_tokenizer(recipe, base, || Tokenizer::open(&recipe.values().data.tokenizer))?;
    }
    Ok(base)
}

/// Warns if a model's tokenizer puts a token before a text that the recipe, without `data.begin_token`, does
/// not.
fn begin_warning(base: &BaseModel, tokenizer: &Tokenizer) -> Result<Option<String>> {
    let theirs = base.tokenizer()?.and_then(|theirs| theirs.begin);
    let theirs = theirs.filter(|_| tokenizer.begins() == Begin::End);
    let other = theirs.filter(|name| tokenizer.token_to_id(name) != Some(tokenizer.end_token()));
    Ok(other.map(|name| {
        format!(
            "the model of {} begins texts with {name:?}, but here they begin with the end token {}; set \
             data.begin_token = {name:?} to begin them alike",
            base.path().display(),
            tokenizer.end_in_words()
        )
    }))
}

/// Rejects a tokenizer whose vocabulary differs from the model's. `open` is called only if the model has one.
fn check_tokenizer(
    recipe: &Recipe,
    base: &BaseModel,
    open: impl FnOnce() -> Result<Tokenizer>,
) -> Result<()> {
    let Some(theirs) = base.tokenizer()? else { return Ok(()) };
    let same = open()?.has_same_vocabulary(&theirs.json);
    if same.map_err(|e| e.context(theirs.path.display()))? {
        return Ok(());
    }
    Err(recipe.error(
        &["data.tokenizer", INIT_FROM],
        format!(
            "the tokenizer has a different vocabulary than the {}'s, so embeddings would belong to the wrong tokens",
            base.kind()
        ),
        format!("set data.tokenizer = {:?}", theirs.path.display().to_string()),
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
