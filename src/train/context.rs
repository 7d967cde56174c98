//! Inputs of the ranks of a process.

use super::devices::DeviceOrder;
use super::initial_values::InitialValues;
use super::recorder::Recorder;
use crate::checkpoint::Loaded;
use crate::data::Dataset;
use crate::device::cuda::Algorithms;
use crate::model::{Programs, Weights};
use crate::plan::Plan;
use crate::ranks::Stop;
use crate::recipe::Recipe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Inputs that every rank of a process shares.
#[derive(Clone, Debug)]
pub(super) struct RunContext {
    pub recipe: Recipe,
    /// Hash of the recipe as written, also after a resume.
    pub recipe_hash: String,
    pub plan: Arc<Plan>,
    pub programs: Arc<Programs>,
    pub dataset: Arc<Dataset>,
    pub stop: Stop,
    /// Step after which the run saves its state and ends; `None` for the last one.
    pub until: Option<u64>,
    pub initial_values: Arc<InitialValues>,
    pub devices: Arc<DeviceOrder>,
}

/// Additional inputs of rank 0, which reads checkpoints and writes results.
pub(super) struct RankZero<'a> {
    /// Taken by the thread of rank 0 while it trains.
    pub recorder: &'a Mutex<Option<Recorder>>,
    /// Folder of the run.
    pub folder: PathBuf,
    /// Time that opening the corpus, planning and recording programs took.
    pub corpus_took: Duration,
    /// Number of steps done before this process.
    pub from_step: u64,
    /// Checkpoint to restore.
    pub loaded: Option<&'a Loaded>,
    /// Weights to begin with; only where no checkpoint is restored.
    pub weights: Option<&'a (dyn Weights + Sync)>,
    /// Algorithms of matrix products to reuse; `None` to choose them.
    pub algorithms: Option<&'a Algorithms>,
}
