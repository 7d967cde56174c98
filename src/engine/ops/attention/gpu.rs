//! Launches the kernels of flash attention on a GPU.

use super::tuning::{self, OnePass, Pass, ShortRows, Warpgroups};
use super::{Attention, Mask};
use crate::device::DType;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, TensorMap};
use crate::error::{Error, Result};
use crate::ir::{GpuNode, Spec};

/// Threads per block in the kernels of [`Launch::launch`].
const THREADS: u32 = 128;
/// Warps per block.
const WARPS: usize = THREADS as usize / 32;
/// The largest head width.
const MAX_HEAD_DIM: usize = 256;
/// The largest number of blocks in the y and z dimensions of a grid.
const MAX_BLOCKS: usize = 65_535;

/// The tile of scores that a block of the fp32 kernels computes at once.
#[derive(Clone, Copy, Debug)]
struct Square {
    rows: usize,
    columns: usize,
}

impl Square {
    /// Returns the bytes of shared memory for `rows` rows of heads (each padded) and `squares` tiles of
    /// scores.
    fn shared(self, dim: usize, rows: usize, squares: usize) -> usize {
        4 * (rows * (dim.next_multiple_of(32) + 4) + squares * self.rows * (self.columns + 8))
    }
}

/// Returns the factor by which kernels divide by `n`: 2³²/n + 1, or 0 for n = 1.
fn reciprocal(n: usize) -> Arg {
    Arg::U32(if n <= 1 { 0 } else { ((1u64 << 32) / n as u64 + 1) as u32 })
}

/// Returns the score cap as a kernel argument. Kernels compiled without a cap do not read it.
fn soft_cap(attention: &Attention) -> Arg {
    Arg::F32(attention.score_cap.unwrap_or(0.0) as f32)
}

/// An attention op that is about to be launched.
struct Launch<'a> {
    attention: &'a Attention,
    cx: &'a GpuNode<'a>,
    dtype: DType,
    batch: usize,
    /// True for the kernels in bf16 on tensor cores, for the head widths of common models; false for fp32
    /// multiply-adds, for any other width or format.
    tensor_cores: bool,
    /// Addresses of spans, sequences and step; 0 for absent inputs.
    extras: [DevicePtr; 3],
}

impl<'a> Launch<'a> {
    /// Creates a launch. `first` is the index of the first input after the tensors.
    fn new(attention: &'a Attention, cx: &'a GpuNode<'a>, first: usize) -> Result<Self> {
        let packed = cx.input_spec(0);
        let dim = attention.heads.dim;
        if dim > MAX_HEAD_DIM {
            return Err(Error::failed(format!(
                "flash attention on a GPU takes heads up to {MAX_HEAD_DIM} wide, not {dim}; engine.attention = \"unfused\" takes any width"
            )));
        }
        let mut rest = cx.inputs[first..].iter().copied();
        let mut next = |present: bool| if present { rest.next().unwrap_or_default() } else { 0 };
        let dropout = attention.dropout.is_some();
        Ok(Self {
            attention,
            cx,
            dtype: packed.dtype,
            batch: packed.shape[0] / attention.seq_len,
            tensor_cores: packed.dtype == DType::Bf16 && tuning::has_tensor_core_kernels(dim),
            extras: [next(attention.mask != Mask::Causal), next(dropout), next(dropout)],
        })
    }

    /// Returns a kernel with the definitions that all kernels have.
    fn any_kernel(&self, file: &'static str, entry: &'static str) -> Kernel {
        Kernel::new(file, entry)
            .with("HEAD_DIM", self.attention.heads.dim)
            .with("VALUE_DIM", self.attention.value_dim)
            .with("CAUSAL", u8::from(self.attention.mask == Mask::Causal))
            .with("BRANCHES", u8::from(self.attention.mask == Mask::Branches))
            .with("DROPOUT", u8::from(self.attention.dropout.is_some()))
            .with("SOFT_CAP", u8::from(self.attention.score_cap.is_some()))
    }

    /// Returns a kernel for [`Launch::launch`].
    fn kernel(&self, file: &'static str, entry: &'static str) -> Kernel {
        let kernel = self.any_kernel(file, entry).with("THREADS", THREADS);
        if self.tensor_cores { kernel } else { kernel.with("T", self.dtype) }
    }

