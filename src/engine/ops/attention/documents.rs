//! Where documents may begin in a row of attention.

use super::{forward, tuning};

/// Returns the step of the rows at which documents in one row of attention must begin so that none changes the
/// bits of another. It is a multiple of every block of queries and of keys that the forward pass of flash
/// attention takes on a device. A block then holds queries of one document, and their keys fall into the same
/// blocks wherever the document lies. The rows between documents must be the same for every place, too.
pub fn document_step(on_gpu: bool) -> usize {
    if on_gpu { tuning::DOCUMENT_STEP } else { forward::QUERIES }
}
