//! Every kind of content under every ending, as a file and in a folder, packed and not: it gives the
//! documents that it says, or is refused with its name. Nothing is read as something else.

use std::fs;
use std::path::Path;
use tempfile::TempDir;
use xrun::data::{self, CorpusLocation, Dataset, MissingField, MixtureSource, PathList, Spec, Validation};
use xrun::error::{ErrorKind, Result};
use xrun::policy::CorpusSource;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Holds {
    Lines,
    Text,
    /// A JSON array of the objects that are otherwise lines.
    Array,
    /// One JSON value over several lines.
    Value,
    Csv,
    Tokens,
    Utf16,
    /// What begins like a table and is none.
    Parquet,
    Table,
    Zip,
    Pdf,
    Zeros,
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    /// A document per JSON line.
    Documents,
    /// The bytes of the file as one document.
    Raw,
    /// The ids of a token file.
    Ids,
    Refused,
}

const CONTENTS: [Holds; 12] = [
    Holds::Lines,
    Holds::Text,
    Holds::Array,
    Holds::Value,
    Holds::Csv,
    Holds::Tokens,
    Holds::Utf16,
    Holds::Parquet,
    Holds::Table,
    Holds::Zip,
    Holds::Pdf,
    Holds::Zeros,
];

const ENDINGS: [&str; 16] = [
    "", ".jsonl", ".ndjson", ".json", ".txt", ".md", ".py", ".bin", ".csv", ".tsv", ".parquet", ".arrow",
    ".zip", ".xz", ".pdf", ".npy",
];

const DOCUMENTS: usize = 40;

fn document(i: usize) -> String {
    format!("Document {i} says: the cat sat on mat {i}.")
}

