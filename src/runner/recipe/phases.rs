//! The phases of a mixture: other weights of its sources from a fraction of the training steps on.

use super::key::{Key, NumberFormat, NumberRange, Type};
use super::names::{name_fault, wrong_name};
use super::scalars::{InvalidValue, Refusal, number, shown, sort};
use super::sources::MAX_NUMBER;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};
use std::ops::Range;
use toml::de::{DeArray, DeTable, DeValue};
use toml::{Spanned, Table, Value};

/// Weights that hold from a fraction of training on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Fraction of the training steps after which the phase begins, between 0 and 1.
    pub from: f64,
    /// Weights by the name of a source, of which at least one is above 0. A source without a weight has
    /// weight 0.
    pub weights: BTreeMap<String, f64>,
}

impl Phase {
    /// Returns how many of a run's `steps` come before the phase.
    pub fn steps_before(&self, steps: usize) -> u64 {
        (self.from * steps as f64).round() as u64
    }
}

/// Most phases.
const MAX_PHASES: usize = 1000;

const FROM: &str = "from";
const WEIGHTS: &str = "weights";

const FRACTION: NumberRange =
    NumberRange { low: Excluded(0.0), high: Excluded(1.0), used_as: NumberFormat::Fp64 };
const WEIGHT: NumberRange =
    NumberRange { low: Included(0.0), high: Included(MAX_NUMBER), used_as: NumberFormat::Fp64 };

/// What a phase looks like, for messages.
const FORM: &str = "write { from = 0.8, weights = { NAME = 0.5 } }";

/// Checks a list of phases.
///
/// # Errors
/// If it is not a list of tables with `from` and `weights`, `from` does not ascend, or a phase has no weight
/// above 0: the reason, at its place.
pub(super) fn typed(key: &Key, items: &DeArray<'_>) -> Result<Value, InvalidValue> {
    let mut phases = Vec::new();
    let mut before = 0.0;
    for (at, item) in items.iter().enumerate() {
        let wrong = |span: Range<usize>, title: String, label: String, help: &str| {
            Err(InvalidValue { span, title, label, help: help.to_owned() })
        };
        let named_phase = format!("phase {} of {}", at + 1, key.path);
        if at == MAX_PHASES {
            let title = format!("{} has {} phases", key.path, items.len());
            return wrong(
                item.span(),
                title,
                "one too many".to_owned(),
                "merge some of them: at most 1000 are allowed",
            );
        }
        let DeValue::Table(table) = item.get_ref() else {
            let title = format!("{named_phase} is not a table");
            return wrong(item.span(), title, sort(item.get_ref()).to_owned(), FORM);
        };
        let phase = one(&named_phase, item.span(), table)?;
        let from = phase.get(FROM).and_then(Value::as_float).unwrap_or_default();
        if from <= before {
            let span = table.get(FROM).map_or(item.span(), Spanned::span);
            let title = format!("{named_phase} begins at {from:?}, not after {before:?}");
            return wrong(span, title, "not later".to_owned(), "list the phases in the order of training");
        }
        before = from;
        phases.push(Value::Table(phase));
    }
    Ok(Value::Array(phases))
}

/// Checks one phase, which messages call `title`.
fn one(title: &str, span: Range<usize>, table: &DeTable<'_>) -> Result<Table, InvalidValue> {
    let wrong = |span: Range<usize>, title: String, label: String, help: String| {
        Err(InvalidValue { span, title, label, help })
    };
    let refused = |value: &Spanned<DeValue<'_>>, what: &str, range: NumberRange, refusal: Refusal| {
        let expects = format!("{what} is {}", Type::Number(range));
        InvalidValue {
            span: value.span(),
            title: format!("{title}: {what} cannot be {}", shown(value.get_ref())),
            label: refusal.label,
            help: refusal.fix.map_or(expects.clone(), |fix| format!("{expects}; {fix}")),
        }
    };
    let mut phase = Table::new();
    for (name, value) in table {
        match (name.get_ref().as_ref(), value.get_ref()) {
            (FROM, number_of) => {
                let from = number(number_of, FRACTION).map_err(|e| refused(value, FROM, FRACTION, e))?;
                phase.insert(FROM.to_owned(), from);
            }
            (WEIGHTS, DeValue::Table(weights)) => {
                let mut found = Table::new();
                for (source, weight) in weights {
                    let source_name = source.get_ref();
                    if let Some(fault) = name_fault(source_name) {
                        return Err(wrong_name(&format!("{title}: {WEIGHTS}"), source, fault));
                    }
                    let what = format!("the weight of {source_name}");
                    let number =
                        number(weight.get_ref(), WEIGHT).map_err(|e| refused(weight, &what, WEIGHT, e))?;
                    found.insert(source_name.to_string(), number);
                }
                if !found.values().any(|weight| weight.as_float().is_some_and(|weight| weight > 0.0)) {
                    return wrong(
                        value.span(),
                        format!("{title} has no weight above 0"),
                        "nothing to train on".to_owned(),
                        "give at least one source a weight".to_owned(),
                    );
                }
                phase.insert(WEIGHTS.to_owned(), Value::Table(found));
            }
            (WEIGHTS, other) => {
                let label = sort(other).to_owned();
                return wrong(value.span(), format!("{title}: {WEIGHTS} is a table"), label, FORM.to_owned());
            }
            (unknown, _) => {
                let help = match crate::suggest::nearest(unknown, [FROM, WEIGHTS]) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => FORM.to_owned(),
                };
                let unknown = crate::format::shortened(&format!("{unknown:?}"), 40);
                let title = format!("{title} has an unknown key {unknown}");
                return wrong(name.span(), title, "unknown key".to_owned(), help);
            }
        }
    }
    match [FROM, WEIGHTS].into_iter().find(|name| !phase.contains_key(*name)) {
        Some(missing) => {
            wrong(span, format!("{title} has no `{missing}`"), "incomplete".to_owned(), FORM.to_owned())
        }
        None => Ok(phase),
    }
}
