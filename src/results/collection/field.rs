//! What runs are filtered, sorted and tabulated by: words about a run, figures of runs, and keys of recipes.

use super::read::{Collection, Run};
use crate::error::{Error, Result};
use crate::metrics::{self, Metric};
use crate::recipe::{self, KEYS, UNSET, find_path, plain_text};
use crate::suggest::nearest;
use std::borrow::Cow;
use std::fmt;

/// A word about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The shortest name that finds it.
    Run,
    /// Its folder.
    Path,
    /// The name of its recipe's folder.
    Recipe,
    /// When it began, UTC, to the minute.
    Started,
    /// Its status.
    Status,
    /// The reason of a status other than `ok`.
    Reason,
    /// Its tags.
    Tag,
    /// Its note.
    Note,
    /// What its command line changed.
    Changed,
    /// What a reader has to know beside its figures.
    Remarks,
    /// The device class.
    Device,
    /// The commit of the program.
    Commit,
    /// The hash of corpus and tokenizer.
    Corpus,
    /// The run that it is a fork of.
    ForkedFrom,
}

impl Word {
    /// All words, each with its name.
    pub const ALL: [(&str, Self); 14] = [
        ("run", Self::Run),
        ("path", Self::Path),
        ("recipe", Self::Recipe),
        ("started", Self::Started),
        ("status", Self::Status),
        ("reason", Self::Reason),
        ("tag", Self::Tag),
        ("note", Self::Note),
        ("changed", Self::Changed),
        ("remarks", Self::Remarks),
        ("device", Self::Device),
        ("commit", Self::Commit),
        ("corpus", Self::Corpus),
        ("forked_from", Self::ForkedFrom),
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, word)| *word == self).map_or("", |(name, _)| name)
    }
}

/// A figure of runs in one of its units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// Its entry in the table of metrics.
    pub metric: &'static Metric,
    /// Its place among the figures of an entry.
    at: usize,
    /// A stored figure is divided by this: `planned_mib` is in MiB, and `planned_bytes` as stored.
    divisor: f64,
}

/// Something that runs have, by its name.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A word about the run.
    Word(Word),
    /// A figure of the table of metrics.
    Figure(Figure),
    /// A key of recipes, by its full path.
    Key(String),
}

/// The value of a field of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell<'a> {
    /// A number.
    Number(f64),
    /// A text; of a key's value, without the quotes of TOML.
    Text(Cow<'a, str>),
    /// A key that the recipe leaves unset.
    Unset,
    /// Nothing is known.
    Blank,
}

impl Field {
    /// Returns the field called `name`: a word about runs, a figure, or a key that recipes have, or had when
    /// one of these runs was stored.
    ///
    /// # Errors
    /// A usage error with the most similar name.
    pub fn parse(name: &str, collection: &Collection) -> Result<Self> {
        if let Some((_, word)) = Word::ALL.iter().find(|(known, _)| *known == name) {
            return Ok(Self::Word(*word));
        }
        if let Some(figure) = Figure::parse(name) {
            return Ok(Self::Figure(figure));
        }
        match find_path(name) {
            Some(key) => Ok(Self::Key(key.path.to_owned())),
            None if name.contains('.') && collection.settings.has_key(name) => Ok(Self::Key(name.to_owned())),
            None => Err(unknown(name)),
        }
    }

    /// Returns true for a loss: of different texts they do not compare.
    pub fn is_loss(&self) -> bool {
        matches!(self, Self::Figure(figure) if figure.metric.unit == "nats/token")
    }

    /// Returns true if the highest values come first in an order: of speeds, utilizations and counts of what
    /// was done, and the newest of runs.
    pub fn is_highest_first(&self) -> bool {
        match self {
            Self::Word(word) => *word == Word::Started,
            Self::Figure(Figure { metric, .. }) => {
                ["tokens/s", "%", "tokens"].contains(&metric.unit) || metric.name == "steps"
            }
            Self::Key(_) => false,
        }
    }

    /// Returns the value that a run has of it.
    pub fn of_run<'a>(&self, run: &'a Run, collection: &'a Collection) -> Cell<'a> {
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
                Word::Started => Cell::Text(run.started().into()),
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
            },
            Self::Figure(figure) => figure.of_run(run).map_or(Cell::Blank, Cell::Number),
            Self::Key(path) => of_key(run, collection, path),
        }
    }
}

/// Returns the value of a key; of one that the stored recipe leaves out, the value that this implies.
fn of_key<'a>(run: &Run, collection: &'a Collection, path: &str) -> Cell<'a> {
    let stored = collection.settings.of_key(&run.settings, path);
    let value = match stored {
        Some((_, value)) => value.as_deref().unwrap_or(UNSET),
        None if run.settings.is_empty() => return Cell::Blank,
        None => match find_path(path).and_then(|key| key.implied) {
            Some(implied) => implied,
            None => return Cell::Blank,
        },
    };
    match number(value) {
        _ if value == UNSET => Cell::Unset,
        Some(number) => Cell::Number(number),
        None => Cell::Text(plain_text(value)),
    }
}

/// Parses a number as TOML or a command line has it.
pub(super) fn number(text: &str) -> Option<f64> {
    // `inf`, `nan` and `infinity` are words here.
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    text.replace('_', "").parse().ok().filter(|_| is_number && !text.contains(['n', 'f']))
}

