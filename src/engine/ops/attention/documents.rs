//! Where documents may begin in a row of attention.

use super::{forward, tuning};

/// Returns the multiple of tokens at which documents in one row of attention must begin so that none changes
/// the bits of another. A block of queries, or the part of it whose running maximum is shared, then belongs
/// to one document, and the document's keys fall into the same blocks wherever it lies. The rows between
/// documents must hold the same tokens everywhere, too.
pub fn document_step(on_gpu: bool) -> usize {
    if on_gpu { tuning::DOCUMENT_STEP } else { forward::QUERIES }
}
