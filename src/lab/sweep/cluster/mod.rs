//! Runs the cells of a sweep on the nodes of a cluster, without a process that waits for them.
//!
//! ```text
//! xrun sweep … --executor slurm ─▶ Submission (files) ─▶ BatchSystem ─▶ xrun sweep-task, one per task
//!                                  cells.json                             │ claims, runs, ledger lines
//! xrun sweep --status ◀── ledger ◀───────────────────────────────────────┘
//! ```
//!
//! All cells are planned before anything is queued. A task plans its cells again on its node, claims each of
//! them and appends to the ledger, as a local sweep does. After the last task, one more runs what is left and
//! compares the configurations. Nothing but the files in the results folder connects these processes.

mod division;
mod jobs;
mod status;
mod submission;
mod submit;
mod submitted_sweep;
mod task;

pub use division::{START_TIME, SubmittedCell, TaskGroup, divide_independent, largest_needs, needs_of};
pub use jobs::{Parts, Submitted, submit_parts};
pub use status::{cancel, queued_cells, status, status_of_cells};
pub use submission::{SUBMITTED, Submission, TaskWork, create_folder};
pub use submit::{TASK_COMMAND, submit};
pub use task::run_task;
