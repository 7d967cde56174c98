//! A queue that runs nothing and collects what is queued.
//!
//! All programs are queued on it once before the first step, to collect the kernels to compile and the
//! products to choose algorithms for. On a machine without a GPU it collects the kernels to compile for an
//! architecture, from the one place where each is launched.

use super::{Arg, DevicePtr, Grid, Kernel, Product, ProductShape, Properties, Queue, fallback_kernel};
use crate::error::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// A [`Queue`] that runs nothing and collects what is queued.
#[derive(Debug)]
pub struct Collector {
    properties: Properties,
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
    /// Returns a collector for a GPU with these properties.
    pub fn new(properties: Properties) -> Self {
        Self { properties, requests: RefCell::default() }
    }

    /// Returns the kernels and products listed so far.
    pub fn into_requests(self) -> Requests {
        self.requests.into_inner()
    }
}

impl Queue for Collector {
    fn properties(&self) -> &Properties {
        &self.properties
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
        requests.products.insert(product.shape());
        // The library may turn out to have no algorithm for it.
        requests.kernels.insert(fallback_kernel(product).0);
        Ok(())
    }

    fn fill(&self, _address: DevicePtr, _byte: u8, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn all_reduce_sum(&self, _tensors: &[(DevicePtr, usize)]) -> Result<()> {
        Ok(())
    }

    fn all_gather(&self, _to: DevicePtr, _from: DevicePtr, _bytes: usize) -> Result<()> {
        Ok(())
    }
}
