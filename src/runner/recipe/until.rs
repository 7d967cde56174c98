//! A length of training as a budget: so many tokens, model FLOPs or seconds, in place of a number of steps.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The keys that set the length of a training.
pub(super) const STEPS: &str = "training.steps";
pub(super) const UNTIL: &str = "training.until";

/// The valid forms, for messages.
pub(super) const FORMS: &str = "tokens with k, M, B or T, such as \"300Mtokens\", of model FLOPs, such as \"1e17flops\", or of time in s, min or h, such as \"20min\"";

/// The valid forms as a regular expression, for editors.
pub(super) const PATTERN: &str =
    "^ *[0-9_]*[.]?[0-9_]+([eE][+-]?[0-9]+)? *([kMBT]?tokens?|[fF][lL][oO][pP][sS]?|FLOPs|s|min|h) *$";

/// Most tokens of a budget: larger whole numbers are not exact in fp64.
const MAX_TOKENS: f64 = (1u64 << 53) as f64;
/// Most FLOPs of a budget, far beyond any training.
const MAX_FLOPS: f64 = 1e30;
/// Longest time of a budget, a year.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;
/// Largest exponent of a number as written.
const MAX_EXPONENT: i32 = 100;

/// A length of training as a budget, with the text as it was written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Until {
    /// The text as it was written.
    pub text: String,
    /// The budget.
    pub budget: Budget,
}

/// What a training may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// This many tokens over all ranks.
    Tokens(u64),
    /// This many model FLOPs over all ranks, forward and backward, as `xrun plan` counts them.
    Flops(f64),
    /// This many seconds of training steps.
    Seconds(f64),
}

impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Until {
    /// The reason.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (number, unit) = text.split_at(number_len(text));
        if number.is_empty() {
            return Err("it begins with a number above 0".to_owned());
        }
        let unit = unit.trim_start();
        let budget = match Unit::parse(unit)? {
            Unit::Tokens { exponent } => {
                let tokens = scaled(number, exponent)?;
                if tokens.fract() != 0.0 || tokens < 1.0 {
                    return Err("it takes a whole number of tokens from 1 on".to_owned());
                }
                if tokens > MAX_TOKENS {
                    return Err(format!("it takes at most {MAX_TOKENS:e} tokens"));
                }
                Budget::Tokens(tokens as u64)
            }
            Unit::Flops => {
                let flops = scaled(number, 0)?;
                if !(1.0..=MAX_FLOPS).contains(&flops) {
                    return Err(format!("it takes from 1 to {MAX_FLOPS:e} FLOPs"));
                }
                Budget::Flops(flops)
            }
            Unit::Time { seconds } => {
                let seconds = seconds * scaled(number, 0)?;
                if !(seconds > 0.0 && seconds <= MAX_SECONDS) {
                    return Err("it takes a time above 0, up to a year".to_owned());
                }
                Budget::Seconds(seconds)
            }
        };
        Ok(Self { text: text.to_owned(), budget })
    }
}

impl TryFrom<String> for Until {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Until> for String {
    fn from(until: Until) -> Self {
        until.text
    }
}

/// The unit of a budget.
enum Unit {
    /// Tokens, times ten to the power of `exponent`.
    Tokens {
        exponent: i32,
    },
    Flops,
    /// A unit of this many seconds.
    Time {
        seconds: f64,
    },
}

impl Unit {
    fn parse(unit: &str) -> Result<Self, String> {
        if let Some(multiple) = unit.strip_suffix("tokens").or_else(|| unit.strip_suffix("token")) {
            let exponent = match multiple.trim_end() {
                "" => 0,
                "k" => 3,
                "M" => 6,
                "B" => 9,
                "T" => 12,
                _ => return Err("multiples of tokens are k, M, B (10⁹) and T (10¹²)".to_owned()),
            };
            return Ok(Self::Tokens { exponent });
        }
        if ["", "k", "M", "B", "T"].contains(&unit) {
            return Err("it needs a unit: tokens, flops, s, min or h".to_owned());
        }
        match unit.to_ascii_lowercase().as_str() {
            "flops" | "flop" => Ok(Self::Flops),
            word if word.ends_with("flops") || word.ends_with("flop") => {
                Err("write FLOPs with an exponent, such as 1e17flops".to_owned())
            }
            "s" => Ok(Self::Time { seconds: 1.0 }),
            "min" => Ok(Self::Time { seconds: 60.0 }),
            "h" => Ok(Self::Time { seconds: 3600.0 }),
            "sec" | "second" | "seconds" | "m" | "mins" | "minute" | "minutes" | "hour" | "hours" | "d"
            | "day" | "days" => Err("units of time are s, min and h".to_owned()),
            "step" | "steps" => Err("a number of steps is training.steps".to_owned()),
            "epoch" | "epochs" | "pass" | "passes" => {
                Err("`xrun plan` shows the tokens of a pass over the corpus".to_owned())
            }
            _ => Err("its unit is tokens, flops, s, min or h".to_owned()),
        }
    }
}

/// Returns the length of the number that a text begins with, in bytes.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        from + bytes[from..].iter().take_while(|b| b.is_ascii_digit() || matches!(b, b'.' | b'_')).count()
    };
    let mantissa = digits(0);
    if mantissa == 0 || !bytes.get(mantissa).is_some_and(|b| b.eq_ignore_ascii_case(&b'e')) {
        return mantissa;
    }
    let sign = usize::from(matches!(bytes.get(mantissa + 1), Some(b'+' | b'-')));
    let first = mantissa + 1 + sign;
    let exponent = bytes[first..].iter().take_while(|b| b.is_ascii_digit()).count();
    if exponent == 0 { mantissa } else { first + exponent }
}

