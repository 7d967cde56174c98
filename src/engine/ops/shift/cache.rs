//! The rows that generation keeps for a shift: the last ones of every sample, each at its position modulo
//! their number.

use super::Shift;
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};
use crate::ops::lanes::{launch_packs, vector_width};
use crate::ops::select_rows::SelectRows;

/// `(x[B, w], positions[B], cache[B, by, w]) → (y[B, w], cache)`: [`Shift`] of one row per sample. It takes
/// the row that was kept `by` tokens ago and keeps the new one in its place. The cache is both read and
/// written, so its mode is `Add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CachedShift {
    /// The number of tokens.
    pub by: usize,
}

/// `(x[P·L, w], positions[B]) → cache[B, by, w]`: keeps the row of each prompt's last token, which has
/// this position, and those before it. Sample b gets the prompt b·P/B, so neighbors share a prompt. With
/// `Mode::Add` other rows of the cache stay; with `Mode::Write` they are zeroed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShiftFill {
    /// The number of tokens.
    pub by: usize,
    /// Number of prompts: P, a divisor of B.
    pub prompts: usize,
}

impl Op for CachedShift {
    fn name(&self) -> &'static str {
        "cached_shift"
    }

    fn attributes(&self) -> String {
        format!("by={}", self.by)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, positions] = inputs else { return Err("takes rows and positions".into()) };
        let y = Shift { by: self.by, backward: false }.infer(&[x.clone(), positions.clone()])?;
        if x.alloc != x.shape || x.shape.len() != 2 {
            return Err("takes rows without padding".into());
        }
        Ok([y, vec![Spec::new([x.shape[0], self.by, x.shape[1]], x.dtype)]].concat())
    }

    fn cost(&self, inputs: &[Spec], _outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: 4.0 * inputs[0].bytes() as f64 }
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 1
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (positions, width) = (cx.input_u32(1), cx.input_spec(0).width());
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y, cache) = (cx.input::<E>(0), cx.output::<E>(0), cx.output::<E>(1));
            for (sample, position) in positions.iter().map(|&position| position as usize).enumerate() {
                let kept = cache.slice((sample * self.by + position % self.by) * width, width);
                let to = y.slice(sample * width, width);
                match position >= self.by {
                    true => to.copy_from_slice(kept),
                    false => to.fill(E::default()),
                }
                kept.copy_from_slice(x.slice(sample * width, width));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let tensors = [cx.input(0), cx.output(0)];
        let further = [cx.input(1).into(), cx.output(1).into(), self.by.into()];
        launch_packs(cx, ("shift", "cached_shift"), cx.input_spec(0), &tensors, &further)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |by: usize, positions: &[f64], width: usize| {
            let samples = positions.len();
            let inputs = vec![
                (Spec::new([samples, width], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([samples], DType::U32), Fill::Values(positions.to_vec())),
            ];
            let reference = move |inputs: &[Array]| {
                let mut y = Array::zeros(&[samples, width]);
                let mut cache = Array { shape: vec![samples, by, width], data: inputs[2].data.clone() };
                for sample in 0..samples {
                    let position = inputs[1].data[sample] as usize;
                    let at = (sample * by + position % by) * width;
                    if position >= by {
                        y.data[sample * width..][..width].copy_from_slice(&cache.data[at..][..width]);
                    }
                    cache.data[at..][..width].copy_from_slice(&inputs[0].data[sample * width..][..width]);
                }
                vec![y, cache]
            };
            Case::new(format!("by{by} b{samples} w{width}"), CachedShift { by }, inputs, reference)
                .without_gradient()
                .outputs(vec![(Mode::Write, Fill::Normal(0.0, 1.0)), (Mode::Add, Fill::Normal(0.0, 1.0))])
        };
        Cases::Own(vec![case(1, &[0.0, 1.0, 7.0], 24), case(3, &[2.0, 3.0, 9.0, 0.0], 5)])
    }
}

