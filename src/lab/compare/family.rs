//! Families of questions: the same arms asked about again, in either order, near recipes, the same change of
//! another recipe, and other values of the same keys. The ledger remembers them, whatever becomes of a
//! comparison's folder.

use super::arms::PlannedArm;
use super::question::Question;
use super::setting::StoredExperiment;
use crate::error::{Error, Result};
use crate::recipe::{Class, Recipe, StoredKeys, find_path};
use crate::results::experiment::{Arm, Design, EarlierExperiment, Experiment, Finding, NO_VERDICT};
use crate::results::ledger::{AskedArm, Ledger, Place, QuestionLine};
use std::collections::{BTreeMap, BTreeSet};

/// The largest relative change of a number that leaves a recipe near: training 61 steps for 60 repeats a
/// question.
const NEAR: f64 = 0.1;

/// How an answer without a verdict ends.
const EXPLORATORY: &str = "exploratory";

/// The key that pairs vary.
const SEED: &str = "training.seed";

/// Seeds of parts of a run. Other values of them are other luck, not another recipe.
const SEEDS: &str = "seeds.";

/// A run tells the outcome of an arm if it has the values that the question asks about and differs in at most
/// this many other keys. Keys that hardly matter are many, so a recipe with one more of them is nearly the
/// same.
const FEW_KEYS: usize = 2;

/// Describes an arm by its keys. `hash` identifies it exactly.
pub fn asked_arm(recipe: &Recipe, hash: String) -> Result<AskedArm> {
    let keys = StoredKeys::parse(&recipe.to_toml()).map_err(Error::failed)?;
    Ok(AskedArm { hash, training: hashed_keys(&keys, true), execution: hashed_keys(&keys, false) })
}

/// Returns the keys of a stored recipe that have a value and change its losses: those of training, or those
/// of execution.
fn hashed_keys(keys: &StoredKeys, is_training: bool) -> BTreeMap<String, String> {
    let class = if is_training { Class::Training } else { Class::Execution };
    let matters = |path: &str| {
        path != SEED
            && find_path(path).is_some_and(|key| key.class == class && (is_training || !key.same_bits))
    };
    let set = keys.iter().filter_map(|(path, value)| Some((path, value?)));
    set.filter(|(path, _)| matters(path)).map(|(path, value)| (path.to_owned(), value.to_owned())).collect()
}

/// How much two arms, or two questions, have in common.
#[derive(Clone, Debug, PartialEq)]
enum Likeness {
    /// Everything that changes losses.
    Same,
    /// Everything but numbers that hardly differ; holds them in words.
    Near(String),
    Other,
}

/// Returns the keys whose values differ, with both values.
fn differing<'a>(
    a: &'a BTreeMap<String, String>,
    b: &'a BTreeMap<String, String>,
) -> BTreeMap<&'a str, [Option<&'a str>; 2]> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let value = |of: &'a BTreeMap<String, String>, key: &String| of.get(key).map(String::as_str);
    let both = keys.into_iter().map(|key| (key.as_str(), [value(a, key), value(b, key)]));
    both.filter(|(_, [a, b])| a != b).collect()
}

