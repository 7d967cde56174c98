//! Tile sizes of flash attention's passes on tensor cores, by architecture, head width, mask, dropout and
//! score cap.
//!
//! Larger steps and more operands in registers mean fewer accesses to shared memory. The registers of a
//! thread limit both. No row spills registers on any of the six architectures (`xrun ops compile`;
//! results/measured/cpu-2026-11-22/registers.csv). A row whose comment names no other measurement has only
//! this one behind it: its values are the largest that fit, not the fastest of several that were timed.

use super::{Attention, Mask};
use crate::device::gpu::{Kernel, Properties};

/// The tile sizes of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Rows (queries or keys) per warp, a multiple of 16.
    pub rows: usize,
    /// Rows of the other kind that are copied to shared memory at once.
    pub tile: usize,
    /// Rows of the other kind that a warp multiplies at once, a divisor of `tile`.
    pub step: usize,
    /// 16-column pieces of a warp's own operands that stay in registers.
    pub kept: usize,
    /// Blocks per SM for which the registers must suffice (`__launch_bounds__`).
    pub blocks: usize,
}

impl Pass {
    /// Defines the pass for a kernel under these names for rows, tile, step, kept pieces and blocks.
    pub fn define(self, kernel: Kernel, names: [&'static str; 5]) -> Kernel {
        let values = [self.rows, self.tile, self.step, self.kept, self.blocks];
        names.into_iter().zip(values).fold(kernel, |kernel, (name, value)| kernel.with(name, value))
    }
}

/// The step of rows at which documents may begin ([`document_step`](super::document_step)). No forward kernel
/// takes more queries at once in one warp or warpgroup, nor more keys in one tile.
pub const DOCUMENT_STEP: usize = 64;

/// A row of a table: its conditions and its tile sizes. `None` matches every value. The first row that
/// applies counts.
#[derive(Clone, Copy, Debug)]
struct Row {
    head_dim: usize,
    mask: Option<Mask>,
    dropout: Option<bool>,
    /// True for compute capabilities below 12.0: data-center cards, and consumer cards up to Ada. From 12.0
    /// on (consumer Blackwell), the compiler needs more registers for the same code.
    before_12: Option<bool>,
    pass: Pass,
}

const CAUSAL: Option<Mask> = Some(Mask::Causal);
const SPANS: Option<Mask> = Some(Mask::Spans);
const BRANCHES: Option<Mask> = Some(Mask::Branches);
const ANY_MASK: Option<Mask> = None;
const PLAIN: Option<bool> = Some(false);
const DROPOUT: Option<bool> = Some(true);
const ANY_DROPOUT: Option<bool> = None;

/// Creates a row for every compute capability; `cut` is [rows, tile, step, kept, blocks].
const fn row(head_dim: usize, mask: Option<Mask>, dropout: Option<bool>, cut: [usize; 5]) -> Row {
    let [rows, tile, step, kept, blocks] = cut;
    Row { head_dim, mask, dropout, before_12: None, pass: Pass { rows, tile, step, kept, blocks } }
}

/// Restricts a row to compute capabilities below 12.0, or to all others.
const fn only(before_12: bool, row: Row) -> Row {
    Row { before_12: Some(before_12), ..row }
}

/// The forward pass; rows are queries.
const FORWARD: [Row; 11] = [
    // Not measured. Gaps leave no registers for queries.
    row(32, BRANCHES, PLAIN, [32, 64, 32, 0, 4]),
    // H200, causal, no dropout, 24 heads, 8192 rows of seq_len 256: 0.031 ms per call, 105 TFLOP/s, 39 % of
    // the budget (results/measured/nvidia-h200-2026-11-21/ops-dim768.txt). Not measured with spans.
    row(32, ANY_MASK, PLAIN, [32, 64, 32, 1, 4]),
    // Not measured alone.
    row(32, ANY_MASK, DROPOUT, [32, 64, 32, 0, 4]),
    // Not measured alone; the whole step of dim768 with 12 heads of 64 is in docs/gpu-notes.md.
    row(64, CAUSAL, PLAIN, [32, 64, 32, 1, 3]),
    // Not measured.
    row(64, SPANS, PLAIN, [32, 64, 32, 0, 3]),
    row(64, ANY_MASK, DROPOUT, [32, 64, 16, 0, 3]),
    row(96, ANY_MASK, PLAIN, [32, 64, 32, 3, 2]),
    row(96, ANY_MASK, DROPOUT, [32, 64, 16, 3, 2]),
    // Not measured alone; the whole step of dim1024 with 8 heads of 128 is in docs/gpu-notes.md. Outputs of
    // 128 columns leave no registers for queries.
    row(128, ANY_MASK, PLAIN, [32, 64, 32, 0, 2]),
    // Not measured.
    row(128, ANY_MASK, DROPOUT, [32, 64, 16, 0, 2]),
    // H200, causal, no dropout, batch,seq_len,heads,kv_heads 16,2048,6,6: 0.618 ms per call. Outputs of 192
    // columns leave registers for one tile of 16 queries, and shared memory for tiles of 32 keys.
    row(192, ANY_MASK, ANY_DROPOUT, [16, 32, 32, 0, 2]),
];

/// The backward pass over queries, which computes dQ; rows are queries. Measured together with the pass over
/// keys.
const GRAD_QUERIES: [Row; 9] = [
    // H200, causal, no dropout, 24 heads, 8192 rows of seq_len 256: 0.083 ms per call for both passes, 97
    // TFLOP/s, 29 % of the budget (results/measured/nvidia-h200-2026-11-21/ops-dim768.txt).
    row(32, CAUSAL, PLAIN, [32, 64, 32, 2, 3]),
    // Not measured alone.
    row(32, ANY_MASK, ANY_DROPOUT, [32, 64, 16, 2, 3]),
    row(64, CAUSAL, PLAIN, [32, 64, 32, 1, 2]),
    // Not measured.
    row(64, ANY_MASK, ANY_DROPOUT, [32, 64, 16, 1, 2]),
    row(96, CAUSAL, PLAIN, [32, 64, 32, 1, 2]),
    row(96, ANY_MASK, ANY_DROPOUT, [32, 64, 16, 1, 2]),
    // Not measured alone.
    row(128, ANY_MASK, PLAIN, [32, 32, 16, 0, 2]),
    // Not measured. 16 rows per warp leave registers for a step of 32.
    row(128, ANY_MASK, DROPOUT, [16, 32, 32, 0, 2]),
    // H200, causal, no dropout, batch,seq_len,heads,kv_heads 16,2048,6,6: 2.184 ms per call for both passes.
    row(192, ANY_MASK, ANY_DROPOUT, [16, 32, 32, 0, 2]),
];

/// The backward pass over keys, which computes dK and dV; rows are keys.
const GRAD_KEYS: [Row; 11] = [
    // H200: measured with the pass over queries, above.
    row(32, CAUSAL, PLAIN, [32, 64, 16, 1, 3]),
    // Not measured alone.
    row(32, SPANS, DROPOUT, [32, 64, 16, 0, 2]),
    row(32, ANY_MASK, ANY_DROPOUT, [32, 64, 16, 0, 3]),
    only(true, row(64, CAUSAL, PLAIN, [32, 64, 32, 0, 2])),
    // Not measured.
    row(64, ANY_MASK, ANY_DROPOUT, [32, 64, 16, 0, 2]),
    row(96, CAUSAL, PLAIN, [16, 64, 32, 1, 2]),
    row(96, ANY_MASK, ANY_DROPOUT, [16, 64, 16, 0, 2]),
    // Not measured alone.
    only(true, row(128, CAUSAL, PLAIN, [16, 64, 32, 0, 2])),
    // Not measured.
    row(128, ANY_MASK, ANY_DROPOUT, [16, 64, 16, 0, 2]),
    // H200: measured with the pass over queries, above. Two blocks share the keys of a head,
    // [`key_blocks_per_head`].
    only(true, row(192, ANY_MASK, ANY_DROPOUT, [16, 32, 32, 0, 2])),
    // Not measured.
    row(192, ANY_MASK, ANY_DROPOUT, [16, 32, 16, 0, 2]),
];

/// Returns the number of blocks that the backward pass over keys has for a tile of keys of a head: two for
/// heads that are so wide that the sums of dK and of dV do not fit in the registers of one.
pub const fn key_blocks_per_head(head_dim: usize) -> usize {
    if head_dim > 128 { 2 } else { 1 }
}

/// Replacements for rows of [`GRAD_QUERIES`] if scores have a cap, because its slopes take registers. All
/// other rows leave enough. Not measured.
const CAPPED_GRAD_QUERIES: [Row; 2] =
    [row(32, CAUSAL, PLAIN, [32, 64, 16, 2, 3]), row(96, CAUSAL, PLAIN, [32, 64, 16, 1, 2])];

/// Replacements for rows of [`GRAD_KEYS`] if scores have a cap. Not measured.
const CAPPED_GRAD_KEYS: [Row; 2] = [
    row(32, CAUSAL, DROPOUT, [32, 64, 16, 0, 2]),
    only(false, row(64, ANY_MASK, DROPOUT, [16, 64, 16, 0, 2])),
];

/// The tile sizes of the forward pass with warpgroup products (`kernels/flash_attention_wgmma.cu`), on
/// sm_90a.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warpgroups {
    /// Warpgroups that multiply, with [`Warpgroups::ROWS`] queries each. One more warpgroup copies.
    pub consumers: usize,
    /// Keys per tile: 64, 96 or 128.
    pub keys: usize,
    /// Tiles of keys, and of values, in flight.
    pub stages: usize,
    /// True if queries stay in registers.
    pub kept: bool,
}

