//! A product of low rank added to rows, `y = r + factor·a·Bᵀ`: the second matrix of an adapter (Hu et al.,
//! "LoRA: Low-Rank Adaptation of Large Language Models", 2021).
//!
//! A weight of the model may be several matrices stacked one below the other, such as queries, keys and
//! values. Each has an adapter of its own: `a` holds the products of all first matrices side by side, and a
//! row of `B` belongs to one of them. For one product over all, `B` is spread over a matrix that is zero
//! elsewhere, which is small.

use super::lanes::{map, rows_per_task};
use super::linear::flops;
use crate::device::cpu::matmul::{Matrix, product};
use crate::device::cpu::{Pool, View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr, Grid, Kernel, Operand};
use crate::device::{DType, Elem, ProductPrecision, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `(a[N, k·rank], B[out…, rank], r[N, out…]) → (y[N, out…], scratch[out…, k·rank])`, where `k` matrices are
/// stacked in `B`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankAdd {
    /// Rows of `B` in memory that belong to each of the stacked matrices.
    pub stacked: Vec<usize>,
    /// The factor of the product, rounded to the format of activations with each element of `B`.
    pub factor: f64,
    /// Precision of the product.
    pub products: ProductPrecision,
}

/// `(dy[N, out…], B[out…, rank]) → (da[N, k·rank], scratch[out…, k·rank])`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankInputGrad(LowRankAdd);

/// `(a[N, k·rank], dy[N, out…], B[out…, rank]) → (dB[out…, rank], scratch[out…, k·rank])` in the accumulator
/// format. Uses only the shape of `B`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRankWeightGrad(LowRankAdd);

impl LowRankAdd {
    /// Returns the spec of `B` spread over a matrix with the columns of all stacked matrices.
    fn spread_spec(&self, b: &Spec, dtype: DType) -> Spec {
        let rows = b.shape.len() - 1;
        let columns = [self.stacked.len() * b.width()];
        Spec::padded([&b.shape[..rows], &columns].concat(), [&b.alloc[..rows], &columns].concat(), dtype)
    }

    /// Checks `B`.
    fn check(&self, b: &Spec) -> Result<(), String> {
        let fits = b.shape.len() >= 2 && b.shape.last() == b.alloc.last() && b.dtype.is_float();
        if fits && !self.stacked.is_empty() && self.stacked.iter().sum::<usize>() == b.rows() {
            return Ok(());
        }
        Err(format!("B must be [out…, rank] with rows for {:?}, without padded columns", self.stacked))
    }

    /// Returns a kernel of kernels/low_rank.cu, which handles an element of the spread matrix per thread.
    fn launch(
        &self,
        cx: &GpuNode<'_>,
        (entry, dtype): (&'static str, DType),
        (from, to): (DevicePtr, DevicePtr),
        (b, adds): (&Spec, bool),
    ) -> Result<()> {
        const THREADS: u32 = 256;
        let ends = self.stacked.iter().scan(0, |end, rows| {
            *end += rows;
            Some(end.to_string())
        });
        let kernel = Kernel::new("low_rank", entry)
            .with("T", dtype)
            .with("RANK", b.width())
            .with("COUNT", self.stacked.len())
            .with("ENDS", ends.collect::<Vec<_>>().join(","))
            .with("ADDS", adds);
        let elements = self.stacked.len() * b.elements();
        let args = [from.into(), to.into(), elements.into(), Arg::F32(self.factor as f32)];
        cx.queue.launch(kernel, Grid::new(elements.div_ceil(THREADS as usize), THREADS), &args)
    }

    /// Spreads `B` over a matrix with the columns of all stacked matrices, times the factor.
    fn spread<E: Elem>(&self, pool: &Pool, b: View<'_, E>, rank: usize, to: ViewMut<'_, E>) {
        let width = self.stacked.len() * rank;
        let factor = E::Acc::from_f64(self.factor);
        let mut start = 0;
        for (matrix, &rows) in self.stacked.iter().enumerate() {
            pool.chunks(rows, rows_per_task(width), |first, len| {
                for row in start + first..start + first + len {
                    let to = to.slice(row * width, width);
                    to.fill(E::default());
                    let own = &mut to[matrix * rank..][..rank];
                    for (to, from) in own.iter_mut().zip(b.slice(row * rank, rank)) {
                        *to = E::down(factor * from.up());
                    }
                }
            });
            start += rows;
        }
    }

    /// Collects the elements of `B` from a spread matrix, times the factor.
    fn collect<A: Real>(&self, pool: &Pool, from: View<'_, A>, rank: usize, b: ViewMut<'_, A>, adds: bool) {
        let width = self.stacked.len() * rank;
        let factor = A::from_f64(self.factor);
        let mut start = 0;
        for (matrix, &rows) in self.stacked.iter().enumerate() {
            pool.chunks(rows, rows_per_task(rank), |first, len| {
                for row in start + first..start + first + len {
                    let own = from.slice(row * width + matrix * rank, rank);
                    for (to, from) in b.slice(row * rank, rank).iter_mut().zip(own) {
                        let value = factor * *from;
                        *to = if adds { *to + value } else { value };
                    }
                }
            });
            start += rows;
        }
    }

    fn attributes(&self) -> String {
        let stacked =
            if self.stacked.len() > 1 { format!(" stacked={:?}", self.stacked) } else { String::new() };
        format!("factor={}{stacked} {}", self.factor, self.products.attribute()).trim_end().to_owned()
    }
}

impl Op for LowRankAdd {
    fn name(&self) -> &'static str {
        "low_rank_add"
    }

