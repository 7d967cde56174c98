//! Describes a model that is scored, for the files of its evaluation.

use crate::machine::Machine;
use crate::model::{ModelTensors, ScoringShape};
use crate::plan::Plan;
use crate::policy::TrainingDtype;
use crate::task_evaluation::ScoredModel;

/// Where a model comes from.
#[derive(Clone, Debug)]
pub(super) struct Named {
    /// The run, or the folder's name.
    pub name: String,
    /// The step whose weights are scored; `None` for a folder.
    pub step: Option<u64>,
    /// Which weights: [`TRAINING`], [`AVERAGE`] or `published`.
    pub weights: &'static str,
    /// The hash of the checkpoint or the folder, if there is one.
    pub hash: Option<String>,
}

/// The weights as trained, and their moving average.
pub(super) const TRAINING: &str = "training";
pub(super) const AVERAGE: &str = "ema";

/// Describes a model of a plan that is scored in this shape on a machine.
pub(super) fn scored_model(
    named: Named,
    (plan, dtype): (&Plan, TrainingDtype),
    shape: ScoringShape,
    machine: &Machine,
    tokenizer: String,
) -> ScoredModel {
    let gpu = plan
        .execution
        .gpu
        .map(|gpu| machine.gpu(gpu).map_or_else(|| "GPU".to_owned(), |gpu| gpu.name.clone()));
    let ModelTensors { trained, frozen } = ModelTensors::new(plan);
    let elements = trained.iter().chain(&frozen).map(|param| param.shape.iter().product::<usize>());
    ScoredModel {
        name: named.name,
        step: named.step,
        weights: named.weights.to_owned(),
        hash: named.hash,
        tokenizer,
        parameters: elements.sum::<usize>() as u64,
        dtype: dtype.word().to_owned(),
        device: gpu.unwrap_or_else(|| "cpu".to_owned()),
        context: shape.context,
        batch: [shape.sequences, shape.seq_len],
        xrun_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
