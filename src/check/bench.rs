//! A case with memory to run it in, and the numbers that it runs on.

use super::numbers::values;
use super::programs::{both, forward, layout, output_specs, recomputed};
use crate::device::Device;
use crate::device::communicator::SingleRank;
use crate::error::{Error, Result};
use crate::exec::{Engine, Section};
use crate::ir::{Array, Case, Fill, Mode, Precision, Program, SlotId};
use crate::policy::Placement;
use std::sync::Arc;

/// A case compiled at a precision: its program, and the slots of inputs, outputs and gradients.
pub(super) struct Bench {
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
    pub(super) fn new(case: &Case, precision: Precision, device: Device) -> Result<Self> {
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
    #[cfg(test)]
    pub(super) fn program(&self) -> &Program {
        &self.both.as_ref().unwrap_or(&self.forward).program
    }

    fn set(&mut self, slots: &[SlotId], values: &[Vec<f64>]) -> Result<()> {
        for (&slot, values) in slots.iter().zip(values) {
            self.engine.state.set_values(slot, values)?;
        }
        Ok(())
    }

    /// Runs the forward from fresh contents of accumulated outputs.
    pub(super) fn run_forward(&mut self, data: &Data) -> Result<Vec<Array>> {
        self.load(data)?;
        self.engine.run(&self.forward)?;
        self.read_outputs()
    }

    /// Runs forward and backward; returns the gradients.
    pub(super) fn run_both(&mut self, data: &Data) -> Result<Vec<Vec<f64>>> {
        self.load(data)?;
        let section = self.both.as_ref().ok_or_else(|| Error::failed("a case without gradients"))?;
        self.engine.run(section)?;
        self.gradients()
    }

    /// Runs a second micro-step on the data of the first; returns the sums of both gradients.
    pub(super) fn run_again(&mut self) -> Result<Vec<Vec<f64>>> {
        let section = self.again.as_ref().ok_or_else(|| Error::failed("a case without gradients"))?;
        self.engine.run(section)?;
        self.gradients()
    }

    /// Runs forward and backward; returns the outputs as the backward reads them, and the gradients.
    pub(super) fn run_recomputed(&mut self, data: &Data) -> Result<(Vec<Array>, Vec<Vec<f64>>)> {
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
pub(super) struct Data {
    pub(super) inputs: Vec<Vec<f64>>,
    pub(super) seeds: Vec<Vec<f64>>,
    pub(super) initial: Vec<Option<Vec<f64>>>,
}

impl Data {
    pub(super) fn new(case: &Case) -> Result<Self> {
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
