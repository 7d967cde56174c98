//! `xrun runs` as a collection: filters, orders, CSV, the index, differences, tags and notes, and removal.

use crate::place::{Done, Place, Run, UNINTERRUPTED};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Makes runs of five recipes like a real one, without checkpoints and rows. Each started a second after the
/// one before, and has other figures, another learning rate, seed and hash.
fn fake_runs(results: &Path, count: usize) -> Vec<PathBuf> {
    let real = UNINTERRUPTED.run();
    let [environment, recipe, resolved] =
        ["env.json", "recipe.toml", "resolved.toml"].map(|file| real.text(file));
    let summary = real.json("summary.json");
    let mut runs = Vec::with_capacity(count);
    for at in 0..count {
        let hash = format!("{:08x}", 0x1000_0000 + at * 7919);
        let (minutes, seconds) = (at / 60, at % 60);
        let name = format!(
            "202611{:02}T{:02}{:02}{seconds:02}Z-{hash}",
            1 + minutes / 1440,
            minutes / 60 % 24,
            minutes % 60
        );
        let folder = results.join(format!("fake-{}", at % 5)).join(&name);
        fs::create_dir_all(&folder).unwrap();
        let mut summary = summary.clone();
        (summary["run"], summary["recipe"]) = (json!(name), json!(format!("fake-{}", at % 5)));
        summary["recipe_hash"] = json!(format!("{hash:0<64}"));
        summary["val_loss"]["final"]["loss"] = json!(1.0 + (at * 37 % count) as f64 / count as f64);
        summary["tok_s"] = json!(1e5 + at as f64);
        // Set the whole spread: on a disk so slow that a checkpoint is written beside every step, no step is
        // steady.
        let median = 1e5 + at as f64;
        summary["steady_state"]["tok_s"] =
            json!({"p10": median, "p25": median, "median": median, "p75": median, "p90": median, "iqr": 0.0});
        let rate = format!("lr = {}e-4\n", 1 + at % 20);
        let seed = format!("seed = {}\n", at % 100);
        let resolved = resolved.replace("lr = 0.003\n", &rate).replacen("seed = 3\n", &seed, 1);
        fs::write(folder.join("summary.json"), serde_json::to_vec_pretty(&summary).unwrap()).unwrap();
        fs::write(folder.join("env.json"), &environment).unwrap();
        fs::write(folder.join("recipe.toml"), &recipe).unwrap();
        fs::write(folder.join("resolved.toml"), resolved).unwrap();
        runs.push(folder);
    }
    runs
}

/// Waits, since files are indexed only two seconds after they were written.
fn settle() {
    std::thread::sleep(Duration::from_millis(2200));
}

impl Place {
    fn list(&self, arguments: &[&str]) -> Done {
        self.xrun(&[&["runs"], arguments].concat()).succeeds()
    }

    /// Returns the first column of the list, without its heading.
    fn names(&self, arguments: &[&str]) -> Vec<String> {
        let listed = self.list(arguments).stdout;
        listed.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }
}

/// Parses CSV into records by its header.
fn records(csv: &str) -> Vec<HashMap<String, String>> {
    csv::Reader::from_reader(csv.as_bytes()).deserialize().map(Result::unwrap).collect()
}

