//! What a text costs, line by line: parameters and model FLOPs.

use crate::format::{Column, Table, metric, shortened, significant, thousands};
use crate::ir::Init;
use crate::model::flops::node_flops;
use crate::model::parameters::{initial_values, roles};
use crate::model_text::{Graph, ModelText, Outcome};
use crate::optim::GroupRole;
use crate::plan::Model;
use serde::Serialize;
use std::collections::BTreeMap;

/// What a text costs for a recipe.
#[derive(Clone, Debug, Serialize)]
pub struct TextCost {
    /// BLAKE3 hash of the canonical text.
    pub hash: String,
    /// The statements, in the order of the text.
    pub lines: Vec<LineCost>,
    /// The parameters; those that are alike in several blocks are one row.
    pub parameters: Vec<ParameterRow>,
    /// Number of trained elements.
    pub parameter_count: usize,
    /// Model FLOPs per token, forward and backward.
    pub flops_per_token: f64,
}

/// What a statement costs, over all blocks.
#[derive(Clone, Debug, Serialize)]
pub struct LineCost {
    /// The part: embed, block or head.
    pub part: &'static str,
    /// The line of the text, from 1.
    pub line: usize,
    /// The canonical text.
    pub statement: String,
    /// The value in words, of the last block in which the statement exists; empty if it exists in none.
    pub value: String,
    /// Blocks in which the statement exists; 0 outside the blocks.
    pub blocks: usize,
    /// Trained elements that appear here.
    pub parameters: usize,
    /// Model FLOPs per token, forward and backward: 6 per element of a matrix, and attention with its causal
    /// half counted once. Functions of elements do not count.
    pub flops_per_token: f64,
}

/// Parameters that are alike but for their blocks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ParameterRow {
    /// Name, with `*` for the index of a block.
    pub name: String,
    /// Shape, outputs first.
    pub shape: Vec<usize>,
    /// Rows of each matrix, if several widths are stored together; empty otherwise.
    pub stacked: Vec<usize>,
    /// The optimizer's group.
    pub role: String,
    /// Weight decay, if the text sets it.
    pub decay: Option<bool>,
    /// Initial values in words.
    pub initial: String,
    /// Number of parameters.
    pub count: usize,
}

/// Returns what a resolved text costs in sequences of `seq_len` tokens.
pub fn cost(text: &ModelText, graph: &Graph, m: &Model, seq_len: usize) -> TextCost {
    let outcomes = graph.statements.iter().enumerate();
    let mut lines: Vec<LineCost> = outcomes.map(|(index, outcome)| line(text, index, outcome)).collect();
    for node in &graph.nodes {
        lines[node.statement].flops_per_token += node_flops(graph, node, seq_len);
    }
    for parameter in &graph.parameters {
        lines[parameter.statement].parameters += parameter.elements();
    }
    let parameter_count = lines.iter().map(|line| line.parameters).sum();
    let flops_per_token = lines.iter().map(|line| line.flops_per_token).sum();
    TextCost { hash: text.hash(), lines, parameters: rows(graph, m), parameter_count, flops_per_token }
}

/// Returns the line of a statement, without its cost.
fn line(text: &ModelText, index: usize, outcome: &Outcome) -> LineCost {
    let (part, line, statement) = text.statement(index);
    let (part, value, blocks) = (part.word(), outcome.value.clone(), outcome.blocks);
    LineCost { part, line, statement, value, blocks, parameters: 0, flops_per_token: 0.0 }
}

