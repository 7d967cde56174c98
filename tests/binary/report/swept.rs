//! Blocks of sweeps.

use super::place::{Place, RUN, seal};
use std::collections::BTreeMap;
use std::fs;
use xrun::results::ledger::{Attempt, CellStatus, Measured};

const BLOCK: &str = "kind=\"sweep\" select=\"widths\" columns=\"status,reason,tok_s,val_loss,allocated_mib\"";

fn attempt(key: &str, dim: &str, status: CellStatus) -> Attempt {
    Attempt {
        key: key.to_owned(),
        attempt: 1,
        status,
        reason: None,
        recipe: "quickstart".to_owned(),
        settings: BTreeMap::from([("model.dim".to_owned(), dim.to_owned())]),
        measuring: BTreeMap::from([("validation.steps".to_owned(), "0".to_owned())]),
        recipe_hash: format!("{key}123456789"),
        corpus_hash: Some("9c7f5e42".repeat(8)),
        build: "0.1.0 d31aa781".to_owned(),
        device: "cpu avx512".to_owned(),
        run: None,
        held_out: BTreeMap::new(),
        rows: None,
        comparison: None,
        at: "2026-11-22T00:00:00Z".to_owned(),
        measured: Measured::default(),
    }
}

fn store(place: &Place, lines: &[Attempt]) {
    let folder = place.kept("sweeps/widths");
    fs::create_dir_all(&folder).unwrap();
    let line = |attempt: &Attempt| serde_json::to_string(attempt).unwrap() + "\n";
    fs::write(folder.join("ledger.jsonl"), lines.iter().map(line).collect::<String>()).unwrap();
    seal(&folder, "quickstart", "widths");
}

fn lines() -> Vec<Attempt> {
    let mut measured = Measured::default();
    measured.figures.set("tok_s", 24_779.668_938_090_403);
    measured.figures.set("val_loss", 1.1169224);
    measured.figures.set("allocated_bytes", 77_831_424);
    let ok = Attempt { run: Some(RUN.to_owned()), measured, ..attempt("aaa", "128", CellStatus::Ok) };
    let refused = Attempt {
        reason: Some("needs 90 GiB | has 80".to_owned()),
        corpus_hash: None,
        ..attempt("bbb", "65536", CellStatus::PredictedOom)
    };
    vec![attempt("aaa", "128", CellStatus::Running), refused, ok]
}

#[test]
fn cells_are_rows_and_blanks_are_no_zeros() {
    let place = Place::new();
    store(&place, &lines());
    place.page(&[BLOCK]);
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    let page = place.text("README.md");
    for text in [
        "| `model.dim` | status | reason | tokens/s | val. loss (nats/token) | allocated (MiB) | recipe hash | run |",
        "| 128 | ok | — | 24,780 | 1.1169 | 74.2 | `aaa12345` | [20261121T093646Z-7d757a20](results/kept/quickstart/",
        "| 65536 | predicted oom | needs 90 GiB \\| has 80 | — | — | — | `bbb12345` | — |",
        "<sub>cpu avx512, xrun 0.1.0 d31aa781; — was not measured · [runs and commands](results/kept/sweeps/widths)</sub>",
    ] {
        assert!(page.contains(text), "no `{text}` in:\n{page}");
    }
    assert!(page.find("| 128 |") < page.find("| 65536 |"), "cells keep their order");
}

/// It has neither device nor build, and is in the table with its reason.
#[test]
fn a_cell_that_never_ran_is_unlike_no_other() {
    let place = Place::new();
    let skipped = Attempt {
        reason: Some("model.n_heads = 3 is no multiple of 2".to_owned()),
        corpus_hash: None,
        recipe_hash: String::new(),
        measuring: BTreeMap::new(),
        device: String::new(),
        build: "another".to_owned(),
        ..attempt("ccc", "100", CellStatus::Skipped)
    };
    store(&place, &[lines(), vec![skipped]].concat());
    place.page(&[BLOCK]);
    place.xrun(&["report"]).ended(0);
    place.xrun(&["report", "--check"]).ended(0);
    let page = place.text("README.md");
    assert!(page.contains("| 100 | skipped | model.n_heads = 3 is no multiple of 2 | — |"), "{page}");
    assert!(page.contains("<sub>cpu avx512, xrun 0.1.0 d31aa781; — was not measured"), "{page}");
    assert!(!page.contains("Rows differ"), "{page}");
}

