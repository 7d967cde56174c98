//! What a block of a page is rendered with, and the rendered block.

use super::kept::Source;
use super::text;
use super::why::Why;
use crate::results::names::{COMPARISONS, PLOTS};
use std::path::{Path, PathBuf};

/// What all blocks of a page are rendered with.
#[derive(Clone, Copy, Debug)]
pub struct PageContext<'a> {
    /// The folder of kept runs, sweeps and comparisons, such as `results/kept`.
    pub kept: &'a Path,
    /// The folder that contains the page.
    pub page: &'a Path,
}

impl PageContext<'_> {
    /// Returns `to` as a relative link from the page.
    pub fn link(&self, to: &Path) -> String {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // `absolute` refuses an empty path, which stands for the current folder.
        text::link(&absolute(&Path::new(".").join(self.page)), &absolute(to))
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

/// Returns the file of a figure in a theme.
pub fn themed(stem: &Path, theme: &str) -> PathBuf {
    PathBuf::from(format!("{}-{theme}.svg", stem.display()))
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
    /// Adds a figure, drawn once per theme as (theme, SVG) and stored as `STEM-THEME.svg`. Returns the
    /// Markdown that shows it.
    pub fn add_figure(
        &mut self,
        context: &PageContext<'_>,
        stem: &Path,
        drawn: Vec<(&str, String)>,
        alt: &str,
    ) -> String {
        let mut links = Vec::new();
        for (theme, svg) in drawn {
            let path = themed(stem, theme);
            links.push(context.link(&path));
            self.figures.push((path, svg));
        }
        match &links[..] {
            [light, dark] => format!("{}\n", text::picture(alt, light, dark)),
            _ => String::new(),
        }
    }
}
