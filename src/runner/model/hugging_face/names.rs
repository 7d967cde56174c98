//! The names of tensors in a folder: with or without the prefix of the class, and inside the wrappers of
//! PyTorch.

use super::class::Class;
use super::tensor::HfTensor;
use crate::error::{Error, Result};
use crate::hugging_face::Folder;
use std::collections::BTreeMap;

/// The part that `torch.compile` adds to names, wherever a module was compiled.
const COMPILED: &str = "_orig_mod";

/// The prefix that `DataParallel` and `DistributedDataParallel` add to all names.
const PARALLEL: &str = "module.";

/// The tensors of a folder by their names in the class.
pub(super) struct TensorNames<'a> {
    folder: &'a Folder,
    class: &'static dyn Class,
    /// The names in the folder, by the names without wrappers.
    stored: BTreeMap<String, &'a str>,
    /// A name with a wrapper, if there is one.
    wrapped: Option<&'a str>,
}

impl<'a> TensorNames<'a> {
    /// Reads the names of a folder.
    ///
    /// # Errors
    /// With a usage error if two names differ only in their wrappers.
    pub(super) fn new(folder: &'a Folder, class: &'static dyn Class) -> Result<Self> {
        let compiled: Vec<(String, &str)> =
            folder.tensors().map(|(name, _)| (without_compiled(name), name)).collect();
        let parallel = compiled.iter().all(|(name, _)| name.starts_with(PARALLEL));
        let mut names = Self { folder, class, stored: BTreeMap::new(), wrapped: None };
        for (name, stored) in compiled {
            let own = if parallel { name.replacen(PARALLEL, "", 1) } else { name };
            if own != stored {
                names.wrapped = Some(stored);
            }
            if let Some(other) = names.stored.insert(own, stored) {
                return Err(names.two(other, stored));
            }
        }
        Ok(names)
    }

    /// Returns the name in the folder of a tensor of the class. Each name may lack the prefix of the class,
    /// as files of the model without its head do; transformers reads it with or without.
    ///
    /// # Errors
    /// With a usage error if both are there.
    pub(super) fn find(&self, name: &str) -> Result<Option<&'a str>> {
        let find = |name: &str| self.stored.get(name).copied();
        let bare = name.strip_prefix(self.class.prefix()).and_then(find);
        match (find(name), bare) {
            (Some(one), Some(other)) => Err(self.two(one, other)),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Makes the error for a tensor that the folder does not have.
    pub(super) fn missing(&self, tensor: &HfTensor) -> Error {
        let HfTensor { name, shape, .. } = tensor;
        let others = self.stored.len();
        let example = self.stored.values().next();
        let example = example
            .map_or(String::new(), |name| format!(" (the folder has {others} tensors, such as {name})"));
        let why = if tensor.source == "head" {
            "tie_word_embeddings is false in config.json, so the model needs a head of its own: save the model with its \
             head, or set tie_word_embeddings to true if the embedding is the head"
        } else {
            "the folder is incomplete, or its config.json belongs to another model"
        };
        Error::usage(format!(
            "{}: there is no tensor {name}, which has shape {shape:?} by config.json{example}: {why}",
            self.folder.path.display()
        ))
    }

    /// Returns a sentence about the wrappers that were left out of names.
    pub(super) fn note(&self) -> Option<String> {
        let wrapped = self.wrapped?;
        Some(format!("names of tensors such as {wrapped} are read without the wrappers of PyTorch"))
    }

    fn two(&self, one: &str, other: &str) -> Error {
        Error::usage(format!(
            "{}: {one} and {other} are names of the same tensor of {}; remove the one that is not the model's",
            self.folder.path.display(),
            self.class.name()
        ))
    }
}

/// Returns a name without the parts that `torch.compile` adds.
fn without_compiled(name: &str) -> String {
    name.split('.').filter(|part| *part != COMPILED).collect::<Vec<_>>().join(".")
}
