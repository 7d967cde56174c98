//! A run with a moving average of its weights: what the run writes about it, and what uses it.

use crate::place::Place;
use safetensors::SafeTensors;
use xrun::checkpoint::first_difference;
use xrun::results::rows::{MetricsRow, read};

const KEPT: [&str; 3] = ["tiny.toml", "generation.samples=0", "ema.decay=0.9"];

/// Returns the rows without the losses of the average.
fn without_average(rows: &[MetricsRow]) -> Vec<MetricsRow> {
    let row = |row: &MetricsRow| MetricsRow {
        ema_val_loss: None,
        further: row.further.clone().into_iter().filter(|(name, _)| !name.starts_with("ema_")).collect(),
        ..row.clone()
    };
    rows.iter().map(row).collect()
}

#[test]
fn its_losses_are_columns_and_figures_of_the_run() {
    let place = Place::new();
    place.write("news.txt", "Rain is expected in the north tomorrow. ".repeat(20).as_bytes());
    let sets = "validation.sets={ news = \"news.txt\" }";
    let settings = [&KEPT[..], &["ema.evaluate=true", "data.tokenizer=byte", sets]].concat();
    let done = place.xrun(&settings).succeeds();
    let run = place.run();
    let header = "lr,grad_norm,z_loss,smoothing_loss,ema_val_loss,ema_val_loss/news,val_loss/news\n";
    assert!(run.text("metrics.csv").lines().next().is_some_and(|line| format!("{line}\n").ends_with(header)));
    let rows: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    for row in &rows {
        assert_eq!(row.ema_val_loss.is_some(), row.val_loss.is_some());
        assert_eq!(row.further.len(), 2 * row.set_losses().len());
    }
    let (last, summary) = (rows.last().unwrap(), run.summary());
    assert_ne!(last.ema_val_loss, last.val_loss);
    let losses = [summary.ema_val_loss, summary.held_out[""].ema, summary.held_out["news"].ema];
    let average_losses = losses.map(|losses| losses.and_then(|losses| losses.last).map(|last| last.loss));
    let expected = [last.ema_val_loss, last.ema_val_loss, last.further.get("ema_val_loss/news").copied()];
    assert_eq!(average_losses, expected);
    let said = format!("moving average of the weights: validation loss {:.4}", last.ema_val_loss.unwrap());
    assert!(done.stdout.contains(&said), "{}", done.stdout);
    let filter = format!("ema_val_loss/news<={}", last.further["ema_val_loss/news"]);
    let listed = place.xrun(&["runs", &filter, "--columns", "ema_val_loss"]).succeeds().stdout;
    assert!(listed.contains(&format!("{:.4}", last.ema_val_loss.unwrap())), "{listed}");

    // The rest of the rows is the same as without the evaluation.
    place.xrun(&[&KEPT[..], &["data.tokenizer=byte", sets]].concat()).succeeds();
    let other: Vec<MetricsRow> = read(&place.runs().remove(1).path.join("metrics.csv")).unwrap();
    assert_eq!(other, without_average(&rows));
}

#[test]
fn export_and_samples_take_it_by_choice() {
    let place = Place::new();
    place.xrun(&KEPT).succeeds();
    let run = place.run();
    let checkpoint = run.newest();
    let shape = checkpoint.shape("head").unwrap().to_vec();
    let (weights, average) =
        (checkpoint.read("head", &shape).unwrap(), checkpoint.read("ema.head", &shape).unwrap());
    assert!(weights != average);
    for (to, choice, expected) in [
        ("weights", &[][..], &weights),
        ("same", &["--weights", "training"], &weights),
        ("average", &["--weights", "ema"], &average),
    ] {
        place.xrun(&[&["export", run.name(), "--to", to], choice].concat()).succeeds();
        let bytes = std::fs::read(place.path().join(to).join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert!(tensors.tensor("lm_head.weight").unwrap().data() == expected.as_slice(), "{to}");
    }
    let sample = |choice: &[&str]| {
        let fixed = [
            "sample",
            run.name(),
            "--prompt",
            "Once",
            "--tokens",
            "24",
            "--temperature",
            "2.0",
            "--samples",
            "4",
        ];
        place.xrun(&[&fixed[..], choice].concat()).succeeds().stdout
    };
    assert_eq!(sample(&[]), sample(&["--weights", "training"]));
    assert_ne!(sample(&[]), sample(&["--weights", "ema"]));

    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "generation.samples=0"]).succeeds();
    let lacks = ["has no moving average of", "only runs with ema.decay"];
    place.xrun(&["export", "latest", "--to", "x", "--weights", "ema"]).ended(2).says(&lacks);
    place.xrun(&["sample", "latest", "--weights", "ema"]).ended(2).says(&lacks);
    assert!(!place.path().join("x").exists());
    // A fork has no moving average to continue from.
    place
        .xrun(&["resume", "latest", "--fork", "training.steps=4", "ema.decay=0.9"])
        .ended(2)
        .says(&["holds no moving average of the weights", "ema.decay"]);
}

#[test]
fn a_resumed_run_goes_on_with_it_and_may_begin_to_evaluate_it() {
    let place = Place::new();
    place.xrun(&[&KEPT[..], &["ema.evaluate=true"]].concat()).succeeds();
    let whole = place.run();
    let place = Place::new();
    place.xrun(&[&KEPT[..], &["--until", "15"]].concat());
    let run = place.run();
    place.xrun(&["resume", run.name(), "ema.decay=0.8"]).ended(2).says(&["ema.decay"]);
    place.xrun(&["resume", run.name(), "ema.evaluate=true"]).succeeds();
    let read = |path: &std::path::Path| read::<MetricsRow>(&path.join("metrics.csv")).unwrap();
    let (rows, expected) = (read(&run.path), read(&whole.path));
    assert_eq!(rows[15..], expected[15..]);
    assert_eq!(rows[..15], without_average(&expected[..15]));
    assert_eq!(first_difference(&run.newest(), &whole.newest()).unwrap(), None);
}
