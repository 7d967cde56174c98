//! What `xrun watch` prints about a run, a sweep and a comparison if there is no terminal.

use crate::place::Place;
use std::fs;

#[test]
fn a_frame_is_text_where_there_is_no_terminal() {
    let place = Place::new();
    place.xrun(&["watch"]).ended(2).says(&["no run `latest` in results: there are no runs yet"]);
    place.xrun(&["tiny.toml", "-q", "training.steps=6"]).succeeds();
    let run = place.run();
    for arguments in [&["watch"][..], &["watch", run.name(), "--once"], &["watch", "latest", "--ascii"]] {
        let done = place.xrun(arguments).succeeds();
        let shown = &done.stdout;
        assert!(shown.contains(&run.summary().run), "{shown}");
        assert!(shown.contains("step 6/6") && shown.contains("loss"), "{shown}");
        assert!(shown.is_ascii(), "the locale of the tests has no other characters: {shown}");
        assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    }
    // As if killed: its summary says running, and no process holds the folder.
    let path = place.path().join("results").join(format!("{}/{}", run.summary().recipe, run.summary().run));
    let summary = fs::read_to_string(path.join("summary.json")).unwrap();
    fs::write(path.join("summary.json"), summary.replace("\"status\": \"ok\"", "\"status\": \"running\""))
        .unwrap();
    let shown = place.xrun(&["watch"]).succeeds().stdout;
    assert!(shown.contains("killed") && shown.contains("ended without recording a status"), "{shown}");
}

#[test]
fn a_sweep_and_a_comparison_are_found_by_their_names() {
    let place = Place::new();
    place.xrun(&["sweep", "tiny.toml", "-q", "training.steps=2", "optimizer.lr=0.001,0.002"]).succeeds();
    let sweep = fs::read_dir(place.path().join("results/sweeps")).unwrap();
    let folder =
        sweep.map(|entry| entry.unwrap().path()).find(|path| path.join("cells.json").is_file()).unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    let shown = place.xrun(&["watch", &format!("sweeps/{name}")]).succeeds().stdout;
    assert!(shown.contains(&format!("sweep {name}")) && shown.contains("2 of 2 cells done"), "{shown}");
    assert!(shown.contains("lr=0.001") && shown.contains("lr=0.002"), "{shown}");
    let compare = [
        "compare",
        "tiny.toml",
        "optimizer.lr=0.002",
        "training.steps=2",
        "--on",
        "val_loss",
        "--seeds",
        "2",
    ];
    place.xrun(&[&compare[..], &["--name", "rates"]].concat());
    let shown = place.xrun(&["watch", "comparisons/rates"]).succeeds().stdout;
    assert!(shown.contains("2 of 2 pairs done") && shown.contains("finished"), "{shown}");
    assert!(shown.contains("optimizer.lr"), "{shown}");
}
