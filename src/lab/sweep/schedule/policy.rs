//! The settings of a sweep, and those of a task of a submitted sweep.

use crate::executor::Limits;
use crate::executor::batch_system::BatchSystem;
use crate::results::ledger::CellStatus;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The settings of a sweep.
#[derive(Debug)]
pub struct SweepPolicy<'a> {
    /// The sweep's name.
    pub name: &'a str,
    /// The results folder.
    pub results: &'a Path,
    /// Cells that are done with one of these statuses run again.
    pub retry: &'a [CellStatus],
    /// Time limits of each attempt.
    pub limits: Limits,
    /// Name of the program that runs the cells.
    pub build: &'a str,
    /// The comparison that the cells are for; `None` for a sweep.
    pub comparison: Option<&'a str>,
    /// What a task of a submitted sweep does otherwise; `None` for a sweep on this machine.
    pub task: Option<TaskPolicy<'a>>,
}

/// What a task of a submitted sweep does otherwise. A stopped cell continues from its checkpoint in every
/// design.
#[derive(Clone, Copy, Debug)]
pub struct TaskPolicy<'a> {
    /// The batch system, which knows how other tasks ended.
    pub system: &'a dyn BatchSystem,
    /// The done cells that run again, by key, with the number of their last attempt.
    pub retried: &'a BTreeMap<String, u64>,
    /// The part of a sweep with rungs that the task is for; `None` to run everything.
    pub stage: Option<TaskStage>,
}

/// The part of a sweep with rungs that a task is for. The task trains cells of earlier parts too, if they were
/// left, and waits for those that other tasks train. It does not wait for cells of its own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStage {
    /// The rung that cells are trained to; `None` for the end of training.
    pub rung: Option<u64>,
    /// The most cells that the task trains.
    pub cells: usize,
}
