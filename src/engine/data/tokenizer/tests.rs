use super::*;
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
        let bytes = t.token_byte_counts().unwrap().expect("a byte-level tokenizer");
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
        Tokenizer::from_json(json.to_string(), Some(END_OF_TEXT), Cut::Nowhere)
            .unwrap()
            .token_byte_counts()
            .unwrap()
            .is_some()
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