fn bytes_of(holds: Holds) -> Vec<u8> {
    let objects: Vec<String> =
        (0..DOCUMENTS).map(|i| serde_json::json!({"id": i, "text": document(i)}).to_string()).collect();
    let text: String = (0..DOCUMENTS).map(|i| document(i) + "\n").collect();
    let behind = |magic: &[u8]| [magic, &[0, 1, 2, 0], text.as_bytes()].concat();
    match holds {
        Holds::Lines => objects.join("\n").into_bytes(),
        Holds::Text => text.into_bytes(),
        Holds::Array => format!("[\n{}\n]", objects.join(",\n")).into_bytes(),
        Holds::Value => format!("{{\n  \"text\": {text:?}\n}}").into_bytes(),
        Holds::Csv => {
            (0..DOCUMENTS).map(|i| format!("{i},\"{}\"\n", document(i))).collect::<String>().into_bytes()
        }
        Holds::Tokens => (0..600u16).flat_map(|i| (i % 250).to_le_bytes()).collect(),
        Holds::Utf16 => {
            [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect()
        }
        Holds::Parquet => behind(b"PAR1"),
        Holds::Table => {
            include_bytes!("../../src/engine/data/source/parquet/fixtures/documents.parquet").to_vec()
        }
        Holds::Zip => behind(b"PK\x03\x04"),
        Holds::Pdf => behind(b"%PDF-1.7\n"),
        Holds::Zeros => [text.as_bytes(), &[0; 40]].concat(),
    }
}

fn expected(holds: Holds, ending: &str) -> Gives {
    let is_text = matches!(holds, Holds::Text | Holds::Value | Holds::Csv);
    match (ending, holds) {
        ("" | ".py" | ".jsonl" | ".ndjson" | ".json", Holds::Lines) => Gives::Documents,
        ("" | ".py" | ".txt" | ".md", _) if is_text => Gives::Raw,
        (".parquet", Holds::Table) => Gives::Documents,
        (".bin", Holds::Tokens) => Gives::Ids,
        _ => Gives::Refused,
    }
}

/// Opens the corpus at a path without a cache; small splits suffice.
fn open(path: &Path, ending: &str) -> Result<Dataset> {
    data::open(&spec(path, ending), 8, None, None)
}

fn spec(path: &Path, ending: &str) -> Spec {
    Spec {
        extensions: vec![ending.to_lowercase()],
        validation: Validation::Fraction(0.2),
        ..Spec::new(path.to_str().unwrap(), "byte")
    }
}

/// The documents of both splits together, in some order; a raw file is one that is split at its tail.
fn read(data: &Dataset, gives: Gives) -> Vec<String> {
    let tokens = |stream: &data::Stream| stream.tokens(0..stream.len()).unwrap();
    let (train, held) = (tokens(&data.train()), tokens(&data.validation.tokens));
    let tokens = if gives == Gives::Raw { [&train[..], &held[1..]].concat() } else { [train, held].concat() };
    let parts = tokens.split(|&t| t == data.tokenizer.end_token()).filter(|part| !part.is_empty());
    let mut texts: Vec<String> = parts.map(|part| data.tokenizer.decode(part).unwrap()).collect();
    texts.sort();
    texts
}

fn gzip(path: &Path) {
    assert!(std::process::Command::new("gzip").arg("-kf").arg(path).status().unwrap().success());
}

fn documents() -> Vec<String> {
    let mut all: Vec<String> = (0..DOCUMENTS).map(document).collect();
    all.sort();
    all
}

#[test]
fn every_content_under_every_name_is_what_it_says_or_refused() {
    for holds in CONTENTS {
        for ending in ENDINGS {
            for (upper, packed, in_folder) in (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0)) {
                if upper && ending.is_empty() {
                    continue;
                }
                let dir = TempDir::new().unwrap();
                let shown = if upper { ending.to_uppercase() } else { ending.to_owned() };
                let mut path = dir.path().join(format!("some{shown}"));
                fs::write(&path, bytes_of(holds)).unwrap();
                let mut listed = shown.clone();
                if packed {
                    gzip(&path);
                    fs::remove_file(&path).unwrap();
                    let suffix = if upper { ".GZ" } else { ".gz" };
                    let renamed = dir.path().join(format!("some{shown}{suffix}"));
                    fs::rename(dir.path().join(format!("some{shown}.gz")), &renamed).unwrap();
                    (path, listed) = (renamed, shown + suffix);
                }
                let gives = match expected(holds, ending) {
                    Gives::Ids if packed => Gives::Refused,
                    // Pages are packed by themselves.
                    Gives::Documents if packed && holds == Holds::Table => Gives::Refused,
                    gives => gives,
                };
                let at =
                    format!("{holds:?} in {} (folder: {in_folder})", path.file_name().unwrap().display());
                let opened = open(if in_folder { dir.path() } else { &path }, &listed);
                match (gives, opened) {
                    (Gives::Refused, Err(e)) => {
                        assert_eq!(e.kind(), ErrorKind::Usage, "{at}: {e}");
                        assert!(e.message().len() < 1200, "{at}: {e}");
                        // A folder of packed token files has no file that is read.
                        let named = e.message().contains(path.file_name().unwrap().to_str().unwrap());
                        assert!(named || in_folder && ending == ".bin", "{at}: {e}");
                    }
                    (Gives::Refused, Ok(data)) => panic!("{at} passed as {}", data.description),
                    (_, Err(e)) => panic!("{at} was refused: {e}"),
                    (Gives::Documents, Ok(data)) => assert_eq!(read(&data, gives), documents(), "{at}"),
                    (Gives::Raw, Ok(data)) => {
                        assert_eq!(read(&data, gives), [String::from_utf8(bytes_of(holds)).unwrap()], "{at}");
                    }
                    (Gives::Ids, Ok(data)) => {
                        let (train, held) = (&data.train(), &data.validation.tokens);
                        assert_eq!(train.len() + held.len() - 1, 600, "{at}");
                    }
                }
                // The plan refuses what a run refuses.
                let facts =
                    data::facts(&spec(if in_folder { dir.path() } else { &path }, &listed), 8, None, None);
                assert_eq!(facts.is_ok(), gives != Gives::Refused, "{at}: {facts:?}");
            }
        }
    }
}

