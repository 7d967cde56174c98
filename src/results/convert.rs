//! Converts records of comparisons, `comparison.json` and `quality.json`, to `experiment.json`, once.
//!
//! The proof: the old record is made again from the new one, and has to be equal in every figure, to the bit.
//! What the new record does not hold, the last loss of a trial, has to be the last loss of its rows.

use super::experiment::{self as new, BASELINE, CANDIDATE, EXPERIMENT, Experiment, Finding};
use super::keep;
use super::measure::{Measure, MeasureValue, Scale};
use super::names::{COMPARISONS, KEPT, METRICS};
use super::{atomic, find, stored};
use crate::error::{Error, IoContext, Result};
use crate::statistics::{Direction, Interval, PowerPlan, Verdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The files that are converted.
const SPEED: &str = "comparison.json";
const QUALITY: &str = "quality.json";

/// Converts every comparison below a results folder, kept ones too, and returns their folders.
///
/// # Errors
/// For a record that cannot be read or written, or of which a figure would change.
pub fn convert(results: &Path) -> Result<Vec<PathBuf>> {
    let mut converted = Vec::new();
    for kept in [None, Some(results.join(KEPT))] {
        let root = kept.as_deref().unwrap_or(results);
        for name in find::subfolders(&root.join(COMPARISONS))? {
            for folder in find::subfolders(&name)? {
                let is_old = |file: &str| folder.join(file).is_file();
                if !is_old(SPEED) && !is_old(QUALITY) {
                    continue;
                }
                match &kept {
                    Some(kept) => keep::rewrite(kept, &folder, |contents| rename(contents, root))?,
                    None => convert_in_place(&folder, root)?,
                }
                converted.push(folder);
            }
        }
    }
    Ok(converted)
}

fn convert_in_place(folder: &Path, root: &Path) -> Result<()> {
    let mut contents = Vec::new();
    for (file, _) in keep::plain_files(folder)? {
        let path = folder.join(&file);
        contents.push((std::fs::read(&path).at("read", &path)?, file));
    }
    for (bytes, file) in rename(contents.clone(), root)? {
        atomic::write(&folder.join(file), &bytes)?;
    }
    for (_, file) in contents
        .iter()
        .filter(|(_, file)| [SPEED, QUALITY].contains(&file.as_str()) || file.starts_with("turn-"))
    {
        let path = folder.join(file);
        std::fs::remove_file(&path).at("remove", &path)?;
    }
    Ok(())
}

/// Returns the files of a comparison with the new record, and the rows of external commands under their new
/// names.
fn rename(contents: keep::Contents, root: &Path) -> Result<keep::Contents> {
    let rows: BTreeMap<String, Vec<u8>> =
        contents.iter().map(|(bytes, file)| (file.clone(), bytes.clone())).collect();
    let convert = |(bytes, file): (Vec<u8>, String)| {
        Ok(match file.as_str() {
            SPEED => (converted_speed(&bytes, &rows, root)?, EXPERIMENT.to_owned()),
            QUALITY => (converted_quality(&bytes)?, EXPERIMENT.to_owned()),
            _ => (bytes, file.replace("turn-", "trial-")),
        })
    };
    contents.into_iter().map(convert).collect()
}

fn parse<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| Error::failed(format!("not a comparison: {e}")))
}

fn changed(what: &str) -> Error {
    Error::failed(format!("{what} would change"))
}

