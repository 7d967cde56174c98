//! Losses of single documents, summed over windows and ranks.

use crate::data::{Batch, HeldOut, IGNORED};
use crate::device::communicator::Communicator;
use crate::error::{Error, Result};
use crate::metrics::DocumentLoss;
use bytemuck::{Pod, Zeroable};
use std::collections::BTreeMap;

/// The part of a document inside one window.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Piece {
    /// Number of the window in its held-out set.
    window: u64,
    document: u64,
    tokens: u64,
    bytes: u64,
    /// Sum of the losses of the tokens, in nats.
    loss: f64,
}

/// Collects the losses of a held-out set's documents while its batches are evaluated.
pub(super) struct SetDocuments {
    set: String,
    /// Position of each document's first token.
    starts: Vec<usize>,
    counts_bytes: bool,
    pieces: Vec<Piece>,
}

impl SetDocuments {
    /// Finds the documents of a set.
    ///
    /// # Errors
    /// If the starts of the documents cannot be read ([`HeldOut::document_starts`]).
    pub(super) fn new(set: &HeldOut, end_token: u32) -> Result<Self> {
        Ok(Self {
            set: DocumentLoss::set_name(&set.name),
            starts: set.document_starts(end_token)?,
            counts_bytes: set.text.target_bytes(&[]).is_some(),
            pieces: Vec::new(),
        })
    }

    /// Adds a batch with the loss of each of its rows.
    pub(super) fn add(&mut self, set: &HeldOut, batch: &Batch, losses: &[f64]) {
        let seq_len = batch.targets.len() / batch.sequences.len().max(1);
        let rows = batch.targets.chunks(seq_len).zip(losses.chunks(seq_len));
        for (&window, (targets, losses)) in batch.sequences.iter().zip(rows) {
            let counted = targets.iter().rposition(|&target| target != IGNORED).map_or(0, |last| last + 1);
            // The target of row t is the token after it.
            let first = window as usize * seq_len + 1;
            let mut at = 0;
            while at < counted {
                // The token that opens a document closes the one before it.
                let document = self.starts.partition_point(|&start| start < first + at).saturating_sub(1);
                let next = self.starts.get(document + 1).map_or(usize::MAX, |&start| start + 1);
                let end = counted.min(next.saturating_sub(first));
                // The token that only opens a document is not predicted.
                let predicted = (at..end).filter(|&row| targets[row] != IGNORED);
                self.pieces.push(Piece {
                    window: window.into(),
                    document: document as u64,
                    tokens: predicted.clone().count() as u64,
                    bytes: set.text.target_bytes(&targets[at..end]).unwrap_or_default(),
                    loss: predicted.map(|row| losses[row]).sum(),
                });
                at = end;
            }
        }
    }

    /// Sums the documents over all ranks. Every rank calls it and gets the same result, whatever the number
    /// of ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    pub(super) fn gather(self, comm: &dyn Communicator) -> Result<Vec<DocumentLoss>> {
        let all = comm.gather("the losses of documents", bytemuck::cast_slice(&self.pieces).to_vec())?;
        let mut pieces: Vec<Piece> = Vec::new();
        for bytes in all.parts() {
            let rank_pieces = bytemuck::allocation::pod_collect_to_vec::<u8, Piece>(bytes);
            if rank_pieces.len() * size_of::<Piece>() != bytes.len() {
                return Err(Error::failed("a rank sent an incomplete document loss"));
            }
            pieces.extend(rank_pieces);
        }
        pieces.sort_by_key(|piece| (piece.document, piece.window));
        let mut documents: BTreeMap<u64, Piece> = BTreeMap::new();
        for piece in pieces {
            let zero = Piece { tokens: 0, bytes: 0, loss: 0.0, ..piece };
            let sum = documents.entry(piece.document).or_insert(zero);
            (sum.tokens, sum.bytes) = (sum.tokens + piece.tokens, sum.bytes + piece.bytes);
            sum.loss += piece.loss;
        }
        let document = |(document, sum): (u64, Piece)| DocumentLoss {
            set: self.set.clone(),
            document,
            tokens: sum.tokens,
            bytes: self.counts_bytes.then_some(sum.bytes),
            loss: sum.loss / sum.tokens as f64,
        };
        Ok(documents.into_iter().map(document).collect())
    }
}
