//! Several held-out sets, and bits per byte: what a run writes about them, and what later commands use.

use crate::place::{Place, Run};
use xrun::metrics::DocumentLoss;
use xrun::results::atomic::read_csv;
use xrun::results::rows::{MetricsRow, read};

/// Makes three texts: training text, news, and code.
fn place() -> Place {
    let place = Place::new();
    let text = |words: &str, times: usize| words.repeat(times);
    place.write("texts/corpus.txt", text("The old cat sat by the lake and saw a bird. ", 300).as_bytes());
    place.write("texts/news.txt", text("Rain is expected in the north tomorrow. ", 40).as_bytes());
    place.write("texts/code/a.txt", text("fn main() { println!(\"é\"); }\n", 30).as_bytes());
    let recipe = std::fs::read_to_string(place.path().join("tiny.toml")).unwrap();
    let data =
        "[data]\ncorpus = \"texts/corpus.txt\"\ntokenizer = \"byte\"\nvalidation = \"texts/news.txt\"\n";
    let sets = "[validation.sets]\nnews = \"texts/news.txt\"\ncode = \"texts/code\"\n";
    let recipe = recipe.replace("[data]\n", data).replace("[generation]", &format!("{sets}[generation]"));
    place.write("tiny.toml", recipe.as_bytes());
    place
}

const QUICK: [&str; 2] = ["tiny.toml", "generation.samples=0"];

fn rows(run: &Run) -> Vec<MetricsRow> {
    read(&run.path.join("metrics.csv")).unwrap()
}

#[test]
fn every_set_is_a_column_and_a_figure_of_the_run() {
    let place = place();
    let done = place.xrun(&[&QUICK[..], &["validation.steps=0"]].concat()).succeeds();
    let run = place.run();
    let text = run.text("metrics.csv");
    assert!(
        text.starts_with(
            "step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss,val_loss/code,val_loss/news\n"
        ),
        "{text}"
    );
    let rows = rows(&run);
    let evaluated: Vec<&MetricsRow> = rows.iter().filter(|row| row.val_loss.is_some()).collect();
    assert_eq!(evaluated.iter().map(|row| row.step).collect::<Vec<_>>(), [6, 12, 18, 24, 30]);
    for row in &rows {
        let names: Vec<&str> = row.set_losses().into_keys().collect();
        assert_eq!(names.is_empty(), row.val_loss.is_none());
        // The same text gives the same bits.
        assert_eq!(row.set_losses().get("news").copied(), row.val_loss);
    }
    let last = evaluated.last().unwrap();
    assert_ne!(last.set_losses()["code"], last.set_losses()["news"]);
    let summary = run.summary();
    let [main, code, news] = ["", "code", "news"].map(|name| summary.held_out[name].clone());
    assert_eq!(summary.held_out.len(), 3);
    assert_eq!((&main.hash, main.losses), (&news.hash, summary.val_loss));
    assert_eq!((news.tokens, news.bytes), (Some(40 * 40 + 1), Some(40 * 40)), "the end token is no text");
    assert_eq!((code.tokens, code.bytes), (Some(30 * 30 + 1), Some(30 * 30)), "a letter has two bytes");
    for set in [&main, &code, &news] {
        let (loss, tokens, bytes) =
            (f64::from(set.losses.last.unwrap().loss), set.tokens.unwrap(), set.bytes.unwrap());
        let bits = loss * tokens as f64 / (bytes as f64 * std::f64::consts::LN_2);
        assert_eq!(set.bits_per_byte, Some(bits));
        assert!(
            done.stdout.contains(&format!("{loss:.4} nats per token, {bits:.4} bits per byte")),
            "{}",
            done.stdout
        );
    }
    assert_eq!(summary.bits_per_byte, main.bits_per_byte);
    let listed = place.xrun(&["runs", "--json"]).succeeds().stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        listed["held_out"]["code"]["final"]["loss"].as_f64().map(|x| x as f32),
        Some(last.set_losses()["code"])
    );
    // Lists of runs know them as figures.
    let code_loss = last.set_losses()["code"];
    let filter = format!("val_loss/code<={code_loss}");
    let figures = "val_loss/code,bits_per_byte/code";
    let listed = place.xrun(&["runs", &filter, "--sort", "val_loss/code", "--columns", figures]).succeeds();
    let row = format!("{code_loss:.4}  {:>18.4}", code.bits_per_byte.unwrap());
    assert!(listed.stdout.contains(&row), "{row}\n{}", listed.stdout);
    let csv = place.xrun(&["runs", "--csv"]).succeeds().stdout;
    let set_columns = "val_loss/code,bits_per_byte/code,val_loss/news,bits_per_byte/news";
    assert!(csv.lines().next().unwrap().ends_with(set_columns), "{csv}");
    place.xrun(&["runs", "val_loss/cod<1"]).ended(2).says(&["did you mean val_loss/code?"]);
    let difference = place.xrun(&["runs", "diff", run.name(), run.name()]).succeeds().stdout;
    assert!(
        difference.contains(&format!("val_loss/code at step 30: {code_loss} and {code_loss}.")),
        "{difference}"
    );
    // Tables and sentences of reports have them.
    place.xrun(&["keep", run.name()]).succeeds();
    let columns = "val_loss/code,bits_per_byte,bits_per_byte/code";
    let value =
        "<!-- xrun:value select=\"tiny\" column=\"bits_per_byte/code\" digits=\"2\" --><!-- xrun:end -->";
    let block = format!(
        "<!-- xrun:report kind=\"runs\" select=\"tiny\" columns=\"{columns}\" -->\n<!-- xrun:end -->\n\nAt {value}.\n"
    );
    place.write("page.md", block.as_bytes());
    place.xrun(&["report", "page.md"]).succeeds();
    let page = std::fs::read_to_string(place.path().join("page.md")).unwrap();
    let (bits, code_bits) = (main.bits_per_byte.unwrap(), code.bits_per_byte.unwrap());
    let row = format!("| {:.4} | {bits:.4} | {code_bits:.4} |", last.set_losses()["code"]);
    assert!(page.contains(&row) && page.contains(&format!("-->{code_bits:.2}<!--")), "{row}\n{page}");
    place.write("page.md", block.replace("val_loss/code", "val_loss/cod").as_bytes());
    place.xrun(&["report", "page.md"]).ended(3).says(&["held-out set `cod`; did you mean `code`?"]);
    // A figure that does not follow from the rows is found.
    let path = run.path.join("summary.json");
    let mut forged: serde_json::Value = run.json("summary.json");
    forged["held_out"]["code"]["bits_per_byte"] = 0.5.into();
    std::fs::write(path, forged.to_string()).unwrap();
    place
        .xrun(&["keep", run.name(), "--to", "elsewhere"])
        .ended(1)
        .says(&["held_out.code.bits_per_byte = 0.5"]);
    // Losses on another text of the same name do not compare; losses on the other set do.
    place.write("texts/code/a.txt", "let x = 1;\n".repeat(90).as_bytes());
    place.xrun(&[&QUICK[..], &["validation.steps=0"]].concat()).succeeds();
    let by_code = place.xrun(&["runs", "--sort", "val_loss/code"]).succeeds();
    by_code.says(&[
        "losses were measured on 2 different texts and cannot be compared",
        "TEXT is the hash of the tokens of the set",
    ]);
    let by_news = place.xrun(&["runs", "--sort", "val_loss/news"]).succeeds();
    assert!(!by_news.stderr.contains("cannot be compared"), "{}", by_news.stderr);
}

