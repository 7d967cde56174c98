//! `experiment.json`: what was asked, the runs that answer it, and what was found.
//!
//! An experiment lies in `RESULTS/comparisons/NAME/<UTC>-<hash8>/`; its kept copy lies in
//! `RESULTS/kept/comparisons/…`, beside the kept runs that it names. The file is written before the first run
//! and after every one. It holds every value that a finding rests on, so the statistics can be repeated from
//! the file alone.

#[doc(hidden)]
pub mod example;
mod prediction;
mod standing;
mod words;

use super::atomic::{self, json, parse_json};
use super::measure::{Measure, MeasureValue, Scale};
pub use super::names::{BINARIES, COMPARISONS, EXPERIMENT};
use crate::error::{Error, Result};
use crate::regular;
use crate::statistics::{Direction, Interval, PowerPlan, Verdict};
use serde::{Deserialize, Serialize};
pub use standing::{NOT_RECORDED, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
pub use words::NO_VERDICT;

/// The index of the baseline in [`Experiment::arms`].
pub const BASELINE: usize = 0;

/// The index of the candidate in [`Experiment::arms`].
pub const CANDIDATE: usize = 1;

/// The names of both arms.
pub const ARM_NAMES: [&str; 2] = ["baseline", "candidate"];

/// A question about arms, the runs that answer it, and the findings. The default is blank: it has no arms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// The recipe's name unless the user gave another.
    pub name: String,
    /// Name of its folder.
    pub id: String,
    /// Why the change should matter, stored before the first run.
    pub hypothesis: Option<String>,
    /// What was predicted before the first run.
    pub prediction: Option<RegisteredPrediction>,
    /// Hash of the question, as in its line of the ledger; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Whether the question was there before its runs; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    /// What every verdict must be read with, such as `at 50 % more tokens`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub qualifiers: Vec<String>,
    /// How many questions about this change, or a near one, had been answered before this one was asked. Each
    /// has its share of the error; see `docs/verdicts.md`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub earlier_questions: usize,
    /// How many questions about the same change of other recipes had been answered before. They are of other
    /// families.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_recipes: usize,
    /// How many runs of the arms, or nearly, were there when it began and in no line of the ledger: made
    /// alone, or by comparisons that the ledger has lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unnamed_runs: usize,
    /// The seeds that a recipe sets, as `seeds.order = 7`: pairs do not vary them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixed_seeds: Vec<String>,
    /// The experiment, as `NAME/ID`, that this one repeats with fresh seeds.
    pub confirms: Option<String>,
    /// Which runs are made, in which order, and when they are judged.
    pub design: Design,
    /// Probability, chosen before the first run, that all intervals hold together. In records with rules 0,
    /// each interval of a joint question holds with this probability on its own.
    pub confidence: f64,
    /// How intervals and verdicts follow from the runs, in words.
    pub rule: String,
    /// The version of the rules by which it was judged; 0 for records before 2026-11-28.
    #[serde(default, skip_serializing_if = "is_first_version")]
    pub rules: u32,
    /// What is compared: the baseline first, then the candidate. [`Experiment::parse`] accepts at least two.
    pub arms: Vec<Arm>,
    /// How [`Arm::measured`] summarizes several runs.
    pub average: Average,
    /// Which training loss [`Arm::measured`] holds.
    pub train_loss: TrainLoss,
    /// Keys that differ between the arms, as `key: baseline → candidate`.
    pub changes: Vec<String>,
    /// How many of them someone set, rather than that they follow from another key; `None` if that is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys_set: Option<usize>,
    /// The random numbers that runs with the same seed share: initial values, data order, dropout masks.
    pub shared_randomness: Option<String>,
    /// Earlier experiments on the same change that were stored when this one began, oldest first.
    pub history: Vec<EarlierExperiment>,
    /// Build, device and data.
    pub provenance: Provenance,
    /// What was planned before the first run.
    pub plan: Option<ExperimentPlan>,
    /// Pairs of runs that estimated the deviation for the plan. No finding uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pilot: Vec<ExperimentRun>,
    /// All runs, in the order of the design. The n-th runs of the two arms form a pair.
    pub runs: Vec<ExperimentRun>,
    /// One finding for each question, in the order in which they were asked.
    pub findings: Vec<Finding>,
    /// The answer to *faster, and no worse?*, if a question about speed was asked together with other
    /// measures.
    pub joint: Option<JointFinding>,
    /// Counts of diverged runs; `None` until a run diverges.
    pub diverged: Option<DivergedRuns>,
    /// Why times cannot be compared: another process on the GPU, throttling, clocks that moved, a run that
    /// never settled. Any reason leaves the speed [`Verdict::Inconclusive`].
    pub contended: Vec<String>,
    /// Figures that the arms measured on different things. They have no ratio, and predictions about them are
    /// not judged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomparable: Vec<String>,
    /// Remarks that do not change a verdict.
    pub notes: Vec<String>,
    /// True once every run of the design has ended.
    pub finished: bool,
}

