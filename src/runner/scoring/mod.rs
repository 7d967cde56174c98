//! Scores sequences of tokens with a model: the log-probability of a continuation after its context, and
//! whether greedy decoding would produce it.
//!
//! A request has the same score whatever it is batched with, whatever the order, and wherever it is placed
//! ([`ScoringPrograms`]).

mod batch;
mod pack;
mod request;

pub use pack::Grouping;
pub use request::{Request, Score, Usage};

use crate::error::{Error, Result};
use crate::exec::{Engine, Snapshot};
use crate::ir::{BatchSlot, ScoringSlot};
use crate::model::ScoringPrograms;
use batch::Batch;
use pack::{PlacedRequest, pack};
use std::collections::VecDeque;

/// How many batches a GPU runs ahead of the host, which prepares and reads batches meanwhile.
const BATCHES_AHEAD: usize = 2;

/// A model that scores.
#[derive(Debug)]
pub struct Scorer {
    engine: Engine,
    programs: ScoringPrograms,
    vocabulary: usize,
}

/// A batch whose programs have been launched.
struct InFlight {
    snapshot: Snapshot,
    /// For each request in the batch, its index and its number of scored tokens.
    scored: Vec<(usize, usize)>,
}

impl Scorer {
    /// Creates a scorer from an engine for these programs whose state has the weights of a model with this
    /// vocabulary.
    pub fn new(engine: Engine, programs: ScoringPrograms, vocabulary: usize) -> Self {
        Self { engine, programs, vocabulary }
    }

    /// Returns the most tokens that a request may have: the model's context, and the token after it.
    pub fn most_tokens(&self) -> usize {
        self.programs.shape.context + 1
    }

    /// Returns the hash of the algorithms of a GPU's products, on which the bits of scores depend; `None` on
    /// the CPU.
    pub fn algorithms(&self) -> Option<String> {
        self.engine.gpu().map(|gpu| gpu.products.algorithms().hash())
    }

    /// Scores requests, in their order. Calls `on_batch` after each batch with the number of requests that
    /// are done.
    ///
    /// # Errors
    /// If a request does not fit the model ([`Request::check`]; the message names its index), or the device
    /// or `on_batch` fails.
    pub fn score(
        &mut self,
        requests: &[Request],
        grouping: Grouping,
        mut on_batch: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Vec<Score>, Usage)> {
        let shape = self.programs.shape;
        for (index, request) in requests.iter().enumerate() {
            let checked = request.check(shape.context, self.vocabulary);
            checked.map_err(|e| e.context(format!("request {}", index + 1)))?;
        }
        let lens: Vec<usize> = requests.iter().map(|request| request.inputs().len()).collect();
        let rows = pack(&lens, (shape.seq_len, shape.step), grouping);
        let mut scores = vec![Score { log_prob: 0.0, greedy: true }; requests.len()];
        let ahead = if self.engine.gpu().is_some() { BATCHES_AHEAD } else { 0 };
        let (mut usage, mut done) = (Usage::default(), 0);
        let mut in_flight = VecDeque::new();
        for rows in batches(&rows, shape.sequences, grouping.in_batch()) {
            let batch = Batch::new(shape, requests, rows);
            usage += batch.usage(shape);
            in_flight.push_back(self.launch(batch)?);
            if in_flight.len() > ahead {
                done += self.finish(in_flight.pop_front(), &mut scores)?;
                on_batch(done)?;
            }
        }
        while !in_flight.is_empty() {
            done += self.finish(in_flight.pop_front(), &mut scores)?;
            on_batch(done)?;
        }
        Ok((scores, usage))
    }

    /// Sends a batch to the device and launches its programs.
    fn launch(&mut self, batch: Batch) -> Result<InFlight> {
        let Self { engine, programs, .. } = self;
        engine.send(&[
            (BatchSlot::Tokens, &batch.tokens),
            (BatchSlot::Positions, &batch.positions),
            (BatchSlot::Spans, &batch.spans),
            (BatchSlot::Targets, &batch.targets),
            (BatchSlot::Scored, &batch.scored),
        ])?;
        engine.run_all(&[&programs.hidden], 0)?;
        for head in &programs.heads[..batch.heads(programs.shape)] {
            engine.run_all(&[head], 0)?;
        }
        let slot = engine.state.slot(ScoringSlot::Likeliest)?;
        let last = engine.state.layout().get(slot);
        let bytes = last.offset + last.spec.bytes();
        Ok(InFlight { snapshot: engine.snapshot(slot, bytes)?, scored: batch.scored_tokens })
    }

    /// Waits for a batch, and adds up the scores of its requests. Returns how many requests it had.
    fn finish(&mut self, batch: Option<InFlight>, scores: &mut [Score]) -> Result<usize> {
        let Some(InFlight { mut snapshot, scored }) = batch else { return Ok(0) };
        self.engine.open(&mut snapshot)?;
        let layout = self.engine.state.layout();
        let log_probs = snapshot.numbers(layout, ScoringSlot::LogProbs)?;
        let likeliest = snapshot.integers(layout, ScoringSlot::Likeliest)?;
        let mut next = 0;
        for &(request, tokens) in &scored {
            let rows = next..next + tokens;
            let score = scores.get_mut(request).ok_or_else(|| Error::failed("a batch has no request"))?;
            // In the order of the tokens, so the sum has the same bits wherever they lie.
            score.log_prob = log_probs[rows.clone()].iter().sum();
            score.greedy = likeliest[rows].iter().all(|&is_likeliest| is_likeliest == 1);
            next += tokens;
        }
        Ok(scored.len())
    }
}

/// Divides rows among batches, with at most `sequences` rows and `most` requests in each. A row has at most
/// `most` requests.
fn batches(rows: &[Vec<PlacedRequest>], sequences: usize, most: usize) -> Vec<&[Vec<PlacedRequest>]> {
    let (mut batches, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let (mut count, mut requests) = (0, 0);
        while count < rest.len().min(sequences) && (count == 0 || requests + rest[count].len() <= most) {
            requests += rest[count].len();
            count += 1;
        }
        let (batch, after) = rest.split_at(count);
        batches.push(batch);
        rest = after;
    }
    batches
}
