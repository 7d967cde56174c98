//! Scores sequences of tokens with a model: the log-probability of a continuation after its context, and
//! whether greedy decoding would produce it. Also generates texts by greedy decoding.
//!
//! The requests of an item, such as its choices, share the tokens that they begin with, which the model reads
//! once. An item has the same scores whatever it is batched with, whatever the order, and wherever it is
//! placed ([`ScoringPrograms`]).

mod batch;
mod group;
mod lent;
mod pack;
mod texts;
mod usage;

pub use pack::Grouping;
pub use texts::TextEnds;
pub use usage::Usage;

use crate::error::{Error, Result};
use crate::exec::{Engine, Snapshot};
use crate::ir::{BatchSlot, ScoringSlot};
use crate::model::ScoringPrograms;
use crate::tasks::{Request, Score};
use batch::{Batch, ScoredRequest};
use group::{check, groups};
use pack::{PlacedGroup, pack};
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
    requests: Vec<ScoredRequest>,
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

    /// Scores the requests of items, in their order. Calls `on_batch` after each batch with the number of
    /// requests that are done.
    ///
    /// # Errors
    /// If a request does not fit the model (the message names item and request), or the device or `on_batch`
    /// fails.
    pub fn score(
        &mut self,
        items: &[&[Request]],
        grouping: Grouping,
        mut on_batch: impl FnMut(usize) -> Result<()>,
    ) -> Result<(Vec<Vec<Score>>, Usage)> {
        let shape = self.programs.shape;
        for (item, requests) in items.iter().enumerate() {
            for (at, request) in requests.iter().enumerate() {
                let place = || format!("item {}, request {}", item + 1, at + 1);
                check(request, shape.context, self.vocabulary).map_err(|e| e.context(place()))?;
            }
        }
        let groups = groups(items, shape);
        let rooms: Vec<usize> = groups.iter().map(|group| group.room(shape)).collect();
        let rows = pack(&rooms, (shape.seq_len, shape.step), grouping);
        let unscored = Score { log_prob: f64::NAN, is_greedy: false };
        let mut scores: Vec<Vec<Score>> =
            items.iter().map(|requests| vec![unscored; requests.len()]).collect();
        let ahead = if self.engine.gpu().is_some() { BATCHES_AHEAD } else { 0 };
        let (mut usage, mut done) = (Usage::default(), 0);
        let mut in_flight = VecDeque::new();
        for rows in batches(&rows, shape.sequences, grouping.in_batch()) {
            let batch = Batch::new(shape, items, &groups, rows);
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
        Ok(InFlight { snapshot: engine.snapshot(slot, bytes)?, requests: batch.requests })
    }

    /// Waits for a batch, and adds up the scores of its requests. Returns how many requests it had.
    fn finish(&mut self, batch: Option<InFlight>, scores: &mut [Vec<Score>]) -> Result<usize> {
        let Some(InFlight { mut snapshot, requests }) = batch else { return Ok(0) };
        self.engine.open(&mut snapshot)?;
        let layout = self.engine.state.layout();
        let log_probs = snapshot.numbers(layout, ScoringSlot::LogProbs)?;
        let likeliest = snapshot.integers(layout, ScoringSlot::Likeliest)?;
        let mut next = 0;
        for &ScoredRequest { item, request, tokens } in &requests {
            let rows = next..next + tokens;
            let score = scores.get_mut(item).and_then(|item| item.get_mut(request));
            let score = score.ok_or_else(|| Error::failed("a batch has no request"))?;
            // In the order of the tokens, so the sum has the same bits wherever they lie.
            score.log_prob = log_probs[rows.clone()].iter().sum();
            score.is_greedy = likeliest[rows].iter().all(|&is_likeliest| is_likeliest == 1);
            next += tokens;
        }
        Ok(requests.len())
    }
}

/// Divides rows among batches, with at most `sequences` rows and `most` groups in each. A row has at most
/// `most` groups.
fn batches(rows: &[Vec<PlacedGroup>], sequences: usize, most: usize) -> Vec<&[Vec<PlacedGroup>]> {
    let (mut batches, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let (mut count, mut groups) = (0, 0);
        while count < rest.len().min(sequences) && (count == 0 || groups + rest[count].len() <= most) {
            groups += rest[count].len();
            count += 1;
        }
        let (batch, after) = rest.split_at(count);
        batches.push(batch);
        rest = after;
    }
    batches
}