    fn attributes(&self) -> String {
        self.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [a, b, rows] = inputs else { return Err("takes a, B and r".into()) };
        self.check(b)?;
        let outs = b.shape.len() - 1;
        let shape = [&a.shape[..1], &b.shape[..outs]].concat();
        let y = Spec::padded(shape, [&a.alloc[..1], &b.alloc[..outs]].concat(), b.dtype);
        let spread = self.spread_spec(b, b.dtype);
        if a.shape.len() != 2 || a.width() != spread.width() || a.dtype != b.dtype || *rows != y {
            return Err(format!("a must be [N, {}] and r {y}", spread.width()));
        }
        Ok(vec![y, spread])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (a, b, dy) = (v.input(0), v.input(1), v.output_grad(0)?);
        if v.needs_grad(1) {
            v.backward(LowRankWeightGrad(self.clone()), &[a, dy, b], &[1])?;
        }
        if v.needs_grad(0) {
            v.backward(LowRankInputGrad(self.clone()), &[dy, b], &[0])?;
        }
        v.set_input_grad(2, dy);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 2 }]
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let spread = &outputs[1];
        Cost::streaming(inputs, outputs).with_flops(flops((
            inputs[0].rows(),
            spread.rows(),
            inputs[1].width(),
        )))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.input_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        dispatch_float!(spread.dtype, E => {
            if cx.inputs[2] != cx.outputs[0] {
                map(cx.pool, cx.input::<E>(2), cx.output::<E>(0), |r| r);
            }
            self.spread(cx.pool, cx.input::<E>(1), cx.input_spec(1).width(), cx.output::<E>(1));
            let b = cx.output::<E>(1).as_view();
            let (a, b) = (Matrix::rows(cx.input::<E>(0), k), Matrix::rows(b, k));
            product(cx.pool, (n, o, k), a, b.t(), Matrix::rows(cx.output::<E>(0), o), true);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.input_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        let tensors = (cx.input(1), cx.output(1));
        self.launch(cx, ("spread", spread.dtype), tensors, (cx.input_spec(1), false))?;
        let (a, b) = (Operand::plain(cx.input(0)), Operand::transposed(cx.output(1)));
        cx.product_plus((n, o, k), a, b, cx.input(2), self.products)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |(n, rank): (usize, usize), stacked: &[usize], factor: f64| {
            let outputs: usize = stacked.iter().sum();
            let op = LowRankAdd { stacked: stacked.to_vec(), factor, products: ProductPrecision::default() };
            let spec = |shape: [usize; 2]| Spec::new(shape, precision.act_dtype);
            let inputs = vec![
                (spec([n, stacked.len() * rank]), Fill::Normal(0.0, 1.0)),
                (spec([outputs, rank]), Fill::Normal(0.0, 0.3)),
                (spec([n, outputs]), Fill::Normal(0.3, 1.0)),
            ];
            let of = op.clone();
            Case::new(format!("n{n} rank{rank} {stacked:?} times {factor}"), op, inputs, move |inputs| {
                of.reference(inputs)
            })
            .weights(&[1])
            .depth(n.max(outputs).max(rank))
        };
        // Factors that are exact in every format, so that the reference needs no rounding of its own.
        let mut cases = vec![
            case((1, 4), &[24], 2.0),
            case((17, 8), &[40], 0.5),
            case((17, 8), &[40], 1.0),
            case((33, 5), &[7, 3], 1.0),
            case((255, 16), &[64, 32, 32], 2.0),
            case((64, 8), &[16, 16, 16, 16, 16], 1.0),
        ];
        let mut padded = case((9, 8), &[64, 64], 2.0);
        padded.name = "padded outputs in two halves".into();
        let dtype = precision.act_dtype;
        padded.inputs[1].0 = Spec::padded([2, 30, 8], [2, 64, 8], dtype);
        padded.inputs[2].0 = Spec::padded([9, 2, 30], [9, 2, 64], dtype);
        cases.push(padded);
        Cases::Own(cases)
    }
}

