use super::coding::PIECE_BYTES;
use super::*;
use crate::data::END_OF_TEXT;
use proptest::prelude::*;
use std::sync::LazyLock;

static GPT2: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open("gpt2").unwrap());
static BYTE: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open("byte").unwrap());
static STORIES: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::open("stories").unwrap());

/// Text that tokenizers tend to get wrong: contractions, runs of white space, digits, other scripts, the end
/// token.
const AWKWARD: &str = "Hello, world! It's we'll  they've\n\n\n  x\t\ty 12345 don't DON'T ünïcödé 日本語 🦀🦀 \
    <|endoftext|> a<|endoftext|>b    \r\n trailing   ";

fn reloaded(t: &Tokenizer) -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_bytes(t.to_json()).unwrap()
}

#[test]
fn sizes_and_end_tokens() {
    for (name, vocab, end) in [("gpt2", 50_257, 50_256), ("byte", 257, 256), ("stories", 511, 256)] {
        let t = Tokenizer::open(name).unwrap();
        assert_eq!((t.vocab_size(), t.end_token()), (vocab, end), "{name}");
        assert_eq!(Tokenizer::size(name).unwrap(), (vocab, end), "{name}");
        assert_eq!(t.decode(&[end]).unwrap(), END_OF_TEXT);
    }
}

#[test]
fn gpt2_gives_known_ids() {
    assert_eq!(GPT2.encode("Hello, world!").unwrap(), [15496, 11, 995, 0]);
}

#[test]
fn gpt2_agrees_with_tiktoken() {
    let tiktoken = tiktoken_rs::r50k_base_singleton();
    assert_eq!(GPT2.encode(AWKWARD).unwrap(), tiktoken.encode_ordinary(AWKWARD));
    let Ok(path) = std::env::var("XRUN_TEST_TEXT") else {
        eprintln!("XRUN_TEST_TEXT names no text file: agreement on a whole file not checked");
        return;
    };
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(GPT2.encode(&text).unwrap(), tiktoken.encode_ordinary(&text));
}

#[test]
fn the_end_token_in_text_is_text() {
    for t in [&*GPT2, &BYTE, &STORIES] {
        let ids = t.encode(AWKWARD).unwrap();
        assert!(!ids.contains(&t.end_token()));
        assert_eq!(t.decode(&ids).unwrap(), AWKWARD);
    }
}

#[test]
fn exported_json_encodes_the_same_in_the_library() {
    let text = AWKWARD.replace(END_OF_TEXT, "");
    for t in [&*GPT2, &BYTE, &STORIES] {
        let library = reloaded(t);
        assert_eq!(library.encode(text.as_str(), false).unwrap().get_ids(), t.encode(&text).unwrap());
        let ended = library.encode(format!("a{END_OF_TEXT}"), false).unwrap();
        assert_eq!(ended.get_ids().last(), Some(&t.end_token()));
    }
}

#[test]
fn long_text_is_cut_without_a_trace() {
    let text = AWKWARD.repeat(3 * PIECE_BYTES / AWKWARD.len());
    for t in [&*GPT2, &BYTE, &STORIES] {
        assert!(t.pieces(&text).count() > 2);
        let mut whole = reloaded(t);
        whole.set_encode_special_tokens(true);
        let expected = whole.encode_fast(text.as_str(), false).unwrap();
        assert_eq!(t.encode(&text).unwrap(), expected.get_ids());
    }
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    for t in [&*GPT2, &BYTE, &STORIES] {
        let error = t.decode(&[0, t.vocab_size() as u32]).unwrap_err();
        assert!(error.message().contains("outside the vocabulary"), "{error}");
    }
}

fn open_json(json: &str) -> Result<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, json).unwrap();
    Tokenizer::open(path.to_str().unwrap())
}

#[test]
fn a_file_encodes_as_the_tokenizer_it_came_from() {
    let file = open_json(STORIES.to_json()).unwrap();
    assert_eq!(file.encode(AWKWARD).unwrap(), STORIES.encode(AWKWARD).unwrap());
    assert_eq!((file.hash(), file.end_token()), (STORIES.hash(), 256));
    assert_ne!(file.hash(), BYTE.hash());
}

