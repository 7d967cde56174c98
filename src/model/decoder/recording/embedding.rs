//! The embedding: tokens to the first rows of the residual stream.

use super::Recording;
use crate::error::Result;
use crate::ir::{Builder, TensorId};
use crate::model::norm;
use crate::ops::embedding::Embedding;

/// Index of the dropout after the embedding, before those of the blocks.
const EMBEDDING_SITE: u32 = 0;

impl Recording<'_> {
    /// Records the first rows of the residual stream.
    ///
    /// # Errors
    /// When the plan's numbers do not fit an op.
    pub(super) fn embedding(&self, b: &mut Builder) -> Result<TensorId> {
        let m = &self.plan.model;
        b.scoped("embedding", |b| {
            let (tokens, table) = (b.state(&self.input("tokens"))?, b.param("embedding")?);
            let mut x = b.emit1("x", Embedding, &[tokens, table])?;
            if m.embedding_norm {
                x = norm::record(m, "embedding_norm", b, "x_normed", x)?;
            }
            self.dropout(b, x, EMBEDDING_SITE)
        })
    }
}
