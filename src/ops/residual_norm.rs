//! A residual addition and the norm that follows it, in one pass.

use super::add::Add;
use super::lanes::rows_per_task;
use super::rms_norm::{RmsNorm, RmsNormGrad, Root, Teams, check_weight, root_args};
use crate::device::gpu::Arg;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};
use std::sync::Arc;

/// `(x[N, d], y[N, d], w[d]) → (r, n)` with `r = x + y`, as stored, and `n = rms_norm(r)·w`.
///
/// `n` is computed from the rounded `r`, so that `RmsNorm` of a kept `r` gives the same bits.
#[derive(Clone, Copy, Debug)]
pub struct ResidualNorm {
    /// Added to the mean square.
    pub eps: f64,
}

impl Op for ResidualNorm {
    fn name(&self) -> &'static str {
        "residual_norm"
    }

    fn attributes(&self) -> String {
        format!("eps={:e}", self.eps)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, y, w] = inputs else { return Err("takes x, y and w".into()) };
        if x != y {
            return Err("x and y have one shape and format".into());
        }
        check_weight(x, w)?;
        Ok(vec![x.clone(), x.clone()])
    }

    /// Both addends have the same gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (r, w, dn) = (v.output(0), v.input(2), v.output_grad(1)?);
        let residual = v.upstream(0).is_some();
        let mut inputs = vec![r, w, dn];
        if residual {
            inputs.push(v.output_grad(0)?);
        }
        let outputs = v.backward(RmsNormGrad { eps: self.eps, residual, emits: false }, &inputs, &[0, 2])?;
        v.set_input_grad(1, outputs[0]);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let pairs = [(0, 0), (1, 1), (0, 1), (1, 0)];
        pairs.into_iter().map(|(output, input)| MayAlias { output, input }).collect()
    }

    fn cheap_to_recompute(&self, output: usize) -> bool {
        output == 1
    }

    fn rederive(
        &self,
        inputs: &[TensorId],
        outputs: &[TensorId],
        output: usize,
    ) -> Option<(Arc<dyn Op>, Vec<TensorId>)> {
        let norm = RmsNorm { eps: self.eps };
        (output == 1).then(|| (Arc::new(norm) as Arc<dyn Op>, vec![outputs[0], inputs[2]]))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let r = b.emit1("residual", Add, &inputs[..2])?;
        let n = b.emit1("norm", RmsNorm { eps: self.eps }, &[r, inputs[2]])?;
        Ok(Some(vec![r, n]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let d = cx.input_spec(2).width();
        let rows = cx.input_spec(0).elements() / d;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let root = Root::<A>::new(self.eps, cx.input_spec(2));
            let (x, y) = (cx.input::<E>(0), cx.input::<E>(1));
            let (r_out, n_out) = (cx.output::<E>(0), cx.output::<E>(1));
            let w = cx.input::<A>(2).slice(0, d);
            cx.pool.chunks(rows, rows_per_task(d), #[inline(always)] |start, len| {
                let mut scratch = vec![A::ZERO; 2 * d];
                let (sum, addend) = scratch.split_at_mut(d);
                for row in start..start + len {
                    x.load(row * d, sum);
                    y.load(row * d, addend);
                    for ((r, sum), addend) in r_out.slice(row * d, d).iter_mut().zip(&mut *sum).zip(&*addend) {
                        *r = E::down(*sum + *addend);
                        *sum = r.up();
                    }
                    root.norm(sum, w, n_out.slice(row * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let w = cx.input_spec(2);
        let rows = cx.input_spec(0).elements() / w.width();
        let teams = Teams::new(cx.input_spec(0).dtype, w.width());
        let mut args: Vec<Arg> = cx.inputs.iter().chain(cx.outputs).map(|&p| p.into()).collect();
        args.push(rows.into());
        args.extend(root_args(self.eps, w));
        teams.launch(cx, ("residual_norm", "residual_norm"), (rows, teams.rows_at_once()), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        const EPS: f64 = 1e-6;
        let case = |name: &str, (n, d): (usize, usize), pad: usize| {
            let spec = Spec::padded([n, d], [n, pad], precision.act_dtype);
            let inputs = vec![
                (spec.clone(), Fill::Normal(0.0, 1.0)),
                (spec, Fill::Normal(0.2, 0.7)),
                (Spec::padded([d], [pad], precision.master), Fill::Normal(1.0, 0.3)),
            ];
            let reference = |inputs: &[Array]| {
                let (mut r, w) = (inputs[0].clone(), &inputs[2].data);
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
                let mut n = r.clone();
                for row in n.data.chunks_mut(w.len()) {
                    let mean = row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
                    row.iter_mut().zip(w).for_each(|(x, w)| *x = *x / (mean + EPS).sqrt() * w);
                }
                vec![r, n]
            };
            Case::new(format!("{name}n{n} d{d}"), ResidualNorm { eps: EPS }, inputs, reference)
                .weights(&[2])
                .upstream(&[0, 1])
                .depth(n.max(d))
        };
        let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 32), (1000, 24)]
            .into_iter()
            .map(|s| case("", s, s.1))
            .collect();
        cases.push(case("padded ", (9, 30), 64));
        cases.push(case("residual unread ", (33, 40), 40).upstream(&[1]));
        Cases::Own(cases)
    }
}
