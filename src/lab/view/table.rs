//! The table of runs, kept current, with what changed since a page last asked.

use super::documents::rows::{Layout, row};
use super::filter::matches;
use super::folder::{ResultsFolder, version};
use super::http::Refusal;
use crate::error::Result;
use crate::lock::lock;
use crate::results::collection::{Collection, Run};
use crate::results::find;
use crate::results::labels::Labeled;
use crate::results::names::{EXPERIMENT, LOG, METRICS, PROFILE, SUMMARY, TIMING};
use crate::sweep::{Memberships, TABLE};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The folder is read again at most this often, however many pages ask.
const MIN_REREAD_INTERVAL: Duration = Duration::from_secs(1);

/// The table of a results folder.
#[derive(Debug)]
pub struct LiveTable {
    pub folder: ResultsFolder,
    state: Mutex<Option<(Instant, Arc<Table>)>>,
}

/// The table at one moment. Revisions increase, even over restarts of the server, because the first one is
/// its start time in milliseconds.
#[derive(Debug, Default)]
pub struct Table {
    /// The newest change.
    revision: u64,
    /// The first revision that this server knows.
    first: u64,
    /// The runs as `xrun runs` reads them; filters and orders use these.
    collection: Collection,
    /// Their rows, newest first.
    pub runs: Vec<TableRun>,
    /// Indexes into `runs`, by `RECIPE/RUN`.
    places: HashMap<String, usize>,
    /// Columns and keys, and when they changed.
    layout: Changed<Layout>,
    /// Removed runs, with the revision in which each went.
    gone: Vec<(u64, String)>,
    comparisons: Changed<String>,
    sweeps: Changed<String>,
    /// The sweeps and comparisons of runs, read anew when these change.
    memberships: Arc<Memberships>,
    /// What cannot be shown, in sentences.
    damaged: Vec<String>,
}

/// A run of the table.
#[derive(Clone, Debug)]
pub struct TableRun {
    /// `RECIPE/RUN`.
    pub id: String,
    /// Its folder.
    pub path: PathBuf,
    /// Changes with its files, its status and its annotation.
    pub version: String,
    /// Its row.
    pub row: Value,
    /// The recipe that it ran and its name, for labels.
    recipe: String,
    name: String,
    settings: Vec<(String, Option<String>)>,
    /// The revision in which the row last changed.
    changed_in: u64,
}

impl TableRun {
    /// Returns what the run's label is made from.
    pub fn labeled(&self) -> Labeled<'_> {
        Labeled { recipe: &self.recipe, run: &self.name, settings: &self.settings }
    }
}

/// A value, and the revision in which it last changed.
#[derive(Debug, Default)]
struct Changed<T> {
    value: T,
    at: u64,
}

impl<T: PartialEq> Changed<T> {
    /// Wraps a value. Keeps the revision of `before` if the values are equal.
    fn new(value: T, before: &Self, revision: u64) -> Self {
        let at = if value == before.value { before.at } else { revision };
        Self { value, at }
    }
}

/// Returns a text that changes with everything that documents of a run show: its files, whether a process
/// works on it, and its annotation.
fn version_of_run(run: &Run) -> String {
    let files = version(&run.path, [SUMMARY, METRICS, TIMING, LOG, PROFILE]);
    let all = format!("{files} {} {:?}", run.status.as_str(), run.annotation);
    blake3::hash(all.as_bytes()).to_hex()[..16].to_owned()
}

fn now_in_milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or_default()
}

impl LiveTable {
    /// Creates the table of a folder, which is read on first use.
    pub fn new(folder: ResultsFolder) -> Self {
        Self { folder, state: Mutex::new(None) }
    }

    /// Returns the table as it is, or was a moment ago. Callers wait while another thread reads it.
    ///
    /// # Errors
    /// If the folder, or the lock of a run, cannot be read.
    pub fn current(&self) -> Result<Arc<Table>> {
        // Even after a panic, the state is a whole table or none.
        let mut state = lock(&self.state);
        if let Some((_, table)) = state.as_ref().filter(|(read, _)| read.elapsed() < MIN_REREAD_INTERVAL) {
            return Ok(table.clone());
        }
        let before = state.take().map(|(_, table)| table);
        let table = Arc::new(Table::read(&self.folder, before.as_deref())?);
        *state = Some((Instant::now(), table.clone()));
        Ok(table)
    }

    /// Returns the table that was read last, however long ago, or reads it. A page that filters already has
    /// this table, and asks for changes separately.
    ///
    /// # Errors
    /// If [`LiveTable::current`] fails.
    pub fn known(&self) -> Result<Arc<Table>> {
        let known = lock(&self.state).as_ref().map(|(_, table)| table.clone());
        known.map_or_else(|| self.current(), Ok)
    }
}

