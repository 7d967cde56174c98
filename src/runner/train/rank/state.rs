//! The parameters and the optimizer's slots of a rank: initial values, checkpoints, and what ranks have of
//! each other's.

use super::Rank;
use crate::checkpoint::{self, Loaded, TensorView};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::Result;
use crate::ir::FlatBuffer;
use crate::model::Weights;
use crate::train::held::{Contents, HeldSnapshot};
use crate::train::initial::weights::write_all_weights;
use crate::train::initial::{InitialValues, initialize};
use crate::train::replicas;
use crate::train::restore::{broadcast_state, restore, restore_shards, views};
use crate::train::shards::{answer_requests, checkpoint_buffers, end_requests};
use std::sync::Arc;

/// Compares its parameters with those of the other ranks.
const COMPARES: RankPhase = RankPhase::working("compares parameters");

impl Rank {
    /// Sets the parameters of a rank of zeros to their initial values, which the ranks of a process share.
    ///
    /// # Errors
    /// When a copy to the device fails.
    pub(in crate::train) fn initialize(&mut self, shared: &InitialValues) -> Result<()> {
        initialize(&mut self.engine, &self.plan.seeds, shared)
    }

    /// Sets the parameters of a rank of zeros to weights that rank 0 has, and all else to initial values.
    ///
    /// # Errors
    /// When a weight cannot be read or has another shape, or a rank is lost.
    pub(in crate::train) fn begin_with(
        &mut self,
        weights: Option<&dyn Weights>,
        shared: &InitialValues,
    ) -> Result<()> {
        initialize(&mut self.engine, &self.plan.seeds, shared)?;
        write_all_weights(&mut self.engine, &*self.comm, weights)
    }

    /// Loads the state after `step`, which rank 0 reads from a checkpoint.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape, or a rank is lost.
    pub fn restore(&mut self, step: u64, loaded: Option<&Loaded>) -> Result<()> {
        if self.programs.gather.is_some() {
            restore_shards(&mut self.engine, &*self.comm, loaded)?;
            self.gathered = true;
            return self.go_to(step);
        }
        if let Some(loaded) = loaded {
            restore(&mut self.engine, loaded)?;
        }
        broadcast_state(&mut self.engine, &*self.comm)?;
        self.go_to(step)
    }

    /// Gathers parameters that other ranks have updated, where ranks divide the optimizer's slots. Whatever
    /// reads parameters between steps comes after it. Every rank calls it.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn gather_parameters(&mut self) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        if let Some(gather) = programs.gather.as_ref().filter(|_| !self.gathered) {
            self.engine.run(gather)?;
            self.gathered = true;
        }
        Ok(())
    }

    /// Returns true if this rank's parameters must equal those of every other rank.
    pub fn holds_a_replica(&self) -> bool {
        self.programs.replicas.is_some()
    }

    /// Checks that the parameters of all ranks have the same bits. Does nothing on a single rank, or where
    /// ranks do not exchange gradients.
    ///
    /// # Errors
    /// When a rank is lost, or replicas have drifted apart: every rank names the tensor and the ranks.
    pub fn check_replicas(&mut self) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let Some(section) = &programs.replicas else { return Ok(()) };
        self.gather_parameters()?;
        self.comm.set_status(self.done, COMPARES);
        replicas::check(&mut self.engine, section, self.done)
    }

    /// Returns every tensor of a checkpoint, unpadded: the parameters, and the optimizer's slots of each.
    /// Where the optimizer is sharded only rank 0 may read them, after [`Rank::gather_parameters`], until
    /// [`Rank::end_snapshot`], while the other ranks are in [`Rank::answer_snapshot`].
    pub fn snapshot(&self) -> checkpoint::Snapshot<'_> {
        let buffers = checkpoint_buffers(self.engine.state.layout());
        let mut tensors =
            buffers.iter().map(|buffer| views(&self.engine, &buffer.name, buffer.prefix, &buffer.params));
        checkpoint::Snapshot::new(tensors.next().unwrap_or_default(), tensors.flatten())
    }

    /// Allocates memory for copies of the state, for saves beside training. Does nothing where ranks have
    /// parts of it: these are put together when a copy is taken.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(in crate::train) fn allocate_held(&self) -> Result<Option<HeldSnapshot>> {
        match &self.programs.gather {
            Some(_) => Ok(None),
            None => HeldSnapshot::allocate(&self.engine).map(Some),
        }
    }

    /// Returns a copy of the state, which stays as it is while training goes on, in the memory of an earlier
    /// one where there is one. Who may call it, and when, is as of [`Rank::snapshot`].
    ///
    /// # Errors
    /// When there is not enough memory, the device failed, or a rank is lost.
    pub(in crate::train) fn hold(
        &self,
        memory: Option<HeldSnapshot>,
        contents: Contents,
    ) -> Result<HeldSnapshot> {
        if self.programs.gather.is_some() {
            return HeldSnapshot::gather(self.snapshot(), contents);
        }
        let memory = match memory {
            Some(memory) => memory,
            None => HeldSnapshot::allocate(&self.engine)?,
        };
        memory.retake(&self.engine, contents)
    }

    /// Rank 0: ends the reading of a snapshot.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn end_snapshot(&self) -> Result<()> {
        if self.programs.gather.is_some() { end_requests(&*self.comm) } else { Ok(()) }
    }

    /// Ranks other than 0: sends rank 0 what it lacks of a snapshot.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn answer_snapshot(&self) -> Result<()> {
        if self.programs.gather.is_some() { answer_requests(&self.engine) } else { Ok(()) }
    }

    /// Returns the tensors of a state buffer, unpadded, one per parameter, under the names of their slots.
    pub(in crate::train) fn tensors_of(&self, buffer: &FlatBuffer) -> Vec<TensorView<'_>> {
        let all: Vec<usize> = (0..self.engine.state.layout().params.len()).collect();
        views(&self.engine, buffer, &format!("{buffer}."), &all)
    }
}
