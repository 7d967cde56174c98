//! A recipe of a fraction of a second, and what its sweeps leave.

use crate::place::Place;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use xrun::results::ledger::{Attempt, CellStatus, Ledger};

/// A cell of `grid.toml`. With a learning rate of 10, each update multiplies the weights by 1 - 10 · 10.
const RECIPE: &str = r#"
[model]
dim = 16
n_layers = 1
n_heads = 2
ffn_dim = 32
[training]
seq_len = 16
local_batch_size = 2
steps = 40
max_norm = 0.0
[optimizer]
weight_decay = 10.0
[lr_scheduler]
warmup_steps = 0
[data]
train_tokens = 8_000
validation_tokens = 600
[checkpoint]
interval = 0
[validation]
interval = 0
steps = 1
[generation]
samples = 0
[engine]
threads = 1
device = "cpu"
"#;

/// Number of steps of the recipe.
pub const STEPS: u64 = 40;

/// Makes a folder with `grid.toml`, which ends with `more`.
pub fn place(more: &str) -> Place {
    let place = Place::new();
    place.write("grid.toml", format!("{RECIPE}{more}").as_bytes());
    place
}

/// Returns the ledger's lines so far, without a line that is still being written.
pub fn lines(place: &Place) -> Vec<Attempt> {
    Ledger::read(&place.path().join("results")).unwrap().lines().to_vec()
}

/// Returns the files of the ledger, one per process that wrote.
pub fn ledger_files(place: &Place) -> Vec<PathBuf> {
    let folder = fs::read_dir(place.path().join("results/sweeps/ledger")).unwrap();
    folder.map(|file| file.unwrap().path()).collect()
}

/// Returns the lines with a final status, by cell.
pub fn finals(lines: &[Attempt]) -> BTreeMap<String, Vec<Attempt>> {
    let mut finals: BTreeMap<String, Vec<Attempt>> = BTreeMap::new();
    for line in lines {
        let entry = finals.entry(line.key.clone()).or_default();
        if line.status.is_final() {
            entry.push(line.clone());
        }
    }
    finals
}

/// Returns the number of lines with this status.
pub fn count(lines: &[Attempt], status: CellStatus) -> usize {
    lines.iter().filter(|line| line.status == status).count()
}

/// Returns the number of run folders of the recipe.
pub fn runs(place: &Place) -> usize {
    fs::read_dir(place.path().join("results/grid")).map_or(0, Iterator::count)
}

/// Returns the tables of all sweeps.
fn tables(place: &Place, name: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(place.path().join("results/sweeps")).unwrap();
    let tables = folders.map(|folder| folder.unwrap().path().join(name));
    tables.filter(|table| table.exists()).collect()
}

/// Returns the rows, by column, of the table that has `rows` rows.
pub fn table(place: &Place, rows: usize) -> Vec<BTreeMap<String, String>> {
    let read = |path: PathBuf| -> Vec<BTreeMap<String, String>> {
        csv::Reader::from_path(path).unwrap().deserialize().map(Result::unwrap).collect()
    };
    let mut found = tables(place, "table.csv").into_iter().map(read).filter(|table| table.len() == rows);
    let table = found.next().expect("a table of so many rows");
    assert!(found.next().is_none(), "two tables of {rows} rows");
    table
}

/// Returns the number of files that ended attempts left behind.
pub fn left(place: &Place) -> usize {
    fs::read_dir(place.path().join("results/sweeps/.attempts")).map_or(0, Iterator::count)
}
