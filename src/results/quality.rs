//! `quality.json`: a baseline and a candidate, trained on the same seeds in pairs, and the verdicts on their
//! quality.
//!
//! A comparison lies in `RESULTS/comparisons/NAME/<UTC>-<hash8>/` (kept: in `RESULTS/kept/comparisons/…`,
//! beside the kept runs that it names). It is written before the first run and after every one, and holds
//! every value of every pair, so that the statistics can be repeated from the file.

use super::atomic::{self, json};
use super::comparison::{COMPARISON, Comparison};
use super::measure::{Measure, MeasureValue, Scale};
pub use super::names::{COMPARISONS, QUALITY};
use crate::error::{Error, IoContext, Result};
use crate::statistics::{Direction, Interval, PowerPlan, QualityVerdict};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A baseline and a candidate, trained on the same seeds in pairs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityComparison {
    /// Name: the recipe's unless the user gave another.
    pub name: String,
    /// Name of its folder.
    pub id: String,
    /// Reason why the change should matter, stored before the first run.
    pub hypothesis: Option<String>,
    /// The prediction as it was written, such as `better` or `val_loss -0.05..-0.01`.
    pub predicts: Option<String>,
    /// True if the prediction held. Blank without one, and where it cannot be judged.
    pub prediction_held: Option<bool>,
    /// The arm that is compared with.
    pub baseline: QualityArm,
    /// The changed arm.
    pub candidate: QualityArm,
    /// Keys that differ between the arms, as `key: baseline → candidate`.
    pub changes: Vec<String>,
    /// What the two runs of a pair share of their random numbers, in words: initial values, order of the
    /// data, masks of dropout. Blank if it is not known.
    pub shared_randomness: Option<String>,
    /// The number of pairs, fixed before the first run.
    pub design: Design,
    /// Probability, chosen before the first run, that all intervals hold together; of a joint question, that
    /// each does.
    pub confidence: f64,
    /// The comparison, as `NAME/ID`, that this one repeats with fresh seeds; blank for a first one.
    pub confirms: Option<String>,
    /// Earlier comparisons of the same change that were stored when this one began, oldest first.
    pub history: Vec<EarlierComparison>,
    /// What ran it.
    pub provenance: Provenance,
    /// What was planned before the first run.
    #[serde(default)]
    pub plan: Option<QualityPlan>,
    /// Pairs from which the deviation was estimated for the plan; no verdict uses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pilot: Vec<Pair>,
    /// All pairs, in the order in which they count.
    pub pairs: Vec<Pair>,
    /// The verdict on each measure, in the order in which they were asked for.
    pub measures: Vec<JudgedMeasure>,
    /// The verdict on the one question that a speed and other measures are together: faster, and no worse?
    /// Blank without a speed, or with nothing else.
    pub joint: Option<JointVerdict>,
    /// Counts of diverged runs; blank until a run has diverged.
    pub diverged: Option<DivergedRuns>,
    /// True once every run that the design asks for has ended.
    pub finished: bool,
    /// Remarks that do not change a verdict.
    pub notes: Vec<String>,
    /// The rule for intervals and verdicts, in words.
    pub rule: String,
}

/// One arm of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityArm {
    /// Label in tables.
    pub label: String,
    /// The recipe with its changed keys, as shown to people.
    pub command: String,
    /// The path of the recipe, or its built-in name.
    pub recipe: String,
    /// `section.key=value` arguments on top of it, without the seed of a pair.
    pub settings: Vec<String>,
    /// Hash of the resolved recipe with `training.seed = 0`: it identifies the arm whatever the seed.
    pub recipe_hash: String,
}

/// The number of pairs of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Design {
    /// As many pairs as were asked for, judged once.
    Fixed {
        /// Number of pairs.
        pairs: usize,
    },
    /// Judged after each pair, from the fourth on, until it is decided.
    Sequential {
        /// The largest number of pairs, fixed before the first run.
        max_pairs: usize,
        /// The looks so far.
        looks: Vec<Look>,
    },
}

/// A look of a sequential comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Number of pairs that it looked at.
    pub pairs: usize,
    /// True if no verdict is left to be reached by further pairs.
    pub stops: bool,
    /// The verdict on each measure so far, by its text.
    pub verdicts: BTreeMap<String, QualityVerdict>,
}