impl Warpgroups {
    /// Queries per warpgroup: the rows of one product.
    pub const ROWS: usize = 64;
    const THREADS: usize = 128;
    /// Columns of a panel; shared memory holds heads in panels.
    const PANEL: usize = 64;

    /// Returns the number of queries per block.
    pub const fn queries(self) -> usize {
        self.consumers * Self::ROWS
    }

    /// Returns the number of threads per block.
    pub const fn threads(self) -> u32 {
        ((self.consumers + 1) * Self::THREADS) as u32
    }

    /// Returns the bytes of shared memory per block: queries and outputs of every consumer, the rings of keys
    /// and values, zeros for the columns of outputs behind the values, the tiles of two pieces of work, and
    /// barriers.
    pub const fn shared(self, attention: &Attention) -> usize {
        let Attention { heads, value_dim, .. } = *attention;
        let panel = Self::PANEL * 2;
        let row = (heads.dim.div_ceil(Self::PANEL) + value_dim.div_ceil(Self::PANEL)) * panel;
        let zeros = if value_dim < heads.dim { Self::ROWS * panel } else { 0 };
        let rows = self.queries() + self.stages * self.keys;
        rows * row + zeros + 8 * (self.consumers + 1) + 8 * (2 * self.consumers + 4 * self.stages + 4)
    }