impl LowRankAdd {
    /// Adds the products of the stacked matrices by three loops. The matrices have equally many rows without
    /// their padding if they are in a dimension of their own.
    fn reference(&self, inputs: &[Array]) -> Vec<Array> {
        let (a, b, mut y) = (&inputs[0], &inputs[1], inputs[2].clone());
        let (n, rank, count) = (a.shape[0], b.width(), self.stacked.len());
        let outputs = b.data.len() / rank;
        let matrix_of = |row: usize| match b.shape.len() {
            2 => {
                let ends = self.stacked.iter().scan(0, |end, rows| {
                    *end += rows;
                    Some(*end)
                });
                ends.take_while(|&end| end <= row).count()
            }
            _ => row / (outputs / count),
        };
        for (r, row) in (0..n).flat_map(|r| (0..outputs).map(move |row| (r, row))) {
            let from = &a.data[r * count * rank + matrix_of(row) * rank..][..rank];
            let sum: f64 = from.iter().zip(&b.data[row * rank..][..rank]).map(|(a, b)| a * b).sum();
            y.data[r * outputs + row] += self.factor * sum;
        }
        vec![y, Array::zeros(&[0])]
    }
}

impl Op for LowRankInputGrad {
    fn name(&self) -> &'static str {
        "low_rank_input_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [dy, b] = inputs else { return Err("takes dy and B".into()) };
        self.0.check(b)?;
        if dy.alloc[1..] != b.alloc[..b.alloc.len() - 1] || dy.dtype != b.dtype {
            return Err("dy must be [N, out…] and B [out…, rank], both in one format".into());
        }
        let spread = self.0.spread_spec(b, b.dtype);
        let da = Spec::padded([dy.shape[0], spread.width()], [dy.alloc[0], spread.width()], dy.dtype);
        Ok(vec![da, spread])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let sizes = (inputs[0].alloc[0], inputs[1].rows(), inputs[1].width());
        Cost::streaming(inputs, outputs).with_flops(flops(sizes))
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.output_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        dispatch_float!(spread.dtype, E => {
            self.0.spread(cx.pool, cx.input::<E>(1), cx.input_spec(1).width(), cx.output::<E>(1));
            let b = cx.output::<E>(1).as_view();
            let (dy, b) = (Matrix::rows(cx.input::<E>(0), o), Matrix::rows(b, k));
            product(cx.pool, (n, k, o), dy, b, Matrix::rows(cx.output::<E>(0), k), false);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.output_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        let tensors = (cx.input(1), cx.output(1));
        self.0.launch(cx, ("spread", spread.dtype), tensors, (cx.input_spec(1), false))?;
        let (a, b) = (Operand::plain(cx.input(0)), Operand::plain(cx.output(1)));
        cx.product((n, k, o), a, b, 0, self.0.products)
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<LowRankAdd>()
    }
}

impl Op for LowRankWeightGrad {
    fn name(&self) -> &'static str {
        "low_rank_weight_grad"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [a, dy, b] = inputs else { return Err("takes a, dy and B".into()) };
        self.0.check(b)?;
        let spread = self.0.spread_spec(b, b.dtype.accumulator());
        if a.alloc[0] != dy.alloc[0] || a.dtype != dy.dtype || a.width() != spread.width() {
            return Err(format!("a must be [N, {}], and dy have as many rows", spread.width()));
        }
        Ok(vec![b.with_dtype(spread.dtype), spread])
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let sizes = (inputs[0].rows(), outputs[0].rows(), outputs[0].width());
        Cost::streaming(&inputs[..2], outputs).with_flops(flops(sizes))
    }

    fn accumulates(&self, output: usize) -> bool {
        output == 0
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.input_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        dispatch_float!(cx.input_spec(0).dtype, E => {
            type A = <E as Elem>::Acc;
            let (a, dy) = (Matrix::rows(cx.input::<E>(0), k), Matrix::rows(cx.input::<E>(1), o));
            let db = cx.output::<A>(1);
            product(cx.pool, (o, k, n), dy.t(), a, Matrix::rows(db, k), false);
            self.0.collect(cx.pool, db.as_view(), cx.output_spec(0).width(), cx.output::<A>(0), cx.adds(0));
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (n, spread) = (cx.input_spec(0).rows(), cx.output_spec(1));
        let (o, k) = (spread.rows(), spread.width());
        let (a, b) = (Operand::transposed(cx.input(1)), Operand::plain(cx.input(0)));
        cx.product((o, k, n), a, b, 1, self.0.products)?;
        let tensors = (cx.output(1), cx.output(0));
        self.0.launch(cx, ("collect", spread.dtype), tensors, (cx.output_spec(0), cx.adds(0)))
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<LowRankAdd>()
    }
}
