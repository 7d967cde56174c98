use super::*;
use crate::results::folder::{METRICS, SUMMARY, TIMING};
use crate::results::held_out::{HeldOutSet, MAIN_SET};
use crate::results::summary::SourceLosses;
use crate::results::{Status, Summary};
use std::path::Path;

fn measure(text: &str) -> Measure {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn a_measure_reads_as_it_is_written() {
    for text in [
        "val_loss",
        "val_loss/news",
        "val_loss:last5",
        "val_loss/news.2:last12",
        "bits_per_byte",
        "bits_per_byte/a-b_c",
        "train_loss",
        "train_loss:last100",
        "train_loss/web",
        "train_loss/web:last100",
        "tok_s",
        "steps_until:val_loss=1.2",
        "tokens_until:bits_per_byte/news=0.85",
        "seconds_until:val_loss=3",
        "hellaswag/acc_norm",
        "mine-2/ema_bits_per_byte:last3",
        "steps_until:hellaswag/acc_norm=0.3",
    ] {
        assert_eq!(measure(text).to_string(), text);
        let json = serde_json::to_string(&measure(text)).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<Measure>(&json).unwrap(), measure(text));
    }
    assert_eq!(measure(" val_loss "), measure("val_loss"));
    assert_eq!(measure("hellaswag:last2").to_string(), "hellaswag/acc_norm:last2");
    assert_eq!((measure("lambada").task(), measure("lambada").set()), (Some("lambada"), None));
    assert_eq!(parse_list("val_loss,bits_per_byte/news").unwrap().len(), 2);
}

#[test]
fn a_wrong_measure_is_answered_with_what_may_be_written() {
    let said = |text: &str| parse_list(text).unwrap_err();
    for (text, hint) in [
        ("val_los", "did you mean val_loss?"),
        ("", "val_loss, ema_val_loss, bits_per_byte, train_loss, tok_s"),
        ("val_loss,val_loss", "named twice"),
        ("val_loss:5", "val_loss:last5"),
        ("val_loss:last0", "val_loss:last5"),
        ("tok_s:last3", "steady state"),
        ("tok_s/news", "not measured on held-out text"),
        ("train_loss/a b", "`a b` cannot name a source: use a key of [data.sources]"),
        ("val_loss/", "[validation.sets]"),
        ("val_loss/../x", "[validation.sets]"),
        ("hellaswog", "name a task such as hellaswag"),
        ("mine/accuracy", "is not a measure"),
        ("token_until:val_loss=1", "did you mean tokens_until?"),
        ("tokens_until:val_loss", "tokens_until:val_loss=1.2"),
        ("tokens_until:train_loss=1", "such as val_loss, ema_val_loss or bits_per_byte"),
        ("tokens_until:val_loss=nan", "above 0"),
        ("tokens_until:val_loss=-1", "above 0"),
    ] {
        assert!(said(text).contains(hint), "{text}: {}", said(text));
    }
}

#[test]
fn units_directions_and_smallest_effects_follow_from_the_metric() {
    let of = |text: &str| {
        let measure = measure(text);
        (measure.unit(), measure.direction(), measure.scale(), measure.default_min_effect())
    };
    use Direction::{HigherIsBetter, LowerIsBetter};
    assert_eq!(of("val_loss/x:last3"), ("nats per token", LowerIsBetter, Scale::Difference, Some(0.01)));
    assert_eq!(of("bits_per_byte"), ("bits per byte", LowerIsBetter, Scale::Difference, Some(0.005)));
    assert_eq!(of("piqa"), ("", HigherIsBetter, Scale::Difference, Some(0.01)));
    assert_eq!(of("piqa/bits_per_byte"), ("bits per byte", LowerIsBetter, Scale::Difference, Some(0.005)));
    assert_eq!(of("lambada/perplexity").1, LowerIsBetter);
    assert_eq!(of("lambada/perplexity").2, Scale::Ratio);
    assert_eq!(of("tok_s"), ("tokens per second", HigherIsBetter, Scale::Ratio, Some(0.01)));
    assert_eq!(of("tokens_until:val_loss=1"), ("tokens", LowerIsBetter, Scale::Ratio, None));
    let timed = ["tok_s", "seconds_until:val_loss=1", "steps_until:val_loss=1", "val_loss"];
    assert_eq!(timed.map(|text| measure(text).is_timed()), [true, true, false, false]);
}

/// A stored run of four steps.
struct StoredRun {
    folder: tempfile::TempDir,
    summary: Summary,
}

const ROWS: &str = "step,tokens_seen,loss,val_loss,lr,grad_norm,val_loss/news\n\
                    1,10,4.0,,0.1,1.0,\n2,20,3.0,2.5,0.1,1.0,3.5\n3,30,2.0,,0.1,1.0,\n4,40,1.0,1.5,0.1,1.0,2.5\n";

