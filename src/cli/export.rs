//! `xrun export`.

use super::eprint_line;
use crate::checkpoint::{self, Loaded};
use crate::error::{Error, IoContext, Result};
use crate::policy::Communication;
use crate::recipe::WorldSize;
use crate::results::find;
use crate::train::export::{self, Dtype, ExportModel};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// Arguments of `xrun export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its folder or name, or `latest`.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The HuggingFace folder to make; it must not exist, or be empty.
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    /// The element type of the weights.
    #[arg(long, value_enum, default_value = "fp32")]
    pub dtype: Dtype,
    /// The step whose checkpoint to export; without it, the newest that is whole.
    #[arg(long, value_name = "STEP")]
    pub checkpoint: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// When there is no such run, it has no good checkpoint, or no such model can be told to HuggingFace.
pub fn run(args: &Args, results: &Path) -> Result<()> {
    let run = Path::new(&args.run);
    let run = if run.join("checkpoint").is_dir() { run.to_owned() } else { find::find(results, &args.run)? };
    let checkpoint = open(&run, args.checkpoint)?;
    for warning in checkpoint.warnings() {
        eprint_line(&format!("warning: {warning}"));
    }
    let path = run.join("tokenizer.json");
    let tokenizer_json =
        fs::read_to_string(&path).at("read", &path).map_err(|e| Error::usage(e.message()))?;
    let recipe = recipe(&checkpoint)?;
    recipe.check()?;
    let model = model(recipe, &checkpoint, &tokenizer_json, args.dtype)?;
    export::write(&args.to, &model, &checkpoint, &tokenizer_json)?;
    eprint_line(&format!("exported {} to {}", checkpoint.path().display(), args.to.display()));
    Ok(())
}

fn open(run: &Path, step: Option<u64>) -> Result<Loaded> {
    let dir = run.join("checkpoint");
    match step {
        Some(step) => checkpoint::at_step(&dir, step),
        None => checkpoint::newest(&dir)?.ok_or_else(|| {
            Error::usage(format!(
                "{} has no checkpoint: RUN is a run's folder, and checkpoint.interval must have come round once",
                run.display()
            ))
        }),
    }
}

/// The keys of a resolved recipe that an export needs.
#[derive(Deserialize)]
struct Recipe {
    model: ModelKeys,
    training: TrainingKeys,
    #[serde(default)]
    parallelism: ParallelismKeys,
    #[serde(default)]
    engine: EngineKeys,
}

#[derive(Deserialize)]
struct ModelKeys {
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: Option<usize>,
    head_dim: Option<usize>,
    ffn_dim: usize,
    qk_norm: bool,
    rope_theta: f64,
    norm_eps: f64,
    tie_embeddings: bool,
}

#[derive(Deserialize)]
struct TrainingKeys {
    seq_len: usize,
}

#[derive(Default, Deserialize)]
struct ParallelismKeys {
    world_size: Option<WorldSize>,
}

#[derive(Default, Deserialize)]
struct EngineKeys {
    communication: Option<Communication>,
}

impl Recipe {
    /// Refuses what no export should be made of.
    fn check(&self) -> Result<()> {
        let alone = self.parallelism.world_size == Some(WorldSize::Fixed(1));
        if alone || self.engine.communication != Some(Communication::Off) {
            return Ok(());
        }
        Err(Error::usage(
            "this run trained with engine.communication = \"off\": each rank went its own way on its share of the data, and \
             the checkpoint holds rank 0 alone. Such a run measures time; train with engine.communication = \"on\" to export",
        ))
    }
}

/// The recipe that a checkpoint carries.
fn recipe(checkpoint: &Loaded) -> Result<Recipe> {
    toml::from_str(&checkpoint.meta().resolved_recipe_toml).map_err(|e| {
        Error::failed(format!("the recipe in {} cannot be used: {e}", checkpoint.path().display()))
    })
}

/// The model's numbers: from the recipe that the checkpoint carries, and from the embedding the vocabulary.
fn model(recipe: Recipe, checkpoint: &Loaded, tokenizer_json: &str, dtype: Dtype) -> Result<ExportModel> {
    let at = checkpoint.path().display();
    let Some(&[vocab_size, _]) = checkpoint.shape("embedding") else {
        return Err(Error::failed(format!("{at} has no embedding of two dimensions")));
    };
    let m = recipe.model;
    let Some(head_dim) = m.head_dim.or(m.dim.checked_div(m.n_heads)) else {
        return Err(Error::failed(format!("the recipe in {at} has no heads")));
    };
    Ok(ExportModel {
        vocab_size,
        dim: m.dim,
        n_layers: m.n_layers,
        n_heads: m.n_heads,
        n_kv_heads: m.n_kv_heads.unwrap_or(m.n_heads),
        head_dim,
        ffn_dim: m.ffn_dim,
        rope_theta: m.rope_theta,
        norm_eps: m.norm_eps,
        qk_norm: m.qk_norm,
        tie_embeddings: m.tie_embeddings,
        max_position_embeddings: recipe.training.seq_len,
        end_token_id: end_token_id(checkpoint, tokenizer_json)?,
        dtype,
    })
}

/// The token that ended documents in training.
fn end_token_id(checkpoint: &Loaded, tokenizer_json: &str) -> Result<u32> {
    if let Some(id) = checkpoint.meta().extra.get(checkpoint::END_TOKEN_ID) {
        return id.parse().map_err(|_| Error::failed(format!("{id:?} is no token id")));
    }
    let tokenizer = Tokenizer::from_bytes(tokenizer_json)
        .map_err(|e| Error::usage(format!("tokenizer.json is wrong: {e}")))?;
    tokenizer.token_to_id("<|endoftext|>").ok_or_else(|| {
        Error::usage(
            "the tokenizer has no <|endoftext|> and the checkpoint does not say what ends a document",
        )
    })
}
