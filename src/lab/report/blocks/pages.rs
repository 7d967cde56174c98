//! Finds the blocks of pages, compares them with kept files and `report.lock`, and updates them.

use super::attributes::END;
use super::examine::{Examined, examine};
use super::figures;
use super::fixes::{is_versioned, remove};
use super::lock::{self, Key, LOCK, Lock};
use super::markers::{self, first_in_code};
use super::page_context::{JudgeAgain, PageContext};
use super::text;
use super::why::Why;
use crate::error::{Error, ErrorKind, IoContext, Result};
use crate::regular;
use crate::results::atomic;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A problem with a page or with the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageProblem {
    /// The page, or the lock.
    pub page: PathBuf,
    /// The line of the block or marker, from 1.
    pub line: usize,
    /// The block, as in ``block `runs` of `quickstart` ``; empty for a marker without a block.
    pub block: String,
    /// The reason.
    pub why: String,
    /// The step that fixes it.
    pub fix: String,
    /// True if a marker is wrong, rather than the block being out of date.
    pub is_markup: bool,
}

impl PageProblem {
    /// Creates a problem without a block.
    fn new(page: PathBuf, line: usize, why: impl Into<String>, fix: impl Into<String>) -> Self {
        let (why, fix) = (why.into(), fix.into());
        Self { page, line, block: String::new(), why, fix, is_markup: false }
    }
}

impl std::fmt::Display for PageProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let block = if self.block.is_empty() { String::new() } else { format!("{}: ", self.block) };
        write!(f, "{}:{}: {block}{}\n    fix: {}", self.page.display(), self.line, self.why, self.fix)
    }
}

/// A checked block.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The page.
    pub page: PathBuf,
    /// The line of the block, from 1.
    pub line: usize,
    /// Its name in messages.
    pub block: String,
    /// True if it equals its expected content, or has just been written.
    pub is_current: bool,
    /// True if the block, its figures or its line in the lock were written.
    pub is_changed: bool,
    /// Commits that its numbers were measured at.
    pub commits: Vec<String>,
}

/// Blocks and problems, in the order of pages and lines.
pub type Found = (Vec<Checked>, Vec<PageProblem>);

/// The pages to work on, and where their kept files and hashes are.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The pages.
    pub pages: &'a [PathBuf],
    /// True if these are all pages, so that the lock must have no lines for others.
    pub is_whole: bool,
    /// The folder of kept data.
    pub kept: &'a Path,
    /// The folder of the lock.
    pub root: &'a Path,
    /// Judges kept comparisons again.
    pub judge: JudgeAgain,
}

/// A page with its blocks.
struct Page {
    text: String,
    blocks: Vec<Examined>,
    /// Problems of its markers.
    faults: Vec<PageProblem>,
}

/// Returns the pages of a folder: `README.md` and every Markdown file below `docs`. Does not follow links to
/// folders.
///
/// # Errors
/// If a folder cannot be read.
pub fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let entry = entry.at("read", &folder)?;
            let path = entry.path();
            if entry.file_type().at("read", &path)?.is_dir() {
                folders.push(path);
            } else if path.is_dir() {
                // A link to a folder could lead back here.
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    let readme = root.join("README.md");
    Ok(readme.is_file().then_some(readme).into_iter().chain(found).collect())
}

/// Compares every block of the pages with its expected content and with the lock. Changes nothing.
///
/// # Errors
/// If a page cannot be read. Problems of pages and blocks are returned.
pub fn check(scope: &Scope<'_>) -> Result<Found> {
    let lock = Lock::read(scope.root)?;
    let (mut checked, mut problems) = (Vec::new(), wrong_lines(scope, &lock));
    let mut found = BTreeSet::new();
    let mut pages = scope.read(&lock)?;
    let shown = figures::check(pages.iter_mut().flat_map(|(_, page)| &mut page.blocks));
    for (path, page) in &mut pages {
        problems.append(&mut page.faults);
        for block in &page.blocks {
            let whys = block.hard.iter().chain(&block.stale);
            problems.extend(whys.map(|why| scope.problem(block, path, why)));
            checked.push(summary(block, path, block.is_current(), false));
            found.insert(block.key.clone());
        }
    }
    problems.extend(scope.without_block(&lock, &found).map(|key| scope.orphan(&lock, key)));
    if checked.is_empty() && problems.is_empty() {
        problems.extend(scope.only_in_code(&pages));
    }
    problems.extend(scope.stray_figures(&shown));
    Ok(in_order(scope.pages, checked, problems))
}