    /// Launches one block per sequence, head and tile of `rows` rows. The arguments are `tensors`, the
    /// optional inputs, `outputs`, sizes and scalars.
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
        let section = self.section(heads * tiles).max((self.batch * tiles).div_ceil(MAX_BLOCKS / 2));
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
        if self.tensor_cores {
            args.push(reciprocal(self.cx.queue.properties().sm_count));
        }
        args.push(Arg::F32(self.attention.score_scale as f32));
        let nothing = [Arg::U32(0), Arg::U32(0), Arg::U32(0), Arg::F32(1.0)];
        args.extend(dropout.map_or(nothing, |site| site.drops().args()));
        args.push(soft_cap(self.attention));
        self.cx.queue.launch(kernel, grid, &args)
    }

    /// Returns the number of sequences per section (see kernels/attention.cuh): enough for several rounds of
    /// blocks on all SMs, but at most as many as have keys and values that fit in half of the L2 cache.
    fn section(&self, blocks_per_sequence: usize) -> usize {
        const BLOCKS: usize = 16;
        let properties = self.cx.queue.properties();
        let heads = self.attention.heads;
        let bytes = 2 * heads.kv * heads.dim * self.attention.seq_len * self.dtype.size();
        let rounds = (BLOCKS * properties.sm_count).div_ceil(blocks_per_sequence);
        rounds.min(properties.l2_bytes / 2 / bytes).clamp(1, self.batch)
    }
}

/// Queues [`FlashAttention`](super::FlashAttention).
pub(super) fn forward(attention: &Attention, cx: &GpuNode<'_>) -> Result<()> {
    let launch = Launch::new(attention, cx, 1)?;
    let (heads, dim) = (attention.heads.query, attention.heads.dim);
    let (kernel, rows, shared) = if launch.tensor_cores {
        if let Some(cut) = tuning::warpgroups(attention, launch.batch, cx.queue.properties()) {
            return launch.forward_by_warpgroups(cut);
        }
        let pass = tuning::forward(attention, cx.queue.properties());
        let kernel = launch.kernel("flash_attention", "flash_attention");
        let kernel = pass.define(kernel, ["WARP_QUERIES", "KEYS", "STEP", "KEPT", "BLOCKS"]);
        let queries = WARPS * pass.rows;
        // The block's queries, and two stages of keys and values.
        (kernel, queries, (queries + 4 * pass.tile) * 2 * dim)
    } else {
        let (rows, columns) = if dim <= 128 { (64, 32) } else { (32, 16) };
        let square = Square { rows, columns };
        let kernel = launch.kernel("flash_attention_fp32", "flash_attention_fp32");
        let kernel = kernel.with("ROWS", rows).with("COLUMNS", columns);
        (kernel, rows, square.shared(dim, rows + 2 * columns, 1))
    };
    launch.launch(kernel, (heads, rows, shared), &[cx.input(0)], &[cx.output(0), cx.output(1)])
}

impl Launch<'_> {
    /// Launches the forward pass with warpgroup products. As many blocks as run at once take pieces of work
    /// until none is left.
    fn forward_by_warpgroups(&self, cut: Warpgroups) -> Result<()> {
        let Attention { heads, seq_len, .. } = *self.attention;
        let pieces = self.batch * heads.query * seq_len.div_ceil(cut.queries());
        if pieces == 0 {
            return Ok(());
        }
        let kernel = self.any_kernel("flash_attention_wgmma", "flash_attention_wgmma");
        let grid = Grid::new(pieces.min(self.cx.queue.properties().sm_count), cut.threads());
        let packed = self.map(self.cx.input(0), heads.query + 2 * heads.kv, Warpgroups::ROWS);
        let keys = TensorMap { boxes: [packed.boxes[0], 1, cut.keys, 1], ..packed };
        let o = self.map(self.cx.output(0), heads.query, Warpgroups::ROWS);
        let mut args: Vec<Arg> = [packed, keys, o].map(Arg::from).to_vec();
        args.extend([self.extras[0], self.cx.output(1)].map(Arg::from));
        args.extend([self.batch, heads.kv, heads.group(), seq_len].map(Arg::from));
        args.extend([Arg::F32(self.attention.score_scale as f32), soft_cap(self.attention)]);
        self.cx.queue.launch(cut.define(kernel), grid.shared(cut.shared(self.attention)), &args)
    }

    /// Maps rows of `heads` heads side by side, in boxes of `rows` rows by at most 64 columns of a head.
    fn map(&self, address: DevicePtr, heads: usize, rows: usize) -> TensorMap {
        let Attention { seq_len, heads: super::Heads { dim, .. }, .. } = *self.attention;
        TensorMap {
            address,
            sizes: [dim, heads, seq_len, self.batch],
            strides: [dim, heads * dim, seq_len * heads * dim],
            boxes: [dim.min(64), 1, rows, 1],
        }
    }
}