#[test]
fn tokenizer_config_names_the_end_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, BYTE.to_json().replace(END_OF_TEXT, "<fin>")).unwrap();
    let open = || Tokenizer::open(path.to_str().unwrap());
    let error = open().unwrap_err();
    assert!(error.message().contains("no end token") && error.message().contains("eos_token"), "{error}");
    for (config, works) in [
        (r#"{"eos_token": "<fin>"}"#, true),
        (r#"{"eos_token": {"content": "<fin>"}}"#, true),
        (r#"{"eos_token": "<end>"}"#, false),
        ("{", false),
    ] {
        std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        assert_eq!(open().is_ok(), works, "{config}");
    }
}

#[test]
fn a_wrong_file_is_an_error() {
    let json = BYTE.to_json();
    let cases = [
        (String::new(), "tokenizer.json"),
        ("[]".to_owned(), "tokenizer.json"),
        (json[..json.len() / 2].to_owned(), "tokenizer.json"),
        (json.replacen("\"a\":97", "\"a\":4000000000", 1), "only"),
        (json.replacen("\"a\":97", "\"a\":98", 1), "another entry"),
    ];
    for (json, says) in cases {
        let error = open_json(&json).unwrap_err();
        assert!(error.message().contains(says), "{error}");
        assert_eq!(error.kind(), crate::error::ErrorKind::Usage);
    }
    let missing = Tokenizer::open("no/such/tokenizer.json").unwrap_err();
    assert!(missing.message().contains("gpt2, byte, stories"), "{missing}");
}

proptest! {
    #[test]
    fn any_text_survives_the_round_trip(text in "\\PC{0,60}|[ \\n\\t\\r]{0,9}[a-z ]{0,20}") {
        for t in [&*GPT2, &BYTE, &STORIES] {
            prop_assert_eq!(t.decode(&t.encode(&text).unwrap()).unwrap(), text.clone());
        }
    }

    #[test]
    fn a_damaged_file_never_panics(at in 0usize..2000, byte in 32u8..127) {
        let mut json = BYTE.to_json().to_owned().into_bytes();
        let at = json.len() * at / 2000;
        json[at] = byte;
        if let Ok(t) = open_json(&String::from_utf8_lossy(&json)) {
            let _ = t.encode("a tale <|endoftext|>");
        }
    }
}

/// For the built-in tokenizers, the bytes of the tokens add up to the bytes of any text.
#[test]
fn bytes_of_tokens_add_up_to_the_text() {
    for t in [&*GPT2, &BYTE, &STORIES] {
        let bytes = t.token_byte_counts().expect("a byte-level tokenizer");
        assert!(t.keeps_every_byte());
        assert_eq!((bytes.len(), bytes[t.end_token() as usize]), (t.vocab_size(), 0));
        for text in [AWKWARD, "", "Once upon a time, there was a cat.", "\u{0}\u{7f}\u{a0}\u{ad}"] {
            let text_bytes: u32 = t.encode(text).unwrap().iter().map(|&id| bytes[id as usize]).sum();
            assert_eq!(text_bytes as usize, text.len(), "{text:?}");
        }
    }
}

/// If a token may stand for different bytes in different places, no bytes are counted.
#[test]
fn bytes_of_tokens_are_unknown_where_they_may_differ() {
    let known = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json: serde_json::Value = serde_json::from_str(GPT2.to_json()).unwrap();
        change(&mut json);
        Tokenizer::from_run(json.to_string(), None).unwrap().token_byte_counts().is_some()
    };
    let byte_level = |space: bool| serde_json::json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": false, "use_regex": true});
    assert!(known(&|_| {}));
    assert!(known(&|json| {
        let digits = serde_json::json!({"type": "Digits", "individual_digits": true});
        json["pre_tokenizer"] =
            serde_json::json!({"type": "Sequence", "pretokenizers": [digits, byte_level(false)]});
    }));
    assert!(!known(&|json| json["normalizer"] = serde_json::json!({"type": "NFC"})));
    assert!(!known(&|json| json["pre_tokenizer"] = byte_level(true)));
    assert!(!known(&|json| json["pre_tokenizer"] = serde_json::json!({"type": "Whitespace"})));
    assert!(!known(&|json| json["decoder"] = serde_json::json!(null)));
    assert!(!known(&|json| json["added_tokens"].as_array_mut().unwrap().push(serde_json::json!({
        "id": 50_257, "content": "<tool>", "single_word": false, "lstrip": true, "rstrip": false,
        "normalized": false, "special": false,
    }))));
}

/// Returns the byte tokenizer's document after a change.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut json: serde_json::Value = serde_json::from_str(BYTE.to_json()).unwrap();
    change(&mut json);
    json.to_string()
}