/// Returns the parameters, alike ones in one row, in the order of the text.
fn rows(graph: &Graph, m: &Model) -> Vec<ParameterRow> {
    let mut found: BTreeMap<ParameterRow, usize> = BTreeMap::new();
    let mut rows: Vec<ParameterRow> = Vec::new();
    for (parameter, role) in graph.parameters.iter().zip(roles(graph)) {
        let group = GroupRole::from_role(role).word();
        let row = ParameterRow {
            name: match parameter.block {
                Some(block) => parameter.name.replacen(&format!(".{block}."), ".*.", 1),
                None => parameter.name.clone(),
            },
            shape: parameter.shape.clone(),
            stacked: parameter.stacked.clone(),
            role: parameter.role.clone().unwrap_or_else(|| group.to_owned()),
            decay: parameter.decay,
            initial: match initial_values(m, parameter, role) {
                Init::Normal(std) => format!("normal({})", significant(std)),
                Init::Constant(value) => significant(value),
            },
            count: 1,
        };
        match found.get(&row) {
            Some(&index) => rows[index].count += 1,
            None => {
                found.insert(row.clone(), rows.len());
                rows.push(row);
            }
        }
    }
    rows
}

/// Most characters of a statement that a table shows, if no width is known, and fewest in a narrow one.
const SHOWN: usize = 100;
const MIN_SHOWN: usize = 40;

/// Returns a table of statements with lines of at most `columns` characters, if its other columns permit.
/// `table` renders it with statements of at most so many characters; with 0, their column is as wide as
/// `heading`.
pub fn fitted(columns: Option<usize>, heading: &str, table: impl Fn(usize) -> String) -> String {
    let Some(columns) = columns else { return table(SHOWN) };
    let widest = table(0).lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let without = widest.saturating_sub(heading.len());
    // An ellipsis follows what is cut.
    table(columns.saturating_sub(without + 1).max(MIN_SHOWN))
}

impl TextCost {
    fn lines_with_statements(&self, longest: usize) -> String {
        use Column::{Left, Right};
        let mut lines = Table::new(&[Right, Left, Left, Right, Right, Right]);
        lines.row(["LINE", STATEMENT, "VALUE", "BLOCKS", "PARAMETERS", "FLOPS/TOKEN"]);
        for line in &self.lines {
            lines.row([
                line.line.to_string(),
                shortened(&line.statement, longest),
                line.value.clone(),
                count(line.blocks),
                count(line.parameters),
                flops(line.flops_per_token),
            ]);
        }
        let total = [count(self.parameter_count), flops(self.flops_per_token)];
        lines.row(["", "all", "", "", &total[0], &total[1]]);
        lines.render(0)
    }

    /// Returns the tables of statements and parameters, for a terminal of this many columns.
    pub fn text(&self, columns: Option<usize>) -> String {
        use Column::{Left, Right};
        let mut parameters = Table::new(&[Left, Left, Left, Left, Right]);
        parameters.row(["PARAMETER", "SHAPE", "ROLE", "INITIAL", "ELEMENTS"]);
        for row in &self.parameters {
            parameters.row([
                if row.count == 1 { row.name.clone() } else { format!("{} ({})", row.name, row.count) },
                row.shape_in_words(),
                match row.decay {
                    None => row.role.clone(),
                    Some(true) => format!("{}, decay", row.role),
                    Some(false) => format!("{}, no decay", row.role),
                },
                row.initial.clone(),
                thousands(row.count * row.shape.iter().product::<usize>()),
            ]);
        }
        let lines = fitted(columns, STATEMENT, |longest| self.lines_with_statements(longest));
        format!("{lines}\n{}\ntext {}\n", parameters.render(0), self.hash)
    }
}

/// Heading of the column of statements.
const STATEMENT: &str = "STATEMENT";

/// Returns a number for a table; nothing for 0.
pub(super) fn count(count: usize) -> String {
    if count == 0 { String::new() } else { thousands(count) }
}

/// Returns FLOPs for a table; nothing for 0.
pub(super) fn flops(flops: f64) -> String {
    if flops == 0.0 { String::new() } else { metric(flops).trim_end().to_owned() }
}

impl ParameterRow {
    /// Returns the shape, with the rows of matrices that are stored together.
    fn shape_in_words(&self) -> String {
        let joined = |numbers: &[usize], between: &str| {
            numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(between)
        };
        match self.stacked[..] {
            [] => joined(&self.shape, " × "),
            _ => format!("({}) × {}", joined(&self.stacked, " + "), self.shape[self.shape.len() - 1]),
        }
    }
}
