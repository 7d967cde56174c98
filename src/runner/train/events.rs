//! Decides what a run does between its steps.

use crate::plan::{Plan, is_due};

/// Tells what is due after each step. All ranks of a run get the same answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Events<'a> {
    plan: &'a Plan,
    /// Number of steps of the run.
    pub steps: u64,
    /// The step after which the run must end; `None` for its last one.
    until: Option<u64>,
    /// True if ranks hold replicas of the parameters, which must be compared.
    pub replicas: bool,
}

impl<'a> Events<'a> {
    /// Creates the events of a plan. The run ends after the step `until`, if it is set.
    pub fn new(plan: &'a Plan, until: Option<u64>, replicas: bool) -> Self {
        Self { plan, steps: plan.steps as u64, until, replicas }
    }

    /// Returns true if an evaluation is due after this step.
    pub fn evaluates_after(self, step: u64) -> bool {
        is_due(self.plan.intervals.validation.interval, step, self.steps)
    }

    /// Returns true if scores on tasks are due after this step.
    pub fn scores_after(self, step: u64) -> bool {
        self.plan.intervals.tasks.is_some_and(|interval| is_due(interval, step, self.steps))
    }

    /// Returns true if samples are due after this step.
    pub fn generates_after(self, step: u64) -> bool {
        is_due(self.plan.generation.interval, step, self.steps)
    }

    /// Returns true if a comparison of replicas is due after this step.
    pub fn compares_after(self, step: u64) -> bool {
        self.replicas && is_due(self.plan.intervals.check, step, self.steps)
    }

    /// Returns true if the number of steps makes a checkpoint due after this step. Checkpoints may also be
    /// due by time.
    pub fn saves_after(self, step: u64) -> bool {
        self.plan.intervals.saves_after(step, self.steps)
    }

    /// Returns true if `until` ends the run after this step, before its last one.
    pub fn halts_after(self, step: u64) -> bool {
        step < self.steps && self.until == Some(step)
    }

    /// Returns true if something reads the state after this step, so that no later step may be queued.
    pub fn pauses_after(self, step: u64) -> bool {
        self.evaluates_after(step)
            || self.scores_after(step)
            || self.generates_after(step)
            || self.compares_after(step)
            || self.saves_after(step)
            || self.halts_after(step)
    }
}
