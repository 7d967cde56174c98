//! Lists what the blocks of a page show, for replay.

use super::comparison::StoredComparison;
use super::run::gpus_here;
use super::stored_run::StoredRun;
use super::target::Target;
use crate::compare;
use crate::error::Result;
use crate::report::blocks;
use crate::results::find;
use crate::results::names::{EXPERIMENT, KEPT};
use std::collections::BTreeMap;
use std::path::Path;

/// Something that a page's blocks show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path below the folder of kept results.
    pub id: String,
    /// What is replayed, or a sentence on why it is not.
    pub target: Result<Target, String>,
}

/// Everything that the blocks of a page show.
#[derive(Clone, Debug, Default)]
pub struct PageEntries {
    /// Each entry once, in the order of the page. Runs of a comparison on the page are left out because the
    /// comparison replays them.
    pub entries: Vec<Entry>,
    /// Blocks that kept files cannot make, and wrong markers, as `line N: why`.
    pub problems: Vec<String>,
}

/// Lists what the blocks of a page show.
///
/// # Errors
/// If the page or a kept file cannot be read.
pub fn entries(page: &Path, results: &Path) -> Result<PageEntries> {
    let kept = results.join(KEPT);
    let found = blocks::sources(page, &kept, compare::contradictions)?;
    let mut ids: Vec<String> = Vec::new();
    for id in found.ids {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let is_comparison = |id: &str| kept.join(id).join(EXPERIMENT).is_file();
    let mut runs_by_comparison = BTreeMap::new();
    for id in ids.iter().filter(|id| is_comparison(id)) {
        runs_by_comparison.insert(id.clone(), StoredComparison::read(&kept.join(id), results)?.runs);
    }
    let has_gpu = !gpus_here().is_empty();
    let mut entries = Vec::new();
    for id in ids {
        let folder = kept.join(&id);
        let (target, gpu) = if let Some(runs) = runs_by_comparison.get(&id) {
            let gpu = runs.values().find_map(|run| run.environment.gpu.clone());
            (Target::Comparison(folder.clone()), gpu)
        } else if find::has_summary(&folder) {
            if runs_by_comparison.values().any(|runs| runs.contains_key(&id)) {
                continue;
            }
            (Target::Run(folder.clone()), StoredRun::read(&folder)?.environment.gpu)
        } else {
            let why = "the rows of a sweep are not replayed; `xrun sweep` runs its cells".to_owned();
            entries.push(Entry { id, target: Err(why) });
            continue;
        };
        let target = match gpu.filter(|_| !has_gpu) {
            None => Ok(target),
            Some(gpu) => Err(format!(
                "recorded on {}, but this machine has no GPU; `xrun replay {}` runs it on the CPU",
                gpu.name,
                folder.display()
            )),
        };
        entries.push(Entry { id, target });
    }
    Ok(PageEntries { entries, problems: found.problems })
}
