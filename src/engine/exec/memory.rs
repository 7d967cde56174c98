//! The memory of the state, and typed access to it between programs.

use crate::device::{DType, Device, E4m3, E5m2, Elem, Memory, Real};
use crate::error::{Error, Result};
use crate::ir::{SlotId, SlotName, Spec, State, StateBuffer};
use crate::{dispatch_float, dispatch_fp8};
use std::borrow::Cow;
use std::sync::Arc;

/// Memory of the state: one zero-initialized buffer per entry of [`State::buffers`].
#[derive(Debug)]
pub struct StateMemory {
    layout: Arc<State>,
    buffers: Vec<Memory>,
}

impl StateMemory {
    /// Allocates all buffers.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn new(device: &Device, layout: Arc<State>) -> Result<Self> {
        Self::with_mapped(device, layout, &[])
    }

    /// Allocates all buffers. Other GPUs of the process can be given access to the buffers with the indices
    /// `mapped`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn with_mapped(device: &Device, layout: Arc<State>, mapped: &[usize]) -> Result<Self> {
        let buffer = |index: usize, bytes: usize| -> Result<Memory> {
            let is_mapped = mapped.contains(&index);
            let mut memory =
                if is_mapped { device.allocate_mapped(bytes)? } else { device.allocate(bytes)? };
            // GPU memory is not cleared on allocation.
            if device.gpu().is_some() {
                memory.fill(0, 0, bytes)?;
            }
            Ok(memory)
        };
        let named = |(index, b): (usize, &StateBuffer)| {
            buffer(index, b.bytes).map_err(|e| e.context(format!("state buffer {}", b.name)))
        };
        let buffers = layout.buffers.iter().enumerate().map(named).collect::<Result<_>>()?;
        Ok(Self { layout, buffers })
    }

    /// Allocates the buffers of `layout`, but for those of weights that `lender` has too. They stay empty
    /// until [`StateMemory::swap_weights`] lends them the lender's memory.
    pub(super) fn beside(device: &Device, layout: Arc<State>, lender: &State) -> Result<Self> {
        let lent: Vec<usize> = lent_buffers(&layout, lender).into_iter().map(|(own, _)| own).collect();
        let allocate = |(index, buffer): (usize, &StateBuffer)| {
            let bytes = if lent.contains(&index) { 0 } else { buffer.bytes };
            let mut memory =
                device.allocate(bytes).map_err(|e| e.context(format!("state buffer {}", buffer.name)))?;
            if device.gpu().is_some() && bytes > 0 {
                memory.fill(0, 0, bytes)?;
            }
            Ok(memory)
        };
        let buffers = layout.buffers.iter().enumerate().map(allocate).collect::<Result<_>>()?;
        Ok(Self { layout, buffers })
    }

    /// Swaps the memory of the weights that both states have.
    pub(super) fn swap_weights(&mut self, other: &mut Self) {
        for (own, others) in lent_buffers(&self.layout, &other.layout) {
            std::mem::swap(&mut self.buffers[own], &mut other.buffers[others]);
        }
    }

    /// Returns the layout of the state.
    pub fn layout(&self) -> &Arc<State> {
        &self.layout
    }

    /// Returns the size of all buffers in bytes.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(Memory::len).sum()
    }

    /// Returns the address of a slot.
    pub(super) fn address(&self, slot: SlotId) -> *mut u8 {
        let s = self.layout.get(slot);
        self.buffers[s.buffer].address().wrapping_add(s.offset)
    }

    /// Returns the slot with this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn slot(&self, name: impl Into<SlotName>) -> Result<SlotId> {
        let name = name.into();
        self.layout.slot(name.clone()).ok_or_else(|| Error::failed(format!("the state has no {name}")))
    }

    /// Returns the buffer with this index in the layout.
    pub(super) fn buffer_at(&self, index: usize) -> &Memory {
        &self.buffers[index]
    }

    /// Returns the elements of a slot as stored, padding included: borrowed on the CPU, copied from a GPU.
    ///
    /// Panics if `T` has neither the size of the slot's format nor the size of a byte: a programming error.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        slot: SlotId,
    ) -> Result<Cow<'_, [T]>> {
        let s = self.layout.get(slot);
        assert!(size_of::<T>() == s.spec.dtype.size() || size_of::<T>() == 1);
        Ok(match self.buffers[s.buffer].read(s.offset, s.spec.bytes())? {
            Cow::Borrowed(bytes) => Cow::Borrowed(bytemuck::cast_slice(bytes)),
            Cow::Owned(bytes) => Cow::Owned(bytemuck::pod_collect_to_vec(&bytes)),
        })
    }

    /// Writes the elements of a slot, padding included.
    ///
    /// Panics if their size in bytes differs from the slot's: a programming error.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn write<T: bytemuck::NoUninit>(&mut self, slot: SlotId, numbers: &[T]) -> Result<()> {
        let s = self.layout.get(slot);
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        assert_eq!(bytes.len(), s.spec.bytes(), "{}", s.name);
        self.buffers[s.buffer].write(s.offset, bytes)
    }

    /// Returns bytes of a slot, starting at `offset`: borrowed on the CPU, copied from a GPU.
    ///
    /// Panics if they lie outside the slot: a programming error.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn read_bytes(&self, slot: SlotId, offset: usize, bytes: usize) -> Result<Cow<'_, [u8]>> {
        let s = self.layout.get(slot);
        assert!(offset + bytes <= s.spec.bytes(), "{}", s.name);
        self.buffers[s.buffer].read(s.offset + offset, bytes)
    }

    /// Writes bytes of a slot, starting at `offset`.
    ///
    /// Panics if they lie outside the slot: a programming error.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn write_bytes(&mut self, slot: SlotId, offset: usize, bytes: &[u8]) -> Result<()> {
        let s = self.layout.get(slot);
        assert!(offset + bytes.len() <= s.spec.bytes(), "{}", s.name);
        self.buffers[s.buffer].write(s.offset + offset, bytes)
    }

    /// Modifies the elements of a slot in place. On a GPU it copies them to the host and back.
    ///
    /// Panics if `T` has neither the size of the slot's format nor the size of a byte: a programming error.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn update<T: bytemuck::Pod>(&mut self, slot: SlotId, change: impl FnOnce(&mut [T])) -> Result<()> {
        let s = self.layout.get(slot);
        assert!(size_of::<T>() == s.spec.dtype.size() || size_of::<T>() == 1);
        let (from, to) = (s.offset, s.offset + s.spec.bytes());
        if let Memory::Host(buffer) = &mut self.buffers[s.buffer] {
            change(bytemuck::cast_slice_mut(&mut buffer.bytes_mut()[from..to]));
            return Ok(());
        }
        let mut numbers = self.read::<T>(slot)?.into_owned();
        change(&mut numbers);
        self.write(slot, &numbers)
    }

    /// Returns the values of a slot widened to f64, without padding.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn values(&self, slot: SlotId) -> Result<Vec<f64>> {
        let (all, spec) = (self.padded_values(slot)?, &self.layout.get(slot).spec);
        let mut values = Vec::with_capacity(spec.logical_elements());
        spec.runs().for_each(|(_, at, len)| values.extend_from_slice(&all[at..at + len]));
        Ok(values)
    }

    /// Returns the values of a slot widened to f64, padding included.
    fn padded_values(&self, slot: SlotId) -> Result<Vec<f64>> {
        Ok(widened_bytes(self.layout.get(slot).spec.dtype, &self.read::<u8>(slot)?))
    }

    /// Returns true if all padding of a slot is zero (of either sign).
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn padding_is_zero(&self, slot: SlotId) -> Result<bool> {
        let spec = &self.layout.get(slot).spec;
        if spec.logical_elements() == spec.elements() {
            return Ok(true);
        }
        let mut padding = vec![true; spec.elements()];
        spec.logical_indices().for_each(|i| padding[i] = false);
        Ok(self.padded_values(slot)?.iter().zip(padding).all(|(value, padding)| !padding || *value == 0.0))
    }

    /// Writes values into a slot, rounded to its format; padding becomes zero.
    ///
    /// Panics if the number of values differs from the slot's.
    ///
    /// # Errors
    /// If work on the device failed.
    pub fn set_values(&mut self, slot: SlotId, values: &[f64]) -> Result<()> {
        let bytes = padded_bytes(&self.layout.get(slot).spec, values);
        self.write(slot, &bytes)
    }
}