/// Compares the keys of two arms.
fn likeness_of_keys(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Likeness {
    let differ = differing(a, b);
    let is_near = |(key, [a, b]): (&&str, &[Option<&str>; 2])| {
        let number = |text: &Option<&str>| text.and_then(|text| text.replace('_', "").parse::<f64>().ok());
        let near = |(a, b): (f64, f64)| (a - b).abs() <= NEAR * a.abs().max(b.abs());
        key.starts_with(SEEDS) || number(a).zip(number(b)).is_some_and(near)
    };
    if !differ.iter().all(is_near) {
        return Likeness::Other;
    }
    match differ.iter().next() {
        None => Likeness::Same,
        Some(first) => Likeness::Near(in_words(first)),
    }
}

/// Returns a key with its new value, the second one, and its old one.
fn in_words((key, [old, new]): (&&str, &[Option<&str>; 2])) -> String {
    format!("{key} = {} for {}", new.unwrap_or("unset"), old.unwrap_or("unset"))
}

fn likeness(a: &AskedArm, b: &AskedArm) -> Likeness {
    match (a.hash == b.hash, a.execution == b.execution) {
        (true, _) => Likeness::Same,
        // Records of earlier versions have a hash and no keys.
        _ if a.training.is_empty() || b.training.is_empty() => Likeness::Other,
        (false, true) => likeness_of_keys(&a.training, &b.training),
        (false, false) => Likeness::Other,
    }
}

/// What a question has in common with an earlier one.
#[derive(Clone, Debug, PartialEq)]
struct Relation {
    words: String,
    /// True if both are of one family. The same change of another recipe is another question, and yet who
    /// asks it should know of the answer.
    shares_error: bool,
}

/// Returns what a question has in common with an earlier one; `None` if that is nothing.
fn relation(new: &[AskedArm], old: &[AskedArm]) -> Option<Relation> {
    let of_family = |words: String| Relation { words, shares_error: true };
    if let Some(words) = family_words(new, old) {
        return Some(of_family(words));
    }
    same_change(new, old)
}

/// Returns how two questions are of one family, in words; `None` if they are not.
fn family_words(new: &[AskedArm], old: &[AskedArm]) -> Option<String> {
    let ([a, b], [c, d]) = (new, old) else { return None };
    let same_order = [likeness(c, a), likeness(d, b)];
    let swapped = [likeness(d, a), likeness(c, b)];
    match (&same_order, &swapped) {
        ([Likeness::Same, Likeness::Same], _) => return Some("the same arms".to_owned()),
        (_, [Likeness::Same, Likeness::Same]) => return Some("the arms swapped".to_owned()),
        _ => {}
    }
    let near = |pair: &[Likeness; 2]| match pair {
        [Likeness::Near(words), Likeness::Same | Likeness::Near(_)]
        | [Likeness::Same, Likeness::Near(words)] => Some(words.clone()),
        _ => None,
    };
    if let Some(words) = near(&same_order) {
        return Some(words);
    }
    if let Some(words) = near(&swapped) {
        return Some(format!("the arms swapped, {words}"));
    }
    // Other values of the same keys, with one arm in common.
    let keys = |a: &AskedArm, b: &AskedArm| {
        let training = differing(&a.training, &b.training).into_keys().map(str::to_owned);
        let execution = differing(&a.execution, &b.execution).into_keys().map(str::to_owned);
        training.chain(execution).collect::<BTreeSet<String>>()
    };
    let (own, others) = (keys(a, b), keys(c, d));
    let shares_arm = same_order.iter().chain(&swapped).any(|likeness| *likeness != Likeness::Other);
    (shares_arm && own == others && !own.is_empty())
        .then(|| format!("other values of {}", own.into_iter().collect::<Vec<_>>().join(", ")))
}

/// Returns in which key the recipes of two questions about the same change differ; `None` if the changes are
/// not the same. On another device, or in another format, it is the same question with other roundings.
fn same_change(new: &[AskedArm], old: &[AskedArm]) -> Option<Relation> {
    let ([a, b], [c, d]) = (new, old) else { return None };
    type Changed = BTreeMap<String, [Option<String>; 2]>;
    let change = |a: &AskedArm, b: &AskedArm| -> Changed {
        let both = [differing(&a.training, &b.training), differing(&a.execution, &b.execution)];
        let owned = |values: [Option<&str>; 2]| values.map(|value| value.map(str::to_owned));
        both.into_iter().flatten().map(|(key, values)| (key.to_owned(), owned(values))).collect()
    };
    let asked = change(a, b);
    let orders = [(c, d, "the same change"), (d, c, "the same change with the arms swapped")];
    let found = orders.into_iter().find(|(c, d, _)| !asked.is_empty() && change(c, d) == asked);
    let (first, _, words) = found?;
    let [training, execution] =
        [differing(&first.training, &a.training), differing(&first.execution, &a.execution)];
    let key = training.iter().chain(&execution).next().map(in_words)?;
    Some(Relation { words: format!("{words}, {key}"), shares_error: training.is_empty() })
}

/// A question that was asked before.
#[derive(Clone, Debug)]
pub struct EarlierQuestion {
    /// The line that asked it; records of earlier versions have none, and their line is made from the record.
    pub line: QuestionLine,
    /// Where that line stands; `None` for such a record.
    pub place: Option<Place>,
    /// How it ended; `None` while that is open.
    pub answer: Option<String>,
    /// What it has in common with the new question.
    pub relation: String,
    /// False if it is about the same change of another recipe, and so of another family.
    pub shares_error: bool,
}

/// The earlier questions of a question's family, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// All of them, also the same question asked before, and those about the same change of another recipe.
    pub earlier: Vec<EarlierQuestion>,
}