#[test]
fn every_launch_path_evaluates_the_same_sets() {
    let bytes = |settings: &[&str]| {
        let place = place();
        place
            .xrun(&[&QUICK[..], &["training.steps=6", "training.global_batch_size=4"], settings].concat())
            .succeeds();
        let run = place.run();
        let summary = run.summary();
        let counts: Vec<_> = summary.held_out.values().map(|set| (set.tokens, set.bytes, set.part)).collect();
        (run.text("metrics.csv"), counts)
    };
    let two = ["parallelism.world_size=2", "training.local_batch_size=2"];
    let threads = bytes(&two);
    assert_eq!(threads, bytes(&[&two[..], &["parallelism.launcher=process"]].concat()));
    let one = bytes(&["training.local_batch_size=4"]);
    assert_eq!(one.1, threads.1, "the same part of each set, two batches");
    assert_eq!(one.1[0].2.map(|part| part.batches), Some(2));
    assert!(
        one.1
            .iter()
            .all(|(tokens, bytes, _)| tokens.unwrap() == 256 && bytes.is_some_and(|b| b > 0 && b <= 256))
    );
    assert_eq!(one, bytes(&["training.local_batch_size=1"]), "accumulation");
}

#[test]
fn a_run_with_sets_is_resumed_with_its_sets_alone() {
    let place = place();
    place.xrun(&[&QUICK[..], &["checkpoint.keep=10"]].concat()).succeeds();
    let run = place.run();
    let (metrics, summary) = (run.text("metrics.csv"), run.summary());
    run.forget_after(10);
    let before = run.files();
    let other = ["validation.sets={ news = \"texts/news.txt\" }", "validation.sets={}"];
    for change in other {
        place.xrun(&["resume", run.name(), change]).ended(2).says(&["validation.sets = ", "--fork"]);
    }
    let news = place.path().join("texts/code/a.txt");
    let text = std::fs::read(&news).unwrap();
    std::fs::write(&news, "something else, and not a little of it: ".repeat(9)).unwrap();
    place.xrun(&["resume", run.name()]).ended(2).says(&["the held-out set code has hash ", "--fork"]);
    assert!(run.files() == before, "a refused resume changed the run");
    std::fs::write(&news, text).unwrap();
    place.xrun(&["resume", run.name()]).succeeds().says(&["resuming from step 10"]);
    assert_eq!((run.text("metrics.csv"), run.summary().held_out), (metrics, summary.held_out));
    // A fork may measure on other sets, and says so.
    run.forget_after(20);
    let said = place.xrun(&["resume", run.name(), "--fork", other[0]]).succeeds();
    said.says(&["changed: validation.sets = { \"news\" = "]);
    let fork = place.runs().into_iter().find(|other| other.path != run.path).unwrap();
    assert!(fork.text("metrics.csv").starts_with(
        "step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss,val_loss/news\n"
    ));
}

