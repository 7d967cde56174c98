//! Norm of every query and key head and rotary position embedding, in either order, in one pass over the
//! packed rows.

mod cases;
mod cpu;
mod gpu;
mod norm;

pub use norm::QkNorm;

use super::attention::Heads;
use super::rope::{Rope, check, positions, reference as reference_rope, variants};
use super::rotary::{Rotary, Rotation};
use crate::device::Elem;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Builder, Case, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp};
use cpu::{HeadRotation, Pass};

/// `(qkv [N, (H+2·KV)·dim][, wq [dim], wk [dim]], positions [N] u32) → packed [N, (H+2·KV)·dim]`.
///
/// Applies the [norm](QkNorm) to query and key heads, then the [rotation](Rotary) by the angles of their
/// position, as in Qwen3; or the rotation first, as in nanochat. Without weights, and if whole heads rotate
/// without a factor, both orders are the same function, rounded differently. Values are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRope {
    /// The norm.
    pub norm: QkNorm,
    /// The rotation.
    pub rotary: Rotary,
    /// True to rotate before the norm, false to rotate after it.
    pub rotates_first: bool,
}

/// `(qkv[, wq, wk], positions, d_packed) → (d_qkv[, dwq, dwk, partials [tasks, 2·dim]])`. Recomputes
/// reciprocal norms, and rotates heads again if they were rotated first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRopeGrad(pub QkNormRope);

/// `(qkv[, wq, wk], d_packed) → (d_qkv[, dwq, dwk, partials [tasks, 2·dim]])`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormGrad(pub QkNorm);

impl QkNormRope {
    /// Runs `pass` with a table of the rotation that covers the positions.
    fn on_cpu<E: Elem>(&self, cx: &CpuNode<'_>, pass: impl FnOnce(Pass<'_, E>)) {
        let positions = cx.input_u32(self.norm.input_count());
        let rotation = Rotation::covering(positions, self.rotary);
        let turn = HeadRotation { rotation: &rotation, positions, first: self.rotates_first };
        pass(Pass::new(cx, self.norm, Some(turn)));
    }
}

impl Op for QkNormRope {
    fn name(&self) -> &'static str {
        "qk_norm_rope"
    }

    fn attributes(&self) -> String {
        let rotary = self.rotary.attributes(self.norm.heads.dim);
        format!(
            "{} {rotary}{}",
            self.norm.attributes(),
            if self.rotates_first { " rotates_first" } else { "" }
        )
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [positions] = self.norm.check(inputs, " and positions")?;
        check(self.norm.heads, self.rotary, &inputs[0], positions)?;
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs: Vec<TensorId> = (0..=self.norm.input_count()).map(|i| v.input(i)).collect();
        inputs.push(v.output_grad(0)?);
        v.backward(QkNormRopeGrad(*self), &inputs, self.norm.differentiated())?;
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let rope = Rope { heads: self.norm.heads, rotary: self.rotary, inverse: false };
        let (rows, weights, positions) =
            (inputs[0], &inputs[1..self.norm.input_count()], inputs[self.norm.input_count()]);
        let norm = |b: &mut Builder, name: &str, rows: TensorId| {
            b.emit1(name, self.norm, &[&[rows], weights].concat())
        };
        let packed = if self.rotates_first {
            let rotated = b.emit1("rotated", rope, &[rows, positions])?;
            norm(b, "packed", rotated)?
        } else {
            let normal = norm(b, "qk_norm", rows)?;
            b.emit1("packed", rope, &[normal, positions])?
        };
        Ok(Some(vec![packed]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => self.on_cpu::<E>(cx, |pass| pass.forward(cx)));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::launch(cx, self.norm, Some((self.rotary, self.rotates_first)), None)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, op): (usize, QkNormRope)| {
            let QkNormRope { norm, rotary, rotates_first } = op;
            let mut inputs = cases::inputs(n, norm, precision);
            inputs.push(positions(n, rotary));
            let weights = &[1, 2][..norm.input_count() - 1];
            Case::new(format!("n{n} {}", op.attributes()), op, inputs, move |inputs| {
                let (rows, weights) = (&inputs[0], &inputs[1..norm.input_count()]);
                let positions = &inputs[norm.input_count()];
                vec![if rotates_first {
                    let rotated = reference_rope(norm.heads, rotary, rows, positions);
                    cases::reference(norm, &rotated, weights)
                } else {
                    let normal = cases::reference(norm, rows, weights);
                    reference_rope(norm.heads, rotary, &normal, positions)
                }]
            })
            .weights(weights)
            .depth(n.max(norm.heads.dim) * norm.heads.query)
        };
        let plain = cases::shapes().map(|(n, heads)| {
            let norm = QkNorm { heads, eps: 1e-6, weighted: true };
            let rotary = Rotary::with_whole_heads(heads.dim, 10_000.0);
            (n, QkNormRope { norm, rotary, rotates_first: false })
        });
        // The plain rotation comes in both places, with and without weights; each other rotation comes in
        // both places.
        let (n, heads) = (40, Heads { query: 3, kv: 1, dim: 32 });
        let of = move |n, heads, rotary, weighted, rotates_first| {
            (n, QkNormRope { norm: QkNorm { heads, eps: 1e-6, weighted }, rotary, rotates_first })
        };
        let everywhere =
            [(false, false), (false, true), (true, false), (true, true)].map(|(weighted, first)| {
                of(n, heads, Rotary::with_whole_heads(heads.dim, 10_000.0), weighted, first)
            });
        let rotations = variants().flat_map(|(n, heads, rotary)| {
            [(true, false), (false, true)].map(|(weighted, first)| of(n, heads, rotary, weighted, first))
        });
        Cases::Own(plain.chain(everywhere).chain(rotations).map(case).collect())
    }
}

