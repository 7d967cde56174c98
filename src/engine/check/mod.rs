//! Checks of ops: every case in every mode, as data shared by the command line and the tests.
//!
//! Modes: the forward against the case's reference implementation; the gradient against central differences
//! in f64; narrow formats against f64; a second gradient added to the first; the same bits for any number of
//! threads; and the same bits for outputs that the backward recomputes, in their own node or in the
//! gradient's. Inputs are copied into transient tensors that die at the op, so that planned in-place reuse is
//! exercised, and memory is poisoned throughout.

mod attention_time;
mod bench;
mod differences;
mod errors;
mod long;
mod numbers;
mod programs;
mod writes;

pub use attention_time::{AttentionShape, AttentionTime, time_attention};
pub use differences::{ATOL, EPSILON, RTOL};
pub use errors::worst;
pub use long::{LongCase, check_long_attention};
pub use writes::check_writes;

use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::cuda::Gpu;
use crate::device::gpu::{Collector, Queue};
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{self, Engine, Section};
use crate::ir::{Array, Case, OpType, Precision, State};
use crate::policy::Placement;
use bench::{Bench, Data};
use differences::worst_difference;
use errors::{
    element_bound, forward_bound, gradient_bound, unequal_bits, worst_element, worst_output, worst_tensor,
};
use programs::Layout;
use std::fmt;
use std::sync::Arc;

/// Result of one mode of one case.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Format of activations.
    pub act_dtype: DType,
    /// Name of the op.
    pub op: String,
    /// Name of the case.
    pub case: String,
    /// The compared tensor or property.
    pub mode: &'static str,
    /// The measured error.
    pub error: f64,
    /// The largest error allowed.
    pub bound: f64,
}

impl Finding {
    /// Returns true if the error is within its bound; false for NaN.
    pub fn holds(&self) -> bool {
        self.error <= self.bound
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "ok  " } else { "FAIL" };
        let Self { act_dtype, op, case, mode, error, bound } = self;
        let act_dtype = act_dtype.to_string();
        write!(f, "{verdict} {act_dtype:<4} {op:<20} {mode:<17} {error:>9.2e} of {bound:>8.1e}  {case}")
    }
}

/// Relative error of sums of products of 8-bit floats: tensor cores align the terms of an instruction and
/// keep 13 bits after the largest one's leading bit (DeepSeek-V3 technical report, 2024, section 3.5.2).
const NARROW_SUMS: f64 = 1.0 / 8192.0;

/// Formats of activations on a GPU.
const GPU_FORMATS: &[DType] = &[DType::F32, DType::Bf16];

/// Devices that cases run on.
#[derive(Clone, Debug)]
pub enum Target {
    /// The CPU, in all formats.
    Cpu,
    /// A GPU, in the formats it supports.
    Gpu(Arc<Gpu>),
}

impl Target {
    /// Returns the formats of activations that cases run in.
    fn formats(&self) -> &'static [DType] {
        match self {
            Target::Cpu => &[DType::F64, DType::F32, DType::Bf16],
            Target::Gpu(_) => GPU_FORMATS,
        }
    }

    /// Returns a device for a case: the CPU with this many threads, or the GPU.
    fn device(&self, threads: usize) -> Result<Device> {
        let pool = Arc::new(Pool::new(threads)?);
        Ok(match self {
            Target::Cpu => Device::Cpu(pool),
            Target::Gpu(gpu) => Device::Cuda(Arc::clone(gpu), pool),
        })
    }

    /// Returns an engine with memory for one section, with the section's kernels compiled.
    fn engine_for(&self, section: &Section, state: &Arc<State>, threads: usize) -> Result<Engine> {
        let device = self.device(threads)?;
        exec::prepare(&device, 0, [section], &|_| {})?;
        let arena = section.memory.arena_bytes;
        Engine::new(device, state, Arc::new(SingleRank), Placement::Arena, arena, false)
    }
}

/// Checks every case of the ops whose name contains `part`, in all formats, and passes each finding to `see`.
///
/// # Errors
/// If a case cannot be compiled or run at all, or `see` fails.
pub fn check_ops(part: &str, target: &Target, mut see: impl FnMut(&Finding) -> Result<()>) -> Result<()> {
    if let Target::Gpu(gpu) = target {
        let collector = Collector::new(gpu.properties().clone());
        collect_cases(part, &collector)?;
        gpu.make_current()?;
        gpu.prepare(&collector.into_requests(), &|_| {})?;
    }
    let wide = cases(Precision::for_act_dtype(DType::F64));
    for &act_dtype in target.formats() {
        let precision = Precision::for_act_dtype(act_dtype);
        for case in cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            counterpart(case, &wide)
                .and_then(|wide| check(case, wide, precision, target))
                .map_err(|e| e.context(format!("{} {act_dtype} {}", case.op.name(), case.name)))?
                .iter()
                .try_for_each(&mut see)?;
        }
    }
    Ok(())
}

