//! Exports a trained run as a Hugging Face folder, and as a file in GGUF.

use crate::place::{Place, UNINTERRUPTED};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

#[test]
fn a_run_is_exported_the_same_twice_and_unpadded() {
    let run = UNINTERRUPTED.run();
    let place = Place::new();
    for to in ["a", "b"] {
        place.xrun(&["export", run.name(), "--to", to]).succeeds();
    }
    let file = |folder: &str, name: &str| std::fs::read(place.path().join(folder).join(name)).unwrap();
    let files = [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "xrun-reference.json",
    ];
    for name in files {
        assert!(file("a", name) == file("b", name), "{name} differs");
    }
    assert_eq!(std::fs::read_dir(place.path().join("a")).unwrap().count(), files.len());
    // The export says in the form of transformers with which token texts begin; nothing else differs.
    let mut exported: serde_json::Value = serde_json::from_slice(&file("a", "tokenizer.json")).unwrap();
    let mut own: serde_json::Value = serde_json::from_slice(&run.file("tokenizer.json")).unwrap();
    assert_eq!(exported["post_processor"]["type"], "TemplateProcessing");
    for tokenizer in [&mut exported, &mut own] {
        tokenizer["post_processor"].take();
    }
    assert_eq!(exported, own);
    let config: serde_json::Value = serde_json::from_slice(&file("a", "config.json")).unwrap();
    let vocab = config["vocab_size"].as_u64().unwrap() as usize;
    assert_eq!(config["architectures"][0], "Qwen3ForCausalLM");
    let tokenizer = tokenizers::Tokenizer::from_bytes(file("a", "tokenizer.json")).unwrap();
    assert_eq!(tokenizer.get_vocab_size(true), vocab);
    assert_eq!(config["eos_token_id"], tokenizer.token_to_id("<|endoftext|>").unwrap());

    let bytes = file("a", "model.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    for (name, shape) in [
        ("model.embed_tokens.weight".to_owned(), vec![vocab, 32]),
        ("lm_head.weight".to_owned(), vec![vocab, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
        (layer("self_attn.q_proj"), vec![32, 32]),
        (layer("self_attn.k_proj"), vec![32, 32]),
        (layer("self_attn.v_proj"), vec![32, 32]),
        (layer("self_attn.o_proj"), vec![32, 32]),
        (layer("self_attn.q_norm"), vec![16]),
        (layer("mlp.gate_proj"), vec![64, 32]),
        (layer("mlp.down_proj"), vec![32, 64]),
    ] {
        assert_eq!(tensors.tensor(&name).unwrap().shape(), shape, "{name}");
    }
    assert_eq!(
        tensors.tensor("lm_head.weight").unwrap().data(),
        run.newest().read("head", &[vocab, 32]).unwrap()
    );
}

/// Returns the number of tensors in a file in GGUF, and its keys that are texts, by the published layout.
fn texts_in_gguf(file: &[u8]) -> (u64, BTreeMap<String, String>) {
    let number = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let text = |at: usize| String::from_utf8(file[at + 8..at + 8 + number(at) as usize].to_vec()).unwrap();
    assert_eq!(file[..8], *b"GGUF\x03\0\0\0");
    let (tensors, keys) = (number(8), number(16));
    let (mut at, mut found) = (24, BTreeMap::new());
    for _ in 0..keys {
        let key = text(at);
        at += 8 + key.len();
        let kind = file[at];
        at += 4;
        at += match kind {
            4 | 6 => 4,
            7 => 1,
            8 => {
                found.insert(key, text(at));
                8 + number(at) as usize
            }
            9 => {
                let (inner, count) = (file[at], number(at + 4) as usize);
                let size = |from: usize| if inner == 8 { 8 + number(from) as usize } else { 4 };
                (0..count).fold(12, |size_so_far, _| size_so_far + size(at + size_so_far))
            }
            _ => panic!("format {kind}"),
        };
    }
    (tensors, found)
}

#[test]
fn a_run_is_exported_for_llama_cpp() {
    let place = Place::new();
    let settings = ["data.tokenizer=byte", "training.steps=2", "checkpoint.interval=0", "model.n_kv_heads=1"];
    place.xrun(&[&["tiny.toml", "data.card=CC0", "model.qk_norm=false"], &settings[..]].concat()).succeeds();
    let export = |to: &str, options: &[&str]| {
        place.xrun(&[&["export", "latest", "--format", "gguf", "--to", to], options].concat())
    };
    export("a.gguf", &[]).succeeds();
    let file = |name: &str| std::fs::read(place.path().join(name)).unwrap();
    let first = file("a.gguf");
    let (tensors, texts) = texts_in_gguf(&first);
    assert_eq!(tensors, 3 + 9);
    for (key, value) in [
        ("general.architecture", "llama"),
        ("general.name", "a"),
        ("general.dataset.0.description", "CC0"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "gpt-2"),
    ] {
        assert_eq!(texts.get(key).map(String::as_str), Some(value), "{key}");
    }
    export("a.gguf", &[]).succeeds();
    assert!(file("a.gguf") == first, "the same run gives the same bytes");
    export("half.gguf", &["--dtype", "fp16"]).succeeds();
    assert!(file("half.gguf").len() < first.len() * 2 / 3);

    place.write("notes.txt", b"precious");
    let refused = export("notes.txt", &[]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("notes.txt exists and is not in GGUF"), "{}", refused.stderr);
    assert_eq!(file("notes.txt"), b"precious");

    // The tokenizer of the stories splits by an expression of its own.
    let stories = UNINTERRUPTED.xrun(&["export", "latest", "--format", "gguf", "--to", "no.gguf"]);
    assert_eq!(stories.code, Some(2));
    assert!(stories.stderr.contains(r" ?\p{L}+| ?[^\s\p{L}]|\s"), "{}", stories.stderr);
    assert!(!UNINTERRUPTED.path().join("no.gguf").exists());
}

/// Under greedy decoding, transformers gives the same text as `xrun sample`. `XRUN_TEST_PYTHON` names a
/// python with torch and transformers.
#[test]
fn transformers_continues_a_prompt_as_xrun_does() {
    let Some(python) = std::env::var_os("XRUN_TEST_PYTHON") else {
        eprintln!("skipped: set XRUN_TEST_PYTHON to a python that has torch and transformers");
        return;
    };
    let place = Place::new();
    let settings = ["training.steps=200", "checkpoint.interval=0", "model.n_kv_heads=1", "model.n_layers=2"];
    place.xrun(&[&["tiny.toml"], &settings[..]].concat()).succeeds();
    place.xrun(&["export", "latest", "--to", "exported"]).succeeds();
    for prompt in ["Once upon a time", "The little", ""] {
        let sampled = place.xrun(&[
            "sample",
            "latest",
            "--json",
            "--samples",
            "1",
            "--tokens",
            "16",
            "--temperature",
            "0",
            "--prompt",
            prompt,
        ]);
        let sampled: serde_json::Value = serde_json::from_str(&sampled.succeeds().stdout).unwrap();
        // xrun begins every text with the end token, as documents began in training.
        let output = Command::new(&python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check_export.py"))
            .arg(place.path().join("exported"))
            .args(["--tokens", "16", "--prompt", &format!("<|endoftext|>{prompt}")])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
        let tokens = said.lines().find_map(|line| line.strip_prefix("greedy")).unwrap().trim();
        let tokens: Vec<u32> = serde_json::from_str(tokens).unwrap();
        let tokenizer =
            tokenizers::Tokenizer::from_file(place.path().join("exported/tokenizer.json")).unwrap();
        let end = tokenizer.token_to_id("<|endoftext|>").unwrap();
        let tokens: Vec<u32> = tokens.into_iter().take_while(|token| *token != end).collect();
        assert_eq!(sampled["text"], tokenizer.decode(&tokens, false).unwrap(), "after {prompt:?}");
    }
}
