//! Keeps the keys and values of whole prompts in the state, for generation.

use super::attention::Heads;
use super::lanes::vector_width;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `packed [P·L, (H+2·KV)·dim] → cache [B, S, 2·KV·dim]`: writes the keys and values of whole prompts of L
/// rows at the positions from 0 on. Sample b gets the prompt b·P/B, so neighbors share a prompt. With
/// `Mode::Add` the rest of the cache is kept; with `Mode::Write` it is zeroed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheFill {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Number of samples: B.
    pub samples: usize,
    /// Number of prompts: P, a divisor of B.
    pub prompts: usize,
    /// Number of positions in the cache: S.
    pub capacity: usize,
}

/// Threads per block.
const THREADS: u32 = 128;

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
            return Err(format!("{prompts} prompts of equal length must share {samples} samples evenly"));
        }
        if packed.shape[0] / prompts > capacity {
            return Err(format!("a prompt is longer than the cache, which holds {capacity} positions"));
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
        let kernel = Kernel::new("kv_cache", "cache_fill")
            .with("T", packed.dtype)
            .with("HEAD_DIM", self.heads.dim)
            .with("VEC", vector_width(self.heads.dim, packed.dtype));
        cx.queue.launch(kernel, grid, &args)
    }

    fn cases(precision: Precision) -> Cases {
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
            .without_gradient()
            .outputs(vec![(mode, Fill::Normal(0.0, 1.0))])
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}
