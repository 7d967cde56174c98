//! Generation: a linear layer of a few rows, which takes as long as its weights take to read.

use super::linear::Linear;
use crate::device::DType;
use crate::device::gpu::{Arg, Grid, Kernel};
use crate::error::Result;
use crate::ir::{Case, Cases, Cost, CpuNode, GpuNode, Op, Precision, Spec};

/// [`Linear`] of at most [`MOST_ROWS`] rows, without a gradient.
///
/// On a GPU in bf16 one kernel reads the weights once, at the full bandwidth of the memory; the bits of a row do
/// not depend on the others. What the kernel does not serve goes to the library.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinearFewRows(pub Linear);

/// Most rows: those of one product of a tensor core.
pub const MOST_ROWS: usize = 16;

/// Outputs of a block, and inputs that a warp takes at a time: 16 bytes in each of four lanes.
const OUTPUTS: usize = 8;
const INPUTS: usize = 32;

/// Blocks of inputs that a warp loads at once, to keep the memory busy.
const UNROLL: usize = 4;

/// Most warps of a block, which divide the inputs among themselves.
const MOST_WARPS: usize = 8;

impl LinearFewRows {
    /// Returns the kernel of a layer, and the threads of a block; `None` where the library serves it.
    fn kernel(x: &Spec, w: &Spec) -> Option<(Kernel, u32)> {
        let (rows, outputs, inputs) = (x.rows(), w.rows(), w.width());
        let serves = x.dtype == DType::Bf16
            && (1..=MOST_ROWS).contains(&rows)
            && outputs.is_multiple_of(OUTPUTS)
            && inputs.is_multiple_of(INPUTS);
        if !serves || inputs == 0 {
            return None;
        }
        let wanted = (inputs / INPUTS).div_ceil(UNROLL);
        // A power of two, so that few kernels exist.
        let warps = if wanted.is_power_of_two() { wanted } else { wanted.next_power_of_two() / 2 };
        let warps = warps.clamp(1, MOST_WARPS);
        let kernel = Kernel::new("linear_few_rows", "linear_few_rows")
            .with("WARPS", warps)
            .with("UNROLL", UNROLL)
            .with("UPPER", u32::from(rows > MOST_ROWS / 2))
            .with("THREADS", 32 * warps);
        Some((kernel, 32 * warps as u32))
    }
}

impl Op for LinearFewRows {
    fn name(&self) -> &'static str {
        "linear_few_rows"
    }

    fn attributes(&self) -> String {
        self.0.attributes()
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        match inputs {
            [x, _] if x.rows() > MOST_ROWS => Err(format!("x has at most {MOST_ROWS} rows")),
            _ => self.0.infer(inputs),
        }
    }

    fn cost(&self, inputs: &[Spec], outputs: &[Spec]) -> Cost {
        self.0.cost(inputs, outputs)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        self.0.cpu(cx)
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (x, w) = (cx.input_spec(0), cx.input_spec(1));
        let Some((kernel, threads)) = Self::kernel(x, w) else { return self.0.gpu(cx) };
        let mut args: Vec<Arg> = [cx.input(0), cx.input(1), cx.output(0)].into_iter().map(Arg::Ptr).collect();
        args.extend([x.rows(), w.rows(), w.width()].map(Arg::from));
        cx.queue.launch(kernel, Grid::new(w.rows() / OUTPUTS, threads), &args)
    }

    /// Those of [`Linear`] with few rows, and shapes that the kernel serves: of all numbers of warps, and with
    /// blocks of inputs left over.
    fn cases(&self, precision: Precision) -> Cases {
        let shapes = [
            (1, 32, 8),
            (1, 33, 5),
            (3, 96, 24),
            (8, 160, 40),
            (9, 256, 64),
            (16, 768, 128),
            (2, 1056, 16),
            (16, 3072, 64),
        ];
        let case = |(rows, inputs, outputs)| -> Case {
            let mut case = Linear::case(precision, (rows, inputs, outputs));
            case.op = std::sync::Arc::new(LinearFewRows::default());
            case.differentiable(&[]).upstream(&[])
        };
        Cases::Own(shapes.map(case).into())
    }
}
