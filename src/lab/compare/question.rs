//! What a comparison asks: arms, design, measures and prediction. Everything is checked before anything runs.

use super::arms::{Arms, PlannedArm, Program};
use super::comparable;
use super::judge::curves::ExpectedCurve;
use super::judge::is_joint;
use super::seeds::{Seeds, fixed_seeds};
use crate::error::{Error, Result};
use crate::recipe::{Predicted, Prediction};
use crate::results::experiment::Design;
use crate::results::folder::folder_name;
use crate::results::measure::{self, Measure};
use crate::statistics::{FIRST_LOOK, SequentialDesign, bonferroni};

/// Options of the command line. An unset option falls back to the recipe's `[compare]`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `speed`, or measures separated by commas.
    pub on: Option<String>,
    /// A number of seeds, or the seeds, separated by commas.
    pub seeds: Option<String>,
    /// Probability that all intervals hold at once.
    pub confidence: Option<f64>,
    /// A number, or `MEASURE=NUMBER` separated by commas.
    pub min_effect: Option<String>,
    /// Whether to judge after each pair.
    pub sequential: bool,
    /// Trials per arm.
    pub repeats: Option<usize>,
    /// The largest allowed difference in training loss, in nats per token.
    pub tolerance: Option<f64>,
    /// Why the change should matter.
    pub hypothesis: Option<String>,
    /// The expected result.
    pub predicts: Option<Prediction>,
    /// The comparison's name.
    pub name: Option<String>,
}

/// A measure with the smallest difference that matters.
#[derive(Clone, Debug, PartialEq)]
pub struct AskedMeasure {
    /// The measure.
    pub measure: Measure,
    /// The smallest difference that matters; `None` if ranks are compared.
    pub min_effect: Option<f64>,
}

/// The word in `--on` and `compare.on` for the speed of alternating trials.
pub const SPEED_OF_TRIALS: &str = "speed";

/// A checked question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The comparison's name.
    pub name: String,
    /// Both arms, with the keys that differ.
    pub arms: Arms,
    /// Which runs are made, and when they are judged.
    pub design: Design,
    /// What is judged.
    pub measures: Vec<AskedMeasure>,
    /// What trials expect of the candidate's loss curve; `None` for pairs.
    pub curves: Option<ExpectedCurve>,
    /// The `training.seed` of each recipe. If they differ, every pair keeps their difference.
    pub base_seeds: [u64; 2],
    /// The seeds of each pair, the baseline's first; empty for trials.
    pub seeds: Vec<[u64; 2]>,
    /// Probability that all intervals hold at once.
    pub confidence: f64,
    /// Why the change should matter.
    pub hypothesis: Option<String>,
    /// The expected result.
    pub predicts: Option<Prediction>,
    /// The comparison, as `NAME/ID`, that this one repeats with fresh seeds.
    pub confirms: Option<String>,
    /// Remarks for the record.
    pub notes: Vec<String>,
}

