//! Rows of earlier tokens of the same document.

mod cache;

pub use cache::{CachedShift, ShiftFill};

use super::lanes::{launch_packs, row_matrix, rows_per_task};
use crate::device::DType;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec, Vjp};

/// `(x[N, …], positions[N]) → y[N, …]`: the rows `by` tokens earlier, and zeros where the position is below
/// `by`. With `backward`, the gradient: the rows `by` tokens later, if they have such a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// The number of tokens.
    pub by: usize,
    /// True for the gradient.
    pub backward: bool,
}

impl Shift {
    /// Returns the row that gives row `r` of the output; `None` for zeros.
    fn source(self, r: usize, positions: &[u32]) -> Option<usize> {
        let (later, earlier) = if self.backward { (r + self.by, r) } else { (r, r.checked_sub(self.by)?) };
        let has_earlier = *positions.get(later)? as usize >= self.by;
        has_earlier.then_some(if self.backward { later } else { earlier })
    }
}

impl Op for Shift {
    fn name(&self) -> &'static str {
        if self.backward { "shift_grad" } else { "shift" }
    }

    fn attributes(&self) -> String {
        format!("by={}", self.by)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x, positions]
                if x.shape.len() > 1
                    && x.dtype.is_float()
                    && positions.dtype == DType::U32
                    && positions.elements() == x.alloc[0] =>
            {
                Ok(vec![x.clone()])
            }
            _ => Err("takes float rows and a position for each".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.output_grad(0)?, v.input(1)];
        v.backward(Self { backward: !self.backward, ..*self }, &inputs, &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let rows = row_matrix(cx.input_spec(0));
        let (positions, width) = (cx.input_u32(1), rows.width());
        dispatch_float!(rows.dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows.rows(), rows_per_task(width), |start, len| {
                for row in start..start + len {
                    let to = y.slice(row * width, width);
                    match self.source(row, positions) {
                        Some(source) => to.copy_from_slice(x.slice(source * width, width)),
                        None => to.fill(E::default()),
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (rows, tensors) = (row_matrix(cx.input_spec(0)), [cx.input(0), cx.output(0)]);
        let further = [cx.input(1).into(), self.by.into(), rows.rows().into()];
        launch_packs(cx, ("shift", self.name()), &rows, &tensors, &further)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |by: usize, documents: &[u32], width: usize| {
            let positions: Vec<f64> =
                documents.iter().flat_map(|length| (0..*length).map(f64::from)).collect();
            let rows = positions.len();
            let inputs = vec![
                (Spec::new([rows, width], precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (Spec::new([rows], DType::U32), Fill::Values(positions)),
            ];
            let name = format!("by{by} n{rows} w{width}");
            Case::new(name, Shift { by, backward: false }, inputs, move |inputs: &[Array]| {
                let mut y = Array::zeros(&[rows, width]);
                for row in by..rows {
                    if inputs[1].data[row] >= by as f64 {
                        y.data[row * width..][..width]
                            .copy_from_slice(&inputs[0].data[(row - by) * width..][..width]);
                    }
                }
                vec![y]
            })
        };
        Cases::Own(vec![case(1, &[5, 1, 11], 24), case(3, &[2, 30, 3], 7), case(64, &[40, 100], 8)])
    }
}
