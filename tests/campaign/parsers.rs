//! The parsers, each with valid inputs to begin from.

use crate::place::Place;
use crate::runner::{Rewritten, SLOW, folder_in_memory, processor_time, run, twice};
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use xrun::data::tokenizer::GuardedTokenizer;
use xrun::data::{self, RowBudget, RowFile, Spec, Tokenizer};
use xrun::expression::{Formula, Scope};
use xrun::hugging_face::{Folder, Reference};
use xrun::machine::Machine;
use xrun::model::hugging_face::{self, ImportedWeights};
use xrun::model::{Weights, parameters_of_model};
use xrun::model_text::{BUILT_IN, Mistake, ModelText, resolve};
use xrun::plan::Model;
use xrun::ranks::Connection;
use xrun::results::folder::read_summary;
use xrun::results::ledger::{LEDGER, Ledger};
use xrun::results::rows::{self, MetricsRow, TimingRow};
use xrun::tasks::{Beginning, Definition, Encoder, Loaded};
use xrun::{checkpoint, recipe};

/// A file that a parser reads.
struct Input {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: Rewritten,
}

impl Input {
    fn new(name: &str) -> Self {
        let folder = folder_in_memory();
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        Self { _folder: folder, file: Rewritten::create(&path), path }
    }

    fn folder(&self) -> &Path {
        self._folder.path()
    }

    fn set(&self, bytes: &[u8]) {
        self.file.set(bytes);
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

/// What is taken prints as what is parsed to the same again.
#[test]
fn formulas() {
    let valid = [
        "x * tanh(softplus(x)) - 0.2 * max(x, erf(x))^3 / sqrt(1 + x^2)",
        "silu(a) * b",
        "(1 + cos(pi * t)) / 2",
    ];
    run("formula", &valid.map(|text| text.as_bytes().to_vec()), twice, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        [Scope::Activation, Scope::Schedule].into_iter().any(|scope| {
            let Ok(formula) = Formula::parse(text, scope) else { return false };
            assert_eq!(Formula::parse(formula.text(), scope).as_ref(), Ok(&formula), "{formula}");
            !formula.steps_with_slopes().list.is_empty()
        })
    });
}

/// What is taken prints as what is parsed to the same again, and is resolved or refused at a place in it.
#[test]
fn model_texts() {
    let valid = BUILT_IN.map(|(_, text)| text.as_bytes().to_vec());
    let recipe = recipe::load_str("r.toml".as_ref(), "", &[], std::iter::empty(), &Machine::none()).unwrap();
    let keys = Model::from_recipe(&recipe, 500).unwrap().keys(recipe.values().training.seq_len);
    run("model_text", &valid, twice, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let is_in_text = |mistake: Mistake| assert!(text.get(mistake.at.clone()).is_some(), "{mistake:?}");
        match ModelText::parse(text).map(|parsed| (ModelText::parse(parsed.text()), parsed)) {
            Err(mistake) => is_in_text(mistake),
            Ok((again, parsed)) => {
                assert_eq!(again.as_ref(), Ok(&parsed), "{}", parsed.text());
                match resolve(&parsed, &keys) {
                    Err(mistake) => is_in_text(mistake),
                    Ok(graph) => return graph.logits < graph.nodes.len(),
                }
            }
        }
        false
    });
}

/// Found by this campaign: each wrong line was searched for among all others, which took minutes.
#[test]
fn recipes_of_many_wrong_lines_are_refused_at_once() {
    let unknown: String = (0..8000).map(|i| format!("k{i}=1\n")).collect();
    for text in ["a=1\n".repeat(20_000), format!("[model]\n{unknown}")] {
        let began = processor_time();
        let error =
            recipe::load_str(Path::new("mine.toml"), &text, &[], std::iter::empty(), &Machine::none())
                .unwrap_err();
        assert!(error.message().contains("mine.toml"), "{error}");
        let took = processor_time() - began;
        assert!(took < SLOW, "{took:?}");
    }
}

/// The library builds its tables from the file: at most this many bytes for each byte of a tokenizer.json.
/// docs/campaigns.md names the factor.
const TOKENIZER_FACTOR: usize = 40;

