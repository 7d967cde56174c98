//! Tokenizers that llama.cpp can express, those that it cannot, and where texts begin and end.

use super::Facts;
use super::ends::Ends;
use super::tokenizer::Tokenizer;
use crate::data::tokenizer::Begin;
use crate::error::Result;
use crate::model::hf_export::{Dtype, Export};
use crate::model::hugging_face::{CONFIG, Companions, SETTINGS};
use crate::plan::Model;
use crate::recipe;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The built-in tokenizer of bytes with two merges and GPT-2's expression, changed.
fn with(change: impl FnOnce(&mut Value)) -> String {
    let bytes = crate::data::Tokenizer::open("byte").unwrap();
    let mut document: Value = serde_json::from_str(bytes.to_json()).unwrap();
    document["pre_tokenizer"]["use_regex"] = true.into();
    document["model"]["vocab"]["ab"] = 257.into();
    document["model"]["vocab"]["Ġab"] = 258.into();
    document["model"]["merges"] = json!([["a", "b"], ["Ġ", "ab"]]);
    change(&mut document);
    document.to_string()
}

fn added(id: u32, content: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false});
    change(&mut token);
    token
}

/// Adds a token after the entries.
fn add(document: &mut Value, token: Value) {
    document["added_tokens"].as_array_mut().unwrap().push(token);
}

/// A model with so many rows.
fn export(rows: usize, end_token_id: u32) -> Export {
    Export {
        model: Model::from_keys(&recipe::Model::default(), rows),
        seq_len: 7,
        end_token_id,
        begin: Begin::End,
        dtype: Dtype::F32,
        reference: None,
        companions: Companions::default(),
        data: None,
    }
}

fn parsed(json: &str, rows: usize) -> Result<Tokenizer> {
    Tokenizer::new(&export(rows, 256), json)
}

#[test]
fn entries_have_their_types_and_rows_without_one_a_name() {
    // The library gives an added token the next id, unless it is in the vocabulary.
    let json = with(|document| {
        document["model"]["vocab"]["<think>"] = 260.into();
        add(document, added(260, "<think>", |_| {}));
    });
    let made = parsed(&json, 263).unwrap();
    assert_eq!((made.pre, made.merges), ("gpt-2", vec!["a b".to_owned(), "Ġ ab".to_owned()]));
    assert_eq!(made.tokens[10], "Ċ");
    assert_eq!(
        made.tokens[255..],
        ["ÿ", "<|endoftext|>", "ab", "Ġab", "[PAD259]", "<think>", "[PAD261]", "[PAD262]"]
    );
    assert_eq!((made.types[255..].to_vec(), made.types.len()), (vec![1, 3, 1, 1, 5, 4, 5, 5], 263));
    assert!(made.remarks.is_empty());
    // Older files write a merge as one text.
    let older = with(|document| document["model"]["merges"] = json!(["a b", "Ġ ab"]));
    assert_eq!(parsed(&older, 259).unwrap().merges, ["a b", "Ġ ab"]);
}

#[test]
fn nfc_is_said_and_other_normalizers_are_refused() {
    for normalizer in [json!({"type": "NFC"}), json!({"type": "Sequence", "normalizers": [{"type": "NFC"}]})]
    {
        let made = parsed(&with(|document| document["normalizer"] = normalizer), 259).unwrap();
        assert!(made.remarks[0].contains("NFC"), "{:?}", made.remarks);
    }
    let empty = json!({"type": "Sequence", "normalizers": []});
    assert!(parsed(&with(|document| document["normalizer"] = empty), 259).unwrap().remarks.is_empty());
    let error = parsed(&with(|document| document["normalizer"] = json!({"type": "NFKC"})), 259).unwrap_err();
    assert!(error.message().contains("its normalizer is \"NFKC\""), "{error}");
}

