//! Tokenizes documents in parallel and delivers them in order.

use super::documents::Documents;
use super::text::BLOCK_BYTES;
use super::tokenizer::Tokenizer;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;

/// Bytes of text encoded before the results are handed on: few enough to bound memory, enough to keep every
/// core busy.
const GROUP_BYTES: usize = 8 << 20;

/// A piece of a document that is tokenized on its own.
struct Piece {
    text: String,
    opens: bool,
}

/// Hands the stream of the documents numbered `which` to `sink`: end token, document, end token, document, …,
/// end token. Returns the bytes of their text.
///
/// Holds at most one group of pieces and the piece being read. If the tokenizer allows no cut, that piece is
/// the whole document.
///
/// # Errors
/// If a document cannot be read or encoded (the first one is reported), or the sink fails.
pub(super) fn tokenize(
    documents: &Documents,
    which: impl IntoIterator<Item = usize>,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<u64> {
    let mut group = Vec::new();
    let (mut bytes, mut total) = (0, 0);
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
                total += piece.len() as u64;
                group.push(Piece { text: text[piece].to_owned(), opens: std::mem::take(&mut opens) });
                if bytes >= GROUP_BYTES {
                    flush(&mut group, tokenizer, sink)?;
                    bytes = 0;
                }
            }
            text.drain(..taken);
            if !more {
                break;
            }
        }
    }
    flush(&mut group, tokenizer, sink)?;
    sink(&[tokenizer.end_token()])?;
    Ok(total)
}

fn flush(
    group: &mut Vec<Piece>,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let encoded: Vec<Vec<u32>> = group
        .par_iter()
        .map(|u| tokenizer.encode(&u.text).inspect(|_| report_progress()))
        .collect::<Result<_>>()?;
    for (unit, tokens) in group.drain(..).zip(encoded) {
        if unit.opens {
            sink(&[tokenizer.end_token()])?;
        }
        sink(&tokens)?;
    }
    Ok(())
}
