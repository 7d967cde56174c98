//! Generates tokens: processes all prompts in one pass, then generates one token of every sample at a time.
//! The device chooses the tokens.

use crate::error::{Error, Result};
use crate::exec::{Engine, Section, Snapshot};
use crate::ir::{GenerationSlot, PromptSlot, State};
use crate::model::Prefill;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

/// How many steps a GPU runs ahead of the host. The host reads the tokens that much later, so it also notices
/// the end of all texts later.
const STEPS_AHEAD: usize = 3;

/// The programs of generation, and the limits of its texts.
#[derive(Clone, Copy, Debug)]
pub struct Generating<'a> {
    /// Processes the prompts.
    pub prefill: &'a Prefill,
    /// Generates the next token of every sample.
    pub decode: &'a Section,
    /// Tokens that end a text.
    pub ends: &'a [u32],
    /// Maximum number of generated tokens per text.
    pub tokens: usize,
    /// Length of the model's context.
    pub seq_len: usize,
}

impl Generating<'_> {
    /// Generates a text for every sample, and returns their tokens without prompts and end tokens. Calls
    /// `on_token` with the sample and its tokens so far as soon as each token is known.
    ///
    /// A text ends at an end token, where `on_token` breaks, after `tokens` tokens, or at the end of the
    /// model's context: the last token follows a context of `seq_len` tokens. Samples share the prompts
    /// evenly; the samples of one prompt are adjacent.
    ///
    /// # Errors
    /// If the prompts do not fit the program, logits are not finite, or the engine or `on_token` fails.
    pub fn run(
        &self,
        engine: &mut Engine,
        prompts: &[Vec<u32>],
        mut on_token: impl FnMut(usize, &[u32]) -> Result<ControlFlow<()>>,
    ) -> Result<Vec<Vec<u32>>> {
        self.send(engine, prompts)?;
        let samples = samples(engine)?;
        let rooms = (0..samples).map(|sample| {
            self.tokens.min(self.seq_len + 1 - prompts[sample * prompts.len() / samples].len())
        });
        let mut texts = Texts { ends: self.ends, rooms: rooms.collect(), texts: vec![Vec::new(); samples] };
        let most = texts.rooms.iter().copied().max().unwrap_or(0);
        let ahead = if engine.gpu().is_some() { STEPS_AHEAD } else { 0 };
        let mut in_flight = VecDeque::from([launch(engine, &self.prefill.section)?]);
        let mut launched = 1;
        while let Some(mut oldest) = in_flight.pop_front() {
            while launched < most && in_flight.len() < ahead && !texts.all_ended() {
                in_flight.push_back(launch(engine, self.decode)?);
                launched += 1;
            }
            engine.open(&mut oldest)?;
            // Steps that were launched before all texts had ended are only waited for.
            if !texts.all_ended() {
                texts.take(&oldest, engine.state.layout(), &mut on_token)?;
            }
            if launched < most && in_flight.is_empty() && !texts.all_ended() {
                in_flight.push_back(launch(engine, self.decode)?);
                launched += 1;
            }
        }
        Ok(texts.texts)
    }

    /// Writes the prompts into the state, padded at the end, and the position of each sample's last prompt
    /// token.
    fn send(&self, engine: &mut Engine, prompts: &[Vec<u32>]) -> Result<()> {
        let shape = self.prefill.shape;
        let fits = |prompt: &Vec<u32>| (1..=shape.rows.min(self.seq_len)).contains(&prompt.len());
        if prompts.len() != shape.prompts || !prompts.iter().all(fits) {
            let lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
            return Err(Error::failed(format!(
                "prompts of {lengths:?} tokens do not fit a program for {} of up to {}",
                shape.prompts, shape.rows
            )));
        }
        let padded = |prompt: &Vec<u32>| {
            let padding = shape.rows - prompt.len();
            prompt.iter().copied().chain(std::iter::repeat_n(0, padding)).collect::<Vec<u32>>()
        };
        let tokens: Vec<u32> = prompts.iter().flat_map(padded).collect();
        let positions: Vec<u32> = (0..shape.prompts).flat_map(|_| 0..shape.rows as u32).collect();
        let samples = samples(engine)?;
        let last: Vec<u32> =
            (0..samples).map(|s| prompts[s * prompts.len() / samples].len() as u32 - 1).collect();
        let state = &mut engine.state;
        state.write(state.slot(self.prefill.shape.slot(PromptSlot::Tokens))?, &tokens)?;
        state.write(state.slot(self.prefill.shape.slot(PromptSlot::Positions))?, &positions)?;
        state.write(state.slot(GenerationSlot::Positions)?, &last)?;
        state.write(state.slot(GenerationSlot::Bad)?, &vec![0u32; samples])
    }
}

/// Returns the number of samples that the state has buffers for.
fn samples(engine: &Engine) -> Result<usize> {
    Ok(engine.state.layout().get(engine.state.slot(GenerationSlot::Tokens)?).spec.elements())
}

/// Launches a program, and starts to copy the tokens that it chooses and the flags of samples without a valid
/// token.
fn launch(engine: &mut Engine, section: &Section) -> Result<Snapshot> {
    engine.run_all(&[section], 0)?;
    let bad = engine.state.slot(GenerationSlot::Bad)?;
    let slot = engine.state.layout().get(bad);
    let bytes = slot.offset + slot.spec.bytes();
    engine.snapshot(bad, bytes)
}

/// The texts generated so far.
struct Texts<'a> {
    ends: &'a [u32],
    /// Number of tokens that each text may still get; 0 once it has ended.
    rooms: Vec<usize>,
    texts: Vec<Vec<u32>>,
}

impl Texts<'_> {
    fn all_ended(&self) -> bool {
        self.rooms.iter().all(|room| *room == 0)
    }

    /// Adds the tokens of one step.
    fn take(
        &mut self,
        chosen: &Snapshot,
        layout: &Arc<State>,
        on_token: &mut impl FnMut(usize, &[u32]) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let (tokens, bad) =
            (chosen.integers(layout, GenerationSlot::Tokens)?, chosen.integers(layout, GenerationSlot::Bad)?);
        for (sample, token) in tokens.into_iter().enumerate() {
            if self.rooms[sample] == 0 {
                continue;
            }
            if bad[sample] > 0 {
                return Err(Error::failed(format!(
                    "the logits of text {} after {} generated tokens are not finite: the model has no next token",
                    sample + 1,
                    self.texts[sample].len()
                )));
            }
            if self.ends.contains(&token) {
                self.rooms[sample] = 0;
                continue;
            }
            self.rooms[sample] -= 1;
            self.texts[sample].push(token);
            if on_token(sample, &self.texts[sample])?.is_break() {
                self.rooms[sample] = 0;
            }
        }
        Ok(())
    }
}
