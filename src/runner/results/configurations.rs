//! Configurations of a sweep. Cells that differ only in their seed form one configuration, which has a mean
//! over seeds.
//!
//! `configurations.json` in the sweep's folder stores them, with the best set and the intervals of
//! [`compare_cells`].

use super::ledger::CellStatus;
use super::run_figure::RunFigure;
use crate::format::plural;
use crate::recipe::{self, Type};
use crate::statistics::{CellEstimate, Chosen, Direction, compare_cells, mean, variance};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The file's name.
pub const CONFIGURATIONS: &str = "configurations.json";

/// The key that holds the seed.
pub const SEED: &str = "training.seed";

/// The most means and seed effects that are estimated together. The time grows with the cube of their number,
/// and this many take seconds.
const MAX_ESTIMATED: usize = 1000;

/// The name of the configurations that cannot be told from the best.
pub const BEST_SET: &str = "best set";

/// The name of the same among those that were not dropped at a rung.
pub const BEST_FINALISTS: &str = "best of the finalists";

fn best_set_name() -> String {
    BEST_SET.to_owned()
}

/// TOML values by key.
pub type Settings = BTreeMap<String, String>;

/// The configurations of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configurations {
    /// The recipe's name.
    pub recipe: String,
    /// The measure's name in the table of metrics.
    pub measure: String,
    /// The measure's unit; empty for counts and ratios.
    pub unit: String,
    /// Which values of the measure are better.
    pub direction: Direction,
    /// Probability with which each interval, and the best set, holds.
    pub confidence: f64,
    /// Keys that vary, without the seed, in column order.
    pub keys: Vec<String>,
    /// The seeds, in the order of [`Configuration::values`]. An empty one stands for the recipe's own seed.
    pub seeds: Vec<String>,
    /// Why there are no intervals and no best set.
    pub not_compared: Option<String>,
    /// What the set of the best is called: [`BEST_SET`], or [`BEST_FINALISTS`] if configurations were dropped
    /// at a rung.
    #[serde(default = "best_set_name")]
    pub set_name: String,
    /// What the set does not tell, if configurations were dropped at a rung.
    #[serde(default)]
    pub caveat: Option<String>,
    /// All configurations, in the order of the sweep.
    pub configurations: Vec<Configuration>,
    /// Where the best configuration is at an edge of the grid, so that a better one may lie beyond.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_edge: Vec<Edge>,
}

/// A key whose value in the best configuration is the lowest or the highest of a grid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    pub key: String,
    /// The value as TOML.
    pub value: String,
    pub end: End,
}

/// An end of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Lowest,
    Highest,
}

/// Fewest values of an axis that has an inside.
const FEWEST_VALUES: usize = 3;

/// A configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Values that its cells set on top of the recipe, without the seed.
    pub settings: Settings,
    /// The measure for each seed; `None` if that cell did not train to the end.
    pub values: Vec<Option<f64>>,
    /// Number of cells.
    pub cells: usize,
    /// Number of cells that did not train every step, by status. Cells that have not begun count as `open`.
    pub others: BTreeMap<String, usize>,
    /// Mean of the values; `None` if there are none or if a cell diverged. With an estimate, it is the mean
    /// over all seeds of the sweep.
    pub mean: Option<f64>,
    /// Standard deviation of the values over seeds.
    pub deviation: Option<f64>,
    /// Comparison with the other configurations; `None` if they are not compared.
    pub estimate: Option<CellEstimate>,
}

/// How a cell ended.
#[derive(Clone, Debug)]
pub struct CellOutcome<'a> {
    /// The cell's settings, including the seed.
    pub settings: &'a Settings,
    /// The cell's status; `None` if it has not begun.
    pub status: Option<CellStatus>,
    /// The measure in the metric's unit, if the cell trained every step.
    pub value: Option<f64>,
}

impl Configuration {
    /// Returns true if this configuration may be the best; `None` if that is unknown.
    pub fn in_best_set(&self) -> Option<bool> {
        self.estimate.map(|estimate| estimate.in_best_set)
    }

    /// Returns true if a cell of it stopped at a rung and did not go on.
    pub fn was_dropped(&self) -> bool {
        [CellStatus::Dropped, CellStatus::Halted]
            .iter()
            .any(|status| self.others.contains_key(status.as_str()))
    }

    /// Describes the cells that did not end well, such as `diverged in 2 of 5`.
    pub fn remarks(&self) -> String {
        let remark = |(status, count): (&String, &usize)| match self.cells {
            1 => status.replace('_', " "),
            of => format!("{} in {count} of {of}", status.replace('_', " ")),
        };
        self.others.iter().map(remark).collect::<Vec<_>>().join(", ")
    }