/// The most memory for a tokenizer.json of so many bytes: its regular expressions take up to 66 MiB.
fn tokenizer_memory(bytes: usize) -> usize {
    TOKENIZER_FACTOR * bytes + (96 << 20)
}

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
    run("tokenizer", &valid, tokenizer_memory, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let Ok(tokenizer) = GuardedTokenizer::parse(text) else { return false };
        let Ok(ids) = tokenizer.encode("A tale of 12 \u{1e9b}\u{fb01}ne\n\n foxes") else { return true };
        let _ = tokenizer.decode(&ids);
        let _ = Tokenizer::from_run(text.to_owned(), Some(3));
        true
    });
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

/// Found by this campaign: the library compiles the parts of some expressions one by one, at up to 33 KiB of
/// memory for each byte of them.
#[test]
fn expressions_take_no_more_memory_than_is_said() {
    let _alone = crate::runner::alone();
    let byte = Tokenizer::open("byte").unwrap().to_json().to_owned();
    let mut taken = 0;
    for unit in ["\\w?+", "\\pL", "\\p{L}", "(?!\\w)", "\\W?+", "(?:\\pL{3}){5}", "\\w{9}?+"] {
        for copies in [1, 4, 40] {
            let split = |length: usize| {
                let expression = unit.repeat((length / unit.len()).max(1));
                serde_json::json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated",
                    "invert": false})
            };
            let mut document: serde_json::Value = serde_json::from_str(&byte).unwrap();
            let parts = vec![split(2000 / copies); copies];
            document["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": parts});
            let json = document.to_string();
            let (parsed, peak) = crate::measure::peak_of(|| {
                GuardedTokenizer::parse(&json).and_then(|tokenizer| tokenizer.encode("12 foxes")).is_ok()
            });
            taken += usize::from(parsed);
            println!("{copies} of `{unit}`: {parsed}, {} KiB", peak >> 10);
            assert!(peak <= tokenizer_memory(json.len()), "{copies} of `{unit}`: {peak} bytes");
        }
    }
    assert!(taken > 10, "{taken} were taken");
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
    let corpus = place.path.parent().unwrap().to_str().unwrap();
    let spec = Spec { corpus: corpus.into(), ..spec };
    // Building the tokenizer takes longer than reading the input.
    let tokenizer = tokenizer();
    run("shard", &shard, twice, |input| {
        place.set(input);
        let _ = data::facts(&spec, 16, Some(&tokenizer), None);
        data::open(&spec, 8, Some(&tokenizer), None).is_ok()
    });
}

#[test]
fn texts() {
    texts_of(
        "text",
        "a.txt",
        &["one<|endoftext|>two\r\n\n<|endoftext|>drei ß € 😀", "\u{feff}with a mark, long enough"],
    );
}

#[test]
fn json_lines() {
    let lines = "{\"text\": \"one \\n\\u00e9\", \"id\": 3}\n\n{\"text\":\"and another\"}\r\n";
    texts_of("jsonl", "a.jsonl", &[lines]);
}

/// The card of a data set says which files are a split, and may be anyone's.
#[test]
fn dataset_cards() {
    let place = Input::new("set/README.md");
    let folder = place.path.parent().unwrap().to_owned();
    fs::create_dir_all(folder.join("a/b/c")).unwrap();
    for name in ["train-1.txt", "test.txt", "a/b/c/train.txt"] {
        fs::write(folder.join(name), "some text that is long enough for a window or two. ".repeat(4))
            .unwrap();
    }
    let split = Some("train".to_owned());
    let spec = Spec {
        split,
        validation_split: Some("test".to_owned()),
        ..Spec::new(folder.to_str().unwrap(), "byte")
    };
    let card =
        |files: &str| format!("---\nlicense: mit\nconfigs:\n- config_name: default\n{files}---\n# About\n");
    let valid = [
        card("  data_files:\n  - split: train\n    path: train-*\n  - split: test\n    path: \"test.txt\"\n"),
        card(
            "  data_files:\n  - split: train\n    path:\n    - '**/train.txt'\n    - train-1.txt\n  - split: test\n    path: t*\n",
        ),
        card("  default: true\n"),
    ];
    let tokenizer = tokenizer();
    run("card", &valid.map(String::into_bytes), twice, |input| {
        place.set(input);
        data::facts(&spec, 16, Some(&tokenizer), None).is_ok()
    });
}

