//! Combines the recipe's `[sweep]` and the command line into the axes of a sweep and the points of its grid.

use super::arguments::{Arguments, Axis};
use super::cooldowns;
use super::samples::{self, Samples};
use crate::error::{Error, Result};
use crate::recipe::{Layer, Recipe, value_text};
use crate::results::configurations::{SEED, Settings};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of cells; a larger sweep is rejected as a mistake.
const MAX_CELLS: usize = 10_000;

/// A point of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridPoint {
    /// The coordinates, and the values that the command line sets for every cell.
    pub settings: Settings,
    /// The set in `sweep.exclude` that excludes the point.
    pub excluded: Option<Settings>,
}

/// The axes of a sweep and the points of its grid.
#[derive(Debug)]
pub struct Axes {
    /// Keys that vary, in the order of the columns.
    pub keys: Vec<String>,
    /// All points; the last axis varies fastest.
    pub points: Vec<GridPoint>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Axes {
    /// Combines a recipe's `[sweep]` with the command line. An argument replaces the recipe's values or range
    /// for its key. Every sample of the ranges and every seed is combined with the whole grid.
    ///
    /// # Errors
    /// A usage error if an argument names a key in `sweep.pairs`, if several seeds are given besides
    /// `sweep.seeds`, if there are more than [`MAX_CELLS`] cells, and for whatever [`samples::draw`] and
    /// [`cooldowns::axis`] reject.
    pub fn new(base: &Recipe, arguments: &Arguments) -> Result<Self> {
        let sweep = &base.values().sweep;
        let pairs: Vec<Settings> = sweep.pairs.iter().map(texts).collect();
        if let Some(key) = pairs.iter().flat_map(BTreeMap::keys).find(|key| arguments.sets(key)) {
            return Err(Error::usage(format!(
                "{key} is in sweep.pairs of {}; remove the argument, or replace the pairs with sweep.pairs=[…]",
                base.name()
            )));
        }
        let grid = sweep.grid.iter().filter(|(key, _)| !arguments.sets(key)).map(|(key, values)| {
            let values = values.as_array().map(Vec::as_slice).unwrap_or_default();
            Axis::new(vec![key.clone()], values.iter().map(|value| vec![value_text(value)]))
        });
        let Samples { axis, note } = samples::draw(base, |key| arguments.sets(key))?;
        let grid: Vec<Axis> = grid.chain((!axis.keys.is_empty()).then_some(axis)).collect();
        let seeds = seeds(base, arguments)?;
        let cooldowns = cooldowns::axis(base, arguments)?;
        let axes: Vec<&Axis> = grid.iter().chain(&arguments.axes).chain(&cooldowns).chain(&seeds).collect();
        let cells = axes.iter().try_fold(pairs.len().max(1), |n, axis| n.checked_mul(axis.points.len()));
        if cells.is_none_or(|cells| cells > MAX_CELLS) {
            return Err(Error::usage(format!("a sweep has at most {MAX_CELLS} cells; sweep fewer values")));
        }
        let mut keys: Vec<String> = Vec::new();
        for key in pairs.iter().flat_map(BTreeMap::keys).chain(axes.iter().flat_map(|axis| &axis.keys)) {
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        let start = if pairs.is_empty() { vec![Settings::new()] } else { pairs };
        let settings = axes.iter().fold(start, |points, axis| {
            let with = |point: &Settings, values: &Vec<String>| {
                let mut point = point.clone();
                point.extend(axis.keys.iter().cloned().zip(values.iter().cloned()));
                point
            };
            points
                .iter()
                .flat_map(|point| axis.points.iter().map(move |values| with(point, values)))
                .collect()
        });
        let exclude: Vec<Settings> = sweep.exclude.iter().map(texts).collect();
        let written: Settings = base
            .explain()
            .into_iter()
            .filter(|(.., layer)| !matches!(layer, Layer::Derived { .. }))
            .filter_map(|(key, value, _)| Some((key.path.to_owned(), value?)))
            .collect();
        let points = settings.into_iter().map(|mut settings: Settings| {
            // Several seeds count up from the seed that the command line sets, so it does not fix the seed of
            // every cell.
            let fixed = arguments.fixed.iter().filter(|(key, _)| seeds.is_none() || *key != SEED);
            settings.extend(fixed.map(|(key, value)| (key.clone(), value.clone())));
            let agrees = |set: &&Settings| {
                set.iter().all(|(key, value)| settings.get(key).or_else(|| written.get(key)) == Some(value))
            };
            let excluded = exclude.iter().find(agrees).cloned();
            GridPoint { settings, excluded }
        });
        let notes = inheritance_note(base).into_iter().chain(note).collect();
        Ok(Self { keys, points: points.collect(), notes })
    }
}

/// Returns a note if a recipe inherits `[sweep]` from one that it extends.
fn inheritance_note(base: &Recipe) -> Option<String> {
    let (top, _) = base.files().last()?;
    let sweep = &base.values().sweep;
    let set = [
        ("sweep.grid", !sweep.grid.is_empty()),
        ("sweep.pairs", !sweep.pairs.is_empty()),
        ("sweep.range", !sweep.range.is_empty()),
        ("sweep.log_range", !sweep.log_range.is_empty()),
        ("sweep.cooldowns", sweep.cooldowns.is_some()),
    ];
    let inherited_from = |key: &str| match base.layer(key) {
        Layer::File { path, line } if path != *top => Some(format!("{}:{line}", path.display())),
        _ => None,
    };
    let (key, place) =
        set.into_iter().filter(|(_, set)| *set).find_map(|(key, _)| Some((key, inherited_from(key)?)))?;
    Some(format!("{key} is inherited from {place}; set {key} in {} to replace it", top.display()))
}

/// Returns the axis of `sweep.seeds`, which counts up from `training.seed`; `None` for a single seed.
///
/// # Errors
/// A usage error if the command line varies the seed too, or if a seed would be too large.
fn seeds(base: &Recipe, arguments: &Arguments) -> Result<Option<Axis>> {
    let count = base.values().sweep.seeds as u64;
    if count < 2 {
        return Ok(None);
    }
    if arguments.varies(SEED) {
        return Err(Error::usage(format!(
            "{SEED} has several values, and sweep.seeds = {count} sets it too; keep one of them"
        )));
    }
    let set = arguments.fixed.get(SEED).and_then(|seed| seed.parse().ok());
    let first: u64 = set.unwrap_or(base.values().training.seed);
    let last = first.checked_add(count - 1).filter(|&last| i64::try_from(last).is_ok()).ok_or_else(|| {
        base.error(
            &[SEED, "sweep.seeds"],
            format!("{count} seeds from {first} on are beyond the largest, {}", i64::MAX),
            format!("set a smaller {SEED}"),
        )
    })?;
    let points = (first..=last).map(|seed| vec![seed.to_string()]).collect();
    Ok(Some(Axis { keys: vec![SEED.to_owned()], points }))
}

fn texts(table: &toml::Table) -> Settings {
    table.iter().map(|(key, value)| (key.clone(), value_text(value))).collect()
}

/// Names a cell after the values that vary, in the order of the columns.
pub fn name_of(keys: &[String], settings: &Settings) -> String {
    format_settings(keys.iter().filter_map(|key| settings.get_key_value(key)))
}

/// Returns the keys that name cells: those whose values differ between the cells, and the seed.
pub fn naming_keys<'a>(cells: impl Iterator<Item = &'a Settings> + Clone) -> Vec<String> {
    let keys: BTreeSet<&String> = cells.clone().flat_map(BTreeMap::keys).collect();
    let differs = |key: &&String| {
        let mut values = cells.clone().map(|settings| settings.get(*key));
        let first = values.next().flatten();
        *key == SEED || values.any(|value| value != first)
    };
    keys.into_iter().filter(differs).cloned().collect()
}

/// Formats settings as `model.dim=64 optimizer.lr=0.001`.
pub fn format_settings<'a>(settings: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    settings.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe;
    use std::path::Path;

