//! Proves ops: every case in every mode, as data that the command line and the tests share.
//!
//! Modes: the forward against the case's plain reference; the gradient against central differences in f64; narrow
//! formats against f64; a second gradient added to the first; the same bits for any number of threads. Inputs are
//! copied into transient tensors that die at the op, so that planned in-place reuse is exercised, and memory is
//! poisoned throughout.

use crate::device::comm::Alone;
use crate::device::cpu::Pool;
use crate::device::cuda::{Collector, Gpu, Queue};
use crate::device::philox::philox;
use crate::device::{DType, Device};
use crate::error::{Error, Result};
use crate::exec::{self, Engine, PlacementKind, Section};
use crate::ir::vjp::Upstream;
use crate::ir::{
    Array, Builder, Case, Fill, Mode, Out, Precision, Program, SlotId, Spec, State, StateBuilder,
};
use crate::ops::copy::Copy;
use crate::passes::differentiate;
use std::fmt;
use std::sync::Arc;

/// Step of central differences.
pub const EPSILON: f64 = 1e-6;
/// Absolute tolerance of gradient checks.
pub const ATOL: f64 = 1e-5;
/// Relative tolerance of gradient checks.
pub const RTOL: f64 = 1e-3;
/// Elements of each input that a gradient check perturbs.
const PROBES: usize = 24;

/// What one mode of one case found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The format of activations.
    pub stream: DType,
    /// The op.
    pub op: String,
    /// The case.
    pub case: String,
    /// What was compared.
    pub mode: &'static str,
    /// The error found, and the bound it is held against.
    pub error: f64,
    /// The bound.
    pub bound: f64,
}

impl Finding {
    /// Whether the error is within its bound. NaN is not.
    pub fn holds(&self) -> bool {
        self.error <= self.bound
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "ok  " } else { "FAIL" };
        let Self { stream, op, case, mode, error, bound } = self;
        let stream = stream.to_string();
        write!(f, "{verdict} {stream:<4} {op:<20} {mode:<17} {error:>9.2e} of {bound:>8.1e}  {case}")
    }
}

/// The formats that a GPU has.
const GPU_FORMATS: &[DType] = &[DType::F32, DType::Bf16];

/// Where cases run.
#[derive(Clone, Debug)]
pub enum Target {
    /// On the CPU, in all formats.
    Cpu,
    /// On a GPU, in the formats that it has.
    Gpu(Arc<Gpu>),
}

impl Target {
    /// The formats of activations in which cases run.
    fn formats(&self) -> &'static [DType] {
        match self {
            Target::Cpu => &[DType::F64, DType::F32, DType::Bf16],
            Target::Gpu(_) => GPU_FORMATS,
        }
    }

    /// A device for a case: the CPU with this many threads, or the GPU.
    fn device(&self, threads: usize) -> Result<Device> {
        let pool = Arc::new(Pool::new(threads)?);
        Ok(match self {
            Target::Cpu => Device::Cpu(pool),
            Target::Gpu(gpu) => Device::Cuda(Arc::clone(gpu), pool),
        })
    }
}

/// Checks every case of the ops whose name contains `part`, in all formats, and hands each finding to `see`.
///
/// # Errors
/// When a case cannot be compiled or run at all, or `see` fails.
pub fn check_ops(part: &str, target: &Target, mut see: impl FnMut(&Finding) -> Result<()>) -> Result<()> {
    if let Target::Gpu(gpu) = target {
        let collector = Collector::new(gpu.properties().clone());
        ask_cases(part, &collector)?;
        gpu.make_current()?;
        gpu.prepare(&collector.into_asked())?;
    }
    for &stream in target.formats() {
        let precision = Precision::of(stream);
        for case in crate::ops::cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            check(case, precision, target)
                .map_err(|e| e.context(format!("{} {stream} {}", case.op.name(), case.name)))?
                .iter()
                .try_for_each(&mut see)?;
        }
    }
    Ok(())
}

