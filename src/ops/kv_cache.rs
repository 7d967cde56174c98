//! Generation: keys and values kept in the state, and attention of one new query per sequence over them.

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

/// `(packed [B, (H+2·KV)·dim], positions [B] u32) → cache [B, S, 2·KV·dim]`: keys and values of each row are
/// written at its position. With `Mode::Add` the rest of the cache is kept; with `Mode::Write` it is zeroed.
#[derive(Clone, Copy, Debug)]
pub struct CacheAppend {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Positions that the cache has room for: S.
    pub capacity: usize,
}

/// `(packed [B, (H+2·KV)·dim], cache [B, S, 2·KV·dim], positions [B] u32) → o [B, H·dim]`: the query of row b
/// attends to the keys `0..=positions[b]` of its row of the cache, its own included, or to the last of them.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// The soft cap of the scores, as [`Attention::score_cap`](super::attention::Attention::score_cap).
    pub score_cap: Option<f64>,
    /// The most keys that a query sees, its own included.
    pub window: Option<usize>,
}

/// Checks one new row per sequence, and its position.
fn check(heads: Heads, packed: &Spec, positions: &Spec) -> Result<(), String> {
    heads.check(packed)?;
    if positions.dtype != DType::U32 || positions.elements() != packed.shape[0] {
        return Err("positions are u32, one per row".into());
    }
    Ok(())
}

/// Checks that the positions lie in the cache, and names the first that does not.
fn check_room(positions: &[u32], capacity: usize) -> Result<()> {
    match positions.iter().find(|p| **p as usize >= capacity) {
        Some(p) => Err(Error::failed(format!("position {p} is beyond the cache, which holds {capacity}"))),
        None => Ok(()),
    }
}

/// Threads per block of the kernels that append and that attend.
const APPEND_THREADS: u32 = 128;
const THREADS: u32 = 256;

/// Returns a kernel over heads.
fn kernel(entry: &'static str, heads: Heads, dtype: DType) -> Kernel {
    let vec = vector_width(heads.dim, dtype);
    Kernel::new("kv_cache", entry)
        .with_type("T", dtype)
        .with("HEAD_DIM", heads.dim)
        .with("VEC", vec)
        .with("LANES", (heads.dim / vec).next_power_of_two().min(32))
        .with("THREADS", THREADS)
}

impl CachedAttention {
    /// Returns the keys that the query at a position sees.
    fn keys(&self, position: usize) -> Range<usize> {
        let end = position + 1;
        self.window.map_or(0, |window| end.saturating_sub(window))..end
    }
}

