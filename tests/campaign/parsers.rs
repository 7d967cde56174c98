//! The parsers, each with valid inputs to begin from.

use crate::place::Place;
use crate::runner::{SLOW, run, twice};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xrun::data::tokenizer::GuardedTokenizer;
use xrun::data::{self, Spec, Tokenizer};
use xrun::machine::Machine;
use xrun::ranks::Connection;
use xrun::results::folder::read_summary;
use xrun::results::ledger::{LEDGER, Ledger};
use xrun::results::rows::{self, MetricsRow, TimingRow};
use xrun::{checkpoint, recipe};

/// A file that a parser reads, in memory where the system has a folder there.
struct Input {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Input {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Self { _folder: folder, path }
    }

    fn folder(&self) -> &Path {
        self._folder.path()
    }

    fn set(&self, bytes: &[u8]) {
        fs::write(&self.path, bytes).unwrap();
    }
}

fn read_all(folder: &Path, files: &[&str]) -> Vec<Vec<u8>> {
    files.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

#[test]
fn recipes() {
    let valid: Vec<Vec<u8>> =
        recipe::builtin::RECIPES.iter().map(|(_, text)| text.as_bytes().to_vec()).collect();
    run("recipe", &valid, twice, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        recipe::load_str(Path::new("mine.toml"), text, &[], std::iter::empty(), &Machine::none()).is_ok()
    });
}

/// Found by this campaign: each wrong line was searched for among all others, which took minutes.
#[test]
fn recipes_of_many_wrong_lines_are_refused_at_once() {
    let unknown: String = (0..8000).map(|i| format!("k{i}=1\n")).collect();
    for text in ["a=1\n".repeat(20_000), format!("[model]\n{unknown}")] {
        let began = Instant::now();
        let error =
            recipe::load_str(Path::new("mine.toml"), &text, &[], std::iter::empty(), &Machine::none())
                .unwrap_err();
        assert!(error.message().contains("mine.toml"), "{error}");
        assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
    }
}

/// The library builds its tables from the file: at most this many bytes for each byte of a tokenizer.json,
/// beside the 64 MiB that every parser may use. docs/data.md names the factor.
const TOKENIZER_FACTOR: usize = 40;

#[test]
fn tokenizers() {
    let json = |name: &str| Tokenizer::open(name).unwrap().to_json().as_bytes().to_vec();
    let mut valid = vec![json("byte"), json("stories")];
    let change = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut document: serde_json::Value = serde_json::from_slice(&json("byte")).unwrap();
        change(&mut document);
        document.to_string().into_bytes()
    };
    valid.push(change(&|d| d["normalizer"] = serde_json::json!({"type": "Sequence", "normalizers": [
        {"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}, {"type": "Lowercase"},
        {"type": "Prepend", "prepend": "x"}, {"type": "Strip", "strip_left": true, "strip_right": true}]})));
    valid.push(change(&|d| d["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+"}, "behavior": "Isolated", "invert": false},
        {"type": "Digits", "individual_digits": true}, {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]})));
    valid.push(change(&|d| {
        d["model"] = serde_json::json!({"type": "WordLevel", "unk_token": "[UNK]", "vocab":
        {"[UNK]": 0, "a": 1, "tale": 2, "<|endoftext|>": 3}})
    }));
    run(
        "tokenizer",
        &valid,
        |bytes| TOKENIZER_FACTOR * bytes + (64 << 20),
        |input| {
            let Ok(text) = std::str::from_utf8(input) else { return false };
            let Ok(tokenizer) = GuardedTokenizer::parse(text) else { return false };
            let Ok(ids) = tokenizer.encode("A tale of 12 \u{1e9b}\u{fb01}ne\n\n foxes") else { return true };
            let _ = tokenizer.decode(&ids);
            let _ = Tokenizer::from_run(text.to_owned(), Some(3));
            true
        },
    );
}

