//! The axis of `sweep.cooldowns`: lengths of trainings whose learning rate is constant before it falls.

use super::arguments::{Arguments, Axis};
use crate::error::{Error, Result};
use crate::recipe::Recipe;

/// The length of a cell, and of the part of it in which its rate falls.
pub const KEYS: [&str; 2] = ["training.steps", "lr_scheduler.decay_steps"];

/// The share of a cell in which its rate falls.
const RATIO: &str = "lr_scheduler.decay_ratio";

/// Keys besides [`KEYS`] that decide where a rate falls, and so have one value for all cells.
const SHARED_KEYS: [&str; 3] = ["lr_scheduler.decay", RATIO, "lr_scheduler.warmup_ratio"];

/// Returns the axis of `sweep.cooldowns`: lengths and decays of cells whose rate falls from these steps on,
/// over a share of `lr_scheduler.decay_ratio`. `None` without any.
///
/// # Errors
/// A usage error where the sweep varies one of the keys too, for a step 0, for a share of 1, and beside
/// rungs.
pub fn axis(base: &Recipe, arguments: &Arguments) -> Result<Option<Axis>> {
    let (sweep, name) = (&base.values().sweep, base.name());
    let Some(cooldowns) = &sweep.cooldowns else { return Ok(None) };
    let in_recipe = |key: &str| {
        let tables = [&sweep.grid, &sweep.range, &sweep.log_range];
        tables.into_iter().chain(&sweep.pairs).any(|table| table.contains_key(key))
    };
    let in_arguments = |key: &str| arguments.axes.iter().flat_map(|axis| &axis.keys).any(|one| one == key);
    let mut keys = KEYS.iter().chain(&SHARED_KEYS).filter(|key| in_recipe(key) || in_arguments(key));
    if let Some(key) = keys.next().or_else(|| KEYS.iter().find(|key| arguments.sets(key))) {
        return Err(Error::usage(format!(
            "{key} follows from sweep.cooldowns of {name}, or is the same for all of its cells; leave one of them out"
        )));
    }
    let refused = |message: String, help: &str| Err(base.error(&["sweep.cooldowns", RATIO], message, help));
    let own = arguments.fixed.get(RATIO).and_then(|ratio| ratio.parse().ok());
    let ratio: f64 = own.unwrap_or(base.values().lr_scheduler.decay_ratio);
    if ratio >= 1.0 {
        return refused(
            "a cooldown that is all of its cell leaves no trunk".to_owned(),
            "set a share below 1",
        );
    }
    if cooldowns.contains(&0) {
        return refused(
            "a rate that falls from step 0 on leaves no trunk".to_owned(),
            "name steps from 1 on",
        );
    }
    if sweep.rungs.is_some() {
        return Err(base.error(
            &["sweep.cooldowns", "sweep.rungs"],
            "cells of different lengths have no rung in common",
            "leave one of them out",
        ));
    }
    let point = |&from: &usize| {
        let steps = ((from as f64 / (1.0 - ratio)).round() as usize).max(from + 1);
        vec![steps.to_string(), (steps - from).to_string()]
    };
    Ok(Some(Axis { keys: KEYS.map(str::to_owned).to_vec(), points: cooldowns.iter().map(point).collect() }))
}
