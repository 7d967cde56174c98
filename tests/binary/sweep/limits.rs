//! Cells that take too long, sweeps that are stopped, and two sweeps at once.

use super::grid::{count, lines, place, runs};
use crate::place::{Place, Running};
use xrun::results::ledger::{Attempt, CellStatus};

/// More steps than anybody waits for.
const LONG: &str = "training.steps=1000000";

/// Starts a sweep of one long cell and waits for its first rows.
fn under_way(place: &Place, more: &[&str]) -> Running {
    let mut sweep = place.start(&[&["sweep", "grid.toml", LONG], more].concat());
    let rows = || {
        let runs = std::fs::read_dir(place.path().join("results/grid")).into_iter().flatten();
        runs.flatten().any(|run| {
            std::fs::read_to_string(run.path().join("metrics.csv")).is_ok_and(|text| text.lines().count() > 3)
        })
    };
    assert!(sweep.until(rows));
    sweep
}

fn last(place: &Place) -> Attempt {
    lines(place).pop().unwrap()
}

#[test]
fn a_cell_that_takes_too_long_is_stopped_and_retried_when_asked() {
    let place = place("");
    let limited = ["sweep", "grid.toml", LONG, "--timeout", "1.5"];
    place.xrun(&limited).ended(1).says(&["timeout", "took more than 1.5 s", "--retry timeout"]);
    let line = last(&place);
    assert_eq!((line.status, line.attempt), (CellStatus::Timeout, 1));
    assert!(
        line.measured.get("steps").unwrap() > 0.0 && line.measured.get("loss").is_some(),
        "what it measured is kept"
    );
    assert_eq!(line.measured.get("val_loss"), None);

    place.xrun(&limited).ended(1).says(&["1 done, 0 to run"]);
    assert_eq!((lines(&place).len(), runs(&place)), (2, 1));
    place.xrun(&[&limited[..], &["--retry", "oom,failed"]].concat()).ended(1).says(&["0 to run"]);
    place.xrun(&[&limited[..], &["--retry", "oom,timeout"]].concat()).ended(1).says(&["1 to run"]);
    let line = last(&place);
    assert_eq!((line.status, line.attempt, runs(&place)), (CellStatus::Timeout, 2, 2));
    assert_eq!(count(&lines(&place), CellStatus::Timeout), 2, "the first attempt stays visible");
}

#[test]
fn a_cell_without_a_row_hangs() {
    let place = place("");
    // One step of many seconds, which only a kill ends, not another signal.
    let endless = ["training.accumulation=100000", "training.steps=1"];
    let arguments = [&["sweep", "grid.toml"], &endless[..], &["--hang", "1.5"]].concat();
    place.xrun(&arguments).ended(1).says(&["hang", "no row for more than 1.5 s"]);
    let line = last(&place);
    assert_eq!(
        (line.status, line.measured.get("steps"), line.measured.get("loss")),
        (CellStatus::Hang, None, None)
    );

    // Steps that follow one another do not hang.
    let steady = ["sweep", "grid.toml", "training.steps=2000", "--hang", "20"];
    place.xrun(&steady).succeeds();
    assert_eq!(last(&place).status, CellStatus::Ok);
}

#[test]
fn a_stopped_sweep_saves_its_cell_and_goes_on() {
    let place = place("");
    let sweep = under_way(&place, &["training.seed=1,2", "checkpoint.keep=1"]);
    sweep.signal("TERM");
    sweep.ends().ended(75).says(&["killed", "stopped by a signal with 0 of 2 cells done", "continues"]);
    let line = last(&place);
    assert_eq!(line.status, CellStatus::Killed);
    let run = place.path().join("results").join(line.run.unwrap());
    assert_eq!(xrun::results::folder::read_summary(&run).unwrap().status, xrun::results::Status::Interrupted);
    assert!(run.join("checkpoint/latest").exists());

    let again = ["sweep", "grid.toml", LONG, "training.seed=1,2", "--timeout", "1"];
    place.xrun(&again).ended(1).says(&["0 done, 2 to run"]);
    let lines = lines(&place);
    assert_eq!(count(&lines, CellStatus::Timeout), 2);
    assert_eq!(lines.iter().filter(|line| line.key == last_key(&lines, 2)).count(), 2 + 2);
}

/// Returns the key of the cell with an attempt of this number.
fn last_key(lines: &[Attempt], attempt: u64) -> String {
    lines.iter().find(|line| line.attempt == attempt).unwrap().key.clone()
}

#[test]
fn a_second_sweep_runs_other_cells_beside_the_first() {
    let place = place("");
    let sweep = under_way(&place, &[]);
    place.xrun(&["sweep", "grid.toml", "training.steps=3"]).succeeds().says(&["1 of 1 cell done: 1 ok"]);
    // A comparison of speed needs the machine alone.
    let speed = ["compare", "grid.toml", "optimizer.lr=1e-4", "--on", "tok_s,val_loss", "--seeds", "2"];
    place.xrun(&speed).ended(1).says(&["another sweep or comparison runs", "speeds must be measured alone"]);
    let shown = place.xrun(&["sweep", "grid.toml", "training.steps=4", "--dry-run"]).succeeds();
    assert!(shown.stdout.contains("to run"), "{}", shown.stdout);
    sweep.signal("TERM");
    sweep.ends().ended(75);
}

#[test]
fn cells_leave_no_checkpoints_and_pictures_unless_the_command_asks_for_them() {
    let place = place("");
    let has = |run: &str, what: &str| {
        let folder = place.path().join("results").join(run).join(what);
        std::fs::read_dir(folder).is_ok_and(|entries| entries.count() > 0)
    };
    place.xrun(&["sweep", "grid.toml", "training.seed=1"]).succeeds().says(&["1 run: ", "; disk: about "]);
    let bare = last(&place).run.unwrap();
    assert!(!has(&bare, "checkpoint") && !has(&bare, "plots"));
    place
        .xrun(&["sweep", "grid.toml", "training.seed=2", "checkpoint.keep=1", "metrics.plots=true"])
        .succeeds();
    let full = last(&place).run.unwrap();
    assert!(has(&full, "checkpoint") && has(&full, "plots"));
}

/// Axes that the recipe does not write itself would be a surprise.
#[test]
fn axes_of_a_recipe_below_are_announced() {
    let place = place("[sweep]\ngrid = { \"optimizer.lr\" = [1e-3, 2e-3] }\n");
    place.write("above.toml", b"extends = \"grid.toml\"\n[training]\nsteps = 3\n");
    let own = place.xrun(&["sweep", "grid.toml", "--dry-run"]).succeeds();
    assert!(!own.stderr.contains("sweep.grid"), "{}", own.stderr);
    let inherited = place.xrun(&["sweep", "above.toml", "--dry-run"]).succeeds();
    let inherited =
        inherited.says(&["sweep.grid is inherited from grid.toml:", "set sweep.grid in above.toml"]);
    assert_eq!(inherited.stdout.lines().count(), 4, "{}", inherited.stdout);
    let replaced =
        place.xrun(&["sweep", "above.toml", "sweep.grid={}", "training.seed=1,2,3", "--dry-run"]).succeeds();
    assert!(!replaced.stderr.contains("sweep.grid") && replaced.stdout.lines().count() == 5);
}
