//! Asks a question: finds its family, settles its seeds and its share of the error, and writes it to the
//! ledger before its first run, so that every later question knows of it.

use super::family::{Family, answer_in_words, confidence_after};
use super::fresh::{SeedsBefore, settle};
use super::question::{Question, confidence_per_measure};
use super::setting::StoredExperiment;
use crate::error::{Error, Result};
use crate::results::experiment::{Design, Experiment, Standing};
use crate::results::ledger::{AskedArm, Ledger, Place, QuestionLine};
use crate::results::names::time_in_name;
use crate::statistics::SequentialDesign;
use std::collections::BTreeSet;
use std::path::Path;

/// How far the clock may be behind a line of the ledger, in seconds: clocks of machines that share a folder
/// differ.
const CLOCK_TOLERANCE_S: i64 = 600;

/// A question that is about to be asked.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The question, with its seeds and its share of the error.
    pub question: Question,
    /// Its arms.
    pub arms: Vec<AskedArm>,
    /// Its hash.
    pub hash: String,
    /// The earlier questions of its family.
    pub family: Family,
    /// How many of them had been answered.
    earlier: usize,
    /// How many runs of the arms no line of the ledger names.
    unnamed: usize,
    /// Why its answer is exploratory whatever becomes of its runs.
    pub reasons: Vec<String>,
    /// Where the same question was first asked; `None` if it is new.
    since: Option<Place>,
}

impl Asking {
    /// Prepares a question whose runs are to be made.
    ///
    /// # Errors
    /// If the ledger or the runs in the results folder cannot be read, or no seeds are left.
    pub fn new(question: &Question, results: &Path, stored: &[StoredExperiment]) -> Result<Self> {
        let ledger = Ledger::read(results)?;
        let arms = question.asked_arms()?;
        let family = Family::find(&arms, &ledger, stored);
        if let Design::Trials { .. } = question.design {
            return Self::with(question.clone(), arms, family, Vec::new(), &ledger, stored);
        }
        let before = SeedsBefore::find(results, &arms, &ledger)?;
        let (question, reasons) = settle(question, &arms, &family, &before)?;
        let asking = Self::with(question, arms, family, reasons, &ledger, stored)?;
        Ok(Self { unnamed: before.unnamed, ..asking })
    }

