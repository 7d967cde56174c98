//! The question of a comparison of quality: arms, measures, seeds, design and prediction, checked before
//! anything runs.

use super::comparable;
use super::seeds::{Seeds, fixed_seeds};
use crate::compare::arms::{Arms, PlannedArm, Program, changes_between};
use crate::error::{Error, Result};
use crate::recipe::{Change, Predicted, Prediction, Recipe};
use crate::results::folder::folder_name;
use crate::results::measure::{self, Measure};
use crate::results::quality::Design;
use crate::statistics::{FIRST_LOOK, SequentialDesign, bonferroni};
use std::path::PathBuf;

/// What is asked for on the command line; unset means what the recipe's `[compare]` says.
#[derive(Clone, Debug, Default)]
pub struct QualityOptions {
    /// Measures, separated by commas.
    pub on: Option<String>,
    /// A number of seeds, or seeds separated by commas.
    pub seeds: Option<String>,
    /// Probability that the intervals hold together.
    pub confidence: Option<f64>,
    /// A number, or `MEASURE=NUMBER` separated by commas.
    pub min_effect: Option<String>,
    /// True for looks after each pair.
    pub sequential: bool,
    /// Reason why the change should matter.
    pub hypothesis: Option<String>,
    /// The expected result.
    pub predicts: Option<Prediction>,
    /// Name of the comparison.
    pub name: Option<String>,
}

/// A measure with the smallest difference that matters.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedMeasure {
    /// The measure.
    pub measure: Measure,
    /// Smaller differences do not matter; `None` where ranks are compared.
    pub min_effect: Option<f64>,
}

/// An arm as its runs are started.
#[derive(Clone, Debug)]
pub struct QualityArmRequest {
    /// Label in tables.
    pub label: String,
    /// The recipe with its changed keys, as shown to people.
    pub command: String,
    /// The recipe: a file, or the name of a built-in one.
    pub path: PathBuf,
    /// Settings of its runs, without the seed.
    pub settings: Vec<String>,
    /// The recipe with these settings.
    pub recipe: Recipe,
}

/// A checked question.
#[derive(Clone, Debug)]
pub struct Question {
    /// Name of the comparison.
    pub name: String,
    /// The arm that is compared with.
    pub baseline: QualityArmRequest,
    /// The changed arm.
    pub candidate: QualityArmRequest,
    /// Keys that differ between them.
    pub changes: Vec<Change>,
    /// What is judged.
    pub measures: Vec<AskedMeasure>,
    /// The `training.seed` of both recipes: a candidate with another one keeps its distance in every pair.
    pub base_seeds: [u64; 2],
    /// The seeds of each pair, baseline's first.
    pub seeds: Vec<[u64; 2]>,
    /// The number of pairs.
    pub design: Design,
    /// Probability that the intervals hold together.
    pub confidence: f64,
    /// Reason why the change should matter.
    pub hypothesis: Option<String>,
    /// The expected result.
    pub predicts: Option<Prediction>,
    /// The comparison, as `NAME/ID`, that is repeated with fresh seeds.
    pub confirms: Option<String>,
    /// Remarks for the record.
    pub notes: Vec<String>,
}

impl Question {
    /// Checks a question.
    ///
    /// # Errors
    /// A usage error for arms that are no recipes or the same one, for a wrong measure, number of seeds or
    /// prediction, and for measures that the arms take of different text.
    pub fn new(arms: Arms, options: &QualityOptions) -> Result<Self> {
        let Arms { baseline, candidate, changes } = arms;
        let arms = [arm(baseline)?, arm(candidate)?];
        let base_seeds = arms.each_ref().map(|arm| arm.recipe.values().training.seed);
        let from_recipe = arms[0].recipe.values().compare.seeds.to_string();
        let asked = options.seeds.clone().unwrap_or(from_recipe);
        let seeds = Seeds::parse(&asked)?.pairs(base_seeds)?;
        Self::asked(arms, changes, seeds, options)?.checked()
    }

    /// Checks a question of stored runs with these seeds. It has no prediction, since what is predicted after
    /// the runs is known.
    ///
    /// # Errors
    /// As [`new`](Self::new); for a measure of the clock.
    pub(super) fn of_stored_runs(
        arms: [QualityArmRequest; 2],
        seeds: Vec<[u64; 2]>,
        options: &QualityOptions,
    ) -> Result<Self> {
        let mut changes = changes_between(&arms[0].recipe, &arms[1].recipe);
        // Which GPU was free.
        changes.retain(|change| change.key != "engine.devices");
        let question = Self::asked(arms, changes, seeds, options)?;
        if let Some(timed) = question.measures.iter().find(|asked| asked.measure.is_timed()) {
            return Err(Error::usage(format!(
                "{}: a measure of the clock is taken of runs in turns, and stored ones were not; leave it out, \
                 or compare their speed with --runs alone",
                timed.measure
            )));
        }
        Self { predicts: None, hypothesis: options.hypothesis.clone(), ..question }.checked()
    }