#[test]
fn runs_are_chosen_by_what_they_have() {
    let place = Place::new();
    let runs = fake_runs(&place.path().join("results"), 40);
    let hash =
        |at: usize| runs[at].file_name().unwrap().to_str().unwrap().split_once('-').unwrap().1.to_owned();
    assert_eq!(place.names(&[]).len(), 40);
    assert_eq!(place.names(&[])[0], hash(39), "the newest first");
    assert_eq!(place.names(&["fake-3"]).len(), 8);
    assert_eq!(place.names(&["recipe=fake-3", "val_loss<1.5"]).len(), 4);
    let loss = |at: usize| 1.0 + (at * 37 % 40) as f64 / 40.0;
    let mut expected: Vec<usize> = (0..40).filter(|at| loss(*at) < 1.2 && at % 5 == 2).collect();
    expected.sort_by(|a, b| loss(*a).total_cmp(&loss(*b)));
    let expected: Vec<String> = expected.into_iter().map(hash).collect();
    assert_eq!(place.names(&["val_loss<1.2", "fake-2", "--sort", "val_loss"]), expected);
    let reversed: Vec<String> = expected.iter().rev().cloned().collect();
    assert_eq!(place.names(&["val_loss<1.2", "fake-2", "--sort", "-val_loss"]), reversed);
    assert_eq!(place.names(&["optimizer.lr=3e-4"]).len(), 2);
    assert_eq!(place.names(&["optimizer.lr<=3e-4", "training.seed>=20", "status=ok"]).len(), 3);
    assert_eq!(place.names(&["--sort", "tok_s", "--best", "1"]), [hash(39)]);
    assert_eq!(place.names(&["--sort", "-tok-s", "--best", "1"]), [hash(0)]);
    assert_eq!(place.names(&["started<2026-11-01T00:00"]).len(), 0);
    let listed =
        place.list(&["--columns", "optimizer.lr,val_loss,status,engine.devices", "--best", "1"]).stdout;
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["RUN", "optimizer.lr", "val_loss", "status", "engine.devices"]);
    assert_eq!(lines[1][2..], ["1.0000", "ok", "unset"]);
    for (arguments, said) in [
        (&["val_los<1"][..], "did you mean val_loss?"),
        (&["--sort", "dim"], "did you mean model.dim?"),
        (&["--columns", "optimiser.lr"], "did you mean optimizer.lr?"),
        (&["status=okay"], "did you mean ok?"),
        (&["val_loss<low"], "is a number and `low` is not"),
        (&["fake-1", "fake-2"], "a run has one recipe"),
        (&["fake"], "no run of recipe `fake`"),
        (&["--csv", "diff", "a", "b"], "cannot precede a command"),
    ] {
        place.xrun(&[&["runs"], arguments].concat()).ended(2).says(&[said]);
    }
}

#[test]
fn runs_are_exported_as_csv() {
    let place = Place::new();
    let runs = fake_runs(&place.path().join("results"), 6);
    let note = "two lines\n\"quoted\", with \u{1b}[31mcolour";
    place.xrun(&["runs", "note", runs[2].to_str().unwrap(), note]).succeeds();
    let rows = records(&place.list(&["--csv", "--sort", "-started"]).stdout);
    assert_eq!(rows.len(), 6);
    let keys: Vec<&String> = rows[0].keys().filter(|name| name.contains('.')).collect();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for (at, row) in rows.iter().enumerate() {
        let number = |name: &str| row[name].parse::<f64>().unwrap();
        // The digits of the summary, which holds losses as f32.
        let loss = (1.0 + (at * 37 % 6) as f64 / 6.0) as f32;
        assert_eq!(row["val_loss"], loss.to_string());
        assert_eq!(number("training.seed"), at as f64);
        assert_eq!(number("optimizer.lr"), format!("{}e-4", 1 + at).parse::<f64>().unwrap());
        assert_eq!(row["path"], runs[at].strip_prefix(place.path()).unwrap().to_str().unwrap());
    }
    assert_eq!(
        (rows[2]["note"].as_str(), rows[1]["note"].as_str(), rows[1]["mfu_pct"].as_str()),
        (note, "", "")
    );
    assert_eq!(records(&place.list(&["--csv", "val_loss<0"]).stdout).len(), 0);
}

#[test]
fn the_index_is_a_cache_and_nothing_else() {
    let place = Place::new();
    let results = place.path().join("results");
    let runs = fake_runs(&results, 30);
    let index = results.join(".index/runs");
    let first = place.list(&["--csv"]).stdout;
    assert!(!index.exists(), "files that were written just now are read again");
    settle();
    assert_eq!(place.list(&["--csv"]).stdout, first);
    let written = fs::read(&index).unwrap();
    assert_eq!(place.list(&["--csv"]).stdout, first);
    assert_eq!(fs::read(&index).unwrap(), written, "nothing is written where nothing is new");
    assert_eq!(fs::read_to_string(results.join(".index/.gitignore")).unwrap(), "*\n");
    for damage in [&b""[..], b"garbage", &written[..written.len() / 2], &written[..written.len() - 1]] {
        fs::write(&index, damage).unwrap();
        assert_eq!(place.list(&["--csv"]).stdout, first);
        assert_eq!(fs::read(&index).unwrap(), written, "it is made again");
    }
    // Whatever the index says, a file that was written since is read.
    let summary = runs[4].join("summary.json");
    let text = fs::read_to_string(&summary).unwrap();
    let changed = text
        .replace("\"status\": \"ok\"", "\"status\": \"oom\"")
        .replace("\"reason\": null", "\"reason\":  \"x\"");
    let changed = changed.replacen("  \"x\"", "\"xy\"", 1);
    assert_eq!(changed.len(), text.len(), "the same size");
    let before = fs::metadata(&summary).unwrap().modified().unwrap();
    fs::write(&summary, &changed).unwrap();
    fs::File::options().append(true).open(&summary).unwrap().set_modified(before).unwrap();
    assert_eq!(place.names(&["status=oom"]).len(), 1, "the time of the last change tells");
    fs::write(&summary, "{").unwrap();
    place.list(&[]).says(&["summary.json:1: not a summary", "left out"]);
    assert_eq!(place.names(&[]).len(), 29);
    fs::remove_dir_all(&runs[5]).unwrap();
    assert_eq!(place.names(&[]).len(), 28);
    // Several processes at once.
    fs::remove_file(&index).unwrap();
    let many: Vec<_> = (0..6).map(|_| place.start(&["runs", "--csv"])).collect();
    let outputs: Vec<String> = many.into_iter().map(|process| process.ends().succeeds().stdout).collect();
    assert!(outputs.iter().all(|output| *output == outputs[0]) && outputs[0].lines().count() > 28);
    assert_eq!(place.names(&[]).len(), 28);
}

