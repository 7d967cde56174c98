//! Wrong input to the binary: recipes, corpora, shards, tokenizers. It always gives a message, never a panic.

use crate::place::Place;

#[test]
fn ten_wrong_recipes_are_shown_where_they_are_wrong() {
    let place = Place::new();
    for (text, line, said) in [
        ("[model]\ndimm = 32\n", 2, "dim"),
        ("[modle]\ndim = 32\n", 1, "model"),
        ("[model]\n\ndim = \"wide\"\n", 3, "a whole number"),
        ("[training]\nsteps = 0\n", 2, "less than 1"),
        ("[optimizer]\nlr = -1.0\n", 2, "out of range"),
        ("[optimizer]\nlr = nan\n", 2, "lr"),
        ("[training]\ndtype = \"fp23\"\n", 2, "fp32"),
        ("[model]\ndim = 32\ndim = 64\n", 3, "dim"),
        ("[model\ndim = 32\n", 1, "wrong.toml"),
        ("[model]\nn_heads = 4\nn_kv_heads = 3\n", 3, "evenly"),
        ("[training]\nlocal_batch_size = 3\nglobal_batch_size = 8\n", 3, "multiple"),
        ("[lr_scheduler]\nwarmup_steps = 2000\n", 2, "warm-up"),
    ] {
        place.write("wrong.toml", text.as_bytes());
        let done = place.xrun(&["wrong.toml"]).ended(2);
        assert_eq!(done.stdout, "");
        done.says(&[&format!("wrong.toml:{line}:"), said]);
    }
    place.xrun(&["missing.toml"]).ended(2).says(&["missing.toml"]);
    place.xrun(&["sampel", "latest"]).ended(2).says(&["or did you mean `xrun sample`?"]);
    place.xrun(&["trian", "tiny.toml"]).ended(2).says(&["or did you mean `xrun run`?"]);
    place.xrun(&["quikstart"]).ended(2).says(&["did you mean the built-in recipe quickstart?"]);
    place.xrun(&["tiny"]).ended(2).says(&["did you mean tiny.toml?"]);
    place.xrun(&["tiny.toml", "--steps", "4"]).ended(2).says(&["training.steps=4"]);
    place.write("notes.txt", b"text");
    for (corpus, near) in [("note.txt", "/notes.txt?"), ("storys", "; did you mean stories?")] {
        let corpus = format!("data.corpus={corpus}");
        place.xrun(&["tiny.toml", &corpus]).ended(2).says(&["no such file or folder; did you mean ", near]);
    }
    place.xrun(&["tiny.toml", "model.dim=0"]).ended(2).says(&["command line:1:"]);
    assert!(!place.path().join("results").exists());
}

/// Makes an llm.c shard that claims to have `tokens` tokens and contains `ids`.
fn shard(tokens: i32, ids: &[u16]) -> Vec<u8> {
    let mut header = [0i32; 256];
    header[..3].copy_from_slice(&[20_240_520, 1, tokens]);
    let header = header.iter().flat_map(|word| word.to_le_bytes());
    header.chain(ids.iter().flat_map(|id| id.to_le_bytes())).collect()
}

#[test]
fn a_wrong_corpus_is_refused() {
    let place = Place::new();
    let ids: Vec<u16> = (0..4000).map(|i| i % 256).collect();
    let whole = shard(4000, &ids);
    place.write("whole.bin", &whole);
    place.xrun(&["tiny.toml", "data.corpus=whole.bin", "data.tokenizer=byte", "training.steps=2"]).succeeds();
    let mut wrong_version = whole.clone();
    wrong_version[4] = 9;
    let mut foreign = ids.clone();
    foreign[2000] = 60_000;
    for (name, bytes) in [
        ("empty.bin", Vec::new()),
        ("header-only.bin", whole[..1024].to_vec()),
        ("half-a-header.bin", whole[..600].to_vec()),
        ("truncated.bin", whole[..5000].to_vec()),
        ("odd.bin", whole[..whole.len() - 1].to_vec()),
        ("lying.bin", shard(i32::MAX, &ids)),
        ("negative.bin", shard(-1, &ids)),
        ("version.bin", wrong_version),
        ("foreign-token.bin", shard(4000, &foreign)),
        ("short.bin", shard(10, &ids[..10])),
        ("empty.txt", Vec::new()),
        ("short.txt", b"too short".to_vec()),
        ("latin1.txt", [b"caf\xe9 ".repeat(400)].concat()),
        ("broken.jsonl", b"{\"text\": \"a cat\"}\n{\"text\": \"a d".to_vec()),
        ("no-text.jsonl", b"{\"body\": \"a cat\"}\n".to_vec()),
        ("nested.jsonl", [b"{\"text\": ".as_slice(), &b"[".repeat(100_000)].concat()),
    ] {
        place.write(name, &bytes);
        let done = place.xrun(&[
            "tiny.toml",
            &format!("data.corpus={name}"),
            "data.tokenizer=byte",
            "training.steps=2",
        ]);
        assert!([Some(1), Some(2)].contains(&done.code), "{name}: {:?}\n{}", done.code, done.stderr);
        done.says(&["error: ", name]);
    }
    std::fs::create_dir(place.path().join("folder")).unwrap();
    for corpus in ["folder", "missing.txt", "/dev/null"] {
        place
            .xrun(&["tiny.toml", &format!("data.corpus={corpus}"), "data.tokenizer=byte"])
            .ended(2)
            .says(&[corpus]);
    }
    assert_eq!(place.runs().len(), 1, "only the whole shard was trained on");
}

#[test]
fn a_wrong_tokenizer_is_refused() {
    let place = Place::new();
    place.xrun(&["tiny.toml", "training.steps=2"]).succeeds();
    let whole = place.run().file("tokenizer.json");
    let mut flipped = whole.clone();
    let at = whole.windows(6).position(|w| w == b"\"type\"").unwrap();
    flipped[at + 1] ^= 1;
    for (name, bytes) in [
        ("empty.json", Vec::new()),
        ("truncated.json", whole[..whole.len() / 2].to_vec()),
        ("flipped.json", flipped),
        ("array.json", b"[1, 2, 3]".to_vec()),
        ("binary.json", (0..=255).collect()),
        ("nested.json", b"[".repeat(100_000)),
    ] {
        place.write(name, &bytes);
        let done = place.xrun(&["tiny.toml", &format!("data.tokenizer={name}"), "training.steps=2"]).ended(2);
        done.says(&["error: ", name]);
    }
    place.xrun(&["tiny.toml", "data.tokenizer=missing.json"]).ended(2).says(&["missing.json"]);
    assert_eq!(place.runs().len(), 1);
}

#[test]
fn a_checkpoint_that_lies_is_refused() {
    let whole = Place::killed_after(5).run().file("checkpoint/step-000005/model.safetensors");
    let lying = |length: u64| [&length.to_le_bytes()[..], &whole[8..]].concat();
    for bytes in
        [Vec::new(), whole[..7].to_vec(), lying(u64::MAX), lying(1 << 40), [&whole[..], b"more"].concat()]
    {
        let place = Place::killed_after(5);
        let run = place.run();
        place.write(&format!("{}/checkpoint/step-000005/model.safetensors", run.name()), &bytes);
        for arguments in [&["resume"][..], &["sample", run.name()], &["export", run.name(), "--to", "out"]] {
            place.xrun(arguments).ended(1).says(&["error: ", "model.safetensors"]);
        }
        assert!(!place.path().join("out").exists());
    }
}
