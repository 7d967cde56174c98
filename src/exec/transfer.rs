//! Transfers of batches to the device and of results back, without synchronizing the device.

use super::StateMemory;
use crate::device::DType;
use crate::device::cuda::Gpu;
use crate::device::cuda::driver::{Event, Pinned};
use crate::error::{Error, Result};
use crate::ir::State;
use std::collections::VecDeque;

/// Number of batches that may be in transfer at once.
const MAX_IN_TRANSFER: usize = 4;

/// Pinned memory of batches in transfer, oldest first, and of snapshots no longer in use.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    batches: VecDeque<(Pinned, Event)>,
    spare: Vec<(Pinned, Event)>,
}

/// A copy of a group of the state at one point of the stream; on a GPU it may still be in transfer.
#[derive(Debug)]
pub struct Snapshot {
    group: &'static str,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Ready(Vec<u8>),
    InTransfer(Pinned, Event, usize),
}

impl Transfers {
    /// Writes integer tensors of a group, in stream order. On a GPU the group is copied as a whole, and
    /// tensors that are not named become zero.
    ///
    /// # Errors
    /// When the state has no such tensor, or the device refuses.
    pub(super) fn send(
        &mut self,
        gpu: Option<&Gpu>,
        state: &mut StateMemory,
        group: &str,
        tensors: &[(&str, &[u32])],
    ) -> Result<()> {
        let Some(gpu) = gpu else {
            for (name, numbers) in tensors {
                let slot = state.slot(&format!("{group}.{name}"))?;
                state.write(slot, numbers)?;
            }
            return Ok(());
        };
        let (_, memory) =
            state.buffer(group).ok_or_else(|| Error::failed(format!("the state has no {group}")))?;
        let (address, bytes) = (memory.address().addr() as u64, memory.len());
        let (mut pinned, event) = if self.batches.len() < MAX_IN_TRANSFER {
            (gpu.pin(bytes)?, gpu.event()?)
        } else {
            let oldest = self.batches.pop_front();
            let (pinned, event) = oldest.ok_or_else(|| Error::failed("no batch is in transfer"))?;
            event.wait()?;
            if pinned.bytes().len() == bytes { (pinned, event) } else { (gpu.pin(bytes)?, event) }
        };
        for (name, numbers) in tensors {
            let slot = state.layout().get(state.slot(&format!("{group}.{name}"))?);
            let to = &mut pinned.bytes_mut()[slot.offset..slot.offset + slot.spec.bytes()];
            to.copy_from_slice(bytemuck::cast_slice(numbers));
        }
        gpu.upload(address, &pinned, bytes)?;
        gpu.record(&event, false)?;
        self.batches.push_back((pinned, event));
        Ok(())
    }

    /// Copies the first `bytes` of a group, in stream order.
    ///
    /// # Errors
    /// When the state has no such group, or the device refuses.
    pub(super) fn snapshot(
        &mut self,
        gpu: Option<&Gpu>,
        state: &StateMemory,
        group: &'static str,
        bytes: usize,
    ) -> Result<Snapshot> {
        let (_, memory) =
            state.buffer(group).ok_or_else(|| Error::failed(format!("the state has no {group}")))?;
        let Some(gpu) = gpu else {
            let contents = Contents::Ready(memory.read(0, bytes)?.into_owned());
            return Ok(Snapshot { group, contents });
        };
        let address = memory.address().addr() as u64;
        let spare = self.spare.pop().filter(|(pinned, _)| pinned.bytes().len() >= bytes);
        let (mut pinned, event) = match spare {
            Some(spare) => spare,
            None => (gpu.pin(bytes)?, gpu.event()?),
        };
        gpu.download(&mut pinned, address, bytes)?;
        gpu.record(&event, false)?;
        Ok(Snapshot { group, contents: Contents::InTransfer(pinned, event, bytes) })
    }

    /// Waits until a snapshot is transferred, and makes its bytes readable.
    ///
    /// # Errors
    /// When the work before it failed.
    pub(super) fn open(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        if let Contents::InTransfer(_, event, _) = &snapshot.contents {
            event.wait()?;
            let empty = Contents::Ready(Vec::new());
            if let Contents::InTransfer(pinned, event, bytes) =
                std::mem::replace(&mut snapshot.contents, empty)
            {
                snapshot.contents = Contents::Ready(pinned.bytes()[..bytes].to_vec());
                self.spare.push((pinned, event));
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// Returns the elements of an integer tensor of the group. The snapshot must have been opened.
    ///
    /// # Errors
    /// When the snapshot does not hold the tensor.
    pub fn integers(&self, layout: &State, tensor: &str) -> Result<Vec<u32>> {
        let name = format!("{}.{tensor}", self.group);
        let missing = || Error::failed(format!("the snapshot does not hold the integers {name}"));
        let slot = layout.get(layout.slot(&name).ok_or_else(missing)?);
        let Contents::Ready(bytes) = &self.contents else { return Err(missing()) };
        let bytes = bytes.get(slot.offset..slot.offset + slot.spec.bytes());
        let bytes = bytes.filter(|_| slot.spec.dtype == DType::U32).ok_or_else(missing)?;
        Ok(bytemuck::pod_collect_to_vec(bytes))
    }

    /// Returns the first element of a tensor of the group. The snapshot must have been opened.
    ///
    /// # Errors
    /// When the snapshot does not hold the tensor.
    pub fn number(&self, layout: &State, tensor: &str) -> Result<f64> {
        let name = format!("{}.{tensor}", self.group);
        let missing = || Error::failed(format!("the snapshot does not hold {name}"));
        let slot = layout.get(layout.slot(&name).ok_or_else(missing)?);
        let Contents::Ready(bytes) = &self.contents else { return Err(missing()) };
        let bytes = bytes.get(slot.offset..slot.offset + slot.spec.dtype.size()).ok_or_else(missing)?;
        super::memory::widened_bytes(slot.spec.dtype, bytes).first().copied().ok_or_else(missing)
    }
}
