//! Flash attention on a GPU: how the work is cut, and where its kernels are launched.

use super::{Attention, Mask};
use crate::device::DType;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::error::{Error, Result};
use crate::ir::GpuNode;

/// Threads of a block, in all of these kernels.
const THREADS: u32 = 128;
/// Warps of a block.
const WARPS: usize = 4;
/// The widest heads that kernels hold.
const WIDEST: usize = 256;
/// Blocks in y and z that a grid may have.
const MOST_BLOCKS: usize = 65_535;

/// Which kernels run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    /// bf16 on tensor cores, for the widths of heads that models have.
    TensorCores,
    /// fp32 multiply-adds, for any other width or format.
    Fp32,
}

/// How a pass on tensor cores is cut.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Rows of a warp, queries or keys.
    rows: usize,
    /// Rows of the other kind that are copied to shared memory at once.
    tile: usize,
    /// Those that a warp handles at once.
    step: usize,
    /// 16-column pieces of a warp's operands that stay in registers.
    kept: usize,
    /// Blocks of a multiprocessor that registers shall leave room for.
    blocks: usize,
}

/// A square of scores that the fp32 kernels hold.
#[derive(Clone, Copy, Debug)]
struct Square {
    rows: usize,
    columns: usize,
}

impl Square {
    /// Bytes of shared memory for rows of heads (each padded) and for squares of scores.
    fn shared(self, dim: usize, rows: usize, squares: usize) -> usize {
        4 * (rows * (dim.next_multiple_of(32) + 4) + squares * self.rows * (self.columns + 8))
    }
}

/// What kernels divide by `n` with: 2³²/n + 1, or 0 for 1.
fn reciprocal(n: usize) -> Arg {
    Arg::U32(if n <= 1 { 0 } else { ((1u64 << 32) / n as u64 + 1) as u32 })
}

/// An attention op about to be launched.
struct Launch<'a> {
    attention: &'a Attention,
    cx: &'a GpuNode<'a>,
    dtype: DType,
    batch: usize,
    path: Path,
    /// Spans, sequences and step; zero where the op has none.
    extras: [DevicePtr; 3],
}

impl<'a> Launch<'a> {
    /// `first` is the first input after the tensors.
    fn new(attention: &'a Attention, cx: &'a GpuNode<'a>, first: usize) -> Result<Self> {
        let packed = cx.input_spec(0);
        let dim = attention.heads.dim;
        if dim > WIDEST {
            return Err(Error::failed(format!(
                "flash attention on a GPU takes heads up to {WIDEST} wide, not {dim}; engine.attention = \"unfused\" takes any"
            )));
        }
        let tensor_cores = packed.dtype == DType::Bf16 && matches!(dim, 32 | 64 | 96 | 128);
        let mut rest = cx.inputs[first..].iter().copied();
        let mut next = |there: bool| if there { rest.next().unwrap_or_default() } else { 0 };
        let dropout = attention.dropout.is_some();
        Ok(Self {
            attention,
            cx,
            dtype: packed.dtype,
            batch: packed.shape[0] / attention.seq_len,
            path: if tensor_cores { Path::TensorCores } else { Path::Fp32 },
            extras: [next(attention.mask == Mask::Spans), next(dropout), next(dropout)],
        })
    }

    /// An entry, with the definitions that all have.
    fn kernel(&self, file: &'static str, entry: &'static str) -> Kernel {
        let kernel = Kernel::new(file, entry)
            .with("HEAD_DIM", self.attention.heads.dim)
            .with("CAUSAL", u8::from(self.attention.mask == Mask::Causal))
            .with("DROPOUT", u8::from(self.attention.dropout.is_some()));
        if self.path == Path::Fp32 { kernel.with_type("T", self.dtype) } else { kernel }
    }

