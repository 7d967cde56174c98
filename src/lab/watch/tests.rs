use super::looks::{Colors, Role};
use super::*;
use crate::format::{all_escaped, printable};
use crate::results::experiment::{
    Design, EXPERIMENT, Experiment, ExperimentRun, Finding, RegisteredPrediction, example,
};
use crate::results::folder::{METRICS, RunFolder, TIMING, is_held};
use crate::results::ledger::Ledger;
use crate::results::measure::{Measure, MeasureValue};
use crate::results::rows::RowWriter;
use crate::results::summary::{LossAt, Sample};
use crate::results::{MetricsRow, Phase, Status, Summary, TimingRow, atomic};
use serde_json::json;
use std::collections::BTreeMap;

const COLORED: Looks = Looks { colors: Colors::Indexed, is_unicode: true };
const PLAIN: Looks = Looks { colors: Colors::None, is_unicode: true };
const ASCII: Looks = Looks { colors: Colors::None, is_unicode: false };

/// Returns a frame as text, after the view has read everything.
fn text(view: &mut dyn View, size: (u16, u16), looks: Looks) -> String {
    view.poll();
    to_lines(&frame(view, size, looks, &Show::default())).join("\n")
}

/// Releases a lock and waits until it is free: a process that another test starts inherits it for an instant.
fn release(held: impl Sized, folder: &Path) {
    drop(held);
    while is_held(folder).unwrap() {
        std::thread::yield_now();
    }
}

/// Creates a run of 400 steps that has trained `steps` of them, with a validation loss every 50 steps.
fn run(results: &Path, steps: u64) -> (RunFolder, Summary) {
    let began = "2026-11-21T07:34:00Z".parse().unwrap();
    let folder = RunFolder::create(results, "quickstart", "1f2e3d4c", began).unwrap();
    let mut summary = Summary::started("quickstart", &folder.name(), "1f2e3d4c", 400);
    let mut metrics = folder.start_rows::<MetricsRow>(METRICS).unwrap();
    let mut timing = folder.start_rows::<TimingRow>(TIMING).unwrap();
    for step in 1..=steps {
        let x = step as f64;
        let loss = 1.0 + 4.0 * (-x / 60.0).exp() + 0.1 * (x * 1.7).sin();
        let val_loss = step.is_multiple_of(50).then_some(1.1 + 4.0 * (-x / 60.0).exp());
        let row = MetricsRow {
            step,
            tokens_seen: step * 2048,
            loss: loss as f32,
            val_loss: val_loss.map(|loss| loss as f32),
            lr: 3e-3 * (x / 400.0 * 3.0).sin().abs(),
            grad_norm: (2.0 / x.sqrt()) as f32,
            ..MetricsRow::default()
        };
        metrics.append(&row).unwrap();
        let row = TimingRow {
            tok_s: Some(25_000.0 + 500.0 * (x * 0.9).cos()),
            rss_mib: Some(120.0),
            ..TimingRow::timed(step, Phase::Train, 0.25 * x, 250.0)
        };
        timing.append(&row).unwrap();
    }
    summary.steps = steps;
    summary.floor = Some(1.0134);
    summary.samples = vec![Sample {
        step: 200,
        prompt: "Once upon".to_owned(),
        text: " a time there was a small model that had read no book but a very short one.".to_owned(),
    }];
    folder.write_summary(&summary).unwrap();
    folder.log("training on 2 threads").unwrap();
    (folder, summary)
}