impl Figure {
    /// Returns the figure of that name: that of tables of runs, or the one of comparisons. `val-loss` is
    /// `val_loss`.
    fn parse(name: &str) -> Option<Self> {
        let metric = metrics::find(&name.replace('-', "_"))?;
        let at = metrics::of_runs().position(|other| other.name == metric.name)?;
        let divisor = if metric.name == name.replace('-', "_") { metric.divisor } else { 1.0 };
        Some(Self { metric, at, divisor })
    }

    /// Returns the figure of a run; `None` where it is not known, or not finite.
    pub fn of_run(&self, run: &Run) -> Option<f64> {
        let value = run.entry.figures.get(self.at).copied().flatten()?;
        Some(value / self.divisor).filter(|value| value.is_finite())
    }
}

/// Returns every figure of runs, in the unit that its name says.
pub fn figures() -> impl Iterator<Item = Figure> {
    metrics::of_runs().enumerate().map(|(at, metric)| Figure { metric, at, divisor: metric.divisor })
}

/// Returns the names of words about runs and of figures; keys of recipes are fields too.
pub fn field_names() -> impl Iterator<Item = &'static str> {
    Word::ALL.iter().map(|(name, _)| *name).chain(metrics::of_runs().map(|metric| metric.name))
}

/// Returns the error for a name that is nothing that runs have.
fn unknown(name: &str) -> Error {
    let paths = KEYS.iter().map(|key| key.path);
    // A name without its section first: `dim` is one, and similar to many.
    let key = if name.contains('.') { None } else { KEYS.iter().find(|key| key.name() == name) };
    let near = key
        .map(|key| key.path.to_owned())
        .or_else(|| nearest(name, field_names().chain(paths)).map(str::to_owned))
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
            Self::Word(word) => word.name(),
            Self::Figure(Figure { metric, divisor, .. }) if *divisor != metric.divisor => metric.compared_as,
            Self::Figure(figure) => figure.metric.name,
            Self::Key(path) => path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::read::sample;
    use super::*;

    #[test]
    fn numbers_are_finite_and_written_as_such() {
        for (text, expected) in [
            ("3e-4", Some(3e-4)),
            ("0.0003", Some(3e-4)),
            ("1_000", Some(1000.0)),
            ("-1", Some(-1.0)),
            ("nan", None),
            ("inf", None),
            ("-inf", None),
            ("", None),
            ("1k", None),
            ("true", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_words_figures_or_keys() {
        let collection = sample(&[]);
        let parse = |name: &str| Field::parse(name, &collection).map(|field| field.to_string());
        for name in ["status", "val_loss", "planned_mib", "planned_bytes", "model.dim"] {
            assert_eq!(parse(name).unwrap(), name);
        }
        assert_eq!(parse("val-loss").unwrap(), "val_loss");
        assert_eq!(parse("training.max_steps").unwrap(), "training.steps", "an alias");
        for (name, near) in [
            ("val_los", "val_loss"),
            ("dim", "model.dim"),
            ("optimizer.lrr", "optimizer.lr"),
            ("stauts", "status"),
            ("learning_rate", "optimizer.learning_rate"),
        ] {
            let error = parse(name).unwrap_err();
            assert!(error.message().ends_with(&format!("did you mean {near}?")), "{error}");
        }
        assert!(parse("zebra").unwrap_err().message().contains("such as val_loss"));
    }

    #[test]
    fn a_run_has_values_in_the_unit_that_is_named() {
        let collection = sample(&[&[("planned_mib", 3.0 * 1048576.0)], &[]]);
        let field = |name: &str| Field::parse(name, &collection).unwrap();
        let of = |name: &str, at: usize| field(name).of_run(&collection.runs[at], &collection);
        assert_eq!(
            (of("planned_mib", 0), of("planned_bytes", 0)),
            (Cell::Number(3.0), Cell::Number(3145728.0))
        );
        assert_eq!((of("planned_mib", 1), of("tag", 1)), (Cell::Blank, Cell::Blank));
        assert_eq!(of("status", 1), Cell::Text("ok".into()));
        let highest = ["tok_s", "steps", "mfu_pct", "started"].map(|name| field(name).is_highest_first());
        assert_eq!(highest, [true; 4]);
        let lowest = ["val_loss", "step_ms", "wall_s", "planned_mib", "model.dim", "recipe"];
        assert_eq!(lowest.map(|name| field(name).is_highest_first()), [false; 6]);
        assert!(field("val_loss").is_loss() && field("train_loss").is_loss() && !field("tok_s").is_loss());
    }

    #[test]
    fn keys_have_their_stored_or_implied_values() {
        let mut collection = sample(&[&[], &[]]);
        let settings =
            [("model.dim", Some("64")), ("data.corpus", Some("\"a b\"")), ("engine.threads", None)];
        let numbers = settings
            .map(|(key, value)| collection.settings.number((key.to_owned(), value.map(str::to_owned))));
        collection.runs[0].settings = numbers.to_vec();
        let of = |name: &str, at: usize| {
            Field::parse(name, &collection).unwrap().of_run(&collection.runs[at], &collection)
        };
        assert_eq!(of("model.dim", 0), Cell::Number(64.0));
        assert_eq!(of("data.corpus", 0), Cell::Text("a b".into()));
        assert_eq!((of("engine.threads", 0), of("seeds.init", 0)), (Cell::Unset, Cell::Unset));
        assert_eq!(of("model.norm", 0), Cell::Text("rms_norm".into()), "before it was a key");
        assert_eq!(of("optimizer.lr", 0), Cell::Blank);
        assert_eq!((of("model.dim", 1), of("model.norm", 1)), (Cell::Blank, Cell::Blank), "no resolved.toml");
    }
}