/// Lets every case of the ops whose name contains `part` ask a queue that runs nothing, in the formats of a GPU.
///
/// # Errors
/// When an op has no CUDA implementation.
pub fn ask_cases(part: &str, collector: &Collector) -> Result<()> {
    for &stream in GPU_FORMATS {
        let precision = Precision::of(stream);
        for case in crate::ops::cases(precision).iter().filter(|case| case.op.name().contains(part)) {
            let state = Arc::new(layout(case, precision)?);
            exec::collect(collector, &forward(case, &state)?.0)?;
            if !case.differentiable.is_empty() {
                exec::collect(collector, &both(case, &state, true)?)?;
                exec::collect(collector, &both(case, &state, false)?)?;
            }
        }
    }
    Ok(())
}

/// A case compiled at a precision: its program, and where inputs, outputs and gradients lie.
pub struct Bench {
    forward: Section,
    both: Option<Section>,
    /// As `both`, in a later micro-step: gradients are added to what is there.
    again: Option<Section>,
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
    /// When the op refuses its inputs or has no gradient where the case wants one.
    pub fn new(case: &Case, precision: Precision, device: Device) -> Result<Self> {
        let state = Arc::new(layout(case, precision)?);
        let forward = Section::new(forward(case, &state)?.0);
        let backward = |first: bool| -> Result<Option<Section>> {
            if case.differentiable.is_empty() {
                return Ok(None);
            }
            Ok(Some(Section::new(both(case, &state, first)?)))
        };
        let (both, again) = (backward(true)?, backward(false)?);
        let sections = [Some(&forward), both.as_ref(), again.as_ref()];
        let arena = sections.into_iter().flatten().map(|s| s.memory.arena_bytes).max().unwrap_or_default();
        let engine = Engine::new(device, &state, Arc::new(Alone), PlacementKind::Arena, arena, true)?;
        let slot = |name: String| state.slot(&name);
        let outputs = (0..output_specs(case)?.len()).map(|k| slot(format!("out.{k}"))).collect();
        Ok(Self {
            forward,
            both,
            again,
            inputs: (0..case.inputs.len()).filter_map(|i| slot(format!("in.{i}"))).collect(),
            outputs,
            seeds: case.upstream.iter().filter_map(|k| slot(format!("seed.{k}"))).collect(),
            grads: case.differentiable.iter().filter_map(|i| slot(format!("grad.{i}"))).collect(),
            engine,
        })
    }

    /// The program with its gradient, if the case has one.
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

    fn gradients(&self) -> Result<Vec<Vec<f64>>> {
        self.grads.iter().map(|&g| self.engine.state.values(g)).collect()
    }

    fn load(&mut self, data: &Data) -> Result<()> {
        let (inputs, seeds) = (self.inputs.clone(), self.seeds.clone());
        self.set(&inputs, &data.inputs)?;
        self.set(&seeds, &data.seeds)?;
        for (slot, initial) in self.outputs.clone().into_iter().zip(&data.initial) {
            if let (Some(slot), Some(initial)) = (slot, initial) {
                self.engine.state.set_values(slot, initial)?;
            }
        }
        Ok(())
    }

    /// Reads the outputs, and sees that padding is zero.
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
    let f64_case = counterpart(case, Precision::of(DType::F64));
    let data = Data::new(case)?;
    let mut bench = Bench::new(case, precision, target.device(3)?)?;
    let finding = |mode, error, bound| Finding {
        stream: precision.stream,
        op: case.op.name().to_string(),
        case: case.name.clone(),
        mode,
        error,
        bound,
    };
    let mut findings = Vec::new();

    let reference = (case.reference)(&reference_inputs(case, &data));
    let outputs = bench.run_forward(&data)?;
    let mut worst: f64 = 0.0;
    for (have, want) in outputs.iter().zip(&reference).filter(|(_, want)| !want.data.is_empty()) {
        worst = worst.max(distance(&have.data, &want.data));
    }
    findings.push(finding("forward", worst, forward_bound(precision, case.depth)));