fn added(id: u32, content: &str, special: bool, normalized: bool) -> serde_json::Value {
    serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": normalized, "special": special})
}

/// Every way in which the name of the end token could be written in a document and become the token: it is
/// plain text, or refused.
#[test]
fn no_text_becomes_the_end_token() {
    let fin = |special, normalized| {
        changed(|json| {
            json["model"]["vocab"]["<fin>"] = 257.into();
            json["added_tokens"].as_array_mut().unwrap().push(added(257, "<fin>", special, normalized));
        })
    };
    let lower = |json: String| {
        let mut json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["normalizer"] = serde_json::json!({"type": "Lowercase"});
        json.to_string()
    };
    let entry = changed(|json| json["model"]["vocab"]["<fin>"] = 257.into());
    let whole_words = changed(|json| {
        json["model"]["vocab"]["<fin>"] = 257.into();
        json["model"]["ignore_merges"] = true.into();
    });
    let words = serde_json::json!({"model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0, "<fin>": 1}},
        "pre_tokenizer": {"type": "WhitespaceSplit"}});
    let pieces = serde_json::json!({"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
        "vocab": [["a", 0.0], ["<fin>", 0.0], ["x", -1.0], [" ", -1.0]]}});
    let unknown = serde_json::json!({"model": {"type": "WordLevel", "unk_token": "<fin>", "vocab": {"x": 0, "<fin>": 1}},
        "pre_tokenizer": {"type": "WhitespaceSplit"}});
    let mut refused = 0;
    for json in [
        fin(true, false),
        fin(true, true),
        fin(false, false),
        fin(false, true),
        lower(fin(true, true)),
        lower(fin(false, true)),
        entry,
        whole_words,
        words.to_string(),
        pieces.to_string(),
        unknown.to_string(),
    ] {
        let inner = GuardedTokenizer::parse(&json).unwrap();
        let end = inner.token_to_id("<fin>").unwrap();
        let t = Tokenizer::from_run(json.clone(), Some(end)).unwrap();
        for text in ["x <fin> x", "<fin>", "x<FIN> <fin>", "a a"] {
            match t.encode(text) {
                Ok(tokens) => assert!(!tokens.contains(&end), "{json} {text}"),
                Err(e) => {
                    refused += 1;
                    assert!(e.message().contains("only separates documents"), "{e}");
                }
            }
        }
        // A chat template writes special tokens, which are meant.
        let recognizing = t.recognizing_special_tokens();
        let is_added = json.contains("\"content\":\"<fin>\"");
        assert!(!is_added || recognizing.encode("<fin>").unwrap().contains(&end), "{json}");
    }
    assert!(refused >= 6, "{refused}");
}

