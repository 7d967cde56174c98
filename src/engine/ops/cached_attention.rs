//! Attention during generation: one new query per sequence attends to the keys and values kept in the state,
//! including its own.

use super::attention::Heads;
use super::attention::reference::AttentionCase;
use super::attention::rows::{cap_scores, exponentials, scale};
use super::lanes::{dot, max, vector_width};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use std::ops::Range;

/// `(packed [B, (H+2·KV)·dim], positions [B] u32, [sinks [H]]) → (o [B, H·dim], cache [B, S, 2·KV·dim],
/// arrivals [B, H] u32, partials)`: writes the keys and values of row b into its row of the cache at
/// `positions[b]`. Its query then attends to the keys `0..=positions[b]`, or with a window to the last of
/// them. With `Mode::Add` the rest of the cache is kept; with `Mode::Write` it is zeroed first.
///
/// A GPU cuts the keys into splits of [`split_len`] and combines their results in that order. The blocks
/// count themselves in `arrivals`, which are zero before and after; therefore this output has `Mode::Add`.
/// The scratch `partials` `[B, splits, H, dim + 2]` holds the outputs, the largest score and the sum of
/// exponentials of each split.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedAttention {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// The factor of scores; see [`Attention::score_scale`](super::attention::Attention::score_scale).
    pub score_scale: f64,
    /// The soft cap of the scores; see [`Attention::score_cap`](super::attention::Attention::score_cap).
    pub score_cap: Option<f64>,
    /// The most keys that a query sees, including its own.
    pub window: Option<usize>,
    /// True if every query head has a [sink](super::attention_sink).
    pub sinks: bool,
    /// Number of positions in the cache: S.
    pub capacity: usize,
}

/// Threads per block.
const THREADS: u32 = 128;

/// The fewest keys in a split. Shorter splits would not outweigh the cost of combining their results.
const MIN_SPLIT: usize = 128;

/// The most splits. One block combines them all.
const MAX_SPLITS: usize = 64;

/// The most query heads that a block handles. More would not fit into registers.
const MAX_QUERIES: usize = 4;

/// Returns the number of keys in a split if the cache holds `capacity` positions.
fn split_len(capacity: usize) -> usize {
    capacity.div_ceil(MAX_SPLITS).next_multiple_of(MIN_SPLIT).max(MIN_SPLIT)
}

impl CachedAttention {
    /// Returns the keys that the query at `position` sees.
    fn keys(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }

    /// Returns the kernel and the number of query heads in a tile.
    fn kernel(&self, dtype: DType) -> (Kernel, usize) {
        let dim = self.heads.dim;
        let vec = vector_width(dim, dtype);
        let lanes = (dim / vec).next_power_of_two().min(32);
        let per_thread = (dim / vec).div_ceil(lanes) * vec;
        let queries = if per_thread <= 8 { self.heads.group().min(MAX_QUERIES) } else { 1 };
        let kernel = Kernel::new("cached_attention", "cached_attention")
            .with("T", dtype)
            .with("HEAD_DIM", dim)
            .with("VEC", vec)
            .with("LANES", lanes)
            .with("QUERIES", queries)
            .with("THREADS", THREADS)
            .with("SOFT_CAP", u8::from(self.score_cap.is_some()))
            .with("WINDOW", u8::from(self.window.is_some()))
            .with("SINKS", u8::from(self.sinks))
            .overlapping();
        (kernel, queries)
    }
}

