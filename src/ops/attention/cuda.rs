//! Flash attention on a GPU: how the work is cut, and where its kernels are launched.

use super::{Attention, Mask};
use crate::device::DType;
use crate::device::cuda::{Arg, DevicePtr, Grid, Kernel};
use crate::error::{Error, Result};
use crate::ir::CudaNode;

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

/// An attention op about to be launched.
struct Launch<'a> {
    attention: &'a Attention,
    cx: &'a CudaNode<'a>,
    dtype: DType,
    batch: usize,
    path: Path,
    /// Spans, sequences and step; zero where the op has none.
    extras: [DevicePtr; 3],
}

impl<'a> Launch<'a> {
    /// `first` is the first input after the tensors.
    fn new(attention: &'a Attention, cx: &'a CudaNode<'a>, first: usize) -> Result<Self> {
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
        let section = self.batch.div_ceil(sections);
        let grid = Grid {
            blocks: [heads, section, tiles * sections].map(|n| n as u32),
            threads: THREADS,
            shared: shared as u32,
        };
        let pointers = tensors.iter().chain(&self.extras).chain(outputs);
        let mut args: Vec<Arg> = pointers.map(|&p| p.into()).collect();
        args.extend([self.batch, all.kv, all.group(), seq_len].map(Arg::from));
        args.extend([tiles, all.group()].map(|n| Arg::U32(reciprocal(n))));
        if self.path == Path::TensorCores {
            let processors = self.cx.queue.properties().processors.max(2) as u64;
            args.push(Arg::U32(((1 << 32) / processors) as u32));
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
        let rounds = (BLOCKS * properties.processors).div_ceil(blocks_of_sequence);
        rounds.min(properties.l2_bytes / 2 / bytes).clamp(1, self.batch)
    }
}

/// Puts [`FlashAttention`](super::FlashAttention) into the queue.
pub(super) fn forward(attention: &Attention, cx: &CudaNode<'_>) -> Result<()> {
    /// As in kernels/flash_attention.cu.
    const QUERIES: usize = 128;
    const KEYS: usize = 64;
    let launch = Launch::new(attention, cx, 1)?;
    let (heads, dim) = (attention.heads.query, attention.heads.dim);
    let (kernel, rows, shared) = match launch.path {
        Path::TensorCores => {
            let dropout = attention.dropout.is_some();
            let (kept, blocks) = match dim {
                32 => (usize::from(!dropout), 4),
                64 => (4, 2),
                96 => (4, 2),
                _ => (0, 2),
            };
            let kernel = launch.kernel("flash_attention", "flash_attention");
            let kernel = kernel.with("STEP", 32).with("KEPT", kept).with("BLOCKS", blocks);
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
pub(super) fn backward(attention: &Attention, cx: &CudaNode<'_>) -> Result<()> {
    let launch = Launch::new(attention, cx, 4)?;
    let heads = attention.heads;
    let [packed, o, lse, d_o] = [0, 1, 2, 3].map(|i| cx.input(i));
    let (d_packed, delta) = (cx.output(0), cx.output(1));
    let cut = match launch.path {
        Path::TensorCores => on_tensor_cores(&launch),
        Path::Fp32 => in_fp32(&launch),
    };
    let [(queries, query_rows, query_shared), (keys, key_rows, key_shared)] = cut;
    let of_queries = (heads.query, query_rows, query_shared);
    launch.launch(queries, of_queries, &[packed, o, lse, d_o], &[d_packed, delta])?;
    launch.launch(keys, (heads.kv, key_rows, key_shared), &[packed, lse, d_o, delta], &[d_packed])
}

/// What `divide` of kernels/attention.cuh multiplies by in place of dividing by `n`: 2³² / n + 1, or 0 for 1.
fn reciprocal(n: usize) -> u32 {
    if n == 1 { 0 } else { ((1u64 << 32) / n as u64 + 1) as u32 }
}

/// Kernels, rows of a block and bytes of its shared memory, of the passes over queries and over keys.
type Cut = [(Kernel, usize, usize); 2];

fn on_tensor_cores(launch: &Launch<'_>) -> Cut {
    let dim = launch.attention.heads.dim;
    let pass = |rows, tile, step, kept, blocks| Pass { rows, tile, step, kept, blocks };
    // The draws of dropout take the registers that would keep operands.
    let dropout = launch.attention.dropout.is_some();
    let (kept, key_step) = if dropout { (0, 16) } else { (2, 32) };
    let (queries, keys) = match dim {
        32 => (pass(32, 64, 32, kept, 3), pass(32, 64, 16, kept, 3)),
        64 => (pass(32, 64, 32, 0, 2), pass(32, 64, key_step, 0, 2)),
        96 => (pass(32, 64, 32, 0, 2), pass(16, 64, 32, 0, 2)),
        _ => (pass(32, 32, 16, 0, 2), pass(16, 64, 32, 0, 2)),
    };
    let kernel = |entry| {
        let kernel = launch.kernel("flash_attention_grad", entry);
        let kernel = kernel.with("Q_ROWS", queries.rows).with("Q_TILE", queries.tile);
        let kernel = kernel.with("Q_STEP", queries.step).with("Q_KEPT", queries.kept);
        let kernel = kernel.with("Q_BLOCKS", queries.blocks).with("K_ROWS", keys.rows);
        let kernel = kernel.with("K_TILE", keys.tile).with("K_STEP", keys.step);
        kernel.with("K_KEPT", keys.kept).with("K_BLOCKS", keys.blocks)
    };
    // Two tensors of the block's own rows, and two stages of two tensors of others.
    let shared = |pass: Pass| (2 * WARPS * pass.rows + 4 * pass.tile) * 2 * dim;
    // A stage of queries has their lse and D as well.
    let statistics = 2 * 2 * keys.tile * 4;
    [
        (kernel("flash_attention_grad_queries"), WARPS * queries.rows, shared(queries)),
        (kernel("flash_attention_grad_keys"), WARPS * keys.rows, shared(keys) + statistics),
    ]
}

fn in_fp32(launch: &Launch<'_>) -> Cut {
    let dim = launch.attention.heads.dim;
    let (rows, columns) = match dim {
        ..=64 => (64, 32),
        65..=128 => (32, 32),
        _ => (16, 16),
    };
    let square = Square { rows, columns };
    let kernel = |entry| {
        let kernel = launch.kernel("flash_attention_grad_fp32", entry);
        kernel.with("ROWS", rows).with("COLUMNS", columns)
    };
    let shared = |squares| square.shared(dim, 2 * rows + 2 * columns, squares);
    [
        (kernel("flash_attention_grad_queries_fp32"), rows, shared(1)),
        (kernel("flash_attention_grad_keys_fp32"), rows, shared(2)),
    ]
}
