//! A copy of part of the state that does not change while programs continue.

use super::Engine;
use crate::device::Memory;
use crate::device::cuda::download::Downloader;
use crate::device::cuda::driver::Event;
use crate::device::gpu::Queue;
use crate::error::{Error, Result};
use crate::ir::{SlotId, State};
use crate::lock::lock;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Copies of some state buffers in device memory. Copying on a GPU takes only as long as reading and writing
/// these bytes in its memory; the bytes are transferred to the host later, concurrently with programs.
#[derive(Debug)]
pub struct StateCopy {
    /// The layout of the state.
    pub layout: Arc<State>,
    /// One entry per buffer of the state; `None` for a buffer that is not copied.
    buffers: Vec<Option<Memory>>,
    /// The event after which the copy is complete, and the way to the host; `None` on the CPU.
    gpu: Option<(Event, Mutex<Downloader>)>,
}

/// Returns the size in bytes of a copy of the buffers that hold these slots.
pub fn copy_bytes(layout: &State, slots: impl IntoIterator<Item = SlotId>) -> usize {
    buffers_with_slots(layout, slots).into_iter().map(|buffer| layout.buffers[buffer].bytes).sum()
}

fn buffers_with_slots(layout: &State, slots: impl IntoIterator<Item = SlotId>) -> BTreeSet<usize> {
    slots.into_iter().map(|slot| layout.get(slot).buffer).collect()
}

impl Engine {
    /// Allocates memory for copies of the state buffers that hold these slots. Host memory is touched now, so
    /// that the first copy takes no longer than later ones.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn allocate_copy(&self, slots: impl IntoIterator<Item = SlotId>) -> Result<StateCopy> {
        let (device, layout) = (&self.device, self.state.layout());
        let mut buffers: Vec<Option<Memory>> = layout.buffers.iter().map(|_| None).collect();
        for index in buffers_with_slots(layout, slots) {
            let bytes = layout.buffers[index].bytes;
            let mut memory = device.allocate(bytes)?;
            // The OS maps zeroed host pages only when they are first written.
            memory.fill(0, u8::from(device.gpu().is_none()), bytes)?;
            buffers[index] = Some(memory);
        }
        let gpu = device.gpu().map(|gpu| Ok((gpu.event()?, Mutex::new(gpu.downloader()?)))).transpose()?;
        Ok(StateCopy { layout: Arc::clone(layout), buffers, gpu })
    }

    /// Copies state buffers to `copy`, as they are after all work queued so far. On a GPU the copy is made in
    /// stream order, without waiting.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn copy_state(&self, copy: &mut StateCopy) -> Result<()> {
        for (index, to) in copy.buffers.iter_mut().enumerate() {
            let Some(to) = to else { continue };
            let from = self.state.buffer_at(index);
            match self.gpu() {
                None => to.write(0, &from.read(0, from.len())?)?,
                Some(gpu) => {
                    gpu.copy(to.address().addr() as u64, from.address().addr() as u64, from.len())?
                }
            }
        }
        match (self.gpu(), &copy.gpu) {
            (Some(gpu), Some((copied, _))) => gpu.stream.record(copied, false),
            _ => Ok(()),
        }
    }
}

impl StateCopy {
    /// Returns the bytes of a slot as they were when the copy was taken, padding included. A GPU transfers
    /// them concurrently with its other work.
    ///
    /// # Errors
    /// If the slot's buffer is not copied, or the device failed.
    pub fn read(&self, slot: SlotId) -> Result<Cow<'_, [u8]>> {
        let slot = self.layout.get(slot);
        let memory = self.buffers[slot.buffer].as_ref();
        let memory = memory.ok_or_else(|| Error::failed(format!("{} is not in the copy", slot.name)))?;
        let Some((copied, downloader)) = &self.gpu else {
            return memory.read(slot.offset, slot.spec.bytes());
        };
        let mut bytes = vec![0; slot.spec.bytes()];
        let from = memory.address().addr() as u64 + slot.offset as u64;
        lock(downloader).download(copied, from, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }
}