/// Queues every case of the ops whose name contains `part` on a collector, which runs nothing, in the formats
/// of a GPU.
///
/// # Errors
/// If an op has no GPU implementation.
pub fn collect_cases(part: &str, collector: &Collector) -> Result<()> {
    for &act_dtype in GPU_FORMATS {
        let precision = Precision::for_act_dtype(act_dtype);
        for case in cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            let layout = Layout::new(case, precision)?;
            exec::collect(collector, &layout.forward(case)?.0)?;
            if !case.differentiable.is_empty() {
                exec::collect(collector, &layout.with_gradient(case, true)?)?;
                exec::collect(collector, &layout.with_gradient(case, false)?)?;
                if case.outputs.is_empty() {
                    exec::collect(collector, &layout.twice(case)?)?;
                }
                exec::collect(collector, &layout.recomputed(case)?)?;
            }
        }
    }
    Ok(())
}

/// Returns the cases of every op at a precision.
fn cases(precision: Precision) -> Vec<Case> {
    op_types().flat_map(|op| (op.cases)(precision).own()).collect()
}

/// Returns every type of op.
fn op_types() -> impl Iterator<Item = &'static OpType> {
    crate::ops::OPS.iter().chain(crate::optim::OPTIMIZERS.iter().flat_map(|entry| entry.ops))
}

/// Runs every mode of a case. `wide` is the same case in f64.
///
/// # Errors
/// If the case cannot be compiled or run at all.
fn check(case: &Case, wide: &Case, precision: Precision, target: &Target) -> Result<Vec<Finding>> {
    let data = Data::new(case)?;
    let mut bench = Bench::new(case, precision, target.device(3)?)?;
    let finding = |mode, error, bound| Finding {
        act_dtype: precision.act_dtype,
        op: case.op.name().to_string(),
        case: case.name.clone(),
        mode,
        error,
        bound,
    };
    let mut findings = Vec::new();

    let inputs = reference_inputs(case, &data);
    let reference = (case.reference)(&inputs);
    let outputs = bench.run_forward(&data)?;
    let error = worst_output(&outputs, &reference);
    let narrow = case.narrow_sums && matches!(target, Target::Gpu(_));
    let bound = forward_bound(precision, case.depth) + if narrow { NARROW_SUMS } else { 0.0 };
    findings.push(finding("forward", error, bound));
    if let Some(magnitudes) = &case.magnitudes {
        let magnitudes = magnitudes(&inputs);
        let [of_value, of_terms] = element_bound(precision, case.depth, narrow);
        let error = worst_element(&outputs, &reference, &magnitudes, [of_value, of_terms]);
        findings.push(finding("elements", error, 1.0));
    }

    // A different number of threads, or on a GPU a second run in different memory.
    let mut one = Bench::new(case, precision, target.device(1)?)?;
    let alone = one.run_forward(&data)?;
    findings.push(finding("same bits", unequal_bits(&outputs, &alone), 0.0));

    if case.differentiable.is_empty() {
        return Ok(findings);
    }
    let grads = bench.run_with_gradient(&data)?;
    let alone = one.run_with_gradient(&data)?;
    findings.push(finding("gradient bits", unequal_bits(&grads, &alone), 0.0));
    let halves: Vec<Vec<f64>> =
        one.run_second_micro_step()?.iter().map(|sum| sum.iter().map(|g| g / 2.0).collect()).collect();
    let error = worst_tensor(&halves, &grads);
    findings.push(finding("gradient added", error, forward_bound(precision, case.depth)));
    if let Some(sums) = one.run_twice(&data)? {
        let halves: Vec<Vec<f64>> = sums.iter().map(|sum| sum.iter().map(|g| g / 2.0).collect()).collect();
        let error = worst_tensor(&halves, &grads);
        findings.push(finding("gradient twice", error, forward_bound(precision, case.depth)));
    }
    let again = one.run_recomputed(&data)?;
    findings.push(finding("recomputed bits", unequal_bits(&[outputs, grads.clone()].concat(), &again), 0.0));
    if precision.act_dtype == DType::F64 {
        findings.push(finding("gradient", worst_difference(case, &mut bench, &data, &grads)?, 1.0));
    } else {
        let mut wide = Bench::new(wide, Precision::for_act_dtype(DType::F64), Target::Cpu.device(3)?)?;
        let error = worst_tensor(&grads, &wide.run_with_gradient(&data)?);
        findings.push(finding("gradient", error, gradient_bound(precision, case.depth)));
    }
    Ok(findings)
}

/// Returns the same case from the cases at another precision.
fn counterpart<'a>(case: &Case, others: &'a [Case]) -> Result<&'a Case> {
    let key = |case: &Case| (case.op.as_ref().type_id(), case.op.name(), case.name.clone());
    let key_of_case = key(case);
    others
        .iter()
        .find(|other| key(other) == key_of_case)
        .ok_or_else(|| Error::failed(format!("{case:?} has no counterpart in another precision")))
}

/// Returns the inputs, then the initial contents, in the order the reference expects.
fn reference_inputs(case: &Case, data: &Data) -> Vec<Array> {
    let mut arrays: Vec<Array> = case
        .inputs
        .iter()
        .zip(&data.inputs)
        .map(|((spec, _), values)| Array { shape: spec.shape.clone(), data: values.clone() })
        .collect();
    arrays.extend(data.initial.iter().flatten().map(|v| Array { shape: vec![v.len()], data: v.clone() }));
    arrays
}

#[cfg(test)]
mod tests;
