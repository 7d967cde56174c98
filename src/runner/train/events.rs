//! What a run does between its steps.

use crate::plan::{Intervals, Plan, is_due};

/// What is due after which step. All ranks of a run have the same answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Events<'a> {
    intervals: &'a Intervals,
    /// Steps of the run.
    pub steps: u64,
    /// The step after which the run is to end; `None`: its last.
    until: Option<u64>,
    /// True if ranks hold replicas of the parameters, which they compare.
    pub replicas: bool,
}

impl<'a> Events<'a> {
    /// Returns the events of a plan in a run that ends after the step `until`.
    pub fn new(plan: &'a Plan, until: Option<u64>, replicas: bool) -> Self {
        Self { intervals: &plan.intervals, steps: plan.steps as u64, until, replicas }
    }

    /// Returns true if an evaluation is due after a step.
    pub fn evaluates_after(self, step: u64) -> bool {
        is_due(self.intervals.validation, step, self.steps)
    }

    /// Returns true if samples are due after a step.
    pub fn generates_after(self, step: u64) -> bool {
        is_due(self.intervals.generation, step, self.steps)
    }

    /// Returns true if a comparison of replicas is due after a step.
    pub fn compares_after(self, step: u64) -> bool {
        self.replicas && is_due(self.intervals.check, step, self.steps)
    }

    /// Returns true if a number of steps says that a checkpoint is due after a step.
    pub fn saves_after(self, step: u64) -> bool {
        self.intervals.saves_after(step, self.steps)
    }

    /// Returns true if the run ends, as asked, after a step that is not its last.
    pub fn halts_after(self, step: u64) -> bool {
        step < self.steps && self.until == Some(step)
    }

    /// Returns true if the state of a step is read, so that no later step may be queued before.
    pub fn pauses_after(self, step: u64) -> bool {
        self.evaluates_after(step)
            || self.generates_after(step)
            || self.compares_after(step)
            || self.saves_after(step)
            || self.halts_after(step)
    }
}
