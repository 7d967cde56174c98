//! Tests of event files.

use super::*;
use crate::results::folder::RunFolder;

/// Returns the records of a file without their framing, up to an incomplete one.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(head) = bytes.get(at..at + 8) {
        let length = u64::from_le_bytes(head.try_into().unwrap()) as usize;
        let Some(data) = bytes.get(at + 12..at + 12 + length) else { break };
        assert_eq!(record::frame(data), bytes[at..at + length + 16], "checksums");
        found.push(data.to_vec());
        at += length + 16;
    }
    found
}

fn row(step: u64) -> MetricsRow {
    MetricsRow { step, tokens_seen: 10 * step, loss: 1.0 / step as f32, ..MetricsRow::default() }
}

fn sample(step: u64, text: &str) -> Sample {
    Sample { step, prompt: "a".to_owned(), text: text.to_owned() }
}

/// Creates a run of `steps` steps in `results`, with a sample after the last.
fn run(results: &Path, steps: u64) -> RunFolder {
    let began: Timestamp = "2026-11-02T03:04:05Z".parse().unwrap();
    let folder = RunFolder::create(results, "r", "0123abcd", began).unwrap();
    folder.write_environment(&Environment::detect(1, began)).unwrap();
    let mut metrics = folder.start_rows::<MetricsRow>(METRICS).unwrap();
    let mut timing = folder.start_rows::<TimingRow>(TIMING).unwrap();
    for step in 1..=steps {
        metrics.append(&row(step)).unwrap();
        timing.append(&TimingRow::timed(step, Phase::Train, step as f64, 1e3)).unwrap();
    }
    timing.append(&TimingRow::timed(steps, Phase::Sample, steps as f64 + 0.5, 500.0)).unwrap();
    folder
}

fn only_file(folder: &Path) -> PathBuf {
    let files = own_files(folder).unwrap();
    assert_eq!(files.len(), 1, "{files:?}");
    files.into_iter().next().unwrap()
}

#[test]
fn an_export_has_every_row_and_sample_and_is_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = run(dir.path(), 3);
    let samples = [sample(3, "b"), sample(3, "c")];
    let to = dir.path().join("export");
    let path = export(folder.path(), &samples, &to).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    // Version, start, three rows from each file, the row of the samples, and the samples.
    assert_eq!(records(&bytes).len(), 2 + 6 + 2);
    assert!(records(&bytes).iter().any(|data| data.windows(2).any(|window| window == b"ac")));
    assert_eq!(export(folder.path(), &samples, &to).unwrap(), path);
    assert_eq!(std::fs::read(only_file(&to)).unwrap(), bytes);
}

/// However often a run is resumed, one file has every kept row exactly once.
#[test]
fn a_process_writes_the_kept_rows_anew_and_appends() {
    let dir = tempfile::tempdir().unwrap();
    let folder = run(dir.path(), 3);
    let events = folder.path().join(TENSORBOARD);
    for process in 1..=3 {
        let mut file = EventFile::create(folder.path(), &[]).unwrap();
        let kept = records(&std::fs::read(only_file(&events)).unwrap()).len();
        assert_eq!(kept, 2 + 7, "process {process}");
        let timed = TimingRow::timed(4, Phase::Train, 4.0, 1e3);
        file.append(|now| Event::from_timing(&timed, now)).unwrap();
        file.append(|now| Event::from_metrics(&row(4), now)).unwrap();
        file.append(|now| Event::from_samples(&[sample(4, "b")], now)).unwrap();
        assert_eq!(records(&std::fs::read(only_file(&events)).unwrap()).len(), kept + 3);
    }
    // A file from before the clock was set back still sorts before the new one.
    let ahead = events.join(file_name(9_000_000_000, 0));
    std::fs::rename(only_file(&events), &ahead).unwrap();
    EventFile::create(folder.path(), &[]).unwrap();
    assert!(only_file(&events) > ahead);
    // Files of other programs stay.
    let other = events.join("events.out.tfevents.1.host");
    std::fs::write(&other, "x").unwrap();
    EventFile::create(folder.path(), &[]).unwrap();
    assert!(other.exists());
}

#[test]
fn links_are_refused_and_what_they_lead_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let folder = run(dir.path(), 1);
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.path().join(TENSORBOARD)).unwrap();
    let error = EventFile::create(folder.path(), &[]).unwrap_err();
    assert!(error.message().contains("is a link or not a folder"), "{error}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_run_without_its_environment_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = run(dir.path(), 1);
    std::fs::write(folder.path().join(ENVIRONMENT), "{").unwrap();
    let error = export(folder.path(), &[], dir.path()).unwrap_err();
    assert!(error.message().contains("env.json:1: not the environment"), "{error}");
}
