//! Corpora from file to batch, and `xrun data`, from outside.

use assert_cmd::Command;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use xrun::data::stories::{self, Split};
use xrun::data::{
    self, Dataset, Loader, LoaderSpec, Ramp, Shuffle, Spec, Stream, Validation, ValidationBatches,
};
use xrun::error::Result;

fn all(stream: &Stream) -> Vec<u32> {
    stream.tokens(0..stream.len()).unwrap()
}

/// Opens a corpus without the tokens that the user's cache may have.
fn open(spec: &Spec, seq_len: usize) -> Result<Dataset> {
    data::open(spec, seq_len, None, None)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(dir: &TempDir, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Sixty documents of different lengths, two of them equal, as one text with separators.
fn separated() -> (Vec<String>, String) {
    let mut documents: Vec<String> =
        (0..60).map(|i| format!("Document {i} says:{}", " the cat sat.".repeat(i % 7 + 1))).collect();
    documents[41] = documents[13].clone();
    let text = documents.join("\n<|endoftext|>\n");
    (documents, text)
}

fn separated_spec(path: &str, tokenizer: &str) -> Spec {
    Spec {
        document_separator: Some("<|endoftext|>".into()),
        validation: Validation::Fraction(0.1),
        ..Spec::new(path, tokenizer)
    }
}

/// The documents of a stream as text.
fn documents_of(data: &Dataset, stream: &Stream) -> Vec<String> {
    let end = data.tokenizer.end_token();
    let tokens = all(stream);
    assert_eq!((tokens[0], tokens[tokens.len() - 1]), (end, end));
    let parts = tokens[1..tokens.len() - 1].split(|&t| t == end);
    parts.map(|p| data.tokenizer.decode(p).unwrap()).collect()
}

#[test]
fn documents_are_split_whole_and_none_is_lost() {
    let dir = folder();
    let (documents, text) = separated();
    let path = write(&dir, "a.txt", text);
    for tokenizer in ["byte", "gpt2", "stories"] {
        let data = open(&separated_spec(&path, tokenizer), 16).unwrap();
        let (train, held) =
            (documents_of(&data, &data.train()), documents_of(&data, &data.validation.tokens));
        let mut together = [train.clone(), held.clone()].concat();
        let mut expected = documents.clone();
        together.sort();
        expected.sort();
        assert_eq!(together, expected);
        assert!(held.iter().all(|d| !train.contains(d)), "a document is on both sides");
        let share =
            data.validation.tokens.len() as f64 / (data.train().len() + data.validation.tokens.len()) as f64;
        assert!((0.05..0.15).contains(&share), "{share}");
        assert_eq!((data.warnings.len(), data.floor), (usize::from(tokenizer == "stories"), None));
    }
}

#[test]
fn the_seed_chooses_what_is_held_out() {
    let dir = folder();
    let path = write(&dir, "a.txt", separated().1);
    let held =
        |seed| all(&open(&Spec { seed, ..separated_spec(&path, "byte") }, 16).unwrap().validation.tokens);
    assert_eq!(held(1), held(1));
    assert_ne!(held(1), held(2));
}

#[test]
fn one_document_is_split_at_its_tail() {
    let dir = folder();
    let text = "To be, or not to be, that is the question.\n".repeat(50);
    let path = write(&dir, "a.txt", &text);
    let data = open(&Spec::new(&path, "byte"), 16).unwrap();
    let whole: Vec<u32> = [256].into_iter().chain(text.bytes().map(u32::from)).chain([256]).collect();
    let (train, held) = (all(&data.train()), all(&data.validation.tokens));
    assert_eq!([&train[..], &held[1..]].concat(), whole);
    assert_eq!(held[0], train[train.len() - 1], "the first held-out token is context");
    assert_eq!(held.len() - 1, whole.len() / 20);
}

#[test]
fn a_literal_end_token_stays_text_and_is_pointed_out() {
    let dir = folder();
    let (_, text) = separated();
    let path = write(&dir, "a.txt", &text);
    let data = open(&Spec::new(&path, "gpt2"), 16).unwrap();
    assert!(data.warnings[0].contains("document_separator"), "{:?}", data.warnings);
    let inside = all(&data.train());
    assert!(!inside[1..].contains(&data.tokenizer.end_token()));
}

#[test]
fn folders_jsonl_and_a_held_out_path() {
    let dir = folder();
    let lines: Vec<String> = (0..30).map(|i| format!("{{\"text\": \"line {i} \\n of text\"}}")).collect();
    let json = write(&dir, "a.jsonl", lines.join("\n"));
    let held = write(&dir, "held.txt", "held out text, some of it");
    let spec = Spec { validation: Validation::at(held), ..Spec::new(&json, "byte") };
    let data = open(&spec, 8).unwrap();
    assert_eq!(documents_of(&data, &data.train())[29], "line 29 \n of text");
    assert_eq!(documents_of(&data, &data.validation.tokens), ["held out text, some of it"]);

    let sub = folder();
    for i in 0..30 {
        write(&sub, &format!("{i:02}.md"), format!("file {i} of a folder"));
    }
    let data = open(&Spec::new(sub.path().to_str().unwrap(), "byte"), 8).unwrap();
    let train = documents_of(&data, &data.train());
    let number = |d: &String| d.split(' ').nth(1).and_then(|n| n.parse::<u32>().ok());
    assert!(train.is_sorted_by_key(number) && train.len() > 24 && train.len() < 30, "{train:?}");
}

#[test]
fn stories_come_with_their_floor() {
    let spec =
        Spec { train_tokens: 20_000, validation_tokens: 4_000, seed: 9, ..Spec::new("stories", "stories") };
    let data = open(&spec, 64).unwrap();
    let held = documents_of(&data, &data.validation.tokens);
    let nats: f64 = held.iter().map(|s| -stories::grammar().parse_story(s).unwrap().ln_p).sum();
    let floor = data.floor.unwrap();
    assert!((floor - nats / (data.validation.tokens.len() - 1) as f64).abs() < 1e-12);
    assert!(documents_of(&data, &data.train()).iter().all(|s| stories::grammar().parse_story(s).is_some()));

    let facts = data::facts(&spec, 16, None, None).unwrap();
    assert_eq!(facts.floor, data.floor);
    assert_eq!(facts.validation_tokens, data.validation.tokens.len());
    assert!(data.train().len().abs_diff(facts.train_tokens) < 150 && !facts.exact);
}

#[test]
fn random_tokens_know_their_floor_and_are_exact() {
    let spec = Spec { train_tokens: 5_000, validation_tokens: 500, ..Spec::new("random", "gpt2") };
    let data = open(&spec, 64).unwrap();
    assert_eq!(data.floor, Some((50_257f64).ln()));
    let facts = data::facts(&spec, 16, None, None).unwrap();
    assert_eq!(
        (facts.train_tokens, facts.validation_tokens),
        (data.train().len(), data.validation.tokens.len())
    );
    assert!(facts.exact);
}

#[test]
fn estimates_are_near_the_truth() {
    let dir = folder();
    let text: String = (0..6000)
        .map(|i| stories::story(1, Split::Train, i))
        .fold(String::new(), |t, s| t + &stories::grammar().text(&s.words) + "\n");
    let path = write(&dir, "a.txt", &text);
    let spec = Spec::new(&path, "gpt2");
    let (facts, data) = (data::facts(&spec, 64, None, None).unwrap(), open(&spec, 64).unwrap());
    let ratio = facts.train_tokens as f64 / data.train().len() as f64;
    assert!((0.97..1.03).contains(&ratio) && !facts.exact, "{ratio}");
}

#[test]
fn a_split_shorter_than_a_window_says_the_numbers() {
    let dir = folder();
    let path = write(&dir, "a.txt", "x".repeat(100));
    let error = open(&Spec::new(&path, "byte"), 64).unwrap_err();
    for says in ["held-out split has 6 tokens", "seq_len 64", "takes 65"] {
        assert!(error.message().contains(says), "{error}");
    }
    assert_eq!(error.kind().exit_code(), 2);
}

#[test]
fn a_folder_is_searched_for_the_endings_that_are_named() {
    let dir = folder();
    let path = dir.path().to_str().unwrap().to_owned();
    let of = |endings: &[&str]| {
        let extensions = endings.iter().map(|&ending| ending.to_owned()).collect();
        open(&Spec { extensions, ..Spec::new(&path, "byte") }, 8)
    };
    write(&dir, "a.py", "x = 1\n".repeat(50));
    let error = of(&[".txt", ".md"]).unwrap_err();
    for says in ["no .txt, .md or .bin files", "data.extensions=[\".py\"]"] {
        assert!(error.message().contains(says), "{error}");
    }
    write(&dir, "b.rs", "let x = 1;\n".repeat(50));
    write(&dir, "c.txt", "text\n".repeat(50));
    let tokens = |endings: &[&str]| {
        let data = of(endings).unwrap();
        data.train().len() + data.validation.tokens.len()
    };
    let (py, both, text) = (tokens(&[".py"]), tokens(&[".py", ".rs"]), tokens(&[".txt"]));
    assert!(py > 300 && both > py + 550 && text > 250 && text < py, "{py} {both} {text}");
}

#[test]
fn wrong_corpora_are_usage_errors() {
    let dir = folder();
    let text = write(&dir, "a.txt", "text ".repeat(100));
    let broken = write(&dir, "b.bin", [1, 2, 3]);
    let empty = folder();
    let only_held = folder();
    write(&only_held, "x_val_000.bin", [1, 0]);
    let fraction = |f| Spec { validation: Validation::Fraction(f), ..Spec::new(&text, "byte") };
    let cases = [
        (Spec::new("no/such/corpus", "byte"), "no such file or folder"),
        (Spec::new(&text, "no/such/tokenizer"), "no such file"),
        (Spec::new(&broken, "byte"), "b.bin"),
        (Spec::new(empty.path().to_str().unwrap(), "byte"), "no .txt"),
        (Spec::new(only_held.path().to_str().unwrap(), "byte"), "_train_"),
        (fraction(1.5), "between 0 and 1"),
        (fraction(f64::NAN), "between 0 and 1"),
        (Spec { train_tokens: usize::MAX, ..Spec::new("stories", "byte") }, "data.train_tokens"),
    ];
    for (spec, says) in cases {
        let error = open(&spec, 8).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
        assert_eq!(error.kind().exit_code(), 2, "{error}");
    }
}

#[test]
fn nanogpt_files_are_read_and_checked_against_the_vocabulary() {
    let dir = folder();
    let file = |n: u16| (0..n).flat_map(|i| (i % 250).to_le_bytes()).collect::<Vec<u8>>();
    write(&dir, "train.bin", file(1000));
    write(&dir, "val.bin", file(100));
    let spec = Spec::new(dir.path().to_str().unwrap(), "byte");
    let data = open(&spec, 16).unwrap();
    assert_eq!((data.train().len(), data.validation.tokens.len()), (1000, 100));
    let facts = data::facts(&spec, 16, None, None).unwrap();
    assert_eq!((facts.train_tokens, facts.validation_tokens, facts.exact), (1000, 100, true));
    drop(data);

    let mut bad = file(1000);
    bad[900..902].copy_from_slice(&257u16.to_le_bytes());
    write(&dir, "train.bin", bad);
    let error = open(&spec, 16).unwrap_err();
    let says = format!("token 257 at position 450 of {}", dir.path().join("train.bin").display());
    assert!(error.message().contains(&says), "{error}");
}

#[test]
fn a_held_out_text_takes_memory_beside_shards_on_disk() {
    let dir = folder();
    write(&dir, "train.bin", (0..1000u16).flat_map(|i| (i % 250).to_le_bytes()).collect::<Vec<u8>>());
    write(&dir, "held.txt", "text ".repeat(100));
    let spec = Spec {
        validation: Validation::at(dir.path().join("held.txt")),
        ..Spec::new(dir.path().join("train.bin").to_str().unwrap(), "byte")
    };
    let (facts, data) = (data::facts(&spec, 16, None, None).unwrap(), open(&spec, 16).unwrap());
    assert_eq!((facts.memory_bytes, data.memory_bytes()), (4 * 502, 4 * 502));
}

/// A loader's spec for one rank of eight sequences of 16 tokens.
const LOADER: LoaderSpec = LoaderSpec {
    seq_len: 16,
    local_batch_size: 8,
    accumulation: 1,
    ramp: Ramp::NONE,
    world_size: 1,
    rank: 0,
    cross_documents: true,
    shuffle: Shuffle::All,
    seed: 0,
    mixture: Vec::new(),
    start_step: 0,
};

#[test]
fn token_files_that_change_end_the_loader_with_their_name() {
    let file = |n: u16, from: u16| (0..n).flat_map(|i| (from + i % 200).to_le_bytes()).collect::<Vec<u8>>();
    for changed in [file(1000, 50), file(1000, 300), file(10, 0), Vec::new()] {
        let dir = folder();
        let path = write(&dir, "train.bin", file(1000, 0));
        write(&dir, "val.bin", file(100, 0));
        let spec = Spec::new(dir.path().to_str().unwrap(), "byte");
        let data = Arc::new(open(&spec, 16).unwrap());
        data.check_unchanged().unwrap();
        let mut loader = Loader::new(data.clone(), LOADER).unwrap();
        loader.next().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, changed).unwrap();
        // What was read ahead before the change is of the corpus.
        let error = (0..20).find_map(|_| loader.next().err()).expect("the change is noticed");
        assert!(error.message().contains(&path) && error.message().contains("changed"), "{error}");
        assert!(data.check_unchanged().unwrap_err().message().contains(&path));
        let mut held = ValidationBatches::new(&data, &data.validation, LOADER, 0).unwrap();
        assert!(held.all(|batch| batch.is_ok()), "the held-out file is as it was");
    }
}

/// More files than a process may map or open at once.
#[test]
fn a_folder_of_seventy_thousand_files_is_read() {
    const FILES: usize = 70_000;
    let dir = folder();
    for i in 0..FILES {
        if i % 1000 == 0 {
            fs::create_dir(dir.path().join(format!("{:02}", i / 1000))).unwrap();
        }
        write(&dir, &format!("{:02}/{:03}.txt", i / 1000, i % 1000), format!("{i:05}"));
    }
    let data = open(&Spec::new(dir.path().to_str().unwrap(), "byte"), 16).unwrap();
    let mut texts =
        [documents_of(&data, &data.train()), documents_of(&data, &data.validation.tokens)].concat();
    texts.sort();
    assert!(texts.into_iter().eq((0..FILES).map(|i| format!("{i:05}"))));
}

/// Text is read in blocks of 4 MiB, and cut where its tokenizer allows: neither shows in the tokens.
#[test]
fn blocks_of_a_large_text_do_not_show() {
    let dir = folder();
    let story = |i: usize| format!("In the year {i} a döner cost 5 €.{}", "\n".repeat(i % 3));
    let documents: Vec<String> = (0..150_000).map(story).collect();
    let path = write(&dir, "one.txt", documents.concat());
    let data = open(&Spec::new(&path, "byte"), 16).unwrap();
    let read = [&all(&data.train())[..], &all(&data.validation.tokens)[1..]].concat();
    let whole =
        [256].into_iter().chain(documents.concat().into_bytes().into_iter().map(u32::from)).chain([256]);
    assert!(read.len() > 5 << 20 && read.into_iter().eq(whole));

    for separator in ["<|endoftext|>", "\n\n€€\n"] {
        let path = write(&dir, "many.txt", documents.join(separator));
        let spec = Spec { document_separator: Some(separator.to_owned()), ..Spec::new(&path, "byte") };
        let data = open(&spec, 16).unwrap();
        let mut texts =
            [documents_of(&data, &data.train()), documents_of(&data, &data.validation.tokens)].concat();
        texts.sort();
        let mut expected: Vec<String> = documents.iter().map(|d| d.trim_matches('\n').to_owned()).collect();
        expected.sort();
        assert!(texts == expected, "{separator:?}");
    }

    let lines: Vec<String> = documents.iter().map(|d| serde_json::json!({"text": d}).to_string()).collect();
    let path = write(&dir, "many.jsonl", lines.join("\n"));
    let data = open(&Spec::new(&path, "byte"), 16).unwrap();
    let mut texts =
        [documents_of(&data, &data.train()), documents_of(&data, &data.validation.tokens)].concat();
    let mut expected = documents;
    texts.sort();
    expected.sort();
    assert!(texts == expected);
}

#[test]
fn tokens_that_do_not_fit_are_refused_before_they_are_made() {
    let dir = folder();
    let path = write(&dir, "a.txt", "some text ".repeat(100));
    let held = Spec { validation: Validation::at(path.clone()), ..Spec::new(&path, "byte") };
    let many = 1 << 32;
    for spec in [
        Spec { train_tokens: many, ..Spec::new("random", "byte") },
        Spec { train_tokens: many, ..Spec::new("stories", "stories") },
        Spec { validation_tokens: many, ..Spec::new("random", "byte") },
        Spec::new(&path, "byte"),
        held,
    ] {
        let error = open(&Spec { memory_bytes: Some(3999), ..spec.clone() }, 16).unwrap_err();
        assert!(error.message().contains("xrun data"), "{error}");
        assert_eq!(error.kind().exit_code(), 4, "{error}");
    }
    assert_eq!(
        open(&Spec { memory_bytes: Some(4100), ..Spec::new(&path, "byte") }, 16).unwrap().memory_bytes(),
        4012
    );
    let out = dir.path().join("shards");
    let on_disk = through_shards("stories", &["--train-tokens", "3000"], &out);
    assert_eq!(on_disk.memory_bytes(), 0);
}

fn xrun(args: &[&str]) -> std::process::Output {
    Command::cargo_bin("xrun").unwrap().args(args).output().unwrap()
}

/// Writes shards with `xrun data` and opens them again, with the tokenizer beside them.
fn through_shards(corpus: &str, extra: &[&str], out: &Path) -> Dataset {
    let out = out.to_str().unwrap();
    let args = [&["data", "--corpus", corpus, "--out", out, "--shard-tokens", "300"], extra].concat();
    let output = xrun(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    open(&Spec::new(out, &format!("{out}/tokenizer.json")), 16).unwrap()
}

#[test]
fn shards_written_by_the_command_read_back_equal() {
    let dir = folder();
    let (_, text) = separated();
    let many = write(&dir, "many.txt", &text);
    let lines: String = (0..80).map(|i| format!("All the world's a stage, says line {i}. ")).collect();
    let one = write(&dir, "one.txt", lines);
    let generated = ["--train-tokens", "3000", "--validation-tokens", "400"];
    let separator = ["--separator", "<|endoftext|>", "--validation", "0.1"];
    let small = Spec { train_tokens: 3000, validation_tokens: 400, ..Spec::new("stories", "stories") };
    let random = Spec { corpus: "random".into(), tokenizer: "gpt2".into(), ..small.clone() };
    let cases: [(&str, &str, &[&str], Spec); 4] = [
        (&many, "gpt2", &separator, separated_spec(&many, "gpt2")),
        (&one, "byte", &[], Spec::new(&one, "byte")),
        ("stories", "stories", &generated, small),
        ("random", "gpt2", &generated, random),
    ];
    for (i, (corpus, tokenizer, extra, spec)) in cases.into_iter().enumerate() {
        let out = dir.path().join(format!("out{i}"));
        let shards = through_shards(corpus, &[&["--tokenizer", tokenizer], extra].concat(), &out);
        let direct = open(&spec, 16).unwrap();
        assert_eq!(all(&shards.train()), all(&direct.train()), "{corpus}");
        assert_eq!(all(&shards.validation.tokens), all(&direct.validation.tokens), "{corpus}");
        assert_eq!(shards.hash, direct.hash, "the hash is of the tokens, not of the files");
        assert!(shards.warnings.is_empty(), "{:?}", shards.warnings);
        for other in ["byte", "gpt2"] {
            match open(&Spec::new(out.to_str().unwrap(), other), 16) {
                Ok(data) => assert!(tokenizer == other && data.warnings.is_empty(), "{corpus}"),
                Err(error) => assert!(
                    error.message().contains("name the tokenizer that made these tokens")
                        || error.message().contains("token shards in"),
                    "{error}"
                ),
            }
        }
    }
}

#[test]
fn the_command_prints_statistics_and_never_overwrites() {
    let dir = folder();
    let (documents, text) = separated();
    let path = write(&dir, "many.txt", text);
    let out = dir.path().join("out");
    let args = ["data", "--corpus", &path, "--tokenizer", "byte", "--out", out.to_str().unwrap()];
    let json = xrun(&[&args[..], &["--separator", "<|endoftext|>", "--json"]].concat());
    let printed: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let count = |key: &str| printed[key].as_u64().unwrap();
    assert_eq!(count("train_documents") + count("validation_documents"), 60);
    assert_eq!(count("longest_document_tokens"), documents.iter().map(String::len).max().unwrap() as u64);
    assert_eq!(count("vocab_size"), 257);
    let bytes: usize = documents.iter().map(String::len).sum();
    let tokens = count("train_tokens") + count("validation_tokens");
    assert_eq!(tokens as usize, bytes + documents.len() + 2);
    assert!((printed["bytes_per_token"].as_f64().unwrap() - bytes as f64 / tokens as f64).abs() < 1e-12);

    let again = xrun(&args);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("already holds"));
    assert!(again.stdout.is_empty());

    let plain = dir.path().join("plain");
    let shown = xrun(&["data", "--corpus", &path, "--tokenizer", "byte", "--out", plain.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&shown.stderr).contains("document_separator"));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("bytes per token"));
}

