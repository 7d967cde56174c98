use super::*;
use crate::metrics::Phase;
use crate::results::rows::RowWriter;
use crate::results::summary::{ForkedFrom, Status};

/// Returns noise in [-1, 1] that is the same every time.
fn noise(i: u64) -> f64 {
    let mixed =
        (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// Returns a row of a run like the quickstart, whose loss falls from ln(512) towards a floor.
fn metrics(step: u64, steps: u64) -> MetricsRow {
    let t = step as f64;
    let loss = 1.33 + 4.9 * (-t / 25.0).exp() + 1.6 / (1.0 + t / 40.0) * (1.0 - t / (1.15 * steps as f64));
    let warm = (t / 60.0).min(1.0);
    let decay = 0.1 + 0.9 * 0.5 * (1.0 + (std::f64::consts::PI * t / steps as f64).cos());
    MetricsRow {
        step,
        tokens_seen: step * 2048,
        loss: (loss * (1.0 + 0.03 * noise(step))) as f32,
        val_loss: (step.is_multiple_of(50) || step == steps).then_some(loss as f32 + 0.02),
        lr: 3e-3 * warm * decay,
        grad_norm: ((0.4 + 2.5 * (-t / 30.0).exp()) * (1.0 + 0.25 * noise(step + 7))) as f32,
        ..MetricsRow::default()
    }
}

fn timing(step: u64) -> TimingRow {
    let slow = 1.0
        + 0.8 * (-(step as f64) / 6.0).exp()
        + 0.04 * noise(step + 99)
        + if step.wrapping_sub(1).is_multiple_of(50) { 0.3 } else { 0.0 };
    TimingRow {
        data_wait_ms: Some(0.1),
        tok_s: Some(2048.0 / 0.12 / slow),
        ..TimingRow::timed(
            step,
            if step <= 5 { Phase::Warmup } else { Phase::Train },
            step as f64 * 0.12,
            120.0 * slow,
        )
    }
}

/// No part of a figure is left empty for the steps of the parent run.
#[test]
fn the_pictures_of_a_fork_begin_where_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<MetricsRow> = (1501..=1510).map(|step| metrics(step, 1510)).collect();
    let times: Vec<TimingRow> = (1501..=1510).map(timing).collect();
    draw(dir.path(), None, &rows, &times);
    let mut summary = read_summary(dir.path()).unwrap();
    summary.forked_from = Some(ForkedFrom { run: "parent".to_owned(), step: 1500, tokens_seen: 1500 * 2048 });
    assert_eq!(
        described(&summary),
        "20261121T073400Z-1f2e3d4c  ·  20.5k tokens  ·  fork of parent at step 1500"
    );
    for figure in [loss(&summary, &rows), throughput(&summary, &times), schedule(&summary, &rows)] {
        let figure = figure.unwrap();
        assert_eq!(figure.x, (1500.0, 1510.0), "{}", figure.title);
        assert!(figure.subtitle.contains("fork of parent at step 1500"), "{}", figure.subtitle);
    }
}

/// Writes the files of a run and its figures; returns the paths of the figures.
fn draw(run: &Path, floor: Option<f64>, metrics: &[MetricsRow], timing: &[TimingRow]) -> Vec<PathBuf> {
    std::fs::create_dir_all(run).unwrap();
    let mut summary =
        Summary::started("quickstart", "20261121T073400Z-1f2e3d4c", "1f2e3d4c", metrics.len() as u64);
    summary.status = Status::Ok;
    summary.floor = floor;
    summary.measure(metrics, timing, 5);
    std::fs::write(run.join("summary.json"), serde_json::to_vec(&summary).unwrap()).unwrap();
    let _ = std::fs::remove_file(run.join(METRICS));
    let mut writer = RowWriter::create(&run.join(METRICS)).unwrap();
    metrics.iter().for_each(|row| writer.append(row).unwrap());
    if !timing.is_empty() {
        let _ = std::fs::remove_file(run.join(TIMING));
        let mut writer = RowWriter::create(&run.join(TIMING)).unwrap();
        timing.iter().for_each(|row| writer.append(row).unwrap());
    }
    render(run, Pictures::All).unwrap()
}

fn quickstart(steps: u64) -> (Vec<MetricsRow>, Vec<TimingRow>) {
    ((1..=steps).map(|step| metrics(step, steps)).collect(), (1..=steps).map(timing).collect())
}

fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn draws_every_picture_twice_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (metrics, timing) = quickstart(600);
    let paths = draw(dir.path(), Some(1.33), &metrics, &timing);
    assert_eq!(
        names(&paths),
        [
            "loss-light.svg",
            "loss-light.png",
            "loss-dark.svg",
            "loss-dark.png",
            "throughput-light.svg",
            "throughput-light.png",
            "throughput-dark.svg",
            "throughput-dark.png",
            "schedule-light.svg",
            "schedule-light.png",
            "schedule-dark.svg",
            "schedule-dark.png",
        ]
    );
    let bytes: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, bytes) in paths.iter().zip(&bytes) {
        assert!(bytes.len() > 8_000 && bytes.len() < 300_000, "{}: {} bytes", path.display(), bytes.len());
    }
    for png in bytes.iter().skip(1).step_by(2) {
        assert!(png.starts_with(b"\x89PNG"));
    }
    let svg = String::from_utf8(bytes[0].clone()).unwrap();
    for said in ["quickstart: loss", "floor", "1.330", "validation", "nats per token", "1.23M tokens", "step"]
    {
        assert!(svg.contains(said), "{said}");
    }
    let svg = String::from_utf8(bytes[4].clone()).unwrap();
    assert!(svg.contains("step (the median is from step "), "where the line of the median begins");
    assert_ne!(bytes[1], bytes[3], "light and dark differ");
    draw(dir.path(), Some(1.33), &metrics, &timing);
    for (path, bytes) in paths.iter().zip(&bytes) {
        assert!(std::fs::read(path).unwrap() == *bytes, "{} changed", path.display());
    }
}

