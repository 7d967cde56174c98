//! The memory of a rank that other ranks read and write.

use crate::device::gpu::DevicePtr;

/// The memory of a rank that other ranks read and write. All ranks have the same buffers in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Address and bytes of each buffer: whole allocations.
    pub buffers: Vec<(DevicePtr, usize)>,
    /// Address and bytes of the staging of sums, within one of the buffers.
    pub sums: (DevicePtr, usize),
    /// For each lane, the area by which ranks wait for each other and sum a few numbers at once
    /// ([`area_words`](crate::device::gpu::area_words)): its address within one of the buffers, zero at the
    /// beginning, and how many numbers it has room for.
    pub areas: [(DevicePtr, usize); 2],
}