    /// Launches one block per sequence, head and tile of `rows` rows: `tensors`, the further inputs, `outputs`, sizes
    /// and scalars.
    fn launch(
        &self,
        kernel: Kernel,
        (heads, rows, shared): (usize, usize, usize),
        tensors: &[DevicePtr],
        outputs: &[DevicePtr],
    ) -> Result<()> {
        let Attention { heads: all, seq_len, dropout, .. } = *self.attention;
        if self.batch == 0 {
            return Ok(());
        }
        let tiles = seq_len.div_ceil(rows);
        let section = self.section(heads * tiles).max((self.batch * tiles).div_ceil(MOST_BLOCKS / 2));
        let sections = self.batch.div_ceil(section);
        let grid = Grid {
            blocks: [heads, self.batch.div_ceil(sections), tiles * sections].map(|n| n as u32),
            threads: THREADS,
            shared: shared as u32,
        };
        let pointers = tensors.iter().chain(&self.extras).chain(outputs);
        let mut args: Vec<Arg> = pointers.map(|&p| p.into()).collect();
        args.extend([self.batch, all.kv, all.group(), seq_len].map(Arg::from));
        args.extend([tiles, all.group()].map(reciprocal));
        if self.path == Path::TensorCores {
            args.push(reciprocal(self.cx.queue.properties().sm_count));
        }
        args.push(Arg::F32(all.score_scale() as f32));
        let nothing = [Arg::U32(0), Arg::U32(0), Arg::U32(0), Arg::F32(1.0)];
        args.extend(dropout.map_or(nothing, |site| site.drops().args()));
        self.cx.queue.launch(kernel, grid, &args)
    }

    /// Sequences of a section (see kernels/attention.cuh): several rounds of blocks on all multiprocessors, as long as
    /// keys and values fit half of the second-level cache.
    fn section(&self, blocks_of_sequence: usize) -> usize {
        const BLOCKS: usize = 16;
        let properties = self.cx.queue.properties();
        let heads = self.attention.heads;
        let bytes = 2 * heads.kv * heads.dim * self.attention.seq_len * self.dtype.size();
        let rounds = (BLOCKS * properties.sm_count).div_ceil(blocks_of_sequence);
        rounds.min(properties.l2_bytes / 2 / bytes).clamp(1, self.batch)
    }
}

/// Puts [`FlashAttention`](super::FlashAttention) into the queue.
pub(super) fn forward(attention: &Attention, cx: &GpuNode<'_>) -> Result<()> {
    /// As in kernels/flash_attention.cu.
    const QUERIES: usize = 128;
    const KEYS: usize = 64;
    let launch = Launch::new(attention, cx, 1)?;
    let (heads, dim) = (attention.heads.query, attention.heads.dim);
    let (kernel, rows, shared) = match launch.path {
        Path::TensorCores => {
            let (dropout, plain) = (attention.dropout.is_some(), launch.is_plain());
            let step = if dropout && dim > 32 { 16 } else { 32 };
            let (kept, blocks) = match dim {
                32 => (usize::from(!dropout), 4),
                64 => (usize::from(plain), 3),
                96 => (3, 2),
                _ => (0, 2),
            };
            let kernel = launch.kernel("flash_attention", "flash_attention");
            let kernel = kernel.with("STEP", step).with("KEPT", kept).with("BLOCKS", blocks);
            (kernel, QUERIES, (QUERIES + 4 * KEYS) * 2 * dim)
        }
        Path::Fp32 => {
            let square =
                if dim <= 128 { Square { rows: 64, columns: 32 } } else { Square { rows: 32, columns: 16 } };
            let kernel = launch.kernel("flash_attention_fp32", "flash_attention_fp32");
            let kernel = kernel.with("ROWS", square.rows).with("COLUMNS", square.columns);
            (kernel, square.rows, square.shared(dim, square.rows + 2 * square.columns, 1))
        }
    };
    launch.launch(kernel, (heads, rows, shared), &[cx.input(0)], &[cx.output(0), cx.output(1)])
}

/// Puts [`FlashAttentionGrad`](super::FlashAttentionGrad) into the queue: the pass over queries, which leaves D, then
/// the one over keys.
pub(super) fn backward(attention: &Attention, cx: &GpuNode<'_>) -> Result<()> {
    let launch = Launch::new(attention, cx, 4)?;
    let heads = attention.heads;
    let [packed, o, lse, d_o] = [0, 1, 2, 3].map(|i| cx.input(i));
    let (d_packed, delta) = (cx.output(0), cx.output(1));
    let [queries, keys] = match launch.path {
        Path::TensorCores => launch.grad_on_tensor_cores(),
        Path::Fp32 => launch.grad_in_fp32(),
    };
    let of_queries = (heads.query, queries.rows, queries.shared);
    launch.launch(queries.kernel, of_queries, &[packed, o, lse, d_o], &[d_packed, delta])?;
    let of_keys = (heads.kv, keys.rows, keys.shared);
    launch.launch(keys.kernel, of_keys, &[packed, lse, d_o, delta], &[d_packed])
}

