//! `xrun export`.

use super::terminal::eprint_line;
use super::what::Results;
use crate::checkpoint::{self, Loaded};
use crate::data::Tokenizer;
use crate::data::chat::{TemplateSource, own_template};
use crate::data::tokenizer::GuardedTokenizer;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::gguf_export::{self, Facts};
use crate::model::hf_export::{self, CHAT_TEMPLATE, Dtype, Export, Stored};
use crate::model::hugging_face::Companions;
use crate::model::{FoldedHead, MergedWeights, Weights, WeightsKind};
use crate::plan::{Adapter, Model};
use crate::policy::{AdapterKind, Communication};
use crate::recipe::{Recipe, WorldSize};
use crate::regular;
use crate::results::folder::read_summary;
use crate::results::names::CHECKPOINT;
use crate::results::summary::SourceRecord;
use crate::results::{Summary, find};
use crate::train::{RunWeights, companions, recipe_of, reference, run_with_checkpoint, tokenizer_json};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What an export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A folder in HuggingFace's form, which `xrun import` and transformers load.
    Hf,
    /// One file in GGUF, which llama.cpp loads.
    Gguf,
}

/// Arguments of `xrun export`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run: its folder or name, or `latest`, the newest with a checkpoint.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The HuggingFace folder to create, which must be empty or not exist, or the GGUF file to write.
    #[arg(long, value_name = "PATH")]
    pub to: PathBuf,
    /// What to write.
    #[arg(long, value_enum, default_value = "hf")]
    pub format: Format,
    /// Where results are.
    #[command(flatten)]
    pub results: Results,
    /// The element type of the weights.
    #[arg(long, value_enum, default_value = "fp32")]
    pub dtype: Dtype,
    /// Leave out a folder's xrun-reference.json, the logits that `xrun import` and other programs check their
    /// results against.
    #[arg(long)]
    pub no_reference: bool,
    /// Export the checkpoint of this step [default: the newest complete one].
    #[arg(long, value_name = "STEP")]
    pub checkpoint: Option<u64>,
    /// Which weights of the checkpoint to export: as trained, or their moving average (`ema.decay`).
    #[arg(long, value_enum, value_name = "WEIGHTS", default_value = "training")]
    pub weights: WeightsKind,
    /// Export the model with its adapters merged into the weights, and not the adapters alone, which is the
    /// default of a run that trained some.
    #[arg(long)]
    pub merge: bool,
    /// The model that the adapters were trained on, if its folder has moved [default: the recipe's
    /// model.init_from].
    #[arg(long, value_name = "DIR")]
    pub base: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// If there is no such run, it has no valid checkpoint, or the format cannot express the model.