#[test]
fn a_real_text_trains_and_evaluates_every_token_once() {
    let Ok(path) = std::env::var("XRUN_TEST_TEXT") else {
        eprintln!("XRUN_TEST_TEXT names no text file: batches of a real text not checked");
        return;
    };
    let data = Arc::new(open(&Spec::new(&path, "gpt2"), 128).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    let tokens = [&all(&data.train())[1..], &all(&data.validation.tokens)[1..]].concat();
    assert_eq!(data.tokenizer.decode(&tokens[..tokens.len() - 1]).unwrap(), text);
    let spec = LoaderSpec {
        seq_len: 128,
        local_batch_size: 8,
        accumulation: 1,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: false,
        shuffle: Shuffle::All,
        seed: 0,
        mixture: Vec::new(),
        start_step: 0,
    };
    let counted: usize = ValidationBatches::new(&data, &data.validation, spec.clone(), 0)
        .unwrap()
        .map(|b| b.unwrap().target_count())
        .sum();
    assert_eq!(counted, data.validation.tokens.len() - 1);
    let batch = Loader::new(data.clone(), spec).unwrap().next().unwrap();
    assert_eq!((batch.tokens.len(), batch.spans.len()), (8 * 128, 2 * 8 * 128));
}

/// The bytes of text that the predicted tokens of a set stand for, batch by batch, and the tokens.
fn bytes_and_tokens(data: &Dataset, set: &data::HeldOut, limit: usize) -> (Option<u64>, usize) {
    let spec = LoaderSpec {
        seq_len: 16,
        local_batch_size: 2,
        accumulation: 1,
        ramp: Ramp::NONE,
        world_size: 1,
        rank: 0,
        cross_documents: true,
        shuffle: Shuffle::All,
        seed: 0,
        mixture: Vec::new(),
        start_step: 0,
    };
    let batches = ValidationBatches::new(data, set, spec, limit).unwrap();
    let whole = set.text.whole_bytes().filter(|_| batches.takes_all);
    let batches: Vec<_> = batches.map(Result::unwrap).collect();
    let bytes: Option<u64> = batches.iter().map(|batch| set.text.target_bytes(&batch.targets)).sum();
    (bytes.or(whole), batches.iter().map(data::Batch::target_count).sum())
}

#[test]
fn held_out_sets_are_opened_like_held_out_corpora_and_count_the_bytes_of_their_text() {
    let dir = folder();
    let (documents, text) = separated();
    let path = write(&dir, "many.txt", &text);
    let lines: String =
        documents.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n").collect();
    let json_lines = write(&dir, "many.jsonl", lines);
    let shards = dir.path().join("shards");
    let vocab = 50_257;
    for tokenizer in ["gpt2", "byte"] {
        let spec = |sets: &[(&str, &str)]| Spec {
            sets: sets.iter().map(|(name, path)| ((*name).to_owned(), (*path).into())).collect(),
            ..separated_spec(&path, tokenizer)
        };
        let data = open(&spec(&[("text", &path), ("lines", &json_lines)]), 16).unwrap();
        let names: Vec<&str> = data.held_out().map(|set| set.name.as_str()).collect();
        assert_eq!(names, ["", "lines", "text"]);
        let of_documents: usize = documents.iter().map(String::len).sum();
        for set in &data.sets {
            let (bytes, tokens) = bytes_and_tokens(&data, set, 0);
            assert_eq!((bytes, tokens), (Some(of_documents as u64), set.tokens.len() - 1), "{}", set.name);
        }
        assert_eq!(data.sets[0].hash, data.sets[1].hash, "the same documents");
        let held: usize = documents_of(&data, &data.validation.tokens).iter().map(String::len).sum();
        assert_eq!(bytes_and_tokens(&data, &data.validation, 0).0, Some(held as u64));
        // Of a part, those of the part: the text of its targets, without separators.
        let (part, tokens) = bytes_and_tokens(&data, &data.sets[1], 3);
        assert_eq!(tokens, 3 * 2 * 16);
        assert!(part.is_some_and(|part| part > 0 && part < of_documents as u64), "{part:?}");
        // As shards, which are held-out ones by their name, the same.
        fs::remove_dir_all(&shards).ok();
        fs::create_dir(&shards).unwrap();
        let mut writer = data::ShardWriter::new(&shards, "news_val", vocab, 300);
        writer.push(&all(&data.sets[1].tokens)).unwrap();
        writer.finish().unwrap();
        let carried = open(&spec(&[("text", shards.to_str().unwrap())]), 16).unwrap();
        assert_eq!(carried.sets[0].hash, data.sets[1].hash);
        assert_eq!(bytes_and_tokens(&carried, &carried.sets[0], 0).0, Some(of_documents as u64));
        assert_eq!(carried.hash, data.hash, "what is trained on is the same");
        let facts = data::facts(&spec(&[("text", shards.to_str().unwrap())]), 16, None, None).unwrap();
        assert_eq!(facts.set_tokens["text"], data.sets[1].tokens.len());
    }
    let missing = Spec {
        sets: [("a".to_owned(), dir.path().join("none.txt").into())].into(),
        ..separated_spec(&path, "byte")
    };
    for error in [open(&missing, 16).unwrap_err(), data::facts(&missing, 16, None, None).unwrap_err()] {
        let said = error.message();
        assert!(said.starts_with("validation.sets.a: ") && said.contains("no such file"), "{said}");
    }
}

/// A tokenizer whose tokens may stand for other bytes from place to place: the text of a whole set is known,
/// that of a part, of a tail or of token shards is not.
#[test]
fn bytes_are_blank_where_they_are_not_known() {
    let dir = folder();
    let (documents, text) = separated();
    let path = write(&dir, "many.txt", &text);
    let mut json: serde_json::Value =
        serde_json::from_str(xrun::data::Tokenizer::open("byte").unwrap().to_json()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "NFC"});
    let tokenizer = write(&dir, "tokenizer.json", json.to_string());
    let spec =
        Spec { sets: [("text".to_owned(), path.clone().into())].into(), ..separated_spec(&path, &tokenizer) };
    let data = open(&spec, 16).unwrap();
    let whole: usize = documents.iter().map(String::len).sum();
    assert_eq!(bytes_and_tokens(&data, &data.sets[0], 0).0, Some(whole as u64));
    assert_eq!(bytes_and_tokens(&data, &data.sets[0], 3).0, None);
    let held: usize = documents_of(&data, &data.validation.tokens).iter().map(String::len).sum();
    assert_eq!(bytes_and_tokens(&data, &data.validation, 0).0, Some(held as u64));
    let one = write(&dir, "one.txt", "All the world's a stage. ".repeat(80));
    let tail = open(&Spec::new(&one, &tokenizer), 16).unwrap();
    assert_eq!(bytes_and_tokens(&tail, &tail.validation, 0).0, None);
    let tail = open(&Spec::new(&one, "byte"), 16).unwrap();
    // 2,000 bytes and two end tokens, of which a twentieth is held out; the end token is no text.
    assert_eq!(bytes_and_tokens(&tail, &tail.validation, 0), (Some(99), 100));
    let generated = Spec { train_tokens: 2000, validation_tokens: 400, ..Spec::new("random", "byte") };
    let random = open(&generated, 16).unwrap();
    assert_eq!(bytes_and_tokens(&random, &random.validation, 0).0, None, "it is no text");
    for tokenizer in ["stories", tokenizer.as_str()] {
        let spec = Spec { corpus: "stories".into(), tokenizer: tokenizer.to_owned(), ..generated.clone() };
        let stories = open(&spec, 16).unwrap();
        let text: usize = documents_of(&stories, &stories.validation.tokens).iter().map(String::len).sum();
        assert_eq!(bytes_and_tokens(&stories, &stories.validation, 0).0, Some(text as u64), "{tokenizer}");
    }
}

