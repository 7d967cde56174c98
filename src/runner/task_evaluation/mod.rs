//! Evaluations on tasks: scores the items of a prepared task, and keeps the scores of every item.
//!
//! `xrun eval` and `[evaluation]` in a run write the same files with the same code.

mod folder;
mod marks;
mod model;
mod record;
mod scores;

pub use folder::Folder;
pub use model::ScoredModel;
pub use record::{EvaluationRecord, FigureRecord, FileRecord, ItemRow, MarkedItems, TaskKey, TaskRecord};
pub use scores::{TaskScores, score_items, score_task};