impl Family {
    /// Finds the earlier questions about these arms, in the ledger and among stored comparisons.
    pub fn find(arms: &[AskedArm], ledger: &Ledger, stored: &[StoredExperiment]) -> Self {
        let mut earlier: Vec<EarlierQuestion> = Vec::new();
        let known: BTreeSet<&str> =
            ledger.questions().iter().map(|(_, line)| line.comparison.as_str()).collect();
        let old =
            stored.iter().map(|one| &one.experiment).filter(|one| !known.contains(one.full_name().as_str()));
        for experiment in old {
            let Some(line) = line_of_record(experiment) else { continue };
            let Some(Relation { words, shares_error }) = relation(arms, &line.arms) else { continue };
            let answer = experiment.finished.then(|| answer_in_words(experiment));
            earlier.push(EarlierQuestion { line, place: None, answer, relation: words, shares_error });
        }
        // Every process that makes runs for a comparison asks its question.
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for (place, line) in ledger.questions().iter().filter(|(_, line)| line.answer.is_none()) {
            if !seen.insert(&line.comparison) {
                continue;
            }
            let Some(Relation { words, shares_error }) = relation(arms, &line.arms) else { continue };
            let answers = ledger.questions().iter().filter(|(_, other)| other.comparison == line.comparison);
            let answer = answers.filter_map(|(_, other)| other.answer.clone()).next_back();
            earlier.push(EarlierQuestion {
                line: line.clone(),
                place: Some(place.clone()),
                answer,
                relation: words,
                shares_error,
            });
        }
        Self { earlier }
    }

    /// Returns the first time that the same question was asked.
    pub fn first_asked(&self, question: &str) -> Option<&EarlierQuestion> {
        self.earlier.iter().find(|one| one.line.question == question && one.place.is_some())
    }

    /// Returns how many comparisons of the family had an answer. Trials are measured anew each time, so the
    /// same question counts.
    pub fn answered(&self) -> usize {
        self.earlier.iter().filter(|one| one.shares_error && one.has_verdict()).count()
    }

    /// Returns how many other questions of the family had been answered before this one was first asked.
    pub fn answered_before(&self, question: &str) -> usize {
        self.count_before(question, true)
    }

    /// Returns how many questions about the same change of other recipes had been answered before this one
    /// was first asked.
    pub fn answered_of_other_recipes(&self, question: &str) -> usize {
        self.count_before(question, false)
    }

