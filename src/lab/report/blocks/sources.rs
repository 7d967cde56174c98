//! The kept folders that the blocks of a page show.

use super::examine::examine;
use super::lock::Lock;
use super::markers;
use super::page_context::PageContext;
use crate::error::Result;
use crate::results::regular;
use std::path::Path;

/// The kept folders that the blocks of a page show, and the blocks that show nothing.
#[derive(Clone, Debug, Default)]
pub struct PageSources {
    /// Paths below the folder of kept data, in the order of the page. A path may occur several times.
    pub ids: Vec<String>,
    /// Blocks that cannot be rendered from kept files, and invalid markers, as `line N: why`.
    pub problems: Vec<String>,
}

/// Returns the kept folders that the blocks of a page show, whether or not the page is current.
///
/// # Errors
/// If the page cannot be read.
pub fn sources(page: &Path, kept: &Path) -> Result<PageSources> {
    let text = regular::read_text(page)?;
    let (blocks, faults) = markers::parse(&text);
    let mut found = PageSources::default();
    found.problems.extend(faults.iter().map(|fault| format!("line {}: {}", fault.line, fault.why)));
    let context = PageContext { kept, page: page.parent().unwrap_or(Path::new("")) };
    for block in blocks {
        let line = block.line;
        let examined = examine(&context, &text, block, None, &Lock::default());
        found
            .problems
            .extend(examined.hard.iter().map(|why| format!("line {line}: {}: {}", examined.name, why.why)));
        found.ids.extend(examined.rendered.sources.into_iter().map(|source| source.id));
    }
    Ok(found)
}
