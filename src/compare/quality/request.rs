//! The question of a comparison of quality: arms, measures, seeds, design and prediction, checked before anything
//! runs.

use super::comparable;
use super::seeds::{Seeds, fixed_seeds};
use crate::compare::arms::{Arms, PlannedArm, Program};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::ArmsRequest;
    use std::path::Path;

    fn question(candidate: &[&str], options: &[(&str, &str)]) -> Result<Question> {
        question_with(candidate, &[], options)
    }

    fn question_with(candidate: &[&str], common: &[&str], options: &[(&str, &str)]) -> Result<Question> {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        let request = ArmsRequest {
            recipe: Some("quickstart".into()),
            candidate: texts(candidate),
            common: texts(common),
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
    fn a_candidate_with_a_seed_of_its_own_keeps_its_distance() {
        let base = question(LR, &[]).unwrap().baseline.recipe.values().training.seed;
        assert_eq!(question(LR, &[]).unwrap().seeds.len(), 8, "the recipe's number");
        let other = format!("training.seed={}", base + 100);
        let found = question(&[&other], &[("seeds", "2")]).unwrap();
        assert_eq!(found.seeds, [[base, base + 100], [base + 1, base + 101]]);
        assert!(found.candidate.settings.iter().all(|setting| !setting.contains("seed")));
        refused(LR, &[("seeds", "3,3")], "named twice");
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
        question(&["validation.steps=7", LR[0]], &[("on", "train_loss")]).unwrap();
        refused(&["data.seed=7"], &[], "data.validation");
        let news = |path: &str| format!("validation.sets={{ news = \"{path}\" }}");
        refused(&[&news("a.txt")], &[("on", "val_loss/news")], "has no news");
        let with = |candidate: &[&str]| {
            question_with(candidate, &[&news("a.txt")], &[("on", "val_loss/news"), ("seeds", "2")])
        };
        with(&["data.seed=7"]).unwrap();
        let error = with(&[&news("b.txt")]).unwrap_err();
        assert!(error.message().contains("different text for news"), "{error}");
        refused(&["data.seed=7"], &[("on", "train_loss")], "data.seed is");
    }

    #[test]
    fn measures_that_runs_do_not_have_are_refused() {
        let on = |on: &'static str| [("on", on)];
        let once = ["validation.interval=0"];
        let with = |options: &[(&str, &str)]| question_with(LR, &once, options).map(drop);
        with(&on("val_loss")).unwrap();
        for text in ["val_loss:last2", "steps_until:val_loss=2"] {
            let error = with(&on(text)).unwrap_err();
            assert!(error.message().contains("a run has 1"), "{error}");
        }
        refused(LR, &on("val_loss:last90000"), "takes 90000 evaluations");
        refused(LR, &on("train_loss:last90000"), "asks for more steps");
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