impl Table {
    /// Reads the table of a folder. Whatever equals `before` keeps its revision.
    ///
    /// # Errors
    /// If [`LiveTable::current`] would fail.
    fn read(folder: &ResultsFolder, before: Option<&Self>) -> Result<Self> {
        let start = Self::default();
        let (before, revision) = match before {
            Some(before) => (before, before.revision + 1),
            None => (&start, now_in_milliseconds()),
        };
        let mut collection = Collection::read(&folder.root)?;
        let mut damaged: Vec<String> =
            collection.unreadable.iter().map(|error| format!("{error}; left out of the list")).collect();
        let lost = find::without_summary(&folder.root)?;
        damaged.extend(lost.iter().map(|run| find::describe_loss(run, SUMMARY)));
        collection.runs.retain(|run| match folder.link_in_run(&run.path) {
            Some(link) => {
                damaged.push(format!("{} is left out: {} is a link", run.id, link.display()));
                false
            }
            None => true,
        });
        let stamps = |found: &[(String, PathBuf)], files: &[&'static str]| -> String {
            let stamp =
                |(id, path): &(String, PathBuf)| format!("{id} {}\n", version(path, files.iter().copied()));
            found.iter().map(stamp).collect()
        };
        let (compared, swept) = (folder.comparisons()?, folder.sweeps()?);
        let comparisons = Changed::new(stamps(&compared, &[EXPERIMENT]), &before.comparisons, revision);
        // The table of a sweep is written after every line of the ledger.
        let sweeps = Changed::new(stamps(&swept, &[TABLE]), &before.sweeps, revision);
        let memberships = if [comparisons.at, sweeps.at].contains(&revision) {
            let ledger = if swept.is_empty() { Ok(None) } else { folder.ledger() };
            // The pages of comparisons and sweeps say what cannot be read.
            Arc::new(Memberships::new(&compared, &swept, ledger))
        } else {
            before.memberships.clone()
        };
        memberships.set_in(&mut collection);
        let layout = Layout::new(&collection);
        let mut runs = Vec::with_capacity(collection.runs.len());
        for run in &collection.runs {
            let version = version_of_run(run);
            let row = row(run, &layout, &version);
            let same = before.run(&run.id).filter(|known| known.row == row);
            let changed_in = same.map_or(revision, |known| known.changed_in);
            runs.push(TableRun {
                id: run.id.clone(),
                path: run.path.clone(),
                version,
                row,
                recipe: run.recipe().to_owned(),
                name: run.name.clone(),
                settings: run.entry.settings.clone(),
                changed_in,
            });
        }
        let places: HashMap<String, usize> = runs.iter().map(|run| run.id.clone()).zip(0..).collect();
        let is_gone = |id: &String| !places.contains_key(id);
        let removed = before.runs.iter().map(|run| (revision, run.id.clone()));
        let gone = before.gone.iter().cloned().chain(removed).filter(|(_, id)| is_gone(id)).collect();
        Ok(Self {
            layout: Changed::new(layout, &before.layout, revision),
            comparisons,
            sweeps,
            memberships,
            revision,
            first: if before.first == 0 { revision } else { before.first },
            collection,
            runs,
            places,
            gone,
            damaged,
        })
    }

    /// Returns the run of this `RECIPE/RUN`.
    pub fn run(&self, id: &str) -> Option<&TableRun> {
        self.places.get(id).and_then(|place| self.runs.get(*place))
    }

    /// Returns the document `runs` for some or all of the runs.
    pub fn document<'a>(&self, results: &str, runs: impl IntoIterator<Item = &'a TableRun>) -> Value {
        json!({
            "results": results,
            "revision": self.revision,
            "columns": self.layout.value.columns(),
            "keys": self.layout.value.keys,
            "runs": runs.into_iter().map(|run| &run.row).collect::<Vec<_>>(),
            "damaged": self.damaged,
        })
    }

    /// Returns the document `matches`: ids of the runs that a filter keeps, in order.
    ///
    /// # Errors
    /// Refuses a filter that is too long.
    pub fn matches(&self, filter: &str, sort: &str) -> Result<Value, Refusal> {
        let found = matches(&self.collection, filter, sort)?;
        let ids: Vec<&str> = found.runs.iter().map(|run| run.id.as_str()).collect();
        Ok(json!({"revision": self.revision, "runs": ids, "problems": found.problems}))
    }

    /// Returns the document `changes`: what has changed since a revision.
    pub fn changes(&self, since: u64) -> Value {
        let is_known = (self.first..=self.revision).contains(&since) && self.layout.at <= since;
        let changed = self.runs.iter().filter(|run| is_known && run.changed_in > since);
        let gone = self.gone.iter().filter(|(at, _)| is_known && *at > since);
        json!({
            "revision": self.revision,
            "runs": changed.map(|run| &run.row).collect::<Vec<_>>(),
            "gone": gone.map(|(_, id)| id).collect::<Vec<_>>(),
            "all": !is_known,
            "comparisons": self.comparisons.at > since,
            "sweeps": self.sweeps.at > since,
        })
    }
}