/// Replaces the log's times, which depend on when the test runs.
fn without_times(frame: &str) -> String {
    let lines = frame.lines().map(|line| match line.split_once("Z ") {
        Some((time, rest)) if time.len() == 8 => format!("hh:mm:ssZ {rest}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_run_is_drawn_at_every_size() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = run(dir.path(), 250);
    let mut view = RunView::new(folder.path());
    insta::assert_snapshot!("run_80x24", without_times(&text(&mut view, (80, 24), PLAIN)));
    insta::assert_snapshot!("run_200x50", without_times(&text(&mut view, (200, 50), PLAIN)));
    insta::assert_snapshot!("run_80x24_ascii", without_times(&text(&mut view, (80, 24), ASCII)));
    for size in [(1, 1), (39, 24), (40, 10), (80, 10), (60, 15), (119, 24), (120, 10), (120, 24), (400, 120)]
    {
        let frame = text(&mut view, size, PLAIN);
        assert_eq!(frame.lines().count(), usize::from(size.1), "{size:?}");
        // Even in a small terminal, nothing is drawn over the first lines.
        if size.0 >= 40 && size.1 >= 10 {
            let mut lines = frame.lines();
            assert!(lines.next().unwrap().starts_with("quickstart/"), "{size:?}\n{frame}");
            assert!(lines.next().unwrap().contains("step 250/400"), "{size:?}\n{frame}");
        }
    }
}

#[test]
fn colors_say_nothing_that_the_text_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = run(dir.path(), 250);
    let mut view = RunView::new(folder.path());
    view.poll();
    let drawn = |looks| frame(&view, (80, 24), looks, &Show::default());
    let (colored, plain, ascii) = (drawn(COLORED), drawn(PLAIN), drawn(ASCII));
    assert_eq!(to_lines(&colored), to_lines(&plain));
    let is_coloured = |frame: &Buffer| frame.content.iter().any(|cell| cell.fg != Default::default());
    assert!(is_coloured(&colored) && !is_coloured(&plain) && !is_coloured(&ascii));
    assert!(to_lines(&ascii).iter().all(|line| line.is_ascii()));
    // The curves also differ in shape.
    let shown = to_lines(&plain).concat();
    assert!(['░', '◆', '┄'].iter().all(|shape| shown.contains(*shape)), "{shown}");
}

#[test]
fn a_run_goes_on_ends_and_dies_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, mut summary) = run(dir.path(), 20);
    let mut view = RunView::new(folder.path());
    assert!(text(&mut view, (80, 24), PLAIN).contains("● running"));
    assert!(view.is_live() && !view.poll(), "nothing is new");
    let path = folder.path().to_owned();
    release(folder, &path);
    // A new view, because the old one has just seen rows.
    let frame = text(&mut RunView::new(&path), (80, 24), PLAIN);
    assert!(
        frame.contains("✗ killed") && frame.contains("killed: its process ended without recording a status"),
        "{frame}"
    );
    assert!(frame.contains("`xrun resume quickstart/20261121T073400Z-1f2e3d4c` continues it"), "{frame}");
    (summary.status, summary.reason) = (Status::Diverged, Some("the loss is NaN".to_owned()));
    atomic::write(&path.join("summary.json"), &atomic::json(&summary).unwrap()).unwrap();
    let frame = text(&mut view, (80, 24), PLAIN);
    assert!(frame.contains("✗ diverged") && frame.contains("the loss is NaN"), "{frame}");
    assert!(!view.is_live());
    std::fs::write(path.join("summary.json"), "{").unwrap();
    let frame = text(&mut view, (80, 24), PLAIN);
    assert!(frame.contains("cannot read it:") && frame.contains("summary.json:1: not a"), "{frame}");
}

/// Returns the frame as text of the run in a folder.
fn frame_once(folder: &Path) -> Frame {
    once(&mut RunView::new(folder), 80, PLAIN)
}

