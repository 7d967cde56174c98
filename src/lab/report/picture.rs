//! Figures as drawn, in every theme, and the paths of their files.

use super::theme::{THEMES, Theme};
use crate::error::Result;
use crate::liveness::report_progress;
use crate::regular;
use crate::results::atomic;
use crate::results::folder::PLOTS;
use std::path::{Path, PathBuf};

/// A figure as SVG, in the order of [`THEMES`].
pub type Svgs = [String; THEMES.len()];

/// A drawn figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The beginning of its file names.
    pub name: String,
    pub svgs: Svgs,
}

impl Picture {
    /// Returns its paths below the folder whose data it shows: `plots/NAME-THEME.svg`.
    pub fn paths(&self, folder: &Path) -> [PathBuf; THEMES.len()] {
        paths(&folder.join(PLOTS).join(&self.name))
    }
}

/// Draws a figure in every theme.
///
/// # Errors
/// If a text cannot be drawn.
pub fn in_themes(draw: impl Fn(&Theme) -> Result<String>) -> Result<Svgs> {
    let [light, dark] = THEMES.each_ref().map(|theme| {
        report_progress();
        draw(theme)
    });
    Ok([light?, dark?])
}

/// Returns the files of a figure: `STEM-THEME.svg`.
pub fn paths(stem: &Path) -> [PathBuf; THEMES.len()] {
    THEMES.each_ref().map(|theme| PathBuf::from(format!("{}-{}.svg", stem.display(), theme.name)))
}

/// Returns the files of a figure with their contents.
pub fn files(stem: &Path, svgs: Svgs) -> impl Iterator<Item = (PathBuf, String)> + use<> {
    paths(stem).into_iter().zip(svgs)
}

/// Writes pictures into the folder whose data they show.
///
/// # Errors
/// If a file cannot be written.
pub fn write(folder: &Path, pictures: &[Picture]) -> Result<()> {
    let plots = folder.join(PLOTS);
    if !pictures.is_empty() {
        regular::create_folder(&plots)?;
    }
    for picture in pictures {
        for (path, svg) in picture.paths(folder).iter().zip(&picture.svgs) {
            report_progress();
            atomic::write(path, svg.as_bytes())?;
        }
    }
    Ok(())
}
