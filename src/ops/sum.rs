//! The scaled sum of a vector, which turns losses of rows into the loss of a batch.

use super::lanes::{self, BLOCK};
use crate::device::cpu::View;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::Upstream;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec, Vjp};

/// `total[1] (+)= scale·Σ x[n]`, summed in f64.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// Factor of the sum, such as 1 / rows for a mean.
    pub scale: f64,
}

/// `dx[n] = scale·d_total`, from `(x, d_total[1])`, or from `(x)` where `d_total` is the constant 1.
///
/// Only the shape of `x` is used.
#[derive(Clone, Copy, Debug)]
pub struct SumGrad {
    /// As [`Sum::scale`].
    pub scale: f64,
}

/// Sums block by block in f64, in order.
fn total<E: Elem>(x: View<'_, E>) -> f64 {
    let mut total = 0.0;
    let mut wide = [0.0; BLOCK];
    for at in (0..x.len()).step_by(BLOCK) {
        let block = x.slice(at, BLOCK.min(x.len() - at));
        wide.iter_mut().zip(block).for_each(|(wide, x)| *wide = x.up().to_f64());
        total += lanes::sum(&wide[..block.len()]);
    }
    total
}

/// Threads per block; the sum is one block.
const THREADS: u32 = 1024;

fn kernel(entry: &'static str, x: &Spec) -> Kernel {
    Kernel::new("sum", entry).with_type("T", x.dtype).with("THREADS", THREADS)
}

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn attributes(&self) -> String {
        format!("scale={:e}", self.scale)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.shape.len() == 1 && x.dtype.is_float() => Ok(vec![Spec::new([1], x.dtype)]),
            _ => Err("takes one float vector".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let grad = SumGrad { scale: self.scale };
        let x = v.input(0);
        match v.upstream(0) {
            Some(Upstream::One) => v.backward(grad, &[x], &[0])?,
            _ => {
                let d_total = v.output_grad(0)?;
                v.backward(grad, &[x, d_total], &[0])?
            }
        };
        Ok(())
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    /// One task: losses are few, and the order of addition is part of the result.
    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.run(1, #[inline(always)] |_| {
                let to = &mut y.slice(0, 1)[0];
                let before = if cx.adds(0) { to.up().to_f64() } else { 0.0 };
                *to = E::down(<E as Elem>::Acc::from_f64(before + self.scale * total(x)));
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let x = cx.input_spec(0);
        let args = [
            cx.input(0).into(),
            cx.output(0).into(),
            x.elements().into(),
            Arg::U64(self.scale.to_bits()),
            usize::from(cx.adds(0)).into(),
        ];
        cx.queue.launch(kernel("sum", x), Grid::new(1, THREADS), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |n: usize, scale: f64| {
            let inputs = vec![(Spec::new([n], precision.master), Fill::Normal(4.0, 1.0))];
            Case::new(format!("n{n}"), Sum { scale }, inputs, move |inputs: &[Array]| {
                let before = inputs.get(1).map_or(0.0, |total| total.data[0]);
                let sum: f64 = inputs[0].data.iter().sum();
                vec![Array { shape: vec![1], data: vec![before + scale * sum] }]
            })
        };
        let mut cases: Vec<Case> =
            [1, 17, 255, 256, 1000].into_iter().map(|n| case(n, 1.0 / n as f64)).collect();
        let mut added =
            case(300, 0.5).outputs(vec![(Mode::Add, Fill::Normal(0.0, 100.0))]).differentiable(&[]);
        added.name = "added to a total".into();
        cases.push(added);
        Cases::Own(cases)
    }
}

impl Op for SumGrad {
    fn name(&self) -> &'static str {
        "sum_grad"
    }

    fn attributes(&self) -> String {
        format!("scale={:e}", self.scale)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let ([x] | [x, _]) = inputs else { return Err("takes x and, at most, d_total".into()) };
        if !x.dtype.is_float() || inputs.get(1).is_some_and(|d| *d != Spec::new([1], x.dtype)) {
            return Err("x is a float vector and d_total one number of its format".into());
        }
        Ok(vec![x.clone()])
    }

    fn cost(&self, _inputs: &[Spec], outputs: &[Spec]) -> Cost {
        Cost::streaming(&[], outputs)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let d_total = if cx.inputs.len() == 2 { cx.input::<E>(1).get(0) } else { A::ONE };
            let dx = cx.output::<E>(0);
            dx.slice(0, dx.len()).fill(E::down(A::from_f64(self.scale) * d_total));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let dx = cx.output_spec(0);
        let d_total = if cx.inputs.len() == 2 { cx.input(1) } else { 0 };
        let args = [d_total.into(), cx.output(0).into(), dx.elements().into(), (self.scale as f32).into()];
        cx.queue.launch(kernel("sum_grad", dx), Grid::covering(dx.elements(), 256), &args)
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("sum")
    }
}