    fn count_before(&self, question: &str, shares_error: bool) -> usize {
        let first = self.earlier.iter().position(|one| one.line.question == question && one.place.is_some());
        let before = &self.earlier[..first.unwrap_or(self.earlier.len())];
        let answered = before.iter().filter(|one| one.shares_error == shares_error && one.has_verdict());
        answered.map(|one| one.line.question.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// Summarizes the earlier questions for the record of a new one with these seeds, which is called `own`.
    pub fn history(&self, own: &str, seeds: &[[u64; 2]]) -> Vec<EarlierExperiment> {
        let others = self.earlier.iter().filter(|one| one.line.comparison != own);
        others.map(|one| one.summarize(seeds)).collect()
    }
}

impl EarlierQuestion {
    fn summarize(&self, seeds: &[[u64; 2]]) -> EarlierExperiment {
        let used: BTreeSet<u64> = self.line.seeds.iter().flatten().copied().collect();
        EarlierExperiment {
            comparison: self.line.comparison.clone(),
            pairs: self.line.seeds.len(),
            shared_seeds: seeds.iter().filter(|pair| pair.iter().any(|seed| used.contains(seed))).count(),
            ended: self.answer.clone().unwrap_or_else(|| "did not finish".to_owned()),
            relation: Some(self.relation.clone()),
        }
    }

    /// Returns true if it was answered by a verdict: an exploratory answer has none.
    pub fn has_verdict(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.contains(EXPLORATORY))
    }

    /// Returns true if it is about exactly these arms, in either order, and judges one of these measures.
    pub fn asks_about(&self, arms: &[AskedArm], measures: &[String]) -> bool {
        let hashes = |arms: &[AskedArm]| arms.iter().map(|arm| arm.hash.clone()).collect::<BTreeSet<_>>();
        hashes(arms) == hashes(&self.line.arms) && self.line.measures.iter().any(|one| measures.contains(one))
    }
}

/// Makes the line that a record of an earlier version did not write; `None` for trials.
fn line_of_record(experiment: &Experiment) -> Option<QuestionLine> {
    let arms = experiment.change()?;
    let arm = |hash: &str| AskedArm { hash: hash.to_owned(), ..AskedArm::default() };
    let pairs = experiment.pairs().map(|pair| pair.seeds().map(Option::unwrap_or_default));
    Some(QuestionLine {
        comparison: experiment.full_name(),
        question: experiment.full_name(),
        arms: arms.map(arm).to_vec(),
        measures: experiment.findings.iter().map(|finding| finding.measure.to_string()).collect(),
        seeds: pairs.collect(),
        reasons: Vec::new(),
        answer: None,
        at: String::new(),
    })
}

/// Returns how an experiment ended, as `val_loss: better`.
pub fn answer_in_words(experiment: &Experiment) -> String {
    let is_exploratory = !experiment.exploratory_reasons().is_empty();
    let words = |finding: &Finding| match is_exploratory {
        true => EXPLORATORY,
        false if finding.withheld.is_some() => NO_VERDICT,
        false if experiment.has_trials() => finding.verdict.speed_words(),
        false => finding.verdict.words(),
    };
    let findings = experiment.findings.iter();
    findings.map(|finding| format!("{}: {}", finding.measure, words(finding))).collect::<Vec<_>>().join(", ")
}

impl Question {
    /// Describes both arms by their keys.
    ///
    /// # Errors
    /// If a hash cannot be computed.
    pub fn asked_arms(&self) -> Result<Vec<AskedArm>> {
        let seedless = if self.seeds.is_empty() { None } else { Some(self.change()?) };
        let arm = |(at, arm): (usize, &PlannedArm)| {
            let hash = match (&seedless, &arm.recipe) {
                (Some(hashes), _) => hashes[at].clone(),
                // Trials may be of two programs, or of commands.
                (None, recipe) => {
                    let recipe = recipe.as_ref().map_or_else(|| arm.command.clone(), Recipe::hash);
                    format!("{recipe} {}", arm.binary.as_deref().unwrap_or_default())
                }
            };
            match &arm.recipe {
                Some(recipe) => asked_arm(recipe, hash),
                None => Ok(AskedArm { hash, ..AskedArm::default() }),
            }
        };
        self.arms.both().into_iter().enumerate().map(arm).collect()
    }

    /// Returns the measures in words.
    pub fn measures(&self) -> Vec<String> {
        self.findings.iter().map(|asked| asked.measure.to_string()).collect()
    }

