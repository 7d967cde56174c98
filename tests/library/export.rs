//! The HuggingFace export: names, slices, bytes, refusals, and the command.

use assert_cmd::Command;
use predicates::prelude::PredicateBooleanExt;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use xrun::checkpoint::{DiskFs, END_TOKEN_ID, Fs, Meta, Snapshot, Store, SyncWrite, TensorView};
use xrun::data::tokenizer::Begin;
use xrun::error::ErrorKind;
use xrun::model::hf_export::{Dtype, Export, Stored, Weights, write, write_on};
use xrun::model::hugging_face::Companions;
use xrun::plan::Model;
use xrun::policy::Norm;
use xrun::recipe;
use xrun::{Error, Result};

const FILES: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

/// Odd sizes, so that a swapped dimension shows.
fn tiny() -> Export {
    let keys = recipe::Model {
        dim: 6,
        n_layers: 2,
        n_heads: Some(4),
        n_kv_heads: Some(2),
        head_dim: Some(2),
        ffn_dim: Some(5),
        dropout: 0.1,
        rope_theta: 12345.0,
        norm_eps: 1e-5,
        ..recipe::Model::default()
    };
    let model = Model::from_keys(&keys, 11);
    Export {
        model,
        seq_len: 16,
        end_token_id: 10,
        begin: Begin::End,
        dtype: Dtype::F32,
        reference: None,
        companions: Companions::default(),
        data: None,
    }
}

/// The tiny model with one dimension changed.
fn changed(change: impl FnOnce(&mut Model)) -> Export {
    let mut export = tiny();
    change(&mut export.model);
    export
}