/// Definitions of tasks with an item that suits the first, and files of rows. An input that is no definition
/// is a file.
#[test]
fn tasks() {
    let place = Input::new("own/test.jsonl");
    let folder = place.folder().to_owned();
    let definition = |prompt: &str| {
        format!(
            "name = \"own\"\ntitle = \"\"\ncitation = \"\"\nfollows = \"\"\n[source]\nrepository = \"own\"\nsplit = \"test\"\n\
             fields = [\"q\"]\n[prompt]\n{prompt}\n[examples]\nsplit = \"test\"\ntake = \"sample\"\n[scoring]\nmetric = \"acc\"\n"
        )
    };
    let row = "{\"q\": \"Who is\", \"a\": {\"text\": [\"x [y] é\", \"b  c\"], \"label\": [\"A\", \"B\"]}, \"key\": \"B\"}\n";
    let valid = [
        definition(
            "kind = \"choices\"\ncontext = \"{{ q.strip() ~ ' ' ~ q[1:].capitalize() }}\"\neach = \"a.text\"\n\
             choice = \"{{ choice | regex_replace('[[].*?]', '') | replace('  ', ' ') }}\"\n\
             gold = \"{{ a.label.index(key) | int }}\"",
        ),
        definition(
            "kind = \"completion\"\ncontext = \"{% for x in a.text %}{{ x | upper }}{% endfor %}{% if q %}1{% else %}2{% endif %}\"\n\
             continuation = \"{{ q.split(' ')[:-1] | join('-') }}\"",
        ),
        row.repeat(3),
        format!("[{},\n {}]", row.trim(), row.trim()),
    ];
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine/data/source/parquet/fixtures");
    let mut valid = valid.map(String::into_bytes).to_vec();
    valid.extend(read_all(&tables, &["nested.parquet", "snappy.parquet"]));
    let tokenizer = tokenizer();
    let encoder = Encoder::new(&tokenizer, Beginning::as_published(&tokenizer), 64);
    run("task", &valid, twice, |input| {
        let definition =
            std::str::from_utf8(input).ok().and_then(|text| Definition::parse(text, "own.toml").ok());
        if let Some(definition) = definition {
            place.set(row.as_bytes());
            let loaded = Loaded::read(&definition, &folder, 0, None);
            return loaded.and_then(|loaded| loaded.prepare(&encoder, 0, None)).is_ok();
        }
        place.set(input);
        RowFile::read(&place.path, &mut RowBudget { rows: 1 << 16, bytes: 32 << 20 }).is_ok()
    });
}

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::open("byte").unwrap())
}

#[test]
fn packed_texts() {
    let pack = |text: &str, level: &str| {
        let place = Input::new("a");
        place.set(text.as_bytes());
        std::process::Command::new("gzip").args(["-c", level]).arg(&place.path).output().unwrap().stdout
    };
    let text = "one<|endoftext|>two, and some text that repeats, that repeats, that repeats. ";
    let (one, two) = (pack(text, "-9"), pack(&text.repeat(200), "-1"));
    // A small file may become what deflate makes of its bytes at most, or 64 MiB.
    let memory = |bytes: usize| 8 * (1032 * bytes).min((64 << 20) + 200 * bytes) + (64 << 20);
    files_of("gzip", "a.txt.gz", &[one.clone(), two.clone(), [one, two].concat()], memory);
}

#[test]
fn texts_packed_by_zstd() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    let text = "one<|endoftext|>two, and some text that repeats, that repeats, that repeats. ";
    let pack = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
    let (one, two) = (pack(text), pack(&text.repeat(200)));
    // A block of four bytes may become 128 KiB; content beyond 64 MiB and 200 times the file is refused.
    let memory = |bytes: usize| 8 * ((64 << 20) + 200 * bytes) + (64 << 20);
    files_of("zstd", "a.txt.zst", &[one.clone(), two.clone(), [one, two].concat()], memory);
}