/// A folder may mix formats; each file is read in its own.
#[test]
fn files_of_a_folder_have_formats_of_their_own() {
    let dir = TempDir::new().unwrap();
    let half = |range: std::ops::Range<usize>| -> Vec<String> {
        range.map(|i| serde_json::json!({"text": document(i)}).to_string()).collect()
    };
    fs::write(dir.path().join("a.jsonl"), half(0..10).join("\n")).unwrap();
    fs::write(dir.path().join("b.JSON"), half(10..20).join("\r\n")).unwrap();
    fs::write(dir.path().join("c"), half(20..30).join("\n")).unwrap();
    for i in 30..DOCUMENTS {
        fs::write(dir.path().join(format!("{i}.Txt")), document(i)).unwrap();
    }
    let extensions = [".jsonl", ".json", "", ".txt"].map(str::to_owned).to_vec();
    let data = data::open(&Spec { extensions, ..spec(dir.path(), "") }, 8, None, None).unwrap();
    assert_eq!(read(&data, Gives::Documents), documents());
    assert!(data.description.ends_with("40 documents in 13 files"), "{}", data.description);
    assert_eq!(data.warnings, Vec::<String>::new());
}

/// Returns the warnings of a run, which are those of its plan.
fn warnings_of(spec: &Spec) -> Vec<String> {
    let warnings = data::open(spec, 8, None, None).unwrap().warnings;
    assert_eq!(data::facts(spec, 8, None, None).unwrap().warnings, warnings, "the plan says it too");
    warnings
}

/// Writes a file of two-byte token ids.
fn write_ids(path: &Path, ids: impl IntoIterator<Item = u16>) {
    fs::write(path, ids.into_iter().flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
}

/// A held-out text that is trained on, in every form in which both may be given: as the same file, as a copy
/// in another form, as a part, as a further set, among shards.
#[test]
fn held_out_text_that_is_trained_on_is_pointed_out() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let text: String = (0..40).map(document).collect::<Vec<_>>().join(" ");
    let other: String = (100..140).map(|i| format!("A dog of {i} ran, {} it did not. ", i * i)).collect();
    let line = |text: &str| serde_json::json!({ "text": text }).to_string() + "\n";
    fs::write(at("a.txt"), &text).unwrap();
    fs::write(at("copy.jsonl"), line(&other) + &line(&text)).unwrap();
    fs::write(at("part.txt"), &text[300..600]).unwrap();
    fs::write(at("other.txt"), &other).unwrap();
    fs::create_dir_all(at("shards")).unwrap();
    let ids = |text: &str| text.bytes().map(u16::from).collect::<Vec<u16>>();
    write_ids(&at("a.bin"), ids(&text));
    write_ids(&at("shards/x_train_0.bin"), ids(&text));
    write_ids(&at("shards/x_val_0.bin"), ids(&text[300..600]));
    for (corpus, held_out, is_trained_on) in [
        ("a.txt", Some("a.txt"), true),
        ("a.txt", Some("copy.jsonl"), true),
        ("a.txt", Some("part.txt"), true),
        ("a.txt", Some("a.bin"), true),
        ("a.bin", Some("part.txt"), true),
        ("a.bin", Some("a.bin"), true),
        ("shards", None, true),
        ("a.txt", Some("other.txt"), false),
        ("a.bin", Some("other.txt"), false),
        ("a.txt", None, false),
    ] {
        let validation = held_out.map_or(Validation::Fraction(0.2), |held| Validation::at(at(held)));
        let with_sets = |sets| Spec { validation: validation.clone(), sets, ..spec(&at(corpus), "") };
        let said = |spec: &Spec, name: &str| {
            let start = format!("{name} is also in the training text: about ");
            warnings_of(spec).iter().filter(|warning| warning.starts_with(&start)).count()
        };
        let found = said(&with_sets([].into()), "the held-out text");
        assert_eq!(found, usize::from(is_trained_on), "{corpus} {held_out:?}");
        let Some(held_out) = held_out else { continue };
        let apart = Spec { sets: [("own".to_owned(), at(held_out).into())].into(), ..spec(&at(corpus), "") };
        assert_eq!(said(&apart, "the held-out set own"), usize::from(is_trained_on), "{corpus} {held_out}");
    }
}

