//! Parses and checks the attributes of a block's opening marker.

use super::attributes::{self, Attributes, END, OPEN};
use super::columns::{self, Column, NumberForm};
use super::markers::{Block, Opening};
use super::text::did_you_mean;
use crate::error::{Error, Result};

/// The kinds of blocks, each with its attributes, required ones first.
pub const KINDS: [(&str, &[&str]); 9] = [
    ("runs", &["select", "columns", "newest", "where", "across"]),
    ("plot", &["select", "plot", "newest", "where", "alt"]),
    ("curves", &["select", "column", "newest", "where", "across", "alt"]),
    ("comparison", &["select", "columns", "across"]),
    ("quality", &["select", "across", "alt"]),
    ("chain", &["select", "across", "alt"]),
    ("series", &["select", "over", "across", "alt"]),
    ("sweep", &["select", "columns", "across"]),
    ("configurations", &["select", "column", "across", "alt"]),
];

/// The parsed attributes of a block.
#[derive(Clone, Debug)]
pub struct Spec {
    pub kind: BlockKind,
    /// Names of recipes, runs, comparisons or sweeps.
    pub select: Vec<String>,
    /// Number of runs of each recipe; `None` for all.
    pub newest: Option<usize>,
    /// Values of resolved keys that runs must have.
    pub filters: Vec<(String, String)>,
    /// Facts in which the rows may differ.
    pub across: Vec<String>,
    /// The alternative text of figures, instead of a made one.
    pub alt: Option<String>,
}

/// The kind of a block, with the attributes that only this kind has.
#[derive(Clone, Debug)]
pub enum BlockKind {
    Runs { columns: Vec<Column> },
    Plot { plot: String },
    Curves { column: String },
    Comparison { columns: Option<Vec<String>> },
    Quality,
    Chain,
    Series { over: &'static str },
    Sweep { columns: Vec<Column> },
    Configurations { column: String },
    Value { column: Column, form: NumberForm },
    ComparisonValue { column: String, form: NumberForm },
}

/// The attributes of values of runs and of comparisons, required ones first.
const RUN_VALUE_ATTRIBUTES: &[&str] = &["select", "column", "where", "digits", "form"];
const COMPARISON_VALUE_ATTRIBUTES: &[&str] = &["comparison", "column", "across", "digits", "form"];

/// Most decimals of a value, because an `f64` has no more.
const MAX_DIGITS: usize = 17;

/// Returns an empty block to paste into a page.
///
/// # Errors
/// If the block would not be valid.
pub fn template(kind: &str, select: &str) -> Result<String> {
    let more = match kind {
        "plot" => Some(("plot", "loss")),
        "series" => Some(("over", "parallelism.world_size")),
        _ => None,
    };
    let attributes = [("kind", kind), ("select", select)].into_iter().chain(more);
    let attributes: Attributes =
        attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Spec::parse(&attributes).map_err(Error::usage)?;
    let written: String = attributes.iter().map(|(name, value)| format!(" {name}=\"{value}\"")).collect();
    Ok(format!("<!-- {OPEN}{written} -->\n<!-- {END} -->\n"))
}

impl Spec {
    /// Parses the attributes of the marker that opens a block or a value. Unknown attributes are errors.
    pub fn from_block(block: &Block) -> Result<Self, String> {
        match block.opening {
            Opening::Report => Self::parse(&block.attributes),
            Opening::Value => Self::parse_value(&block.attributes),
        }
    }

    fn parse_value(attributes: &Attributes) -> Result<Self, String> {
        let get = |name: &str| attributes::get(attributes, name);
        let is_run_value = get("comparison").is_none();
        let allowed = if is_run_value { RUN_VALUE_ATTRIBUTES } else { COMPARISON_VALUE_ATTRIBUTES };
        check_names("a value", attributes, allowed)?;
        let column = get("column").ok_or("no `column`: which figure should the value be?")?.trim();
        let form = number_form(get("digits"), get("form"))?;
        let kind = match is_run_value {
            true => BlockKind::Value { column: columns::parse_single(column)?, form },
            false => BlockKind::ComparisonValue { column: column.to_owned(), form },
        };
        let selected = get("select").or(get("comparison"));
        let select = selected.ok_or("no `select` and no `comparison`: what is the value of?")?;
        Self::with_selection(attributes, kind, select, Some(1))
    }