impl Op for QkNormRopeGrad {
    fn name(&self) -> &'static str {
        "qk_norm_rope_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [positions, dy] = self.0.norm.check(inputs, ", positions and d_packed")?;
        check(self.0.norm.heads, self.0.rotary, dy, positions)?;
        Ok(self.0.norm.gradients(dy))
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: self.0.norm.input_count() + 1 }, MayAlias { output: 0, input: 0 }]
    }

    fn accumulates(&self, output: usize) -> bool {
        matches!(output, 1 | 2)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let upstream = self.0.norm.input_count() + 1;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            self.0.on_cpu::<E>(cx, |pass| pass.backward(cx, upstream));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let QkNormRope { norm, rotary, rotates_first } = self.0;
        gpu::launch(cx, norm, Some((rotary, rotates_first)), Some(norm.input_count() + 1))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<QkNormRope>()
    }
}

impl Op for QkNorm {
    fn name(&self) -> &'static str {
        "qk_norm"
    }

    fn attributes(&self) -> String {
        self.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [] = self.check(inputs, "")?;
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs: Vec<TensorId> = (0..self.input_count()).map(|i| v.input(i)).collect();
        inputs.push(v.output_grad(0)?);
        v.backward(QkNormGrad(*self), &inputs, self.differentiated())?;
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => Pass::<E>::new(cx, *self, None).forward(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::launch(cx, *self, None, None)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, heads, weighted): (usize, Heads, bool)| {
            let norm = QkNorm { heads, eps: 1e-6, weighted };
            let inputs = cases::inputs(n, norm, precision);
            Case::new(format!("n{n} {}", norm.attributes()), norm, inputs, move |inputs| {
                vec![cases::reference(norm, &inputs[0], &inputs[1..norm.input_count()])]
            })
            .weights(&[1, 2][..norm.input_count() - 1])
            .depth(n.max(heads.dim) * heads.query)
        };
        let shapes = cases::shapes().take(3);
        Cases::Own(
            shapes.flat_map(|(n, heads)| [true, false].map(|weighted| case((n, heads, weighted)))).collect(),
        )
    }
}

impl Op for QkNormGrad {
    fn name(&self) -> &'static str {
        "qk_norm_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [dy] = self.0.check(inputs, " and d_packed")?;
        if *dy != inputs[0] {
            return Err("d_packed must have the shape and format of qkv".into());
        }
        Ok(self.0.gradients(dy))
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: self.0.input_count() }, MayAlias { output: 0, input: 0 }]
    }

    fn accumulates(&self, output: usize) -> bool {
        matches!(output, 1 | 2)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            Pass::<E>::new(cx, self.0, None).backward(cx, self.0.input_count());
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::launch(cx, self.0, None, Some(self.0.input_count()))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<QkNorm>()
    }
}
