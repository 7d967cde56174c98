//! Exports a trained model as a HuggingFace folder.
//!
//! The folder depends only on the tensors, the dimensions, the tokenizer and what is said of the training
//! text, so the same model gives the same bytes. It appears complete or not at all. Weights of any size go
//! into one `model.safetensors`: sharding only serves hosts with a limit per file, and every reader of the
//! format accepts one file.

pub use super::hugging_face::CHAT_TEMPLATE;
use super::hugging_face::{
    CONFIG, Companions, GENERATION, HfFacts, HfModel, HfTensor, SETTINGS, TOKEN_MAP, express, peft,
};
pub use super::weights::Weights;
use crate::checkpoint::tensor_file;
use crate::checkpoint::{DiskFs, Fs, TensorView, write_synced};
use crate::data::tokenizer::{Begin, GuardedTokenizer, json_beginning_with};
use crate::error::{Error, IoContext, Result};
use crate::gguf::Element;
use crate::hugging_face::{ADAPTER_CONFIG, ADAPTER_WEIGHTS, REFERENCE, Reference};
use crate::plan::{Adapter, Model};
use safetensors::Dtype as StoredDtype;
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// File name of the record of what a model was trained on.
pub const TRAINING_DATA: &str = "xrun-data.json";

/// The element type of exported weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Dtype {
    /// The trained values: 4 bytes, exact.
    #[value(name = "fp32", alias = "f32")]
    F32,
    /// 2 bytes, rounded to nearest, ties to even. A weight beyond 65504 is refused.
    #[value(name = "fp16", alias = "f16")]
    F16,
    /// 2 bytes, rounded to nearest, ties to even.
    #[value(name = "bf16")]
    Bf16,
}

/// A model to export.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Dimensions of the model. The vocabulary is the tokenizer's, without padding.
    pub model: Model,
    /// Length in tokens of the longest sequence that the model was trained on.
    pub seq_len: usize,
    /// Token that ends a document.
    pub end_token_id: u32,
    /// What texts began with in training.
    pub begin: Begin,
    /// Element type to write.
    pub dtype: Dtype,
    /// Logits of the weights as they are written ([`Stored`]), with which a reader can check itself.
    pub reference: Option<Reference>,
    /// Files beside the weights and the tokenizer that the run began with.
    pub companions: Companions,
    /// What the model was trained on, as JSON; `None` to leave it out.
    pub data: Option<String>,
}

impl Export {
    /// Returns the token that texts began with in training.
    pub(super) fn begin_token_id(&self) -> Option<u32> {
        match self.begin {
            Begin::End => Some(self.end_token_id),
            Begin::Token(id) => Some(id),
            Begin::Nothing => None,
        }
    }
}

/// Weights rounded to the element type in which they are written.
pub struct Stored<'a> {
    /// The original weights in fp32.
    pub weights: &'a dyn Weights,
    /// The element type.
    pub dtype: Dtype,
}

impl Weights for Stored<'_> {
    fn names(&self) -> Vec<String> {
        self.weights.names()
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<u8>> {
        let bytes = self.weights.read(name, shape)?;
        if self.dtype == Dtype::F32 {
            return Ok(bytes);
        }
        let element = self.dtype.element();
        let numbers: Vec<f32> = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        element.check(&numbers).map_err(|e| e.context(format!("tensor {name}")))?;
        Ok(numbers.into_iter().flat_map(|number| element.rounded(number).to_le_bytes()).collect())
    }
}

/// Writes the folder `dir`: config, generation config, weights and tokenizer.
///
/// # Errors
/// With exit code 2 if `dir` exists and is not empty, no class of HuggingFace can express the model, or the
/// tokenizer does not parse, lacks the end token or is larger than the vocabulary. With exit code 1 if a
/// weight is missing, unknown or has a different shape, or writing fails. After an error nothing new is left
/// at `dir`.
pub fn write(dir: &Path, export: &Export, weights: &dyn Weights, tokenizer_json: &str) -> Result<()> {
    write_on(&DiskFs, dir, export, weights, tokenizer_json)
}

/// Checks that a class of transformers can express the model.
///
/// # Errors
/// With a usage error that names what each class lacks.
pub fn check(export: &Export) -> Result<()> {
    express(&export.model, &facts(export)).map(drop)
}

/// Returns the model in the form of a class of transformers, whose parameters are exactly the weights.
///
/// # Errors
/// Like [`write()`].
pub(super) fn expressed(export: &Export, weights: &dyn Weights) -> Result<HfModel> {
    let given = weights.names();
    let layers = export.model.n_layers;
    if layers > given.len() {
        return Err(Error::failed(format!("{layers} layers need more than {} tensors", given.len())));
    }
    let hf = express(&export.model, &facts(export))?;
    check_names(layers, &given, &hf)?;
    Ok(hf)
}

/// Returns the facts of a model besides its dimensions.
fn facts(export: &Export) -> HfFacts {
    HfFacts {
        torch_dtype: export.dtype.torch(),
        seq_len: export.seq_len,
        end_token_id: export.end_token_id,
        begin_token_id: export.begin_token_id(),
    }
}

