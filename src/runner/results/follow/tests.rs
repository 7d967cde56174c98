use super::*;
use crate::results::rows::{Phase, Row, RowWriter};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

fn metrics(step: u64) -> MetricsRow {
    let val_loss = step.is_multiple_of(2).then_some(2.5);
    MetricsRow { step, tokens_seen: step * 8, loss: 4.0 / step as f32, val_loss, ..MetricsRow::default() }
}

/// Returns a folder with a `metrics.csv` of `rows` rows, and a follower for it.
fn followed(rows: u64) -> (tempfile::TempDir, PathBuf, RowWriter<MetricsRow>, RowFollower<MetricsRow>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(METRICS);
    let mut writer = RowWriter::create(&path).unwrap();
    for step in 1..=rows {
        writer.append(&metrics(step)).unwrap();
    }
    let follower = RowFollower::new(&path);
    (dir, path, writer, follower)
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn steps(new: &NewRows<MetricsRow>) -> Vec<u64> {
    new.rows.iter().map(Row::step).collect()
}

#[test]
fn rows_come_once_and_as_they_were_written() {
    let (_dir, path, mut writer, mut follower) = followed(2);
    assert_eq!(follower.poll().unwrap().rows, [metrics(1), metrics(2)]);
    assert!(!follower.poll().unwrap().is_any(), "nothing was written since");
    let odd = MetricsRow { loss: f32::NAN, grad_norm: f32::INFINITY, ..metrics(3) };
    writer.append(&odd).unwrap();
    let new = follower.poll().unwrap();
    assert!(new.rows[0].loss.is_nan() && new.rows[0].grad_norm.is_infinite());
    assert_eq!((new.rows[0].val_loss, new.rows[0].ema_val_loss), (None, None), "blanks are blank");
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 4);
}

/// Wherever a poll splits the file, each row comes once, when its line is complete.
#[test]
fn a_torn_line_waits_for_its_rest() {
    let (_dir, whole, ..) = followed(3);
    let bytes = std::fs::read(whole).unwrap();
    for cut in 0..bytes.len() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let mut follower = RowFollower::<MetricsRow>::new(&path);
        let mut rows = Vec::new();
        follower.poll().unwrap().add_to(&mut rows);
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(rows.len(), lines.saturating_sub(1), "{cut}");
        append(&path, &bytes[cut..]);
        let new = follower.poll().unwrap();
        assert!(!new.is_restarted, "{cut}");
        new.add_to(&mut rows);
        assert_eq!(rows, [metrics(1), metrics(2), metrics(3)], "{cut}");
    }
}

#[test]
fn a_file_that_a_resume_cut_back_is_read_again() {
    for lost in [0, 1, 3] {
        let (_dir, path, writer, mut follower) = followed(5);
        drop(writer);
        let mut rows = Vec::new();
        follower.poll().unwrap().add_to(&mut rows);
        let (mut writer, _) = RowWriter::<MetricsRow>::resume(&path, 2, None, &[]).unwrap();
        // Write as many rows as before, fewer, or more: the length alone does not show the change.
        for step in 3..=8 - lost {
            writer.append(&MetricsRow { lr: 0.5, ..metrics(step) }).unwrap();
        }
        let new = follower.poll().unwrap();
        assert!(new.is_restarted, "{lost}");
        new.add_to(&mut rows);
        assert_eq!(rows, crate::results::rows::read::<MetricsRow>(&path).unwrap(), "{lost}");
        writer.append(&metrics(9)).unwrap();
        assert_eq!(steps(&follower.poll().unwrap()), [9], "it goes on from there");
    }
}

#[test]
fn a_file_that_goes_and_comes_back_is_read_again() {
    let (_dir, path, _, mut follower) = followed(2);
    follower.poll().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let gone = follower.poll().unwrap();
    assert!(gone.is_restarted && gone.rows.is_empty());
    assert!(!follower.poll().unwrap().is_any(), "it is gone once");
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(steps(&follower.poll().unwrap()), [1, 2]);
}

#[test]
fn a_last_line_that_is_no_row_waits_and_one_before_others_is_an_error() {
    let (_dir, path, _, mut follower) = followed(2);
    append(&path, b"3,x,\0\0\0\n");
    assert_eq!(steps(&follower.poll().unwrap()), [1, 2]);
    assert!(!follower.poll().unwrap().is_any());
    append(&path, b"4,32,1.0,,0.1,1.0,,,\n");
    let error = follower.poll().unwrap_err();
    assert!(error.message().contains("metrics.csv:4: not a row"), "{error}");
    // The file is read again from its beginning, in case someone repaired it.
    drop(RowWriter::<MetricsRow>::create(&path));
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap().replace("3,x,\0\0\0\n", "")).unwrap();
    let again = follower.poll().unwrap();
    assert!(again.is_restarted, "the rows from before are void");
    assert_eq!(steps(&again), [1, 2, 4]);
    append(&path, b"1,8,1.0,,0.1,1.0,,,\n5,40,1.0,,0.1,1.0,,,\n");
    assert!(follower.poll().unwrap_err().message().contains("metrics.csv:5: step 1 comes after step 4"));
}

