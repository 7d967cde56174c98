//! The gradient of a function of rows and vectors.

use super::{Pointwise, Values, is_vector, stride};
use crate::device::cpu::{View, ViewMut};
use crate::device::gpu::{Arg, DevicePtr, Grid};
use crate::device::{Elem, Real};
use crate::dispatch_float;
use crate::error::{Error, Result};
use crate::ir::{Cases, CpuNode, GpuNode, MayAlias, Op, Precision, Spec};
use crate::ops::lanes::{BLOCK, addresses, rows_per_partial, rows_per_task, sum};

/// `(inputs, dy, sums…) → (gradients of all inputs, partials)`; there are no `partials` without a vector.
/// Gradients of rows are added to the ones that other ops have recorded, where there are such sums.
///
/// A variable's gradient is `dy` times the function's slope, summed over the elements, heads and rows that
/// read the same number. Each run of rows writes the sums for vectors into its row of the scratch
/// `partials`, one number per variable, head and, if the variable has them, element. Then the runs are
/// summed.
#[derive(Clone, Debug, PartialEq)]
pub struct PointwiseGrad {
    /// The op whose gradient this is.
    pub of: Pointwise,
    /// The inputs with recorded gradients to add to, which follow dy.
    pub adds_to: Vec<usize>,
}

impl PointwiseGrad {
    /// Returns the specs of the function's inputs.
    fn inputs(&self, inputs: impl Iterator<Item = Spec>) -> Vec<Spec> {
        let count = self.of.operands.iter().map(|operand| operand.input + 1).max().unwrap_or(0);
        inputs.take(count).collect()
    }

    /// Returns the index of the sum that the gradient of an input is added to, if the function has `count` inputs.
    fn sum_for(&self, input: usize, count: usize) -> Option<usize> {
        Some(count + 1 + self.adds_to.iter().position(|&other| other == input)?)
    }
}

/// Returns the rows of a run: without partial sums, as many as blocks of the kernel handle at once.
fn rows_per_run(rows: usize, partials: usize, at_once: usize) -> usize {
    if partials > 0 { rows_per_partial(rows) } else { at_once }
}

