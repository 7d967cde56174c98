//! The tables and examples of docs/recipes.md are those of the program.

use std::path::Path;
use xrun::machine::Machine;
use xrun::recipe;

const BEGIN: &str = "<!-- reference: generated from the table of keys -->\n";
const END: &str = "<!-- end of reference -->";

/// The tables of docs/recipes.md are those of the program. `UPDATE_DOCS=1 cargo test --test recipe` rewrites
/// them.
#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let text = std::fs::read_to_string(&path).expect("docs/recipes.md");
    let begin = text.find(BEGIN).expect("the mark of the beginning") + BEGIN.len();
    let end = begin + text[begin..].find(END).expect("the mark of the end");
    let current = format!("\n{}", recipe::reference_markdown());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [&text[..begin], &current, &text[end..]].concat()).expect("docs/recipes.md");
    } else {
        assert!(
            text[begin..end] == current,
            "docs/recipes.md differs from the table of keys; UPDATE_DOCS=1 cargo test --test recipe rewrites it"
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