impl Op for ShiftFill {
    fn name(&self) -> &'static str {
        "shift_fill"
    }

    fn attributes(&self) -> String {
        format!("by={} prompts={}", self.by, self.prompts)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, positions] = inputs else { return Err("takes rows and positions".into()) };
        if x.alloc != x.shape {
            return Err("takes rows without padding".into());
        }
        let last = SelectRows { prompts: self.prompts }.infer(&[x.clone(), positions.clone()])?;
        Ok(vec![Spec::new([last[0].shape[0], self.by, x.shape[1]], x.dtype)])
    }

    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost { product_flops: 0.0, bytes: 2.0 * outputs[0].bytes() as f64 }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, width) = (cx.input_spec(0).shape[0] / self.prompts, cx.input_spec(0).width());
        let positions = cx.input_u32(1);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, cache) = (cx.input::<E>(0), cx.output::<E>(0));
            if !cx.adds(0) {
                cache.slice(0, cache.len()).fill(E::default());
            }
            for (sample, &position) in positions.iter().enumerate() {
                let prompt = sample * self.prompts / positions.len();
                let end = rows.min(position as usize + 1);
                for row in end.saturating_sub(self.by)..end {
                    let kept = cache.slice((sample * self.by + row % self.by) * width, width);
                    kept.copy_from_slice(x.slice((prompt * rows + row) * width, width));
                }
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        const THREADS: u32 = 128;
        let (x, cache) = (cx.input_spec(0), cx.output_spec(0));
        if cache.elements() == 0 {
            return Ok(());
        }
        if !cx.adds(0) {
            cx.queue.fill(cx.output(0), 0, cache.bytes())?;
        }
        let (rows, samples) = (x.shape[0] / self.prompts, cache.shape[0]);
        let kernel = Kernel::new("shift", "shift_fill")
            .with("T", x.dtype)
            .with("WIDTH", x.width())
            .with("VEC", vector_width(x.width(), x.dtype));
        let grid = Grid { blocks: [self.by as u32, samples as u32, 1], threads: THREADS, shared: 0 };
        let tensors = [cx.input(0), cx.input(1), cx.output(0)].map(Arg::from);
        let numbers = [rows, self.by, samples / self.prompts].map(Arg::from);
        cx.queue.launch(kernel, grid, &[tensors, numbers].concat())
    }

    fn cases(precision: Precision) -> Cases {
        let case =
            |by: usize, (prompts, rows): (usize, usize), positions: &[f64], width: usize, mode: Mode| {
                let samples = positions.len();
                let inputs = vec![
                    (Spec::new([prompts * rows, width], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                    (Spec::new([samples], DType::U32), Fill::Values(positions.to_vec())),
                ];
                let name = format!("by{by} b{samples} p{prompts} l{rows} {mode:?}").to_lowercase();
                let op = ShiftFill { by, prompts };
                Case::new(name, op, inputs, move |inputs: &[Array]| {
                    let mut cache = Array::zeros(&[samples, by, width]);
                    if let Some(before) = inputs.get(2) {
                        cache.data.clone_from(&before.data);
                    }
                    for sample in 0..samples {
                        let prompt = sample / (samples / prompts);
                        for row in (0..=inputs[1].data[sample] as usize).rev().take(by) {
                            cache.data[(sample * by + row % by) * width..][..width]
                                .copy_from_slice(&inputs[0].data[(prompt * rows + row) * width..][..width]);
                        }
                    }
                    vec![cache]
                })
                .without_gradient()
                .outputs(vec![(mode, Fill::Normal(0.0, 1.0))])
            };
        Cases::Own(vec![
            case(1, (2, 5), &[4.0, 3.0, 0.0, 2.0], 24, Mode::Add),
            case(2, (2, 5), &[4.0, 3.0, 0.0, 2.0], 24, Mode::Add),
            case(4, (3, 2), &[1.0, 0.0, 1.0], 7, Mode::Add),
            case(3, (1, 8), &[7.0, 4.0], 8, Mode::Write),
        ])
    }
}
