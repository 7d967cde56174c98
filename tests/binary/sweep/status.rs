//! Cells that are shared, excluded or failed, and how they are shown to people and programs.

use super::grid::{count, lines, place, runs, table};
use serde_json::Value;
use xrun::results::ledger::CellStatus;

#[test]
fn overlapping_grids_share_rows() {
    let place = place("");
    place.xrun(&["sweep", "grid.toml", "training.seed=1,2"]).succeeds();
    assert_eq!(runs(&place), 2);
    let before = lines(&place);
    let wider = ["sweep", "grid.toml", "training.seed=[1, 2, 3]", "--jobs", "2"];
    place.xrun(&wider).succeeds().says(&["3 cells, 2 done, 1 to run", "3 of 3 cells done: 3 ok"]);
    let after = lines(&place);
    assert_eq!(after[..before.len()], before);
    assert_eq!((runs(&place), count(&after, CellStatus::Ok)), (3, 3));
    assert_eq!(table(&place, 2), table(&place, 3)[..2]);

    // Bookkeeping does not change a cell: the row is already there.
    place
        .xrun(&["sweep", "grid.toml", "training.seed=1", "checkpoint.keep=5"])
        .succeeds()
        .says(&["0 to run"]);
    let shared = ["sweep", "grid.toml", "training.seed=4", "checkpoint.keep=1,2"];
    place.xrun(&shared).succeeds().says(&["bookkeeping", "1 to run", "2 of 2 cells done"]);
    assert_eq!(runs(&place), 4);
    // Training changes a cell, and so do execution and what is measured.
    place.xrun(&["sweep", "grid.toml", "training.seed=1", "engine.fused=false"]).succeeds();
    place.xrun(&["sweep", "grid.toml", "training.seed=1", "validation.steps=2"]).succeeds();
    assert_eq!(runs(&place), 6);
}

/// If the world size is left open, a cell resolves it as the run does.
#[test]
fn cells_may_leave_the_world_size_open() {
    let place = place("");
    let sweep = ["sweep", "grid.toml", "parallelism.world_size=auto", "training.seed=1,2"];
    place.xrun(&sweep).succeeds().says(&["2 of 2 cells done: 2 ok"]);
    place.xrun(&sweep).succeeds().says(&["0 to run"]);
    // On the CPU that is one rank, and so the row of a plain cell.
    place.xrun(&["sweep", "grid.toml", "training.seed=1"]).succeeds().says(&["0 to run"]);
}

#[test]
fn what_is_left_out_has_a_row_with_its_reason() {
    let place = place("");
    let sweep = [
        "sweep",
        "grid.toml",
        "model.n_heads=2,3",
        "training.seed=1,2",
        "sweep.exclude=[{ \"model.n_heads\" = 2, \"training.seed\" = 2 }]",
    ];
    place.xrun(&sweep).succeeds().says(&["4 of 4 cells done: 1 ok, 3 skipped"]);
    assert_eq!(runs(&place), 1);
    let rows = table(&place, 4);
    let reasons: Vec<&str> = rows.iter().map(|row| row["reason"].as_str()).collect();
    assert_eq!(reasons[..2], ["", "excluded: model.n_heads=2 training.seed=2"]);
    assert!(reasons[2].contains("does not divide into 3 heads") && reasons[3] == reasons[2], "{reasons:?}");
    assert!(rows[1..].iter().all(|row| row["status"] == "skipped" && row["steps"].is_empty()));
    let before = lines(&place);
    place.xrun(&sweep).succeeds();
    assert_eq!(lines(&place), before);
    // A cell that one sweep excludes, another one runs.
    place.xrun(&["sweep", "grid.toml", "model.n_heads=2", "training.seed=2"]).succeeds();
    assert_eq!((runs(&place), lines(&place).last().unwrap().status), (2, CellStatus::Ok));
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = place("");
    let arguments = ["sweep", "grid.toml", "engine.memory_limit_gib=1e-4,1.0", "training.seed=1,2"];
    let dry = [&arguments[..], &["--dry-run"]].concat();
    let shown = place.xrun(&dry).succeeds().stdout;
    assert!(!place.path().join("results").exists());
    assert_eq!(shown.matches("predicted_oom").count(), 2, "{shown}");
    assert_eq!(shown.matches("to run").count(), 2, "{shown}");
    assert!(shown.contains(" KiB") && shown.contains("engine.memory_limit_gib is 104.86 KiB"), "{shown}");

    let seeds = place.xrun(&[&arguments[..], &["--json"]].concat()).succeeds().stdout;
    let events: Vec<Value> = seeds.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let cells: Vec<&Value> = events.iter().filter(|event| event["event"] == "cell").collect();
    let statuses: Vec<&str> = cells.iter().map(|cell| cell["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["predicted_oom", "predicted_oom", "running", "ok", "running", "ok"]);
    assert_eq!((&cells[5]["done"], &cells[5]["cells"]), (&4.into(), &4.into()));
    let shown = place.xrun(&[&dry[..], &["--json"]].concat()).succeeds().stdout;
    let first: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    assert_eq!((&first["status"], &first["fits"]), (&"done: predicted_oom".into(), &false.into()));
}

#[test]
fn wrong_commands_are_refused_before_anything_is_written() {
    let place = place("");
    place.xrun(&["sweep", "grid.toml", "model.dimm=1,2"]).ended(2).says(&["did you mean model.dim?"]);
    // An error in every cell is shown with its place in the recipe.
    let everywhere = ["sweep", "grid.toml", "model.n_heads=3,5", "training.seed=1,2"];
    place.xrun(&everywhere).ended(2).says(&["does not divide into 3 heads", "model.n_heads=3", "^"]);
    place.xrun(&["sweep", "none.toml"]).ended(2).says(&["cannot read the recipe none.toml"]);
    place.xrun(&["sweep", "grid.toml", "--retry", "bad"]).ended(2);
    place.xrun(&["sweep", "grid.toml", "--retry", "running"]).ended(2).says(&["running"]);
    place.xrun(&["sweep", "grid.toml", "--hang", "0"]).ended(2).says(&["above 0"]);
    assert!(!place.path().join("results").exists());
}

#[test]
fn a_recipe_that_is_edited_meanwhile_is_noticed() {
    let place = place("");
    let sweep = ["sweep", "grid.toml", "training.seed=1,2", "training.steps=1500"];
    let mut running = place.start(&sweep);
    assert!(running.until(|| runs(&place) == 1));
    let recipe = place.path().join("grid.toml");
    let edited =
        std::fs::read_to_string(&recipe).unwrap().replace("weight_decay = 10.0", "weight_decay = 9.0");
    std::fs::write(&recipe, edited).unwrap();
    running.ends().ended(1).says(&["1 ok, 1 failed", "the recipe was changed while the sweep ran"]);
    // The edited recipe has its own cells.
    place.xrun(&sweep).succeeds().says(&["2 to run"]);
}
