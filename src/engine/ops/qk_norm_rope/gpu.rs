//! The launches of the forward and the backward pass on a GPU.

use super::norm::QkNormRope;
use crate::device::gpu::{Arg, DevicePtr};
use crate::error::Result;
use crate::ir::GpuNode;
use crate::ops::lanes::{launch_sum_partials, rows_per_partial};
use crate::ops::rope::Lanes;

/// Queues the forward pass, or the backward pass if `upstream` gives the index of the upstream gradient.
pub(super) fn launch(cx: &GpuNode<'_>, op: &QkNormRope, upstream: Option<usize>) -> Result<()> {
    let QkNormRope { norm, rotation, values_apart } = *op;
    let lanes = Lanes::new(norm.heads, rotation.map(|rotation| rotation.rotary), cx.output_spec(0).dtype);
    let rows = cx.output_spec(0).rows();
    let weights_at = op.weights_at();
    let weight = |i: usize| -> DevicePtr { if norm.weighted { cx.input(weights_at + i) } else { 0 } };
    let positions: DevicePtr = if rotation.is_some() { cx.input(op.positions_at()) } else { 0 };
    let mut pointers = vec![cx.input(0), weight(0), weight(1), positions];
    let (entry, run) = match upstream {
        Some(_) if norm.weighted => ("qk_norm_rope_grad", rows_per_partial(rows)),
        Some(_) => ("qk_norm_rope_grad", lanes.rows_per_block()),
        None => ("qk_norm_rope", lanes.rows_per_block()),
    };
    // If the output took over the input's memory, values need not be copied.
    let values = cx.input(upstream.unwrap_or(0));
    if upstream.is_some() {
        let partials: DevicePtr = if norm.weighted { cx.output(op.positions_at()) } else { 0 };
        let of_values: DevicePtr = if values_apart { cx.output(1) } else { 0 };
        pointers.extend([values, cx.output(0), of_values, partials]);
    } else {
        pointers.extend([if values_apart { cx.input(1) } else { 0 }, cx.output(0)]);
    }
    let mut args: Vec<Arg> = pointers.into_iter().map(Arg::Ptr).collect();
    let copies = u32::from(values_apart || cx.output(0) != values);
    args.extend([rows.into(), run.into(), Arg::F32(norm.eps as f32), Arg::U32(copies)]);
    let kernel = lanes
        .kernel("qk_norm_rope", entry)
        .with("WEIGHTED", usize::from(norm.weighted))
        .with("WEIGHT_OFFSET", format!("{:?}f", norm.weight_offset))
        .with("VALUES_APART", usize::from(values_apart))
        .with("ROTATES_FIRST", usize::from(rotation.is_some_and(|rotation| rotation.first)));
    Lanes::launch(cx, kernel, (rows, run), &args)?;
    if upstream.is_some() && norm.weighted {
        launch_sum_partials(cx, op.positions_at(), &[weights_at, weights_at + 1])?;
    }
    Ok(())
}