#[test]
fn a_run_that_ended_and_lost_rows_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, mut summary) = run(dir.path(), 20);
    let (path, metrics) = (folder.path().to_owned(), folder.path().join(METRICS));
    let whole = std::fs::read_to_string(&metrics).unwrap();
    let first: String = whole.split_inclusive('\n').take(6).collect();
    std::fs::write(&metrics, &first).unwrap();
    assert_eq!(frame_once(&path).fault, None, "rows of a run that goes on may be under way");
    summary.status = Status::Ok;
    folder.write_summary(&summary).unwrap();
    assert_eq!(frame_once(&path).fault, None, "a process holds it, as one that resumes it");
    release(folder, &path);
    let header = whole.split_inclusive('\n').next().unwrap();
    let cuts = [(&*first, "ends at step 5"), ("", "has no row"), (header, "has no row")];
    let check = |what: &str| {
        let Frame { text, fault } = frame_once(&path);
        let fault = fault.unwrap_or_default();
        assert!(fault.contains(&format!("metrics.csv {what}, but summary.json has 20 steps")), "{fault}");
        assert!(text.contains("✗ damaged") && text.contains("damaged: "), "{text}");
        assert!(!text.contains("● ok"), "{text}");
    };
    for (rows, what) in cuts {
        std::fs::write(&metrics, rows).unwrap();
        check(what);
    }
    std::fs::remove_file(&metrics).unwrap();
    check("is missing");
    std::fs::write(&metrics, &whole).unwrap();
    let Frame { text, fault } = frame_once(&path);
    assert!(fault.is_none() && text.contains("● ok") && text.contains("step 20/400"), "{text}");
}

#[test]
fn a_fork_that_ended_before_its_first_step_has_lost_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, mut summary) = run(dir.path(), 0);
    (summary.status, summary.steps) = (Status::Failed, 20);
    let fork = json!({"run": "quickstart/20261120T073400Z-1f2e3d4c", "step": 20, "tokens_seen": 40_960});
    summary.forked_from = Some(serde_json::from_value(fork).unwrap());
    folder.write_summary(&summary).unwrap();
    let path = folder.path().to_owned();
    release(folder, &path);
    assert_eq!(frame_once(&path).fault, None);
}

#[test]
fn a_run_whose_summary_cannot_be_read_is_damaged_and_not_starting() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = run(dir.path(), 20);
    std::fs::write(folder.path().join("summary.json"), "{").unwrap();
    let Frame { text, fault } = frame_once(folder.path());
    assert!(fault.unwrap_or_default().contains("summary.json:1: not a summary"));
    assert!(text.contains("✗ damaged") && text.contains("cannot read it:"), "{text}");
    assert!(!text.contains("starting") && !text.contains("step 0/0"), "{text}");
}

#[test]
fn a_run_before_its_first_step_and_one_of_nothing_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let frame = text(&mut RunView::new(dir.path()), (80, 24), PLAIN);
    assert!(frame.contains("○ starting"), "{frame}");
    let (folder, _) = run(dir.path(), 0);
    let frame = text(&mut RunView::new(folder.path()), (80, 24), PLAIN);
    assert!(frame.contains("no step yet") && frame.contains("step 0/400"), "{frame}");
}

#[test]
fn values_that_are_not_finite_are_named_and_drawn_as_gaps() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, _) = run(dir.path(), 10);
    let (mut metrics, _) =
        RowWriter::<MetricsRow>::resume(&folder.path().join(METRICS), 10, None, &[]).unwrap();
    for (step, loss) in [(11, f32::NAN), (12, f32::INFINITY), (13, 1e30)] {
        metrics.append(&MetricsRow { step, loss, lr: 0.1, ..MetricsRow::default() }).unwrap();
    }
    let frame = text(&mut RunView::new(folder.path()), (80, 24), PLAIN);
    assert!(frame.contains("the loss is not finite at step 11"), "{frame}");
}

