//! The columns that `xrun runs` lists.

use crate::format::{BLANK, Column, Table, decimal, short, shortened, thousands};
use crate::results::collection::{Cell, Collection, Field, Run, Word};
use crate::results::labels::LABEL;
use std::collections::HashMap;

/// The heading of the column that tells which text a loss was measured on.
pub const TEXT: &str = "TEXT";

/// The longest note shown in a list, in characters.
const NOTE: usize = 40;

/// The columns of a list.
pub enum Columns {
    /// The columns shown without `--columns`. If the runs measured a loss on different texts, the field is
    /// that loss, and the texts are a column.
    Usual(Option<Field>),
    /// Fields chosen with `--columns`.
    Chosen(Vec<Field>),
}

impl Columns {
    /// Formats the list.
    pub fn table(&self, runs: &[&Run], collection: &Collection) -> String {
        match self {
            Self::Usual(unlike) => usual(runs, collection, unlike.as_ref()),
            Self::Chosen(fields) => chosen(runs, fields),
        }
    }
}

/// Returns the label that the run's recipe gives itself.
fn own_label(run: &Run) -> Option<String> {
    match Field::Key(LABEL.to_owned()).value(run) {
        Cell::Text(text) if !text.trim().is_empty() => Some(text.into_owned()),
        _ => None,
    }
}

/// The text of a column for a run.
type Text<'a> = &'a dyn Fn(&Run) -> String;

