//! Matrix products as ops request them.

use super::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, ProductPrecision};

/// A factor of a [`Product`], row-major and contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Address of the first element.
    pub address: DevicePtr,
    /// True if the matrix is stored transposed.
    pub transposed: bool,
}

impl Operand {
    /// Returns a factor that is stored as it is used.
    pub fn plain(address: DevicePtr) -> Self {
        Self { address, transposed: false }
    }

    /// Returns the transpose of the matrix that is stored at an address.
    pub fn transposed(address: DevicePtr) -> Self {
        Self { address, transposed: true }
    }
}

/// `C[m, n] (+)= A[m, k] · B[k, n]`, summed in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// Stored `[m, k]`, or `[k, m]` transposed.
    pub a: Operand,
    /// Stored `[k, n]`, or `[n, k]` transposed.
    pub b: Operand,
    /// Address of C.
    pub c: DevicePtr,
    /// Format of both factors.
    pub input: DType,
    /// Format of the result.
    pub output: DType,
    /// True if the product is added to the contents of C.
    pub accumulate: bool,
    /// Precision of the factors.
    pub precision: ProductPrecision,
}

/// A product without its addresses: the key by which an algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProductShape {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// True if A is stored transposed.
    pub a_transposed: bool,
    /// True if B is stored transposed.
    pub b_transposed: bool,
    /// Format of both factors.
    pub input: DType,
    /// Format of the result.
    pub output: DType,
    /// True if the product is added to the contents of C.
    pub accumulate: bool,
    /// Precision of the factors.
    pub precision: ProductPrecision,
}

impl Product {
    /// Returns the product without its addresses.
    pub fn shape(&self) -> ProductShape {
        ProductShape {
            m: self.m,
            n: self.n,
            k: self.k,
            a_transposed: self.a.transposed,
            b_transposed: self.b.transposed,
            input: self.input,
            output: self.output,
            accumulate: self.accumulate,
            precision: self.precision,
        }
    }
}

/// Returns our own kernel for a product, with its launch. It serves shapes for which the back end's library
/// has no algorithm.
pub fn fallback_kernel(product: &Product) -> (Kernel, Grid, [Arg; 6]) {
    /// Rows and columns of C per block, and rows of threads per block.
    const SIDE: usize = 32;
    const ROWS: usize = 8;
    let kernel = Kernel::new("product", "product")
        .with_type("IN", product.input)
        .with_type("OUT", product.output)
        .with("AT", product.a.transposed)
        .with("BT", product.b.transposed)
        .with("ADD", product.accumulate)
        .with("SIDE", SIDE)
        .with("ROWS", ROWS);
    let blocks = [product.n.div_ceil(SIDE) as u32, product.m.div_ceil(SIDE) as u32, 1];
    let pointers = [product.a.address, product.b.address, product.c].map(Arg::from);
    let sizes = [product.m, product.n, product.k].map(Arg::from);
    let ([a, b, c], [m, n, k]) = (pointers, sizes);
    (kernel, Grid { blocks, threads: (SIDE * ROWS) as u32, shared: 0 }, [a, b, c, m, n, k])
}
