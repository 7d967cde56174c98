//! `xrun compare --on`: comparisons of quality.

use super::terminal::{eprint_line, print, print_json};
use crate::compare::Arms;
use crate::compare::quality::{self, FinishedQuality, QualityOptions, QualitySetting, Question, report};
use crate::error::{Error, Result};
use crate::format::plural;
use crate::results::quality::{Pair, PairedRun, QualityComparison};
use crate::statistics::QualityVerdict;
use std::path::Path;

/// Arguments of comparisons of quality.
#[derive(clap::Args, Debug)]
pub struct QualityArgs {
    /// Judge quality: measures separated by commas, of val_loss, ema_val_loss, bits_per_byte, train_loss and
    /// tok_s, with `/SET` for a held-out set and `:last5` for a mean, or steps, tokens or seconds until a
    /// target, as in `tokens_until:val_loss=1.2` [default: `compare.on`].
    #[arg(long, value_name = "MEASURES")]
    #[arg(conflicts_with_all = ["before_bin", "before_rev", "before_cmd", "repeats", "tolerance"])]
    pub on: Option<String>,
    /// Pairs of runs, with seeds from training.seed on; or the seeds, separated by commas [default:
    /// `compare.seeds`].
    #[arg(long, value_name = "N|SEEDS")]
    pub seeds: Option<String>,
    /// Probability that all intervals hold together [default: `compare.confidence`].
    #[arg(long, value_name = "PROBABILITY", value_parser = probability, allow_negative_numbers = true)]
    pub confidence: Option<f64>,
    /// Look after every pair from the fourth on, and stop once it is decided; --seeds is the most.
    #[arg(long)]
    pub sequential: bool,
    /// Runs at once on the CPU; a GPU has one at a time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: u16,
    /// Repeat a stored comparison with seeds that it never saw.
    #[arg(long, value_name = "COMPARISON")]
    #[arg(conflicts_with_all = ["recipe", "on", "runs", "common", "min_effect", "confidence", "sequential", "seed", "plan"])]
    #[arg(conflicts_with_all = ["before_bin", "before_rev", "before_cmd", "repeats", "tolerance"])]
    pub confirm: Option<String>,
    /// Print how many pairs see what, and what they take; run nothing but the pilot.
    #[arg(long)]
    pub plan: bool,
    /// Estimate the deviation of a pair from so many pilot pairs first; no verdict uses them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(3..=1000))]
    pub pilot: Option<u16>,
}

impl QualityArgs {
    /// Returns a flag that was given and has no meaning for a comparison of speed.
    pub fn flag(&self) -> Option<&'static str> {
        self.flag_of_new_runs().or(self.confidence.is_some().then_some("--confidence"))
    }

    /// Returns a flag that was given and has no meaning for stored runs.
    pub fn flag_of_new_runs(&self) -> Option<&'static str> {
        let given = [
            ("--seeds", self.seeds.is_some()),
            ("--sequential", self.sequential),
            ("--jobs", self.jobs > 1),
            ("--plan", self.plan),
            ("--pilot", self.pilot.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }
}

fn probability(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x| *x > 0.5 && *x < 1.0)
        .ok_or_else(|| "a probability above 0.5 and below 1, such as 0.95".to_owned())
}

/// Compares two recipes, or prints the plan alone.
///
/// # Errors
/// Those of the question and its runs; exit 3 for a candidate that is worse.
pub fn run(
    arms: Arms,
    options: QualityOptions,
    setting: &QualitySetting<'_>,
    plan_alone: bool,
    as_json: bool,
) -> Result<()> {
    let question = Question::new(arms, &options)?;
    if !plan_alone {
        return compare(&question, setting, as_json);
    }
    let comparison = quality::plan(&question, *setting)?;
    if as_json { print_as_json(&comparison) } else { Ok(()) }
}

/// Repeats a stored comparison with fresh seeds.
///
/// # Errors
/// As [`run`].
pub fn confirm(
    name: &str,
    options: QualityOptions,
    setting: &QualitySetting<'_>,
    as_json: bool,
) -> Result<()> {
    compare(&quality::confirm(setting.results, name, &options)?, setting, as_json)
}

/// Judges stored runs, those of each arm joined by commas.
///
/// # Errors
/// Those of the runs and the question; exit 3 for a candidate that is worse.
pub fn compare_stored(
    runs: [&str; 2],
    options: &QualityOptions,
    results: &Path,
    as_json: bool,
) -> Result<()> {
    conclude(&quality::compare_stored(results, runs, options)?, as_json)
}

fn compare(question: &Question, setting: &QualitySetting<'_>, as_json: bool) -> Result<()> {
    conclude(&quality::run(question, *setting)?, as_json)
}

/// Prints a comparison that has ended.
fn conclude(finished: &FinishedQuality, as_json: bool) -> Result<()> {
    let comparison = &finished.comparison;
    match as_json {
        true => print_as_json(comparison)?,
        false => print(&report(comparison))?,
    }
    eprint_line(&format!("results in {}", finished.folder.display()));
    if comparison.verdict() != QualityVerdict::Worse {
        return check_runs(comparison);
    }
    let worse = comparison.measures.iter().filter(|judged| judged.verdict == QualityVerdict::Worse);
    let findings: Vec<String> = worse.map(|judged| format!("{} is worse", judged.measure)).collect();
    Err(Error::finding(findings.join(", ")))
}

/// Checks that every run ended as a result.
///
/// # Errors
/// Names the first one that did not.
fn check_runs(comparison: &QualityComparison) -> Result<()> {
    let is_result = |status: &str| ["ok", "diverged"].contains(&status);
    let runs = comparison.pairs.iter().flat_map(Pair::runs);
    let faulty: Vec<&PairedRun> =
        runs.filter(|run| run.status.as_deref().is_some_and(|status| !is_result(status))).collect();
    let Some(first) = faulty.first() else { return Ok(()) };
    Err(Error::failed(format!(
        "{} run{} did not end well, the first with the seed {}: {}: {}; the same command runs them again",
        faulty.len(),
        plural(faulty.len()),
        first.seed,
        first.status.as_deref().unwrap_or_default(),
        first.reason.as_deref().unwrap_or("no reason is known")
    )))
}

fn print_as_json(comparison: &QualityComparison) -> Result<()> {
    let text = serde_json::to_string_pretty(comparison);
    let text = text.map_err(|e| Error::failed(format!("cannot write the comparison as JSON: {e}")))?;
    print_json(&(text + "\n"))
}
