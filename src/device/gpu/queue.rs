//! The queue that ops submit their work to.

use super::{Arg, DevicePtr, Grid, Kernel, Product, Properties};
use crate::error::Result;

/// A queue of work for a GPU. Work runs in the order in which it was queued, asynchronously to the caller.
pub trait Queue {
    /// Returns the properties of the GPU.
    fn properties(&self) -> &Properties;

    /// Launches a kernel.
    ///
    /// # Errors
    /// When the arguments are not those of the kernel, or the driver reports an error.
    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()>;

    /// Computes a matrix product.
    ///
    /// # Errors
    /// When the library reports an error.
    fn product(&self, product: &Product) -> Result<()>;

    /// Sets `bytes` bytes to one value.
    ///
    /// # Errors
    /// When the driver reports an error.
    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()>;

    /// Copies bytes between ranges that do not overlap.
    ///
    /// # Errors
    /// When the driver reports an error.
    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;

    /// Replaces f32 tensors, given as (address, elements), by their sums over ranks, as one group of
    /// collectives. Does nothing in a run of one rank.
    ///
    /// # Errors
    /// When a rank is lost, or the library reports an error.
    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()>;

    /// Gathers the `bytes` at `from` of every rank to `to` of every rank, in the order of ranks. Copies them
    /// in a run of one rank.
    ///
    /// # Errors
    /// When a rank is lost, or the library reports an error.
    fn all_gather(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;
}
