//! The memory of a rank that other ranks read and write.

use crate::device::gpu::DevicePtr;

/// Flags of a rank for each other rank: two handshakes for each of two streams.
const FLAGS_PER_RANK: usize = 4;

/// Returns the flags that a rank's memory holds for `ranks` ranks.
pub fn flags(ranks: usize) -> usize {
    FLAGS_PER_RANK * ranks
}

/// The memory of a rank that other ranks read and write. All ranks have the same buffers in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Address and bytes of each buffer: whole allocations.
    pub buffers: Vec<(DevicePtr, usize)>,
    /// Address of the flags: [`flags`] numbers of 32 bits, zero, within one of the buffers.
    pub flags: DevicePtr,
    /// Address and bytes of the staging of sums, within one of the buffers.
    pub sums: (DevicePtr, usize),
    /// Address and numbers of the area of sums at once ([`area_words`]), zero, within one of the buffers;
    /// `None` where ranks have none.
    pub area: Option<(DevicePtr, usize)>,
}
