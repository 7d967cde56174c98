//! Examines one block: renders it from kept files, and compares it with the page and with `report.lock`.

use super::attributes;
use super::fixes::restore;
use super::kept::Source;
use super::lock::{Hashes, Key, LOCK, Lock, root_hash, roots};
use super::markers::{Block, Opening};
use super::page_context::{PageContext, Rendered};
use super::spec::{BlockKind, Spec};
use super::text::digits;
use super::why::Why;
use super::{chain, comparison, configurations, curves, quality, runs, series, sweep, value};
use crate::regular;
use crate::results::names::{COMPARISONS, SWEEPS};
use std::collections::BTreeSet;
use std::path::Path;

/// A block with its expected content.
pub struct Examined {
    /// The block in the page.
    pub block: Block,
    /// Its name in messages.
    pub name: String,
    /// Its line in the lock.
    pub key: Key,
    /// The new content; `None` if it cannot be rendered.
    pub fresh: Option<Fresh>,
    /// The Markdown, sources and figures rendered from kept files.
    pub rendered: Rendered,
    /// Problems that rendering cannot fix.
    pub hard: Vec<Why>,
    /// Problems that rendering fixes.
    pub stale: Vec<Why>,
    /// True if the opening marker itself is wrong.
    pub is_markup: bool,
}

/// The expected text of a block.
pub struct Fresh {
    /// The lines between the markers.
    pub body: String,
    /// Its hashes for the lock.
    pub hashes: Hashes,
}

impl Examined {
    /// Returns true if the block equals its expected content.
    pub fn is_current(&self) -> bool {
        self.hard.is_empty() && self.stale.is_empty()
    }
}

/// Renders a block of the page `text`, and compares it with the page and with the lock.
pub fn examine(context: &PageContext<'_>, text: &str, block: Block, key: Key, lock: &Lock) -> Examined {
    let mut examined = Examined {
        name: attributes::block_name(&block.attributes),
        key,
        block,
        fresh: None,
        rendered: Rendered::default(),
        hard: Vec::new(),
        stale: Vec::new(),
        is_markup: false,
    };
    let spec = match Spec::from_block(&examined.block) {
        Ok(spec) => spec,
        Err(why) => {
            examined.is_markup = true;
            examined.hard.push(Why::fixed_by(why, "correct the opening marker's attributes, then render it"));
            return examined;
        }
    };
    match render(context, &spec) {
        Err(whys) => examined.hard = whys,
        Ok(mut rendered) => {
            examined.hard = std::mem::take(&mut rendered.faults);
            rendered.commits.sort();
            rendered.commits.dedup();
            // Several parts of a block may use a source.
            let mut seen = BTreeSet::new();
            rendered.sources.retain(|source| seen.insert(source.id.clone()));
            if examined.hard.is_empty() {
                examined.fresh = Some(fresh(examined.block.opening, &rendered));
            }
            examined.rendered = rendered;
        }
    }
    examined.stale = compare(text, &examined, lock);
    for (path, svg) in &examined.rendered.figures {
        match regular::read(path, regular::MAX_TEXT) {
            Ok(bytes) if bytes == svg.as_bytes() => {}
            Ok(_) => {
                examined.stale.push(Why::stale(format!("{} is not what its data draws", path.display())));
            }
            Err(_) => examined.stale.push(Why::stale(format!("{} is missing", path.display()))),
        }
    }
    examined
}

fn render(context: &PageContext<'_>, spec: &Spec) -> Result<Rendered, Vec<Why>> {
    match &spec.kind {
        BlockKind::Runs { columns } => runs::render(context, spec, columns),
        BlockKind::Plot { plot } => runs::plot(context, spec, plot),
        BlockKind::Curves { column } => curves::render(context, spec, column),
        BlockKind::Quality => quality::render(context, spec),
        BlockKind::Chain => chain::render(context, spec),
        BlockKind::Comparison { columns } => comparison::render(context, spec, columns.as_deref()),
        BlockKind::Series { over } => series::render(context, spec, over),
        BlockKind::Configurations { column } => configurations::render(context, spec, column),
        BlockKind::Sweep { columns } => sweep::render(context, spec, columns),
        BlockKind::Value { column, form } => value::render_run_value(context, spec, column, *form),
        BlockKind::ComparisonValue { column, form } => {
            value::render_comparison_value(context, spec, column, *form)
        }
    }
}

