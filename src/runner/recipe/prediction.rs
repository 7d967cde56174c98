//! The predicted result of a comparison, as a string that is parsed before anything runs.
//!
//! ```text
//! faster | slower | no difference
//! COLUMN LOW..HIGH%            such as   tok_s +30..+60%   or   allocated_bytes -40..-20%
//! better | worse               of quality
//! MEASURE LOW..HIGH            such as   val_loss -0.05..-0.01
//! ```
//!
//! The range is the change from before to after, in percent of before or in the measure's unit. Both ends are
//! included.

use crate::metrics;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Returns the columns that may have a predicted range: those that comparisons measure, with units in their
/// names.
pub fn predictable() -> impl Iterator<Item = &'static str> {
    metrics::compared().map(|metric| metric.compared_as)
}

/// A prediction with its text as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prediction {
    /// The text as it was written.
    pub text: String,
    /// The predicted quantity.
    pub of: Predicted,
}

/// A predicted quantity.
#[derive(Clone, Debug, PartialEq)]
pub enum Predicted {
    /// More tokens per second.
    Faster,
    /// Fewer tokens per second.
    Slower,
    /// No difference in tokens per second, or in quality, beyond `min_effect`.
    NoDifference,
    /// Better quality.
    Better,
    /// Worse quality.
    Worse,
    /// A range of the difference in a measure of quality: candidate - baseline, in its unit.
    Difference {
        /// The measure as written.
        measure: String,
        /// The lower end.
        low: f64,
        /// The upper end.
        high: f64,
    },
    /// A range of the change of a measured column.
    Range {
        /// One of the [`predictable`] columns.
        column: String,
        /// The lower end of after / before - 1.
        low: f64,
        /// The upper end of after / before - 1.
        high: f64,
    },
}

impl Prediction {
    /// Returns true if only a comparison of quality can judge the prediction.
    pub fn is_about_quality(&self) -> bool {
        matches!(self.of, Predicted::Better | Predicted::Worse | Predicted::Difference { .. })
    }
}

impl FromStr for Prediction {
    /// The reason, with the syntax of predictions.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let of = match text {
            "faster" => Predicted::Faster,
            "slower" => Predicted::Slower,
            "no difference" => Predicted::NoDifference,
            "better" => Predicted::Better,
            "worse" => Predicted::Worse,
            _ => range(text)?,
        };
        Ok(Self { text: text.to_owned(), of })
    }
}

