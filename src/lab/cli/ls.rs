//! `xrun ls`.

use super::terminal::print;
use crate::error::{IoContext, Result};
use crate::format::{Column, Table};
use crate::machine::Machine;
use crate::recipe::{self, SECTIONS, builtin};
use crate::regular;
use std::iter::empty;
use std::path::{Path, PathBuf};

/// A folder that `xrun ls` searches, besides the built-in recipes and the current folder.
const FOLDER: &str = "recipes";

/// Prints a table of the built-in recipes, the recipes in the current folder, and `recipes/*.toml`: what to
/// pass to `xrun`, and the description.
///
/// # Errors
/// If an existing folder cannot be listed. A recipe that cannot be loaded is listed with the reason.
pub fn run() -> Result<()> {
    // Recipes are listed as written, so neither a machine nor environment variables apply.
    let machine = Machine::none();
    let mut table = Table::new(&[Column::Left; 3]);
    table.row(["RECIPE", "FROM", "DESCRIPTION"]);
    for (name, text) in builtin::RECIPES {
        let recipe = recipe::load_str(Path::new(name), text, &[], empty(), &machine);
        table.row([*name, "built-in", &describe(recipe)]);
    }
    for path in recipes_here()? {
        let recipe = recipe::load(&path, &[], empty(), &machine);
        table.row([path.display().to_string().as_str(), "file", &describe(recipe)]);
    }
    print(&table.render(0))
}

/// Returns the recipes in the current folder and in `recipes/`.
///
/// # Errors
/// If an existing folder cannot be listed.
pub(super) fn recipes_here() -> Result<Vec<PathBuf>> {
    // Other programs keep their settings in `*.toml` of the current folder too.
    let here = toml_files_in(Path::new("."))?.into_iter().filter(|path| is_recipe(path));
    Ok(here.chain(toml_files_in(Path::new(FOLDER))?).collect())
}

/// Returns the description, or the first line of the error.
fn describe(recipe: Result<recipe::Recipe>) -> String {
    match recipe {
        Ok(recipe) => recipe.values().job.description.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(e) => format!("(wrong: {})", e.message().lines().next().unwrap_or_default()),
    }
}

/// Returns true if a file has a line that only recipes have, valid or not: `extends`, or a section header.
fn is_recipe(path: &Path) -> bool {
    let is_header = |line: &str| {
        let name = line.strip_prefix('[').and_then(|line| line.split_once(']')).map(|(name, _)| name.trim());
        name.is_some_and(|name| SECTIONS.iter().any(|(section, _)| *section == name))
    };
    let is_extends =
        |line: &str| line.strip_prefix("extends").is_some_and(|rest| rest.trim_start().starts_with('='));
    let text = regular::read_text_through_link(path).unwrap_or_default();
    text.lines().map(str::trim_start).any(|line| is_header(line) || is_extends(line))
}

/// Returns the `*.toml` files in `folder`, sorted; none if the folder does not exist.
fn toml_files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).at("list", folder)? {
        let path = entry.at("list", folder)?.path();
        // List paths as a user would write them, without `./`.
        let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
        if path.is_file() && path.extension().is_some_and(|ending| ending == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
