//! The parameters and optimizer slots of a rank: initial values, checkpoints, and the parts that other ranks
//! hold.

use super::Rank;
use super::fp8::scale_views;
use crate::checkpoint::{self, Loaded, TensorView};
use crate::device::communicator::{Communicator, RankPhase};
use crate::error::Result;
use crate::ir::FlatBuffer;
use crate::model::{Weights, schedule_tables};
use crate::train::held::{CheckpointContents, SnapshotCopy};
use crate::train::initial::weights::{write_all_frozen, write_all_weights};
use crate::train::initial::{InitialValues, initialize};
use crate::train::replicas;
use crate::train::restore::{broadcast_state, restore, restore_optimizer, restore_shards, views};
use crate::train::shards::{answer_requests, checkpoint_buffers, end_requests};
use std::sync::Arc;

/// Status of a rank that compares its parameters with the other ranks' parameters.
const COMPARES: RankPhase = RankPhase::working("compares parameters");

impl Rank {
    /// Sets the parameters of a zeroed rank to their initial values, which the ranks of a process share.
    ///
    /// # Errors
    /// If a copy to the device fails.
    pub(in crate::train) fn initialize(&mut self, shared: &InitialValues) -> Result<()> {
        initialize(&mut self.engine, &self.plan.seeds, shared)
    }

    /// Sets the parameters of a zeroed rank to weights that rank 0 has, and everything else to initial
    /// values.
    ///
    /// # Errors
    /// If a weight cannot be read or has a different shape, or a rank is lost.
    pub(in crate::train) fn begin_with(
        &mut self,
        weights: Option<&dyn Weights>,
        shared: &InitialValues,
    ) -> Result<()> {
        initialize(&mut self.engine, &self.plan.seeds, shared)?;
        write_all_weights(&mut self.engine, &*self.comm, weights)
    }

    /// Writes the schedule of every step for optimizers whose state has seen this many updates before the
    /// first one, by which AdamW corrects the bias of its moments.
    ///
    /// # Errors
    /// If a copy to the device fails.
    pub(in crate::train) fn count_updates_before(&mut self, updates: u64) -> Result<()> {
        for (slot, table) in schedule_tables(&self.plan, &self.programs.state, updates) {
            let slot = self.engine.state.slot(slot)?;
            self.engine.state.set_values(slot, &table)?;
        }
        Ok(())
    }

    /// Loads the optimizer's slots, which rank 0 reads from a checkpoint.
    ///
    /// # Errors
    /// If a tensor is missing or has a different shape, or a rank is lost.
    pub(in crate::train) fn begin_with_optimizer(&mut self, loaded: Option<&Loaded>) -> Result<()> {
        restore_optimizer(&mut self.engine, &*self.comm, loaded)
    }

    /// Loads the state after `step`, which rank 0 reads from a checkpoint.
    ///
    /// # Errors
    /// If a tensor is missing or has a different shape, or a rank is lost.
    pub fn restore(&mut self, step: u64, loaded: Option<&Loaded>) -> Result<()> {
        self.restore_scales(loaded)?;
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

    /// Sets the frozen tensors to weights that rank 0 has; nothing if there are none.
    ///
    /// # Errors
    /// If a weight cannot be read or has a different shape, or a rank is lost.
    pub(in crate::train) fn freeze(&mut self, weights: Option<&dyn Weights>) -> Result<()> {
        write_all_frozen(&mut self.engine, &*self.comm, weights)
    }

    /// Gathers parameters that other ranks have updated, if ranks divide the optimizer's slots. Call it on
    /// every rank before reading parameters between steps.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn gather_parameters(&mut self) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        if let Some(gather) = programs.gather.as_ref().filter(|_| !self.gathered) {
            self.engine.run(gather)?;
            self.gathered = true;
        }
        Ok(())
    }

    /// Returns true if this rank's parameters must equal the parameters of every other rank.
    pub fn holds_a_replica(&self) -> bool {
        self.programs.replicas.is_some()
    }

    /// Checks that the parameters of all ranks have the same bits. Does nothing on a single rank, or if ranks
    /// do not exchange gradients.
    ///
    /// # Errors
    /// If a rank is lost, or replicas have drifted apart. In that case every rank names the tensor and the
    /// ranks.
    pub fn check_replicas(&mut self) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let Some(section) = &programs.replicas else { return Ok(()) };
        self.gather_parameters()?;
        self.comm.set_status(self.done, COMPARES);
        replicas::check(&mut self.engine, section, self.done)
    }

    /// Returns every tensor of a checkpoint, unpadded: the parameters and their optimizer slots. With a
    /// sharded optimizer, only rank 0 may read them: after [`Rank::gather_parameters`] and until
    /// [`Rank::end_snapshot`], while the other ranks are in [`Rank::answer_snapshot`].
    pub fn snapshot(&self) -> checkpoint::Snapshot<'_> {
        let buffers = checkpoint_buffers(self.engine.state.layout());
        let mut tensors =
            buffers.iter().map(|buffer| views(&self.engine, &buffer.name, buffer.prefix, &buffer.params));
        let parameters = tensors.next().unwrap_or_default();
        checkpoint::Snapshot::new(parameters, tensors.flatten().chain(scale_views(&self.engine)))
    }

    /// Allocates memory for copies of the state, for saves beside training. Does nothing if ranks hold parts
    /// of the state, which are gathered only when a copy is taken.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub(in crate::train) fn allocate_held(&self) -> Result<Option<SnapshotCopy>> {
        match &self.programs.gather {
            Some(_) => Ok(None),
            None => SnapshotCopy::allocate(&self.engine).map(Some),
        }
    }

    /// Returns a copy of the state that stays unchanged while training continues. Reuses the memory of an
    /// earlier copy if there is one. The rules of [`Rank::snapshot`] for callers apply.
    ///
    /// # Errors
    /// If there is not enough memory, the device failed, or a rank is lost.
    pub(in crate::train) fn copy_snapshot(
        &self,
        memory: Option<SnapshotCopy>,
        contents: CheckpointContents,
    ) -> Result<SnapshotCopy> {
        if self.programs.gather.is_some() {
            return SnapshotCopy::gather(self.snapshot(), contents);
        }
        let memory = match memory {
            Some(memory) => memory,
            None => SnapshotCopy::allocate(&self.engine)?,
        };
        memory.copy_from(&self.engine, contents)
    }

    /// Ends the reading of a snapshot. Called on rank 0.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn end_snapshot(&self) -> Result<()> {
        if self.programs.gather.is_some() { end_requests(&*self.comm) } else { Ok(()) }
    }

    /// Sends rank 0 the parts of a snapshot that it lacks. Called on all ranks except 0.
    ///
    /// # Errors
    /// If a rank is lost.
    pub fn answer_snapshot(&self) -> Result<()> {
        if self.programs.gather.is_some() { answer_requests(&self.engine) } else { Ok(()) }
    }

    /// Returns the tensors of a state buffer, unpadded, one per parameter, named like their slots.
    pub(in crate::train) fn tensors_of(&self, buffer: &FlatBuffer) -> Vec<TensorView<'_>> {
        let all: Vec<usize> = (0..self.engine.state.layout().params.len()).collect();
        views(&self.engine, buffer, &format!("{buffer}."), &all)
    }
}