    /// Returns the registers of a thread that multiplies and of one that copies. All threads together use
    /// what the block starts with, which is the most that an SM can give each thread, in multiples of eight.
    pub const fn registers(self) -> (usize, usize) {
        match self.consumers {
            2 => (232, 40),
            3 => (152, 56),
            _ => (112, 32),
        }
    }

    /// Defines the tile sizes for the kernel.
    pub fn define(self, kernel: Kernel) -> Kernel {
        let (consumer, producer) = self.registers();
        kernel
            .with("KEYS", self.keys)
            .with("CONSUMERS", self.consumers)
            .with("STAGES", self.stages)
            .with("THREADS", self.threads())
            .with("CONSUMER_REGISTERS", consumer)
            .with("PRODUCER_REGISTERS", producer)
            .with("KEPT", u8::from(self.kept))
    }
}

/// The tile sizes of the one-pass backward with warpgroup products (`kernels/flash_attention_grad_wgmma.cu`),
/// on sm_90a.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OnePass {
    /// Registers per thread of the warpgroup that computes the queries' gradient, and of the two others. All
    /// threads together use what the block starts with.
    pub registers: (usize, usize),
    /// Size of a section in L2 caches. Blocks that follow each other in order work on the heads of one
    /// section, which holds the tensors of those heads and the sums of the queries' gradient.
    pub section: usize,
}

