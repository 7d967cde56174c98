//! Parses and checks conditions on runs: `val_loss<1.2`, `status=ok`, `optimizer.lr!=3e-4`.

use super::field::{Cell, Field, Word, number};
use super::read::{Collection, Run};
use crate::error::{Error, Result};
use crate::recipe::{self, Type, UNSET, find_path, plain_text};
use crate::results::Status;
use crate::results::names::folder_name;
use crate::suggest::nearest;
use std::cmp::Ordering;

words! {
    /// A comparison operator. Longer ones come before their prefixes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Operator {
        NotEqual = "!=",
        LessOrEqual = "<=",
        GreaterOrEqual = ">=",
        Equal = "=",
        Less = "<",
        Greater = ">",
    }
}

impl Operator {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Self::Equal => ordering.is_eq(),
            Self::NotEqual => ordering.is_ne(),
            Self::Less => ordering.is_lt(),
            Self::LessOrEqual => ordering.is_le(),
            Self::Greater => ordering.is_gt(),
            Self::GreaterOrEqual => ordering.is_ge(),
        }
    }

    fn is_equality(self) -> bool {
        matches!(self, Self::Equal | Self::NotEqual)
    }
}

/// What a field is compared with.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    /// A finite number.
    Number(f64),
    /// Any of these texts.
    Text(Vec<String>),
    /// The beginning of a text, such as a hash or a time.
    Prefix(String),
    /// A word in a list, such as a tag.
    Member(String),
    /// The recipe leaves the key unset.
    Unset,
}

/// Compares a field of a run with a value. An unknown value, or one that is not a number where a number is
/// expected, fulfills no condition, not even `!=`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// The field to compare.
    pub field: Field,
    operator: Operator,
    wanted: Wanted,
}

/// A word of the command line that selects runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Criterion {
    /// The name of a recipe.
    Recipe(String),
    /// A comparison.
    Condition(Condition),
}

impl Criterion {
    /// Parses `NAME OP VALUE` or the name of a recipe.
    ///
    /// # Errors
    /// A usage error if runs have no field with this name, or if the value cannot be compared with it.
    pub fn parse(text: &str, collection: &Collection) -> Result<Self> {
        let Some(at) = text.find(['=', '<', '>', '!']) else { return Ok(Self::Recipe(text.to_owned())) };
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let operator = Operator::ALL.iter().find(|operator| rest.starts_with(operator.as_str()));
        let Some(operator) = operator.filter(|_| !name.is_empty()) else {
            return Err(Error::usage(format!(
                "`{text}` is not a comparison: write NAME=VALUE, or one of != < <= > >=, such as 'val_loss<1.2'"
            )));
        };
        let sign = operator.as_str();
        let (operator, value) = (*operator, rest[sign.len()..].trim());
        let field = Field::parse(name, collection)?;
        if value.is_empty() || value.starts_with(['=', '<', '>']) {
            let value = if value.is_empty() { "nothing".to_owned() } else { format!("`{value}`") };
            return Err(Error::usage(format!(
                "`{text}` compares {field} with {value}; write NAME{sign}VALUE"
            )));
        }
        let wanted = wanted(&field, operator, value).map_err(|e| e.context(format!("in `{text}`")))?;
        Ok(Self::Condition(Condition { field, operator, wanted }))
    }
}

impl Condition {
    /// Returns true if a run fulfills the condition.
    pub fn holds(&self, run: &Run) -> bool {
        let cell = match self.field {
            // A run has several names, and any of them may match.
            Field::Word(Word::Run) => return self.names(run),
            Field::Word(Word::PartOf) => return self.is_part(run),
            Field::Word(Word::Tag) => Cell::Blank,
            _ => self.field.value(run),
        };
        let equals = |is_equal: bool| is_equal == (self.operator == Operator::Equal);
        match (&self.wanted, cell) {
            (Wanted::Member(tag), _) => equals(run.annotation.tags.contains(tag)),
            (Wanted::Number(wanted), Cell::Number(value)) => {
                value.partial_cmp(wanted).is_some_and(|ordering| self.operator.holds(ordering))
            }
            (Wanted::Text(wanted), Cell::Text(text)) => equals(wanted.iter().any(|wanted| *wanted == text)),
            (Wanted::Prefix(wanted), Cell::Text(text)) => {
                let beginning = text.get(..wanted.len()).unwrap_or(&text);
                self.operator.holds(beginning.cmp(wanted.as_str()))
            }
            (Wanted::Unset, Cell::Number(_) | Cell::Text(_)) => equals(false),
            (Wanted::Unset, Cell::Unset) => equals(true),
            // A number compared with a word, or either with an unset key: the value is known and differs.
            (Wanted::Number(_), Cell::Text(_) | Cell::Unset)
            | (Wanted::Text(_), Cell::Number(_) | Cell::Unset) => self.operator == Operator::NotEqual,
            _ => false,
        }
    }

    /// Returns true if the name of a sweep or comparison of the run begins with the value, or for `!=` if
    /// none does.
    fn is_part(&self, run: &Run) -> bool {
        let Wanted::Prefix(wanted) = &self.wanted else { return false };
        let is_part = run.part_of.iter().any(|part| part.name.starts_with(wanted));
        is_part == (self.operator == Operator::Equal)
    }

