//! The fields by which runs are filtered, sorted and tabulated: words about a run, figures, and recipe keys.

use super::entry::Entry;
use super::read::{Collection, PartOf, Run};
use crate::error::{Error, Result};
use crate::metrics::{self, Metric, ScoreColumn, task_figure};
use crate::recipe::{self, KEYS, UNSET, find_path, plain_text};
use crate::suggest::nearest;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

words! {
    /// Descriptive data about a run, shown as a word or text.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Word {
        /// The shortest name that identifies the run.
        Run = "run",
        /// The run's folder.
        Path = "path",
        /// The name of the recipe's folder.
        Recipe = "recipe",
        /// When the run began, UTC, to the minute.
        Started = "started",
        Status = "status",
        /// Why the status is not `ok`.
        Reason = "reason",
        Tag = "tag",
        Note = "note",
        /// The settings that the run's command line changed.
        Changed = "changed",
        /// What a reader should know besides the figures.
        Remarks = "remarks",
        /// The device class.
        Device = "device",
        /// The commit that xrun was built from.
        Commit = "commit",
        /// The hash of the corpus and the tokenizer.
        Corpus = "corpus",
        /// The run that this one was forked from.
        ForkedFrom = "forked_from",
        /// The sweeps and comparisons that the run belongs to.
        PartOf = "part_of",
    }
}

/// A field of runs, found by its name.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Descriptive data about the run.
    Word(Word),
    /// A figure such as `val_loss`, `val_loss/news` for a further held-out set, or `train_loss/web` for a
    /// source of a mixture.
    Figure {
        /// The entry in the table of metrics.
        metric: &'static Metric,
        /// The name of the held-out set or source; `None` for a figure of the whole run.
        set: Option<String>,
        /// The shown value is the stored one divided by this: `planned_mib` is in MiB, `planned_bytes` is as
        /// stored.
        divisor: f64,
    },
    /// A figure of a task, by its column in `metrics.csv`, `TASK/FIGURE`.
    Score(String),
    /// A recipe key, by its full path.
    Key(String),
}

/// The value of a field of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// A number.
    Number(f64),
    /// Text. A recipe value has lost its TOML quotes.
    Text(Cow<'a, str>),
    /// The recipe leaves the key unset.
    Unset,
    /// Nothing is known.
    Blank,
}

impl Field {
    /// Returns the field called `name`: a word about runs, a figure, a figure of a held-out set that one of
    /// these runs has, or a key that recipes have or had when one of these runs was stored.
    ///
    /// # Errors
    /// A usage error that suggests the most similar name.
    pub fn parse(name: &str, collection: &Collection) -> Result<Self> {
        if let Some(word) = Word::ALL.iter().find(|word| word.as_str() == name) {
            return Ok(Self::Word(*word));
        }
        if let Some(figure) = parse_figure(name, collection) {
            return Ok(figure);
        }
        match find_path(name) {
            Some(key) => Ok(Self::Key(key.path.to_owned())),
            None if name.contains('.')
                && collection.runs.iter().any(|run| run.entry.setting(name).is_some()) =>
            {
                Ok(Self::Key(name.to_owned()))
            }
            None => Err(unknown(name, collection)),
        }
    }