#[test]
fn tables() {
    macro_rules! table {
        ($name:literal) => {
            include_bytes!(concat!("../../src/engine/data/source/parquet/fixtures/", $name, ".parquet"))
                .to_vec()
        };
    }
    let valid = [
        table!("snappy"),
        table!("dictionary_zstd"),
        table!("dictionary"),
        table!("prefixes_gzip"),
        table!("lengths_lz4"),
        table!("required"),
    ];
    // Pages and texts beyond 64 MiB and 200 times the file are refused, and so are more rows than the file
    // can hold.
    let memory = |bytes: usize| 8 * ((64 << 20) + 200 * bytes) + (64 << 20);
    let place = Input::new("a.parquet");
    let path = place.path.to_str().unwrap().to_owned();
    let spec = Spec {
        validation: data::Validation::Fraction(0.5),
        missing: data::MissingField::Skip,
        ..Spec::new(&path, "byte")
    };
    let tokenizer = tokenizer();
    run("parquet", &valid, memory, |input| {
        place.set(input);
        let _ = data::facts(&spec, 16, Some(&tokenizer), None);
        data::open(&spec, 1, Some(&tokenizer), None).is_ok()
    });
}

/// A corpus of one file of text.
fn texts_of(parser: &str, name: &str, valid: &[&str]) {
    let valid: Vec<Vec<u8>> = valid.iter().map(|text| text.as_bytes().to_vec()).collect();
    // The byte tokenizer makes four bytes of tokens of each byte.
    files_of(parser, name, &valid, |bytes| 8 * bytes + (64 << 20));
}

/// A corpus of one file.
fn files_of(parser: &str, name: &str, valid: &[Vec<u8>], most_memory: fn(usize) -> usize) {
    let place = Input::new(name);
    let path = place.path.to_str().unwrap().to_owned();
    let plain = Spec { validation: data::Validation::Fraction(0.5), ..Spec::new(&path, "byte") };
    let parted = Spec { document_separator: Some("<|endoftext|>".to_owned()), ..plain.clone() };
    let tokenizer = tokenizer();
    run(parser, valid, most_memory, |input| {
        place.set(input);
        let _ = data::facts(&plain, 16, Some(&tokenizer), None);
        let _ = data::open(&parted, 1, Some(&tokenizer), None);
        data::open(&plain, 1, Some(&tokenizer), None).is_ok()
    });
}

/// The end of a manifest: the hash of what stands before it.
fn signature(body: &[u8]) -> String {
    format!(",\n  \"blake3\": \"{}\"\n}}\n", blake3::hash(body).to_hex())
}

#[test]
fn manifests() {
    checkpoint_file(0);
}

#[test]
fn models() {
    checkpoint_file(1);
}

#[test]
fn optimizers() {
    checkpoint_file(2);
}

/// A file of a checkpoint, mutated beside the others. Each is vouched for by a hash, which is verified first,
/// so its own reader sees what was changed only where the hash was made anew: that is done here too.
fn checkpoint_file(at: usize) {
    // The fewer weights, the more inputs change what describes them.
    let place = Place::new();
    let small = ["model.dim=2", "model.n_heads=1", "model.ffn_dim=2", "model.tie_embeddings=true"];
    place.xrun(&[&["tiny.toml", "checkpoint.keep=1"], &small[..]].concat()).succeeds();
    let saved = place.run().newest().path().to_owned();
    let memory = folder_in_memory();
    let folder = memory.path();
    fs::copy(saved.with_file_name("latest"), folder.join("latest")).unwrap();
    let step = folder.join(saved.file_name().unwrap());
    fs::create_dir(&step).unwrap();
    let names = ["manifest.json", "model.safetensors", "optimizer.safetensors"];
    let files = read_all(&saved, &names);
    let inputs: Vec<Rewritten> = names.iter().map(|name| Rewritten::create(&step.join(name))).collect();
    inputs.iter().zip(&files).for_each(|(input, file)| input.set(file));
    let original = &files[at];
    let body = &files[0][..files[0].len() - signature(b"").len()];
    assert_eq!(files[0], [body, signature(body).as_bytes()].concat());
    // A manifest of the tensor files alone, without the recipe's text.
    let mut short: serde_json::Value = serde_json::from_slice(&files[0]).unwrap();
    short["meta"]["resolved_recipe_toml"] = "".into();
    short.as_object_mut().unwrap().remove("blake3");
    let short = serde_json::to_string_pretty(&short).unwrap();
    let short = short.strip_suffix("\n}").unwrap();
    let hash_of = |bytes: &[u8]| blake3::hash(bytes).to_hex().to_string();
    let bytes_of = |bytes: &[u8]| format!("\"bytes\": {}", bytes.len());

    let valid = if at == 0 { vec![body.to_vec(), original.clone()] } else { vec![original.clone()] };
    let parser = ["manifest", "model", "optimizer"][at];
    run(parser, &valid, twice, |input| {
        if at == 0 {
            let signature = if input.ends_with(b"\"\n}\n") { String::new() } else { signature(input) };
            inputs[0].set(&[input, signature.as_bytes()].concat());
        } else {
            inputs[at].set(input);
            let vouched = short.replace(&hash_of(original), &hash_of(input));
            let vouched = vouched.replace(&bytes_of(original), &bytes_of(input));
            let signature = signature(vouched.as_bytes());
            inputs[0].set((vouched + &signature).as_bytes());
        }
        let loaded = checkpoint::newest(folder);
        let taken = loaded.as_ref().is_ok_and(Option::is_some);
        if let Ok(Some(loaded)) = loaded {
            let _ = (loaded.check_finite(""), checkpoint::first_difference(&loaded, &loaded));
        }
        taken
    });
}