/// The losses of documents add up to the loss of the evaluation, whichever rank evaluated which window.
#[test]
fn documents_add_up_to_their_set() {
    let place = place();
    let news: String = (0..7).map(|i| format!("{} in the north. ---\n", "Rain ".repeat(i + 1))).collect();
    place.write("texts/news.txt", news.as_bytes());
    let separator = "data.document_separator=\"---\"";
    let run = |documents: bool, settings: &[&str]| {
        let before: Vec<_> = place.runs().into_iter().map(|run| run.path).collect();
        let base = [
            "training.steps=3",
            "training.global_batch_size=4",
            separator,
            &format!("validation.documents={documents}"),
        ];
        place.xrun(&[&QUICK[..], &base, settings].concat()).succeeds();
        place.runs().into_iter().find(|run| !before.contains(&run.path)).unwrap()
    };
    let losses_in = |run: &std::path::Path| read_csv::<DocumentLoss>(&run.join("documents.csv")).unwrap();
    let whole = run(true, &["training.local_batch_size=4", "validation.steps=0"]);
    let rows = losses_in(&whole.path);
    let (summary, mut seen) = (whole.summary(), Vec::new());
    for (name, set) in &summary.held_out {
        let set_rows: Vec<_> = rows.iter().filter(|row| row.set == DocumentLoss::set_name(name)).collect();
        seen.push((name.as_str(), set_rows.len()));
        assert!(set_rows.iter().enumerate().all(|(at, row)| row.document == at as u64));
        assert_eq!(set_rows.iter().map(|row| row.tokens).sum::<u64>(), set.tokens.unwrap());
        assert_eq!(set_rows.iter().map(|row| row.bytes.unwrap()).sum::<u64>(), set.bytes.unwrap());
        let loss =
            set_rows.iter().map(|row| row.loss * row.tokens as f64).sum::<f64>() / set.tokens.unwrap() as f64;
        assert!((loss / f64::from(set.losses.last.unwrap().loss) - 1.0).abs() < 1e-6, "{name}: {loss}");
    }
    assert_eq!(seen, [("", 7), ("code", 1), ("news", 7)]);
    // "Rain " repeated and " in the north. ", plus the token that ends the document, which has no bytes.
    let news: Vec<_> =
        rows.iter().filter(|row| row.set == "news").map(|row| (row.tokens, row.bytes)).collect();
    let expected: Vec<_> = (1..=7u64).map(|i| (5 * i + 16, Some(5 * i + 15))).collect();
    assert_eq!(news, expected);
    // However windows are distributed over ranks and batches.
    let ranks = ["parallelism.world_size=2", "parallelism.launcher=process", "training.local_batch_size=1"];
    let split = run(true, &[&ranks[..], &["validation.steps=0"]].concat());
    let other = losses_in(&split.path);
    let counts = |rows: &[DocumentLoss]| {
        rows.iter().map(|row| (row.set.clone(), row.document, row.tokens, row.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&other), counts(&rows));
    assert!(other.iter().zip(&rows).all(|(a, b)| (a.loss / b.loss - 1.0).abs() < 1e-4));
    // Losses are the same as without documents. An evaluation of a part has only the documents of the part.
    let plain = run(false, &["training.local_batch_size=4", "validation.steps=0"]);
    assert_eq!(plain.text("metrics.csv"), whole.text("metrics.csv"));
    assert!(!plain.path.join("documents.csv").exists());
    let part = losses_in(&run(true, &["training.local_batch_size=4", "validation.steps=1"]).path);
    let tokens: u64 = part.iter().filter(|row| row.set == "news").map(|row| row.tokens).sum();
    // The second of two batches of four windows: all 252 tokens except the first 4 × 32.
    assert_eq!(tokens, 252 - 128);
    assert!(part.iter().filter(|row| row.set == "news").count() < 7, "{part:?}");
}

#[test]
fn what_is_no_set_is_refused_before_there_is_a_folder() {
    let place = place();
    for (sets, says) in [
        ("{ news = \"none.txt\" }", "validation.sets.news: "),
        ("{ \"a b\" = \"texts/news.txt\" }", "validation.sets cannot have the name \"a b\""),
        ("{ news = 3 }", "validation.sets.news cannot be 3"),
        ("[\"texts/news.txt\"]", "validation.sets cannot be a list"),
    ] {
        place.xrun(&["tiny.toml", &format!("validation.sets={sets}")]).ended(2).says(&[says]);
    }
    assert_eq!(place.runs().len(), 0);
    let plan = place.xrun(&["plan", "tiny.toml"]).succeeds().stdout;
    assert!(plan.contains("held-out sets: code ") && plan.contains(", news "), "{plan}");
}
