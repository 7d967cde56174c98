//! Generates texts that continue prompts, always the likeliest token.
//!
//! A text is the same whatever is generated beside it: programs have a fixed number of places, those without
//! a prompt get a prompt of one token, and a prompt is processed by the smallest program that holds it.

use super::group::check_tokens;
use super::{Scorer, Usage};
use crate::error::{Error, Result};
use crate::generation::Generating;
use std::cmp::Reverse;
use std::ops::ControlFlow;

/// What ends the texts of a task.
pub struct TextEnds<'a> {
    /// The end token.
    pub token: u32,
    /// The most tokens.
    pub tokens: usize,
    /// Returns true if generated tokens are complete.
    pub is_complete: &'a dyn Fn(&[u32]) -> Result<bool>,
}

impl std::fmt::Debug for TextEnds<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextEnds")
            .field("token", &self.token)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// Prompts that one run of the programs continues.
#[derive(Debug, PartialEq, Eq)]
struct TextBatch {
    /// The program that processes them, by its place.
    prefill: usize,
    /// The prompts, by their places.
    prompts: Vec<usize>,
}

impl Scorer {
    /// Generates a text for every prompt, and returns their tokens without end tokens, in the order of the
    /// prompts. Calls `on_batch` after each batch with the number of texts that are done.
    ///
    /// # Errors
    /// If the programs do not generate, a prompt does not fit the model, logits are not finite, or the device
    /// or `on_batch` fails.
    pub fn generate(
        &mut self,
        prompts: &[&[u32]],
        ends: &TextEnds<'_>,
        mut on_batch: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Vec<Vec<u32>>, Usage)> {
        let (context, vocabulary) = (self.programs.shape.context, self.vocabulary);
        let programs = self.programs.texts.clone();
        let programs =
            programs.ok_or_else(|| Error::failed("the programs of this scorer generate no texts"))?;
        for (at, prompt) in prompts.iter().enumerate() {
            let place = || format!("prompt {}", at + 1);
            check(prompt, ends.tokens, (context, vocabulary)).map_err(|e| e.context(place()))?;
        }
        let rows: Vec<usize> = programs.prefills.iter().map(|prefill| prefill.shape.rows).collect();
        let lengths: Vec<usize> = prompts.iter().map(|prompt| prompt.len()).collect();
        let mut texts = vec![Vec::new(); prompts.len()];
        let (mut usage, mut done) = (Usage::default(), 0);
        for batch in batches(&lengths, &rows, programs.samples) {
            let used = batch.prompts.len();
            let padding = std::iter::repeat_n(vec![0], programs.samples - used);
            let inputs: Vec<Vec<u32>> =
                batch.prompts.iter().map(|&at| prompts[at].to_vec()).chain(padding).collect();
            let generating = Generating {
                prefill: &programs.prefills[batch.prefill],
                decode: &programs.decode,
                ends: &[ends.token],
                tokens: ends.tokens,
                seq_len: context,
            };
            let generated = generating.run(&mut self.engine, &inputs, |sample, tokens| {
                let ends = sample >= used || (ends.is_complete)(tokens)?;
                Ok(if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })?;
            let steps = generated.iter().map(Vec::len).max().unwrap_or(0);
            let tokens: usize = generated[..used].iter().map(Vec::len).sum();
            let read: usize = inputs[..used].iter().map(Vec::len).sum();
            usage += Usage {
                batches: 1,
                rows: programs.samples * (rows[batch.prefill] + steps),
                inputs: read + tokens,
                head_rows: programs.samples * steps,
                scored: tokens,
            };
            for (at, tokens) in batch.prompts.into_iter().zip(generated) {
                texts[at] = tokens;
            }
            done += used;
            on_batch(done)?;
        }
        Ok((texts, usage))
    }
}

/// Checks a prompt for a model with this context and vocabulary.
fn check(prompt: &[u32], tokens: usize, (context, vocabulary): (usize, usize)) -> Result<()> {
    if prompt.is_empty() || prompt.len() + tokens > context + 1 {
        return Err(Error::usage(format!(
            "it has {} tokens, and up to {tokens} are generated after it, but the model reads 1 to {context}",
            prompt.len()
        )));
    }
    check_tokens(prompt.iter(), vocabulary)
}

/// Divides prompts of these lengths into batches of at most `samples`, the longest first. Those of a batch
/// fit the same program, the smallest that holds each. `rows` are the programs' sizes, ascending.
fn batches(lengths: &[usize], rows: &[usize], samples: usize) -> Vec<TextBatch> {
    let program = |at: usize| rows.partition_point(|&rows| rows < lengths[at]);
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&at| Reverse(lengths[at]));
    let same = order.chunk_by(|&a, &b| program(a) == program(b));
    let batch = |prompts: &[usize]| TextBatch { prefill: program(prompts[0]), prompts: prompts.to_vec() };
    same.flat_map(|prompts| prompts.chunks(samples).map(batch)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_prompts_of_one_program() {
        let found = batches(&[3, 64, 65, 128, 1, 100], &[64, 128], 2);
        let expected = [(1, vec![3, 5]), (1, vec![2]), (0, vec![1, 0]), (0, vec![4])];
        assert_eq!(found, expected.map(|(prefill, prompts)| TextBatch { prefill, prompts }));
        assert_eq!(batches(&[], &[64], 2), []);
    }

    #[test]
    fn prompts_that_do_not_fit_are_refused() {
        assert!(check(&[1, 2], 3, (4, 3)).is_ok());
        for (prompt, message) in
            [(&[][..], "it has 0 tokens"), (&[1, 1, 1], "it has 3 tokens"), (&[3], "its token 3 is outside")]
        {
            let refused = check(prompt, 3, (4, 3)).unwrap_err();
            assert!(refused.message().contains(message), "{refused}");
        }
    }
}
