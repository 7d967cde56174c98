//! `xrun coordinates`: what it writes, and which widths it rejects.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

#[test]
fn coordinates_are_written_with_their_slopes_their_pictures_and_what_they_came_from() {
    let place = Place::new();
    let mup =
        ["coordinates", "tiny.toml", "model.base_dim=32", "--compare", "--widths", "64,32", "--steps", "2"];
    let table = place.xrun(&mup).succeeds().says(&["4 of 4: mup, width 64, seed 3"]).stdout;
    assert!(table.contains("standard: slope of log RMS over log width, 32 to 64"), "{table}");
    let folder = place.path().join(table.lines().last().unwrap());
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    files.sort();
    let expected =
        ["coordinates.csv", "coordinates.json", "env.json", "plots", "recipe.toml", "resolved.toml"];
    assert_eq!(files, expected.map(PathBuf::from));
    let found: Value = serde_json::from_slice(&fs::read(folder.join("coordinates.json")).unwrap()).unwrap();
    assert_eq!((&found["finished"], &found["base_dim"]), (&Value::Bool(true), &Value::from(32)));
    // Two parametrizations, five quantities, before the first step and after each.
    assert_eq!(found["slopes"].as_array().unwrap().len(), 2 * 5 * 3);
    let rows = fs::read_to_string(folder.join("coordinates.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + 2 * 2 * 5 * 3);
    // At the base width, both parametrizations are the same.
    let at_base = |word: &str| -> Vec<String> {
        let of = format!("{word},32,");
        rows.lines().filter_map(|row| row.strip_prefix(&of)).map(str::to_owned).collect()
    };
    assert_eq!(at_base("mup"), at_base("standard"));
    for quantity in ["embedding", "attention", "feed-forward", "residual", "logits"] {
        assert!(folder.join(format!("plots/{quantity}-light.svg")).is_file(), "{quantity}");
    }
    assert!(place.runs().is_empty());
}

#[test]
fn what_has_no_coordinates_is_refused_before_anything_is_written() {
    let place = Place::new();
    let refused = |arguments: &[&str], texts: &[&str]| {
        place.xrun(&[&["coordinates", "tiny.toml"], arguments].concat()).ended(2).says(texts);
    };
    refused(&["--widths", "32"], &["a slope needs two widths"]);
    refused(&["--widths", "32,40"], &["model.n_heads = 2", "40/32"]);
    refused(&["--compare", "--widths", "32,64"], &["--compare also measures muP", "add model.base_dim="]);
    refused(&["--widths", "32,64", "--steps", "40"], &["training.steps is 30, but 40 are to be measured"]);
    assert!(!place.path().join("results").exists());
}
