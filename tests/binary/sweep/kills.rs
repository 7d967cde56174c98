//! kill -9 of a sweep at any moment, then the same command: every cell has exactly one completed row.

use super::grid::{STEPS, count, finals, ledger_files, left, lines, place, runs, table};
use crate::place::{Place, Running};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use xrun::results::ledger::{Attempt, CellStatus};

/// Four sets times six seeds: two sets train, one diverges, one does not fit.
const SWEEP: &str = r#"
[sweep]
grid = { "training.seed" = [1, 2, 3, 4, 5, 6] }
pairs = [
    { "optimizer.lr" = 1e-3 },
    { "optimizer.lr" = 3e-3 },
    { "optimizer.lr" = 10.0 },
    { "optimizer.lr" = 1e-3, "engine.memory_limit_gib" = 1e-4 },
]
"#;
const CELLS: usize = 24;

/// Returns the attempts that have begun and not ended.
fn open(lines: &[Attempt]) -> Vec<&Attempt> {
    let mut open: BTreeMap<&str, &Attempt> = BTreeMap::new();
    for line in lines {
        match line.status {
            CellStatus::Running => _ = open.insert(&line.key, line),
            _ => _ = open.remove(line.key.as_str()),
        }
    }
    open.into_values().collect()
}

/// Starts the sweep and kills it once `enough` accepts the ledger's lines; a run that is then in progress
/// lives on.
fn killed_when(place: &Place, enough: impl Fn(&[Attempt]) -> bool) -> Vec<Attempt> {
    let mut sweep: Running = place.start(&["sweep", "grid.toml"]);
    assert!(sweep.until(|| enough(&lines(place))), "the sweep ended before it was killed");
    assert!(sweep.kill());
    lines(place)
}

/// Returns the process id of an attempt's run, once the run has begun.
pub fn process_of(place: &Place, attempt: &Attempt) -> Option<u64> {
    let name = format!("results/sweeps/.attempts/{}-{}.jsonl", &attempt.key[..16], attempt.attempt);
    let text = fs::read_to_string(place.path().join(name)).ok()?;
    let mut events = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events.find(|event| event["event"] == "begin")?["pid"].as_u64()
}

/// Returns whether the ledger has an unfinished attempt whose run has begun.
fn has_begun(place: &Place, lines: &[Attempt]) -> bool {
    open(lines).first().is_some_and(|attempt| process_of(place, attempt).is_some())
}

