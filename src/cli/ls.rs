//! `xrun ls`.

use super::print;
use crate::error::{IoContext, Result};
use crate::recipe::{self, builtin};
use std::path::{Path, PathBuf};

/// Where `xrun ls` looks for recipes, besides the binary.
const FOLDER: &str = "recipes";

/// Arguments of `xrun ls`.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Prints a table of the built-in recipes and of `recipes/*.toml`: what to pass to `xrun`, and the description.
///
/// # Errors
/// When `recipes/` is there and cannot be listed. A recipe that cannot be read is a row that says so.
pub fn run(_args: &Args) -> Result<()> {
    let row = |recipe: String, from: &str, resolved| [recipe, from.to_owned(), describe(resolved)];
    let mut rows = vec![["RECIPE", "FROM", "DESCRIPTION"].map(str::to_owned)];
    for (name, text) in builtin::RECIPES {
        rows.push(row(
            (*name).to_owned(),
            "built-in",
            recipe::load_str(Path::new(name), text, &[], no_env()),
        ));
    }
    for path in recipes_in(Path::new(FOLDER))? {
        rows.push(row(path.display().to_string(), "file", recipe::load(&path, &[], no_env())));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = (width(0), width(1));
    let lines: Vec<String> = rows
        .iter()
        .map(|[recipe, from, what]| {
            format!("{recipe:0$}  {from:1$}  {what}", widths.0, widths.1).trim_end().to_owned()
        })
        .collect();
    print(&(lines.join("\n") + "\n"))
}

/// A list shows recipes as they stand: the environment of one run is not part of them.
fn no_env() -> impl Iterator<Item = (String, String)> {
    std::iter::empty()
}

/// The description, or the first line of what is wrong.
fn describe(resolved: Result<recipe::Resolved>) -> String {
    match resolved {
        Ok(resolved) => resolved.recipe.job.description.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(e) => format!("(wrong: {})", e.message().lines().next().unwrap_or_default()),
    }
}

/// The recipes in `folder`, sorted; none where there is no such folder.
fn recipes_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        if path.is_file() && path.extension().is_some_and(|ending| ending == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
