//! One micro-batch, laid out as the model's inputs.

use super::marked;

/// Marks a target that the loss leaves out.
pub const IGNORED: u32 = u32::MAX;

/// A micro-batch of B sequences of T tokens, row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Inputs, `[B * T]`.
    pub tokens: Vec<u32>,
    /// Next tokens, `[B * T]`; [`IGNORED`] where there is no next token to predict.
    pub targets: Vec<u32>,
    /// Position of each token for RoPE, `[B * T]`.
    pub positions: Vec<u32>,
    /// The keys that each query attends to within its sequence, `[B * T * 2]`: `start..end`, with `end = t +
    /// 1`.
    pub spans: Vec<u32>,
    /// Index of each sequence in the global batch, `[B]`; part of the dropout generator's counter.
    pub sequences: Vec<u32>,
    /// For each sequence, the index of its source in the mixture, `[B]`; empty if the corpus is one source,
    /// and in an evaluation.
    pub sources: Vec<u32>,
    /// For each sequence, the index of its pair of answers among those that are trained on, `[B]`; empty if
    /// the corpus has no pairs, and in an evaluation.
    pub pairs: Vec<u32>,
    /// Log-probabilities of the answers by the reference model, `[2 * B]`: those of the chosen answers, then
    /// those of the rejected ones. The loader leaves it empty.
    pub reference: Vec<f64>,
    /// Sequences in the whole step, over all micro-batches and ranks; 0 in an evaluation.
    pub step_sequences: u64,
    /// Targets in the whole step from each source, over all micro-batches and ranks: one number if the corpus
    /// is one source, and none in an evaluation.
    pub step_targets: Vec<u64>,
}

impl Batch {
    /// Lays out the tokens of one window per sequence index. A window shorter than `seq_len + 1` is padded
    /// with opening tokens whose targets are [`IGNORED`].
    ///
    /// Without `cross_documents`, positions and spans restart at every `opening_token`. In words of
    /// conversations ([`marked`]), they restart where a conversation begins, and only what is trained on is a
    /// target.
    pub(super) fn from_windows(
        windows: impl IntoIterator<Item = (usize, Vec<u32>)>,
        seq_len: usize,
        opening_token: u32,
        cross_documents: bool,
    ) -> Self {
        let mut batch = Self::default();
        for (sequence, mut tokens) in windows {
            let targets = tokens.iter().skip(1).map(|&word| marked::target(word).unwrap_or(IGNORED));
            batch.targets.extend(targets.chain(std::iter::repeat(IGNORED)).take(seq_len));
            tokens.resize(seq_len, opening_token);
            let mut start = 0;
            for (t, token) in tokens.iter_mut().enumerate() {
                let opens = !marked::is_marked(*token) && *token == opening_token && !cross_documents;
                if opens || marked::is_first(*token) {
                    start = t;
                }
                *token = marked::id(*token);
                batch.positions.push((t - start) as u32);
                batch.spans.extend([start as u32, t as u32 + 1]);
            }
            batch.tokens.append(&mut tokens);
            batch.sequences.push(sequence as u32);
        }
        batch
    }

    /// Lays out the tokens of one row per sequence index: pieces that are masked from each other, each with
    /// one more token for its last target. What is left of a row of `seq_len` inputs is padded with opening
    /// tokens whose targets are [`IGNORED`].
    pub(super) fn from_rows(
        rows: impl IntoIterator<Item = (usize, Vec<Vec<u32>>)>,
        seq_len: usize,
        opening_token: u32,
    ) -> Self {
        let mut batch = Self::default();
        for (sequence, pieces) in rows {
            let mut at = 0;
            for tokens in pieces {
                let [inputs @ .., _] = tokens.as_slice() else { continue };
                batch.tokens.extend(inputs.iter().map(|&word| marked::id(word)));
                batch.targets.extend(tokens[1..].iter().map(|&word| marked::target(word).unwrap_or(IGNORED)));
                // A window of conversations has several.
                let mut rest = inputs;
                while let Some((_, more)) = rest.split_first() {
                    let next = more.iter().position(|&word| marked::is_first(word)).unwrap_or(more.len());
                    batch.append_positions(at, 1 + next);
                    at += 1 + next;
                    rest = &more[next..];
                }
            }
            let padding = seq_len - at;
            batch.tokens.extend(std::iter::repeat_n(opening_token, padding));
            batch.targets.extend(std::iter::repeat_n(IGNORED, padding));
            batch.append_positions(at, padding);
            batch.sequences.push(sequence as u32);
        }
        batch
    }