/// The ways in which a file beside a tokenizer.json names the end token, written and read again.
#[test]
fn a_stored_tokenizer_keeps_its_end_token() {
    let json = changed(|json| {
        json["model"]["vocab"]["<fin>"] = 257.into();
        json["added_tokens"].as_array_mut().unwrap().push(added(257, "<fin>", false, false));
    });
    let named = r#"{"eos_token": "<fin>"}"#;
    let object = r#"{"eos_token": {"content": "<fin>", "special": true}, "chat_template": "x"}"#;
    let other = r#"{"eos_token": "<|endoftext|>"}"#;
    let listing = r#"{"eos_token": "<|endoftext|>", "added_tokens_decoder": {}}"#;
    for (files, end) in [
        (vec![], 256),
        (vec![("tokenizer_config.json", named)], 257),
        (vec![("tokenizer_config.json", object)], 257),
        (vec![("special_tokens_map.json", named)], 257),
        (vec![("special_tokens_map.json", object)], 257),
        (vec![("tokenizer_config.json", r#"{"eos_token": null}"#), ("special_tokens_map.json", named)], 257),
        (vec![("generation_config.json", r#"{"eos_token_id": [256, 257]}"#)], 256),
        // Of two that differ transformers takes the map's, unless the settings list their tokens.
        (vec![("tokenizer_config.json", other), ("special_tokens_map.json", named)], 257),
        (vec![("tokenizer_config.json", listing), ("special_tokens_map.json", named)], 256),
    ] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(from.path().join("tokenizer.json"), &json).unwrap();
        files.iter().for_each(|(name, text)| std::fs::write(from.path().join(name), text).unwrap());
        let open = |folder: &Path| Tokenizer::open(folder.join("tokenizer.json").to_str().unwrap()).unwrap();
        let first = open(from.path());
        assert_eq!(first.end_token(), end, "{files:?}");
        first.write(to.path()).unwrap();
        let second = open(to.path());
        assert_eq!((second.end_token(), second.hash()), (end, first.hash()), "{files:?}");
        assert_eq!(second.settings().contains("chat_template"), first.settings().contains("chat_template"));
        let of_run = Tokenizer::from_run(json.clone(), Some(end)).unwrap();
        assert_eq!(of_run.hash(), first.hash(), "{files:?}");
        let other = Tokenizer::from_run(json.clone(), Some(513 - end)).unwrap();
        assert_ne!(other.hash(), first.hash(), "the end token is part of the hash");
    }
    let wrong = tempfile::tempdir().unwrap();
    std::fs::write(wrong.path().join("tokenizer.json"), &json).unwrap();
    std::fs::write(wrong.path().join("tokenizer_config.json"), r#"{"eos_token": [257]}"#).unwrap();
    let error = Tokenizer::open(wrong.path().join("tokenizer.json").to_str().unwrap()).unwrap_err();
    assert!(error.message().contains("neither text nor an object"), "{error}");
}

/// Every way in which files beside a tokenizer.json change it in transformers: they agree with it, or are
/// refused with the name of the file and the token.
#[test]
fn files_of_different_tokenizers_are_refused() {
    let json = changed(|json| {
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        tokens.push(added(257, "<x>", false, false));
        tokens.push(added(258, "<s>", true, false));
    });
    let flags = ["lstrip", "rstrip", "single_word", "normalized", "special"];
    let listed = |name: &str, flag: &str, value: bool| {
        format!(r#"{{"added_tokens_decoder": {{"257": {{"content": "{name}", "{flag}": {value}}}}}}}"#)
    };
    let mut cases: Vec<(&str, String, Option<&str>)> = Vec::new();
    for flag in flags {
        for (name, is_set) in [("<x>", false), ("<s>", flag == "special")] {
            cases.push((SETTINGS, listed(name, flag, is_set), None));
            cases.push((SETTINGS, listed(name, flag, !is_set), Some(flag)));
        }
        cases.push((SETTINGS, listed("<y>", flag, false), Some("\"<y>\", though added_tokens_decoder")));
    }
    // The end token is special whatever its flag.
    cases.push((SETTINGS, listed("<|endoftext|>", "special", false), None));
    for key in ["additional_special_tokens", "extra_special_tokens"] {
        for (there, missing) in [
            (r#"["<s>"]"#, r#"["<s>", "<y>"]"#),
            (r#"[{"content": "<x>"}]"#, r#"[{"content": "<y>"}]"#),
            (r#"{"image_token": "<s>"}"#, r#"{"image_token": "<y>"}"#),
        ] {
            for file in [SETTINGS, "special_tokens_map.json"] {
                cases.push((file, format!(r#"{{"{key}": {there}}}"#), None));
                cases.push((file, format!(r#"{{"{key}": {missing}}}"#), Some("no entry \"<y>\"")));
            }
        }
        cases.push((SETTINGS, format!(r#"{{"{key}": null}}"#), None));
    }
    cases.push(("added_tokens.json", r#"{"<x>": 257}"#.to_owned(), None));
    cases.push((
        "added_tokens.json",
        r#"{"<y>": 300}"#.to_owned(),
        Some("though added_tokens.json names it"),
    ));
    for (space, refused) in [("false", None), ("null", None), ("true", Some("add_prefix_space"))] {
        cases.push((SETTINGS, format!(r#"{{"add_prefix_space": {space}}}"#), refused));
    }
    // Padding is never part of a text.
    cases.push((SETTINGS, r#"{"pad_token": "[PAD]"}"#.to_owned(), None));
    for (file, text, refused) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), &json).unwrap();
        std::fs::write(folder.path().join(file), &text).unwrap();
        let opened = Tokenizer::open(folder.path().join(FILE).to_str().unwrap());
        match refused {
            None => _ = opened.unwrap_or_else(|e| panic!("{file} {text}: {e}")),
            Some(says) => {
                let message = opened.expect_err(&text).message().to_owned();
                assert!(message.contains(says) && message.contains("save_pretrained"), "{text}: {message}");
            }
        }
    }
}

/// Ids may leave out numbers, as GPT-4o's do; those decode to nothing.
#[test]
fn ids_may_have_holes() {
    let json = changed(|json| {
        json["model"]["vocab"]["<fin>"] = 300.into();
        json["added_tokens"].as_array_mut().unwrap().push(added(300, "<fin>", true, false));
    });
    let t = open_json(&json).unwrap();
    assert_eq!((t.vocab_size(), t.decode(&[97, 280, 98]).unwrap().as_str()), (301, "ab"));
    assert_eq!(t.token_byte_counts().unwrap().len(), 301);
    assert!(t.decode(&[301]).is_err());
}

/// Bytes without an entry, by every kind of model: they are counted, and the text that is kept is not.
#[test]
fn lost_bytes_are_counted() {
    let without_z = changed(|json| drop(json["model"]["vocab"].as_object_mut().unwrap().remove("z")));
    let normalized = {
        let mut json: serde_json::Value = serde_json::from_str(&without_z).unwrap();
        json["normalizer"] = serde_json::json!({"type": "NFC"});
        json.to_string()
    };
    let with_unknown = {
        let mut json: serde_json::Value = serde_json::from_str(&without_z).unwrap();
        json["model"]["vocab"]["<unk>"] = 257.into();
        json["model"]["unk_token"] = "<unk>".into();
        json.to_string()
    };
    let letters = serde_json::json!({"a": 0, "b": 1, "</s>": 2, "<unk>": 3});
    let bpe = serde_json::json!({"model": {"type": "BPE", "vocab": letters, "merges": []}});
    let words = serde_json::json!({"model": {"type": "WordLevel", "unk_token": "<unk>", "vocab": letters},
        "pre_tokenizer": {"type": "WhitespaceSplit"}});
    let word_pieces = serde_json::json!({"model": {"type": "WordPiece", "unk_token": "<unk>", "vocab": letters,
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}, "pre_tokenizer": {"type": "WhitespaceSplit"}});
    let pieces = serde_json::json!({"model": {"type": "Unigram", "unk_id": 3, "byte_fallback": false,
        "vocab": [["a", -1.0], ["b", -1.0], ["</s>", -1.0], ["<unk>", -9.0], [" ", -1.0]]}});
    for (json, text, lost) in [
        (BYTE.to_json().to_owned(), "azb é", (0, 0)),
        (without_z, "azb zzé", (3, 0)),
        (normalized, "azb zzé", (3, 0)),
        (with_unknown, "azb zzé", (0, 3)),
        (bpe.to_string(), "aéb é", (4, 0)),
        (words.to_string(), "a éé b", (0, 4)),
        (word_pieces.to_string(), "a éé b", (0, 4)),
        (pieces.to_string(), "aéb", (0, 2)),
    ] {
        let t = Tokenizer::from_run(json.clone(), None).unwrap();
        let (_, counted) = t.encode_counting(text).unwrap();
        assert_eq!((counted.vanished, counted.unknown), lost, "{json}");
        let warning = counted.warning("the text", text.len() as u64);
        assert_eq!(warning.is_some(), counted.total() > 0);
    }
}

/// Decoders drop the space before the first token of a text, but not inside one.
#[test]
fn a_continuation_is_decoded_as_a_part_of_its_text() {
    let vocab = serde_json::json!({"</s>": 0, "▁The": 1, "▁quick": 2, "▁fox": 3, "es": 4, "<0xC3>": 5, "<0xA9>": 6,
        "##s": 7, ".": 8});
    let decoders = [
        serde_json::json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
        serde_json::json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
        serde_json::json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        serde_json::json!({"type": "BPEDecoder", "suffix": "</w>"}),
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
        serde_json::Value::Null,
    ];
    // Its tokens end with the mark of a space.
    let suffixed = serde_json::json!({"</s>": 0, "The</w>": 1, "quick</w>": 2, "fox</w>": 3, "es</w>": 4, "caf": 5,
        "é</w>": 6, "s</w>": 7, ".</w>": 8});
    for decoder in decoders {
        let vocab = if decoder["type"] == "BPEDecoder" { &suffixed } else { &vocab };
        let json =
            serde_json::json!({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "decoder": decoder});
        let t = Tokenizer::from_run(json.to_string(), None).unwrap();
        for (before, after) in [
            (&[][..], &[2, 3][..]),
            (&[1, 2], &[3]),
            (&[1, 2], &[3, 4, 2]),
            (&[1], &[5, 6, 2]),
            (&[1; 20], &[2, 3]),
        ] {
            let whole = t.decode(&[before, after].concat()).unwrap();
            let text = t.decode(before).unwrap() + &t.decode_after(before, after).unwrap();
            assert_eq!(text, whole, "{decoder} {before:?} {after:?}");
        }
    }
}

/// What makes the library take all time or memory is refused, or ends.
#[test]
fn hostile_parts_are_refused() {
    let nested = |name: &str, kind: &str, part: serde_json::Value, count: usize| serde_json::json!({"type": kind, name: vec![part; count]});
    let lower = serde_json::json!({"type": "Lowercase"});
    let replace =
        serde_json::json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(17)});
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    for (field, part, says) in [
        ("normalizer", nested("normalizers", "Sequence", lower, 100_000), "parts; at most"),
        ("normalizer", replace.clone(), "16 times as long"),
        (
            "normalizer",
            serde_json::json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)}),
            "16 times as long",
        ),
        ("decoder", replace, "16 times as long"),
        (
            "decoder",
            nested("decoders", "Sequence", serde_json::json!({"type": "Fuse"}), 1000),
            "parts; at most",
        ),
    ] {
        let error = open_json(&changed(|json| json[field] = part)).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
    }
    // A template of many parts is not applied: it would copy the text as many times.
    let template = serde_json::json!({"type": "TemplateProcessing", "single": vec![text.clone(); 100_000],
        "pair": [text.clone(), text], "special_tokens": {}});
    let t = open_json(&changed(|json| json["post_processor"] = template)).unwrap();
    assert_eq!(t.encode("ab").unwrap(), [97, 98]);
}

#[test]
fn texts_begin_as_the_key_says() {
    let begin = |token: Option<&str>| BYTE.clone().beginning_with(token).unwrap();
    assert_eq!(begin(None).prompt("a").unwrap(), (vec![256, 97], 1));
    assert_eq!(begin(Some("<|endoftext|>")).begins(), Begin::End);
    assert_eq!(begin(Some("")).prompt("a").unwrap(), (vec![97], 0));
    assert_eq!(begin(Some("")).prompt("").unwrap(), (vec![256], 1), "a model needs a token to begin with");
    let z = begin(Some("z"));
    assert_eq!((z.prompt("a").unwrap(), z.opening_token()), ((vec![122, 97], 1), 122));
    assert!(z.encode("z").unwrap_err().message().contains("only separates documents"));
    assert!(BYTE.clone().beginning_with(Some("<s>")).unwrap_err().message().contains("data.begin_token"));
}
