//! What a comparison asks: arms, design, measures and prediction. Everything is checked before anything runs.

use super::arms::{Arms, PlannedArm};
use super::comparable;
use super::judge::curves::ExpectedCurve;
use super::judge::is_joint;
use super::judge::trials::CONFIDENCE;
use super::seeds::{MAX_PAIRS, Seeds, fixed_seeds};
use crate::error::{Error, Result};
use crate::format::{plural, significant};
use crate::recipe::{Predicted, Prediction};
use crate::results::experiment::{Design, Finding};
use crate::results::folder::folder_name;
use crate::results::measure::{self, Measure};
use crate::statistics::{FIRST_LOOK, SequentialDesign, bonferroni, smallest_rank_p};
use serde::{Deserialize, Serialize};

/// What the user asked to judge, on the command line. An unset option falls back to the recipe's `[compare]`.
#[derive(clap::Args, Clone, Debug, Default, Serialize, Deserialize)]
pub struct Options {
    /// Trials of each arm; with one there is no verdict [default: `compare.repeats`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub repeats: Option<u64>,
    /// Smallest relative difference in tokens per second that counts [default: `compare.min_effect`]. With
    /// --on: smallest difference that matters, in the unit of the measure; for several measures,
    /// `MEASURE=NUMBER,…` [default: 0.01 nats per token, 0.005 bits per byte].
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub min_effect: Option<String>,
    /// Largest difference in training loss allowed at any step, in nats per token [default: depends on the
    /// change].
    #[arg(long, value_name = "NATS", value_parser = nats, allow_negative_numbers = true)]
    pub tolerance: Option<f64>,
    /// Why the change should matter; stored before the first run [default: `compare.hypothesis`].
    #[arg(long, value_name = "TEXT")]
    pub hypothesis: Option<String>,
    /// What you predict: `faster`, `slower`, `no difference`, or a range such as `tok_s +30..+60%`; with --on
    /// `better`, `worse`, `no difference`, or a range such as `val_loss -0.05..-0.01`. Stored before the
    /// first run [default: `compare.predicts`].
    #[arg(long, value_name = "PREDICTION")]
    pub predicts: Option<Prediction>,
    /// Name of the comparison [default: the recipe's].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// What to judge: `speed`, or measures separated by commas: val_loss, ema_val_loss, bits_per_byte,
    /// train_loss and tok_s, with `/SET` for a held-out set and `:last5` for a mean, or the steps, tokens or
    /// seconds until a target, as in `tokens_until:val_loss=1.2` [default: `compare.on`, else speed].
    #[arg(long, value_name = "MEASURES")]
    pub on: Option<String>,
    /// Number of pairs, with seeds counting up from training.seed; or the seeds, separated by commas
    /// [default: `compare.seeds`].
    #[arg(long, value_name = "N|SEEDS")]
    pub seeds: Option<String>,
    /// Joint confidence level: the probability that all intervals hold [default: `compare.confidence`].
    #[arg(long, value_name = "PROBABILITY", value_parser = probability, allow_negative_numbers = true)]
    pub confidence: Option<f64>,
    /// Evaluate after every pair from the fourth on, and stop once the verdict is clear; --seeds is the
    /// maximum.
    #[arg(long)]
    pub sequential: bool,
}

fn probability(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x| *x > 0.5 && *x < 1.0)
        .ok_or_else(|| "a probability above 0.5 and below 1, such as 0.95".to_owned())
}

fn nats(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "a number from 0 on, such as 0.01".to_owned())
}

/// The word in `--on` and `compare.on` for the speed of alternating trials.
pub const SPEED_OF_TRIALS: &str = "speed";

/// Where the seeds of pairs come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeedChoice {
    /// The user named them.
    #[default]
    Named,
    /// The user gave a number of pairs.
    Counted,
    /// A confirmation takes the first ones that no earlier comparison had.
    Fresh,
}

