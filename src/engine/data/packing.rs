//! Packs documents into rows of a training batch, so that no document is cut that fits a row.
//!
//! Documents are packed in groups of [`GROUP`], in their order, so a row depends on its group alone. A
//! document longer than a row is cut into whole rows and a rest. Rests and shorter documents are packed by
//! best fit decreasing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): the longest first,
//! each into the row with the least space that suffices. What stays free is padding, which is not trained
//! on. So each token of a document is a target once per epoch, and none is dropped.

use super::parallel::collect_in_order;
use super::stream::Stream;
use super::tokenizer::Tokenizer;
use crate::error::Result;
use crate::format::{percent, plural, thousands};
use crate::liveness::report_progress;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// Documents that are packed together: enough that little space stays free.
const GROUP: usize = 4096;

/// Tokens searched for the beginnings of documents at a time.
const CHUNK: usize = 1 << 20;

/// Consecutive inputs in a stream of tokens. The target of each is the token behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Position of the first input.
    pub start: usize,
    /// Number of inputs.
    pub len: usize,
}

/// The rows that documents are packed into.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The pieces of all rows, row by row.
    pieces: Vec<Piece>,
    /// Where each row's pieces end.
    ends: Vec<usize>,
    seq_len: usize,
    /// Number of documents.
    documents: usize,
    /// Documents that are longer than a row.
    cut: usize,
}

/// What packing makes of a corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Packed {
    /// Number of rows in an epoch.
    pub rows: usize,
    /// Share of the rows that is padding, from 0 to 1.
    pub padding: f64,
    /// Number of documents that are longer than a row, and so are cut.
    pub cut: usize,
    /// Number of documents.
    pub documents: usize,
}

impl std::fmt::Display for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (documents, rows, cut) = (self.documents, self.rows, self.cut);
        let documents = format!("{} document{}", thousands(documents), plural(documents));
        write!(f, "{documents} packed into {} row{}", thousands(rows), plural(rows))?;
        write!(f, ", {} of them padding", percent(self.padding))?;
        match cut {
            0 => f.write_str("; no document is cut"),
            cut => write!(f, "; {} document{} longer than a row cut", thousands(cut), plural(cut)),
        }
    }
}

impl Packed {
    /// Estimates what packing a `share` of documents of about `lens` inputs into rows of `seq_len` makes.
    pub(super) fn estimate(lens: impl Iterator<Item = usize>, seq_len: usize, share: f64) -> Self {
        let documents: Vec<Piece> = lens.map(|len| Piece { start: 0, len: len.max(1) }).collect();
        Rows::pack(&documents, seq_len).summary().scaled(share)
    }

    /// Estimates what a row for each document makes of a `share` of documents of about `lens` inputs.
    pub(super) fn estimate_apart(lens: impl Iterator<Item = usize>, seq_len: usize, share: f64) -> Self {
        let documents: Vec<Piece> = lens.map(|len| Piece { start: 0, len: len.max(1) }).collect();
        Rows::apart(&documents, seq_len).summary().scaled(share)
    }

    /// Adds up what packing makes of several corpora; `None` if there are none.
    pub(super) fn merged(packed: impl Iterator<Item = Self>) -> Option<Self> {
        packed.reduce(|a, b| {
            let rows = a.rows + b.rows;
            let padding = (a.padding * a.rows as f64 + b.padding * b.rows as f64) / rows.max(1) as f64;
            Self { rows, padding, cut: a.cut + b.cut, documents: a.documents + b.documents }
        })
    }

    /// Scales the counts by a factor.
    pub(super) fn scaled(self, factor: f64) -> Self {
        let scaled = |count: usize| (count as f64 * factor).round() as usize;
        let Self { rows, padding, cut, documents } = self;
        Self { rows: scaled(rows).max(1), padding, cut: scaled(cut), documents: scaled(documents) }
    }
}

impl Rows {
    /// Packs documents into rows of `seq_len` inputs.
    pub fn pack(documents: &[Piece], seq_len: usize) -> Self {
        let groups: Vec<Vec<Vec<Piece>>> =
            documents.par_chunks(GROUP).map(|group| pack_group(group, seq_len)).collect();
        let cut = documents.iter().filter(|document| document.len > seq_len).count();
        let mut rows = Self { seq_len, documents: documents.len(), cut, ..Self::default() };
        for row in groups.into_iter().flatten() {
            rows.pieces.extend(row);
            rows.ends.push(rows.pieces.len());
        }
        rows
    }