    /// Returns a question of a fixed or sequential number of pairs, of which measures and prediction are
    /// checked.
    fn asked(
        arms: [QualityArmRequest; 2],
        changes: Vec<Change>,
        seeds: Vec<[u64; 2]>,
        options: &QualityOptions,
    ) -> Result<Self> {
        let [baseline, candidate] = arms;
        let from_recipe = baseline.recipe.values().compare.clone();
        let wrong = |key: &'static str, given: bool, why: String| match given {
            true => Error::usage(why),
            false => baseline.recipe.error(&[key], why, "correct it, or name it on the command line"),
        };
        let on = options.on.clone().or(from_recipe.on).ok_or_else(|| {
            Error::usage("--on names what is judged, such as --on val_loss or --on tok_s,val_loss")
        })?;
        let measures =
            measure::parse_list(&on).map_err(|why| wrong("compare.on", options.on.is_some(), why))?;
        let speed_effect = from_recipe.min_effect;
        let measures = with_min_effects(measures, options.min_effect.as_deref(), speed_effect)?;
        let confidence = options.confidence.unwrap_or(from_recipe.confidence);
        let base_seeds = [&baseline, &candidate].map(|arm| arm.recipe.values().training.seed);
        let predicts = options.predicts.clone().or(from_recipe.predicts);
        check_prediction(predicts.as_ref(), &measures)?;
        let name = folder_name(options.name.as_deref().unwrap_or(baseline.recipe.name()))?;
        let hypothesis =
            options.hypothesis.clone().or(Some(from_recipe.hypothesis)).filter(|text| !text.is_empty());
        let design = match options.sequential {
            true => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
            false => Design::Fixed { pairs: seeds.len() },
        };
        Ok(Self {
            name,
            baseline,
            candidate,
            changes,
            measures,
            base_seeds,
            seeds,
            design,
            confidence,
            hypothesis,
            predicts,
            confirms: None,
            notes: Vec::new(),
        })
    }

    /// Returns the hashes of both recipes without their seeds, which identify the change.
    ///
    /// # Errors
    /// If a hash cannot be made.
    pub fn change(&self) -> Result<[String; 2]> {
        let without_seed = ["training.seed=0".to_owned()];
        Ok([self.baseline.recipe.hash_with(&without_seed)?, self.candidate.recipe.hash_with(&without_seed)?])
    }

    /// Returns the confidence of each measure: Bonferroni's share, and all of it where a speed and other
    /// measures are one question.
    pub fn confidence_of_each(&self) -> f64 {
        confidence_of_each(self.confidence, self.measures.iter().map(|asked| &asked.measure))
    }

    /// Returns true if runs take turns, because a measure is of the clock.
    pub fn is_timed(&self) -> bool {
        self.measures.iter().any(|asked| asked.measure.is_timed())
    }

    /// Checks that arms and measures make a question, and adds remarks.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn checked(mut self) -> Result<Self> {
        for asked in &self.measures {
            comparable::check(
                [&self.baseline.recipe, &self.candidate.recipe],
                &self.changes,
                &asked.measure,
            )?;
        }
        let [baseline, candidate] = self.change()?;
        if baseline == candidate && self.base_seeds[0] == self.base_seeds[1] {
            return Err(Error::usage(
                "both arms are the same recipe, and give the same bits; to see how much chance alone does, give \
                 the candidate other seeds, as in training.seed=1000",
            ));
        }
        for arm in [&self.baseline, &self.candidate] {
            self.notes.extend(fixed_seeds(&arm.label, &arm.recipe)?);
        }
        if let Design::Sequential { max_pairs, .. } = self.design {
            if SequentialDesign::new(max_pairs, self.confidence_of_each()).is_none() {
                return Err(Error::usage(format!(
                    "--sequential has from {FIRST_LOOK} to 2000 pairs at most, at a confidence of 0.8 at least"
                )));
            }
            if let Some(ranked) = self.measures.iter().find(|asked| asked.min_effect.is_none()) {
                return Err(Error::usage(format!(
                    "{} is compared by ranks, which have no sequential design; leave out --sequential",
                    ranked.measure
                )));
            }
        }
        Ok(self)
    }
}

/// Returns the confidence of each of these measures: Bonferroni's share, and all of it where a speed and
/// other measures are one question.
pub fn confidence_of_each<'a>(confidence: f64, measures: impl Iterator<Item = &'a Measure>) -> f64 {
    let measures: Vec<&Measure> = measures.collect();
    if is_joint(&measures) { confidence } else { bonferroni(confidence, measures.len()) }
}

/// Returns true if the measures are one question: faster, and no worse?
pub fn is_joint(measures: &[&Measure]) -> bool {
    let speeds = measures.iter().filter(|measure| measure.is_speed()).count();
    speeds > 0 && measures.len() > speeds
}

