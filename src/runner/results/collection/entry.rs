//! What a list shows about a run, read from the run's files.

use crate::error::Result;
use crate::metrics::{self, Metric};
use crate::recipe::{
    self, COPY_HEADER, NO_CHECKPOINTS, NO_PLOTS, NO_RESUME, StoredKeys, UNSET, settings_outside_files,
    without_dashes,
};
use crate::regular;
use crate::results::columns::Figures;
use crate::results::folder::{ENVIRONMENT, METRICS, RECIPE, RESOLVED, SUMMARY, read_summary};
use crate::results::held_out::HeldOutSet;
use crate::results::provenance::Environment;
use crate::results::summary::{ForkedFrom, HeldOutPart, Summary};
use crate::results::{Status, stored};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The files behind an entry. `metrics.csv` is one of them because runs of earlier versions have no smoothed
/// training loss in their summary; it is derived from the rows.
const FILES: [&str; 5] = [SUMMARY, ENVIRONMENT, RECIPE, RESOLVED, METRICS];

/// A file's size, and the time of its last write and of the last change of its inode (`ctime`, which no
/// program can set), each in seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp(u64, [i64; 2], [i64; 2]);

/// The stamps of the files behind an entry; `None` for a missing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamps([Option<Stamp>; FILES.len()]);

impl Stamps {
    /// Reads the stamps of a run's files.
    pub fn read(run: &Path) -> Self {
        Self(FILES.map(|file| {
            let data = run.join(file).symlink_metadata().ok()?;
            let (written, changed) = ([data.mtime(), data.mtime_nsec()], [data.ctime(), data.ctime_nsec()]);
            Some(Stamp(data.len(), written, changed))
        }))
    }

    /// Returns when any of the files last changed, in seconds since 1970 and nanoseconds.
    pub fn newest(&self) -> [i64; 2] {
        let times = self.0.iter().flatten().map(|Stamp(_, written, changed)| *written.max(changed));
        times.max().unwrap_or_default()
    }
}

/// What lists know about a run without its folder: figures, settings, provenance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The status that the summary records.
    pub status: Status,
    /// Why the run did not end as planned, if it did not.
    pub reason: Option<String>,
    /// Steps trained.
    pub steps: u64,
    /// Steps that the recipe asks for.
    pub steps_planned: u64,
    /// The known figures in [`metrics::run_metrics`], by metric name and in their stored units.
    pub figures: BTreeMap<String, f64>,
    /// Further held-out sets and sources of the mixture, by name.
    pub sets: BTreeMap<String, SetEntry>,
    /// The known figures of tasks, by their columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scores: BTreeMap<String, f64>,
    /// Hash of the tokens that the run trained and evaluated on.
    pub corpus: Option<String>,
    /// The part of the held-out text that the validation loss covers; `None` for all of it.
    pub val_part: Option<HeldOutPart>,
    /// Where the run was forked from, if it is a fork.
    pub forked_from: Option<ForkedFrom>,
    /// What a reader should know: contended, never settled, worse than guessing.
    pub remarks: Vec<String>,
    /// The settings that are not in the recipe file. First those inherited from the runs that this one
    /// repeats, then those on its own command line, as typed.
    pub changed: Vec<String>,
    /// The device class.
    pub device: Option<String>,
    /// The commit that xrun was built from, with `-dirty` if the sources differed from it.
    pub commit: Option<String>,
    /// The keys in the stored recipe, in its order, each with its value as TOML; `None` for an unset key.
    pub settings: Vec<(String, Option<String>)>,
}

/// What lists know about a further held-out set or a source of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SetEntry {
    /// Hash of the set's tokens.
    pub hash: Option<String>,
    /// The part of the set that the losses cover; `None` for all of it.
    pub part: Option<HeldOutPart>,
    /// The known figures in [`metrics::set_metrics`], by metric name and in their stored units.
    pub figures: BTreeMap<String, f64>,
}

impl SetEntry {
    fn new(set: Option<&HeldOutSet>, name: &str, figures: &Figures) -> Self {
        let figures = known(metrics::set_metrics(), |metric| figures.get_for_set(metric, name));
        Self { hash: set.and_then(|set| set.hash.clone()), part: set.and_then(|set| set.part), figures }
    }
}

