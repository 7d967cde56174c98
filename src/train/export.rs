//! A trained model as a HuggingFace Qwen3 folder.
//!
//! The folder is a function of the tensors, the numbers and the tokenizer alone: the same model gives the same bytes.
//! It appears whole or not at all. Weights go into one `model.safetensors` whatever their size: splitting is a
//! convenience of hosts with a limit per file, and every reader of the format takes one file.

use crate::checkpoint::tensor_file;
use crate::checkpoint::{DiskFs, Fs, Loaded, TensorView, write_synced};
use crate::error::{Error, IoContext, Result};
use half::bf16;
use safetensors::Dtype as StoredDtype;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The element type of exported weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dtype {
    /// As trained: 4 bytes, exact.
    #[value(name = "fp32")]
    F32,
    /// 2 bytes, rounded to nearest, ties to even.
    #[value(name = "bf16")]
    Bf16,
}

/// The numbers of a model that its `config.json` states.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportModel {
    /// Rows of the embedding: the tokenizer's vocabulary, without padding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Transformer blocks.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub ffn_dim: usize,
    /// Base of the rotary embedding's wavelengths.
    pub rope_theta: f64,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f64,
    /// Whether queries and keys are normalized per head. Qwen3 always does.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tie_embeddings: bool,
    /// The longest sequence the model was trained on, in tokens.
    pub max_position_embeddings: usize,
    /// The token that ends a document; it also starts generation from nothing.
    pub end_token_id: u32,
    /// The element type to write.
    pub dtype: Dtype,
}

/// Where weights come from, by xrun's names.
pub trait Weights {
    /// The names of all parameters.
    fn names(&self) -> Vec<String>;
    /// The fp32 bytes (row-major, little-endian, no padding) of a parameter; an error when its shape is another.
    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>>;
}

impl Weights for Loaded {
    fn names(&self) -> Vec<String> {
        self.parameter_names().map(str::to_string).collect()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        Loaded::read(self, name, shape)
    }
}

/// Writes the folder `dir`: config, generation config, weights and tokenizer.
///
/// Errors (exit 2): `dir` exists and is not empty; the architecture is not Qwen3's; the tokenizer does not parse,
/// lacks the end token or is larger than the vocabulary. Errors (exit 1): a weight is missing, unknown or of another
/// shape; the disk refuses. Whatever happens, the whole folder is at `dir` or nothing new is.
pub fn write(dir: &Path, model: &ExportModel, weights: &dyn Weights, tokenizer_json: &str) -> Result<()> {
    write_on(&DiskFs, dir, model, weights, tokenizer_json)
}

/// As [`write`], on a file system of the caller's.
pub fn write_on(
    fs: &dyn Fs,
    dir: &Path,
    model: &ExportModel,
    weights: &dyn Weights,
    tokenizer_json: &str,
) -> Result<()> {
    model.check()?;
    let end_token = end_token(model, tokenizer_json)?;
    let given = weights.names();
    if model.n_layers > given.len() {
        return Err(Error::failed(format!(
            "{} layers cannot come from {} tensors",
            model.n_layers,
            given.len()
        )));
    }
    let parts = parts(model);
    check_names(model, &given, &parts)?;
    let target = Target::new(dir)?;

    let files = [
        ("config.json", config(model)),
        ("generation_config.json", generation_config(model)),
        ("tokenizer_config.json", tokenizer_config(model, &end_token)),
    ];
    target.fill(fs, |temporary| {
        let tensors: Vec<_> = parts.iter().map(|p| p.view(model.dtype, weights)).collect();
        tensor_file::write(fs, &temporary.join("model.safetensors"), &tensors)?;
        for (name, json) in files {
            let path = temporary.join(name);
            write_synced(fs, &path, format!("{json:#}\n").as_bytes()).at("write", &path)?;
        }
        let path = temporary.join("tokenizer.json");
        write_synced(fs, &path, tokenizer_json.as_bytes()).at("write", &path)
    })
}

impl ExportModel {
    /// Refuses what Qwen3's architecture cannot express, and sizes whose products overflow.
    fn check(&self) -> Result<()> {
        if !self.qk_norm {
            return Err(Error::usage(
                "model.qk_norm is false: HuggingFace's Qwen3 always normalizes queries and keys, so this model has no \
                 folder that would load as what was trained. Train with model.qk_norm = true to export",
            ));
        }
        if self.n_kv_heads == 0 || !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(Error::usage(format!(
                "{} query heads cannot share {} key-value heads evenly",
                self.n_heads, self.n_kv_heads
            )));
        }
        let heads = self.n_kv_heads.checked_mul(2).and_then(|kv| kv.checked_add(self.n_heads));
        let fits = [
            heads.and_then(|h| h.checked_mul(self.head_dim)).and_then(|rows| rows.checked_mul(self.dim)),
            self.vocab_size.checked_mul(self.dim),
            self.ffn_dim.checked_mul(2).and_then(|rows| rows.checked_mul(self.dim)),
        ];
        if fits.iter().any(|n| n.and_then(|n| n.checked_mul(4)).is_none()) {
            return Err(Error::usage("the model's sizes are too large to address"));
        }
        Ok(())
    }

    fn dtype_name(&self) -> &'static str {
        match self.dtype {
            Dtype::F32 => "float32",
            Dtype::Bf16 => "bfloat16",
        }
    }
}

