//! Corpora from outside: a plan refuses what a run refuses, data may move, and passes count what is trained
//! on.

use crate::place::{Done, Place};
use std::fs;
use xrun::results::rows::{MetricsRow, read};

/// The text of `error: …` on stderr, without the name of what was being done.
fn error(done: &Done) -> String {
    let at = done.stderr.rfind("error: ").map_or(0, |at| at + "error: ".len());
    done.stderr[at..].trim().to_owned()
}

fn lines(count: usize) -> String {
    (0..count)
        .map(|i| format!("{{\"text\": \"document {i} of the corpus says that the cat sat\"}}\n"))
        .collect()
}

/// Everything that keeps a run from starting keeps a plan and a sweep from being approved, with the same
/// words.
#[test]
fn a_plan_refuses_the_corpora_that_a_run_refuses() {
    let place = Place::new();
    let ids: Vec<u8> = (0..4000u16).flat_map(|i| (i % 250).to_le_bytes()).collect();
    let mut foreign = ids.clone();
    foreign[5000..5002].copy_from_slice(&60_000u16.to_le_bytes());
    let good = lines(100);
    place.write("good.jsonl", good.as_bytes());
    place.write("empty-folder/.hidden", b"");
    place.write("tables/a.csv", b"1,2\n");
    // What a kill of `xrun data` leaves, which has whole shards and everything else.
    place.write("text.txt", "some words. ".repeat(200).as_bytes());
    place.xrun(&["data", "--corpus", "text.txt", "--tokenizer", "byte", "--out", "interrupted"]).ended(0);
    let manifest = std::fs::read_to_string(place.path().join("interrupted/tokens.json")).unwrap();
    let unfinished = manifest.replace("\"is_complete\": true", "\"is_complete\": false");
    assert_ne!(unfinished, manifest);
    place.write("interrupted/tokens.json", unfinished.as_bytes());
    place.write("mixed/a.txt", good.replace('{', "(").as_bytes());
    place.write("mixed/b.txt", b"fine\nnot \xff fine");
    let late = format!("{}{{\"text\": 3}}\n", lines(30_000));
    let wide: Vec<u8> = (0..4000u32).flat_map(|i| (i % 250).to_le_bytes()).collect();
    let prompt = format!("generation.samples=1 generation.prompt={}", "a".repeat(200));
    // The corpus, further keys, and whether `xrun data` has the check: it knows no windows and no sets.
    let cases: &[(&str, Option<&[u8]>, &str, bool)] = &[
        ("missing.txt", None, "", true),
        ("empty-folder", None, "", true),
        ("interrupted", None, "", true),
        ("good.jsonl", None, "data.validation=interrupted", true),
        ("tables", None, "", true),
        ("mixed", None, "", true),
        ("empty.txt", Some(b""), "", true),
        ("blank.txt", Some(b" \n\t\n"), "", true),
        ("blank.jsonl", Some(b"{\"text\": \" \"}\n"), "", true),
        ("latin1.txt", Some(b"caf\xe9 caf\xe9 caf\xe9"), "", true),
        ("nul.txt", Some(b"some text \0 and more"), "", true),
        ("chat.jsonl", Some(b"{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n"), "", true),
        ("array.jsonl", Some(b"[\"id-7\"]\n[\"id-8\"]\n"), "", true),
        ("nan.jsonl", Some(b"{\"text\": \"a\", \"score\": NaN}\n"), "", true),
        ("late.jsonl", Some(late.as_bytes()), "", true),
        ("one.json", Some(b"[{\"text\": \"a\"}]"), "", true),
        ("table.csv", Some(b"id,text\n1,a\n"), "", true),
        ("fake.txt.gz", Some(b"not packed"), "", true),
        ("short.txt", Some(b"too short for a window of thirty-two"), "", false),
        ("held.txt", Some(&[b'a'; 300]), "", false),
        ("odd.bin", Some(&ids[..3999]), "", true),
        ("text.bin", Some(good.as_bytes()), "", true),
        ("foreign.bin", Some(&foreign), "", true),
        ("short.bin", Some(&ids[..40]), "", false),
        ("wide.bin", Some(&wide), "", true),
        ("good.jsonl", None, &prompt, false),
        ("good.jsonl", None, "data.validation=missing.txt", true),
        ("good.jsonl", None, "data.validation=chat.jsonl", true),
        ("good.jsonl", None, "data.validation=short.bin", false),
        ("good.jsonl", None, "validation.sets={news=\"chat.jsonl\"}", false),
        ("good.jsonl", None, "validation.sets={news=\"missing.txt\"}", false),
        ("good.jsonl", None, "data.tokenizer=missing.json", true),
    ];
    for (corpus, content, more, in_data) in cases {
        if let Some(content) = content {
            place.write(corpus, content);
        }
        let named = format!("data.corpus={corpus}");
        let mut keys = vec!["tiny.toml", &named, "metrics.plots=false"];
        keys.extend((!more.starts_with("data.tokenizer")).then_some("data.tokenizer=byte"));
        keys.extend(more.split_whitespace());
        let at = format!("{corpus} {more}");
        let refused = |command: &[&str]| {
            let done = place.xrun(command);
            assert_eq!(done.code, Some(2), "{at}: {command:?}\n{}\n{}", done.stdout, done.stderr);
            error(&done)
        };
        let said = refused(&keys);
        assert_eq!(refused(&[&["plan"], &keys[..]].concat()), said, "{at}");
        let dry = place.xrun(&[&["sweep"], &keys[..], &["training.seed=1,2", "--dry-run"]].concat());
        let first = said.lines().next().unwrap();
        assert!(
            format!("{}{}", dry.stdout, dry.stderr).contains(first),
            "{at}: {first}\n{}{}",
            dry.stdout,
            dry.stderr
        );
        if !in_data {
            continue;
        }
        let option = |key: &str| more.strip_prefix(key).map(str::to_owned);
        let tokenizer = option("data.tokenizer=").unwrap_or_else(|| "byte".to_owned());
        let mut command = vec!["data", "--corpus", corpus, "--tokenizer", &tokenizer, "--out", "shards"];
        let validation = option("data.validation=");
        command.extend(validation.iter().flat_map(|value| ["--validation", value.as_str()]));
        // A recipe has absolute paths, the command those that it was given.
        let relative = said.replace(&format!("{}/", place.path().display()), "");
        assert_eq!(refused(&command), relative, "{at}");
        assert!(!place.path().join("shards/tokens_train_000000.bin").exists(), "{at}");
    }
    assert!(place.runs().is_empty());
}

