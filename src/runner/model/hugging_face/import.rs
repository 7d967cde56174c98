//! Imports the weights of a folder under the names of xrun's parameters.

use super::classes::class_for;
use super::names::TensorNames;
use super::tensor::HfTensor;
use crate::error::{Error, Result};
use crate::hugging_face::Folder;
use crate::model::parameters_of_model;
use crate::model::weights::Weights;
use crate::plan::Model;
use std::collections::{BTreeMap, BTreeSet};

/// The weights of a folder that holds each tensor of a model exactly once.
#[derive(Debug)]
pub struct ImportedWeights {
    /// The folder.
    pub folder: Folder,
    /// The tensors of each parameter, in the order of the parameter's rows.
    parts: BTreeMap<String, Vec<HfTensor>>,
    /// A tensor that repeats the embedding: the head of a model with tied embeddings.
    repeated: Option<String>,
    /// Sentences about how the tensors were found.
    pub notes: Vec<String>,
}

/// Name of the embedding in xrun, and of the head in the files of all classes.
const EMBEDDING: &str = "embedding";
const HEAD: &str = "lm_head.weight";

impl ImportedWeights {
    /// Finds the parameters of a model among the tensors of a folder. Reads only headers.
    ///
    /// # Errors
    /// With a usage error if a tensor is missing, has a different shape or is not part of the model, or if
    /// the folder's class cannot express the model.
    pub fn new(folder: Folder, m: &Model) -> Result<Self> {
        let class = class_for(&folder.config)?;
        let shown = folder.path.display();
        if let Some(lack) = class.unsupported_keys(m).0.first() {
            return Err(Error::usage(format!("{shown}: {lack}, as {}", class.name())));
        }
        let names = TensorNames::new(&folder, class)?;
        let mut tensors = class.tensors(m);
        let mut used = BTreeSet::new();
        for tensor in &mut tensors {
            tensor.name = match names.find(&tensor.name)? {
                Some(stored) => stored.to_owned(),
                // transformers ties the two whichever of them is stored.
                None if tensor.source == EMBEDDING && m.tie_embeddings => names
                    .find(HEAD)?
                    .map_or_else(|| Err(names.missing(tensor)), |name| Ok(name.to_owned()))?,
                None => return Err(names.missing(tensor)),
            };
            let found = folder.tensor(&tensor.name).map_or(&[][..], |found| found.shape());
            if found != tensor.shape {
                return Err(Error::usage(format!(
                    "{shown}: tensor {} has shape {found:?}, but {:?} by config.json: the config.json belongs to \
                     another model",
                    tensor.name, tensor.shape
                )));
            }
            folder.check_format(&tensor.name)?;
            used.insert(tensor.name.clone());
        }
        let mut repeated = None;
        let head = names.find(HEAD)?;
        for (name, tensor) in
            folder.tensors().filter(|(name, _)| !used.contains(*name) && !class.is_buffer(name))
        {
            if Some(name) == head && m.tie_embeddings && tensor.shape() == [m.vocab_size, m.dim] {
                repeated = Some(name.to_owned());
                continue;
            }
            return Err(Error::usage(format!(
                "{shown}: tensor {name} of shape {:?} is not part of {} by config.json; it would be lost",
                tensor.shape(),
                class.name()
            )));
        }
        let mut parts: BTreeMap<String, Vec<HfTensor>> = BTreeMap::new();
        for tensor in tensors {
            parts.entry(tensor.source.clone()).or_default().push(tensor);
        }
        check_parameters(m, &parts)?;
        let notes = names.note().into_iter().collect();
        Ok(Self { folder, parts, repeated, notes })
    }

    /// Returns true if the folder has a parameter of this name.
    pub fn has(&self, name: &str) -> bool {
        self.parts.contains_key(name)
    }

    /// Returns the values of a parameter, row-major and without padding.
    ///
    /// # Errors
    /// If there is no parameter with this name and shape, an element is not finite, or a file cannot be read.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let parts = self.parts.get(name).filter(|parts| parts.iter().all(|part| part.source_shape == shape));
        let parts = parts.ok_or_else(|| {
            Error::failed(format!("{}: no parameter {name} of shape {shape:?}", self.folder.path.display()))
        })?;
        let read = |part: &HfTensor| Ok(part.into_parameter(self.folder.read(&part.name, &part.shape)?));
        let values = match &parts[..] {
            [whole] => read(whole)?,
            _ => parts.iter().map(read).collect::<Result<Vec<_>>>()?.concat(),
        };
        if let Some(repeated) = self.repeated.as_ref().filter(|_| name == EMBEDDING)
            && self.folder.read(repeated, shape)? != values
        {
            return Err(Error::usage(format!(
                "{}: tensor {repeated} is not the embedding, but config.json says that they are one \
                 (tie_word_embeddings); set that to false if the model has both",
                self.folder.path.display()
            )));
        }
        Ok(values)
    }
}

impl Weights for ImportedWeights {
    fn names(&self) -> Vec<String> {
        self.parts.keys().cloned().collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        Ok(self.values(name, shape)?.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

/// Checks that the tensors make up every parameter of a model, each element exactly once.
pub(super) fn check_parameters(m: &Model, parts: &BTreeMap<String, Vec<HfTensor>>) -> Result<()> {
    let wrong =
        |name: &str| Error::failed(format!("parameter {name} has no counterpart in this class's tensors"));
    let parameters = parameters_of_model(m)?;
    if let Some(unknown) = parts.keys().find(|name| parameters.iter().all(|param| param.name != **name)) {
        return Err(Error::failed(format!("the model has no parameter {unknown}")));
    }
    for param in parameters {
        let mut at = 0;
        for part in parts.get(&param.name).ok_or_else(|| wrong(&param.name))? {
            let range = part.range().filter(|range| part.source_shape == param.shape && range.start == at);
            at = range.ok_or_else(|| wrong(&param.name))?.end;
        }
        if at != param.shape.iter().product::<usize>() {
            return Err(wrong(&param.name));
        }
    }
    Ok(())
}