impl Question {
    /// Checks a question. `--on` says what is judged, or else the recipe's `compare.on`. Without either, the
    /// question is the speed of trials; for stored runs, `compare.on` is ignored.
    ///
    /// # Errors
    /// A usage error if an option does not fit what is judged, an arm has no recipe, both have the same one,
    /// a measure, number of seeds or prediction is wrong, or the arms take a measure from different text.
    pub fn new(arms: Arms, options: &Options) -> Result<Self> {
        let recipe = arms.recipe().ok_or_else(|| Error::usage("neither arm has a recipe"))?;
        let on = match &options.on {
            Some(on) => on.clone(),
            None if arms.has_stored_runs() => SPEED_OF_TRIALS.to_owned(),
            None => recipe.values().compare.on.clone().unwrap_or_else(|| SPEED_OF_TRIALS.to_owned()),
        };
        let needs_trials = [
            ("--repeats", options.repeats.is_some()),
            ("--tolerance", options.tolerance.is_some()),
            ("another program", !arms.same_binary() && !arms.has_stored_runs()),
        ];
        let needs_pairs = [
            ("--seeds", options.seeds.is_some()),
            ("--confidence", options.confidence.is_some()),
            ("--sequential", options.sequential),
        ];
        let given =
            |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|one| one.0);
        match on.trim() == SPEED_OF_TRIALS {
            true => match given(&needs_pairs) {
                Some(option) => Err(Error::usage(format!(
                    "{option} is for pairs of runs with the same seed: name what is judged, such as --on val_loss"
                ))),
                None => Self::trials(arms, options),
            },
            false => match given(&needs_trials) {
                Some(option) => Err(Error::usage(format!(
                    "{option} is for trials of speed, and {on} is judged in pairs of runs with the same seed; add \
                     --on {SPEED_OF_TRIALS}, or leave it out"
                ))),
                None => Self::pairs(arms, &on, options),
            },
        }
    }

    /// Asks which arm is faster, in alternating trials or stored runs.
    fn trials(arms: Arms, options: &Options) -> Result<Self> {
        let recipe = arms.recipe().ok_or_else(|| Error::usage("neither arm has a recipe"))?;
        let compare = recipe.values().compare.clone();
        let predicts = options.predicts.clone().or(compare.predicts);
        if let Some(prediction) = predicts.as_ref().filter(|prediction| prediction.is_about_quality()) {
            return Err(Error::usage(format!(
                "the prediction `{}` is about quality; name what is judged, such as --on val_loss",
                prediction.text
            )));
        }
        let min_effect = match options.min_effect.as_deref() {
            Some(text) => parse_min_effect_fraction(text)?,
            None => compare.min_effect,
        };
        let repeats = options.repeats.unwrap_or(compare.repeats).max(1);
        let trials =
            arms.stored_runs().map_or(2 * repeats, |[baseline, candidate]| baseline.len() + candidate.len());
        let expected =
            ExpectedCurve::new(options.tolerance, &arms.changes, arms.same_binary(), arms.has_external());
        Ok(Self {
            name: folder_name(options.name.as_deref().unwrap_or(recipe.name()))?,
            design: Design::Trials { trials },
            measures: vec![AskedMeasure { measure: Measure::SPEED, min_effect: Some(min_effect) }],
            curves: Some(expected),
            base_seeds: [recipe.values().training.seed; 2],
            seeds: Vec::new(),
            confidence: super::judge::trials::CONFIDENCE,
            hypothesis: hypothesis(options, compare.hypothesis),
            predicts,
            confirms: None,
            notes: Vec::new(),
            arms,
        })
    }

    /// Asks about measures of pairs of runs with the same seed.
    fn pairs(arms: Arms, on: &str, options: &Options) -> Result<Self> {
        let runs_here = |arm: &PlannedArm| matches!(arm.program, Program::Xrun { .. });
        if !runs_here(&arms.baseline) || !runs_here(&arms.candidate) {
            return Err(Error::usage("--on compares two recipes that this binary runs itself"));
        }
        let recipes = arms.recipes()?;
        let base_seeds = recipes.map(|recipe| recipe.values().training.seed);
        let from_recipe = recipes[0].values().compare.seeds.to_string();
        let asked = options.seeds.clone().unwrap_or(from_recipe);
        let seeds = Seeds::parse(&asked)?.pairs(base_seeds)?;
        Self::with_seeds(arms, on, seeds, options)?.checked()
    }

    /// Asks about measures of stored runs with these seeds. There is no prediction, because after the runs
    /// their result may be known.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new), and for a measure that depends on the clock.
    pub(super) fn stored_pairs(mut arms: Arms, seeds: Vec<[u64; 2]>, options: &Options) -> Result<Self> {
        // It does not matter which GPU was free.
        arms.changes.retain(|change| change.key != "engine.devices");
        let on = options.on.clone().unwrap_or_default();
        let question = Self::with_seeds(arms, &on, seeds, options)?;
        if let Some(timed) = question.measures.iter().find(|asked| asked.measure.is_timed()) {
            return Err(Error::usage(format!(
                "{} depends on the clock and needs runs that took turns, which stored runs did not; leave it \
                 out, or compare speed with --runs alone",
                timed.measure
            )));
        }
        let hypothesis = options.hypothesis.clone();
        Self { predicts: None, hypothesis, ..question }.checked()
    }

    /// Builds a question about pairs, and checks its measures and prediction.
    fn with_seeds(arms: Arms, on: &str, seeds: Vec<[u64; 2]>, options: &Options) -> Result<Self> {
        let recipes = arms.recipes()?;
        let compare = recipes[0].values().compare.clone();
        let measures = measure::parse_list(on).map_err(|why| match options.on {
            Some(_) => Error::usage(why),
            None => recipes[0].error(&["compare.on"], why, "correct it, or name it on the command line"),
        })?;
        let measures = with_min_effects(measures, options.min_effect.as_deref(), compare.min_effect)?;
        let predicts = options.predicts.clone().or(compare.predicts);
        check_prediction(predicts.as_ref(), &measures)?;
        let design = match options.sequential {
            true => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
            false => Design::Pairs { pairs: seeds.len() },
        };
        Ok(Self {
            name: folder_name(options.name.as_deref().unwrap_or(recipes[0].name()))?,
            base_seeds: recipes.map(|recipe| recipe.values().training.seed),
            measures,
            curves: None,
            seeds,
            design,
            confidence: options.confidence.unwrap_or(compare.confidence),
            hypothesis: hypothesis(options, compare.hypothesis),
            predicts,
            confirms: None,
            notes: Vec::new(),
            arms,
        })
    }

    /// Returns the number of trials per arm; 0 for pairs.
    pub fn trials_per_arm(&self) -> usize {
        match self.design {
            Design::Trials { trials } => trials / 2,
            Design::Pairs { .. } | Design::Sequential { .. } => 0,
        }
    }

    /// Returns the hashes of both recipes without their seeds; they identify the change.
    ///
    /// # Errors
    /// If an arm has no recipe or a hash cannot be computed.
    pub fn change(&self) -> Result<[String; 2]> {
        let without_seed = ["training.seed=0".to_owned()];
        let [baseline, candidate] = self.arms.recipes()?;
        Ok([baseline.hash_with(&without_seed)?, candidate.hash_with(&without_seed)?])
    }

    /// Returns the confidence of each measure: Bonferroni's share, or the full confidence if a speed and
    /// other measures form one question.
    pub fn confidence_per_measure(&self) -> f64 {
        confidence_per_measure(self.confidence, self.measures.iter().map(|asked| &asked.measure))
    }

    /// Returns true if runs must take turns because a measure depends on the clock.
    pub fn is_timed(&self) -> bool {
        self.measures.iter().any(|asked| asked.measure.is_timed())
    }

    /// Checks that arms and measures make a question about pairs, and adds remarks.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub(super) fn checked(mut self) -> Result<Self> {
        let recipes = self.arms.recipes()?;
        for asked in &self.measures {
            comparable::check(recipes, &self.arms.changes, &asked.measure)?;
        }
        let [baseline, candidate] = self.change()?;
        if baseline == candidate && self.base_seeds[0] == self.base_seeds[1] {
            return Err(Error::usage(
                "both arms are the same recipe and would give the same bits; to see what chance alone does, \
                 give the candidate other seeds, such as training.seed=1000",
            ));
        }
        let labels = [&self.arms.baseline.label, &self.arms.candidate.label];
        for (label, recipe) in labels.into_iter().zip(recipes) {
            self.notes.extend(fixed_seeds(label, recipe)?);
        }
        if let Design::Sequential { max_pairs, .. } = self.design {
            if SequentialDesign::new(max_pairs, self.confidence_per_measure()).is_none() {
                return Err(Error::usage(format!(
                    "--sequential takes from {FIRST_LOOK} to 2000 pairs, at a confidence of at least 0.8"
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

/// Returns the hypothesis from the command line, or else from the recipe; `None` if it is empty.
fn hypothesis(options: &Options, from_recipe: String) -> Option<String> {
    options.hypothesis.clone().or(Some(from_recipe)).filter(|text| !text.is_empty())
}

/// Parses the smallest speed difference that counts, as a fraction.
fn parse_min_effect_fraction(text: &str) -> Result<f64> {
    let share = text.parse().ok().filter(|x| (0.0..1.0).contains(x));
    share.ok_or_else(|| {
        Error::usage(format!("--min-effect {text} is not a fraction from 0 to below 1, such as 0.01"))
    })
}

/// Returns the confidence of each of these measures: Bonferroni's share, or the full confidence if a speed
/// and other measures form one question.
pub fn confidence_per_measure<'a>(confidence: f64, measures: impl Iterator<Item = &'a Measure>) -> f64 {
    let measures: Vec<&Measure> = measures.collect();
    if is_joint(&measures) { confidence } else { bonferroni(confidence, measures.len()) }
}

/// Sets the smallest differences of measures. `text` is one number for all, or `MEASURE=NUMBER,…`.
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
            Error::usage(format!("--min-effect: `{text}` is not a number from 0 on, such as 0.01"))
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
                "--min-effect: the measures are compared by ranks, which have no sizes",
            ));
        }
        for one in asked.iter_mut().filter(|one| one.min_effect.is_some()) {
            one.min_effect = Some(value);
        }
        return Ok(asked);
    }
    for part in text.split(',') {
        // Measures with a target contain an equals sign too, so split at the last one.
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

/// Checks that a prediction is about something that is judged.
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
    Err(Error::usage(format!("the prediction `{}` cannot be judged: {why}", prediction.text)))
}

#[cfg(test)]
mod tests;
