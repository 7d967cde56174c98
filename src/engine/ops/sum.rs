//! The scaled sum of a vector, which turns the losses of rows into the loss of a batch.

use super::lanes::{self, BLOCK};
use crate::device::cpu::View;
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::Upstream;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec, Vjp};

/// The factor of a sum. It is rounded to the accumulator format where it multiplies numbers of that format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// A number.
    Constant(f64),
    /// `1 / count`, divided in f64. The op's last input is `count: u32[1]`, for counts that change from step
    /// to step.
    Reciprocal,
}

impl Factor {
    /// Returns the factor as an attribute of an op.
    pub fn attribute(self) -> String {
        match self {
            Self::Constant(factor) => format!("scale={factor:e}"),
            Self::Reciprocal => "scale=1/count".to_owned(),
        }
    }

    /// Splits off the input that holds the count.
    ///
    /// # Errors
    /// If the count is missing or is not u32[1].
    pub fn split(self, inputs: &[Spec]) -> Result<&[Spec], String> {
        match (self, inputs) {
            (Self::Constant(_), inputs) => Ok(inputs),
            (Self::Reciprocal, [inputs @ .., count]) if *count == Spec::new([1], DType::U32) => Ok(inputs),
            (Self::Reciprocal, _) => Err("the last input must be the count, u32[1]".into()),
        }
    }

    /// Returns the value of the factor for a node on the CPU.
    pub fn value(self, cx: &CpuNode<'_>) -> f64 {
        match self {
            Self::Constant(factor) => factor,
            Self::Reciprocal => 1.0 / f64::from(cx.input_u32(cx.inputs.len() - 1)[0]),
        }
    }

    /// Returns the factor and the address of the count as kernel arguments; one of the two is 0.
    pub fn kernel_args(self, cx: &GpuNode<'_>) -> (f64, DevicePtr) {
        match self {
            Self::Constant(factor) => (factor, 0),
            Self::Reciprocal => (0.0, cx.input(cx.inputs.len() - 1)),
        }
    }
}

/// `total[1] (+)= scale·Σ x[n]`, summed in f64, from `(x)` and the count if the [`Factor`] has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// The factor of the sum, such as 1 / rows for a mean.
    pub scale: Factor,
}

/// `dx[n] = scale·d_total`, from `(x, d_total[1])`, or from `(x)` if `d_total` is the constant 1, and the
/// count if the [`Factor`] has one.
///
/// Only the shape of `x` is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumGrad {
    /// See [`Sum::scale`].
    pub scale: Factor,
}

/// Sums block by block in f64, in order.
pub(super) fn total<E: Elem>(x: View<'_, E>) -> f64 {
    let mut total = 0.0;
    let mut wide = [0.0; BLOCK];
    for at in (0..x.len()).step_by(BLOCK) {
        let block = x.slice(at, BLOCK.min(x.len() - at));
        wide.iter_mut().zip(block).for_each(|(wide, x)| *wide = x.up().to_f64());
        total += lanes::sum(&wide[..block.len()]);
    }
    total
}

/// Threads per block; one block computes a sum.
pub(super) const THREADS: u32 = 1024;

pub(super) fn kernel(entry: &'static str, x: &Spec) -> Kernel {
    Kernel::new("sum", entry).with("T", x.dtype).with("THREADS", THREADS)
}

