//! The context in which a block is rendered, and the result.

use super::kept::Source;
use super::text;
use super::why::Why;
use std::path::{Path, PathBuf};

/// Location of a block's hashes, and with it the form of its provenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Hashes in `report.lock`, and one line of provenance that links to the README of a kept folder.
    Locked,
    /// Hashes in the page itself, and a line of provenance per run. Written by earlier versions; `xrun report
    /// --migrate` turns it into the other form.
    Inline,
}

impl Form {
    /// Returns the word for one run of a comparison.
    pub fn trial(self) -> &'static str {
        match self {
            Form::Locked => "trial",
            Form::Inline => "turn",
        }
    }
}

/// The context in which a block is rendered.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The form of the block.
    pub form: Form,
    /// The folder of kept things.
    pub kept: &'a Path,
    /// The folder of the page.
    pub page: &'a Path,
}

impl Scene<'_> {
    /// Returns a path as a link from the page.
    pub fn link(&self, to: &Path) -> String {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // The empty path is the current folder, which `absolute` refuses.
        text::link(&absolute(&Path::new(".").join(self.page)), &absolute(to))
    }
}

/// A block rendered from kept files.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// The Markdown.
    pub text: String,
    /// Kept folders that it was rendered from.
    pub sources: Vec<Source>,
    /// Figures that belong to it, with their expected content.
    pub figures: Vec<(PathBuf, String)>,
    /// Reasons why it must not be used.
    pub faults: Vec<Why>,
    /// Commits that its numbers were measured at.
    pub commits: Vec<String>,
}

impl Rendered {
    /// Adds a figure, `STEM-THEME.svg` per theme, and returns the Markdown that shows it.
    pub fn show(&mut self, scene: &Scene<'_>, stem: &Path, drawn: Vec<(&str, String)>, alt: &str) -> String {
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
