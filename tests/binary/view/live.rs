//! What pages see while runs go on.

use super::*;
use serde_json::json;
use std::time::Duration;
use xrun::results::folder::read_summary;
use xrun::results::rows::RowWriter;

/// Longer than the server caches what it has read.
const STALE: Duration = Duration::from_millis(1100);

#[test]
fn changes_are_the_rows_that_changed() {
    let dir = tempfile::tempdir().unwrap();
    let first = run(dir.path(), "small", "2026-11-23T10:11:12Z", 3, "text");
    let second = run(dir.path(), "small", "2026-11-22T10:11:12Z", 3, "text");
    run(dir.path(), "small", "2026-11-21T10:11:12Z", 4, "text");
    let viewed = Viewed::start(dir.path());
    let table = viewed.document("/api/runs");
    let since = |revision: &Value| viewed.document(&format!("/api/changes?since={revision}"));
    std::thread::sleep(STALE);
    let none = since(&table["revision"]);
    assert_eq!((&none["runs"], &none["gone"], &none["all"]), (&json!([]), &json!([]), &json!(false)));
    let curves = || viewed.document(&format!("/api/curves/{}?metrics=loss", id(&first)));
    assert_eq!(curves()["metrics"]["loss"]["rows"], 3);

    // A locked run that continues: its row is new, and its curve has the new rows.
    let folder = RunFolder::open(&first).unwrap();
    let mut summary = read_summary(folder.path()).unwrap();
    summary.status = Status::Running;
    folder.write_summary(&summary).unwrap();
    let (mut rows, _) = RowWriter::<MetricsRow>::resume(&first.join(METRICS), 3, None, &[]).unwrap();
    rows.append(&metrics(4)).unwrap();
    std::thread::sleep(STALE);
    let changed = since(&none["revision"]);
    assert_eq!(changed["runs"].as_array().unwrap().len(), 1, "{changed}");
    assert_eq!((&changed["runs"][0]["id"], &changed["runs"][0]["live"]), (&json!(id(&first)), &json!(true)));
    assert_ne!(changed["runs"][0]["version"], table["runs"][0]["version"]);
    assert_eq!(curves()["metrics"]["loss"]["step"], json!([1, 2, 3, 4]));
    // A process that dies says nothing, but its lock is released.
    drop(folder);
    std::thread::sleep(STALE);
    let died = since(&changed["revision"]);
    assert_eq!((&died["runs"][0]["status"], &died["runs"][0]["live"]), (&json!("killed"), &json!(false)));

    // Rows that a resume cuts off disappear from the curve, and a removed run from the table.
    drop(RowWriter::<MetricsRow>::resume(&first.join(METRICS), 2, None, &[]).unwrap());
    std::fs::remove_dir_all(&second).unwrap();
    std::fs::create_dir_all(dir.path().join("comparisons/c/20261124T101112Z-0123abcd")).unwrap();
    std::fs::write(dir.path().join("comparisons/c/20261124T101112Z-0123abcd/experiment.json"), "{").unwrap();
    std::thread::sleep(STALE);
    assert_eq!(curves()["metrics"]["loss"]["step"], json!([1, 2]));
    let gone = since(&died["revision"]);
    assert_eq!((&gone["gone"], &gone["all"]), (&json!([id(&second)]), &json!(false)), "{gone}");
    assert_eq!((&gone["comparisons"], &gone["sweeps"]), (&json!(true), &json!(false)), "{gone}");
    let damaged = viewed.document("/api/comparisons");
    assert!(damaged["comparisons"][0]["damaged"].is_string(), "{damaged}");
    // Without another seed, no key differs, so the table has other columns.
    std::fs::remove_dir_all(dir.path().join("small/20261121T101112Z-0123abcd")).unwrap();
    std::thread::sleep(STALE);
    assert_eq!(since(&gone["revision"])["all"], true);
    assert_eq!(since(&json!(7))["all"], true, "of another server");
    assert_eq!(since(&json!(u64::MAX))["all"], true);
}

#[test]
fn a_run_that_is_tagged_or_profiled_has_another_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 3, "text");
    let viewed = Viewed::start(dir.path());
    let row = || viewed.document("/api/runs")["runs"][0].clone();
    let first = row();
    let line = json!({"run": id(&path), "at": "2026-11-24T12:00:00Z", "tag": "baseline"});
    std::fs::write(dir.path().join("annotations.jsonl"), format!("{line}\n")).unwrap();
    std::thread::sleep(STALE);
    let tagged = row();
    assert_eq!(tagged["tags"], json!(["baseline"]));
    assert_ne!(tagged["version"], first["version"]);
    std::fs::write(path.join("profile.json"), "{}").unwrap();
    std::thread::sleep(STALE);
    assert_ne!(row()["version"], tagged["version"]);
}