    fn axes(text: &str, arguments: &[&str]) -> Result<Axes> {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let arguments = Arguments::read(&arguments)?;
        let base = recipe::load_str(
            Path::new("r.toml"),
            text,
            &arguments.sweep,
            std::iter::empty(),
            &crate::machine::Machine::none(),
        )?;
        Axes::new(&base, &arguments)
    }

    fn points(text: &str, arguments: &[&str]) -> Vec<String> {
        let axes = axes(text, arguments).unwrap();
        let shown = |point: GridPoint| {
            let mark = if point.excluded.is_some() { " out" } else { "" };
            format_settings(&point.settings) + mark
        };
        axes.points.into_iter().map(shown).collect()
    }

    #[test]
    fn pairs_times_grid_less_what_is_excluded() {
        let text = r#"
            [sweep]
            grid = { "optimizer.lr" = [1e-3, 3e-3] }
            pairs = [{ "model.dim" = 32, "model.n_heads" = 2 }, { "model.dim" = 64, "model.n_heads" = 4 }]
            exclude = [{ "model.dim" = 64, "optimizer.lr" = 0.003 }]
        "#;
        let expected = [
            "model.dim=32 model.n_heads=2 optimizer.lr=0.001",
            "model.dim=32 model.n_heads=2 optimizer.lr=0.003",
            "model.dim=64 model.n_heads=4 optimizer.lr=0.001",
            "model.dim=64 model.n_heads=4 optimizer.lr=0.003 out",
        ];
        assert_eq!(points(text, &[]), expected);
        assert_eq!(axes(text, &[]).unwrap().keys, ["model.dim", "model.n_heads", "optimizer.lr"]);
        let more = points(text, &["training.seed=[1, 2]", "training.steps=5"]);
        assert_eq!(more.len(), 8);
        assert_eq!(
            more[1],
            "model.dim=32 model.n_heads=2 optimizer.lr=0.001 training.seed=2 training.steps=5"
        );
        assert_eq!(more.iter().filter(|point| point.ends_with(" out")).count(), 2);
    }

