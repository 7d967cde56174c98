//! Arithmetic that keeps its formula. A count is written once, in Rust, and prints both with symbols and with
//! numbers.

use crate::format::thousands;
use serde::Serialize;
use std::ops::{Add, Mul};

/// A number, its formula in symbols, and the formula with numbers filled in. In JSON its keys are those of
/// the FLOPs per token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Formula {
    /// The number. Exact below 2^53.
    #[serde(rename = "per_token")]
    pub value: f64,
    /// The formula in symbols, such as `6·(L·d + V)`.
    #[serde(rename = "formula")]
    pub symbols: String,
    /// The formula in numbers, such as `6·(4·128 + 1,024)`.
    #[serde(rename = "filled_in")]
    pub numbers: String,
    #[serde(skip)]
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Atom,
    /// The sum of two atoms, printed without spaces.
    ShortSum,
    Sum,
    Product,
}

impl Formula {
    /// Creates a symbol with its value.
    pub fn symbol(symbol: &str, value: usize) -> Self {
        Self { value: value as f64, symbols: symbol.to_owned(), numbers: thousands(value), form: Form::Atom }
    }

    /// Creates a symbol with a fractional value, printed with one decimal.
    pub fn decimal(symbol: &str, value: f64) -> Self {
        Self { value, symbols: symbol.to_owned(), numbers: format!("{value:.1}"), form: Form::Atom }
    }

    /// Creates a number without a symbol.
    pub fn number(value: usize) -> Self {
        Self::symbol(&thousands(value), value)
    }

    /// Returns both strings, in parentheses if a product needs them.
    fn factor(self) -> (String, String) {
        match self.form {
            Form::Sum | Form::ShortSum => (format!("({})", self.symbols), format!("({})", self.numbers)),
            Form::Atom | Form::Product => (self.symbols, self.numbers),
        }
    }
}

impl Add for Formula {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let short = self.form == Form::Atom && other.form == Form::Atom;
        let (form, plus) = if short { (Form::ShortSum, "+") } else { (Form::Sum, " + ") };
        Self {
            value: self.value + other.value,
            symbols: format!("{}{plus}{}", self.symbols, other.symbols),
            numbers: format!("{}{plus}{}", self.numbers, other.numbers),
            form,
        }
    }
}

impl Mul for Formula {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let value = self.value * other.value;
        let (left, right) = (self.factor(), other.factor());
        let text = |left: String, right: String| format!("{left}·{right}");
        Self { value, symbols: text(left.0, right.0), numbers: text(left.1, right.1), form: Form::Product }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formula_prints_as_it_is_computed() {
        let symbol = Formula::symbol;
        let (l, d, h, kv) = (symbol("L", 4), symbol("d", 1280), symbol("h", 8), symbol("kv", 2));
        let sum = l.clone() * (Formula::number(2) * d.clone() * (h + kv) + Formula::number(3) * d) + l;
        assert_eq!(sum.symbols, "L·(2·d·(h+kv) + 3·d) + L");
        assert_eq!(sum.numbers, "4·(2·1,280·(8+2) + 3·1,280) + 4");
        assert_eq!(sum.value, 117_764.0);
    }
}