fn usual(runs: &[&Run], collection: &Collection, unlike: Option<&Field>) -> String {
    use Column::{Left, Right};
    // A fork names its parent, which may not be listed.
    let names = collection.runs.iter().map(|run| (run.run(), run.name.as_str())).collect();
    let any = |has: fn(&Run) -> bool| runs.iter().any(|run| has(run));
    let text = |run: &Run| unlike.and_then(|loss| text_of(run, loss)).unwrap_or_else(|| BLANK.to_owned());
    let tags = |run: &Run| run.annotation.tags.iter().map(|tag| one_line(tag)).collect::<Vec<_>>().join(" ");
    let note = |run: &Run| beginning(run.annotation.note.as_deref().unwrap_or_default(), NOTE);
    let label = |run: &Run| beginning(&own_label(run).unwrap_or_default(), NOTE);
    let part_of = |run: &Run| match run.part_of.as_slice() {
        [] => String::new(),
        [one] => one_line(&one.to_string()),
        [first, more @ ..] => format!("{}, {} more", one_line(&first.to_string()), more.len()),
    };
    let remarks = |run: &Run| remarks(run, &names);
    let has_remarks = |run: &Run| !run.entry.remarks.is_empty() || run.entry.forked_from.is_some();
    // Columns that are listed only if they have something to show.
    let optional: [(&str, bool, Text<'_>); 6] = [
        (TEXT, unlike.is_some(), &text),
        ("LABEL", any(|run| own_label(run).is_some()), &label),
        ("PART OF", any(|run| !run.part_of.is_empty()), &part_of),
        ("TAGS", any(|run| !run.annotation.tags.is_empty()), &tags),
        ("NOTE", any(|run| run.annotation.note.is_some()), &note),
        ("REMARKS", any(has_remarks), &remarks),
    ];
    let optional: Vec<_> = optional.into_iter().filter(|(_, is_shown, _)| *is_shown).collect();
    let mut columns = vec![Left, Left, Left, Left, Right, Right, Right, Right];
    columns.extend(optional.iter().map(|_| Left).chain([Left]));
    let mut table = Table::new(&columns);
    let heading = ["RUN", "RECIPE", "STARTED (UTC)", "STATUS", "STEPS", "TRAIN LOSS", "VAL LOSS", "TOK/S"];
    let optional_headings = optional.iter().map(|(heading, ..)| *heading);
    table.row(heading.into_iter().chain(optional_headings).chain(["CHANGED"]));
    let figures = ["train_loss", "val_loss", "tok_s"].map(|name| Field::parse(name, collection).ok());
    for run in runs {
        let [train_loss, val_loss, tok_s] =
            figures.each_ref().map(|field| match field.as_ref().map(|field| field.value(run)) {
                Some(Cell::Number(value)) => Some(value),
                _ => None,
            });
        let cells = [
            run.name.clone(),
            run.recipe().to_owned(),
            run.started().unwrap_or_else(|| BLANK.to_owned()),
            run.status.as_str().to_owned(),
            steps(run),
            decimal(train_loss, 4),
            decimal(val_loss, 4),
            tok_s.map_or_else(|| BLANK.to_owned(), short),
        ];
        let optional = optional.iter().map(|(.., cell)| cell(run));
        let changed = run.entry.changed.iter().map(|setting| quoted(setting)).collect::<Vec<_>>().join(" ");
        table.row(cells.into_iter().chain(optional).chain([changed]));
    }
    table.render(0)
}

fn chosen(runs: &[&Run], fields: &[Field]) -> String {
    let side = |field: &Field| match field {
        Field::Word(_) => Column::Left,
        Field::Figure { .. } | Field::Score(_) | Field::Key(_) => Column::Right,
    };
    let columns: Vec<Column> = [Column::Left].into_iter().chain(fields.iter().map(side)).collect();
    let mut table = Table::new(&columns);
    table.row(["RUN".to_owned()].into_iter().chain(fields.iter().map(Field::to_string)));
    for run in runs {
        let cell = |field: &Field| match (field, field.value(run)) {
            (Field::Word(Word::Note), Cell::Text(text)) => beginning(&text, NOTE),
            (_, Cell::Text(text)) => one_line(&text),
            (field, Cell::Number(value)) => match field.metric() {
                Some(metric) => decimal(Some(value), metric.decimals),
                None => value.to_string(),
            },
            (_, Cell::Unset) => "unset".to_owned(),
            (_, Cell::Blank) => BLANK.to_owned(),
        };
        table.row([run.name.clone()].into_iter().chain(fields.iter().map(cell)));
    }
    table.render(0)
}

fn steps(run: &Run) -> String {
    let (done, planned) = (run.entry.steps as usize, run.entry.steps_planned as usize);
    if done == planned { thousands(done) } else { format!("{} of {}", thousands(done), thousands(planned)) }
}

/// Identifies the text that a loss of a run was measured on, if the run has that loss: the hash of corpus and
/// tokenizer, or of a named set's tokens, and the part of the held-out text that validation used.
pub fn text_of(run: &Run, loss: &Field) -> Option<String> {
    let entry = &run.entry;
    let (hash, part) = match loss {
        Field::Figure { set: Some(set), .. } => {
            let set = entry.sets.get(set).filter(|set| !set.figures.is_empty())?;
            (set.hash.as_deref()?, set.part)
        }
        _ => {
            let has_loss = entry.has_figure("val_loss") || entry.has_figure("train_loss");
            (entry.corpus.as_deref().filter(|_| has_loss)?, entry.val_part)
        }
    };
    let part = part.map(|part| format!(" {}/{}", part.batches, part.of)).unwrap_or_default();
    Some(format!("{}{part}", hash.get(..8).unwrap_or(hash)))
}

/// Returns what a reader must know about a run beside its figures.
fn remarks(run: &Run, names: &HashMap<&str, &str>) -> String {
    let fork = run.entry.forked_from.as_ref().map(|fork| {
        let name = names.get(fork.run.as_str()).unwrap_or(&fork.run.as_str()).to_owned();
        format!("fork of {name} at step {}", fork.step)
    });
    fork.into_iter().chain(run.entry.remarks.iter().cloned()).collect::<Vec<_>>().join(", ")
}

/// Quotes a setting for a shell if its value has characters other than letters, digits and safe punctuation.
fn quoted(setting: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-._/+=@:,%[]".contains(c);
    match setting.split_once('=') {
        Some((key, value)) if value.is_empty() || !value.chars().all(is_plain) => {
            format!("{key}='{}'", value.replace('\'', "'\\''"))
        }
        _ => setting.to_owned(),
    }
}

/// Replaces line breaks and tabs, which would break the table, with spaces.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
}

/// Returns text on one line, cut off after `longest` characters.
pub fn beginning(text: &str, longest: usize) -> String {
    shortened(&one_line(text), longest)
}
