//! `xrun compare`: of speed, in alternating trials, or of quality, in pairs with the same seed.

use super::compare_quality::{self, QualityArgs};
use super::terminal::{eprint_line, print, print_json, seconds};
use super::what::{Results, Seed, recipe_path};
use crate::compare::quality::{QualityOptions, QualitySetting};
use crate::compare::{self, Arms, ArmsRequest, FinishedComparison, Request};
use crate::error::{Error, Result};
use crate::forecast::{Planned, RunNeeds, TotalNeeds};
use crate::machine::Machine;
use crate::plan::CorpusFacts;
use crate::recipe::{Prediction, Recipe};
use crate::results::comparison::CompareVerdict;
use crate::results::progress::Mode;
use crate::train::cpu_pace;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `xrun compare`.
///
/// Without --on, speed is compared in alternating trials; with it, quality in pairs of runs with the same
/// seed.
///
/// Exit codes: 0 if both arms were measured, whatever the verdict, except 3: the candidate is slower by more
/// than the smallest difference that counts, its curve failed the gate, or its quality is worse; 1 if a trial
/// failed or took too long; 2 for a wrong command line or recipe; 75 if a signal stopped it.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe of the baseline: a file, the name of a built-in one, or a run whose recipe is used again.
    #[arg(conflicts_with = "runs")]
    recipe: Option<PathBuf>,
    /// The candidate: another recipe, or changes as `section.key=value` [default: `compare.change` of the
    /// recipe].
    #[arg(value_name = "RECIPE|KEY=VALUE")]
    after: Vec<String>,
    /// A key of both arms, as `section.key=value`.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    common: Vec<String>,
    /// Compare stored runs instead: baseline and candidate, several of an arm joined by commas. Nothing is
    /// run.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["before_bin", "before_rev", "before_cmd", "common", "repeats"])]
    runs: Option<Vec<String>>,
    /// Run the baseline with this binary of xrun.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["before_rev", "before_cmd"])]
    before_bin: Option<PathBuf>,
    /// Run the baseline with this git commit of xrun, built here.
    #[arg(long, value_name = "REV", conflicts_with = "before_cmd")]
    before_rev: Option<String>,
    /// Use a command as the baseline; it prints {"step": 1, "tok_s": 81920, "loss": 6.9, "step_ms": 12.5} per
    /// step.
    #[arg(long, value_name = "COMMAND")]
    before_cmd: Option<String>,
    /// Trials of each arm; one gives no verdict [default: `compare.repeats`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: Option<u64>,
    /// Smallest relative difference in tokens per second that counts [default: `compare.min_effect`]. With
    /// --on: smallest difference that matters, in the unit of the measure; of several, `MEASURE=NUMBER,…`
    /// [default: 0.01 nats per token, 0.005 bits per byte].
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    min_effect: Option<String>,
    /// Largest difference of training losses at any step, in nats per token [default: by the change].
    #[arg(long, value_name = "NATS", value_parser = nats, allow_negative_numbers = true)]
    tolerance: Option<f64>,
    /// Why the change should matter; stored before the first run [default: `compare.hypothesis`].
    #[arg(long, value_name = "TEXT")]
    hypothesis: Option<String>,
    /// `faster`, `slower`, `no difference`, or a range such as `tok_s +30..+60%`; with --on `better`,
    /// `worse`, `no difference`, or a range such as `val_loss -0.05..-0.01`. Stored before the first run
    /// [default: `compare.predicts`].
    #[arg(long, value_name = "PREDICTION")]
    predicts: Option<Prediction>,
    /// Name of the comparison [default: the recipe's].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Stop a trial that takes longer, and with it the comparison.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true, conflicts_with = "runs")]
    timeout: Option<Duration>,
    #[command(flatten)]
    quality: QualityArgs,
    /// The seed of both arms; with --on that of the first pair.
    #[command(flatten)]
    seed: Seed,
    /// Where results are.
    #[command(flatten)]
    results: Results,
    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
}

/// Parses the smallest effect of a comparison of speed.
fn fraction(text: &str) -> Result<f64> {
    let share = text.parse().ok().filter(|x| (0.0..1.0).contains(x));
    share.ok_or_else(|| {
        Error::usage(format!("--min-effect {text}: a fraction from 0 to below 1, such as 0.01"))
    })
}

impl Args {
    fn quality_options(&self) -> QualityOptions {
        QualityOptions {
            on: self.quality.on.clone(),
            seeds: self.quality.seeds.clone(),
            confidence: self.quality.confidence,
            min_effect: self.min_effect.clone(),
            sequential: self.quality.sequential,
            hypothesis: self.hypothesis.clone(),
            predicts: self.predicts.clone(),
            name: self.name.clone(),
        }
    }

    fn quality_setting<'a>(&self, results: &'a Path) -> QualitySetting<'a> {
        QualitySetting {
            results,
            jobs: self.quality.jobs.into(),
            timeout: self.timeout,
            pilot: self.quality.pilot.unwrap_or(0).into(),
            progress: Mode::Auto,
        }
    }
}