/// A prediction as it was written before the first run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredPrediction {
    /// Its text, such as `better` or `tok_s +30..+60%`.
    pub text: String,
    /// Whether it held. `None` while it cannot be judged.
    pub held: Option<bool>,
}

/// Which runs are made, in which order, and when they are judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Design {
    /// Runs of both arms in fresh processes, one at a time: A B B A. Judged once.
    Trials {
        /// Number of runs over both arms.
        trials: usize,
    },
    /// Pairs of runs with the same seed. Judged once.
    Pairs {
        /// Number of pairs.
        pairs: usize,
    },
    /// Pairs of runs with the same seed. Judged after each pair, from the fourth on, until decided.
    Sequential {
        /// The largest number of pairs, fixed before the first run.
        max_pairs: usize,
        /// The looks so far.
        looks: Vec<Look>,
    },
}

impl Default for Design {
    fn default() -> Self {
        Self::Trials { trials: 0 }
    }
}

impl Design {
    /// Returns the largest number of pairs that the design makes; two trials count as a pair.
    pub fn max_pairs(&self) -> usize {
        match self {
            Self::Trials { trials } => trials.div_ceil(2),
            Self::Pairs { pairs } => *pairs,
            Self::Sequential { max_pairs, .. } => *max_pairs,
        }
    }
}

/// One interim analysis of a sequential design.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Number of pairs that it used.
    pub pairs: usize,
    /// True if further pairs cannot change the verdict.
    pub stops: bool,
    /// The verdict on each measure so far, by the measure's text.
    pub verdicts: BTreeMap<String, Verdict>,
}

/// How the figures of several runs are summarized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// The median, which comparisons made before 2026-11-24 used.
    Median,
    /// The mean; geometric for `tok_s` and `step_ms`, so that their ratio is the ratio of the arms.
    #[default]
    Mean,
}

/// The training loss that is reported for an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainLoss {
    /// The loss of the last batch, which comparisons made before 2026-11-24 used.
    LastBatch,
    /// The mean over the last steps, [`super::losses::SmoothedLoss`].
    #[default]
    Smoothed,
}

/// One side of an experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    /// Label in tables.
    pub label: String,
    /// The recipe with its changed keys, or the external command, as shown to people.
    pub command: String,
    /// The path of the recipe, or its built-in name. `None` for an external command, and for trials.
    pub recipe: Option<String>,
    /// `section.key=value` arguments on top of the recipe, without the seed.
    pub settings: Vec<String>,
    /// Hash of the resolved recipe in trials, where the seed does not vary.
    pub recipe_hash: Option<String>,
    /// Hash of the resolved recipe with `training.seed = 0`, which identifies the arm whatever the seed.
    pub seedless_hash: Option<String>,
    /// Commit that the arm's binary was built from.
    pub commit: Option<String>,
    /// BLAKE3 of the binary.
    pub binary: Option<String>,
    /// The device class, such as `NVIDIA H200` or `cpu avx512`.
    pub device: Option<String>,
    /// What each run may take. `None` if that was not recorded.
    pub budget: Option<Budget>,
    /// Figures over the runs ([`Experiment::average`]), by the name of the compared metric.
    pub measured: BTreeMap<String, f64>,
    /// The largest share of a held-out set that a run of the arm also trained on, by the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_training: BTreeMap<String, f64>,
}