/// Two texts that differ only behind the last window train differently, and the plan counts what is reached.
#[test]
fn the_tail_of_a_short_text_is_trained_on_in_the_second_pass() {
    let place = Place::new();
    let text = |tail: &str| format!("{}{}", "the cat sat on the mat. ".repeat(3), tail.repeat(9));
    place.write("a.txt", text("a dog. ").as_bytes());
    place.write("b.txt", text("b fog! ").as_bytes());
    place.write(
        "v.txt",
        "the cat sat on the mat, and the dog on the cat, again and again.".repeat(2).as_bytes(),
    );
    let run = |corpus: &str, steps: &str| {
        let corpus = format!("data.corpus={corpus}.txt");
        let steps = format!("training.steps={steps}");
        let keys = [
            "tiny.toml",
            &corpus,
            "data.tokenizer=byte",
            "data.validation=v.txt",
            "training.seq_len=72",
            "training.local_batch_size=1",
            "metrics.plots=false",
            "model.dropout=0.0",
            &steps,
        ];
        let plan = place.xrun(&[&["plan"], &keys[..]].concat()).succeeds();
        let done = place.xrun(&keys).succeeds();
        let newest = place.runs().into_iter().max_by_key(|run| run.path.clone()).unwrap();
        let rows: Vec<MetricsRow> = read(&newest.path.join("metrics.csv")).unwrap();
        fs::remove_dir_all(place.path().join("results")).unwrap();
        (rows.iter().map(|row| row.loss).collect::<Vec<_>>(), plan, done)
    };
    let ((a, plan, _), (b, ..)) = (run("a", "4"), run("b", "4"));
    assert_eq!(a[0], b[0], "the first pass reads the beginning");
    assert_ne!(a[1], b[1], "the second pass reads the end");
    assert!(plan.stdout.contains("4.00 passes over 73 tokens"), "{}", plan.stdout);
    assert!(plan.stdout.contains("of 137 tokens, each pass leaves out 64"), "{}", plan.stdout);
    let (_, plan, done) = run("a", "1");
    for said in [&plan.stderr, &done.stderr] {
        assert!(said.contains("the last 64 of 137 tokens fill no window"), "{said}");
    }
}