fn nats(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "a number from 0 on, such as 0.01".to_owned())
}

/// Says what the trials need, before they begin. What is not known, such as the time of an external command,
/// is left out.
fn say_needs(arms: &Arms, repeats: Option<usize>) {
    let here = Machine::here();
    let recipes: Vec<Recipe> = [false, true]
        .into_iter()
        .filter_map(|is_candidate| arms.get(is_candidate).recipe_of_trials(&here))
        .collect();
    let mut total = TotalNeeds::default();
    for recipe in &recipes {
        let repeats = repeats.unwrap_or(recipe.values().compare.repeats).max(1);
        // A plan that cannot be made is the error of the trial.
        let planned = CorpusFacts::estimated(recipe).and_then(|corpus| Planned::new(recipe, &corpus, &here));
        let Ok(Planned { plan, programs, .. }) = planned else { continue };
        let here = here.clone().with_cpu_pace(cpu_pace(&plan, &here, eprint_line));
        total.add(&RunNeeds::new(&plan, &programs, &here, recipe.values().metrics.plots), repeats);
    }
    if let Some(words) = total.in_words() {
        eprint_line(&words);
    }
}

/// Runs the command.
///
/// # Errors
/// Those of the arms and their trials; exit 3 for a candidate that is slower, or fails the gate.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    if let Some(confirmed) = &args.quality.confirm {
        return compare_quality::confirm(
            confirmed,
            args.quality_options(),
            &args.quality_setting(results),
            args.json,
        );
    }
    if args.runs.is_some() && args.seed.is_set() {
        return Err(Error::usage(
            "--seed is for runs to be made, and --runs compares stored ones; leave one out",
        ));
    }
    if let (Some([baseline, candidate]), Some(_)) = (args.runs.as_deref(), &args.quality.on) {
        let predicts = args.predicts.is_some().then_some("--predicts");
        if let Some(flag) = args.quality.flag_of_new_runs().or(predicts) {
            return Err(Error::usage(format!(
                "{flag} is for runs to be made, and --runs judges stored ones; leave one out"
            )));
        }
        let options = args.quality_options();
        return compare_quality::compare_stored([baseline, candidate], &options, results, args.json);
    }
    let recipe = args.recipe.as_deref().map(|recipe| recipe_path(recipe, results)).transpose()?;
    let mut candidate = args.after.clone();
    if let Some(second) = candidate.first_mut().filter(|first| !first.contains('=')) {
        *second = recipe_path(Path::new(second.as_str()), results)?.to_string_lossy().into_owned();
    }
    let request = ArmsRequest {
        recipe,
        candidate,
        common: args.seed.on(&args.common),
        baseline_bin: args.before_bin.clone(),
        baseline_rev: args.before_rev.clone(),
        baseline_cmd: args.before_cmd.clone(),
        runs: args.runs.as_deref().and_then(|runs| Some((runs.first()?.clone(), runs.get(1)?.clone()))),
    };
    let min_effect = args.min_effect.as_deref();
    let arms = Arms::new(&request, results)?;
    // Flags that only a comparison of speed has speak for one.
    let is_of_speed =
        args.runs.is_some() || args.repeats.is_some() || args.tolerance.is_some() || arms.is_of_programs();
    let of_recipe = arms.recipe().is_some_and(|recipe| recipe.values().compare.on.is_some());
    if args.quality.on.is_some() || (of_recipe && !is_of_speed) {
        let setting = args.quality_setting(results);
        return compare_quality::run(arms, args.quality_options(), &setting, args.quality.plan, args.json);
    }
    if let Some(flag) = args.quality.flag() {
        return Err(Error::usage(format!(
            "{flag} is for comparisons of quality: name what is judged, such as --on val_loss"
        )));
    }
    let min_effect = min_effect.map(fraction).transpose()?;
    if arms.is_of_one_recipe() {
        eprint_line("changed     nothing: both arms are the same recipe (an A/A test)");
    }
    say_needs(&arms, args.repeats.map(|n| n as usize));
    let FinishedComparison { folder, comparison, failed } = compare::run(Request {
        arms,
        results,
        name: args.name.clone(),
        repeats: args.repeats.map(|n| n as usize),
        min_effect,
        tolerance: args.tolerance,
        hypothesis: args.hypothesis.clone(),
        predicts: args.predicts.clone(),
        timeout: args.timeout,
        algorithms_from: None,
    })?;
    if args.json {
        let text = serde_json::to_string_pretty(&comparison);
        let text = text.map_err(|e| Error::failed(format!("cannot write the comparison as JSON: {e}")))?;
        print_json(&(text + "\n"))?;
    } else {
        print(&compare::report(&comparison))?;
    }
    eprint_line(&format!("results in {}", folder.display()));
    if comparison.gate.holds == Some(false) {
        return Err(Error::finding("the loss gate fails"));
    }
    if let Some(error) = failed {
        return Err(error);
    }
    match comparison.verdict {
        CompareVerdict::Slower => Err(Error::finding("the candidate is slower")),
        _ => Ok(()),
    }
}
