//! Checks of whole corpora.

use super::*;
use crate::data::{self, MixtureSource, TokenCache, Validation};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns words that are the same for the same numbers.
fn words(from: usize, count: usize) -> String {
    (from..from + count).map(|at| format!("word{at}")).collect::<Vec<_>>().join(" ")
}

/// A folder with a training text, a held-out text and a task file.
struct Corpus {
    folder: tempfile::TempDir,
}

/// The held-out documents: `words(1000 * n, 100)`.
const HELD_OUT: usize = 6;

impl Corpus {
    fn new(training: &[String]) -> Self {
        let corpus = Self { folder: tempfile::tempdir().unwrap() };
        corpus.write("train.jsonl", training);
        let held_out: Vec<String> = (0..HELD_OUT).map(|n| words(1000 * n, 100)).collect();
        corpus.write("held.jsonl", &held_out);
        // The text of tasks is in another field than that of the corpus.
        let task = serde_json::json!({"question": "What is the capital of the small country of word1?"});
        std::fs::write(corpus.path("tasks.jsonl"), task.to_string()).unwrap();
        corpus
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, texts: &[String]) {
        let lines: String =
            texts.iter().map(|text| serde_json::json!({"text": text}).to_string() + "\n").collect();
        std::fs::write(self.path(name), lines).unwrap();
    }

    fn spec(&self) -> Spec {
        Spec {
            validation: Validation::at(self.path("held.jsonl")),
            ..Spec::new(self.path("train.jsonl").to_str().unwrap(), "byte")
        }
    }

    fn check(&self, spec: &Spec) -> Report {
        let tasks = self.path("tasks.jsonl");
        check(
            spec,
            &Options {
                against: vec![&tasks],
                field: Some("question"),
                duplicates: true,
                ..Options::default()
            },
            &|_| {},
        )
        .unwrap()
    }

