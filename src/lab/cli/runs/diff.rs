//! `xrun runs diff A B`.

use super::columns::beginning;
use crate::cli::terminal::{print, print_json_line};
use crate::error::{Error, Result};
use crate::format::{BLANK, Column, Table, decimal, plural, significant};
use crate::metrics::MetricsRow;
use crate::results::collection::{CurveDifference, RunDifference};
use crate::results::find;
use std::path::Path;

/// The longest value of a key or fact shown, in characters.
const SHOWN: usize = 60;

/// Arguments of `xrun runs diff`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The first run: its folder, its name, a prefix of its name or hash, or `latest`.
    #[arg(value_name = "RUN")]
    a: String,
    /// The second run.
    #[arg(value_name = "OTHER")]
    b: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Compares two runs and prints how they differ.
///
/// # Errors
/// If a run is missing, or one of its files cannot be read.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let [a, b] = [&args.a, &args.b].map(|name| find::find(results, name));
    let difference = RunDifference::between([&a?, &b?])?;
    let [one, other] = &difference.runs;
    if one == other && args.a != args.b {
        return Err(Error::usage(format!(
            "`{}` and `{}` are the same run, {one}; name another one",
            args.a, args.b
        )));
    }
    if args.json {
        return print_json_line(&difference);
    }
    let [a, b] = &difference.runs;
    let sections = [keys, environment, curves, figures].map(|section| section(&difference));
    print(&format!("A  {a}\nB  {b}\n{}", sections.concat()))
}

fn section(title: &str, table: &Table) -> String {
    format!("\n{title}\n{}", table.render(2))
}

fn keys(difference: &RunDifference) -> String {
    if difference.keys.is_empty() {
        return "\nThe same value of every key.\n".to_owned();
    }
    let mut table = Table::new(&[Column::Left; 4]);
    table.row(["KEY", "CLASS", "A", "B"]);
    for key in &difference.keys {
        let [a, b] = key.values.each_ref().map(shown);
        let class = key.class.map_or_else(|| BLANK.to_owned(), |class| class.to_string());
        table.row([key.key.clone(), class, a, b]);
    }
    section("Keys", &table)
}

fn environment(difference: &RunDifference) -> String {
    if difference.environment.is_empty() {
        return "\nThe same environment.\n".to_owned();
    }
    let mut table = Table::new(&[Column::Left; 3]);
    table.row(["ENVIRONMENT", "A", "B"]);
    for fact in &difference.environment {
        let [a, b] = fact.values.each_ref().map(shown);
        table.row([fact.name.clone(), a, b]);
    }
    section("Environment", &table)
}

fn curves(difference: &RunDifference) -> String {
    let steps = difference.common_steps;
    let lone: Vec<String> = ["A", "B"]
        .iter()
        .zip(difference.lone_steps)
        .filter(|(_, steps)| *steps > 0)
        .map(|(run, steps)| format!("{steps} in {run} alone"))
        .collect();
    let lone = if lone.is_empty() { String::new() } else { format!(", {}", lone.join(", ")) };
    let over = format!("{steps} step{} in both{lone}", plural(steps));
    let mut table =
        Table::new(&[Column::Left, Column::Right, Column::Right, Column::Right, Column::Right, Column::Left]);
    table.row(["COLUMN", "DIFFERS FROM STEP", "A THERE", "B THERE", "B − A", "LARGEST"]);
    let mut is_same = true;
    for curve in &difference.curves {
        let Some(first) = curve.first else { continue };
        is_same = false;
        let [a, b] = first.values.map(exact);
        let apart = first.difference().map_or(BLANK.to_owned(), significant);
        table.row([curve.column.clone(), first.step.to_string(), a, b, apart, largest(curve)]);
    }
    if difference.curves.is_empty() {
        return format!("\nCurves: {over}.\n");
    }
    let end = at_the_end(difference);
    if is_same {
        return format!("\nThe same bits in metrics.csv: {over}.{end}\n");
    }
    let same = difference.curves.iter().filter(|curve| curve.first.is_none());
    let same: Vec<&str> = same.map(|curve| curve.column.as_str()).collect();
    let same = if same.is_empty() { String::new() } else { format!("The same bits: {}. ", same.join(", ")) };
    format!("{}  {same}{}\n", section(&format!("Curves, {over}"), &table), end.trim_start())
}

/// Formats the size of the largest difference, and its step.
fn largest(curve: &CurveDifference) -> String {
    let Some(largest) = curve.largest else { return BLANK.to_owned() };
    let size = largest.difference().map_or(BLANK.to_owned(), significant);
    format!("{size} at {}", largest.step)
}

/// Formats the losses at the last step that both runs have.
fn at_the_end(difference: &RunDifference) -> String {
    let is_loss = |column: &str| column.ends_with("loss") || MetricsRow::is_further_column(column);
    let losses = difference.curves.iter().filter(|curve| is_loss(&curve.column));
    let ends = losses.filter_map(|curve| {
        let last = curve.last?;
        let [a, b] = last.values.map(exact);
        Some(format!(" {} at step {}: {a} and {b}.", curve.column, last.step))
    });
    ends.collect()
}

fn figures(difference: &RunDifference) -> String {
    use Column::{Left, Right};
    if difference.figures.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[Left, Left, Right, Right, Right]);
    table.row(["FIGURE", "UNIT", "A", "B", "B ÷ A"]);
    for pair in &difference.figures {
        let metric = pair.metric;
        let [a, b] =
            pair.values.map(|value| decimal(value.map(|value| value / metric.divisor), metric.decimals));
        let ratio = match pair.values {
            [Some(a), Some(b)] if a > 0.0 && b > 0.0 => decimal(Some(b / a), 4),
            _ => BLANK.to_owned(),
        };
        table.row([pair.name.clone(), metric.unit.to_owned(), a, b, ratio]);
    }
    section("Figures", &table)
}

/// Formats a number with just enough digits to identify it. Most rows hold f32 values, which need fewer.
fn exact(value: Option<f64>) -> String {
    value.map_or(BLANK.to_owned(), |value| {
        let single = value as f32;
        if f64::from(single) == value || value.is_nan() { single.to_string() } else { value.to_string() }
    })
}

/// Formats a value on one line, shortened if it is long.
fn shown(value: &Option<String>) -> String {
    value.as_ref().map_or_else(|| BLANK.to_owned(), |value| beginning(value, SHOWN))
}
