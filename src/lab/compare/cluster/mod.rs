//! Runs comparisons on the nodes of a cluster, without a process that waits for them.
//!
//! ```text
//! xrun compare … --executor slurm ─▶ question in the ledger, Submission (files) ─▶ BatchSystem
//!                                       │
//!    pairs: one task per run ───────────┤  tasks of a sequential design read in the ledger whether
//!    speed: no such task ───────────────┤  the pairs before theirs have decided the question
//!                                       ▼
//!    last task: runs what is left, judges, writes the answer
//! ```
//!
//! Runs that are timed take turns, so all of them are in the last task, alone on its node.

mod status;
mod submit;
mod submitted_comparison;
mod task;

pub use status::{cancel, status};
pub use submit::{ComparisonRequest, TASK_COMMAND, submit};
pub use task::{EndedTask, run_task};