/// Packs a file with the program gzip, and returns the path of the packed file.
fn gzip(path: &str) -> String {
    let done = std::process::Command::new("gzip").args(["-kf", path]).status().unwrap();
    assert!(done.success());
    format!("{path}.gz")
}

/// Packs a file with zstd, in two frames.
fn zstd(path: &str) -> String {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let content = fs::read(path).unwrap();
    let frames = content.chunks(content.len().div_ceil(2).max(1));
    let packed: Vec<u8> = frames.flat_map(|part| compress_to_vec(part, CompressionLevel::Fastest)).collect();
    fs::write(format!("{path}.zst"), packed).unwrap();
    format!("{path}.zst")
}

/// What a corpus is, whatever its files are called.
fn content_of(data: &Dataset) -> (Vec<u32>, Vec<u32>, String) {
    (all(&data.train()), all(&data.validation.tokens), data.hash.clone())
}

#[test]
fn a_packed_corpus_has_the_tokens_and_the_hash_of_the_unpacked_one() {
    let dir = folder();
    let (documents, text) = separated();
    let lines: Vec<String> = documents.iter().map(|d| serde_json::json!({"text": d}).to_string()).collect();
    let parted = write(&dir, "a.txt", &text);
    let whole = write(&dir, "whole.txt", format!("\u{feff}{}", text.repeat(300)));
    let json = write(&dir, "a.jsonl", lines.join("\n"));
    for spec in [separated_spec(&parted, "byte"), Spec::new(&whole, "gpt2"), separated_spec(&json, "stories")]
    {
        let packed = Spec { corpus: gzip(&spec.corpus.to_string()).as_str().into(), ..spec.clone() };
        let (plain, unpacked) = (open(&spec, 16).unwrap(), open(&packed, 16).unwrap());
        assert_eq!(content_of(&unpacked), content_of(&plain), "{spec:?}");
        let other = Spec { corpus: zstd(&spec.corpus.to_string()).as_str().into(), ..spec.clone() };
        assert_eq!(content_of(&open(&other, 16).unwrap()), content_of(&plain), "{other:?}");
        let held = Spec { validation: Validation::at(gzip(&parted)), ..packed.clone() };
        assert!(open(&held, 16).unwrap().validation.tokens.len() > 100);

        let estimate = |spec: &Spec| data::facts(spec, 16, None, None).unwrap().train_tokens as f64;
        let ratio = estimate(&packed) / estimate(&spec);
        assert!((0.9..1.1).contains(&ratio), "{spec:?}: {ratio}");
        let warnings = |spec: &Spec| data::facts(spec, 16, None, None).unwrap().warnings.len();
        assert_eq!(warnings(&packed), warnings(&spec));
    }
}