/// A folder in HuggingFace's form, of which one file is given by the campaign.
struct ModelFolder {
    folder: tempfile::TempDir,
    file: Rewritten,
}

const CONFIG: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 3, "hidden_size": 2,
    "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2,
    "hidden_act": "silu", "max_position_embeddings": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_scaling": null,
    "tie_word_embeddings": true, "use_sliding_window": false, "layer_types": ["full_attention"]}"#;

impl ModelFolder {
    /// With these files, and `name` given by the campaign.
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let folder = folder_in_memory();
        files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
        Self { file: Rewritten::create(&folder.path().join(name)), folder }
    }

    /// Opens the folder and reads all of it; returns whether it was taken.
    fn reads(&self, input: &[u8]) -> bool {
        self.file.set(input);
        let Ok(folder) = Folder::open(self.folder.path()) else { return false };
        for (name, tensor) in folder.tensors() {
            let _ = folder.read(name, tensor.shape());
        }
        let _ = folder.content_hash();
        let Ok(keys) = hugging_face::keys(&folder.config) else { return true };
        let none = std::iter::empty();
        let Ok(recipe) = recipe::load_str(Path::new("c.toml"), &keys.to_toml(), &[], none, &Machine::none())
        else {
            return true;
        };
        let model = Model::from_keys(&recipe.values().model, keys.vocab_size);
        if let Ok(weights) = ImportedWeights::new(folder, &model) {
            for name in weights.names() {
                let param = parameters_of_model(&model)
                    .unwrap()
                    .into_iter()
                    .find(|param| param.name == name)
                    .unwrap();
                let _ = weights.values(&name, &param.shape);
            }
        }
        true
    }
}

/// Every tensor of the folder's model, in one of the formats.
fn model_file(dtype: &str, size: usize) -> Vec<u8> {
    let matrix: &[usize] = &[2, 2];
    let block = |name: &str, shape: &[usize]| (format!("model.layers.0.{name}.weight"), shape.to_vec());
    let mut tensors =
        vec![("model.embed_tokens.weight".to_owned(), vec![3, 2]), ("model.norm.weight".to_owned(), vec![2])];
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push(block(&format!("self_attn.{name}"), matrix));
    }
    for name in ["self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"] {
        tensors.push(block(name, &[2]));
    }
    for name in ["gate_proj", "up_proj", "down_proj"] {
        tensors.push(block(&format!("mlp.{name}"), matrix));
    }
    let mut at = 0;
    let entries: serde_json::Map<String, serde_json::Value> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let end = at + size * shape.iter().product::<usize>();
            let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
            at = end;
            (name, entry)
        })
        .collect();
    let header = serde_json::Value::Object(entries).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; at]].concat()
}

#[test]
fn safetensors() {
    let folder = ModelFolder::new("model.safetensors", &[("config.json", CONFIG.as_bytes())]);
    let valid = [model_file("F32", 4), model_file("BF16", 2), model_file("F16", 2)];
    run("safetensors", &valid, twice, |input| folder.reads(input));
}