impl Entry {
    /// Reads the files of a run. Whatever cannot be read, except the summary, stays blank.
    ///
    /// # Errors
    /// If the summary cannot be read.
    pub fn read(run: &Path) -> Result<Self> {
        let summary = read_summary(run)?;
        let environment = Environment::read(run);
        let keys = text(run, RESOLVED).and_then(|resolved| StoredKeys::parse(&resolved).ok());
        let settings = keys.iter().flat_map(StoredKeys::iter);
        let figures = Figures::as_printed(&summary);
        let set = |name: &str| (name.to_owned(), SetEntry::new(summary.held_out.get(name), name, &figures));
        Ok(Self {
            status: summary.status,
            steps: summary.steps,
            steps_planned: summary.steps_planned,
            figures: known(metrics::run_metrics(), |metric| figures.get(metric)),
            sets: figures.sets().into_iter().map(set).collect(),
            scores: figures
                .scores()
                .into_iter()
                .filter_map(|column| figures.score(&column).map(|value| (column, value)))
                .collect(),
            val_part: summary.val_part,
            remarks: remarks(&summary).chain(unusable(run)).collect(),
            changed: changed(run, environment.as_ref()),
            device: environment.as_ref().map(Environment::device_class),
            commit: environment.and_then(|environment| {
                let dirty = if environment.build.dirty == Some(true) { "-dirty" } else { "" };
                Some(format!("{}{dirty}", environment.build.commit?))
            }),
            settings: settings.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).collect(),
            reason: summary.reason,
            corpus: summary.corpus_hash,
            forked_from: summary.forked_from,
        })
    }

    /// Returns true if the figure with this name is known.
    pub fn has_figure(&self, name: &str) -> bool {
        self.figures.contains_key(name)
    }

    /// Returns the value of a key in the stored recipe, with [`UNSET`] for an unset key; `None` if the recipe
    /// lacks the key.
    pub fn setting(&self, path: &str) -> Option<&str> {
        let (_, value) = self.settings.iter().find(|(key, _)| key == path)?;
        Some(value.as_deref().unwrap_or(UNSET))
    }
}

/// Returns the metrics that have a value, by name.
fn known(
    metrics: impl Iterator<Item = &'static Metric>,
    value: impl Fn(&Metric) -> Option<f64>,
) -> BTreeMap<String, f64> {
    // JSON has no infinite numbers, and an index with one could not be read.
    let finite = |metric: &Metric| value(metric).filter(|value| value.is_finite());
    metrics.filter_map(|metric| Some((metric.name.to_owned(), finite(metric)?))).collect()
}

/// Returns a text file of a run, kept or not; `None` if it cannot be read.
fn text(run: &Path, file: &str) -> Option<String> {
    String::from_utf8(stored::read(&run.join(file)).ok()?).ok()
}

/// Returns what a reader should know about a run besides its figures.
fn remarks(summary: &Summary) -> impl Iterator<Item = String> {
    let contended = summary.gpu.as_ref().is_some_and(|gpu| gpu.contended == Some(true));
    let marks = [
        (contended, "contended"),
        (summary.never_settled(), "speed never settled"),
        (summary.worse_than_guessing().is_some(), "worse than guessing"),
    ];
    marks.into_iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| mark.to_owned())
}

/// Names the files of a run that are not regular files or are too large to read. What they would say stays
/// blank.
fn unusable(run: &Path) -> impl Iterator<Item = String> {
    let is_unusable = |file: &&str| {
        let most = if *file == METRICS { regular::MAX_ROWS } else { regular::MAX_TEXT };
        let data = run.join(file).symlink_metadata();
        data.is_ok_and(|data| !data.is_file() || data.len() > most)
    };
    FILES.into_iter().filter(is_unusable).map(|file| format!("{file} cannot be read"))
}

/// Returns the settings that are not in a run's recipe file, without the ones that nobody typed.
fn changed(run: &Path, environment: Option<&Environment>) -> Vec<String> {
    let command = environment.map(|environment| environment.command.as_slice()).unwrap_or_default();
    let typed = typed(command);
    let key = |setting: &str| {
        let path = setting.split_once('=').map_or(setting, |(path, _)| path);
        recipe::find_path(path).map_or_else(|| path.to_owned(), |key| key.path.to_owned())
    };
    let own: BTreeSet<String> = typed.iter().map(|setting| key(setting)).collect();
    let copy = text(run, RECIPE).unwrap_or_default();
    let inherited = if copy.starts_with(COPY_HEADER) { settings_outside_files(&copy) } else { Vec::new() };
    let inherited = inherited.into_iter().filter(|set| !own.contains(&set.key));
    let all = inherited.map(|set| format!("{}={}", set.key, set.value)).chain(typed);
    all.filter(|setting| !is_set_by_parent(setting, command)).collect()
}

/// Returns true for a setting that nobody typed, because a sweep or a comparison gave it to a run that it
/// started.
fn is_set_by_parent(setting: &str, command: &[String]) -> bool {
    let is_started = command.get(1).is_some_and(|word| word == "--results")
        && command.last().is_some_and(|word| word == "--json");
    is_started && [NO_CHECKPOINTS, NO_PLOTS, NO_RESUME].contains(&setting.replace('"', "").as_str())
}

