//! Damage of every kind to a stored checkpoint: found before use, the one before it used instead, and said
//! so.

use crate::checkpoint::saved;
use crate::checkpoint::state::{State, loaded_hash, newest_of, scratch};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use xrun::checkpoint::newest;

const FILES: [&str; 3] = ["model.safetensors", "optimizer.safetensors", "manifest.json"];

/// Two checkpoints of which the newer is damaged by `damage`, over and over.
struct Damaged {
    _at: tempfile::TempDir,
    dir: PathBuf,
    old: State,
    new: State,
}

impl Damaged {
    fn new() -> Self {
        let at = scratch();
        let (old, new) = (State::new(100, 1), State::new(200, 2));
        let dir = saved(at.path(), &[&old, &new]);
        Self { _at: at, dir, old, new }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join("step-000200").join(name)
    }

    /// The newest checkpoint must now be the old one, and say so.
    fn falls_back(&self, damage: &str) {
        let loaded = newest(&self.dir).unwrap_or_else(|e| panic!("{damage}: {e}")).unwrap();
        assert_eq!(loaded.meta().step, 100, "{damage}");
        assert_eq!(loaded_hash(&loaded), self.old.hash(), "{damage}");
        assert!(loaded.warnings()[0].contains("step-000200 cannot be used"), "{damage}");
    }

    /// Writes each content in turn to a file of the newer checkpoint, then puts things right.
    fn each(&self, name: &str, contents: impl Iterator<Item = (String, Vec<u8>)>) {
        let path = self.file(name);
        let whole = fs::read(&path).unwrap();
        for (damage, content) in contents {
            assert_ne!(content, whole);
            fs::write(&path, content).unwrap();
            self.falls_back(&format!("{name}: {damage}"));
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(newest_of(&self.dir, &[&self.new]), Some(0));
    }
}

#[test]
fn every_truncation_is_found() {
    let damaged = Damaged::new();
    for name in FILES {
        let whole = fs::read(damaged.file(name)).unwrap();
        let lengths = (0..whole.len()).filter(|n| *n < 16 || n % 7 == 0 || n + 16 > whole.len());
        damaged.each(name, lengths.map(|n| (format!("cut to {n}"), whole[..n].to_vec())));
        let longer = [whole.as_slice(), b"\0"].concat();
        damaged.each(name, std::iter::once(("one byte too many".to_string(), longer)));
    }
}

#[test]
fn every_flipped_header_bit_and_sampled_payload_bits_are_found() {
    let damaged = Damaged::new();
    for name in FILES {
        let whole = fs::read(damaged.file(name)).unwrap();
        let header = match name {
            "manifest.json" => whole.len(),
            _ => 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize,
        };
        let payload = (header * 8..whole.len() * 8).step_by(13);
        damaged.each(
            name,
            (0..header * 8).chain(payload).map(|bit| {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                (format!("bit {bit}"), flipped)
            }),
        );
    }
}

#[test]
fn missing_files_and_files_of_another_checkpoint_are_found() {
    for name in FILES {
        let damaged = Damaged::new();
        fs::remove_file(damaged.file(name)).unwrap();
        damaged.falls_back("missing");
        fs::create_dir(damaged.file(name)).unwrap();
        damaged.falls_back("a folder");
        fs::remove_dir(damaged.file(name)).unwrap();
        fs::copy(damaged.dir.join("step-000100").join(name), damaged.file(name)).unwrap();
        damaged.falls_back("of step 100");
    }
    let damaged = Damaged::new();
    fs::remove_dir_all(damaged.dir.join("step-000200")).unwrap();
    fs::write(damaged.dir.join("step-000200"), b"no folder").unwrap();
    damaged.falls_back("no folder");
}

#[test]
fn a_renamed_checkpoint_is_found() {
    let damaged = Damaged::new();
    fs::rename(damaged.dir.join("step-000200"), damaged.dir.join("step-000300")).unwrap();
    let loaded = newest(&damaged.dir).unwrap().unwrap();
    assert_eq!(loaded.meta().step, 100);
    assert!(loaded.warnings()[0].contains("the manifest belongs to step 200"), "{:?}", loaded.warnings());
}

#[test]
fn when_all_are_damaged_it_is_an_error() {
    let damaged = Damaged::new();
    for step in ["step-000100", "step-000200"] {
        fs::write(damaged.dir.join(step).join("model.safetensors"), b"").unwrap();
    }
    let error = newest(&damaged.dir).unwrap_err();
    for part in ["no checkpoint in", "step-000100 cannot be used", "step-000200 cannot be used", "start over"]
    {
        assert!(error.message().contains(part), "{error}");
    }
}

/// Rewrites a manifest value and signs it again: what an attacker, or a bug, could do.
fn resign(path: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    json.as_object_mut().unwrap().shift_remove("blake3");
    edit(&mut json);
    let text = serde_json::to_string_pretty(&json).unwrap();
    let body = text.strip_suffix("\n}").unwrap();
    let hash = blake3::hash(body.as_bytes()).to_hex();
    fs::write(path, format!("{body},\n  \"blake3\": \"{hash}\"\n}}\n")).unwrap();
}

/// Puts a content of one's own into a file, with a manifest that vouches for it.
fn vouch(damaged: &Damaged, name: &str, content: &[u8]) {
    fs::write(damaged.file(name), content).unwrap();
    resign(&damaged.file("manifest.json"), |json| {
        json["files"][name]["bytes"] = content.len().into();
        json["files"][name]["blake3"] = blake3::hash(content).to_hex().to_string().into();
    });
}

fn file_with_header(header: &str, payload: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + payload, 0);
    file
}

