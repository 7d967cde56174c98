//! Generation: keys and values kept in the state, of whole prompts and of one new token per sequence.

use super::attention::Heads;
use super::lanes::vector_width;
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `(packed [B, (H+2·KV)·dim], positions [B] u32) → cache [B, S, 2·KV·dim]`: keys and values of each row are
/// written at its position. With `Mode::Add` the rest of the cache is kept; with `Mode::Write` it is zeroed.
#[derive(Clone, Copy, Debug)]
pub struct CacheAppend {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Positions that the cache has room for: S.
    pub capacity: usize,
}

/// `packed [P·L, (H+2·KV)·dim] → cache [B, S, 2·KV·dim]`: keys and values of whole prompts of L rows, written at
/// the positions from 0 on. Sample b gets those of prompt b·P/B: neighbours share a prompt. With `Mode::Add` the
/// rest of the cache is kept; with `Mode::Write` it is zeroed.
#[derive(Clone, Copy, Debug)]
pub struct CacheFill {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Samples: B.
    pub samples: usize,
    /// Prompts: P, a divisor of B.
    pub prompts: usize,
    /// Positions that the cache has room for: S.
    pub capacity: usize,
}

/// Checks one new row per sequence, and its position.
pub(super) fn check(heads: Heads, packed: &Spec, positions: &Spec) -> Result<(), String> {
    heads.check(packed)?;
    if positions.dtype != DType::U32 || positions.elements() != packed.shape[0] {
        return Err("positions are u32, one per row".into());
    }
    Ok(())
}

/// Checks that the positions lie in the cache, and names the first that does not.
pub(super) fn check_room(positions: &[u32], capacity: usize) -> Result<()> {
    match positions.iter().find(|p| **p as usize >= capacity) {
        Some(p) => Err(Error::failed(format!("position {p} is beyond the cache, which holds {capacity}"))),
        None => Ok(()),
    }
}

/// Threads per block.
const THREADS: u32 = 128;

/// Returns a kernel over heads.
fn kernel(entry: &'static str, heads: Heads, dtype: DType) -> Kernel {
    Kernel::new("kv_cache", entry)
        .with_type("T", dtype)
        .with("HEAD_DIM", heads.dim)
        .with("VEC", vector_width(heads.dim, dtype))
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
        cx.queue.launch(kernel, Grid::new(packed.rows(), THREADS), &args)
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

impl Op for CacheFill {
    fn name(&self) -> &'static str {
        "cache_fill"
    }

    fn attributes(&self) -> String {
        format!("{} samples={} prompts={} capacity={}", self.heads, self.samples, self.prompts, self.capacity)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [packed] = inputs else { return Err("takes packed rows".into()) };
        self.heads.check(packed)?;
        let Self { samples, prompts, capacity, .. } = *self;
        if prompts == 0 || !samples.is_multiple_of(prompts) || !packed.shape[0].is_multiple_of(prompts) {
            return Err(format!("{prompts} prompts of equal length share {samples} samples evenly"));
        }
        if packed.shape[0] / prompts > capacity {
            return Err(format!("the cache holds {capacity} positions"));
        }
        let width = 2 * self.heads.kv * self.heads.dim;
        Ok(vec![Spec::new([samples, capacity, width], packed.dtype)])
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        let kept = 2 * self.heads.kv * self.heads.dim * inputs[0].shape[0] * inputs[0].dtype.size();
        Cost { product_flops: 0.0, bytes: (kept + kept / self.prompts * self.samples) as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (kept, rows) = (2 * self.heads.kv * self.heads.dim, cx.input_spec(0).shape[0] / self.prompts);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (packed, cache) = (cx.input::<E>(0), cx.output::<E>(0));
            if !cx.adds(0) {
                cache.slice(0, cache.len()).fill(<E as Default>::default());
            }
            cx.pool.run(self.samples * rows, |task| {
                let (sample, row) = (task / rows, task % rows);
                let from = sample * self.prompts / self.samples * rows + row;
                let new = packed.slice(from * self.heads.width() + self.heads.key_at(0), kept);
                cache.slice((sample * self.capacity + row) * kept, kept).copy_from_slice(new);
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (packed, cache) = (cx.input_spec(0), cx.output_spec(0));
        if cache.elements() == 0 || packed.rows() == 0 {
            return Ok(());
        }
        if !cx.adds(0) {
            cx.queue.fill(cx.output(0), 0, cache.bytes())?;
        }
        let mut args: Vec<Arg> = vec![cx.input(0).into(), cx.output(0).into()];
        args.extend([self.heads.query, self.heads.kv, self.capacity].map(Arg::from));
        args.push(Arg::from(self.samples / self.prompts));
        let blocks = [(packed.rows() / self.prompts) as u32, self.samples as u32, 1];
        let grid = Grid { blocks, threads: THREADS, shared: 0 };
        cx.queue.launch(kernel("cache_fill", self.heads, packed.dtype), grid, &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let shapes = [(1, 1, 5, 5, Mode::Write), (6, 2, 7, 20, Mode::Add), (3, 3, 33, 64, Mode::Add)];
        let case = |(samples, prompts, rows, capacity, mode): (usize, usize, usize, usize, Mode)| {
            let heads = Heads { query: 4, kv: 2, dim: 32 };
            let packed = Spec::new([prompts * rows, heads.width()], precision.act_dtype);
            let op = CacheFill { heads, samples, prompts, capacity };
            let name = format!("b{samples} p{prompts} l{rows} s{capacity} {mode:?}").to_lowercase();
            Case::new(name, op, vec![(packed, Fill::Normal(0.0, 1.0))], move |inputs| {
                let kept = 2 * heads.kv * heads.dim;
                let mut cache = Array::zeros(&[samples, capacity, kept]);
                if let Some(before) = inputs.get(1) {
                    cache.data.clone_from(&before.data);
                }
                for sample in 0..samples {
                    let prompt = sample / (samples / prompts);
                    for row in 0..rows {
                        let new = &inputs[0].data[(prompt * rows + row) * heads.width()..][..heads.width()];
                        cache.data[(sample * capacity + row) * kept..][..kept]
                            .copy_from_slice(&new[heads.query * heads.dim..]);
                    }
                }
                vec![cache]
            })
            .differentiable(&[])
            .upstream(&[])
            .outputs(vec![(mode, Fill::Normal(0.0, 1.0))])
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}