/// Renders every block of the pages, and writes the pages, figures and lines of the lock that change. Leaves
/// alone pages with an invalid marker and blocks that cannot be rendered. Lines of the lock without a block
/// are removed if `forget` names them or their page; otherwise they are problems.
///
/// # Errors
/// If a file cannot be read or written, the lock is damaged, or a name in `forget` matches no such line.
pub fn update(scope: &Scope<'_>, forget: &[String]) -> Result<Found> {
    let mut lock = Lock::read(scope.root)?;
    if let Some(wrong) = wrong_lines(scope, &lock).first() {
        return Err(Error::usage(wrong.to_string()));
    }
    let (mut checked, mut problems, mut found) = (Vec::new(), Vec::new(), BTreeSet::new());
    let mut pages = scope.read(&lock)?;
    figures::check(pages.iter_mut().flat_map(|(_, page)| &mut page.blocks));
    for (path, mut page) in pages {
        let is_sound = page.faults.is_empty();
        problems.append(&mut page.faults);
        found.extend(page.blocks.iter().map(|block| block.key.clone()));
        let mut new = page.text.clone();
        // Go from the last block to the first, so that earlier offsets stay valid.
        for block in page.blocks.iter().rev() {
            problems.extend(block.hard.iter().map(|why| scope.problem(block, path, why)));
            if !is_sound || block.fresh.is_none() {
                checked.push(summary(block, path, block.is_current(), false));
                continue;
            }
            let is_changed = put(block, &mut new, &mut lock)?;
            checked.push(summary(block, path, true, is_changed));
        }
        if new != page.text {
            atomic::write_through(path, new.as_bytes())?;
        }
    }
    scope.forget(&mut lock, &found, forget)?;
    problems.extend(scope.without_block(&lock, &found).map(|key| scope.orphan(&lock, key)));
    lock.write(scope.root)?;
    Ok(in_order(scope.pages, checked, problems))
}

/// Writes a rendered block into its page, its hashes into the lock, and its figures beside their data.
/// Returns true if anything changes.
fn put(block: &Examined, page: &mut String, lock: &mut Lock) -> Result<bool> {
    let Some(fresh) = &block.fresh else { return Ok(false) };
    let span = block.block.body.start..block.block.closing.end;
    let text = format!("{}<!-- {END} -->", fresh.body);
    let mut is_changed = page.get(span.clone()) != Some(text.as_str());
    page.replace_range(span, &text);
    let before = lock.lines.insert(block.key.clone(), fresh.hashes.clone());
    is_changed |= before.as_ref() != Some(&fresh.hashes);
    for (path, svg) in &block.rendered.figures {
        is_changed |= write_if_changed(path, svg.as_bytes())?;
    }
    Ok(is_changed)
}