/// Writes like [`write`], on a given file system.
pub fn write_on(
    fs: &dyn Fs,
    dir: &Path,
    export: &Export,
    weights: &dyn Weights,
    tokenizer_json: &str,
) -> Result<()> {
    let hf = expressed(export, weights)?;
    let tokens = tokens(export, tokenizer_json)?;
    let target = Target::new(dir)?;

    let files = files(export, hf.config, &tokens)?;
    // What came from a folder goes out as it came in. Another tokenizer begins texts as they did in training.
    let tokenizer_json = match export.companions.has_model() {
        true => Cow::Borrowed(tokenizer_json),
        false => json_beginning_with(tokenizer_json, tokens.begin())?.into(),
    };
    target.fill(fs, |temporary| {
        let tensors: Vec<_> = hf.tensors.iter().map(|t| view(t, export.dtype, weights)).collect();
        tensor_file::write(fs, &temporary.join("model.safetensors"), &tensors)?;
        let write = |name: &str, text: &str| {
            let path = temporary.join(name);
            write_synced(fs, &path, text.as_bytes()).at("write", &path)
        };
        for (name, text) in &files {
            write(name, text)?;
        }
        if let Some(data) = &export.data {
            write(TRAINING_DATA, data)?;
        }
        if let Some(reference) = &export.reference {
            write(REFERENCE, &reference.to_json()?)?;
        }
        write("tokenizer.json", &tokenizer_json)
    })
}

/// Writes the adapters of a model as the folder `dir` in PEFT's form, for a model in the folder `base`.
///
/// # Errors
/// Fails like [`write`], and if PEFT has no form for the adapters.
pub fn write_adapter(
    dir: &Path,
    export: &Export,
    adapter: &Adapter,
    weights: &dyn Weights,
    base: Option<&str>,
) -> Result<()> {
    let hf = express(&export.model, &facts(export))?;
    let tensors = peft::tensors(&export.model, adapter, &hf.tensors)?;
    let config = peft::config(adapter, &tensors, base);
    let fs = &DiskFs;
    Target::new(dir)?.fill(fs, |temporary| {
        let views: Vec<_> = tensors.iter().map(|t| view(t, export.dtype, weights)).collect();
        tensor_file::write(fs, &temporary.join(ADAPTER_WEIGHTS), &views)?;
        let path = temporary.join(ADAPTER_CONFIG);
        write_synced(fs, &path, format!("{config:#}\n").as_bytes()).at("write", &path)
    })
}

impl Dtype {
    /// Returns the value of `torch_dtype` in `config.json`.
    fn torch(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }

    /// Returns the format of elements.
    pub(super) fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::F16 => Element::F16,
            Self::Bf16 => Element::Bf16,
        }
    }
}

/// Returns a tensor of the file. It is read and converted only when it is written.
fn view<'a>(tensor: &'a HfTensor, dtype: Dtype, weights: &'a dyn Weights) -> TensorView<'a> {
    let stored = match dtype {
        Dtype::F32 => StoredDtype::F32,
        Dtype::F16 => StoredDtype::F16,
        Dtype::Bf16 => StoredDtype::BF16,
    };
    TensorView::lazy(tensor.name.as_str(), stored, tensor.shape.clone(), move || {
        let bytes = weights.read(&tensor.source, &tensor.source_shape)?;
        let parameter: Vec<f32> = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        let values = tensor.extract_from(&parameter)?;
        let encoded = dtype.element().encode(&values);
        encoded.map(Cow::Owned).map_err(|e| e.context(format!("tensor {}", tensor.name)))
    })
}

/// Checks that the export will have exactly the checkpoint's parameters, because an extra one would be lost
/// silently.
fn check_names(layers: usize, given: &[String], hf: &HfModel) -> Result<()> {
    let given: BTreeSet<_> = given.iter().map(String::as_str).collect();
    let known: BTreeSet<_> = hf.tensors.iter().map(|t| t.source.as_str()).collect();
    if let Some(missing) = known.difference(&given).next() {
        return Err(Error::failed(format!(
            "the checkpoint has no {missing}; a model of {layers} layers needs one"
        )));
    }
    if let Some(unknown) = given.difference(&known).next() {
        return Err(Error::failed(format!(
            "the checkpoint has {unknown}; a {} model of {layers} layers has no such parameter",
            hf.class
        )));
    }
    Ok(())
}

/// The texts of the tokens that end a document and begin a text.
struct Tokens {
    end: String,
    begin: Option<(u32, String)>,
}

impl Tokens {
    /// Returns the token that begins a text, by id and name.
    fn begin(&self) -> Option<(u32, &str)> {
        self.begin.as_ref().map(|(id, name)| (*id, name.as_str()))
    }
}

