//! Ranks tasks by signal to noise over stored evaluations: how far recipes lie apart in a task, in units of
//! how much one recipe varies over its last checkpoints and over its seeds.

use crate::compare::stored_recipe;
use crate::error::{Error, IoContext, Result};
use crate::format::{Column, Table, decimal, plural, shortened, thousands};
use crate::regular;
use crate::statistics::{PlannedScores, PlannedSeeds, USUAL_CORRELATION, mean, variance};
use crate::task_evaluation::{EvaluationRecord, ScoredModel, TaskRecord};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// The most checkpoints of a run, from its end, that count as its last ones. Heineman et al. take 5 of small
/// models.
const LAST: usize = 5;

/// Folders below the one that is named in which evaluations are looked for.
const DEPTH: usize = 4;

/// The most evaluations that are read.
const MAX_EVALUATIONS: usize = 100_000;

/// Seeds of each side for which the table says what they see.
const SEEDS: usize = 4;

/// The confidence with which a difference is to be found.
const CONFIDENCE: f64 = 0.95;

/// Models of a task whose rows are read for the correlation of their answers.
const CORRELATED: usize = 8;

/// Characters of a name that a message shows.
const SHOWN: usize = 60;

/// Tasks, those with the most signal for their noise first.
#[derive(Clone, Debug, Serialize)]
pub struct NoiseTable {
    /// Number of evaluations that were read.
    pub evaluations: usize,
    /// The tasks.
    pub tasks: Vec<TaskNoise>,
    /// What the table must be read with.
    pub notes: Vec<String>,
}

/// Signal and noise of a task, in the unit of its figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskNoise {
    /// The task, with its examples and limit if evaluations differ in them.
    pub task: String,
    /// The figure that stands for it.
    pub metric: String,
    /// Recipes and runs that were evaluated on it.
    pub recipes: usize,
    pub runs: usize,
    /// Mean over recipes.
    pub mean: f64,
    /// Standard error over items of one model, as evaluations have it on average.
    pub items_error: Option<f64>,
    /// The largest difference between two recipes, each the mean over the last checkpoints of its runs;
    /// `None` for one recipe.
    pub signal: Option<f64>,
    /// Deviation of the last checkpoints of a run around their mean; `None` if no run has two.
    pub checkpoint_noise: Option<f64>,
    /// Deviation of the runs of a recipe, each the newest checkpoint, around their mean; `None` if no recipe
    /// has two.
    pub seed_noise: Option<f64>,
    /// `signal` over the larger noise.
    pub ratio: Option<f64>,
    /// Correlation over items of what they contribute to the figures of two models, the mean over pairs of
    /// runs; `None` if no two runs have the same items.
    pub correlation: Option<f64>,
    /// The smallest true difference that is found with a probability of 80 % between two checkpoints, and
    /// between two recipes of four seeds each.
    pub checkpoints_see: Option<f64>,
    pub four_seeds_see: Option<f64>,
}

/// A stored figure.
#[derive(Clone, Debug)]
struct Score {
    recipe: String,
    run: String,
    step: Option<u64>,
    value: f64,
    error: Option<f64>,
    clusters: usize,
}

/// Where the rows of a figure are.
#[derive(Clone, Debug)]
struct Rows {
    run: String,
    step: Option<u64>,
    folder: PathBuf,
    task: TaskRecord,
}

/// What evaluations have of a task.
#[derive(Clone, Debug, Default)]
struct Stored {
    metric: String,
    scores: Vec<Score>,
    rows: Vec<Rows>,
}