/// What a run of an arm may take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Optimizer steps.
    pub steps: u64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Parameters, with embedding and head; `None` if that was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<u64>,
    /// FLOPs of all training steps, forward and backward; `None` if that was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flops: Option<f64>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A run of an arm. Everything except the arm and the seed is blank until the run ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentRun {
    /// Index of its arm.
    pub arm: usize,
    /// The run's `training.seed`, if the design varies it.
    pub seed: Option<u64>,
    /// `RECIPE/RUN` of the stored run. `None` for an external command, whose rows are in `trial-N.jsonl`
    /// beside this file.
    pub run: Option<String>,
    /// How the run ended, in the ledger's words: `ok`, `diverged`, `oom`, `killed`, …
    pub status: Option<String>,
    /// Why the status is not `ok`.
    pub reason: Option<String>,
    /// True if the run was stored before this experiment began.
    #[serde(default)]
    pub reused: bool,
    /// BLAKE3 of the run's `metrics.csv`, or of an external command's losses. Equal hashes mean equal bits.
    pub metrics_hash: Option<String>,
    /// Median tokens per second of consecutive blocks of steps in the steady state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<f64>,
    /// The value of each measure, by the measure's text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, MeasureValue>,
    /// Wall time of all its training steps, in seconds, if the time to a target is measured: the budget that
    /// the target had to be reached in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_s: Option<f64>,
    /// What else used the CPU meanwhile, if its times are judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_load: Option<OtherLoad>,
}

/// Load on a machine's CPU that does not come from the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherLoad {
    /// Share of the machine's CPU time that other processes used.
    pub processes: f64,
    /// Share of it that the host of a virtual machine took.
    pub stolen: f64,
    /// Number of the machine's logical processors.
    pub processors: u64,
}

impl OtherLoad {
    /// Returns the share of CPU time that was used by others or taken.
    pub fn total(&self) -> f64 {
        self.processes + self.stolen
    }
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What is measured.
    pub measure: Measure,
    /// Unit of the values.
    pub unit: String,
    /// Which values are better.
    pub direction: Direction,
    /// How two values are compared.
    pub scale: Scale,
    /// Differences smaller than this do not matter. In the measure's unit, or as a share of the baseline's
    /// value on the scale of ratios. `None` if ranks or bits are compared.
    pub min_effect: Option<f64>,
    /// Probability that the interval contains the true difference, corrected for several measures.
    pub confidence: f64,
    /// Number of pairs with a value in both arms.
    pub pairs: usize,
    /// Mean of the baseline over these pairs; geometric on the scale of ratios.
    pub baseline: Option<f64>,
    /// Mean of the candidate over these pairs.
    pub candidate: Option<f64>,
    /// Estimate and interval: candidate - baseline, or candidate / baseline - 1 on the scale of ratios.
    pub interval: Option<Interval>,
    /// Sample standard deviation of the pairs' differences, taken between logarithms on the scale of ratios.
    pub deviation: Option<f64>,
    /// Two-sided p-value of no difference, not corrected for several measures.
    pub p: Option<f64>,
    /// What the verdict rests on.
    pub basis: VerdictBasis,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the verdict differs from what the interval alone would give, or what is missing.
    pub because: Option<String>,
    /// Why there can be no verdict, whatever the values: the arms cannot be compared by this measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictBasis {
    /// Welch's interval for the ratio of alternating trials.
    Trials,
    /// The largest difference between loss curves.
    Curves,
    /// Student's interval for the differences of pairs.
    Differences,
    /// The interval that the sequential design gives.
    Sequential,
    /// Exact ranks of the cost of training to a target.
    Ranks,
    /// The counts of diverged runs.
    DivergedRuns,
    /// Equal bits in every pair.
    SameBits,
    /// Nothing yet, because there are too few pairs.
    Nothing,
}

/// The answer to *faster, and no worse?*: an intersection–union test, which needs no correction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JointFinding {
    /// `better` if the speed is better and no other interval reaches the smallest effect for the worse;
    /// `worse` if any measure is worse.
    pub verdict: Verdict,
    /// The finding in words.
    pub found: String,
}

/// Counts of diverged runs among pairs whose runs have both ended, as `ok` or diverged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DivergedRuns {
    /// All such pairs.
    pub pairs: usize,
    /// Diverged runs of the baseline.
    pub baseline: usize,
    /// Diverged runs of the candidate.
    pub candidate: usize,
    /// Two-sided p-value of the exact test on pairs in which exactly one run diverged.
    pub p: f64,
}