    /// Returns true if one of the run's names matches, or for `!=` if none does.
    fn names(&self, run: &Run) -> bool {
        let Wanted::Prefix(wanted) = &self.wanted else { return false };
        let hash = run.run().split('-').nth(1).unwrap_or_default();
        let is_called = run.name == *wanted
            || run.id == *wanted
            || [run.run(), hash].iter().any(|name| name.starts_with(wanted));
        is_called == (self.operator == Operator::Equal)
    }
}

/// Parses the value to compare a field with.
fn wanted(field: &Field, operator: Operator, value: &str) -> Result<Wanted> {
    let needs_equality = |what: &str| match operator.is_equality() {
        true => Ok(()),
        false => Err(Error::usage(format!("{field} is {what}; compare it with = or !="))),
    };
    match field {
        Field::Figure { .. } | Field::Score(_) => number(value).map(Wanted::Number).ok_or_else(|| {
            Error::usage(format!("{field} is a number and `{value}` is not; write one such as 1.2 or 3e-4"))
        }),
        Field::Word(Word::Started) => {
            let is_time = |c: char| c.is_ascii_digit() || "-: ".contains(c);
            match value.replace('T', " ") {
                time if time.chars().all(is_time) => Ok(Wanted::Prefix(time)),
                _ => Err(Error::usage(format!(
                    "{field} is a time in UTC and `{value}` is not; write one such as 2026-11-20 or \"2026-11-20 09:30\""
                ))),
            }
        }
        Field::Word(word) => {
            needs_equality("a word")?;
            wanted_word(*word, value)
        }
        Field::Key(_) if value == UNSET => needs_equality("set or unset").map(|()| Wanted::Unset),
        Field::Key(path) => {
            let is_text = find_path(path).is_some_and(|key| {
                matches!(
                    key.kind,
                    Type::Text
                        | Type::NameOrPath(_)
                        | Type::NameOrPaths(_)
                        | Type::ModelText
                        | Type::Word(_)
                        | Type::WordOrFormula(..)
                        | Type::Prediction
                )
            });
            if let Some(number) = number(value).filter(|_| !is_text) {
                return Ok(Wanted::Number(number));
            }
            needs_equality(if is_text { "a word" } else { "not compared with a number here" })?;
            wanted_key(path, value)
        }
    }
}

fn wanted_word(word: Word, value: &str) -> Result<Wanted> {
    Ok(match word {
        Word::Status => {
            let words = || Status::ALL.iter().map(|status| status.as_str());
            if !words().any(|word| word == value) {
                let hint = match nearest(value, words()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("it is one of {}", words().collect::<Vec<_>>().join(", ")),
                };
                return Err(Error::usage(format!("there is no status `{value}`: {hint}")));
            }
            Wanted::Text(vec![value.to_owned()])
        }
        Word::Tag => Wanted::Member(value.to_owned()),
        Word::Run | Word::Commit | Word::Corpus | Word::ForkedFrom | Word::PartOf => {
            Wanted::Prefix(value.to_owned())
        }
        Word::Recipe => Wanted::Text(vec![folder_name(value).unwrap_or_else(|_| value.to_owned())]),
        _ => Wanted::Text(vec![value.to_owned()]),
    })
}

/// Returns the value of a key as recipes write it. A path also gets its stored form, which is absolute.
fn wanted_key(path: &str, value: &str) -> Result<Wanted> {
    let Some(key) = find_path(path) else { return Ok(Wanted::Text(vec![value.to_owned()])) };
    let (_, written) = recipe::setting(&format!("{}={value}", key.path))?;
    let mut texts = vec![plain_text(&written).into_owned()];
    if matches!(key.kind, Type::NameOrPath(_) | Type::NameOrPaths(_) | Type::FractionOrPaths(_))
        && let Ok(absolute) = std::path::absolute(&texts[0])
    {
        texts.push(absolute.to_string_lossy().into_owned());
    }
    Ok(Wanted::Text(texts))
}

#[cfg(test)]
mod tests {
    use super::super::read::{add_set, add_settings, sample};
    use super::*;

    /// Returns the positions of the runs that fulfill a condition.
    fn chosen(text: &str, collection: &Collection) -> Vec<usize> {
        let Criterion::Condition(condition) = Criterion::parse(text, collection).unwrap() else {
            panic!("{text} is a recipe");
        };
        (0..collection.runs.len()).filter(|at| condition.holds(&collection.runs[*at])).collect()
    }

