//! Tasks that all evaluations have, of the same items with the same prompts.

use super::finding::Judged;
use super::side::{Side, StoredEvaluation};
use super::wins::WinCounts;
use crate::error::{Error, Result};
use crate::format::{shortened, thousands};
use crate::statistics::{ModelFigure, Pairing, TaskItems, crossed_difference, mean};
use crate::task_evaluation::{ItemRow, TaskRecord};
use crate::tasks::{Contribution, Metric, estimate};

/// Characters of a name that a message shows.
const SHOWN: usize = 60;

/// A task with the figures of both sides.
pub(super) struct SharedTask {
    /// Name of the task.
    pub name: String,
    /// The figure that stands for it.
    pub metric: Metric,
    /// The figure of a model that knows nothing.
    pub chance: Option<f64>,
    /// Its items.
    pub items: TaskItems,
    /// The figures of both sides' models, the baseline's first.
    pub figures: [Vec<ModelFigure>; 2],
    /// Items that one model has right and the other wrong; `None` unless the figure is an accuracy of one
    /// model a side.
    counts: Option<WinCounts>,
    /// True if no model is better than chance.
    pub is_within_chance: bool,
}

/// A task in one of the evaluations.
#[derive(Clone, Copy)]
struct StoredTask<'a> {
    evaluation: &'a StoredEvaluation,
    task: &'a TaskRecord,
}

/// Returns the tasks that all evaluations have, and what is left out.
///
/// # Errors
/// If a named task is missing, no task is left, or the evaluations asked it differently.
pub(super) fn tasks(sides: [&Side; 2], named: Option<&[String]>) -> Result<(Vec<SharedTask>, Vec<String>)> {
    let all: Vec<&StoredEvaluation> = sides.iter().flat_map(|side| &side.evaluations).collect();
    let mut names: Vec<&str> = Vec::new();
    for task in all.iter().flat_map(|one| &one.record.tasks) {
        if !names.contains(&task.key.task.as_str()) {
            names.push(&task.key.task);
        }
    }
    let (mut shared, mut notes) = (Vec::new(), Vec::new());
    if let Some(named) = named {
        if let Some(missing) = named.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(Error::usage(format!(
                "no evaluation has the task {}; they have {}",
                shortened(missing, SHOWN),
                shortened(&names.join(", "), 4 * SHOWN)
            )));
        }
        names.retain(|name| named.iter().any(|one| one == name));
    }
    for name in names {
        let has = |one: &&StoredEvaluation| one.record.tasks.iter().any(|task| task.key.task == name);
        if let Some(lacking) = all.iter().find(|one| !has(one)) {
            let lacks = format!("{} lacks the task {}", lacking.folder.display(), shortened(name, SHOWN));
            if named.is_some() {
                return Err(Error::usage(format!("{lacks}; evaluate it there")));
            }
            notes.push(format!("{lacks}, so it is left out"));
            continue;
        }
        for stored in common(&all, name)? {
            shared.push(SharedTask::read(&stored, sides[0].evaluations.len())?);
        }
    }
    match shared.is_empty() {
        true => {
            Err(Error::usage("the evaluations have no task in common; evaluate both sides on the same tasks"))
        }
        false => Ok((shared, notes)),
    }
}

/// Returns each way in which all evaluations asked a task: the same examples and the same limit.
fn common<'a>(all: &[&'a StoredEvaluation], name: &str) -> Result<Vec<Vec<StoredTask<'a>>>> {
    let find = |evaluation: &&'a StoredEvaluation| {
        let evaluation: &'a StoredEvaluation = evaluation;
        let tasks = evaluation.record.tasks.iter().filter(|task| task.key.task == name);
        tasks.map(|task| StoredTask { evaluation, task }).collect::<Vec<StoredTask<'a>>>()
    };
    let stored: Vec<Vec<StoredTask<'a>>> = all.iter().map(find).collect();
    let ways = stored[0].iter().map(|first| {
        let same = |one: &&StoredTask<'a>| one.asked() == first.asked();
        stored.iter().map(|own| own.iter().find(same).copied()).collect::<Option<Vec<_>>>()
    });
    let ways: Vec<Vec<StoredTask<'a>>> = ways.flatten().collect();
    if ways.is_empty() {
        let first = stored[0][0];
        let differs = |own: &&Vec<StoredTask<'a>>| own.iter().all(|one| one.asked() != first.asked());
        let other = stored.iter().find(differs).map_or(first, |own| own[0]);
        return Err(other.refuse(
            &first,
            "asked with",
            &first.asked_in_words(),
            &other.asked_in_words(),
            "--shots and --limit",
        ));
    }
    Ok(ways)
}