#[test]
fn indexes_of_shards() {
    let files = [
        ("config.json", CONFIG.as_bytes()),
        ("a.safetensors", &model_file("F32", 4)),
        ("b.safetensors", b"\x02\0\0\0\0\0\0\0{}"),
    ];
    let folder = ModelFolder::new("model.safetensors.index.json", &files);
    let header = model_file("F32", 4);
    let length = u64::from_le_bytes(header[..8].try_into().unwrap()) as usize;
    let entries: serde_json::Value = serde_json::from_slice(&header[8..8 + length]).unwrap();
    let map: serde_json::Map<String, serde_json::Value> =
        entries.as_object().unwrap().keys().map(|name| (name.clone(), "a.safetensors".into())).collect();
    let index = serde_json::json!({"metadata": {"total_size": 64}, "weight_map": map}).to_string();
    run("index", &[index.into_bytes()], twice, |input| folder.reads(input));
}

#[test]
fn configurations() {
    let folder = ModelFolder::new("config.json", &[("model.safetensors", &model_file("F32", 4))]);
    let others = [
        r#"{"model_type": "gpt2", "vocab_size": 3, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_positions": 8,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": null, "scale_attn_weights": true}"#,
        r#"{"model_type": "llama", "vocab_size": 3, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32,
            "original_max_position_embeddings": 8}, "attention_bias": true, "mlp_bias": true}"#,
        r#"{"model_type": "nanochat", "vocab_size": 3, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
            "num_attention_heads": 2, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
            "final_logit_softcapping": 15.0, "hidden_act": "relu2"}"#,
    ];
    let valid: Vec<Vec<u8>> =
        std::iter::once(CONFIG).chain(others).map(|text| text.as_bytes().to_vec()).collect();
    run("config", &valid, twice, |input| folder.reads(input));
}

#[test]
fn reference_logits() {
    let valid = Reference::new(vec![0, 2, 1], vec![0.5, -1e-7, 3e38]).to_json().unwrap().into_bytes();
    run("reference", &[valid], twice, |input| {
        let Ok(text) = std::str::from_utf8(input) else { return false };
        let parsed = Reference::parse(Path::new("r.json"), text, 3, 8);
        parsed.is_ok_and(|reference| {
            let _ = reference.compare(&[0.5, 0.0, f64::NAN], Path::new("folder"));
            true
        })
    });
}

/// A file of a run that was killed after half of its steps.
fn file_of_run(name: &str) -> Vec<Vec<u8>> {
    vec![Place::killed_after(15).run().file(name)]
}

#[test]
fn metrics() {
    let input = Input::new("rows.csv");
    run("metrics", &file_of_run("metrics.csv"), twice, |bytes| {
        input.set(bytes);
        rows::read::<MetricsRow>(&input.path).is_ok()
    });
}

#[test]
fn timings() {
    let input = Input::new("rows.csv");
    run("timing", &file_of_run("timing.csv"), twice, |bytes| {
        input.set(bytes);
        rows::read::<TimingRow>(&input.path).is_ok()
    });
}

#[test]
fn summaries() {
    let input = Input::new("summary.json");
    run("summary", &file_of_run("summary.json"), twice, |bytes| {
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
        // Opening converts it, and what it became is read again.
        let opened = Ledger::open(input.folder());
        assert_eq!(opened.is_ok(), read);
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
        let scope = xrun::report::blocks::Scope {
            pages: &pages,
            is_whole: false,
            kept: &kept,
            root: input.folder(),
            judge: xrun::compare::contradictions,
        };
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
            let send = |mut here: UnixStream, bytes: &[u8]| {
                // The reader may have refused the beginning and be gone.
                let _ = here.write_all(bytes);
                let _ = here.shutdown(std::net::Shutdown::Both);
            };
            // What the system holds for the reader needs no thread, and that is most frames.
            here.set_nonblocking(true).unwrap();
            let sent = here.write(input).unwrap_or(0);
            here.set_nonblocking(false).unwrap();
            std::thread::scope(|scope| {
                if sent == input.len() {
                    send(here, &[]);
                } else {
                    scope.spawn(move || send(here, &input[sent..]));
                }
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