/// Returns the settings on the command line of a run.
fn typed(command: &[String]) -> Vec<String> {
    let words = without_dashes(command.iter().map(Into::into));
    let mut words = words.iter().map(|word| word.to_string_lossy().into_owned());
    let mut typed = Vec::new();
    while let Some(word) = words.next() {
        let seed = word.strip_prefix("--seed=").map(str::to_owned);
        let seed = if word == "--seed" { words.next() } else { seed };
        if let Some(seed) = seed {
            typed.push(format!("training.seed={seed}"));
        } else if !word.starts_with('-') && word.contains('=') {
            typed.push(word);
        }
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::held_out::MAIN_SET;
    use crate::results::summary::LossAt;
    use crate::results::summary::{SourceLosses, TrainingLosses};

    #[test]
    fn settings_of_a_command_line_are_found() {
        let words =
            ["xrun", "run", "mine.toml", "--seed", "3", "--model.dim", "64", "-q", "optimizer.lr=1e-3"];
        let command: Vec<String> = words.map(str::to_owned).into();
        assert_eq!(typed(&command), ["training.seed=3", "model.dim=64", "optimizer.lr=1e-3"]);
    }

    #[test]
    fn what_a_sweep_or_comparison_sets_itself_is_no_change() {
        let started = ["xrun", "--results", "r", "run", "a.toml", "--json"].map(str::to_owned);
        for setting in ["checkpoint.keep=0", "checkpoint.resume=\"never\"", "metrics.plots=false"] {
            assert!(is_set_by_parent(setting, &started), "{setting}");
            assert!(!is_set_by_parent(setting, &["xrun", "a.toml", setting].map(str::to_owned)), "{setting}");
        }
        assert!(
            !is_set_by_parent("checkpoint.keep=2", &started)
                && !is_set_by_parent("optimizer.lr=0.1", &started)
        );
    }

    #[test]
    fn held_out_sets_have_the_figures_of_the_summary() {
        let dir = tempfile::tempdir().unwrap();
        let mut summary = Summary::started("r", "20261102T030405Z-0123abcd", "0123abcd", 10);
        let mut news = HeldOutSet { hash: Some("ab".to_owned()), ..HeldOutSet::default() };
        news.part = Some(HeldOutPart { batches: 2, of: 40 });
        for name in [MAIN_SET, "unmeasured"] {
            summary.held_out.insert(name.to_owned(), news.clone());
        }
        news.add(LossAt { step: 1, loss: 2.3 });
        summary.held_out.insert("news".to_owned(), news.clone());
        (news.tokens, news.bytes) = (Some(1), Some(2));
        news.add(LossAt { step: 2, loss: 2.0 });
        summary.held_out.insert("bytes".to_owned(), news);
        let of = |loss| TrainingLosses::from_series([LossAt { step: 2, loss }]);
        for (name, losses) in [("news", of(1.7)), ("web", of(1.5)), ("unread", TrainingLosses::default())] {
            let losses = SourceLosses { losses, ..SourceLosses::default() };
            summary.source_losses.insert(name.to_owned(), losses);
        }
        std::fs::write(dir.path().join(SUMMARY), serde_json::to_vec(&summary).unwrap()).unwrap();
        let sets = Entry::read(dir.path()).unwrap().sets;
        assert_eq!(sets.keys().collect::<Vec<_>>(), ["bytes", "news", "unmeasured", "unread", "web"]);
        let known =
            |set: &str| sets[set].figures.iter().map(|(name, value)| (name.clone(), *value)).collect();
        let figure = |name: &str, value: f64| (name.to_owned(), value);
        let known: [Vec<(String, f64)>; 5] = ["bytes", "news", "unmeasured", "unread", "web"].map(known);
        let bits = 1.0 / std::f64::consts::LN_2;
        assert_eq!(known[0], [figure("bits_per_byte", bits), figure("val_loss", 2.0)]);
        // A training loss is a mean of f32 losses, in f64.
        let train = |loss: f32| figure("train_loss", loss.into());
        let news = vec![train(1.7), figure("val_loss", 2.3)];
        assert_eq!(known[1..], [news, vec![], vec![], vec![train(1.5)]], "the digits of the file");
        let part = Some(HeldOutPart { batches: 2, of: 40 });
        assert_eq!((sets["news"].hash.as_deref(), sets["news"].part), (Some("ab"), part));
    }

    #[test]
    fn what_is_not_there_stays_blank() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("r/20261102T030405Z-0123abcd");
        std::fs::create_dir_all(&run).unwrap();
        assert!(Entry::read(&run).is_err());
        let summary = Summary::started("r", "20261102T030405Z-0123abcd", "0123abcd", 10);
        std::fs::write(run.join(SUMMARY), serde_json::to_vec(&summary).unwrap()).unwrap();
        let read = Entry::read(&run).unwrap();
        assert_eq!((read.settings.len(), &read.device, &read.changed), (0, &None, &Vec::new()));
        assert!(read.figures.keys().eq(["steps", "tokens_seen"]));
        let stamps = Stamps::read(&run);
        assert!(stamps.newest() > [0, 0]);
        std::fs::write(run.join(RESOLVED), "[model]\ndim = 64\n# n_kv_heads is unset: `n_heads`\n").unwrap();
        assert_ne!(Stamps::read(&run), stamps);
        let read = Entry::read(&run).unwrap();
        assert_eq!(
            read.settings,
            [("model.dim".to_owned(), Some("64".to_owned())), ("model.n_kv_heads".to_owned(), None)]
        );
        let values = ["model.dim", "model.n_kv_heads", "model.norm"].map(|key| read.setting(key));
        assert_eq!(values, [Some("64"), Some(UNSET), None]);
    }
}
