//! Lays conversations into rows. None is cut: each takes as many places of a row as it has tokens.

use super::super::packing::{Packed, Piece, Rows};
use super::super::{Packing, marked};
use crate::device::host_allocator::fallible;
use crate::error::{Error, Result};

/// Lays examples into rows of `row_len` words and returns the rows, one behind the other, with one more word
/// for the last target. What is left of a row is padding, which begins like a conversation and is not
/// trained on.
///
/// # Errors
/// If the rows take too much memory.
pub(super) fn rows(
    examples: &[Vec<u32>],
    row_len: usize,
    packing: Packing,
    pad: u32,
) -> Result<(Vec<u32>, Packed)> {
    let mut start = 0;
    let pieces = examples.iter().map(|words| {
        let piece = Piece { start, len: words.len() };
        start += words.len();
        piece
    });
    let pieces: Vec<Piece> = pieces.collect();
    let rows = match packing {
        Packing::Document => Rows::apart(&pieces, row_len),
        Packing::Stream | Packing::BestFit => Rows::pack(&pieces, row_len),
    };
    let count = rows.len().checked_mul(row_len).and_then(|words| words.checked_add(1));
    let too_many =
        || Error::does_not_fit(format!("{} rows of {row_len} tokens take too much memory", rows.len()));
    let (count, mut laid) = (count.ok_or_else(too_many)?, Vec::new());
    fallible(|| laid.try_reserve_exact(count)).map_err(|_| too_many())?;
    for row in 0..rows.len() {
        let from = laid.len();
        for piece in rows.row(row) {
            let example = pieces.partition_point(|other| other.start < piece.start);
            laid.extend(&examples[example]);
        }
        append_padding(&mut laid, from + row_len, pad);
    }
    append_padding(&mut laid, count, pad);
    Ok((laid, rows.summary()))
}

/// Appends padding up to `len` words.
fn append_padding(words: &mut Vec<u32>, len: usize, pad: u32) {
    for i in 0..len.saturating_sub(words.len()) {
        words.push(marked::word(pad, i == 0, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_in_one_row_and_the_rest_is_padding() {
        let example =
            |len: usize, id: u32| -> Vec<u32> { (0..len).map(|i| marked::word(id, i == 0, i > 1)).collect() };
        let examples = [example(3, 1), example(6, 2), example(2, 3), example(4, 4)];
        let ids = |words: &[u32]| words.iter().map(|&word| marked::id(word)).collect::<Vec<_>>();
        let (packed, summary) = rows(&examples, 8, Packing::BestFit, 9).unwrap();
        assert_eq!(ids(&packed), [2, 2, 2, 2, 2, 2, 3, 3, 4, 4, 4, 4, 1, 1, 1, 9, 9]);
        assert_eq!((summary.rows, summary.documents, summary.cut), (2, 4, 0));
        let (apart, summary) = rows(&examples, 8, Packing::Document, 9).unwrap();
        assert_eq!(ids(&apart)[..8], [1, 1, 1, 9, 9, 9, 9, 9]);
        assert_eq!((apart.len(), summary.rows), (4 * 8 + 1, 4));
        // The padding begins like a conversation and is not trained on.
        let padding = &apart[3..8];
        assert!(marked::is_first(padding[0]) && padding[1..].iter().all(|&word| !marked::is_first(word)));
        assert!(padding.iter().all(|&word| !marked::is_trained(word)));
    }
}