/// Layout of the scratch in which the blocks of the one-pass backward leave data to each other. Offsets are
/// in 4-byte words from the start of the scratch; each part begins at a multiple of 16 bytes.
#[derive(Clone, Copy, Debug)]
struct OnePassScratch {
    /// lse and D of each tile of queries.
    stats: usize,
    /// Spans of each tile of queries, and the tiles of keys that they see.
    spans: usize,
    ranges: usize,
    /// The next ticket, and the counters that say whose turn it is.
    turns: usize,
    /// The fp32 sums of the queries' gradient.
    sums: usize,
    words: usize,
}

impl OnePassScratch {
    fn new(attention: &Attention, batch: usize) -> Self {
        let Attention { heads, seq_len, mask, .. } = *attention;
        let rows = OnePass::QUERIES;
        let tiles = batch * seq_len.div_ceil(rows);
        let masked = if mask == Mask::Spans { tiles } else { 0 };
        let mut words = 0;
        let mut part = |count: usize| {
            let at = words;
            words += count.next_multiple_of(4);
            at
        };
        Self {
            stats: part(heads.query * tiles * 2 * rows),
            spans: part(masked * 2 * rows),
            ranges: part(masked * 4),
            turns: part(1 + heads.query * tiles * 4),
            sums: part(heads.query * tiles * rows * heads.dim),
            words,
        }
    }
}

/// Returns the spec of the backward scratch; see [`FlashAttentionGrad`](super::FlashAttentionGrad).
pub(super) fn grad_scratch(attention: &Attention, packed: &Spec, lse: &Spec) -> Spec {
    if packed.dtype == DType::Bf16 && tuning::may_make_one_pass(attention) {
        let words = OnePassScratch::new(attention, packed.shape[0] / attention.seq_len).words;
        Spec::new([words], DType::F32)
    } else {
        lse.clone()
    }
}

impl Launch<'_> {
    /// Launches the one-pass backward with warpgroup products. A first kernel gathers the numbers that its
    /// steps read.
    fn backward_in_one_pass(&self, cut: OnePass) -> Result<()> {
        let Attention { heads, seq_len, .. } = *self.attention;
        if self.batch == 0 {
            return Ok(());
        }
        let [packed, o, lse, d_o] = [0, 1, 2, 3].map(|i| self.cx.input(i));
        let (d_packed, scratch) = (self.cx.output(0), self.cx.output(1));
        let at = OnePassScratch::new(self.attention, self.batch);
        let [stats, spans, ranges, turns, sums] =
            [at.stats, at.spans, at.ranges, at.turns, at.sums].map(|word| scratch + 4 * word as u64);
        let kernel = |entry| cut.define(self.any_kernel("flash_attention_grad_wgmma", entry));
        let grid = Grid {
            blocks: [seq_len.div_ceil(OnePass::QUERIES), self.batch, heads.query].map(|n| n as u32),
            threads: OnePass::PREPARE_THREADS,
            shared: 0,
        };
        let mut args: Vec<Arg> =
            [o, lse, d_o, self.extras[0], stats, spans, ranges, turns, d_packed].map(Arg::from).to_vec();
        args.extend([heads.query, heads.kv, seq_len].map(Arg::from));
        self.cx.queue.launch(kernel("flash_attention_grad_prepare"), grid, &args)?;

        let pairs = self.batch * heads.kv;
        let grid = Grid::new(pairs * seq_len.div_ceil(OnePass::KEYS), OnePass::THREADS);
        let rows = self.map(packed, heads.query + 2 * heads.kv, OnePass::QUERIES);
        let d_outputs = self.map(d_o, heads.query, OnePass::QUERIES);
        let mut args: Vec<Arg> = [rows, d_outputs].map(Arg::from).to_vec();
        args.extend([stats, spans, ranges, turns, sums, d_packed].map(Arg::from));
        let section = cut.section(self.attention, self.cx.queue.properties()).min(pairs);
        args.extend([self.batch, heads.kv, heads.group(), seq_len, section].map(Arg::from));
        args.extend([Arg::F32(self.attention.score_scale as f32), soft_cap(self.attention)]);
        self.cx.queue.launch(
            kernel("flash_attention_grad_wgmma"),
            grid.shared(OnePass::shared(self.attention)),
            &args,
        )
    }
}

