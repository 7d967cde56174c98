//! The memory of the state, and typed access to it between programs.

use crate::device::cpu::Buffer;
use crate::device::{DType, Elem, Real};
use crate::error::{Error, Result};
use crate::ir::{SlotId, State};
use std::sync::Arc;

/// One buffer per [`State::buffers`], zeroed at the start.
#[derive(Debug)]
pub struct StateMemory {
    layout: Arc<State>,
    buffers: Vec<Buffer>,
}

impl StateMemory {
    /// Allocates all buffers.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(layout: Arc<State>) -> Result<Self> {
        let buffers = layout
            .buffers
            .iter()
            .map(|b| Buffer::zeroed(b.bytes).map_err(|e| e.context(format!("state buffer {}", b.name))))
            .collect::<Result<_>>()?;
        Ok(Self { layout, buffers })
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<State> {
        &self.layout
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(Buffer::len).sum()
    }

    /// The address of a slot.
    pub(super) fn address(&self, slot: SlotId) -> *mut u8 {
        let s = self.layout.get(slot);
        self.buffers[s.buffer].address().wrapping_add(s.offset)
    }

    /// The slot of that name.
    ///
    /// # Errors
    /// When there is none.
    pub fn slot(&self, name: &str) -> Result<SlotId> {
        self.layout.slot(name).ok_or_else(|| Error::failed(format!("the state has no {name}")))
    }

    /// The bytes of a slot, padding included.
    pub fn bytes_of(&self, slot: SlotId) -> &[u8] {
        let s = self.layout.get(slot);
        &self.buffers[s.buffer].bytes()[s.offset..s.offset + s.spec.bytes()]
    }

    /// The bytes of a slot, to write.
    pub fn bytes_of_mut(&mut self, slot: SlotId) -> &mut [u8] {
        let s = self.layout.get(slot);
        let (from, to) = (s.offset, s.offset + s.spec.bytes());
        &mut self.buffers[s.buffer].bytes_mut()[from..to]
    }

    /// The numbers of a slot, as stored, padding included.
    ///
    /// Panics when `T` is not the slot's format: a programming error.
    pub fn numbers<T: bytemuck::AnyBitPattern>(&self, slot: SlotId) -> &[T] {
        assert_eq!(size_of::<T>(), self.layout.get(slot).spec.dtype.size());
        bytemuck::cast_slice(self.bytes_of(slot))
    }

    /// As [`StateMemory::numbers`], to write.
    pub fn numbers_mut<T: bytemuck::Pod>(&mut self, slot: SlotId) -> &mut [T] {
        assert_eq!(size_of::<T>(), self.layout.get(slot).spec.dtype.size());
        bytemuck::cast_slice_mut(self.bytes_of_mut(slot))
    }

    /// The values of a slot widened to f64, padding left out.
    pub fn values(&self, slot: SlotId) -> Vec<f64> {
        let all = self.padded_values(slot);
        self.layout.get(slot).spec.logical_indices().into_iter().map(|i| all[i]).collect()
    }

    /// The values of a slot widened to f64, padding included.
    fn padded_values(&self, slot: SlotId) -> Vec<f64> {
        match self.layout.get(slot).spec.dtype {
            DType::U32 => self.numbers::<u32>(slot).iter().map(|&v| f64::from(v)).collect(),
            DType::F64 => self.numbers::<f64>(slot).to_vec(),
            DType::F32 => widened(self.numbers::<f32>(slot)),
            DType::Bf16 => widened(self.numbers::<half::bf16>(slot)),
        }
    }

    /// Whether everything outside a slot's logical shape is zero, of either sign.
    pub fn padding_is_zero(&self, slot: SlotId) -> bool {
        let spec = &self.layout.get(slot).spec;
        let mut padding = vec![true; spec.elements()];
        spec.logical_indices().into_iter().for_each(|i| padding[i] = false);
        self.padded_values(slot).iter().zip(padding).all(|(value, padding)| !padding || *value == 0.0)
    }

    /// Writes values into a slot, rounding; padding becomes zero.
    ///
    /// Panics when the number of values is not the slot's.
    pub fn set_values(&mut self, slot: SlotId, values: &[f64]) {
        let spec = self.layout.get(slot).spec.clone();
        assert_eq!(values.len(), spec.logical_elements());
        self.bytes_of_mut(slot).fill(0);
        for (i, &v) in spec.logical_indices().into_iter().zip(values) {
            match spec.dtype {
                DType::U32 => self.numbers_mut::<u32>(slot)[i] = v as u32,
                DType::F64 => self.numbers_mut::<f64>(slot)[i] = v,
                DType::F32 => self.numbers_mut::<f32>(slot)[i] = v as f32,
                DType::Bf16 => self.numbers_mut::<half::bf16>(slot)[i] = half::bf16::from_f64(v),
            }
        }
    }
}

/// Numbers as f64.
pub(super) fn widened<E: Elem>(values: &[E]) -> Vec<f64> {
    values.iter().map(|v| v.up().to_f64()).collect()
}

/// The first value that is NaN or infinite.
pub(super) fn first_not_finite<E: Elem>(values: &[E]) -> Option<f64> {
    values.iter().map(|v| v.up()).find(|v| !v.finite()).map(|v| v.to_f64())
}