/// A kernel of the backward, the rows of its blocks and the bytes of their shared memory.
struct Cut {
    kernel: Kernel,
    rows: usize,
    shared: usize,
}

impl Launch<'_> {
    /// Whether neither spans nor dropout need registers.
    fn is_plain(&self) -> bool {
        self.attention.mask == Mask::Causal && self.attention.dropout.is_none()
    }

    /// The passes over queries and over keys: steps, and what is kept, as large as registers allow on every
    /// architecture.
    fn grad_on_tensor_cores(&self) -> [Cut; 2] {
        let dim = self.attention.heads.dim;
        let (plain, dropout) = (self.is_plain(), self.attention.dropout.is_some());
        // The compiler needs more registers for the consumer cards of the last generation.
        let roomy = self.cx.queue.properties().capability.0 < 12;
        let step = |wide: bool| if wide { 32 } else { 16 };
        let kept = usize::from(plain);
        let pass = |rows, tile, step, kept, blocks| Pass { rows, tile, step, kept, blocks };
        let queries = match dim {
            32 => pass(32, 64, step(plain), 2, 3),
            64 | 96 => pass(32, 64, step(plain), 1, 2),
            _ if dropout => pass(16, 32, 32, 0, 2),
            _ => pass(32, 32, 16, 0, 2),
        };
        let keys = match dim {
            32 => pass(32, 64, 16, kept, if dropout && self.attention.mask == Mask::Spans { 2 } else { 3 }),
            64 => pass(32, 64, step(plain && roomy), 0, 2),
            96 => pass(16, 64, step(plain), kept, 2),
            _ => pass(16, 64, step(plain && roomy), 0, 2),
        };
        let cut = |entry, pass: Pass, statistics: usize| {
            let kernel = self.kernel("flash_attention_grad", entry);
            let kernel = kernel.with("Q_ROWS", queries.rows).with("Q_TILE", queries.tile);
            let kernel = kernel.with("Q_STEP", queries.step).with("Q_KEPT", queries.kept);
            let kernel = kernel.with("Q_BLOCKS", queries.blocks).with("K_ROWS", keys.rows);
            let kernel = kernel.with("K_TILE", keys.tile).with("K_STEP", keys.step);
            let kernel = kernel.with("K_KEPT", keys.kept).with("K_BLOCKS", keys.blocks);
            let rows = WARPS * pass.rows;
            // Two tensors of the block's own rows, and two stages of two tensors of others.
            Cut { kernel, rows, shared: (2 * rows + 4 * pass.tile) * 2 * dim + statistics }
        };
        // A stage of queries has their lse and D as well.
        let statistics = 2 * 2 * keys.tile * 4;
        [cut("flash_attention_grad_queries", queries, 0), cut("flash_attention_grad_keys", keys, statistics)]
    }

    /// The passes over queries and over keys: squares as large as shared memory allows on every architecture.
    fn grad_in_fp32(&self) -> [Cut; 2] {
        let dim = self.attention.heads.dim;
        let square = match dim {
            ..=64 => Square { rows: 64, columns: 32 },
            65..=128 => Square { rows: 32, columns: 32 },
            _ => Square { rows: 16, columns: 16 },
        };
        let cut = |entry, squares| {
            let kernel = self.kernel("flash_attention_grad_fp32", entry);
            let kernel = kernel.with("ROWS", square.rows).with("COLUMNS", square.columns);
            let shared = square.shared(dim, 2 * square.rows + 2 * square.columns, squares);
            Cut { kernel, rows: square.rows, shared }
        };
        [cut("flash_attention_grad_queries_fp32", 1), cut("flash_attention_grad_keys_fp32", 2)]
    }
}