    /// Returns the metric of a figure; `None` for other fields.
    pub fn metric(&self) -> Option<&'static Metric> {
        match self {
            Self::Figure { metric, .. } => Some(metric),
            Self::Score(column) => Some(&ScoreColumn::parse(column)?.score_figure()?.metric),
            Self::Word(_) | Self::Key(_) => None,
        }
    }

    /// Returns true for a loss, which cannot be compared between different texts.
    pub fn is_loss(&self) -> bool {
        self.metric().is_some_and(|metric| metric.unit == "nats/token")
    }

    /// Returns true if the highest values come first when sorted: speeds, utilizations, counts of work done,
    /// task figures where higher is better, and the newest runs.
    pub fn is_highest_first(&self) -> bool {
        let is_highest_first = |metric: &Metric| {
            ["tokens/s", "%", "tokens"].contains(&metric.unit)
                || metric.name == "steps"
                || task_figure(metric.name).is_some_and(|figure| figure.higher_is_better)
        };
        if let Self::Score(column) = self {
            let score = ScoreColumn::parse(column).and_then(|column| column.score_figure());
            return score.is_some_and(|score| score.figure.higher_is_better);
        }
        *self == Self::Word(Word::Started) || self.metric().is_some_and(is_highest_first)
    }

    /// Returns the value of this field for a run.
    pub fn value<'a>(&self, run: &'a Run) -> Cell<'a> {
        let text = |text: Option<&'a str>| {
            text.filter(|text| !text.is_empty()).map_or(Cell::Blank, |text| Cell::Text(text.into()))
        };
        let joined = |words: Vec<&str>, by: &str| match words.is_empty() {
            true => Cell::Blank,
            false => Cell::Text(words.join(by).into()),
        };
        let entry = &run.entry;
        match self {
            Self::Word(word) => match word {
                Word::Run => text(Some(&run.name)),
                Word::Path => text(run.path.to_str()),
                Word::Recipe => text(Some(run.recipe())),
                Word::Started => run.started().map_or(Cell::Blank, |time| Cell::Text(time.into())),
                Word::Status => text(Some(run.status.as_str())),
                Word::Reason => text(entry.reason.as_deref()),
                Word::Tag => joined(run.annotation.tags.iter().map(String::as_str).collect(), " "),
                Word::Note => text(run.annotation.note.as_deref()),
                Word::Changed => joined(entry.changed.iter().map(String::as_str).collect(), " "),
                Word::Remarks => joined(entry.remarks.iter().map(String::as_str).collect(), ", "),
                Word::Device => text(entry.device.as_deref()),
                Word::Commit => text(entry.commit.as_deref()),
                Word::Corpus => text(entry.corpus.as_deref()),
                Word::ForkedFrom => text(entry.forked_from.as_ref().map(|fork| fork.run.as_str())),
                Word::PartOf => match run.part_of.as_slice() {
                    [] => Cell::Blank,
                    all => {
                        Cell::Text(all.iter().map(PartOf::to_string).collect::<Vec<_>>().join(", ").into())
                    }
                },
            },
            Self::Figure { metric, set, divisor } => {
                let figures = match set {
                    None => Some(&entry.figures),
                    Some(set) => entry.sets.get(set).map(|set| &set.figures),
                };
                let value = figures.and_then(|figures| figures.get(metric.name)).map(|value| value / divisor);
                value.filter(|value| value.is_finite()).map_or(Cell::Blank, Cell::Number)
            }
            Self::Score(column) => entry.scores.get(column).map_or(Cell::Blank, |&value| Cell::Number(value)),
            Self::Key(path) => key_cell(&run.entry, path),
        }
    }
}

/// Finds a figure by the name that tables of runs or comparisons use. `val-loss` means `val_loss`. If it is
/// the figure of a held-out set or a source, one of the runs must have it, unless there are no runs.
fn parse_figure(name: &str, collection: &Collection) -> Option<Field> {
    let Some((metric, set)) = name.split_once('/') else {
        let name = name.replace('-', "_");
        let found = metrics::find(&name)?;
        let metric = metrics::run_metrics().find(|metric| metric.name == found.name)?;
        let divisor = if metric.name == name { metric.divisor } else { 1.0 };
        return Some(Field::Figure { metric, set: None, divisor });
    };
    if ScoreColumn::parse(name).is_some() {
        let is_known = |run: &Run| run.entry.scores.contains_key(name);
        let is_known = collection.runs.is_empty() || collection.runs.iter().any(is_known);
        return is_known.then(|| Field::Score(name.to_owned()));
    }
    let name = format!("{}/{set}", metric.replace('-', "_"));
    let (metric, set) = metrics::find_set_metric(&name)?;
    let is_known = |run: &Run| run.entry.sets.contains_key(set);
    let is_known = collection.runs.is_empty() || collection.runs.iter().any(is_known);
    is_known.then(|| Field::Figure { metric, set: Some(set.to_owned()), divisor: metric.divisor })
}

