//! A run that ends after a step, as its command says, and is continued later.

use crate::place::{Place, STEPS, UNINTERRUPTED};
use xrun::results::Status;

#[test]
fn a_run_that_was_halted_goes_on_to_the_same_bits() {
    // Steps with and without a save, on one rank and on two, for one launcher as processes.
    for (until, launch) in
        [(7, &[][..]), (10, &[]), (7, &["parallelism.world_size=2"]), (7, &["parallelism.launcher=process"])]
    {
        let place = Place::new();
        let first = until.to_string();
        let arguments = [&["tiny.toml", "--until", &first, "checkpoint.keep=10"][..], launch].concat();
        place.xrun(&arguments).succeeds().says(&[&format!("saved after step {until}"), "xrun resume"]);
        let run = place.run();
        assert_eq!((run.rows(), run.newest().meta().step), (until, until as u64));
        let summary = run.summary();
        assert_eq!((summary.status, summary.steps), (Status::Interrupted, until as u64));
        assert_eq!(summary.reason, Some(format!("--until {until}")));
        // Further, in two parts.
        place.xrun(&["resume", "--until", "20"]).succeeds();
        assert_eq!(place.run().rows(), 20);
        place.xrun(&["resume"]).succeeds();
        let run = place.run();
        match launch.is_empty() {
            true => run.ended_as_uninterrupted(),
            false => {
                let whole = Place::new();
                whole.xrun(&[&["tiny.toml", "checkpoint.keep=10"][..], launch].concat()).succeeds();
                run.ended_as(&whole.run());
            }
        }
    }
}

#[test]
fn a_step_that_is_not_reached_or_not_saved_is_refused() {
    let place = Place::new();
    let refused = |arguments: &[&str], says: &[&str]| place.xrun(arguments).ended(2).says(says);
    refused(&["tiny.toml", "--until", "31"], &["--until 31", "has 30 steps"]);
    refused(&["tiny.toml", "--until", "0"], &["0 is not in"]);
    refused(&["tiny.toml", "--until", "5", "checkpoint.keep=0"], &["saves no state", "checkpoint.keep=1"]);
    assert!(place.runs().is_empty());
    place.xrun(&["tiny.toml", "--until", "12"]).succeeds();
    let before = place.run().files();
    refused(&["resume", "--until", "12"], &["--until 12", "at step 12 already"]);
    assert!(place.run().files() == before, "a refused resume changed the run");
    // The last step ends the run as usual.
    place.xrun(&["resume", "--until", "30"]).succeeds();
    let run = place.run();
    assert_eq!((run.summary().status, run.rows() as u64), (Status::Ok, STEPS));
    assert_eq!(run.text("metrics.csv"), UNINTERRUPTED.run().text("metrics.csv"));
}
