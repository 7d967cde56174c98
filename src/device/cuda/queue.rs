//! What ops ask of a GPU: kernels and matrix products, in order.
//!
//! An op speaks to a [`Queue`]. The real one is a CUDA stream; the [`Collector`] runs nothing and keeps a list of what
//! was asked, so that kernels can be compiled and algorithms chosen before the first step, and every kernel can be
//! compiled on a machine without a GPU, from the one place where each is launched.

use crate::device::DType;
use crate::error::Result;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// An address in the memory of a GPU.
pub type DevicePtr = u64;

/// A kernel: an entry of a file in `kernels/`, compiled with definitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// The file, without its ending.
    pub file: &'static str,
    /// The function, `extern "C"`.
    pub entry: &'static str,
    /// Preprocessor definitions. Kernels of one file with the same definitions are compiled together.
    pub defines: Vec<(&'static str, String)>,
}

impl Kernel {
    /// A kernel without definitions.
    pub fn new(file: &'static str, entry: &'static str) -> Self {
        Self { file, entry, defines: Vec::new() }
    }

    /// Adds a definition.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// Adds a definition that names a number format as kernels call it: `f32`, `bf16`, `u32`.
    #[must_use]
    pub fn with_type(self, name: &'static str, dtype: DType) -> Self {
        self.with(name, type_name(dtype))
    }
}

/// What kernels call a number format. Never a keyword: the compiler's own headers have templates over a `T`, and see the
/// definitions too. f64 never reaches a GPU: plans refuse it.
fn type_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bf16",
        DType::U32 => "u32",
        DType::F32 => "f32",
        DType::F64 => "f64",
    }
}

/// The shape of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub blocks: [u32; 3],
    /// Threads of a block, in one dimension.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

impl Grid {
    /// Blocks in one dimension, without dynamic shared memory.
    pub fn new(blocks: usize, threads: u32) -> Self {
        Self { blocks: [blocks as u32, 1, 1], threads, shared: 0 }
    }

    /// As many blocks of `threads` as it takes to give every one of `items` a thread.
    pub fn covering(items: usize, threads: u32) -> Self {
        Self::new(items.div_ceil(threads as usize), threads)
    }

    /// With dynamic shared memory.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes as u32, ..self }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A pointer.
    Ptr(DevicePtr),
    /// `u32`.
    U32(u32),
    /// A size, `int` in kernels; a launch with one beyond 2³¹ − 1 is refused.
    Size(usize),
    /// `u64`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl From<DevicePtr> for Arg {
    fn from(value: DevicePtr) -> Self {
        Arg::Ptr(value)
    }
}

impl From<u32> for Arg {
    fn from(value: u32) -> Self {
        Arg::U32(value)
    }
}

impl From<f32> for Arg {
    fn from(value: f32) -> Self {
        Arg::F32(value)
    }
}

impl From<usize> for Arg {
    fn from(value: usize) -> Self {
        Arg::Size(value)
    }
}

/// A factor of a [`Product`], row-major and contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its first element.
    pub address: DevicePtr,
    /// Whether it is stored transposed.
    pub transposed: bool,
}

impl Operand {
    /// A matrix stored as it is used.
    pub fn plain(address: DevicePtr) -> Self {
        Self { address, transposed: false }
    }

    /// A matrix of which the transpose is used.
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
    /// The result.
    pub c: DevicePtr,
    /// Format of both factors.
    pub input: DType,
    /// Format of the result.
    pub output: DType,
    /// Whether the product is added to what C holds.
    pub accumulate: bool,
}

/// What kernels adapt to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The name that the driver gives, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub processors: usize,
    /// Most shared memory that a block may ask for, in bytes.
    pub shared_per_block: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_processor: usize,
    /// Bytes of the second-level cache.
    pub l2_bytes: usize,
    /// Bytes of memory.
    pub memory_bytes: usize,
}

impl Properties {
    /// What stands for an architecture on a machine without a GPU; sizes are the least of its cards.
    pub fn of_architecture((major, minor): (u32, u32)) -> Self {
        let kib = |n: usize| n * 1024;
        let (shared_per_block, shared_per_processor) = match (major, minor) {
            (8, 0) => (kib(163), kib(164)),
            (8, _) | (12, _) => (kib(99), kib(100)),
            _ => (kib(227), kib(228)),
        };
        Self {
            name: format!("sm_{major}{minor}"),
            capability: (major, minor),
            processors: 108,
            shared_per_block,
            shared_per_processor,
            l2_bytes: kib(40 * 1024),
            memory_bytes: 24 << 30,
        }
    }