    /// Returns the hash of everything that makes the question. `confidence` is the one that was asked for,
    /// before earlier questions of the family took their share.
    pub fn hash(&self, arms: &[AskedArm]) -> String {
        let arms: Vec<&str> = arms.iter().map(|arm| arm.hash.as_str()).collect();
        let prediction = self.predicts.as_ref().map(|prediction| prediction.text.as_str());
        hash(
            &arms,
            &self.findings,
            self.confidence,
            &self.design,
            &self.seeds,
            [prediction, self.confirms.as_deref()],
        )
    }
}

fn hash(
    arms: &[&str],
    findings: &[Finding],
    confidence: f64,
    design: &Design,
    seeds: &[[u64; 2]],
    prediction_and_confirmed: [Option<&str>; 2],
) -> String {
    let effects: Vec<String> =
        findings.iter().map(|asked| format!("{} {:?}", asked.measure, asked.min_effect)).collect();
    let kind = match design {
        Design::Trials { .. } => "trials",
        Design::Pairs { .. } => "pairs",
        Design::Sequential { .. } => "sequential",
    };
    let all = format!(
        "{arms:?} {effects:?} {confidence:.9} {kind} {} {seeds:?} {prediction_and_confirmed:?}",
        design.max_pairs()
    );
    blake3::hash(all.as_bytes()).to_hex().to_string()
}

/// Returns the hash of a record's question, as [`Question::hash`] had it; `None` if an arm has no hash.
pub fn question_hash(experiment: &Experiment) -> Option<String> {
    let arm = |arm: &Arm| match experiment.has_trials() {
        false => arm.seedless_hash.clone(),
        true => {
            let recipe = arm.recipe_hash.as_ref().unwrap_or(&arm.command);
            Some(format!("{recipe} {}", arm.binary.as_deref().unwrap_or_default()))
        }
    };
    let arms = [arm(experiment.baseline())?, arm(experiment.candidate())?];
    let confidence = match experiment.has_trials() {
        true => experiment.confidence,
        false => 1.0 - (1.0 - experiment.confidence) / share(experiment.earlier_questions),
    };
    let seeds: Vec<[u64; 2]> = match experiment.has_trials() {
        true => Vec::new(),
        false => experiment.pairs().map(|pair| pair.seeds().map(Option::unwrap_or_default)).collect(),
    };
    let prediction = experiment.prediction.as_ref().map(|prediction| prediction.text.as_str());
    let arms = arms.each_ref().map(String::as_str);
    let asked = [prediction, experiment.confirms.as_deref()];
    Some(hash(&arms, &experiment.findings, confidence, &experiment.design, &seeds, asked))
}

/// Returns the share of the error `1 - confidence` that a question has if `earlier` questions of its family
/// were answered before it. The first has all of it. All later ones together have as much once more: 1/2,
/// 1/6, 1/12, …, which sum to 1.
pub fn confidence_after(confidence: f64, earlier: usize) -> f64 {
    1.0 - (1.0 - confidence) * share(earlier)
}

fn share(earlier: usize) -> f64 {
    if earlier == 0 { 1.0 } else { 1.0 / (earlier * (earlier + 1)) as f64 }
}

/// Returns true if a stored run tells the outcome of one of these arms, `at`: its recipe is that of the arm,
/// or nearly, or it has the arm's values of the keys that the arms differ in and few others differ.
pub fn is_run_of(arms: &[AskedArm], at: usize, run: &StoredKeys) -> bool {
    let [arm, other] = [&arms[at], &arms[1 - at]];
    let run = hashed_keys(run, true);
    let differ = differing(&arm.training, &run);
    let asked = differing(&arm.training, &other.training);
    let has_values = !asked.is_empty() && differ.keys().all(|key| !asked.contains_key(key));
    likeness_of_keys(&arm.training, &run) != Likeness::Other || has_values && differ.len() <= FEW_KEYS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(keys: &[(&str, &str)]) -> AskedArm {
        let training: BTreeMap<String, String> =
            keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        AskedArm { hash: format!("{training:?}"), training, execution: BTreeMap::new() }
    }

    #[test]
    fn every_way_to_ask_again_is_of_the_family() {
        let base = [("training.steps", "60"), ("optimizer.lr", "0.003")];
        let with = |key: &str, value: &str| {
            let keys: Vec<(&str, &str)> =
                base.iter().map(|(k, v)| (*k, if *k == key { value } else { *v })).collect();
            arm(&keys)
        };
        let old = [arm(&base), with("optimizer.lr", "0.01")];
        let longer = [("training.steps", "61"), ("optimizer.lr", "0.003")];
        let longer_candidate = [("training.steps", "61"), ("optimizer.lr", "0.01")];
        for (new, words) in [
            ([old[0].clone(), old[1].clone()], Some("the same arms")),
            ([old[1].clone(), old[0].clone()], Some("the arms swapped")),
            ([arm(&longer), arm(&longer_candidate)], Some("training.steps = 61 for 60")),
            ([arm(&longer_candidate), arm(&longer)], Some("the arms swapped, training.steps = 61 for 60")),
            ([old[0].clone(), with("optimizer.lr", "0.02")], Some("other values of optimizer.lr")),
            ([with("optimizer.lr", "0.02"), old[0].clone()], Some("other values of optimizer.lr")),
            ([old[0].clone(), with("optimizer.lr", "0.0101")], Some("optimizer.lr = 0.0101 for 0.01")),
            ([old[0].clone(), with("training.steps", "600")], None),
            ([with("training.steps", "600"), with("training.steps", "900")], None),
        ] {
            let found = relation(&new, &old);
            assert!(found.iter().all(|one| one.shares_error));
            assert_eq!(found.as_ref().map(|one| one.words.as_str()), words, "{new:?}");
        }
        // A key set in both arms, of any value: other seeds of a part, what hardly matters, and what does.
        for (key, value, is_execution, words) in [
            ("seeds.order", "7", false, "seeds.order = 7 for unset"),
            ("optimizer.eps", "2e-8", false, "the same change, optimizer.eps = 2e-8 for unset"),
            ("training.steps", "600", false, "the same change, training.steps = 600 for 60"),
            ("data.corpus", "\"b\"", false, "the same change, data.corpus = \"b\" for unset"),
            ("engine.device", "\"auto\"", true, "the same change, engine.device = \"auto\" for unset"),
        ] {
            let set = |arm: &AskedArm| {
                let mut arm = arm.clone();
                let keys = if is_execution { &mut arm.execution } else { &mut arm.training };
                keys.insert(key.to_owned(), value.to_owned());
                arm.hash += key;
                arm
            };
            let new = [set(&old[0]), set(&old[1])];
            let found = relation(&new, &old).unwrap();
            let shares_error = is_execution || key == "seeds.order";
            assert_eq!((found.words.as_str(), found.shares_error), (words, shares_error));
            let swapped = relation(&[new[1].clone(), new[0].clone()], &old).unwrap();
            assert!(
                swapped.words.contains("the arms swapped, ") && swapped.words.contains(key),
                "{swapped:?}"
            );
            assert_eq!(swapped.shares_error, found.shares_error);
        }
    }

    /// A run of another recipe tells the outcome of an arm if it has the value that is asked about, and few
    /// other keys differ.
    #[test]
    fn runs_of_nearly_the_same_recipe_tell_the_outcome() {
        let base = [("training.steps", "60"), ("optimizer.lr", "0.003")];
        let arms = [arm(&base), arm(&[base[0], ("optimizer.lr", "0.01")])];
        for (recipe, tells) in [
            ("[training]\nsteps = 60\n[optimizer]\nlr = 0.003\n", [true, false]),
            ("[training]\nsteps = 61\nseed = 4\n[optimizer]\nlr = 0.01\n", [false, true]),
            ("[training]\nsteps = 60\n[optimizer]\nlr = 0.01\neps = 2e-8\n", [false, true]),
            ("[training]\nsteps = 90\n[optimizer]\nlr = 0.003\neps = 2e-8\n", [true, false]),
            ("[training]\nsteps = 90\n[optimizer]\nlr = 0.003\neps = 2e-8\nweight_decay = 0.5\n", [false; 2]),
            ("[training]\nsteps = 60\n[optimizer]\nlr = 0.02\n", [false; 2]),
        ] {
            let run = StoredKeys::parse(recipe).unwrap();
            assert_eq!([0, 1].map(|at| is_run_of(&arms, at, &run)), tells, "{recipe}");
        }
    }

    #[test]
    fn later_questions_of_a_family_share_one_error() {
        assert_eq!(confidence_after(0.95, 0), 0.95);
        let spent: f64 = (1..10_000).map(|earlier| 1.0 - confidence_after(0.95, earlier)).sum();
        assert!(spent < 0.05 && spent > 0.0499, "{spent}");
    }
}