/// Ranks the tasks of all evaluations in these folders and below.
///
/// # Errors
/// If a folder or a summary cannot be read, or there is no evaluation.
pub fn noise(results: &Path, folders: &[PathBuf]) -> Result<NoiseTable> {
    let mut found = Vec::new();
    for folder in folders {
        evaluations(folder, DEPTH, &mut found)?;
    }
    found.sort();
    found.dedup();
    if found.is_empty() {
        let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Error::usage(format!(
            "there is no evaluation in {}; name folders that `xrun eval` wrote, or one that contains them",
            names.join(", ")
        )));
    }
    let mut tasks: BTreeMap<String, Stored> = BTreeMap::new();
    let mut unknown = 0;
    let without_seed = ["training.seed=0".to_owned()];
    for folder in &found {
        let record = EvaluationRecord::read(folder)?;
        let recipe = stored_recipe(results, &record.model);
        let hashes = recipe.and_then(|recipe| Some([recipe.hash_with(&without_seed).ok()?, recipe.hash()]));
        unknown += usize::from(hashes.is_none());
        let (recipe, run) = names(&record.model, hashes);
        for task in &record.tasks {
            let Some((value, figure)) = task.headline().and_then(|figure| Some((figure.value?, figure)))
            else {
                continue;
            };
            let stored = tasks.entry(name(task)).or_default();
            stored.metric.clone_from(&task.metric);
            stored.scores.push(Score {
                recipe: recipe.clone(),
                run: run.clone(),
                step: record.model.step,
                value,
                error: figure.error,
                clusters: figure.clusters,
            });
            let step = record.model.step;
            stored.rows.push(Rows { run: run.clone(), step, folder: folder.clone(), task: task.clone() });
        }
    }
    let ranked = tasks.into_iter().map(|(task, Stored { metric, scores, rows })| {
        let correlation = correlation(&rows)?;
        Ok(TaskNoise::new(task, metric, &scores, correlation))
    });
    let mut tasks: Vec<TaskNoise> = ranked.collect::<Result<_>>()?;
    tasks.sort_by(|a, b| b.ratio.unwrap_or(-1.0).total_cmp(&a.ratio.unwrap_or(-1.0)));
    let mut notes = Vec::new();
    if unknown > 0 {
        notes.push(format!(
            "{} evaluation{} of runs that are not in {}: runs with the same name of their recipe count as its seeds",
            thousands(unknown),
            plural(unknown),
            results.display()
        ));
    }
    Ok(NoiseTable { evaluations: found.len(), tasks, notes })
}

