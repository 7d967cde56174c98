//! Adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`, which hold the two
//! matrices of every adapted module.

use super::classes::{class_for, class_of};
use super::tensor::HfTensor;
use crate::error::{Error, Result};
use crate::hugging_face::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, Folder};
use crate::ir::ParamRequest;
use crate::model::adapters::{adapts, first_matrix, second_matrix, stacked_rows};
use crate::model::parameters::parameters_of_model;
use crate::model::weights::Weights;
use crate::plan::{Adapter, Model};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What PEFT puts in front of the names of a model's modules.
const PREFIX: &str = "base_model.model.";

/// Returns the tensors of an adapter's file: a pair for every module of the class whose product a weight with
/// an adapter holds.
///
/// # Errors
/// A usage error if the class stores several matrices as one module, for which PEFT has one pair.
pub fn tensors(model: &Model, adapter: &Adapter, of_model: &[HfTensor]) -> Result<Vec<HfTensor>> {
    let mut found = Vec::new();
    for weight in parameters_of_model(model)?.iter().filter(|weight| adapts(adapter, weight.role)) {
        let modules: Vec<&HfTensor> = of_model.iter().filter(|tensor| tensor.source == weight.name).collect();
        found.extend(of_weight(adapter, weight, &modules)?);
    }
    Ok(found)
}

/// Returns the tensors of one weight's adapter.
fn of_weight(adapter: &Adapter, weight: &ParamRequest, modules: &[&HfTensor]) -> Result<Vec<HfTensor>> {
    let rank = adapter.rank;
    let stacked = stacked_rows(weight).len();
    let (rows, inputs) =
        (weight.shape[..weight.shape.len() - 1].iter().product::<usize>(), weight.shape.last());
    let own_rows = |module: &HfTensor| module.shape.first().copied().unwrap_or_default();
    let fits = modules.len() == stacked
        && modules.iter().all(|module| !module.transposed)
        && modules.iter().map(|module| own_rows(module)).sum::<usize>() == rows;
    let (true, Some(&inputs)) = (fits, inputs) else {
        return Err(Error::usage(format!(
            "{} is {stacked} of xrun's matrices, each with an adapter of its own, and {} of the class's modules, of which \
             PEFT expects [outputs, inputs]: `xrun export --merge` writes the merged model instead",
            weight.name,
            modules.len(),
        )));
    };
    let first_shape = [stacked * rank, inputs];
    let second_shape = [&weight.shape[..weight.shape.len() - 1], &[rank]].concat();
    let tensor = |(index, module): (usize, &&HfTensor)| {
        let name = module.name.strip_suffix(".weight").unwrap_or(&module.name);
        let named = |matrix: &str| format!("{PREFIX}{name}.{matrix}.weight");
        let first = first_matrix(&weight.name);
        let second = second_matrix(&weight.name);
        [
            HfTensor::rows_of(named("lora_A"), first, &first_shape, &[rank, inputs], index * rank),
            HfTensor::rows_of(
                named("lora_B"),
                second,
                &second_shape,
                &[own_rows(module), rank],
                module.first_row,
            ),
        ]
    };
    Ok(modules.iter().enumerate().flat_map(tensor).collect())
}

/// Returns `adapter_config.json` for an adapter with these tensors of a model in the folder `base`.
pub fn config(adapter: &Adapter, tensors: &[HfTensor], base: Option<&str>) -> Value {
    let modules: BTreeSet<&str> = tensors.iter().filter_map(|tensor| module_of(&tensor.name)).collect();
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        // PEFT divides it by the rank.
        "lora_alpha": adapter.factor * adapter.rank as f64,
        "use_rslora": false,
        "lora_dropout": adapter.dropout,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_lora_weights": true,
        "inference_mode": true,
    })
}

/// Returns the last part of the name of a module that a tensor belongs to, by which PEFT finds it.
fn module_of(tensor: &str) -> Option<&str> {
    let matrix = tensor.rfind(".lora_")?;
    tensor[..matrix].rsplit('.').next()
}