#[test]
fn a_manifest_that_lies_is_found() {
    type Lie = fn(&mut serde_json::Value);
    let lies: [(&str, Lie); 9] = [
        ("size", |m| m["files"]["model.safetensors"]["bytes"] = 1.into()),
        ("huge size", |m| m["files"]["model.safetensors"]["bytes"] = u64::MAX.into()),
        ("negative size", |m| m["files"]["model.safetensors"]["bytes"] = (-1).into()),
        ("hash", |m| m["files"]["model.safetensors"]["blake3"] = "00".repeat(32).into()),
        ("no hash", |m| m["files"]["model.safetensors"]["blake3"] = "zz".into()),
        ("no file", |m| m["files"] = serde_json::json!({})),
        ("other file", |m| m["files"] = serde_json::json!({"../x": {"bytes": 1, "blake3": "00"}})),
        ("step", |m| m["meta"]["step"] = 201.into()),
        ("unknown key", |m| m["meta"]["surprise"] = 1.into()),
    ];
    for (what, lie) in lies {
        let damaged = Damaged::new();
        resign(&damaged.file("manifest.json"), |_| ());
        assert_eq!(newest_of(&damaged.dir, &[&damaged.new]), Some(0), "signing again alone changes nothing");
        resign(&damaged.file("manifest.json"), lie);
        damaged.falls_back(what);
    }
}

#[test]
fn a_header_that_lies_is_found_even_when_the_manifest_vouches_for_it() {
    let damaged = Damaged::new();
    let most = u64::MAX;
    let near = usize::MAX / 32 * 4;
    for (header, payload) in [
        ("{}".to_string(), 4),
        ("".to_string(), 0),
        ("[]".to_string(), 0),
        ("\u{0}".repeat(64), 0),
        ("[".repeat(100_000), 0),
        (r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#.into(), 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#.into(), 8),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#.into(), 4),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.into(), 8),
        (r#"{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#.into(), 8),
        (r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#.into(), 1),
        (r#"{"../x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.into(), 4),
        (r#"{"adam.m.empty":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#.into(), 4),
        (format!(r#"{{"a":{{"dtype":"F32","shape":[{most},{most}],"data_offsets":[0,4]}}}}"#), 4),
        (format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{near}]}}}}"#, near / 4), 4),
        (format!(r#"{{"a":{{"dtype":"F32","shape":[0,{most}],"data_offsets":[0,{most}]}}}}"#), 0),
    ] {
        vouch(&damaged, "model.safetensors", &file_with_header(&header, payload));
        damaged.falls_back(&header.chars().take(90).collect::<String>());
    }
    for length in [0u64, 1, 9, 1 << 20, 100_000_001, 1 << 40, u64::MAX] {
        vouch(&damaged, "model.safetensors", &[&length.to_le_bytes()[..], b"{}"].concat());
        damaged.falls_back(&format!("header length {length}"));
    }
    for file in [&b""[..], b"1234567"] {
        vouch(&damaged, "model.safetensors", file);
        damaged.falls_back("shorter than a header length");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever a vouched-for file holds, it is refused or can be read without a panic.
    #[test]
    fn mutated_headers_never_panic(edits in prop::collection::vec((0usize..600, any::<u8>()), 1..6)) {
        thread_local!(static DAMAGED: Damaged = Damaged::new());
        DAMAGED.with(|damaged| {
            let path = damaged.dir.join("step-000100/model.safetensors");
            let mut file = fs::read(path).unwrap();
            for (at, value) in edits {
                let at = at % file.len();
                file[at] = value;
            }
            vouch(damaged, "model.safetensors", &file);
            let loaded = newest(&damaged.dir).unwrap().unwrap();
            for name in loaded.names() {
                let shape = loaded.shape(name).unwrap();
                loaded.read(name, shape).unwrap();
            }
        });
    }
}