    /// Lays documents into rows of `seq_len` inputs, one per row; a longer one is cut.
    pub fn apart(documents: &[Piece], seq_len: usize) -> Self {
        let cut = documents.iter().filter(|document| document.len > seq_len).count();
        let mut rows = Self { seq_len, documents: documents.len(), cut, ..Self::default() };
        for &Piece { start, len } in documents {
            for at in (0..len).step_by(seq_len.max(1)) {
                rows.pieces.push(Piece { start: start + at, len: (len - at).min(seq_len) });
                rows.ends.push(rows.pieces.len());
            }
        }
        rows
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the pieces of a row, which follow one another from its beginning.
    pub fn row(&self, row: usize) -> &[Piece] {
        let from = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[from..self.ends[row]]
    }

    /// Summarizes the rows.
    pub fn summary(&self) -> Packed {
        let used: usize = self.pieces.iter().map(|piece| piece.len).sum();
        let padding = 1.0 - used as f64 / (self.len() * self.seq_len).max(1) as f64;
        Packed { rows: self.len(), padding, cut: self.cut, documents: self.documents }
    }
}

/// Packs a group of documents into rows of `seq_len` inputs.
fn pack_group(documents: &[Piece], seq_len: usize) -> Vec<Vec<Piece>> {
    let mut rows = Vec::new();
    let mut rests = Vec::with_capacity(documents.len());
    for &Piece { start, len } in documents {
        let rest = len % seq_len;
        rows.extend((0..len / seq_len).map(|i| vec![Piece { start: start + i * seq_len, len: seq_len }]));
        if rest > 0 {
            rests.push(Piece { start: start + len - rest, len: rest });
        }
    }
    // The sort is stable, so documents of one length stay in their order.
    rests.sort_by_key(|rest| std::cmp::Reverse(rest.len));
    // Rows by the space that is left in them.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for rest in rests {
        let fitting = open.range_mut(rest.len..).next();
        let (space, row) = match fitting.and_then(|(space, rows)| Some((*space, rows.pop()?))) {
            Some(found) => found,
            None => {
                rows.push(Vec::new());
                (seq_len, rows.len() - 1)
            }
        };
        if open.get(&space).is_some_and(Vec::is_empty) {
            open.remove(&space);
        }
        rows[row].push(rest);
        if space > rest.len {
            open.entry(space - rest.len).or_default().push(row);
        }
    }
    rows
}