    #[test]
    fn figures_are_compared_and_blanks_and_nan_fulfil_nothing() {
        let collection = sample(&[
            &[("val_loss", 1.0), ("tok_s", 2e6)],
            &[("val_loss", 1.5)],
            &[],
            &[("val_loss", f64::NAN)],
            &[("val_loss", f64::INFINITY)],
        ]);
        for (text, expected) in [
            ("val_loss<1.2", &[0][..]),
            ("val_loss <= 1.5", &[0, 1]),
            ("val-loss>1", &[1]),
            ("val_loss>=1", &[0, 1]),
            ("val_loss=1.0", &[0]),
            ("val_loss!=1", &[1]),
            ("val_loss>-1", &[0, 1]),
            ("tok_s>=1e6", &[0]),
            ("tok_s<1_000", &[]),
            ("status=ok", &[0, 1, 2, 3, 4]),
            ("status!=ok", &[]),
            ("commit!=abc", &[]),
        ] {
            assert_eq!(chosen(text, &collection), expected, "{text}");
        }
    }

    #[test]
    fn figures_of_held_out_sets_are_compared() {
        let mut collection = sample(&[&[("val_loss", 9.0)], &[], &[], &[]]);
        for (at, loss) in [1.0, 1.5, f64::NAN].into_iter().enumerate() {
            add_set(&mut collection.runs[at], "news", &[("val_loss", loss)]);
        }
        assert_eq!(chosen("val_loss/news<1.2", &collection), [0]);
        assert_eq!(chosen("val_loss/news!=1", &collection), [1]);
        let error = Criterion::parse("val_loss/news<low", &collection).unwrap_err();
        assert!(error.message().contains("val_loss/news is a number and `low` is not"), "{error}");
    }

    #[test]
    fn keys_are_compared_as_numbers_or_as_recipes_write_them() {
        let mut collection = sample(&[&[], &[], &[]]);
        let rows: [&[(&str, Option<&str>)]; 2] = [
            &[
                ("optimizer.lr", Some("0.0003")),
                ("optimizer.betas", Some("[0.9, 0.95]")),
                ("model.n_kv_heads", None),
                ("old.key", Some("\"a b\"")),
            ],
            &[("optimizer.lr", Some("0.001")), ("data.corpus", Some("\"stories\""))],
        ];
        for (run, settings) in collection.runs.iter_mut().zip(rows) {
            add_settings(run, settings);
        }
        for (text, expected) in [
            ("optimizer.lr=3e-4", &[0][..]),
            ("optimizer.lr<1e-3", &[0]),
            ("optimizer.lr!=3e-4", &[1]),
            ("optimizer.betas=[0.9,0.95]", &[0]),
            ("data.corpus=stories", &[1]),
            ("data.corpus!=random", &[1]),
            ("model.n_kv_heads=unset", &[0]),
            ("model.n_kv_heads!=unset", &[]),
            ("model.n_kv_heads!=2", &[0]),
            ("model.n_kv_heads<2", &[]),
            ("model.norm=rms_norm", &[0, 1]),
            ("old.key=a b", &[0]),
        ] {
            assert_eq!(chosen(text, &collection), expected, "{text}");
        }
    }

    #[test]
    fn words_are_compared_by_what_they_are() {
        let mut collection = sample(&[&[], &[]]);
        collection.runs[0].annotation.tags.insert("baseline".to_owned());
        collection.runs[0].entry.commit = Some("0123abcd".to_owned());
        for (text, expected) in [
            ("tag=baseline", &[0][..]),
            ("tag!=baseline", &[1]),
            ("tag=base", &[]),
            ("commit=0123", &[0]),
            ("recipe=r", &[0, 1]),
            ("recipe=diff", &[]),
            ("run=0123abcd", &[0, 1]),
            ("run=0123abcd-2", &[0]),
            ("run!=0123abcd-2", &[1]),
            ("started>=2026-11-02", &[0]),
            ("started=2026-11-01", &[1]),
            ("started<=2026-11-02", &[0, 1]),
            ("started<2026-11-02T00:00", &[1]),
        ] {
            assert_eq!(chosen(text, &collection), expected, "{text}");
        }
        collection.runs[1].began = None;
        for text in ["started>=2026-11-01", "started<=2026-11-30", "started!=2026-11-02"] {
            assert!(!chosen(text, &collection).contains(&1), "an unknown time fulfils nothing: {text}");
        }
        let recipe = Criterion::parse("quickstart", &collection).unwrap();
        assert_eq!(recipe, Criterion::Recipe("quickstart".to_owned()));
    }

    #[test]
    fn what_cannot_be_compared_is_an_error_that_helps() {
        let collection = sample(&[]);
        for (text, said) in [
            ("val_los<1", "did you mean val_loss?"),
            ("val_loss<low", "val_loss is a number and `low` is not"),
            ("val_loss=nan", "`nan` is not"),
            ("val_loss<", "compares val_loss with nothing"),
            ("val_loss==1", "compares val_loss with `=1`"),
            ("val_loss!1", "is not a comparison"),
            ("<1", "is not a comparison"),
            ("status=okay", "there is no status `okay`: did you mean ok?"),
            ("status<ok", "status is a word; compare it with = or !="),
            ("optimizer.name=adamm", "optimizer.name"),
            ("optimizer.name>adamw", "optimizer.name is a word"),
            ("model.dim=wide", "model.dim"),
            ("started=yesterday", "is a time in UTC"),
        ] {
            let error = Criterion::parse(text, &collection).unwrap_err();
            assert!(error.message().contains(said), "{text}: {error}");
        }
    }
}
