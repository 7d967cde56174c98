//! Softmax over the keys that a query attends to.

use super::attention::rows::{exponentials, scale};
use super::attention::{Mask, Visible};
use super::lanes::{dot, max};
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `(s [B, H, T, T], [spans [B·T·2] u32]) → (p [B, H, T, T], lse [B·T, H] in the accumulator format)`.
///
/// Probabilities of masked keys are zero. `lse` is the logarithm of a row's sum of exponentials.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softmax {
    /// The keys that a query attends to.
    pub mask: Mask,
}

/// `(p, dp) → ds = p∘(dp − Σ p∘dp)`; the mask follows from the zeros in `p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxGrad;

/// Rows per task.
const ROWS: usize = 32;

/// Returns (H, T) of scores `[B, H, T, T]`.
fn heads_and_length(s: &Spec) -> Result<(usize, usize), String> {
    match s.shape.as_slice() {
        &[_, h, t, keys] if t == keys && s.dtype != DType::U32 && s.alloc == s.shape => Ok((h, t)),
        _ => Err("scores must be [B, H, T, T] in a float format, without padding".into()),
    }
}

/// Launches a kernel with one warp per row.
fn launch(cx: &GpuNode<'_>, entry: &'static str, rows: usize, args: &[Arg]) -> Result<()> {
    const WARP: usize = 32;
    const WARPS: usize = 8;
    if rows == 0 {
        return Ok(());
    }
    let kernel = Kernel::new("softmax", entry).with("T", cx.input_spec(0).dtype);
    cx.queue.launch(kernel, Grid::new(rows.div_ceil(WARPS), (WARP * WARPS) as u32), args)
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn attributes(&self) -> String {
        format!("mask={:?}", self.mask).to_lowercase()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let Some((s, spans)) = inputs.split_first() else { return Err("takes scores".into()) };
        let (h, t) = heads_and_length(s)?;
        let n = s.shape[0] * t;
        let fits = match (self.mask, spans) {
            (Mask::Causal, []) => true,
            (Mask::Spans, [spans]) => spans.dtype == DType::U32 && spans.elements() == 2 * n,
            _ => false,
        };
        if !fits {
            return Err("spans [B·T·2] u32 are an input with the spans mask, and only with it".into());
        }
        Ok(vec![s.clone(), Spec::new([n, h], s.dtype.accumulator())])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let inputs = [v.output(0), v.output_grad(0)?];
        v.backward(SoftmaxGrad, &inputs, &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let &[b, h, t, _] = cx.input_spec(0).shape.as_slice() else { unreachable!("infer has checked it") };
        let spans = (self.mask == Mask::Spans).then(|| cx.input_u32(1));
        let visible = Visible { seq_len: t, spans, numbers: self.mask.numbers() };
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (s, p) = (cx.input::<E>(0), cx.output::<E>(0));
            let lse = cx.output::<<E as Elem>::Acc>(1);
            cx.pool.chunks(b * h * t, ROWS, #[inline(always)] |start, count| {
                type Acc = <E as Elem>::Acc;
                let mut row = vec![Acc::ZERO; t];
                for r in start..start + count {
                    let (b, head, query) = (r / t / h, r / t % h, r % t);
                    let seen = visible.keys(b, query);
                    s.load(r * t, &mut row);
                    row[..seen.start].fill(Acc::ZERO);
                    row[seen.end..].fill(Acc::ZERO);
                    let live = &mut row[seen];
                    let shift = max(live);
                    let sum = exponentials(live, Acc::ONE, shift);
                    scale(live, Acc::ONE / sum);
                    p.store(r * t, &row);
                    lse.slice((b * t + query) * h + head, 1)[0] = shift + sum.ln();
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let (heads, length) = (spec.shape[1], spec.shape[2]);
        let spans = if self.mask == Mask::Spans { cx.input(1) } else { 0 };
        let mut args: Vec<Arg> =
            [cx.input(0), spans, cx.output(0), cx.output(1)].into_iter().map(Arg::Ptr).collect();
        args.extend([spec.rows(), heads, length].map(Arg::from));
        launch(cx, "softmax", spec.rows(), &args)
    }

    fn cases(precision: Precision) -> Cases {
        // Batch, heads, T, mask.
        let shapes = [
            (2, 1, 1, Mask::Causal),
            (2, 3, 17, Mask::Causal),
            (1, 2, 33, Mask::Spans),
            (1, 1, 130, Mask::Causal),
        ];
        let case = |(batch, h, t, mask): (usize, usize, usize, Mask)| {
            let mut inputs = vec![(Spec::new([batch, h, t, t], precision.act_dtype), Fill::Normal(0.0, 2.0))];
            if mask == Mask::Spans {
                let spans = (0..batch * t).flat_map(|row| {
                    let at = row % t;
                    [(at / 2) as f64, if row % 3 == 0 { t as f64 } else { (at + 1) as f64 }]
                });
                inputs.push((Spec::new([batch * t * 2], DType::U32), Fill::Values(spans.collect())));
            }
            let name = format!("b{batch} h{h} t{t} {mask:?}").to_lowercase();
            Case::new(name, Softmax { mask }, inputs, reference).depth(t)
        };
        Cases::Own(shapes.into_iter().map(case).collect())
    }
}

/// Computes the softmax by its definition.
fn reference(inputs: &[Array]) -> Vec<Array> {
    let s = &inputs[0];
    let (heads, t_max) = (s.shape[1], s.shape[2]);
    let mut p = Array::zeros(&s.shape);
    let mut lse = Array::zeros(&[s.shape[0] * t_max, heads]);
    for row in 0..s.data.len() / t_max {
        let (b, h, t) = (row / t_max / heads, row / t_max % heads, row % t_max);
        let seen = match inputs.get(1) {
            None => 0..t + 1,
            Some(spans) => {
                let at = 2 * (b * t_max + t);
                spans.data[at] as usize..spans.data[at + 1] as usize
            }
        };
        let sum: f64 = seen.clone().map(|key| s.data[row * t_max + key].exp()).sum();
        for key in seen {
            p.data[row * t_max + key] = s.data[row * t_max + key].exp() / sum;
        }
        lse.data[(b * t_max + t) * heads + h] = sum.ln();
    }
    vec![p, lse]
}

impl Op for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [p, dp] = inputs else { return Err("takes p and dp".into()) };
        heads_and_length(p)?;
        if p != dp {
            return Err("p and dp must have the same shape and format".into());
        }
        Ok(vec![p.clone()])
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 1 }, MayAlias { output: 0, input: 0 }]
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let t = cx.input_spec(0).width();
        let rows = cx.input_spec(0).rows();
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (p, dp, ds) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            cx.pool.chunks(rows, ROWS, #[inline(always)] |start, count| {
                let mut p_row = vec![<E as Elem>::Acc::ZERO; t];
                let mut row = p_row.clone();
                for r in start..start + count {
                    p.load(r * t, &mut p_row);
                    dp.load(r * t, &mut row);
                    let mean = dot(&p_row, &row);
                    row.iter_mut().zip(&p_row).for_each(|(dp, p)| *dp = *p * (*dp - mean));
                    ds.store(r * t, &row);
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let spec = cx.input_spec(0);
        let mut args: Vec<Arg> = [cx.input(0), cx.input(1), cx.output(0)].into_iter().map(Arg::Ptr).collect();
        args.extend([spec.rows(), spec.width()].map(Arg::from));
        launch(cx, "softmax_grad", spec.rows(), &args)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Softmax>()
    }
}
