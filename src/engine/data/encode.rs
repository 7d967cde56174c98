//! Tokenizes documents in parallel and delivers them in order.

use super::documents::Documents;
use super::parallel::collect_in_order;
use super::text::BLOCK_BYTES;
use super::token_cache::Journal;
use super::tokenizer::{LostBytes, Tokenizer, timed};
use crate::error::{Error, Result};
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, Scope};

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

/// The tokens of a group of pieces.
struct Encoded {
    tokens: Vec<u32>,
    bytes: TokenizedBytes,
}

/// Hands the stream of the documents numbered `which` to `sink`: end token, document, end token, document, …,
/// end token. If documents open with another token than the end token, it stands before each document, and
/// the end token only after each. Returns the bytes of their text.
///
/// One thread reads groups of pieces, a second encodes them on all cores, and this one hands them on; each
/// works on its own group, and one waits between two of them. If the tokenizer allows no cut, a piece is a
/// whole document. Groups are recorded in `journal`, and those that it has are not encoded again.
///
/// # Errors
/// If a document cannot be read or encoded (the first one is reported), or the sink fails.
pub(super) fn tokenize(
    documents: &Documents,
    which: impl IntoIterator<Item = usize> + Send,
    tokenizer: &Tokenizer,
    journal: &mut Journal,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<TokenizedBytes> {
    let (to_encode, read) = sync_channel(1);
    let (to_sink, encoded) = sync_channel(1);
    std::thread::scope(|scope| {
        start(scope, "xrun-reader", move || {
            let done =
                read_groups(documents, which, tokenizer, &mut |group| to_encode.send(Ok(group)).is_ok());
            // A send fails only after another error.
            drop(done.map_err(|e| to_encode.send(Err(e))));
        })?;
        start(scope, "xrun-encoder", move || {
            let mut is_first = true;
            for group in read {
                let group = group.and_then(|group| encode(group, tokenizer, &mut is_first, journal));
                let failed = group.is_err();
                if to_sink.send(group).is_err() || failed {
                    return;
                }
            }
        })?;
        let mut total = TokenizedBytes::default();
        for group in encoded {
            let Encoded { tokens, bytes } = group?;
            sink(&tokens)?;
            total += bytes;
        }
        Ok(total)
    })
}

fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() + Send + 'scope,
) -> Result<()> {
    let started = Builder::new().name(name.to_owned()).spawn_scoped(scope, body);
    started.map(drop).map_err(|e| Error::failed(format!("cannot start a thread for the tokenizer: {e}")))
}

/// Reads documents and hands their pieces on in groups. The last group has no pieces. Stops if `hand_on`
/// returns false.
fn read_groups(
    documents: &Documents,
    which: impl IntoIterator<Item = usize>,
    tokenizer: &Tokenizer,
    hand_on: &mut dyn FnMut(Vec<Piece>) -> bool,
) -> Result<()> {
    let (mut group, mut bytes) = (Vec::new(), 0);
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
                group.push(Piece { text: text[piece].to_owned(), opens: std::mem::take(&mut opens) });
                if bytes >= GROUP_BYTES {
                    bytes = 0;
                    if !hand_on(std::mem::take(&mut group)) {
                        return Ok(());
                    }
                }
            }
            text.drain(..taken);
            if !more {
                break;
            }
        }
    }
    if !group.is_empty() && !hand_on(group) {
        return Ok(());
    }
    hand_on(Vec::new());
    Ok(())
}

/// Encodes the pieces of a group, or takes their tokens from the journal. A group without pieces is the end.
/// `is_first` is true until a document was opened.
fn encode(
    pieces: Vec<Piece>,
    tokenizer: &Tokenizer,
    is_first: &mut bool,
    journal: &mut Journal,
) -> Result<Encoded> {
    let bytes = pieces.iter().map(|piece| piece.text.len()).sum();
    let opens = pieces.iter().any(|piece| piece.opens);
    let is_last = pieces.is_empty();
    let (tokens, lost) = match journal.recall(bytes, is_last) {
        Some(recalled) => {
            report_progress();
            recalled
        }
        None => {
            let (tokens, lost) = match is_last {
                true => (vec![tokenizer.end_token()], LostBytes::default()),
                false => encode_pieces(pieces, bytes, tokenizer, *is_first)?,
            };
            journal.record(bytes, &tokens, lost, is_last);
            (tokens, lost)
        }
    };
    *is_first &= !opens;
    Ok(Encoded { tokens, bytes: TokenizedBytes { all: bytes as u64, lost } })
}

fn encode_pieces(
    pieces: Vec<Piece>,
    bytes: usize,
    tokenizer: &Tokenizer,
    mut is_first: bool,
) -> Result<(Vec<u32>, LostBytes)> {
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
                Some(opening) if std::mem::take(&mut is_first) => all.push(opening),
                Some(opening) => all.extend([tokenizer.end_token(), opening]),
                None => all.push(tokenizer.end_token()),
            }
        }
        all.extend(tokens);
        all_lost += lost;
    }
    Ok((all, all_lost))
}
