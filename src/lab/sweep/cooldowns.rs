//! Builds the axis of `sweep.cooldowns`: trainings of several lengths, whose learning rate is constant until
//! it falls.

use super::arguments::{Arguments, Axis};
use crate::error::{Error, Result};
use crate::recipe::Recipe;

/// The length of a cell, and the number of steps over which its rate falls.
pub const KEYS: [&str; 2] = ["training.steps", "lr_scheduler.decay_steps"];

/// The fraction of a cell over which its rate falls.
const RATIO: &str = "lr_scheduler.decay_ratio";

/// Other keys that affect where a rate falls; they must have one value for all cells.
const SHARED_KEYS: [&str; 3] = ["lr_scheduler.decay", RATIO, "lr_scheduler.warmup_ratio"];

/// Returns the axis of `sweep.cooldowns`. Each of its steps gives a cell whose rate falls from there on, over
/// a fraction `lr_scheduler.decay_ratio` of its length. `None` if there are no cooldowns.
///
/// # Errors
/// A usage error if the sweep also varies one of the keys, if a step is 0, if the fraction is 1, or if there
/// are rungs.
pub fn axis(base: &Recipe, arguments: &Arguments) -> Result<Option<Axis>> {
    let (sweep, name) = (&base.values().sweep, base.name());
    let Some(cooldowns) = &sweep.cooldowns else { return Ok(None) };
    let in_recipe = |key: &str| {
        let tables = [&sweep.grid, &sweep.range, &sweep.log_range];
        tables.into_iter().chain(&sweep.pairs).any(|table| table.contains_key(key))
    };
    let mut keys = KEYS.iter().chain(&SHARED_KEYS).filter(|key| in_recipe(key) || arguments.varies(key));
    if let Some(key) = keys.next().or_else(|| KEYS.iter().find(|key| arguments.sets(key))) {
        return Err(Error::usage(format!(
            "{key} follows from sweep.cooldowns of {name} or must be the same for all of its cells; leave \
             one of them out"
        )));
    }
    let refused = |message: String, help: &str| Err(base.error(&["sweep.cooldowns", RATIO], message, help));
    let own = arguments.fixed.get(RATIO).and_then(|ratio| ratio.parse().ok());
    let ratio: f64 = own.unwrap_or(base.values().lr_scheduler.decay_ratio);
    if ratio >= 1.0 {
        return refused("a cooldown over the whole cell leaves no trunk".to_owned(), "set a share below 1");
    }
    if cooldowns.contains(&0) {
        return refused(
            "a rate that falls from step 0 on leaves no trunk".to_owned(),
            "name steps from 1 on",
        );
    }
    if base.written().training.until.is_some() {
        return Err(base.error(
            &["sweep.cooldowns", "training.until"],
            "cooldowns set the length of every cell",
            "leave training.until out",
        ));
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
