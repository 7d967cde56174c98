//! The gated activation of the feed-forward block: SwiGLU (Shazeer, 2020), `silu(gate) ⊙ up`.

use super::half::Half;
use super::lanes::{BLOCK, launch_packs, rows_per_task};
use super::mul::Mul;
use super::silu::{Silu, sigmoid, silu_slope};
use crate::device::cpu::ViewMut;
use crate::device::gpu::DevicePtr;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Emission, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId,
    Vjp,
};
use std::sync::Arc;

/// `y[N, f] = silu(gate) ⊙ up` of `gate_up[N, 2, f]`.
#[derive(Clone, Copy, Debug)]
pub struct Swiglu;

/// `(gate_up[N, 2, f], dy[N, f]) → d_gate_up[N, 2, f]`, and if it emits `(d_gate_up, y[N, f])`.
///
/// With `s = σ(gate)`: `d_gate = dy ⊙ up·s·(1 + gate·(1 - s))` and `d_up = dy ⊙ gate·s`.
#[derive(Clone, Copy, Debug)]
pub struct SwigluGrad {
    /// True if it also writes the output of [`Swiglu`].
    pub emits: bool,
}

/// `silu(gate)·up`, given `s = σ(gate)`. Forward and gradient share it, for the same bits.
#[inline(always)]
fn gated<A: Real>(gate: A, s: A, up: A) -> A {
    gate * s * up
}

impl Op for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        Half { index: 0 }.infer(inputs)
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (gate_up, dy) = (v.input(0), v.output_grad(0)?);
        v.backward(SwigluGrad { emits: false }, &[gate_up, dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let gate = b.emit1("gate", Half { index: 0 }, inputs)?;
        let silu = b.emit1("silu", Silu, &[gate])?;
        let up = b.emit1("up", Half { index: 1 }, inputs)?;
        let y = b.emit1("swiglu", Mul, &[silu, up])?;
        Ok(Some(vec![y]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.output_spec(0).rows(), cx.output_spec(0).width());
        dispatch_float!(cx.output_spec(0).dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            cx.pool.chunks(rows, rows_per_task(f), #[inline(always)] |start, len| {
                for r in start..start + len {
                    x.prefetch(2 * (r + 1) * f, 2 * f);
                    let (gate, up) = (x.slice(2 * r * f, f), x.slice((2 * r + 1) * f, f));
                    for ((y, gate), up) in y.slice(r * f, f).iter_mut().zip(gate).zip(up) {
                        let gate = gate.up();
                        *y = E::down(gated(gate, sigmoid(gate), up.up()));
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_packs(cx, ("swiglu", "swiglu"), cx.output_spec(0), &[cx.input(0), cx.output(0)], &[])
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |rows: usize, f: usize, pad: usize| {
            let spec = Spec::padded([rows, 2, f], [rows, 2, pad], precision.act_dtype);
            let reference = move |inputs: &[Array]| {
                let mut y = Array::zeros(&[rows, f]);
                for (y, x) in y.data.chunks_mut(f).zip(inputs[0].data.chunks(2 * f)) {
                    for c in 0..f {
                        y[c] = x[c] / (1.0 + (-x[c]).exp()) * x[f + c];
                    }
                }
                vec![y]
            };
            Case::new(format!("n{rows} f{f}"), Swiglu, vec![(spec, Fill::Normal(0.0, 2.0))], reference)
        };
        let shapes = [
            (1, 96, 96),
            (17, 65, 65),
            (255, 32, 32),
            (256, 24, 24),
            (1000, 40, 40),
            (9, 30, 64),
            (3, 700, 704),
        ];
        Cases::Own(shapes.into_iter().map(|(rows, f, pad)| case(rows, f, pad)).collect())
    }
}

impl Op for SwigluGrad {
    fn name(&self) -> &'static str {
        "swiglu_grad"
    }

    fn attributes(&self) -> String {
        String::from(if self.emits { "emits=y" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [gate_up, dy] = inputs else { return Err("takes gate_up and dy".into()) };
        let y = Swiglu.infer(&inputs[..1])?;
        if y[0].alloc != dy.alloc || y[0].dtype != dy.dtype {
            return Err("dy is [N, f] for gate_up [N, 2, f], of one format".into());
        }
        let mut outputs = vec![gate_up.clone()];
        outputs.extend(y.into_iter().filter(|_| self.emits));
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }, MayAlias { output: 1, input: 1 }]
    }

    fn emission(&self) -> Option<Emission> {
        let by = Arc::new(Self { emits: true });
        Some(Emission { of: Arc::new(Swiglu), inputs: vec![0], by })
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (rows, f) = (cx.input_spec(1).rows(), cx.input_spec(1).width());
        dispatch_float!(cx.output_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (x, dy, dx) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            let y: Option<ViewMut<'_, E>> = self.emits.then(|| cx.output::<E>(1));
            cx.pool.chunks(rows, rows_per_task(2 * f), #[inline(always)] |start, len| {
                let mut scratch = [[A::ZERO; BLOCK]; 3];
                let [gate, up, upstream] = &mut scratch;
                for r in start..start + len {
                    x.prefetch(2 * (r + 1) * f, 2 * f);
                    dy.prefetch((r + 1) * f, f);
                    for at in (0..f).step_by(BLOCK) {
                        let count = BLOCK.min(f - at);
                        let (to_gate, to_up) = (2 * r * f + at, (2 * r + 1) * f + at);
                        x.load(to_gate, &mut gate[..count]);
                        x.load(to_up, &mut up[..count]);
                        dy.load(r * f + at, &mut upstream[..count]);
                        let from = gate.iter_mut().zip(&*up).zip(&*upstream);
                        let to = dx.slice(to_gate, count).iter_mut().zip(dx.slice(to_up, count));
                        for ((d_gate, d_up), ((gate, up), dy)) in to.zip(from) {
                            let s = sigmoid(*gate);
                            *d_gate = E::down(*dy * *up * silu_slope(*gate, s));
                            *d_up = E::down(*dy * (*gate * s));
                            *gate = gated(*gate, s, *up);
                        }
                        if let Some(y) = y {
                            y.store(r * f + at, &gate[..count]);
                        }
                    }
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let entry = if self.emits { "swiglu_grad_emitting" } else { "swiglu_grad" };
        let tensors: Vec<DevicePtr> = cx.inputs.iter().chain(cx.outputs).copied().collect();
        launch_packs(cx, ("swiglu", entry), cx.input_spec(1), &tensors, &[])
    }

    fn cases(&self, _precision: Precision) -> Cases {
        Cases::GradientOf("swiglu")
    }
}
