//! Evaluation tasks besides the loss: what a run writes about them, and what reads it.

use crate::place::{Place, Run};
use xrun::results::experiment::Experiment;
use xrun::results::rows::{MetricsRow, read};

const QUICK: [&str; 4] =
    ["tiny.toml", "generation.samples=0", "data.tokenizer=byte", "validation.sets={ news = \"news.txt\" }"];
const ACCURACY: &str = "validation.tasks=[\"next_token_accuracy\"]";

fn place() -> Place {
    let place = Place::new();
    place.write("news.txt", "Rain is expected in the north tomorrow. ".repeat(20).as_bytes());
    place
}

fn rows(run: &Run) -> Vec<MetricsRow> {
    read(&run.path.join("metrics.csv")).unwrap()
}

#[test]
fn accuracy_is_a_column_and_a_figure_of_every_set() {
    let place = place();
    let done = place.xrun(&[&QUICK[..], &[ACCURACY]].concat()).succeeds();
    let run = place.run();
    let header = "ema_val_loss,val_accuracy,val_accuracy/news,val_loss/news";
    assert!(run.text("metrics.csv").lines().next().is_some_and(|line| line.ends_with(header)));
    let rows = rows(&run);
    for row in &rows {
        let accuracy = row.further.get("val_accuracy");
        assert_eq!(accuracy.is_some(), row.val_loss.is_some());
        assert!(accuracy.is_none_or(|accuracy| (0.0..=1.0).contains(accuracy)), "{row:?}");
    }
    let (last, summary) = (rows.last().unwrap(), run.summary());
    for (set, column) in [("", "val_accuracy"), ("news", "val_accuracy/news")] {
        let series = summary.held_out[set].figures["val_accuracy"];
        assert_eq!(series.last.unwrap().value, last.further[column]);
        assert!(series.best.unwrap().value >= last.further[column]);
    }
    let shown = format!("val_accuracy {:.4}", last.further["val_accuracy"]);
    assert!(done.stdout.contains(&shown), "{}", done.stdout);
    let filter = format!("val_accuracy/news>={}", last.further["val_accuracy/news"]);
    let listed = place.xrun(&["runs", &filter, "--columns", "val_accuracy"]).succeeds().stdout;
    assert!(listed.contains(&format!("{:.4}", last.further["val_accuracy"])), "{listed}");

    // Neither the rest of the rows nor the hash of the recipe depends on it.
    place.xrun(&QUICK).succeeds();
    let other = place.runs().remove(1);
    let without = |row: &MetricsRow| {
        let mut row = row.clone();
        row.further.retain(|column, _| !column.starts_with("val_accuracy"));
        row
    };
    assert_eq!(rows.iter().map(without).collect::<Vec<_>>(), self::rows(&other));
    assert_eq!(other.summary().recipe_hash, summary.recipe_hash);
    assert!(!other.text("resolved.toml").contains("tasks"));
}

#[test]
fn accuracy_decides_between_runs_and_the_higher_is_better() {
    let place = place();
    let asked = ["compare", "tiny.toml", "optimizer.lr=0.01", "--on", "val_accuracy", "--seeds", "2"];
    let set = format!("--set={ACCURACY}");
    let short = ["--set=training.steps=12", "--set=generation.samples=0", &set, "--json"];
    let done = place.xrun(&[&asked[..], &short].concat()).succeeds();
    let found: Experiment = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(found.runs.len(), 4);
    assert!(found.runs.iter().all(|run| run.values["val_accuracy"].value().is_some()));
    place.xrun(&["runs", "--sort", "val_accuracy", "--columns", "val_accuracy"]).succeeds();
}

#[test]
fn a_resume_goes_on_with_the_tasks_of_the_run() {
    let place = place();
    place.xrun(&[&QUICK[..], &[ACCURACY]].concat()).succeeds();
    let whole = place.run().text("metrics.csv");
    place.xrun(&[&QUICK[..], &[ACCURACY, "--until", "12"]].concat()).succeeds();
    let half = place.runs().remove(1);
    let path = half.path.display().to_string();
    place.xrun(&["resume", &path, "validation.tasks=[]"]).ended(2).says(&["validation.tasks"]);
    place.xrun(&["resume", &path]).succeeds();
    assert_eq!(half.text("metrics.csv"), whole);
}