#[test]
fn two_runs_are_held_against_each_other() {
    let place = Place::new();
    let base = ["tiny.toml", "-q", "generation.samples=0"];
    for settings in [
        &["training.steps=8"][..],
        &["training.steps=8", "validation.interval=4"],
        &["training.steps=6", "--seed=4"],
    ] {
        place.xrun(&[&base, settings].concat()).succeeds();
    }
    let runs = place.runs();
    let diff = |a: &Run, b: &Run| -> Value {
        let done = place.xrun(&["runs", "diff", a.name(), b.name(), "--json"]).succeeds();
        serde_json::from_str(&done.stdout).unwrap()
    };
    let by_steps = |steps: u64, interval: &str| {
        let has =
            |run: &&Run| run.summary().steps_planned == steps && run.text("resolved.toml").contains(interval);
        runs.iter().find(has).unwrap()
    };
    let (a, b, c) = (by_steps(8, "interval = 6"), by_steps(8, "interval = 4"), by_steps(6, "seed = 4"));
    let found = diff(a, b);
    assert_eq!(found["keys"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found["keys"][0]["values"], json!(["6", "4"]));
    assert_eq!(found["environment"], json!([]));
    let curve = |found: &Value, column: &str| -> Value {
        let curves = found["curves"].as_array().unwrap();
        curves.iter().find(|curve| curve["column"] == column).unwrap().clone()
    };
    assert_eq!((&curve(&found, "loss")["first"], &found["common_steps"]), (&Value::Null, &json!(8)));
    // One run has an evaluation where the other has none.
    assert_eq!(curve(&found, "val_loss")["first"]["step"], 4);
    let found = diff(a, c);
    assert_eq!((&found["common_steps"], &found["lone_steps"]), (&json!(6), &json!([2, 0])));
    let first = &curve(&found, "loss")["first"];
    let loss = |run: &Run| -> f64 {
        run.text("metrics.csv")
            .lines()
            .nth(1)
            .unwrap()
            .split(',')
            .nth(2)
            .unwrap()
            .parse::<f32>()
            .unwrap()
            .into()
    };
    assert_eq!((&first["step"], &first["values"]), (&json!(1), &json!([loss(a), loss(c)])));
    let text = place.xrun(&["runs", "diff", a.name(), c.name()]).succeeds().stdout;
    for part in
        ["training.seed", "training.steps", "DIFFERS FROM STEP", "6 steps in both, 2 in A alone", "val_loss"]
    {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    // A flipped bit in the fourth row.
    let metrics = a.text("metrics.csv");
    let mut lines: Vec<String> = metrics.lines().map(str::to_owned).collect();
    let mut cells: Vec<String> = lines[4].split(',').map(str::to_owned).collect();
    cells[2] = f32::from_bits(cells[2].parse::<f32>().unwrap().to_bits() ^ 1).to_string();
    lines[4] = cells.join(",");
    fs::write(b.path.join("metrics.csv"), lines.join("\n") + "\n").unwrap();
    assert_eq!(curve(&diff(a, b), "loss")["first"]["step"], 4);
    let id = a.path.file_name().unwrap().to_str().unwrap();
    place.xrun(&["runs", "diff", a.name(), id]).ended(2).says(&["are the same run"]);
    place.xrun(&["runs", "diff", a.name(), "zebra"]).ended(2).says(&["no run `zebra`"]);
}

#[test]
fn tags_and_notes_lie_beside_the_runs() {
    let place = Place::new();
    let results = place.path().join("results");
    let runs = fake_runs(&results, 3);
    let name = |at: usize| runs[at].to_str().unwrap();
    let before: Vec<u8> = fs::read(runs[0].join("summary.json")).unwrap();
    let tagged = place.xrun(&["runs", "tag", name(0), "baseline", "lr/2"]).succeeds().stdout;
    assert!(tagged.ends_with(": baseline lr/2\n"), "{tagged}");
    place.xrun(&["runs", "tag", name(1), "baseline"]).succeeds();
    let note = "see \u{1b}]0;title\u{7} and \u{202e}left, \"quoted\" 'and' \\ back\nsecond line";
    place.xrun(&["runs", "note", name(0), note]).succeeds();
    assert_eq!(place.names(&["tag=baseline"]).len(), 2);
    assert_eq!(place.names(&["tag!=baseline"]).len(), 1);
    assert_eq!(place.names(&["tag=baseline", "tag=lr/2"]).len(), 1);
    let acts = |text: &str| text.contains(['\u{1b}', '\u{7}', '\u{202e}']);
    for shown in [
        place.list(&[]).stdout,
        place.list(&["--columns", "tag,note"]).stdout,
        place.xrun(&["runs", "note", name(0)]).succeeds().stdout,
        place.list(&["--json"]).stdout,
        fs::read_to_string(results.join("annotations.jsonl")).unwrap(),
    ] {
        assert!(!acts(&shown) && shown.contains("quoted"), "{shown}");
    }
    let listed = place.list(&[]).stdout;
    assert!(listed.lines().next().unwrap().contains(" TAGS ") && listed.lines().count() == 4, "{listed}");
    let json: Vec<Value> =
        place.list(&["--json"]).stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&json[2]["note"], &json[2]["tags"]), (&json!(note), &json!(["baseline", "lr/2"])));
    for word in ["two words", "a,b", "\u{1b}[31m"] {
        let done = place.xrun(&["runs", "tag", name(0), word]).ended(2).says(&["cannot be a tag"]);
        assert!(!acts(&done.stderr), "{}", done.stderr);
    }
    place.xrun(&["runs", "tag", "--remove", name(0), "baseline", "lr/2"]).succeeds();
    place.xrun(&["runs", "note", "--remove", name(0)]).succeeds();
    let left = place.list(&[]).stdout;
    assert!(left.contains(" TAGS ") && !left.contains(" NOTE ") && !left.contains("lr/2"), "{left}");
    assert_eq!(fs::read(runs[0].join("summary.json")).unwrap(), before, "nothing of the run is written");
    // A recipe with the name of a command.
    let [from, to] = ["fake-1", "tag"].map(|recipe| results.join(recipe));
    fs::rename(from, to).unwrap();
    assert_eq!(place.names(&["recipe=tag"]).len(), 1);
}

