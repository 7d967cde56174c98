//! What every class of transformers says of itself.

use super::keys::Keys;
use super::lacks::Lacks;
use super::tensor::{HfFacts, HfTensor};
use crate::error::Result;
use crate::hugging_face::Config;
use crate::plan::Model;
use serde_json::Value;

/// A class of transformers that some of xrun's models correspond to.
pub(super) trait Class: Sync {
    /// Returns the name of the class.
    fn name(&self) -> &'static str;

    /// Returns `model_type` of its configurations.
    fn model_type(&self) -> &'static str;

    /// Returns what names of tensors begin with, which files of the bare model leave out.
    fn prefix(&self) -> &'static str;

    /// Returns the keys of a model that the class has no word for; none where it can express the model.
    fn lacks(&self, m: &Model) -> Lacks;

    /// Returns `config.json` of a model that it can express.
    fn config(&self, m: &Model, facts: &HfFacts) -> Value;

    /// Returns every tensor of a model that it can express, in the order in which files have them.
    fn tensors(&self, m: &Model) -> Vec<HfTensor>;

    /// Returns the keys of a recipe that a configuration of the class means.
    ///
    /// # Errors
    /// A usage error that names a key of the configuration that xrun has no model for.
    fn keys(&self, config: &Config) -> Result<Keys>;

    /// Returns true for tensors that hold no weights, such as masks, which older versions saved.
    fn is_buffer(&self, name: &str) -> bool {
        name.ends_with(".rotary_emb.inv_freq")
    }
}
