//! Several runs side by side: keys of their recipes, environments, figures.

use crate::error::Result;
use crate::metrics;
use crate::recipe::{StoredKeys, find_path};
use crate::results::collection::facts_of_environment;
use crate::results::columns::Figures;
use crate::results::folder::read_summary;
use crate::results::names::{ENVIRONMENT, RESOLVED};
use crate::view::documents::number::or_null;
use crate::view::folder::{read_text, read_valid_json};
use crate::view::table::TableRun;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};

/// The most runs shown side by side.
pub const MAX_RUNS: usize = 16;

/// What is compared of a run.
struct Side {
    keys: Option<StoredKeys>,
    facts: BTreeMap<String, String>,
    figures: Figures,
}

impl Side {
    fn read(run: &TableRun) -> Result<Self> {
        let summary = read_summary(&run.path)?;
        let keys = read_text(&run.path, RESOLVED)?.and_then(|text| StoredKeys::parse(&text).ok());
        let environment = read_valid_json(&run.path, ENVIRONMENT)?;
        let mut facts = environment.map(facts_of_environment).unwrap_or_default();
        facts.extend(summary.corpus_hash.as_ref().map(|corpus| ("corpus".to_owned(), corpus.clone())));
        Ok(Self { keys, facts, figures: Figures::as_printed(&summary) })
    }
}

/// Returns the document `differences` of runs.
///
/// # Errors
/// If the summary of a run, or another existing file, cannot be read.
pub fn document(runs: &[&TableRun]) -> Result<Value> {
    let sides: Vec<Side> = runs.iter().map(|run| Side::read(run)).collect::<Result<_>>()?;
    Ok(json!({
        "runs": runs.iter().map(|run| &run.id).collect::<Vec<_>>(),
        "keys": keys(&sides),
        "environment": environment(&sides),
        "figures": figures(&sides),
    }))
}

/// Returns every key that any of the recipes has, in order of first occurrence.
fn keys(sides: &[Side]) -> Vec<Value> {
    let mut seen = HashSet::new();
    let all = sides.iter().filter_map(|side| side.keys.as_ref()).flat_map(StoredKeys::iter);
    let paths: Vec<&str> = all.map(|(path, _)| path).filter(|path| seen.insert(*path)).collect();
    let row = |path: &str| {
        let value = |side: &Side| side.keys.as_ref()?.recorded(path).map(str::to_owned);
        let values: Vec<Option<String>> = sides.iter().map(value).collect();
        json!({
            "key": path,
            "class": find_path(path).map(|key| key.class.to_string()),
            "differs": differ(&values),
            "values": values,
        })
    };
    paths.into_iter().map(row).collect()
}

fn environment(sides: &[Side]) -> Vec<Value> {
    let names: std::collections::BTreeSet<&String> =
        sides.iter().flat_map(|side| side.facts.keys()).collect();
    let row = |name: &String| {
        let values: Vec<Option<&String>> = sides.iter().map(|side| side.facts.get(name)).collect();
        json!({"name": name, "differs": differ(&values), "values": values})
    };
    names.into_iter().map(row).collect()
}

fn figures(sides: &[Side]) -> Vec<Value> {
    let row = |metric: &'static metrics::Metric| {
        let value = |side: &Side| side.figures.get(metric).map(|value| value / metric.divisor);
        let values: Vec<Option<f64>> = sides.iter().map(value).collect();
        values.iter().any(Option::is_some).then(|| {
            json!({
                "name": metric.name,
                "heading": metric.heading,
                "unit": metric.unit,
                "decimals": metric.decimals,
                "differs": differ(&values),
                "values": values.into_iter().map(or_null).collect::<Vec<_>>(),
            })
        })
    };
    metrics::run_metrics().filter_map(row).collect()
}

fn differ<T: PartialEq>(values: &[T]) -> bool {
    values.windows(2).any(|pair| pair[0] != pair[1])
}
