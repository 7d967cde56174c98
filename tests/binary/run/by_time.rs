//! Checkpoints by time, if the recipe gives no interval: the same rows and weights, whenever saves fall.

use crate::place::{Place, RECIPE, STEPS};
use xrun::checkpoint;

/// Makes a place whose recipe has no interval and keeps every checkpoint.
fn place() -> Place {
    let place = Place::new();
    let recipe = RECIPE.replace("interval = 5\n", "keep = 100\n");
    assert_ne!(recipe, RECIPE);
    place.write("tiny.toml", recipe.as_bytes());
    place
}

fn saved(place: &Place) -> Vec<u64> {
    checkpoint::steps(&place.run().checkpoints()).unwrap()
}

#[test]
fn saves_by_time_change_no_bit() {
    for ranks in [&[][..], &["parallelism.world_size=2", "engine.threads=2"]] {
        let train = |more: &[&str]| {
            let place = place();
            place.xrun(&[&["tiny.toml"], ranks, more].concat()).succeeds();
            place
        };
        // Ten minutes are longer than the run.
        let rarely = train(&[]);
        assert_eq!(saved(&rarely), [STEPS]);
        let always = train(&["checkpoint.minutes=1e-9", "checkpoint.background=never"]);
        assert_eq!(saved(&always), (1..=STEPS).collect::<Vec<_>>());
        // None is due while one is being written in the background; how many there are depends on the disk.
        let beside = train(&["checkpoint.minutes=1e-9", "checkpoint.background=always"]);
        assert_eq!((saved(&beside).first(), saved(&beside).last()), (Some(&1), Some(&STEPS)));
        // A quarter of a second; where these saves fall depends on the machine.
        let sometimes = train(&["checkpoint.minutes=0.004"]);
        for place in [&always, &beside, &sometimes] {
            place.run().ended_as(&rarely.run());
        }
        if !ranks.is_empty() {
            continue;
        }
        // An explicit interval decides, even 0.
        assert_eq!(saved(&train(&["checkpoint.minutes=1e-9", "checkpoint.interval=0"])), [STEPS]);
        assert_eq!(saved(&train(&["checkpoint.minutes=1e-9", "checkpoint.interval=20"])), [20, STEPS]);
        assert_eq!(saved(&train(&["checkpoint.minutes=0"])), [STEPS]);
    }
}

#[test]
fn a_killed_run_resumes_from_a_save_by_time() {
    let place = place();
    let long = ["tiny.toml", "training.steps=150"];
    let often = ["checkpoint.minutes=1e-9", "checkpoint.background=never"];
    let mut running = place.start(&[&long[..], &often].concat());
    assert!(running.until(|| place.runs().first().is_some_and(|run| run.rows() > 5)));
    assert!(running.kill());
    let run = place.run();
    let newest = run.newest().meta().step;
    assert!(newest >= 5, "{newest}");
    let done = place.xrun(&["resume"]).succeeds();
    let whole = self::place();
    whole.xrun(&[&long[..], &["checkpoint.minutes=0"]].concat()).succeeds();
    run.ended_as(&whole.run());
    done.says(&[&format!("resuming from step {newest} ")]);
}
