//! Opens the training and the held-out side of a recipe's corpus.

use super::held_out::{HeldOut, TextList};
use super::texts::{Texts, Training};
use crate::data::corpus::Corpus;
use crate::data::corpus_files::CorpusFiles;
use crate::data::documents::Documents;
use crate::data::location::CorpusLocation;
use crate::data::{DropList, Spec, Validation, drop, split};
use crate::error::{Error, Result};
use crate::policy::CorpusSource;
use std::path::Path;
use std::sync::Arc;

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Options<'a> {
    /// Further held-out files.
    pub against: Vec<&'a Path>,
    /// The field or column with the text of the further files; `None` for the one of the corpus.
    pub field: Option<&'a str>,
    /// Further held-out texts.
    pub lists: Vec<TextList>,
    /// Also find near duplicates within the training text.
    pub duplicates: bool,
}

/// Both sides.
#[derive(Debug)]
pub(super) struct Sides {
    pub training: Training,
    /// In the order of their names.
    pub held_out: Vec<HeldOut>,
    pub warnings: Vec<String>,
}

/// The name of the set that `data.validation` holds out.
const MAIN: &str = "data.validation";

impl Sides {
    /// Opens the training text of a spec, everything it holds out, and further held-out files and texts.
    ///
    /// # Errors
    /// If something of it is missing, wrong, or no text.
    pub fn open(spec: &Spec, options: &Options<'_>) -> Result<Self> {
        let (mut training, mut sets, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |name: &str, spec: &Spec| -> Result<usize> {
            let (train, held_out, absent_drops) = sides(name, spec, &mut warnings)?;
            training.push(train);
            sets.extend(held_out);
            Ok(absent_drops)
        };
        match spec.corpus {
            CorpusSource::Mixture => {
                for (name, source) in &spec.sources {
                    let own = spec.of_source(name, source);
                    // A listed text that one source does not have may be in another one.
                    add(&own.table, &own).map_err(|e| e.context(&own.table))?;
                }
            }
            _ => {
                let absent = add(MAIN, spec)?;
                warnings.extend(drop::absent_warning(spec.drop.as_deref(), absent));
            }
        }
        if let (Validation::Paths(_), Some(location)) = (&spec.validation, spec.held_out()) {
            sets.push(whole(MAIN, &location, spec)?);
        }
        let training = Training::new(training);
        for (name, location) in &spec.sets {
            let name = format!("validation.sets.{name}");
            sets.push(whole(&name, location, spec).map_err(|e| e.context(&name))?);
        }
        let field = options.field.map_or_else(|| spec.field.clone(), str::to_owned);
        let further = Spec { field, ..spec.clone() };
        for path in &options.against {
            sets.push(whole(&path.display().to_string(), &CorpusLocation::at(path), &further)?);
        }
        let lists = options.lists.iter().cloned().map(HeldOut::List);
        let mut held_out: Vec<HeldOut> = sets.into_iter().map(HeldOut::Corpus).chain(lists).collect();
        held_out.sort_by(|one, other| one.name().cmp(other.name()));
        if let Some(twice) = held_out.windows(2).find(|two| two[0].name() == two[1].name()) {
            return Err(Error::usage(format!("{} is looked for twice; name it once", twice[0].name())));
        }
        Ok(Self { training, held_out, warnings })
    }
}

/// Opens the training text of one corpus, and what is held out of it under a name; `None` if the held-out
/// text is of its own. Also returns the number of documents that `data.drop` lists and the corpus lacks.
fn sides(name: &str, spec: &Spec, warnings: &mut Vec<String>) -> Result<(Texts, Option<Texts>, usize)> {
    let Corpus::Files(files) = Corpus::find(spec)? else {
        return Err(Error::usage(format!(
            "data.corpus = \"{}\" is generated, and its held-out text differs by construction; xrun data check is \
             for text of your own",
            spec.corpus
        )));
    };
    let CorpusFiles::Text(text) = files else { return Err(tokens(&spec.corpus.to_string())) };
    let documents = Arc::new(Documents::open(&text, spec)?);
    warnings.extend(documents.warnings()?);
    let all = Texts::all("the training text", Arc::clone(&documents));
    let (mut training, held_out) = match spec.fraction()? {
        None => (all, held_out_split(name, spec)?),
        Some(fraction) => {
            let (training, held_out) = divided(all, fraction, spec, warnings)?;
            (training, Some(Texts { name: name.to_owned(), ..held_out }))
        }
    };
    let mut absent_drops = 0;
    if let Some(path) = &spec.drop {
        (training.which, absent_drops) = DropList::read(path)?.kept(&documents, training.which)?;
    }
    Ok((training, held_out, absent_drops))
}

fn tokens(path: &str) -> Error {
    Error::usage(format!(
        "{path} holds token ids, and leaks are looked for in text: name the text that the shards were made from"
    ))
}

/// Opens the split of a corpus that is held out of it; `None` if the held-out text lies elsewhere.
fn held_out_split(name: &str, spec: &Spec) -> Result<Option<Texts>> {
    match (&spec.validation, spec.held_out()) {
        (Validation::Fraction(_), Some(location)) => whole(name, &location, spec).map(Some),
        _ => Ok(None),
    }
}

/// Opens all documents of a corpus.
fn whole(name: &str, location: &CorpusLocation, spec: &Spec) -> Result<Texts> {
    match CorpusFiles::at(location, &spec.extensions)? {
        CorpusFiles::Text(text) => Ok(Texts::all(name, Arc::new(Documents::open(&text, spec)?))),
        CorpusFiles::Tokens(_) => Err(tokens(&location.to_string())),
    }
}

/// Divides a corpus as a run does: whole documents, or the end of a single one.
fn divided(all: Texts, fraction: f64, spec: &Spec, warnings: &mut Vec<String>) -> Result<(Texts, Texts)> {
    let part_of =
        |which, part| Texts { name: MAIN.to_owned(), documents: Arc::clone(&all.documents), which, part };
    if all.documents.len() > 1 {
        let (train, held) = split::documents(&all.documents, fraction, spec.seed)?;
        let held = part_of(held, 0..u64::MAX);
        return Ok((Texts { which: train, ..all }, held));
    }
    let mut length = 0;
    all.read(0, &mut |text| length += text.len() as u64)?;
    let cut = length - (length as f64 * fraction) as u64;
    warnings.push(format!(
        "the corpus is one document: its last {} of {length} bytes are taken as held out. A run divides it by tokens, \
         so its cut is a little before or after this one",
        length - cut
    ));
    let held = part_of(vec![0], cut..u64::MAX);
    Ok((Texts { part: 0..cut, ..all }, held))
}