/// Choices that content makes idle: every one on token shards, and the seed on one document.
#[test]
fn choices_without_effect_on_a_corpus_are_said() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let ids = || (0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u16);
    write_ids(&at("one.bin"), ids());
    fs::create_dir_all(at("split")).unwrap();
    write_ids(&at("split/a_train.bin"), ids());
    write_ids(&at("split/a_val.bin"), ids().map(|id| id / 2));
    fs::write(at("one.txt"), document(1).repeat(9)).unwrap();
    fs::write(at("many.jsonl"), bytes_of(Holds::Lines)).unwrap();
    let own = |corpus: &str| Spec::new(at(corpus).to_str().unwrap(), "byte");
    let seed = |corpus: &str| Spec { seed: 1, ..own(corpus) };
    let separator = |corpus: &str| Spec { document_separator: Some("x".to_owned()), ..own(corpus) };
    let extensions = |corpus: &str| Spec { extensions: vec![".rs".to_owned()], ..own(corpus) };
    let share = |corpus: &str| Spec { validation: Validation::Fraction(0.3), ..own(corpus) };
    for (spec, says) in [
        (own("one.bin"), None),
        (own("split"), None),
        (own("one.txt"), None),
        (seed("one.bin"), Some("data.seed has no effect on token shards")),
        (seed("split"), Some("data.seed has no effect on token shards")),
        (seed("one.txt"), Some("data.seed has no effect on a single document")),
        (seed("many.jsonl"), None),
        (separator("one.bin"), Some("data.document_separator has no effect on token shards")),
        (separator("split"), Some("data.document_separator has no effect on token shards")),
        (extensions("split"), Some("data.extensions has no effect on token shards")),
        (share("split"), Some("data.validation has no effect on token shards: a_val.bin is held out")),
        (share("one.bin"), None),
        (Spec { validation: Validation::at(at("one.bin")), ..own("split") }, None),
    ] {
        let warnings = warnings_of(&spec);
        let mut unused = warnings.iter().filter(|warning| warning.contains("has no effect on"));
        match says {
            Some(says) => {
                assert!(unused.next().is_some_and(|found| found.starts_with(says)), "{says}: {warnings:?}")
            }
            None => assert_eq!(unused.next(), None, "{spec:?}"),
        }
        assert_eq!(unused.next(), None, "{spec:?}");
    }
}

/// A folder of JSON lines or of tables is read without a setting if it has no text. One with both is refused
/// with the setting; one with text is read as before.
#[test]
fn a_folder_of_one_format_is_read() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("data")).unwrap();
    let own = Spec { extensions: data::TEXT_EXTENSIONS.map(str::to_owned).to_vec(), ..spec(dir.path(), "") };
    let opened = || data::open(&own, 8, None, None);
    let table = bytes_of(Holds::Table);
    fs::write(at("data/train-00000-of-00001.parquet"), &table).unwrap();
    fs::write(at("dataset_infos.json"), "{}").unwrap();
    assert_eq!(read(&opened().unwrap(), Gives::Documents), documents());
    let warnings = warnings_of(&own);
    assert!(
        matches!(&warnings[..], [one] if one.contains("1 file read, passed over: 1 .json file")),
        "{warnings:?}"
    );
    fs::write(at("a.jsonl"), bytes_of(Holds::Lines)).unwrap();
    let both = opened().unwrap_err();
    for part in ["1 .jsonl file", "1 .parquet file", "such as data.extensions=[\".jsonl\"]"] {
        assert!(both.message().contains(part), "{both}");
    }
    fs::remove_file(at("data/train-00000-of-00001.parquet")).unwrap();
    gzip(&at("a.jsonl"));
    let both = opened().unwrap();
    assert!(both.description.ends_with("80 documents in 2 files"), "{}", both.description);
    fs::remove_file(at("a.jsonl")).unwrap();
    assert_eq!(read(&opened().unwrap(), Gives::Documents), documents());
    fs::write(at("README.md"), document(0).repeat(9)).unwrap();
    let text = opened().unwrap();
    assert!(text.description.ends_with("1 document in 1 file"), "{}", text.description);
    assert!(
        text.warnings.iter().any(|warning| warning.contains("passed over: 1 .json")),
        "{:?}",
        text.warnings
    );
}