    /// Parses the attributes of the opening marker of a block.
    fn parse(attributes: &Attributes) -> Result<Self, String> {
        let get = |name: &str| attributes::get(attributes, name);
        let kinds = KINDS.map(|(kind, _)| kind);
        let kind = get("kind").ok_or_else(|| format!("no `kind`; there are {}", kinds.join(", ")))?;
        let Some((_, allowed)) = KINDS.into_iter().find(|(name, _)| *name == kind) else {
            let near = did_you_mean(kind, kinds);
            return Err(format!("no kind `{kind}`; there are {}{near}", kinds.join(", ")));
        };
        check_names(&format!("`{kind}`"), attributes, allowed)?;
        let select = get("select").ok_or("no `select`: what should the block show?")?;
        let newest = match get("newest") {
            // Curves average over all seeds of a recipe.
            None if kind == "curves" => None,
            None => Some(1),
            Some("all") => None,
            Some(count) => match count.parse() {
                Ok(count) if count > 0 => Some(count),
                _ => return Err(format!("`newest` is a number from 1, or `all`, not `{count}`")),
            },
        };
        let column = || get("column").unwrap_or(attributes::MEASURED_COLUMN).trim().to_owned();
        let kind = match kind {
            "runs" => BlockKind::Runs { columns: columns::runs(get("columns"))? },
            "plot" => BlockKind::Plot { plot: get("plot").unwrap_or("loss").to_owned() },
            "curves" => BlockKind::Curves { column: column() },
            "configurations" => BlockKind::Configurations { column: column() },
            "quality" => BlockKind::Quality,
            "chain" => BlockKind::Chain,
            "comparison" => BlockKind::Comparison { columns: get("columns").map(list) },
            "series" => {
                let over = get("over")
                    .ok_or("no `over`: by which key of recipes should comparisons be put in order?")?;
                BlockKind::Series { over: columns::known_key(over.trim())? }
            }
            _ => BlockKind::Sweep { columns: columns::sweep(get("columns"))? },
        };
        Self::with_selection(attributes, kind, select, newest)
    }

