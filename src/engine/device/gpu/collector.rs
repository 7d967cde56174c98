//! A queue that runs nothing and collects what is queued.
//!
//! Before the first step, all programs are queued on it once, to collect the kernels to compile and the
//! products to choose algorithms for. On a machine without a GPU it collects the kernels to compile for an
//! architecture, using the same launch sites as a run.

use super::{
    Arg, Collective, DevicePtr, Grid, Kernel, MAX_RANKS, Product, ProductShape, Properties, Queue,
    consecutive_addresses, copy_small, fallback_kernel, fill_words, rank_sum, sum_at_once, wait_for_ranks,
};
use crate::error::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A [`Queue`] that runs nothing and collects what is queued.
#[derive(Debug)]
pub struct Collector {
    properties: Properties,
    rank: usize,
    requests: RefCell<Requests>,
}

/// The kernels and products that programs need.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Kernels.
    pub kernels: BTreeSet<Kernel>,
    /// Matrix products.
    pub products: BTreeSet<ProductShape>,
}

impl Collector {
    /// Creates a collector for rank 0 on a GPU with these properties.
    pub fn new(properties: Properties) -> Self {
        Self { properties, rank: 0, requests: RefCell::default() }
    }

    /// Sets the rank. Kernels differ between ranks: a rank that owns nothing of an update needs no kernel for
    /// it, and large tables of what ranks own are compiled into separate kernels for each rank.
    #[must_use]
    pub fn with_rank(mut self, rank: usize) -> Self {
        self.rank = rank;
        self
    }

    /// Returns the kernels and products collected so far.
    pub fn into_requests(self) -> Requests {
        self.requests.into_inner()
    }
}

impl Queue for Collector {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn launch(&self, kernel: Kernel, grid: Grid, _args: &[Arg]) -> Result<()> {
        debug_assert!(
            grid.shared as usize <= self.properties.shared_per_block,
            "{kernel:?} has grid {grid:?}"
        );
        self.requests.borrow_mut().kernels.insert(kernel);
        Ok(())
    }

    fn product(&self, product: &Product) -> Result<()> {
        let mut requests = self.requests.borrow_mut();
        requests.products.insert(product.shape);
        // The library may have no algorithm for the product, and some of its algorithms fill a counter.
        requests.kernels.insert(fallback_kernel(product).0);
        requests.kernels.extend(fill_words(0, 0, 1).map(|(kernel, _, _)| kernel));
        Ok(())
    }

    fn fill(&self, _address: DevicePtr, _byte: u8, _bytes: usize) -> Result<()> {
        self.requests.borrow_mut().kernels.extend(fill_words(0, 0, 1).map(|(kernel, _, _)| kernel));
        Ok(())
    }

    fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// Inserts the kernels that one of the transports launches.
    fn collective(&self, collective: Collective<'_>) -> Result<()> {
        let kernels = &mut self.requests.borrow_mut().kernels;
        kernels.extend(sum_at_once(&[], (&[0], 0), 0).map(|(kernel, _, _)| kernel));
        kernels.insert(wait_for_ranks(&[0], 0).0);
        if !matches!(collective, Collective::Share(_)) {
            kernels.insert(copy_small(&[]).0);
        }
        if matches!(collective, Collective::AllReduceSum(_) | Collective::ReduceToOwners(_)) {
            kernels.insert(rank_sum((0, 1), (0, 1), (1, 0)).0);
        }
        Ok(())
    }

    fn shared(&self, to: DevicePtr, bytes: usize) -> Result<[DevicePtr; MAX_RANKS]> {
        Ok(consecutive_addresses(to, bytes))
    }
}
