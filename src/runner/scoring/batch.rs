//! The tensors of one batch of groups.

use super::group::Group;
use super::pack::PlacedGroup;
use super::usage::Usage;
use crate::data::IGNORED;
use crate::model::ScoringShape;
use crate::tasks::Request;

/// A request of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoredRequest {
    /// Index of its item.
    pub item: usize,
    /// Its place in the item.
    pub request: usize,
    /// Number of its scored tokens.
    pub tokens: usize,
}

/// A batch of groups as inputs of the programs.
#[derive(Debug)]
pub(super) struct Batch {
    /// The tokens of all rows; 0 where there is none.
    pub tokens: Vec<u32>,
    /// Their positions, from 0 at the beginning of each request.
    pub positions: Vec<u32>,
    /// The keys that each row sees, as the mask of the programs takes them: its request up to itself. A row
    /// of padding sees itself alone.
    pub spans: Vec<u32>,
    /// The scored tokens, request after request.
    pub targets: Vec<u32>,
    /// The rows before them.
    pub scored: Vec<u32>,
    /// The requests, in the order of their scored tokens.
    pub requests: Vec<ScoredRequest>,
    /// Tokens that the model reads.
    inputs: usize,
}

impl Batch {
    /// Lays out rows of groups.
    pub fn new(
        shape: ScoringShape,
        items: &[&[Request]],
        groups: &[Group],
        rows: &[Vec<PlacedGroup>],
    ) -> Self {
        let (count, numbers) = (shape.rows(), shape.mask().numbers());
        let mut batch = Self {
            tokens: vec![0; count],
            positions: vec![0; count],
            spans: vec![0; numbers * count],
            targets: Vec::with_capacity(count),
            scored: Vec::with_capacity(count),
            requests: Vec::new(),
            inputs: 0,
        };
        for row in 0..count {
            let itself = (row % shape.seq_len) as u32;
            batch.spans[numbers * row..numbers * row + 2].copy_from_slice(&[itself, itself + 1]);
        }
        for (sequence, row) in rows.iter().enumerate() {
            for placed in row {
                batch.add(shape, items, &groups[placed.group], (sequence, placed.start));
            }
        }
        batch.targets.resize(count, IGNORED);
        batch.scored.resize(count, 0);
        batch
    }

    /// Lays out a group from token `start` of a row of attention on.
    fn add(
        &mut self,
        shape: ScoringShape,
        items: &[&[Request]],
        group: &Group,
        (sequence, start): (usize, usize),
    ) {
        let base = sequence * shape.seq_len;
        let prefix_end = start + group.prefix;
        let mut branch = prefix_end;
        let requests = items[group.item].iter().enumerate();
        for (at, request) in requests.skip(group.first).take(group.count) {
            // Where the token at a position of the request lies.
            let place = |position: usize| match position < group.prefix {
                true => start + position,
                false => branch + position - group.prefix,
            };
            let mut len = 0;
            for (position, token) in request.inputs().enumerate() {
                len = position + 1;
                let token_at = place(position);
                let gap = if token_at < prefix_end { [0, 0] } else { [prefix_end, branch] };
                self.put(shape, base, token_at, (token, position), (start, gap));
            }
            // The row of the token before predicts a token.
            let first = request.context.len();
            for (at, token) in request.continuation.iter().enumerate() {
                self.scored.push((base + place(first + at - 1)) as u32);
                self.targets.push(*token);
            }
            let tokens = request.continuation.len();
            self.requests.push(ScoredRequest { item: group.item, request: at, tokens });
            branch += len - group.prefix;
        }
        self.inputs += group.rows;
    }

    /// Writes a token at a place of the row of attention that begins at row `base`.
    fn put(
        &mut self,
        shape: ScoringShape,
        base: usize,
        at: usize,
        (token, position): (u32, usize),
        (start, gap): (usize, [usize; 2]),
    ) {
        let numbers = shape.mask().numbers();
        let row = base + at;
        self.tokens[row] = token;
        self.positions[row] = position as u32;
        let span = [start, at + 1, gap[0], gap[1]].map(|key| key as u32);
        self.spans[numbers * row..numbers * (row + 1)].copy_from_slice(&span[..numbers]);
    }

    /// Returns the number of scored tokens.
    fn scored_count(&self) -> usize {
        self.requests.iter().map(|request| request.tokens).sum()
    }

    /// Returns how many parts of the head hold all scored tokens.
    pub fn heads(&self, shape: ScoringShape) -> usize {
        self.scored_count().div_ceil(shape.head_rows)
    }

    /// Returns how much of the programs' room this batch uses.
    pub fn usage(&self, shape: ScoringShape) -> Usage {
        Usage {
            batches: 1,
            rows: shape.rows(),
            inputs: self.inputs,
            head_rows: (self.heads(shape) * shape.head_rows).min(shape.rows()),
            scored: self.scored_count(),
        }
    }
}
