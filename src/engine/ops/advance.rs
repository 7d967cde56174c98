//! Increments the step counter on the device.

use crate::device::DType;
use crate::device::gpu::{Grid, Kernel};
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `step ← step + 1` unless `bad`. Input: bad `[1]`. Output: step `[1]`, with `Mode::Add`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advance;

impl Op for Advance {
    fn name(&self) -> &'static str {
        "advance"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [bad] if bad.dtype == DType::U32 => Ok(vec![bad.clone()]),
            _ => Err("takes the bad flag, u32".into()),
        }
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        if cx.input_u32(0)[0] == 0 {
            cx.output_u32(0).slice(0, 1)[0] += 1;
        }
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let args = [cx.input(0).into(), cx.output(0).into()];
        cx.queue.launch(Kernel::new("advance", "advance"), Grid::new(1, 1), &args)
    }

    fn cases(_precision: Precision) -> Cases {
        let case = |name: &str, bad: f64, after: f64| {
            let input = (Spec::new([1], DType::U32), Fill::Values(vec![bad]));
            Case::new(name, Advance, vec![input], move |_| vec![Array { shape: vec![1], data: vec![after] }])
                .upstream(&[])
                .outputs(vec![(Mode::Add, Fill::Values(vec![7.0]))])
        };
        Cases::Own(vec![case("moves on", 0.0, 8.0), case("stays after a bad step", 1.0, 7.0)])
    }
}