/// Finds the documents of a stream. Each begins with the opening token, and the target of its last input is
/// the end token; text before the first opening token is a document too.
///
/// # Errors
/// If the stream cannot be read.
pub(super) fn documents(stream: &Stream, tokenizer: &Tokenizer) -> Result<Vec<Piece>> {
    let opening = tokenizer.opening_token();
    let find = |at: usize| {
        let start = at * CHUNK;
        let tokens = stream.tokens(start..stream.len().min(start + CHUNK))?;
        report_progress();
        let found = tokens.iter().enumerate().filter(|(_, token)| **token == opening);
        Ok(found.map(|(i, _)| start + i).collect::<Vec<usize>>())
    };
    let found = collect_in_order((0..stream.len().div_ceil(CHUNK)).into_par_iter().map(find))?;
    let mut starts: Vec<usize> = found.into_iter().flatten().collect();
    if starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    // If documents begin with a token of their own, the end token before it is no input: it predicts nothing.
    let between = usize::from(tokenizer.opening_after_end().is_some());
    let last = stream.len().saturating_sub(1);
    let ends = starts.iter().skip(1).map(|next| next - between).chain([last]);
    let pieces = starts.iter().zip(ends).map(|(&start, end)| Piece { start, len: end.saturating_sub(start) });
    Ok(pieces.filter(|piece| piece.len > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Documents of these lengths, one after another.
    fn pieces(lens: &[usize]) -> Vec<Piece> {
        let mut start = 0;
        let piece = |&len: &usize| {
            let piece = Piece { start, len };
            start += len;
            piece
        };
        lens.iter().map(piece).collect()
    }

    #[test]
    fn the_longest_come_first_and_fill_the_least_space() {
        let rows = Rows::pack(&pieces(&[3, 5, 10, 2, 8, 17]), 10);
        let lens: Vec<Vec<usize>> =
            (0..rows.len()).map(|row| rows.row(row).iter().map(|piece| piece.len).collect()).collect();
        assert_eq!(lens, [vec![10], vec![10], vec![8, 2], vec![7, 3], vec![5]]);
        assert_eq!(rows.row(1), [Piece { start: 28, len: 10 }]);
        let Packed { rows, padding, cut, documents } = rows.summary();
        assert_eq!((rows, cut, documents), (5, 1, 6));
        assert!((padding - 0.1).abs() < 1e-12, "{padding}");
        let said = Rows::pack(&pieces(&[3, 17]), 10).summary().scaled(1000.0).to_string();
        assert_eq!(
            said,
            "2,000 documents packed into 2,000 rows, 0.0 % of them padding; 1,000 documents longer than a row cut"
        );
        assert_eq!(Rows::pack(&[], 10).len(), 0);
    }

    #[test]
    fn documents_may_have_a_row_each() {
        let rows = Rows::apart(&pieces(&[3, 10, 12]), 10);
        let lens: Vec<usize> = (0..rows.len()).map(|row| rows.row(row)[0].len).collect();
        assert_eq!((lens, rows.summary().cut), (vec![3, 10, 10, 2], 1));
        assert_eq!(rows.row(3), [Piece { start: 23, len: 2 }]);
    }

    #[test]
    fn documents_begin_at_their_opening_tokens() {
        let byte = Tokenizer::open("byte").unwrap();
        let end = byte.end_token();
        let found = |tokenizer: &Tokenizer, tokens: &[u32]| {
            documents(&Stream::from_tokens(tokens.to_vec()), tokenizer).unwrap()
        };
        let piece = |start, len| Piece { start, len };
        assert_eq!(found(&byte, &[end, 1, 2, end, 3, end]), [piece(0, 3), piece(3, 2)]);
        assert_eq!(found(&byte, &[1, 2, end, 3]), [piece(0, 2), piece(2, 1)], "cut at both ends");
        assert_eq!(found(&byte, &[1, 2, 3]), [piece(0, 2)], "no document ends");
        assert_eq!(found(&byte, &[end]), []);
        let own = byte.beginning_with(Some("A")).unwrap();
        let opening = own.opening_token();
        let tokens = [opening, 1, 2, end, opening, 3, end];
        assert_eq!(found(&own, &tokens), [piece(0, 3), piece(4, 2)], "an end token predicts nothing");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

        /// Every input of every document is in one row, no row is too long, only long documents are cut, and
        /// a row depends on its group alone.
        #[test]
        fn nothing_is_lost_or_repeated(
            lens in proptest::collection::vec(1usize..200, 0..300), seq_len in 1usize..100, repeats in 0usize..60,
        ) {
            let lens = [lens.clone(), lens.repeat(repeats.min(9000 / (lens.len() + 1)))].concat();
            let documents = pieces(&lens);
            let rows = Rows::pack(&documents, seq_len);
            let mut seen = vec![0; lens.iter().sum()];
            for row in 0..rows.len() {
                let row = rows.row(row);
                prop_assert!(!row.is_empty() && row.iter().map(|piece| piece.len).sum::<usize>() <= seq_len);
                for piece in row {
                    seen[piece.start..piece.start + piece.len].iter_mut().for_each(|count| *count += 1);
                    let document = documents.iter().find(|d| d.start <= piece.start && piece.start < d.start + d.len);
                    let document = document.unwrap();
                    prop_assert!(document.len > seq_len || *document == *piece);
                }
            }
            prop_assert!(seen.iter().all(|count| *count == 1));
            let first = Rows::pack(&documents[..documents.len().min(GROUP)], seq_len);
            prop_assert!((0..first.len()).all(|row| first.row(row) == rows.row(row)));
        }
    }
}