impl OnePass {
    /// Keys per tile. Each of two warpgroups takes 64 of them, the rows of one product.
    pub const KEYS: usize = 128;
    /// Queries per tile.
    pub const QUERIES: usize = 64;
    /// Threads per block.
    pub const THREADS: u32 = 384;
    /// Threads per block of the kernel that runs before: four per query.
    pub const PREPARE_THREADS: u32 = 256;
    /// The longest sequence, because a block lists the tiles of queries in shared memory.
    pub const MAX_SEQ_LEN: usize = 32_768;
    /// Tiles of score gradients in shared memory.
    const SCORES: usize = 2;
    /// The widest values; their gradient stays in registers.
    const MAX_VALUE_DIM: usize = 128;

    /// Returns the number of tiles of queries in shared memory.
    const fn stages(head_dim: usize) -> usize {
        if head_dim > 128 { 2 } else { 3 }
    }

    /// Returns the bytes of shared memory per block, as the kernel lays it out.
    pub const fn shared(attention: &Attention) -> usize {
        let stages = Self::stages(attention.heads.dim);
        // Keys beside values, and queries beside dO.
        let row = (attention.heads.dim.div_ceil(64) + attention.value_dim.div_ceil(64)) * 128;
        let tiles = (Self::KEYS + stages * Self::QUERIES) * row;
        // Tiles of score gradients have keys as rows. There are two numbers per query, and with spans two
        // more.
        let scores = Self::SCORES * Self::KEYS * 2 * Self::QUERIES;
        let spans = matches!(attention.mask, Mask::Spans);
        let numbers = stages * Self::QUERIES * 8 * (1 + spans as usize);
        let list = if spans { Self::MAX_SEQ_LEN / Self::QUERIES * 2 } else { 0 };
        let barriers = 8 * (2 * stages + 2 * Self::SCORES + 1);
        tiles + scores + numbers + barriers + list + 4 * 4
    }

    /// Returns the number of kv heads, over all sequences, whose tiles follow each other in order.
    pub fn section(self, attention: &Attention, properties: &Properties) -> usize {
        let Attention { heads, value_dim, .. } = *attention;
        // Per kv head: queries in bf16 and the fp32 sums of dQ for its group, and keys in bf16; then dO for
        // the group and values, in bf16.
        let row = heads.dim * (heads.group() * (2 + 4) + 2) + value_dim * (heads.group() * 2 + 2);
        let bytes = attention.seq_len * row;
        (self.section * properties.l2_bytes / bytes).max(1)
    }

    /// Defines the tile sizes for the kernels.
    pub fn define(self, kernel: Kernel) -> Kernel {
        kernel
            .with("THREADS", Self::THREADS)
            .with("SUMS_REGISTERS", self.registers.0)
            .with("ROWS_REGISTERS", self.registers.1)
    }
}

/// The backward pass for short rows, one head at a time (`kernels/flash_attention_grad_short.cu`), on sm_90a.
#[derive(Clone, Copy, Debug)]
pub struct ShortRows;

impl ShortRows {
    /// The longest sequence, because the gradient of its queries stays in registers.
    pub const MAX_SEQ_LEN: usize = 256;
    /// Head width. It determines the registers that a product's sum takes.
    pub const HEAD_DIM: usize = 32;
    /// Rows per tile.
    const TILE: usize = 64;
    /// Rows that a warp stores at once.
    pub const STORED_ROWS: usize = 16;
    /// Threads per block: two warpgroups that multiply, and one that copies.
    pub const THREADS: u32 = 384;
    /// Registers of a thread that multiplies and of one that copies. All threads together use what the block
    /// starts with.
    pub const REGISTERS: (usize, usize) = (232, 40);
    /// Threads per warpgroup.
    const GROUP: usize = 128;
    /// Heads in shared memory.
    const STAGES: usize = 2;

    /// Returns the rows of the tiles that hold a sequence. They are copied at once.
    pub const fn rows(seq_len: usize) -> usize {
        seq_len.next_multiple_of(Self::TILE)
    }