    fn spans(&self, report: &Report) -> Vec<Value> {
        report.write_spans(&self.path("spans.jsonl")).unwrap();
        let text = std::fs::read_to_string(self.path("spans.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Training documents: clean ones, a copy of held-out document 1, part of 2, 3 with every twelfth word
/// another, in which no 13 words are intact and which no rule finds, a task, and a clean document twice.
fn training() -> Vec<String> {
    let reworded: Vec<String> = words(3000, 100)
        .split(' ')
        .enumerate()
        .map(|(at, word)| if at % 12 == 11 { "x" } else { word }.to_owned())
        .collect();
    vec![
        words(100_000, 80),
        words(200_000, 30) + "\n" + &words(1000, 100).to_uppercase() + "! " + &words(210_000, 30),
        words(300_000, 60) + " " + &words(2040, 30),
        reworded.join(" "),
        "Q: what is the capital of the small country of WORD1".to_owned(),
        words(100_000, 80) + " again",
        words(400_000, 80),
    ]
}

#[test]
fn leaks_of_every_kind_are_found_and_listed() {
    let corpus = Corpus::new(&training());
    let report = corpus.check(&corpus.spec());
    let counts: Vec<_> = report
        .held_out
        .iter()
        .map(|set| (set.documents, set.copied, set.overlapping, set.near_duplicates, set.common))
        .collect();
    let tasks = corpus.path("tasks.jsonl").display().to_string();
    assert_eq!(report.held_out.iter().map(|set| &set.set).collect::<Vec<_>>(), [&tasks, "data.validation"]);
    assert_eq!(counts, [(1, 1, 0, 0, 0), (6, 1, 1, 0, 0)]);
    let TrainingReport { documents, with_leaks, near_duplicates, .. } = report.training;
    assert_eq!((documents, with_leaks, near_duplicates), (7, 3, Some(1)));
    let rows = corpus.spans(&report);
    let kinds: Vec<_> =
        rows.iter().map(|row| (row["kind"].as_str().unwrap(), row["line"].as_u64().unwrap())).collect();
    assert_eq!(kinds, [("copy", 2), ("overlap", 3), ("copy", 5), ("training_duplicate", 6)]);
    let texts = training();
    let span = |row: &Value, line: usize| {
        let [start, end] = [0, 1].map(|at| row["spans"][0][at].as_u64().unwrap() as usize);
        texts[line - 1][start..end].to_lowercase()
    };
    assert_eq!(span(&rows[0], 2), words(1000, 100));
    assert_eq!(span(&rows[1], 3), words(2040, 30));
    assert_eq!((&rows[0]["held_out"], &rows[0]["held_out_line"]), (&"data.validation".into(), &2.into()));
    assert_eq!((rows[1]["overlap"].as_f64(), rows[3]["earlier_line"].as_u64()), (Some(0.3), Some(1)));
}

#[test]
fn listed_texts_are_looked_for_as_sets_of_their_own() {
    let corpus = Corpus::new(&training());
    let file: Arc<Path> = Arc::from(Path::new("items.jsonl"));
    let list = |name: &str, texts: &[String]| {
        let text = |(at, text): (usize, &String)| ListedText {
            text: text.clone(),
            file: Arc::clone(&file),
            line: at + 1,
        };
        TextList { name: name.to_owned(), texts: texts.iter().enumerate().map(text).collect() }
    };
    // Clean, copied, reworded too often to be found, and overlapping.
    let first = list("task a", &[words(500_000, 40), words(1000, 60), words(3000, 100), words(300_020, 100)]);
    let second = list("task b", &[words(600_000, 40)]);
    let options = Options { lists: vec![second.clone(), first], ..Options::default() };
    let report = check(&corpus.spec(), &options, &|_| {}).unwrap();
    let found = |set| report.found(set).map(|found| found.into_iter().collect::<Vec<_>>());
    assert_eq!(found("task a"), Some(vec![1, 3]));
    assert_eq!(found("task b"), Some(Vec::new()));
    assert_eq!(found("task c"), None);
    let rows = corpus.spans(&report);
    let row = rows.iter().find(|row| row["held_out"] == "task a" && row["kind"] == "overlap").unwrap();
    assert_eq!((&row["held_out_file"], &row["held_out_line"]), (&"items.jsonl".into(), &4.into()));
    let options = Options { lists: vec![second.clone(), second], ..Options::default() };
    let twice = check(&corpus.spec(), &options, &|_| {}).unwrap_err().to_string();
    assert!(twice.contains("task b is looked for twice"), "{twice}");
}

/// A document may have the end of a held-out one before its beginning.
#[test]
fn passages_in_another_order_are_found() {
    let text = words(1050, 40) + " and then " + &words(1000, 40);
    let corpus = Corpus::new(std::slice::from_ref(&text));
    let rows = corpus.spans(&corpus.check(&corpus.spec()));
    let spans: Vec<&str> = (0..2)
        .map(|span| [0, 1].map(|at| rows[0]["spans"][span][at].as_u64().unwrap() as usize))
        .map(|[start, end]| &text[start..end])
        .collect();
    assert_eq!(spans, [words(1050, 40), words(1000, 40)]);
}

/// Text that one source of a mixture holds out is looked for in all of them, and files of either are named.
#[test]
fn sources_of_a_mixture_are_checked_against_each_other() {
    let corpus = Corpus::new(&training());
    let own: Vec<String> = (0..20).map(|n| words(500_000 + 1000 * n, 90)).collect();
    corpus.write("own.jsonl", &own);
    // A copy of every document, so that what the first source holds out is among them.
    corpus.write("copies.jsonl", &[own, vec![words(800_000, 50)]].concat());
    let mut spec = Spec { validation: Validation::Fraction(0.2), ..Spec::new("mixture", "byte") };
    for (name, file) in [("own", "own.jsonl"), ("copies", "copies.jsonl")] {
        spec.sources.insert(name.to_owned(), MixtureSource::at(corpus.path(file)));
    }
    let report = check(&spec, &Options::default(), &|_| {}).unwrap();
    let copied: Vec<_> = report.held_out.iter().map(|set| (set.set.as_str(), set.copied)).collect();
    // Equal documents of both are held out alike, but for those that only one's share has room for.
    let held_out: Vec<usize> = report.held_out.iter().map(|set| set.documents).collect();
    assert_eq!(held_out, [4, 4]);
    assert_eq!(
        copied.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        ["data.sources.copies", "data.sources.own"]
    );
    for row in corpus.spans(&report) {
        let [file, line] = [&row["file"], &row["line"]].map(ToString::to_string);
        assert!(file.contains("own.jsonl") || file.contains("copies.jsonl"), "{file}:{line}");
        assert_ne!(row["file"], row["held_out_file"], "within a source nothing leaks");
    }
    // With another choice of held-out documents in the first source alone, all of them leak.
    spec.sources.insert("own".to_owned(), MixtureSource::at(corpus.path("train.jsonl")));
    spec.validation = Validation::at(corpus.path("own.jsonl"));
    let report = check(&spec, &Options::default(), &|_| {}).unwrap();
    assert_eq!(report.held_out[0].copied, 20);
    assert_eq!(report.training.documents, 7 + 21);
    let lines: Vec<u64> = corpus.spans(&report).iter().map(|row| row["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, (1..=20).collect::<Vec<_>>(), "numbered within their file");
    // Held-out text and a list concern all sources together.
    let warned = |spec: &Spec, about: &str| {
        let planned = data::facts(spec, 8, None, None).unwrap().warnings;
        let opened = data::open(spec, 8, None, None).unwrap().warnings;
        [planned, opened].map(|all| all.iter().filter(|one| one.contains(about)).count())
    };
    assert_eq!(warned(&spec, "the held-out text is also in the training text"), [1, 1]);
    let list = corpus.path("drop.txt");
    report.write_drop_list(&list).unwrap();
    let kept = Spec { drop: Some(list), ..spec };
    assert_eq!(warned(&kept, "the held-out text is also in the training text"), [0, 0]);
    assert_eq!(warned(&kept, "not in the training text"), [0, 0], "each source lacks some of the list");
}

#[test]
fn results_do_not_depend_on_threads_or_on_the_order_of_files() {
    let corpus = Corpus::new(&training());
    let one = corpus.spans(&corpus.check(&corpus.spec()));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let other = pool.install(|| corpus.spans(&corpus.check(&corpus.spec())));
    assert_eq!(one, other);
    corpus.write("other.jsonl", &[words(5000, 40)]);
    let (a, b) = (corpus.path("other.jsonl"), corpus.path("held.jsonl"));
    let against = |files: [&PathBuf; 2]| {
        let against = files.map(PathBuf::as_path).to_vec();
        corpus.spans(&check(&corpus.spec(), &Options { against, ..Options::default() }, &|_| {}).unwrap())
    };
    assert_eq!(against([&a, &b]), against([&b, &a]));
}

/// The drop list leaves the leaks out of training, and nothing out of the held-out text.
#[test]
fn dropped_documents_are_not_trained_on() {
    let corpus = Corpus::new(&training());
    let list = corpus.path("drop.txt");
    assert_eq!(corpus.check(&corpus.spec()).write_drop_list(&list).unwrap(), 3);
    let cache = TokenCache::new(corpus.path("cache"), 1 << 30);
    let open = |spec: &Spec| data::open(spec, 8, None, Some(&cache)).unwrap();
    for validation in [Validation::at(corpus.path("held.jsonl")), Validation::Fraction(0.3)] {
        let all = Spec { validation, ..corpus.spec() };
        let kept = Spec { drop: Some(list.clone()), ..all.clone() };
        let (before, after) = (open(&all), open(&kept));
        assert_eq!(before.validation.hash, after.validation.hash);
        assert_ne!(before.hash, after.hash);
        assert!(after.train().len() < before.train().len());
        assert!(after.description.contains("of data.drop left out"), "{}", after.description);
        let counted = data::facts(&kept, 8, None, None).unwrap();
        assert_eq!((counted.train_tokens, counted.exact), (after.train().len(), true));
    }
    let kept = Spec { drop: Some(list.clone()), ..corpus.spec() };
    let again = corpus.check(&kept);
    assert_eq!((again.training.with_leaks, again.training.documents), (0, 4));
    // A list of another text does nothing, and says so.
    corpus.write("train.jsonl", &[words(100_000, 80), words(500_000, 80)]);
    let warnings = open(&kept).warnings;
    assert!(
        warnings.iter().any(|one| one.contains("3 documents of") && one.contains("not in the")),
        "{warnings:?}"
    );
    corpus.write("train.jsonl", &[words(1000, 100)]);
    corpus.check(&corpus.spec()).write_drop_list(&list).unwrap();
    let error = data::open(&kept, 8, None, None).unwrap_err();
    assert!(error.message().contains("nothing is left to train on"), "{error}");
    for (text, says) in [
        ("", ":1: the first line"),
        ("# xrun drop list 1: BLAKE3 of each document's text\nab\n", ":2: a line is 64"),
    ] {
        std::fs::write(&list, text).unwrap();
        let error = data::open(&kept, 8, None, None).unwrap_err();
        assert!(error.message().contains(says), "{error}");
    }
}

/// Cached tokens of a text are those of all its documents.
#[test]
fn a_drop_list_is_part_of_the_key_of_cached_tokens() {
    let large: Vec<String> = (0..60).map(|n| words(100_000 * (n + 1), 2000)).collect();
    let corpus = Corpus::new(&[large, training()].concat());
    let list = corpus.path("drop.txt");
    corpus.check(&corpus.spec()).write_drop_list(&list).unwrap();
    let cache = TokenCache::new(corpus.path("cache"), 1 << 30);
    let tokens = |spec: &Spec| data::open(spec, 8, None, Some(&cache)).unwrap().train().len();
    let kept = Spec { drop: Some(list.clone()), ..corpus.spec() };
    let [all, left] = [tokens(&corpus.spec()), tokens(&kept)];
    assert!(left < all);
    assert_eq!(cache.entries().unwrap().len(), 2, "with and without the list");
    assert_eq!([tokens(&corpus.spec()), tokens(&kept)], [all, left]);
    // A plan of long text does not find the listed documents in it.
    let planned = data::facts(&kept, 8, None, None).unwrap();
    let says = planned.warnings.iter().filter(|warning| warning.contains("in data.drop: the plan estimates"));
    assert_eq!((says.count(), planned.exact), (1, false));
    // Cached tokens do not lose the remark on listed text that is not there.
    let more = std::fs::read_to_string(&list).unwrap() + &blake3::hash(b"elsewhere").to_hex() + "\n";
    std::fs::write(&list, more).unwrap();
    for _ in 0..2 {
        let warnings = data::open(&kept, 8, None, Some(&cache)).unwrap().warnings;
        assert!(warnings.iter().any(|one| one.starts_with("data.drop: 1 document of")), "{warnings:?}");
    }
    std::fs::write(&list, "no list").unwrap();
    assert!(data::facts(&kept, 8, None, None).is_err(), "a run refuses it too");
}

/// The end of a single document is held out.
#[test]
fn a_single_document_is_divided() {
    let corpus = Corpus::new(&[]);
    let text = words(0, 1000) + " " + &words(400, 60) + " ";
    std::fs::write(corpus.path("book.txt"), &text).unwrap();
    let spec = Spec {
        validation: Validation::Fraction(62.0 / 1060.0),
        ..Spec::new(corpus.path("book.txt").to_str().unwrap(), "byte")
    };
    let report = corpus.check(&spec);
    assert!(report.warnings[0].contains("bytes are taken as held out"), "{:?}", report.warnings);
    let own = &report.held_out[1];
    assert_eq!((own.documents, own.copied, report.training.with_leaks), (1, 1, 1));
    let rows = corpus.spans(&report);
    let start = rows[0]["held_out_span"][0].as_u64().unwrap() as usize;
    assert!(text[start..].starts_with("word"), "{rows:?}");
}

#[test]
fn generated_text_and_tokens_are_refused() {
    let options = Options::default();
    let refused = |spec: &Spec| check(spec, &options, &|_| {}).unwrap_err().message().to_owned();
    assert!(refused(&Spec::new("stories", "stories")).contains("is generated"));
    let corpus = Corpus::new(&training());
    let shard = corpus.path("tokens_train_000000.bin");
    let mut writer = data::ShardWriter::new(corpus.folder.path(), "tokens_train", 257, 1000);
    writer.push(&[1; 100]).unwrap();
    writer.finish().unwrap();
    assert!(
        refused(&Spec { corpus: shard.to_str().unwrap().into(), ..corpus.spec() })
            .contains("holds token ids")
    );
}
