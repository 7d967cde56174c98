//! `xrun report`.

use super::terminal::{eprint_line, print};
use super::what::Results;
use crate::compare;
use crate::error::{Error, ErrorKind, Result};
use crate::format::plural;
use crate::report::blocks::{self, Checked, KINDS, PageProblem, Scope};
use crate::results::folder::KEPT;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `xrun report`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The pages to update [default: README.md and docs/**/*.md].
    files: Vec<PathBuf>,
    /// Where results are.
    #[command(flatten)]
    results: Results,
    /// Change nothing; exit with 3 if a block differs from what the kept runs render.
    #[arg(long)]
    check: bool,
    /// Drop this line of report.lock after removing its block: PAGE, or 'PAGE KIND SELECTION'.
    #[arg(long, value_name = "LINE", conflicts_with = "check")]
    forget: Vec<String>,
    /// Print an empty block of this kind to paste into a page.
    #[arg(long, value_name = "KIND", value_parser = KINDS.map(|(kind, _)| kind), requires = "select", conflicts_with_all = ["check", "files"])]
    new: Option<String>,
    /// What the new block shows: names of recipes, runs, comparisons or sweeps.
    #[arg(long, value_name = "NAMES", requires = "new")]
    select: Option<String>,
}

/// Runs the command. Prints a line per block: where it is, whether it is current, how old its numbers are.
///
/// # Errors
/// Exits with 3 if a block is not current (with `--check`) or cannot be rendered, and with 2 if the markup of
/// a page is invalid.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    if let Some(kind) = &args.new {
        return print(&blocks::template(kind, args.select.as_deref().unwrap_or_default())?);
    }
    let pages = if args.files.is_empty() { blocks::pages(Path::new(""))? } else { args.files.clone() };
    if pages.is_empty() {
        return Err(Error::usage("there is no README.md and no docs/**/*.md here; name the pages"));
    }
    let kept = results.join(KEPT);
    let scope = Scope {
        pages: &pages,
        is_whole: args.files.is_empty(),
        kept: &kept,
        root: Path::new(""),
        judge: compare::contradictions,
    };
    let (checked, problems) =
        if args.check { blocks::check(&scope)? } else { blocks::update(&scope, &args.forget)? };
    for line in &args.forget {
        print(&format!("{}: forgot `{line}`\n", blocks::LOCK))?;
    }
    let mut ages = Ages::default();
    for block in &checked {
        print(&format!("{}\n", line(block, args.check, &mut ages)))?;
    }
    if problems.is_empty() {
        let what = if args.check { "current" } else { "written or current" };
        let (blocks, pages) = (checked.len(), pages.len());
        let are = if blocks == 1 { "is" } else { "are" };
        eprint_line(&format!(
            "{blocks} block{} in {pages} page{} {are} {what}",
            plural(blocks),
            plural(pages)
        ));
        return Ok(());
    }
    let is_markup = problems.iter().any(|problem| problem.is_markup);
    let kind = if is_markup && !args.check { ErrorKind::Usage } else { ErrorKind::Regression };
    let said: Vec<String> = problems.iter().map(PageProblem::to_string).collect();
    let count = if said.len() == 1 { "1 problem".to_owned() } else { format!("{} problems", said.len()) };
    let what = if args.check {
        "pages are not what kept runs make of them"
    } else {
        "not every block can be rendered"
    };
    Err(Error::new(kind, format!("{what}: {count}\n{}", said.join("\n"))))
}

fn line(block: &Checked, is_check: bool, ages: &mut Ages) -> String {
    let state = match (is_check, block.is_current, block.is_changed) {
        (_, false, _) => "not current",
        (true, true, _) | (false, true, false) => "current",
        (false, true, true) => "written",
    };
    let ages: Vec<String> = block.commits.iter().map(|commit| ages.describe(commit)).collect();
    let measured = if ages.is_empty() { String::new() } else { format!("; measured at {}", ages.join(", ")) };
    format!("{}:{}: {}: {state}{measured}", block.page.display(), block.line, block.block)
}

/// How many commits ago numbers were measured, as far as git knows. Old numbers are not wrong.
#[derive(Default)]
struct Ages(BTreeMap<String, String>);

impl Ages {
    fn describe(&mut self, commit: &str) -> String {
        let age = || {
            // The commit is text from a file and must not be taken for an option of git.
            if !commit.chars().all(|c| c.is_ascii_hexdigit()) {
                return commit.to_owned();
            }
            let short = commit.get(..8).unwrap_or(commit);
            let range = format!("{commit}..HEAD");
            let git = Command::new("git").args(["rev-list", "--count", &range, "--"]).output();
            let count = git.ok().filter(|output| output.status.success());
            let count = count.and_then(|output| String::from_utf8(output.stdout).ok());
            match count.as_deref().map(str::trim) {
                Some("0") => format!("{short} (this commit)"),
                Some("1") => format!("{short} (1 commit ago)"),
                Some(count) => format!("{short} ({count} commits ago)"),
                None => short.to_owned(),
            }
        };
        self.0.entry(commit.to_owned()).or_insert_with(age).clone()
    }
}