#[test]
fn a_sweep_that_was_touched_grown_or_mixed_is_red() {
    let place = Place::new();
    store(&place, &lines());
    place.page(&[BLOCK]);
    place.xrun(&["report"]).ended(0);
    place.edit("results/kept/sweeps/widths/ledger.jsonl", "24779.66", "34779.66");
    place.is_red(&["block `sweep` of `widths`", "ledger.jsonl was changed since it was kept"], false);

    let mut grown = lines();
    grown.push(attempt("ccc", "256", CellStatus::Diverged));
    store(&place, &grown);
    place.is_red(&["is not what the block was made from"], true);
    assert!(place.text("README.md").contains("| 256 | diverged | — | — | — | — |"));

    grown[1].recipe = "dim384".to_owned();
    store(&place, &grown);
    place.is_red(&["which the block does not allow", "training (quickstart, dim384)"], false);
    grown[1].recipe = "quickstart".to_owned();
    grown[1].device = "NVIDIA H200".to_owned();
    store(&place, &grown);
    place.is_red(&["which the block does not allow", "device (cpu avx512, NVIDIA H200)"], false);
    grown[1].device = "cpu avx512".to_owned();
    let over = |steps: &str| BTreeMap::from([("validation.steps".to_owned(), steps.to_owned())]);
    grown[1].measuring = over("2");
    store(&place, &grown);
    place.is_red(&["which the block does not allow", "validation.steps (0, 2)"], false);
    // If all cover only a part, the numbers say which.
    for cell in &mut grown {
        cell.measuring = over("2");
        cell.measured.figures.set("val_batches", 2_u64);
        cell.measured.figures.set("val_batches_of", 40_u64);
    }
    store(&place, &grown);
    place.is_red(&["is not what the block was made from"], true);
    assert!(place.text("README.md").contains("| 24,780 | 1.1169 (over 2 of 40 batches) |"));
}

#[test]
fn a_sweep_is_selected_as_it_is_kept() {
    let place = Place::new();
    store(&place, &lines());
    let kept =
        |name: &str| fs::rename(place.kept("sweeps/widths"), place.kept(&format!("sweeps/{name}"))).unwrap();
    kept("sw-12345678");
    seal(&place.kept("sweeps/sw-12345678"), "quickstart", "sw-12345678");
    for name in ["sw", "sweeps/sw", "sw-12345678", "sweeps/sw-12345678"] {
        place.page(&[&format!("kind=\"sweep\" select=\"{name}\"")]);
        place.xrun(&["report"]).ended(0);
        place.xrun(&["report", "--check"]).ended(0);
    }
    store(&place, &lines());
    kept("sw-abcdef01");
    let said = "`sw` has 2 kept sweeps: sw-12345678, sw-abcdef01";
    place.page(&["kind=\"sweep\" select=\"sw\""]);
    place.is_red(&[said, "name one of them in `select`"], false);
    place.page(&["kind=\"sweep\" select=\"sv-12345678\""]);
    place.is_red(&["no sweep `sv-12345678` is kept", "did you mean `sw-12345678`?"], false);
}

#[test]
fn a_row_of_a_sweep_is_held_against_its_kept_run_and_its_name() {
    let place = Place::new();
    let mut forged = lines();
    forged[2].measured.figures.set("tok_s", 99_999.5);
    store(&place, &forged);
    place.page(&[BLOCK]);
    place.is_red(
        &["ledger.jsonl has tok_s = 99999.5", "quickstart/20261121T093646Z-7d757a20 has 24779.66893809"],
        false,
    );
    store(&place, &lines());
    fs::rename(place.kept("sweeps/widths"), place.kept("sweeps/depths")).unwrap();
    place.page(&["kind=\"sweep\" select=\"depths\""]);
    place.is_red(&["sweeps/depths holds the sweep widths"], false);
}