impl Op for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn attributes(&self) -> String {
        let window = self.window.map_or(String::new(), |window| format!(" window={window}"));
        let cap = self.score_cap.map_or(String::new(), |cap| format!(" score_cap={cap}"));
        let scale = self.heads.scale_attribute(self.score_scale);
        let sinks = if self.sinks { " sinks" } else { "" };
        format!("{}{window}{scale}{cap}{sinks} capacity={}", self.heads, self.capacity)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, positions, sinks @ ..] = inputs else {
            return Err("takes packed rows and positions".into());
        };
        let of_sinks = Spec::new([self.heads.query], packed.dtype.accumulator());
        if sinks.len() != usize::from(self.sinks) || sinks.iter().any(|spec| *spec != of_sinks) {
            return Err(format!("takes sinks, {of_sinks}, exactly if it has them"));
        }
        self.heads.check(packed)?;
        let Heads { query, kv, dim } = self.heads;
        let (batch, capacity) = (packed.shape[0], self.capacity);
        if positions.dtype != DType::U32 || positions.elements() != batch {
            return Err("positions are u32, one per row".into());
        }
        let splits = capacity.div_ceil(split_len(capacity));
        Ok(vec![
            Spec::new([batch, query * dim], packed.dtype),
            Spec::new([batch, capacity, 2 * kv * dim], packed.dtype),
            Spec::new([batch, query], DType::U32),
            Spec::new([batch, splits, query, dim + 2], packed.dtype.accumulator()),
        ])
    }

    /// Counts as if every query stood at the end of the cache. The scratch is not counted, as it stays in the
    /// processor's caches.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let [packed, positions, ..] = inputs else { unreachable!("infer has checked them") };
        let (batch, width) = (packed.shape[0], 2 * self.heads.kv * self.heads.dim);
        let keys = self.window.unwrap_or(self.capacity).min(self.capacity);
        let [read, new] = [keys, 1].map(|rows| Spec::new([batch, rows, width], packed.dtype));
        Cost::streaming(&[packed.clone(), read, positions.clone()], &[outputs[0].clone(), new])
            .with_flops((4 * batch * keys * self.heads.query * self.heads.dim) as f64)
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 1 || output == 2
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (heads, dim, capacity) = (self.heads, self.heads.dim, self.capacity);
        let positions = cx.input_u32(1);
        if let Some(p) = positions.iter().find(|p| **p as usize >= capacity) {
            return Err(Error::failed(format!("position {p} is beyond the cache of {capacity} positions")));
        }
        if !cx.adds(2) {
            let arrivals = cx.output_u32(2);
            arrivals.slice(0, arrivals.len()).fill(0);
        }
        let kv_width = 2 * heads.kv * dim;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (packed, o, cache) = (cx.input::<E>(0), cx.output::<E>(0), cx.output::<E>(1));
            let sinks = self.sinks.then(|| cx.input::<<E as Elem>::Acc>(2).slice(0, heads.query));
            if !cx.adds(1) {
                cache.slice(0, cache.len()).fill(<E as Default>::default());
            }
            for (b, position) in positions.iter().enumerate() {
                let new = packed.slice(b * heads.width() + heads.key_at(0), kv_width);
                cache.slice((b * capacity + *position as usize) * kv_width, kv_width).copy_from_slice(new);
            }
            let cache = cache.as_view();
            cx.pool.run(positions.len() * heads.query, #[inline(always)] |task| {
                type Acc = <E as Elem>::Acc;
                let (b, h) = (task / heads.query, task % heads.query);
                let key = |t: usize| (b * capacity + t) * kv_width + h / heads.group() * dim;
                let mut query = vec![Acc::ZERO; dim];
                let mut row = query.clone();
                packed.load(b * heads.width() + heads.query_at(h), &mut query);
                scale(&mut query, Acc::from_f64(self.score_scale));
                let keys = self.keys(positions[b] as usize);
                let mut p = vec![Acc::ZERO; keys.len()];
                for (t, score) in keys.clone().zip(&mut p) {
                    cache.load(key(t), &mut row);
                    *score = dot(&query, &row);
                }
                if let Some(cap) = self.score_cap {
                    cap_scores(&mut p, Acc::ONE, Acc::from_f64(cap));
                }
                let sink = sinks.map(|sinks| sinks[h]);
                let shift = sink.map_or(max(&p), |sink| max(&p).larger(sink));
                let mut sum = exponentials(&mut p, Acc::ONE, shift);
                if let Some(sink) = sink {
                    sum += (sink - shift).exp();
                }
                query.fill(Acc::ZERO);
                for (t, p) in keys.zip(&p) {
                    cache.load(key(t) + heads.kv * dim, &mut row);
                    query.iter_mut().zip(&row).for_each(|(o, v)| *o = p.fma(*v, *o));
                }
                scale(&mut query, Acc::ONE / sum);
                o.store((b * heads.query + h) * dim, &query);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let Heads { query, kv, .. } = self.heads;
        let (batch, capacity) = (cx.input_spec(0).rows(), self.capacity);
        if batch == 0 || capacity == 0 {
            return Ok(());
        }
        for output in [1, 2].into_iter().filter(|&output| !cx.adds(output)) {
            cx.queue.fill(cx.output(output), 0, cx.output_spec(output).bytes())?;
        }
        let (kernel, queries) = self.kernel(cx.input_spec(0).dtype);
        let (tiles, split) = (self.heads.group().div_ceil(queries), split_len(capacity));
        let mut args: Vec<Arg> = cx.inputs[..2].iter().chain(cx.outputs).map(|&p| p.into()).collect();
        args.push(Arg::Ptr(if self.sinks { cx.input(2) } else { 0 }));
        args.extend([query, kv, capacity, tiles, split].map(Arg::from));
        args.extend([self.score_scale, self.score_cap.unwrap_or(0.0)].map(|x| Arg::F32(x as f32)));
        args.push(self.window.unwrap_or(0).into());
        let blocks = [(kv * tiles) as u32, capacity.div_ceil(split) as u32, batch as u32];
        cx.queue.launch(kernel, Grid { blocks, threads: THREADS, shared: 0 }, &args)
    }

    /// The reference computes full attention over the prefix and keeps the last row.
    fn cases(precision: Precision) -> Cases {
        let shapes = [
            (1, 1, (1, 1, 32), None, None),
            (3, 17, (2, 1, 64), None, None),
            (2, 33, (8, 1, 96), None, None),
            (1, 255, (2, 2, 128), None, None),
            (1, 1000, (1, 1, 32), None, None),
            // Several splits, groups of several sizes, and heads of other widths.
            (3, 700, (10, 2, 64), None, None),
            (2, 300, (6, 1, 128), None, None),
            (2, 513, (3, 3, 80), None, None),
            (2, 200, (7, 7, 6), None, None),
            (1, 300, (2, 1, 320), None, None),
            // Soft caps, and windows of one key, across splits, and of nearly all keys.
            (3, 40, (2, 1, 64), Some(1.5), None),
            (5, 100, (2, 2, 32), None, Some(1)),
            (3, 700, (4, 2, 96), None, Some(200)),
            (4, 300, (4, 1, 128), Some(1.5), Some(290)),
        ];
        type Shape = (usize, usize, (usize, usize, usize), Option<f64>, Option<usize>);
        let case = |((batch, capacity, (query, kv, dim), score_cap, window), sinks): (Shape, bool)| {
            let heads = Heads { query, kv, dim };
            // Only capped scores have a factor of their own here.
            let score_scale = if score_cap.is_some() { 0.3 } else { heads.score_scale() };
            let op = CachedAttention { heads, score_scale, score_cap, window, sinks, capacity };
            let mut inputs = vec![
                (Spec::new([batch, heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([batch], DType::U32), Fill::Below(capacity as u32)),
            ];
            if sinks {
                inputs.push((Spec::new([query], precision.master), Fill::Normal(0.5, 1.0)));
            }
            let mut name = format!("b{batch} s{capacity} hd{} gqa{}", heads.dim, heads.group());
            name += &window.map_or(String::new(), |window| format!(" window{window}"));
            name += &score_cap.map_or(String::new(), |cap| format!(" cap{cap}"));
            name += if sinks { " sinks" } else { "" };
            let arrivals = Fill::Values(vec![0.0; batch * heads.query]);
            Case::new(name, op, inputs, move |inputs| {
                let (sinks, before) = inputs[2..].split_at(usize::from(sinks));
                let (o, cache) = reference(&op, &inputs[0], &inputs[1], (sinks, before.first()));
                vec![o, cache, Array::zeros(&[batch, heads.query]), Array::zeros(&[0])]
            })
            .without_gradient()
            .outputs(vec![
                (Mode::Write, Fill::Below(1)),
                (Mode::Add, Fill::Normal(0.0, 1.0)),
                (Mode::Add, arrivals),
            ])
            .depth(capacity.max(heads.dim))
        };
        // With sinks: of one split and of several.
        let with_sinks = [shapes[1], shapes[5], shapes[9], shapes[13]].map(|shape| (shape, true));
        let all = shapes.into_iter().map(|shape| (shape, false)).chain(with_sinks);
        Cases::Own(all.map(case).collect())
    }
}

/// Writes the new keys and values into the cache `before`, or into zeros. For each row, packs the keys that
/// it sees as a sequence and keeps the last row of full attention. Returns the rows and the cache.
fn reference(
    op: &CachedAttention,
    packed: &Array,
    positions: &Array,
    (sinks, before): (&[Array], Option<&Array>),
) -> (Array, Array) {
    let (heads, capacity) = (op.heads, op.capacity);
    let (batch, kv_width) = (packed.shape[0], 2 * heads.kv * heads.dim);
    let (width, o_width) = (heads.width(), heads.query * heads.dim);
    let mut cache = before.cloned().unwrap_or_else(|| Array::zeros(&[batch, capacity, kv_width]));
    let mut o = Array::zeros(&[batch, o_width]);
    for b in 0..batch {
        let position = positions.data[b] as usize;
        cache.data[(b * capacity + position) * kv_width..][..kv_width]
            .copy_from_slice(&packed.data[b * width + o_width..][..kv_width]);
        let keys = op.keys(position);
        let len = keys.len();
        let mut rows = Array::zeros(&[len, width]);
        for (t, key) in keys.enumerate() {
            let (row, cache_at) = (&mut rows.data[t * width..][..width], (b * capacity + key) * kv_width);
            row[..o_width].copy_from_slice(&packed.data[b * width..][..o_width]);
            row[o_width..].copy_from_slice(&cache.data[cache_at..][..kv_width]);
        }
        let mut full = AttentionCase::causal(1, len, (heads.query, heads.kv, heads.dim));
        (full.attention.score_scale, full.attention.score_cap) = (op.score_scale, op.score_cap);
        full.attention.sinks = op.sinks;
        let solved = full.solve(&rows, sinks);
        let last = &solved[0].data[(len - 1) * o_width..];
        o.data[b * o_width..][..o_width].copy_from_slice(last);
    }
    (o, cache)
}