/// An earlier experiment on the same change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierExperiment {
    /// `NAME/ID`.
    pub comparison: String,
    /// Number of pairs with values.
    pub pairs: usize,
    /// Number of its seeds that this experiment uses too.
    pub shared_seeds: usize,
    /// How the experiment ended, such as `val_loss: better` or `did not finish`.
    pub ended: String,
    /// What it has in common with this one, such as `the arms swapped`; `None` in records of earlier
    /// versions, which list only the same two arms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relation: Option<String>,
}

/// What an experiment planned before its first run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExperimentPlan {
    /// The differences that the pairs can detect, for each measure with a known deviation.
    pub power: Vec<MeasurePlan>,
    /// Runs that the design needs.
    pub runs: usize,
    /// How many of these runs were stored already.
    pub stored_runs: usize,
    /// Predicted time of the remaining runs, one after another, in seconds.
    pub seconds: Option<f64>,
    /// Predicted energy of the remaining runs, in joules.
    pub joules: Option<f64>,
}

/// The power plan of a measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurePlan {
    /// The measure.
    pub measure: Measure,
    /// Where the deviation comes from: an experiment, or pilot pairs.
    pub source: String,
    /// Number of pairs by deviation and smallest difference, on the scale of the differences.
    pub plan: PowerPlan,
}

/// What ran an experiment. Fields are `None` if the record does not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of xrun.
    pub version: Option<String>,
    /// The commit of the sources.
    pub commit: Option<String>,
    /// True if the sources differed from that commit.
    pub dirty: Option<bool>,
    /// BLAKE3 of the binary that judged.
    pub binary: Option<String>,
    /// The device class of all runs.
    pub device: Option<String>,
    /// The device classes of the runs; several where stored runs, or devices, are compared.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub devices: BTreeSet<String>,
    /// Hash of each arm's corpus, baseline first.
    pub corpus_hashes: Vec<String>,
    /// Hashes of the tokens of every held-out set that a run was measured on, by the set's name.
    pub held_out_hashes: Option<BTreeMap<String, BTreeSet<String>>>,
    /// The loss of a uniform guess, in nats per token, if all runs have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uniform_loss: Option<f64>,
    /// The fewest tokens that an evaluation of a run predicts, by the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub evaluated_tokens: BTreeMap<String, u64>,
    /// The largest share of a held-out set that a run also trained on, by the set's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub in_training: BTreeMap<String, f64>,
    /// The programs of the runs, in words, if they were recorded; several only where stored runs are
    /// compared.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub programs: BTreeSet<String>,
    /// Hash of the newest line in each file of the ledger when the experiment began.
    pub ledger_heads: Option<BTreeMap<String, String>>,
    /// When the experiment began, UTC.
    pub began: Option<String>,
}

fn is_first_version(rules: &u32) -> bool {
    *rules == 0
}

/// Returns the runs, as `RECIPE/RUN`, of the comparison in a folder. Another folder has none.
///
/// # Errors
/// If the comparison's record cannot be read.
pub fn compared_runs(folder: &Path) -> Result<Vec<String>> {
    if !folder.join(EXPERIMENT).is_file() {
        return Ok(Vec::new());
    }
    Ok(Experiment::read(folder)?.run_names().into_iter().map(str::to_owned).collect())
}

