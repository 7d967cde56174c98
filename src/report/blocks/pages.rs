//! Pages: finding their blocks, rendering them, comparing them with what stands there, putting them in.

use super::kept::Source;
use super::markers::{self, Attributes, Block, END, FROM};
use super::spec::{self, Kind, Spec};
use super::sweep::SWEEPS;
use super::{Rendered, Scene, Why, comparison, runs, series, sweep};
use crate::error::{IoContext, Result};
use crate::results::atomic;
use crate::results::comparison::COMPARISONS;
use std::path::{Path, PathBuf};

/// Something wrong with a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The page.
    pub page: PathBuf,
    /// The line of the block or marker, from 1.
    pub line: usize,
    /// The block, as in ``block `runs` of `quickstart` ``; empty where it is a marker by itself.
    pub block: String,
    /// What is wrong.
    pub why: String,
    /// What mends it.
    pub mend: String,
    /// Whether the page is written wrongly, rather than out of date.
    pub is_markup: bool,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let block = if self.block.is_empty() { String::new() } else { format!("{}: ", self.block) };
        write!(f, "{}:{}: {block}{}\n    mend: {}", self.page.display(), self.line, self.why, self.mend)
    }
}

/// A block that was looked at.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The page.
    pub page: PathBuf,
    /// The line of the block, from 1.
    pub line: usize,
    /// What it is called in messages.
    pub block: String,
    /// Whether it stands in the page as kept files make it, or was put there just now.
    pub is_current: bool,
    /// Whether it, or a figure of it, was written.
    pub is_changed: bool,
    /// Commits that its numbers were measured at.
    pub commits: Vec<String>,
}

/// What a look at pages found.
pub type Found = (Vec<Checked>, Vec<Problem>);

/// A block with what it should be.
struct Examined {
    block: Block,
    name: String,
    /// The body and closing marker to put in its place; `None` where nothing can be rendered.
    fresh: Option<(String, String)>,
    rendered: Rendered,
    /// What rendering cannot mend.
    hard: Vec<Why>,
    /// What rendering mends.
    stale: Vec<Why>,
    /// Whether the opening marker itself is wrong.
    is_markup: bool,
}

/// The pages of a folder: `README.md` and every Markdown file below `docs`.
///
/// # Errors
/// When a folder cannot be read.
pub fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop().filter(|folder| folder.is_dir()) {
        for entry in std::fs::read_dir(&folder).at("read", &folder)? {
            let path = entry.at("read", &folder)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    let readme = root.join("README.md");
    Ok(readme.is_file().then_some(readme).into_iter().chain(found).collect())
}

/// Compares every block of the pages with what kept files make of it. Changes nothing.
///
/// # Errors
/// When a page cannot be read. What is wrong with pages and blocks is returned.
pub fn check(pages: &[PathBuf], kept: &Path) -> Result<Found> {
    let (mut checked, mut problems) = (Vec::new(), Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(page).at("read", page)?;
        let (blocks, mut faults) = examine(page, &text, kept);
        problems.append(&mut faults);
        for block in blocks {
            let whys = block.hard.iter().chain(&block.stale);
            problems.extend(whys.map(|why| block.problem(kept, page, why)));
            checked.push(block.checked(page, block.is_current(), false));
        }
    }
    Ok(in_order(pages, checked, problems))
}

/// Renders every block of the pages, and replaces pages and figures that change. A page with a wrong marker stays as it
/// is, and so does a block that cannot be rendered.
///
/// # Errors
/// When a page or figure cannot be read or written.
pub fn update(pages: &[PathBuf], kept: &Path) -> Result<Found> {
    let (mut checked, mut problems) = (Vec::new(), Vec::new());
    for page in pages {
        let text = std::fs::read_to_string(page).at("read", page)?;
        let (blocks, mut faults) = examine(page, &text, kept);
        let is_sound = faults.is_empty();
        problems.append(&mut faults);
        let mut new = text.clone();
        // From the last to the first, so that places before stay where they are.
        for block in blocks.iter().rev() {
            problems.extend(block.hard.iter().map(|why| block.problem(kept, page, why)));
            let Some((body, closing)) = block.fresh.as_ref().filter(|_| is_sound) else {
                checked.push(block.checked(page, block.is_current(), false));
                continue;
            };
            let span = block.block.body.start..block.block.closing.end;
            let fresh = format!("{body}{closing}");
            let mut is_changed = new.get(span.clone()) != Some(fresh.as_str());
            new.replace_range(span, &fresh);
            for (path, svg) in &block.rendered.figures {
                is_changed |= write_if_changed(path, svg.as_bytes())?;
            }
            checked.push(block.checked(page, true, is_changed));
        }
        if new != text {
            atomic::write(page, new.as_bytes())?;
        }
    }
    Ok(in_order(pages, checked, problems))
}

/// In the order of pages and lines.
fn in_order(pages: &[PathBuf], mut checked: Vec<Checked>, mut problems: Vec<Problem>) -> Found {
    let place = |page: &PathBuf| pages.iter().position(|other| other == page);
    checked.sort_by_key(|block| (place(&block.page), block.line));
    problems.sort_by_key(|problem| (place(&problem.page), problem.line));
    (checked, problems)
}

/// Whether the file was not so before.
fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<bool> {
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).at("create", folder)?;
    }
    atomic::write(path, bytes)?;
    Ok(true)
}