/// The factor of a real vocabulary: 50,257 entries with 50,000 merges.
#[test]
fn the_memory_of_a_large_tokenizer_is_as_documented() {
    let _alone = crate::runner::alone();
    let json = Tokenizer::open("gpt2").unwrap().to_json().to_owned();
    let (parsed, peak) = crate::measure::peak_of(|| GuardedTokenizer::parse(&json));
    assert!(parsed.is_ok());
    let factor = peak as f64 / json.len() as f64;
    println!("tokenizer.json of gpt2: {} bytes, {peak} bytes at most, {factor:.1} times", json.len());
    assert!(factor < TOKENIZER_FACTOR as f64, "{factor}");
}

#[test]
fn token_files() {
    let place = Input::new("shards/train.bin");
    let spec = Spec { train_tokens: 600, validation_tokens: 60, ..Spec::new("stories", "byte") };
    let mut shard = Vec::new();
    for header in [[20_240_520u32, 1, 400], [20_240_801, 7, 400]] {
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(1024, 0);
        let width = if header[1] == 1 { 2 } else { 4 };
        (0..400u32).for_each(|i| bytes.extend(&(i % 256).to_le_bytes()[..width]));
        shard.push(bytes);
    }
    shard.push((0..400u16).flat_map(|i| (i % 256).to_le_bytes()).collect());
    let corpus = place.path.parent().unwrap().to_str().unwrap().to_owned();
    run("shard", &shard, twice, |input| {
        place.set(input);
        let spec = Spec { corpus: corpus.clone(), ..spec.clone() };
        let _ = data::facts(&spec);
        data::open(&spec, 8).is_ok()
    });
}

#[test]
fn texts() {
    for (parser, name, valid) in [
        (
            "text",
            "a.txt",
            &["one<|endoftext|>two\r\n\n<|endoftext|>drei ß € 😀", "\u{feff}with a mark, long enough"][..],
        ),
        (
            "jsonl",
            "a.jsonl",
            &["{\"text\": \"one \\n\\u00e9\", \"id\": 3}\n\n{\"text\":\"and another\"}\r\n"],
        ),
    ] {
        let place = Input::new(name);
        let valid: Vec<Vec<u8>> = valid.iter().map(|text| text.as_bytes().to_vec()).collect();
        let path = place.path.to_str().unwrap().to_owned();
        // The byte tokenizer makes four bytes of tokens of each byte.
        run(
            parser,
            &valid,
            |bytes| 8 * bytes + (64 << 20),
            |input| {
                place.set(input);
                let plain = Spec { validation: data::Validation::Fraction(0.5), ..Spec::new(&path, "byte") };
                let parted = Spec { document_separator: Some("<|endoftext|>".to_owned()), ..plain.clone() };
                let _ = data::facts(&plain);
                let _ = data::open(&parted, 1);
                data::open(&plain, 1).is_ok()
            },
        );
    }
}

/// The files of a checkpoint, each mutated beside the others. One that is vouched for by the manifest is
/// verified by its hash first, so its own reader sees it only where the manifest says the same: that is done
/// here too.
#[test]
fn checkpoints() {
    let place = Place::killed_after(15);
    let folder = place.run().checkpoints();
    let step = folder.join(checkpoint::folder_name(15));
    fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir() && *p != step).for_each(
        |p| {
            fs::remove_dir_all(p).unwrap();
        },
    );
    let names = ["manifest.json", "model.safetensors", "optimizer.safetensors"];
    let files = read_all(&step, &names);
    let manifest = String::from_utf8(files[0].clone()).unwrap();
    for (name, original) in names.into_iter().zip(&files) {
        run(name.split('.').next().unwrap(), std::slice::from_ref(original), twice, |input| {
            fs::write(step.join(name), input).unwrap();
            if name != names[0] {
                let of = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
                let vouched = manifest.replace(&of(original), &of(input)).replace(
                    &format!("\"bytes\": {}", original.len()),
                    &format!("\"bytes\": {}", input.len()),
                );
                fs::write(step.join(names[0]), vouched).unwrap();
            }
            let loaded = checkpoint::newest(&folder);
            let taken = loaded.as_ref().is_ok_and(Option::is_some);
            if let Ok(Some(loaded)) = loaded {
                let _ = (loaded.check_finite(), loaded.hash());
            }
            taken
        });
        fs::write(step.join(name), original).unwrap();
        fs::write(step.join(names[0]), &files[0]).unwrap();
    }
}