#[test]
fn tokenizers_of_other_kinds_are_refused() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 15] = [
        (
            |d| d["model"] = json!({"type": "WordLevel", "vocab": {"<|endoftext|>": 256}, "unk_token": "a"}),
            "its model is WordLevel",
        ),
        (|d| d["decoder"] = json!({"type": "Fuse"}), "its decoder is \"Fuse\""),
        (|d| d["model"]["byte_fallback"] = true.into(), "byte_fallback"),
        (|d| d["model"]["ignore_merges"] = true.into(), "ignore_merges is true"),
        (
            |d| d["model"]["vocab"]["日"] = 259.into(),
            "the entry \"日\" is not written in characters of bytes",
        ),
        (|d| d["pre_tokenizer"] = Value::Null, "not one regular expression"),
        (|d| d["pre_tokenizer"]["use_regex"] = false.into(), "merges across whole texts"),
        (|d| add(d, added(259, "<m>", |t| t["lstrip"] = true.into())), "\"<m>\" takes white space"),
        (|d| add(d, added(259, "<m>", |t| t["rstrip"] = true.into())), "\"<m>\" takes white space"),
        (|d| add(d, added(259, "<m>", |t| t["single_word"] = true.into())), "\"<m>\" takes white space"),
        (
            |d| {
                add(d, added(259, "ab<", |_| {}));
                add(d, added(260, "<cde>", |_| {}));
            },
            "\"<cde>\" can begin inside of \"ab<\"",
        ),
        (
            |d| {
                add(d, added(259, "  ", |_| {}));
                add(d, added(260, "  x", |_| {}));
            },
            "\"  x\" can begin inside of \"  \"",
        ),
        (
            |d| {
                d["model"]["unk_token"] = "a".into();
                d["model"]["vocab"].as_object_mut().unwrap().remove("!");
            },
            "no entry for the byte 0x21",
        ),
        (
            |d| {
                d["model"]["vocab"]["[PAD259]"] = 261.into();
                add(d, added(261, "[PAD259]", |_| {}));
            },
            "two entries are \"[PAD259]\"",
        ),
        (|d| *d = json!({"version": "1.0"}), "tokenizer.json is wrong"),
    ];
    for (change, says) in changes {
        let error = parsed(&with(change), 262).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
        assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
    }
}

/// Runs of one character overlap, and the longest is first in both.
#[test]
fn runs_of_spaces_may_be_added_tokens() {
    let json = with(|document| {
        for (id, length) in (259..).zip([2, 3, 4]) {
            add(document, added(id, &" ".repeat(length), |_| {}));
        }
    });
    assert_eq!(parsed(&json, 262).unwrap().types[259..], [4, 4, 4]);
}

#[test]
fn tokenizers_of_xrun_are_written_or_refused() {
    let built_in = |name: &str| {
        let tokenizer = crate::data::Tokenizer::open(name).unwrap();
        let export = export(tokenizer.vocab_size(), tokenizer.end_token());
        Tokenizer::new(&export, tokenizer.to_json())
    };
    let bytes = built_in("byte").unwrap();
    assert_eq!((bytes.pre, bytes.tokens.len(), bytes.merges.len()), ("gpt-2", 257, 0));
    let gpt2 = built_in("gpt2").unwrap();
    assert_eq!((gpt2.pre, gpt2.tokens.len(), gpt2.merges.len()), ("gpt-2", 50_257, 50_000));
    assert_eq!((gpt2.merges[0].as_str(), gpt2.types[50_256]), ("Ġ t", 3));
    let error = built_in("stories").unwrap_err();
    assert!(error.message().contains(r" ?\p{L}+| ?[^\s\p{L}]|\s"), "{error}");
}

#[test]
fn texts_begin_and_end_as_in_training() {
    let bytes = crate::data::Tokenizer::open("byte").unwrap();
    let ends = |begin: Begin, settings: &str, facts: &Facts| {
        let companions = Companions(BTreeMap::from([
            (SETTINGS.to_owned(), settings.to_owned()),
            (CONFIG.to_owned(), "{}".to_owned()),
        ]));
        Ends::new(&Export { begin, companions, ..export(259, 256) }, facts, bytes.to_json()).unwrap()
    };
    let (plain, chat) = (Facts::default(), Facts { chat_template: Some("x".to_owned()), ..Facts::default() });
    let turn = ("tokenizer.ggml.eot_token_id", 256);
    let found = ends(Begin::End, "{}", &plain);
    assert_eq!((found.bos, found.add_bos, found.eos, &found.turns[..]), (256, true, 256, &[][..]));
    let found = ends(Begin::Token(3), "{}", &chat);
    assert_eq!((found.bos, found.add_bos, &found.turns[..]), (3, true, &[turn][..]));
    let settings = r#"{"bos_token": "A", "eos_token": "B", "pad_token": "C", "unk_token": "none"}"#;
    let found = ends(Begin::Nothing, settings, &Facts { stops: vec![5, 66, 7], ..chat });
    assert_eq!((found.bos, found.add_bos, found.eos), (65, false, 256));
    let turns = [("tokenizer.ggml.eot_token_id", 66), ("tokenizer.ggml.eom_token_id", 5)];
    assert_eq!(found.turns, turns);
    assert_eq!(found.others, [("tokenizer.ggml.padding_token_id", 67)]);
    assert!(found.remarks[0].contains("does not stop at token 7"), "{:?}", found.remarks);
    assert_eq!(ends(Begin::Nothing, "{}", &plain).bos, 256);
}
