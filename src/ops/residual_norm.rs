//! A residual addition and the norm that follows it, in one pass.

use super::add::Add;
use super::lanes::rows_per_task;
use super::rms_norm::{
    RmsNorm, RmsNormGrad, Root, Teams, pointer_or_null, root_args, row_of, weight_or_ones,
};
use crate::device::gpu::Arg;
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{
    Array, Builder, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, TensorId, Vjp,
};
use std::sync::Arc;

/// `(x[N, d], y[N, d], w[d]) → (r, n)` with `r = x + y`, as stored, and `n = rms_norm(r)·w`. Without a
/// weight, `w` is absent and `n = rms_norm(r)`.
///
/// `n` is computed from the rounded `r`, so that `RmsNorm` of a kept `r` gives the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResidualNorm {
    /// Added to the mean square.
    pub eps: f64,
    /// True if the norm has a weight.
    pub weight: bool,
}

impl ResidualNorm {
    /// The norm of the sum.
    fn norm(self) -> RmsNorm {
        RmsNorm { eps: self.eps, weight: self.weight }
    }

    /// Index of the weight among the inputs.
    fn weight_input(self) -> Option<usize> {
        self.weight.then_some(2)
    }
}

impl Op for ResidualNorm {
    fn name(&self) -> &'static str {
        "residual_norm"
    }

    fn attributes(&self) -> String {
        self.norm().attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, y, rest @ ..] = inputs else { return Err("takes x and y".into()) };
        if x != y {
            return Err("x and y have one shape and format".into());
        }
        self.norm().check(x, rest)?;
        Ok(vec![x.clone(), x.clone()])
    }

    /// Both addends have the same gradient.
    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (eps, weight, residual) = (self.eps, self.weight, v.upstream(0).is_some());
        let (mut inputs, mut wrt) = (vec![v.output(0)], vec![0]);
        if let Some(w) = self.weight_input() {
            inputs.push(v.input(w));
            wrt.push(w);
        }
        inputs.push(v.output_grad(1)?);
        if residual {
            inputs.push(v.output_grad(0)?);
        }
        let outputs = v.backward(RmsNormGrad { eps, weight, residual, emits: false }, &inputs, &wrt)?;
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
        let norm_inputs = || [&outputs[..1], &inputs[2..]].concat();
        (output == 1).then(|| (Arc::new(self.norm()) as Arc<dyn Op>, norm_inputs()))
    }

    fn unfused(&self, b: &mut Builder, inputs: &[TensorId]) -> Result<Option<Vec<TensorId>>> {
        let r = b.emit1("residual", Add, &inputs[..2])?;
        let n = b.emit1("norm", self.norm(), &[&[r], &inputs[2..]].concat())?;
        Ok(Some(vec![r, n]))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let weight = self.weight_input();
        let row = row_of(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let d = row.width();
        let rows = cx.input_spec(0).elements() / d;
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let root = Root::<A>::new(self.eps, &row);
            let (x, y) = (cx.input::<E>(0), cx.input::<E>(1));
            let (r_out, n_out) = (cx.output::<E>(0), cx.output::<E>(1));
            let w = weight_or_ones::<A>(cx, weight, d);
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
                    root.norm(sum, &w, n_out.slice(row * d, d));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let weight = self.weight_input();
        let row = row_of(cx.input_spec(0), weight.map(|i| cx.input_spec(i)));
        let rows = cx.input_spec(0).elements() / row.width();
        let teams = Teams::new(cx.input_spec(0).dtype, row.width()).with_affine(self.weight, false);
        let mut args = vec![cx.input(0).into(), cx.input(1).into(), pointer_or_null(cx.inputs, weight)];
        args.extend([Arg::from(cx.output(0)), cx.output(1).into(), rows.into()]);
        args.extend(root_args(self.eps, &row));
        teams.launch(cx, ("residual_norm", "residual_norm"), (rows, teams.rows_at_once()), &args)
    }

    fn cases(&self, precision: Precision) -> Cases {
        const EPS: f64 = 1e-6;
        let case = |name: &str, (n, d): (usize, usize), pad: usize, weight: bool| {
            let spec = Spec::padded([n, d], [n, pad], precision.act_dtype);
            let mut inputs = vec![(spec.clone(), Fill::Normal(0.0, 1.0)), (spec, Fill::Normal(0.2, 0.7))];
            let w = (Spec::padded([d], [pad], precision.master), Fill::Normal(1.0, 0.3));
            inputs.extend(weight.then_some(w));
            let reference = move |inputs: &[Array]| {
                let ones = vec![1.0; d];
                let (mut r, w) = (inputs[0].clone(), inputs.get(2).map_or(&ones, |w| &w.data));
                r.data.iter_mut().zip(&inputs[1].data).for_each(|(x, y)| *x += y);
                let mut n = r.clone();
                for row in n.data.chunks_mut(w.len()) {
                    let mean = row.iter().map(|x| x * x).sum::<f64>() / w.len() as f64;
                    row.iter_mut().zip(w).for_each(|(x, w)| *x = *x / (mean + EPS).sqrt() * w);
                }
                vec![r, n]
            };
            let weights: &[usize] = if weight { &[2] } else { &[] };
            Case::new(format!("{name}n{n} d{d}"), ResidualNorm { eps: EPS, weight }, inputs, reference)
                .weights(weights)
                .upstream(&[0, 1])
                .depth(n.max(d))
        };
        let mut cases: Vec<Case> = [(1, 128), (17, 96), (255, 64), (256, 32), (1000, 24)]
            .into_iter()
            .map(|s| case("", s, s.1, true))
            .collect();
        cases.push(case("padded ", (9, 30), 64, true));
        cases.push(case("residual unread ", (33, 40), 40, true).upstream(&[1]));
        cases.push(case("no weight ", (17, 96), 96, false));
        cases.push(case("no weight, padded ", (9, 30), 64, false));
        cases.push(case("no weight, residual unread ", (33, 40), 40, false).upstream(&[1]));
        Cases::Own(cases)
    }
}
