//! Blocks of Markdown pages that are made from kept runs: written by `xrun report`, verified by `xrun report --check`.
//!
//! ```text
//! page ─▶ markers ─▶ spec ─▶ kept files, verified ─▶ rows alike? ─▶ Markdown ─▶ compared with the page, or put into it
//! ```
//!
//! A block embeds the hashes of the manifests of what it was made from, so it notices when kept files change, and a hash
//! of its own text, so it notices when somebody edits it.

mod alike;
mod columns;
mod comparison;
mod figure;
mod kept;
mod markers;
mod pages;
mod provenance;
mod runs;
mod series;
mod spec;
mod sweep;
mod text;

use crate::suggest::nearest;
pub use pages::{Checked, Problem, check, pages, update};
pub use spec::{KINDS, template};
use std::path::{Path, PathBuf};

/// Why a block is not right, and the command that mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// What is wrong.
    pub why: String,
    /// What to do about it; blank to render the page again.
    pub mend: Option<String>,
}

impl Why {
    /// Something that rendering the page again mends.
    fn stale(why: impl Into<String>) -> Self {
        Self { why: why.into(), mend: None }
    }

    /// Something that another step mends.
    fn mended_by(why: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { why: why.into(), mend: Some(mend.into()) }
    }
}

/// `; did you mean …?` with the candidate that is spelt most alike, or nothing.
fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, candidates).map_or(String::new(), |near| format!("; did you mean `{near}`?"))
}

/// Where a block is rendered.
#[derive(Clone, Copy, Debug)]
struct Scene<'a> {
    /// The folder of kept things.
    kept: &'a Path,
    /// The folder of the page.
    page: &'a Path,
}

impl Scene<'_> {
    /// A path as a link from the page.
    fn link(&self, to: &Path) -> String {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // The empty path is the current folder, which `absolute` refuses.
        text::link(&absolute(&Path::new(".").join(self.page)), &absolute(to))
    }
}

/// A block made from kept files.
#[derive(Clone, Debug, Default)]
struct Rendered {
    /// The Markdown.
    text: String,
    /// What it was made from.
    sources: Vec<kept::Source>,
    /// Figures that belong to it, with what must be in them.
    figures: Vec<(PathBuf, String)>,
    /// Why it must not be used.
    faults: Vec<Why>,
    /// Commits that its numbers were measured at.
    commits: Vec<String>,
}

impl Rendered {
    /// Adds a figure, `STEM-THEME.svg` per theme, and returns what shows it.
    fn show(&mut self, scene: &Scene<'_>, stem: &Path, drawn: Vec<(&str, String)>, alt: &str) -> String {
        let mut links = Vec::new();
        for (theme, svg) in drawn {
            let path = PathBuf::from(format!("{}-{theme}.svg", stem.display()));
            links.push(scene.link(&path));
            self.figures.push((path, svg));
        }
        match &links[..] {
            [light, dark] => format!("{}\n", text::picture(alt, light, dark)),
            _ => String::new(),
        }
    }
}
