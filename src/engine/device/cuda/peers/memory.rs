//! The memory of a rank that other ranks read and write.

use crate::device::gpu::DevicePtr;

/// A rank's memory that other ranks read and write. All ranks have the same buffers in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Address and size in bytes of each buffer. Each is a whole allocation.
    pub buffers: Vec<(DevicePtr, usize)>,
    /// Address and size in bytes of the staging for sums, inside one of the buffers.
    pub sums: (DevicePtr, usize),
    /// For each lane, the area with which ranks wait for each other and sum a few numbers in one kernel
    /// ([`area_words`](crate::device::gpu::area_words)): its address inside one of the buffers, initially
    /// zero, and how many numbers it has room for.
    pub areas: [(DevicePtr, usize); 2],
}
