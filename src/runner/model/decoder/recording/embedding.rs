//! The embedding: turns tokens into the first rows of the residual stream.

use super::Recording;
use crate::error::Result;
use crate::ir::{Builder, TensorId};
use crate::model::norm;
use crate::ops::add::Add;
use crate::ops::embedding::Embedding;
use crate::ops::scale::Scale;

/// Index of the dropout after the embedding. The dropouts of the blocks follow it.
const EMBEDDING_SITE: u32 = 0;

impl Recording<'_> {
    /// Records the first rows of the residual stream: the token rows times their factor, plus the position
    /// rows if positions are learned.
    ///
    /// # Errors
    /// If the plan's numbers do not fit an op.
    pub(super) fn embedding(&self, b: &mut Builder) -> Result<TensorId> {
        let m = &self.plan.model;
        b.scoped("embedding", |b| {
            let [tokens, positions] = self.inputs();
            let (tokens, table) = (b.state(tokens)?, b.param("embedding")?);
            let mut x = b.emit1("x", Embedding, &[tokens, table])?;
            if m.embedding_scale != 1.0 {
                x = b.emit1("x_scaled", Scale { factor: m.embedding_scale }, &[x])?;
            }
            if m.learned_positions > 0 {
                // Comes after the token rows, whose gradient is complete last.
                let (positions, table) = (b.state(positions)?, b.param("positions")?);
                let vectors = b.emit1("positions", Embedding, &[positions, table])?;
                x = b.emit1("x_positioned", Add, &[x, vectors])?;
            }
            if m.embedding_norm {
                x = norm::record(m, "embedding_norm", b, "x_normed", x)?;
            }
            self.dropout(b, x, EMBEDDING_SITE)
        })
    }
}