/// Returns the kept folders and the figures that the blocks of the pages show.
///
/// # Errors
/// If a page cannot be read, or a block cannot be rendered.
pub fn named(scope: &Scope<'_>) -> Result<(BTreeSet<String>, BTreeSet<PathBuf>)> {
    let lock = Lock::read(scope.root)?;
    let (mut folders, mut figures) = (BTreeSet::new(), BTreeSet::new());
    for (path, page) in scope.read(&lock)? {
        let hard = page.blocks.iter().flat_map(|block| block.hard.iter().map(move |why| (block, why)));
        let mut hard = hard.map(|(block, why)| scope.problem(block, path, why));
        if let Some(problem) = page.faults.first().cloned().or_else(|| hard.next()) {
            let why = format!("cannot tell what this page shows\n{problem}");
            return Err(Error::new(ErrorKind::Regression, why));
        }
        for block in page.blocks {
            folders.extend(block.rendered.sources.into_iter().map(|source| source.id));
            figures.extend(block.rendered.figures.into_iter().map(|(path, _)| path));
        }
    }
    Ok((folders, figures))
}

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
pub fn sources(page: &Path, kept: &Path, judge: JudgeAgain) -> Result<PageSources> {
    let scope = Scope { pages: &[], is_whole: false, kept, root: Path::new(""), judge };
    let Page { blocks, faults, .. } = scope.page(page, &Lock::default())?;
    let mut found = PageSources::default();
    found.problems.extend(faults.iter().map(|fault| format!("line {}: {}", fault.line, fault.why)));
    for Examined { block, name, hard, rendered, .. } in blocks {
        found.problems.extend(hard.iter().map(|why| format!("line {}: {name}: {}", block.line, why.why)));
        found.ids.extend(rendered.sources.into_iter().map(|source| source.id));
    }
    Ok(found)
}

/// Sorts by page, in the order given, then by line.
fn in_order(pages: &[PathBuf], mut checked: Vec<Checked>, mut problems: Vec<PageProblem>) -> Found {
    let place = |page: &PathBuf| pages.iter().position(|other| other == page);
    checked.sort_by_key(|block| (place(&block.page), block.line));
    problems.sort_by_key(|problem| (place(&problem.page), problem.line));
    (checked, problems)
}

/// Writes a file if its content changes. Returns true if it did.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<bool> {
    if regular::read(path, regular::MAX_TEXT).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).at("create", folder)?;
    }
    atomic::write_through(path, bytes)?;
    Ok(true)
}

fn wrong_lines(scope: &Scope<'_>, lock: &Lock) -> Vec<PageProblem> {
    let problem = |wrong: &lock::WrongLine| {
        let path = scope.root.join(LOCK);
        let fix = match is_versioned(&path) {
            true => format!("git checkout -- {LOCK}, or remove the line and run xrun report"),
            false => "remove the line and run xrun report".to_owned(),
        };
        PageProblem { is_markup: true, ..PageProblem::new(path, wrong.line, &wrong.why, fix) }
    };
    lock.wrong.iter().map(problem).collect()
}

fn summary(block: &Examined, page: &Path, is_current: bool, is_changed: bool) -> Checked {
    Checked {
        page: page.to_owned(),
        line: block.block.line,
        block: block.name.clone(),
        is_current,
        is_changed,
        commits: block.rendered.commits.clone(),
    }
}

