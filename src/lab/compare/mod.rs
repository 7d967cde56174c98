//! Compares a baseline and a candidate: runs both arms and gives a verdict on each measure asked about.
//!
//! ```text
//! options + arms ─▶ Question ─▶ runs ─────────────────────────────▶ findings ─▶ experiment.json
//!                      │         trials A B B A in fresh processes     │
//!                      │         pairs of one seed, by sweep's ledger  └─▶ prediction
//!                      └─ history, power plan, prediction, all stored before the first run
//! ```

mod again;
mod arms;
mod asking;
mod basis;
mod calibration;
mod cluster;
mod comparable;
mod confirm;
mod cpu_load;
mod external;
mod family;
mod fresh;
mod history;
pub mod judge;
mod measured;
mod pair_times;
mod pairs;
mod plan;
mod question;
mod record;
mod remarks;
pub mod revision;
mod run_pairs;
mod run_trials;
mod scores;
mod seeds;
mod setting;
mod stored_pairs;
mod text;
mod trials;

pub use again::{contradictions, contradictions_of_place};
pub use arms::{Arms, ArmsRequest, PlannedArm, Program, hash_file, load_stored, own_binary};
pub use calibration::Calibration;
pub use cluster::{ComparisonRequest, EndedTask, TASK_COMMAND, cancel, run_task, status, submit};
pub use confirm::confirm;
pub use pairs::with_values;
pub use question::{Options, Question, SPEED_OF_TRIALS};
pub use run_pairs::plan as plan_pairs;
pub use scores::{
    SCORES_CONFIDENCE, ScoreComparison, ScoreFinding, ScoresRequest, Units, compare_scores, stored_recipe,
};
pub use setting::{FinishedComparison, Setting};
pub use stored_pairs::compare_stored;
pub use text::{describe, held_in_words, report};

use crate::error::Result;
use crate::ranks::Stop;
use crate::results::experiment::Design;

/// Answers a question: stores it with its prediction, runs both arms, and judges the runs.
///
/// # Errors
/// If a run cannot be planned or started, a file cannot be written, or the question would look again at a
/// known verdict. A failed trial ends the comparison with its error in [`FinishedComparison::failed`]. After
/// a signal, the same command continues a paired comparison; trials start over.
pub fn run(question: &Question, setting: Setting<'_>) -> Result<FinishedComparison> {
    let said = matches!(question.design, Design::Trials { .. })
        .then_some("stopping the trial; a second signal stops it at once");
    run_until(question, setting, &Stop::on_signals(said)?)
}

/// Answers a question like [`run`], until `stop` is requested.
///
/// # Errors
/// The same as for [`run`].
pub fn run_until(question: &Question, setting: Setting<'_>, stop: &Stop) -> Result<FinishedComparison> {
    match question.design {
        Design::Trials { .. } => run_trials::run(question, setting, stop),
        Design::Pairs { .. } | Design::Sequential { .. } => run_pairs::run(question, &setting, stop),
    }
}

#[cfg(test)]
mod tests;
