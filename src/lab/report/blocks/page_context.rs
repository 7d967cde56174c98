//! What a block of a page is rendered with, and the rendered block.

use super::kept::{KeptRun, Source};
use super::text;
use super::why::Why;
use crate::error::Result;
use crate::report::picture::{self, Svgs};
use crate::results::experiment::Experiment;
use crate::results::names::{COMPARISONS, PLOTS};
use std::path::{Path, PathBuf};

/// What all blocks of a page are rendered with.
#[derive(Clone, Copy, Debug)]
pub struct PageContext<'a> {
    /// The folder of kept runs, sweeps and comparisons, such as `results/kept`.
    pub kept: &'a Path,
    /// The folder that contains the page.
    pub page: &'a Path,
    /// Judges kept comparisons again.
    pub judge: JudgeAgain,
}

/// Returns a sentence for each contradiction between a comparison's record and its runs, which lie in a
/// folder as `RECIPE/RUN`. What judges stands above reports, so callers pass it.
pub type JudgeAgain = fn(&Experiment, &Path) -> Vec<String>;

impl PageContext<'_> {
    /// Returns `to` as a relative link from the page.
    pub fn link(&self, to: &Path) -> String {
        text::link(self.page, to)
    }
}

/// Most characters of a selection in the name of a figure.
const MAX_SELECTION_CHARS: usize = 80;

/// Returns the path, without theme and extension, of a figure of several kept folders. Its name tells what
/// the block selects and what is drawn.
pub fn shared_figure_stem(kept: &Path, select: &[String], drawn: &str) -> PathBuf {
    let selected = select.join("+").replace('/', "-");
    // A selection that is too long for a file name is cut and gets a hash.
    let selected = match selected.char_indices().nth(MAX_SELECTION_CHARS) {
        Some((end, _)) => {
            format!("{}-{}", &selected[..end], &blake3::hash(selected.as_bytes()).to_hex()[..8])
        }
        None => selected,
    };
    kept.join(COMPARISONS).join(PLOTS).join(format!("{selected}-{drawn}").replace('/', "-"))
}

/// A block rendered from kept files.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// The Markdown.
    pub text: String,
    /// The kept folders whose data it shows.
    pub sources: Vec<Source>,
    /// Paths and contents of the SVG files that it links to.
    pub figures: Vec<(PathBuf, String)>,
    /// Problems of the kept data that forbid writing it into the page.
    pub faults: Vec<Why>,
    /// Commits of xrun that its numbers were measured with.
    pub commits: Vec<String>,
}

impl Rendered {
    /// Adds the sources, faults and commits of runs.
    pub fn add_runs<'a>(&mut self, runs: impl IntoIterator<Item = &'a KeptRun>) {
        for run in runs {
            self.sources.push(run.source.clone());
            self.faults.extend(run.source.faults.iter().cloned());
            self.commits.extend(run.environments.iter().filter_map(|one| one.build.commit.clone()));
        }
    }

    /// Adds a figure, which is stored as `STEM-THEME.svg`, and the Markdown that shows it.
    ///
    /// # Errors
    /// If the figure could not be drawn.
    pub fn add_figure(
        &mut self,
        context: &PageContext<'_>,
        stem: &Path,
        drawn: Result<Svgs>,
        alt: &str,
    ) -> std::result::Result<(), Vec<Why>> {
        let svgs = drawn.map_err(|e| vec![Why::stale(e.message())])?;
        let paths = picture::paths(stem);
        let [light, dark] = paths.each_ref().map(|path| context.link(path));
        self.text += &format!("{}\n", text::picture(alt, &light, &dark));
        self.figures.extend(paths.into_iter().zip(svgs));
        Ok(())
    }

    /// Ends the text with the line of origin, and a sentence about differences that the block allows.
    pub fn end(&mut self, origin: &str, differences: Option<String>) {
        self.text += origin;
        self.text.extend(differences.map(|sentence| format!("\n{sentence}")));
    }
}
