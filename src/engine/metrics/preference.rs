//! The columns of `metrics.csv` for training on pairs of answers.

/// Means over the pairs of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairMeans {
    /// Reward of the chosen answer: `beta` times the logarithm of its probability by the model over that
    /// by the reference.
    pub chosen_reward: f32,
    /// Reward of the rejected answer.
    pub rejected_reward: f32,
    /// Share of pairs whose chosen answer has the higher reward.
    pub accuracy: f32,
    /// Tokens of the chosen answer that are trained on.
    pub chosen_tokens: f32,
    /// Tokens of the rejected answer that are trained on.
    pub rejected_tokens: f32,
}

/// The columns.
pub const PAIR_COLUMNS: [&str; 6] =
    ["margin", "preference_accuracy", "chosen_reward", "rejected_reward", "chosen_tokens", "rejected_tokens"];

impl PairMeans {
    /// Returns the values of the [`PAIR_COLUMNS`], in their order. The margin is the difference of the
    /// rewards.
    pub fn columns(&self) -> [(&'static str, f32); 6] {
        let values = [
            self.chosen_reward - self.rejected_reward,
            self.accuracy,
            self.chosen_reward,
            self.rejected_reward,
            self.chosen_tokens,
            self.rejected_tokens,
        ];
        std::array::from_fn(|i| (PAIR_COLUMNS[i], values[i]))
    }
}
