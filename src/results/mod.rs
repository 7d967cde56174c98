//! What a run leaves behind: CSV rows, the run folder, provenance, the summary, the progress line.
//!
//! Everything here is written as it happens and can be read back without the program that wrote it.
//! `metrics.csv` is deterministic; whatever is measured goes to `timing.csv` and `env.json`.

pub mod atomic;
pub mod columns;
pub mod comparison;
pub mod find;
pub mod folder;
pub mod keep;
pub mod ledger;
pub mod memory;
pub mod progress;
pub mod provenance;
pub mod quantiles;
pub mod rows;
pub mod steady;
pub mod summary;

pub use folder::RunFolder;
pub use rows::{MetricsRow, Phase, TimingRow};
pub use summary::{Status, Summary};
