//! Products of matrices of 8-bit floats with scales. A linear layer's output and both of its gradients are
//! this product, of matrices that lie in memory as GPUs multiply them: along rows of both factors.

use super::quantize::{SIDE, is_scales};
use crate::device::cpu::matmul::{Matrix, product};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Addend, Operand, Product, ProductShape};
use crate::device::{DType, Elem, ProductPrecision, Real};
use crate::error::Result;
use crate::ir::{
    Array, Case, Cases, Cost, CpuNode, Fill, GpuNode, INVERSE, MayAlias, Mode, Op, Precision, Spec,
};
use crate::{dispatch_float, dispatch_fp8};

/// `c[m, n] (+)= a[m, k] · b[n, k]ᵀ · s_a · s_b`, plus a fifth input like `c` if it adds one.
///
/// Inputs: a, b, and the [`Scales`](crate::ir::Scales) of both, whose inverses are `s`. The sums and the
/// scales are in the accumulator format; `c` is rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledProduct {
    /// Shape and format of the output, whose elements are those of `c`.
    pub output: Spec,
    /// True if it adds an input.
    pub adds: bool,
}

/// Returns (m, n, k).
fn sizes(a: &Spec, b: &Spec) -> (usize, usize, usize) {
    (a.rows(), b.rows(), a.width())
}

/// Widens a matrix of 8-bit floats.
fn widened<A: Real>(cx: &CpuNode<'_>, input: usize) -> Vec<A> {
    dispatch_fp8!(cx.input_spec(input).dtype, F => {
        let numbers = cx.input::<F>(input);
        numbers.slice(0, numbers.len()).iter().map(|x| A::from_f64(f64::from(x.up()))).collect()
    })
}

