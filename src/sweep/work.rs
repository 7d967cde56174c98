//! The work of a cell: its recipe and plan, and whether the plan fits in memory.

use crate::error::{Error, ErrorKind, Result};
use crate::forecast::check_fits;
use crate::forecast::memory::peak_bytes;
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::Plan;
use crate::recipe::Recipe;

/// The recipe of a cell and its plan.
#[derive(Debug)]
pub struct Work {
    /// Its recipe.
    pub recipe: Recipe,
    /// Its plan.
    pub plan: Plan,
    /// The machine that it is planned for.
    pub machine: Machine,
}

/// The memory of a cell by its plan.
#[derive(Clone, Debug)]
pub struct CellFit {
    /// Bytes of state and activations.
    pub planned_bytes: u64,
    /// The error if it does not fit; `None` if it does.
    pub refusal: Option<Error>,
}

impl Work {
    /// Compares the plan's memory with what is available.
    ///
    /// # Errors
    /// If the programs cannot be recorded, or the device does not respond.
    pub fn fit(&self) -> Result<CellFit> {
        let programs = Programs::new(&self.plan)?;
        let planned_bytes = peak_bytes(&self.plan, &programs) as u64;
        let refusal = match check_fits(&self.plan, &programs, &self.machine) {
            Err(e) if e.kind() == ErrorKind::DoesNotFit => Some(e),
            fits => fits.map(|()| None)?,
        };
        Ok(CellFit { planned_bytes, refusal })
    }
}
