//! How much of its batches a scorer used.

/// How many tokens batches had room for, and how many of them were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Batches that were run.
    pub batches: usize,
    /// Tokens that they had room for.
    pub rows: usize,
    /// Tokens that the model read, those that requests share once.
    pub inputs: usize,
    /// Tokens that the head had room for.
    pub head_rows: usize,
    /// Tokens that were scored.
    pub scored: usize,
}

impl Usage {
    /// Returns the share of rows that held no token of a request, from 0 to 1.
    pub fn padding(&self) -> f64 {
        1.0 - self.inputs as f64 / self.rows.max(1) as f64
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.rows += other.rows;
        self.inputs += other.inputs;
        self.head_rows += other.head_rows;
        self.scored += other.scored;
    }
}