#[test]
fn a_folder_is_searched_for_packed_files_by_their_whole_ending() {
    let (packed, plain) = (folder(), folder());
    for i in 0..200 {
        let text = format!("Document {i} says:{}", " the cat sat.".repeat(i % 7 + 1));
        write(&plain, &format!("{i:03}.txt"), &text);
        gzip(&write(&packed, &format!("{i:03}.txt"), &text));
        fs::remove_file(packed.path().join(format!("{i:03}.txt"))).unwrap();
    }
    let spec = |dir: &TempDir, ending: &str| Spec {
        extensions: vec![ending.to_owned()],
        ..Spec::new(dir.path().to_str().unwrap(), "byte")
    };
    let expected = content_of(&open(&spec(&plain, ".txt"), 16).unwrap());
    assert_eq!(content_of(&open(&spec(&packed, ".txt.gz"), 16).unwrap()), expected);
    assert_eq!(content_of(&open(&spec(&packed, ".gz"), 16).unwrap()), expected);
    assert!(open(&spec(&packed, ".txt"), 16).unwrap_err().message().contains("no .txt"));
}

/// Errors within a packed file say what they say of an unpacked one, with the name of the packed file.
#[test]
fn wrong_packed_files_are_usage_errors() {
    let dir = folder();
    let cases: [(&str, &[u8], &str); 4] = [
        ("a.txt", b"fine\nnot \xff fine", "a.txt.gz:2: not UTF-8 (byte 9"),
        ("b.jsonl", b"{\"text\":\"a\"}\n{\"text\": 3}\n", "b.jsonl.gz:2: \"text\" is a number"),
        ("c.txt", b"", "c.txt.gz: it holds no text"),
        ("d.bin", &[1, 0, 2, 0, 200], "d.bin.gz holds packed token ids"),
    ];
    for (name, content, says) in cases {
        let path = gzip(&write(&dir, name, content));
        let error = open(&Spec::new(&path, "byte"), 8).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
        assert_eq!(error.kind().exit_code(), 2);
    }
    let hidden = dir.path().join("e.txt");
    fs::rename(gzip(&write(&dir, "d.txt", "text ".repeat(100))), &hidden).unwrap();
    let error = open(&Spec::new(hidden.to_str().unwrap(), "byte"), 8).unwrap_err();
    assert!(error.message().contains("rename it to e.txt.gz"), "{error}");
}

/// The command streams a packed text to shards.
#[test]
fn shards_of_a_packed_text_are_those_of_the_text() {
    let dir = folder();
    let path = write(&dir, "one.txt", "All the world's a stage. ".repeat(80));
    let out = |name: &str| dir.path().join(name);
    let plain = through_shards(&path, &[], &out("plain"));
    let packed = through_shards(&gzip(&path), &[], &out("packed"));
    assert_eq!(content_of(&packed), content_of(&plain));
    let bomb = gzip(&write(&dir, "bomb.txt", vec![b' '; 80 << 20]));
    let shards = out("bomb");
    let refused = xrun(&["data", "--corpus", &bomb, "--out", shards.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("bomb.txt.gz becomes") && stderr.contains("gzip -d"), "{stderr}");
}
