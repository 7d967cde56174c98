//! Norm of every query and key head, alone or with the rotary position embedding before or after it, in one
//! pass over the packed rows.

mod cases;
mod cpu;
mod gpu;
mod norm;

pub use norm::{HeadRotation, QkNorm, QkNormRope};

use super::arrange::{Arrange, Piece};
use super::attention::Heads;
use super::lanes::rows_per_partial;
use super::rope::{Rope, positions, reference as reference_rope, variants};
use super::rotary::Rotary;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};
use cpu::Pass;

/// `(qkv[, wq, wk][, positions], d_packed) → (d_qkv[, dwq, dwk, partials [tasks, 2·dim]])`, or with values
/// apart `(qk, v, …, d_packed) → (d_qk, d_v, …)`. Recomputes reciprocal norms, and rotates heads again if
/// they were rotated first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRopeGrad(pub QkNormRope);

impl QkNormRope {
    /// Returns the op that packs values that are apart.
    fn joining(&self) -> Arrange {
        let part = |input, width| Piece { input: Some(input), from: 0, stride: 0, width };
        let (of_rows, all) = (self.row_width(), self.norm.heads.width());
        Arrange { heads: 1, pieces: vec![part(0, of_rows), part(1, all - of_rows)] }
    }
}

impl Op for QkNormRope {
    fn name(&self) -> &'static str {
        if self.rotation.is_some() { "qk_norm_rope" } else { "qk_norm" }
    }

    fn attributes(&self) -> String {
        let QkNorm { heads, eps, weighted, weight_offset } = self.norm;
        let apart = if self.values_apart { " values_apart" } else { "" };
        let weight = match weight_offset {
            _ if !weighted => " unweighted".into(),
            0.0 => String::new(),
            offset => format!(" weight_offset={offset}"),
        };
        let norm = format!("{heads} eps={eps:e}{weight}{apart}");
        let Some(HeadRotation { rotary, first }) = self.rotation else { return norm };
        format!("{norm} {}{}", rotary.attributes(heads.dim), if first { " rotates_first" } else { "" })
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        self.check(inputs, false)?;
        Ok(vec![self.packed(&inputs[0])])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let mut inputs: Vec<TensorId> = (0..self.input_count()).map(|i| v.input(i)).collect();
        inputs.push(v.output_grad(0)?);
        let wrt: Vec<usize> = (0..self.positions_at()).collect();
        v.backward(QkNormRopeGrad(*self), &inputs, &wrt).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        if self.values_apart { Vec::new() } else { vec![MayAlias { output: 0, input: 0 }] }
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        if self.values_apart {
            let joined = b.emit1("joined", self.joining(), &inputs[..2])?;
            let packed = Self { values_apart: false, ..*self };
            let inputs = [&[joined], &inputs[2..]].concat();
            return match packed.unfused(b, &inputs)? {
                Some(outputs) => Ok(Some(outputs)),
                None => Ok(Some(vec![b.emit1("packed", packed, &inputs)?])),
            };
        }
        let Some(HeadRotation { rotary, first }) = self.rotation else { return Ok(None) };
        let rope = Rope { heads: self.norm.heads, rotary, inverse: false };
        let (rows, positions) = (inputs[0], inputs[self.positions_at()]);
        let norm = |b: &mut Builder, name: &str, rows: TensorId| {
            let weights = &inputs[1..self.positions_at()];
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
            let QkNormRope { norm, rotation, .. } = op;
            let (weights_at, own) = (op.weights_at(), op.positions_at());
            let mut inputs = cases::inputs(n, op, precision);
            inputs.extend(rotation.map(|rotation| positions(n, rotation.rotary)));
            Case::new(format!("n{n} {}", op.attributes()), op, inputs, move |inputs| {
                let (rows, weights) = (&cases::packed(&inputs[..weights_at]), &inputs[weights_at..own]);
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
            .weights(&(weights_at..own).collect::<Vec<_>>())
            .depth(n.max(norm.heads.dim) * norm.heads.query)
        };
        let of = |n, heads, rotation, weighted| {
            let norm = QkNorm { heads, eps: 1e-6, weighted, weight_offset: 0.0 };
            (n, QkNormRope { norm, rotation, values_apart: false })
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
        let apart = everywhere.into_iter().chain([of(17, Heads { query: 4, kv: 2, dim: 64 }, None, true)]);
        let apart = apart.map(|(n, op)| (n, QkNormRope { values_apart: true, ..op }));
        let raised = [everywhere[2], everywhere[3], of(17, Heads { query: 4, kv: 2, dim: 64 }, None, true)];
        let raised =
            raised.map(|(n, op)| (n, QkNormRope { norm: QkNorm { weight_offset: 1.0, ..op.norm }, ..op }));
        let all = plain.chain(everywhere).chain(rotations).chain(alone).chain(apart).chain(raised);
        Cases::Own(all.map(case).collect())
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
        let (first, QkNorm { heads, weighted, .. }) = (&inputs[0], self.0.norm);
        let mut outputs = inputs[..self.0.weights_at()].to_vec();
        if weighted {
            let (rows, weight) = (first.shape[0], Spec::new([heads.dim], first.dtype.accumulator()));
            let tasks = rows.div_ceil(rows_per_partial(rows));
            let partials = Spec::new([tasks, 2 * heads.dim], weight.dtype);
            outputs.extend([weight.clone(), weight, partials]);
        }
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let inputs = if self.0.values_apart { vec![0] } else { vec![self.0.input_count(), 0] };
        inputs.into_iter().map(|input| MayAlias { output: 0, input }).collect()
    }

    fn accumulates(&self, output: usize) -> bool {
        (self.0.weights_at()..self.0.positions_at()).contains(&output)
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