impl Scope<'_> {
    /// Reads the pages and examines their blocks.
    fn read(&self, lock: &Lock) -> Result<Vec<(&PathBuf, Page)>> {
        self.pages.iter().map(|path| Ok((path, self.page(path, lock)?))).collect()
    }

    /// Reads a page and examines its blocks.
    fn page(&self, path: &Path, lock: &Lock) -> Result<Page> {
        let text = regular::read_text_through_link(path)?;
        let (blocks, faults) = markers::parse(&text);
        let faults = faults.into_iter().map(|fault| self.fault(path, fault)).collect();
        let keys = lock::keys(&self.name_of(path), blocks.iter().map(|block| &block.attributes));
        let context =
            PageContext { kept: self.kept, page: path.parent().unwrap_or(Path::new("")), judge: self.judge };
        let examined = |(block, key)| examine(&context, &text, block, key, lock);
        let blocks = blocks.into_iter().zip(keys).map(examined).collect();
        Ok(Page { blocks, faults, text })
    }

    /// If no page has a block, returns a problem for the first marker in code.
    fn only_in_code(&self, pages: &[(&PathBuf, Page)]) -> Option<PageProblem> {
        let (path, line) = pages.iter().find_map(|(path, page)| Some((*path, first_in_code(&page.text)?)))?;
        let why = "there is no block: this marker stands in code, where it is text";
        let fix = format!("take it out of the code, then {}", self.render_again(path));
        Some(PageProblem { is_markup: true, ..PageProblem::new(path.clone(), line, why, fix) })
    }

    /// Returns problems for figures of several comparisons that no block of any page shows.
    fn stray_figures(&self, shown: &BTreeSet<PathBuf>) -> Vec<PageProblem> {
        let problem = |path: PathBuf| {
            let fix = remove(&path);
            PageProblem::new(path, 1, "no block of any page shows it", fix)
        };
        let stray = if self.is_whole { figures::stray(self.kept, shown) } else { Vec::new() };
        stray.into_iter().map(problem).collect()
    }

    /// Returns the page's name in the lock: its path relative to the lock's folder.
    fn name_of(&self, page: &Path) -> String {
        text::relative(self.root, page)
    }

    /// Returns the lines of the lock whose block is not in `found`.
    fn without_block<'b>(
        &'b self,
        lock: &'b Lock,
        found: &'b BTreeSet<Key>,
    ) -> impl Iterator<Item = &'b Key> {
        let pages: BTreeSet<String> = self.pages.iter().map(|page| lock::word(&self.name_of(page))).collect();
        lock.lines
            .keys()
            .filter(move |key| !found.contains(*key) && (self.is_whole || pages.contains(&key.page)))
    }

    /// Removes the lines that `forget` names and that have no block.
    fn forget(&self, lock: &mut Lock, found: &BTreeSet<Key>, forget: &[String]) -> Result<()> {
        for name in forget {
            let named = |key: &&Key| key.to_string() == *name || key.page == *name;
            let dropped: Vec<Key> = self.without_block(lock, found).filter(named).cloned().collect();
            if dropped.is_empty() {
                let why = if lock.lines.keys().any(|key| named(&key)) {
                    "its block is still there"
                } else {
                    "the lock has no such line"
                };
                return Err(Error::usage(format!("cannot forget `{name}`: {why}")));
            }
            dropped.iter().for_each(|key| drop(lock.lines.remove(key)));
        }
        Ok(())
    }

    /// Returns the problem of a lock line without a block.
    fn orphan(&self, lock: &Lock, key: &Key) -> PageProblem {
        // The first line is a title, and the others are sorted.
        let line = lock.lines.range(..key).count() + 2;
        let why = format!("`{key}` has no block any more: it was removed, or is hidden in code or a comment");
        let fix = format!("put the block back, or xrun report --forget '{key}'");
        PageProblem::new(self.root.join(LOCK), line, why, fix)
    }

    fn fault(&self, page: &Path, fault: markers::Fault) -> PageProblem {
        let again = self.render_again(page);
        let fix = match fault.is_unclosed {
            true => format!("write `<!-- {END} -->` into a line of its own after the block, then {again}"),
            false => format!("correct the marker, then {again}"),
        };
        PageProblem { is_markup: true, ..PageProblem::new(page.to_owned(), fault.line, fault.why, fix) }
    }

    fn problem(&self, block: &Examined, page: &Path, why: &Why) -> PageProblem {
        PageProblem {
            page: page.to_owned(),
            line: block.block.line,
            block: block.name.clone(),
            why: why.why.clone(),
            fix: why.fix.clone().unwrap_or_else(|| self.render_again(page)),
            is_markup: block.is_markup,
        }
    }

    /// Returns the command that renders a page again.
    fn render_again(&self, page: &Path) -> String {
        let results = self.kept.parent().filter(|results| *results != Path::new("results"));
        let results = results.map_or(String::new(), |results| format!(" --results {}", results.display()));
        format!("xrun report{results} {}", page.display())
    }
}
