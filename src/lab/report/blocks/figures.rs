//! Checks figures beside kept data that no block shows: figures of other blocks, or files that somebody put
//! there.

use super::examine::Examined;
use super::figure;
use super::fixes::remove;
use super::kept::{Source, unlisted_file};
use super::quality_figure;
use super::why::Why;
use crate::regular;
use crate::report::picture::files;
use crate::report::plots;
use crate::results::experiment::{COMPARISONS, EXPERIMENT, Experiment};
use crate::results::folder::PLOTS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Finds figures that no block shows and that the data beside them does not draw. Adds them as faults to the
/// first block that uses this data. Returns the figures that blocks show.
pub fn check<'b>(blocks: impl Iterator<Item = &'b mut Examined>) -> BTreeSet<PathBuf> {
    let mut blocks: Vec<&mut Examined> = blocks.collect();
    let figures = blocks.iter().flat_map(|block| &block.rendered.figures);
    let shown: BTreeSet<PathBuf> = figures.map(|(path, _)| path.clone()).collect();
    let mut seen = BTreeSet::new();
    for block in &mut blocks {
        for source in &block.rendered.sources {
            if !source.figures.is_empty() && seen.insert(source.id.clone()) {
                block.hard.extend(not_drawn(source, &shown));
            }
        }
    }
    shown
}

/// Returns the figures of several comparisons or runs that are not in `shown`.
pub fn stray(kept: &Path, shown: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(kept.join(COMPARISONS).join(PLOTS)).into_iter().flatten().flatten();
    let mut stray: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| !shown.contains(path)).collect();
    stray.sort();
    stray
}

/// Returns a fault for each file in a source's folder of figures that is neither in `shown` nor drawn by its
/// data.
fn not_drawn(source: &Source, shown: &BTreeSet<PathBuf>) -> Vec<Why> {
    let others: Vec<&PathBuf> = source.figures.iter().filter(|path| !shown.contains(*path)).collect();
    if others.is_empty() {
        return Vec::new();
    }
    let drawn = drawn(&source.folder);
    let fault = |path: &&PathBuf| match drawn.iter().find(|(figure, _)| figure == *path) {
        None => Some(unlisted_file(path)),
        Some((_, svg))
            if regular::read(path, svg.len() as u64).is_ok_and(|there| there == svg.as_bytes()) =>
        {
            None
        }
        Some(_) => {
            let why = format!("no block shows {}, and its data does not draw it", path.display());
            Some(Why::fixed_by(why, remove(path)))
        }
    };
    others.iter().filter_map(fault).collect()
}

/// Returns the figures that the data in a folder draws, with their paths; none if the data cannot be read.
fn drawn(folder: &Path) -> Vec<(PathBuf, String)> {
    if folder.join(EXPERIMENT).is_file() {
        // The record was verified before, so a failure here needs no report.
        let Ok(comparison) = Experiment::read(folder) else { return Vec::new() };
        if comparison.has_trials() {
            let blocks = figure::blocks(&comparison).and_then(Result::ok).into_iter();
            let stem = folder.join(PLOTS).join(figure::BLOCKS);
            return blocks.flat_map(|svgs| files(&stem, svgs)).collect();
        }
        let drawn = |judged| {
            let svgs = quality_figure::pairs(&comparison, judged)?.ok()?;
            Some(files(&quality_figure::stem(folder, judged), svgs))
        };
        return comparison.findings.iter().filter_map(drawn).flatten().collect();
    }
    let pictures = plots::draw(folder).unwrap_or_default();
    let stem = |name: &str| folder.join(PLOTS).join(name);
    pictures.into_iter().flat_map(|one| files(&stem(&one.name), one.svgs)).collect()
}
