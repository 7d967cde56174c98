//! The question of a comparison of quality: arms, measures, seeds, design and prediction, checked before anything
//! runs.

use crate::compare::arms::{Arms, PlannedArm, Program};
use crate::error::{Error, Result};
use crate::recipe::{Change, Class, Predicted, Prediction, Recipe, Validation};
use crate::results::folder::folder_name;
use crate::results::measure::{self, Measure, MeasuredMetric};
use crate::results::quality::Design;
use crate::statistics::{FIRST_LOOK, SequentialDesign, bonferroni};
use std::path::PathBuf;

/// The largest seed: the largest TOML integer.
const MAX_SEED: u64 = i64::MAX as u64;

/// The most pairs of a comparison.
pub const MAX_PAIRS: usize = 10_000;

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
        let (baseline, candidate) = (arm(baseline)?, arm(candidate)?);
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
        let asked = options.seeds.clone().unwrap_or_else(|| from_recipe.seeds.to_string());
        let base_seeds = [&baseline, &candidate].map(|arm| arm.recipe.values().training.seed);
        let seeds = Seeds::parse(&asked)?.pairs(base_seeds)?;
        let predicts = options.predicts.clone().or(from_recipe.predicts);
        check_prediction(predicts.as_ref(), &measures)?;
        let name = folder_name(options.name.as_deref().unwrap_or(baseline.recipe.name()))?;
        let hypothesis =
            options.hypothesis.clone().or(Some(from_recipe.hypothesis)).filter(|text| !text.is_empty());
        let design = match options.sequential {
            true => Design::Sequential { max_pairs: seeds.len(), looks: Vec::new() },
            false => Design::Fixed { pairs: seeds.len() },
        };
        let question = Self {
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
        };
        question.checked()
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
        let [baseline, candidate] = self.change()?;
        if baseline == candidate && self.base_seeds[0] == self.base_seeds[1] {
            return Err(Error::usage(
                "both arms are the same recipe, and give the same bits; to see how much chance alone does, give \
                 the candidate other seeds, as in training.seed=1000",
            ));
        }
        for arm in [&self.baseline, &self.candidate] {
            self.notes.extend(fixed_seeds(arm)?);
        }
        for asked in &self.measures {
            let (measure, baseline) = (&asked.measure, &self.baseline.recipe);
            if let Some(why) = incomparable(measure, &self.changes, &baseline.values().data.validation) {
                return Err(Error::usage(format!("{measure} of the arms is not comparable: {why}")));
            }
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

/// Returns the confidence of each of these measures: Bonferroni's share, and all of it where a speed and other
/// measures are one question.
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

/// Seeds as they were asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Seeds {
    /// So many, from the recipe's on.
    Count(usize),
    /// These.
    Named(Vec<u64>),
}

impl Seeds {
    /// Parses a number of seeds, or several seeds separated by commas.
    ///
    /// # Errors
    /// A usage error.
    pub fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let numbers: Option<Vec<u64>> =
            parts.iter().map(|part| part.parse().ok().filter(|seed| *seed <= MAX_SEED)).collect();
        let wrong =
            || Error::usage(format!("--seeds {text}: a number of seeds, such as 8, or seeds, such as 3,5,8"));
        match numbers.ok_or_else(wrong)?.as_slice() {
            [count] => match usize::try_from(*count).ok().filter(|count| (1..=MAX_PAIRS).contains(count)) {
                Some(count) => Ok(Self::Count(count)),
                None => Err(Error::usage(format!("--seeds {text}: from 1 to {MAX_PAIRS} pairs"))),
            },
            seeds => {
                if let Some((_, twice)) =
                    seeds.iter().enumerate().find(|(at, seed)| seeds[..*at].contains(seed))
                {
                    return Err(Error::usage(format!("--seeds {text}: {twice} is named twice")));
                }
                Ok(Self::Named(seeds.to_vec()))
            }
        }
    }

    /// Returns the seeds of the pairs of two recipes with these seeds. A candidate with a seed of its own keeps its
    /// distance to the baseline's.
    ///
    /// # Errors
    /// A usage error for seeds beyond the largest.
    pub fn pairs(&self, [base, other]: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        let seeds: Vec<u64> = match self {
            Self::Count(count) => (0..*count as u64).map(|i| base.saturating_add(i)).collect(),
            Self::Named(seeds) => seeds.clone(),
        };
        seeds.into_iter().map(|seed| pair_of(seed, base, other)).collect()
    }
}

/// Returns the seeds of a pair from the baseline's and those of both recipes.
///
/// # Errors
/// A usage error for a seed beyond the largest, or below 0.
pub fn pair_of(seed: u64, base: u64, other: u64) -> Result<[u64; 2]> {
    let candidate = i128::from(seed) + i128::from(other) - i128::from(base);
    let candidate = u64::try_from(candidate).ok().filter(|candidate| (*candidate).max(seed) <= MAX_SEED);
    candidate.map(|candidate| [seed, candidate]).ok_or_else(|| {
        Error::usage(format!(
            "a pair with the seed {seed} has no seed for the candidate: its training.seed is {other} where the \
             baseline's is {base}, and seeds are from 0 to {MAX_SEED}"
        ))
    })
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
    let named = |name: &str| measures.iter().any(|asked| asked.measure.to_string() == name);
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
            if !named(name) {
                format!("{name} is not judged: --on has {}", all.join(", "))
            } else if measures.iter().any(|asked| asked.min_effect.is_none()) {
                format!("{name} is compared by ranks, which have no sizes; predict `better` or `worse`")
            } else {
                return Ok(());
            }
        }
    };
    Err(Error::usage(format!("the prediction `{prediction}` cannot be judged: {why}")))
}