/// Returns the figures of every further held-out set and source in these runs, ordered by name.
pub fn set_figures<'a>(runs: impl IntoIterator<Item = &'a Run>) -> impl Iterator<Item = Field> {
    let sets: BTreeSet<&String> = runs.into_iter().flat_map(|run| run.entry.sets.keys()).collect();
    let figure = |metric: &'static Metric, set: &String| Field::Figure {
        metric,
        set: Some(set.clone()),
        divisor: metric.divisor,
    };
    sets.into_iter().flat_map(move |set| metrics::set_metrics().map(move |metric| figure(metric, set)))
}

/// Returns every figure of tasks in these runs, ordered by name.
pub fn score_figures<'a>(runs: impl IntoIterator<Item = &'a Run>) -> impl Iterator<Item = Field> {
    let columns: BTreeSet<&String> = runs.into_iter().flat_map(|run| run.entry.scores.keys()).collect();
    columns.into_iter().cloned().map(Field::Score)
}

/// Returns the value of a key, or the implied value if the stored recipe leaves the key out.
fn key_cell<'a>(entry: &'a Entry, path: &str) -> Cell<'a> {
    let implied = || find_path(path).and_then(|key| key.implied).filter(|_| !entry.settings.is_empty());
    let Some(value) = entry.setting(path).or_else(implied) else { return Cell::Blank };
    match number(value) {
        _ if value == UNSET => Cell::Unset,
        Some(number) => Cell::Number(number),
        None => Cell::Text(plain_text(value)),
    }
}

/// Parses a number as TOML or a command line writes it.
pub(super) fn number(text: &str) -> Option<f64> {
    // `inf`, `nan` and `infinity` are words here.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    text.replace('_', "").parse().ok().filter(|_| is_number && !text.contains(['n', 'f']))
}

/// Returns every figure of whole runs, in the unit that its name gives.
pub fn figures() -> impl Iterator<Item = Field> {
    metrics::run_metrics().map(|metric| Field::Figure { metric, set: None, divisor: metric.divisor })
}

/// Returns the names of all words and figures. Recipe keys, which are fields too, are not included.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    Word::ALL.iter().map(|word| word.as_str()).chain(metrics::run_metrics().map(|metric| metric.name))
}

/// Returns the error for a name that is not a field, with a hint.
fn unknown(name: &str, collection: &Collection) -> Error {
    let set_names: Vec<String> = set_figures(&collection.runs).map(|field| field.to_string()).collect();
    let scores: BTreeSet<&String> = collection.runs.iter().flat_map(|run| run.entry.scores.keys()).collect();
    if metrics::find_set_metric(name).is_some() && set_names.is_empty() {
        return Error::usage(format!(
            "runs have nothing called `{name}`: none of them has a held-out set from validation.sets, or \
             sources"
        ));
    }
    let paths = KEYS.iter().map(|key| key.path);
    let names: Vec<String> = field_names()
        .chain(paths)
        .map(str::to_owned)
        .chain(set_names)
        .chain(scores.into_iter().cloned())
        .collect();
    // Try names without a section first: `dim` is exactly one key but similar to many names.
    let key = if name.contains('.') { None } else { KEYS.iter().find(|key| key.name() == name) };
    let other_word = (name == "speed").then_some("tok_s");
    let near = key
        .map(|key| key.path)
        .or(other_word)
        .map(str::to_owned)
        .or_else(|| nearest(name, names.iter().map(String::as_str)).map(str::to_owned))
        .or_else(|| recipe::suggested_key(name));
    let hint = near.map_or_else(
        || {
            "it is a key of recipes such as optimizer.lr, a figure such as val_loss, or status, tag, recipe"
                .to_owned()
        },
        |near| format!("did you mean {near}?"),
    );
    Error::usage(format!("runs have nothing called `{name}`: {hint}"))
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Word(word) => word.as_str(),
            Self::Figure { metric, set: Some(set), .. } => return write!(f, "{}/{set}", metric.name),
            Self::Figure { metric, divisor, .. } if *divisor != metric.divisor => metric.compared_as,
            Self::Figure { metric, .. } => metric.name,
            Self::Score(column) => column,
            Self::Key(path) => path,
        })
    }
}

#[cfg(test)]
mod tests;
