//! Selects the row of each prompt's last token, for generation.

use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec};
use crate::ops::lanes::vector_width;

/// `(x [P·L, d], positions [B] u32) → y [B, d]`: selects row `positions[b]` of prompt b·P/B. Neighbors share
/// a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectRows {
    /// Number of prompts: P, a divisor of B.
    pub prompts: usize,
}

/// Threads per block; a block copies one row.
const THREADS: u32 = 128;

impl Op for SelectRows {
    fn name(&self) -> &'static str {
        "select_rows"
    }

    fn attributes(&self) -> String {
        format!("prompts={}", self.prompts)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, positions] = inputs else { return Err("takes rows and positions".into()) };
        if x.shape.len() != 2 || x.shape[0] != x.alloc[0] || x.dtype == DType::U32 {
            return Err("x must be [P·L, d] in a float format".into());
        }
        let samples = positions.elements();
        if positions.dtype != DType::U32
            || self.prompts == 0
            || !samples.is_multiple_of(self.prompts)
            || !x.shape[0].is_multiple_of(self.prompts)
        {
            return Err(format!("{} prompts of equal length must share the samples evenly", self.prompts));
        }
        Ok(vec![Spec::padded([samples, x.shape[1]], [samples, x.width()], x.dtype)])
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (x, positions) = (cx.input_spec(0), cx.input_u32(1));
        let (rows, width) = (x.shape[0] / self.prompts, x.width());
        if let Some(position) = positions.iter().find(|p| **p as usize >= rows) {
            return Err(Error::failed(format!("position {position} is beyond a prompt of {rows} rows")));
        }
        dispatch_float!(x.dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            for (sample, position) in positions.iter().enumerate() {
                let from = sample * self.prompts / positions.len() * rows + *position as usize;
                y.slice(sample * width, width).copy_from_slice(x.slice(from * width, width));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (x, samples) = (cx.input_spec(0), cx.input_spec(1).elements());
        if samples == 0 {
            return Ok(());
        }
        let kernel = Kernel::new("select_rows", "select_rows")
            .with("T", x.dtype)
            .with("VEC", vector_width(x.width(), x.dtype));
        let mut args: Vec<Arg> = [cx.input(0), cx.input(1), cx.output(0)].into_iter().map(Arg::Ptr).collect();
        args.extend([x.shape[0] / self.prompts, x.width(), samples / self.prompts].map(Arg::from));
        cx.queue.launch(kernel, Grid::new(samples, THREADS), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(prompts, rows, samples, d): (usize, usize, usize, usize)| {
            let inputs = vec![
                (Spec::new([prompts * rows, d], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([samples], DType::U32), Fill::Below(rows as u32)),
            ];
            let name = format!("p{prompts} l{rows} b{samples} d{d}");
            Case::new(name, SelectRows { prompts }, inputs, move |inputs| {
                let mut y = Array::zeros(&[samples, d]);
                for sample in 0..samples {
                    let row = sample / (samples / prompts) * rows + inputs[1].data[sample] as usize;
                    y.data[sample * d..][..d].copy_from_slice(&inputs[0].data[row * d..][..d]);
                }
                vec![y]
            })
            .without_gradient()
        };
        Cases::Own([(1, 1, 1, 7), (1, 33, 5, 64), (4, 20, 4, 96), (2, 17, 6, 1500)].map(case).into())
    }
}