impl Experiment {
    /// Writes `experiment.json` to its folder; a reader sees the old file or the new one.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        atomic::write(&folder.join(EXPERIMENT), &json(self)?)
    }

    /// Reads `experiment.json` from its folder.
    ///
    /// # Errors
    /// If it cannot be read, or is not an experiment.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(EXPERIMENT);
        Self::parse(&regular::read(&path, regular::MAX_TEXT)?, &path)
    }

    /// Parses the content of `experiment.json`; `path` names the file in errors.
    ///
    /// # Errors
    /// If the content is not an experiment in JSON, has fewer than two arms, or has a run that belongs to no
    /// arm.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self> {
        let experiment: Self = parse_json(path, bytes, "an experiment")?;
        let wrong = |why: String| Error::failed(format!("{}:1: not an experiment: {why}", path.display()));
        let arms = experiment.arms.len();
        if arms < 2 {
            return Err(wrong(format!("it needs at least two arms and has {arms}")));
        }
        let mut runs = experiment.runs.iter().chain(&experiment.pilot);
        match runs.find(|run| run.arm >= arms) {
            Some(run) => Err(wrong(format!("a run belongs to arm {}, but there are {arms}", run.arm))),
            None => Ok(experiment),
        }
    }

    /// Returns the arm that is measured against.
    pub fn baseline(&self) -> &Arm {
        &self.arms[BASELINE]
    }

    /// Returns the changed arm.
    pub fn candidate(&self) -> &Arm {
        &self.arms[CANDIDATE]
    }

    /// Returns `NAME/ID`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.name, self.id)
    }

    /// Returns true if the arms are compared in alternating trials.
    pub fn has_trials(&self) -> bool {
        matches!(self.design, Design::Trials { .. })
    }

    /// Returns the hashes of both recipes without their seeds, which together identify the change; `None` for
    /// trials.
    pub fn change(&self) -> Option<[&str; 2]> {
        Some([self.baseline().seedless_hash.as_deref()?, self.candidate().seedless_hash.as_deref()?])
    }

    /// Returns the runs of an arm.
    pub fn runs_in(&self, arm: usize) -> impl Iterator<Item = &ExperimentRun> {
        self.runs.iter().filter(move |run| run.arm == arm)
    }

    /// Returns the pairs: the n-th runs of baseline and candidate.
    pub fn pairs(&self) -> impl Iterator<Item = RunPair<'_>> {
        pairs_in(&self.runs)
    }

    /// Returns the number of pairs whose runs have both ended.
    pub fn ended_pairs(&self) -> usize {
        self.pairs().filter(RunPair::has_ended).count()
    }

    /// Returns true if an arm has only one run, which does not show how much its runs vary.
    pub fn has_single_run(&self) -> bool {
        [BASELINE, CANDIDATE].into_iter().any(|arm| self.runs_in(arm).count() == 1)
    }

    /// Returns every seed of a run of either arm, without the pilot's.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.runs.iter().filter_map(|run| run.seed).collect()
    }

    /// Returns the distinct `RECIPE/RUN` of its runs.
    pub fn run_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.runs.iter().filter_map(|run| run.run.as_deref()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the finding on a measure.
    pub fn finding(&self, measure: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.measure.to_string() == measure)
    }

    /// Returns the finding on the speed of trials.
    pub fn speed(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.measure.is_speed())
    }

    /// Returns the finding on the loss curves of trials.
    pub fn curves(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.measure == Measure::LossCurves)
    }

    /// Returns the overall verdict. Trials are judged by their speed, a joint question by its joint finding.
    /// Several measures give `worse` if any of them is worse, the common verdict if all agree, and
    /// `inconclusive` otherwise.
    pub fn verdict(&self) -> Verdict {
        if self.has_trials() {
            return self.speed().map_or(Verdict::Inconclusive, |speed| speed.verdict);
        }
        if let Some(joint) = &self.joint {
            return joint.verdict;
        }
        let verdicts: BTreeSet<Verdict> = self.findings.iter().map(|finding| finding.verdict).collect();
        match verdicts.first() {
            Some(only) if verdicts.len() == 1 => *only,
            _ if verdicts.contains(&Verdict::Worse) => Verdict::Worse,
            _ => Verdict::Inconclusive,
        }
    }

    /// Returns the verdict in words, *faster* and *slower* for trials, else *better* and *worse*, with
    /// everything that must be read with it.
    pub fn verdict_words(&self) -> String {
        match self.verdict() {
            Verdict::SameBits => Verdict::SameBits.words().to_owned(),
            verdict if self.has_trials() => self.words(verdict.speed_words()),
            Verdict::Inconclusive => {
                let withheld = self.findings.iter().find_map(Finding::withheld_words);
                self.words(withheld.as_deref().unwrap_or(Verdict::Inconclusive.words()))
            }
            verdict => self.words(verdict.words()),
        }
    }
}

impl Finding {
    /// Creates a finding that has not been judged yet.
    pub fn unjudged(measure: Measure, min_effect: Option<f64>, confidence: f64) -> Self {
        Self {
            unit: measure.unit().to_owned(),
            direction: measure.direction(),
            scale: measure.scale(),
            measure,
            min_effect,
            confidence,
            pairs: 0,
            baseline: None,
            candidate: None,
            interval: None,
            deviation: None,
            p: None,
            basis: VerdictBasis::Nothing,
            verdict: Verdict::Inconclusive,
            because: None,
            withheld: None,
        }
    }