    /// Appends the positions and spans of `len` tokens from place `at` of a row on, which see only each
    /// other.
    fn append_positions(&mut self, at: usize, len: usize) {
        self.positions.extend(0..len as u32);
        self.spans.extend((at..at + len).flat_map(|t| [at as u32, t as u32 + 1]));
    }

    /// Leaves a token out of the targets.
    pub(super) fn ignore_target(&mut self, token: u32) {
        self.targets.iter_mut().filter(|target| **target == token).for_each(|target| *target = IGNORED);
    }

    /// Returns the number of targets in the whole step.
    pub fn all_step_targets(&self) -> u64 {
        self.step_targets.iter().sum()
    }

    /// Returns the number of targets that the loss counts.
    pub fn target_count(&self) -> usize {
        self.targets.iter().filter(|&&t| t != IGNORED).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    const STREAM: [u32; 8] = [9, 1, 2, 9, 9, 3, 4, 9];

    fn batch(cross: bool, window: Range<usize>) -> Batch {
        Batch::from_windows([(5, STREAM[window].to_vec())], 6, 9, cross)
    }

    #[test]
    fn targets_are_the_next_tokens() {
        let b = batch(true, 1..8);
        assert_eq!(b.tokens, [1, 2, 9, 9, 3, 4]);
        assert_eq!(b.targets, [2, 9, 9, 3, 4, 9]);
        assert_eq!(b.sequences, [5]);
    }

    #[test]
    fn across_documents_everything_before_is_seen() {
        let b = batch(true, 1..8);
        assert_eq!(b.positions, [0, 1, 2, 3, 4, 5]);
        assert_eq!(b.spans, [0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6]);
    }

    #[test]
    fn within_documents_the_end_token_restarts() {
        let b = batch(false, 1..8);
        assert_eq!(b.positions, [0, 1, 0, 0, 1, 2]);
        assert_eq!(b.spans, [0, 1, 0, 2, 2, 3, 3, 4, 3, 5, 3, 6]);
    }

    #[test]
    fn pieces_of_a_row_are_masked_from_each_other() {
        let b = Batch::from_rows([(7, vec![STREAM[4..8].to_vec(), STREAM[0..3].to_vec()])], 6, 9);
        assert_eq!(b.tokens, [9, 3, 4, 9, 1, 9]);
        assert_eq!(b.targets, [3, 4, 9, 1, 2, IGNORED]);
        assert_eq!(b.positions, [0, 1, 2, 0, 1, 0]);
        assert_eq!(b.spans, [0, 1, 0, 2, 0, 3, 3, 4, 3, 5, 5, 6]);
        assert_eq!((b.sequences.as_slice(), b.target_count()), (&[7][..], 5));
        // A document that follows a document of its own is read as in a stream without attention across them.
        let whole = Batch::from_rows([(0, vec![STREAM[1..8].to_vec()])], 6, 9);
        let Batch { tokens, targets, .. } = batch(false, 1..8);
        assert_eq!((whole.tokens, whole.targets), (tokens, targets));
    }

    #[test]
    fn a_short_window_is_masked() {
        let b = batch(false, 5..8);
        assert_eq!(b.tokens, [3, 4, 9, 9, 9, 9]);
        assert_eq!(b.targets, [4, 9, IGNORED, IGNORED, IGNORED, IGNORED]);
        assert_eq!(b.target_count(), 2);
        assert_eq!(b.spans.len(), 12);
        assert_eq!(batch(true, 0..0).target_count(), 0);
    }
}
