//! Reads kept comparisons with their kept runs.

use super::alike;
use super::fixes::restore;
use super::kept::{self, KeptRun, Source, renamed, unreadable};
use super::page_context::{PageContext, Rendered};
use super::provenance;
use super::text::{code, digits, kept_names, link_to, plain};
use super::why::Why;
use crate::results::experiment::{COMPARISONS, EXPERIMENT, Experiment};
use crate::results::find::subfolders;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A kept comparison.
pub struct KeptComparison {
    pub found: Experiment,
    pub source: Source,
    /// The kept runs of its trials or pairs, by `RECIPE/RUN`.
    pub runs: BTreeMap<String, KeptRun>,
}

impl KeptComparison {
    /// Reads the newest of the `wanted` comparisons called `NAME`, or `NAME/ID`.
    pub fn newest(
        context: &PageContext<'_>,
        name: &str,
        wanted: impl Fn(&Experiment) -> bool,
    ) -> Result<Self, Vec<Why>> {
        Self::read(context, &find_all(context.kept, name, wanted)?.swap_remove(0))
    }

    /// Verifies and reads a kept comparison and its runs. A run gets a fault if its manifest is not the one
    /// that the comparison's manifest lists.
    pub fn read(context: &PageContext<'_>, folder: &Path) -> Result<Self, Vec<Why>> {
        let source = Source::unchanged(context.kept, folder)?;
        let found = Experiment::read(folder).map_err(|e| unreadable(folder, &e))?;
        let own = found.full_name();
        let names = [source.named.as_str(), own.as_str()];
        let in_folder = source.id.strip_prefix(COMPARISONS).and_then(|id| id.strip_prefix('/'));
        if let Some(other) = names.into_iter().find(|name| Some(*name) != in_folder) {
            return Err(renamed(folder, &format!("the comparison {}", plain(other))));
        }
        let runs = kept_runs(context, &source, &found)?;
        let contradictions = (context.judge)(&found, context.kept);
        if !contradictions.is_empty() {
            let why = |what: &String| {
                let why = format!("{} does not agree with its runs: {what}", source.id);
                Why::fixed_by(why, restore(&[folder]))
            };
            return Err(contradictions.iter().map(why).collect());
        }
        Ok(Self { found, source, runs })
    }

    /// Returns the keys that it names as changed.
    pub fn changed_keys(&self) -> impl Iterator<Item = &str> {
        self.found.changes.iter().filter_map(|change| change.split(':').next())
    }

    /// Returns its changes, or `None` if there are none.
    pub fn changes(&self) -> Option<String> {
        let changes: Vec<String> = self.found.changes.iter().map(|change| code(change)).collect();
        (!changes.is_empty()).then(|| changes.join(", "))
    }

    /// Returns a link with this text to the commands that ran it.
    pub fn link(&self, context: &PageContext<'_>, text: &str) -> String {
        link_to(text, &context.link(&provenance::readme_or_folder(&self.source.folder)))
    }

    /// Returns name, verdict and hypothesis. If a block has one comparison, the line of origin links to it
    /// instead.
    pub fn heading(&self, context: &PageContext<'_>, is_single: bool) -> String {
        let name = match is_single {
            true => plain(&self.found.name),
            false => self.link(context, &self.found.name),
        };
        let mut text = format!("**{name}: {}**", self.found.verdict_words());
        if let Some(hypothesis) = &self.found.hypothesis {
            text += &format!("\n\n> {}", plain(hypothesis));
        }
        text + "\n\n"
    }
}

/// Returns the prediction of a comparison and its outcome by today's rules, in words. Where the record was
/// judged by earlier rules and they said otherwise, it says that too. `None` without a prediction.
pub fn predicted(found: &Experiment) -> Option<String> {
    let prediction = found.prediction.as_ref()?;
    let in_words = |held| match held {
        Some(true) => "held",
        Some(false) => "**falsified**",
        None => "open",
    };
    let held = found.prediction_held();
    let before = match prediction.held {
        stored if stored == held => String::new(),
        stored => format!(" (by the estimate alone: {})", in_words(stored)),
    };
    Some(format!("{}: {}{before}", code(&prediction.text), in_words(held)))
}

/// Returns the sources, faults and commits of a block of these comparisons.
pub fn sources<'a>(comparisons: impl IntoIterator<Item = &'a KeptComparison>) -> Rendered {
    let mut rendered = Rendered::default();
    for kept in comparisons {
        rendered.sources.push(kept.source.clone());
        rendered.add_runs(kept.runs.values());
    }
    rendered
}

