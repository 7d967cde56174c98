//! The tensors of one batch of requests.

use super::pack::PlacedRequest;
use super::request::{Request, Usage};
use crate::data::IGNORED;
use crate::model::ScoringShape;

/// A batch of requests as inputs of the programs.
#[derive(Debug)]
pub(super) struct Batch {
    /// The tokens of all rows; 0 where there is none.
    pub tokens: Vec<u32>,
    /// Their positions, from 0 at the beginning of each request.
    pub positions: Vec<u32>,
    /// The keys that each row sees: its request up to itself. A row of padding sees itself alone.
    pub spans: Vec<u32>,
    /// The scored tokens, request after request.
    pub targets: Vec<u32>,
    /// The rows before them.
    pub scored: Vec<u32>,
    /// For each request, its index and its number of scored tokens.
    pub scored_tokens: Vec<(usize, usize)>,
    /// Tokens that the model reads.
    inputs: usize,
}

impl Batch {
    /// Lays out rows of requests.
    pub fn new(shape: ScoringShape, requests: &[Request], rows: &[Vec<PlacedRequest>]) -> Self {
        let count = shape.rows();
        let itself = |row: usize| [row % shape.seq_len, row % shape.seq_len + 1];
        let mut batch = Self {
            tokens: vec![0; count],
            positions: vec![0; count],
            spans: (0..count).flat_map(itself).map(|t| t as u32).collect(),
            targets: Vec::with_capacity(count),
            scored: Vec::with_capacity(count),
            scored_tokens: Vec::new(),
            inputs: 0,
        };
        for (sequence, row) in rows.iter().enumerate() {
            for &PlacedRequest { request: index, start } in row {
                let request = &requests[index];
                let (inputs, first) = (request.inputs(), sequence * shape.seq_len + start);
                batch.tokens[first..first + inputs.len()].copy_from_slice(inputs);
                for position in 0..inputs.len() {
                    batch.positions[first + position] = position as u32;
                    batch.spans[2 * (first + position)] = start as u32;
                }
                // The row of the token before predicts a token.
                batch.scored.extend(request.scored().map(|at| (first + at - 1) as u32));
                batch.targets.extend(&request.tokens[request.scored()]);
                batch.scored_tokens.push((index, request.scored().len()));
                batch.inputs += inputs.len();
            }
        }
        batch.targets.resize(count, IGNORED);
        batch.scored.resize(count, 0);
        batch
    }

    /// Returns the number of scored tokens.
    fn scored_count(&self) -> usize {
        self.scored_tokens.iter().map(|(_, tokens)| tokens).sum()
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
