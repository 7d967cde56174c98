//! Event files for TensorBoard, also from resumed runs and exported.

use crate::place::{Place, Run};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the event files of a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns the records in a folder's only event file: their data, without lengths and checksums.
fn records(folder: &Path) -> Vec<Vec<u8>> {
    let files = files(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    let (bytes, mut at, mut found) = (fs::read(&files[0]).unwrap(), 0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        found.push(bytes[at + 12..at + 12 + length].to_vec());
        at += length + 16;
    }
    found
}

/// Returns the number of records that a run's files make: a version, a start, one per row, and one per step
/// with samples.
fn expected(run: &Run) -> usize {
    let rows = |file: &str| run.text(file).lines().count() - 1;
    let mut sampled: Vec<u64> = run.summary().samples.iter().map(|sample| sample.step).collect();
    sampled.dedup();
    2 + rows("metrics.csv") + rows("timing.csv") + sampled.len()
}

#[test]
fn a_resumed_run_has_one_event_for_each_of_its_rows() {
    let place = Place::killed_after(15);
    let killed = place.run();
    let with = |setting: &str| place.xrun(&["resume", killed.name(), setting]).succeeds();
    assert!(!killed.path.join("tensorboard").exists());
    with("metrics.tensorboard=true");
    let run = place.run();
    run.ended_as_uninterrupted();
    let live = records(&run.path.join("tensorboard"));
    assert_eq!(live.len(), expected(&run));
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    let of = |tag: &str| live.iter().filter(|data| text(data).contains(tag)).count();
    assert_eq!((of("metrics/loss"), of("metrics/val_loss"), of("timing/step_ms")), (30, 5, 30));
    assert_eq!(of("samples"), 3);

    // Exporting gives the same again from the run's files, any number of times, and from a kept run.
    let exported = place.xrun(&["runs", "export", "--tensorboard", run.name()]).succeeds().stdout;
    let path = place.path().join(exported.trim());
    let id = run.path.strip_prefix(place.path().join("results")).unwrap();
    assert_eq!(path.parent().unwrap(), place.path().join("tensorboard").join(id));
    let bytes = fs::read(&path).unwrap();
    assert_eq!(records(path.parent().unwrap()).len(), live.len());
    place.xrun(&["keep", run.name()]).succeeds();
    let kept = Path::new("results/kept").join(id);
    place.xrun(&["runs", "export", "--tensorboard", kept.to_str().unwrap()]).succeeds();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    place.xrun(&["runs", "export", "--tensorboard=elsewhere", "nothing"]).ended(2);
    place.xrun(&["runs", "export", run.name()]).ended(2).says(&["--tensorboard"]);
    assert!(!place.path().join("elsewhere").exists());
}