/// A pair: a run of each arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The baseline's run.
    pub baseline: PairedRun,
    /// The candidate's run.
    pub candidate: PairedRun,
}

/// A run of a pair. All is blank but the seed until the run has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairedRun {
    /// Its `training.seed`.
    pub seed: u64,
    /// `RECIPE/RUN` of the stored run.
    pub run: Option<String>,
    /// How it ended, in the words of the ledger: `ok`, `diverged`, `oom`, `killed`, …
    pub status: Option<String>,
    /// The reason of a status other than `ok`.
    pub reason: Option<String>,
    /// True if it was stored before this comparison began, and was used again.
    pub reused: bool,
    /// BLAKE3 of its `metrics.csv`: equal hashes are equal bits.
    pub metrics_hash: Option<String>,
    /// The value of each measure, by its text.
    pub values: BTreeMap<String, MeasureValue>,
}

/// The verdict on one measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedMeasure {
    /// The measure.
    pub measure: Measure,
    /// Unit of its values.
    pub unit: String,
    /// Which values are better.
    pub direction: Direction,
    /// How two values are compared.
    pub scale: Scale,
    /// Smaller differences do not matter: in the measure's unit, or as a share of the baseline's value on the
    /// scale of ratios. Blank where ranks are compared.
    pub min_effect: Option<f64>,
    /// Probability that the interval contains the true difference, after the correction for several measures.
    pub confidence: f64,
    /// Number of pairs with a value of both arms.
    pub pairs: usize,
    /// Mean of the baseline over these pairs; geometric on the scale of ratios.
    pub baseline: Option<f64>,
    /// Mean of the candidate over these pairs.
    pub candidate: Option<f64>,
    /// Mean difference of a pair with its interval: candidate - baseline, or candidate / baseline - 1 on the
    /// scale of ratios. Blank for fewer than two pairs, and where ranks are compared.
    pub interval: Option<Interval>,
    /// Standard deviation of the differences of pairs, of a sample; of logarithms on the scale of ratios.
    pub deviation: Option<f64>,
    /// The two-sided p-value of no difference, not corrected for several measures.
    pub p: Option<f64>,
    /// What the verdict rests on.
    pub basis: VerdictBasis,
    /// The verdict.
    pub verdict: QualityVerdict,
    /// Why the verdict is not what interval and smallest effect alone would give, or what is missing.
    pub because: Option<String>,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictBasis {
    /// Student's interval of the differences of pairs.
    Differences,
    /// The interval of a sequential design.
    Sequential,
    /// Exact ranks of what training took until a target.
    Ranks,
    /// The counts of diverged runs.
    DivergedRuns,
    /// Equal bits in every pair.
    SameBits,
    /// Nothing yet: too few pairs.
    Nothing,
}

/// The verdict on *faster, and no worse*: an intersection–union test, which needs no correction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JointVerdict {
    /// `better` where the speed is better, and every other interval lies above the smallest effect for the
    /// worse; `worse` where one measure is worse.
    pub verdict: QualityVerdict,
    /// In words.
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
    /// Two-sided p-value of the exact test on the pairs of which one run diverged.
    pub p: f64,
}

/// An earlier comparison of the same change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierComparison {
    /// `NAME/ID`.
    pub comparison: String,
    /// Number of pairs that it has values of.
    pub pairs: usize,
    /// Number of its seeds that this comparison has too.
    pub shared_seeds: usize,
    /// How it ended, such as `val_loss: better`; `did not finish`.
    pub ended: String,
}

/// What a comparison planned before its first run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QualityPlan {
    /// What the pairs can see, for each measure whose deviation is known from elsewhere.
    pub power: Vec<MeasurePlan>,
    /// Runs that the pairs ask for.
    pub runs: usize,
    /// Runs among them that were stored already.
    pub stored_runs: usize,
    /// Predicted time of the others, one after another, in seconds; blank where it is not known in advance.
    pub seconds: Option<f64>,
    /// Predicted energy of the others, in joules; blank where no power was measured.
    pub joules: Option<f64>,
}