/// A pattern reads what it matches, whatever the endings, as training and as held-out text.
#[test]
fn a_pattern_names_files() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("data")).unwrap();
    for name in ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"] {
        fs::write(at(name), bytes_of(Holds::Table)).unwrap();
    }
    fs::write(at("data/validation-00000-of-00001.jsonl"), bytes_of(Holds::Lines)).unwrap();
    write_ids(&at("data/a.bin"), 0..200);
    let validation = Validation::at(at("data/validation-*"));
    let split = Spec { validation, ..spec(&at("data/train-*.parquet"), "") };
    let opened = data::open(&split, 8, None, None).unwrap();
    assert!(opened.description.ends_with("80 documents in 2 files"), "{}", opened.description);
    assert_eq!(opened.files.len(), 3);
    assert_eq!(opened.train().len(), 2 * opened.validation.tokens.len() - 1);
    assert_eq!(data::facts(&split, 8, None, None).unwrap().train_tokens, opened.train().len());
    assert!(data::is_there(&at("data/train-*")) && !data::is_there(&at("data/test-*")));
    for (pattern, says) in [
        ("data/test-*", "no file matches this pattern"),
        ("data/*", "token ids"),
        ("*", "matches the folder"),
    ] {
        let error = open(&at(pattern), "").unwrap_err();
        assert!(error.message().contains(says) && error.message().contains(pattern), "{pattern}: {error}");
    }
    assert!(open(&at("data/*.bin"), "").unwrap().description.ends_with("1 token file"));
}

/// A list is its paths, one after another; a split is the files that belong to it.
#[test]
fn lists_and_splits_choose_files() {
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("set/data")).unwrap();
    for (name, holds) in [
        ("set/data/train-00000-of-00002.parquet", Holds::Table),
        ("set/data/train-00001-of-00002.parquet", Holds::Table),
        ("set/data/test-00000-of-00001.jsonl", Holds::Lines),
        ("b.jsonl", Holds::Lines),
        ("a.jsonl", Holds::Lines),
    ] {
        fs::write(at(name), bytes_of(holds)).unwrap();
    }
    fs::write(at("set/README.md"), "# About").unwrap();
    let listed = |names: &[&str]| {
        let paths = PathList::new(names.iter().map(|name| at(name)).collect()).unwrap();
        Spec {
            corpus: CorpusSource::Paths(paths),
            validation: Validation::Fraction(0.2),
            ..Spec::new("", "byte")
        }
    };
    let opened = |spec: &Spec| data::open(spec, 8, None, None);
    let both = opened(&listed(&["b.jsonl", "a.jsonl"])).unwrap();
    assert!(both.description.ends_with("a.jsonl: 80 documents in 2 files"), "{}", both.description);
    let order: Vec<_> = both.files.iter().map(|file| file.path.clone()).collect();
    assert_eq!(order, [at("b.jsonl"), at("a.jsonl")], "in the order of the list");
    for (names, says) in [
        (&["a.jsonl", "*.jsonl"][..], "a.jsonl belongs to"),
        (&["set", "set/data/train-00000-of-00002.parquet", "set/data"], "only once"),
        (&["a.jsonl", "none.txt"], "none.txt: not a generated one"),
    ] {
        let spec = Spec { extensions: vec![".parquet".to_owned()], ..listed(names) };
        for error in [opened(&spec).unwrap_err(), data::facts(&spec, 8, None, None).unwrap_err()] {
            assert!(error.message().contains(says), "{names:?}: {error}");
        }
    }
    let split = |name: &str| Some(name.to_owned());
    let spec = Spec { split: split("train"), validation_split: split("test"), ..listed(&["set"]) };
    let train = opened(&spec).unwrap();
    assert!(
        train.description.ends_with("(split \"train\"): 80 documents in 2 files"),
        "{}",
        train.description
    );
    assert_eq!(train.train().len(), 2 * train.validation.tokens.len() - 1);
    assert_eq!(train.files.len(), 3);
    let planned = data::facts(&spec, 8, None, None).unwrap();
    assert_eq!((planned.train_tokens, planned.exact), (train.train().len(), true));
    // Each source of a mixture holds out its own split, as a set of its name.
    let source = |name: &str, location| (name.to_owned(), MixtureSource::at(location));
    let location = CorpusLocation { paths: at("set").into(), split: split("train") };
    let sources = [source("set", location), source("other", at("set/data/*.jsonl").into())];
    let mixture = Spec { corpus: CorpusSource::Mixture, sources: sources.into(), ..spec.clone() };
    let error = opened(&mixture).unwrap_err();
    assert!(
        error.message().contains("data.sources.other") && error.message().contains("this is a pattern"),
        "{error}"
    );
    let alone = Spec { sources: [mixture.sources.clone().pop_last().unwrap()].into(), ..mixture };
    let mixed = opened(&alone).unwrap();
    assert_eq!((mixed.sets.len(), &mixed.sets[0].hash), (1, &train.validation.hash));
    assert_eq!(data::facts(&alone, 8, None, None).unwrap().set_tokens["set"], train.validation.tokens.len());
    fs::write(at("set/data/train-00002-of-00002.jsonl"), bytes_of(Holds::Lines)).unwrap();
    fs::write(at("set/data/test-00001-of-00001.csv"), "a,b").unwrap();
    let error = opened(&spec).unwrap_err();
    assert!(
        error.message().contains("Parquet tables (data/train-00000-of-00002.parquet) and JSON lines"),
        "{error}"
    );
    let tables = Spec { extensions: vec![".parquet".to_owned()], validation_split: None, ..spec.clone() };
    assert!(
        warnings_of(&tables)[0].contains("2 files read, passed over: 1 .jsonl file"),
        "{:?}",
        warnings_of(&tables)
    );
    let held = Spec { split: split("test"), validation_split: None, ..spec };
    assert_eq!(warnings_of(&held).iter().filter(|warning| warning.contains("1 .csv file")).count(), 1);
}

