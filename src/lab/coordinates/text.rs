//! Prints the slopes of coordinates as a table.

use crate::format::{Column, Table};
use crate::results::coordinates::{Coordinates, Slope, is_flat};
use std::fmt::Write;

/// One of the slopes of a quantity.
type Field = fn(&Slope) -> Option<f64>;

/// Formats the slopes after every step, one table per parametrization, and marks those that are flat.
pub fn table(found: &Coordinates) -> String {
    let mut text = String::new();
    let mut parametrizations: Vec<&str> = Vec::new();
    for slope in &found.slopes {
        if parametrizations.last() != Some(&slope.parametrization.as_str()) {
            parametrizations.push(&slope.parametrization);
        }
    }
    let (from, to) = (found.widths.first().copied().unwrap_or(0), found.widths.last().copied().unwrap_or(0));
    for parametrization in parametrizations {
        let slopes: Vec<&Slope> =
            found.slopes.iter().filter(|slope| slope.parametrization == parametrization).collect();
        let _ = writeln!(
            text,
            "{parametrization}: slope of log RMS over log width, {from} to {to}; flat is within ±{}",
            found.flat
        );
        let mut columns = vec![Column::Left, Column::Left];
        columns.extend(vec![Column::Right; found.steps + 1]);
        columns.push(Column::Left);
        let mut table = Table::new(&columns);
        let steps = (0..=found.steps).map(|step| step.to_string());
        table.row(["after step".to_owned(), String::new()].into_iter().chain(steps).chain([String::new()]));
        let mut quantities: Vec<&str> = slopes.iter().map(|slope| slope.quantity.as_str()).collect();
        quantities.dedup();
        let fields: [(&str, Field); 2] = [("size", |slope| slope.rms), ("change", |slope| slope.change_rms)];
        for quantity in quantities {
            for (name, field) in fields {
                let values =
                    slopes.iter().filter(|slope| slope.quantity == quantity).map(|slope| field(slope));
                let values: Vec<Option<f64>> = values.collect();
                let cells =
                    values.iter().map(|value| value.map_or("—".to_owned(), |value| format!("{value:+.2}")));
                let trained = values.iter().skip(1).flatten();
                let verdict = match trained.clone().all(|value| is_flat(*value)) {
                    _ if trained.clone().next().is_none() => "zero",
                    true => "flat",
                    false => "not flat",
                };
                let cells = cells.chain([verdict.to_owned()]);
                table.row([quantity.to_owned(), name.to_owned()].into_iter().chain(cells));
            }
        }
        text += &table.render(2);
    }
    text
}