    /// Returns whether curves are as similar as asked: the same bits, or within the tolerance. `None` if that
    /// was not judged.
    pub fn holds(&self) -> Option<bool> {
        match self.verdict {
            Verdict::SameBits | Verdict::NoDifference => Some(true),
            Verdict::Different | Verdict::Better | Verdict::Worse => Some(false),
            Verdict::Inconclusive => None,
        }
    }

    /// Returns candidate / baseline with its interval, on the scale of ratios.
    pub fn ratio(&self) -> Option<Interval> {
        let interval = self.interval.filter(|_| self.scale == Scale::Ratio)?;
        let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(|x| 1.0 + x);
        Some(Interval { estimate, low, high })
    }
}

/// A run of the baseline and the run of the candidate that it is paired with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunPair<'a> {
    /// The baseline's run.
    pub baseline: &'a ExperimentRun,
    /// The candidate's run.
    pub candidate: &'a ExperimentRun,
}

/// Returns the n-th runs of baseline and candidate, for each n that both have.
pub fn pairs_in(runs: &[ExperimentRun]) -> impl Iterator<Item = RunPair<'_>> {
    let arm = move |arm: usize| runs.iter().filter(move |run| run.arm == arm);
    arm(BASELINE).zip(arm(CANDIDATE)).map(|(baseline, candidate)| RunPair { baseline, candidate })
}

impl<'a> RunPair<'a> {
    /// Returns both runs, the baseline's first.
    pub fn runs(&self) -> [&'a ExperimentRun; 2] {
        [self.baseline, self.candidate]
    }

    /// Returns true if both runs have ended.
    pub fn has_ended(&self) -> bool {
        self.runs().iter().all(|run| run.status.is_some())
    }

    /// Returns true if both runs have the same rows, bit for bit.
    pub fn has_same_bits(&self) -> bool {
        self.baseline.metrics_hash.is_some() && self.baseline.metrics_hash == self.candidate.metrics_hash
    }

    /// Returns the seeds of both runs, the baseline's first.
    pub fn seeds(&self) -> [Option<u64>; 2] {
        self.runs().map(|run| run.seed)
    }

    /// Returns the value of a measure in both runs, the baseline's first.
    pub fn values(&self, measure: &Measure) -> [Option<f64>; 2] {
        self.runs().map(|run| run.value(measure))
    }

    /// Returns the values of a measure, if both runs have one; the baseline's first.
    pub fn both_values(&self, measure: &Measure) -> Option<[f64; 2]> {
        let [baseline, candidate] = self.values(measure);
        Some([baseline?, candidate?])
    }

    /// Returns the difference in the finding's measure, in the form that intervals use: candidate - baseline,
    /// or candidate / baseline - 1.
    pub fn difference(&self, finding: &Finding) -> Option<f64> {
        let [baseline, candidate] = self.both_values(&finding.measure)?;
        let difference = match finding.scale {
            Scale::Difference => candidate - baseline,
            Scale::Ratio => candidate / baseline - 1.0,
        };
        difference.is_finite().then_some(difference)
    }
}

/// Returns a measure's differences over the pairs with a value from both arms, as statistics take them:
/// candidate - baseline, or the logarithm of candidate / baseline.
pub fn differences(runs: &[ExperimentRun], measure: &Measure) -> Vec<f64> {
    let both = pairs_in(runs).filter_map(|pair| pair.both_values(measure));
    both.map(|[baseline, candidate]| match measure.scale() {
        Scale::Difference => candidate - baseline,
        Scale::Ratio => (candidate / baseline).ln(),
    })
    .collect()
}

impl ExperimentRun {
    /// Returns true if the run's loss or gradient became NaN or infinite, and false if the run completed.
    /// `None` if it ended otherwise or has not ended.
    pub fn has_diverged(&self) -> Option<bool> {
        match self.status.as_deref() {
            Some("ok") => Some(false),
            Some("diverged") => Some(true),
            _ => None,
        }
    }

    /// Returns the value of a measure; the speed of a trial is the median of its blocks.
    pub fn value(&self, measure: &Measure) -> Option<f64> {
        match self.values.get(&measure.to_string()) {
            Some(value) => value.value(),
            None if measure.is_speed() => super::quantiles::median(self.blocks.iter().copied()),
            None => None,
        }
    }
}
