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

/// What is added to a product: a factor of matrices of its result's shape and format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addend {
    /// Address of the first matrix; that of C adds to the contents of C.
    pub address: DevicePtr,
    /// Their factor.
    pub factor: f32,
}

/// `C[m, n] = factor · A[m, k] · B[k, n] + addend`, summed in fp32 and rounded once. In a batch there are as
/// many of each matrix, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Number of products of a batch; `None` for a product by itself.
    pub batch: Option<usize>,
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
    /// The factor of the product.
    pub factor: f32,
    /// What is added to it.
    pub addend: Option<Addend>,
    /// Precision of the factors.
    pub precision: ProductPrecision,
}

/// A product without its addresses and factors: the key by which an algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProductShape {
    /// Number of products of a batch.
    pub batch: Option<usize>,
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
    /// True if something is added to the product.
    pub accumulate: bool,
    /// Precision of the factors.
    pub precision: ProductPrecision,
}

impl Product {
    /// Returns the product without its addresses and factors.
    pub fn shape(&self) -> ProductShape {
        ProductShape {
            batch: self.batch,
            m: self.m,
            n: self.n,
            k: self.k,
            a_transposed: self.a.transposed,
            b_transposed: self.b.transposed,
            input: self.input,
            output: self.output,
            accumulate: self.addend.is_some(),
            precision: self.precision,
        }
    }
}

/// Returns our own kernel for a product, with its launch. It serves shapes for which the back end's library
/// has no algorithm.
pub fn fallback_kernel(product: &Product) -> (Kernel, Grid, [Arg; 9]) {
    /// Rows and columns of C per block, and rows of threads per block.
    const SIDE: usize = 32;
    const ROWS: usize = 8;
    let kernel = Kernel::new("product", "product")
        .with_type("IN", product.input)
        .with_type("OUT", product.output)
        .with("AT", product.a.transposed)
        .with("BT", product.b.transposed)
        .with("ADD", product.addend.is_some())
        .with("SIDE", SIDE)
        .with("ROWS", ROWS);
    let blocks = [product.n.div_ceil(SIDE), product.m.div_ceil(SIDE), product.batch.unwrap_or(1)];
    let addend = product.addend.unwrap_or(Addend { address: product.c, factor: 0.0 });
    let pointers = [product.a.address, product.b.address, product.c, addend.address].map(Arg::from);
    let sizes = [product.m, product.n, product.k].map(Arg::from);
    let factors = [product.factor, addend.factor].map(Arg::from);
    let ([a, b, c, to], [m, n, k], [factor, of_addend]) = (pointers, sizes, factors);
    let blocks = blocks.map(|n| n as u32);
    let grid = Grid { blocks, threads: (SIDE * ROWS) as u32, shared: 0 };
    (kernel, grid, [a, b, c, to, m, n, k, factor, of_addend])
}
