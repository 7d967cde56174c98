//! Kernels, the grids they are launched with, and their arguments.

/// An address in the memory of a GPU.
pub type DevicePtr = u64;

/// A kernel: a function of a file in `kernels/`, compiled with macro definitions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kernel {
    /// Name of the file without extension.
    pub file: &'static str,
    /// Name of the function, which is `extern "C"`.
    pub entry: &'static str,
    /// Macro definitions. Kernels of one file with equal definitions are compiled together.
    pub defines: Vec<(&'static str, String)>,
    /// True if the kernel may begin before the previous one has ended. It then waits for that kernel itself
    /// (`wait_for_previous` in kernels/common.cuh).
    pub overlaps: bool,
}

impl Kernel {
    /// Creates a kernel without definitions.
    pub fn new(file: &'static str, entry: &'static str) -> Self {
        Self { file, entry, defines: Vec::new(), overlaps: false }
    }

    /// Adds a definition. Number formats are named `f32`, `bf16` and `u32`, never by C++ keywords, because
    /// the compiler's own headers see the definitions too and have templates over a `T`. f64 never reaches a
    /// GPU, because plans reject it.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }

    /// Lets the kernel begin before the previous one has ended, if the GPU supports that.
    #[must_use]
    pub fn overlapping(self) -> Self {
        Self { overlaps: true, ..self }
    }
}

/// The grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Number of blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads per block, in one dimension.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
}

impl Grid {
    /// Creates a one-dimensional grid of blocks without dynamic shared memory.
    pub fn new(blocks: usize, threads: u32) -> Self {
        Self { blocks: [blocks as u32, 1, 1], threads, shared: 0 }
    }

    /// Creates the smallest grid of blocks of `threads` threads with a thread for each of `items`.
    pub fn covering(items: usize, threads: u32) -> Self {
        Self::new(items.div_ceil(threads as usize), threads)
    }

    /// Sets the bytes of dynamic shared memory per block.
    #[must_use]
    pub fn shared(self, bytes: usize) -> Self {
        Self { shared: bytes as u32, ..self }
    }
}

/// A four-dimensional bf16 tensor that a kernel copies in boxes (`kernels/tma.cuh`). Shared memory gets the
/// rows of a box one after the other: rows of 64 bytes in a 64-byte swizzle if a box has 32 columns, else
/// rows of 128 bytes in a 128-byte swizzle. Elements outside the tensor are read as zeros and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element, a multiple of 16.
    pub address: DevicePtr,
    /// Number of elements in each dimension, beginning with the contiguous one.
    pub sizes: [usize; 4],
    /// Elements from one index of the second, third and fourth dimension to the next; multiples of 8.
    pub strides: [usize; 3],
    /// Elements of a box in each dimension: 32 or 64 in the first, at most 256 in the others.
    pub boxes: [usize; 4],
}

/// Largest number of ranks whose addresses a kernel takes.
pub const MAX_RANKS: usize = 8;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A tensor to copy boxes of, `const __grid_constant__ TensorMap` in kernels. The back end encodes it.
    Map(TensorMap),
    /// A pointer.
    Ptr(DevicePtr),
    /// A pointer for each rank, or as many other pointers or numbers; in kernels a `struct` with an array,
    /// passed by value.
    Ranks([DevicePtr; MAX_RANKS]),
    /// `u32`.
    U32(u32),
    /// A size, `int` in kernels. A back end rejects one that does not fit in 31 bits.
    Size(usize),
    /// `u64`.
    U64(u64),
    /// `float`.
    F32(f32),
}

impl Arg {
    /// Returns the size in bytes of the kernel's parameter.
    pub fn size(&self) -> usize {
        match self {
            Arg::Map(_) => 128,
            Arg::Ranks(addresses) => size_of_val(addresses),
            Arg::Ptr(_) | Arg::U64(_) => 8,
            Arg::U32(_) | Arg::Size(_) | Arg::F32(_) => 4,
        }
    }

    /// Returns the bits of the argument in the low bytes; for a map, the address of its tensor; for several
    /// pointers, the first.
    pub fn bits(&self) -> u64 {
        match *self {
            Arg::Map(map) => map.address,
            Arg::Ranks(addresses) => addresses[0],
            Arg::Ptr(value) | Arg::U64(value) => value,
            Arg::U32(value) => u64::from(value),
            Arg::Size(value) => value as u64,
            Arg::F32(value) => u64::from(value.to_bits()),
        }
    }
}

/// Turns values of each type into arguments of one kind.
macro_rules! arguments {
    ($($type:ty => $kind:ident,)+) => {
        $(impl From<$type> for Arg {
            fn from(value: $type) -> Self {
                Arg::$kind(value)
            }
        })+
    };
}

arguments! {
    TensorMap => Map,
    [DevicePtr; MAX_RANKS] => Ranks,
    DevicePtr => Ptr,
    u32 => U32,
    f32 => F32,
    usize => Size,
}