    /// The compiler's name of the architecture. Hopper's own instructions need the `a`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}

/// Where ops put their work. Everything runs in the order in which it was asked for.
pub trait Queue {
    /// The GPU.
    fn properties(&self) -> &Properties;
    /// Launches a kernel.
    ///
    /// # Errors
    /// When the driver refuses.
    fn launch(&self, kernel: Kernel, grid: Grid, args: &[Arg]) -> Result<()>;
    /// Multiplies matrices.
    ///
    /// # Errors
    /// When the library refuses.
    fn product(&self, product: &Product) -> Result<()>;
    /// Sets bytes.
    ///
    /// # Errors
    /// When the driver refuses.
    fn fill(&self, address: DevicePtr, byte: u8, bytes: usize) -> Result<()>;
    /// Copies bytes between places that do not overlap.
    ///
    /// # Errors
    /// When the driver refuses.
    fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;
    /// Replaces tensors of f32, given as addresses and lengths, by their sums over ranks, all of them in one group. A
    /// rank that is alone keeps its values.
    ///
    /// # Errors
    /// When a rank is lost, or NCCL refuses.
    fn all_reduce_sum(&self, tensors: &[(DevicePtr, usize)]) -> Result<()>;
    /// Gives every rank the `bytes` at `from` of all ranks: at `to`, rank after rank. A rank that is alone copies its own.
    ///
    /// # Errors
    /// When the library refuses, or a rank is lost.
    fn all_gather(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<()>;
}

/// A product without its addresses: what an algorithm is chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProductShape {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// Whether A is stored transposed.
    pub a_transposed: bool,
    /// Whether B is stored transposed.
    pub b_transposed: bool,
    /// Format of both factors.
    pub input: DType,
    /// Format of the result.
    pub output: DType,
    /// Whether the product is added to what C holds.
    pub accumulate: bool,
}

impl Product {
    /// The product without its addresses.
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
        }
    }
}

/// The kernel of a product for shapes that the library has no algorithm for, and its launch.
pub(super) fn plain_product(product: &Product) -> (Kernel, Grid, [Arg; 6]) {
    const SIDE: usize = 32;
    let kernel = Kernel::new("product", "product")
        .with_type("IN", product.input)
        .with_type("OUT", product.output)
        .with("AT", product.a.transposed)
        .with("BT", product.b.transposed)
        .with("ADD", product.accumulate);
    let blocks = [product.n.div_ceil(SIDE) as u32, product.m.div_ceil(SIDE) as u32, 1];
    let sizes = [product.m.into(), product.n.into(), product.k.into()];
    let [m, n, k] = sizes;
    let args = [product.a.address.into(), product.b.address.into(), product.c.into(), m, n, k];
    (kernel, Grid { blocks, threads: 256, shared: 0 }, args)
}

/// Keeps what was asked for and runs nothing.
#[derive(Debug)]
pub struct Collector {
    properties: Properties,
    asked: RefCell<Asked>,
}

/// What programs ask of a GPU.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Kernels.
    pub kernels: BTreeSet<Kernel>,
    /// Products.
    pub products: BTreeSet<ProductShape>,
}

impl Collector {
    /// A collector that stands for a GPU.
    pub fn new(properties: Properties) -> Self {
        Self { properties, asked: RefCell::default() }
    }

    /// What was asked for.
    pub fn into_asked(self) -> Asked {
        self.asked.into_inner()
    }
}

impl Queue for Collector {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn launch(&self, kernel: Kernel, grid: Grid, _args: &[Arg]) -> Result<()> {
        debug_assert!(
            grid.shared as usize <= self.properties.shared_per_block,
            "{kernel:?} asks for {grid:?}"
        );
        self.asked.borrow_mut().kernels.insert(kernel);
        Ok(())
    }

    fn product(&self, product: &Product) -> Result<()> {
        let mut asked = self.asked.borrow_mut();
        asked.products.insert(product.shape());
        // It may turn out that the library cannot: then this must be there.
        asked.kernels.insert(plain_product(product).0);
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