    /// Returns the bytes of shared memory per block, as the kernel lays it out.
    pub const fn shared(seq_len: usize) -> usize {
        let head = 5 * Self::rows(seq_len) * Self::HEAD_DIM * 2;
        let numbers = 2 * Self::rows(seq_len) * 4;
        let scores = 2 * 2 * Self::TILE * 2 * Self::TILE;
        let sums = 3 * Self::GROUP * 16 * 4;
        Self::STAGES * (head + numbers) + scores + sums + 3 * 8 * Self::STAGES
    }

    /// Defines the tile sizes for the kernel.
    pub fn define(kernel: Kernel, seq_len: usize) -> Kernel {
        let (product, copy) = Self::REGISTERS;
        kernel
            .with("SEQUENCE_TILES", Self::rows(seq_len) / Self::TILE)
            .with("THREADS", Self::THREADS)
            .with("PRODUCT_REGISTERS", product)
            .with("COPY_REGISTERS", copy)
    }
}

/// Returns true if the backward pass for short rows is the method to use. Measured on an H200 in microseconds
/// per call as a graph, with the two passes of [`backward`] beside it. Rows are
/// batch,seq_len,heads,kv_heads,head_dim:
///
/// | | a head at a time | two passes |
/// |---|---|---|
/// | 32,256,12,12,32 | **23** | 46 |
/// | 32,256,24,24,32 | **40** | 82 |
/// | 32,256,32,32,32 | **52** | 106 |
pub fn short_rows(attention: &Attention, properties: &Properties) -> bool {
    let Attention { heads, seq_len, mask, dropout, .. } = *attention;
    properties.capability == (9, 0)
        && heads.dim == ShortRows::HEAD_DIM
        && heads.kv == heads.query
        && seq_len <= ShortRows::MAX_SEQ_LEN
        && mask == Mask::Causal
        && dropout.is_none()
}

/// Returns true if a GPU may compute the backward of this attention in one pass, in bf16: if the rows are
/// long enough that one pass is faster than two.
pub fn may_make_one_pass(attention: &Attention) -> bool {
    let shortest = match attention.heads.dim {
        64 => 257,
        96 | 128 => 256,
        192 if attention.value_dim <= OnePass::MAX_VALUE_DIM => 256,
        _ => return false,
    };
    (shortest..=OnePass::MAX_SEQ_LEN).contains(&attention.seq_len) && attention.dropout.is_none()
}

/// Returns the tile sizes of the one-pass backward if it is the method to use. Measured on an H200, causal,
/// in microseconds per call including the kernel before it, for sections of one and of three L2 caches, with
/// the two passes of [`backward`] beside them. Rows are batch,seq_len,heads,kv_heads,head_dim:
///
/// | | 1 | 3 | two passes |
/// |---|---|---|---|
/// | 64,128,12,12,64 | 72 | 72 | **67** |
/// | 32,256,14,14,64 | 94 | 96 | **92** |
/// | 20,384,10,5,64 | **64** | 65 | 78 |
/// | 24,512,12,12,64 | **141** | 150 | 155 |
/// | 16,1024,12,12,64 | **251** | 278 | 311 |
/// | 4,4096,12,12,64 | **679** | 684 | 1034 |
/// | 1,16384,12,12,64 | 2394 | **2315** | 3930 |
/// | 32,256,8,8,96 | 77 | **76** | 83 |
/// | 8,2048,8,8,96 | **366** | 368 | 605 |
/// | 32,256,8,4,128 | **80** | 82 | 95 |
/// | 16,1024,8,4,128 | 302 | **286** | 447 |
/// | 8,2048,16,8,128 | 931 | **862** | 1595 |
/// | 1,16384,16,8,128 | 6993 | **5952** | 11751 |
/// | 16,2048,6,6,128 | **660** | 682 | |
/// | 16,2048,6,6,192, values of 128 | **927** | 986 | 2184 |
///
/// Small sections stay in the cache, but their blocks wait for each other's turns. A section of ten took 748
/// and 1113 µs in the last two rows. Heads of 192 columns with parts of dQ of 64 columns and registers (72,
/// 216) took 963 µs. With spans, threads spill two registers at this width. Values of 192 leave no registers
/// for both gradients of the keys.
pub fn one_pass(attention: &Attention, properties: &Properties) -> Option<OnePass> {
    if properties.capability != (9, 0) || !may_make_one_pass(attention) {
        return None;
    }
    let heads = attention.heads;
    Some(match (heads.dim, heads.group()) {
        (64 | 96, _) => OnePass { registers: (104, 200), section: 1 },
        (128, 1) | (192, _) => OnePass { registers: (56, 224), section: 1 },
        _ => OnePass { registers: (56, 224), section: 3 },
    })
}