/// One HuggingFace tensor: a range of rows of one of xrun's, or all of it.
struct Part {
    name: String,
    /// The shape it is written with; the product of all but the first is one row.
    shape: Vec<usize>,
    source: String,
    source_shape: Vec<usize>,
    /// Rows of `source` before it, where a row is as wide as one of `shape`.
    first_row: usize,
}

impl Part {
    fn whole(name: impl Into<String>, source: impl Into<String>, shape: &[usize]) -> Self {
        Self {
            name: name.into(),
            shape: shape.to_vec(),
            source: source.into(),
            source_shape: shape.to_vec(),
            first_row: 0,
        }
    }

    fn view<'a>(&'a self, dtype: Dtype, weights: &'a dyn Weights) -> TensorView<'a> {
        let stored = match dtype {
            Dtype::F32 => StoredDtype::F32,
            Dtype::Bf16 => StoredDtype::BF16,
        };
        TensorView::lazy(self.name.as_str(), stored, self.shape.clone(), move || {
            let mut bytes = weights.read(&self.source, &self.source_shape)?;
            let row = self.shape[1..].iter().product::<usize>() * 4;
            let (start, length) = (self.first_row * row, self.shape[0] * row);
            let too_short = || Error::failed(format!("{} holds only {} bytes", self.source, bytes.len()));
            bytes.get(start..start + length).ok_or_else(too_short)?;
            bytes.drain(..start);
            bytes.truncate(length);
            Ok(Cow::Owned(match dtype {
                Dtype::F32 => bytes,
                Dtype::Bf16 => to_bf16(&bytes),
            }))
        })
    }
}

/// fp32 bytes to bf16 bytes, rounded to nearest, ties to even.
fn to_bf16(bytes: &[u8]) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<4>();
    elements.iter().flat_map(|&x| bf16::from_f32(f32::from_le_bytes(x)).to_le_bytes()).collect()
}

/// Every tensor of the folder in the order it is written: embedding, blocks, norm, head.
fn parts(m: &ExportModel) -> Vec<Part> {
    let (d, hd, ffn) = (m.dim, m.head_dim, m.ffn_dim);
    let (q, kv) = (m.n_heads * hd, m.n_kv_heads * hd);
    let mut parts = vec![Part::whole("model.embed_tokens.weight", "embedding", &[m.vocab_size, d])];
    for i in 0..m.n_layers {
        let to = |name: &str| format!("model.layers.{i}.{name}.weight");
        let from = |name: &str| format!("blocks.{i}.{name}");
        let qkv = |name: &str, rows, first_row| Part {
            source_shape: vec![q + 2 * kv, d],
            first_row,
            ..Part::whole(to(name), from("qkv"), &[rows, d])
        };
        let gate_up = |name: &str, first_row| Part {
            source_shape: vec![2, ffn, d],
            first_row,
            ..Part::whole(to(name), from("gate_up"), &[ffn, d])
        };
        parts.extend([
            Part::whole(to("input_layernorm"), from("attention_norm"), &[d]),
            qkv("self_attn.q_proj", q, 0),
            qkv("self_attn.k_proj", kv, q),
            qkv("self_attn.v_proj", kv, q + kv),
            Part::whole(to("self_attn.q_norm"), from("q_norm"), &[hd]),
            Part::whole(to("self_attn.k_norm"), from("k_norm"), &[hd]),
            Part::whole(to("self_attn.o_proj"), from("out"), &[d, q]),
            Part::whole(to("post_attention_layernorm"), from("ffn_norm"), &[d]),
            gate_up("mlp.gate_proj", 0),
            gate_up("mlp.up_proj", ffn),
            Part::whole(to("mlp.down_proj"), from("down"), &[d, ffn]),
        ]);
    }
    parts.push(Part::whole("model.norm.weight", "final_norm", &[d]));
    if !m.tie_embeddings {
        parts.push(Part::whole("lm_head.weight", "head", &[m.vocab_size, d]));
    }
    parts
}