    /// Parses the attributes that kinds share.
    fn with_selection(
        attributes: &Attributes,
        kind: BlockKind,
        select: &str,
        newest: Option<usize>,
    ) -> Result<Self, String> {
        let get = |name: &str| attributes::get(attributes, name);
        let select = selection(select)?;
        let filters = get("where").map_or(Ok(Vec::new()), filters)?;
        let across = get("across").map_or(Vec::new(), list);
        across.iter().try_for_each(|name| super::alike::check_name(name))?;
        Ok(Self { kind, select, newest, filters, across, alt: get("alt").map(str::to_owned) })
    }
}

/// Checks that all attributes are allowed and not empty.
fn check_names(what: &str, attributes: &Attributes, allowed: &[&str]) -> Result<(), String> {
    for (name, value) in attributes.iter().filter(|(name, _)| name != "kind") {
        if !allowed.contains(&name.as_str()) {
            let near = did_you_mean(name, allowed.iter().copied());
            return Err(format!("{what} has no attribute `{name}`; it has {}{near}", allowed.join(", ")));
        }
        if value.trim().is_empty() {
            return Err(format!("`{name}` is empty"));
        }
    }
    Ok(())
}

/// Parses the names of kept runs, comparisons or sweeps.
fn selection(text: &str) -> Result<Vec<String>, String> {
    let select = list(text);
    match select.iter().find(|name| name.split('/').any(|part| part.is_empty() || part.starts_with('.'))) {
        Some(wrong) => Err(format!("`{wrong}` cannot be the name of anything kept")),
        None => Ok(select),
    }
}

/// Parses the form of a number.
fn number_form(digits: Option<&str>, form: Option<&str>) -> Result<NumberForm, String> {
    match (digits, form) {
        (None, Some("short")) => Ok(NumberForm::Short),
        (Some(_), Some("short")) => Err("`short` has about three digits: leave out `digits`".to_owned()),
        (_, Some(other)) if other != "plain" => Err(format!("`form` is plain or short, not `{other}`")),
        (None, _) => Ok(NumberForm::Decimal(None)),
        (Some(digits), _) => match digits.trim().parse() {
            Ok(count) if count <= MAX_DIGITS => Ok(NumberForm::Decimal(Some(count))),
            _ => Err(format!("`digits` is a number from 0 to {MAX_DIGITS}, not `{digits}`")),
        },
    }
}

/// Parses `a,b` as a list.
fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// Parses `section.key=value,…`.
fn filters(text: &str) -> Result<Vec<(String, String)>, String> {
    let pair = |item: String| {
        let (key, value) =
            item.split_once('=').ok_or_else(|| format!("`where` is key=value, not `{item}`"))?;
        Ok((columns::known_key(key.trim())?.to_owned(), value.trim().to_owned()))
    };
    list(text).into_iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Spec, String> {
        Spec::parse(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn attributes_become_a_spec() {
        let spec = parse(&[
            ("kind", "runs"),
            ("select", "a, b"),
            ("newest", "3"),
            ("where", "training.dtype=bf16"),
            ("across", "device,training.dtype"),
        ])
        .unwrap();
        assert_eq!(spec.select, ["a", "b"]);
        assert_eq!(spec.newest, Some(3));
        assert_eq!(spec.filters, [("training.dtype".to_owned(), "bf16".to_owned())]);
        assert_eq!(spec.across.len(), 2);
        assert_eq!(parse(&[("kind", "runs"), ("select", "a"), ("newest", "all")]).unwrap().newest, None);
    }

    #[test]
    fn unknown_attributes_and_values_are_named_with_the_nearest_spelling() {
        for (pairs, said) in [
            (
                &[("select", "a")][..],
                "no `kind`; there are runs, plot, curves, comparison, quality, chain, series, sweep, configurations",
            ),
            (&[("kind", "run"), ("select", "a")], "did you mean `runs`?"),
            (&[("kind", "runs")], "no `select`"),
            (&[("kind", "runs"), ("select", "")], "`select` is empty"),
            (&[("kind", "runs"), ("select", "../x")], "cannot be the name"),
            (&[("kind", "runs"), ("select", "a"), ("colums", "loss")], "did you mean `columns`?"),
            (&[("kind", "plot"), ("select", "a"), ("columns", "loss")], "`plot` has no attribute `columns`"),
            (&[("kind", "runs"), ("select", "a"), ("newest", "0")], "a number from 1"),
            (&[("kind", "series"), ("select", "a")], "no `over`"),
            (&[("kind", "series"), ("select", "a"), ("over", "model.din")], "did you mean `model.dim`?"),
            (&[("kind", "runs"), ("select", "a"), ("columns", "val_los")], "did you mean `val_loss`?"),
            (
                &[("kind", "runs"), ("select", "a"), ("columns", "training.dtpe")],
                "did you mean `training.dtype`?",
            ),
            (&[("kind", "runs"), ("select", "a"), ("where", "training.dtype")], "key=value"),
            (&[("kind", "runs"), ("select", "a"), ("across", "devise")], "did you mean `device`?"),
        ] {
            let why = parse(pairs).unwrap_err();
            assert!(why.contains(said), "{pairs:?}: {why}");
        }
    }

    #[test]
    fn a_value_has_a_column_and_digits() {
        let parse = |pairs: &[(&str, &str)]| {
            Spec::parse_value(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let of = |more: &[(&str, &str)]| parse(&[&[("select", "a"), ("column", "val_loss")], more].concat());
        let form = |spec: Result<Spec, String>| match spec.unwrap().kind {
            BlockKind::Value { column: Column::Named("val_loss"), form } => form,
            other => panic!("{other:?}"),
        };
        assert_eq!(form(of(&[])), NumberForm::Decimal(None));
        assert_eq!(form(of(&[("digits", "2")])), NumberForm::Decimal(Some(2)));
        assert_eq!(form(of(&[("form", "short")])), NumberForm::Short);
        for (pairs, said) in [
            (&[("select", "a")][..], "no `column`"),
            (&[("column", "loss")], "no `select`"),
            (&[("select", "a"), ("column", "los")], "did you mean `loss`?"),
            (&[("select", "a"), ("column", "loss,tok_s")], "one column"),
            (&[("select", "a"), ("column", "loss"), ("digits", "-1")], "`digits` is a number from 0 to 17"),
            (&[("select", "a"), ("column", "loss"), ("form", "long")], "plain or short"),
            (&[("select", "a"), ("column", "loss"), ("digit", "1")], "did you mean `digits`?"),
            (&[("comparison", "a"), ("column", "x"), ("where", "a=b")], "no attribute `where`"),
        ] {
            let why = parse(pairs).unwrap_err();
            assert!(why.contains(said), "{pairs:?}: {why}");
        }
    }
}