    #[test]
    fn the_command_line_replaces_values_of_the_recipe() {
        let text = "[sweep]\ngrid = { \"optimizer.lr\" = [1e-3, 3e-3] }";
        assert_eq!(
            points(text, &["optimizer.lr=1e-4,0.0001,2e-4"]),
            ["optimizer.lr=0.0001", "optimizer.lr=0.0002"]
        );
        assert_eq!(points(text, &["optimizer.lr=1e-4"]), ["optimizer.lr=0.0001"]);
        let exclude = "sweep.exclude=[{ \"optimizer.lr\" = 1e-3, \"training.steps\" = 7 }]";
        assert_eq!(
            points(text, &[exclude, "training.steps=7"]),
            ["optimizer.lr=0.001 training.steps=7 out", "optimizer.lr=0.003 training.steps=7"]
        );
    }

    #[test]
    fn an_exclusion_sees_what_the_recipe_sets_itself() {
        let text = "[training]\nsteps = 9\n[sweep]\ngrid = { \"training.seed\" = [1, 2] }\n\
                    exclude = [{ \"training.steps\" = 9, \"training.seed\" = 2 }]";
        assert_eq!(points(text, &[]), ["training.seed=1", "training.seed=2 out"]);
    }

    #[test]
    fn samples_and_seeds_are_combined_with_the_grid() {
        let text = "[training]\nseed = 4\n[sweep]\nseeds = 2\nsamples = 3\n\
                    grid = { \"model.dim\" = [32, 64] }\nlog_range = { \"optimizer.lr\" = [1e-4, 1e-2] }";
        let all = axes(text, &[]).unwrap();
        assert_eq!(all.keys, ["model.dim", "optimizer.lr", "training.seed"]);
        assert_eq!(all.points.len(), 2 * 3 * 2);
        let rate = |at: usize| all.points[at].settings["optimizer.lr"].clone();
        assert_eq!([rate(0), rate(2), rate(4)], [rate(6), rate(8), rate(10)], "the same samples");
        let [first, second] = [0, 1].map(|at| all.points[at].settings["training.seed"].clone());
        assert_eq!((first.as_str(), second.as_str(), rate(0)), ("4", "5", rate(1)));
        let seeds = points(text, &["training.seed=7", "optimizer.lr=1e-3", "model.dim=8"]);
        assert_eq!(
            seeds,
            [
                "model.dim=8 optimizer.lr=0.001 training.seed=7",
                "model.dim=8 optimizer.lr=0.001 training.seed=8"
            ]
        );
        let twice = axes(text, &["training.seed=1,2"]).unwrap_err();
        assert!(twice.message().contains("sweep.seeds = 2 sets it too"), "{twice}");
        let large = axes(text, &["training.seed=9223372036854775807"]).unwrap_err();
        assert!(large.message().contains("beyond the largest"), "{large}");
    }