/// Keys of `adapter_config.json` that change what an adapter computes, with the value that xrun has. PEFT
/// leaves keys out, or writes these.
fn required() -> [(&'static str, Value, &'static str); 9] {
    [
        ("peft_type", json!("LORA"), "xrun reads adapters of the type LORA"),
        ("bias", json!("none"), "xrun trains no biases beside adapters"),
        ("use_dora", json!(false), "xrun has no DoRA"),
        ("fan_in_fan_out", json!(false), "the modules of these classes store [outputs, inputs]"),
        ("rank_pattern", json!({}), "all adapters have one rank here"),
        ("alpha_pattern", json!({}), "all adapters have one factor here"),
        ("lora_bias", json!(false), "adapters have no biases here"),
        ("modules_to_save", Value::Null, "only adapters are trained here"),
        ("trainable_token_indices", Value::Null, "only adapters are trained here"),
    ]
}

/// The weights of an adapter's folder, by the names of xrun's parameters.
#[derive(Debug)]
pub struct AdapterWeights {
    /// The folder.
    pub folder: Folder,
    /// The tensors of each parameter, in the order of its rows.
    parts: BTreeMap<String, Vec<HfTensor>>,
}

impl AdapterWeights {
    /// Opens an adapter's folder for the adapters of a plan, on a model with the configuration of `base`, or
    /// of the class in which the model would be exported. Reads only headers.
    ///
    /// # Errors
    /// A usage error that names what differs: the rank, the factor, a module, or a kind of adapter that xrun
    /// does not have.
    pub fn open(path: &Path, adapter: &Adapter, model: &Model, base: Option<&Folder>) -> Result<Self> {
        let folder = Folder::open_adapter(path)?;
        let config = &folder.config;
        for (key, value, instead) in required() {
            config.require(key, &value, instead)?;
        }
        let rank = config.count("r", None)?;
        let divisor = if config.flag("use_rslora", false)? { (rank as f64).sqrt() } else { rank as f64 };
        let factor = config.number("lora_alpha", None)? / divisor;
        if rank != adapter.rank || (factor / adapter.factor - 1.0).abs() > 1e-12 {
            return Err(Error::usage(format!(
                "{}: the adapter has rank {rank} and factor {factor}, and the recipe rank {} and factor {}: set adapter.rank = \
                 {rank} and adapter.alpha = {}, without adapter.rslora",
                config.place(),
                adapter.rank,
                adapter.factor,
                factor * rank as f64,
            )));
        }
        let class = base.map_or_else(|| class_of(model), |base| class_for(&base.config))?;
        let wanted = tensors(model, adapter, &class.tensors(model))?;
        let known: BTreeSet<&str> = wanted.iter().map(|tensor| tensor.name.as_str()).collect();
        if let Some((name, _)) = folder.tensors().find(|(name, _)| !known.contains(name)) {
            return Err(Error::usage(format!(
                "{}: tensor {name} belongs to no module that adapter.targets names, and would be lost",
                path.join(ADAPTER_WEIGHTS).display()
            )));
        }
        let mut parts: BTreeMap<String, Vec<HfTensor>> = BTreeMap::new();
        for tensor in wanted {
            match folder.tensor(&tensor.name).map(|found| found.shape()) {
                Some(found) if found == tensor.shape => {}
                Some(found) => {
                    return Err(Error::usage(format!(
                        "{}: tensor {} has shape {found:?}, and {:?} for this model: the adapter belongs to another one",
                        path.join(ADAPTER_WEIGHTS).display(),
                        tensor.name,
                        tensor.shape
                    )));
                }
                None => {
                    return Err(Error::usage(format!(
                        "{}: there is no tensor {}: {ADAPTER_CONFIG} adapts fewer modules than adapter.targets",
                        path.join(ADAPTER_WEIGHTS).display(),
                        tensor.name
                    )));
                }
            }
            folder.check_format(&tensor.name)?;
            parts.entry(tensor.source.clone()).or_default().push(tensor);
        }
        Ok(Self { folder, parts })
    }
}

impl Weights for AdapterWeights {
    fn names(&self) -> Vec<String> {
        self.parts.keys().cloned().collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let parts = self.parts.get(name).filter(|parts| parts.iter().all(|part| part.source_shape == shape));
        let parts = parts.ok_or_else(|| {
            Error::failed(format!("{}: no parameter {name} of shape {shape:?}", self.folder.path.display()))
        })?;
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend(self.folder.read(&part.name, &part.shape)?.iter().flat_map(|x| x.to_le_bytes()));
        }
        Ok(bytes)
    }
}
