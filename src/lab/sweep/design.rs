//! How the cells of a sweep depend on each other.

use super::cell::Cell;
use super::halving::Halving;
use super::trunk::Trunks;
use crate::results::ledger::CellStatus;

/// How the cells of a sweep depend on each other.
#[derive(Debug)]
pub enum Design {
    /// Every cell is trained to its end on its own.
    Grid,
    /// The best configurations continue from rung to rung.
    Halving(Halving),
    /// Shorter cells start on the trunk of longer ones.
    Cooldowns(Trunks),
}

impl Design {
    /// Returns the rungs, if there are any.
    pub fn halving(&self) -> Option<&Halving> {
        if let Self::Halving(halving) = self { Some(halving) } else { None }
    }

    /// Returns the trunks, if there are any.
    pub fn trunks(&self) -> Option<&Trunks> {
        if let Self::Cooldowns(trunks) = self { Some(trunks) } else { None }
    }

    /// Returns true if a cell with this status is done.
    pub fn is_done(&self, status: CellStatus) -> bool {
        if self.halving().is_some() { status.is_final() } else { status.ends_a_whole_run() }
    }

    /// Describes what is trained; `None` if every cell is trained fully.
    pub fn in_words(&self, cells: &[Cell]) -> Option<String> {
        match self {
            Self::Grid => None,
            Self::Halving(halving) => Some(halving.in_words(cells)),
            Self::Cooldowns(trunks) => Some(trunks.in_words(cells)),
        }
    }
}