/// The blocks of a page, each with what it should be, and what is wrong with its markers.
fn examine(page: &Path, text: &str, kept: &Path) -> (Vec<Examined>, Vec<Problem>) {
    let (blocks, faults) = markers::parse(text);
    let scene = Scene { kept, page: page.parent().unwrap_or(Path::new("")) };
    let again = render_again(kept, page);
    let problem = |fault: markers::Fault| {
        let is_unclosed = fault.why.contains(&format!("has no `<!-- {END}"));
        let mend = if is_unclosed {
            format!("write `<!-- {END} -->` into a line of its own after the block, then {again}")
        } else {
            format!("correct the marker, then {again}")
        };
        let (page, line, why) = (page.to_owned(), fault.line, fault.why);
        Problem { page, line, block: String::new(), why, mend, is_markup: true }
    };
    let problems = faults.into_iter().map(problem).collect();
    (blocks.into_iter().map(|block| examine_block(&scene, text, block)).collect(), problems)
}

/// The command that renders a page again.
fn render_again(kept: &Path, page: &Path) -> String {
    let results = kept.parent().filter(|results| *results != Path::new("results"));
    let results = results.map_or(String::new(), |results| format!(" --results {}", results.display()));
    format!("xrun report{results} {}", page.display())
}

fn render(scene: &Scene<'_>, spec: &Spec) -> Result<Rendered, Vec<Why>> {
    match &spec.kind {
        Kind::Runs { columns } => runs::render(scene, spec, columns),
        Kind::Plot { plot, alt } => runs::plot(scene, spec, plot, alt.as_deref()),
        Kind::Comparison { columns } => comparison::render(scene, spec, columns.as_deref()),
        Kind::Series { over, alt } => series::render(scene, spec, over, alt.as_deref()),
        Kind::Sweep { columns } => sweep::render(scene, spec, columns),
    }
}

fn examine_block(scene: &Scene<'_>, text: &str, block: Block) -> Examined {
    let name = spec::name(&block.attributes);
    let mut examined = Examined {
        block,
        name,
        fresh: None,
        rendered: Rendered::default(),
        hard: Vec::new(),
        stale: Vec::new(),
        is_markup: false,
    };
    let body = &text[examined.block.body.clone()];
    let spec = match Spec::parse(&examined.block.attributes) {
        Ok(spec) => spec,
        Err(why) => {
            examined.is_markup = true;
            examined.hard.push(Why::mended_by(why, "correct the block's first line, then render it"));
            return examined;
        }
    };
    match render(scene, &spec) {
        Err(whys) => examined.hard = whys,
        Ok(mut rendered) => {
            examined.hard = std::mem::take(&mut rendered.faults);
            rendered.commits.sort();
            rendered.commits.dedup();
            dedup_sources(&mut rendered);
            if examined.hard.is_empty() {
                let body = full_body(&rendered);
                let closing = format!("<!-- {END} hash=\"{}\" -->", blake3::hash(body.as_bytes()).to_hex());
                examined.fresh = Some((body, closing));
            }
            examined.rendered = rendered;
        }
    }
    // A block that was never filled was made from nothing.
    let embedded = attribute(&examined.block.end, "hash");
    let fresh = examined.fresh.as_ref().map(|(body, _)| body.as_str());
    let mut stale = Vec::new();
    match embedded {
        None if body.trim().is_empty() => stale.push(Why::stale("it was never filled")),
        None => stale.push(Why::stale("its last line has no hash, so nobody can tell what it was made from")),
        Some(hash) => {
            stale.extend(changed_sources(&examined.block, &examined.rendered));
            if hash != blake3::hash(body.as_bytes()).to_hex().as_str() {
                stale.push(edited(text, &examined.block, fresh));
            } else if let Some(fresh) = fresh.filter(|fresh| *fresh != body && stale.is_empty()) {
                let (line, there, made) = first_difference(text, &examined.block, fresh);
                stale.push(Why::stale(format!(
                    "kept runs no longer make it: line {line} says `{there}`, and they make `{made}`"
                )));
            }
        }
    }
    for (path, svg) in &examined.rendered.figures {
        match std::fs::read(path) {
            Ok(bytes) if bytes == svg.as_bytes() => {}
            Ok(_) => stale.push(Why::stale(format!("{} is not what its rows draw", path.display()))),
            Err(_) => stale.push(Why::stale(format!("{} is missing", path.display()))),
        }
    }
    examined.stale = stale;
    examined
}