    #[test]
    fn cooldowns_are_lengths_and_decays_that_follow_from_the_share() {
        let text = "[lr_scheduler]\ndecay = \"wsd\"\ndecay_ratio = 0.2\n[sweep]\ncooldowns = [8, 100]\n\
                    grid = { \"optimizer.lr\" = [1e-3, 3e-3] }";
        assert_eq!(
            points(text, &["optimizer.lr=1e-3"]),
            [
                "lr_scheduler.decay_steps=2 optimizer.lr=0.001 training.steps=10",
                "lr_scheduler.decay_steps=25 optimizer.lr=0.001 training.steps=125"
            ]
        );
        assert_eq!(points(text, &[]).len(), 4);
        for argument in
            ["training.steps=50", "lr_scheduler.decay_steps=5", "lr_scheduler.decay_ratio=0.1,0.2"]
        {
            let refused = axes(text, &[argument]).unwrap_err();
            assert!(refused.message().contains("follows from sweep.cooldowns"), "{refused}");
        }
    }

    #[test]
    fn keys_joined_by_commas_change_together() {
        assert_eq!(
            points("", &["model.dim,model.ffn_dim=64:192,128:512", "training.seed=1,2"]),
            [
                "model.dim=64 model.ffn_dim=192 training.seed=1",
                "model.dim=64 model.ffn_dim=192 training.seed=2",
                "model.dim=128 model.ffn_dim=512 training.seed=1",
                "model.dim=128 model.ffn_dim=512 training.seed=2",
            ]
        );
        let paths = points("", &["data.corpus,optimizer.betas=\"a:b\":[0.9,0.95],c.txt:[0.9,0.99]"]);
        assert_eq!(
            paths,
            [
                "data.corpus=\"a:b\" optimizer.betas=[0.9, 0.95]",
                "data.corpus=\"c.txt\" optimizer.betas=[0.9, 0.99]"
            ]
        );
        let one = points("[sweep]\ngrid = { \"model.dim\" = [32, 64] }", &["model.dim,model.n_layers=64:2"]);
        assert_eq!(one, ["model.dim=64 model.n_layers=2"]);
        let refused = |arguments: &[&str]| axes("", arguments).unwrap_err().message().to_owned();
        let text = refused(&["model.dim,model.ffn_dim=64:192,128"]);
        assert!(text.contains("`128` has 1 value for 2 keys"), "{text}");
        assert!(refused(&["model.dim,model.dim=64:64"]).contains("model.dim is set twice"));
        assert!(refused(&["model.dim,model.fn_dim=64:64"]).contains("did you mean model.ffn_dim?"));
        assert!(refused(&["model.dim,model.ffn_dim=64:,8:9"]).contains("empty value"));
        assert!(refused(&["model.dim,model.ffn_dim=64:x"]).contains("model.ffn_dim cannot be \"x\""));
        assert!(refused(&["model.dim,model.ffn_dim"]).contains("sets nothing"));
    }

    #[test]
    fn arguments_that_recipes_refuse_are_refused() {
        let refused = |arguments: &[&str]| axes("", arguments).unwrap_err().message().to_owned();
        assert!(refused(&["model.dimm=1,2"]).contains("did you mean model.dim?"));
        assert!(refused(&["model.dim=1,x"]).contains("model.dim cannot be \"x\""));
        assert!(refused(&["model.dim"]).contains("sets nothing"));
        assert!(refused(&["model.dim=1,,2"]).contains("empty value"));
        assert!(refused(&["model.dim=1,2", "model.d_model=3"]).contains("model.dim is set twice"));
        let pairs = "[sweep]\npairs = [{ \"model.dim\" = 32 }]";
        assert!(axes(pairs, &["model.dim=64"]).unwrap_err().message().contains("sweep.pairs"));
        let seeds: Vec<String> = (0..102).map(|n| n.to_string()).collect();
        let many = [format!("training.seed={}", seeds.join(",")), format!("data.seed={}", seeds.join(","))];
        assert!(refused(&[&many[0], &many[1]]).contains("at most 10000 cells"));
    }
}