impl StoredTask<'_> {
    fn asked(&self) -> (usize, Option<usize>) {
        (self.task.key.shots, self.task.key.limit)
    }

    fn asked_in_words(&self) -> String {
        let limit = self.task.key.limit;
        let items =
            limit.map_or_else(|| "all items".to_owned(), |n| format!("the first {} items", thousands(n)));
        format!("{} examples and {items}", self.task.key.shots)
    }

    /// Says in what this evaluation of the task differs from another one.
    fn refuse(&self, other: &Self, what: &str, theirs: &str, ours: &str, same: &str) -> Error {
        let [theirs, ours] = [theirs, ours].map(|value| shortened(value, SHOWN));
        Error::usage(format!(
            "{}: {what} {theirs} in {} and {ours} in {}, so the scores cannot be compared; evaluate both with the same {same}",
            shortened(&self.task.key.task, SHOWN),
            other.evaluation.folder.display(),
            self.evaluation.folder.display()
        ))
    }

    /// Checks that this evaluation asked the same questions as another one, apart from the items.
    fn check_asked_alike(&self, other: &Self) -> Result<()> {
        let [ours, theirs] = [self.task, other.task];
        if ours.key.definition != theirs.key.definition {
            let [a, b] = [&theirs.key.definition, &ours.key.definition];
            return Err(self.refuse(other, "its definition has the hash", a, b, "definition"));
        }
        if ours.metric != theirs.metric {
            return Err(self.refuse(other, "its figure is", &theirs.metric, &ours.metric, "definition"));
        }
        // Examples come from other rows than the items.
        let files = |task: &TaskRecord| {
            task.key.files.iter().map(|file| file.blake3.as_str()).collect::<Vec<_>>().join(" ")
        };
        let [a, b] = [files(theirs), files(ours)];
        if ours.key.shots > 0 && a != b {
            return Err(self.refuse(other, "its examples come from files with the hashes", &a, &b, "files"));
        }
        let context = |one: &Self| one.evaluation.record.model.context.to_string();
        let [a, b] = [context(other), context(self)];
        if ours.cut_items + theirs.cut_items > 0 && a != b {
            return Err(self.refuse(other, "prompts were cut to as many tokens as", &a, &b, "--max-len"));
        }
        Ok(())
    }

    fn rows(&self) -> Result<Vec<ItemRow>> {
        self.task.read_rows(&self.evaluation.folder)
    }

    /// Makes the model's figure of its rows.
    fn figure(&self, metric: Metric, rows: &[ItemRow]) -> Result<ModelFigure> {
        let contributions = rows.iter().enumerate().map(|(index, row)| match row.adds {
            Some([value, weight]) if value.is_finite() && weight.is_finite() => {
                Ok(Contribution { value, weight })
            }
            _ => Err(Error::usage(format!(
                "{}: item {} of {} has no number for {}, so there is no difference",
                self.evaluation.folder.display(),
                index + 1,
                shortened(&self.task.key.task, SHOWN),
                metric.word()
            ))),
        });
        let (value, influences) = estimate(metric, &contributions.collect::<Result<Vec<_>>>()?);
        Ok(ModelFigure { value, influences: vec![influences] })
    }
}

impl SharedTask {
    /// Reads a task's rows from all evaluations, of which the first `baselines` are the baseline's.
    fn read(stored: &[StoredTask<'_>], baselines: usize) -> Result<Self> {
        let first = stored[0];
        let name = &first.task.key.task;
        let metric = Metric::from_word(&first.task.metric).ok_or_else(|| {
            let [task, metric] = [name, &first.task.metric].map(|name| shortened(name, SHOWN));
            Error::usage(format!(
                "{}: {task} has the unknown figure {metric}",
                first.evaluation.folder.display()
            ))
        })?;
        let rows = first.rows()?;
        let clusters: Vec<usize> = rows.iter().map(|row| row.cluster).collect();
        let items =
            TaskItems { step: if metric.is_accuracy() { 1.0 / rows.len() as f64 } else { 0.0 }, clusters };
        let shares_passages = items.distinct_clusters() < rows.len();
        let (mut figures, mut counts) = ([Vec::new(), Vec::new()], None);
        for (index, one) in stored.iter().enumerate() {
            one.check_asked_alike(&first)?;
            let own;
            let own: &[ItemRow] = match index {
                0 => &rows,
                _ => {
                    own = one.rows()?;
                    &own
                }
            };
            if own.len() != rows.len() {
                let [a, b] = [rows.len(), own.len()].map(thousands);
                return Err(one.refuse(&first, "it has as many items as", &a, &b, "files"));
            }
            let differs = |(a, b): &(&ItemRow, &ItemRow)| a.item != b.item || a.cluster != b.cluster;
            if let Some((index, (a, b))) = rows.iter().zip(own).enumerate().find(|(_, pair)| differs(pair)) {
                let what = format!("item {} has the hash", index + 1);
                return Err(one.refuse(&first, &what, &a.item, &b.item, "files"));
            }
            figures[usize::from(index >= baselines)].push(one.figure(metric, own)?);
            if metric.is_accuracy() && (baselines, stored.len(), index) == (1, 2, 1) {
                counts = Some(WinCounts::of_items(&rows, own, shares_passages));
            }
        }
        let within = |one: &StoredTask<'_>| {
            one.task.headline().is_some_and(|figure| figure.within_chance == Some(true))
        };
        Ok(Self {
            name: name.clone(),
            metric,
            chance: first
                .task
                .headline()
                .and_then(|figure| figure.chance)
                .filter(|chance| chance.is_finite()),
            items,
            figures,
            counts,
            is_within_chance: stored.iter().all(within),
        })
    }

    /// Returns the mean figures of both sides and their difference.
    ///
    /// # Errors
    /// If there are fewer than two clusters of items.
    pub fn judged(&self, pairing: Pairing) -> Result<Judged> {
        let sides = [&self.figures[0][..], &self.figures[1][..]];
        let items = std::slice::from_ref(&self.items);
        let difference = crossed_difference(sides, items, pairing).ok_or_else(|| {
            Error::usage(format!(
                "{}: a difference needs finite figures of two items that share no passage; evaluate more items",
                shortened(&self.name, SHOWN)
            ))
        })?;
        Ok(Judged {
            name: self.name.clone(),
            metric: Some(self.metric),
            items: self.items.clusters.len(),
            clusters: self.items.distinct_clusters(),
            counts: self.counts,
            means: sides.map(|models| mean(&models.iter().map(|model| model.value).collect::<Vec<_>>())),
            difference,
            is_within_chance: self.is_within_chance,
        })
    }
}