impl Op for ScaledProduct {
    fn name(&self) -> &'static str {
        "scaled_product"
    }

    fn attributes(&self) -> String {
        if self.adds { "adds".to_owned() } else { String::new() }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [a, b, a_scales, b_scales, addend @ ..] = inputs else {
            return Err("takes a, b and their scales".into());
        };
        let formats = a.dtype.is_fp8() && b.dtype.is_fp8();
        if !formats || a.shape.len() != 2 || b.shape.len() != 2 || a.width() != b.width() {
            return Err("a must be [m, k] and b [n, k], both of 8-bit floats".into());
        }
        if (a.dtype, b.dtype) == (DType::E5m2, DType::E5m2) {
            return Err("GPUs do not multiply e5m2 by e5m2".into());
        }
        let (m, n, k) = sizes(a, b);
        if [m, n, k].iter().any(|side| !side.is_multiple_of(SIDE)) {
            return Err(format!("{m}, {n} and {k} must be multiples of {SIDE}"));
        }
        if !is_scales(a_scales) || !is_scales(b_scales) {
            return Err("scales must be rows of 8 f32 numbers".into());
        }
        let fits = |spec: &Spec| spec.elements() == self.output.elements() && spec.dtype == self.output.dtype;
        if self.output.elements() != m * n || !self.output.dtype.is_float() {
            return Err(format!("{} cannot hold {m} × {n} numbers", self.output));
        }
        if addend.len() != usize::from(self.adds) || !addend.iter().all(fits) {
            return Err(format!("the addend must be {}", self.output));
        }
        Ok(vec![self.output.clone()])
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        if self.adds { vec![MayAlias { output: 0, input: 4 }] } else { Vec::new() }
    }

    fn accumulates(&self, _output: usize) -> bool {
        !self.adds
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        let (m, n, k) = sizes(&inputs[0], &inputs[1]);
        Cost::streaming(inputs, outputs).with_flops(2.0 * m as f64 * n as f64 * k as f64)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let (m, n, k) = sizes(cx.input_spec(0), cx.input_spec(1));
        let factor = f64::from(cx.input::<f32>(2).get(INVERSE)) * f64::from(cx.input::<f32>(3).get(INVERSE));
        dispatch_float!(self.output.dtype, E => {
            type A = <E as Elem>::Acc;
            let (a, b, mut sums) = (widened::<A>(cx, 0), widened::<A>(cx, 1), vec![A::ZERO; m * n]);
            let rows = |numbers| Matrix::rows(View::from_slice(numbers), k);
            let to = Matrix::rows(ViewMut::from_slice(&mut sums), n);
            product(cx.pool, (m, n, k), rows(&a), rows(&b).t(), to, false);
            let c = cx.output::<E>(0);
            let addend = match (self.adds, cx.adds(0)) {
                (true, _) => Some(cx.input::<E>(4)),
                (false, true) => Some(c.as_view()),
                (false, false) => None,
            };
            for (at, sum) in sums.into_iter().enumerate() {
                let scaled = sum * A::from_f64(factor);
                c.store(at, &[addend.map_or(scaled, |addend| scaled + addend.get(at))]);
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let formats = [cx.input_spec(0).dtype, cx.input_spec(1).dtype];
        let accumulate = self.adds || cx.adds(0);
        let (a, b) = (Operand::plain(cx.input(0)), Operand::transposed(cx.input(1)));
        let sizes = sizes(cx.input_spec(0), cx.input_spec(1));
        let shape = cx.product_shape(sizes, [a, b], (0, accumulate), ProductPrecision::Native);
        let shape = ProductShape { inputs: formats, ..shape };
        let from = if self.adds { cx.input(4) } else { cx.output(0) };
        let addend = accumulate.then_some(Addend { address: from, factor: 1.0 });
        let inverse = (INVERSE * DType::F32.size()) as u64;
        let scales = Some([2, 3].map(|input| cx.input(input) + inverse));
        cx.queue.product(&Product {
            addend,
            scales,
            ..Product::new(shape, a.address, b.address, cx.output(0))
        })
    }

    fn cases(precision: Precision) -> Cases {
        let shapes = [[16, 16, 16], [32, 48, 64], [144, 272, 160], [128, 256, 1024], [256, 64, 4096]];
        let kinds = [(DType::E4m3, DType::E4m3), (DType::E5m2, DType::E4m3), (DType::E4m3, DType::E5m2)];
        let cases = shapes.into_iter().enumerate().flat_map(|(at, shape)| {
            kinds.map(|formats| {
                case(shape, formats, [Sum::Written, Sum::Added, Sum::Addend][at % 3], precision)
            })
        });
        Cases::Own(cases.collect())
    }
}

/// What becomes of the product in a case.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sum {
    Written,
    /// It is added to the output.
    Added,
    /// It is added to an input.
    Addend,
}

fn case([m, n, k]: [usize; 3], formats: (DType, DType), sum: Sum, precision: Precision) -> Case {
    // Numbers that use most of the range of e4m3.
    let numbers = |shape: [usize; 2], dtype| (Spec::new(shape, dtype), Fill::Normal(0.5, 60.0));
    let scales = |scale: f64| {
        let mut row = vec![0.0; 8];
        (row[0], row[INVERSE]) = (1.0 / scale, scale);
        (Spec::new([8], DType::F32), Fill::Values(row))
    };
    let mut inputs =
        vec![numbers([m, k], formats.0), numbers([n, k], formats.1), scales(0.0625), scales(0.01)];
    let output = Spec::new([m, n], precision.act_dtype);
    let addend = Fill::Normal(0.0, 40.0 * (k as f64).sqrt());
    inputs.extend((sum == Sum::Addend).then(|| (output.clone(), addend.clone())));
    let op = ScaledProduct { output, adds: sum == Sum::Addend };
    let name = format!("m{m} n{n} k{k} {}*{} {sum:?}", formats.0, formats.1);
    let case = Case::new(name, op, inputs, move |inputs| reference(inputs, [m, n, k]));
    let magnitudes = move |inputs: &[Array]| {
        let size =
            |array: &Array| Array { data: array.data.iter().map(|x| x.abs()).collect(), ..array.clone() };
        reference(&inputs.iter().map(size).collect::<Vec<_>>(), [m, n, k])
    };
    let case = case.without_gradient().depth(k).narrow_sums().magnitudes(magnitudes);
    if sum == Sum::Added { case.outputs(vec![(Mode::Add, addend)]) } else { case }
}

/// Computes the product by three loops.
fn reference(inputs: &[Array], [m, n, k]: [usize; 3]) -> Vec<Array> {
    let (a, b) = (&inputs[0].data, &inputs[1].data);
    let factor = inputs[2].data[INVERSE] * inputs[3].data[INVERSE];
    let mut c = Array::zeros(&[m, n]);
    for (at, to) in c.data.iter_mut().enumerate() {
        let (row, column) = (at / n, at % n);
        let sum: f64 = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum();
        *to = sum * factor + inputs.get(4).map_or(0.0, |addend| addend.data[at]);
    }
    vec![c]
}