/// Returns true if tensor-core kernels exist for heads of this width.
pub fn has_tensor_core_kernels(head_dim: usize) -> bool {
    FORWARD.iter().any(|row| row.head_dim == head_dim)
}

/// Returns the tile sizes of the forward pass.
pub fn forward(attention: &Attention, properties: &Properties) -> Pass {
    lookup(&FORWARD, attention, properties)
}

/// Returns the tile sizes of the forward pass with warpgroup products if it is the faster method. Measured on
/// an H200, causal, without dropout, in microseconds per call. Rows are
/// batch,seq_len,heads,kv_heads,head_dim, with the time of [`forward`]'s tile sizes in brackets:
///
/// | | 2 consumers, kept | 3, kept | 3 | 4 |
/// |---|---|---|---|---|
/// | 32,256,14,14,64 (27) | **24** | 26 | | 26 |
/// | 24,512,12,12,64 (47) | 42 | **39** | 43 | 42 |
/// | 1,1024,12,12,64 (23) | **14** | 16 | 16 | 19 |
/// | 16,1024,12,12,64 (94) | 79 | 79 | 80 | **67** |
/// | 4,4096,12,12,64 (320) | 251 | 237 | 229 | **205** |
/// | 1,16384,12,12,64 (1240) | 952 | 836 | | **792** |
/// | 32,256,8,4,128 (28) | **20** | | 23 | |
/// | 1,1024,16,8,128 (34) | **19** | | 22 | |
/// | 16,1024,8,4,128 (114) | 71 | | **69** | |
/// | 8,2048,16,8,128 (401) | 254 | | **249** | |
/// | 1,16384,16,8,128 (2961) | 1932 | | **1697** | |
/// | 8,2048,8,4,96 (165) | 107 | **100** | | |
///
/// Tiles of 128 keys, and warpgroups that take turns at the tensor cores, gained nothing over these. A score
/// cap leaves no registers for queries with heads of 96 columns; this case was not measured.
///
/// Heads of 192 columns leave shared memory for fewer stages. At 16,2048,6,6,192, where [`forward`]'s tile
/// sizes take 618 µs and cuDNN takes 253 µs for values of 128:
///
/// | values | consumers | keys | stages | µs | µs, kept |
/// |---|---|---|---|---|---|
/// | 192 | 2 | 64 | 2 | **303** | |
/// | 128 | 2 | 64 | 3 | 255 | 250 |
/// | 128 | 3 | 64 | 2 | **222** | |
/// | 128 | 2 | 96 | 2 | 260 | |
/// | 128 | 2 | 128 | 1 | 302 | |
pub fn warpgroups(attention: &Attention, batch: usize, properties: &Properties) -> Option<Warpgroups> {
    let Attention { heads, seq_len, dropout, score_cap, .. } = *attention;
    if properties.capability != (9, 0) || dropout.is_some() {
        return None;
    }
    let cut = |consumers, stages, kept| Warpgroups { consumers, keys: 64, stages, kept };
    let small = cut(2, 4, true);
    let (small, large) = match heads.dim {
        64 if seq_len <= 512 => (small, cut(3, 4, true)),
        64 => (small, cut(4, 4, false)),
        96 => (small, cut(3, 4, score_cap.is_none())),
        128 => (small, cut(3, 4, false)),
        192 if attention.value_dim <= 128 => (cut(2, 3, true), cut(3, 2, false)),
        192 => (cut(2, 2, false), cut(2, 2, false)),
        _ => return None,
    };
    // Large pieces of work leave SMs idle if there are few of them.
    let pieces = batch * heads.query * seq_len.div_ceil(large.queries());
    Some(if seq_len <= 256 || pieces < properties.sm_count { small } else { large })
}