impl Op for PointwiseGrad {
    fn name(&self) -> &'static str {
        "pointwise_grad"
    }

    fn attributes(&self) -> String {
        let adds =
            if self.adds_to.is_empty() { String::new() } else { format!(" adds_to={:?}", self.adds_to) };
        self.of.attributes() + &adds
    }

    fn infer(&self, all: &[Spec]) -> Result<Vec<Spec>, String> {
        let inputs = self.inputs(all.iter().cloned());
        let [dy, sums @ ..] = &all[inputs.len()..] else { return Err("takes inputs and dy".into()) };
        let is_row = |(&input, sum): (&usize, &Spec)| {
            inputs.get(input).is_some_and(|own| !is_vector(own) && own == sum)
        };
        if sums.len() != self.adds_to.len() || !self.adds_to.iter().zip(sums).all(is_row) {
            return Err("the sums to add to must be like the gradients of rows".into());
        }
        let inputs = &inputs[..];
        let layout = self.of.layout(inputs)?;
        if dy.alloc != layout.output.alloc || dy.dtype != layout.output.dtype {
            return Err(format!("dy must be {}", layout.output));
        }
        let mut outputs = inputs.to_vec();
        let (_, partials) = self.of.partials(inputs, &layout);
        if partials > 0 {
            let runs = layout.rows.div_ceil(rows_per_partial(layout.rows));
            outputs.push(Spec::new([runs, partials], dy.dtype.accumulator()));
        }
        Ok(outputs)
    }

    fn may_alias(&self) -> Vec<MayAlias> {
        let count = self.of.operands.iter().map(|operand| operand.input + 1).max().unwrap_or(0);
        let alias = |(at, &output): (usize, &usize)| MayAlias { output, input: count + 1 + at };
        self.adds_to.iter().enumerate().map(alias).collect()
    }

    fn accumulates(&self, output: usize) -> bool {
        // Only parameters get gradients from several ops, and the parameters among the inputs are vectors.
        self.of.operands.iter().any(|operand| operand.input == output)
    }

    fn cpu(&self, cx: &CpuNode<'_>) -> Result<()> {
        let inputs = self.inputs((0..cx.node.inputs.len()).map(|i| cx.input_spec(i).clone()));
        let layout = self.of.layout(&inputs).map_err(Error::failed)?;
        let (columns, partials_width) = self.of.partials(&inputs, &layout);
        let (heads, width, rows) = (layout.heads, layout.width, layout.rows);
        let run = rows_per_run(rows, partials_width, rows_per_task(heads * width));
        let operands = &self.of.operands;
        dispatch_float!(layout.output.dtype, E => {
            type A = <E as Elem>::Acc;
            let dy = cx.input::<E>(inputs.len());
            let values: Vec<Values<'_, E>> = operands.iter().map(|operand| Values::new(cx, operand)).collect();
            // The gradients of rows; those of vectors are summed first.
            let gradients: Vec<Option<(ViewMut<'_, E>, usize)>> = operands
                .iter()
                .map(|o| (!is_vector(&inputs[o.input])).then(|| (cx.output::<E>(o.input), stride(&inputs[o.input]))))
                .collect();
            let before: Vec<Option<View<'_, E>>> = operands
                .iter()
                .map(|o| self.sum_for(o.input, inputs.len()).map(|i| cx.input::<E>(i)))
                .collect();
            let partials: Option<ViewMut<'_, A>> = (partials_width > 0).then(|| cx.output::<A>(inputs.len()));
            cx.pool.chunks(rows, run, #[inline(always)] |start, len| {
                let registers = &self.of.function.with_slopes;
                let mut blocks = registers.blocks::<A>();
                let mut upstream = [A::ZERO; BLOCK];
                let mut sums = vec![A::ZERO; partials_width];
                for (row, head) in (start..start + len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                    let mut narrow = vec![A::ZERO; operands.len()];
                    for column in (0..width).step_by(BLOCK) {
                        let count = BLOCK.min(width - column);
                        for ((operand, values), block) in operands.iter().zip(&values).zip(&mut blocks) {
                            values.load(operand, row, operand.at(&layout, head), column, &mut block[..count]);
                        }
                        dy.load((row * heads + head) * width + column, &mut upstream[..count]);
                        registers.run(&mut blocks, count);
                        for (v, operand) in operands.iter().enumerate() {
                            let slopes = &blocks[registers.results[v + 1]][..count];
                            let mut own = [A::ZERO; BLOCK];
                            let own = &mut own[..count];
                            for ((own, dy), slope) in own.iter_mut().zip(&upstream).zip(slopes) {
                                *own = *dy * *slope;
                            }
                            let of_head = columns[v] + head * operand.head_elements(&layout);
                            match (&gradients[v], operand.per_element) {
                                (Some((to, stride)), true) => {
                                    if let Some(before) = &before[v] {
                                        let mut sum = [A::ZERO; BLOCK];
                                        let (sum, at) = (&mut sum[..count], operand.at(&layout, head));
                                        before.load(row * stride + at + column, sum);
                                        own.iter_mut().zip(&*sum).for_each(|(own, before)| *own += *before);
                                    }
                                    to.store(row * stride + operand.at(&layout, head) + column, own);
                                }
                                (None, true) => {
                                    let to = &mut sums[of_head + column..][..count];
                                    to.iter_mut().zip(&*own).for_each(|(to, own)| *to += *own);
                                }
                                (Some(_), false) => narrow[v] += sum(own),
                                (None, false) => sums[of_head] += sum(own),
                            }
                        }
                    }
                    for (v, ((operand, to), narrow)) in operands.iter().zip(&gradients).zip(&narrow).enumerate() {
                        if let Some((to, stride)) = to && !operand.per_element {
                            let at = row * stride + operand.at(&layout, head);
                            let sum = before[v].as_ref().map_or(A::ZERO, |before| before.get(at).up());
                            to.store(at, &[*narrow + sum]);
                        }
                    }
                }
                if let Some(partials) = partials {
                    partials.put(start / run * partials_width, &sums, false);
                }
            });
            let Some(partials) = partials else { return Ok(()) };
            for (input, spec) in inputs.iter().enumerate().filter(|(_, spec)| is_vector(spec)) {
                let mut total = vec![A::ZERO; spec.elements()];
                for (operand, column) in operands.iter().zip(&columns).filter(|(o, _)| o.input == input) {
                    let own = operand.head_elements(&layout);
                    for row in partials.slice(0, partials.len()).chunks(partials_width) {
                        for head in 0..heads {
                            let to = &mut total[operand.at(&layout, head)..][..own];
                            let from = &row[column + head * own..][..own];
                            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
                        }
                    }
                }
                cx.output::<A>(input).put(0, &total, cx.adds(input));
            }
        });
        Ok(())
    }

    fn gpu(&self, cx: &GpuNode<'_>) -> Result<()> {
        /// Threads in a block, and in one that sums over rows: there are few of these, so each is large.
        const THREADS: usize = 128;
        const SUMMING_THREADS: usize = 512;
        /// The most threads of a team, which handles a head of a row at a time.
        const MAX_TEAM: usize = 256;
        /// Columns per block and threads per column of the last sums: a warp in both directions.
        const SIDE: usize = 32;
        let inputs = self.inputs((0..cx.inputs.len()).map(|i| cx.input_spec(i).clone()));
        let layout = self.of.layout(&inputs).map_err(Error::failed)?;
        if layout.output.elements() == 0 {
            return Ok(());
        }
        let vec = self.of.vector_width(&inputs, &layout);
        let team = (layout.width / vec).next_power_of_two().min(MAX_TEAM);
        let (_, partials) = self.of.partials(&inputs, &layout);
        let threads = if partials > 0 { SUMMING_THREADS } else { THREADS.max(team) };
        let run = rows_per_run(layout.rows, partials, threads / team);
        let adds_to: usize = self.adds_to.iter().map(|input| 1 << input).sum();
        let kernel = |entry| {
            let kernel = self.of.kernel(entry, &inputs, &layout, vec);
            kernel.with("TEAM", team).with("THREADS", threads).with("ADDS_TO", adds_to)
        };
        let partial_sums = if partials > 0 { cx.output(inputs.len()) } else { 0 };
        // The kernel reads only the sums that there are.
        let sum_for = |input| cx.input(self.sum_for(input, inputs.len()).unwrap_or(inputs.len()));
        let sums: Vec<DevicePtr> = (0..inputs.len()).map(sum_for).collect();
        let runs = layout.rows.div_ceil(run);
        let args = [
            addresses(&cx.inputs[..inputs.len()]),
            cx.input(inputs.len()).into(),
            addresses(&sums),
            addresses(&cx.outputs[..inputs.len()]),
            Arg::Ptr(partial_sums),
            layout.rows.into(),
            run.into(),
        ];
        cx.queue.launch(kernel("pointwise_grad"), Grid::new(runs * layout.heads, threads as u32), &args)?;
        for (input, spec) in inputs.iter().enumerate().filter(|(_, spec)| is_vector(spec)) {
            let args = [
                Arg::Ptr(partial_sums),
                cx.output(input).into(),
                runs.into(),
                spec.elements().into(),
                input.into(),
                u32::from(cx.adds(input)).into(),
            ];
            let grid = Grid::new(spec.elements().div_ceil(SIDE), (SIDE * SIDE) as u32);
            cx.queue.launch(kernel("pointwise_vector_grad"), grid, &args)?;
        }
        Ok(())
    }

    fn cases(_precision: Precision) -> Cases {
        Cases::gradient_of::<Pointwise>()
    }
}