/// Finds the folders of evaluations in a folder.
fn evaluations(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if !regular::is_missing(&folder.join(EvaluationRecord::FILE)) {
        found.push(folder.to_owned());
        return match found.len() {
            n if n > MAX_EVALUATIONS => Err(Error::usage(format!(
                "{} and others have more than {} evaluations; name fewer",
                folder.display(),
                thousands(MAX_EVALUATIONS)
            ))),
            _ => Ok(()),
        };
    }
    if depth == 0 {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).at("read", folder)? {
        let entry = entry.at("read", folder)?;
        if entry.file_type().at("read", folder)?.is_dir() {
            evaluations(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}

/// Returns what tells recipes apart and what tells runs apart. `hashes` are those of a run's recipe without
/// its seed and with it: two runs of one recipe with one seed are one model. The moving average of a run's
/// weights is another, and folders in HuggingFace's form may have one name.
fn names(model: &ScoredModel, hashes: Option<[String; 2]>) -> (String, String) {
    let ScoredModel { name, step, weights, hash, .. } = model;
    // The name of a run is RECIPE/RUN.
    let [recipe, name] = hashes.unwrap_or_else(|| {
        let recipe = name.split_once('/').map_or(&**name, |(recipe, _)| recipe);
        [recipe.to_owned(), name.clone()]
    });
    let hash = hash.as_deref().filter(|_| step.is_none()).unwrap_or_default();
    (format!("{recipe} {weights}"), format!("{name} {weights} {hash}"))
}

/// Names a task with everything that makes its figures comparable.
fn name(task: &TaskRecord) -> String {
    let key = &task.key;
    let limit = key.limit.map_or(String::new(), |limit| format!(", first {}", thousands(limit)));
    let definition: String = key.definition.chars().take(6).collect();
    format!("{} ({} shots{limit}, {definition})", shortened(&key.task, SHOWN), key.shots)
}

/// Returns how alike the answers of different runs are, each at its newest checkpoint.
fn correlation(rows: &[Rows]) -> Result<Option<f64>> {
    let mut newest: BTreeMap<&str, &Rows> = BTreeMap::new();
    for rows in rows {
        let kept = newest.entry(&rows.run).or_insert(rows);
        if kept.step < rows.step {
            *kept = rows;
        }
    }
    let mut items: Vec<Vec<(String, f64)>> = Vec::new();
    for rows in newest.values().take(CORRELATED) {
        let rows = rows.task.read_rows(&rows.folder)?;
        items.extend(rows.into_iter().map(|row| Some((row.item, row.adds?[0]))).collect::<Option<Vec<_>>>());
    }
    let pairs = (0..items.len()).flat_map(|one| (0..one).map(move |other| (one, other)));
    let found: Vec<f64> = pairs.filter_map(|(one, other)| correlated(&items[one], &items[other])).collect();
    Ok((!found.is_empty()).then(|| mean(&found)))
}

/// Returns the correlation of two models over the same items.
fn correlated(one: &[(String, f64)], other: &[(String, f64)]) -> Option<f64> {
    if one.len() != other.len() || one.iter().zip(other).any(|(a, b)| a.0 != b.0) {
        return None;
    }
    let values = |items: &[(String, f64)]| items.iter().map(|(_, value)| *value).collect::<Vec<f64>>();
    let [a, b] = [values(one), values(other)];
    let differences: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
    let [a, b, apart] = [&a, &b, &differences].map(|values| variance(values));
    Some((a + b - apart) / (2.0 * (a * b).sqrt())).filter(|correlation| correlation.is_finite())
}

impl TaskNoise {
    fn new(task: String, metric: String, scores: &[Score], correlation: Option<f64>) -> Self {
        let mut recipes: BTreeMap<&str, BTreeMap<&str, Vec<&Score>>> = BTreeMap::new();
        for score in scores {
            recipes.entry(&score.recipe).or_default().entry(&score.run).or_default().push(score);
        }
        let mut levels = Vec::new();
        let (mut checkpoints, mut seeds) = (Pooled::default(), Pooled::default());
        let mut runs = 0;
        for runs_of_recipe in recipes.values_mut() {
            let (mut last, mut newest) = (Vec::new(), Vec::new());
            for run in runs_of_recipe.values_mut() {
                run.sort_by_key(|score| score.step);
                // Two evaluations of a checkpoint, such as on two devices, are one.
                run.dedup_by_key(|score| score.step);
                let values: Vec<f64> = run.iter().rev().take(LAST).map(|score| score.value).collect();
                checkpoints.add(&values);
                last.push(mean(&values));
                newest.extend(values.first());
                runs += 1;
            }
            seeds.add(&newest);
            levels.push(mean(&last));
        }
        let [checkpoint_noise, seed_noise] = [checkpoints, seeds].map(|pooled| pooled.deviation());
        let most = levels.iter().copied().fold(f64::MIN, f64::max);
        let least = levels.iter().copied().fold(f64::MAX, f64::min);
        let signal = (levels.len() > 1).then_some(most - least);
        let noise =
            checkpoint_noise.into_iter().chain(seed_noise).reduce(f64::max).filter(|noise| *noise > 0.0);
        let errors: Vec<f64> = scores.iter().filter_map(|score| score.error).collect();
        let items_error = Some(mean(&errors)).filter(|error| error.is_finite());
        let alike = correlation.unwrap_or(USUAL_CORRELATION);
        let plan = |noise: Option<f64>| {
            let error = items_error?;
            // Runs vary by their items too, and that part of their deviation would shrink with more items.
            let by_items = error * error * (1.0 - alike);
            let seeds = noise.map(|noise| {
                let deviation = (noise * noise - by_items).max(0.0).sqrt();
                PlannedSeeds { count: SEEDS, deviation }
            });
            let clusters = scores.iter().map(|score| score.clusters).min()?;
            PlannedScores { error, clusters, correlation: alike, seeds }.smallest_seen(CONFIDENCE)
        };
        Self {
            task,
            metric,
            recipes: recipes.len(),
            runs,
            mean: mean(&levels),
            items_error,
            signal,
            checkpoint_noise,
            seed_noise,
            ratio: signal.zip(noise).map(|(signal, noise)| signal / noise),
            correlation,
            checkpoints_see: plan(None),
            four_seeds_see: seed_noise.and_then(|noise| plan(Some(noise))),
        }
    }
}

/// Variances of several groups, each around its own mean.
#[derive(Clone, Copy, Debug, Default)]
struct Pooled {
    squares: f64,
    freedom: usize,
}

impl Pooled {
    fn add(&mut self, values: &[f64]) {
        if values.len() > 1 {
            self.freedom += values.len() - 1;
            self.squares += variance(values) * (values.len() - 1) as f64;
        }
    }

    fn deviation(&self) -> Option<f64> {
        (self.freedom > 0).then(|| (self.squares / self.freedom as f64).sqrt()).filter(|x| x.is_finite())
    }
}

impl fmt::Display for NoiseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Column::{Left, Right};
        let mut table =
            Table::new(&[Left, Left, Right, Right, Right, Right, Right, Right, Right, Right, Right, Right]);
        table.row([
            "task",
            "metric",
            "recipes",
            "runs",
            "mean",
            "signal",
            "checkpoints",
            "seeds",
            "signal/noise",
            "correlation",
            "2 checkpoints see",
            "4 seeds see",
        ]);
        for task in &self.tasks {
            let number = |value: Option<f64>| decimal(value, 4);
            table.row([
                task.task.clone(),
                task.metric.clone(),
                thousands(task.recipes),
                thousands(task.runs),
                number(Some(task.mean)),
                number(task.signal),
                number(task.checkpoint_noise),
                number(task.seed_noise),
                decimal(task.ratio, 1),
                decimal(task.correlation, 2),
                number(task.checkpoints_see),
                number(task.four_seeds_see),
            ]);
        }
        f.write_str(&table.render(0))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(recipe: &str, run: &str, step: u64, value: f64) -> Score {
        let text = |text: &str| text.to_owned();
        Score {
            recipe: text(recipe),
            run: text(run),
            step: Some(step),
            value,
            error: Some(0.015),
            clusters: 100,
        }
    }

    #[test]
    fn signal_lies_between_recipes_and_noise_within_them() {
        let scores = [
            score("a", "a/1", 10, 0.30),
            score("a", "a/1", 20, 0.34),
            score("a", "a/2", 20, 0.36),
            score("b", "b/1", 20, 0.50),
            // The same checkpoint on another device.
            score("b", "b/1", 20, 0.50),
        ];
        let found = TaskNoise::new("t".to_owned(), "acc".to_owned(), &scores, Some(0.5));
        assert_eq!((found.recipes, found.runs), (2, 3));
        let near = |value: Option<f64>, expected: f64| (value.unwrap() - expected).abs() < 1e-12;
        // Recipe a: the mean of 0.32 and 0.36.
        assert!(near(found.signal, 0.16) && (found.mean - 0.42).abs() < 1e-12);
        assert!(near(found.checkpoint_noise, (2.0f64 * 0.02 * 0.02).sqrt()));
        assert!(near(found.seed_noise, (2.0f64 * 0.01 * 0.01).sqrt()));
        assert!(near(found.ratio, 0.16 / (0.02 * 2f64.sqrt())));
        // Four seeds a side, six degrees of freedom: 3.3 errors of √(2/4) deviations.
        let seen = found.four_seeds_see.unwrap() / found.seed_noise.unwrap() / 0.5f64.sqrt();
        assert!((3.0..3.6).contains(&seen), "{seen}");
        // Two checkpoints: 2.8 errors of 0.015, √2 (1 - 0.5)^½ times.
        assert!((found.checkpoints_see.unwrap() / 0.015 - 2.83).abs() < 0.05, "{:?}", found.checkpoints_see);
        let items = |values: [f64; 4]| values.iter().map(|x| ("i".to_owned(), *x)).collect::<Vec<_>>();
        let [a, b] = [items([1.0, 1.0, 0.0, 0.0]), items([1.0, 0.0, 0.0, 0.0])];
        assert!(near(correlated(&a, &a), 1.0) && near(correlated(&a, &b), 1.0 / 3f64.sqrt()));
        assert_eq!([correlated(&a, &b[..3]), correlated(&a, &items([0.0; 4]))], [None, None]);
        // Only the last five checkpoints count.
        let many: Vec<Score> =
            (0..9).map(|step| score("a", "a/1", step, if step < 4 { 0.0 } else { 0.5 })).collect();
        let one = TaskNoise::new("t".to_owned(), "acc".to_owned(), &many, None);
        assert_eq!((one.mean, one.checkpoint_noise), (0.5, Some(0.0)));
        assert_eq!((one.signal, one.seed_noise, one.ratio, one.four_seeds_see), (None, None, None, None));
    }

    #[test]
    fn a_repeated_run_is_no_other_seed() {
        let model = |name: &str, weights: &str| ScoredModel {
            name: name.to_owned(),
            step: Some(10),
            weights: weights.to_owned(),
            hash: None,
            tokenizer: String::new(),
            parameters: 1,
            dtype: "fp32".to_owned(),
            device: "cpu".to_owned(),
            context: 8,
            batch: [1, 48],
            xrun_version: String::new(),
        };
        let hashes = |seed: &str| Some(["recipe".to_owned(), format!("recipe and {seed}")]);
        let first = names(&model("r/1", "training"), hashes("seed 1"));
        assert_eq!(names(&model("r/2", "training"), hashes("seed 1")), first);
        let other = names(&model("r/3", "training"), hashes("seed 2"));
        assert!(other.0 == first.0 && other.1 != first.1);
        assert_ne!(names(&model("r/1", "ema"), hashes("seed 1")), first);
        // Without their recipes, runs count by their names.
        let unknown = |name| names(&model(name, "training"), None);
        assert!(unknown("r/1").0 == unknown("r/2").0 && unknown("r/1").1 != unknown("r/2").1);
    }

    #[test]
    fn folders_without_evaluations_are_said() {
        let place = tempfile::tempdir().unwrap();
        let error = noise(place.path(), &[place.path().to_owned()]).unwrap_err();
        assert!(error.message().contains("there is no evaluation in"), "{error}");
        assert!(noise(place.path(), &[place.path().join("missing")]).is_err());
    }
}
