//! An activation, applied to every element.

use super::activation::Activation;
use super::add::{elementwise_shapes, same_spec};
use super::lanes::{BLOCK, TASK, launch_over, vector_width};
use crate::device::cpu::ViewMut;
use crate::device::gpu::{DevicePtr, Kernel};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};
use std::sync::Arc;

/// `y = f(x)`, any shape.
#[derive(Clone, Copy, Debug)]
pub struct Activate(pub Activation);

/// `(x, dy) → dx = dy ⊙ f'(x)`, and if it emits `(dx, y)`.
#[derive(Clone, Copy, Debug)]
pub struct ActivateGrad {
    /// The function.
    pub of: Activation,
    /// True if it also writes the output of [`Activate`].
    pub emits: bool,
}

/// Queues a kernel over all elements of output 0.
fn launch(cx: &GpuNode<'_>, entry: &'static str, f: Activation) -> Result<()> {
    let spec = cx.output_spec(0);
    let vec = vector_width(spec.elements(), spec.dtype);
    let kernel = Kernel::new("activate", entry)
        .with_type("T", spec.dtype)
        .with("VEC", vec)
        .with("ACTIVATION", f.functor());
    let tensors: Vec<DevicePtr> = cx.inputs.iter().chain(cx.outputs).copied().collect();
    launch_over(cx, kernel, (spec.elements(), vec), &tensors, &[])
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        match self.0 {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Relu => "relu",
            Activation::Relu2 => "relu2",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err("takes one float tensor".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (x, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(ActivateGrad { of: self.0, emits: false }, &[x, dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut block = [<E as Elem>::Acc::ZERO; BLOCK];
                for at in (start..start + len).step_by(BLOCK) {
                    let block = &mut block[..BLOCK.min(start + len - at)];
                    x.load(at, block);
                    self.0.values(block);
                    y.store(at, block);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, "activate", self.0)
    }

    fn cases(&self, precision: Precision) -> Cases {
        let f = self.0;
        let case = |spec: Spec| {
            let inputs = vec![(spec.clone(), Fill::Normal(0.0, 3.0))];
            Case::new(format!("{:?}", spec.shape), *self, inputs, move |inputs: &[Array]| {
                let mut y = inputs[0].clone();
                y.data.iter_mut().for_each(|x| *x = f.plain(*x));
                vec![y]
            })
        };
        Cases::Own(elementwise_shapes(precision).into_iter().map(case).collect())
    }
}

impl Op for ActivateGrad {
    fn name(&self) -> &'static str {
        match self.of {
            Activation::Silu => "silu_grad",
            Activation::Gelu => "gelu_grad",
            Activation::GeluTanh => "gelu_tanh_grad",
            Activation::Relu => "relu_grad",
            Activation::Relu2 => "relu2_grad",
        }
    }

    fn attributes(&self) -> String {
        String::from(if self.emits { "emits=y" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let dx = same_spec(inputs)?;
        Ok([&dx[..], if self.emits { &dx } else { &[] }].concat())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let pairs = [(0, 1), (0, 0), (1, 1), (1, 0)];
        pairs.into_iter().map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true, ..*self });
        Some(Emission { of: Arc::new(Activate(self.of)), inputs: vec![0], by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(1));
            cx.pool.chunks(x.len(), TASK, #[inline(always)] |start, len| {
                let mut blocks = [[<E as Elem>::Acc::ZERO; BLOCK]; 3];
                for at in (start..start + len).step_by(BLOCK) {
                    let count = BLOCK.min(start + len - at);
                    let [value, slope, upstream] = blocks.each_mut().map(|block| &mut block[..count]);
                    x.load(at, value);
                    dy.load(at, upstream);
                    self.of.values_and_slopes(value, slope);
                    for (d, slope) in upstream.iter_mut().zip(&*slope) {
                        *d *= *slope;
                    }
                    dx.store(at, upstream);
                    if let Some(y) = y {
                        y.store(at, value);
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch(cx, if self.emits { "activate_grad_emitting" } else { "activate_grad" }, self.of)
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf(Activate(self.of).name())
    }
}