/// A tag does not keep a run from being kept, nor make a kept run look changed, and it stays when the run's
/// folder is gone.
#[test]
fn tags_stay_when_a_run_is_kept_and_removed() {
    let place = Place::killed_after(30);
    let run = place.run();
    let text = run.text("summary.json").replace("\"status\": \"running\"", "\"status\": \"ok\"");
    fs::write(run.path.join("summary.json"), text).unwrap();
    let id = run.path.strip_prefix(place.path().join("results")).unwrap().to_str().unwrap().to_owned();
    place.xrun(&["runs", "tag", &id, "baseline"]).succeeds();
    place.xrun(&["keep", &id]).succeeds();
    place.xrun(&["runs", "note", &format!("results/kept/{id}"), "of the page"]).succeeds();
    place.xrun(&["keep", &id]).succeeds().says(&["already kept, unchanged"]);
    let kept = ["--results", "results/kept", "--json"];
    let listed: Value = serde_json::from_str(&place.list(&kept).stdout).unwrap();
    assert_eq!((&listed["tags"], &listed["note"]), (&json!(["baseline"]), &json!("of the page")));
    assert!(!place.path().join("results/kept/.index").exists(), "kept runs share files, and are read");
    place.xrun(&["runs", "rm", &id]).ended(2).says(&["the kept copy", "--force removes it anyway"]);
    place.xrun(&["runs", "rm", &format!("results/kept/{id}"), "--force"]).ended(2).says(&["keep --prune"]);
    place.xrun(&["runs", "rm", "--force", &id]).succeeds();
    assert!(!run.path.exists());
    let listed: Value = serde_json::from_str(&place.list(&kept).stdout).unwrap();
    assert_eq!(listed["tags"], json!(["baseline"]));
}

