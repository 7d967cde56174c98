//! The programs of generation: process whole prompts at once, then one token of every sample at a time.

use super::purpose::{PromptShape, Purpose};
use super::{layout, recording};
use crate::error::{Error, Result};
use crate::exec::Section;
use crate::ir::{Builder, Program, State};
use crate::passes::{fuse_few_rows, unfuse};
use crate::plan::Plan;
use std::sync::Arc;

/// The program that processes whole prompts.
#[derive(Clone, Debug)]
pub struct Prefill {
    /// The prompts that it processes.
    pub shape: PromptShape,
    /// Fills the caches of all samples and chooses the token after each prompt.
    pub section: Section,
}

/// The programs that generate, over a shared state.
#[derive(Clone, Debug)]
pub struct Generator {
    /// Parameters, and the buffers of generation.
    pub state: Arc<State>,
    /// Texts that are generated at once.
    pub samples: usize,
    /// A program for each requested shape, in the same order.
    pub prefills: Vec<Prefill>,
    /// Generates one token of every sample.
    pub decode: Section,
}

impl Prefill {
    /// Records the program for a shape. The state must have slots for it.
    pub(super) fn new(plan: &Plan, state: &Arc<State>, shape: PromptShape) -> Result<Self> {
        let name = format!("prefill {}x{}", shape.prompts, shape.rows);
        let section = Section::new(record(plan, state, name, Purpose::Prefill(shape))?);
        Ok(Self { shape, section })
    }
}

impl Generator {
    /// Records the programs of a plan that only generates, for prompts of these shapes.
    ///
    /// # Errors
    /// If an op rejects the plan's numbers, the plan asks for no samples, or the prompts cannot share the
    /// samples evenly.
    pub fn new(plan: &Plan, prompts: &[PromptShape]) -> Result<Self> {
        if plan.generation.samples == 0 {
            return Err(Error::usage("generation.samples = 0 requests no text"));
        }
        Self::in_state(plan, prompts, Arc::new(layout::generation_state(plan, prompts)))
    }

    /// Records the programs in a state that has the buffers of generation for a plan and these prompts.
    pub(super) fn in_state(plan: &Plan, prompts: &[PromptShape], state: Arc<State>) -> Result<Self> {
        let prefills =
            prompts.iter().map(|&shape| Prefill::new(plan, &state, shape)).collect::<Result<_>>()?;
        let decode = decode(plan, &state)?;
        Ok(Self { state, samples: plan.generation.samples, prefills, decode })
    }

    /// Returns every section.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        self.prefills.iter().map(|prefill| &prefill.section).chain([&self.decode])
    }

    /// Returns the size of an arena that is large enough for every section.
    pub fn arena_bytes(&self) -> usize {
        self.sections().map(|section| section.memory.arena_bytes).max().unwrap_or(0)
    }
}

/// Records the program for one token of every sample.
pub(super) fn decode(plan: &Plan, state: &Arc<State>) -> Result<Section> {
    Ok(Section::new(record(plan, state, "generate".to_owned(), Purpose::Generate)?))
}

fn record(plan: &Plan, state: &Arc<State>, name: String, purpose: Purpose) -> Result<Program> {
    let mut b = Builder::new(name, Arc::clone(state));
    recording::logits(plan, purpose, &mut b)?;
    if plan.execution.fused { Ok(fuse_few_rows(b.finish())) } else { unfuse(b.finish()) }
}
