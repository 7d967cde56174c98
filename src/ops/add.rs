//! Elementwise sum.

use crate::device::Elem;
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, MayAlias, Op, Precision, Spec, Vjp};

/// Elements that one task handles.
const RUN: usize = 16_384;

/// `y = a + b`, of one shape and format.
#[derive(Clone, Copy, Debug)]
pub struct Add;

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [a, b] if a.alloc == b.alloc && a.dtype == b.dtype => Ok(vec![a.clone()]),
            _ => Err("takes two tensors of one shape and format".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.grad(0)?;
        v.give(0, dy);
        v.give(1, dy);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }, MayAlias { output: 0, input: 1 }]
    }

    fn cheap_to_recompute(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (a, b, y) = (cx.input::<E>(0), cx.input::<E>(1), cx.output::<E>(0));
            cx.pool.chunks(y.len(), RUN, |start, len| {
                for at in (start..start + len).step_by(64) {
                    let run = 64.min(start + len - at);
                    let (mut left, mut right) = ([<E as Elem>::Acc::default(); 64], [<E as Elem>::Acc::default(); 64]);
                    a.load(at, &mut left[..run]);
                    b.load(at, &mut right[..run]);
                    left.iter_mut().zip(&right).for_each(|(l, r)| *l += *r);
                    y.store(at, &left[..run]);
                }
            });
        });
        Ok(())
    }

    fn cases(&self, precision: Precision) -> Cases {
        let case = |n: usize, d: usize| {
            let spec = Spec::new([n, d], precision.stream);
            let fill = Fill::Normal(0.0, 1.0);
            Case::new(
                format!("{n}x{d}"),
                Add,
                vec![(spec.clone(), fill.clone()), (spec, fill)],
                |i: &[Array]| {
                    let data = i[0].data.iter().zip(&i[1].data).map(|(a, b)| a + b).collect();
                    vec![Array { shape: i[0].shape.clone(), data }]
                },
            )
        };
        Cases::Own(vec![case(1, 1), case(17, 33), case(255, 128)])
    }
}
