//! Checks single numbers, and describes values in messages.

use super::key::NumberRange;
use crate::format::shortened;
use std::ops::Range;
use toml::Value;
use toml::de::{DeInteger, DeValue};

/// A rejected value: the reason and its location.
#[derive(Debug)]
pub(super) struct InvalidValue {
    /// The byte range to point at.
    pub span: Range<usize>,
    /// One line that names the key and the value.
    pub title: String,
    /// Label of the marked bytes.
    pub label: String,
    /// The next step.
    pub help: String,
}

/// Why a check failed: a label, and possibly a better spelling.
pub(super) struct Refusal {
    pub label: String,
    pub fix: Option<String>,
}

impl Refusal {
    pub fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), fix: None }
    }

    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Returns a whole number within bounds, both included.
///
/// # Errors
/// If the value is another one: the reason.
pub(super) fn whole(value: &DeValue<'_>, min: u64, max: u64) -> Result<Value, Refusal> {
    match value {
        DeValue::Integer(written) => match integer(written).map(u64::try_from) {
            Some(Err(_)) if written.as_str().starts_with('-') => Err(Refusal::new("negative")),
            Some(Ok(n)) if n < min => Err(Refusal::new(format!("less than {min}"))),
            Some(Ok(n)) if n <= max => {
                i64::try_from(n).map(Value::Integer).map_err(|_| Refusal::new("too large"))
            }
            _ => Err(Refusal::new(format!("more than {max}"))),
        },
        DeValue::Float(written) => {
            let refusal = Refusal::new("not a whole number");
            match written.as_str().parse::<f64>() {
                Ok(x) if x.fract() == 0.0 && x >= min as f64 && x <= max as f64 => {
                    Err(refusal.fix(format!("write {x}")))
                }
                _ => Err(refusal),
            }
        }
        DeValue::String(text) => Err(unquote(text, |t| t.parse::<u64>().ok().map(|n| n.to_string()))),
        other => Err(Refusal::new(sort(other))),
    }
}

/// Returns a number within a range.
///
/// # Errors
/// If the value is another one: the reason.
pub(super) fn number(value: &DeValue<'_>, interval: NumberRange) -> Result<Value, Refusal> {
    let x = match value {
        DeValue::Float(written) => written.as_str().parse::<f64>().ok(),
        DeValue::Integer(written) => integer(written).map(|n| n as f64),
        DeValue::String(text) => {
            let number = |t: &str| t.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| format!("{x:?}"));
            return Err(unquote(text, number));
        }
        other => return Err(Refusal::new(sort(other))),
    };
    match x {
        Some(x) if interval.contains(x) => match interval.format_fault(x) {
            Some(fault) => Err(Refusal::new(fault)),
            None => Ok(Value::Float(x)),
        },
        Some(x) if x.is_finite() => Err(Refusal::new("out of range")),
        _ => Err(Refusal::new("not a finite number")),
    }
}

/// Parses the integer; `None` if it is larger than any bound in the table.
fn integer(written: &DeInteger<'_>) -> Option<i128> {
    i128::from_str_radix(written.as_str(), written.radix()).ok()
}

/// Refuses a string in place of a number. `number` returns the number that the text means, as TOML.
fn unquote(text: &str, number: impl Fn(&str) -> Option<String>) -> Refusal {
    let refusal = Refusal::new("a string");
    match number(text) {
        Some(number) => refusal.fix(format!("write {number} without the quotes")),
        None => refusal,
    }
}

/// Returns the value for a message: shortened, on one line.
pub(super) fn shown(value: &DeValue<'_>) -> String {
    const LONGEST: usize = 40;
    let text = match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(written) => written.to_string(),
        DeValue::Float(written) => written.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        other => return sort(other).to_owned(),
    };
    shortened(&text, LONGEST)
}

/// Names the type of a value.
pub(super) fn sort(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
