//! The work of a cell: its recipe, its plan, and whether the plan fits in memory.

use crate::error::{Error, ErrorKind, Result};
use crate::forecast::memory::peak_bytes;
use crate::forecast::{RunNeeds, check_fits};
use crate::machine::Machine;
use crate::model::{Programs, flops_per_token};
use crate::plan::Plan;
use crate::recipe::Recipe;
use crate::results::progress::eprint_line;
use crate::train::cpu_pace;

/// A cell's recipe and plan.
#[derive(Debug)]
pub struct Work {
    /// The recipe.
    pub recipe: Recipe,
    /// The plan.
    pub plan: Plan,
    /// The machine that the plan is for.
    pub machine: Machine,
}

/// A cell's memory, time and disk, according to its plan.
#[derive(Clone, Debug)]
pub struct CellFit {
    /// Bytes of state and activations.
    pub planned_bytes: u64,
    /// The error if the plan does not fit in memory; `None` if it does.
    pub refusal: Option<Error>,
    /// Time and disk.
    pub needs: RunNeeds,
}

impl Work {
    /// Returns the FLOPs of training all tokens, forward and backward.
    pub fn flops(&self) -> f64 {
        flops_per_token(&self.plan).value
            * self.plan.batch.tokens_in_first_steps(self.plan.steps as u64) as f64
    }

    /// Compares the plan's memory with the available memory, and predicts time and disk.
    ///
    /// # Errors
    /// If the programs cannot be recorded or the device does not respond.
    pub fn fit(&self) -> Result<CellFit> {
        let programs = Programs::new(&self.plan)?;
        let planned_bytes = peak_bytes(&self.plan, &programs) as u64;
        let refusal = match check_fits(&self.plan, &programs, &self.machine) {
            Err(e) if e.kind() == ErrorKind::DoesNotFit => Some(e),
            fits => fits.map(|()| None)?,
        };
        let pace = cpu_pace(&self.plan, &self.machine, eprint_line);
        let machine = self.machine.clone().with_cpu_pace(pace);
        let needs = RunNeeds::new(&self.plan, &programs, &machine, self.recipe.values().metrics.plots);
        Ok(CellFit { planned_bytes, refusal, needs })
    }
}