#[test]
fn columns_are_those_of_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(METRICS);
    // An older file without the last columns, and one with columns for held-out sets.
    std::fs::write(&path, "step,tokens_seen,loss,val_loss,lr,grad_norm\n1,8,2.5,,0.1,1.0\n").unwrap();
    assert_eq!(RowFollower::<MetricsRow>::new(&path).poll().unwrap().rows[0].loss, 2.5);
    let header = MetricsRow::COLUMNS.join(",");
    std::fs::write(&path, format!("{header},val_loss/news\n1,8,2.5,,0.1,1.0,,,,1.5\n")).unwrap();
    let rows = RowFollower::<MetricsRow>::new(&path).poll().unwrap().rows;
    assert_eq!(rows[0].value("val_loss/news"), Some(1.5));
    std::fs::write(&path, "time,loss\n1,2\n").unwrap();
    let error = RowFollower::<MetricsRow>::new(&path).poll().unwrap_err();
    assert!(error.message().contains("the header is `time,loss`"), "{error}");
}

#[test]
fn a_long_file_is_read_in_parts_of_limited_size() {
    let (_dir, path, ..) = followed(1);
    let line = |step: usize| format!("{step},{},1.0,,0.1,1.0,,,\n", step * 8);
    append(&path, (2..=60_000).map(line).collect::<String>().as_bytes());
    assert!(std::fs::metadata(&path).unwrap().len() as usize > MAX_READ);
    let mut follower = RowFollower::<MetricsRow>::new(&path);
    let mut rows = Vec::new();
    loop {
        let new = follower.poll().unwrap();
        assert!(new.rows.len() * 20 < MAX_READ);
        let has_more = new.has_more;
        new.add_to(&mut rows);
        if !has_more {
            break;
        }
    }
    assert!(rows.iter().map(Row::step).eq(1..=60_000));
    std::fs::write(&path, vec![b'x'; MAX_READ + 1]).unwrap();
    assert!(follower.poll().unwrap_err().message().contains("a line of more than"));
}

#[test]
fn links_are_not_followed_and_what_is_not_there_yet_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = RunFollower::new(dir.path());
    assert!(!follower.poll().unwrap().is_any());
    std::fs::write(dir.path().join("elsewhere"), "precious\n").unwrap();
    for file in [METRICS, TIMING, SUMMARY] {
        std::os::unix::fs::symlink("elsewhere", dir.path().join(file)).unwrap();
        let error = follower.poll().unwrap_err();
        assert!(error.message().contains(&format!("{file} is a link")), "{error}");
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
}

#[test]
fn a_run_is_followed_from_its_first_file_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut follower = RunFollower::new(dir.path());
    let mut summary = Summary::started("r", "1", "h", 3);
    let write = |summary: &Summary| {
        crate::results::atomic::write(
            &dir.path().join(SUMMARY),
            &crate::results::atomic::json(summary).unwrap(),
        )
        .unwrap();
    };
    write(&summary);
    assert_eq!(follower.poll().unwrap().summary.unwrap().steps, 0);
    let mut timing = RowWriter::create(&dir.path().join(TIMING)).unwrap();
    timing.append(&TimingRow::timed(1, Phase::Train, 0.5, 500.0)).unwrap();
    let news = follower.poll().unwrap();
    assert_eq!((news.timing.rows.len(), news.summary), (1, None));
    assert!(news.metrics.rows.is_empty());
    summary.steps = 2;
    write(&summary);
    assert_eq!(follower.poll().unwrap().summary.unwrap().steps, 2);
    // The last summary comes in the same poll as rows that cannot be read yet. Neither is lost.
    summary.steps = 3;
    write(&summary);
    let whole = std::fs::read(dir.path().join(TIMING)).unwrap();
    append(&dir.path().join(TIMING), b"2,x\n3,x\n");
    assert!(follower.poll().unwrap_err().message().contains("timing.csv:3: not a row"));
    std::fs::write(dir.path().join(TIMING), whole).unwrap();
    let news = follower.poll().unwrap();
    assert_eq!((news.summary.unwrap().steps, news.timing.rows.len(), news.timing.is_restarted), (3, 1, true));
    std::fs::write(dir.path().join(SUMMARY), "{").unwrap();
    for _ in 0..2 {
        assert!(follower.poll().unwrap_err().message().contains("not a summary"), "for as long as it is so");
    }
}

#[test]
fn the_tail_of_a_file_begins_with_a_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    std::fs::write(&path, "first line\nsecond line\nthird\n").unwrap();
    let mut lines = AppendedLines::from_tail(&path, 12);
    assert_eq!(lines.poll().unwrap().bytes, b"third\n");
    append(&path, b"fourth\nfif");
    assert_eq!(lines.poll().unwrap().bytes, b"fourth\n");
    append(&path, b"th\n");
    assert_eq!(lines.poll().unwrap().bytes, b"fifth\n");
    assert_eq!(AppendedLines::from_tail(&path, 1000).poll().unwrap().bytes, std::fs::read(&path).unwrap());
}
