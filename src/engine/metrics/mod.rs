//! The one table of metrics: every figure that is measured, with its unit, heading, decimals and source.
//!
//! The rows of `metrics.csv` and `timing.csv` declare their columns as entries of this table ([`rows`]);
//! figures that only a whole run has are in [`table`]. Steady states, comparisons, predictions, sweep
//! ledgers, report tables and the tables in `docs/results.md` and `docs/reports.md` are derived from it.

mod document;
mod fp8;
mod held_out;
mod metric;
mod preference;
mod rows;
mod scores;
mod sources;
mod table;

pub use document::DocumentLoss;
pub use fp8::{FP8_COLUMNS, Fp8Health};
pub use held_out::{HeldOutColumn, TASK_FIGURES, TaskFigure, task_figure};
pub use metric::{Metric, SetPath, Source};
pub use preference::{PAIR_COLUMNS, PairMeans};
pub use rows::{MetricsRow, Phase, TimingRow};
pub use scores::{PERPLEXITY, SCORE_FIGURES, ScoreColumn, ScoreFigure, is_task_name, score_figure};
pub use sources::{source_column, source_of_column};
pub use table::{
    all, compared, find, find_set_metric, ledger_metrics, run_metrics, set_metrics, steady_medians,
};
