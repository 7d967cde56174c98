//! Writes the table of recipe keys as Markdown, for `docs/recipes.md`.

use super::key::Key;
use super::lookup::section_keys;
use super::optimizer;
use super::schema::{SECTIONS, Values};
use super::toml_text::values;
use crate::optim::{GroupRole, OPTIMIZERS};
use std::fmt::Write;

/// Header of a Markdown table of keys.
const TABLE_HEADER: &str = "| key | class | meaning | values | unit | default | example | aliases |\n\
                    |---|---|---|---|---|---|---|---|";

/// Returns a heading and a table for every section, with a row for every key.
pub fn reference_markdown() -> String {
    let defaults = values(&Values::default());
    let mut text = String::new();
    for (section, purpose) in SECTIONS {
        let _ = writeln!(text, "### `[{section}]`\n\n{purpose}\n\n{TABLE_HEADER}");
        for key in section_keys(section).filter(|key| !key.is_nested() && !optimizer::is_hyperparameter(key))
        {
            let default =
                defaults.iter().find(|(known, _)| known.path == key.path).and_then(|(_, v)| v.as_ref());
            text.push_str(&row(key, default));
        }
        text.push('\n');
        if *section == "optimizer" {
            for entry in OPTIMIZERS {
                let _ = writeln!(text, "With `name = \"{}\"`:\n\n{TABLE_HEADER}", entry.name);
                for (key, default) in optimizer::hyperparameters(entry) {
                    text.push_str(&row(&key, Some(&default)));
                }
                text.push('\n');
            }
            text.push_str(&groups());
        }
    }
    text
}

/// Describes the tables of groups, which have the same keys as `[optimizer]`.
fn groups() -> String {
    let roles = GroupRole::ALL.map(|role| format!("`[optimizer.groups.{}]`", role.word()));
    format!(
        "{} have the same keys, for the parameters of one role: the token embedding, the learned positions, the \
         head, the matrices of blocks, and all weights and biases of norms and biases of products. A group inherits \
         what it leaves out, if its optimizer has such a key; the weight decay of vectors is 0 unless their group \
         sets it.\n\n",
        roles.join(", ")
    )
}

/// Returns the row of a key. Without a `default`, the cell says what happens if the key is unset.
fn row(key: &Key, default: Option<&String>) -> String {
    let aliases: Vec<_> = key.aliases.iter().map(|alias| format!("`{alias}`")).collect();
    let default = default.map_or_else(|| format!("unset: {}", key.unset), |value| format!("`{value}`"));
    let cells = [
        format!("`{}`", key.name()),
        key.class.to_string(),
        key.meaning.to_owned(),
        key.kind.to_string(),
        key.unit.to_owned(),
        default,
        format!("`{}`", key.example),
        aliases.join(", "),
    ];
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}