/// A run knows its data by content: it resumes where the data lies now, and only with the same.
#[test]
fn a_run_resumes_with_data_that_has_moved() {
    let place = Place::new();
    place.write("old/data/text.txt", lines(300).replace("{\"text\": \"", "").replace("\"}", "").as_bytes());
    place.write("old/data/held.txt", "the cat sat on the mat. ".repeat(40).as_bytes());
    place.write("old/data/news.txt", "the dog sat on the log. ".repeat(40).as_bytes());
    let results = ["--results", "old/results"];
    let recipe = [
        "tiny.toml",
        "data.corpus=old/data/text.txt",
        "data.validation=old/data/held.txt",
        "validation.sets={news=\"old/data/news.txt\"}",
        "data.tokenizer=byte",
    ];
    place.xrun(&[&recipe[..], &results, &["--until", "10"]].concat()).succeeds();
    // The whole project moves: the data is found beside the run.
    fs::rename(place.path().join("old"), place.path().join("new")).unwrap();
    let done = place.xrun(&["resume", "--results", "new/results", "--until", "20"]).succeeds();
    done.says(&["new/data/text.txt is used", "moved: data.corpus = ", "resuming from step 10"]);
    // The data alone moves out of reach: the message names the key, and other content is refused.
    fs::rename(place.path().join("new/data"), place.path().join("elsewhere")).unwrap();
    place.xrun(&["resume", "--results", "new/results"]).ended(2).says(&["add data.corpus=PATH"]);
    let named = ["data.validation=elsewhere/held.txt", "validation.sets={news=\"elsewhere/news.txt\"}"];
    let with =
        |corpus: &str| place.xrun(&[&["resume", "--results", "new/results", corpus][..], &named].concat());
    with("data.corpus=elsewhere/held.txt").ended(2).says(&["the corpus has hash"]);
    with("data.corpus=elsewhere/text.txt").succeeds().says(&["resuming from step 20"]);
    // An automatic resume finds the run too, and the recipe's hash does not know the folder.
    let again = [
        "tiny.toml",
        "data.corpus=elsewhere/text.txt",
        "data.validation=elsewhere/held.txt",
        "validation.sets={news=\"elsewhere/news.txt\"}",
        "data.tokenizer=byte",
        "--results",
        "auto",
        "--until",
        "10",
    ];
    place.xrun(&again).succeeds();
    fs::rename(place.path().join("elsewhere"), place.path().join("there")).unwrap();
    let auto: Vec<String> = again[..9].iter().map(|word| word.replace("elsewhere", "there")).collect();
    let mut auto: Vec<&str> = auto.iter().map(String::as_str).collect();
    auto.truncate(7);
    auto.push("checkpoint.resume=auto");
    place.xrun(&auto).succeeds().says(&["resuming from step 10"]);
}

