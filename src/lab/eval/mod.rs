//! Evaluates a model on tasks: reads their items, scores what they ask, and keeps the scores of every item.
//!
//! All items are read before the first is scored, so a wrong file costs no time. Each finished task is
//! written at once and whole; an evaluation that was interrupted takes it from there.

mod contamination;
mod noise;
mod table;

pub use contamination::{Contamination, TaskContamination, TaskItems};
pub use noise::{NoiseTable, TaskNoise, noise};

use crate::error::{Error, Result};
use crate::results::names::{EVALUATIONS, file_part};
use crate::scoring::Scorer;
use crate::task_evaluation::{EvaluationRecord, Folder, TaskKey, score_task};
use crate::tasks::{Beginning, Definition, Encoder, Loaded, Prepared};
use crate::train::{ModelSource, ScoringModel};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

/// Digits of a hash in the name of a folder.
const HASH_DIGITS: usize = 8;

/// What to evaluate.
#[derive(Debug)]
pub struct EvalRequest {
    /// The model.
    pub source: ModelSource,
    /// The tasks, in the order in which they are shown.
    pub tasks: Vec<Definition>,
    /// The folder with the tasks' files.
    pub data: PathBuf,
    /// Examples in front of each item; `None` for each task's own number.
    pub shots: Option<usize>,
    /// The most items of each configuration of a task; `None` for all.
    pub limit: Option<usize>,
    /// The most tokens that the model reads at once; `None` for its context.
    pub max_len: Option<usize>,
    /// Where the evaluation is kept.
    pub out: Out,
    /// The items that training text has, to be marked.
    pub contamination: Option<Contamination>,
}

/// Where an evaluation is kept.
#[derive(Clone, Debug)]
pub enum Out {
    /// In this folder.
    Folder(PathBuf),
    /// In a folder named after the model, inside this folder of results.
    Results(PathBuf),
}

/// How far an evaluation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The task.
    pub task: &'a str,
    /// Requests of the task that are scored.
    pub done: usize,
    /// Requests of the task.
    pub of: usize,
}

/// A finished evaluation.
#[derive(Debug)]
pub struct Evaluation {
    /// The folder with its files.
    pub folder: PathBuf,
    /// The model, and the tasks that were asked for.
    pub record: EvaluationRecord,
    /// Names of the tasks whose stored rows were used.
    pub reused: Vec<String>,
    /// Where the time went.
    pub seconds: Seconds,
}

/// Seconds that the parts of an evaluation took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seconds {
    /// Opening the model's files and planning.
    pub open: f64,
    /// Reading items, and making tokens of their prompts.
    pub items: f64,
    /// Starting the device and reading weights.
    pub load: f64,
    /// Scoring, and writing rows.
    pub score: f64,
}

/// Evaluates a model on tasks.
///
/// # Errors
/// If the model or a task's files cannot be read, an item is wrong (the message has file and line), the model
/// does not fit the machine, or files cannot be written. Tasks that were finished before stay.
pub fn evaluate(request: &EvalRequest, mut watch: impl FnMut(Progress<'_>)) -> Result<Evaluation> {
    let mut seconds = Seconds::default();
    let generates = request.tasks.iter().any(|task| task.generation.is_some());
    let model = timed(&mut seconds.open, || ScoringModel::open(&request.source, request.max_len, generates))?;
    let beginning = match &request.source {
        ModelSource::Run(_) => Beginning::of_run(&model.tokenizer),
        ModelSource::Folder { .. } => Beginning::as_published(&model.tokenizer),
    };
    let encoder = Encoder::new(&model.tokenizer, beginning, model.model.context);
    let path = match &request.out {
        Out::Folder(path) => path.clone(),
        Out::Results(results) => results.join(EVALUATIONS).join(folder_name(&model)?),
    };
    let mut folder = Folder::open(path, &model.model)?;
    let prepared = request.tasks.iter().map(|task| Ready::read(task, request, &encoder, &folder));
    let prepared: Vec<Ready> = timed(&mut seconds.items, || prepared.collect::<Result<_>>())?;
    let marks = request.contamination.iter();
    let marks =
        marks.flat_map(|found| prepared.iter().map(|ready| Ok((&*found.corpus, found.found(&ready.key)?))));
    let marks: Vec<(&str, &BTreeSet<String>)> = marks.collect::<Result<_>>()?;
    if prepared.iter().any(|ready| ready.prepared.is_some()) {
        folder.lock()?;
    }
    let mut scorer = None;
    let mut reused = Vec::new();
    for ready in &prepared {
        let Ready { key, prepared } = ready;
        let Some(prepared) = prepared else {
            reused.push(key.task.clone());
            continue;
        };
        let scorer: &mut Scorer = match &mut scorer {
            Some(scorer) => scorer,
            empty => empty.insert(timed(&mut seconds.load, || model.scorer())?),
        };
        let of = prepared.asked();
        let mut see = |done| watch(Progress { task: &key.task, done, of });
        see(0);
        timed(&mut seconds.score, || {
            let scores = score_task(prepared, scorer, |done| {
                see(done);
                Ok(())
            })?;
            folder.add(key, &scores)
        })?;
    }
    for (ready, (corpus, found)) in prepared.iter().zip(marks) {
        folder.mark(&ready.key, corpus, found)?;
    }
    let keys: Vec<&TaskKey> = prepared.iter().map(|ready| &ready.key).collect();
    let record = folder.record_of(&keys);
    Ok(Evaluation { folder: folder.path, record, reused, seconds })
}

/// Adds the time that a function takes to a number of seconds.
fn timed<T>(seconds: &mut f64, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = run();
    *seconds += start.elapsed().as_secs_f64();
    result
}

/// A task that is ready to be scored, or whose stored rows are used.
struct Ready {
    key: TaskKey,
    prepared: Option<Prepared>,
}

impl Ready {
    /// Reads a task's files, and makes its requests unless the folder has its rows.
    fn read(
        definition: &Definition,
        request: &EvalRequest,
        encoder: &Encoder,
        folder: &Folder,
    ) -> Result<Self> {
        let shots = request.shots.unwrap_or(definition.examples.count);
        let loaded = Loaded::read(definition, &request.data, shots, request.limit)?;
        let key = TaskKey::new(definition, (shots, request.limit), &loaded.files);
        let prepared = match folder.has(&key)? {
            true => None,
            false => Some(loaded.prepare(encoder, shots, request.limit)?),
        };
        Ok(Self { key, prepared })
    }
}

/// Returns the name of the folder of a model's evaluation: the model, its step, and a hash of everything that
/// scores depend on.
fn folder_name(model: &ScoringModel) -> Result<String> {
    let json = serde_json::to_vec(&model.model)
        .map_err(|e| Error::failed(format!("cannot write the model's identity as JSON: {e}")))?;
    let hash = blake3::hash(&json).to_hex();
    let step = model.model.step.map_or(String::new(), |step| format!("-step-{step}"));
    Ok(format!("{}{step}-{}", file_part(&model.model.name), &hash[..HASH_DIGITS]))
}