fn converted_speed(bytes: &[u8], rows: &BTreeMap<String, Vec<u8>>, root: &Path) -> Result<Vec<u8>> {
    let old: Comparison = parse(bytes)?;
    let experiment = from_speed(&old);
    let written = atomic::json(&experiment)?;
    let read = Experiment::parse(&written, Path::new(EXPERIMENT))?;
    let last_losses = old.trials.iter().map(|trial| trial.final_loss).collect();
    let again = to_speed(&read, last_losses);
    let known = Comparison { trials_planned: None, ..old };
    if again != known {
        return Err(changed(&format!("{known:#?}\n{again:#?}")));
    }
    for (at, trial) in known.trials.iter().enumerate() {
        let last = match &trial.run {
            Some(run) => last_loss(&root.join(run))?,
            None => {
                let text = rows.get(&format!("turn-{}.jsonl", at + 1)).cloned().unwrap_or_default();
                let lines: Vec<serde_json::Value> = text
                    .split(|b| *b == b'\n')
                    .filter_map(|line| serde_json::from_slice(line).ok())
                    .collect();
                lines.iter().rev().find_map(|line| line["loss"].as_f64())
            }
        };
        if last.map(f64::to_bits) != trial.final_loss.map(f64::to_bits) {
            return Err(changed(&format!(
                "the last loss of trial {} ({last:?}, {:?})",
                at + 1,
                trial.final_loss
            )));
        }
    }
    Ok(written)
}

/// Returns the loss in the last row of a run.
fn last_loss(run: &Path) -> Result<Option<f64>> {
    let bytes = stored::read(&run.join(METRICS))?;
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let headers = reader.headers().map_err(|e| Error::failed(e.to_string()))?.clone();
    let at = headers.iter().position(|name| name == "loss").ok_or_else(|| Error::failed("no loss"))?;
    let last = reader.records().filter_map(std::result::Result::ok).last();
    Ok(last.and_then(|row| row.get(at)?.parse::<f32>().ok()).map(f64::from))
}

fn from_speed(old: &Comparison) -> Experiment {
    let arm = |arm: &Arm| new::Arm {
        label: arm.label.clone(),
        command: arm.command.clone(),
        recipe_hash: arm.recipe_hash.clone(),
        commit: arm.commit.clone(),
        binary: arm.binary.clone(),
        device: Some(arm.device.clone()).filter(|device| !device.is_empty()),
        measured: arm.measured.clone(),
        ..new::Arm::default()
    };
    let run = |trial: &Trial| {
        let (status, reason) = match trial.status.split_once(": ") {
            Some((status, reason)) => (status.to_owned(), Some(reason.to_owned())),
            None => (trial.status.clone(), None),
        };
        new::ExperimentRun {
            arm: usize::from(trial.is_candidate),
            run: trial.run.clone(),
            status: Some(status),
            reason,
            metrics_hash: trial.metrics_hash.clone(),
            blocks: trial.blocks.clone(),
            ..new::ExperimentRun::default()
        }
    };
    let verdict = match old.verdict {
        CompareVerdict::Faster => Verdict::Better,
        CompareVerdict::Slower => Verdict::Worse,
        CompareVerdict::NoDifference => Verdict::NoDifference,
        CompareVerdict::Inconclusive => Verdict::Inconclusive,
    };
    let count = |side: bool| old.trials.iter().filter(|trial| trial.is_candidate == side).count();
    let speed = |measured: &BTreeMap<String, f64>| measured.get("tok_s").copied();
    let curves_verdict = match (old.gate.holds, old.gate.found.starts_with("the same bits")) {
        (Some(true), true) => Verdict::SameBits,
        (Some(true), false) => Verdict::NoDifference,
        (Some(false), _) => Verdict::Different,
        (None, _) => Verdict::Inconclusive,
    };
    let finding = |measure: Measure, min_effect, confidence| Finding {
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
        basis: new::VerdictBasis::Nothing,
        verdict: Verdict::Inconclusive,
        because: None,
    };
    Experiment {
        name: old.name.clone(),
        id: old.id.clone(),
        hypothesis: old.hypothesis.clone(),
        prediction: prediction(old.predicts.as_ref(), old.prediction_held),
        intent: new::Intent::Unknown,
        confirms: None,
        design: new::Design::Trials { trials: old.trials.len() },
        confidence: 0.95,
        rule: old.rule.clone(),
        arms: vec![arm(&old.baseline), arm(&old.candidate)],
        average: match old.average {
            Average::Median => new::Average::Median,
            Average::Mean => new::Average::Mean,
        },
        train_loss: match old.train_loss {
            TrainLoss::LastBatch => new::TrainLoss::LastBatch,
            TrainLoss::Smoothed => new::TrainLoss::Smoothed,
        },
        changes: old.changes.clone(),
        shared_randomness: None,
        history: Vec::new(),
        provenance: new::Provenance::default(),
        plan: None,
        pilot: Vec::new(),
        runs: old.trials.iter().map(run).collect(),
        findings: vec![
            Finding {
                pairs: count(false).min(count(true)),
                baseline: speed(&old.baseline.measured),
                candidate: speed(&old.candidate.measured),
                interval: old.ratio.map(|ratio| Interval {
                    estimate: ratio.estimate - 1.0,
                    low: ratio.low - 1.0,
                    high: ratio.high - 1.0,
                }),
                basis: if old.ratio.is_some() {
                    new::VerdictBasis::Trials
                } else {
                    new::VerdictBasis::Nothing
                },
                verdict,
                ..finding(Measure::SPEED, Some(old.min_effect), 0.95)
            },
            Finding {
                basis: new::VerdictBasis::Curves,
                verdict: curves_verdict,
                because: Some(old.gate.found.clone()),
                ..finding(Measure::LossCurves, old.gate.tolerance, 1.0)
            },
        ],
        joint: None,
        diverged: None,
        contended: old.contended.clone(),
        incomparable: old.incomparable.clone(),
        notes: old.notes.clone(),
        finished: old.finished,
    }
}