/// Returns the buffers of weights that two states have in common, by name and size: their places in each.
fn lent_buffers(one: &State, other: &State) -> Vec<(usize, usize)> {
    let same_in_other = |&own: &usize| {
        let wanted = &one.buffers[own];
        let found = other.weight_buffers().into_iter().find(|&others| {
            let StateBuffer { name, bytes } = &other.buffers[others];
            (name, bytes) == (&wanted.name, &wanted.bytes)
        });
        Some((own, found?))
    };
    one.weight_buffers().iter().filter_map(same_in_other).collect()
}

/// Returns the bytes of a tensor with these values, rounded to its format; padding is zero.
///
/// Panics if the number of values differs from the tensor's.
pub fn padded_bytes(spec: &Spec, values: &[f64]) -> Vec<u8> {
    assert_eq!(values.len(), spec.logical_elements());
    match spec.dtype {
        DType::U32 => padded(spec, values, |v| (v as u32).to_ne_bytes()),
        DType::F64 => padded(spec, values, f64::to_ne_bytes),
        DType::F32 => padded(spec, values, |v| (v as f32).to_ne_bytes()),
        DType::Bf16 => padded(spec, values, |v| half::bf16::from_f64(v).to_ne_bytes()),
        DType::E4m3 => padded(spec, values, |v| [E4m3::down(v as f32).0]),
        DType::E5m2 => padded(spec, values, |v| [E5m2::down(v as f32).0]),
    }
}

/// Places the bytes of each value where the tensor has it in memory.
fn padded<const SIZE: usize>(spec: &Spec, values: &[f64], element: impl Fn(f64) -> [u8; SIZE]) -> Vec<u8> {
    let mut bytes = vec![0; spec.bytes()];
    let (elements, _) = bytes.as_chunks_mut::<SIZE>();
    for (first, at, len) in spec.runs() {
        let run = elements[at..at + len].iter_mut().zip(&values[first..first + len]);
        run.for_each(|(to, &value)| *to = element(value));
    }
    bytes
}

/// Widens stored elements to f64.
pub fn widened_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    if dtype == DType::U32 {
        return bytemuck::pod_collect_to_vec::<u8, u32>(bytes).into_iter().map(f64::from).collect();
    }
    if dtype.is_fp8() {
        return dispatch_fp8!(dtype, E => {
            bytes.iter().map(|&byte| f64::from(E::from_bits(byte).up())).collect()
        });
    }
    dispatch_float!(dtype, E => {
        let values: Vec<E> = bytemuck::pod_collect_to_vec(bytes);
        values.into_iter().map(|value| value.up().to_f64()).collect()
    })
}
