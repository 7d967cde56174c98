//! Norm of every query and key head, alone or with the rotary position embedding before or after it, in one
//! pass over the packed rows.

mod cases;
mod cpu;
mod gpu;

use super::attention::Heads;
use super::lanes::rows_per_partial;
use super::rope::{Rope, check, positions, reference as reference_rope, variants};
use super::rotary::Rotary;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};
use cpu::Pass;

/// `(qkv [N, (H+2·KV)·dim][, wq [dim], wk [dim]][, positions [N] u32]) → packed [N, (H+2·KV)·dim]`.
///
/// Applies the [norm](QkNorm) to query and key heads, then the [rotation](Rotary) by the angles of their
/// position, as in Qwen3; or the rotation first, as in nanochat. Without weights, and if whole heads rotate
/// without a factor, both orders are the same function, rounded differently. Values are copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRope {
    /// The norm.
    pub norm: QkNorm,
    /// The rotation; `None` for the norm alone, which takes no positions.
    pub rotation: Option<HeadRotation>,
}

/// Each query head x becomes `x / √(mean(x²) + eps) · wq`, and each key head the same with wk. Without
/// weights, heads are only normalized. The weights have the accumulator format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Layout of the heads in a row.
    pub heads: Heads,
    /// Added to the mean square.
    pub eps: f64,
    /// True if normalized heads are multiplied by weights.
    pub weighted: bool,
}

/// A rotation beside the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRotation {
    /// The rotation.
    pub rotary: Rotary,
    /// True to rotate before the norm, false to rotate after it.
    pub first: bool,
}

/// `(qkv[, wq, wk][, positions], d_packed) → (d_qkv[, dwq, dwk, partials [tasks, 2·dim]])`. Recomputes
/// reciprocal norms, and rotates heads again if they were rotated first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRopeGrad(pub QkNormRope);

impl QkNorm {
    /// Returns the number of inputs: the rows, and the weights if there are any.
    fn input_count(&self) -> usize {
        if self.weighted { 3 } else { 1 }
    }
}

impl QkNormRope {
    /// Returns the number of inputs. In the gradient, `d_packed` follows them.
    fn input_count(&self) -> usize {
        self.norm.input_count() + usize::from(self.rotation.is_some())
    }

    /// Checks the inputs, or with `upstream` those of the gradient.
    fn check(&self, inputs: &[Spec], upstream: bool) -> Result<(), String> {
        let mut names = vec!["qkv"];
        names.extend(["wq", "wk"].into_iter().filter(|_| self.norm.weighted));
        names.extend(self.rotation.map(|_| "positions"));
        names.extend(upstream.then_some("d_packed"));
        if inputs.len() != names.len() {
            return Err(format!("takes {}", names.join(", ")));
        }
        let (qkv, heads, own) = (&inputs[0], self.norm.heads, self.norm.input_count());
        heads.check(qkv)?;
        if !heads.dim.is_multiple_of(2) {
            return Err("heads must have an even width".into());
        }
        let weight = Spec::new([heads.dim], qkv.dtype.accumulator());
        if inputs[1..own].iter().any(|w| *w != weight) {
            return Err(format!("wq and wk must be {weight}"));
        }
        if let Some(rotation) = self.rotation {
            check(heads, rotation.rotary, qkv, &inputs[own])?;
        }
        if inputs[self.input_count()..].iter().any(|d| d.alloc != qkv.alloc || d.dtype != qkv.dtype) {
            return Err("d_packed must have the shape and format of qkv".into());
        }
        Ok(())
    }
}