    // Another number of threads, or on a GPU another run in other memory.
    let mut one = Bench::new(case, precision, target.device(1)?)?;
    let alone = one.run_forward(&data)?;
    let equal = outputs.iter().zip(&alone).all(|(a, b)| same_bits(&a.data, &b.data));
    findings.push(finding("same bits", f64::from(u8::from(!equal)), 0.0));

    if case.differentiable.is_empty() {
        return Ok(findings);
    }
    let grads = bench.run_both(&data)?;
    let alone = one.run_both(&data)?;
    let equal = grads.iter().zip(&alone).all(|(a, b)| same_bits(a, b));
    findings.push(finding("gradient bits", f64::from(u8::from(!equal)), 0.0));
    let halves: Vec<Vec<f64>> =
        one.run_again()?.iter().map(|sum| sum.iter().map(|g| g / 2.0).collect()).collect();
    let worst = halves.iter().zip(&grads).map(|(a, b)| distance(a, b)).fold(0.0, f64::max);
    findings.push(finding("gradient added", worst, forward_bound(precision, case.depth)));
    if precision.stream == DType::F64 {
        findings.push(finding("gradient", worst_difference(case, &mut bench, &data, &grads)?, 1.0));
    } else if let Some(wide) = f64_case {
        let mut wide = Bench::new(&wide, Precision::of(DType::F64), Target::Cpu.device(3)?)?;
        let exact = wide.run_both(&data)?;
        let worst = grads.iter().zip(&exact).map(|(a, b)| distance(a, b)).fold(0.0, f64::max);
        findings.push(finding("gradient", worst, gradient_bound(precision, case.depth)));
    }
    Ok(findings)
}

/// The same case at another precision: same op, same name.
fn counterpart(case: &Case, precision: Precision) -> Option<Case> {
    crate::ops::all()
        .iter()
        .filter(|op| op.name() == case.op.name())
        .flat_map(|op| match op.cases(precision) {
            crate::ir::Cases::Own(cases) => cases,
            crate::ir::Cases::GradientOf(_) => Vec::new(),
        })
        .find(|c| c.name == case.name)
}

/// Largest |analytic − numeric| / (atol + rtol·|numeric|) over probed elements.
fn worst_difference(case: &Case, bench: &mut Bench, data: &Data, grads: &[Vec<f64>]) -> Result<f64> {
    let mut worst: f64 = 0.0;
    for (k, &input) in case.differentiable.iter().enumerate() {
        let len = data.inputs[input].len();
        for probe in 0..PROBES.min(len) {
            let at = if len <= PROBES { probe } else { random(&case.name, 300 + k, probe)[0] as usize % len };
            let mut objective = |shift: f64| -> Result<f64> {
                let mut moved = data.clone();
                moved.inputs[input][at] += shift;
                let outputs = bench.run_forward(&moved)?;
                let products =
                    case.upstream.iter().zip(&data.seeds).map(|(&out, seed)| {
                        outputs[out].data.iter().zip(seed).map(|(o, s)| o * s).sum::<f64>()
                    });
                Ok(products.sum())
            };
            let numeric = (objective(EPSILON)? - objective(-EPSILON)?) / (2.0 * EPSILON);
            let difference = (grads[k][at] - numeric).abs() / (ATOL + RTOL * numeric.abs());
            worst = if difference.is_nan() { f64::NAN } else { worst.max(difference) };
        }
    }
    Ok(worst)
}

/// Bound on the relative L2 error of a forward. Sums of `depth` terms of random sign lose √depth roundings.
fn forward_bound(precision: Precision, depth: usize) -> f64 {
    let sums = (depth.max(16) as f64).sqrt();
    match precision.stream {
        DType::F64 => 8.0 * 2f64.powi(-53) * sums,
        DType::F32 => 4.0 * 2f64.powi(-24) * sums,
        _ => 2.0 * 2f64.powi(-9) + 4.0 * 2f64.powi(-24) * sums,
    }
}