/// Sends a signal to a process and returns whether that worked.
pub fn sent(signal: &str, pid: u64) -> bool {
    let kill = format!("kill -{signal} {pid}");
    Command::new("sh").args(["-c", &kill]).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn a_sweep_killed_again_and_again_ends_with_one_row_per_cell() {
    let place = place(SWEEP);

    // Its run stays alive: the next sweep waits for it and takes its result.
    let seen = killed_when(&place, |lines| count(lines, CellStatus::Ok) >= 2 && has_begun(&place, lines));
    let orphan = open(&seen)[0].clone();

    // Its run is killed too: the next sweep sees that and tries the cell again.
    let mut victim = None;
    for more in 1..=5 {
        let done = count(&seen, CellStatus::Ok) + more;
        let seen =
            killed_when(&place, |lines| count(lines, CellStatus::Ok) >= done && has_begun(&place, lines));
        let attempt = open(&seen)[0].clone();
        if process_of(&place, &attempt).is_some_and(|pid| sent("KILL", pid)) {
            victim = Some(attempt);
            break;
        }
    }
    let victim = victim.expect("a run is killed before it ends");

    // Killed between writing the line that begins an attempt and starting its process, or just after.
    let ran = count(&lines(&place), CellStatus::Ok);
    killed_when(&place, |lines| count(lines, CellStatus::Ok) > ran && !open(lines).is_empty());

    // Its run stays alive and ends while nobody watches, and half a line is written.
    let seen =
        killed_when(&place, |lines| count(lines, CellStatus::Diverged) >= 1 && has_begun(&place, lines));
    let unwatched = open(&seen)[0].clone();
    if let Some(pid) = process_of(&place, &unwatched) {
        while sent("0", pid) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    for ledger in ledger_files(&place) {
        let whole = fs::read(&ledger).unwrap();
        fs::write(&ledger, [&whole[..], br#"{"seq":9,"key":"0123","att"#].concat()).unwrap();
    }
    let done = place.xrun(&["sweep", "grid.toml"]).succeeds();
    let done = done.says(&["24 of 24 cells done"]);
    let (heading, first) = (done.stderr.find("24 cells, "), done.stderr.find("/24] "));
    assert!(heading.is_some() && heading < first, "the heading is first: {}", done.stderr);

    let lines = lines(&place);
    let finals = finals(&lines);
    assert_eq!(finals.len(), CELLS);
    for (key, rows) in &finals {
        assert_eq!(rows.len(), 1, "{key}: {rows:?}");
    }
    assert!(open(&lines).is_empty());
    for attempt in [orphan, unwatched] {
        assert_eq!(finals[&attempt.key][0].attempt, attempt.attempt, "its result was taken");
    }
    assert!(finals[&victim.key][0].attempt > victim.attempt, "it was tried again");
    let killed: Vec<_> = lines.iter().filter(|line| line.status == CellStatus::Killed).collect();
    assert!(!killed.is_empty() && killed.iter().all(|line| line.reason.is_some()));
    assert!(killed.iter().all(|line| finals[&line.key][0].attempt > line.attempt));

    let counts = [CellStatus::Ok, CellStatus::Diverged, CellStatus::PredictedOom];
    assert_eq!(counts.map(|status| count(&lines, status)), [12, 6, 6]);
    // Nothing ran that the ledger does not know of: one run per attempt that began one.
    assert_eq!(runs(&place), lines.iter().filter(|line| line.run.is_some()).count());
    assert_eq!(left(&place), 0);

    for row in table(&place, CELLS) {
        let measured =
            ["steps", "train_loss", "loss", "val_loss", "tok_s", "step_ms", "mfu_pct", "allocated_mib"];
        for column in measured {
            assert_ne!(row[column].parse(), Ok(0.0), "{column} of {row:?}");
        }
        assert_eq!(row["mfu_pct"], "", "the CPU's peak is not known");
        match row["status"].as_str() {
            "ok" => {
                assert_eq!(row["steps"], STEPS.to_string());
                assert!(
                    ["train_loss", "loss", "val_loss", "run"].iter().all(|&column| !row[column].is_empty()),
                    "{row:?}"
                );
                assert_eq!(row["planned_mib"], row["allocated_mib"]);
            }
            "diverged" => {
                assert_eq!(row["optimizer.lr"], "10.0");
                assert!(row["steps"].parse::<u64>().unwrap() < STEPS);
                assert_eq!(row["val_loss"], "");
            }
            _ => {
                assert_eq!(
                    (row["status"].as_str(), &*row["engine.memory_limit_gib"]),
                    ("predicted_oom", "0.0001")
                );
                assert!(measured.iter().all(|&column| row[column].is_empty()), "{row:?}");
                assert!(!row["planned_mib"].is_empty() && row["run"].is_empty(), "{row:?}");
                assert!(row["reason"].contains("does not fit"), "{row:?}");
            }
        }
    }

    // Once more; nothing is left to do.
    let before = ledger_files(&place);
    place.xrun(&["sweep", "grid.toml"]).succeeds().says(&["24 done, 0 to run"]);
    assert_eq!((ledger_files(&place), self::lines(&place)), (before, lines));
}

#[test]
fn a_damaged_line_is_named() {
    let place = place("");
    place.xrun(&["sweep", "grid.toml", "training.steps=2"]).succeeds();
    let ledger = ledger_files(&place).remove(0);
    let text = fs::read_to_string(&ledger).unwrap();
    // A figure that is better than the measured one.
    let damaged = text.replacen("\"steps\":2", "\"steps\":3", 1);
    assert_ne!(damaged, text);
    fs::write(&ledger, &damaged).unwrap();
    let said = format!("{}:3: this line was changed", ledger.file_name().unwrap().to_str().unwrap());
    for command in [&["sweep", "grid.toml", "training.steps=2"][..], &["keep", "sweeps/grid"]] {
        place.xrun(command).ended(1).says(&[&said]);
    }
    assert_eq!(fs::read_to_string(&ledger).unwrap(), damaged);
}

/// A grid for two sweeps at once.
const SHARED: [&str; 4] = ["sweep", "grid.toml", "training.seed=1,2,3,4,5,6", "training.steps=400"];

#[test]
fn two_sweeps_of_one_grid_run_each_cell_once() {
    let place = place("");
    let mut one = place.start(&SHARED);
    assert!(one.until(|| !lines(&place).is_empty()));
    let other = place.start(&SHARED);
    for sweep in [one, other] {
        sweep.ends().succeeds().says(&["6 of 6 cells done: 6 ok"]);
    }
    let lines = lines(&place);
    assert_eq!((lines.len(), runs(&place), ledger_files(&place).len()), (12, 6, 2));
    assert!(lines.iter().all(|line| line.attempt == 1));
    assert_eq!(table(&place, 6).iter().filter(|row| row["status"] == "ok").count(), 6);
    assert_eq!(fs::read_dir(place.path().join("results/sweeps/.claims")).unwrap().count(), 0);
}

#[test]
fn a_sweep_completes_what_another_one_left_when_it_was_killed() {
    let place = place("");
    let mut one = place.start(&SHARED);
    assert!(one.until(|| has_begun(&place, &lines(&place))));
    let mut other = place.start(&SHARED);
    assert!(other.until(|| open(&lines(&place)).len() == 2));
    assert!(one.kill());
    other.ends().succeeds().says(&["6 of 6 cells done: 6 ok"]);
    let lines = lines(&place);
    assert_eq!(count(&lines, CellStatus::Ok), 6);
    // The run that the killed sweep left was found, unless it had not begun.
    let killed = count(&lines, CellStatus::Killed);
    assert!(killed <= 1 && runs(&place) <= 6 + killed);
    assert!(open(&lines).is_empty());
    assert_eq!(left(&place), 0);
}