/// Parses the tokenizer, checks it against the vocabulary, and returns the texts of special tokens.
fn tokens(export: &Export, tokenizer_json: &str) -> Result<Tokens> {
    let tokenizer =
        GuardedTokenizer::parse(tokenizer_json).map_err(|e| e.context("tokenizer.json is wrong"))?;
    let largest = tokenizer.vocab()?.into_values().max();
    if let Some(id) = largest.filter(|&id| id as usize >= export.model.vocab_size) {
        return Err(Error::usage(format!(
            "tokenizer.json has token {id}, but the model's vocabulary has {}: it is not the tokenizer of this run",
            export.model.vocab_size
        )));
    }
    let named = |id: u32, what: &str| {
        let name = tokenizer.id_to_token(id);
        name.ok_or_else(|| Error::usage(format!("tokenizer.json has no token {id}, the {what}")))
    };
    let end = named(export.end_token_id, "end of a document")?;
    let begin = match export.begin_token_id() {
        Some(id) => Some((id, named(id, "beginning of a text")?)),
        None => None,
    };
    Ok(Tokens { end, begin })
}

/// Returns the files besides weights and tokenizer.json. What a folder said about its tokens goes out as it
/// came in, and what it did not say is not invented.
fn files(export: &Export, config: serde_json::Value, tokens: &Tokens) -> Result<Vec<(&'static str, String)>> {
    let text = |json: serde_json::Value| format!("{json:#}\n");
    let companions = &export.companions;
    let kept = |name: &'static str| companions.get(name).map(|text| (name, text.to_owned()));
    let mut files = vec![(CONFIG, text(companions.restore(config)?))];
    if companions.has_model() {
        files.extend(kept(GENERATION));
        files.extend(kept(SETTINGS));
    } else {
        files.push((GENERATION, text(generation_config(export))));
        files.push((SETTINGS, text(tokenizer_config(export, tokens)?)));
    }
    files.extend([TOKEN_MAP, CHAT_TEMPLATE].into_iter().filter_map(kept));
    Ok(files)
}

fn generation_config(export: &Export) -> serde_json::Value {
    json!({
        "bos_token_id": export.begin_token_id(),
        "eos_token_id": export.end_token_id,
        "pad_token_id": export.end_token_id,
    })
}

/// Returns the settings of the tokenizer of a model that xrun trained from the start: those beside its
/// tokenizer.json, or the tokens that begin and end its documents.
fn tokenizer_config(export: &Export, tokens: &Tokens) -> Result<serde_json::Value> {
    let begin = tokens.begin().map(|(_, name)| name);
    let own = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": export.seq_len,
        "bos_token": begin,
        "add_bos_token": begin.is_some(),
        "eos_token": tokens.end,
        "clean_up_tokenization_spaces": false,
    });
    let Some(text) = export.companions.get(SETTINGS) else { return Ok(own) };
    let wrong = |e: &dyn std::fmt::Display| Error::usage(format!("{SETTINGS} beside the tokenizer: {e}"));
    let mut settings: serde_json::Value = serde_json::from_str(text).map_err(|e| wrong(&e))?;
    let fields = settings.as_object_mut().ok_or_else(|| wrong(&"it is not a JSON object"))?;
    if fields.keys().all(|key| key == "eos_token") {
        return Ok(own);
    }
    for (key, value) in [("tokenizer_class", "PreTrainedTokenizerFast"), ("eos_token", tokens.end.as_str())] {
        if fields.get(key).is_none_or(serde_json::Value::is_null) {
            fields.insert(key.to_owned(), value.into());
        }
    }
    Ok(settings)
}

/// The folder to create, and the temporary folder that is renamed to it when complete.
struct Target {
    dir: PathBuf,
    parent: PathBuf,
    temporary: PathBuf,
}

impl Target {
    fn new(dir: &Path) -> Result<Self> {
        let Some(name) = dir.file_name() else {
            return Err(Error::usage(format!("{} is not a valid name for a new folder", dir.display())));
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
            Err(e) => return Err(Error::usage(format!("{} cannot be created: {e}", dir.display()))),
        }
        let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let temporary = parent.join(format!(".tmp-{}-{}", name.to_string_lossy(), std::process::id()));
        Ok(Self { dir: dir.to_path_buf(), parent: parent.to_path_buf(), temporary })
    }

    /// Creates the folder with `content` under its temporary name, durably, and then renames it.
    fn fill(&self, fs: &dyn Fs, content: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        fs::create_dir_all(&self.parent).at("create", &self.parent)?;
        let temporary = &self.temporary;
        if fs::symlink_metadata(temporary).is_ok() {
            // Left by a killed process with the same id.
            fs.remove(temporary).at("remove", temporary)?;
        }
        let made = fs.create_dir(temporary).at("create", temporary).and_then(|()| {
            content(temporary)?;
            fs.sync_dir(temporary).at("sync", temporary)?;
            fs.rename(temporary, &self.dir).at("rename", temporary)?;
            fs.sync_dir(&self.parent).at("sync", &self.parent)
        });
        made.inspect_err(|_| {
            // The caller needs the original error, not an error of the cleanup.
            let _ = fs.remove(temporary);
        })
    }
}
