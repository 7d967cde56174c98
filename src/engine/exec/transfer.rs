//! Transfers of batches to the device and of results back, without synchronizing the device.

use super::{Engine, widened_bytes};
use crate::device::DType;
use crate::device::cuda::driver::{Event, Pinned};
use crate::error::{Error, Result};
use crate::ir::{BatchSlot, Slot, SlotId, SlotName, State};

/// Largest number of batches in transfer at the same time.
const MAX_IN_TRANSFER: usize = 4;

/// A copy of a state buffer at one point of the stream. On a GPU it may still be in transfer.
#[derive(Debug)]
pub struct Snapshot {
    /// The buffer's index in the state.
    buffer: usize,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Ready(Vec<u8>),
    InTransfer(Pinned, Event, usize),
}

impl Engine {
    /// Writes tensors of the batch, in stream order. On a GPU the whole batch is copied, and tensors that are
    /// not named become zero.
    ///
    /// # Errors
    /// If the state has no such tensor, or the device reports an error.
    pub fn send(&mut self, tensors: &[(BatchSlot, &[u32])]) -> Result<()> {
        let state = &mut self.state;
        let Some(gpu) = self.device.gpu() else {
            for &(name, numbers) in tensors {
                state.write(state.slot(name)?, numbers)?;
            }
            return Ok(());
        };
        let memory = state.buffer_at(state.layout().get(state.slot(BatchSlot::Tokens)?).buffer);
        let (address, bytes) = (memory.address().addr() as u64, memory.len());
        let (mut pinned, event) = if self.batches.len() < MAX_IN_TRANSFER {
            (gpu.pin(bytes)?, gpu.event()?)
        } else {
            let oldest = self.batches.pop_front();
            let (pinned, event) = oldest.ok_or_else(|| Error::failed("no batch is in transfer"))?;
            event.wait()?;
            if pinned.bytes().len() == bytes { (pinned, event) } else { (gpu.pin(bytes)?, event) }
        };
        for &(name, numbers) in tensors {
            let slot = state.layout().get(state.slot(name)?);
            let to = &mut pinned.bytes_mut()[slot.offset..slot.offset + slot.spec.bytes()];
            to.copy_from_slice(bytemuck::cast_slice(numbers));
        }
        gpu.stream.upload(address, &pinned, bytes)?;
        gpu.stream.record(&event, false)?;
        self.batches.push_back((pinned, event));
        Ok(())
    }

    /// Copies the first `bytes` of the buffer that holds a slot, in stream order.
    ///
    /// # Errors
    /// If the device reports an error.
    pub fn snapshot(&mut self, slot: SlotId, bytes: usize) -> Result<Snapshot> {
        let buffer = self.state.layout().get(slot).buffer;
        let memory = self.state.buffer_at(buffer);
        let Some(gpu) = self.device.gpu() else {
            let contents = Contents::Ready(memory.read(0, bytes)?.into_owned());
            return Ok(Snapshot { buffer, contents });
        };
        let spare = self.spare.pop().filter(|(pinned, _)| pinned.bytes().len() >= bytes);
        let (mut pinned, event) = match spare {
            Some(spare) => spare,
            None => (gpu.pin(bytes)?, gpu.event()?),
        };
        gpu.stream.download(&mut pinned, memory.address().addr() as u64, bytes)?;
        gpu.stream.record(&event, false)?;
        Ok(Snapshot { buffer, contents: Contents::InTransfer(pinned, event, bytes) })
    }

    /// Waits until a snapshot is transferred, and makes its bytes readable.
    ///
    /// # Errors
    /// If the work before it failed.
    pub fn open(&mut self, snapshot: &mut Snapshot) -> Result<()> {
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
    /// Returns the elements of an integer tensor in the buffer. The snapshot must have been opened.
    ///
    /// # Errors
    /// If the snapshot does not hold the tensor.
    pub fn integers(&self, layout: &State, name: impl Into<SlotName>) -> Result<Vec<u32>> {
        let integers = |slot: &Slot| {
            let bytes = self.bytes(slot, slot.spec.bytes()).filter(|_| slot.spec.dtype == DType::U32)?;
            Some(bytemuck::pod_collect_to_vec(bytes))
        };
        self.find(layout, name.into(), integers)
    }

    /// Returns the first element of a tensor in the buffer. The snapshot must have been opened.
    ///
    /// # Errors
    /// If the snapshot does not hold the tensor.
    pub fn number(&self, layout: &State, name: impl Into<SlotName>) -> Result<f64> {
        let first = |slot: &Slot| {
            let dtype = slot.spec.dtype;
            widened_bytes(dtype, self.bytes(slot, dtype.size())?).first().copied()
        };
        self.find(layout, name.into(), first)
    }

    /// Returns the elements of a floating-point tensor in the buffer. The snapshot must have been opened.
    ///
    /// # Errors
    /// If the snapshot does not hold the tensor.
    pub fn numbers(&self, layout: &State, name: impl Into<SlotName>) -> Result<Vec<f64>> {
        let numbers =
            |slot: &Slot| Some(widened_bytes(slot.spec.dtype, self.bytes(slot, slot.spec.bytes())?));
        self.find(layout, name.into(), numbers)
    }

    /// Returns what `read` returns for the slot with this name.
    fn find<T>(&self, layout: &State, name: SlotName, read: impl FnOnce(&Slot) -> Option<T>) -> Result<T> {
        let found = layout.slot(name.clone()).and_then(|slot| read(layout.get(slot)));
        found.ok_or_else(|| Error::failed(format!("the snapshot does not hold {name}")))
    }

    /// Returns the first `len` bytes of a slot, if the snapshot is open and holds them.
    fn bytes(&self, slot: &Slot, len: usize) -> Option<&[u8]> {
        match &self.contents {
            Contents::Ready(bytes) if slot.buffer == self.buffer => bytes.get(slot.offset..slot.offset + len),
            _ => None,
        }
    }
}
