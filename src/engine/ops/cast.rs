//! Converts between float formats.

use super::lanes::{launch_over, map};
use crate::device::gpu::Kernel;
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Case, Cases, CpuNode, Fill, GpuNode, Op, Precision, Spec, Vjp};

/// `y = x` in another float format, rounded to nearest even. From f64 to bf16 it rounds via f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cast {
    /// The format of the output.
    pub to: DType,
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn attributes(&self) -> String {
        format!("to={}", self.to)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] if x.dtype.is_float() && self.to.is_float() => Ok(vec![x.with_dtype(self.to)]),
            _ => Err("takes one float tensor and converts it to a float format".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (dy, to) = (v.output_grad(0)?, v.spec(v.input(0)).dtype);
        v.backward(Cast { to }, &[dy], &[0]).map(drop)
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => dispatch_float!(self.to, F => {
            let round = |x: <E as Elem>::Acc| <F as Elem>::Acc::from_f64(x.to_f64());
            map(cx.pool, cx.input::<E>(0), cx.output::<F>(0), round);
        }));
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// The elements of the narrowest format in 16 bytes.
        const PACK: usize = 8;
        let elements = cx.output_spec(0).elements();
        let vec = if elements.is_multiple_of(PACK) { PACK } else { 1 };
        let kernel = Kernel::new("cast", "cast")
            .with("FROM", cx.input_spec(0).dtype)
            .with("TO", self.to)
            .with("VEC", vec);
        launch_over(cx, kernel, (elements, vec), &[cx.input(0), cx.output(0)], &[])
    }

    fn cases(precision: Precision) -> Cases {
        let case = |direction: &str, from: DType, to: DType, len: usize| {
            let inputs = vec![(Spec::new([len], from), Fill::Normal(0.0, 3.0))];
            Case::new(format!("{direction} n{len}"), Cast { to }, inputs, <[_]>::to_vec)
        };
        let Precision { act_dtype, master } = precision;
        Cases::Own(
            [1, 17, 255, 256, 1000, 40_000]
                .into_iter()
                .flat_map(|len| {
                    [case("widen", act_dtype, master, len), case("narrow", master, act_dtype, len)]
                })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::{Pool, View, ViewMut};
    use half::bf16;

    #[test]
    fn rounds_to_nearest_even() {
        let x = [1.0f32, 1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), -0.1];
        let mut y = [bf16::ZERO; 4];
        map(&Pool::new(1).unwrap(), View::from_slice(&x), ViewMut::from_slice(&mut y), |x| x);
        assert_eq!(y.map(f32::from), [1.0, 1.0, 1.015_625, -0.100_097_656]);
    }
}