impl Launch<'_> {
    /// Launches the backward pass for short rows. As many blocks as run at once take one head after another.
    fn backward_short_rows(&self) -> Result<()> {
        let Attention { heads, seq_len, .. } = *self.attention;
        let all = self.batch * heads.query;
        if all == 0 {
            return Ok(());
        }
        let file = "flash_attention_grad_short";
        let map = |address, heads, rows| Arg::from(self.map(address, heads, rows));
        let rows = ShortRows::rows(seq_len);
        let [packed, o, lse, d_o] = [0, 1, 2, 3].map(|i| self.cx.input(i));
        let mut args = vec![
            map(packed, 3 * heads.query, rows),
            map(o, heads.query, rows),
            map(d_o, heads.query, rows),
            map(self.cx.output(0), 3 * heads.query, ShortRows::STORED_ROWS),
            lse.into(),
        ];
        args.extend([self.batch, heads.query, seq_len].map(Arg::from));
        args.extend([Arg::F32(self.attention.score_scale as f32), soft_cap(self.attention)]);
        let grid = Grid::new(all.min(self.cx.queue.properties().sm_count), ShortRows::THREADS);
        let kernel = ShortRows::define(self.any_kernel(file, file), seq_len);
        self.cx.queue.launch(kernel, grid.shared(ShortRows::shared(seq_len)), &args)
    }
}

/// Queues [`FlashAttentionGrad`](super::FlashAttentionGrad): one head at a time or in one pass if tuning
/// selects that method, otherwise the pass over queries, which writes D, and then the pass over keys.
pub(super) fn backward(attention: &Attention, cx: &GpuNode<'_>) -> Result<()> {
    let launch = Launch::new(attention, cx, 4)?;
    if launch.tensor_cores && tuning::short_rows(attention, cx.queue.properties()) {
        return launch.backward_short_rows();
    }
    if launch.tensor_cores
        && let Some(cut) = tuning::one_pass(attention, cx.queue.properties())
    {
        return launch.backward_in_one_pass(cut);
    }
    let heads = attention.heads;
    let [packed, o, lse, d_o] = [0, 1, 2, 3].map(|i| cx.input(i));
    let (d_packed, delta) = (cx.output(0), cx.output(1));
    let [queries, keys] =
        if launch.tensor_cores { launch.grad_on_tensor_cores() } else { launch.grad_in_fp32() };
    let query_blocks = (heads.query, queries.rows, queries.shared);
    launch.launch(queries.kernel, query_blocks, &[packed, o, lse, d_o], &[d_packed, delta])?;
    let blocks_per_head = if launch.tensor_cores { tuning::key_blocks_per_head(heads.dim) } else { 1 };
    let key_blocks = (heads.kv * blocks_per_head, keys.rows, keys.shared);
    launch.launch(keys.kernel, key_blocks, &[packed, lse, d_o, delta], &[d_packed])
}

/// A kernel of the backward pass, with the rows and the bytes of shared memory per block.
struct GradKernel {
    kernel: Kernel,
    rows: usize,
    shared: usize,
}

impl Launch<'_> {
    /// Returns the passes over queries and over keys on tensor cores.
    fn grad_on_tensor_cores(&self) -> [GradKernel; 2] {
        let dim = self.attention.heads.dim;
        let [queries, keys] = tuning::backward(self.attention, self.cx.queue.properties());
        let cut = |entry, pass: Pass, statistics: usize| {
            let kernel = self.kernel("flash_attention_grad", entry);
            let kernel = queries.define(kernel, ["Q_ROWS", "Q_TILE", "Q_STEP", "Q_KEPT", "Q_BLOCKS"]);
            let kernel = keys.define(kernel, ["K_ROWS", "K_TILE", "K_STEP", "K_KEPT", "K_BLOCKS"]);
            let rows = WARPS * pass.rows;
            // Two tensors of the block's own rows, and two stages of two tensors of the other rows.
            GradKernel { kernel, rows, shared: (2 * rows + 4 * pass.tile) * 2 * dim + statistics }
        };
        // A stage of queries also holds their lse and D.
        let statistics = 2 * 2 * keys.tile * 4;
        [cut("flash_attention_grad_queries", queries, 0), cut("flash_attention_grad_keys", keys, statistics)]
    }

    /// Returns the passes over queries and over keys in fp32. The tiles of scores are as large as shared
    /// memory allows on every architecture.
    fn grad_in_fp32(&self) -> [GradKernel; 2] {
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
            GradKernel { kernel, rows: square.rows, shared }
        };
        [cut("flash_attention_grad_queries_fp32", 1), cut("flash_attention_grad_keys_fp32", 2)]
    }
}