impl Op for QkNormRope {
    fn name(&self) -> &'static str {
        if self.rotation.is_some() { "qk_norm_rope" } else { "qk_norm" }
    }

    fn attributes(&self) -> String {
        let QkNorm { heads, eps, weighted } = self.norm;
        let norm = format!("{heads} eps={eps:e}{}", if weighted { "" } else { " unweighted" });
        let Some(HeadRotation { rotary, first }) = self.rotation else { return norm };
        format!("{norm} {}{}", rotary.attributes(heads.dim), if first { " rotates_first" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        self.check(inputs, false)?;
        Ok(vec![inputs[0].clone()])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs: Vec<TensorId> = (0..self.input_count()).map(|i| v.input(i)).collect();
        inputs.push(v.output_grad(0)?);
        v.backward(QkNormRopeGrad(*self), &inputs, &[0, 1, 2][..self.norm.input_count()]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let Some(HeadRotation { rotary, first }) = self.rotation else { return Ok(None) };
        let rope = Rope { heads: self.norm.heads, rotary, inverse: false };
        let (rows, positions) = (inputs[0], inputs[self.norm.input_count()]);
        let norm = |b: &mut Builder, name: &str, rows: TensorId| {
            let weights = &inputs[1..self.norm.input_count()];
            b.emit1(name, Self { rotation: None, ..*self }, &[&[rows], weights].concat())
        };
        let packed = if first {
            let rotated = b.emit1("rotated", rope, &[rows, positions])?;
            norm(b, "packed", rotated)?
        } else {
            let normal = norm(b, "qk_norm", rows)?;
            b.emit1("packed", rope, &[normal, positions])?
        };
        Ok(Some(vec![packed]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => Pass::<E>::new(cx, self).forward(cx));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::launch(cx, self, None)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, op): (usize, QkNormRope)| {
            let QkNormRope { norm, rotation } = op;
            let own = norm.input_count();
            let mut inputs = cases::inputs(n, norm, precision);
            inputs.extend(rotation.map(|rotation| positions(n, rotation.rotary)));
            Case::new(format!("n{n} {}", op.attributes()), op, inputs, move |inputs| {
                let (rows, weights) = (&inputs[0], &inputs[1..own]);
                let rotated = |rows: &Array, rotary| reference_rope(norm.heads, rotary, rows, &inputs[own]);
                vec![match rotation {
                    None => cases::reference(norm, rows, weights),
                    Some(HeadRotation { rotary, first: true }) => {
                        cases::reference(norm, &rotated(rows, rotary), weights)
                    }
                    Some(HeadRotation { rotary, first: false }) => {
                        rotated(&cases::reference(norm, rows, weights), rotary)
                    }
                }]
            })
            .weights(&[1, 2][..own - 1])
            .depth(n.max(norm.heads.dim) * norm.heads.query)
        };
        let of = |n, heads, rotation, weighted| {
            (n, QkNormRope { norm: QkNorm { heads, eps: 1e-6, weighted }, rotation })
        };
        let whole = |heads: Heads, first| {
            Some(HeadRotation { rotary: Rotary::with_whole_heads(heads.dim, 10_000.0), first })
        };
        let plain = cases::shapes().map(|(n, heads)| of(n, heads, whole(heads, false), true));
        // The plain rotation comes in both places, with and without weights; each other rotation comes in
        // both places.
        let (n, heads) = (40, Heads { query: 3, kv: 1, dim: 32 });
        let everywhere = [(false, false), (false, true), (true, false), (true, true)]
            .map(|(weighted, first)| of(n, heads, whole(heads, first), weighted));
        let rotations = variants().flat_map(|(n, heads, rotary)| {
            [(true, false), (false, true)]
                .map(|(weighted, first)| of(n, heads, Some(HeadRotation { rotary, first }), weighted))
        });
        let alone = cases::shapes()
            .take(3)
            .flat_map(|(n, heads)| [true, false].map(|weighted| of(n, heads, None, weighted)));
        Cases::Own(plain.chain(everywhere).chain(rotations).chain(alone).map(case).collect())
    }
}

impl Op for QkNormRopeGrad {
    fn name(&self) -> &'static str {
        if self.0.rotation.is_some() { "qk_norm_rope_grad" } else { "qk_norm_grad" }
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        self.0.check(inputs, true)?;
        let (qkv, QkNorm { heads, weighted, .. }) = (&inputs[0], self.0.norm);
        let mut outputs = vec![qkv.clone()];
        if weighted {
            let (rows, weight) = (qkv.shape[0], Spec::new([heads.dim], qkv.dtype.accumulator()));
            let tasks = rows.div_ceil(rows_per_partial(rows));
            let partials = Spec::new([tasks, 2 * heads.dim], weight.dtype);
            outputs.extend([weight.clone(), weight, partials]);
        }
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        [self.0.input_count(), 0].into_iter().map(|input| MayAlias { output: 0, input }).collect()
    }

    fn accumulates(&self, output: usize) -> bool {
        matches!(output, 1 | 2)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let upstream = self.0.input_count();
        dispatch_float!(cx.input_spec(0).dtype, E => Pass::<E>::new(cx, &self.0).backward(cx, upstream));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        gpu::launch(cx, &self.0, Some(self.0.input_count()))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<QkNormRope>()
    }
}