/// Returns an arm of runs of this binary.
fn arm(planned: PlannedArm) -> Result<QualityArmRequest> {
    let PlannedArm { label, command, program, recipe, .. } = planned;
    let (Program::Xrun { arguments, .. }, Some(recipe)) = (program, recipe) else {
        return Err(Error::usage("--on compares two recipes, which this binary runs"));
    };
    let mut arguments = arguments.into_iter();
    let path = PathBuf::from(arguments.next().unwrap_or_default());
    let settings = arguments.filter(|setting| !sets_seed(setting)).collect();
    Ok(QualityArmRequest { label, command, path, settings, recipe })
}

fn sets_seed(setting: &str) -> bool {
    setting.split('=').next().is_some_and(|key| key.trim().trim_start_matches("--") == "training.seed")
}

/// Gives measures their smallest differences: `text` is one number for all, or `MEASURE=NUMBER,…`.
fn with_min_effects(
    measures: Vec<Measure>,
    text: Option<&str>,
    speed_effect: f64,
) -> Result<Vec<AskedMeasure>> {
    let mut asked: Vec<AskedMeasure> = measures
        .into_iter()
        .map(|measure| {
            let from_recipe = measure.is_speed().then_some(speed_effect);
            let min_effect = from_recipe.or_else(|| measure.default_min_effect());
            AskedMeasure { measure, min_effect }
        })
        .collect();
    let Some(text) = text else { return Ok(asked) };
    let number = |text: &str| {
        let number = text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        number.ok_or_else(|| {
            Error::usage(format!("--min-effect: `{text}` is no number from 0 on, such as 0.01"))
        })
    };
    let known = |asked: &[AskedMeasure]| {
        asked.iter().map(|one| one.measure.to_string()).collect::<Vec<_>>().join(", ")
    };
    if text.parse::<f64>().is_ok() {
        let value = number(text)?;
        let units: Vec<&str> =
            asked.iter().filter(|one| one.min_effect.is_some()).map(|one| one.measure.unit()).collect();
        if units.windows(2).any(|two| two[0] != two[1]) {
            return Err(Error::usage(format!(
                "--min-effect {text}: the measures have the units {}; write MEASURE={text} for one of {}",
                units.join(" and "),
                known(&asked)
            )));
        }
        if units.is_empty() {
            return Err(Error::usage(
                "--min-effect: ranks, which compare what training takes, have no sizes",
            ));
        }
        for one in asked.iter_mut().filter(|one| one.min_effect.is_some()) {
            one.min_effect = Some(value);
        }
        return Ok(asked);
    }
    for part in text.split(',') {
        // A target stands behind an equals sign, too.
        let Some((name, value)) = part.rsplit_once('=') else {
            return Err(Error::usage(format!(
                "--min-effect: `{part}` is neither a number nor MEASURE=NUMBER, such as val_loss=0.01"
            )));
        };
        let measure: Measure = name.parse().map_err(|why| Error::usage(format!("--min-effect: {why}")))?;
        let all = known(&asked);
        let one = asked
            .iter_mut()
            .find(|one| one.measure == measure)
            .ok_or_else(|| Error::usage(format!("--min-effect: {measure} is not judged: --on has {all}")))?;
        if one.min_effect.is_none() {
            return Err(Error::usage(format!(
                "--min-effect: {measure} is compared by ranks, which have no sizes"
            )));
        }
        one.min_effect = Some(number(value)?);
    }
    Ok(asked)
}

/// Checks that a prediction is about what is judged.
fn check_prediction(prediction: Option<&Prediction>, measures: &[AskedMeasure]) -> Result<()> {
    let Some(prediction) = prediction else { return Ok(()) };
    let named = |name: &str| measures.iter().find(|asked| asked.measure.to_string() == name);
    let all: Vec<String> = measures.iter().map(|asked| asked.measure.to_string()).collect();
    let refs: Vec<&Measure> = measures.iter().map(|asked| &asked.measure).collect();
    let why = match &prediction.of {
        Predicted::Faster | Predicted::Slower => {
            "a comparison of quality ends as `better`, `worse` or `no difference`".to_owned()
        }
        Predicted::Better | Predicted::Worse | Predicted::NoDifference => {
            if measures.len() == 1 || is_joint(&refs) {
                return Ok(());
            }
            format!("several measures are judged: predict a range of one, such as `{} -0.05..-0.01`", all[0])
        }
        Predicted::Range { column: name, .. } | Predicted::Difference { measure: name, .. } => {
            match named(name) {
                None => format!("{name} is not judged: --on has {}", all.join(", ")),
                Some(asked) if asked.min_effect.is_none() => {
                    format!("{name} is compared by ranks, which have no sizes; predict `better` or `worse`")
                }
                Some(_) => return Ok(()),
            }
        }
    };
    Err(Error::usage(format!("the prediction `{prediction}` cannot be judged: {why}")))
}

#[cfg(test)]
mod tests;