/// As [`forward_bound`], for gradients: intermediate tensors are rounded to the narrow format too.
fn gradient_bound(precision: Precision, depth: usize) -> f64 {
    let sums = (depth.max(16) as f64).sqrt();
    match precision.stream {
        DType::F64 => 16.0 * 2f64.powi(-53) * sums,
        DType::F32 => 16.0 * 2f64.powi(-24) * sums,
        _ => 6.0 * 2f64.powi(-9) + 16.0 * 2f64.powi(-24) * sums,
    }
}

/// ‖a − b‖ / ‖b‖, or ‖a‖ where b is zero.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    if a.len() != b.len() {
        return f64::INFINITY;
    }
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(x, y)| if x == y { 0.0 } else { x - y }));
    let size = norm(&mut b.iter().copied());
    if size > 0.0 { difference / size } else { difference }
}

fn same_bits(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.to_bits() == y.to_bits())
}

/// Inputs, then initial contents, as the reference takes them.
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

/// Copies of the inputs, the op, copies of its outputs.
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
        outs.push(if adds { Out::Into(out, Mode::Add) } else { Out::New });
    }
    let outputs = b.emit_into("y", Arc::clone(&case.op), &inputs, &outs)?;
    for (k, &y) in outputs.iter().enumerate() {
        if outs[k] == Out::New {
            let out = b.state(&format!("out.{k}"))?;
            b.emit_into("out", Arc::new(Copy), &[y], &[Out::Into(out, Mode::Write)])?;
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

/// 128 random bits for a name, a stream and a position.
fn random(name: &str, stream: usize, at: usize) -> [u32; 4] {
    let digest = blake3::hash(name.as_bytes());
    let key = u32::from_le_bytes([digest.as_bytes()[0], digest.as_bytes()[1], digest.as_bytes()[2], 0]);
    philox([at as u32, stream as u32, 0, 0], [key, 0x9d2c_5680])
}

/// The values of one tensor of a case, already rounded to a format.
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
mod tests {
    use super::*;
    use crate::ir::Cases;
    use rayon::prelude::*;

    fn all_hold(dtype: DType) {
        let precision = Precision::of(dtype);
        let failures: Vec<String> = crate::ops::cases(precision)
            .par_iter()
            .flat_map_iter(|case| match check(case, precision, &Target::Cpu) {
                Ok(findings) => findings
                    .into_iter()
                    .filter(|f| !f.holds())
                    .map(|f| format!("{} [{}] {}: {:.3e} > {:.3e}", f.op, f.case, f.mode, f.error, f.bound))
                    .collect::<Vec<_>>(),
                Err(e) => vec![format!("{case:?}: {e}")],
            })
            .collect();
        assert!(failures.is_empty(), "{} findings\n{}", failures.len(), failures.join("\n"));
    }

    #[test]
    fn every_case_holds_in_f64() {
        all_hold(DType::F64);
    }

    #[test]
    fn every_case_holds_in_f32() {
        all_hold(DType::F32);
    }

    #[test]
    fn every_case_holds_in_bf16() {
        all_hold(DType::Bf16);
    }

    /// A backward op is proven only if a case of its forward really records it.
    #[test]
    fn every_gradient_op_is_recorded_by_its_forward() {
        let precision = Precision::of(DType::F64);
        for op in crate::ops::all() {
            let Cases::GradientOf(forward) = op.cases(precision) else { continue };
            let recorded =
                crate::ops::cases(precision).iter().filter(|c| c.op.name() == forward).any(|case| {
                    let bench = Bench::new(case, precision, Target::Cpu.device(1).unwrap()).unwrap();
                    bench.program().nodes.iter().any(|n| n.op.name() == op.name())
                });
            assert!(recorded, "no case of {forward} records {}", op.name());
        }
    }
}