impl StoredRun {
    fn new(rows: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut summary = Summary::started("r", "x", "0", 4);
        (summary.status, summary.steps, summary.tokens_seen) = (Status::Ok, 4, 40);
        summary.tok_s = Some(512.0);
        std::fs::write(folder.path().join(METRICS), rows).unwrap();
        Self { folder, summary }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn open(&self) -> MeasuredRun {
        std::fs::write(self.path().join(SUMMARY), serde_json::to_vec(&self.summary).unwrap()).unwrap();
        MeasuredRun::open(self.path()).unwrap()
    }

    fn value(&self, text: &str) -> MeasureValue {
        self.open().measure(&measure(text))
    }
}

fn missing(value: MeasureValue) -> String {
    match value {
        MeasureValue::Missing(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_last_evaluation_counts_or_the_mean_of_several() {
    let run = StoredRun::new(ROWS);
    for (text, value) in [
        ("val_loss", 1.5),
        ("val_loss:last2", 2.0),
        ("val_loss/news", 2.5),
        ("val_loss/news:last2", 3.0),
        // The smoothed loss averages a tenth of four steps, but at least one.
        ("train_loss", 1.0),
        ("train_loss:last3", 2.0),
        ("tok_s", 512.0),
    ] {
        assert_eq!(run.value(text), MeasureValue::Value(value), "{text}");
    }
    assert!(missing(run.value("val_loss:last3")).contains("2 evaluations, and 3 are averaged"));
    assert!(missing(run.value("val_loss/code")).contains("no column val_loss/code"));
}

#[test]
fn a_target_of_an_accuracy_is_reached_from_below() {
    let run = StoredRun::new(
        "step,tokens_seen,loss,val_loss,lr,grad_norm,mine/acc,mine/bits_per_byte\n1,10,4.0,,0.1,1.0,0.25,2.0\n\
         2,20,3.0,,0.1,1.0,,\n3,30,3.0,,0.1,1.0,0.5,NaN\n4,40,1.0,1.5,0.1,1.0,0.75,1.0\n",
    );
    for (text, value) in [
        ("mine/acc", 0.75),
        ("mine/acc:last2", 0.625),
        ("mine/bits_per_byte", 1.0),
        ("steps_until:mine/acc=0.5", 3.0),
        ("steps_until:mine/bits_per_byte=2.5", 1.0),
    ] {
        assert_eq!(run.value(text), MeasureValue::Value(value), "{text}");
    }
    assert!(missing(run.value("mine/bits_per_byte:last2")).contains("step 3"));
    assert!(missing(run.value("other/acc")).contains("no column other/acc"));
}

/// Blank steps are left out, and the window is that of the run's training loss.
#[test]
fn a_training_loss_on_a_source_is_the_mean_over_the_steps_that_read_it() {
    let mut run = StoredRun::new(
        "step,tokens_seen,loss,val_loss,lr,grad_norm,train_loss/code,train_loss/web\n\
         1,10,4.0,,0.1,1.0,4.0,\n2,20,3.0,2.5,0.1,1.0,,3.5\n3,30,2.0,,0.1,1.0,2.5,1.5\n4,40,1.0,1.5,0.1,1.0,,1.0\n",
    );
    for (text, value) in [
        ("train_loss/web", 1.0),
        ("train_loss/web:last2", 1.25),
        ("train_loss/web:last4", 2.0),
        ("train_loss/code:last2", 2.5),
        ("train_loss/code:last3", 2.5),
    ] {
        assert_eq!(run.value(text), MeasureValue::Value(value), "{text}");
    }
    assert!(missing(run.value("train_loss/code")).contains("no sequence of code is in the last 1 steps"));
    assert!(missing(run.value("train_loss/news")).contains("no column train_loss/news"));
    // A fork averages over its parent's last steps as the run's own training loss does.
    let fork = |first: &str| {
        let rows = format!("step,tokens_seen,loss,val_loss,lr,grad_norm,train_loss/web\n{first}");
        let mut run = StoredRun::new(&rows);
        (run.summary.steps, run.summary.tokens_seen) = (31, 310);
        let before = vec![Some(2.0), None];
        let losses = SourceLosses { losses_before: before, ..SourceLosses::default() };
        run.summary.source_losses.insert("web".to_owned(), losses);
        run
    };
    assert_eq!(fork("31,310,1.0,,0.1,1.0,4.0\n").value("train_loss/web"), MeasureValue::Value(3.0));
    assert_eq!(fork("31,310,1.0,,0.1,1.0,\n").value("train_loss/web"), MeasureValue::Value(2.0));
    run.summary.steps = 5;
    assert!(missing(run.value("train_loss/web")).contains("rows were lost"));
}

#[test]
fn bits_per_byte_follow_from_the_bytes_of_the_text_and_are_missing_without() {
    let mut run = StoredRun::new(ROWS);
    assert!(missing(run.value("bits_per_byte")).contains("the bytes of the held-out text are not known"));
    let set = |bytes| HeldOutSet { tokens: Some(100), bytes, ..HeldOutSet::default() };
    run.summary.held_out.insert(MAIN_SET.to_owned(), set(Some(400)));
    run.summary.held_out.insert("news".to_owned(), set(None));
    let bits = run.value("bits_per_byte").value().unwrap();
    assert!((bits - 1.5 * 100.0 / 400.0 / std::f64::consts::LN_2).abs() < 1e-12, "{bits}");
    assert_eq!(run.value("steps_until:bits_per_byte=0.6"), MeasureValue::Value(4.0));
    assert!(missing(run.value("bits_per_byte/news")).contains("the bytes of the set news are not known"));
}

#[test]
fn a_target_is_reached_at_an_evaluation_and_never_is_told_from_missing() {
    let run = StoredRun::new(ROWS);
    std::fs::write(
        run.path().join(TIMING),
        timing(&[(1, "warmup", 9e3), (2, "train", 2e3), (2, "eval", 7e3), (4, "train", 1e3)]),
    )
    .unwrap();
    for (text, value) in [
        ("steps_until:val_loss=2.5", 2.0),
        ("tokens_until:val_loss=2.4", 40.0),
        ("seconds_until:val_loss=2.5", 11.0),
        ("seconds_until:val_loss=2", 12.0),
        ("steps_until:val_loss/news=2.5", 4.0),
    ] {
        assert_eq!(run.value(text), MeasureValue::Value(value), "{text}");
    }
    assert_eq!(run.value("tokens_until:val_loss=1.4"), MeasureValue::NeverReached(40.0));
    assert_eq!(run.value("seconds_until:val_loss=1.4"), MeasureValue::NeverReached(12.0));
}

/// Returns a `timing.csv` with these rows: step, phase and milliseconds.
fn timing(rows: &[(u64, &str, f64)]) -> String {
    let columns = crate::results::TimingRow::COLUMNS;
    let mut text = columns.join(",") + "\n";
    for (step, phase, ms) in rows {
        text += &format!("{step},{phase},0.0,{ms}{}\n", ",".repeat(columns.len() - 4));
    }
    text
}

#[test]
fn a_value_that_is_no_number_is_seen() {
    for planted in ["NaN", "inf", "-inf"] {
        let run = StoredRun::new(&ROWS.replace("1.5,0.1", &format!("{planted},0.1")));
        assert!(missing(run.value("val_loss")).contains("step 4"), "{planted}");
        assert!(missing(run.value("val_loss:last2")).contains("step 4"), "{planted}");
        assert_eq!(run.value("steps_until:val_loss=2.5"), MeasureValue::Value(2.0), "reached before");
        assert_eq!(run.value("val_loss/news"), MeasureValue::Value(2.5), "another column");
    }
    let run = StoredRun::new(&ROWS.replace("2.5,0.1", "NaN,0.1"));
    assert!(missing(run.value("steps_until:val_loss=1.5")).contains("step 2"));
    let run = StoredRun::new(&ROWS.replace("40,1.0", "40,NaN"));
    assert!(missing(run.value("train_loss")).contains("the loss of step 4 in metrics.csv is NaN"));
    let run = StoredRun::new(&ROWS.replace("1.5,0.1", "low,0.1"));
    assert!(missing(run.value("val_loss")).contains("metrics.csv:5: val_loss is `low`"));
}

#[test]
fn runs_that_diverged_or_did_not_end_well_have_no_value() {
    let mut run = StoredRun::new(ROWS);
    run.summary.status = Status::Diverged;
    for text in ["val_loss", "tok_s", "steps_until:val_loss=2.5"] {
        assert_eq!(run.value(text), MeasureValue::Diverged, "{text}");
    }
    run.summary.status = Status::Oom;
    assert!(missing(run.value("val_loss")).contains("the run is oom"));
    assert!(StoredRun::new(ROWS).open().is_complete());
    let mut run = StoredRun::new(&ROWS[..ROWS.len() - "4,40,1.0,1.5,0.1,1.0,2.5\n".len()]);
    assert!(missing(run.value("train_loss")).contains("rows were lost"));
    assert!(!run.open().is_complete());
    run.summary.tok_s = None;
    assert!(missing(run.value("tok_s")).contains("no steady state"));
    std::fs::remove_file(run.path().join(METRICS)).unwrap();
    assert!(missing(run.value("val_loss")).contains("cannot read"));
}
