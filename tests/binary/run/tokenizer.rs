//! A tokenizer and its special tokens are one thing: they are stored, read, compared and refused together.

use crate::place::{Place, Run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use xrun::data::Tokenizer;

/// The end tokens that the test's tokenizers may have: the one that is found by its name, and another.
const KNOWN: u32 = 256;
const NAMED: u32 = 257;

/// Returns the byte tokenizer with a second token that may end documents.
fn tokenizer_json(special: bool) -> String {
    let mut json: Value = serde_json::from_str(Tokenizer::open("byte").unwrap().to_json()).unwrap();
    json["model"]["vocab"]["<fin>"] = NAMED.into();
    json["added_tokens"].as_array_mut().unwrap().push(json!({
        "id": NAMED, "content": "<fin>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special,
    }));
    json.to_string()
}

/// A name, files with their texts, whether the added token is special, and the end token.
type Way = (&'static str, Vec<(&'static str, &'static str)>, bool, u32);

/// Ways in which an end token is named: files beside the tokenizer.json, whether its added token is special,
/// and the end token that they mean.
fn ways() -> Vec<Way> {
    let (text, object) = (r#"{"eos_token": "<fin>"}"#, r#"{"eos_token": {"content": "<fin>"}}"#);
    vec![
        ("known", vec![], true, KNOWN),
        ("config", vec![("tokenizer_config.json", text)], true, NAMED),
        ("object", vec![("tokenizer_config.json", object)], true, NAMED),
        ("map", vec![("special_tokens_map.json", text)], true, NAMED),
        ("not-special", vec![("tokenizer_config.json", text)], false, NAMED),
        ("list", vec![("generation_config.json", r#"{"eos_token_id": [256, 257]}"#)], true, KNOWN),
    ]
}

fn text() -> String {
    (0..120).map(|i| format!("Story {i} of a <fin> cat.{}\n%%%\n", " It sat.".repeat(i % 9))).collect()
}

fn end_of(run: &Run) -> Option<u32> {
    run.newest().meta().extra.get("end_token_id").map(|id| id.parse().unwrap())
}

/// Returns the only run that `action` makes.
fn made(place: &Place, action: impl FnOnce()) -> Run {
    let before: BTreeSet<_> = place.runs().into_iter().map(|run| run.path).collect();
    action();
    let mut new = place.runs().into_iter().filter(|run| !before.contains(&run.path));
    let run = new.next().expect("a new run");
    assert!(new.next().is_none());
    run
}

/// Every way to name an end token × every way to store a tokenizer and read it again: the same ids.
#[test]
fn a_tokenizer_is_read_again_as_it_was() {
    for (way, files, special, end) in ways() {
        let place = Place::new();
        place.write("notes.txt", text().as_bytes());
        place.write("t/tokenizer.json", tokenizer_json(special).as_bytes());
        files.iter().for_each(|(name, text)| drop(place.write(&format!("t/{name}"), text.as_bytes())));
        place
            .xrun(&[
                "data",
                "--corpus",
                "notes.txt",
                "--separator",
                "%%%",
                "--tokenizer",
                "t/tokenizer.json",
                "--out",
                "sh",
            ])
            .succeeds();
        // The original is gone: only what was stored is left.
        fs::remove_dir_all(place.path().join("t")).unwrap();
        let shard = fs::read(place.path().join("sh/tokens_train_000000.bin")).unwrap();
        let first = u16::from_le_bytes(shard[1024..1026].try_into().unwrap());
        assert_eq!(u32::from(first), end, "{way}: shards");
        let ends = shard[1024..].chunks(2).filter(|t| u16::from_le_bytes([t[0], t[1]]) == first).count();
        assert!((100..=121).contains(&ends), "{way}: {ends} end tokens, of which none is from the text");
        let train = |tokenizer: &str, more: &[&str]| {
            let tokenizer = format!("data.tokenizer={tokenizer}");
            let fixed =
                ["run", "tiny.toml", "data.corpus=sh", "data.cross_documents=false", "training.steps=4"];
            let all = [&fixed[..], &["checkpoint.interval=2", &tokenizer], more].concat();
            made(&place, || drop(place.xrun(&all).succeeds()))
        };
        let whole = train("sh/tokenizer.json", &[]);
        assert_eq!(end_of(&whole), Some(end), "{way}: run");
        // A run's own tokenizer serves another run.
        let stored = format!("{}/tokenizer.json", whole.name());
        assert_eq!(train(&stored, &[]).text("metrics.csv"), whole.text("metrics.csv"), "{way}: reuse");
        let half = train("sh/tokenizer.json", &["--until", "2"]);
        place.xrun(&["resume", half.name()]).succeeds();
        assert_eq!(end_of(&half), Some(end), "{way}: resume");
        assert_eq!(half.text("metrics.csv"), whole.text("metrics.csv"), "{way}: resume");
        let fork = ["resume", whole.name(), "--fork", "training.steps=6"];
        let fork = made(&place, || drop(place.xrun(&fork).succeeds()));
        assert_eq!(end_of(&fork), Some(end), "{way}: fork");
        place.xrun(&["sample", whole.name(), "--tokens", "2"]).succeeds();
        place.xrun(&["replay", whole.name()]).succeeds();
        place.xrun(&["export", whole.name(), "--to", "out"]).succeeds();
        let exported = Tokenizer::open(place.path().join("out/tokenizer.json").to_str().unwrap()).unwrap();
        assert_eq!(exported.end_token(), end, "{way}: export");
        let imported = made(&place, || drop(place.xrun(&["import", "out", "--name", "tiny"]).succeeds()));
        assert_eq!(end_of(&imported), Some(end), "{way}: import");
        place
            .xrun(&["data", "--corpus", "sh", "--tokenizer", "sh/tokenizer.json", "--out", "again"])
            .succeeds();
        let manifest =
            |folder: &str| fs::read_to_string(place.path().join(folder).join("tokens.json")).unwrap();
        assert!(manifest("again").contains(&format!("\"end_token_id\": {end},")), "{way}: shards of shards");
    }
}

/// Whatever is stored, another end token is refused: without the file that names it, or with one that names
/// another.
#[test]
fn another_end_token_is_refused() {
    for (way, files, special, end) in ways() {
        let place = Place::new();
        place.write("notes.txt", text().as_bytes());
        place.write("t/tokenizer.json", tokenizer_json(special).as_bytes());
        files.iter().for_each(|(name, text)| drop(place.write(&format!("t/{name}"), text.as_bytes())));
        let data = ["data", "--separator", "%%%", "--tokenizer", "t/tokenizer.json"];
        place.xrun(&[&data[..], &["--corpus", "notes.txt", "--out", "sh"]].concat()).succeeds();
        let run = ["tiny.toml", "data.corpus=sh", "data.tokenizer=t/tokenizer.json", "training.steps=4"];
        place.xrun(&[&["run"], &run[..], &["--until", "2", "checkpoint.interval=2"]].concat()).succeeds();
        let half = place.run();
        let other = if end == KNOWN { "<fin>" } else { "<|endoftext|>" };
        // With a list of its tokens, the file has precedence over the map.
        let settings = json!({ "eos_token": other, "added_tokens_decoder": {} }).to_string();
        place.write("t/tokenizer_config.json", settings.as_bytes());
        let says = ["end token", "tokenizer_config.json"];
        place.xrun(&["resume", half.name()]).ended(2).says(&says);
        place.xrun(&["resume", half.name(), "--fork", "training.steps=6"]).ended(2).says(&says);
        place.xrun(&run).ended(2).says(&says);
        place.xrun(&[&["plan"], &run[..]].concat()).ended(2).says(&says);
        place.xrun(&[&data[..], &["--corpus", "sh", "--out", "again"]].concat()).ended(2);
        let other = ["tiny.toml", "data.tokenizer=t/tokenizer.json", "data.corpus=notes.txt"];
        for held_out in ["data.validation=sh", "validation.sets={a = \"sh\"}"] {
            place.xrun(&[&other[..], &[held_out]].concat()).ended(2).says(&says);
        }
        // A file of the run that was edited is noticed too.
        let stored = half.path.join("tokenizer.json");
        fs::write(&stored, fs::read_to_string(&stored).unwrap().replace("<fin>", "<end>")).unwrap();
        for command in [&["sample"][..], &["export", "--to", "out"]] {
            let done = place.xrun(&[command, &[half.name()]].concat());
            assert_ne!(done.code, Some(0), "{way} {command:?}");
        }
    }
}

/// Bytes without an entry are counted where a text is planned, written and trained on; bits per byte are
/// blank then, and only then.
#[test]
fn lost_bytes_are_said() {
    let place = Place::new();
    let mut json: Value = serde_json::from_str(Tokenizer::open("byte").unwrap().to_json()).unwrap();
    json["model"]["vocab"].as_object_mut().unwrap().remove("~");
    place.write("t/tokenizer.json", json.to_string().as_bytes());
    for (name, mark, lost) in [("kept", "-", false), ("lost", "~", true)] {
        let text: String = (0..80).map(|i| format!("Story {i}{mark} of a cat that sat.\n%%%\n")).collect();
        let file = format!("{name}.txt");
        place.write(&file, text.as_bytes());
        let check = |done: crate::place::Done| {
            let done = done.succeeds();
            assert_eq!((done.stderr + &done.stdout).contains("has no entry for"), lost, "{name}");
        };
        let corpus = format!("data.corpus={file}");
        let run = ["tiny.toml", "data.tokenizer=t/tokenizer.json", "training.steps=2"];
        let text = [&run[..], &["data.document_separator=%%%", &corpus]].concat();
        check(place.xrun(&[&["plan"], &text[..]].concat()));
        let trained = made(&place, || check(place.xrun(&text)));
        let blank = |run: &Run| run.summary().held_out[""].bits_per_byte.is_none();
        assert_eq!(blank(&trained), lost, "{name}: text");
        let shards = format!("{name}-shards");
        check(place.xrun(&[
            "data",
            "--corpus",
            &file,
            "--separator",
            "%%%",
            "--tokenizer",
            "t/tokenizer.json",
            "--out",
            &shards,
        ]));
        let corpus = format!("data.corpus={shards}");
        let trained = made(&place, || check(place.xrun(&[&run[..], &[&corpus]].concat())));
        assert_eq!(blank(&trained), lost, "{name}: shards");
    }
}

/// Documents that open with a token of their own: it is not predicted, documents are told apart by it, and
/// prompts begin with it.
#[test]
fn documents_may_open_with_their_own_token() {
    let place = Place::new();
    place.write("notes.txt", text().replace("<fin>", "").as_bytes());
    place.write("t/tokenizer.json", tokenizer_json(true).as_bytes());
    let run = |begin: &[&str]| {
        let fixed =
            ["tiny.toml", "data.corpus=notes.txt", "data.tokenizer=t/tokenizer.json", "training.steps=2"];
        let more = ["data.document_separator=%%%", "validation.documents=true", "validation.steps=0"];
        made(&place, || drop(place.xrun(&[&fixed[..], &more, begin].concat()).succeeds()))
    };
    let (plain, own) = (run(&[]), run(&["data.begin_token=<fin>"]));
    let set = |run: &Run| run.summary().held_out[""].clone();
    assert_eq!((set(&own).tokens, set(&own).bytes), (set(&plain).tokens, set(&plain).bytes));
    assert_ne!(set(&own).hash, set(&plain).hash);
    let documents = |run: &Run| {
        let text = run.text("documents.csv");
        let rows = text.lines().map(|row| row.split(',').take(4).map(str::to_owned).collect::<Vec<_>>());
        rows.collect::<Vec<_>>()
    };
    assert_eq!(documents(&own), documents(&plain), "set, document, tokens, bytes");
    // An export begins texts as they began in training, whatever its reader looks at.
    let nothing = run(&["data.begin_token=\"\""]);
    for (run, begin) in
        [(&plain, Some((256, "<|endoftext|>"))), (&own, Some((257, "<fin>"))), (&nothing, None)]
    {
        let out = format!("out-{}", run.name());
        place.xrun(&["export", run.name(), "--to", &out]).succeeds();
        let json = |name: &str| -> Value {
            serde_json::from_slice(&fs::read(place.path().join(&out).join(name)).unwrap()).unwrap()
        };
        let (id, name) = (json!(begin.map(|(id, _)| id)), json!(begin.map(|(_, name)| name)));
        assert_eq!(json("config.json")["bos_token_id"], id);
        assert_eq!(json("generation_config.json")["bos_token_id"], id);
        assert_eq!(json("tokenizer_config.json")["bos_token"], name);
        assert_eq!(json("tokenizer_config.json")["eos_token"], "<|endoftext|>");
        let first = &json("tokenizer.json")["post_processor"]["single"][0]["SpecialToken"]["id"];
        assert_eq!(*first, name);
    }
    let unknown = ["tiny.toml", "data.begin_token=<s>"];
    place.xrun(&unknown).ended(2).says(&["data.begin_token = \"<s>\" is not an entry"]);
}

/// An imported model begins and ends texts as its files say.
#[test]
fn an_imported_model_begins_and_ends_texts_as_its_files_say() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2", "data.tokenizer=byte", "data.corpus=stories"]).succeeds();
    place.xrun(&["export", place.run().name(), "--to", "out"]).succeeds();
    let edit = |name: &str, change: &dyn Fn(&mut Value)| {
        let path = place.path().join("out").join(name);
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(&path, json.to_string()).unwrap();
    };
    let imported = || made(&place, || drop(place.xrun(&["import", "out", "--name", "tiny"]).succeeds()));
    let begin = |run: &Run| {
        run.text("resolved.toml").lines().find(|line| line.starts_with("begin_token")).map(str::to_owned)
    };
    let sampled = |run: &Run| {
        let fixed =
            ["sample", run.name(), "--prompt", "Once", "--tokens", "12", "--temperature", "0", "--json"];
        let line = place.xrun(&fixed).succeeds().stdout;
        serde_json::from_str::<Value>(&line).unwrap()["tokens"].clone()
    };
    // xrun's own export says that texts begin with the end token.
    assert_eq!(begin(&imported()), None);
    edit("tokenizer.json", &|json| json["post_processor"] = Value::Null);
    let nothing = imported();
    assert_eq!(begin(&nothing).as_deref(), Some("begin_token = \"\""));
    edit("tokenizer.json", &|json| {
        json["post_processor"] = json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "a", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"a": {"id": "a", "ids": [97], "tokens": ["a"]}}});
    });
    assert_eq!(begin(&imported()).as_deref(), Some("begin_token = \"a\""));
    // Texts end at each token that `eos_token_id` lists, in either file.
    let tokens = sampled(&nothing);
    let second = tokens[1].clone();
    let before = tokens.as_array().unwrap().iter().take_while(|token| **token != second).count();
    edit("tokenizer.json", &|json| json["post_processor"] = Value::Null);
    for file in ["generation_config.json", "config.json"] {
        edit(file, &|json| json["eos_token_id"] = json!([256, second]));
        let run = imported();
        assert_eq!(sampled(&run).as_array().unwrap().len(), before, "{file}");
        let _ = fs::remove_file(place.path().join("out/generation_config.json"));
    }
    edit("config.json", &|json| json["eos_token_id"] = json!([256, 999_999]));
    assert_eq!(
        sampled(&imported()).as_array().unwrap().len(),
        tokens.as_array().unwrap().len(),
        "never generated"
    );
    edit("config.json", &|json| json["eos_token_id"] = json!([256, "x"]));
    place.xrun(&["import", "out", "--name", "tiny"]).ended(2).says(&["eos_token_id"]);
}

#[test]
fn other_files_of_a_tokenizer_are_named() {
    let place = Place::new();
    for (name, content, says) in [
        ("encoder.json", r#"{"a": 0, "b": 1}"#, "it is a vocabulary (encoder.json or vocab.json)"),
        ("tekken.json", r#"{"config": {}, "vocab": [], "special_tokens": []}"#, "it is a tekken.json"),
        (
            "tokenizer_config.json",
            r#"{"tokenizer_class": "X", "eos_token": "</s>"}"#,
            "it is a tokenizer_config.json",
        ),
        ("config.json", r#"{"model_type": "llama"}"#, "it is a config.json"),
        ("list.json", "[1, 2]", "it is not a JSON object"),
        ("model.json", r#"{"model": {"type": "Other", "vocab": 3}}"#, "its model is of a kind"),
        ("tokenizer.model", "\u{1}\u{2}", "not a HuggingFace tokenizer.json"),
    ] {
        place.write(name, content.as_bytes());
        let tokenizer = format!("data.tokenizer={name}");
        let done = place.xrun(&["plan", "tiny.toml", &tokenizer]).ended(2).says(&[says]);
        let words = done.stderr.split(|c: char| !c.is_alphanumeric());
        let types = ["Probe", "ModelProbe", "ModelWrapper", "ModelUntagged", "struct", "enum"];
        assert!(words.into_iter().all(|word| !types.contains(&word)), "{}", done.stderr);
    }
    place.write("binary.model", b"\xff\xfe\x00");
    place
        .xrun(&["plan", "tiny.toml", "data.tokenizer=binary.model"])
        .ended(2)
        .says(&["tokenizer.model of sentencepiece"]);
}

/// A tokenizer is trained once, is not replaced unasked, trains a run, and shows its tokens.
#[test]
fn a_trained_tokenizer_serves_a_run() {
    let place = Place::new();
    place.write("notes.txt", text().as_bytes());
    let train = ["tokenizer", "train", "--corpus", "notes.txt", "--separator", "%%%", "--vocab", "270"];
    let train = [&train[..], &["--special", "<eot>", "--out", "own.json"]].concat();
    let said = place.xrun(&train).succeeds().stdout;
    assert!(said.contains("merges               13") && said.contains("notes.txt"), "{said}");
    let written = || fs::read(place.path().join("own.json")).unwrap();
    let first = written();
    place.xrun(&train).ended(2).says(&["own.json already exists", "--force"]);
    place.xrun(&[&train[..], &["--force"]].concat()).succeeds();
    assert_eq!(written(), first);
    let record: Value =
        serde_json::from_slice(&fs::read(place.path().join("own.training.json")).unwrap()).unwrap();
    assert_eq!((&record["training"]["vocab"], &record["training"]["pattern"]), (&json!(270), &json!("gpt4")));

    let corpus = ["data.corpus=notes.txt", "data.document_separator=\"%%%\"", "data.tokenizer=own.json"];
    let run = made(&place, || {
        place
            .xrun(&[&["tiny.toml", "training.steps=2", "checkpoint.interval=2"], &corpus[..]].concat())
            .succeeds();
    });
    assert_eq!(end_of(&run), Some(0));
    let shown = place.xrun(&["tokenizer", "show", "own.json", "A <eot> cat.", "--json"]).succeeds().stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let tokens = shown["tokens"].as_array().unwrap();
    let bytes: u64 = tokens.iter().map(|token| token["bytes"].as_u64().unwrap()).sum();
    assert_eq!((bytes, &shown["bytes"], &shown["count"]), (12, &json!(12), &json!(tokens.len())));
    let table = place.xrun(&["tokenizer", "show", "own.json", "\u{1b} It sat."]).succeeds().stdout;
    assert!(
        table.contains(r#""\u{1b}""#) && table.contains(r#"" sat""#) && table.contains("9 bytes"),
        "{table}"
    );
    let few = ["tokenizer", "train", "--corpus", "notes.txt", "--vocab", "256", "--out", "few.json"];
    place.xrun(&few).ended(2).says(&["give 257 (256 bytes and 1 special)"]);
}