/// A tokenizer of the letters a to j and an end token.
const TOKENIZER: &str = r#"{
  "version": "1.0",
  "added_tokens": [{"id": 10, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": true}],
  "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "merges": [],
            "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, "g": 6, "h": 7, "i": 8, "j": 9}}
}"#;

/// Weights by xrun's names, every value a function of the tensor's and the element's number.
#[derive(Clone)]
struct Tiny(BTreeMap<String, (Vec<usize>, Vec<f32>)>);

impl Tiny {
    fn new(export: &Export) -> Self {
        let m = &export.model;
        let (d, q, kv) = (m.dim, m.n_heads * m.head_dim, m.n_kv_heads * m.head_dim);
        let mut shapes =
            vec![("embedding".to_string(), vec![m.vocab_size, d]), ("final_norm".to_string(), vec![d])];
        if !m.tie_embeddings {
            shapes.push(("head".into(), vec![m.vocab_size, d]));
        }
        for i in 0..m.n_layers {
            for (name, shape) in [
                ("attention_norm", vec![d]),
                ("qkv", vec![q + 2 * kv, d]),
                ("q_norm", vec![m.head_dim]),
                ("k_norm", vec![m.head_dim]),
                ("out", vec![d, q]),
                ("ffn_norm", vec![d]),
                ("gate_up", vec![2, m.ffn_dim, d]),
                ("down", vec![d, m.ffn_dim]),
            ] {
                shapes.push((format!("blocks.{i}.{name}"), shape));
            }
        }
        let tensors = shapes.into_iter().enumerate().map(|(t, (name, shape))| {
            let n: usize = shape.iter().product();
            let values = (0..n).map(|k| ((k * 37 + t * 101) % 257) as f32 / 64.0 - 2.0).collect();
            (name, (shape, values))
        });
        Self(tensors.collect())
    }

    fn values(&self, name: &str) -> &[f32] {
        &self.0[name].1
    }
}

impl Weights for Tiny {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let (found, values) = self.0.get(name).ok_or_else(|| Error::failed("missing"))?;
        if found != shape {
            return Err(Error::failed(format!("{name}: {found:?} is not {shape:?}")));
        }
        Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

/// Exports to a new folder and returns all files in a row.
fn exported(at: &Path, model: &Export, weights: &dyn Weights) -> Vec<u8> {
    write(at, model, weights, TOKENIZER).unwrap();
    let mut names: Vec<_> =
        fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, FILES);
    FILES.iter().flat_map(|f| fs::read(at.join(f)).unwrap()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks::<4>();
    elements.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

#[test]
fn every_tensor_has_its_name_its_shape_and_its_rows() {
    let at = tempfile::tempdir().unwrap();
    let (model, weights) = (tiny(), Tiny::new(&tiny()));
    exported(&at.path().join("out"), &model, &weights);
    let file = fs::read(at.path().join("out/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(file.len(), 3 + 11 * 2);

    let check = |name: &str, shape: &[usize], expected: &[f32]| {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.shape(), shape, "{name}");
        assert_eq!(floats(tensor.data()), expected, "{name}");
    };
    check("model.embed_tokens.weight", &[11, 6], weights.values("embedding"));
    check("model.norm.weight", &[6], weights.values("final_norm"));
    check("lm_head.weight", &[11, 6], weights.values("head"));
    for i in 0..2 {
        let to = |name: &str| format!("model.layers.{i}.{name}.weight");
        let from = |name: &str| weights.values(&format!("blocks.{i}.{name}"));
        let (qkv, gate_up) = (from("qkv"), from("gate_up"));
        check(&to("input_layernorm"), &[6], from("attention_norm"));
        check(&to("self_attn.q_proj"), &[8, 6], &qkv[..48]);
        check(&to("self_attn.k_proj"), &[4, 6], &qkv[48..72]);
        check(&to("self_attn.v_proj"), &[4, 6], &qkv[72..]);
        check(&to("self_attn.q_norm"), &[2], from("q_norm"));
        check(&to("self_attn.k_norm"), &[2], from("k_norm"));
        check(&to("self_attn.o_proj"), &[6, 8], from("out"));
        check(&to("post_attention_layernorm"), &[6], from("ffn_norm"));
        check(&to("mlp.gate_proj"), &[5, 6], &gate_up[..30]);
        check(&to("mlp.up_proj"), &[5, 6], &gate_up[30..]);
        check(&to("mlp.down_proj"), &[6, 5], from("down"));
    }
}

#[test]
fn bf16_weights_are_rounded_to_nearest_even() {
    let at = tempfile::tempdir().unwrap();
    let mut weights = Tiny::new(&tiny());
    // Halfway between two bf16 numbers, twice: to the even one below, to the even one above; then just above
    // halfway.
    let cases = [(0x3f80_8000u32, 0x3f80u16), (0x3f81_8000, 0x3f82), (0x3f80_8001, 0x3f81)];
    let embedding = &mut weights.0.get_mut("embedding").unwrap().1;
    cases.iter().zip(embedding.iter_mut()).for_each(|((x, _), e)| *e = f32::from_bits(*x));
    exported(&at.path().join("out"), &Export { dtype: Dtype::Bf16, ..tiny() }, &weights);
    let file = fs::read(at.path().join("out/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let embedding = file.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!(embedding.dtype(), safetensors::Dtype::BF16);
    for (i, (_, expected)) in cases.iter().enumerate() {
        assert_eq!(embedding.data()[2 * i..2 * i + 2], expected.to_le_bytes());
    }
    let config = fs::read_to_string(at.path().join("out/config.json")).unwrap();
    assert!(config.contains(r#""torch_dtype": "bfloat16""#));
}

#[test]
fn fp16_weights_are_rounded_and_none_overflows() {
    let at = tempfile::tempdir().unwrap();
    let mut weights = Tiny::new(&tiny());
    let export = Export { dtype: Dtype::F16, ..tiny() };
    let cases = [(1.0 / 3.0, 0x3555u16), (65_519.0, 0x7bff), (-1e-8, 0x8000)];
    let embedding = &mut weights.0.get_mut("embedding").unwrap().1;
    cases.iter().zip(embedding.iter_mut()).for_each(|((x, _), e)| *e = *x);
    exported(&at.path().join("out"), &export, &weights);
    let file = fs::read(at.path().join("out/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let embedding = file.tensor("model.embed_tokens.weight").unwrap();
    assert_eq!(embedding.dtype(), safetensors::Dtype::F16);
    for (i, (_, expected)) in cases.iter().enumerate() {
        assert_eq!(embedding.data()[2 * i..2 * i + 2], expected.to_le_bytes());
    }
    let config = fs::read_to_string(at.path().join("out/config.json")).unwrap();
    assert!(config.contains(r#""torch_dtype": "float16""#));

    weights.0.get_mut("blocks.1.gate_up").unwrap().1[31] = -65_520.0;
    let error = write(&at.path().join("no"), &export, &weights, TOKENIZER).unwrap_err();
    let says = "tensor model.layers.1.mlp.up_proj.weight: element 1 is -65520, and fp16 ends at 65504";
    assert!(error.message().starts_with(says) && error.kind() == ErrorKind::Usage, "{error}");
    assert!(!at.path().join("no").exists());
    let stored = Stored { weights: &weights, dtype: Dtype::F16 };
    let error = stored.read("blocks.1.gate_up", &[2, 5, 6]).unwrap_err();
    assert!(error.message().starts_with("tensor blocks.1.gate_up: element 31 is -65520"), "{error}");
}

#[test]
fn the_bytes_are_always_the_same() {
    let at = tempfile::tempdir().unwrap();
    let hash = |name: &str, model: &Export| {
        blake3::hash(&exported(&at.path().join(name), model, &Tiny::new(model))).to_hex().to_string()
    };
    assert_eq!(hash("1", &tiny()), hash("2", &tiny()));
    insta::assert_snapshot!(hash("fp32", &tiny()), @"a5dad4b0050ec3d3e947eac3840a0de5c98bf4e769f7662d58f9687b158fa807");
    insta::assert_snapshot!(hash("bf16", &Export { dtype: Dtype::Bf16, ..tiny() }), @"d692e88bb84c474a40fe08ab78007413fba7bc1c7c74f107e32550decbcc0a15");
    insta::assert_snapshot!(hash("tied", &changed(|m| m.tie_embeddings = true)), @"2148c573c3910b259afcda048e0cf3752e46e72df99e9b9e92253df4989707ca");
    let config = fs::read_to_string(at.path().join("fp32/config.json")).unwrap();
    insta::assert_snapshot!(config, @r#"
    {
      "architectures": [
        "Qwen3ForCausalLM"
      ],
      "model_type": "qwen3",
      "torch_dtype": "float32",
      "vocab_size": 11,
      "hidden_size": 6,
      "intermediate_size": 5,
      "num_hidden_layers": 2,
      "num_attention_heads": 4,
      "num_key_value_heads": 2,
      "head_dim": 2,
      "hidden_act": "silu",
      "max_position_embeddings": 16,
      "initializer_range": 0.02,
      "rms_norm_eps": 0.00001,
      "rope_theta": 12345.0,
      "rope_scaling": null,
      "attention_bias": false,
      "attention_dropout": 0.0,
      "use_sliding_window": false,
      "sliding_window": null,
      "max_window_layers": 2,
      "tie_word_embeddings": false,
      "use_cache": true,
      "bos_token_id": 10,
      "eos_token_id": 10
    }
    "#);
    let tokenizer_config = fs::read_to_string(at.path().join("fp32/tokenizer_config.json")).unwrap();
    insta::assert_snapshot!(tokenizer_config, @r#"
    {
      "tokenizer_class": "PreTrainedTokenizerFast",
      "model_max_length": 16,
      "bos_token": "<|endoftext|>",
      "add_bos_token": true,
      "eos_token": "<|endoftext|>",
      "clean_up_tokenization_spaces": false
    }
    "#);
}

#[test]
fn what_would_not_load_as_trained_is_refused_and_leaves_nothing() {
    let at = tempfile::tempdir().unwrap();
    let weights = Tiny::new(&tiny());
    let without = |name: &str| {
        let mut w = weights.clone();
        w.0.remove(name);
        w
    };
    let mut more = weights.clone();
    more.0.insert("blocks.2.out".into(), (vec![1], vec![0.0]));
    let no_norm = changed(|m| m.qk_norm = None);
    let layer_norm = changed(|m| m.norm = Norm::LayerNorm);
    let tied = changed(|m| m.tie_embeddings = true);
    let heads = changed(|m| m.n_kv_heads = 3);
    let small = changed(|m| m.vocab_size = 9);
    let end = Export { end_token_id: 11, ..changed(|m| m.vocab_size = 12) };
    let huge = changed(|m| m.ffn_dim = usize::MAX / 2);
    let deep = changed(|m| m.n_layers = usize::MAX);
    let wide = changed(|m| m.ffn_dim = 7);
    let (usage, failed) = (ErrorKind::Usage, ErrorKind::Failed);
    for (model, weights, tokenizer, kind, says) in [
        (
            &no_norm,
            &weights,
            TOKENIZER,
            usage,
            "LlamaForCausalLM: model.n_heads is 4, but it has divisors of model.dim = 6",
        ),
        (
            &layer_norm,
            &weights,
            TOKENIZER,
            usage,
            "Qwen3ForCausalLM: model.norm is \"layer_norm\", but it has \"rms_norm\"",
        ),
        (&heads, &weights, TOKENIZER, usage, "model.n_kv_heads is 3, but it has divisors of 4 query heads"),
        (&small, &weights, TOKENIZER, usage, "has token 10, but the model's vocabulary has 9"),
        (&end, &weights, TOKENIZER, usage, "has no token 11"),
        (&huge, &weights, TOKENIZER, usage, "too large"),
        (&tiny(), &weights, "{", usage, "tokenizer.json is wrong"),
        (&deep, &weights, TOKENIZER, failed, "layers need more than 19 tensors"),
        (&wide, &weights, TOKENIZER, failed, "[2, 5, 6] is not [2, 7, 6]"),
        (&tied, &weights, TOKENIZER, failed, "has no such parameter"),
        (&tiny(), &without("head"), TOKENIZER, failed, "has no head"),
        (&tiny(), &without("blocks.1.k_norm"), TOKENIZER, failed, "has no blocks.1.k_norm"),
        (&tiny(), &more, TOKENIZER, failed, "has blocks.2.out"),
    ] {
        let error = write(&at.path().join("out"), model, weights, tokenizer).unwrap_err();
        assert!(error.message().contains(says), "{error}");
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0, "{says}");
    }
}

#[test]
fn a_folder_in_use_is_refused_and_an_empty_one_is_not() {
    let at = tempfile::tempdir().unwrap();
    let (model, weights) = (tiny(), Tiny::new(&tiny()));
    let (full, empty, file) = (at.path().join("full"), at.path().join("empty"), at.path().join("file"));
    fs::create_dir(&full).unwrap();
    fs::write(full.join("mine"), "precious").unwrap();
    fs::create_dir(&empty).unwrap();
    fs::write(&file, "precious").unwrap();
    for (dir, says) in [
        (full.as_path(), "exists and is not empty"),
        (&file, "cannot be created"),
        (Path::new("/"), "is not a valid name"),
        (Path::new(".."), "is not a valid name"),
    ] {
        let error = write(dir, &model, &weights, TOKENIZER).unwrap_err();
        assert!(error.message().contains(says) && error.kind() == ErrorKind::Usage, "{error}");
    }
    assert_eq!(fs::read(full.join("mine")).unwrap(), b"precious");
    exported(&empty, &model, &weights);
    exported(&at.path().join("new/and/deep"), &model, &weights);
}

/// A disk that works for so many operations and then not at all.
#[derive(Clone)]
struct FailingFs(Arc<AtomicUsize>);

impl FailingFs {
    fn step(&self) -> io::Result<DiskFs> {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        left.map(|_| DiskFs).map_err(|_| io::Error::from(io::ErrorKind::StorageFull))
    }
}

impl Fs for FailingFs {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?.create_dir(path)
    }
    fn create_file(&self, path: &Path) -> io::Result<Box<dyn SyncWrite>> {
        Ok(Box::new(FailingFile(self.clone(), self.step()?.create_file(path)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?.rename(from, to)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?.sync_dir(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?.remove(path)
    }
}

struct FailingFile(FailingFs, Box<dyn SyncWrite>);

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.step()?;
        self.1.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.1.flush()
    }
}

impl SyncWrite for FailingFile {
    fn sync(&mut self) -> io::Result<()> {
        self.0.step()?;
        self.1.sync()
    }
}

#[test]
fn the_folder_is_whole_or_not_there_wherever_the_disk_fails() {
    let at = tempfile::tempdir().unwrap();
    let (model, weights) = (tiny(), Tiny::new(&tiny()));
    let expected = exported(&at.path().join("expected"), &model, &weights);
    let to = at.path().join("to");
    for operations in 0.. {
        let fs = FailingFs(Arc::new(AtomicUsize::new(operations)));
        let result = write_on(&fs, &to, &model, &weights, TOKENIZER);
        if to.exists() {
            let got: Vec<u8> = FILES.iter().flat_map(|f| fs::read(to.join(f)).unwrap()).collect();
            assert!(got == expected, "after {operations} operations");
            assert!(operations > 15, "{operations}");
            assert!(result.is_err(), "the rename was not made durable");
            break;
        }
        assert!(result.unwrap_err().message().contains("no storage space"), "after {operations} operations");
    }
}

/// A run folder with one checkpoint, as training leaves it.
fn run_folder(run: &Path, recipe: &str) {
    let weights = Tiny::new(&tiny());
    let bytes: Vec<_> =
        weights.0.iter().map(|(n, (s, _))| (n.clone(), s.clone(), weights.read(n, s).unwrap())).collect();
    let views: Vec<_> = bytes.iter().map(|(n, s, b)| TensorView::new(n.as_str(), s.clone(), b)).collect();
    let moment = TensorView::new("adam.m.head", vec![1], &[0; 4]);
    let meta = Meta {
        step: 20,
        tokens_seen: 320,
        recipe_hash: String::new(),
        resolved_recipe_toml: recipe.into(),
        corpus_hash: String::new(),
        tokenizer_hash: blake3::hash(TOKENIZER.as_bytes()).to_hex().to_string(),
        world_size: 1,
        seed: 0,
        xrun_version: String::new(),
        engine: String::new(),
        algorithms: None,
        extra: BTreeMap::from([(END_TOKEN_ID.to_string(), "10".to_string())]),
        rows: BTreeMap::new(),
    };
    fs::create_dir_all(run).unwrap();
    fs::write(run.join("tokenizer.json"), TOKENIZER).unwrap();
    Store::open(&run.join("checkpoint"), 1).unwrap().save(&meta, &Snapshot::new(views, [moment])).unwrap();
}

const RECIPE: &str = "[model]\ndim = 6\nn_layers = 2\nn_heads = 4\nn_kv_heads = 2\nhead_dim = 2\nffn_dim = 5\n\
    dropout = 0.1\nqk_norm = true\nrope_theta = 12345.0\nnorm_eps = 1e-5\ntie_embeddings = false\n\
    [training]\nseq_len = 16\n[data]\ntokenizer = \"x\"\n";

fn xrun_export(run: &Path, to: &Path, more: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("xrun").unwrap().arg("export").arg(run).arg("--to").arg(to).args(more).assert()
}

#[test]
fn the_command_exports_a_run_to_the_same_bytes() {
    let at = tempfile::tempdir().unwrap();
    let (run, direct, to) = (at.path().join("run"), at.path().join("direct"), at.path().join("to"));
    run_folder(&run, RECIPE);
    xrun_export(&run, &to, &[]).success().stdout("");
    let expected = exported(&direct, &tiny(), &Tiny::new(&tiny()));
    let got: Vec<u8> = FILES.iter().flat_map(|f| fs::read(to.join(f)).unwrap()).collect();
    assert!(got == expected);
    xrun_export(&run, &at.path().join("20"), &["--checkpoint", "20", "--dtype", "bf16"]).success();
}

#[test]
fn the_command_says_what_is_wrong() {
    use predicates::str::contains;
    let at = tempfile::tempdir().unwrap();
    let (run, to) = (at.path().join("run"), at.path().join("to"));
    xrun_export(&run, &to, &[]).code(2).stderr(contains("no run `"));
    run_folder(&run, &RECIPE.replace("qk_norm = true", "qk_norm = false"));
    xrun_export(&run, &to, &[]).code(2).stderr(contains("qk_norm is false"));
    xrun_export(&run, &to, &["--checkpoint", "10"]).code(2).stderr(contains("there are: 20"));
    xrun_export(&run, &to, &["--dtype", "fp8"]).code(2);
    let apart = at.path().join("apart");
    let recipe = format!("{RECIPE}[parallelism]\nworld_size = 2\n[engine]\ncommunication = \"off\"\n");
    run_folder(&apart, &recipe);
    xrun_export(&apart, &to, &[]).code(2).stderr(contains("engine.communication = \"off\""));
    assert!(!to.exists());
    let alone = at.path().join("alone");
    run_folder(&alone, &recipe.replace("world_size = 2", "world_size = 1"));
    xrun_export(&alone, &at.path().join("of one rank"), &[]).success();
    fs::remove_file(run.join("tokenizer.json")).unwrap();
    xrun_export(&run, &to, &[]).code(2).stderr(contains("tokenizer.json"));
    let no_seq = at.path().join("no_seq");
    run_folder(&no_seq, &RECIPE.replace("seq_len = 16", ""));
    xrun_export(&no_seq, &to, &[]).code(1).stderr(contains("seq_len"));
    fs::write(no_seq.join("checkpoint/step-000020/model.safetensors"), "x").unwrap();
    xrun_export(&no_seq, &to, &[]).code(1).stderr(contains("step-000020 cannot be used"));
    assert!(!to.exists());
}

/// Runs xrun in a folder.
fn xrun(at: &Path, args: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("xrun").unwrap().current_dir(at).args(args).assert()
}

/// The export of a run in `at`, and the folder of the run that is imported from it.
fn exported_and_imported(at: &Path) -> (PathBuf, PathBuf) {
    use predicates::str::contains;
    run_folder(&at.join("run"), RECIPE);
    xrun_export(&at.join("run"), &at.join("model"), &[]).success();
    let done = xrun(at, &["import", "model", "--name", "mine"]).success();
    let done = done.stderr(contains("logits match xrun-reference.json").and(contains("Qwen3ForCausalLM")));
    let run = String::from_utf8(done.get_output().stdout.clone()).unwrap();
    (at.join("model"), at.join(run.trim_end()))
}

#[test]
fn an_import_is_the_run_that_was_exported() {
    use predicates::str::contains;
    let at = tempfile::tempdir().unwrap();
    let (model, run) = exported_and_imported(at.path());
    xrun_export(&run, &at.path().join("again"), &[]).success();
    for file in FILES.iter().chain(&["xrun-reference.json"]) {
        let [before, after] = [&model, &at.path().join("again")].map(|dir| fs::read(dir.join(file)).unwrap());
        assert!(before == after, "{file}");
    }
    let weights = xrun::checkpoint::newest(&run.join("checkpoint")).unwrap().unwrap();
    let trained = Tiny::new(&tiny());
    for (name, (shape, values)) in &trained.0 {
        assert_eq!(&floats(&weights.read(name, shape).unwrap()), values, "{name}");
    }
    let run = run.to_str().unwrap();
    xrun(at.path(), &["sample", run, "--prompt", "abc", "--tokens", "4", "--temperature", "0"]).success();
    xrun(at.path(), &["sample", "latest", "--prompt", "abc", "--tokens", "4"])
        .success()
        .stdout(contains("abc"));
    let says = "was imported, so it has no training to continue";
    xrun(at.path(), &["resume", run, "training.steps=2"]).code(2).stderr(contains(says));
}

/// The losses of a run.
fn losses(run: &Path) -> Vec<u32> {
    let rows = xrun::results::rows::read::<xrun::results::MetricsRow>(&run.join("metrics.csv")).unwrap();
    rows.iter().map(|row| row.loss.to_bits()).collect()
}

/// A fork of an import, and a run whose recipe names the folder: the same weights, and the same training.
#[test]
fn training_begins_with_the_weights_of_a_folder() {
    let at = tempfile::tempdir().unwrap();
    let (model, run) = exported_and_imported(at.path());
    let letters: String = (0..4000u32).map(|i| char::from(b'a' + (i * i % 97 % 10) as u8)).collect();
    fs::write(at.path().join("letters.txt"), letters).unwrap();
    let shorter =
        ["data.corpus=letters.txt", "training.steps=3", "training.local_batch_size=2", "metrics.plots=false"];
    let newest = || {
        let runs = xrun::results::find::runs(&at.path().join("results")).unwrap();
        runs.into_iter()
            .max_by_key(|run| fs::metadata(run.join("metrics.csv")).unwrap().modified().unwrap())
            .unwrap()
    };
    let recipe = run.join("recipe.toml");
    let mut found = Vec::new();
    for (first, more) in [
        (vec!["resume", run.to_str().unwrap(), "--fork"], vec![]),
        (vec!["run", recipe.to_str().unwrap()], vec![]),
        (
            vec!["run", recipe.to_str().unwrap()],
            vec!["parallelism.world_size=2", "training.local_batch_size=1"],
        ),
        (
            vec!["run", recipe.to_str().unwrap()],
            vec!["parallelism.world_size=2", "training.local_batch_size=1", "parallelism.shard=optimizer"],
        ),
    ] {
        let kept =
            shorter.iter().filter(|set| more.iter().all(|m| m.split('=').next() != set.split('=').next()));
        let args: Vec<&str> = first.iter().chain(kept).chain(&more).copied().chain(["--quiet"]).collect();
        xrun(at.path(), &args).success();
        found.push(newest());
    }
    let drawn = [&["run", recipe.to_str().unwrap()][..], &shorter, &["--quiet"]].concat();
    let hash = xrun::hugging_face::Folder::open(&model).unwrap().content_hash().unwrap();
    let first = losses(&found[0]);
    assert_eq!(first.len(), 3);
    assert_eq!(losses(&found[1]), first);
    // Several ranks add up in another order.
    for run in &found[2..] {
        for (a, b) in losses(run).into_iter().zip(&first) {
            assert!((f32::from_bits(a) - f32::from_bits(*b)).abs() < 1e-4, "{}", run.display());
        }
    }
    for (run, with) in found.iter().zip([None, Some(&hash), Some(&hash), Some(&hash)]) {
        let summary = xrun::results::folder::read_summary(run).unwrap();
        assert_eq!(summary.begun_with.as_ref().map(|with| &with.blake3), with);
        assert_eq!(summary.forked_from.is_some(), with.is_none());
        let saved = xrun::checkpoint::newest(&run.join("checkpoint")).unwrap().unwrap();
        assert_eq!(saved.meta().extra.get("initial_weights"), Some(&hash), "{}", run.display());
    }
    // Another model, and one that cannot be read any more.
    use predicates::str::contains;
    let other = [&drawn[..], &["model.ffn_dim=7"]].concat();
    xrun(at.path(), &other).code(2).stderr(contains("model.ffn_dim is 7"));
    let other = [&drawn[..], &["data.tokenizer=byte", "model.vocab_size=300"]].concat();
    xrun(at.path(), &other).code(2).stderr(contains("model.vocab_size is 300"));
    fs::remove_file(model.join("model.safetensors")).unwrap();
    xrun(at.path(), &drawn).code(2).stderr(contains("there are no weights"));
}

/// The files of a folder that say which tokens are special and how texts are written, with what xrun would
/// not write itself.
fn companions() -> BTreeMap<&'static str, String> {
    let settings = serde_json::json!({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
        "pad_token": {"content": "a", "special": true}, "model_max_length": 7,
        "chat_template": [{"name": "default", "template": "{{ bos_token }}"}, {"name": "tool", "template": "x"}]});
    BTreeMap::from([
        ("generation_config.json", r#"{"eos_token_id": [10, 4], "temperature": 0.7}"#.to_owned()),
        ("tokenizer_config.json", settings.to_string()),
        ("special_tokens_map.json", r#"{"cls_token": "b"}"#.to_owned()),
        ("chat_template.jinja", "{{ messages[0].content }}".to_owned()),
    ])
}

/// Imported, trained further as a fork, and trained from a recipe that names the folder; each with all files
/// and without each of them.
#[test]
fn what_a_folder_says_about_tokens_comes_out_of_every_run() {
    let at = tempfile::tempdir().unwrap();
    run_folder(&at.path().join("run"), RECIPE);
    xrun_export(&at.path().join("run"), &at.path().join("plain"), &[]).success();
    fs::write(at.path().join("letters.txt"), "abcdefghij".repeat(400)).unwrap();
    let train = [
        "data.corpus=letters.txt",
        "training.steps=1",
        "training.local_batch_size=2",
        "metrics.plots=false",
        "--quiet",
    ];
    let all = companions();
    for (i, missing) in [None].into_iter().chain(all.keys().map(Some)).enumerate() {
        let model = at.path().join(format!("model-{i}"));
        fs::create_dir(&model).unwrap();
        for file in ["model.safetensors", "tokenizer.json", "config.json"] {
            fs::copy(at.path().join("plain").join(file), model.join(file)).unwrap();
        }
        let text = fs::read_to_string(model.join("config.json")).unwrap();
        let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        config.remove("bos_token_id");
        config.insert("eos_token_id".into(), serde_json::json!([10, 4]));
        config.insert("pad_token_id".into(), serde_json::Value::Null);
        config.insert("max_position_embeddings".into(), 64.into());
        fs::write(model.join("config.json"), serde_json::Value::from(config.clone()).to_string()).unwrap();
        let expected: BTreeMap<_, _> = all.iter().filter(|(name, _)| Some(*name) != missing).collect();
        expected.iter().for_each(|(name, text)| fs::write(model.join(name), text).unwrap());

        let results = format!("results-{i}");
        let place = ["--results", results.as_str()];
        let done = xrun(
            at.path(),
            &[&["import", model.to_str().unwrap(), "--name", "m", "--seq-len", "16"][..], &place].concat(),
        );
        let imported =
            String::from_utf8(done.success().get_output().stdout.clone()).unwrap().trim_end().to_owned();
        let recipe = format!("{imported}/recipe.toml");
        xrun(at.path(), &[&["resume", &imported, "--fork"][..], &train, &place].concat()).success();
        xrun(at.path(), &[&["run", &recipe][..], &train, &place].concat()).success();
        let runs = xrun::results::find::runs(&at.path().join(&results)).unwrap();
        assert_eq!(runs.len(), 3);
        for (j, run) in runs.iter().enumerate() {
            let out = at.path().join(format!("out-{i}-{j}"));
            xrun_export(run, &out, &["--no-reference"]).success();
            let mut names: Vec<String> =
                fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.retain(|name| {
                !["model.safetensors", "tokenizer.json", "config.json"].contains(&name.as_str())
            });
            names.sort();
            assert_eq!(
                names,
                expected.keys().map(|name| (**name).to_owned()).collect::<Vec<_>>(),
                "{missing:?} {j}"
            );
            for (name, text) in &expected {
                assert_eq!(
                    &fs::read_to_string(out.join(name)).unwrap(),
                    *text,
                    "{name} without {missing:?}, run {j}"
                );
            }
            let text = fs::read_to_string(out.join("config.json")).unwrap();
            let out: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
            assert_eq!(out, config, "{missing:?}, run {j}");
        }
    }
}

/// A run folder of others, in which the files that an export reads are links to private files.
#[test]
fn links_in_place_of_companions_are_not_followed() {
    use predicates::str::contains;
    let at = tempfile::tempdir().unwrap();
    run_folder(&at.path().join("run"), RECIPE);
    fs::write(at.path().join("private"), r#"{"chat_template.jinja": "secret"}"#).unwrap();
    std::os::unix::fs::symlink(at.path().join("private"), at.path().join("run/companions.json")).unwrap();
    xrun_export(&at.path().join("run"), &at.path().join("to"), &[])
        .failure()
        .stderr(contains("companions.json"));
    assert!(!at.path().join("to").exists());
}

/// Every way to write one model differently from what an export of it says.
#[test]
fn a_model_accepts_its_own_recipe() {
    let at = tempfile::tempdir().unwrap();
    fs::write(at.path().join("letters.txt"), "abcdefghij".repeat(400)).unwrap();
    fs::write(at.path().join("tokenizer.json"), TOKENIZER).unwrap();
    let common = "[model]\ndim = 16\nn_layers = 2\n{}\n[training]\nseq_len = 16\nsteps = 1\nlocal_batch_size = 2\n\
        [data]\ncorpus = \"letters.txt\"\ntokenizer = \"tokenizer.json\"\n[metrics]\nplots = false\n";
    for (i, keys) in [
        "",
        "n_heads = 2",
        "n_heads = 2\nn_kv_heads = 2\nhead_dim = 8\nffn_dim = 64",
        "activation = \"silu(a) * b\"",
        "n_heads = 2\nwindow = 4\nglobal_interval = 8",
        "n_heads = 2\nwindow = 4\nglobal_interval = 1",
        "n_heads = 2\nwindow = 4",
        "rope_scaling = \"yarn\"\nrope_factor = 2.0\nrope_original_context = 8",
        "norm_bias = false\nqk_norm = false",
        "norm = \"layer_norm\"\nposition = \"learned\"\nbias = true\nqk_norm = false\nactivation = \"gelu\"",
        "norm = \"layer_norm\"\nnorm_bias = true\nposition = \"learned\"\nbias = true\nqk_norm = false\nactivation = \"gelu(x)\"",
        "dropout = 0.1\ninit_std = 0.1\nresidual_init = \"zero\"",
    ]
    .into_iter()
    .enumerate()
    {
        let recipe = format!("r{i}.toml");
        fs::write(at.path().join(&recipe), common.replace("{}", keys)).unwrap();
        let results = format!("results-{i}");
        xrun(at.path(), &["run", &recipe, "--results", &results, "--quiet"]).success();
        let run = &xrun::results::find::runs(&at.path().join(&results)).unwrap()[0];
        let to = at.path().join(format!("model-{i}"));
        xrun_export(run, &to, &["--no-reference"]).success();
        let init = format!("model.init_from={}", to.display());
        let begun = xrun(at.path(), &["run", &recipe, &init, "--results", &results, "--quiet"]);
        begun.try_success().unwrap_or_else(|e| panic!("{keys}: {e}"));
    }
    // A plan refuses the folder's tokenizer like a run.
    for (text, says) in [
        (TOKENIZER.replacen("\"a\"", "\"z\"", 1), "a different vocabulary than the folder's"),
        ("{".to_owned(), "not a HuggingFace tokenizer.json"),
    ] {
        fs::write(at.path().join("model-0/tokenizer.json"), text).unwrap();
        for command in ["plan", "run"] {
            let refused = xrun(at.path(), &[command, "r0.toml", "model.init_from=model-0"]);
            refused.code(2).stderr(predicates::str::contains(says));
        }
    }
}

#[test]
fn a_folder_that_is_wrong_is_not_imported() {
    use predicates::str::contains;
    let at = tempfile::tempdir().unwrap();
    run_folder(&at.path().join("run"), RECIPE);
    let model = at.path().join("model");
    let change = |file: &str, from: &str, to: &str| {
        let text = fs::read_to_string(model.join(file)).unwrap();
        assert!(text.contains(from), "{file}");
        fs::write(model.join(file), text.replacen(from, to, 1)).unwrap();
    };
    let cases: [(&dyn Fn(), &str); 7] = [
        (&|| change("config.json", "\"rms_norm_eps\": 0.00001", "\"rms_norm_eps\": 0.01"), "has the logit"),
        (
            &|| change("config.json", "\"intermediate_size\": 5", "\"intermediate_size\": 4"),
            "has shape [5, 6]",
        ),
        (
            &|| change("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
            "it would be lost",
        ),
        (
            &|| change("config.json", "\"vocab_size\": 11", "\"vocab_size\": 10"),
            "the tokenizer has 11 entries",
        ),
        (&|| change("config.json", "\"qwen3\"", "\"gemma3\""), "model_type is \"gemma3\""),
        (&|| change("xrun-reference.json", "\"format\":1", "\"format\":2"), "format is 2"),
        (
            &|| fs::rename(model.join("model.safetensors"), model.join("pytorch_model.bin")).unwrap(),
            "pytorch_model.bin is a pickle",
        ),
    ];
    for (damage, says) in cases {
        xrun_export(&at.path().join("run"), &model, &[]).success();
        damage();
        xrun(at.path(), &["import", "model"]).code(2).stderr(contains(says));
        assert!(!at.path().join("results").exists(), "{says}");
        fs::remove_dir_all(&model).unwrap();
    }
    xrun_export(&at.path().join("run"), &model, &["--no-reference"]).success();
    xrun(at.path(), &["import", "model"]).success().stderr(contains("logits are not compared"));
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    xrun(at.path(), &["import", "model"]).code(2).stderr(contains("there is no tokenizer.json"));
    xrun(at.path(), &["import", "model", "--seq-len", "17"]).code(2).stderr(contains("tokenizer.json"));
}