/// Finished cells stay finished when the results, the recipe or the corpus move.
#[test]
fn a_sweep_runs_nothing_again_when_its_files_move() {
    let place = Place::new();
    place.write("data/text.txt", lines(300).as_bytes());
    fs::rename(place.path().join("data/text.txt"), place.path().join("data/text.jsonl")).unwrap();
    let sweep = |corpus: &str, results: &str| {
        let corpus = format!("data.corpus={corpus}");
        place.xrun(&[
            "sweep",
            "tiny.toml",
            &corpus,
            "data.tokenizer=byte",
            "training.steps=2",
            "optimizer.lr=1e-3,2e-3",
            "--results",
            results,
        ])
    };
    sweep("data/text.jsonl", "results").succeeds();
    let runs = |results: &str| fs::read_dir(place.path().join(results).join("tiny")).unwrap().count();
    assert_eq!(runs("results"), 2);
    fs::rename(place.path().join("results"), place.path().join("moved-results")).unwrap();
    fs::rename(place.path().join("data"), place.path().join("moved-data")).unwrap();
    fs::rename(place.path().join("moved-data/text.jsonl"), place.path().join("moved-data/renamed.jsonl"))
        .unwrap();
    sweep("moved-data/renamed.jsonl", "moved-results").succeeds();
    assert_eq!(runs("moved-results"), 2, "a finished cell ran again");
    // Other content is another cell, wherever it lies.
    place.write("moved-data/renamed.jsonl", lines(301).as_bytes());
    sweep("moved-data/renamed.jsonl", "moved-results").succeeds();
    assert_eq!(runs("moved-results"), 4);
}

/// A shell expands `~` only where a word begins, so xrun does it in every key and option that is a path.
#[test]
fn a_tilde_is_the_home_folder_in_every_path() {
    let place = Place::new();
    place.write("home/text.txt", "the cat sat on the mat. ".repeat(100).as_bytes());
    place.write("home/base.toml", fs::read_to_string(place.path().join("tiny.toml")).unwrap().as_bytes());
    place.write(
        "above.toml",
        b"extends = \"~/base.toml\"\ndata.corpus = \"~/text.txt\"\ndata.tokenizer = \"byte\"\n",
    );
    let home = place.path().join("home");
    let xrun = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_xrun"));
        command.env_clear().env("HOME", &home).current_dir(place.path()).args(arguments);
        // Another home has another cache, in which the speed of this machine is not known; every other test
        // uses this one.
        let cache = std::env::home_dir().map(|own| own.join(".cache/xrun"));
        command.envs(cache.map(|cache| ("XRUN_CACHE", cache)));
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let text = "data.corpus=~/text.txt";
    for arguments in [
        &["plan", "tiny.toml", text, "data.tokenizer=byte"][..],
        &["plan", "tiny.toml", text, "data.tokenizer=byte", "data.validation=~/text.txt"],
        &["plan", "tiny.toml", text, "data.tokenizer=byte", "validation.sets={a=\"~/text.txt\"}"],
        &["plan", "above.toml"],
        &["plan", "~/base.toml"],
        &[
            "sweep",
            "tiny.toml",
            "data.corpus=~/text.txt",
            "data.tokenizer=byte",
            "training.seed=1,2",
            "--dry-run",
        ],
        &["data", "--corpus=~/text.txt", "--tokenizer=byte", "--out=~/shards"],
        &["plan", "tiny.toml", "data.corpus=~/shards", "data.tokenizer=~/shards/tokenizer.json"],
        &["tiny.toml", text, "data.tokenizer=byte", "training.steps=1", "--results=~/results"],
    ] {
        let (code, said) = xrun(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
    }
    assert!(home.join("shards/tokens_train_000000.bin").is_file() && home.join("results/tiny").is_dir());
    assert!(!place.path().join("~").exists(), "a folder called ~");
    let (code, said) = xrun(&["plan", "tiny.toml", "model.init_from=~/model"]);
    assert!(code == Some(2) && said.contains(home.join("model").to_str().unwrap()), "{said}");
    let (_, said) = xrun(&["plan", "tiny.toml", "data.corpus=~bob/text.txt", "data.tokenizer=byte"]);
    assert!(said.contains("write the folder out"), "{said}");
}
