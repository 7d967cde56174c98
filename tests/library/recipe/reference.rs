//! The table of recipe keys as Markdown, for `docs/recipes.md`.

use std::fmt::Write;
use std::ops::Bound;
use std::path::Path;
use xrun::machine::Machine;
use xrun::optim::{self, Form, GroupRole, Hyperparameter, OPTIMIZERS};
use xrun::recipe::{Class, Key, Layer, NumberFormat, NumberRange, SECTIONS, Type, load_str, section_keys};

/// Header of a Markdown table of keys.
const TABLE_HEADER: &str = "| key | class | meaning | values | unit | default | example | aliases |\n\
                    |---|---|---|---|---|---|---|---|";

/// Returns a heading and a table for every section, with a row for every key.
pub fn reference_markdown() -> String {
    let empty =
        load_str(Path::new("empty.toml"), "", &[], std::iter::empty(), &Machine::none()).expect("no keys");
    let defaults = empty.explain();
    let mut text = String::new();
    for (section, purpose) in SECTIONS {
        let _ = writeln!(text, "### `[{section}]`\n\n{purpose}\n\n{TABLE_HEADER}");
        for key in section_keys(section).filter(|key| !key.is_nested() && !is_hyperparameter(key)) {
            let own =
                defaults.iter().find(|(known, _, layer)| known.path == key.path && *layer == Layer::Default);
            text.push_str(&key_row(key, own.and_then(|(_, value, _)| value.as_deref())));
        }
        text.push('\n');
        if *section == "data" {
            let _ = writeln!(text, "{SOURCES}\n\n{TABLE_HEADER}");
            let own = section_keys(section).filter(|key| key.is_nested());
            own.for_each(|key| text.push_str(&key_row(key, None)));
            text.push('\n');
        }
        if *section == "optimizer" {
            for entry in OPTIMIZERS {
                let _ = writeln!(text, "With `name = \"{}\"`:\n\n{TABLE_HEADER}", entry.name);
                entry.hyperparameters.iter().for_each(|own| text.push_str(&hyperparameter_row(own)));
                text.push('\n');
            }
            text.push_str(&groups());
        }
    }
    text
}

/// Introduces the keys of sources.
const SOURCES: &str = "`[data.sources.NAME]`, for each source of a mixture, under any name:";

fn is_hyperparameter(key: &Key) -> bool {
    key.section() == "optimizer" && optim::owners(key.name()).next().is_some()
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
fn key_row(key: &Key, default: Option<&str>) -> String {
    let default = default.map_or_else(|| format!("unset: {}", key.unset), |value| format!("`{value}`"));
    let idle: Vec<String> = key.idle.iter().map(ToString::to_string).collect();
    let meaning = match idle.is_empty() {
        true => key.meaning.to_owned(),
        false => format!("{} No effect {}.", key.meaning, idle.join(", or ")),
    };
    row([key.name(), &meaning, key.unit, key.example], key.class, key.kind, &default, key.aliases)
}

fn fp32(low: Bound<f64>, high: Bound<f64>) -> NumberRange {
    NumberRange { low, high, used_as: NumberFormat::Fp32 }
}

fn hyperparameter_row(own: &Hyperparameter) -> String {
    let kind = match own.form {
        Form::Number(low, high) => Type::Number(fp32(low, high)),
        Form::Pair(low, high) => Type::Pair(fp32(low, high)),
        Form::Count { min, max } => Type::Count { min, max },
        Form::Flag => Type::Bool,
        Form::Word(words) => Type::Word(words),
    };
    let default = format!("`{}`", own.default);
    row([own.name, own.meaning, "", own.example], Class::Training, kind, &default, own.aliases)
}

fn row(
    [name, meaning, unit, example]: [&str; 4],
    class: Class,
    kind: Type,
    default: &str,
    aliases: &[&str],
) -> String {
    let aliases: Vec<_> = aliases.iter().map(|alias| format!("`{alias}`")).collect();
    let cells = [
        format!("`{name}`"),
        class.to_string(),
        meaning.to_owned(),
        kind.to_string(),
        unit.to_owned(),
        default.to_owned(),
        format!("`{example}`"),
        aliases.join(", "),
    ];
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}