/// A source that several parts of a block use is named once.
fn dedup_sources(rendered: &mut Rendered) {
    let mut seen = std::collections::BTreeSet::new();
    rendered.sources.retain(|source| seen.insert(source.id.clone()));
}

/// Everything between the markers.
fn full_body(rendered: &Rendered) -> String {
    let mut body = format!("\n{}\n", rendered.text);
    for source in &rendered.sources {
        body += &format!("<!-- {FROM} kept=\"{}\" manifest=\"{}\" -->\n", source.id, source.manifest);
    }
    body
}

fn attribute<'a>(attributes: &'a Attributes, name: &str) -> Option<&'a str> {
    attributes.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
}

/// What a block was made from against what it would be made from now.
fn changed_sources(block: &Block, rendered: &Rendered) -> Vec<Why> {
    let from = |attributes| Some((attribute(attributes, "kept")?, attribute(attributes, "manifest")?));
    let embedded: Vec<(&str, &str)> = block.from.iter().filter_map(from).collect();
    let mut whys = Vec::new();
    for source in &rendered.sources {
        match embedded.iter().find(|(id, _)| *id == source.id) {
            Some((_, manifest)) if *manifest != source.manifest => whys.push(Why::mended_by(
                format!(
                    "{} is not what the block was made from: the manifest's hash begins with {}, the block has {}",
                    source.folder.display(),
                    digits(&source.manifest),
                    digits(manifest),
                ),
                format!("git checkout -- {}, or if it was kept anew, render the block", source.folder.display()),
            )),
            Some(_) => {}
            None if is_part(source, rendered) => {}
            None => {
                let group = |id: &str| id.rsplit_once('/').map(|(group, _)| group.to_owned());
                let mut others = embedded.iter().filter(|(id, _)| group(id) == group(&source.id));
                let is_newer = others.all(|(id, _)| *id < source.id.as_str());
                let what = if source.id.starts_with(COMPARISONS) { "comparison" } else { "run" };
                whys.push(Why::stale(if is_newer {
                    format!("a newer kept {what} matches: {}", source.id)
                } else {
                    format!("a kept {what} matches that it does not show: {}", source.id)
                }));
            }
        }
    }
    whys
}

/// Whether this is a run of a comparison or sweep, which says for itself what it rests on.
fn is_part(source: &Source, rendered: &Rendered) -> bool {
    let is_whole = |source: &Source| source.id.starts_with(COMPARISONS) || source.id.starts_with(SWEEPS);
    !is_whole(source) && rendered.sources.iter().any(is_whole)
}

fn digits(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

/// A block whose lines are not those that its hash is of.
fn edited(text: &str, block: &Block, fresh: Option<&str>) -> Why {
    match fresh {
        Some(fresh) if fresh != &text[block.body.clone()] => {
            let (line, there, made) = first_difference(text, block, fresh);
            Why::stale(format!(
                "it was edited by hand: line {line} says `{there}`, and kept runs make `{made}`"
            ))
        }
        Some(_) => Why::stale("its hash was edited by hand"),
        None => Why::stale("it was edited by hand: its lines do not have its hash"),
    }
}

/// The first line of a block that is not what it should be: its number, and both versions around the difference.
fn first_difference(text: &str, block: &Block, fresh: &str) -> (usize, String, String) {
    let first_line = text[..block.body.start].matches('\n').count() + 1;
    let (mut there, mut made) = (text[block.body.clone()].lines(), fresh.lines());
    let mut line = first_line;
    loop {
        let (a, b) = (there.next(), made.next());
        if a != b || a.is_none() {
            let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
            let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
            let part = |text: &str| {
                let shown: String = text.chars().skip(same.saturating_sub(24)).take(60).collect();
                if shown.is_empty() { "(nothing)".to_owned() } else { shown.trim().to_owned() }
            };
            return (line, part(a), part(b));
        }
        line += 1;
    }
}

impl Examined {
    fn is_current(&self) -> bool {
        self.hard.is_empty() && self.stale.is_empty()
    }

    fn checked(&self, page: &Path, is_current: bool, is_changed: bool) -> Checked {
        Checked {
            page: page.to_owned(),
            line: self.block.line,
            block: self.name.clone(),
            is_current,
            is_changed,
            commits: self.rendered.commits.clone(),
        }
    }

    fn problem(&self, kept: &Path, page: &Path, why: &Why) -> Problem {
        Problem {
            page: page.to_owned(),
            line: self.block.line,
            block: self.name.clone(),
            why: why.why.clone(),
            mend: why.mend.clone().unwrap_or_else(|| render_again(kept, page)),
            is_markup: self.is_markup,
        }
    }
}