fn prediction(text: Option<&String>, held: Option<bool>) -> Option<new::RegisteredPrediction> {
    text.map(|text| new::RegisteredPrediction { text: text.clone(), held })
}

fn to_speed(experiment: &Experiment, last_losses: Vec<Option<f64>>) -> Comparison {
    let arm = |arm: &new::Arm| Arm {
        label: arm.label.clone(),
        command: arm.command.clone(),
        recipe_hash: arm.recipe_hash.clone(),
        commit: arm.commit.clone(),
        binary: arm.binary.clone(),
        device: arm.device.clone().unwrap_or_default(),
        measured: arm.measured.clone(),
    };
    let trial = |(run, final_loss): (&new::ExperimentRun, Option<f64>)| Trial {
        is_candidate: run.arm == CANDIDATE,
        run: run.run.clone(),
        status: match (&run.status, &run.reason) {
            (Some(status), Some(reason)) => format!("{status}: {reason}"),
            (status, _) => status.clone().unwrap_or_default(),
        },
        blocks: run.blocks.clone(),
        metrics_hash: run.metrics_hash.clone(),
        final_loss,
    };
    let speed = experiment.speed();
    let curves = experiment.curves();
    Comparison {
        name: experiment.name.clone(),
        id: experiment.id.clone(),
        hypothesis: experiment.hypothesis.clone(),
        predicts: experiment.prediction.as_ref().map(|one| one.text.clone()),
        prediction_held: experiment.prediction.as_ref().and_then(|one| one.held),
        baseline: arm(&experiment.arms[BASELINE]),
        candidate: arm(&experiment.arms[CANDIDATE]),
        changes: experiment.changes.clone(),
        finished: experiment.finished,
        average: match experiment.average {
            new::Average::Median => Average::Median,
            new::Average::Mean => Average::Mean,
        },
        train_loss: match experiment.train_loss {
            new::TrainLoss::LastBatch => TrainLoss::LastBatch,
            new::TrainLoss::Smoothed => TrainLoss::Smoothed,
        },
        trials_planned: None,
        trials: experiment.runs.iter().zip(last_losses).map(trial).collect(),
        ratio: speed.and_then(Finding::ratio).map(|ratio| RatioInterval {
            estimate: ratio.estimate,
            low: ratio.low,
            high: ratio.high,
        }),
        min_effect: speed.and_then(|speed| speed.min_effect).unwrap_or(f64::NAN),
        verdict: match experiment.verdict_words() {
            "faster" => CompareVerdict::Faster,
            "slower" => CompareVerdict::Slower,
            "no difference" => CompareVerdict::NoDifference,
            _ => CompareVerdict::Inconclusive,
        },
        gate: LossGate {
            tolerance: curves.and_then(|curves| curves.min_effect),
            holds: curves.and_then(Finding::holds),
            found: curves.and_then(|curves| curves.because.clone()).unwrap_or_default(),
        },
        contended: experiment.contended.clone(),
        incomparable: experiment.incomparable.clone(),
        notes: experiment.notes.clone(),
        rule: experiment.rule.clone(),
    }
}