pub fn run(args: &Args) -> Result<()> {
    let results = args.results.folder.as_path();
    let run = Path::new(&args.run);
    let is_here = run.join(CHECKPOINT).is_dir();
    let run = if is_here { run.to_owned() } else { run_with_checkpoint(results, &args.run)? };
    let checkpoint = open(&run, args.checkpoint)?;
    for warning in checkpoint.warnings() {
        eprint_line(&format!("warning: {warning}"));
    }
    let tokenizer_json = tokenizer_json(&run, &checkpoint)?;
    let recipe = recipe_with_base(&checkpoint, args.base.as_deref())?;
    check(&recipe, &checkpoint)?;
    let mut export = model(&recipe, &checkpoint, &tokenizer_json, args.dtype)?;
    let run_weights = RunWeights::open(&checkpoint, args.weights, &recipe, &export.model)?;
    run_weights.trained.check_finite()?;
    let merged;
    let weights: &dyn Weights = match Adapter::from_recipe(&recipe) {
        None if args.merge => {
            return Err(Error::usage("this run trained the weights and no adapters: leave --merge out"));
        }
        None => &run_weights,
        Some(adapter) if args.merge => {
            merged = MergedWeights::new(&run_weights, adapter, &export.model)?;
            &merged
        }
        Some(_) if args.format == Format::Gguf => {
            return Err(Error::usage(
                "a GGUF file has a whole model: add --merge, since this run trained adapters",
            ));
        }
        Some(adapter) => {
            let base = recipe.values().model.init_from.as_deref();
            hf_export::write_adapter(&args.to, &export, &adapter, &run_weights, base)?;
            eprint_line(&format!(
                "exported the adapters in {} to {}; --merge exports the model with them",
                checkpoint.path().display(),
                args.to.display()
            ));
            return Ok(());
        }
    };
    export.companions = companions(&run)?;
    let texts = texts(&run, &checkpoint)?;
    if let Some(template) = own_template(&run)? {
        export.companions.0.insert(CHAT_TEMPLATE.to_owned(), template);
    }
    if checkpoint.meta().step > 0 {
        export.companions.add_end(export.end_token_id)?;
    }
    let weights = FoldedHead::new(weights, &mut export.model);
    if args.format == Format::Gguf {
        let facts = Facts {
            name: args.to.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            stops: checkpoint.meta().stop_token_ids(),
            chat_template: TemplateSource::in_folder(&run, regular::read)?.map(|source| source.text),
            texts: texts.iter().flat_map(Texts::named).collect(),
        };
        for remark in gguf_export::write(&args.to, &export, &facts, &weights, &tokenizer_json)? {
            eprint_line(&format!("warning: {remark}"));
        }
        say(args, &checkpoint);
        return Ok(());
    }
    export.data = texts.map(|texts| texts.to_json());
    if !args.no_reference {
        // Reports a model that no class covers before computing a forward pass.
        hf_export::check(&export)?;
        let stored = Stored { weights: &weights, dtype: args.dtype };
        export.reference = Some(reference(&recipe, &export.model, &stored, export.end_token_id)?);
    }
    hf_export::write(&args.to, &export, &weights, &tokenizer_json)?;
    say(args, &checkpoint);
    Ok(())
}

/// Says what was exported.
fn say(args: &Args, checkpoint: &Loaded) {
    let what = match args.weights {
        WeightsKind::Training => "",
        WeightsKind::Ema => "the moving average of the weights in ",
    };
    eprint_line(&format!("exported {what}{} to {}", checkpoint.path().display(), args.to.display()));
}

/// Returns the recipe of a checkpoint, with another folder of the model that its adapters were trained on.
fn recipe_with_base(checkpoint: &Loaded, base: Option<&Path>) -> Result<Recipe> {
    let recipe = recipe_of(checkpoint)?;
    let Some(base) = base else { return Ok(recipe) };
    if recipe.values().adapter.kind == AdapterKind::None {
        return Err(Error::usage("--base: this run trained no adapters, so it has all weights itself"));
    }
    let base = toml::Value::from(base.to_string_lossy().into_owned());
    recipe.with_overrides(&[format!("model.init_from={base}")], &Machine::none())
}

/// What a run was trained on: the sources of a mixture, and the cards that the recipe has.
struct Texts {
    corpus_hash: Option<String>,
    card: Option<String>,
    sources: BTreeMap<String, SourceRecord>,
}

impl Texts {
    /// Returns the content of a folder's file.
    fn to_json(&self) -> String {
        let Self { corpus_hash, card, sources } = self;
        let data = json!({ "corpus_hash": corpus_hash, "card": card, "sources": sources });
        format!("{data:#}\n")
    }

    /// Returns the texts with their cards. The text of a recipe without sources has no name of its own.
    fn named(&self) -> Vec<(String, Option<String>)> {
        let sources = self.sources.iter().map(|(name, source)| (name.clone(), source.card.clone()));
        let whole = self.card.clone().map(|card| ("corpus".to_owned(), Some(card)));
        whole.into_iter().chain(sources).collect()
    }
}