#[test]
fn runs_are_removed_unless_something_names_them() {
    let place = Place::new();
    let results = place.path().join("results");
    let runs = fake_runs(&results, 12);
    let id = |at: usize| runs[at].strip_prefix(&results).unwrap().to_str().unwrap().to_owned();
    let record = |path: &str, text: String| place.write(&format!("results/{path}"), text.as_bytes());
    record("comparisons/fake-0/1/experiment.json", format!("{{\"runs\": [{{\"run\": \"{}\"}}]}}", id(0)));
    record("comparisons/fake-1/1/experiment.json", format!("{{\"pilot\": [{{\"run\": \"{}\"}}]}}", id(1)));
    record("sweeps/ledger/host-1-2.jsonl", format!("{{\"run\": \"{}\"}}\n", id(2)));
    place.write(
        "docs/page.md",
        format!("It is `{}`.\n", runs[3].file_name().unwrap().to_str().unwrap()).as_bytes(),
    );
    let mut fork: Value = serde_json::from_slice(&fs::read(runs[5].join("summary.json")).unwrap()).unwrap();
    fork["forked_from"] =
        json!({"run": runs[4].file_name().unwrap().to_str().unwrap(), "step": 3, "tokens_seen": 9});
    fs::write(runs[5].join("summary.json"), fork.to_string()).unwrap();
    for (at, said) in [
        (0, "comparisons/fake-0/1/experiment.json:1"),
        (1, "comparisons/fake-1/1/experiment.json:1"),
        (2, "host-1-2.jsonl:1"),
        (3, "the page docs/page.md:1"),
        (4, "a fork of it"),
    ] {
        // Of two runs, either both are removed or neither, even if nothing refers to one of them.
        place.xrun(&["runs", "rm", &id(6), &id(at)]).ended(2).says(&[said, "nothing was removed; --force"]);
        assert!(runs[at].is_dir() && runs[6].is_dir());
    }
    place.xrun(&["runs", "rm", &id(6), &id(6)]).succeeds().says(&["removed 1 run"]);
    // A fork may be removed together with the run that it comes from.
    place.xrun(&["runs", "rm", &id(4), &id(5)]).succeeds().says(&["removed 2 runs"]);
    place.xrun(&["runs", "rm", "--force", &id(0), &id(2)]).succeeds().says(&[
        "experiment.json",
        "host-1-2.jsonl",
        "removed 2 runs",
    ]);
    assert_eq!(place.names(&[]).len(), 7);
    for (name, said) in
        [("fake-1", "is a recipe; name one of its runs"), ("zebra", "no run `zebra`"), ("", "is empty")]
    {
        place.xrun(&["runs", "rm", name]).ended(2).says(&[said]);
    }
    place.xrun(&["runs", "rm", place.path().to_str().unwrap()]).ended(2);
    // A run that a process is using stays, even with --force.
    let running = ["tiny.toml", "-q", "generation.samples=0", "training.steps=100000"];
    let mut process = place.start(&running);
    assert!(process.until(|| !place.runs().is_empty()));
    let run = place.run();
    place.xrun(&["runs", "rm", "--force", run.name()]).ended(1).says(&["is in use by process"]);
    assert!(run.path.is_dir());
    process.signal("KILL");
    assert!(!process.until(|| false));
    place.xrun(&["runs", "rm", run.name()]).succeeds();
    assert!(!results.join("tiny").exists(), "the last run of a recipe takes its folder with it");
}

/// Times the list of 10,000 runs: `cargo test --release --test binary -- --ignored --nocapture ten_thousand`.
#[test]
#[ignore = "a measurement"]
fn ten_thousand_runs_are_listed() {
    let place = Place::new();
    fake_runs(&place.path().join("results"), 10_000);
    settle();
    for arguments in [
        &["--best", "5"][..],
        &["--best", "5"],
        &[],
        &["val_loss<1.2", "optimizer.lr=3e-4", "--sort", "val_loss"],
        &["--csv"],
        &["--json"],
    ] {
        let began = Instant::now();
        let lines = place.list(arguments).stdout.lines().count();
        println!("{arguments:?}: {lines} lines in {:.3} s", began.elapsed().as_secs_f64());
    }
}
