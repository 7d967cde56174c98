//! Tokenizes documents in parallel and delivers them in order.

use super::documents::Documents;
use super::tokenizer::Tokenizer;
use crate::error::Result;
use crate::liveness::report_progress;
use rayon::prelude::*;
use std::borrow::Cow;

/// Text encoded before the results are handed on: bounds memory, and leaves enough work for every core.
const GROUP_BYTES: usize = 8 << 20;

/// A piece of a document that is tokenized by itself.
struct Piece<'t> {
    text: Cow<'t, str>,
    opens: bool,
}

/// Hands the stream of the documents numbered `which` to `sink`: the end token, a document, the end token, a
/// document, …, the end token. Returns the bytes of their text.
///
/// # Errors
/// The first document that cannot be read or encoded, or the sink's own error.
pub(super) fn tokenize(
    documents: &Documents,
    which: impl IntoIterator<Item = usize>,
    tokenizer: &Tokenizer,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<u64> {
    let mut group = Vec::new();
    let (mut bytes, mut total) = (0, 0);
    for i in which {
        let units: Vec<Piece<'_>> = match documents.text(i)? {
            Cow::Owned(text) => vec![Piece { text: Cow::Owned(text), opens: true }],
            Cow::Borrowed(text) => tokenizer
                .pieces(text)
                .map(|p| Piece { opens: p.start == 0, text: Cow::Borrowed(&text[p]) })
                .collect(),
        };
        for unit in units {
            bytes += unit.text.len();
            total += unit.text.len() as u64;
            group.push(unit);
            if bytes >= GROUP_BYTES {
                flush(&mut group, tokenizer, sink)?;
                bytes = 0;
            }
        }
    }
    flush(&mut group, tokenizer, sink)?;
    sink(&[tokenizer.end_token()])?;
    Ok(total)
}

fn flush(
    group: &mut Vec<Piece<'_>>,
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