impl Op for CacheAppend {
    fn name(&self) -> &'static str {
        "cache_append"
    }

    fn attributes(&self) -> String {
        format!("{} capacity={}", self.heads, self.capacity)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, positions] = inputs else { return Err("takes packed rows and positions".into()) };
        check(self.heads, packed, positions)?;
        let width = 2 * self.heads.kv * self.heads.dim;
        Ok(vec![Spec::new([packed.shape[0], self.capacity, width], packed.dtype)])
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        let kept = 2 * self.heads.kv * self.heads.dim * inputs[0].shape[0] * inputs[0].dtype.size();
        Cost { product_flops: 0.0, bytes: 2.0 * kept as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let positions = cx.input_u32(1);
        check_room(positions, self.capacity)?;
        let kept = 2 * self.heads.kv * self.heads.dim;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (packed, cache) = (cx.input::<E>(0), cx.output::<E>(0));
            if !cx.adds(0) {
                cache.slice(0, cache.len()).fill(<E as Default>::default());
            }
            for (b, position) in positions.iter().enumerate() {
                let new = packed.slice(b * self.heads.width() + self.heads.key_at(0), kept);
                let row = b * self.capacity + *position as usize;
                cache.slice(row * kept, kept).copy_from_slice(new);
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (packed, cache) = (cx.input_spec(0), cx.output_spec(0));
        if cache.elements() == 0 {
            return Ok(());
        }
        if !cx.adds(0) {
            cx.queue.fill(cx.output(0), 0, cache.bytes())?;
        }
        let mut args: Vec<Arg> = [cx.input(0), cx.input(1), cx.output(0)].into_iter().map(Arg::Ptr).collect();
        args.extend([self.heads.query, self.heads.kv, self.capacity].map(Arg::from));
        let kernel = kernel("cache_append", self.heads, packed.dtype);
        cx.queue.launch(kernel, Grid::new(packed.rows(), APPEND_THREADS), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |(batch, capacity, kv, mode): (usize, usize, usize, Mode)| {
            let heads = Heads { query: 2 * kv, kv, dim: 32 };
            let inputs = vec![
                (Spec::new([batch, heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([batch], DType::U32), Fill::Below(capacity as u32)),
            ];
            let op = CacheAppend { heads, capacity };
            Case::new(
                format!("b{batch} s{capacity} kv{kv} {mode:?}").to_lowercase(),
                op,
                inputs,
                move |inputs| {
                    let kept = 2 * kv * 32;
                    let mut cache = Array::zeros(&[batch, capacity, kept]);
                    if let Some(before) = inputs.get(2) {
                        cache.data.clone_from(&before.data);
                    }
                    for b in 0..batch {
                        let position = inputs[1].data[b] as usize;
                        for i in 0..kept {
                            let new = inputs[0].data[b * heads.width() + heads.query * 32 + i];
                            cache.data[(b * capacity + position) * kept + i] = new;
                        }
                    }
                    vec![cache]
                },
            )
            .differentiable(&[])
            .upstream(&[])
            .outputs(vec![(mode, Fill::Normal(0.0, 1.0))])
        };
        let shapes =
            [(1, 1, 1, Mode::Write), (3, 17, 2, Mode::Add), (5, 40, 1, Mode::Add), (2, 9, 1, Mode::Write)];
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

impl Op for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn attributes(&self) -> String {
        let window = self.window.map_or(String::new(), |window| format!(" window={window}"));
        let cap = self.score_cap.map_or(String::new(), |cap| format!(" score_cap={cap}"));
        format!("{}{window}{cap}", self.heads)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed, cache, positions] = inputs else {
            return Err("takes packed rows, a cache and positions".into());
        };
        check(self.heads, packed, positions)?;
        let (batch, kept) = (packed.shape[0], 2 * self.heads.kv * self.heads.dim);
        let fits = matches!(*cache.shape, [b, _, width] if b == batch && width == kept);
        if !fits || cache.alloc != cache.shape || cache.dtype != packed.dtype {
            return Err(format!("the cache is {}[{batch}, S, {kept}], unpadded", packed.dtype));
        }
        Ok(vec![Spec::new([batch, self.heads.query * self.heads.dim], packed.dtype)])
    }

    /// Counts as if every query stood at the end of the cache.
    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let [packed, cache, positions] = inputs else { unreachable!("infer has checked them") };
        let (batch, capacity) = (cache.shape[0], cache.shape[1]);
        let keys = self.window.unwrap_or(capacity).min(capacity);
        let read = Spec::new([batch, keys, cache.width()], cache.dtype);
        Cost::streaming(&[packed.clone(), read, positions.clone()], outputs)
            .with_flops((4 * batch * keys * self.heads.query * self.heads.dim) as f64)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (heads, dim) = (self.heads, self.heads.dim);
        let positions = cx.input_u32(2);
        let capacity = cx.input_spec(1).shape[1];
        check_room(positions, capacity)?;
        let kept = 2 * heads.kv * dim;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (packed, cache, o) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            cx.pool.run(positions.len() * heads.query, #[inline(always)] |task| {
                type Acc = <E as Elem>::Acc;
                let (b, h) = (task / heads.query, task % heads.query);
                let key = |t: usize| (b * capacity + t) * kept + h / heads.group() * dim;
                let mut query = vec![Acc::ZERO; dim];
                let mut row = query.clone();
                packed.load(b * heads.width() + heads.query_at(h), &mut query);
                scale(&mut query, Acc::from_f64(heads.score_scale()));
                let keys = self.keys(positions[b] as usize);
                let mut p = vec![Acc::ZERO; keys.len()];
                for (t, score) in keys.clone().zip(&mut p) {
                    cache.load(key(t), &mut row);
                    *score = dot(&query, &row);
                }
                if let Some(cap) = self.score_cap {
                    cap_scores(&mut p, Acc::ONE, Acc::from_f64(cap));
                }
                let shift = max(&p);
                let sum = exponentials(&mut p, Acc::ONE, shift);
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
        let (batch, capacity) = (cx.input_spec(1).shape[0], cx.input_spec(1).shape[1]);
        if batch == 0 {
            return Ok(());
        }
        let mut args: Vec<Arg> = cx.inputs.iter().chain(cx.outputs).map(|&p| p.into()).collect();
        args.extend([query, kv, capacity].map(Arg::from));
        args.extend([self.heads.score_scale(), self.score_cap.unwrap_or(0.0)].map(|x| Arg::F32(x as f32)));
        args.push(self.window.unwrap_or(0).into());
        let grid = Grid { blocks: [query as u32, batch as u32, 1], threads: THREADS, shared: 0 };
        let kernel = kernel("cached_attention", self.heads, cx.input_spec(0).dtype)
            .with("SOFT_CAP", u8::from(self.score_cap.is_some()))
            .with("WINDOW", u8::from(self.window.is_some()));
        cx.queue.launch(kernel, grid, &args)
    }

    /// The reference is full attention over the prefix, its last row.
    fn cases(&self, precision: Precision) -> Cases {
        let shapes = [
            (1, 1, (1, 1, 32), None, None),
            (3, 17, (2, 1, 64), None, None),
            (2, 33, (8, 1, 96), None, None),
            (1, 255, (2, 2, 128), None, None),
            (1, 1000, (1, 1, 32), None, None),
            (3, 40, (2, 1, 64), Some(1.5), None),
            (5, 100, (2, 2, 32), None, Some(1)),
            (3, 300, (4, 2, 96), None, Some(70)),
            (4, 300, (4, 1, 128), Some(1.5), Some(290)),
        ];
        type Shape = (usize, usize, (usize, usize, usize), Option<f64>, Option<usize>);
        let case = |(batch, capacity, (query, kv, dim), score_cap, window): Shape| {
            let op = CachedAttention { heads: Heads { query, kv, dim }, score_cap, window };
            let heads = op.heads;
            let kept = 2 * heads.kv * heads.dim;
            let inputs = vec![
                (Spec::new([batch, heads.width()], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([batch, capacity, kept], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([batch], DType::U32), Fill::Below(capacity as u32)),
            ];
            let mut name = format!("b{batch} s{capacity} hd{} gqa{}", heads.dim, heads.group());
            name += &window.map_or(String::new(), |window| format!(" window{window}"));
            name += &score_cap.map_or(String::new(), |cap| format!(" cap{cap}"));
            Case::new(name, op, inputs, move |inputs| {
                vec![reference(&op, &inputs[0], &inputs[1], &inputs[2])]
            })
            .differentiable(&[])
            .upstream(&[])
            .depth(capacity.max(heads.dim))
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

/// Packs the keys that each row sees as a sequence of its own and keeps the last row of full attention.
fn reference(op: &CachedAttention, packed: &Array, cache: &Array, positions: &Array) -> Array {
    let heads = op.heads;
    let (batch, capacity, kept) = (cache.shape[0], cache.shape[1], cache.width());
    let (width, o_width) = (heads.width(), heads.query * heads.dim);
    let mut o = Array::zeros(&[batch, o_width]);
    for b in 0..batch {
        let keys = op.keys(positions.data[b] as usize);
        let len = keys.len();
        let mut rows = Array::zeros(&[len, width]);
        for (t, key) in keys.enumerate() {
            let (row, of_cache) = (&mut rows.data[t * width..][..width], (b * capacity + key) * kept);
            row[..o_width].copy_from_slice(&packed.data[b * width..][..o_width]);
            row[o_width..].copy_from_slice(&cache.data[of_cache..][..kept]);
        }
        let mut full = AttentionCase::causal(1, len, (heads.query, heads.kv, heads.dim));
        full.attention.score_cap = op.score_cap;
        let solved = full.solve(&rows, &[]);
        let last = &solved[0].data[(len - 1) * o_width..];
        o.data[b * o_width..][..o_width].copy_from_slice(last);
    }
    o
}