/// Returns the line of origin of these comparisons. Arms of trials may have no kept runs, because they are
/// commands of their own.
pub fn origin<'a>(
    context: &PageContext<'_>,
    comparisons: impl IntoIterator<Item = &'a KeptComparison>,
) -> String {
    let comparisons: Vec<&KeptComparison> = comparisons.into_iter().collect();
    let runs: Vec<&KeptRun> = comparisons.iter().flat_map(|kept| kept.runs.values()).collect();
    let with_trials = comparisons.iter().filter(|kept| kept.found.has_trials());
    let arms: Vec<_> = with_trials.flat_map(|kept| &kept.found.arms).collect();
    let folders: Vec<&Path> = comparisons.iter().map(|kept| kept.source.folder.as_path()).collect();
    provenance::line(context, &runs, &arms, &folders)
}

/// Compares the runs of comparisons. They may differ in their seeds, in the keys that any comparison names as
/// changed, and in `across`.
pub fn compare_without_seeds(
    comparisons: &[KeptComparison],
    across: &[String],
) -> (Option<String>, Vec<Why>) {
    let across = alike::across(across, comparisons.iter().flat_map(KeptComparison::changed_keys));
    let runs = comparisons.iter().flat_map(|kept| kept.runs.values());
    alike::compare(&runs.map(alike::without_seeds).collect::<Vec<_>>(), &across)
}

/// Returns the folders of the `wanted` comparisons called `NAME`, newest first, or of `NAME/ID`; at least
/// one.
pub fn find_all(
    kept: &Path,
    name: &str,
    wanted: impl Fn(&Experiment) -> bool,
) -> Result<Vec<PathBuf>, Vec<Why>> {
    let all = kept.join(COMPARISONS);
    let folder = all.join(name);
    // A damaged record counts as wanted, so that reading it later reports the fault.
    let is_wanted = |folder: &PathBuf| {
        folder.join(EXPERIMENT).is_file() && Experiment::read(folder).map_or(true, |found| wanted(&found))
    };
    if is_wanted(&folder) {
        return Ok(vec![folder]);
    }
    let found: Vec<PathBuf> = folders(&folder).into_iter().rev().filter(is_wanted).collect();
    if found.is_empty() {
        let names: Vec<String> = folders(&all).iter().map(|folder| kept::id(&all, folder)).collect();
        let near = kept_names(name, names.iter().map(String::as_str));
        let why = format!("no comparison `{name}` is kept in {}{near}", all.display());
        return Err(vec![Why::fixed_by(why, format!("xrun keep {COMPARISONS}/{name}, or correct `select`"))]);
    }
    Ok(found)
}

/// Returns the folders inside a folder, sorted by name; none if it cannot be read.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = subfolders(folder).unwrap_or_default();
    folders.sort();
    folders
}

/// Returns the kept runs of a comparison, by `RECIPE/RUN`.
fn kept_runs(
    context: &PageContext<'_>,
    source: &Source,
    comparison: &Experiment,
) -> Result<BTreeMap<String, KeptRun>, Vec<Why>> {
    let runs = comparison.runs.iter();
    let named = runs.filter_map(|run| Some((run.run.as_deref()?, run.metrics_hash.as_deref())));
    let mut runs = BTreeMap::new();
    for (id, metrics_hash) in named {
        let folder = context.kept.join(id);
        if !folder.is_dir() {
            let why = format!("its run {id} is not kept in {}", context.kept.display());
            return Err(vec![Why::fixed_by(why, format!("xrun keep {id}"))]);
        }
        if !runs.contains_key(id) {
            let mut run = KeptRun::read(context.kept, &folder)?;
            let listed = source.runs.iter().find(|listed| listed.run == id);
            if let Some(listed) = listed.filter(|listed| listed.manifest != run.source.manifest) {
                let why = format!(
                    "{} is not the run that was compared: the hash of its manifest begins with {}, and {} lists {}",
                    folder.display(),
                    digits(&run.source.manifest),
                    source.folder.display(),
                    digits(&listed.manifest),
                );
                let fix = restore(&[&folder, &source.folder]);
                run.source.faults.push(Why::fixed_by(why, fix));
            }
            runs.insert(id.to_owned(), run);
        }
        if let (Some(listed), Some(run)) = (metrics_hash, runs.get_mut(id))
            && run.source.metrics.as_deref() != Some(listed)
        {
            let why =
                format!("the losses of {} are not the ones that {} compared", folder.display(), source.id);
            run.source.faults.push(Why::fixed_by(why, restore(&[&folder, &source.folder])));
        }
    }
    Ok(runs)
}