/// Text that others wrote is displayed but never interpreted by the terminal.
#[test]
fn hostile_texts_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, mut summary) = run(dir.path(), 10);
    let evil = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}<script>\n\r\u{9b}31m".to_owned();
    summary.reason = Some(evil.clone());
    summary.samples = vec![Sample { step: 1, prompt: evil.clone(), text: evil.clone() }];
    let mut set = crate::results::held_out::HeldOutSet::default();
    set.add(LossAt { step: 1, loss: 1.0 });
    summary.held_out = BTreeMap::from([(evil.clone(), set)]);
    folder.write_summary(&summary).unwrap();
    folder.log(&evil).unwrap();
    let everything = all_escaped();
    let mut canvas = Canvas::new(u16::MAX, 1, PLAIN);
    canvas.text(0, 0, u16::MAX, &everything, Role::Text);
    let drawn = to_lines(&canvas.finish()).concat();
    assert_eq!(printable(&drawn), drawn);
    assert!(drawn.starts_with("␀␁") && drawn.contains("⟨U+200B⟩"), "{drawn}");
    for size in [(80, 24), (200, 50)] {
        for looks in [COLORED, ASCII] {
            let shown = text(&mut RunView::new(folder.path()), size, looks);
            assert_eq!(printable(&shown), shown);
            assert!(shown.contains("<script>"), "{shown}");
        }
    }
}

/// Creates the folder of a sweep with six cells, one of them running, and its ledger.
fn sweep(results: &Path) -> (PathBuf, Ledger) {
    let folder = results.join("sweeps/quickstart-6e3f7717");
    std::fs::create_dir_all(&folder).unwrap();
    let (rates, layers) = (["0.0003", "0.003"], ["2", "4", "8"]);
    let settings = |at: usize| json!({"optimizer.lr": rates[at / 3], "model.n_layers": layers[at % 3]});
    let cells: Vec<_> =
        (0..6).map(|at| json!({"key": format!("key{at}"), "settings": settings(at)})).collect();
    std::fs::write(folder.join("cells.json"), serde_json::to_vec(&cells).unwrap()).unwrap();
    std::fs::write(folder.join("table.csv"), "").unwrap();
    let line = |at: usize, status: &str, second: u32, measured: serde_json::Value| {
        let reason = (status == "predicted_oom").then_some("does not fit: the plan needs 139 MiB; try less");
        json!({
            "key": format!("key{at}"), "attempt": 1, "status": status, "reason": reason, "recipe": "quickstart",
            "settings": settings(at), "recipe_hash": "h", "corpus_hash": null, "build": "b", "device": "cpu", "run": null,
            "at": format!("2026-11-21T07:34:{second:02}Z"), "measured": measured
        })
    };
    let figures =
        |loss: f64| json!({"steps": 40, "train_loss": loss, "val_loss": loss + 0.1, "tok_s": 45_227.0});
    let lines = [
        line(0, "running", 0, json!({})),
        line(0, "ok", 12, figures(4.4366)),
        line(1, "running", 12, json!({})),
        line(1, "ok", 32, figures(4.2032)),
        line(2, "predicted_oom", 32, json!({})),
        line(3, "running", 32, json!({})),
        line(3, "diverged", 40, json!({"steps": 17})),
        line(4, "running", 40, json!({})),
    ];
    let mut ledger = Ledger::open(results).unwrap();
    for line in lines {
        ledger.append(serde_json::from_value(line).unwrap()).unwrap();
    }
    std::fs::create_dir_all(results.join("sweeps/.attempts")).unwrap();
    let (event, tok_s) = ("step", 24_629.0);
    let step =
        json!({"event": event, "step": 12, "total_steps": 40, "loss": 3.25, "tok_s": tok_s, "eta_s": 9.0});
    std::fs::write(results.join("sweeps/.attempts/key4-1.jsonl"), format!("{step}\n{{\"event\":\"no"))
        .unwrap();
    (folder, ledger)
}

