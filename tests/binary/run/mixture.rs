//! A run on a mixture of sources: what it reads, writes, resumes and refuses.

use crate::place::{Place, Run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use xrun::results::rows::{MetricsRow, read};

/// A folder with the texts of three sources and a recipe of them, whose phase begins at step 15 of 30.
fn place() -> Place {
    let place = Place::new();
    for (name, words, documents) in [
        ("code", "let x = y; ", 120),
        ("news", "It rains in the north. ", 60),
        ("web", "a list of pages ", 200),
    ] {
        let mut lines = String::new();
        for number in 0..documents {
            writeln!(lines, "{{\"text\": \"{}{number}\"}}", words.repeat(1 + number % 9)).unwrap();
        }
        place.write(&format!("texts/{name}.jsonl"), lines.as_bytes());
    }
    let recipe = std::fs::read_to_string(place.path().join("tiny.toml")).unwrap();
    let generated = "[data]\ntrain_tokens = 20_000\nvalidation_tokens = 600\n";
    let mixture = "[data]\ntokenizer = \"byte\"\n\
                   [data.sources]\ncode = { path = \"texts/code.jsonl\", weight = 0.6, card = \"MIT, by hand\" }\n\
                   news = { path = \"texts/news.jsonl\", weight = 0.1, epochs = 3 }\n\
                   web = { path = \"texts/web.jsonl\", weight = 0.3 }\n\
                   [[data.phases]]\nfrom = 0.5\nweights = { code = 0.2, web = 0.8 }\n";
    assert!(recipe.contains(generated));
    place.write("tiny.toml", recipe.replace(generated, mixture).as_bytes());
    place
}

const QUICK: [&str; 3] = ["tiny.toml", "generation.samples=0", "checkpoint.keep=9"];

fn shown(place: &Place, step: usize) -> Value {
    let step = step.to_string();
    let arguments = ["data", "show", "tiny.toml", "--json", "--sequences", "9", "--step", &step];
    serde_json::from_str(&place.xrun(&arguments).succeeds().stdout).unwrap()
}

#[test]
fn every_source_is_read_in_proportion_and_held_out_apart() {
    let place = place();
    place.xrun(&[&QUICK[..], &["checkpoint.steps=[29]"]].concat()).succeeds();
    let run = place.run();
    let rows: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
    let evaluated: Vec<&MetricsRow> = rows.iter().filter(|row| row.val_loss.is_some()).collect();
    assert_eq!(evaluated.len(), 5);
    for row in evaluated {
        let losses = row.set_losses();
        assert_eq!(losses.keys().copied().collect::<Vec<_>>(), ["code", "news", "web"]);
    }
    // Of the 120 sequences, 60 are read in each phase.
    let mut counts = [[0; 3]; 2];
    for step in 1..=30 {
        let (loss, mut by_source) = (f64::from(rows[step - 1].loss), BTreeMap::new());
        for sequence in shown(&place, step)["sequences"].as_array().unwrap() {
            let source = sequence["source"].as_str().unwrap();
            let at = ["code", "news", "web"].iter().position(|name| *name == source).unwrap();
            counts[(step - 1) / 15][at] += 1;
            let words = ["let x", "rains", "list of"][at];
            let text = sequence["pieces"][0]["text"].as_str().unwrap();
            assert!(text.contains(words), "{source}: {text}");
            *by_source.entry(format!("train_loss/{source}")).or_insert(0.0) += 1.0;
        }
        // The training losses of the sources of a step, and no others, make up its loss.
        let further = &rows[step - 1].further;
        let of_sources = || further.iter().filter(|(column, _)| column.starts_with("train_loss/"));
        assert!(of_sources().map(|(column, _)| column).eq(by_source.keys()), "step {step}: {further:?}");
        let sum: f64 = of_sources().map(|(column, loss)| f64::from(*loss) * by_source[column]).sum();
        assert!(
            (sum / by_source.values().sum::<f64>() - loss).abs() < 1e-6 * loss,
            "step {step}: {further:?}"
        );
    }
    assert_eq!(counts, [[36, 6, 18], [12, 0, 48]]);
    // What it was trained on is in the summary and goes with the weights.
    let summary = run.json("summary.json");
    // The last 3 of 30 steps are averaged. The phase has no news, so there is a last loss and no mean.
    let losses = &summary["source_losses"];
    assert_eq!(losses["web"]["smoothed"]["steps"], 3);
    assert!(losses["news"]["smoothed"].is_null() && losses["news"]["final"]["step"].as_u64() <= Some(15));
    let web = losses["web"]["smoothed"]["loss"].as_f64().unwrap();
    let listed = place.xrun(&["runs", &format!("train_loss/web={web}"), "--json"]).succeeds().stdout;
    assert!(listed.contains("\"recipe\":\"tiny\"") && listed.contains("source_losses"), "{listed}");
    assert_eq!(summary["sources"].as_object().unwrap().len(), 3);
    assert_eq!(summary["sources"]["code"]["card"], "MIT, by hand");
    assert_eq!(summary["card"], Value::Null);
    place.xrun(&["export", run.name(), "--to", "hf"]).succeeds();
    let exported = std::fs::read(place.path().join("hf/xrun-data.json")).unwrap();
    let exported: Value = serde_json::from_slice(&exported).unwrap();
    assert_eq!(
        [&exported["corpus_hash"], &exported["sources"]],
        [&summary["corpus_hash"], &summary["sources"]]
    );
    let sources = shown(&place, 1)["sources"].clone();
    for (at, share) in [0.4, 0.05, 0.55].into_iter().enumerate() {
        assert!((sources[at]["share"].as_f64().unwrap() - share).abs() < 1e-6, "{sources}");
    }
    let plan = place.xrun(&["plan", "tiny.toml"]).succeeds().stdout;
    assert!(plan.contains("a mixture of ") && plan.contains("news: 5.0 % of the sequences"), "{plan}");
    // A fork with the bits of its parent has its figures, also if it trains fewer steps than are averaged.
    place.xrun(&["resume", run.name(), "--fork", "--at", "29"]).succeeds();
    let fork = place.runs().into_iter().find(|fork| fork.path != run.path).unwrap().json("summary.json");
    for name in ["code", "news", "web"] {
        assert_eq!(fork["source_losses"][name]["smoothed"], losses[name]["smoothed"], "{name}");
    }
}

/// The step is the only state of the data, on any number of ranks.
#[test]
fn a_killed_run_goes_on_with_the_next_sequences() {
    let place = place();
    let fixed = [&QUICK[..], &["training.global_batch_size=4"]].concat();
    place.xrun(&fixed).succeeds();
    let whole = place.run();
    let aside = tempfile::tempdir().unwrap();
    crate::place::copy(&whole.path, aside.path());
    for step in [5, 20] {
        whole.forget_after(step);
        place.xrun(&["resume", whole.name()]).succeeds();
        whole.ended_as(&Run { path: aside.path().to_owned() });
    }
    whole.forget_after(10);
    place
        .xrun(&["resume", whole.name(), "parallelism.world_size=2", "training.local_batch_size=2"])
        .succeeds();
    let losses = |run: &Run| -> Vec<(String, f32)> {
        let rows: Vec<MetricsRow> = read(&run.path.join("metrics.csv")).unwrap();
        let columns = |row: MetricsRow| [("loss".to_owned(), row.loss)].into_iter().chain(row.further);
        rows.into_iter().flat_map(columns).collect()
    };
    let (resumed, undisturbed) = (losses(&whole), losses(&Run { path: aside.path().to_owned() }));
    assert_eq!(resumed.len(), undisturbed.len());
    // Two ranks add in another order. Other sequences would differ in the second digit.
    assert!(
        resumed
            .iter()
            .zip(&undisturbed)
            .all(|((at, a), (column, b))| at == column && (a - b).abs() < 1e-4 * b),
        "{resumed:?} {undisturbed:?}"
    );
}

#[test]
fn what_a_mixture_cannot_be_is_refused_by_plan_and_run() {
    let place = place();
    let refused: [(&[&str], &[&str]); 4] = [
        (
            &["data.sources.news.epochs=0.01"],
            &["source news would be read", "are read code 0.24, news 0.03", "lower its weight"],
        ),
        (&["data.sources.web.path=texts/none.jsonl"], &["data.sources.web", "no such file"]),
        (
            &["training.seq_len=5000", "data.validation=0.5"],
            &["data.sources.code: ", "the training split has ", "one window of seq_len 5000"],
        ),
        (
            &["validation.sets={ web = \"texts/web.jsonl\" }"],
            &["a source and a set of validation.sets have the name `web`"],
        ),
    ];
    for (changes, said) in refused {
        for command in [&["plan"][..], &[]] {
            place.xrun(&[command, &["tiny.toml"], changes].concat()).ended(2).says(said);
        }
    }
    assert!(place.runs().is_empty());
}

/// Text that one source holds out may be trained on as another one.
#[test]
fn held_out_text_of_one_source_is_looked_for_in_the_others() {
    let place = place();
    let news = std::fs::read(place.path().join("texts/news.jsonl")).unwrap();
    let web = std::fs::read(place.path().join("texts/web.jsonl")).unwrap();
    place.write("texts/web.jsonl", &[web, news.repeat(3)].concat());
    let warned = |more: &[&str]| {
        let arguments = [&["data", "show", "tiny.toml", "data.seed=1"], more].concat();
        place.xrun(&arguments).succeeds().stderr
    };
    assert!(warned(&["data.validation=0.3"]).contains("the held-out set news is also in the training text"));
}