/// Returns a number times ten to the power of `exponent`, rounded once, so that 0.3M is exactly 300000.
fn scaled(number: &str, exponent: i32) -> Result<f64, String> {
    let refused = || "it begins with a number such as 300, 1.5 or 1e17".to_owned();
    let number = number.replace('_', "");
    let (mantissa, own) = number.split_once(['e', 'E']).unwrap_or((&number, "0"));
    let own: i32 = own.parse().map_err(|_| refused())?;
    if own.abs() > MAX_EXPONENT {
        return Err(refused());
    }
    format!("{mantissa}e{}", own + exponent).parse().map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_exact_numbers_of_tokens_flops_or_seconds() {
        let budget = |text: &str| text.parse::<Until>().unwrap_or_else(|e| panic!("{text}: {e}")).budget;
        for (text, tokens) in [
            ("1token", 1),
            ("300tokens", 300),
            ("0.3ktokens", 300),
            ("300Mtokens", 300_000_000),
            (" 300 M tokens ", 300_000_000),
            ("1.1Btokens", 1_100_000_000),
            ("1e-3Btokens", 1_000_000),
            ("300_000_000tokens", 300_000_000),
            ("3E8tokens", 300_000_000),
            ("0.007Ttokens", 7_000_000_000),
        ] {
            assert_eq!(budget(text), Budget::Tokens(tokens), "{text}");
        }
        for text in ["1e17flops", "1e17 FLOPs", "100e+15FLOP", "100000000000000000 flops"] {
            assert_eq!(budget(text), Budget::Flops(1e17), "{text}");
        }
        for (text, seconds) in [("90s", 90.0), ("20 min", 1200.0), ("1.5h", 5400.0), ("1e-1s", 0.1)] {
            assert_eq!(budget(text), Budget::Seconds(seconds), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_budget_say_what_one_is() {
        for (text, reason) in [
            ("", "begins with a number"),
            ("tokens", "begins with a number"),
            ("-3tokens", "begins with a number"),
            ("infflops", "begins with a number"),
            ("1..2tokens", "begins with a number such as"),
            (".tokens", "begins with a number such as"),
            ("1e999flops", "begins with a number such as"),
            ("1e99999999999tokens", "begins with a number such as"),
            ("300", "needs a unit"),
            ("300M", "needs a unit"),
            ("300mtokens", "k, M, B"),
            ("300Gtokens", "k, M, B"),
            ("1e17 tokensflops", "an exponent"),
            ("100Pflops", "an exponent"),
            ("0tokens", "whole number"),
            ("1.5tokens", "whole number"),
            ("0.5flops", "from 1 to"),
            ("1e31flops", "from 1 to"),
            ("1e16tokens", "at most"),
            ("0s", "above 0"),
            ("8761h", "up to a year"),
            ("20minutes", "s, min and h"),
            ("20m", "s, min and h"),
            ("100steps", "training.steps"),
            ("3epochs", "a pass over the corpus"),
            ("3e", "its unit is"),
        ] {
            let refused = text.parse::<Until>().expect_err(text);
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }
}
