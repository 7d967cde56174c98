//! The predicted result of a comparison, as a string that is parsed before anything runs.
//!
//! ```text
//! faster | slower | no difference
//! COLUMN LOW..HIGH%            such as   tok_s +30..+60%   or   allocated_bytes -40..-20%
//! ```
//!
//! The range is the change from before to after, in percent of before; both ends are included.

use crate::metrics;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Returns the columns that may have a predicted range: those that comparisons measure, with units in the
/// names.
pub fn predictable() -> impl Iterator<Item = &'static str> {
    metrics::compared().map(|metric| metric.compared_as)
}

/// A prediction, with its text as it was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prediction {
    text: String,
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
    /// No difference in tokens per second beyond `min_effect`.
    NoDifference,
    /// A range of the change of a measured column.
    Range {
        /// One of [`predictable`].
        column: String,
        /// The lower end of after / before - 1.
        low: f64,
        /// The upper end of after / before - 1.
        high: f64,
    },
}

impl Prediction {
    /// Returns the text as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Prediction {
    /// The reason, with the syntax of a prediction.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let of = match text {
            "faster" => Predicted::Faster,
            "slower" => Predicted::Slower,
            "no difference" => Predicted::NoDifference,
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

/// Parses `COLUMN LOW..HIGH%`.
fn range(text: &str) -> Result<Predicted, String> {
    let Some((column, range)) = text.split_once(char::is_whitespace) else {
        return Err(
            "neither `faster`, `slower`, `no difference`, nor a column and a range such as `tok_s +30..+60%`"
                .to_owned(),
        );
    };
    if !predictable().any(|known| known == column) {
        let known: Vec<&str> = predictable().collect();
        return Err(format!("`{column}` is no measured column: they are {}", known.join(", ")));
    }
    let range = range.trim();
    let Some(percent) = range.strip_suffix('%') else {
        return Err(format!(
            "`{range}` does not end in %: a range is a change in percent, such as `+30..+60%`"
        ));
    };
    let Some((low, high)) = percent.split_once("..") else {
        return Err(format!("`{range}` has no `..`: a range has two ends, such as `+30..+60%`"));
    };
    let end = |text: &str| -> Result<f64, String> {
        let number = text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
        number.map(|x| x / 100.0).ok_or_else(|| format!("`{text}` is not a number of percent"))
    };
    let (low, high) = (end(low)?, end(high)?);
    if low > high {
        return Err(format!("`{range}` is empty: its first end is above its second"));
    }
    if high <= -1.0 {
        return Err(format!("`{range}` ends at nothing left: no column changes by -100 % or more"));
    }
    Ok(Predicted::Range { column: column.to_owned(), low, high })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range_of(text: &str) -> (String, f64, f64) {
        match text.parse::<Prediction>().unwrap().of {
            Predicted::Range { column, low, high } => (column, low, high),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn words_and_ranges_are_read() {
        assert_eq!("faster".parse::<Prediction>().unwrap().of, Predicted::Faster);
        assert_eq!(" no difference ".parse::<Prediction>().unwrap().of, Predicted::NoDifference);
        assert_eq!(range_of("tok_s +30..+60%"), ("tok_s".into(), 0.3, 0.6));
        assert_eq!(range_of("allocated_bytes  -40..-20 %".replace(" %", "%").as_str()).1, -0.4);
        assert_eq!(range_of("step_ms -5..5.5%"), ("step_ms".into(), -0.05, 0.055));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| text.parse::<Prediction>().unwrap_err();
        assert!(error("quick").contains("tok_s +30..+60%"));
        assert!(error("speed +3..+4%").contains("no measured column"));
        assert!(error("tok_s +3..+4").contains("does not end in %"));
        assert!(error("tok_s +3%").contains("has no `..`"));
        assert!(error("tok_s a..4%").contains("not a number"));
        assert!(error("tok_s +6..+3%").contains("is empty"));
        assert!(error("tok_s -300..-200%").contains("nothing left"));
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
