//! The weights of a run, wherever they are stored: in its checkpoint and, if adapters are trained, in the
//! folder or the checkpoint that it began with.

use super::initial::base::BaseModel;
use super::initial::weights::frozen_weights;
use crate::checkpoint::Loaded;
use crate::error::Result;
use crate::model::{CheckpointWeights, Weights, WeightsKind};
use crate::plan::Model;
use crate::recipe::Recipe;

/// The weights of a run's checkpoint, with those that its adapters froze.
pub struct RunWeights<'a> {
    /// What was trained.
    pub trained: CheckpointWeights<'a>,
    /// The frozen weights; `None` if all weights were trained.
    pub frozen: Option<BaseModel>,
}

impl<'a> RunWeights<'a> {
    /// Opens the weights of a checkpoint, and the frozen ones.
    ///
    /// # Errors
    /// If the average is requested but the run kept none, or the frozen weights are gone or were changed
    /// since the run began.
    pub fn open(loaded: &'a Loaded, kind: WeightsKind, recipe: &Recipe, model: &Model) -> Result<Self> {
        let frozen = frozen_weights(recipe, model, loaded)?;
        Ok(Self { trained: CheckpointWeights::new(loaded, kind)?, frozen })
    }
}

impl Weights for RunWeights<'_> {
    fn names(&self) -> Vec<String> {
        let frozen = self.frozen.iter().flat_map(Weights::names);
        self.trained.names().into_iter().chain(frozen).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        match &self.frozen {
            Some(frozen) if frozen.has(name) => frozen.read(name, shape),
            _ => self.trained.read(name, shape),
        }
    }
}
