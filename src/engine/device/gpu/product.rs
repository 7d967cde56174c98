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
    /// Creates a factor that is used as it is stored.
    pub fn plain(address: DevicePtr) -> Self {
        Self { address, transposed: false }
    }

    /// Creates a factor that is the transpose of the matrix stored at an address.
    pub fn transposed(address: DevicePtr) -> Self {
        Self { address, transposed: true }
    }
}

/// A term added to a product: a factor times a matrix with the result's shape and format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Addend {
    /// Address of the first matrix. The address of C adds to the contents of C.
    pub address: DevicePtr,
    /// Factor of these matrices.
    pub factor: f32,
}

/// `C[m, n] = factor · A[m, k] · B[k, n] + addend`, summed in fp32 and rounded once. In a batch, each kind of
/// matrix occurs `batch` times, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The product without addresses and factors.
    pub shape: ProductShape,
    /// Address of A, stored `[m, k]`, or `[k, m]` if transposed.
    pub a: DevicePtr,
    /// Address of B, stored `[k, n]`, or `[n, k]` if transposed.
    pub b: DevicePtr,
    /// Address of C.
    pub c: DevicePtr,
    /// Factor of the product.
    pub factor: f32,
    /// The term added to the product; `None` unless the shape accumulates.
    pub addend: Option<Addend>,
    /// Addresses of the numbers, in fp32, by which A and B are multiplied; `None` unless they are 8-bit
    /// floats.
    pub scales: Option<[DevicePtr; 2]>,
}

/// A product without addresses and factors: the key by which an algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProductShape {
    /// Number of products in a batch; `None` for a single product.
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
    /// Formats of A and B. They differ only if both are 8-bit floats.
    pub inputs: [DType; 2],
    /// Format of the result.
    pub output: DType,
    /// True if something is added to the product.
    pub accumulate: bool,
    /// Precision of the factors.
    pub precision: ProductPrecision,
}

impl Product {
    /// Creates the product of the matrices at these addresses, added to the contents of C if the shape
    /// accumulates.
    pub fn new(shape: ProductShape, a: DevicePtr, b: DevicePtr, c: DevicePtr) -> Self {
        let addend = shape.accumulate.then_some(Addend { address: c, factor: 1.0 });
        Self { shape, a, b, c, factor: 1.0, addend, scales: None }
    }
}

/// Returns our own kernel for a product, with its launch. It computes products for which the back end's
/// library has no algorithm.
pub fn fallback_kernel(product: &Product) -> (Kernel, Grid, [Arg; 11]) {
    /// Rows and columns of C per block, then rows of threads per block.
    const SIDE: usize = 32;
    const ROWS: usize = 8;
    let shape = &product.shape;
    let kernel = Kernel::new("product", "product")
        .with("LEFT", shape.inputs[0])
        .with("RIGHT", shape.inputs[1])
        .with("OUT", shape.output)
        .with("AT", shape.a_transposed)
        .with("BT", shape.b_transposed)
        .with("ADD", shape.accumulate)
        .with("SCALED", product.scales.is_some())
        .with("SIDE", SIDE)
        .with("ROWS", ROWS);
    let blocks = [shape.n.div_ceil(SIDE), shape.m.div_ceil(SIDE), shape.batch.unwrap_or(1)];
    let addend = product.addend.unwrap_or(Addend { address: product.c, factor: 0.0 });
    let pointers = [product.a, product.b, product.c, addend.address].map(Arg::from);
    let sizes = [shape.m, shape.n, shape.k].map(Arg::from);
    let factors = [product.factor, addend.factor].map(Arg::from);
    let ([a, b, c, to], [m, n, k], [factor, addend_factor]) = (pointers, sizes, factors);
    let [a_scale, b_scale] = product.scales.unwrap_or_default().map(Arg::from);
    let blocks = blocks.map(|n| n as u32);
    let grid = Grid { blocks, threads: (SIDE * ROWS) as u32, shared: 0 };
    (kernel, grid, [a, b, c, to, m, n, k, factor, addend_factor, a_scale, b_scale])
}