/// A checked question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The comparison's name.
    pub name: String,
    /// Both arms, with the keys that differ.
    pub arms: Arms,
    /// Which runs are made, and when they are judged.
    pub design: Design,
    /// What is judged, as findings without a verdict.
    pub findings: Vec<Finding>,
    /// What trials expect of the candidate's loss curve; `None` for pairs.
    pub curves: Option<ExpectedCurve>,
    /// The `training.seed` of each recipe. If they differ, every pair keeps their difference.
    pub base_seeds: [u64; 2],
    /// The seeds of each pair, the baseline's first; empty for trials.
    pub seeds: Vec<[u64; 2]>,
    /// Where the seeds come from. Unless they are named, they are settled when the question is asked.
    pub choice: SeedChoice,
    /// Probability that all intervals hold at once.
    pub confidence: f64,
    /// Why the change should matter.
    pub hypothesis: Option<String>,
    /// The expected result.
    pub predicts: Option<Prediction>,
    /// The comparison, as `NAME/ID`, that this one repeats with fresh seeds.
    pub confirms: Option<String>,
    /// The seeds that a recipe sets, as `seeds.order = 7`: pairs do not vary them.
    pub fixed_seeds: Vec<String>,
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
        let recipe = arms.recipe()?;
        let on = match &options.on {
            Some(on) => on.clone(),
            None if arms.stored_runs().is_some() => SPEED_OF_TRIALS.to_owned(),
            None => recipe.values().compare.on.clone().unwrap_or_else(|| SPEED_OF_TRIALS.to_owned()),
        };
        let needs_trials = [
            ("--repeats", options.repeats.is_some()),
            ("--tolerance", options.tolerance.is_some()),
            ("another program", !arms.same_binary() && arms.stored_runs().is_none()),
        ];
        let needs_pairs = [
            ("--seeds", options.seeds.is_some()),
            ("--confidence", options.confidence.is_some()),
            ("--sequential", options.sequential),
        ];
        let given =
            |options: &[(&'static str, bool)]| options.iter().find(|(_, given)| *given).map(|one| one.0);
        let has_trials = on.trim() == SPEED_OF_TRIALS;
        match given(if has_trials { &needs_pairs } else { &needs_trials }) {
            None if has_trials => Self::trials(arms, options),
            None => Self::pairs(arms, &on, options),
            Some(option) if has_trials => Err(Error::usage(format!(
                "{option} is for pairs of runs with the same seed: name what is judged, such as --on val_loss"
            ))),
            Some(option) => Err(Error::usage(format!(
                "{option} is for trials of speed, and {on} is judged in pairs of runs with the same seed; add \
                 --on {SPEED_OF_TRIALS}, or leave it out"
            ))),
        }
    }

    /// Makes a question that asks nothing yet, from what the options or else the recipe say.
    fn blank(arms: Arms, options: &Options) -> Result<Self> {
        let recipe = arms.recipe()?;
        let compare = recipe.values().compare.clone();
        let hypothesis = options.hypothesis.clone().or(Some(compare.hypothesis));
        let seed = |arm: &PlannedArm| arm.recipe.as_ref().unwrap_or(recipe).values().training.seed;
        Ok(Self {
            name: folder_name(options.name.as_deref().unwrap_or(recipe.name()))?,
            design: Design::default(),
            findings: Vec::new(),
            curves: None,
            base_seeds: arms.both().map(seed),
            seeds: Vec::new(),
            choice: SeedChoice::default(),
            confidence: options.confidence.unwrap_or(compare.confidence),
            hypothesis: hypothesis.filter(|text| !text.is_empty()),
            predicts: options.predicts.clone().or(compare.predicts),
            confirms: None,
            fixed_seeds: Vec::new(),
            notes: Vec::new(),
            arms,
        })
    }

    /// Asks which arm is faster, in alternating trials or stored runs.
    fn trials(arms: Arms, options: &Options) -> Result<Self> {
        let question = Self::blank(arms, options)?;
        let (arms, compare) = (&question.arms, &question.arms.recipe()?.values().compare);
        if let Some(prediction) =
            question.predicts.as_ref().filter(|prediction| prediction.is_about_quality())
        {
            return Err(Error::usage(format!(
                "the prediction `{}` is about quality; name what is judged, such as --on val_loss",
                prediction.text
            )));
        }
        if let Ok(recipes) = arms.recipes() {
            comparable::check(recipes, &arms.changes, &Measure::SPEED)?;
        }
        let min_effect = match options.min_effect.as_deref() {
            Some(text) => parse_min_effect_fraction(text)?,
            None => compare.min_effect,
        };
        let repeats = options.repeats.map_or(compare.repeats, |repeats| repeats as usize).max(1);
        let trials =
            arms.stored_runs().map_or(2 * repeats, |[baseline, candidate]| baseline.len() + candidate.len());
        let expected =
            ExpectedCurve::new(options.tolerance, &arms.changes, arms.same_binary(), arms.has_external());
        let speed = Finding::unjudged(Measure::SPEED, Some(min_effect), CONFIDENCE);
        Ok(Self {
            design: Design::Trials { trials },
            findings: vec![speed, expected.unjudged()],
            curves: Some(expected),
            confidence: CONFIDENCE,
            ..question
        })
    }

    /// Asks about measures of pairs of runs with the same seed.
    fn pairs(arms: Arms, on: &str, options: &Options) -> Result<Self> {
        if !arms.are_xrun() {
            return Err(Error::usage("--on compares two recipes that this binary runs itself"));
        }
        let recipes = arms.recipes()?;
        let base_seeds = recipes.map(|recipe| recipe.values().training.seed);
        let from_recipe = recipes[0].values().compare.seeds.to_string();
        let seeds = Seeds::parse(options.seeds.as_ref().unwrap_or(&from_recipe))?;
        let choice = match seeds {
            Seeds::Count(_) => SeedChoice::Counted,
            Seeds::Named(_) => SeedChoice::Named,
        };
        let question = Self::with_seeds(arms, on, seeds.pairs(base_seeds)?, options)?;
        Self { choice, ..question }.checked()
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
        if let Some(timed) = question.findings.iter().find(|asked| asked.measure.is_timed()) {
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
        let question = Self::blank(arms, options)?;
        let [recipe, _] = question.arms.recipes()?;
        let measures = measure::parse_list(on).map_err(|why| match options.on {
            Some(_) => Error::usage(why),
            None => recipe.error(&["compare.on"], why, "correct it, or name it on the command line"),
        })?;
        let speed_effect = recipe.values().compare.min_effect;
        let findings = unjudged(measures, question.confidence, options.min_effect.as_deref(), speed_effect)?;
        check_prediction(question.predicts.as_ref(), &findings)?;
        let design = match options.sequential {
            true => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
            false => Design::Pairs { pairs: seeds.len() },
        };
        Ok(Self { findings, seeds, design, ..question })
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

    /// Returns true if runs must take turns because a measure depends on the clock.
    pub fn is_timed(&self) -> bool {
        self.findings.iter().any(|asked| asked.measure.is_timed())
    }

    /// Checks that every measure can have a verdict, whatever the runs give.
    ///
    /// # Errors
    /// A usage error that names the fewest pairs that can.
    fn check_can_succeed(&self) -> Result<()> {
        let pairs = self.seeds.len();
        let Some(hopeless) = self.findings.iter().find(|asked| pairs < fewest_pairs(asked)) else {
            return Ok(());
        };
        let fewest = fewest_pairs(hopeless);
        let confidence = significant(100.0 * hopeless.confidence);
        let why = match hopeless.min_effect {
            Some(_) => "one pair cannot tell a difference from chance".to_owned(),
            None => format!(
                "{} is judged by ranks, and even with all of {pairs} pair{} in one order p is {}, above the {} \
                 that {confidence} % confidence allows",
                hopeless.measure,
                plural(pairs),
                significant(smallest_rank_p(pairs)),
                significant(1.0 - hopeless.confidence)
            ),
        };
        let next = match self.arms.stored_runs() {
            Some(_) => format!("name {fewest} runs per arm"),
            None => format!("set --seeds {fewest}"),
        };
        Err(Error::usage(format!("this comparison cannot have a verdict: {why}; {next}, or more")))
    }

    /// Checks that arms and measures make a question about pairs, and adds remarks.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub(super) fn checked(mut self) -> Result<Self> {
        let recipes = self.arms.recipes()?;
        for asked in &self.findings {
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
            self.fixed_seeds.extend(fixed_seeds(label, recipe)?);
        }
        self.fixed_seeds.sort();
        self.fixed_seeds.dedup();
        self.check_can_succeed()?;
        if let Design::Sequential { max_pairs, .. } = self.design {
            if self.findings.iter().any(|asked| SequentialDesign::new(max_pairs, asked.confidence).is_none())
            {
                return Err(Error::usage(format!(
                    "--sequential takes from {FIRST_LOOK} to 2000 pairs, at a confidence of at least 0.8"
                )));
            }
            if let Some(ranked) = self.findings.iter().find(|asked| asked.min_effect.is_none()) {
                return Err(Error::usage(format!(
                    "{} is compared by ranks, which have no sequential design; leave out --sequential",
                    ranked.measure
                )));
            }
        }
        Ok(self)
    }
}

/// Returns the fewest pairs with which a measure can have a verdict at all: an interval needs two, and ranks
/// as many as make *all pairs in one order* unlikely enough.
fn fewest_pairs(asked: &Finding) -> usize {
    match asked.min_effect {
        Some(_) => 2,
        None => {
            let largest = 1.0 - asked.confidence;
            (1..MAX_PAIRS).find(|&pairs| smallest_rank_p(pairs) <= largest).unwrap_or(MAX_PAIRS)
        }
    }
}

/// Parses the smallest speed difference that counts, as a fraction.
fn parse_min_effect_fraction(text: &str) -> Result<f64> {
    let share = text.parse().ok().filter(|x| (0.0..1.0).contains(x));
    share.ok_or_else(|| {
        Error::usage(format!("--min-effect {text} is not a fraction from 0 to below 1, such as 0.01"))
    })
}

/// Returns the confidence of each of these measures: Bonferroni's share. It holds for a speed and other
/// measures too. *Faster and no worse* alone would need no correction, but every measure has a verdict of its
/// own, and *worse* in any of them makes the joint verdict *worse*.
pub fn confidence_per_measure<'a>(confidence: f64, measures: impl Iterator<Item = &'a Measure>) -> f64 {
    bonferroni(confidence, measures.count())
}