/// A parameter that the folder has no place for would be lost silently: an error, as is a missing one.
fn check_names(model: &ExportModel, given: &[String], parts: &[Part]) -> Result<()> {
    let given: BTreeSet<_> = given.iter().map(String::as_str).collect();
    let known: BTreeSet<_> = parts.iter().map(|p| p.source.as_str()).collect();
    let layers = model.n_layers;
    if let Some(missing) = known.difference(&given).next() {
        return Err(Error::failed(format!(
            "the checkpoint has no {missing}; a model of {layers} layers needs one"
        )));
    }
    if let Some(unknown) = given.difference(&known).next() {
        return Err(Error::failed(format!(
            "the checkpoint has {unknown}; a Qwen3 model of {layers} layers has no place for it"
        )));
    }
    Ok(())
}

/// Parses the tokenizer, checks it against the vocabulary, and returns the text of the end token.
fn end_token(model: &ExportModel, tokenizer_json: &str) -> Result<String> {
    let tokenizer = Tokenizer::from_bytes(tokenizer_json)
        .map_err(|e| Error::usage(format!("tokenizer.json is wrong: {e}")))?;
    let largest = tokenizer.get_vocab(true).into_values().max();
    if let Some(id) = largest.filter(|&id| id as usize >= model.vocab_size) {
        return Err(Error::usage(format!(
            "tokenizer.json has token {id}, the model knows {}: it is not the tokenizer of this run",
            model.vocab_size
        )));
    }
    let id = model.end_token_id;
    tokenizer
        .id_to_token(id)
        .ok_or_else(|| Error::usage(format!("tokenizer.json has no token {id} to end a document")))
}

fn config(m: &ExportModel) -> serde_json::Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": m.dtype_name(),
        "vocab_size": m.vocab_size,
        "hidden_size": m.dim,
        "intermediate_size": m.ffn_dim,
        "num_hidden_layers": m.n_layers,
        "num_attention_heads": m.n_heads,
        "num_key_value_heads": m.n_kv_heads,
        "head_dim": m.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": m.max_position_embeddings,
        "initializer_range": 0.02,
        "rms_norm_eps": m.norm_eps,
        "rope_theta": m.rope_theta,
        "rope_scaling": null,
        "attention_bias": false,
        "attention_dropout": 0.0,
        "use_sliding_window": false,
        "sliding_window": null,
        "max_window_layers": m.n_layers,
        "tie_word_embeddings": m.tie_embeddings,
        "use_cache": true,
        "bos_token_id": m.end_token_id,
        "eos_token_id": m.end_token_id,
    })
}

fn generation_config(m: &ExportModel) -> serde_json::Value {
    json!({
        "bos_token_id": m.end_token_id,
        "eos_token_id": m.end_token_id,
        "pad_token_id": m.end_token_id,
    })
}

fn tokenizer_config(m: &ExportModel, end_token: &str) -> serde_json::Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": m.max_position_embeddings,
        "bos_token": end_token,
        "eos_token": end_token,
        "clean_up_tokenization_spaces": false,
    })
}

/// Where a folder is to appear, and where it is made before.
struct Target {
    dir: PathBuf,
    parent: PathBuf,
    temporary: PathBuf,
}

impl Target {
    fn new(dir: &Path) -> Result<Self> {
        let Some(name) = dir.file_name() else {
            return Err(Error::usage(format!("{} is no name for a new folder", dir.display())));
        };
        match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Error::usage(format!(
                    "{} exists and is not empty: name a new folder",
                    dir.display()
                )));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::usage(format!("{} cannot become a folder: {e}", dir.display()))),
        }
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = parent.join(format!(".tmp-{}-{}", name.to_string_lossy(), std::process::id()));
        Ok(Self { dir: dir.to_path_buf(), parent: parent.to_path_buf(), temporary })
    }

    /// Makes the folder with `content` at its temporary name, durably, and then gives it its own.
    fn fill(&self, fs: &dyn Fs, content: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        fs::create_dir_all(&self.parent).at("create", &self.parent)?;
        let temporary = &self.temporary;
        if fs::symlink_metadata(temporary).is_ok() {
            // Of a process that had this one's number and was killed.
            fs.remove(temporary).at("remove", temporary)?;
        }
        let made = fs.create_dir(temporary).at("create", temporary).and_then(|()| {
            content(temporary)?;
            fs.sync_dir(temporary).at("sync", temporary)?;
            fs.rename(temporary, &self.dir).at("rename", temporary)?;
            fs.sync_dir(&self.parent).at("sync", &self.parent)
        });
        made.inspect_err(|_| {
            // The error that matters is the one being returned.
            let _ = fs.remove(temporary);
        })
    }
}
