//! GPU properties that kernels adapt to.

/// GPU properties that kernels adapt to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name given by the driver, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability: (major, minor), such as (9, 0).
    pub capability: (u32, u32),
    /// Number of streaming multiprocessors (SMs).
    pub sm_count: usize,
    /// Largest shared memory of a block, in bytes.
    pub shared_per_block: usize,
    /// Shared memory of an SM, in bytes.
    pub shared_per_sm: usize,
    /// Size of the L2 cache, in bytes.
    pub l2_bytes: usize,
    /// Size of the device memory, in bytes.
    pub memory_bytes: usize,
}

impl Properties {
    /// Returns properties for compiling kernels for an architecture on a machine without such a GPU. Sizes
    /// are the smallest among the GPUs of that architecture.
    pub fn for_architecture((major, minor): (u32, u32)) -> Self {
        let kib = |n: usize| n * 1024;
        let (shared_per_block, shared_per_sm) = match (major, minor) {
            (8, 0) => (kib(163), kib(164)),
            (8, _) | (12, _) => (kib(99), kib(100)),
            _ => (kib(227), kib(228)),
        };
        Self {
            name: format!("sm_{major}{minor}"),
            capability: (major, minor),
            sm_count: 108,
            shared_per_block,
            shared_per_sm,
            l2_bytes: kib(40 * 1024),
            memory_bytes: 24 << 30,
        }
    }

    /// Returns true if the GPU multiplies 8-bit floats: from compute capability 8.9 (Ada) on.
    pub fn multiplies_fp8(&self) -> bool {
        self.capability >= (8, 9)
    }

    /// Returns the compiler's name for the architecture. Instructions that only Hopper has need the suffix
    /// `a`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        let suffix = if (major, minor) == (9, 0) { "a" } else { "" };
        format!("sm_{major}{minor}{suffix}")
    }
}
