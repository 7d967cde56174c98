//! The queue that ops submit their work to.

use super::{Arg, DevicePtr, Grid, Kernel, MAX_RANKS, Product, Properties};
use crate::error::Result;

/// A part of an f32 tensor whose sum over ranks one rank receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedSum {
    /// The rank.
    pub owner: usize,
    /// Address of the first element.
    pub at: DevicePtr,
    /// Number of elements.
    pub elements: usize,
}

/// A part of a tensor that all ranks receive from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedCopy {
    /// The rank.
    pub owner: usize,
    /// Address of the first byte on the rank that owns it; every rank has the same tensors, so that a rank
    /// gives its own address.
    pub from: DevicePtr,
    /// Address to which a rank receives it.
    pub to: DevicePtr,
    /// Number of bytes.
    pub bytes: usize,
}

/// A tensor that every rank receives from every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// Address of a rank's own tensor.
    pub from: DevicePtr,
    /// Address of those of all ranks, one after another.
    pub to: DevicePtr,
    /// Bytes of one of them.
    pub bytes: usize,
}

impl Gathered {
    /// Returns the address of the tensor of a rank among those of all.
    pub fn of_rank(&self, rank: usize) -> DevicePtr {
        self.to + (rank * self.bytes) as DevicePtr
    }
}

/// Returns the addresses of tensors of `bytes` bytes that lie one after another.
pub fn in_turn(to: DevicePtr, bytes: usize) -> [DevicePtr; MAX_RANKS] {
    std::array::from_fn(|rank| to + (rank * bytes) as DevicePtr)
}

/// A queue of work for a GPU. Work runs in the order in which it was queued, asynchronously to the caller.
pub trait Queue {
    /// Returns the properties of the GPU.
    fn properties(&self) -> &Properties;

    /// Returns the rank whose queue this is, from 0.
    fn rank(&self) -> usize;

    /// Launches a kernel.
    ///
    /// # Errors
    /// If the arguments are not those of the kernel, or the driver reports an error.
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

    /// Replaces f32 tensors, given as (address, elements), by their sums over ranks, as one group of
    /// collectives. Does nothing in a run of one rank.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()>;

    /// Gathers tensors of every rank on every rank, in the order of ranks. Copies them in a run of one rank.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn all_gather(&self, tensors: &[Gathered]) -> Result<()>;

    /// Gives every rank access to a tensor of every rank, in the order of ranks: where a GPU's kernels read
    /// the memory of other ranks, those stay in their own, each at its place of `to`; else, they are
    /// gathered. Between the last read and the next call, every rank has to queue a collective.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn share(&self, tensor: Gathered) -> Result<()>;

    /// Returns the addresses by which kernels read the tensors that lie at `to` since [`Queue::share`], in
    /// the order of at most [`MAX_RANKS`] ranks; beyond the last, addresses that are not to be read.
    ///
    /// # Errors
    /// If ranks do not share that memory.
    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]>;

    /// Replaces parts of f32 tensors by their sums over ranks, each on the rank that owns it; on other ranks
    /// they are left as they are. Does nothing in a run of one rank.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn reduce_to_owners(&self, parts: &[OwnedSum]) -> Result<()>;

    /// Copies parts from the ranks that own them to all ranks. In a run of one rank, copies those that do not
    /// lie in place. With `wait`, ranks wait for each other before any of them writes into the memory of
    /// another. It may be left out only where every rank has come to an earlier collective of this queue since
    /// it last read these parts.
    ///
    /// # Errors
    /// If a rank is lost, or the library reports an error.
    fn gather_from_owners(&self, parts: &[OwnedCopy], wait: bool) -> Result<()>;
}
