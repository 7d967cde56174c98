//! kill -9 at any moment, then a resume: weights, moments and metrics are the same as without the kill.

use crate::place::{Place, Run, STEPS};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A run with plots, so that a kill may come while one is drawn.
const DRAWN: [&str; 2] = ["tiny.toml", "metrics.plots=true"];
const MOMENTS: u32 = 20;
const HITS: usize = 5;

/// Returns the command that continues what a killed process left.
fn carry_on(place: &Place) -> Vec<String> {
    match place.runs().as_slice() {
        // Killed before there was a run to speak of.
        [] => DRAWN.map(str::to_owned).to_vec(),
        [run] if run.summary().status.is_unfinished() => vec!["resume".to_owned()],
        [run] => vec!["resume".to_owned(), run.name().to_owned()],
        runs => panic!("{} runs of one", runs.len()),
    }
}

fn to_the_end(place: &Place) {
    let arguments = carry_on(place);
    place.xrun(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).succeeds();
    let run = place.run();
    run.ended_as_uninterrupted();
    assert_eq!(run.rows() as u64, STEPS);
    let plots = fs::read_dir(run.path.join("plots")).unwrap().count();
    assert_eq!(plots, 12);
}

/// Starts `arguments` and kills the process after `share` of the time that it takes. `wall` is corrected if
/// it was too long.
fn kill_at(place: &Place, arguments: &[String], share: f64, wall: &mut Duration) -> bool {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let mut running = place.start(&arguments);
    let moment = wall.mul_f64(share);
    let alive = running.until(|| began.elapsed() >= moment);
    if !alive {
        *wall = began.elapsed();
    }
    running.kill() && alive
}

#[test]
fn at_twenty_moments_of_a_run() {
    let began = Instant::now();
    Place::new().xrun(&DRAWN).succeeds();
    let mut wall = began.elapsed();
    for moment in 0..MOMENTS {
        let share = (f64::from(moment) + 0.5) / f64::from(MOMENTS);
        let place = (0..20)
            .find_map(|_| {
                let place = Place::new();
                kill_at(&place, &carry_on(&place), share, &mut wall).then_some(place)
            })
            .expect("one of twenty processes is killed before it ends");
        // Every third run is killed a second time, at another moment, while it is being resumed.
        if moment % 3 == 0 {
            kill_at(&place, &carry_on(&place), 1.0 - share, &mut wall.clone());
        }
        to_the_end(&place);
    }
}

/// Returns whether a save is in progress in the checkpoint folder, or was when its process was killed.
fn inside_a_save(checkpoints: &Path) -> bool {
    let Ok(entries) = fs::read_dir(checkpoints) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name != ".tmp-probe" && (name.starts_with(".tmp-") || name.starts_with(".old-"))
    })
}

#[test]
fn in_the_middle_of_saves() {
    let mut hits = 0;
    for attempt in 0..100 {
        if hits >= HITS {
            return;
        }
        let place = Place::new();
        // Twice in a row, the second time in the process that continues the first.
        for round in 0..2 {
            let arguments = carry_on(&place);
            let mut running = place.start(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
            // What an earlier process left is not a save of this one.
            running.until(|| place.runs().first().is_none_or(|run| !inside_a_save(&run.checkpoints())));
            // The first save of the process, or a later one once the saves before it are there.
            let before = place.runs().first().map_or(0, saved);
            let wanted = before + (attempt + round) % 3;
            let caught = running.until(|| {
                place
                    .runs()
                    .first()
                    .is_some_and(|run| saved(run) >= wanted && inside_a_save(&run.checkpoints()))
            });
            // At various moments of the save: files, syncs, the rename, the pointer, the pruning.
            std::thread::sleep(Duration::from_micros(700 * (attempt + round) % 7000));
            let killed = running.kill();
            if killed && caught && inside_a_save(&place.run().checkpoints()) {
                hits += 1;
            }
        }
        to_the_end(&place);
    }
    panic!("only {hits} of 200 processes were killed inside a save");
}

/// Returns the newest step with a checkpoint folder, counted in saves.
fn saved(run: &Run) -> u64 {
    let steps = xrun::checkpoint::steps(&run.checkpoints()).unwrap_or_default();
    steps.last().map_or(0, |step| step / 5)
}

#[test]
fn before_the_first_checkpoint() {
    let place = Place::new();
    // Steps of several micro-steps, so that there is time between the first row and the end.
    let slow = ["tiny.toml", "checkpoint.interval=0", "training.accumulation=10"];
    let mut running = place.start(&slow);
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 0)));
    assert!(running.kill());
    let run = place.run();
    let refused = place.xrun(&["resume", run.name(), "optimizer.lr=1e-4"]).ended(2);
    refused.says(&["optimizer.lr = 0.0001 (was 0.003)"]);
    let done = place.xrun(&["resume"]).succeeds();
    assert!(!done.stderr.contains("resuming from"), "{}", done.stderr);
    let other = Place::new();
    other.xrun(&slow).succeeds();
    place.run().ended_as(&other.run());
    assert_eq!(place.run().path, run.path);
}

#[test]
fn what_a_killed_process_left_half_written_is_removed() {
    let place = Place::killed_after(10);
    let run = place.run();
    fs::create_dir(run.path.join("plots")).unwrap();
    for folder in ["", "plots"] {
        fs::write(run.path.join(folder).join(".writing-abc123.tmp"), "half").unwrap();
    }
    fs::create_dir(run.checkpoints().join(".tmp-step-000015")).unwrap();
    place.xrun(&["resume", "metrics.plots=true"]).succeeds();
    run.ended_as_uninterrupted();
}