/// The power plan of a measure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurePlan {
    /// The measure.
    pub measure: Measure,
    /// Where the deviation is from: a comparison, or pilot pairs.
    pub source: String,
    /// Pairs by deviation and smallest difference, on the scale on which differences are taken.
    pub plan: PowerPlan,
}

/// What ran a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of xrun.
    pub version: String,
    /// The commit of the sources; blank if unknown.
    pub commit: Option<String>,
    /// True if the sources differed from that commit; blank if unknown.
    pub dirty: Option<bool>,
    /// BLAKE3 of the binary.
    pub binary: Option<String>,
    /// The device class of the runs.
    pub device: Option<String>,
    /// Hash of the corpus of each arm, baseline first.
    pub corpus_hashes: Vec<String>,
    /// Time at which it began, UTC.
    pub began: String,
}

/// Returns the folders `RECIPE/RUN` of the runs of a comparison, of speed or of quality; none for the folder
/// of something else.
///
/// # Errors
/// When its file cannot be read.
pub fn compared_runs(folder: &Path) -> Result<Vec<String>> {
    let owned = |runs: Vec<&str>| runs.into_iter().map(str::to_owned).collect();
    Ok(match () {
        () if folder.join(QUALITY).is_file() => owned(QualityComparison::read(folder)?.runs()),
        () if folder.join(COMPARISON).is_file() => owned(Comparison::read(folder)?.runs()),
        () => Vec::new(),
    })
}

impl Pair {
    /// Returns both runs, the baseline's first.
    pub fn runs(&self) -> [&PairedRun; 2] {
        [&self.baseline, &self.candidate]
    }

    /// Returns true if both runs have ended.
    pub fn has_ended(&self) -> bool {
        self.runs().iter().all(|run| run.status.is_some())
    }

    /// Returns true if both runs have the same rows, to the bit.
    pub fn has_same_bits(&self) -> bool {
        self.baseline.metrics_hash.is_some() && self.baseline.metrics_hash == self.candidate.metrics_hash
    }
}

impl QualityComparison {
    /// Writes `quality.json` in the comparison's folder; a reader sees the old file or the new one.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        atomic::write(&folder.join(QUALITY), &json(self)?)
    }

    /// Reads `quality.json` from a comparison's folder.
    ///
    /// # Errors
    /// When it cannot be read, or is no comparison of quality.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(QUALITY);
        let text = std::fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text).map_err(|e| {
            Error::failed(format!("{}:{}: not a comparison of quality: {e}", path.display(), e.line()))
        })
    }

    /// Returns `NAME/ID`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.name, self.id)
    }

    /// Returns the hashes of both recipes without their seeds, which identify the change.
    pub fn change(&self) -> [&str; 2] {
        [&self.baseline.recipe_hash, &self.candidate.recipe_hash]
    }

    /// Returns every seed that a run of either arm has, without those of the pilot.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.pairs.iter().flat_map(Pair::runs).map(|run| run.seed).collect()
    }

    /// Returns the folders `RECIPE/RUN` of its runs, each once.
    pub fn runs(&self) -> Vec<&str> {
        let mut runs: Vec<&str> = Vec::new();
        for run in self.pairs.iter().flat_map(Pair::runs).filter_map(|run| run.run.as_deref()) {
            if !runs.contains(&run) {
                runs.push(run);
            }
        }
        runs
    }

    /// Returns the verdict on what was asked: the joint one, or that of the only measure; of several, `worse`
    /// if one is, else that which all have, else inconclusive.
    pub fn verdict(&self) -> QualityVerdict {
        if let Some(joint) = &self.joint {
            return joint.verdict;
        }
        let mut verdicts = self.measures.iter().map(|judged| judged.verdict);
        let Some(first) = verdicts.next() else { return QualityVerdict::Inconclusive };
        let rest: Vec<QualityVerdict> = verdicts.collect();
        match () {
            () if first == QualityVerdict::Worse || rest.contains(&QualityVerdict::Worse) => {
                QualityVerdict::Worse
            }
            () if rest.iter().all(|other| *other == first) => first,
            () => QualityVerdict::Inconclusive,
        }
    }
}