/// Returns a remark where a recipe fixes seeds that pairs should vary.
///
/// # Errors
/// A usage error where it fixes all that the training draws.
fn fixed_seeds(arm: &QualityArmRequest) -> Result<Option<String>> {
    let values = arm.recipe.values();
    let drawn = [
        ("seeds.init", values.seeds.init, true),
        ("seeds.order", values.seeds.order, true),
        ("seeds.dropout", values.seeds.dropout, values.model.dropout > 0.0),
    ];
    let drawn: Vec<_> = drawn.into_iter().filter(|(.., is_drawn)| *is_drawn).collect();
    let fixed: Vec<&str> = drawn.iter().filter(|(_, seed, _)| seed.is_some()).map(|(key, ..)| *key).collect();
    match fixed.len() {
        0 => Ok(None),
        count if count == drawn.len() => Err(Error::usage(format!(
            "{} sets {}, so that every pair would have the same runs: leave one of them to training.seed",
            arm.label,
            fixed.join(", ")
        ))),
        _ => Ok(Some(format!(
            "{} sets {}: pairs do not vary it, and the verdict holds for this value alone",
            arm.label,
            fixed.join(", ")
        ))),
    }
}

/// Returns why the arms measure something on different text, or count it in different tokens.
fn incomparable(measure: &Measure, changes: &[Change], validation: &Validation) -> Option<String> {
    let in_words = |change: &Change| format!("{} is {} and {}", change.key, change.old, change.new);
    if measure.is_speed() {
        return None;
    }
    let counts_tokens = measure.metric() != MeasuredMetric::BitsPerByte;
    let tokenizer = changes.iter().find(|change| counts_tokens && change.key == "data.tokenizer");
    if let Some(change) = tokenizer {
        return Some(format!("{}, and a token is not a token; compare bits_per_byte", in_words(change)));
    }
    if measure.metric().is_held_out()
        && let Some(change) = changes.iter().find(|change| change.class == Class::Measuring)
    {
        return Some(in_words(change));
    }
    // The text of a named set, or of a file of its own, does not depend on the corpus.
    let own_text = measure.set().is_some() || matches!(validation, Validation::Path(_));
    let is_of_text = |key: &str| {
        let of_corpus =
            key.starts_with("data.") && !["data.tokenizer", "data.cross_documents"].contains(&key);
        of_corpus && (!measure.metric().is_held_out() || !own_text || key == "data.validation")
    };
    let change = changes.iter().find(|change| is_of_text(change.key))?;
    Some(format!("{}; hold out a text of its own with data.validation", in_words(change)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::ArmsRequest;
    use std::path::Path;

    fn question(candidate: &[&str], options: &[(&str, &str)]) -> Result<Question> {
        let request = ArmsRequest {
            recipe: Some("quickstart".into()),
            candidate: candidate.iter().map(ToString::to_string).collect(),
            ..ArmsRequest::default()
        };
        let arms = Arms::new(&request, Path::new("none")).unwrap();
        let mut asked = QualityOptions { on: Some("val_loss".to_owned()), ..QualityOptions::default() };
        for (name, value) in options {
            let value = (*value).to_owned();
            match *name {
                "on" => asked.on = Some(value),
                "seeds" => asked.seeds = Some(value),
                "min_effect" => asked.min_effect = Some(value),
                "predicts" => asked.predicts = Some(value.parse().unwrap()),
                "sequential" => asked.sequential = true,
                other => panic!("{other}"),
            }
        }
        Question::new(arms, &asked)
    }

    #[track_caller]
    fn refused(candidate: &[&str], options: &[(&str, &str)], hint: &str) {
        let error = question(candidate, options).unwrap_err();
        assert!(error.message().contains(hint), "{error}");
    }

    const LR: &[&str] = &["optimizer.lr=0.001"];

    #[test]
    fn seeds_are_counted_from_the_recipes_or_named() {
        let seeds = |candidate: &[&str], text: &str| question(candidate, &[("seeds", text)]).unwrap().seeds;
        let base = question(LR, &[]).unwrap().baseline.recipe.values().training.seed;
        assert_eq!(seeds(LR, "3"), [[base; 2], [base + 1; 2], [base + 2; 2]]);
        assert_eq!(seeds(LR, "3,5,8"), [[3, 3], [5, 5], [8, 8]]);
        // A candidate with a seed of its own: disjoint seeds on both sides.
        let other = format!("training.seed={}", base + 100);
        assert_eq!(seeds(&[&other], "2"), [[base, base + 100], [base + 1, base + 101]]);
        assert_eq!(question(LR, &[]).unwrap().seeds.len(), 8, "the recipe's number");
        for (text, hint) in
            [("0", "from 1 to"), ("x", "such as 8"), ("3,3", "named twice"), ("-1", "such as 8")]
        {
            refused(LR, &[("seeds", text)], hint);
        }
        refused(LR, &[("seeds", "9223372036854775808,1")], "such as 8");
        let low = [&format!("training.seed={}", base + 5)[..]];
        assert!(question(&low, &[("seeds", "9223372036854775807,1")]).is_err());
    }

    #[test]
    fn smallest_differences_are_by_measure_and_unit() {
        let effects = |on: &str, text: Option<&str>| -> Vec<Option<f64>> {
            let mut options = vec![("on", on)];
            options.extend(text.map(|text| ("min_effect", text)));
            question(LR, &options).unwrap().measures.into_iter().map(|asked| asked.min_effect).collect()
        };
        assert_eq!(effects("val_loss,tok_s", None), [Some(0.01), Some(0.01)]);
        assert_eq!(effects("val_loss,train_loss", Some("0.02")), [Some(0.02), Some(0.02)]);
        assert_eq!(effects("val_loss,tok_s", Some("tok_s=0.05")), [Some(0.01), Some(0.05)]);
        assert_eq!(effects("tokens_until:val_loss=1.2", None), [None]);
        let on = |on: &'static str, text: &'static str| [("on", on), ("min_effect", text)];
        refused(LR, &on("val_loss,tok_s", "0.02"), "the units nats per token and tokens per second");
        refused(LR, &on("val_loss", "train_loss=1"), "is not judged: --on has val_loss");
        refused(LR, &on("val_loss", "val_loss=-1"), "from 0 on");
        refused(LR, &on("val_loss", "nan"), "from 0 on");
        refused(LR, &on("steps_until:val_loss=2", "0.1"), "have no sizes");
        refused(LR, &on("steps_until:val_loss=2", "steps_until:val_loss=2=0.1"), "have no sizes");
    }

    #[test]
    fn several_measures_share_the_error_unless_they_are_one_question() {
        let each = |on: &str| question(LR, &[("on", on)]).unwrap().confidence_of_each();
        assert_eq!(each("val_loss"), 0.95);
        assert!((each("val_loss,train_loss") - 0.975).abs() < 1e-12);
        assert_eq!(each("tok_s,val_loss"), 0.95);
        let timed = |on: &str| question(LR, &[("on", on)]).unwrap().is_timed();
        assert!(timed("tok_s,val_loss") && timed("seconds_until:val_loss=2") && !timed("val_loss"));
    }

    #[test]
    fn what_arms_measure_differently_is_refused() {
        refused(&["data.tokenizer=byte"], &[], "compare bits_per_byte");
        question(&["data.tokenizer=byte"], &[("on", "bits_per_byte")]).unwrap();
        question(&["data.tokenizer=byte"], &[("on", "tok_s")]).unwrap();
        refused(&["validation.steps=7"], &[], "validation.steps is");
        question(&["validation.steps=7"], &[("on", "train_loss")]).unwrap();
        refused(&["data.seed=7"], &[], "data.validation");
        question(&["data.seed=7"], &[("on", "val_loss/news")]).unwrap();
        refused(&["data.seed=7"], &[("on", "train_loss")], "data.seed is");
    }

    #[test]
    fn seeds_that_nothing_varies_are_refused() {
        refused(&["quickstart"], &[], "both arms are the same recipe");
        refused(&["checkpoint.keep=7"], &[], "both arms are the same recipe");
        let all = ["seeds.init=1", "seeds.order=1", "seeds.dropout=1"];
        refused(&all, &[], "every pair would have the same runs");
        let notes = question(&["seeds.init=1"], &[]).unwrap().notes;
        assert!(notes[0].contains("sets seeds.init"), "{notes:?}");
    }

    #[test]
    fn a_prediction_is_of_what_is_judged() {
        let with = |on: &'static str, predicts: &'static str| [("on", on), ("predicts", predicts)];
        for (on, predicts) in [
            ("val_loss", "better"),
            ("val_loss", "no difference"),
            ("val_loss,train_loss", "train_loss -0.05..-0.01"),
            ("tok_s,val_loss", "worse"),
            ("tok_s,val_loss", "tok_s +10..+20%"),
        ] {
            question(LR, &with(on, predicts)).unwrap_or_else(|e| panic!("{on} {predicts}: {e}"));
        }
        refused(LR, &with("val_loss", "faster"), "ends as `better`");
        refused(LR, &with("val_loss", "train_loss -1..0"), "train_loss is not judged");
        refused(LR, &with("val_loss,train_loss", "better"), "predict a range of one");
        refused(LR, &with("steps_until:val_loss=2", "steps_until:val_loss=2 -3..-1"), "have no sizes");
        refused(LR, &[("sequential", ""), ("seeds", "3")], "from 4 to 2000");
        refused(LR, &[("sequential", ""), ("on", "steps_until:val_loss=2")], "no sequential design");
    }
}
