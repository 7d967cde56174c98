//! A text's tokens are cached between runs; the cache changes only how long a run takes to begin.

use crate::place::Place;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

fn xrun(place: &Place, gib: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xrun"));
    command
        .args(arguments)
        .current_dir(place.path())
        .env_clear()
        .env("XRUN_CACHE", place.path().join("cache"));
    command.env("XRUN_CACHE_GIB", gib).output().unwrap()
}

fn printed(place: &Place, arguments: &[&str]) -> String {
    let output = xrun(place, "1", arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_run_with_cached_tokens_has_the_bits_of_one_without() {
    let place = Place::new();
    let text: String = (0..60_000).map(|n| format!("sentence {n} of a text.\n")).collect();
    place.write("text.txt", text.as_bytes());
    let train =
        ["tiny.toml", "data.corpus=text.txt", "data.tokenizer=byte", "training.steps=3", "checkpoint.keep=0"];
    for gib in ["0", "1", "1"] {
        assert!(xrun(&place, gib, &train).status.success());
        assert_eq!(place.path().join("cache/tokens").exists(), gib == "1");
    }
    let runs = place.runs();
    let facts = |run: &crate::place::Run| {
        (run.text("metrics.csv"), run.summary().corpus_hash, run.summary().recipe_hash)
    };
    assert_eq!((facts(&runs[1]), facts(&runs[2])), (facts(&runs[0]), facts(&runs[0])));

    let list: Value = serde_json::from_str(&printed(&place, &["data", "--cached", "--json"])).unwrap();
    let texts = list["texts"].as_array().unwrap();
    assert_eq!((texts.len(), &texts[0]["tokenizer"]), (1, &"byte".into()));
    assert!(texts[0]["text"].as_str().unwrap().ends_with("text.txt"));
    assert_eq!((&list["bytes"], &list["limit_bytes"]), (&texts[0]["bytes"], &(1u64 << 30).into()));
    let shown = printed(&place, &["data", "--cached"]);
    assert!(shown.contains("text.txt") && shown.contains("1 text, "), "{shown}");

    // A damaged entry is reported on the terminal and in the log, and rebuilt.
    let entry = texts[0]["path"].as_str().unwrap();
    let mut bytes = fs::read(entry).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(entry, &bytes).unwrap();
    let again = xrun(&place, "1", &train);
    assert!(String::from_utf8_lossy(&again.stderr).contains("are damaged: the text is tokenized again"));
    let last = place.runs().pop().unwrap();
    assert!(last.text("log").contains("are damaged"));
    assert_eq!(facts(&last), facts(&runs[0]));

    printed(&place, &["data", "--clear-cached"]);
    assert!(printed(&place, &["data", "--cached"]).contains("0 texts, 0.0 MiB of 1024.0"));
    let wrong = xrun(&place, "lots", &train);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("XRUN_CACHE_GIB = lots"));
}

/// A packed text is planned, trained on, cached and resumed on like the text itself, bit for bit.
#[test]
fn a_packed_text_is_trained_on_as_the_text_is() {
    let place = Place::new();
    // Packed, it is still large enough to be cached.
    let number = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(n | 1);
    let text: String = (0..150_000).map(|n| format!("{:016x}\n", number(n))).collect();
    let path = place.write("text.txt", text.as_bytes());
    assert!(Command::new("gzip").arg("-k").arg(&path).status().unwrap().success());
    let train = |corpus| {
        [
            "tiny.toml",
            corpus,
            "data.tokenizer=byte",
            "training.steps=6",
            "checkpoint.interval=2",
            "checkpoint.keep=9",
        ]
    };
    let packed = train("data.corpus=text.txt.gz");
    printed(&place, &[&["plan"], &packed[..]].concat());
    assert!(xrun(&place, "0", &train("data.corpus=text.txt")).status.success());
    for _ in 0..2 {
        assert!(xrun(&place, "1", &packed).status.success());
    }
    let runs = place.runs();
    let facts = |run: &crate::place::Run| (run.text("metrics.csv"), run.summary().corpus_hash);
    for run in &runs[1..] {
        assert_eq!(facts(run), facts(&runs[0]));
    }
    let list: Value = serde_json::from_str(&printed(&place, &["data", "--cached", "--json"])).unwrap();
    let texts = list["texts"].as_array().unwrap();
    assert_eq!(texts.len(), 1);
    assert!(texts[0]["text"].as_str().unwrap().ends_with("text.txt.gz"));

    runs[1].forget_after(2);
    assert!(xrun(&place, "0", &["resume", runs[1].name()]).status.success());
    assert_eq!(facts(&runs[1]), facts(&runs[0]));
    let difference = xrun::checkpoint::first_difference(&runs[1].newest(), &runs[0].newest());
    assert_eq!(difference.unwrap(), None);

    // Another file under the name is another corpus, and half a file is none.
    let whole = fs::read(path.with_extension("txt.gz")).unwrap();
    place.write("text.txt.gz", &whole[..whole.len() / 2]);
    let refused = xrun(&place, "1", &packed);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("text.txt.gz is cut off"));
}