/// Returns the tile sizes of the two backward passes, over queries and over keys.
pub fn backward(attention: &Attention, properties: &Properties) -> [Pass; 2] {
    let pass = |capped: &[Row], table: &[Row]| {
        let replaced = capped.iter().find(|row| row.applies(attention, properties));
        match (attention.score_cap, replaced) {
            (Some(_), Some(row)) => row.pass,
            _ => lookup(table, attention, properties),
        }
    };
    [pass(&CAPPED_GRAD_QUERIES, &GRAD_QUERIES), pass(&CAPPED_GRAD_KEYS, &GRAD_KEYS)]
}

/// Returns the tile sizes of the row that applies. Panics for a head width without kernels, which is a
/// programming error.
fn lookup(table: &[Row], attention: &Attention, properties: &Properties) -> Pass {
    let row = table.iter().find(|row| row.applies(attention, properties));
    row.unwrap_or_else(|| panic!("no tensor-core kernels for {attention:?}")).pass
}

/// Returns the mask whose rows apply to this one too: branches are spans with a gap.
fn coarser(mask: Mask) -> Mask {
    if mask == Mask::Branches { Mask::Spans } else { mask }
}

impl Row {
    fn applies(&self, attention: &Attention, properties: &Properties) -> bool {
        self.head_dim == attention.heads.dim
            && self.mask.is_none_or(|mask| mask == attention.mask || mask == coarser(attention.mask))
            && self.dropout.is_none_or(|dropout| dropout == attention.dropout.is_some())
            && self.before_12.is_none_or(|before| before == (properties.capability.0 < 12))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::Heads;
    use crate::ops::dropout::Site;

    /// Head widths with kernels for warpgroups, and the elements of values that are read.
    const WIDTHS: [(usize, usize); 7] =
        [(64, 64), (96, 96), (128, 128), (128, 64), (192, 192), (192, 128), (192, 64)];

    #[test]
    fn cuts_into_warpgroups_fit_an_sm() {
        let hopper = Properties::for_architecture((9, 0));
        for ((dim, value_dim), seq_len) in WIDTHS.into_iter().flat_map(|w| [1, 512, 4096].map(|t| (w, t))) {
            let heads = Heads { query: 1, kv: 1, dim };
            let attention = Attention { value_dim, ..Attention::causal(heads, seq_len) };
            let cut = warpgroups(&attention, 16, &hopper).unwrap();
            let (consumer, producer) = cut.registers();
            assert!(cut.shared(&attention) <= hopper.shared_per_block, "{cut:?}");
            // The block starts with as many registers per thread as the SM has, in multiples of eight.
            let started = 65_536 / cut.threads() as usize / 8 * 8;
            assert!(cut.consumers * consumer + producer <= (cut.consumers + 1) * started, "{cut:?}");
            assert!([consumer, producer].iter().all(|n| n % 8 == 0), "{cut:?}");
            for other in [(8, 0), (10, 0), (12, 0)] {
                assert_eq!(warpgroups(&attention, 16, &Properties::for_architecture(other)), None);
            }
        }
    }

    #[test]
    fn documents_begin_at_tiles_of_every_forward_pass() {
        for row in &FORWARD {
            assert!(
                [row.pass.rows, row.pass.tile].iter().all(|n| DOCUMENT_STEP.is_multiple_of(*n)),
                "{row:?}"
            );
        }
        let properties = Properties::for_architecture((9, 0));
        for ((dim, value_dim), seq_len) in WIDTHS.into_iter().flat_map(|w| [1, 512, 4096].map(|t| (w, t))) {
            let heads = Heads { query: 1, kv: 1, dim };
            let attention = Attention { value_dim, ..Attention::causal(heads, seq_len) };
            for batch in [1, 64, 1024] {
                let cut = warpgroups(&attention, batch, &properties).unwrap();
                let tiles = [Warpgroups::ROWS, cut.keys];
                assert!(tiles.iter().all(|n| DOCUMENT_STEP.is_multiple_of(*n)), "{cut:?}");
            }
        }
    }

    #[test]
    fn one_pass_fits_an_sm() {
        let hopper = Properties::for_architecture((9, 0));
        for ((dim, value_dim), mask) in
            WIDTHS.into_iter().flat_map(|w| [Mask::Causal, Mask::Spans].map(|m| (w, m)))
        {
            let heads = Heads { query: 1, kv: 1, dim };
            let attention = Attention { mask, value_dim, ..Attention::causal(heads, 512) };
            if value_dim == 192 {
                assert_eq!(one_pass(&attention, &hopper), None);
                continue;
            }
            let cut = one_pass(&attention, &hopper).unwrap();
            assert!(OnePass::shared(&attention) <= hopper.shared_per_block, "{dim} {mask:?}");
            let started = 65_536 / OnePass::THREADS as usize / 8 * 8;
            assert_eq!(cut.registers.0 + 2 * cut.registers.1, 3 * started);
            for other in [(8, 0), (10, 0), (12, 0)] {
                assert_eq!(one_pass(&attention, &Properties::for_architecture(other)), None);
            }
        }
        let long = Attention::causal(Heads { query: 1, kv: 1, dim: 64 }, 32_769);
        assert_eq!(one_pass(&long, &hopper), None);
    }

    #[test]
    fn short_rows_fit_an_sm() {
        let hopper = Properties::for_architecture((9, 0));
        let heads = Heads { query: 2, kv: 2, dim: 32 };
        let short = Attention::causal(heads, 256);
        assert!(short_rows(&short, &hopper));
        assert!(ShortRows::shared(short.seq_len) <= hopper.shared_per_block);
        let (product, copy) = ShortRows::REGISTERS;
        assert_eq!(2 * product + copy, 3 * (65_536 / ShortRows::THREADS as usize / 8 * 8));
        let others = [
            Attention { seq_len: 257, ..short },
            Attention { mask: Mask::Spans, ..short },
            Attention { dropout: Some(Site { p: 0.1, seed: 0, site: 0 }), ..short },
            Attention { heads: Heads { kv: 1, ..heads }, ..short },
            Attention { heads: Heads { dim: 64, ..heads }, value_dim: 64, ..short },
        ];
        assert!(others.iter().all(|other| !short_rows(other, &hopper)));
        assert!(
            [(8, 0), (10, 0), (12, 0)]
                .iter()
                .all(|&other| !short_rows(&short, &Properties::for_architecture(other)))
        );
    }

    #[test]
    fn every_case_has_a_row_in_every_table_and_no_row_is_hidden() {
        let tables = [&FORWARD[..], &GRAD_QUERIES, &GRAD_KEYS];
        let mut used = tables.map(|table| vec![false; table.len()]);
        for (dim, mask, dropout, major) in [32, 64, 96, 128, 192].into_iter().flat_map(|dim| {
            [Mask::Causal, Mask::Spans, Mask::Branches].into_iter().flat_map(move |mask| {
                [false, true]
                    .into_iter()
                    .flat_map(move |dropout| [8, 9, 10, 12].map(|major| (dim, mask, dropout, major)))
            })
        }) {
            let dropout = dropout.then_some(Site { p: 0.1, seed: 0, site: 0 });
            let heads = Heads { query: 1, kv: 1, dim };
            let attention = Attention { mask, dropout, ..Attention::causal(heads, 64) };
            let properties = Properties::for_architecture((major, 0));
            for (table, used) in tables.iter().zip(&mut used) {
                let row = table.iter().position(|row| row.applies(&attention, &properties));
                let row = row.unwrap_or_else(|| panic!("{attention:?} has no row"));
                let pass = table[row].pass;
                assert!(pass.rows % 16 == 0 && pass.tile % pass.step == 0, "{pass:?}");
                used[row] = true;
            }
            for table in [&CAPPED_GRAD_QUERIES[..], &CAPPED_GRAD_KEYS] {
                assert!(table.iter().filter(|row| row.applies(&attention, &properties)).count() <= 1);
            }
        }
        assert!(used.iter().flatten().all(|used| *used), "{used:?}");
    }
}
