//! The figures that a run measured on a held-out set, and bits per byte.

use super::losses::{FigureAt, FigureSeries, HeldOutPart, LossAt, Losses};
use crate::metrics::{HeldOutColumn, MetricsRow, TASK_FIGURES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the set that `data.validation` holds out. Its losses are the `val_loss` of the run.
pub const MAIN_SET: &str = "";

/// A held-out set of a run, with the losses on it. Fields are `None` if nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeldOutSet {
    /// Hash of the set's tokens, in hexadecimal. Runs with the same hash, vocabulary and part were measured
    /// on the same text.
    pub hash: Option<String>,
    /// Tokens that an evaluation predicts, including end tokens.
    pub tokens: Option<u64>,
    /// Bytes of the text that these tokens stand for, without document separators. `None` if they are
    /// unknown, as for random tokens and some tokenizers.
    pub bytes: Option<u64>,
    /// The part of the set that is evaluated, if `validation.steps` limits it.
    pub part: Option<HeldOutPart>,
    /// The share of its text that is also trained on, from 0 to 1, estimated; `None` if hardly any is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_training: Option<f64>,
    /// The losses, in nats per token.
    #[serde(flatten)]
    pub losses: Losses,
    /// The final loss in bits per byte.
    pub bits_per_byte: Option<f64>,
    /// The losses of the moving average of the weights, if it was evaluated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Losses>,
    /// Further figures by name. Figures of the moving average of the weights begin with `ema_`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, FigureSeries>,
}

impl HeldOutSet {
    /// Adds the loss at a later step.
    pub fn add(&mut self, at: LossAt) {
        self.losses.add(at);
        self.update_bits_per_byte();
    }

    /// Adds the figures from a later row of the run, where the set is called `name`.
    pub fn add_row(&mut self, name: &str, row: &MetricsRow) {
        let step = row.step;
        for (figure, is_average) in TASK_FIGURES.iter().flat_map(|figure| [(figure, false), (figure, true)]) {
            let column = HeldOutColumn { figure: figure.name, set: name, is_average };
            let Some(value) = row.figure(column) else { continue };
            match (figure.name, is_average) {
                ("val_loss", false) => self.add(LossAt { step, loss: value }),
                ("val_loss", true) => self.ema.get_or_insert_default().add(LossAt { step, loss: value }),
                _ => {
                    let series = self.figures.entry(HeldOutColumn { set: "", ..column }.to_string());
                    series.or_default().add(FigureAt { step, value }, figure.higher_is_better);
                }
            }
        }
    }

    /// Replaces the figures with those from all rows of the run, which must be in order of steps.
    pub fn measure(&mut self, name: &str, rows: &[MetricsRow]) {
        (self.losses, self.ema, self.figures) = (Losses::default(), None, BTreeMap::new());
        rows.iter().for_each(|row| self.add_row(name, row));
        self.update_bits_per_byte();
    }

    fn update_bits_per_byte(&mut self) {
        self.bits_per_byte = self.losses.last.and_then(|last| self.in_bits_per_byte(last.loss.into()));
    }

    /// Converts a loss on this set from nats per token to bits per byte; `None` if the bytes are unknown.
    pub fn in_bits_per_byte(&self, loss: f64) -> Option<f64> {
        bits_per_byte(loss, self.tokens?, self.bytes?)
    }
}

/// Returns how many bits per byte of text a model needs, from its mean loss in nats per token over `tokens`
/// that stand for `bytes`: loss · tokens / (bytes · ln 2). Unlike the loss, this does not depend on how a
/// tokenizer splits the text (as in Gao et al., "The Pile", 2020). `None` without bytes.
pub fn bits_per_byte(loss: f64, tokens: u64, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| loss * tokens as f64 / (bytes as f64 * std::f64::consts::LN_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uniform_guess_of_bytes_takes_eight_bits() {
        assert_eq!(bits_per_byte(256f64.ln(), 1000, 1000), Some(8.0));
        // With two bytes per token, the same text takes the same bits.
        assert_eq!(bits_per_byte(2.0 * 256f64.ln(), 500, 1000), Some(8.0));
        assert_eq!(bits_per_byte(1.0, 10, 0), None);
        assert!(bits_per_byte(f64::NAN, 10, 10).is_some_and(f64::is_nan));
    }

    #[test]
    fn what_is_not_known_stays_blank() {
        let at = |step, loss| LossAt { step, loss };
        let mut set = HeldOutSet { tokens: Some(100), ..HeldOutSet::default() };
        set.add(at(1, 2.0));
        set.add(at(2, f32::NAN));
        assert_eq!((set.losses.last, set.bits_per_byte), (Some(at(1, 2.0)), None));
        set.bytes = Some(200);
        set.add(at(3, 4.0));
        assert_eq!(set.bits_per_byte, Some(2.0 / std::f64::consts::LN_2));
        set.measure(MAIN_SET, &[]);
        assert_eq!((set.losses, set.bits_per_byte), (Losses::default(), None));
        assert!(
            !serde_json::to_string(&set).unwrap().contains("ema"),
            "runs without an average say nothing of it"
        );
        set.ema.get_or_insert_default().add(at(3, 1.5));
        let text = serde_json::to_string(&set).unwrap();
        assert_eq!(serde_json::from_str::<HeldOutSet>(&text).unwrap(), set);
    }
}
