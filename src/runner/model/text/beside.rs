//! What a text costs beside another one, such as the text that it extends.

use super::cost::{LineCost, TextCost, count, fitted, flops};
use crate::format::{Column, Table, percent_change, shortened};
use serde::Serialize;

/// Heading of the column of statements.
const STATEMENT: &str = "ONLY IN ONE TEXT";

/// The lines in which two texts differ, and the difference of their costs.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// The name of the other text.
    pub other: String,
    /// Lines that only this text has, or that cost something else in it, in its order.
    pub here: Vec<LineCost>,
    /// The same of the other text.
    pub there: Vec<LineCost>,
    /// Trained elements of this text and of the other.
    pub parameters: [usize; 2],
    /// Model FLOPs per token of this text and of the other.
    pub flops_per_token: [f64; 2],
}

impl Beside {
    /// Compares the cost of a text with that of another one, called `name`.
    pub fn new(this: &TextCost, other: &TextCost, name: impl Into<String>) -> Self {
        Self {
            other: name.into(),
            here: missing_in(other, this),
            there: missing_in(this, other),
            parameters: [this.parameter_count, other.parameter_count],
            flops_per_token: [this.flops_per_token, other.flops_per_token],
        }
    }

    /// Returns the differences in words and as a table, for a terminal of this many columns.
    pub fn text(&self, columns: Option<usize>) -> String {
        let [parameters, others] = self.parameters.map(|n| n as f64);
        let [flops_here, flops_there] = self.flops_per_token;
        let change = |here: f64, there: f64| match here - there {
            0.0 => "as many".to_owned(),
            more if more > 0.0 => format!("+{}", percent_change(more / there)),
            less => percent_change(less / there),
        };
        let [parameters, flops] = [change(parameters, others), change(flops_here, flops_there)];
        let totals = format!("beside {}: parameters {parameters}, FLOPs per token {flops}\n", self.other);
        if self.here.is_empty() && self.there.is_empty() {
            return totals;
        }
        totals + "\n" + &fitted(columns, STATEMENT, |longest| self.table(longest))
    }

    fn table(&self, longest: usize) -> String {
        use Column::{Left, Right};
        let mut table = Table::new(&[Left, Left, Right, Right, Right]);
        table.row(["", STATEMENT, "BLOCKS", "PARAMETERS", "FLOPS/TOKEN"]);
        for (sign, lines) in [("+", &self.here), ("-", &self.there)] {
            for line in lines {
                table.row([
                    sign.to_owned(),
                    shortened(&line.statement, longest),
                    count(line.blocks),
                    count(line.parameters),
                    flops(line.flops_per_token),
                ]);
            }
        }
        table.render(0)
    }
}

/// Returns the lines of `text` to which `other` has no equal one. Lines that no block computes are left out.
fn missing_in(other: &TextCost, text: &TextCost) -> Vec<LineCost> {
    let is_computed = |line: &&LineCost| line.part != "block" || line.blocks > 0;
    let mut left: Vec<&LineCost> = other.lines.iter().filter(is_computed).collect();
    let mut missing = Vec::new();
    for line in text.lines.iter().filter(is_computed) {
        let alike = |other: &&LineCost| {
            (other.part, &other.statement, other.blocks) == (line.part, &line.statement, line.blocks)
                && (other.parameters, other.flops_per_token) == (line.parameters, line.flops_per_token)
        };
        match left.iter().position(alike) {
            Some(at) => drop(left.remove(at)),
            None => missing.push(line.clone()),
        }
    }
    missing
}
