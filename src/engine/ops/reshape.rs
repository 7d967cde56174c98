//! Gives rows other dimensions: `[N, heads·width]` and `[N, heads, width]` are the same elements.

use super::lanes::{launch_copy, map};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Op, Precision, Spec, Vjp};

/// `y[N, row…] = x[N, …]`, element by element. Nothing is moved where `y` takes over the memory of `x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// The dimensions of a row of the output.
    pub row: Vec<usize>,
}

impl Op for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.row)
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x] = inputs else { return Err("takes rows".into()) };
        let elements: usize = self.row.iter().product();
        let fits =
            x.shape.len() > 1 && x.alloc == x.shape && x.shape[1..].iter().product::<usize>() == elements;
        if !fits || !x.dtype.is_float() {
            return Err(format!("takes float rows of {elements} elements, without padding"));
        }
        Ok(vec![Spec::new([&x.shape[..1], &self.row].concat(), x.dtype)])
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let (dy, row) = (v.output_grad(0)?, v.spec(v.input(0)).shape[1..].to_vec());
        v.backward(Self { row }, &[dy], &[0]).map(drop)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.output_spec(0).dtype, E => {
            map(cx.pool, cx.input::<E>(0), cx.output::<E>(0), |x| x);
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        launch_copy(cx, 0)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |from: &[usize], row: &[usize]| {
            let inputs = vec![(Spec::new(from, precision.act_dtype), Fill::Normal(0.0, 1.0))];
            let shape = [&from[..1], row].concat();
            let op = Reshape { row: row.to_vec() };
            Case::new(format!("{from:?} to {row:?}"), op, inputs, move |inputs: &[Array]| {
                vec![Array { shape: shape.clone(), data: inputs[0].data.clone() }]
            })
        };
        Cases::Own(vec![case(&[17, 24], &[3, 8]), case(&[5, 2, 7], &[14])])
    }
}
