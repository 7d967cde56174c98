//! Sums or means over the elements of heads.

use super::lanes::{rows_per_task, sum};
use super::pointwise::{Operand, Pointwise};
use crate::device::gpu::{Grid, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::expression::{Formula, Operator, Tree};
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec, Vjp};

/// `y[N, heads] = factor · Σ x[N, heads, width]` for `x[N, …]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadSum {
    /// Heads of a row.
    pub heads: usize,
    /// Factor of the sums: 1, or 1 / width for means.
    pub factor: f64,
}

impl HeadSum {
    /// Returns the number of rows and the width of a head.
    fn sizes(self, x: &Spec) -> (usize, usize) {
        let rows = x.shape[0];
        (rows, x.elements() / (rows * self.heads).max(1))
    }
}

impl Op for HeadSum {
    fn name(&self) -> &'static str {
        "head_sum"
    }

    fn attributes(&self) -> String {
        format!("heads={} factor={}", self.heads, self.factor)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.shape.len() > 1
                && x.alloc == x.shape
                && x.dtype.is_float()
                && self.heads > 0
                && x.shape[1..].iter().product::<usize>().is_multiple_of(self.heads) =>
            {
                Ok(vec![Spec::new([x.shape[0], self.heads], x.dtype)])
            }
            _ => Err(format!("takes float rows of {} heads, without padding", self.heads)),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (dy, x) = (v.output_grad(0)?, v.spec(v.input(0)).clone());
        let (_, width) = self.sizes(&x);
        let number = Operand { input: 0, from: 0, per_head: true, per_element: false };
        let times =
            Tree::Operation(Operator::Multiply, Tree::number(self.factor).into(), Tree::Variable(0).into());
        let spread = Pointwise::new(&Formula::from_tree(times, 1), vec![number], self.heads, width);
        v.backward(spread, &[dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, width) = self.sizes(cx.input_spec(0));
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            let factor = A::from_f64(self.factor);
            cx.pool.chunks(rows * self.heads, rows_per_task(width), #[inline(always)] |start, len| {
                let mut head = vec![A::ZERO; width];
                for at in start..start + len {
                    x.load(at * width, &mut head);
                    y.store(at, &[factor * sum(&head)]);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// Threads per block, and per head.
        const THREADS: usize = 256;
        const WARP: usize = 32;
        let (rows, width) = self.sizes(cx.input_spec(0));
        let heads = rows * self.heads;
        if heads == 0 {
            return Ok(());
        }
        let kernel =
            Kernel::new("head_sum", "head_sum").with("T", cx.input_spec(0).dtype).with("WIDTH", width);
        let args = [cx.input(0).into(), cx.output(0).into(), heads.into(), (self.factor as f32).into()];
        cx.queue.launch(kernel, Grid::new(heads.div_ceil(THREADS / WARP), THREADS as u32), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |rows: usize, heads: usize, width: usize, factor: f64| {
            let inputs =
                vec![(Spec::new([rows, heads * width], precision.act_dtype), Fill::Normal(0.2, 1.0))];
            Case::new(
                format!("n{rows} h{heads} w{width} times {factor}"),
                HeadSum { heads, factor },
                inputs,
                move |inputs: &[Array]| {
                    let sums = inputs[0].data.chunks(width).map(|head| factor * head.iter().sum::<f64>());
                    vec![Array { shape: vec![rows, heads], data: sums.collect() }]
                },
            )
            .depth(width)
        };
        Cases::Own(vec![
            case(17, 3, 64, 1.0),
            case(17, 3, 64, 0.5),
            case(9, 1, 700, 1.0 / 700.0),
            case(255, 4, 5, 0.2),
        ])
    }
}
