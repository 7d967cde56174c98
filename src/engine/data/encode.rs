//! Tokenizes documents in parallel and delivers them in order.

use super::documents::Documents;
use super::parallel::collect_in_order;
use super::text::BLOCK_BYTES;
use super::token_cache::Journal;
use super::tokenizer::{LostBytes, Tokenizer, timed};
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;

/// Bytes of text encoded before the results are handed on: few enough to bound memory, enough to keep every
/// core busy. Tests have several groups of little text.
const GROUP_BYTES: usize = if cfg!(test) { 256 << 10 } else { 8 << 20 };

/// The bytes of text that were tokenized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenizedBytes {
    /// All of them.
    pub all: u64,
    /// The bytes that the tokens lost.
    pub lost: LostBytes,
}

impl std::ops::AddAssign for TokenizedBytes {
    fn add_assign(&mut self, more: Self) {
        self.all += more.all;
        self.lost += more.lost;
    }
}

/// A piece of a document that is tokenized on its own.
struct Piece {
    text: String,
    opens: bool,
}

/// Hands the stream of the documents numbered `which` to `sink`: end token, document, end token, document, …,
/// end token. If documents open with another token than the end token, it stands before each document, and
/// the end token only after each. Returns the bytes of their text.
///
/// Holds at most one group of pieces and the piece being read. If the tokenizer allows no cut, that piece is
/// the whole document. Groups are recorded in `journal`, and those that it has are not encoded again.
///
/// # Errors
/// If a document cannot be read or encoded (the first one is reported), or the sink fails.
pub(super) fn tokenize(
    documents: &Documents,
    which: impl IntoIterator<Item = usize>,
    tokenizer: &Tokenizer,
    journal: &mut Journal,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<TokenizedBytes> {
    let mut group = Vec::new();
    let (mut bytes, mut total, mut is_first) = (0, TokenizedBytes::default(), true);
    for i in which {
        let (mut reader, mut text, mut opens) = (documents.reader(i)?, String::new(), true);
        loop {
            // If the text has no cut yet, read as much again.
            let block = BLOCK_BYTES.max(text.len());
            let more = reader.append(&mut text, block)?;
            let mut taken = 0;
            for piece in tokenizer.pieces(&text) {
                if more && piece.end == text.len() {
                    // The piece may continue in the next block.
                    break;
                }
                taken = piece.end;
                bytes += piece.len();
                total.all += piece.len() as u64;
                group.push(Piece { text: text[piece].to_owned(), opens: std::mem::take(&mut opens) });
                if bytes >= GROUP_BYTES {
                    total.lost += flush(&mut group, tokenizer, &mut is_first, journal, sink)?;
                    bytes = 0;
                }
            }
            text.drain(..taken);
            if !more {
                break;
            }
        }
    }
    total.lost += flush(&mut group, tokenizer, &mut is_first, journal, sink)?;
    let end = [tokenizer.end_token()];
    if journal.recall(0).is_none() {
        journal.record(0, &end, LostBytes::default());
    }
    sink(&end)?;
    Ok(total)
}

/// Tokenizes the pieces and hands them on. `is_first` is true until a document was opened. Returns the bytes
/// that were lost.
fn flush(
    group: &mut Vec<Piece>,
    tokenizer: &Tokenizer,
    is_first: &mut bool,
    journal: &mut Journal,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<LostBytes> {
    let pieces = std::mem::take(group);
    if pieces.is_empty() {
        return Ok(LostBytes::default());
    }
    let bytes = pieces.iter().map(|piece| piece.text.len()).sum();
    if let Some((tokens, lost)) = journal.recall(bytes) {
        *is_first &= !pieces.iter().any(|piece| piece.opens);
        sink(&tokens)?;
        report_progress();
        return Ok(lost);
    }
    let worker = tokenizer.clone();
    let encoded = timed(bytes, move || {
        let encode = |piece: Piece| -> Result<(bool, Vec<u32>, LostBytes)> {
            let (tokens, lost) = worker.encode_counting(&piece.text)?;
            report_progress();
            Ok((piece.opens, tokens, lost))
        };
        collect_in_order(pieces.into_par_iter().map(encode))
    })??;
    let (mut all, mut all_lost) = (Vec::new(), LostBytes::default());
    for (opens, tokens, lost) in encoded {
        if opens {
            match tokenizer.opening_after_end() {
                Some(opening) if std::mem::take(is_first) => all.push(opening),
                Some(opening) => all.extend([tokenizer.end_token(), opening]),
                None => all.push(tokenizer.end_token()),
            }
        }
        all.extend(tokens);
        all_lost += lost;
    }
    journal.record(bytes, &all, all_lost);
    sink(&all)?;
    Ok(all_lost)
}
