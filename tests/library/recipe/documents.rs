//! The tables and examples of docs/recipes.md are those of the program.

use super::reference::reference_markdown;
use std::path::Path;
use xrun::expression::{CONSTANTS, Function, MAX_DEPTH, MAX_EXPONENT, MAX_LENGTH, MAX_NODES};
use xrun::machine::Machine;
use xrun::model_text::FUNCTIONS;
use xrun::policy::Activation;
use xrun::recipe::{self, KEYS, UNSET};

const BEGIN: &str = "<!-- reference: generated from the table of keys -->\n";
const END: &str = "<!-- end of reference -->";

/// The tables of docs/recipes.md are those of the program. `UPDATE_DOCS=1 cargo test --test library recipe::`
/// rewrites them.
#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let text = std::fs::read_to_string(&path).expect("docs/recipes.md");
    let begin = text.find(BEGIN).expect("the mark of the beginning") + BEGIN.len();
    let end = begin + text[begin..].find(END).expect("the mark of the end");
    let current = format!("\n{}", reference_markdown());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [&text[..begin], &current, &text[end..]].concat()).expect("docs/recipes.md");
    } else {
        assert!(
            text[begin..end] == current,
            "docs/recipes.md differs from the table of keys; UPDATE_DOCS=1 cargo test --test library recipe:: rewrites it"
        );
    }
}

#[test]
fn the_recipes_in_the_text_load() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let text = std::fs::read_to_string(&path).expect("docs/recipes.md");
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        recipe::load_str(&path, block, &[], std::iter::empty(), &Machine::none()).expect(block);
    }
}

/// The blocks of a page that the program generates, between `<!-- NAME: … -->` and `<!-- end of NAME -->`.
/// `UPDATE_DOCS=1 cargo test --test library recipe::` rewrites them.
fn check_blocks(page: &str, blocks: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(&path).expect(page);
    let mut current = text.clone();
    for (name, block) in blocks {
        let begin = current.find(&format!("<!-- {name}: ")).expect("the mark of the beginning");
        let begin = begin + current[begin..].find('\n').expect("a line") + 1;
        let end =
            begin + current[begin..].find(&format!("<!-- end of {name} -->")).expect("the mark of the end");
        current.replace_range(begin..end, block);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &current).expect(page);
    } else {
        assert!(
            text == current,
            "{page} differs from the program; UPDATE_DOCS=1 cargo test --test library recipe:: rewrites it"
        );
    }
}

#[test]
fn the_page_of_formulas_is_up_to_date() {
    let mut words = "| word | formula |\n|---|---|\n".to_owned();
    for word in Activation::ALL {
        words += &format!("| `{word}` | `{}` |\n", word.as_formula());
    }
    let constants: Vec<String> =
        CONSTANTS.iter().map(|(name, value)| format!("`{name}` ({value:.4}…)")).collect();
    let mut functions = format!(
        "Constants are {}. A formula has at most {MAX_LENGTH} characters, and {MAX_NODES} numbers, names and operators; {MAX_DEPTH} parentheses, \
         calls, signs and powers inside each other; constant exponents up to {MAX_EXPONENT} in size; and constants representable in fp32.\n\n\
         | function | value | slope over u |\n|---|---|---|\n",
        constants.join(" and ")
    );
    for function in Function::ALL {
        functions += &format!(
            "| `{}` | {} | {} |\n",
            function.call(),
            function.value().replace('|', "\\|"),
            function.slope()
        );
    }
    check_blocks("docs/formulas.md", &[("words", words), ("functions", functions)]);
}

#[test]
fn the_functions_of_model_texts_are_up_to_date() {
    let mut functions = "| function | gives |\n|---|---|\n".to_owned();
    for signature in FUNCTIONS {
        functions += &format!("| `{}` | {} |\n", signature.call(), signature.meaning);
    }
    check_blocks("docs/model-texts.md", &[("functions", functions)]);
}

/// The message that docs/formulas.md shows is that of the program.
#[test]
fn the_message_of_a_wrong_formula_is_as_shown() {
    let text = "[model]\nactivation = \"x * tanh(softplu(x))\"\n";
    let path = Path::new("recipes/mine.toml");
    let error = recipe::load_str(path, text, &[], std::iter::empty(), &Machine::none()).expect_err(text);
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/formulas.md"));
    let shown = format!("error: {}", error.message());
    assert!(page.expect("docs/formulas.md").contains(&shown), "{shown}");
}

/// The Python reader fills in the values at which resolved recipes leave keys out.
/// `UPDATE_DOCS=1 cargo test --test library recipe::` rewrites its table.
#[test]
fn the_python_reader_knows_the_values_that_resolved_recipes_leave_out() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/xrun_trainer/implied.py");
    let mut text = "\"\"\"Values of the keys that a resolved recipe leaves out, generated from the table of keys.\"\"\"\n\n\
                    from typing import Any, Dict\n\nIMPLIED: Dict[str, Any] = {\n"
        .to_owned();
    for key in KEYS.iter() {
        let Some(value) = key.implied.filter(|value| *value != UNSET && *value != "{}") else { continue };
        let value = match value {
            "true" => "True",
            "false" => "False",
            value => value,
        };
        text += &format!("    {:?}: {value},\n", key.path);
    }
    text += "}\n";
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("the table can be written");
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == text, "{} differs from the table of keys", path.display());
}