/// Returns what a run was trained on; `None` if there is nothing to say.
fn texts(run: &Path, checkpoint: &Loaded) -> Result<Option<Texts>> {
    if !find::has_summary(run) {
        return Ok(None);
    }
    let Summary { corpus_hash, card, sources, .. } = read_summary(run)?;
    if sources.is_empty() && card.is_none() {
        return Ok(None);
    }
    if corpus_hash.as_ref() != Some(&checkpoint.meta().corpus_hash) {
        return Err(Error::failed(format!(
            "the summary of {} names another corpus than {}",
            run.display(),
            checkpoint.path().display()
        )));
    }
    Ok(Some(Texts { corpus_hash, card, sources }))
}

fn open(run: &Path, step: Option<u64>) -> Result<Loaded> {
    let dir = run.join(CHECKPOINT);
    match step {
        Some(step) => checkpoint::at_step(&dir, step),
        None => checkpoint::newest(&dir)?.ok_or_else(|| {
            Error::usage(format!(
                "{} has no checkpoint: RUN is a run's folder, which saves at its end and every checkpoint.interval steps or \
                 checkpoint.minutes, unless checkpoint.keep is 0",
                run.display()
            ))
        }),
    }
}

/// Keys that a stored recipe must set to define what was trained. A recipe to run may leave them to their
/// defaults.
const NEEDED: [&str; 9] = [
    "model.dim",
    "model.n_layers",
    "model.n_heads",
    "model.ffn_dim",
    "model.qk_norm",
    "model.rope_theta",
    "model.norm_eps",
    "model.tie_embeddings",
    "training.seq_len",
];

/// Refuses incomplete recipes, and runs whose checkpoint is not a model that all ranks trained together.
fn check(recipe: &Recipe, checkpoint: &Loaded) -> Result<()> {
    if let Some(missing) = NEEDED.iter().find(|key| recipe.locate(key).is_none()) {
        let at = checkpoint.path().display();
        return Err(Error::failed(format!("the recipe in {at} cannot be used: it has no {missing}")));
    }
    let values = recipe.written();
    let alone = values.parallelism.world_size == WorldSize::Fixed(1);
    if alone || values.engine.communication != Communication::Off {
        return Ok(());
    }
    Err(Error::usage(
        "this run trained with engine.communication = \"off\": each rank trained on its part of the data alone, and the \
         checkpoint holds rank 0's parameters. Such a run measures time; train with engine.communication = \"on\" to \
         export",
    ))
}

/// Builds the model of a checkpoint: dimensions from its recipe, the vocabulary size from its embedding.
fn model(recipe: &Recipe, checkpoint: &Loaded, tokenizer_json: &str, dtype: Dtype) -> Result<Export> {
    let tokenizer =
        Tokenizer::from_run(tokenizer_json.to_owned(), Some(end_token_id(checkpoint, tokenizer_json)?))?;
    let tokenizer = tokenizer.beginning_with(recipe.values().data.begin_token.as_deref())?;
    let vocab_size = match checkpoint.shape("embedding") {
        Some(&[vocab_size, _]) => vocab_size,
        None if recipe.values().adapter.kind != AdapterKind::None => tokenizer.vocab_size(),
        _ => {
            let at = checkpoint.path().display();
            return Err(Error::failed(format!("{at} has no two-dimensional embedding")));
        }
    };
    Ok(Export {
        model: Model::from_recipe(recipe, vocab_size)?,
        seq_len: recipe.values().training.seq_len,
        end_token_id: tokenizer.end_token(),
        begin: tokenizer.begins(),
        dtype,
        reference: None,
        companions: Companions::default(),
        data: None,
    })
}

/// Returns the token that ended documents in training.
fn end_token_id(checkpoint: &Loaded, tokenizer_json: &str) -> Result<u32> {
    if let Some(id) = checkpoint.meta().extra.get(checkpoint::END_TOKEN_ID) {
        return id
            .parse()
            .map_err(|_| Error::failed(format!("the checkpoint's end token {id:?} is not a token id")));
    }
    let tokenizer = GuardedTokenizer::parse(tokenizer_json)?;
    tokenizer.token_to_id("<|endoftext|>").ok_or_else(|| {
        Error::usage(
            "the tokenizer has no <|endoftext|> and the checkpoint does not say what ends a document",
        )
    })
}
