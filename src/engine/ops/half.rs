//! Selects one half of a packed tensor (gate or up) for the unfused SwiGLU. Unrelated to the fp16 type.

use super::lanes::{launch_packs, rows_per_task};
use crate::device::gpu::Arg;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec, Vjp};

/// `y[N, f] = x[N, index, f]` for `x[N, 2, f]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Half {
    /// The half: 0 or 1.
    pub index: usize,
}

/// `dx[N, 2, f]` with `dy[N, f]` in half `index` and zeros in the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HalfGrad {
    /// The half: 0 or 1.
    pub index: usize,
}

impl Op for Half {
    fn name(&self) -> &'static str {
        "half"
    }

    fn attributes(&self) -> String {
        format!("index={}", self.index)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.shape.len() == 3 && x.alloc[1] == 2 && x.dtype.is_float() && self.index < 2 => {
                Ok(vec![Spec::padded([x.shape[0], x.shape[2]], [x.alloc[0], x.alloc[2]], x.dtype)])
            }
            _ => Err("takes x [N, 2, f]".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        v.backward(HalfGrad { index: self.index }, &[dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(f), |start, len| {
                for r in start..start + len {
                    y.slice(r * f, f).copy_from_slice(x.slice((2 * r + self.index) * f, f));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let index = Arg::U32(self.index as u32);
        launch_packs(cx, ("half", "half"), cx.output_spec(0), &[cx.input(0), cx.output(0)], &[index])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |rows: usize, (f, pad): (usize, usize), index: usize| {
            let spec = Spec::padded([rows, 2, f], [rows, 2, pad], precision.act_dtype);
            let inputs = vec![(spec, Fill::Normal(0.0, 1.0))];
            Case::new(
                format!("n{rows} f{f} half {index}"),
                Half { index },
                inputs,
                move |inputs: &[Array]| {
                    let mut y = Array::zeros(&[rows, f]);
                    for (y, x) in y.data.chunks_mut(f).zip(inputs[0].data.chunks(2 * f)) {
                        y.copy_from_slice(&x[index * f..][..f]);
                    }
                    vec![y]
                },
            )
        };
        let mut cases = vec![case(9, (30, 64), 0), case(9, (30, 64), 1)];
        for rows in [1, 17, 255, 256, 1000] {
            cases.push(case(rows, (24, 24), rows % 2));
        }
        Cases::Own(cases)
    }
}

impl Op for HalfGrad {
    fn name(&self) -> &'static str {
        "half_grad"
    }

    fn attributes(&self) -> String {
        format!("index={}", self.index)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [dy] if dy.shape.len() == 2 && dy.dtype.is_float() && self.index < 2 => {
                Ok(vec![Spec::padded([dy.shape[0], 2, dy.shape[1]], [dy.alloc[0], 2, dy.alloc[1]], dy.dtype)])
            }
            _ => Err("takes dy [N, f]".into()),
        }
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.input_spec(0).rows(), cx.input_spec(0).width());
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (dy, dx) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(2 * f), |start, len| {
                for r in start..start + len {
                    let row = dx.slice(2 * r * f, 2 * f);
                    row.fill(E::default());
                    row[self.index * f..][..f].copy_from_slice(dy.slice(r * f, f));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let index = Arg::U32(self.index as u32);
        launch_packs(cx, ("half", "half_grad"), cx.input_spec(0), &[cx.input(0), cx.output(0)], &[index])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Half>()
    }
}
