//! Copies a tensor, or adds it to an existing one.

use super::lanes::{launch_copy, launch_elementwise, map, map2};
use crate::device::DType;
use crate::error::{Error, Result};
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, MayAlias, Mode, Op, Precision, Spec, Vjp};
use crate::{dispatch_float, dispatch_fp8};

/// `y (+)= x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copy;

/// Fails for integers that would be added, which neither device implements.
fn check_addition(x: &Spec, adds: bool) -> Result<()> {
    if adds && !x.dtype.is_float() {
        return Err(Error::failed(format!("copy cannot add {} to a tensor; write it instead", x.dtype)));
    }
    Ok(())
}

impl Op for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x] => Ok(vec![x.clone()]),
            _ => Err("takes one tensor".into()),
        }
    }

    fn vjp(&self, v: &mut Vjp<'_>) -> Result<()> {
        let dy = v.output_grad(0)?;
        v.set_input_grad(0, dy);
        Ok(())
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        vec![MayAlias { output: 0, input: 0 }]
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        check_addition(cx.input_spec(0), cx.adds(0))?;
        let dtype = cx.input_spec(0).dtype;
        if dtype.is_fp8() && cx.inputs[0] != cx.outputs[0] {
            dispatch_fp8!(dtype, E => {
                let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
                y.slice(0, x.len()).copy_from_slice(x.slice(0, x.len()));
            });
        }
        if dtype.is_fp8() {
            return Ok(());
        }
        if dtype == DType::U32 {
            let (x, y) = (cx.input_u32(0), cx.output_u32(0));
            y.slice(0, x.len()).copy_from_slice(x);
            return Ok(());
        }
        dispatch_float!(dtype, E => {
            let (x, y) = (cx.input::<E>(0), cx.output::<E>(0));
            if cx.adds(0) {
                map2(cx.pool, x, y.as_view(), y, #[inline(always)] |x, old| x + old);
            } else {
                map(cx.pool, x, y, |x| x);
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        check_addition(cx.input_spec(0), cx.adds(0))?;
        if cx.adds(0) {
            return launch_elementwise(cx, ("add", "add"), &[cx.output(0), cx.input(0), cx.output(0)], &[]);
        }
        launch_copy(cx, 0)
    }

    fn cases(precision: Precision) -> Cases {
        let fill = Fill::Normal(0.0, 1.0);
        let case = |name: &str, outputs: Vec<(Mode, Fill)>, reference: fn(&[Array]) -> Vec<Array>| {
            let x = (Spec::new([33, 5], precision.act_dtype), fill.clone());
            Case::new(name, Copy, vec![x], reference).outputs(outputs)
        };
        Cases::Own(vec![
            case("write", Vec::new(), |i| vec![i[0].clone()]),
            case("add", vec![(Mode::Add, fill.clone())], |i| {
                let data = i[0].data.iter().zip(&i[1].data).map(|(a, b)| a + b).collect();
                vec![Array { shape: i[0].shape.clone(), data }]
            })
            .differentiable(&[]),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::communicator::SingleRank;
    use crate::device::cpu::{Address, Pool};
    use crate::device::gpu::{Collector, Properties};
    use crate::ir::{Builder, Destination, StateBuilder};
    use std::sync::Arc;

    #[test]
    fn integers_are_copied_but_not_added() {
        let integers = || Spec::new([4], DType::U32);
        let mut layout = StateBuilder::empty(Precision::for_act_dtype(DType::F32));
        let slots = layout.group("test", [("from", integers()), ("to", integers())]);
        let mut b = Builder::new("copy", Arc::new(layout.finish()));
        let [from, to] = slots.map(|slot| b.state_slot(slot));
        b.emit_into("copy", Arc::new(Copy), &[from], &[Destination::Into(to, Mode::Add)]).unwrap();
        let program = b.finish();
        let node = &program.nodes[0];
        let (pool, none) = (Pool::new(1).unwrap(), [Address(std::ptr::null_mut())]);
        let (inputs, outputs) = (&none, &none);
        let cpu = CpuNode { program: &program, node, inputs, outputs, pool: &pool, comm: &SingleRank };
        let queue = Collector::new(Properties::for_architecture((9, 0)));
        let gpu = GpuNode { program: &program, node, inputs: &[0], outputs: &[0], queue: &queue };
        for result in [Copy.cpu(&cpu), Copy.gpu(&gpu)] {
            assert_eq!(result.unwrap_err().message(), "copy cannot add u32 to a tensor; write it instead");
        }
    }
}