/// Removes the time that a running cell has taken, which depends on the test.
fn without_running_time(frame: &str) -> String {
    let cut = |line: &str| {
        if line.contains("▶ running") {
            line[..line.rfind(' ').unwrap()].trim_end().to_owned()
        } else {
            line.to_owned()
        }
    };
    frame.lines().map(cut).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_cells_of_a_sweep_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, ledger) = sweep(dir.path());
    assert_eq!(Subject::find(dir.path(), "sweeps/quickstart").unwrap(), Subject::Sweep(folder.clone()));
    let mut view = SweepView::new(&folder).unwrap();
    insta::assert_snapshot!("sweep_80x24", without_running_time(&text(&mut view, (80, 24), PLAIN)));
    assert!(text(&mut view, (200, 50), PLAIN).contains("lowest to highest"));
    assert!(text(&mut view, (80, 24), ASCII).is_ascii());
    assert!(text(&mut view, (80, 10), PLAIN).contains("above"), "it scrolls");
    drop(ledger);
    let frame = text(&mut SweepView::new(&folder).unwrap(), (80, 24), PLAIN);
    assert!(frame.contains("✗ no sweep runs") && frame.contains("no process works on it"), "{frame}");
}

/// Creates a comparison of eight pairs, the first `ended` of them ended.
fn pairs(ended: usize) -> Experiment {
    let scatter = |pair: usize| 0.02 * (pair as f64 * 1.3).sin();
    let loss = |pair: usize, arm: usize| [5.74 + scatter(pair), 5.70 - scatter(pair) / 2.0][arm];
    let run = |(pair, arm): (usize, usize)| {
        let planned = ExperimentRun { arm, seed: Some(pair as u64 + 3), ..ExperimentRun::default() };
        if pair >= ended {
            return planned;
        }
        let value = loss(pair, arm);
        ExperimentRun {
            run: Some(format!("r/{pair}")),
            status: Some("ok".to_owned()),
            metrics_hash: Some(value.to_string()),
            values: [("val_loss".to_owned(), MeasureValue::Value(value))].into(),
            ..planned
        }
    };
    let runs = (0..8).flat_map(|pair| [(pair, 0), (pair, 1)]).map(run).collect();
    let finding = Finding::unjudged("val_loss".parse().unwrap(), Some(0.01), 0.95);
    let mut experiment = example::experiment(Design::Pairs { pairs: 8 }, vec![finding], runs);
    experiment.prediction = Some(RegisteredPrediction { text: "better".to_owned(), held: None });
    experiment.changes = vec!["optimizer.lr: 0.003 → 0.01".to_owned()];
    experiment.arms[0].label = "quickstart".to_owned();
    experiment.arms[1].label = "quickstart optimizer.lr=0.01".to_owned();
    experiment.finished = false;
    experiment
}

#[test]
fn the_interval_of_a_comparison_closes_pair_by_pair() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("comparisons/quickstart/20261121T073400Z-00000000");
    std::fs::create_dir_all(&folder).unwrap();
    pairs(1).write(&folder).unwrap();
    let held = crate::results::folder::lock(&folder).unwrap();
    let mut view = ComparisonView::new(&folder);
    let frame = text(&mut view, (80, 24), PLAIN);
    assert!(frame.contains("1 of 8 pairs done") && frame.contains("comes with the second pair"), "{frame}");
    pairs(6).write(&folder).unwrap();
    insta::assert_snapshot!("quality_80x24", text(&mut view, (80, 24), PLAIN));
    insta::assert_snapshot!("quality_200x50", text(&mut view, (200, 50), PLAIN));
    assert!(text(&mut view, (80, 24), ASCII).is_ascii());
    release(held, &folder);
    let frame = text(&mut ComparisonView::new(&folder), (80, 24), PLAIN);
    assert!(frame.contains("✗ stopped") && frame.contains("its command continues it"), "{frame}");
    std::fs::write(folder.join(EXPERIMENT), "[]").unwrap();
    assert!(text(&mut view, (80, 24), PLAIN).contains("not an experiment"));
}

