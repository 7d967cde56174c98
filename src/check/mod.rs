//! Proof of ops: every case in every mode, as data that the command line and the tests share.
//!
//! Modes: the forward against the case's plain reference; the gradient against central differences in f64;
//! narrow formats against f64; a second gradient added to the first; the same bits for any number of threads,
//! and for outputs that the backward recomputes, in a node of their own or in that of the gradient.
//! Inputs are copied into transient tensors that die at the op, so that planned in-place reuse is exercised,
//! and memory is poisoned throughout.

mod attention_time;
mod errors;
mod long;
mod writes;

pub use attention_time::{AttentionShape, AttentionTime, time_attention};
pub use errors::worst;
pub use long::{LongCase, check_long_attention};
pub use writes::check_writes;

use crate::device::communicator::SingleRank;
use crate::device::cpu::Pool;
use crate::device::cuda::Gpu;
use crate::device::gpu::{Collector, Queue};
use crate::device::philox::philox;
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{self, Engine, Section};
use crate::ir::Upstream;
use crate::ir::{
    Array, Builder, Case, Cases, Destination, Fill, Home, Mode, Op, Phase, Precision, Program, SlotId, Spec,
    State, StateBuilder,
};
use crate::ops::copy::Copy;
use crate::passes::{differentiate, recompute};
use crate::policy::{Placement, Recompute};
use errors::{forward_bound, gradient_bound, same_bits, worst_output, worst_tensor};
use std::fmt;
use std::sync::Arc;

/// Step of central differences.
pub const EPSILON: f64 = 1e-6;
/// Absolute tolerance of gradient checks.
pub const ATOL: f64 = 1e-5;
/// Relative tolerance of gradient checks.
pub const RTOL: f64 = 1e-3;
/// Elements of each input that a gradient check perturbs one at a time.
const PROBES: usize = 24;
/// Directions in which a gradient check perturbs all elements of an input at once.
const DIRECTIONS: usize = 2;

/// Result of one mode of one case.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The format of activations.
    pub act_dtype: DType,
    /// The op.
    pub op: String,
    /// The case.
    pub case: String,
    /// The compared tensor or property.
    pub mode: &'static str,
    /// The measured error.
    pub error: f64,
    /// The bound.
    pub bound: f64,
}