/// Makes the findings of measures that together hold with `confidence`. `min_effect` sets the smallest
/// differences that matter: one number for all, or `MEASURE=NUMBER,…`.
fn unjudged(
    measures: Vec<Measure>,
    confidence: f64,
    min_effect: Option<&str>,
    speed_effect: f64,
) -> Result<Vec<Finding>> {
    let confidence = confidence_per_measure(confidence, measures.iter());
    let mut asked: Vec<Finding> = measures
        .into_iter()
        .map(|measure| {
            let from_recipe = measure.is_speed().then_some(speed_effect);
            let min_effect = from_recipe.or_else(|| measure.default_min_effect());
            Finding::unjudged(measure, min_effect, confidence)
        })
        .collect();
    let Some(text) = min_effect else { return Ok(asked) };
    let number = |text: &str| {
        let number = text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        number.ok_or_else(|| {
            Error::usage(format!("--min-effect: `{text}` is not a number from 0 on, such as 0.01"))
        })
    };
    if text.parse::<f64>().is_ok() {
        let value = number(text)?;
        let sized = asked.iter().filter(|one| one.min_effect.is_some());
        let mut units: Vec<&str> = sized.map(|one| one.measure.unit()).collect();
        units.dedup();
        return match units.as_slice() {
            [] => Err(Error::usage("--min-effect: the measures are compared by ranks, which have no sizes")),
            [_] => {
                asked.iter_mut().for_each(|one| one.min_effect = one.min_effect.and(Some(value)));
                Ok(asked)
            }
            units => Err(Error::usage(format!(
                "--min-effect {text}: the measures have the units {}; write MEASURE={text} for one of {}",
                units.join(" and "),
                names(&asked)
            ))),
        };
    }
    for part in text.split(',') {
        // Measures with a target contain an equals sign too, so split at the last one.
        let Some((name, value)) = part.rsplit_once('=') else {
            return Err(Error::usage(format!(
                "--min-effect: `{part}` is neither a number nor MEASURE=NUMBER, such as val_loss=0.01"
            )));
        };
        let measure: Measure = name.parse().map_err(|why| Error::usage(format!("--min-effect: {why}")))?;
        let all = names(&asked);
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

fn names(findings: &[Finding]) -> String {
    findings.iter().map(|asked| asked.measure.to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks that a prediction is about something that is judged.
fn check_prediction(prediction: Option<&Prediction>, findings: &[Finding]) -> Result<()> {
    let Some(prediction) = prediction else { return Ok(()) };
    let named = |name: &str| findings.iter().find(|asked| asked.measure.to_string() == name);
    let why = match &prediction.of {
        Predicted::Faster | Predicted::Slower => {
            "a comparison of quality ends as `better`, `worse` or `no difference`".to_owned()
        }
        Predicted::Better | Predicted::Worse | Predicted::NoDifference => {
            if findings.len() == 1 || is_joint(findings.iter().map(|asked| &asked.measure)) {
                return Ok(());
            }
            format!(
                "several measures are judged: predict a range of one, such as `{} -0.05..-0.01`",
                findings[0].measure
            )
        }
        Predicted::Range { column: name, .. } | Predicted::Difference { measure: name, .. } => {
            match named(name) {
                None => format!("{name} is not judged: --on has {}", names(findings)),
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