impl TryFrom<String> for Prediction {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Prediction> for String {
    fn from(prediction: Prediction) -> Self {
        prediction.text
    }
}

/// Metrics of quality, besides the measured columns. The name of a measure starts with one of them.
const QUALITY: [&str; 4] = ["val_loss", "ema_val_loss", "bits_per_byte", "train_loss"];

/// Returns true if `name` is a measure of quality whose differences have a unit. Whether it can be judged is
/// checked only when it is judged.
fn is_measure(name: &str) -> bool {
    let metric = name.split(['/', ':']).next().unwrap_or_default();
    QUALITY.contains(&metric) || name.contains("_until:")
}

/// Parses `COLUMN LOW..HIGH%` and `MEASURE LOW..HIGH`.
fn range(text: &str) -> Result<Predicted, String> {
    let Some((column, range)) = text.split_once(char::is_whitespace) else {
        return Err("neither `faster`, `slower`, `better`, `worse`, `no difference`, nor a column and a range such as \
                    `tok_s +30..+60%` or `val_loss -0.05..-0.01`"
            .to_owned());
    };
    if is_measure(column) && !range.trim_end().ends_with('%') {
        let (low, high) = ends(range.trim())?;
        return Ok(Predicted::Difference { measure: column.to_owned(), low, high });
    }
    if !predictable().any(|known| known == column) {
        let known: Vec<&str> = predictable().collect();
        return Err(format!("`{column}` is not a measured column: these are {}", known.join(", ")));
    }
    let range = range.trim();
    let Some(percent) = range.strip_suffix('%') else {
        return Err(format!(
            "`{range}` does not end in %: a range is a change in percent, such as `+30..+60%`"
        ));
    };
    let (low, high) = ends(percent)?;
    if high <= -100.0 {
        return Err(format!("`{range}` leaves nothing: no column falls by 100 % or more"));
    }
    Ok(Predicted::Range { column: column.to_owned(), low: low / 100.0, high: high / 100.0 })
}

/// Parses `LOW..HIGH`.
fn ends(range: &str) -> Result<(f64, f64), String> {
    let Some((low, high)) = range.split_once("..") else {
        return Err(format!("`{range}` has no `..`: a range has two ends, such as `+30..+60%`"));
    };
    let end = |text: &str| -> Result<f64, String> {
        let number = text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
        number.ok_or_else(|| format!("`{text}` is not a number"))
    };
    let (low, high) = (end(low)?, end(high)?);
    if low > high {
        return Err(format!("`{range}` is empty: its first end is above its second"));
    }
    Ok((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_range(text: &str) -> (String, f64, f64) {
        match text.parse::<Prediction>().unwrap().of {
            Predicted::Range { column, low, high } => (column, low, high),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_and_ranges_are_read() {
        assert_eq!("faster".parse::<Prediction>().unwrap().of, Predicted::Faster);
        assert_eq!(" no difference ".parse::<Prediction>().unwrap().of, Predicted::NoDifference);
        assert_eq!(parsed_range("tok_s +30..+60%"), ("tok_s".into(), 0.3, 0.6));
        assert_eq!(parsed_range("allocated_bytes  -40..-20 %".replace(" %", "%").as_str()).1, -0.4);
        assert_eq!(parsed_range("step_ms -5..5.5%"), ("step_ms".into(), -0.05, 0.055));
    }

    #[test]
    fn quality_is_predicted_by_words_and_differences() {
        assert_eq!("better".parse::<Prediction>().unwrap().of, Predicted::Better);
        assert_eq!("worse".parse::<Prediction>().unwrap().of, Predicted::Worse);
        let difference = |text: &str| match text.parse::<Prediction>().unwrap().of {
            Predicted::Difference { measure, low, high } => (measure, low, high),
            other => panic!("{other:?}"),
        };
        assert_eq!(difference("val_loss -0.05..-0.01"), ("val_loss".into(), -0.05, -0.01));
        assert_eq!(difference("val_loss/news:last5 -1..+0").0, "val_loss/news:last5");
        assert_eq!(parsed_range("val_loss -5..-1%"), ("val_loss".into(), -0.05, -0.01));
        assert!("val_loss -0.01..-0.05".parse::<Prediction>().unwrap_err().contains("is empty"));
        assert!("val_loss 0.1".parse::<Prediction>().unwrap_err().contains("has no `..`"));
    }

    #[test]
    fn wrong_predictions_are_explained() {
        let error = |text: &str| text.parse::<Prediction>().unwrap_err();
        assert!(error("quick").contains("tok_s +30..+60%"));
        assert!(error("speed +3..+4%").contains("not a measured column"));
        assert!(error("tok_s +3..+4").contains("does not end in %"));
        assert!(error("tok_s +3%").contains("has no `..`"));
        assert!(error("tok_s a..4%").contains("not a number"));
        assert!(error("tok_s +6..+3%").contains("is empty"));
        assert!(error("tok_s -300..-200%").contains("leaves nothing"));
        assert!(error("").contains("neither"));
    }

    #[test]
    fn it_is_stored_as_it_was_written() {
        let prediction: Prediction = "tok_s +30..+60%".parse().unwrap();
        let json = serde_json::to_string(&prediction).unwrap();
        assert_eq!(json, "\"tok_s +30..+60%\"");
        assert_eq!(serde_json::from_str::<Prediction>(&json).unwrap(), prediction);
    }
}