#[test]
fn names_of_held_out_files_are_pointed_out_where_all_are_read() {
    for (names, says) in [
        (&["train.txt", "val.txt"][..], Some("val.txt is read like")),
        (&["train/a.txt", "test/a.txt", "test/b.txt"], Some("test/a.txt and 1 more are read like")),
        (&["x-train-00.txt", "x-validation-00.txt", "notes.txt"], Some("x-validation-00.txt is read")),
        (&["train.txt", "training.txt"], None),
        (&["val.txt", "test.txt"], None),
        (&["trained.txt", "a_value.txt"], None),
    ] {
        let dir = TempDir::new().unwrap();
        for (i, name) in names.iter().enumerate() {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, document(i).repeat(9)).unwrap();
        }
        let warnings = warnings_of(&spec(dir.path(), ".txt"));
        match says {
            Some(says) => assert!(warnings.len() == 1 && warnings[0].contains(says), "{says}: {warnings:?}"),
            None => assert_eq!(warnings, Vec::<String>::new(), "{names:?}"),
        }
    }
}

#[test]
fn what_a_folder_holds_besides_is_counted_by_ending() {
    let dir = TempDir::new().unwrap();
    for i in 0..20 {
        fs::write(dir.path().join(format!("ca{i:02}")), document(i)).unwrap();
    }
    for (name, text) in [
        ("README.md", "an index of the texts, which is long enough to hold two windows of tokens"),
        ("LICENSE.txt", "a licence"),
        ("a.csv", "1,2"),
        ("b.CSV.gz", "1,2"),
        (".hidden", "x"),
        ("sub/c.csv", "3,4"),
    ] {
        fs::create_dir_all(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
    }
    std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
    let says = |extensions: &[&str]| {
        let extensions = extensions.iter().map(|&x| x.to_owned()).collect();
        let spec = Spec { extensions, ..spec(dir.path(), "") };
        let warnings = warnings_of(&spec);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        warnings[0].clone()
    };
    let warned = says(&[".txt", ".md"]);
    let counted = "2 files read, passed over: 20 files without an ending, 2 .csv files, 1 .csv.gz file, \
                   1 linked folder, 1 hidden name";
    assert!(warned.contains(counted), "{warned}");
    assert!(warned.ends_with("data.extensions=[\".txt\", \".md\", \"\"] reads more of them"), "{warned}");
    assert!(says(&[""]).contains("20 files read, passed over: 2 .csv files"), "{}", says(&[""]));

    let none = data::open(&spec(dir.path(), ".rs"), 8, None, None).unwrap_err();
    for part in ["holds no .rs or .bin files", "20 files without an ending", "data.extensions=[\"\"]"] {
        assert!(none.message().contains(part), "{none}");
    }
    fs::write(dir.path().join("train.bin"), bytes_of(Holds::Tokens)).unwrap();
    fs::write(dir.path().join("test.bin"), bytes_of(Holds::Tokens)).unwrap();
    let shards = says(&[".txt", ".md"]);
    assert!(shards.contains("1 token file read, passed over: 20 files without an ending"), "{shards}");
    assert!(shards.contains("1 .bin file"), "a file that is neither for training nor held out: {shards}");
}

/// A `.bin` file is a shard by its name or by what lies beside it. Another one beside text may be a picture.
#[test]
fn text_beside_what_may_be_token_ids_is_never_passed_over_for_it() {
    let dir = TempDir::new().unwrap();
    let open = |extensions: &[&str]| {
        let extensions = extensions.iter().map(|&x| x.to_owned()).collect();
        let spec = Spec { extensions, ..spec(dir.path(), "") };
        let opened = data::open(&spec, 8, None, None);
        let planned = data::facts(&spec, 8, None, None);
        assert_eq!(opened.is_ok(), planned.is_ok(), "the plan agrees: {opened:?}");
        opened.map(|data| (data.description, data.warnings))
    };
    for i in 0..20 {
        fs::write(dir.path().join(format!("{i:02}.txt")), document(i)).unwrap();
        fs::write(dir.path().join(format!("{i:02}.py")), document(i)).unwrap();
    }
    fs::write(dir.path().join("logo.bin"), bytes_of(Holds::Tokens)).unwrap();
    let refused = open(&[".txt", ".md"]).unwrap_err();
    for part in ["text (00.txt)", "token ids (logo.bin)", "data.extensions=[\".txt\"]"] {
        assert!(refused.message().contains(part), "{refused}");
    }
    for ending in [".txt", ".py"] {
        let (description, warnings) = open(&[ending]).unwrap();
        assert!(description.contains("20 documents in 20 files"), "{ending}: {description}");
        assert!(warnings[0].contains("1 .bin file") && !warnings[0].contains("\".bin\""), "{warnings:?}");
    }
    let (description, _) = open(&[".rs"]).unwrap();
    assert!(description.ends_with("1 token file"), "no text is named: {description}");
    for name in ["tokenizer.json", "corpus_train_0.bin", "val.bin"] {
        let path = dir.path().join(name);
        fs::write(&path, if name.ends_with("json") { b"{}".to_vec() } else { bytes_of(Holds::Tokens) })
            .unwrap();
        let opened = open(&[".txt", ".md"]);
        assert!(
            opened.is_ok_and(|(description, _)| description.contains("token file")),
            "{name} says shards"
        );
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_wrong_line_is_named_with_what_is_wrong_and_never_quoted_whole() {
    let dir = TempDir::new().unwrap();
    let long = "a".repeat(2_000_000);
    for (line, says) in [
        ("{\"id\": NaN, \"text\": \"b\"}".to_owned(), "NaN in column 8"),
        ("{\"id\": -Infinity, \"text\": \"b\"}".to_owned(), "Infinity in column 9"),
        ("[\"id-7\"]".to_owned(), "this one is an array"),
        ("7".to_owned(), "this one is a number"),
        ("null".to_owned(), "this one is null"),
        (format!("\"{long}\""), "this one is a string"),
        (long.clone(), "this one is not JSON"),
        (format!("{{\"{long}\": 1}}"), "has no \"text\""),
        (format!("{{\"text\": \"{long}\", \"text\": 1}}"), "a.jsonl:8: "),
        (format!("{{\"text\": [\"{long}\"]}}"), "\"text\" is an array"),
        (
            "{\"id\": \"7\", \"content\": \"a b\"}".to_owned(),
            "such as data.field=content, and data.missing = \"skip\" leaves such documents out",
        ),
        ("{\"text\": null}".to_owned(), "\"text\" is null"),
        ("{\"text\": \"b\", \"text\": \"c\"}".to_owned(), "occurs twice"),
        ("{\"messages\": [{\"role\": \"user\"}], \"id\": 1}".to_owned(), "messages"),
        ("{\"text\": \"b\"".to_owned(), "not JSON: EOF"),
        ("{\"text\": \"b\"} {\"text\": \"b\"}".to_owned(), "trailing characters"),
        ("{\"text\": \"\u{1b}]0;x\"}".to_owned(), "not JSON: control character"),
        (format!("{{\"id\": {long}, \"text\": 1}}"), "not JSON: expected"),
    ] {
        let path = dir.path().join("a.jsonl");
        let good: String =
            (0..7).map(|i| serde_json::json!({"text": document(i)}).to_string() + "\n").collect();
        fs::write(&path, format!("{good}{line}\n{good}")).unwrap();
        let e = open(&path, "").unwrap_err();
        let message = e.message();
        assert!(message.contains("a.jsonl:8: ") && message.contains(says), "{says}: {message}");
        assert!(message.len() < 1000 && !message.contains('\u{1b}'), "{says}: {} bytes", message.len());
        assert_eq!(data::facts(&spec(&path, ""), 8, None, None).unwrap_err().message(), message, "{says}");
    }
}

/// The text is in the field that a recipe names. What lacks it is an error, or left out and counted.
#[test]
fn a_field_holds_the_text_or_is_missing() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.jsonl");
    let mut lines: Vec<String> = (0..DOCUMENTS)
        .map(|i| serde_json::json!({"id": i, "text": [], "content": document(i)}).to_string())
        .collect();
    let field = |missing| Spec { field: "content".to_owned(), missing, ..spec(&path, "") };
    let write = |lines: &[String]| fs::write(&path, lines.join("\n")).unwrap();
    write(&lines);
    let read_with = |spec: &Spec| read(&data::open(spec, 8, None, None).unwrap(), Gives::Documents);
    for missing in [MissingField::Error, MissingField::Skip] {
        assert_eq!(warnings_of(&field(missing)), Vec::<String>::new());
        assert_eq!(read_with(&field(missing)), documents());
    }
    lines.insert(3, "{\"text\": \"b\", \"content\": null}".to_owned());
    lines.insert(9, "{\"text\": \"b\"}".to_owned());
    write(&lines);
    let refused = data::open(&field(MissingField::Error), 8, None, None).unwrap_err();
    assert!(refused.message().contains("a.jsonl:4: \"content\" is null"), "{refused}");
    let skipped = field(MissingField::Skip);
    assert_eq!(read_with(&skipped), documents());
    let says =
        "2 documents are without a \"content\" and left out, as data.missing = \"skip\" says; 40 are read";
    assert!(matches!(&warnings_of(&skipped)[..], [warning] if warning.ends_with(says)), "{skipped:?}");
    let description = data::open(&skipped, 8, None, None).unwrap().description;
    assert!(description.ends_with("1 file, 2 without a \"content\" left out"), "{description}");
    let other = Spec { field: "none".to_owned(), ..skipped.clone() };
    let nothing = data::open(&other, 8, None, None).unwrap_err();
    assert!(nothing.message().contains("it holds no text: 42 documents are without a \"none\""), "{nothing}");
    // A field of another type stays an error.
    lines.push("{\"content\": 3}".to_owned());
    write(&lines);
    let wrong = data::open(&skipped, 8, None, None).unwrap_err();
    assert!(wrong.message().contains("a.jsonl:43: \"content\" is a number"), "{wrong}");
    // Plain text has no fields.
    let text = dir.path().join("a.txt");
    fs::write(&text, document(1).repeat(9)).unwrap();
    for (spec, key) in [
        (Spec { missing: MissingField::Skip, ..spec(&text, "") }, "data.missing"),
        (Spec { field: "content".to_owned(), ..spec(&text, "") }, "data.field"),
    ] {
        let warnings = warnings_of(&spec);
        assert!(
            matches!(&warnings[..], [one] if one.starts_with(&format!("{key} has no effect"))),
            "{warnings:?}"
        );
    }
}

#[test]
fn a_separator_that_cuts_nothing_is_pointed_out() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.txt");
    let text: String = (0..30).map(|i| document(i) + "\r\n\r\n").collect();
    fs::write(&path, &text).unwrap();
    for (separator, warned) in [
        (r"\n\n", Some(r#"'data.document_separator="\r\n\r\n"'"#)),
        ("\n\n", Some(r#"set data.document_separator = "\r\n\r\n""#)),
        ("<|end|>", Some("occurs nowhere")),
        ("\r\n\r\n", None),
    ] {
        let spec = Spec { document_separator: Some(separator.to_owned()), ..spec(&path, "") };
        let warnings = data::open(&spec, 8, None, None).unwrap().warnings;
        assert_eq!(data::facts(&spec, 8, None, None).unwrap().warnings, warnings);
        assert_eq!(warnings.len(), usize::from(warned.is_some()), "{separator:?}: {warnings:?}");
        let says = |part: &str| warnings[0].contains(part) && warnings[0].contains("occurs nowhere");
        assert!(warned.is_none_or(says), "{separator:?}: {warnings:?}");
    }
}