impl Finding {
    /// Returns true if the error is within its bound. NaN is not.
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

/// The formats of activations on a GPU.
const GPU_FORMATS: &[DType] = &[DType::F32, DType::Bf16];

/// Devices that cases run on.
#[derive(Clone, Debug)]
pub enum Target {
    /// On the CPU, in all formats.
    Cpu,
    /// On a GPU, in the formats that it has.
    Gpu(Arc<Gpu>),
}

impl Target {
    /// Returns the formats of activations in which cases run.
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
}

/// Checks every case of the ops whose name contains `part`, in all formats, and passes each finding to `see`.
///
/// # Errors
/// When a case cannot be compiled or run at all, or `see` fails.
pub fn check_ops(part: &str, target: &Target, mut see: impl FnMut(&Finding) -> Result<()>) -> Result<()> {
    if let Target::Gpu(gpu) = target {
        let collector = Collector::new(gpu.properties().clone());
        collect_cases(part, &collector)?;
        gpu.make_current()?;
        gpu.prepare(&collector.into_requests(), &|_| {})?;
    }
    for &act_dtype in target.formats() {
        let precision = Precision::for_act_dtype(act_dtype);
        for case in crate::ops::cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            check(case, precision, target)
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
/// When an op has no GPU implementation.
pub fn collect_cases(part: &str, collector: &Collector) -> Result<()> {
    for &act_dtype in GPU_FORMATS {
        let precision = Precision::for_act_dtype(act_dtype);
        for case in crate::ops::cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            let state = Arc::new(layout(case, precision)?);
            exec::collect(collector, &forward(case, &state)?.0)?;
            if !case.differentiable.is_empty() {
                exec::collect(collector, &both(case, &state, true)?)?;
                exec::collect(collector, &both(case, &state, false)?)?;
                exec::collect(collector, &recomputed(case, &state)?)?;
            }
        }
    }
    Ok(())
}

/// A case compiled at a precision: its program, and the slots of inputs, outputs and gradients.
pub struct Bench {
    forward: Section,
    both: Option<Section>,
    /// As `both`, in a later micro-step: gradients are added to the present values.
    again: Option<Section>,
    /// As `both`, where the outputs that are cheap to recompute are read by the backward alone.
    recomputed: Option<Section>,
    engine: Engine,
    inputs: Vec<SlotId>,
    outputs: Vec<Option<SlotId>>,
    seeds: Vec<SlotId>,
    grads: Vec<SlotId>,
}

impl Bench {
    /// Compiles a case.
    ///
    /// # Errors
    /// When the op rejects its inputs, or has no gradient but the case needs one.
    pub fn new(case: &Case, precision: Precision, device: Device) -> Result<Self> {
        let state = Arc::new(layout(case, precision)?);
        let forward = Section::new(forward(case, &state)?.0);
        let section = |program: Result<Program>| program.map(Section::new);
        let differentiable = !case.differentiable.is_empty();
        let backward = |first| differentiable.then(|| section(both(case, &state, first))).transpose();
        let (both, again) = (backward(true)?, backward(false)?);
        let recomputed = differentiable.then(|| section(recomputed(case, &state))).transpose()?;
        let sections = [Some(&forward), both.as_ref(), again.as_ref(), recomputed.as_ref()];
        let arena = sections.into_iter().flatten().map(|s| s.memory.arena_bytes).max().unwrap_or_default();
        let engine = Engine::new(device, &state, Arc::new(SingleRank), Placement::Arena, arena, true)?;
        let slot = |name: String| state.slot(&name);
        let outputs = (0..output_specs(case)?.len()).map(|k| slot(format!("out.{k}"))).collect();
        Ok(Self {
            forward,
            both,
            again,
            recomputed,
            inputs: (0..case.inputs.len()).filter_map(|i| slot(format!("in.{i}"))).collect(),
            outputs,
            seeds: case.upstream.iter().filter_map(|k| slot(format!("seed.{k}"))).collect(),
            grads: case.differentiable.iter().filter_map(|i| slot(format!("grad.{i}"))).collect(),
            engine,
        })
    }

    /// Returns the program with its gradient, if the case has one.
    pub fn program(&self) -> &Program {
        &self.both.as_ref().unwrap_or(&self.forward).program
    }

    fn set(&mut self, slots: &[SlotId], values: &[Vec<f64>]) -> Result<()> {
        for (&slot, values) in slots.iter().zip(values) {
            self.engine.state.set_values(slot, values)?;
        }
        Ok(())
    }

    /// Runs the forward from fresh contents of accumulated outputs.
    fn run_forward(&mut self, data: &Data) -> Result<Vec<Array>> {
        self.load(data)?;
        self.engine.run(&self.forward)?;
        self.read_outputs()
    }

    /// Runs forward and backward; returns the gradients.
    fn run_both(&mut self, data: &Data) -> Result<Vec<Vec<f64>>> {
        self.load(data)?;
        let section = self.both.as_ref().ok_or_else(|| Error::failed("a case without gradients"))?;
        self.engine.run(section)?;
        self.gradients()
    }

    /// Runs a second micro-step on the data of the first; returns the sums of both gradients.
    fn run_again(&mut self) -> Result<Vec<Vec<f64>>> {
        let section = self.again.as_ref().ok_or_else(|| Error::failed("a case without gradients"))?;
        self.engine.run(section)?;
        self.gradients()
    }

    /// Runs forward and backward; returns the outputs as the backward reads them, and the gradients.
    fn run_recomputed(&mut self, data: &Data) -> Result<(Vec<Array>, Vec<Vec<f64>>)> {
        self.load(data)?;
        let section = self.recomputed.as_ref().ok_or_else(|| Error::failed("a case without gradients"))?;
        self.engine.run(section)?;
        Ok((self.read_outputs()?, self.gradients()?))
    }

    fn gradients(&self) -> Result<Vec<Vec<f64>>> {
        self.grads.iter().map(|&g| self.engine.state.values(g)).collect()
    }

    fn load(&mut self, data: &Data) -> Result<()> {
        let (inputs, seeds) = (self.inputs.clone(), self.seeds.clone());
        // Memory that an op does not write must not look like a result, or like that of an earlier run.
        for slot in self.outputs.iter().flatten().chain(&self.grads).copied().collect::<Vec<_>>() {
            let spec = self.engine.state.layout().get(slot).spec.clone();
            if spec.dtype.is_float() {
                self.engine.state.set_values(slot, &vec![f64::NAN; spec.logical_elements()])?;
            }
        }
        self.set(&inputs, &data.inputs)?;
        self.set(&seeds, &data.seeds)?;
        for (slot, initial) in self.outputs.clone().into_iter().zip(&data.initial) {
            if let (Some(slot), Some(initial)) = (slot, initial) {
                self.engine.state.set_values(slot, initial)?;
            }
        }
        Ok(())
    }

    /// Reads the outputs, and checks that padding is zero.
    fn read_outputs(&self) -> Result<Vec<Array>> {
        let state = &self.engine.state;
        let mut arrays = Vec::new();
        for slot in &self.outputs {
            let Some(slot) = *slot else {
                arrays.push(Array::zeros(&[0]));
                continue;
            };
            let spec = state.layout().get(slot).spec.clone();
            let data = state.values(slot)?;
            if !state.padding_is_zero(slot)? {
                return Err(Error::failed(format!(
                    "padding of {} is not zero",
                    state.layout().get(slot).name
                )));
            }
            arrays.push(Array { shape: spec.shape, data });
        }
        Ok(arrays)
    }
}

/// The numbers that a case runs on, rounded to the narrow format that is compared.
#[derive(Clone, Debug)]
struct Data {
    inputs: Vec<Vec<f64>>,
    seeds: Vec<Vec<f64>>,
    initial: Vec<Option<Vec<f64>>>,
}

impl Data {
    fn new(case: &Case) -> Result<Self> {
        let specs = output_specs(case)?;
        let inputs =
            case.inputs.iter().enumerate().map(|(i, (s, f))| values(&case.name, i, s, f, s.dtype)).collect();
        let seeds = case
            .upstream
            .iter()
            .map(|&k| values(&case.name, 100 + k, &specs[k], &Fill::Normal(0.0, 1.0), specs[k].dtype))
            .collect();
        let initial = specs
            .iter()
            .enumerate()
            .map(|(k, s)| {
                let (mode, fill) = case.outputs.get(k)?;
                (*mode == Mode::Add).then(|| values(&case.name, 200 + k, s, fill, s.dtype))
            })
            .collect();
        Ok(Self { inputs, seeds, initial })
    }
}

/// Runs every mode of every case of a precision.
///
/// # Errors
/// When a case cannot be compiled or run at all.
pub fn check(case: &Case, precision: Precision, target: &Target) -> Result<Vec<Finding>> {
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

    let reference = (case.reference)(&reference_inputs(case, &data));
    let outputs = bench.run_forward(&data)?;
    let error = worst_output(&outputs, &reference);
    findings.push(finding("forward", error, forward_bound(precision, case.depth)));

    // Another number of threads, or on a GPU another run in other memory.
    let mut one = Bench::new(case, precision, target.device(1)?)?;
    let alone = one.run_forward(&data)?;
    let equal = same_bits(outputs.iter().map(|a| &a.data[..]), alone.iter().map(|a| &a.data[..]));
    findings.push(finding("same bits", f64::from(u8::from(!equal)), 0.0));

    if case.differentiable.is_empty() {
        return Ok(findings);
    }
    let grads = bench.run_both(&data)?;
    let alone = one.run_both(&data)?;
    let equal = same_bits(grads.iter().map(Vec::as_slice), alone.iter().map(Vec::as_slice));
    findings.push(finding("gradient bits", f64::from(u8::from(!equal)), 0.0));
    let halves: Vec<Vec<f64>> =
        one.run_again()?.iter().map(|sum| sum.iter().map(|g| g / 2.0).collect()).collect();
    let error = worst_tensor(&halves, &grads);
    findings.push(finding("gradient added", error, forward_bound(precision, case.depth)));
    let (again, beside) = one.run_recomputed(&data)?;
    let all = |outputs: &[Array], grads: &[Vec<f64>]| -> Vec<Vec<f64>> {
        outputs.iter().map(|a| a.data.clone()).chain(grads.iter().cloned()).collect()
    };
    let (kept, again) = (all(&outputs, &grads), all(&again, &beside));
    let equal = same_bits(kept.iter().map(Vec::as_slice), again.iter().map(Vec::as_slice));
    findings.push(finding("recomputed bits", f64::from(u8::from(!equal)), 0.0));
    if precision.act_dtype == DType::F64 {
        findings.push(finding("gradient", worst_difference(case, &mut bench, &data, &grads)?, 1.0));
    } else {
        let wide = counterpart(case, Precision::for_act_dtype(DType::F64))?;
        let mut wide = Bench::new(&wide, Precision::for_act_dtype(DType::F64), Target::Cpu.device(3)?)?;
        let error = worst_tensor(&grads, &wide.run_both(&data)?);
        findings.push(finding("gradient", error, gradient_bound(precision, case.depth)));
    }
    Ok(findings)
}

/// Returns the case of the same name at another precision.
fn counterpart(case: &Case, precision: Precision) -> Result<Case> {
    let cases = match case.op.cases(precision) {
        Cases::Own(cases) => cases,
        Cases::GradientOf(_) => Vec::new(),
    };
    cases.into_iter().find(|c| c.name == case.name).ok_or_else(|| {
        Error::failed(format!(
            "{case:?} has no case of this name with activations in {}",
            precision.act_dtype
        ))
    })
}

/// Largest |analytic − numeric| / (atol + rtol·|numeric|) of derivatives by central differences: along single
/// elements of each input, and along random directions, which depend on every element.
fn worst_difference(case: &Case, bench: &mut Bench, data: &Data, grads: &[Vec<f64>]) -> Result<f64> {
    let mut objective = |input: usize, direction: &[(usize, f64)], step: f64| -> Result<f64> {
        let mut moved = data.clone();
        direction.iter().for_each(|&(at, d)| moved.inputs[input][at] += step * d);
        let outputs = bench.run_forward(&moved)?;
        let product = |(&out, seed): (&usize, &Vec<f64>)| {
            outputs[out].data.iter().zip(seed).map(|(o, s)| o * s).sum::<f64>()
        };
        Ok(case.upstream.iter().zip(&data.seeds).map(product).sum())
    };
    let mut errors = Vec::new();
    for (k, &input) in case.differentiable.iter().enumerate() {
        if grads[k].len() != data.inputs[input].len() {
            return Ok(f64::INFINITY);
        }
        for direction in directions(&case.name, k, grads[k].len()) {
            let ahead = objective(input, &direction, EPSILON)?;
            let numeric = (ahead - objective(input, &direction, -EPSILON)?) / (2.0 * EPSILON);
            let analytic = direction.iter().map(|&(at, d)| d * grads[k][at]).sum::<f64>();
            errors.push((analytic - numeric).abs() / (ATOL + RTOL * numeric.abs()));
        }
    }
    Ok(worst(errors))
}

/// Returns the directions in which an input of `len` elements is perturbed, as (element, component) pairs:
/// [`PROBES`] single elements, or all of fewer, then [`DIRECTIONS`] with a random sign at every element.
fn directions(name: &str, input: usize, len: usize) -> Vec<Vec<(usize, f64)>> {
    let element = |probe| match len <= PROBES {
        true => probe,
        false => random(name, 300 + input, probe)[0] as usize % len,
    };
    let sign =
        |n: usize, at| if random(name, 400 + DIRECTIONS * input + n, at)[0] & 1 == 0 { 1.0 } else { -1.0 };
    let single = (0..PROBES.min(len)).map(|probe| vec![(element(probe), 1.0)]);
    single.chain((0..DIRECTIONS).map(|n| (0..len).map(|at| (at, sign(n, at))).collect())).collect()
}

/// Returns inputs, then initial contents, in the order of the reference.
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

fn output_specs(case: &Case) -> Result<Vec<Spec>> {
    let inputs: Vec<Spec> = case.inputs.iter().map(|(s, _)| s.clone()).collect();
    case.op.infer(&inputs).map_err(|e| Error::failed(format!("{case:?}: {e}")))
}

fn layout(case: &Case, precision: Precision) -> Result<State> {
    let mut builder = StateBuilder::empty(precision);
    let outputs = output_specs(case)?;
    let mut group = |name: &str, tensors: Vec<(usize, Spec)>| {
        let names: Vec<String> = tensors.iter().map(|(i, _)| i.to_string()).collect();
        let tensors: Vec<(&str, Spec)> =
            names.iter().zip(tensors).map(|(name, (_, spec))| (name.as_str(), spec)).collect();
        builder.group(name, &tensors);
    };
    group("in", case.inputs.iter().map(|(s, _)| s.clone()).enumerate().collect());
    group("out", outputs.iter().cloned().enumerate().collect());
    group("seed", case.upstream.iter().map(|&k| (k, outputs[k].clone())).collect());
    let gradient = |i: usize| {
        let spec = &case.inputs[i].0;
        if case.weights.contains(&i) { spec.with_dtype(spec.dtype.accumulator()) } else { spec.clone() }
    };
    group("grad", case.differentiable.iter().map(|&i| (i, gradient(i))).collect());
    for i in &case.differentiable {
        builder.watch(&format!("in.{i}"), &format!("grad.{i}"));
    }
    Ok(builder.finish())
}

/// Records copies of the inputs, the op, and copies of its outputs.
fn forward(case: &Case, state: &Arc<State>) -> Result<(Program, Vec<crate::ir::TensorId>)> {
    let mut b = Builder::new("forward", Arc::clone(state));
    let mut inputs = Vec::new();
    for i in 0..case.inputs.len() {
        let from = b.state(&format!("in.{i}"))?;
        let weight = case.weights.contains(&i);
        inputs.push(if weight { from } else { b.emit1(&format!("in{i}"), Copy, &[from])? });
    }
    let mut outs = Vec::new();
    for (k, _) in output_specs(case)?.iter().enumerate() {
        let adds = case.outputs.get(k).is_some_and(|(mode, _)| *mode == Mode::Add);
        let out = b.state(&format!("out.{k}"))?;
        outs.push(if adds { Destination::Into(out, Mode::Add) } else { Destination::New });
    }
    let outputs = b.emit_into("y", Arc::clone(&case.op), &inputs, &outs)?;
    for (k, &y) in outputs.iter().enumerate() {
        if outs[k] == Destination::New {
            let out = b.state(&format!("out.{k}"))?;
            b.emit_into("out", Arc::new(Copy), &[y], &[Destination::Into(out, Mode::Write)])?;
        }
    }
    Ok((b.finish(), outputs))
}

fn both(case: &Case, state: &Arc<State>, first: bool) -> Result<Program> {
    let (program, outputs) = forward(case, state)?;
    let mut b = Builder::resume(program);
    let mut seeds = Vec::new();
    for &k in &case.upstream {
        let seed = b.state(&format!("seed.{k}"))?;
        seeds.push((outputs[k], Upstream::Tensor(seed)));
    }
    differentiate(b.finish(), &seeds, first)
}

/// As the first micro-step of [`both`], but the outputs are copied in the backward, before its gradients, and
/// those that are cheap to recompute are not kept for it.
fn recomputed(case: &Case, state: &Arc<State>) -> Result<Program> {
    let mut program = both(case, state, true)?;
    let results: Vec<SlotId> =
        (0..output_specs(case)?.len()).filter_map(|k| state.slot(&format!("out.{k}"))).collect();
    for at in 0..program.nodes.len() {
        let node = &program.nodes[at];
        let to = program.tensor(node.outputs[0]).home;
        if node.op.name() == Copy.name() && results.iter().any(|&slot| to == Home::State(slot)) {
            program.nodes[at].phase = Phase::Backward;
        }
    }
    recompute(program, Recompute::Selective)
}

/// Returns 128 random bits for a name, a stream and a position.
fn random(name: &str, stream: usize, at: usize) -> [u32; 4] {
    let digest = blake3::hash(name.as_bytes());
    let key = u32::from_le_bytes([digest.as_bytes()[0], digest.as_bytes()[1], digest.as_bytes()[2], 0]);
    philox([at as u32, stream as u32, 0, 0], [key, 0x9d2c_5680])
}

/// Returns a number of mean 0 and deviation 1, from a distribution near the normal one: the sum of four
/// uniform numbers.
fn near_normal(name: &str, stream: usize, at: usize) -> f64 {
    let sum: f64 = random(name, stream, at).map(|bits| f64::from(bits) / 2f64.powi(32)).iter().sum();
    (sum - 2.0) * 3f64.sqrt()
}

/// Returns the values of one tensor of a case, already rounded to a format.
fn values(name: &str, stream: usize, spec: &Spec, fill: &Fill, format: DType) -> Vec<f64> {
    let unit = |bits: u32| (f64::from(bits) + 0.5) / 4_294_967_296.0;
    (0..spec.logical_elements())
        .map(|at| {
            let bits = random(name, stream, at);
            let value = match fill {
                // Box–Muller.
                Fill::Normal(mean, std) => {
                    let radius = (-2.0 * unit(bits[0]).ln()).sqrt();
                    mean + std * radius * (std::f64::consts::TAU * unit(bits[1])).cos()
                }
                Fill::Uniform(low, high) => low + (high - low) * unit(bits[0]),
                Fill::Below(bound) => f64::from(bits[0] % bound),
                Fill::Values(values) => values[at % values.len()],
            };
            match format {
                DType::F64 => value,
                DType::F32 => f64::from(value as f32),
                DType::Bf16 => half::bf16::from_f64(value).to_f64(),
                DType::U32 => value.trunc(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
