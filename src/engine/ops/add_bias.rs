//! Adds a bias to every row.

use super::lanes::{
    launch_packs, launch_sum_partials, reduce_partials, row_matrix, rows_per_partial, rows_per_task,
    vector_width,
};
use crate::device::gpu::{Grid, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `(x[N, …], b[…]) → y = x + b` in every row. The bias has the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddBias;

/// `dy[N, …] → (db[…], partials[runs, width])` with `db = Σ_rows dy`. Each run of rows is summed into its row
/// of the scratch `partials`; then the runs are summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddBiasGrad;

/// Returns the spec of the bias for rows like `x`.
///
/// # Errors
/// If `x` is not a float tensor of rows.
pub(super) fn bias_spec(x: &Spec) -> Result<Spec, String> {
    if x.shape.len() < 2 || !x.dtype.is_float() {
        return Err("x must be a float tensor [N, width] or [N, 2, width]".into());
    }
    Ok(Spec::padded(&x.shape[1..], &x.alloc[1..], x.dtype.accumulator()))
}

impl Op for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, b] = inputs else { return Err("takes x and b".into()) };
        let bias = bias_spec(x)?;
        if *b != bias {
            return Err(format!("b must be {bias}"));
        }
        Ok(vec![x.clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        v.set_input_grad(0, dy);
        v.backward(AddBiasGrad, &[dy], &[1]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let rows = row_matrix(cx.input_spec(0));
        let d = rows.width();
        dispatch_float!(rows.dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let b = cx.input::<<E as Elem>::Acc>(1).slice(0, d);
            cx.pool.chunks(rows.rows(), rows_per_task(d), #[inline(always)] |start, len| {
                let mut row = vec![<E as Elem>::Acc::ZERO; d];
                for r in start..start + len {
                    x.load(r * d, &mut row);
                    row.iter_mut().zip(b).for_each(|(x, b)| *x += *b);
                    y.store(r * d, &row);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (rows, tensors) = (row_matrix(cx.input_spec(0)), [cx.input(0), cx.output(0)]);
        launch_packs(cx, ("add_bias", "add_bias"), &rows, &tensors, &[cx.input(1).into()])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |shape: Vec<usize>, alloc: Vec<usize>| {
            let rows = shape[0];
            let name = format!("{shape:?}");
            let bias = Spec::padded(&shape[1..], &alloc[1..], precision.master);
            let inputs = vec![
                (Spec::padded(shape, alloc, precision.act_dtype), Fill::Normal(0.0, 1.0)),
                (bias, Fill::Normal(0.3, 0.5)),
            ];
            Case::new(name, AddBias, inputs, |inputs: &[Array]| {
                let (mut y, b) = (inputs[0].clone(), &inputs[1].data);
                for row in y.data.chunks_mut(b.len()) {
                    row.iter_mut().zip(b).for_each(|(y, b)| *y += b);
                }
                vec![y]
            })
            .weights(&[1])
            .depth(rows)
        };
        let whole = [vec![1, 128], vec![17, 96], vec![255, 64], vec![1000, 40], vec![33, 5], vec![9, 4608]];
        let mut cases: Vec<Case> = whole.into_iter().map(|shape| case(shape.clone(), shape)).collect();
        cases.push(case(vec![9, 30], vec![9, 64]));
        cases.push(case(vec![65, 2, 30], vec![65, 2, 64]));
        Cases::Own(cases)
    }
}

impl Op for AddBiasGrad {
    fn name(&self) -> &'static str {
        "add_bias_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [dy] = inputs else { return Err("takes dy".into()) };
        let db = bias_spec(dy)?;
        let rows = row_matrix(dy);
        let runs = rows.rows().div_ceil(rows_per_partial(rows.rows()));
        let partials = Spec::new([runs, rows.width()], db.dtype);
        Ok(vec![db, partials])
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let matrix = row_matrix(cx.input_spec(0));
        let (rows, d) = (matrix.rows(), matrix.width());
        let run = rows_per_partial(rows);
        dispatch_float!(matrix.dtype, E => {
            type A = <E as Elem>::Acc;
            let (dy, partials) = (cx.input::<E>(0), cx.output::<A>(1));
            cx.pool.chunks(rows, run, #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 2 * d];
                let (row, sum) = scratch.split_at_mut(d);
                for r in start..start + len {
                    dy.load(r * d, row);
                    sum.iter_mut().zip(&*row).for_each(|(sum, d)| *sum += *d);
                }
                partials.put(start / run * d, sum, false);
            });
            reduce_partials(cx.pool, (partials, d), 0, cx.output::<A>(0), cx.adds(0));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// The most threads in a block, and the threads in a warp.
        const THREADS: usize = 256;
        const WARP: usize = 32;
        let matrix = row_matrix(cx.input_spec(0));
        let (rows, width) = (matrix.rows(), matrix.width());
        if rows == 0 {
            return Ok(());
        }
        let vec = vector_width(width, matrix.dtype);
        let threads = (width / vec).next_multiple_of(WARP).min(THREADS);
        let run = rows_per_partial(rows);
        let kernel = Kernel::new("add_bias", "add_bias_grad")
            .with("T", matrix.dtype)
            .with("WIDTH", width)
            .with("VEC", vec)
            .with("THREADS", threads);
        let blocks = rows.div_ceil(run) * (width / vec).div_ceil(threads);
        let args = [cx.input(0).into(), cx.output(1).into(), rows.into(), run.into()];
        cx.queue.launch(kernel, Grid::new(blocks, threads as u32), &args)?;
        launch_sum_partials(cx, 1, &[0])
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<AddBias>()
    }
}