fn converted_quality(bytes: &[u8]) -> Result<Vec<u8>> {
    let old: QualityComparison = parse(bytes)?;
    let written = atomic::json(&from_quality(&old))?;
    let again = to_quality(&Experiment::parse(&written, Path::new(EXPERIMENT))?);
    if again != old {
        return Err(changed(&format!("{old:#?}\n{again:#?}")));
    }
    Ok(written)
}

fn runs_from(pairs: &[Pair]) -> Vec<new::ExperimentRun> {
    let run = |arm: usize, run: &PairedRun| new::ExperimentRun {
        arm,
        seed: Some(run.seed),
        run: run.run.clone(),
        status: run.status.clone(),
        reason: run.reason.clone(),
        reused: run.reused,
        metrics_hash: run.metrics_hash.clone(),
        blocks: Vec::new(),
        values: run.values.clone(),
    };
    pairs.iter().flat_map(|pair| [run(BASELINE, &pair.baseline), run(CANDIDATE, &pair.candidate)]).collect()
}

fn pairs_from(runs: &[new::ExperimentRun]) -> Vec<Pair> {
    let run = |run: &new::ExperimentRun| PairedRun {
        seed: run.seed.unwrap_or(u64::MAX),
        run: run.run.clone(),
        status: run.status.clone(),
        reason: run.reason.clone(),
        reused: run.reused,
        metrics_hash: run.metrics_hash.clone(),
        values: run.values.clone(),
    };
    new::pairs_in(runs)
        .map(|pair| Pair { baseline: run(pair.baseline), candidate: run(pair.candidate) })
        .collect()
}

/// Converts a value through JSON, where the fields of both types have the same names.
fn through<A: Serialize, B: for<'a> Deserialize<'a>>(value: &A) -> B {
    let text = serde_json::to_string(value).unwrap_or_default();
    match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(e) => panic!("{e}: {text}"),
    }
}

fn from_quality(old: &QualityComparison) -> Experiment {
    let arm = |arm: &QualityArm| new::Arm {
        label: arm.label.clone(),
        command: arm.command.clone(),
        recipe: Some(arm.recipe.clone()),
        settings: arm.settings.clone(),
        seedless_hash: Some(arm.recipe_hash.clone()),
        ..new::Arm::default()
    };
    Experiment {
        name: old.name.clone(),
        id: old.id.clone(),
        hypothesis: old.hypothesis.clone(),
        prediction: prediction(old.predicts.as_ref(), old.prediction_held),
        intent: if old.confirms.is_some() { new::Intent::Confirmatory } else { new::Intent::Unknown },
        confirms: old.confirms.clone(),
        design: match &old.design {
            Design::Fixed { pairs } => new::Design::Pairs { pairs: *pairs },
            Design::Sequential { max_pairs, looks } => {
                new::Design::Sequential { max_pairs: *max_pairs, looks: through(looks) }
            }
        },
        confidence: old.confidence,
        rule: old.rule.clone(),
        arms: vec![arm(&old.baseline), arm(&old.candidate)],
        average: new::Average::Mean,
        train_loss: new::TrainLoss::Smoothed,
        changes: old.changes.clone(),
        shared_randomness: old.shared_randomness.clone(),
        history: through(&old.history),
        provenance: new::Provenance {
            version: Some(old.provenance.version.clone()),
            commit: old.provenance.commit.clone(),
            dirty: old.provenance.dirty,
            binary: old.provenance.binary.clone(),
            device: old.provenance.device.clone(),
            corpus_hashes: old.provenance.corpus_hashes.clone(),
            began: Some(old.provenance.began.clone()),
            ..new::Provenance::default()
        },
        plan: through(&old.plan),
        pilot: runs_from(&old.pilot),
        runs: runs_from(&old.pairs),
        findings: old.measures.iter().map(through).collect(),
        joint: through(&old.joint),
        diverged: through(&old.diverged),
        contended: Vec::new(),
        incomparable: Vec::new(),
        notes: old.notes.clone(),
        finished: old.finished,
    }
}