/// Returns the expected text of a block, with its hashes.
fn fresh(opening: Opening, rendered: &Rendered) -> Fresh {
    let body = match opening {
        Opening::Report => format!("\n{}\n", rendered.text),
        Opening::Value => rendered.text.clone(),
    };
    let hashes = Hashes { kept: root_hash(rendered), body: hash(&body) };
    Fresh { body, hashes }
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Compares a block with the lock and with its expected content.
fn compare(text: &str, examined: &Examined, lock: &Lock) -> Vec<Why> {
    let body = &text[examined.block.body.clone()];
    let Some(locked) = lock.lines.get(&examined.key) else {
        return vec![Why::stale(match (body.trim().is_empty(), lock.exists) {
            // A block that was never filled has no sources.
            (true, _) => "it was never filled".to_owned(),
            (false, true) => format!("{LOCK} has no line for it, so nobody can tell what it was made from"),
            (false, false) => format!("{LOCK} is missing, so nobody can tell what it was made from"),
        })];
    };
    let mut stale = Vec::new();
    let fresh = examined.fresh.as_ref();
    if fresh.is_some_and(|fresh| fresh.hashes.kept != locked.kept) {
        stale.extend(changed_roots(body, &examined.rendered, locked));
    }
    let fresh = fresh.map(|fresh| fresh.body.as_str());
    if hash(body) != locked.body {
        stale.push(edited(text, &examined.block, fresh));
    } else if let Some(fresh) = fresh.filter(|fresh| *fresh != body && stale.is_empty()) {
        let (line, there, made) = first_difference(text, &examined.block, fresh);
        stale.push(Why::stale(format!(
            "kept runs no longer make it: line {line} says `{there}`, and they make `{made}`"
        )));
    }
    stale
}

/// Explains how the kept folders behind a block differ from those that it was made from.
fn changed_roots(body: &str, rendered: &Rendered, locked: &Hashes) -> Vec<Why> {
    let roots = roots(rendered);
    let mut whys: Vec<Why> = Vec::new();
    // A comparison's README links to its runs, so the block need not show them.
    let is_shown = |source: &Source| body.contains(&source.id) || is_part(source, rendered);
    for source in roots.iter().filter(|source| !is_shown(source)) {
        whys.push(not_shown(source, &shown_beside(body, &source.id)));
    }
    if whys.is_empty() {
        let folders: Vec<&Path> = roots.iter().map(|source| source.folder.as_path()).collect();
        let named: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        whys.push(Why::fixed_by(
            format!(
                "{} is not what the block was made from: the hash of its manifest begins with {}, {LOCK} has {}",
                named.join(" "),
                digits(&root_hash(rendered)),
                digits(&locked.kept),
            ),
            format!("{}, or render the block if it was kept again on purpose", restore(&folders)),
        ));
    }
    whys
}

/// Returns the kept folders beside `id` that a block links to.
fn shown_beside(body: &str, id: &str) -> Vec<String> {
    let Some((group, _)) = id.rsplit_once('/') else { return Vec::new() };
    let group = format!("{group}/");
    let places = body.match_indices(&group).map(|(at, _)| &body[at + group.len()..]);
    let names = places.map(|rest| {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).collect::<String>()
    });
    names.map(|name| format!("{group}{name}")).collect()
}

/// Returns the problem of a source that is now selected but not shown. `others` are the folders beside it
/// that the block shows.
fn not_shown(source: &Source, others: &[String]) -> Why {
    let is_newer = others.iter().all(|id| *id < source.id);
    let what = if source.id.starts_with(COMPARISONS) { "comparison" } else { "run" };
    Why::stale(if is_newer {
        format!("a newer kept {what} matches: {}", source.id)
    } else {
        format!("a kept {what} matches but is not shown: {}", source.id)
    })
}

/// Returns true for a run of a comparison or sweep, which lists its runs itself.
fn is_part(source: &Source, rendered: &Rendered) -> bool {
    let is_whole = |source: &Source| source.id.starts_with(COMPARISONS) || source.id.starts_with(SWEEPS);
    !is_whole(source) && rendered.sources.iter().any(is_whole)
}

/// Returns the problem of a block whose text does not match its hash.
fn edited(text: &str, block: &Block, fresh: Option<&str>) -> Why {
    match fresh {
        Some(fresh) if fresh != &text[block.body.clone()] => {
            let (line, there, made) = first_difference(text, block, fresh);
            Why::stale(format!(
                "it was edited by hand: line {line} says `{there}`, and kept runs make `{made}`"
            ))
        }
        Some(_) => Why::stale("its hash was edited by hand"),
        None => Why::stale("it was edited by hand: its text does not match its hash"),
    }
}

/// Returns the first line that differs from the expected one: its number, and both versions around the
/// difference.
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
