//! Scores with the weights of another engine, such as one that trains.

use super::Scorer;
use crate::error::Result;
use crate::exec::Engine;

impl Scorer {
    /// Calls `score` while this scorer has the weights and the transient memory of `lender`, beside which its
    /// engine was made ([`Engine::beside`]). Weights are read, never written.
    ///
    /// # Errors
    /// If `score` fails.
    pub fn with_weights_of<T>(
        &mut self,
        lender: &mut Engine,
        score: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        lender.swap_weights(&mut self.engine);
        let scored = score(self);
        lender.swap_weights(&mut self.engine);
        scored
    }

    /// Returns the bytes of its state; of a scorer that borrows weights, those of its batch and scores.
    pub fn state_bytes(&self) -> usize {
        self.engine.state.bytes()
    }
}