fn to_quality(experiment: &Experiment) -> QualityComparison {
    let arm = |arm: &new::Arm| QualityArm {
        label: arm.label.clone(),
        command: arm.command.clone(),
        recipe: arm.recipe.clone().unwrap_or_default(),
        settings: arm.settings.clone(),
        recipe_hash: arm.seedless_hash.clone().unwrap_or_default(),
    };
    let provenance = &experiment.provenance;
    QualityComparison {
        name: experiment.name.clone(),
        id: experiment.id.clone(),
        hypothesis: experiment.hypothesis.clone(),
        predicts: experiment.prediction.as_ref().map(|one| one.text.clone()),
        prediction_held: experiment.prediction.as_ref().and_then(|one| one.held),
        baseline: arm(&experiment.arms[BASELINE]),
        candidate: arm(&experiment.arms[CANDIDATE]),
        changes: experiment.changes.clone(),
        shared_randomness: experiment.shared_randomness.clone(),
        design: match &experiment.design {
            new::Design::Trials { trials: pairs } | new::Design::Pairs { pairs } => {
                Design::Fixed { pairs: *pairs }
            }
            new::Design::Sequential { max_pairs, looks } => {
                Design::Sequential { max_pairs: *max_pairs, looks: through(looks) }
            }
        },
        confidence: experiment.confidence,
        confirms: experiment.confirms.clone(),
        history: through(&experiment.history),
        provenance: Provenance {
            version: provenance.version.clone().unwrap_or_default(),
            commit: provenance.commit.clone(),
            dirty: provenance.dirty,
            binary: provenance.binary.clone(),
            device: provenance.device.clone(),
            corpus_hashes: provenance.corpus_hashes.clone(),
            began: provenance.began.clone().unwrap_or_default(),
        },
        plan: through(&experiment.plan),
        pilot: pairs_from(&experiment.pilot),
        pairs: pairs_from(&experiment.runs),
        measures: experiment.findings.iter().map(through).collect(),
        joint: through(&experiment.joint),
        diverged: through(&experiment.diverged),
        finished: experiment.finished,
        notes: experiment.notes.clone(),
        rule: experiment.rule.clone(),
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub name: String,
    pub id: String,
    pub hypothesis: Option<String>,
    pub predicts: Option<String>,
    pub prediction_held: Option<bool>,
    #[serde(rename = "before")]
    pub baseline: Arm,
    #[serde(rename = "after")]
    pub candidate: Arm,
    pub changes: Vec<String>,
    pub finished: bool,
    #[serde(default)]
    pub average: Average,
    #[serde(default)]
    pub train_loss: TrainLoss,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trials_planned: Option<usize>,
    #[serde(rename = "turns")]
    pub trials: Vec<Trial>,
    pub ratio: Option<RatioInterval>,
    pub min_effect: f64,
    pub verdict: CompareVerdict,
    pub gate: LossGate,
    pub contended: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomparable: Vec<String>,
    pub notes: Vec<String>,
    pub rule: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    #[default]
    Median,
    Mean,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainLoss {
    #[default]
    LastBatch,
    Smoothed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    pub label: String,
    pub command: String,
    pub recipe_hash: Option<String>,
    pub commit: Option<String>,
    pub binary: Option<String>,
    pub device: String,
    pub measured: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    #[serde(rename = "after")]
    pub is_candidate: bool,
    pub run: Option<String>,
    pub status: String,
    pub blocks: Vec<f64>,
    pub metrics_hash: Option<String>,
    pub final_loss: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioInterval {
    pub estimate: f64,
    pub low: f64,
    pub high: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareVerdict {
    Faster,
    Slower,
    NoDifference,
    Inconclusive,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossGate {
    pub tolerance: Option<f64>,
    pub holds: Option<bool>,
    pub found: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityComparison {
    pub name: String,
    pub id: String,
    pub hypothesis: Option<String>,
    pub predicts: Option<String>,
    pub prediction_held: Option<bool>,
    pub baseline: QualityArm,
    pub candidate: QualityArm,
    pub changes: Vec<String>,
    pub shared_randomness: Option<String>,
    pub design: Design,
    pub confidence: f64,
    pub confirms: Option<String>,
    pub history: Vec<EarlierComparison>,
    pub provenance: Provenance,
    #[serde(default)]
    pub plan: Option<QualityPlan>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pilot: Vec<Pair>,
    pub pairs: Vec<Pair>,
    pub measures: Vec<JudgedMeasure>,
    pub joint: Option<JointVerdict>,
    pub diverged: Option<DivergedRuns>,
    pub finished: bool,
    pub notes: Vec<String>,
    pub rule: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QualityArm {
    pub label: String,
    pub command: String,
    pub recipe: String,
    pub settings: Vec<String>,
    pub recipe_hash: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Design {
    Fixed { pairs: usize },
    Sequential { max_pairs: usize, looks: Vec<Look> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub pairs: usize,
    pub stops: bool,
    pub verdicts: BTreeMap<String, Verdict>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: PairedRun,
    pub candidate: PairedRun,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairedRun {
    pub seed: u64,
    pub run: Option<String>,
    pub status: Option<String>,
    pub reason: Option<String>,
    pub reused: bool,
    pub metrics_hash: Option<String>,
    pub values: BTreeMap<String, MeasureValue>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgedMeasure {
    pub measure: Measure,
    pub unit: String,
    pub direction: Direction,
    pub scale: Scale,
    pub min_effect: Option<f64>,
    pub confidence: f64,
    pub pairs: usize,
    pub baseline: Option<f64>,
    pub candidate: Option<f64>,
    pub interval: Option<Interval>,
    pub deviation: Option<f64>,
    pub p: Option<f64>,
    pub basis: VerdictBasis,
    pub verdict: Verdict,
    pub because: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictBasis {
    Differences,
    Sequential,
    Ranks,
    DivergedRuns,
    SameBits,
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JointVerdict {
    pub verdict: Verdict,
    pub found: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DivergedRuns {
    pub pairs: usize,
    pub baseline: usize,
    pub candidate: usize,
    pub p: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlierComparison {
    pub comparison: String,
    pub pairs: usize,
    pub shared_seeds: usize,
    pub ended: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QualityPlan {
    pub power: Vec<MeasurePlan>,
    pub runs: usize,
    pub stored_runs: usize,
    pub seconds: Option<f64>,
    pub joules: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasurePlan {
    pub measure: Measure,
    pub source: String,
    pub plan: PowerPlan,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub version: String,
    pub commit: Option<String>,
    pub dirty: Option<bool>,
    pub binary: Option<String>,
    pub device: Option<String>,
    pub corpus_hashes: Vec<String>,
    pub began: String,
}
