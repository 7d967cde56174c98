//! Marks the items that a training text has, and computes the figure of a task without them.

use super::folder::Folder;
use super::record::{FigureRecord, ItemRow, MarkedItems, TaskKey, TaskRecord};
use crate::error::{Error, Result};
use crate::tasks::{Contribution, Figure, Metric};
use std::collections::BTreeSet;

impl Folder {
    /// Marks the rows of a finished task by whether a corpus has their items. `found` has the hashes of those
    /// that it has.
    ///
    /// # Errors
    /// If the task has no rows, they cannot be read or written, or another process writes into the folder.
    pub fn mark(&mut self, key: &TaskKey, corpus: &str, found: &BTreeSet<String>) -> Result<()> {
        self.lock()?;
        let Some(task) = self.task(key).cloned() else {
            return Err(Error::failed(format!("task {} has no rows to mark", key.task)));
        };
        let mut rows = task.read_rows(&self.path)?;
        rows.iter_mut().for_each(|row| row.contaminated = Some(found.contains(&row.item)));
        let count = rows.iter().filter(|row| row.contaminated == Some(true)).count();
        let clean = clean_figure(&task, &rows)?;
        let marked = MarkedItems { corpus: corpus.to_owned(), found: count, clean };
        self.store(TaskRecord { contamination: Some(marked), ..task }, &rows)
    }
}

/// Computes the figure that stands for a task of the rows that are not marked.
fn clean_figure(task: &TaskRecord, rows: &[ItemRow]) -> Result<Option<FigureRecord>> {
    let metric = Metric::ALL.into_iter().find(|metric| metric.word() == task.metric);
    let metric = metric.ok_or_else(|| Error::failed(format!("there is no metric {}", task.metric)))?;
    let clean = || rows.iter().filter(|row| row.contaminated == Some(false));
    let contributions = clean().map(|row| row.adds.map(|[value, weight]| Contribution { value, weight }));
    let Some(contributions) = contributions.collect::<Option<Vec<_>>>() else { return Ok(None) };
    let clusters: Vec<usize> = clean().map(|row| row.cluster).collect();
    let chance = task.headline().and_then(|figure| figure.chance);
    Ok(Figure::new(metric, &contributions, &clusters, chance).as_ref().map(FigureRecord::new))
}

#[cfg(test)]
mod tests {
    use super::super::folder::tests::scored;
    use super::*;

    #[test]
    fn marked_items_are_left_out_of_the_clean_figure() {
        let folder = tempfile::tempdir().unwrap();
        let (mut evaluation, key) = scored(folder.path(), &[1.0, 0.0, 1.0, 1.0]);
        let found = BTreeSet::from(["item 0".to_owned(), "item 2".to_owned(), "another".to_owned()]);
        evaluation.mark(&key, "books", &found).unwrap();
        let task = &evaluation.record_of(&[&key]).tasks[0];
        assert_eq!(task.headline().unwrap().value, Some(0.75));
        let marked = task.contamination.as_ref().unwrap();
        let clean = marked.clean.as_ref().unwrap();
        assert_eq!((marked.found, clean.items, clean.value), (2, 2, Some(0.5)));
        let rows = task.read_rows(folder.path()).unwrap();
        let marks: Vec<_> = rows.iter().map(|row| row.contaminated).collect();
        assert_eq!(marks, [true, false, true, false].map(Some));
        // Another corpus replaces the marks. Without clean items there is no figure.
        let all = (0..4).map(|number| format!("item {number}")).collect();
        evaluation.mark(&key, "web", &all).unwrap();
        let marked = evaluation.record_of(&[&key]).tasks[0].contamination.clone().unwrap();
        assert_eq!(marked, MarkedItems { corpus: "web".to_owned(), found: 4, clean: None });
    }
}