    /// Prepares a question about stored runs. `arms` are those that made them, if that is known.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn about_stored(
        question: &Question,
        arms: Vec<AskedArm>,
        results: &Path,
        stored: &[StoredExperiment],
    ) -> Result<Self> {
        let ledger = Ledger::read(results)?;
        let family = Family::find(&arms, &ledger, stored);
        let reasons = match family.first_asked(&question.hash(&arms)) {
            Some(first) => first.line.reasons.clone(),
            None => vec!["the question was asked after its runs had been made".to_owned()],
        };
        Self::with(question.clone(), arms, family, reasons, &ledger, stored)
    }

    fn with(
        mut question: Question,
        arms: Vec<AskedArm>,
        family: Family,
        mut reasons: Vec<String>,
        ledger: &Ledger,
        stored: &[StoredExperiment],
    ) -> Result<Self> {
        let hash = question.hash(&arms);
        let since = family.first_asked(&hash).and_then(|first| first.place.clone());
        if since.is_none() {
            reasons.extend(lost_lines(ledger, stored));
            reasons.extend(clock_behind(ledger));
        }
        let has_trials = matches!(question.design, Design::Trials { .. });
        let earlier = if has_trials { family.answered() } else { family.answered_before(&hash) };
        if !has_trials {
            question.confidence = confidence_after(question.confidence, earlier);
            let measures = question.findings.iter().map(|asked| &asked.measure);
            let each = confidence_per_measure(question.confidence, measures);
            question.findings.iter_mut().for_each(|asked| asked.confidence = each);
            if let Design::Sequential { max_pairs, .. } = question.design
                && SequentialDesign::new(max_pairs, each).is_none()
            {
                return Err(Error::usage(format!(
                    "so many questions of this family were answered that each measure is judged at {each}, for which \
                     there is no sequential design; leave out --sequential"
                )));
            }
        }
        Ok(Self { question, arms, hash, family, earlier, unnamed: 0, reasons, since })
    }

    /// Says, after the seeds that were chosen for the question, why it has these.
    pub fn why_these_seeds(&self) -> &'static str {
        match (self.since.is_some(), self.reasons.is_empty()) {
            (true, _) => ", with which the same question was asked before",
            (false, true) => ": no earlier run or comparison of the arms has used them",
            (false, false) => {
                ", as an earlier question about these arms and measures, so the answer is exploratory; --confirm asks \
                 with fresh ones"
            }
        }
    }

    /// Completes the record of the question before anything has run.
    pub fn describe(&self, experiment: &mut Experiment) {
        experiment.question = Some(self.hash.clone());
        experiment.earlier_questions = self.earlier;
        experiment.unnamed_runs = self.unnamed;
        experiment.other_recipes = self.family.answered_of_other_recipes(&self.hash);
        experiment.history = self.family.history(&experiment.full_name(), &self.question.seeds);
        if !self.reasons.is_empty() {
            experiment.standing = Some(Standing::from_reasons(self.reasons.clone()));
        }
    }

    /// Writes to the ledger that the question is asked, and returns where it counts as asked: at the first
    /// time.
    ///
    /// # Errors
    /// If the line cannot be written.
    pub fn ask(&self, results: &Path, experiment: &Experiment) -> Result<Place> {
        let mut ledger = Ledger::open(results)?;
        ledger.ask(self.line(experiment, None))?;
        let own = ledger.questions().last().map(|(place, _)| place.clone());
        let place = self.since.clone().or(own);
        place.ok_or_else(|| Error::failed("the ledger lost the question that was just written"))
    }

    /// Decides what the answer may claim: whether each run began after the question was asked.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    pub fn standing(&self, since: &Place, results: &Path, experiment: &Experiment) -> Result<Standing> {
        let ledger = Ledger::read(results)?;
        let mut reasons = self.reasons.clone();
        let runs = experiment.run_names();
        let older = runs.iter().filter(|run| ledger.began(run).is_none_or(|began| began < since)).count();
        if older > 0 {
            reasons.push(format!("{older} of {} runs are older than the question", runs.len()));
        }
        // Lines that were copied from another ledger may have any number.
        let asked = ledger.questions().iter().filter(|(_, line)| line.question == self.hash);
        let askers: BTreeSet<&str> = asked.map(|((_, writer), _)| process(writer)).collect();
        let is_foreign = |run: &&&str| {
            ledger.began(run).is_some_and(|began| began >= since && !askers.contains(process(&began.1)))
        };
        let foreign = runs.iter().filter(is_foreign).count();
        if foreign > 0 {
            reasons.push(format!("{foreign} of {} runs were made by others than who asked", runs.len()));
        }
        let start = |run: &str| run.rsplit('/').next().and_then(time_in_name);
        let late = |run: &&str| {
            start(run)
                .is_some_and(|start| start.duration_since(crate::format::now()).as_secs() > CLOCK_TOLERANCE_S)
        };
        reasons.extend(
            runs.iter()
                .copied()
                .find(late)
                .map(|run| format!("the clock was set back: {run} began after the question, by its name")),
        );
        Ok(Standing::from_reasons(reasons))
    }

    /// Writes the answer to the ledger.
    ///
    /// # Errors
    /// If the line cannot be written.
    pub fn answer(&self, results: &Path, experiment: &Experiment) -> Result<()> {
        Ledger::open(results)?.ask(self.line(experiment, Some(answer_in_words(experiment))))
    }

    fn line(&self, experiment: &Experiment, answer: Option<String>) -> QuestionLine {
        QuestionLine {
            comparison: experiment.full_name(),
            question: self.hash.clone(),
            arms: self.arms.clone(),
            measures: self.question.measures(),
            seeds: self.question.seeds.clone(),
            reasons: self.reasons.clone(),
            answer,
            at: crate::format::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }
    }
}

/// Returns the process that wrote a file of the ledger, which may write several.
fn process(writer: &str) -> &str {
    writer.rsplit_once('-').map_or(writer, |(process, _)| process)
}

/// Returns the reason if the ledger misses a line that a stored comparison had seen: what was asked is not
/// known.
fn lost_lines(ledger: &Ledger, stored: &[StoredExperiment]) -> Option<String> {
    stored.iter().find_map(|one| {
        let heads = one.experiment.provenance.ledger_heads.as_ref()?;
        let file = ledger.lost(heads)?;
        Some(format!("the ledger has lost lines of {file} that {} had seen", one.experiment.full_name()))
    })
}

/// Returns the reason if the clock is behind the ledger: what came first is then not what the times say.
fn clock_behind(ledger: &Ledger) -> Option<String> {
    let asked = ledger.questions().iter().map(|(_, line)| line.at.as_str());
    let newest = ledger.lines().iter().map(|line| line.at.as_str()).chain(asked).max()?;
    let behind = newest.parse::<jiff::Timestamp>().ok()?.duration_since(crate::format::now()).as_secs();
    (behind > CLOCK_TOLERANCE_S)
        .then(|| format!("the clock was set back: the ledger's newest line was written at {newest}"))
}