impl Op for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn attributes(&self) -> String {
        self.scale.attribute()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match self.scale.split(inputs)? {
            [x] if x.shape.len() == 1 && x.dtype.is_float() => Ok(vec![Spec::new([1], x.dtype)]),
            _ => Err("takes one float vector".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let grad = SumGrad { scale: self.scale };
        let mut inputs = vec![v.input(0)];
        if v.upstream(0) != Some(Upstream::One) {
            inputs.push(v.output_grad(0)?);
        }
        if self.scale == Factor::Reciprocal {
            inputs.push(v.input(1));
        }
        v.backward(grad, &inputs, &[0]).map(drop)
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    /// Runs as one task: there are few losses, and the order of addition is part of the result.
    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y, scale) = (cx.input::<E>(0), cx.output::<E>(0), self.scale.value(cx));
            cx.pool.run(1, #[inline(always)] |_| {
                let to = &mut y.slice(0, 1)[0];
                let before = if cx.adds(0) { to.up().to_f64() } else { 0.0 };
                *to = E::down(<E as Elem>::Acc::from_f64(before + scale * total(x)));
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let x = cx.input_spec(0);
        let (scale, count) = self.scale.kernel_args(cx);
        let args = [
            cx.input(0).into(),
            cx.output(0).into(),
            x.elements().into(),
            Arg::U64(scale.to_bits()),
            count.into(),
            usize::from(cx.adds(0)).into(),
        ];
        cx.queue.launch(kernel("sum", x), Grid::new(1, THREADS), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: String, n: usize, scale: Factor, count: Option<f64>| {
            let mut inputs = vec![(Spec::new([n], precision.master), Fill::Normal(4.0, 1.0))];
            inputs.extend(count.map(|count| (Spec::new([1], DType::U32), Fill::Values(vec![count]))));
            let first = inputs.len();
            Case::new(name, Sum { scale }, inputs, move |inputs: &[Array]| {
                let before = inputs.get(first).map_or(0.0, |total| total.data[0]);
                let sum: f64 = inputs[0].data.iter().sum();
                let scaled = match scale {
                    Factor::Constant(scale) => scale * sum,
                    Factor::Reciprocal => sum / inputs[1].data[0],
                };
                vec![Array { shape: vec![1], data: vec![before + scaled] }]
            })
        };
        let constant = |n: usize| case(format!("n{n}"), n, Factor::Constant(1.0 / n as f64), None);
        let mut cases: Vec<Case> = [1, 17, 255, 256, 1000].map(constant).into();
        let added = case("added to a total".into(), 300, Factor::Constant(0.5), None);
        cases.push(added.outputs(vec![(Mode::Add, Fill::Normal(0.0, 100.0))]).differentiable(&[]));
        for (n, count) in [(1, 3.0), (300, 700.0)] {
            cases.push(case(format!("n{n} over a count"), n, Factor::Reciprocal, Some(count)));
        }
        Cases::Own(cases)
    }
}

impl SumGrad {
    /// Returns true if an op with this number of inputs gets the gradient of the total.
    fn has_upstream(&self, inputs: usize) -> bool {
        inputs == if self.scale == Factor::Reciprocal { 3 } else { 2 }
    }
}

impl Op for SumGrad {
    fn name(&self) -> &'static str {
        "sum_grad"
    }

    fn attributes(&self) -> String {
        self.scale.attribute()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let inputs = self.scale.split(inputs)?;
        let ([x] | [x, _]) = inputs else { return Err("takes x, and d_total unless it is 1".into()) };
        if !x.dtype.is_float() || inputs.get(1).is_some_and(|d| *d != Spec::new([1], x.dtype)) {
            return Err("x must be a float vector, and d_total one number in its format".into());
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
            let d_total = if self.has_upstream(cx.inputs.len()) { cx.input::<E>(1).get(0) } else { A::ONE };
            let dx = cx.output::<E>(0);
            dx.slice(0, dx.len()).fill(E::down(A::from_f64(self.scale.value(cx)) * d_total));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let dx = cx.output_spec(0);
        let d_total = if self.has_upstream(cx.inputs.len()) { cx.input(1) } else { 0 };
        let (scale, count) = self.scale.kernel_args(cx);
        let args =
            [d_total.into(), cx.output(0).into(), dx.elements().into(), (scale as f32).into(), count.into()];
        cx.queue.launch(kernel("sum_grad", dx), Grid::covering(dx.elements(), 256), &args)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Sum>()
    }
}
