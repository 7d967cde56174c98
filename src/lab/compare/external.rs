//! Reads the rows of an external command: one JSON object per line, with the column names of xrun.
//!
//! ```text
//! {"step": 1, "step_ms": 12.5, "tok_s": 81920, "loss": 6.91}
//! ```
//!
//! `step` and `tok_s` are required, `step_ms` and `loss` are optional. Steps must ascend. Other members,
//! objects without `step`, and lines that do not begin with `{` are ignored.

use super::judge::curves::LossPoint;
use super::measured::SPEED;
use crate::error::{Error, Result};
use crate::results::{Phase, TimingRow};
use serde::Deserialize;

/// The column of the step time.
const STEP_TIME: &str = "step_ms";

/// The rows that a command printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandOutput {
    /// Step times, as rows of `timing.csv`.
    pub timing: Vec<TimingRow>,
    /// True if every row has a `step_ms`. Otherwise step times are derived from `tok_s` and known up to a
    /// factor.
    pub has_step_ms: bool,
    /// The printed losses.
    pub curve: Vec<LossPoint>,
    /// The lines that were rows, to be stored with the comparison.
    pub lines: String,
}

impl CommandOutput {
    /// Returns the columns that the command measured, speed first.
    pub fn columns(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(SPEED).chain(self.has_step_ms.then_some(STEP_TIME))
    }
}

#[derive(Deserialize)]
struct Row {
    step: Option<u64>,
    step_ms: Option<f64>,
    tok_s: Option<f64>,
    loss: Option<f64>,
}

/// Parses the stdout of a command.
///
/// # Errors
/// If a line begins like a row but is not one, a row has no `tok_s`, steps do not ascend, or there are no
/// rows.
pub fn read(stdout: &str) -> Result<CommandOutput> {
    let mut printed = CommandOutput { has_step_ms: true, ..CommandOutput::default() };
    let mut wall_s = 0.0;
    for (number, line) in stdout.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with('{')) {
        let wrong = |why: String| {
            Err(Error::failed(format!("line {} of the command's output is not a row: {why}", number + 1)))
        };
        let row: Row = match serde_json::from_str(line) {
            Ok(row) => row,
            Err(e) => {
                let said: String = line.trim().chars().take(120).collect();
                let hint = if line.contains("NaN") || line.contains("Infinity") {
                    "; JSON has no NaN: print null"
                } else {
                    ""
                };
                return wrong(format!("{e}, in `{said}`{hint}"));
            }
        };
        let Some(step) = row.step else { continue };
        let Some(tok_s) = row.tok_s.filter(|x| x.is_finite() && *x > 0.0) else {
            return wrong("it has no tok_s above 0".to_owned());
        };
        if printed.timing.last().is_some_and(|last| last.step >= step) {
            return wrong(format!("step {step} does not ascend"));
        }
        // Only ratios of step times matter, so the inverse of the speed can replace a missing time.
        let printed_ms = row.step_ms.filter(|x| x.is_finite() && *x > 0.0);
        printed.has_step_ms &= printed_ms.is_some();
        let step_ms = printed_ms.unwrap_or(1e6 / tok_s);
        wall_s += step_ms / 1e3;
        printed
            .timing
            .push(TimingRow { tok_s: Some(tok_s), ..TimingRow::timed(step, Phase::Train, wall_s, step_ms) });
        printed.curve.extend(row.loss.map(|loss| LossPoint::new(step, loss)));
        printed.lines += line.trim();
        printed.lines.push('\n');
    }
    if printed.timing.is_empty() {
        return Err(Error::failed(
            "the command printed no rows: it must print lines such as {\"step\": 1, \"tok_s\": 81920, \"loss\": 6.91}",
        ));
    }
    Ok(printed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_among_other_lines() {
        let printed = read(
            "compiling\n{\"event\": \"note\"}\n{\"step\":1,\"tok_s\":100,\"step_ms\":20.0,\"loss\":3}\n \
             {\"step\": 2, \"tok_s\": 200.0, \"more\": [1]}\ndone\n",
        )
        .unwrap();
        assert_eq!(printed.timing.iter().map(|row| row.step).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(printed.timing[1].step_ms, 5000.0);
        assert!(!printed.has_step_ms, "the second row has no step_ms; its time follows from tok_s");
        assert_eq!(printed.curve, [LossPoint::new(1, 3.0)]);
        assert_eq!(printed.lines.lines().count(), 2);
    }

    #[test]
    fn malformed_rows_are_reported() {
        let error = |text: &str| read(text).unwrap_err().message().to_owned();
        assert!(error("hello\n").contains("printed no rows"));
        assert!(error("{\"step\":1,\"tok_s\":100}\n{\"step\": 2,\n").contains("line 2"));
        assert!(error("{\"step\":1,\"tok_s\":100,\"loss\":NaN}\n").contains("print null"));
        assert!(error("{\"step\":1}\n").contains("no tok_s"));
        assert!(error("{\"step\":2,\"tok_s\":1}\n{\"step\":2,\"tok_s\":1}\n").contains("does not ascend"));
    }
}