#[test]
fn rows_and_summaries() {
    let place = Place::killed_after(15);
    let run_folder = place.run().path;
    let [metrics, timing, summary] =
        &read_all(&run_folder, &["metrics.csv", "timing.csv", "summary.json"])[..]
    else {
        unreachable!()
    };
    let input = Input::new("rows.csv");
    run("metrics", std::slice::from_ref(metrics), twice, |bytes| {
        input.set(bytes);
        rows::read::<MetricsRow>(&input.path).is_ok()
    });
    run("timing", std::slice::from_ref(timing), twice, |bytes| {
        input.set(bytes);
        rows::read::<TimingRow>(&input.path).is_ok()
    });
    let input = Input::new("summary.json");
    run("summary", std::slice::from_ref(summary), twice, |bytes| {
        input.set(bytes);
        read_summary(input.folder()).is_ok()
    });
}

#[test]
fn ledgers() {
    let line = |at: usize, status: &str| {
        serde_json::json!({
            "key": format!("k{at}"), "attempt": 1, "status": status, "recipe": "r", "recipe_hash": "h", "build": "b",
            "settings": {"model.dim": "64"}, "device": "d", "at": "2026-11-02T03:04:05Z",
            "measured": {"train_loss": 1.5, "tok_s": 1000.0, "contended": false},
        })
        .to_string()
    };
    let valid = [line(1, "running"), line(1, "ok"), line(2, "failed")].join("\n") + "\n";
    let input = Input::new(LEDGER);
    run("ledger", &[valid.into_bytes()], twice, |bytes| {
        input.set(bytes);
        let read = Ledger::read(input.folder()).is_ok();
        // Opening cuts off what a crash left.
        let _ = Ledger::open(input.folder());
        read
    });
}

#[test]
fn pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let input = Input::new("README.md");
    let page = "# A page\n\ntext `code`\n\n```md\n<!-- xrun:end -->\n```\n<!-- xrun:report kind=\"runs\" select=\"quickstart\" \
                columns=\"tok_s,loss\" -->\n| a |\n|--|\n<!-- xrun:end -->\n\n- item\n\n> quote\n";
    run("page", &[page.as_bytes().to_vec()], twice, |bytes| {
        input.set(bytes);
        let pages = [input.path.clone()];
        let kept = root.join("results/none");
        let scope =
            xrun::report::blocks::Scope { pages: &pages, is_whole: false, kept: &kept, root: input.folder() };
        xrun::report::blocks::check(&scope).is_ok()
    });
}

#[test]
fn frames() {
    let frame = |header: &str, body: &[u8]| {
        let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(body);
        bytes
    };
    let valid = [
        frame(r#"{"hello": {"rank": 1, "world": 2, "version": "0.5"}}"#, b""),
        frame(r#"{"contribute": {"name": "step 3", "kind": "f32"}}"#, &[7; 600]),
    ];
    run("frame", &valid, twice, |input| {
        let mut taken = false;
        for handshake in [false, true] {
            let (mut here, there) = UnixStream::pair().unwrap();
            let mut connection = Connection::Unix(there);
            connection.set_timeout(Some(Duration::from_secs(5))).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    // The reader may have refused the beginning and be gone.
                    let _ = here.write_all(input);
                    let _ = here.shutdown(std::net::Shutdown::Both);
                });
                if handshake {
                    let deadline = Instant::now() + Duration::from_secs(5);
                    let _ = connection.receive_handshake::<serde_json::Value>(deadline);
                } else {
                    taken |= connection.receive::<serde_json::Value>(|| {}).is_ok();
                }
                connection.close();
            });
        }
        taken
    });
}