#[test]
fn a_comparison_of_speed_says_how_many_pairs_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let run = |(arm, speed): (usize, f64)| ExperimentRun {
        arm,
        status: Some("ok".to_owned()),
        blocks: (0..10).map(|block| speed + f64::from(block)).collect(),
        ..ExperimentRun::default()
    };
    let order = [(0, 2500.0), (1, 2000.0), (1, 2010.0), (0, 2480.0), (0, 2490.0)];
    let mut runs: Vec<ExperimentRun> = order.map(run).into();
    runs.extend([1, 1, 0, 0, 1].map(|arm| ExperimentRun { arm, ..ExperimentRun::default() }));
    let findings = [(Measure::SPEED, Some(0.01)), (Measure::LossCurves, None)];
    let findings = findings.map(|(measure, effect)| Finding::unjudged(measure, effect, 0.95)).into();
    let mut comparison = example::experiment(Design::Trials { trials: 10 }, findings, runs);
    comparison.finished = false;
    comparison.write(dir.path()).unwrap();
    let frame = text(&mut ComparisonView::new(dir.path()), (80, 24), PLAIN);
    for said in ["2 of 5 pairs done", "5 of 10 runs", "✗ stopped", "2.5k", "-20.0 %"] {
        assert!(frame.contains(said), "{said}: {frame}");
    }
    comparison.finished = true;
    comparison.write(dir.path()).unwrap();
    let frame = text(&mut ComparisonView::new(dir.path()), (80, 24), PLAIN);
    assert!(frame.contains("● finished") && frame.contains("inconclusive:"), "{frame}");
}

#[test]
fn keys_do_what_the_help_says() {
    let key = |code| KeyEvent::new(code, KeyModifiers::NONE);
    let mut show = Show::default();
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(press(key(code), &mut show), Pressed::Leave);
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(interrupt, &mut show), Pressed::Leave);
    assert_eq!(press(key(KeyCode::Char('c')), &mut show), Pressed::Nothing);
    assert_eq!(press(key(KeyCode::Char('?')), &mut show), Pressed::Changed);
    assert!(show.is_help);
    assert_eq!(press(key(KeyCode::Esc), &mut show), Pressed::Changed, "it leaves the help first");
    assert_eq!(press(key(KeyCode::PageDown), &mut show), Pressed::Changed);
    assert_eq!(show.first, Some(PAGE));
    let dir = tempfile::tempdir().unwrap();
    let help = Show { is_help: true, ..Show::default() };
    let page = to_lines(&frame(&RunView::new(dir.path()), (80, 24), PLAIN, &help)).join("\n");
    assert!(page.contains("leave; the watched process keeps running"), "{page}");
}

#[test]
fn a_name_that_means_nothing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let error = Subject::find(dir.path(), "latest").unwrap_err();
    assert!(error.message().contains("there are no runs yet"), "{error}");
    assert!(error.message().contains("nor is it the name of a comparison or a sweep"), "{error}");
}

#[test]
fn the_newest_run_is_followed_by_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let (first, mut summary) = run(dir.path(), 20);
    let subject = Subject::find(dir.path(), "latest").unwrap();
    let mut view = subject.view().unwrap();
    let shown = |view: &mut dyn View| text(view, (80, 24), PLAIN);
    assert!(shown(&mut *view).contains(&first.name()));
    // A run that begins while this one goes on does not replace it.
    let began = "2026-11-21T08:00:00Z".parse().unwrap();
    let second = RunFolder::create(dir.path(), "quickstart", "2e3d4c5b", began).unwrap();
    second.write_summary(&Summary::started("quickstart", &second.name(), "2e3d4c5b", 400)).unwrap();
    assert!(shown(&mut *view).contains(&first.name()));
    summary.status = Status::Ok;
    first.write_summary(&summary).unwrap();
    let turned = (0..3).any(|_| shown(&mut *view).contains(&second.name()));
    assert!(turned, "{}", shown(&mut *view));
    let named = Subject::find(dir.path(), &first.name()).unwrap();
    let mut named = named.view().unwrap();
    assert!((0..3).all(|_| shown(&mut *named).contains(&first.name())), "a run that was named stays");
}
