//! What the checks of a model found.

use crate::format::{Column, Table, significant};
use serde::Serialize;
use std::fmt;

/// Largest relative errors: of a derivative by differences, and of two ways to compute the same in f64.
pub(super) const MAX_GRADIENT_ERROR: f64 = 1e-4;
pub(super) const MAX_ERROR: f64 = 1e-9;

/// Largest relative difference of two devices in fp32, which round in different orders.
const MAX_GPU_ERROR: f64 = 1e-4;

/// What the checks of a model found. Errors are relative.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelChecks {
    /// The parameter whose derivative along a random direction differs most from that by differences.
    pub worst_parameter: String,
    /// Its error, over the norm of its gradient.
    pub gradient_error: f64,
    /// Parameters whose gradient is 0, so that it was not checked.
    pub without_gradient: Vec<String>,
    /// Rows whose logits changed with a token that they must not see: behind them, or in another document.
    pub seeing_rows: usize,
    /// The largest difference of the logits from those of the text, computed value by value as it is written.
    pub text_error: f64,
    /// The largest difference of the logits with and without fused ops.
    pub unfused_error: f64,
    /// The largest difference of the logits that are generated token by token from those of the whole text.
    pub generation_error: f64,
    /// The largest difference of logits and gradients in fp32 on a GPU from those on the CPU; `None` without
    /// a GPU.
    pub gpu_error: Option<f64>,
    /// How large the values of statements are before training.
    pub scales: Vec<ValueScale>,
}

/// How large the value of a statement is before training: root mean squares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueScale {
    /// The line of the text, from 1.
    pub line: usize,
    /// The name that the statement gives.
    pub name: String,
    /// In the first block that has it, or outside the blocks.
    pub first: f64,
    /// In the last block that has it; `None` outside the blocks.
    pub last: Option<f64>,
    /// In the first block of a model that is twice as wide; `None` if that is too large to be checked.
    pub wide: Option<f64>,
}

impl ModelChecks {
    /// Returns true if the model passed every check.
    pub fn passed(&self) -> bool {
        // Comparisons with NaN are false.
        self.gradient_error <= MAX_GRADIENT_ERROR
            && self.seeing_rows == 0
            && self.text_error <= MAX_ERROR
            && self.unfused_error <= MAX_ERROR
            && self.generation_error <= MAX_ERROR
            && self.gpu_error.is_none_or(|error| error <= MAX_GPU_ERROR)
    }
}

impl fmt::Display for ModelChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let says = |passed: bool| if passed { "ok" } else { "WRONG" };
        writeln!(
            f,
            "{:<6} gradients against differences: largest error {:.1e} of {} (at most {MAX_GRADIENT_ERROR:.0e})",
            says(self.gradient_error <= MAX_GRADIENT_ERROR),
            self.gradient_error,
            self.worst_parameter
        )?;
        if !self.without_gradient.is_empty() {
            writeln!(f, "       without a gradient, and not checked: {}", self.without_gradient.join(", "))?;
        }
        writeln!(
            f,
            "{:<6} causality: {} rows changed with tokens that they must not see",
            says(self.seeing_rows == 0),
            self.seeing_rows
        )?;
        for (what, error) in [
            ("programs against the text as it is written", self.text_error),
            ("fused ops against unfused ones", self.unfused_error),
            ("generation with a cache against the whole text", self.generation_error),
        ] {
            let says = says(error <= MAX_ERROR);
            writeln!(
                f,
                "{says:<6} {what}: largest difference of logits {error:.1e} (at most {MAX_ERROR:.0e})"
            )?;
        }
        if let Some(error) = self.gpu_error {
            writeln!(
                f,
                "{:<6} GPU against CPU in fp32: largest difference of logits and gradients {error:.1e} \
                 (at most {MAX_GPU_ERROR:.0e})",
                says(error <= MAX_GPU_ERROR)
            )?;
        }
        let mut table =
            Table::new(&[Column::Right, Column::Left, Column::Right, Column::Right, Column::Right]);
        table.row(["LINE", "RMS BEFORE TRAINING", "FIRST", "LAST", "TWICE AS WIDE"]);
        let number = |value: Option<f64>| value.map_or(String::new(), significant);
        for scale in &self.scales {
            let [first, last, wide] = [Some(scale.first), scale.last, scale.wide].map(number);
            table.row([scale.line.to_string(), scale.name.clone(), first, last, wide]);
        }
        write!(f, "\n{}", table.render(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_none_does_not_pass() {
        let right = ModelChecks {
            worst_parameter: "head".to_owned(),
            gradient_error: 1e-8,
            without_gradient: Vec::new(),
            seeing_rows: 0,
            text_error: 1e-15,
            unfused_error: 1e-15,
            generation_error: 1e-15,
            gpu_error: Some(1e-6),
            scales: Vec::new(),
        };
        assert!(right.passed());
        for wrong in [
            ModelChecks { gradient_error: f64::NAN, ..right.clone() },
            ModelChecks { gradient_error: 2e-4, ..right.clone() },
            ModelChecks { seeing_rows: 1, ..right.clone() },
            ModelChecks { text_error: f64::NAN, ..right.clone() },
            ModelChecks { unfused_error: f64::NAN, ..right.clone() },
            ModelChecks { generation_error: 1e-8, ..right.clone() },
            ModelChecks { gpu_error: Some(f64::NAN), ..right.clone() },
            ModelChecks { gpu_error: Some(2e-4), ..right.clone() },
        ] {
            assert!(!wrong.passed() && wrong.to_string().contains("WRONG"), "{wrong}");
        }
    }
}