#[test]
fn short_broken_and_bare_runs_are_drawn_too() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, times) = quickstart(600);
    assert_eq!(draw(&dir.path().join("one"), None, &rows[..1], &times[..1]).len(), 12);
    assert!(draw(&dir.path().join("none"), None, &[], &[]).is_empty());
    let no_timing = draw(&dir.path().join("no-timing"), None, &rows[..3], &[]);
    assert_eq!(names(&no_timing).iter().filter(|name| name.starts_with("throughput")).count(), 0);

    let mut broken = rows.clone();
    broken[300].loss = f32::INFINITY;
    for row in &mut broken[500..] {
        (row.loss, row.grad_norm, row.val_loss) = (f32::NAN, f32::NAN, None);
    }
    let paths = draw(&dir.path().join("broken"), Some(1.33), &broken, &times);
    let svg = std::fs::read_to_string(&paths[0]).unwrap();
    assert!(svg.contains("not finite at step 301"));
    assert!(!svg.contains("NaN") && !svg.contains("inf,"), "no coordinate is made from them");

    for row in &mut broken {
        (row.loss, row.grad_norm, row.lr) = (f32::NAN, f32::NAN, 0.0);
    }
    let paths = draw(&dir.path().join("dead"), None, &broken, &times);
    assert!(names(&paths).contains(&"schedule-dark.png".to_owned()));
}

#[test]
fn labels_are_short() {
    assert_eq!([0.0, 1.5, 6.0, 0.02, 20_000.0, 1e-5].map(decimal), ["0", "1.5", "6", "0.02", "2e4", "1e-5"]);
    assert_eq!([0.0, 3e-4, 2.5e-4, 1.0].map(scientific), ["0", "3e-4", "2.5e-4", "1e0"]);
}
