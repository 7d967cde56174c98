//! Scaled sums of a vector by groups of rows, which turn the losses of rows into the share of each source of
//! a mixture in the loss of a batch.

use super::sum::{Factor, THREADS, kernel, total};
use crate::device::cpu::View;
use crate::device::gpu::{Arg, Grid};
use crate::device::{DType, Elem, Real};
use crate::dispatch_float;
use crate::error::Result;
use crate::ir::{Array, Case, Cases, CpuNode, Fill, GpuNode, Mode, Op, Precision, Spec};

/// `totals[groups] (+)= scale·Σ x`, from `(x[n], group[r])` and the count if the [`Factor`] has one. `x` is
/// `r` rows of equal length, and a total sums the rows of one group, in f64.
///
/// A row with a group from `groups` on is in no total. The op has no gradient: only metrics read the totals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumByGroup {
    /// Number of groups.
    pub groups: usize,
    /// The factor of the sums.
    pub scale: Factor,
}

impl Op for SumByGroup {
    fn name(&self) -> &'static str {
        "sum_by_group"
    }

    fn attributes(&self) -> String {
        format!("groups={} {}", self.groups, self.scale.attribute())
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>, String> {
        let [x, group] = self.scale.split(inputs)? else { return Err("takes x and a group per row".into()) };
        let is_vector = |spec: &Spec| spec.shape.len() == 1 && spec.shape == spec.alloc;
        if !is_vector(x) || !x.dtype.is_float() {
            return Err("x must be a float vector".into());
        }
        let is_group = is_vector(group) && group.dtype == DType::U32;
        if !is_group || group.elements() == 0 || !x.elements().is_multiple_of(group.elements()) {
            return Err("groups must be u32, one for each of the equal rows of x".into());
        }
        Ok(vec![Spec::new([self.groups], x.dtype)])
    }

    fn accumulates(&self, _output: usize) -> bool {
        true
    }

    /// Runs as one task: there are few losses, and the order of addition is part of the result.
    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let group = cx.input_u32(1);
        dispatch_float!(cx.input_spec(0).dtype, E => {
            let (x, y, scale) = (cx.input::<E>(0), cx.output::<E>(0), self.scale.value(cx));
            let len = x.len() / group.len();
            cx.pool.run(1, #[inline(always)] |_| {
                let mut sums = vec![0.0; self.groups];
                for (row, &group) in group.iter().enumerate() {
                    if let Some(sum) = sums.get_mut(group as usize) {
                        *sum += total(View::from_slice(x.slice(row * len, len)));
                    }
                }
                for (to, sum) in y.slice(0, self.groups).iter_mut().zip(sums) {
                    let before = if cx.adds(0) { to.up().to_f64() } else { 0.0 };
                    *to = E::down(<E as Elem>::Acc::from_f64(before + scale * sum));
                }
            });
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        let (x, rows) = (cx.input_spec(0), cx.input_spec(1).elements());
        let (scale, count) = self.scale.kernel_args(cx);
        let args = [
            cx.input(0).into(),
            cx.input(1).into(),
            cx.output(0).into(),
            rows.into(),
            (x.elements() / rows).into(),
            Arg::U64(scale.to_bits()),
            count.into(),
            usize::from(cx.adds(0)).into(),
        ];
        cx.queue.launch(kernel("sum_by_group", x), Grid::new(self.groups, THREADS), &args)
    }

    fn cases(precision: Precision) -> Cases {
        let case = |name: &str, groups: usize, len: usize, group: &[u32], count: Option<f64>| {
            let rows = group.len();
            let scale = count.map_or(Factor::Constant(1.0 / (rows * len) as f64), |_| Factor::Reciprocal);
            let values = group.iter().copied().map(f64::from).collect();
            let mut inputs = vec![
                (Spec::new([rows * len], precision.master), Fill::Normal(4.0, 1.0)),
                (Spec::new([rows], DType::U32), Fill::Values(values)),
            ];
            inputs.extend(count.map(|count| (Spec::new([1], DType::U32), Fill::Values(vec![count]))));
            let first = inputs.len();
            let op = SumByGroup { groups, scale };
            let reference = move |inputs: &[Array]| {
                let before = inputs.get(first).map_or(vec![0.0; groups], |totals| totals.data.clone());
                let factor = match scale {
                    Factor::Constant(scale) => scale,
                    Factor::Reciprocal => 1.0 / inputs[2].data[0],
                };
                let total = |(at, before): (usize, f64)| {
                    let rows = inputs[0].data.chunks(len).zip(&inputs[1].data);
                    let own = rows.filter(|(_, group)| **group == at as f64).flat_map(|(row, _)| row);
                    before + factor * own.sum::<f64>()
                };
                vec![Array { shape: vec![groups], data: before.into_iter().enumerate().map(total).collect() }]
            };
            let name = format!("{rows}×{len} in {groups} {name}");
            Case::new(name.trim_end(), op, inputs, reference).without_gradient().depth(rows * len)
        };
        // More rows than the warps of a block, in an order without a pattern.
        let scattered: Vec<u32> = (0..77).map(|row| row * row % 11 % 5).collect();
        let in_no_group = [1, u32::MAX, 0, 3];
        let added = case("added to totals", 3, 40, &[2, 0, 2, 2], None);
        Cases::Own(vec![
            case("", 1, 1, &[0], None),
            case("", 3, 17, &[2, 0, 2], None),
            case("", 2, 1000, &[1, 0, 1, 1, 0], None),
            case("", 5, 64, &scattered, None),
            case("with rows in no group", 3, 33, &in_no_group, None),
            case("over a count", 4, 255, &[3, 3, 0, 1, 3], Some(700.0)),
            added.outputs(vec![(Mode::Add, Fill::Normal(0.0, 100.0))]),
        ])
    }
}
