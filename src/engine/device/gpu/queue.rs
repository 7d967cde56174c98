//! The queue to which ops submit their work.

use super::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS, Product, Properties};
use crate::error::Result;

/// A part of an f32 tensor whose sum over ranks one rank receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedSum {
    /// The receiving rank.
    pub owner: usize,
    /// Address of the first element.
    pub at: DevicePtr,
    /// Number of elements.
    pub elements: usize,
}

/// A part of a tensor that all ranks receive from one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedCopy {
    /// The sending rank.
    pub owner: usize,
    /// Address of the first byte on the owner. Every rank has the same tensors and passes the address in its
    /// own memory.
    pub from: DevicePtr,
    /// Address at which a rank receives the part.
    pub to: DevicePtr,
    /// Number of bytes.
    pub bytes: usize,
}

/// A tensor that every rank receives from every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Address of this rank's own tensor.
    pub from: DevicePtr,
    /// Address at which the tensors of all ranks are stored one after another.
    pub to: DevicePtr,
    /// Size of one rank's tensor, in bytes.
    pub bytes: usize,
}

impl Gathered {
    /// Returns the address at which the tensor of a rank is stored.
    pub fn rank_address(&self, rank: usize) -> DevicePtr {
        self.to + (rank * self.bytes) as DevicePtr
    }
}

/// Returns the addresses of consecutive tensors of `bytes` bytes.
pub fn consecutive_addresses(to: DevicePtr, bytes: usize) -> [DevicePtr; MAX_RANKS] {
    std::array::from_fn(|rank| to + (rank * bytes) as DevicePtr)
}

/// An exchange of data between ranks.
#[derive(Clone, Copy, Debug)]
pub enum Collective<'a> {
    /// Replaces f32 tensors, given as (address, elements), by their sums over ranks, as one group. Does
    /// nothing in a run with one rank.
    AllReduceSum(&'a [(DevicePtr, usize)]),
    /// Gathers tensors of every rank on every rank, in rank order. In a run with one rank, copies them.
    AllGather(&'a [Gathered]),
    /// Gives every rank access to a tensor of every rank. If kernels can read the memory of other ranks, each
    /// rank's tensor stays in its own memory, at its position in `to`; otherwise the tensors are gathered in
    /// rank order. Between the last read and the next call, every rank must queue a collective.
    Share(Gathered),
    /// Replaces parts of f32 tensors by their sums over ranks, each on the rank that owns it; the other
    /// ranks' parts stay unchanged. Does nothing in a run with one rank.
    ReduceToOwners(&'a [OwnedSum]),
    /// Copies parts from the ranks that own them to all ranks. In a run with one rank, copies parts that are
    /// not already in place.
    GatherFromOwners {
        /// The parts.
        parts: &'a [OwnedCopy],
        /// Ranks wait for each other before any of them writes into another's memory. False only if every
        /// rank has reached an earlier collective of this queue since that rank last read these parts.
        wait: bool,
    },
}

/// A queue of work for a GPU. Work runs in the order in which it was queued, asynchronously to the caller.
pub trait Queue {
    /// Returns the properties of the GPU.
    fn properties(&self) -> &Properties;

    /// Returns the rank that owns this queue, counted from 0.
    fn rank(&self) -> usize;

    /// Launches a kernel.
    ///
    /// # Errors
    /// If the arguments do not match the kernel's parameters, or the driver reports an error.
    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()>;

    /// Computes a matrix product.
    ///
    /// # Errors
    /// If the library reports an error.
    fn product(&self, product: &Product) -> Result<()>;

    /// Sets `bytes` bytes to one value.
    ///
    /// # Errors
    /// If the driver reports an error.
    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()>;

    /// Copies bytes between ranges that do not overlap.
    ///
    /// # Errors
    /// If the driver reports an error.
    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;

    /// Exchanges data with other ranks.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn collective(&self, collective: Collective<'_>) -> Result<()>;

    /// Returns the addresses at which kernels read the tensors of [`Collective::Share`] at `to`, for at
    /// most [`MAX_RANKS`] ranks in order. Addresses beyond the last rank must not be read.
    ///
    /// # Errors
    /// If ranks do not share that memory.
    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]>;
}