    /// Names the configuration by the values of `keys`: `model.dim=64 optimizer.lr=0.001`.
    pub fn name(&self, keys: &[String]) -> String {
        settings_in_words(&self.settings, keys)
    }
}

/// Names settings by the values of `keys`: `model.dim=64 optimizer.lr=0.001`.
pub(super) fn settings_in_words(settings: &Settings, keys: &[String]) -> String {
    let named = keys.iter().filter_map(|key| Some(format!("{key}={}", settings.get(key)?)));
    named.collect::<Vec<_>>().join(" ")
}

impl Configurations {
    /// Summarizes the cells of a recipe's sweep over `keys`.
    ///
    /// If a cell of a configuration diverged, the configuration has no mean and is not compared: the seeds
    /// that trained would flatter it.
    pub fn from_cells(
        recipe: &str,
        keys: &[String],
        measure: &RunFigure,
        confidence: f64,
        cells: &[CellOutcome<'_>],
    ) -> Self {
        let seed = |cell: &CellOutcome<'_>| cell.settings.get(SEED).cloned().unwrap_or_default();
        let mut seeds: Vec<String> = cells.iter().map(seed).collect();
        seeds.sort_by_key(|seed| (seed.parse::<u64>().ok(), seed.clone()));
        seeds.dedup();
        let groups = group(cells.iter().map(|cell| cell.settings));
        let summarized = |group: &Vec<usize>| {
            let mut values = vec![None; seeds.len()];
            let mut others: BTreeMap<String, usize> = BTreeMap::new();
            let mut settings = Settings::new();
            for cell in group.iter().map(|&at| &cells[at]) {
                if let Some(at) = seeds.iter().position(|one| *one == seed(cell)) {
                    values[at] = cell.value.filter(|value| value.is_finite());
                }
                if cell.status != Some(CellStatus::Ok) {
                    let status = cell.status.map_or("open", CellStatus::as_str);
                    *others.entry(status.to_owned()).or_default() += 1;
                }
                settings.clone_from(cell.settings);
                settings.remove(SEED);
            }
            let known: Vec<f64> = values.iter().flatten().copied().collect();
            let has_mean = !known.is_empty() && !others.contains_key(CellStatus::Diverged.as_str());
            Configuration {
                settings,
                cells: group.len(),
                others,
                mean: has_mean.then(|| mean(&known)),
                deviation: (has_mean && known.len() > 1).then(|| variance(&known).sqrt()),
                values,
                estimate: None,
            }
        };
        let mut configurations: Vec<Configuration> = groups.iter().map(summarized).collect();
        let compared: Vec<Vec<Option<f64>>> = configurations
            .iter()
            .map(|one| if one.mean.is_some() { one.values.clone() } else { vec![None; seeds.len()] })
            .collect();
        let direction = measure.direction();
        let dropped = configurations.iter().filter(|one| one.was_dropped()).count();
        let chosen = match dropped {
            0 => Chosen::All,
            _ => Chosen::Finalists(configurations.len()),
        };
        let comparison = match configurations.len() + seeds.len() > MAX_ESTIMATED {
            true => Err(format!("more than {MAX_ESTIMATED} configurations and seeds are not compared")),
            false => compare_cells(&compared, confidence, direction, chosen).map_err(|e| e.to_string()),
        };
        if let Ok(comparison) = &comparison {
            for (one, estimate) in configurations.iter_mut().zip(&comparison.cells) {
                one.mean = estimate.map(|estimate| estimate.mean.estimate).or(one.mean);
                one.estimate = *estimate;
            }
        }
        Self {
            recipe: recipe.to_owned(),
            measure: measure.name().to_owned(),
            unit: measure.metric().unit.to_owned(),
            direction,
            confidence,
            keys: keys.iter().filter(|key| *key != SEED).cloned().collect(),
            seeds,
            not_compared: comparison.err(),
            set_name: if dropped > 0 { BEST_FINALISTS } else { BEST_SET }.to_owned(),
            caveat: (dropped > 0).then(|| {
                format!(
                    "{dropped} of {} configuration{} stopped early and {} not compared: any of them may be the \
                     best at full length",
                    configurations.len(),
                    plural(configurations.len()),
                    if dropped == 1 { "is" } else { "are" }
                )
            }),
            configurations,
            at_edge: Vec::new(),
        }
    }

    /// Returns the keys whose value in the best configuration is the lowest or the highest of a grid, unless
    /// the key takes no lower or higher one.
    pub fn edges(&self) -> Vec<Edge> {
        let ranked = self.ranked();
        let Some(best) = ranked.first() else { return Vec::new() };
        let edge = |key: &String| {
            let number = |one: &Configuration| one.settings.get(key)?.replace('_', "").parse::<f64>().ok();
            let mut values: Vec<f64> = self.configurations.iter().map(number).collect::<Option<_>>()?;
            values.sort_by(f64::total_cmp);
            values.dedup();
            let at = number(best)?;
            let (lowest, highest) = (*values.first()?, *values.last()?);
            let (low, high) = bounds(key);
            let end = match () {
                () if values.len() < FEWEST_VALUES => return None,
                () if at == lowest && low != Some(at) => End::Lowest,
                () if at == highest && high != Some(at) => End::Highest,
                () => return None,
            };
            Some(Edge { key: key.clone(), value: best.settings.get(key)?.clone(), end })
        };
        self.keys.iter().filter_map(edge).collect()
    }

    /// Says at which edges the best configuration is; `None` if it is at none.
    pub fn edges_in_words(&self) -> Option<String> {
        let edge = |Edge { key, value, end }: &Edge| {
            let (end, further) = match end {
                End::Lowest => ("lowest", "lower"),
                End::Highest => ("highest", "higher"),
            };
            format!("{key}={value} is the {end} value, so try {further} ones")
        };
        let edges: Vec<String> = self.at_edge.iter().map(edge).collect();
        (!edges.is_empty())
            .then(|| format!("the best by {} is at the edge of the grid: {}", self.measure, edges.join("; ")))
    }

    /// Returns the configurations that have a mean, best first.
    pub fn ranked(&self) -> Vec<&Configuration> {
        let mut ranked: Vec<(f64, &Configuration)> = self
            .configurations
            .iter()
            .filter_map(|one| Some((-self.direction.goodness(one.mean?), one)))
            .collect();
        ranked.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        ranked.into_iter().map(|(_, one)| one).collect()
    }

    /// Returns the configurations that may be the best, best mean first.
    pub fn best_set(&self) -> Vec<&Configuration> {
        self.ranked().into_iter().filter(|one| one.in_best_set() == Some(true)).collect()
    }
}

/// Returns the lowest and the highest value that a key takes, if it has some.
fn bounds(key: &str) -> (Option<f64>, Option<f64>) {
    let included = |bound: Bound<f64>| match bound {
        Bound::Included(value) => Some(value),
        _ => None,
    };
    match recipe::find_path(key).map(|key| key.kind) {
        Some(Type::Count { min, max } | Type::CountOrWord { min, max, .. }) => {
            (Some(min as f64), Some(max as f64))
        }
        Some(Type::Number(range) | Type::FractionOrPaths(range)) => {
            (included(range.low), included(range.high))
        }
        _ => (None, None),
    }
}

/// Groups cells by all of their settings except the seed. A group holds the indices of its cells. Cells keep
/// their order, and groups are ordered by their first cell.
pub fn group<'a>(settings: impl Iterator<Item = &'a Settings>) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: BTreeMap<Vec<(&str, &str)>, usize> = BTreeMap::new();
    for (at, settings) in settings.enumerate() {
        let own = settings.iter().filter(|(key, _)| *key != SEED);
        let own: Vec<(&str, &str)> = own.map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let group = *known.entry(own).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(cells) => cells.push(at),
            None => groups.push(vec![at]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(settings: &[(&str, &str)]) -> Settings {
        settings.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn cells_that_differ_in_their_seed_alone_are_one_configuration() {
        let cells = [
            settings(&[("optimizer.lr", "0.1"), (SEED, "1")]),
            settings(&[("optimizer.lr", "0.2"), (SEED, "1")]),
            settings(&[("optimizer.lr", "0.1"), (SEED, "2")]),
            settings(&[("optimizer.lr", "0.1")]),
            settings(&[("optimizer.lr", "0.2"), ("data.seed", "1"), (SEED, "1")]),
        ];
        assert_eq!(group(cells.iter()), [vec![0, 2, 3], vec![1], vec![4]]);
    }

    /// Summarizes losses by learning rate and seed. A NaN loss stands for a cell that diverged, a negative
    /// one for a cell that has not begun.
    fn summarized(losses: &[(&str, &[f64])]) -> Configurations {
        let all: Vec<(Settings, f64)> = losses
            .iter()
            .flat_map(|(rate, losses)| {
                losses.iter().enumerate().map(|(seed, &loss)| {
                    (settings(&[("optimizer.lr", *rate), (SEED, &(9 + seed).to_string())]), loss)
                })
            })
            .collect();
        let cells: Vec<CellOutcome<'_>> = all
            .iter()
            .map(|(settings, loss)| CellOutcome {
                settings,
                status: match loss {
                    loss if loss.is_nan() => Some(CellStatus::Diverged),
                    loss if *loss < 0.0 => None,
                    _ => Some(CellStatus::Ok),
                },
                value: (*loss > 0.0).then_some(*loss),
            })
            .collect();
        let keys = ["optimizer.lr", SEED].map(str::to_owned);
        let metric = RunFigure::find("val_loss").unwrap();
        Configurations::from_cells("r", &keys, &metric, 0.95, &cells)
    }

    /// Returns a grid of one seed: a row per cell, with its loss last.
    fn grid(keys: &[&str], cells: &[(&[&str], f64)]) -> Configurations {
        let pairs = |values: &[&str]| -> Vec<(String, String)> {
            keys.iter().zip(values).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let all: Vec<Settings> =
            cells.iter().map(|(values, _)| pairs(values).into_iter().collect()).collect();
        let outcomes: Vec<CellOutcome<'_>> = all
            .iter()
            .zip(cells)
            .map(|(settings, (_, loss))| CellOutcome {
                settings,
                status: Some(CellStatus::Ok),
                value: Some(*loss),
            })
            .collect();
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Configurations::from_cells("r", &keys, &RunFigure::find("val_loss").unwrap(), 0.95, &outcomes)
    }

    #[test]
    fn the_best_cell_at_an_edge_is_remarked() {
        let ends = |key: &str, values: [&str; 3], losses: [f64; 3]| {
            let cells: Vec<([&str; 1], f64)> = values.into_iter().map(|value| [value]).zip(losses).collect();
            let cells: Vec<(&[&str], f64)> =
                cells.iter().map(|(value, loss)| (value.as_slice(), *loss)).collect();
            grid(&[key], &cells).edges().into_iter().map(|edge| (edge.value, edge.end)).collect::<Vec<_>>()
        };
        let rates = ["1e-3", "0.003", "0.01"];
        assert_eq!(ends("optimizer.lr", rates, [3.0, 2.0, 1.0]), [("0.01".to_owned(), End::Highest)]);
        assert_eq!(ends("optimizer.lr", rates, [1.0, 2.0, 3.0]), [("1e-3".to_owned(), End::Lowest)]);
        assert_eq!(ends("optimizer.lr", rates, [2.0, 1.0, 3.0]), []);
        // Nothing is beyond the end of what a key takes, between words, or around two values.
        assert_eq!(ends("model.dropout", ["0.0", "0.1", "0.2"], [1.0, 2.0, 3.0]), []);
        assert_eq!(ends("model.n_layers", ["1", "2", "3"], [1.0, 2.0, 3.0]), []);
        assert_eq!(ends("optimizer.name", ["\"adamw\"", "\"lion\"", "\"sgd\""], [1.0, 2.0, 3.0]), []);
        let two = grid(&["optimizer.lr"], &[(&["1e-3"], 1.0), (&["3e-3"], 2.0)]);
        assert_eq!(two.edges(), []);
        let mut both = grid(
            &["optimizer.lr", "model.dim"],
            &[(&["1e-3", "32"], 3.0), (&["3e-3", "64"], 2.0), (&["1e-2", "96"], 1.0)],
        );
        assert_eq!(both.edges_in_words(), None);
        both.at_edge = both.edges();
        assert_eq!(
            both.edges_in_words().unwrap(),
            "the best by val_loss is at the edge of the grid: optimizer.lr=1e-2 is the highest value, so try higher \
             ones; model.dim=96 is the highest value, so try higher ones"
        );
        let json = serde_json::to_value(&both).unwrap();
        assert_eq!(
            json["at_edge"][1],
            serde_json::json!({"key": "model.dim", "value": "96", "end": "highest"})
        );
        assert_eq!(serde_json::from_value::<Configurations>(json).unwrap(), both);
    }

    #[test]
    fn means_have_intervals_and_the_best_set_holds_what_cannot_be_told_from_the_best() {
        // Seeds have larger effects than rates, and these cancel.
        let found = summarized(&[
            ("0.1", &[2.00, 2.50, 3.01]),
            ("0.2", &[2.01, 2.51, 3.00]),
            ("0.3", &[2.20, 2.69, 3.20]),
        ]);
        assert_eq!((found.set_name.as_str(), &found.caveat), (BEST_SET, &None));
        assert_eq!((found.keys.clone(), found.not_compared.clone()), (vec!["optimizer.lr".to_owned()], None));
        assert_eq!(found.seeds, ["9", "10", "11"], "by number");
        let best: Vec<String> = found.best_set().iter().map(|one| one.name(&found.keys)).collect();
        assert_eq!(best, ["optimizer.lr=0.1", "optimizer.lr=0.2"]);
        let first = &found.configurations[0];
        assert!((first.mean.unwrap() - 7.51 / 3.0).abs() < 1e-12);
        assert!((first.deviation.unwrap() - 0.505).abs() < 1e-3, "of the seeds");
        let interval = first.estimate.unwrap().mean;
        assert!(interval.high - interval.low > 2.0, "over seeds: {interval:?}");
        let difference = found.configurations[2].estimate.unwrap().difference_to_best;
        assert!(difference.high < 0.25, "the seeds cancel: {difference:?}");
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Configurations>(&json).unwrap(), found);
    }

    #[test]
    fn a_configuration_that_diverged_is_not_in_the_best_set() {
        let found = summarized(&[
            ("0.1", &[2.00, 2.50, 3.01]),
            ("0.2", &[1.00, f64::NAN, f64::NAN]),
            ("0.3", &[2.10, -1.0, 3.10]),
        ]);
        let [good, diverged, open] = &found.configurations[..] else { panic!() };
        assert_eq!((diverged.mean, diverged.estimate, diverged.in_best_set()), (None, None, None));
        assert_eq!(diverged.remarks(), "diverged in 2 of 3");
        assert_eq!(diverged.values, [Some(1.0), None, None]);
        assert_eq!(good.in_best_set(), Some(true));
        assert_eq!((open.remarks().as_str(), open.estimate.unwrap().runs), ("open in 1 of 3", 2));
        assert_eq!(found.ranked().len(), 2);
    }

    /// The optimum moves with the length, so what was dropped early may be the best later.
    #[test]
    fn what_a_rung_left_is_the_best_of_the_finalists_and_no_more() {
        for (status, name) in [
            (CellStatus::Dropped, BEST_FINALISTS),
            (CellStatus::Halted, BEST_FINALISTS),
            (CellStatus::Killed, BEST_SET),
        ] {
            let all: Vec<(Settings, Option<f64>)> = (0..12)
                .map(|at| {
                    let (rate, seed) = ((at / 3).to_string(), (at % 3).to_string());
                    let value = 2.0 + 0.1 * (at / 3) as f64 + 0.001 * (at * at % 7) as f64;
                    (settings(&[("optimizer.lr", &rate), (SEED, &seed)]), (at < 9).then_some(value))
                })
                .collect();
            let cells: Vec<CellOutcome<'_>> = all
                .iter()
                .map(|(settings, value)| CellOutcome {
                    settings,
                    status: Some(if value.is_some() { CellStatus::Ok } else { status }),
                    value: *value,
                })
                .collect();
            let keys = ["optimizer.lr", SEED].map(str::to_owned);
            let metric = RunFigure::find("val_loss").unwrap();
            let found = Configurations::from_cells("r", &keys, &metric, 0.95, &cells);
            assert_eq!(found.set_name, name, "{status:?}");
            assert_eq!(found.caveat.is_some(), name == BEST_FINALISTS);
            let caveat = found.caveat.unwrap_or_default();
            assert!(
                caveat.is_empty() || caveat.starts_with("1 of 4 configurations stopped early and is not")
            );
        }
    }

    #[test]
    fn one_seed_has_means_and_no_intervals() {
        let found = summarized(&[("0.1", &[2.0]), ("0.2", &[1.0])]);
        assert!(found.not_compared.as_ref().unwrap().contains("too few runs"), "{found:?}");
        assert_eq!(found.ranked()[0].settings["optimizer.lr"], "0.2");
        assert!(found.best_set().is_empty());
        assert!(found.configurations.iter().all(|one| one.estimate.is_none() && one.deviation.is_none()));
    }

    #[test]
    fn speeds_are_to_be_high() {
        let of = |name: &str| RunFigure::find(name).unwrap().direction();
        assert_eq!((of("tok_s"), of("mfu_pct")), (Direction::HigherIsBetter, Direction::HigherIsBetter));
        assert_eq!((of("val_loss"), of("step_ms")), (Direction::LowerIsBetter, Direction::LowerIsBetter));
    }
}
