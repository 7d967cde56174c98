//! A case with memory to run it in, and the numbers it runs on.

use super::numbers::values;
use super::programs::{Layout, output_specs};
use crate::device::Device;
use crate::device::communicator::SingleRank;
use crate::error::{Error, Result};
use crate::exec::{Engine, Section};
use crate::ir::{Case, Fill, Mode, Precision, Program};
use crate::policy::Placement;
use std::sync::Arc;

/// A case compiled at a precision: its programs and slots.
pub(super) struct Bench {
    forward: Section,
    backward: Option<Backward>,
    engine: Engine,
    layout: Layout,
}

/// The programs with gradients.
struct Backward {
    /// Forward and backward.
    with_gradient: Section,
    /// The same in a later micro-step: gradients are added to the present values.
    second_micro_step: Section,
    /// The op twice on the same inputs; `None` if it adds to its outputs.
    twice: Option<Section>,
    /// The same, but the outputs that are cheap to recompute are read only by the backward.
    recomputed: Section,
}

impl Bench {
    /// Compiles a case.
    ///
    /// # Errors
    /// If the op rejects its inputs, or has no gradient although the case needs one.
    pub(super) fn new(case: &Case, precision: Precision, device: Device) -> Result<Self> {
        let layout = Layout::new(case, precision)?;
        let forward = Section::new(layout.forward(case)?.0);
        let mut arena = forward.memory.arena_bytes;
        let mut section = |program: Program| {
            let section = Section::new(program);
            arena = arena.max(section.memory.arena_bytes);
            section
        };
        let mut backward = None;
        if !case.differentiable.is_empty() {
            backward = Some(Backward {
                with_gradient: section(layout.with_gradient(case, true)?),
                second_micro_step: section(layout.with_gradient(case, false)?),
                twice: match case.outputs.is_empty() {
                    true => Some(section(layout.twice(case)?)),
                    false => None,
                },
                recomputed: section(layout.recomputed(case)?),
            });
        }
        let engine = Engine::new(device, &layout.state, Arc::new(SingleRank), Placement::Arena, arena, true)?;
        Ok(Self { forward, backward, engine, layout })
    }

    /// Returns the program with its gradient, if the case has one.
    #[cfg(test)]
    pub(super) fn program(&self) -> &Program {
        &self.backward.as_ref().map_or(&self.forward, |backward| &backward.with_gradient).program
    }

    /// Runs the forward, starting from fresh contents of accumulated outputs.
    pub(super) fn run_forward(&mut self, data: &Data) -> Result<Vec<Vec<f64>>> {
        self.load(data)?;
        self.engine.run(&self.forward)?;
        self.read_outputs()
    }

    /// Runs forward and backward, and returns the gradients.
    pub(super) fn run_with_gradient(&mut self, data: &Data) -> Result<Vec<Vec<f64>>> {
        self.load(data)?;
        self.run(|backward| &backward.with_gradient)?;
        self.gradients()
    }

    /// Runs a second micro-step on the data of the first, and returns the sums of both gradients.
    pub(super) fn run_second_micro_step(&mut self) -> Result<Vec<Vec<f64>>> {
        self.run(|backward| &backward.second_micro_step)?;
        self.gradients()
    }

    /// Runs the op twice, and returns the sums of both gradients; `None` if it adds to its outputs.
    pub(super) fn run_twice(&mut self, data: &Data) -> Result<Option<Vec<Vec<f64>>>> {
        self.load(data)?;
        let Some(section) = self.backward.as_ref().and_then(|backward| backward.twice.as_ref()) else {
            return Ok(None);
        };
        self.engine.run(section)?;
        self.gradients().map(Some)
    }

    /// Runs forward and backward, and returns the outputs as the backward reads them, then the gradients.
    pub(super) fn run_recomputed(&mut self, data: &Data) -> Result<Vec<Vec<f64>>> {
        self.load(data)?;
        self.run(|backward| &backward.recomputed)?;
        Ok([self.read_outputs()?, self.gradients()?].concat())
    }

    fn run(&mut self, section: impl Fn(&Backward) -> &Section) -> Result<()> {
        let backward = self.backward.as_ref().ok_or_else(|| Error::failed("the case has no gradients"))?;
        self.engine.run(section(backward))
    }

    fn gradients(&self) -> Result<Vec<Vec<f64>>> {
        self.layout.grads.iter().map(|&grad| self.engine.state.values(grad)).collect()
    }

    fn load(&mut self, data: &Data) -> Result<()> {
        let (state, layout) = (&mut self.engine.state, &self.layout);
        // Memory that an op does not write must look neither like a result nor like the result of an earlier
        // run.
        for &slot in layout.outputs.iter().chain(&layout.grads) {
            let spec = &layout.state.get(slot).spec;
            if spec.dtype.is_float() {
                state.set_values(slot, &vec![f64::NAN; spec.logical_elements()])?;
            }
        }
        let inputs = layout.inputs.iter().zip(&data.inputs);
        let initial = layout.outputs.iter().zip(&data.initial).filter_map(|(s, v)| Some((s, v.as_ref()?)));
        for (&slot, values) in inputs.chain(layout.seeds.iter().zip(&data.seeds)).chain(initial) {
            state.set_values(slot, values)?;
        }
        Ok(())
    }

    /// Reads the outputs and checks that their padding is zero.
    fn read_outputs(&self) -> Result<Vec<Vec<f64>>> {
        let state = &self.engine.state;
        let read = |&slot| {
            if state.padding_is_zero(slot)? {
                return state.values(slot);
            }
            Err(Error::failed(format!("padding of {} is not zero", self.layout.state.get(slot).name)))
        };
        self.layout.outputs.iter().map(read).collect()
    }
}

/// The numbers a case runs on, rounded to the narrow format under test.
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
