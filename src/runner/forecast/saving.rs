//! Decides whether checkpoints are written in the background, from a copy of the state that must fit in
//! memory.

use super::budget::{Budget, HOST_MEMORY_DIVISOR, RESERVE_BYTES};
use super::disk::checkpoint_bytes;
use super::memory::peak_bytes;
use crate::error::{Error, Result};
use crate::exec::copy_bytes;
use crate::format::binary;
use crate::machine::Machine;
use crate::model::Programs;
use crate::plan::Plan;
use crate::policy::BackgroundSaves;
use serde::Serialize;

/// How a run saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saving {
    /// True if checkpoints are written while training continues; training waits only while the state is
    /// copied.
    pub beside_training: bool,
    /// Bytes of the copy, on the only rank that writes.
    pub copy_bytes: usize,
    /// Where the copy is, or would be.
    pub place: &'static str,
    /// Why checkpoints are or are not written in the background.
    pub reason: String,
}

impl Saving {
    /// Decides how a plan saves on a machine.
    pub fn new(plan: &Plan, programs: &Programs, machine: &Machine) -> Self {
        let room = Room::new(plan, programs, machine);
        let (copy_bytes, place) = (room.copy, room.place);
        let saving = |beside_training, reason| Self { beside_training, copy_bytes, place, reason };
        if plan.intervals.checkpoint.keep == 0 {
            return saving(false, "checkpoint.keep = 0 saves none".to_owned());
        }
        match plan.intervals.checkpoint.background {
            BackgroundSaves::Never => saving(false, "checkpoint.background = \"never\"".to_owned()),
            BackgroundSaves::Always => saving(true, "checkpoint.background = \"always\"".to_owned()),
            BackgroundSaves::Auto => match room.shortfall(room.kept_free) {
                None if room.bytes.is_none() => {
                    saving(true, "the amount of memory here is unknown".to_owned())
                }
                None => saving(true, "the copy fits".to_owned()),
                Some(lack) => saving(false, format!("the copy does not fit: {lack}")),
            },
        }
    }

    /// Rejects a plan that must save in the background although the copy cannot fit.
    ///
    /// # Errors
    /// [`ErrorKind::DoesNotFit`](crate::error::ErrorKind::DoesNotFit) if the copy cannot fit.
    pub(super) fn check(plan: &Plan, programs: &Programs, machine: &Machine) -> Result<()> {
        if plan.intervals.checkpoint.background != BackgroundSaves::Always
            || plan.intervals.checkpoint.keep == 0
        {
            return Ok(());
        }
        let Some(lack) = Room::new(plan, programs, machine).shortfall(0) else { return Ok(()) };
        Err(Error::does_not_fit(format!(
            "the copy of the state for saves beside training does not fit: {lack}. checkpoint.background = \"auto\" lets \
             training wait for saves instead"
        )))
    }
}

/// The memory that a copy of the state would take, and the memory available for it.
struct Room {
    /// Bytes of the copy.
    copy: usize,
    /// Where the copy is.
    place: &'static str,
    /// Bytes that all ranks need there without the copy.
    needed: u64,
    /// Bytes there in all; `None` if unknown.
    bytes: Option<u64>,
    /// Bytes that `"auto"` leaves free.
    kept_free: u64,
}

impl Room {
    fn new(plan: &Plan, programs: &Programs, machine: &Machine) -> Self {
        let on_gpu = plan.execution.gpu.is_some() || machine.hardware.is_some();
        let copy = match programs.gather {
            Some(_) => checkpoint_bytes(programs),
            None => copy_bytes(&programs.state, programs.state.saved_slots()),
        };
        // Shards of several ranks are gathered on the host.
        if programs.gather.is_some() && on_gpu {
            return Self {
                copy,
                place: "host memory",
                needed: plan.corpus.memory_bytes as u64,
                bytes: machine.memory_bytes,
                kept_free: machine.memory_bytes.unwrap_or(0) / HOST_MEMORY_DIVISOR,
            };
        }
        let budget = Budget::new(plan, machine);
        let is_limit = plan.execution.memory_limit.is_some();
        let (place, kept_free) = match (on_gpu, machine.hardware) {
            // The budget of a named device already leaves out the reserve.
            (true, Some(_)) => ("the GPU's memory", 0),
            (true, None) => ("the GPU's memory", if is_limit { 0 } else { RESERVE_BYTES }),
            (false, _) if is_limit => ("host memory", 0),
            (false, _) => ("host memory", budget.bytes.unwrap_or(0) / HOST_MEMORY_DIVISOR),
        };
        let needed = budget.needed(peak_bytes(plan, programs));
        Self { copy, place, needed, bytes: budget.bytes, kept_free }
    }

    /// Describes what is missing if `aside` bytes stay free; `None` if the copy fits or the memory is
    /// unknown.
    fn shortfall(&self, aside: u64) -> Option<String> {
        let bytes = self.bytes?;
        let needed = self.needed.saturating_add(self.copy as u64).saturating_add(aside);
        let sized = |bytes: u64| binary(bytes as usize);
        let free = if aside > 0 { format!(" and {} to stay free", sized(aside)) } else { String::new() };
        (needed > bytes).then(|| {
            format!(
                "{} besides {}{free}, of {} of {}",
                binary(self.copy),
                sized(self.needed),
                sized(bytes),
                self.place
            )
        })
    }
}
